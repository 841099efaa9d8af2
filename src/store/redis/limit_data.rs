//! What the store derives from a limit, once.

use std::sync::Arc;

use super::{ask, key};
use crate::store::LimitSpec;

/// The parts of names and arguments that are the same for all keys of a limit.
pub(super) struct LimitData {
    /// What follows the hash in the names of its keys.
    pub(super) label: String,
    /// The arguments of a charge of one token, unless they depend on the key or the time.
    pub(super) args_of_one: Option<Arc<[u8]>>,
}

impl LimitData {
    pub(super) fn of(spec: &LimitSpec) -> Arc<Self> {
        spec.store_data(|| Self { label: key::label(spec), args_of_one: ask::args_of_one(spec) })
    }
}
