//! Denials that are repeated in this process, so that a flood of denied requests does not reach the database.
//!
//! A cached denial consists of the states of the request's keys, and the time of the answer. The algorithms decide by
//! these states, so that a request with a smaller cost or a raised limit is sent to the database if it would be allowed.
//! Only denials are answered here.
//!
//! The present instant of the database's clock may not be known here, but it has bounds: its clock at the answer, plus
//! the time since the answer was received or since the request was sent. A request is denied if it is denied at the
//! upper bound, with the `retry_after` of the lower bound. So the database would have denied it, and admits a client
//! that returns after the wait.
//!
//! Each change that this process makes to a key (a charge, a refund, a reset, an override) advances the key's
//! [epoch](epochs) once it is complete or was given up. A denial is not repeated if a limit that denied is in a later
//! epoch than when the request was sent, even if the two answers arrive in another order.
//!
//! Denials by a limit with a penalty are strikes that the database has to count. So a denial of such a limit is cached
//! only if it was no strike, and repeated only while the key is locked out. Any change of the key ends it.

mod cache;
mod denial;
mod epochs;
mod invalidation;
mod log_summary;
#[cfg(test)]
mod tests;

pub(super) use self::cache::DenialCache;
pub(super) use self::invalidation::Invalidation;
