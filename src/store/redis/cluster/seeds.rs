//! The seed nodes of a Cluster, and the settings of connections to its masters.

use deadpool_redis::redis::cluster::NodeAddress;
use deadpool_redis::redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo};

use crate::error::ConfigError;
use crate::store::redis::connection::{ConnectionPool, Source};
use crate::store::redis::error::Fault;

#[derive(Clone)]
pub(in crate::store::redis) struct Seeds {
    /// The settings of all connections, and the address of the first seed.
    first: ConnectionInfo,
    pub(super) addresses: Vec<NodeAddress>,
    timeouts: AsyncConnectionConfig,
    connections: usize,
    pub(super) queue_capacity: usize,
}

impl Seeds {
    /// Creates the seeds. The connections to all masters have the settings of the first seed. `connections` and
    /// `queue_capacity` are per master.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::Setting`] if there are no seeds, or if one has no host and port.
    pub(in crate::store::redis) fn new(
        seeds: Vec<ConnectionInfo>,
        timeouts: AsyncConnectionConfig,
        connections: usize,
        queue_capacity: usize,
    ) -> Result<Self, Fault> {
        let address = |seed: &ConnectionInfo| {
            NodeAddress::try_from(seed.addr()).map_err(|_| {
                Fault::setting(format_args!(
                    "a Cluster is not reachable through the Unix socket {}: write redis://host:port",
                    seed.addr()
                ))
            })
        };
        let addresses = seeds.iter().map(address).collect::<Result<_, _>>()?;
        let first = seeds.into_iter().next().ok_or_else(|| {
            let message = "there is no URL: give that of one master of the Cluster, or better of several";
            Fault::Setting(ConfigError::new(message))
        })?;
        Ok(Self { first, addresses, timeouts, connections, queue_capacity })
    }

    pub(super) fn connections_to(&self, address: &NodeAddress) -> Result<ConnectionPool, Fault> {
        let (host, port) = (address.host().to_owned(), address.port());
        let addr = match self.first.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let source = Source::node(self.first.clone().set_addr(addr), self.timeouts.clone(), self.connections)?;
        Ok(ConnectionPool::new(source, self.connections))
    }
}
