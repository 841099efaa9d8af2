//! What a limit says of a key that it may have denied too often.

use super::shard::Shard;
use super::table::Rank;
use crate::algorithm::{Penalty, Room, Standing};
use crate::decision::Outcome;
use crate::record::Record;
use crate::store::Charge;
use crate::terms::Penalised;

/// What room there is for a charge where its limit has `room`.
pub(super) fn room(shard: &Shard, print: u128, by: &Penalised, room: Room, now: u64) -> Room {
    Penalty::room(&shard.record(print ^ by.mask), now, room)
}

/// What a charge is told, once it is decided: `room` with its penalty, and what its limit says besides.
pub(super) struct Told {
    pub(super) room: Room,
    pub(super) mark: Record,
    pub(super) standing: Standing,
    /// Whether a denial counts.
    pub(super) asked: bool,
}

impl Told {
    /// Notes a denial, for which at `most` keys another makes way, and says what comes of it.
    pub(super) fn outcome(
        self,
        shard: &mut Shard,
        print: u128,
        charge: &Charge<'_>,
        by: &Penalised,
        most: usize,
        now: u64,
    ) -> Outcome {
        let Self { mut room, mark, standing, asked } = self;
        let Penalised { penalty, mask, counts } = by;
        let mut record = shard.record(print ^ mask);
        let mut begun = None;
        if asked && *counts && !room.is_now() && Penalty::left(&record, now) == 0 {
            let mut struck = record;
            let sentence = penalty.strike(&mut struck, now);
            let rank = match penalty.strikes(&struck, now) {
                // What can never pass leaves nothing else behind: a flood of it is to displace nobody.
                _ if room == Room::Never => Rank::of(1, 1),
                (0, _) => Rank::DENIED,
                (strikes, of) => Rank::of(of.saturating_sub(strikes), of),
            };
            // What is not kept is not told.
            if shard.keep(print ^ mask, struck, rank, most, now) {
                (record, begun) = (struck, sentence);
                room = Penalty::room(&record, now, room);
            }
        }
        let outcome = Outcome::new(charge.subject(), room, mark, Penalty::standing(&record, now, standing));
        if Penalty::left(&record, now) > 0 { outcome.penalised(begun) } else { outcome }
    }
}
