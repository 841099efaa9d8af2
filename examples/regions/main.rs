//! A process of a region that is far from its Redis. Most requests are decided by leased tokens, without a round trip,
//! and the limit holds for all regions together. Start one for each region at the same time:
//! `cargo run --example regions --features regions -- redis://127.0.0.1:6379 ann`
//! The last argument is the key. A key that was used has less left of its day.

use std::error::Error;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep_until};
use tower_ratelimit::{DecidedBy, FixedWindow, Limit, Limiter, RedisConfig, StoreError};

const ROUND_TRIP: Duration = Duration::from_millis(80);

/// The requests that each process sends, one every 2 ms.
const REQUESTS: u32 = 1_000;

/// Creates the limiter of this region. Opening a connection takes several round trips.
async fn limiter(redis: &str) -> Result<Limiter, StoreError> {
    // Of six round trips, so that about a sixth of the requests for a busy key wait for a call.
    let limit = Limit::new("requests", FixedWindow::per_day(1_500)).leased(6 * ROUND_TRIP);
    let redis = RedisConfig::node(redis).connections(8).connect_timeout(Duration::from_secs(5));
    let store = redis.connect().await?.secret(*b"0123456789abcdef");
    Ok(Limiter::builder([limit]).store(store).deadline(4 * ROUND_TRIP).build())
}

struct Answer {
    is_allowed: bool,
    decided_by: DecidedBy,
    took: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let key = arguments.next().unwrap_or_else(|| "ann".to_owned());
    let limiter = limiter(&far_away(&redis).await?).await?;

    let mut requests = JoinSet::new();
    let mut ticks = interval(Duration::from_millis(2));
    for _ in 0..REQUESTS {
        ticks.tick().await;
        let (limiter, key) = (limiter.clone(), key.clone());
        requests.spawn(async move {
            let began = Instant::now();
            let decision = limiter.acquire(key, 1).await?;
            let (is_allowed, decided_by) = (decision.is_allowed(), decision.decided_by());
            Ok::<_, StoreError>(Answer { is_allowed, decided_by, took: began.elapsed() })
        });
    }
    let answers = requests.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    print(answers);
    Ok(())
}

fn print(answers: Vec<Answer>) {
    let allowed = answers.iter().filter(|answer| answer.is_allowed).count();
    println!("{} requests: {allowed} allowed, {} denied", answers.len(), answers.len() - allowed);
    let (with_call, without): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.decided_by == DecidedBy::Store);
    // Such a request has waited until the call of another one has brought tokens.
    let waited = without.iter().filter(|answer| answer.took > ROUND_TRIP / 8).count();
    println!("{} without a call, of which {waited} waited for that of another request", without.len());
    let mut times: Vec<_> = with_call.iter().map(|answer| answer.took.as_millis()).collect();
    times.sort_unstable();
    if let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) {
        println!("{} with a call, in {median} ms (median), at most {longest} ms", times.len());
    }
}

/// Returns the URL of a proxy that delays what is sent to Redis, and what it answers.
async fn far_away(redis: &str) -> Result<String, Box<dyn Error>> {
    let address = redis.strip_prefix("redis://").ok_or("expected redis://HOST:PORT")?.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = format!("redis://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&address).await else { continue };
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            tokio::spawn(delay(from_client, to_server));
            tokio::spawn(delay(from_server, to_client));
        }
    });
    Ok(proxy)
}

/// Copies bytes, each half a round trip later.
async fn delay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
    let (sender, mut under_way) = unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((arrival, bytes)) = under_way.recv().await {
            sleep_until(arrival).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 16_384];
    loop {
        let length = from.read(&mut buffer).await?;
        let arrival = Instant::now() + ROUND_TRIP / 2;
        if length == 0 || sender.send((arrival, buffer[..length].to_vec())).is_err() {
            return Ok(());
        }
    }
}
