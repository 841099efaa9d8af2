//! What a limit says of a key that it may have denied too often.

use super::shard::Shard;
use super::table::Rank;
use crate::algorithm::{Availability, Penalty};
use crate::decision::Outcome;
use crate::limit_spec::Penalised;
use crate::store::Charge;

/// What room there is for a charge where its limit has `room`.
pub(super) fn room(shard: &Shard, charge: &Charge<'_>, by: &Penalised, room: Availability, now: u64) -> Availability {
    // What costs nothing is always allowed.
    if charge.cost == 0 { room } else { Penalty::restrict(&shard.record(print(charge, by)), now, room) }
}

/// Counts a denial that was `asked` for as a strike, and applies the penalty to the limit's own `outcome`, which knows
/// what [`room`] there is.
///
/// At `most` keys, a new key's strikes displace another key, but none of the request's own, which are `spared`.
#[expect(
    clippy::too_many_arguments,
    reason = "the request's instant, its keys and the bound of the store belong to it"
)]
pub(super) fn outcome(
    shard: &mut Shard,
    charge: &Charge<'_>,
    by: &Penalised,
    outcome: Outcome,
    asked: bool,
    spared: &[u128],
    most: usize,
    now: u64,
) -> Outcome {
    let mut room = outcome.availability();
    let mut record = shard.record(print(charge, by));
    let mut begun = None;
    if asked && by.counts && !room.is_now() && Penalty::locked_for(&record, now) == 0 {
        let mut struck = record;
        let sentence = by.penalty.strike(&mut struck, now);
        // A key whose requests can never pass takes nothing from the limit. Its strikes are evicted first and displace
        // no denied key, or else a flood of such requests would lift the limits of others.
        let rank = if room == Availability::Never { Rank::LOWEST } else { Rank::DENIED };
        // A strike that is not kept has no effect.
        if shard.keep(print(charge, by), struck, rank, spared, most, now) {
            (record, begun) = (struck, sentence);
            room = Penalty::restrict(&record, now, room);
        }
    }
    let standing = Penalty::restrict_snapshot(&record, now, outcome.snapshot());
    let outcome = Outcome::new(charge.subject(), room, outcome.mark, standing);
    if Penalty::locked_for(&record, now) > 0 { outcome.penalised(begun) } else { outcome }
}

/// Where the strikes of a charge's key are kept.
pub(super) fn print(charge: &Charge<'_>, by: &Penalised) -> u128 {
    charge.spec.print(charge.key) ^ by.mask
}
