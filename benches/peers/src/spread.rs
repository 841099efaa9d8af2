//! Medians and their spread.

use std::fmt;

/// The median, and the tenth and ninetieth percentiles.
#[derive(Clone, Copy)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let [low, median, high] = [1, 5, 9].map(|tenth| sorted[(sorted.len() - 1) * tenth / 10]);
        Self { low, median, high }
    }

    /// Returns the ratio of two subjects, round by round.
    pub fn ratio(samples: &[f64], to: &[f64]) -> Self {
        let ratios: Vec<f64> = samples.iter().zip(to).map(|(sample, to)| sample / to).collect();
        Self::of(&ratios)
    }

    /// Returns the difference of two subjects, round by round.
    pub fn above(samples: &[f64], other: &[f64]) -> Self {
        let above: Vec<f64> = samples.iter().zip(other).map(|(sample, other)| sample - other).collect();
        Self::of(&above)
    }
}

/// Formats ratios with two decimals, and larger numbers with none.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, median, high } = self;
        let digits = if median.abs() < 10.0 { 2 } else { usize::from(median.abs() < 100.0) };
        write!(f, "{median:.digits$} ({low:.digits$} to {high:.digits$})")
    }
}
