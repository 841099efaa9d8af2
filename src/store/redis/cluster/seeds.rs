//! Whom to ask first for a Cluster's masters, and how all are spoken to.

use deadpool_redis::redis::cluster::NodeAddress;
use deadpool_redis::redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo};

use crate::store::redis::connection::{Connections, Source};
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
    /// All masters are spoken to as the first of `seeds` is, by as many `connections` each, with a queue of
    /// `queue_capacity` each.
    pub(in crate::store::redis) fn new(
        seeds: Vec<ConnectionInfo>,
        timeouts: AsyncConnectionConfig,
        connections: usize,
        queue_capacity: usize,
    ) -> Result<Self, Fault> {
        let mut seeds = seeds.into_iter();
        let first = seeds.next().ok_or(Fault::NoSeeds)?;
        Ok(Self { first, others: seeds.collect(), timeouts, connections, queue_capacity })
    }

    pub(super) fn addresses(&self) -> Result<Vec<NodeAddress>, Fault> {
        let all = std::iter::once(&self.first).chain(&self.others);
        all.map(|seed| NodeAddress::try_from(seed.addr()).map_err(Fault::url)).collect()
    }

    pub(super) fn connections_to(&self, address: &NodeAddress) -> Result<Connections, Fault> {
        let (host, port) = (address.host().to_owned(), address.port());
        let at = match self.first.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let source = Source::node(self.first.clone().set_addr(at), self.timeouts.clone(), self.connections)?;
        Ok(Connections::new(source, self.connections))
    }
}
