//! The seed nodes of a Cluster, and the settings of connections to its masters.

use deadpool_redis::redis::cluster::NodeAddress;
use deadpool_redis::redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo};

use crate::error::RedisConfigError;
use crate::store::redis::connection::{ConnectionPool, Source};
use crate::store::redis::error::Fault;

#[derive(Clone)]
pub(in crate::store::redis) struct Seeds {
    first: ConnectionInfo,
    others: Vec<ConnectionInfo>,
    timeouts: AsyncConnectionConfig,
    connections: usize,
    pub(super) queue_capacity: usize,
}

impl Seeds {
    /// Creates the seeds. The connections to all masters have the settings of the first seed. `connections` and
    /// `queue_capacity` are per master.
    pub(in crate::store::redis) fn new(
        seeds: Vec<ConnectionInfo>,
        timeouts: AsyncConnectionConfig,
        connections: usize,
        queue_capacity: usize,
    ) -> Result<Self, Fault> {
        let mut seeds = seeds.into_iter();
        let first = seeds.next().ok_or(Fault::Setting(RedisConfigError::NoSeeds))?;
        Ok(Self { first, others: seeds.collect(), timeouts, connections, queue_capacity })
    }

    pub(super) fn addresses(&self) -> Result<Vec<NodeAddress>, Fault> {
        let all = std::iter::once(&self.first).chain(&self.others);
        all.map(|seed| NodeAddress::try_from(seed.addr()).map_err(Fault::url)).collect()
    }

    pub(super) fn connections_to(&self, address: &NodeAddress) -> Result<ConnectionPool, Fault> {
        let (host, port) = (address.host().to_owned(), address.port());
        let at = match self.first.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let source = Source::node(self.first.clone().set_addr(at), self.timeouts.clone(), self.connections)?;
        Ok(ConnectionPool::new(source, self.connections))
    }
}
