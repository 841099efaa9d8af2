//! The codec of penalties.

use super::{ScriptArgs, StoredState};
use crate::algorithm::Penalty;
use crate::record::Record;

/// The numbers that a script counts strikes by. Zero denials stand for none that count.
pub(in crate::store::redis) fn args(penalty: &Penalty, counts: bool) -> ScriptArgs {
    let denials = if counts { penalty.denials } else { 0 };
    let [within, first] = [penalty.within, penalty.first];
    let [longest, kept] = [penalty.longest.unwrap_or(first), penalty.kept.unwrap_or(0)];
    [denials.into(), within as f64, first as f64, longest as f64, kept as f64].into_iter().collect()
}

/// The state of a key that holds `stored`, or `None` if no script can have stored that.
pub(in crate::store::redis) fn decode(stored: &[StoredState]) -> Option<Record> {
    let Some(stored) = stored.first() else { return Some(Record::EMPTY) };
    let [low, high] = stored.counts.map(u64::from);
    Some(Record { until: stored.instant()?, detail: high << 32 | low })
}
