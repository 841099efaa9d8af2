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
    /// Sentinel names no master of this name that is one.
    NoMaster,
    /// No reply arrived in time. The request may have run.
    TimedOut(RedisError),
    /// A call failed, in transit or on the server.
    Call(RedisError),
    /// The runtime that was to connect has ended, or there is none.
    NoRuntime,
    /// The runtime that made the call has ended, or its connection was replaced. The request may have run.
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
    /// At least half of the masters can't be reached. Contains the fault of one.
    Announced(Box<Fault>),
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
            // A reply shows that the server can be reached.
            Self::Call(error) if error.code().is_none() => Self::Unreachable(error),
            Self::TimedOut(error) => Self::Unreachable(error),
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
        self.has_code(&["READONLY", "MASTERDOWN"])
    }

    /// Returns whether the server denied a command, so that requests fail until an operator permits it.
    pub(super) fn lacks_permission(&self) -> bool {
        match self {
            Self::Connect(fault) => fault.lacks_permission(),
            _ => matches!(self, Self::Permission(_)),
        }
    }

    /// Returns whether other requests would succeed: a key holds foreign data, or Redis' clock is set repeatedly.
    pub(super) fn concerns_one_request(&self) -> bool {
        self.has_code(&["WRONGTYPE", "UNREADABLE", "OUTSIDE"])
    }

    /// Returns whether the server replied with one of these codes, which is the first or the second word of an error in
    /// the script.
    pub(super) fn has_code(&self, codes: &[&str]) -> bool {
        match self {
            Self::Script(error) => {
                error.split_whitespace().take(2).any(|word| codes.contains(&word.trim_start_matches('-')))
            }
            Self::Call(error) => error.code().is_some_and(|code| codes.contains(&code)),
            _ => false,
        }
    }

    /// Returns what happened and what to do, for an error with a code or a text that is known.
    fn advice(&self) -> Option<&'static str> {
        let text = match self {
            Self::Script(error) | Self::Permission(error) => error.clone(),
            Self::Call(error) | Self::Unreachable(error) => error.to_string(),
            _ => return None,
        }
        .replace('`', "'");
        let what = [
            ("OOM", "Redis has no memory left for writes: raise `maxmemory`, or remove large keys of other programs"),
            ("MISCONF", "Redis accepts no writes, because it can't save its data: its log has the cause"),
            ("NOREPLICAS", "Redis accepts no writes, because it has too few replicas: see INFO replication"),
            ("READONLY", "this Redis is a replica: configure the master's URL, or use `RedisConfig::sentinel`"),
            ("MASTERDOWN", "this Redis is a replica that lost its master: configure the master's URL"),
            ("LOADING", "Redis is loading its data: INFO persistence shows the remaining time"),
            ("BUSY", "Redis is busy with a script of another client: end it with SCRIPT KILL or FUNCTION KILL"),
            (
                "clients reached",
                "Redis has its maximum of clients: raise `maxclients`, or lower `RedisConfig::connections`",
            ),
            ("DENIED", "Redis is in protected mode, which rejects other machines: set a password for its users"),
            ("DB index", "Redis does not have the database of the URL: raise `databases` in redis.conf"),
            ("cluster mode", "a Cluster has only the database 0: leave the database out of the URL"),
            ("MOVED", "this Redis has only some slots of a Cluster: use `RedisConfig::cluster`"),
            ("attempted to", "this Redis has only some keys of a Cluster: use `RedisConfig::cluster`"),
            (
                "CROSSSLOT",
                "this Redis is part of a Cluster, with these keys in several slots: use `RedisConfig::cluster`",
            ),
            ("support disabled", "this Redis is not part of a Cluster: use `RedisConfig::node`"),
            ("CLUSTERDOWN", "the Cluster does not work: check its slots with CLUSTER INFO, and its masters"),
            ("TRYAGAIN", "the slot is being migrated to another master of the Cluster: see CLUSTER NODES"),
            ("command 'SENTINEL'", "this server is not a Sentinel: list Sentinels, or use `RedisConfig::node`"),
            ("Parse error", "what answers is not Redis, or a proxy alters its replies: check the host and the port"),
            (
                "UnknownIssuer",
                "the certificate of Redis is of an unknown authority: set `RedisConfig::ca_certificates`",
            ),
            ("peer certificate", "the certificate of Redis is invalid: check its names and its expiry"),
            (
                "CertificateRequired",
                "Redis requires a certificate of its clients: set `RedisConfig::client_certificate`",
            ),
        ];
        // A code is in capital letters.
        let is_text = |sign: &str| sign.contains(char::is_lowercase) && text.contains(sign);
        let is_known = |(sign, _): &(&str, _)| self.has_code(&[sign]) || is_text(sign);
        what.into_iter().find(is_known).map(|(_, what)| what)
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

    /// Returns whether the server does not know RESP3, the default protocol.
    pub(super) fn lacks_resp3(&self) -> bool {
        self.has_code(&["NOPROTO"]) || matches!(self, Self::Permission(error) if error.contains("HELLO"))
    }

    /// Returns whether the server could not be reached.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect(fault) if matches!(**fault, Self::Unreachable(_)))
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
            Self::Unreachable(_) => self.advice().unwrap_or(concat!(
                "Redis can't be reached: ",
                "check that it runs, the host and the port, and that both ends speak TLS or neither"
            )),
            Self::Credentials(_) => {
                concat!(
                    "Redis or a Sentinel rejected the user or the password, or requires them: ",
                    "check both (`sentinel_credentials` are those for Sentinels), ",
                    "and check with ACL GETUSER that the user is on"
                )
            }
            Self::Permission(error) => {
                let what = self.advice().unwrap_or(concat!(
                    "Redis denies a command or a key that rate limits need: ",
                    "grant the permissions listed in the documentation of `RedisConfig` with ACL SETUSER, ",
                    "and remove `rename-command` from redis.conf; ACL LOG shows denied calls"
                ));
                return write!(f, "{what}: {error}");
            }
            Self::NoMaster => {
                concat!(
                    "Sentinel knows no available master of this name: ",
                    "check the name with SENTINEL MASTERS, or wait for the end of a failover"
                )
            }
            Self::TimedOut(_) => {
                "Redis did not reply in time, and may have charged the request: check its load and the network"
            }
            Self::Call(_) => self.advice().unwrap_or("a call to Redis failed"),
            Self::NoRuntime => {
                concat!(
                    "there is no Tokio runtime to connect to Redis, or it has ended: ",
                    "use the store on a runtime that keeps running; the next call connects again"
                )
            }
            Self::Interrupted => {
                concat!(
                    "the Tokio runtime ended while it called Redis, which may have charged the request: ",
                    "use the store on a runtime that keeps running; the next call connects again"
                )
            }
            Self::Script(error) => {
                return write!(f, "{}: {error}", self.advice().unwrap_or("Redis could not decide"));
            }
            Self::Flushed => {
                concat!(
                    "Redis loses the script each time after it was loaded: ",
                    "find the client that sends SCRIPT FLUSH by CLIENT LIST, ",
                    "and check that no proxy distributes calls over several servers"
                )
            }
            Self::At(node, fault) => return write!(f, "at {node}: {fault}"),
            Self::Announced(fault) => {
                return write!(
                    f,
                    concat!(
                        "at least half of the masters can't be reached at the addresses that the Cluster announces: ",
                        "check `cluster-announce-ip` in redis.conf, and the network: {}"
                    ),
                    fault
                );
            }
            Self::Slot(slot) => {
                return write!(
                    f,
                    concat!(
                        "no master of the Cluster is known to have the slot {}: ",
                        "check with CLUSTER INFO that all slots are assigned"
                    ),
                    slot
                );
            }
            Self::QueueFull { waiting } => {
                return write!(
                    f,
                    concat!(
                        "the queue is full: {} requests wait for this Redis: check its load with SLOWLOG GET and ",
                        "INFO commandstats, and the network; or raise `RedisConfig::queue_capacity`"
                    ),
                    waiting
                );
            }
            Self::Reply(what) => {
                return write!(
                    f,
                    concat!(
                        "Redis sent an invalid reply ({}): ",
                        "check that nothing else writes keys of this prefix, and that no proxy alters replies"
                    ),
                    what
                );
            }
        })
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect(fault) => Some(&**fault),
            Self::At(_, fault) | Self::Announced(fault) => fault.source(),
            Self::Unreachable(error) | Self::Credentials(error) | Self::TimedOut(error) | Self::Call(error) => {
                Some(error)
            }
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
            Fault::Connect(_) => Self::not_sent(fault),
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
