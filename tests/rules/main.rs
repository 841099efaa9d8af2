//! Limits from files.

mod broken;
mod concurrency;
mod costs;
mod document;
mod dry_run;
mod fields;
mod live;
mod matching;
mod metrics;
mod outage;
mod penalty;
mod random;
mod reference;
mod replaced;
mod requests;
mod service;
mod spellings;
mod work;
