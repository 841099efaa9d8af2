//! The errors of a store: what they imply, and their messages, with the remedies.

use std::fmt;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::{ConfigError, Node, StoreError};

/// The cause of a failed call, which all requests of the call share. It is for operators; clients never see it.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The configuration is invalid.
    Setting(ConfigError),
    /// No connection could be opened, so that nothing was sent.
    Connect(Arc<Fault>),
    /// The server can't be reached.
    Unreachable(RedisError),
    /// The server rejects the user or the password, or requires them.
    Credentials(RedisError),
    /// The user may not use a command or a key, or the server does not know a command. Contains the server's message.
    Permission(String),
    /// The server is loading its data.
    Loading(RedisError),
    /// The server is a replica, or is no longer the master.
    NotMaster(RedisError),
    /// Sentinel names no master of this name that is one.
    NoMaster,
    /// No reply arrived in time. The request may have run.
    TimedOut(RedisError),
    /// A call failed, in transit or on the server.
    Call(RedisError),
    /// The runtime that was to connect has ended, or there is none.
    NoRuntime,
    /// The runtime that made the call has ended. The request may have run.
    Interrupted,
    /// The script could not perform a request: a key of another type, no memory left, a replica.
    Script(String),
    /// The server lost the script again after each load.
    Flushed,
    /// The reply is invalid.
    Reply(&'static str),
    /// No master of the Cluster is known to have this slot.
    Slot(u16),
    /// A master of the Cluster failed.
    At(Node, Box<Fault>),
    /// The queue is full, so that this request was not sent.
    QueueFull { waiting: usize },
}

impl Fault {
    /// Creates the fault of an invalid setting.
    pub(super) fn setting(message: impl fmt::Display) -> Self {
        Self::Setting(ConfigError::new(format!("the configuration of Redis is invalid: {message}")))
    }

    /// Creates the fault of an invalid URL.
    pub(super) fn invalid_url(error: RedisError) -> Self {
        Self::Setting(ConfigError::new(format!(
            "the URL of Redis is invalid: write redis://host:port, or rediss:// for TLS: {error}"
        )))
    }

    /// Creates a fault from the server's error message for one request.
    pub(super) fn script(error: String) -> Self {
        if is_permission_error(&error) { Self::Permission(error) } else { Self::Script(error) }
    }

    /// Creates the fault of a connection that could not be opened.
    pub(super) fn from_connect_error(error: RedisError) -> Self {
        match Self::from(error) {
            Self::Call(error) | Self::TimedOut(error) => Self::Unreachable(error),
            fault => fault,
        }
    }

    /// Returns whether the connection must be replaced: it was lost, or its server is no longer the master.
    pub(super) fn breaks(&self) -> bool {
        match self {
            Self::TimedOut(_) => true,
            Self::Call(error) | Self::Credentials(error) => error.is_unrecoverable_error() || error.is_io_error(),
            _ => self.is_of_replica(),
        }
    }

    /// Returns whether the server is a replica.
    pub(super) fn is_of_replica(&self) -> bool {
        matches!(self, Self::NotMaster(_)) || self.has_code(&["READONLY", "MASTERDOWN"])
    }

    /// Returns whether the server denied a command, so that requests fail until an operator permits it.
    pub(super) fn is_denied(&self) -> bool {
        match self {
            Self::Connect(fault) => fault.is_denied(),
            _ => matches!(self, Self::Permission(_)),
        }
    }

    /// Returns whether other requests would succeed: a key holds foreign data, or Redis' clock is set repeatedly.
    pub(super) fn concerns_one_request(&self) -> bool {
        self.has_code(&["WRONGTYPE", "UNREADABLE", "OUTSIDE"])
    }

    /// Returns whether the script failed with one of these codes, which is the first or the second word of its error.
    fn has_code(&self, codes: &[&str]) -> bool {
        let Self::Script(error) = self else { return false };
        error.split_whitespace().take(2).any(|word| codes.contains(&word.trim_start_matches('-')))
    }

    /// Returns the time of Redis' clock (in µs), if nothing was decided because that time is in none of the calendar
    /// windows that the request contains.
    pub(super) fn redis_clock(&self) -> Option<u64> {
        let error = match self {
            Self::Script(error) => error,
            Self::At(_, fault) => return fault.redis_clock(),
            _ => return None,
        };
        let mut words = error.split_whitespace();
        words.find(|word| *word == "OUTSIDE")?;
        words.next()?.parse::<u64>().ok()?.checked_mul(1_000_000)
    }

    /// Returns whether the fault concerns the server rather than the request: the server can't be reached, or has other
    /// slots.
    pub(super) fn concerns_server(&self) -> bool {
        !matches!(self, Self::Script(_) | Self::Permission(_) | Self::Reply(_) | Self::Slot(_) | Self::QueueFull { .. })
    }

    /// Returns whether no connection could be opened, so that another server may be tried.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self, Self::Connect(_))
    }

    /// Returns whether the keys of a call may be on two servers, because their slot is being migrated. Redis before 7.0
    /// redirects a call as soon as one of its keys has been migrated.
    pub(super) fn is_half_moved(&self) -> bool {
        matches!(
            self,
            Self::Call(error)
                if matches!(error.kind(), ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::Ask))
        )
    }

    /// Returns the address that the Cluster redirects a request to, which did not run, and whether to send `ASKING`
    /// before it, because the slot is being migrated. The address may be a port of the host that replied. `None` if the
    /// server does not know the address, and replies with `?` in place of the host.
    pub(super) fn redirect(&self) -> Option<(&str, bool)> {
        let Self::Call(error) = self else { return None };
        let (address, _) = error.redirect_node().filter(|(address, _)| !address.starts_with("?:"))?;
        Some((address, matches!(error.kind(), ErrorKind::Server(ServerErrorKind::Ask))))
    }
}

