//! Limits from files.

mod broken;
mod document;
mod fields;
mod matching;
mod outage;
mod random;
mod reference;
mod requests;
mod service;
