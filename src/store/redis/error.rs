//! What can go wrong between a store and its server.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::StoreError;
use crate::node::Node;

/// Why Redis gave no answer; those whose requests left together share it. What clients of a service see never shows it.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The URL is not one of Redis.
    Url(RedisError),
    /// A setting is refused.
    Setting(Cow<'static, str>),
    /// No connection could be had, so that nothing was sent.
    Connect(Arc<Fault>),
    /// The server can't be reached.
    Unreachable(RedisError),
    /// It refused the user or the password, or wants some.
    Credentials(RedisError),
    /// The user lacks a permission, for a command or for a key: what the server says of it.
    Permission(String),
    /// It reads its data, and answers nothing until then.
    Loading(RedisError),
    /// It is a replica, or a master that lost its rank.
    NotMaster(RedisError),
    /// Sentinel names no master that answers.
    NoMaster(RedisError),
    /// No reply came in time: it may have decided, or not.
    Lost(RedisError),
    /// A call failed, on the way or there.
    Call(RedisError),
    /// The runtime ended that was to connect.
    NoRuntime,
    /// A script could not decide a request: a key of another type, no memory left, a replica.
    Script(String),
    /// The reply is not one that the script gives.
    Reply(&'static str),
    /// Overrides change faster than they can be read.
    Changing,
    /// There is no URL to ask for a Cluster's masters.
    NoSeeds,
    /// No master of a Cluster is known to have a slot.
    Slot(u16),
    /// A master of a Cluster failed.
    At(Node, Box<Fault>),
    /// As many requests wait for the server as may. This one was not sent.
    QueueFull { waiting: usize },
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
    /// What is wrong with a URL, or with what stands in it.
    pub(super) fn url(error: RedisError) -> Self {
        Self::Url(error)
    }

    /// The error of one request that the script could not decide, in the server's words.
    pub(super) fn script(error: String) -> Self {
        if is_of_a_permission(&error) { Self::Permission(error) } else { Self::Script(error) }
    }

    /// What kept a connection from being opened.
    pub(super) fn unconnected(error: RedisError) -> Self {
        match Self::from(error) {
            Self::Call(error) | Self::Lost(error) | Self::Url(error) => Self::Unreachable(error),
            fault => fault,
        }
    }

    /// Whether a connection is of no use any more: it was lost, or its server is no longer the
    /// master, which a connection outlives.
    pub(super) fn breaks(&self) -> bool {
        match self {
            Self::NotMaster(_) | Self::Lost(_) => true,
            Self::Call(error) | Self::Credentials(error) => error.is_unrecoverable_error() || error.is_io_error(),
            Self::Script(error) => codes(error).any(|code| matches!(code, "READONLY" | "MASTERDOWN")),
            _ => false,
        }
    }

    /// Whether Redis works, and another request would be decided: a key holds what is not ours, or Redis' clock is
    /// set again and again.
    fn is_of_one_request(&self) -> bool {
        match self {
            Self::Script(error) => codes(error).any(|code| matches!(code, "WRONGTYPE" | "UNREADABLE" | "OUTSIDE")),
            Self::Changing => true,
            _ => false,
        }
    }

    /// The instant of Redis' clock, in µs, if that is in none of the windows that a request brought. Nothing was
    /// decided.
    pub(super) fn present(&self) -> Option<u64> {
        let error = match self {
            Self::Script(error) => error,
            Self::At(_, fault) => return fault.present(),
            _ => return None,
        };
        let mut words = error.split_whitespace();
        words.find(|word| *word == "OUTSIDE")?;
        words.next()?.parse::<u64>().ok()?.checked_mul(1_000_000)
    }

    /// Whether it says more of a server than of a request: that it can't be reached, or has other slots.
    pub(super) fn is_of_a_server(&self) -> bool {
        !matches!(
            self,
            Self::Script(_)
                | Self::Permission(_)
                | Self::Reply(_)
                | Self::Changing
                | Self::Slot(_)
                | Self::NoSeeds
                | Self::QueueFull { .. }
        )
    }

    /// Whether nothing was sent, so that nothing can have run.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self, Self::Connect(_))
    }

    /// Whether the keys of a call may be in two places, as their slot is being moved. Redis before 7.0 redirects a call
    /// as soon as one of its keys has left.
    pub(super) fn is_half_moved(&self) -> bool {
        matches!(
            self,
            Self::Call(error)
                if matches!(error.kind(), ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::Ask))
        )
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

/// Whether a server refuses a command or a key for lack of a permission. Scripts are told so by an `ERR` like any other,
/// and redis-rs keeps nothing but the text where `SELECT` is refused.
fn is_of_a_permission(error: &str) -> bool {
    // As Redis before 7.2 says it, as later ones and Valkey do, and outside of scripts.
    ["The user executing the script can't", "ACL failure in script", "no permissions to"]
        .iter()
        .any(|text| error.contains(text))
}

/// The words of a script's error that may be its code.
fn codes(error: &str) -> impl Iterator<Item = &str> {
    error.split_whitespace().take(2).map(|word| word.trim_start_matches('-'))
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Credentials(error),
            ErrorKind::MasterNameNotFoundBySentinel => Self::NoMaster(error),
            ErrorKind::InvalidClientConfig => Self::Url(error),
            ErrorKind::Server(ServerErrorKind::NoPerm) => Self::Permission(error.to_string()),
            ErrorKind::Server(ServerErrorKind::BusyLoading) => Self::Loading(error),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => Self::NotMaster(error),
            _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => Self::Credentials(error),
            _ if error.detail().is_some_and(is_of_a_permission) => Self::Permission(error.to_string()),
            _ if error.is_timeout() => Self::Lost(error),
            _ => Self::Call(error),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(_) => write!(f, "the URL of Redis can't be used: write redis://host:port, or rediss:// for TLS"),
            Self::Setting(what) => write!(f, "the configuration of Redis is refused: {what}"),
            Self::Connect(_) => write!(f, "there is no connection to Redis"),
            Self::Unreachable(_) => write!(
                f,
                "Redis can't be reached: check that it runs, the host and the port, and that both ends speak TLS or neither"
            ),
            Self::Credentials(_) => write!(
                f,
                "Redis refused the user or the password, or asks for them: check both, and by ACL GETUSER that the user is on"
            ),
            Self::Permission(error) => write!(
                f,
                "Redis denies the user a command or a key that rate limits need: \
                 grant the permissions that the documentation of `RedisConfig` lists, by ACL SETUSER; \
                 ACL LOG names the one that was missing: {error}"
            ),
            Self::Loading(_) => write!(
                f,
                "Redis is loading its data and answers nothing until it is done: wait; INFO persistence says for how long"
            ),
            Self::NotMaster(_) => write!(
                f,
                "this Redis is a replica, or lost its master, and can't be written to: \
                 write the master's URL, or have Sentinel asked for it by `RedisConfig::sentinel`"
            ),
            Self::NoMaster(_) => write!(
                f,
                "Sentinel names no master of this name that is up: \
                 check the name by SENTINEL MASTERS, or wait until a failover is over"
            ),
            Self::Lost(_) => write!(
                f,
                "Redis did not reply in time, so it is unknown whether it decided: check its load and the network"
            ),
            Self::Call(_) => write!(f, "a call of Redis failed"),
            Self::NoRuntime => write!(
                f,
                "the Tokio runtime ended that was to connect to Redis: use the store where a runtime goes on; \
                 the next call connects anew"
            ),
            Self::Script(error) => write!(f, "Redis could not decide: {error}"),
            Self::Changing => {
                write!(f, "overrides of the request's keys change faster than they can be read: check who sets them")
            }
            Self::NoSeeds => write!(f, "there is no URL: give one of a Cluster's masters, or better of several"),
            Self::At(node, fault) => write!(f, "at {node}: {fault}"),
            Self::Slot(slot) => write!(
                f,
                "no master of the Cluster is known to have the slot {slot}: \
                 check by CLUSTER INFO that all slots are assigned"
            ),
            Self::QueueFull { waiting } => write!(
                f,
                "the queue is full: {waiting} requests wait for this Redis: check its load, by SLOWLOG GET and \
                 INFO commandstats, and the network; or raise `RedisConfig::queue_capacity`"
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
            Self::Connect(source) => Some(&**source),
            Self::At(_, fault) => fault.source(),
            Self::Url(source)
            | Self::Unreachable(source)
            | Self::Credentials(source)
            | Self::Loading(source)
            | Self::NotMaster(source)
            | Self::NoMaster(source)
            | Self::Lost(source)
            | Self::Call(source) => Some(source),
            Self::Setting(_)
            | Self::Permission(_)
            | Self::NoRuntime
            | Self::Script(_)
            | Self::Reply(_)
            | Self::Changing
            | Self::NoSeeds
            | Self::Slot(_)
            | Self::QueueFull { .. } => None,
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::At(node, fault) => Self::from(*fault).at(node),
            Fault::QueueFull { .. } => Self::queue_full(fault),
            fault if fault.is_of_one_request() => Self::of_one_request(fault),
            fault => Self::new(fault),
        }
    }
}