/// Returns whether an error message reports a missing permission. The message is the only sign if the script lacks it,
/// and if `SELECT` fails.
fn is_permission_error(error: &str) -> bool {
    // In scripts of Redis before 7.2, in scripts of later versions and Valkey, and outside of scripts.
    ["The user executing the script can't", "ACL failure in script", "no permissions to", "unknown command"]
        .iter()
        .any(|text| error.contains(text))
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Credentials(error),
            ErrorKind::RESP3NotSupported => Self::Permission("unknown command 'HELLO'".into()),
            ErrorKind::Server(ServerErrorKind::NoScript) => Self::Flushed,
            ErrorKind::Server(ServerErrorKind::NoPerm) => Self::Permission(error.to_string()),
            ErrorKind::Server(ServerErrorKind::BusyLoading) => Self::Loading(error),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => Self::NotMaster(error),
            _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => Self::Credentials(error),
            _ if error.detail().is_some_and(is_permission_error) => {
                // Redis repeats the arguments of an unknown command, which may be secret.
                Self::Permission(error.to_string().split(", with args").take(1).collect())
            }
            _ if error.is_timeout() => Self::TimedOut(error),
            _ => Self::Call(error),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Setting(error) => return error.fmt(f),
            Self::Connect(_) => "there is no connection to Redis",
            Self::Unreachable(_) => {
                "Redis can't be reached: \
                 check that it runs, the host and the port, and that both ends speak TLS or neither"
            }
            Self::Credentials(_) => {
                "Redis rejected the user or the password, or requires them: \
                 check both, and check with ACL GETUSER that the user is on"
            }
            Self::Permission(error) => {
                return write!(
                    f,
                    "Redis denies a command or a key that rate limits need: \
                     grant the permissions listed in the documentation of `RedisConfig` with ACL SETUSER, \
                     and remove `rename-command` from redis.conf; ACL LOG shows denied calls: {error}"
                );
            }
            Self::Loading(_) => {
                "Redis is loading its data and does not answer until this is complete: \
                 INFO persistence shows the remaining time"
            }
            Self::NotMaster(_) => {
                "this Redis is a replica, or lost its master, and can't be written to: \
                 configure the master's URL, or use `RedisConfig::sentinel`"
            }
            Self::NoMaster => {
                "Sentinel knows no available master of this name: \
                 check the name with SENTINEL MASTERS, or wait for the end of a failover"
            }
            Self::TimedOut(_) => {
                "Redis did not reply in time, and may have charged the request: check its load and the network"
            }
            Self::Call(_) => "a call to Redis failed",
            Self::NoRuntime => {
                "there is no Tokio runtime to connect to Redis, or it has ended: \
                 use the store on a runtime that keeps running; the next call connects again"
            }
            Self::Interrupted => {
                "the Tokio runtime ended while it called Redis, which may have charged the request: \
                 use the store on a runtime that keeps running; the next call connects again"
            }
            Self::Script(error) => return write!(f, "Redis could not decide: {error}"),
            Self::Flushed => {
                "Redis loses the script each time after it was loaded: \
                 find the client that sends SCRIPT FLUSH by CLIENT LIST, \
                 and check that no proxy distributes calls over several servers"
            }
            Self::At(node, fault) => return write!(f, "at {node}: {fault}"),
            Self::Slot(slot) => {
                return write!(
                    f,
                    "no master of the Cluster is known to have the slot {slot}: \
                     check with CLUSTER INFO that all slots are assigned"
                );
            }
            Self::QueueFull { waiting } => {
                return write!(
                    f,
                    "the queue is full: {waiting} requests wait for this Redis: check its load with SLOWLOG GET and \
                     INFO commandstats, and the network; or raise `RedisConfig::queue_capacity`"
                );
            }
            Self::Reply(what) => {
                return write!(
                    f,
                    "Redis sent an invalid reply ({what}): \
                     check that nothing else writes keys of this prefix, and that no proxy alters replies"
                );
            }
        })
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect(fault) => Some(&**fault),
            Self::At(_, fault) => fault.source(),
            Self::Unreachable(error)
            | Self::Credentials(error)
            | Self::Loading(error)
            | Self::NotMaster(error)
            | Self::TimedOut(error)
            | Self::Call(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Setting(error) => Self::unusable(None, error),
            Fault::At(node, fault) => Self::from(*fault).at(node),
            Fault::QueueFull { .. } => Self::queue_full(fault),
            fault if fault.concerns_one_request() => Self::of_one_request(fault),
            fault => Self::new(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn redirected(reply: &str) -> Fault {
        parse_redis_value(reply.as_bytes()).unwrap().extract_error().unwrap_err().into()
    }

    #[test]
    fn only_redirections_to_known_hosts_are_followed() {
        assert_eq!(redirected("-MOVED 7 10.0.0.5:6379\r\n").redirect(), Some(("10.0.0.5:6379", false)));
        assert_eq!(redirected("-ASK 7 :6380\r\n").redirect(), Some((":6380", true)));
        for unknown in ["-MOVED 7 ?:6379\r\n", "-ASK 7 ?:6379\r\n"] {
            let fault = redirected(unknown);
            assert!(fault.redirect().is_none() && fault.concerns_server(), "{unknown}");
        }
    }
}
