//! A worker that limits jobs by tenant, without HTTP: `cargo run --example worker_queue`.
//!
//! A job over the limit of its tenant goes back to the queue until it is due, so that it does not
//! block the jobs of other tenants.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{AcquireError, CallError, FixedWindow, Limit, Limiter, TokenBucket};

#[derive(Clone)]
struct Job {
    tenant: &'static str,
    number: u32,
}

async fn run(job: Job) -> Result<(), Infallible> {
    println!("{} {}: done", job.tenant, job.number);
    Ok(())
}

/// Sends the job back after `wait`.
fn retry_later(job: Job, wait: Duration, queue: &UnboundedSender<Job>) {
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
    let limits = limiter.layer(|job: &Job| job.tenant);
    let mut worker = ServiceBuilder::new().layer(limits).service(service_fn(run));

    let (queue, mut jobs) = unbounded_channel();
    for number in 1..=4 {
        queue.send(Job { tenant: "ann", number })?;
    }
    queue.send(Job { tenant: "bob", number: 1 })?;

    let mut done = 0;
    while done < 5 {
        let job = jobs.recv().await.expect("`queue` keeps the channel open");
        match worker.ready().await?.call(job.clone()).await {
            Ok(()) => done += 1,
            Err(CallError::Limited(AcquireError::Denied { retry_after: Some(wait), .. })) => {
                println!("{} {}: later", job.tenant, job.number);
                retry_later(job, wait, &queue);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
