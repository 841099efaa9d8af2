//! What a limit says of a key that it may have denied too often.

use super::shard::Shard;
use super::table::Rank;
use crate::algorithm::{Penalty, Room};
use crate::decision::Outcome;
use crate::store::Charge;
use crate::terms::Penalised;

/// What room there is for a charge where its limit has `room`.
pub(super) fn room(shard: &Shard, charge: &Charge<'_>, by: &Penalised, room: Room, now: u64) -> Room {
    // What costs nothing is always allowed.
    if charge.cost == 0 { room } else { Penalty::room(&shard.record(print(charge, by)), now, room) }
}

/// Notes a denial that was `asked` for, for which at `most` keys another makes way, and says what comes of
/// the limit's own `outcome`, which knows what [`room`] there is.
pub(super) fn outcome(
    shard: &mut Shard,
    charge: &Charge<'_>,
    by: &Penalised,
    outcome: Outcome,
    asked: bool,
    most: usize,
    now: u64,
) -> Outcome {
    let mut room = outcome.room();
    let mut record = shard.record(print(charge, by));
    let mut begun = None;
    if asked && by.counts && !room.is_now() && Penalty::left(&record, now) == 0 {
        let mut struck = record;
        let sentence = by.penalty.strike(&mut struck, now);
        let rank = match by.penalty.strikes(&struck, now) {
            // What can never pass leaves nothing else behind: a flood of it is to displace nobody.
            _ if room == Room::Never => Rank::near(0, 1),
            (0, _) => Rank::DENIED,
            (strikes, of) => Rank::near(strikes, of),
        };
        // What is not kept is not told.
        if shard.keep(print(charge, by), struck, rank, most, now) {
            (record, begun) = (struck, sentence);
            room = Penalty::room(&record, now, room);
        }
    }
    let standing = Penalty::standing(&record, now, outcome.standing());
    let outcome = Outcome::new(charge.subject(), room, outcome.mark, standing);
    if Penalty::left(&record, now) > 0 { outcome.penalised(begun) } else { outcome }
}

fn print(charge: &Charge<'_>, by: &Penalised) -> u128 {
    charge.terms.print(charge.key) ^ by.mask
}
