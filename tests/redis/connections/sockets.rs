//! Options of the sockets, read from the descriptors of this process.

use std::fs::read_dir;
use std::net::{Ipv4Addr, TcpStream};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tower_ratelimit::RedisConfig;

use crate::connections::connect;
use support::patient::{Patient, connected};
use support::redis_cluster::RedisCluster;
use support::redis_server::{RedisServer, free_port};
use support::sentinel::{MASTER, Sentinels};

/// Returns the option TCP_NODELAY of each connection of this process to a port.
pub(crate) fn nodelay_to(port: u16) -> Vec<bool> {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
    let descriptors = read_dir("/proc/self/fd").expect("descriptors").flatten();
    let numbers = descriptors.filter_map(|descriptor| descriptor.file_name().to_str()?.parse().ok());
    // Other tests may close theirs meanwhile.
    let copies = numbers.filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok());
    let streams = copies.map(TcpStream::from);
    let to_port = streams.filter(|stream| stream.peer_addr().is_ok_and(|peer| peer.port() == port));
    to_port.map(|stream| stream.nodelay().expect("an option")).collect()
}

#[tokio::test]
async fn connections_send_each_call_at_once() {
    let server = RedisServer::start();
    let _store = connect(&server).await;
    assert_eq!(nodelay_to(server.port()), [true; 2]);

    let master = RedisServer::start();
    let sentinels = Sentinels::watch(1, &master, 0);
    let _store = connected(RedisConfig::sentinel(MASTER, sentinels.urls()).patient()).await;
    let options = nodelay_to(master.port());
    assert!(options.len() >= 2 && !options.contains(&false), "behind Sentinel: {options:?}");

    let cluster = RedisCluster::start(0);
    let _store = RedisConfig::cluster(cluster.urls()).patient().connect().await.expect("a connection");
    for master in 0..3 {
        assert_eq!(nodelay_to(cluster.port(master)), [true; 2], "in a Cluster");
    }
}

/// Otherwise, a test may connect to a port before its server listens there.
#[test]
fn nobody_accepts_connections_while_tests_look_for_a_free_port() {
    let port = free_port();
    let _bound = free_port::bind(port).expect("a free port");
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}
