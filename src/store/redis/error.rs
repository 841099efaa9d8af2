//! What can go wrong between a store and its server.

use std::fmt;
use std::sync::Arc;

use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind};
use deadpool_redis::{BuildError, ConfigError, PoolError};

use crate::error::StoreError;

/// Why Redis gave no answer; those whose requests left together share it. What clients of a service see never shows it.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The URL is not one of Redis.
    Url(Arc<ConfigError>),
    /// There can be no pool.
    Build(Arc<BuildError>),
    /// No connection could be had.
    Connect(Arc<PoolError>),
    /// A call failed, on the way or there.
    Call(Arc<RedisError>),
    /// A script could not decide a request: a key of another type, no memory left, a replica.
    Script(String),
    /// The reply is not one that the script gives.
    Reply(&'static str),
    /// There is no URL to ask for a Cluster's masters.
    NoSeeds,
    /// No master of a Cluster is known to have a slot.
    Slot(u16),
}

/// Where a Cluster says that a slot is: an address, or a port of the host that said so.
#[derive(Debug)]
pub(super) enum Redirect<'a> {
    /// There for good.
    Moved(&'a str),
    /// On its way there: what has left is found there, this once.
    Ask(&'a str),
}

impl Fault {
    pub(super) fn url(error: RedisError) -> Self {
        ConfigError::from(error).into()
    }

    /// Whether a connection is of no use any more: it was lost, or its server is no longer the
    /// master, which a connection outlives.
    pub(super) fn breaks(&self) -> bool {
        let replica = |code: &str| matches!(code, "READONLY" | "MASTERDOWN");
        match self {
            Self::Call(error) => error.is_unrecoverable_error() || error.code().is_some_and(replica),
            Self::Script(error) => error.split_whitespace().take(2).any(|word| replica(word.trim_start_matches('-'))),
            _ => false,
        }
    }

    /// Whether it says more of a server than of a request: that it can't be reached, or has other slots.
    pub(super) fn is_of_a_server(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Call(_))
    }

    /// Whether nothing was sent, so that nothing can have run.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self, Self::Connect(_))
    }

    /// Whether the keys of a call are not all in one place, as their slot is on its way.
    pub(super) fn is_half_moved(&self) -> bool {
        matches!(self, Self::Call(error) if error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain))
    }

    /// Where a Cluster has what was asked for. Nothing ran.
    pub(super) fn redirect(&self) -> Option<Redirect<'_>> {
        let Self::Call(error) = self else { return None };
        let (address, _) = error.redirect_node()?;
        Some(match error.kind() {
            ErrorKind::Server(ServerErrorKind::Ask) => Redirect::Ask(address),
            _ => Redirect::Moved(address),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(_) => write!(f, "the URL of Redis can't be read: write redis://host:port"),
            Self::Build(_) => write!(f, "no pool of connections to Redis can be built"),
            Self::Connect(_) => write!(f, "there is no connection to Redis: check that it runs and can be reached"),
            Self::Call(_) => write!(f, "a call of Redis failed"),
            Self::Script(error) => write!(f, "Redis could not decide: {error}"),
            Self::NoSeeds => write!(f, "there is no URL: give one of a Cluster's masters, or better of several"),
            Self::Slot(slot) => write!(
                f,
                "no master of the Cluster is known to have the slot {slot}: \
                 check by CLUSTER INFO that all slots are assigned"
            ),
            Self::Reply(what) => write!(
                f,
                "Redis answered what the script never does, {what}: \
                 check that nothing else writes keys of this prefix, and that no proxy alters replies"
            ),
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Url(source) => Some(&**source),
            Self::Build(source) => Some(&**source),
            Self::Connect(source) => Some(&**source),
            Self::Call(source) => Some(&**source),
            Self::Script(_) | Self::Reply(_) | Self::NoSeeds | Self::Slot(_) => None,
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        Self::new(fault)
    }
}

impl From<ConfigError> for Fault {
    fn from(error: ConfigError) -> Self {
        Self::Url(Arc::new(error))
    }
}

impl From<BuildError> for Fault {
    fn from(error: BuildError) -> Self {
        Self::Build(Arc::new(error))
    }
}

impl From<PoolError> for Fault {
    fn from(error: PoolError) -> Self {
        Self::Connect(Arc::new(error))
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        Self::Call(Arc::new(error))
    }
}
