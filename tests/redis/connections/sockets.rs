//! Options of the sockets, read from the descriptors of this process.

use std::fs::read_dir;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tower_ratelimit::RedisConfig;

use crate::connections::connect;
use support::patient::{Patient, connected};
use support::redis_cluster::RedisCluster;
use support::redis_server::{RedisServer, free_port};
use support::sentinel::{MASTER, Sentinels};

/// Returns copies of all connections of this process to a port.
fn streams_to(port: u16) -> Vec<TcpStream> {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
    let descriptors = read_dir("/proc/self/fd").expect("descriptors").flatten();
    let numbers = descriptors.filter_map(|descriptor| descriptor.file_name().to_str()?.parse().ok());
    // Other tests may close theirs meanwhile.
    let copies = numbers.filter_map(|number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok());
    let streams = copies.map(TcpStream::from);
    streams.filter(|stream| stream.peer_addr().is_ok_and(|peer| peer.port() == port)).collect()
}

/// Checks that all connections of this process to a port have the option TCP_NODELAY. There are more than two if a reply
/// was late.
#[track_caller]
pub(crate) fn all_send_at_once(port: u16) {
    let options: Vec<_> = streams_to(port).iter().map(|stream| stream.nodelay().expect("an option")).collect();
    assert!(options.len() >= 2 && !options.contains(&false), "{options:?}");
}

/// A network may forget idle connections.
#[tokio::test]
async fn the_kernel_probes_idle_connections() {
    let server = RedisServer::start();
    let _store = connect(&server).await;
    let streams = streams_to(server.port());
    assert!(streams.len() >= 2);
    for stream in streams {
        assert!(sockopt::socket_keepalive(&stream).expect("an option"));
        assert_eq!(sockopt::tcp_keepidle(&stream).expect("an option"), Duration::from_secs(15));
        assert_eq!(sockopt::tcp_user_timeout(&stream).expect("an option"), 30_000);
    }
}

#[tokio::test]
async fn connections_send_each_call_at_once() {
    let server = RedisServer::start();
    let _store = connect(&server).await;
    all_send_at_once(server.port());

    let master = RedisServer::start();
    let sentinels = Sentinels::watch(1, &master, 0);
    let _store = connected(RedisConfig::sentinel(MASTER, sentinels.urls()).patient()).await;
    all_send_at_once(master.port());

    let cluster = RedisCluster::start(0);
    let _store = RedisConfig::cluster(cluster.urls()).patient().connect().await.expect("a connection");
    for master in 0..3 {
        all_send_at_once(cluster.port(master));
    }
}

/// Otherwise, a test may connect to a port before its server listens there.
#[test]
fn nobody_accepts_connections_while_tests_look_for_a_free_port() {
    let port = free_port();
    let _bound = free_port::bind(port).expect("a free port");
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
}
