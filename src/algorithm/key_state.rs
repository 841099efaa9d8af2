//! The state of a key under any algorithm.

use super::log::Log;
use super::settings::Algorithm;
use super::state::{CompactState, State};

/// The state of a key under any algorithm.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyState {
    Compact(CompactState),
    Log(Log),
}

impl KeyState {
    /// Returns the state of an unused key.
    pub(crate) fn unused(algorithm: &Algorithm) -> Self {
        if algorithm.keeps_log() { Self::Log(Log::default()) } else { Self::Compact(CompactState::UNUSED) }
    }

    pub(crate) fn as_state(&self) -> &dyn State {
        match self {
            Self::Compact(state) => state,
            Self::Log(log) => log,
        }
    }

    pub(crate) fn as_state_mut(&mut self) -> &mut dyn State {
        match self {
            Self::Compact(state) => state,
            Self::Log(log) => log,
        }
    }
}
