//! What one key remembers.

/// What a key remembers under every limit but the logs: sixteen bytes, which mean what the
/// limit's algorithm says. All zero is a key that was never seen.
///
/// `until` is the instant, in µs, from which the record means nothing any more, so that a store
/// can drop it without knowing the algorithm. (A bucket that takes over 292,000 years to fill
/// keeps the bits that don't fit in `detail`.)
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Record {
    pub(crate) until: u64,
    pub(crate) detail: u64,
}

impl Record {
    pub(crate) const EMPTY: Self = Self { until: 0, detail: 0 };
}
