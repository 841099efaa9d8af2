//! A worker that limits jobs by tenant, without HTTP: `cargo run --example worker_queue`.
//!
//! A job over the limit of its tenant goes back to the queue until it is due, so that it does not
//! block the jobs of other tenants.

use std::error::Error;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower_ratelimit::{FixedWindow, Limit, Limiter, TokenBucket};

struct Job {
    tenant: &'static str,
    number: u32,
}

/// Sends the job back after `wait`.
fn retry_later(job: Job, wait: std::time::Duration, queue: &UnboundedSender<Job>) {
    let queue = queue.clone();
    tokio::spawn(async move {
        tokio::time::sleep(wait).await;
        // The worker may have stopped.
        let _ = queue.send(job);
    });
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Each tenant may run two jobs a second, and 1,000 a day. Several workers need a `RedisStore`.
    let limiter = Limiter::new([
        Limit::new("jobs", TokenBucket::per_second(2)),
        Limit::new("daily", FixedWindow::per_day(1_000)),
    ]);

    let (queue, mut jobs) = unbounded_channel();
    for number in 1..=4 {
        queue.send(Job { tenant: "ann", number })?;
    }
    queue.send(Job { tenant: "bob", number: 1 })?;

    let mut done = 0;
    while done < 5 {
        let job = jobs.recv().await.expect("`queue` keeps the channel open");
        let decision = limiter.acquire(job.tenant, 1).await?;
        match decision.retry_after() {
            Some(wait) => {
                println!("{} {}: later", job.tenant, job.number);
                retry_later(job, wait, &queue);
            }
            None => {
                println!("{} {}: done", job.tenant, job.number);
                done += 1;
            }
        }
    }
    Ok(())
}
