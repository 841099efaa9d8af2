//! Lets the script decide the charges of one slot, and corrects wrong assumptions of a request.

use smallvec::SmallVec;

use crate::store::Charge;
use crate::store::redis::charge::prepared::{PreparedCharge, update_overrides};
use crate::store::redis::charge::requests;
use crate::store::redis::error::Fault;
use crate::store::redis::script::{Task, TimedReply, encode_clock};
use crate::store::redis::store::RedisStore;

/// The maximum number of round trips for one decision, including clock corrections. It is reached only if overrides keep
/// changing.
const MAX_TRIPS: usize = 64;

/// The maximum number of round trips that fail because Redis' clock is in none of the calendar windows of the request:
/// two, if Redis' clock is set in between.
const MAX_CLOCK_CORRECTIONS: usize = 2;

impl RedisStore {
    /// Prepares charges, with the cached overrides of their keys.
    pub(super) fn prepare(&self, charges: &[Charge<'_>]) -> SmallVec<[PreparedCharge; 2]> {
        charges.iter().map(|charge| PreparedCharge::new(charge, &self.overrides)).collect()
    }

    /// Lets the script decide `charges`. If an override has changed, or Redis' clock is in another calendar window, the
    /// script decides nothing, and this corrects and repeats the request.
    pub(super) async fn perform(&self, task: Task, clock: Option<u64>, charges: &mut [PreparedCharge]) -> TimedReply {
        let mut now =
            if charges.iter().any(PreparedCharge::is_calendar) { clock.unwrap_or_else(|| self.local_now()) } else { 0 };
        let mut corrections = 0..MAX_CLOCK_CORRECTIONS;
        for _ in 0..MAX_TRIPS {
            let request = requests::decide(&self.prefix, task, now, charges);
            match self.deployment.ask(clock.map(encode_clock), request).await {
                Ok((_, reply)) if reply.has_override_changed() => update_overrides(charges, &reply, &self.overrides)?,
                Ok(reply) => return Ok(reply),
                Err(fault) => match fault.redis_clock().filter(|_| corrections.next().is_some()) {
                    Some(redis_clock) => now = redis_clock,
                    None => return Err(fault),
                },
            }
        }
        Err(Fault::Changing)
    }
}
