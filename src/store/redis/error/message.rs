//! The messages of errors, with the remedies.

use std::fmt;

use super::fault::Fault;
use crate::error::StoreError;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(_) => write!(f, "the URL of Redis is invalid: write redis://host:port, or rediss:// for TLS"),
            Self::Setting(error) => error.fmt(f),
            Self::Connect(_) => write!(f, "there is no connection to Redis"),
            Self::Unreachable(_) => write!(
                f,
                "Redis can't be reached: check that it runs, the host and the port, and that both ends speak TLS or neither"
            ),
            Self::Credentials(_) => write!(
                f,
                "Redis rejected the user or the password, or requires them: check both, and check with ACL GETUSER that the user is on"
            ),
            Self::Permission(error) => write!(
                f,
                "Redis denies a command or a key that rate limits need: \
                 grant the permissions listed in the documentation of `RedisConfig` with ACL SETUSER, \
                 and remove `rename-command` from redis.conf; ACL LOG shows denied calls: {error}"
            ),
            Self::Loading(_) => write!(
                f,
                "Redis is loading its data and does not answer until this is complete: INFO persistence shows the remaining time"
            ),
            Self::NotMaster(_) => write!(
                f,
                "this Redis is a replica, or lost its master, and can't be written to: \
                 configure the master's URL, or use `RedisConfig::sentinel`"
            ),
            Self::NoMaster(_) => write!(
                f,
                "Sentinel knows no available master of this name: \
                 check the name with SENTINEL MASTERS, or wait for the end of a failover"
            ),
            Self::TimedOut(_) => write!(
                f,
                "Redis did not reply in time, and may have charged the request: check its load and the network"
            ),
            Self::Call(_) => write!(f, "a call to Redis failed"),
            Self::NoRuntime => write!(
                f,
                "the Tokio runtime that was to connect to Redis has ended: use the store on a runtime that keeps running; \
                 the next call connects again"
            ),
            Self::Script(error) => write!(f, "Redis could not decide: {error}"),
            Self::Flushed => write!(
                f,
                "Redis loses the script each time after it was loaded: \
                 find the client that sends SCRIPT FLUSH by CLIENT LIST, \
                 and check that no proxy distributes calls over several servers"
            ),
            Self::At(node, fault) => write!(f, "at {node}: {fault}"),
            Self::Slot(slot) => write!(
                f,
                "no master of the Cluster is known to have the slot {slot}: \
                 check with CLUSTER INFO that all slots are assigned"
            ),
            Self::QueueFull { waiting } => write!(
                f,
                "the queue is full: {waiting} requests wait for this Redis: check its load with SLOWLOG GET and \
                 INFO commandstats, and the network; or raise `RedisConfig::queue_capacity`"
            ),
            Self::Reply(what) => write!(
                f,
                "Redis sent an invalid reply ({what}): \
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
            | Self::TimedOut(source)
            | Self::Call(source) => Some(source),
            Self::Setting(_)
            | Self::Permission(_)
            | Self::Flushed
            | Self::NoRuntime
            | Self::Script(_)
            | Self::Reply(_)
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
            fault if fault.concerns_one_request() => Self::of_one_request(fault),
            fault => Self::new(fault),
        }
    }
}
