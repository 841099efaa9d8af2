//! Shows what a change of a rules file would deny, by recorded requests:
//!
//! ```sh
//! cargo run --example dry_run --features policies -- old.yaml new.yaml requests.jsonl
//! ```
//!
//! With a single file of rules, it shows what that would deny. `recording.rs` describes the format of requests.
//!
//! Try it with the files beside this one:
//!
//! ```sh
//! cd examples/dry_run
//! cargo run --example dry_run --features policies -- old.yaml new.yaml requests.jsonl
//! ```

mod recording;

use std::env;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::ExitCode;

use tower_ratelimit::dry_run::{Comparison, DryRun};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{RateLimitLayer, RequestHead};

use crate::recording::Recorded;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let paths: Vec<String> = env::args().skip(1).collect();
    let run = match &paths[..] {
        [rules, requests] => dry_run(rules, requests).await,
        [old, new, requests] => compare(old, new, requests).await,
        _ => Err("usage: dry_run [OLD.yaml] RULES.yaml REQUESTS.jsonl".into()),
    };
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn dry_run(rules: &str, requests: &str) -> Result<(), Box<dyn Error>> {
    let mut run = load(rules)?;
    for request in read(requests)? {
        let Recorded { at, request } = request?;
        run.request(at, &RequestHead::of(&request)).await;
    }
    println!("{}", run.report);
    Ok(())
}

async fn compare(old: &str, new: &str, requests: &str) -> Result<(), Box<dyn Error>> {
    let mut comparison = Comparison::new(load(old)?, load(new)?);
    for request in read(requests)? {
        let Recorded { at, request } = request?;
        comparison.request(at, &RequestHead::of(&request)).await;
    }
    println!("{comparison}");
    Ok(())
}

fn load(rules: &str) -> Result<DryRun, Box<dyn Error>> {
    let limits = rules::from_file(rules, &Extractors::new())?;
    Ok(DryRun::from_builder(RateLimitLayer::builder(limits))?)
}

/// Reads recorded requests, one in a line.
fn read(path: &str) -> Result<impl Iterator<Item = Result<Recorded, Box<dyn Error>>>, Box<dyn Error>> {
    let file = File::open(path).map_err(|error| format!("{path} can't be read: {error}"))?;
    let path = path.to_owned();
    let lines = BufReader::new(file).lines().zip(1..);
    let lines = lines.filter(|(line, _)| line.as_ref().map_or(true, |line| !line.trim().is_empty()));
    Ok(lines
        .map(move |(line, number)| Recorded::parse(&line?).map_err(|error| format!("{path}:{number}: {error}").into())))
}
