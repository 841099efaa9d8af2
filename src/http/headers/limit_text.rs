//! The parts of headers that are the same in all responses.

use http::HeaderValue;

use crate::algorithm::Algorithm;
use crate::decision::Outcome;
use crate::http::text::number;
use crate::limit::Limit;

/// The parts of headers that are the same in all responses, for one limit.
#[derive(Clone, Debug)]
pub(super) struct LimitText {
    /// `"name"`
    pub(super) name: String,
    /// `20`
    pub(super) capacity: HeaderValue,
    algorithm: Algorithm,
}

impl LimitText {
    pub(super) fn new(limit: &Limit) -> Self {
        let name = limit.name().replace('\\', r"\\").replace('"', "\\\"");
        let algorithm = *limit.algorithm();
        Self { name: format!("\"{name}\""), capacity: number(algorithm.capacity()), algorithm }
    }

    /// Returns whether the limit has its own numbers in an outcome, whatever its overage.
    pub(super) fn is_of(&self, outcome: &Outcome) -> bool {
        Algorithm { overage: 0, ..*outcome.algorithm() } == self.algorithm
    }
}
