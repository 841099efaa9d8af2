//! Free ports for servers that cannot report which port the system gave them.
#![allow(unreachable_pub, reason = "tests within the crate use it, too")]

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::net::TcpSocket;

/// The distance of the bus of a node of a Redis Cluster from its port.
const BUS: u16 = 10_000;

/// The first of [`COUNT`] ports. These ports, and those of the bus, are below the ports of outgoing connections, which
/// begin at 32,768 on Linux. So no connection takes the port of a server that is restarted.
const FIRST: u16 = 12_000;

const COUNT: u16 = 10_000;

/// Returns a port of 127.0.0.1 that is free, and whose bus port is free. No two servers of a test program get the same
/// port, even if they start at the same time: one of them would stop, and its test would use the server of the other.
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Test programs that run at the same time begin with ports far apart.
    let begin = process::id().wrapping_mul(613);
    let is_free = |port| bind(port).is_ok();
    let next = || {
        let number = begin.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT);
        FIRST + number as u16
    };
    (0..COUNT).map(|_| next()).find(|&port| is_free(port) && is_free(port + BUS)).expect("a free port")
}

/// Binds a port without listening, so that nobody can connect to it. A process that another thread starts inherits the
/// socket until its own program begins. If the socket listened, a client could connect to it instead of to the server.
pub fn bind(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    Ok(socket)
}
