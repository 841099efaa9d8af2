//! Charges on their way to the script and back: encoded as requests, and decoded as outcomes.

pub(super) mod outcomes;
pub(super) mod override_cache;
pub(super) mod prepared;
pub(super) mod requests;
pub(super) mod states;
