//! The state of a key under any algorithm.

use super::log::Log;
use super::state::CompactState;

/// The state of a key under one limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyState {
    Compact(CompactState),
    Log(Log),
}

/// A reference to the state of a key, wherever it is stored.
#[derive(Debug)]
pub(crate) enum StateMut<'a> {
    Compact(&'a mut CompactState),
    Log(&'a mut Log),
}

impl StateMut<'_> {
    /// Returns the instant, in µs, from which the state means the same as that of an unused key. 0 for an unused key.
    pub(crate) fn expires_at(&self) -> u64 {
        match self {
            Self::Compact(state) => state.expires_at,
            Self::Log(log) => log.expires_at,
        }
    }

    /// Returns a copy of the state.
    pub(crate) fn to_owned(&self) -> KeyState {
        match self {
            Self::Compact(state) => KeyState::Compact(**state),
            Self::Log(log) => KeyState::Log((*log).clone()),
        }
    }
}

impl KeyState {
    pub(crate) fn as_mut(&mut self) -> StateMut<'_> {
        match self {
            Self::Compact(state) => StateMut::Compact(state),
            Self::Log(log) => StateMut::Log(log),
        }
    }

    /// Returns the instant, in µs, from which the state means the same as that of an unused key. 0 for an unused key.
    pub(crate) fn expires_at(&self) -> u64 {
        match self {
            Self::Compact(state) => state.expires_at,
            Self::Log(log) => log.expires_at,
        }
    }
}
