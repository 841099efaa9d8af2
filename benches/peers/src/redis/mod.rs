//! Measures decisions on Redis. Starts a server of its own.

mod bare;
mod call;
pub mod leases;
mod load;
#[path = "../../../../src/store/redis/tests/redis_server.rs"]
mod server;
mod sizes;
mod speed;

pub use bare::connect;
pub use load::fire;
pub(crate) use server::RedisServer;

use crate::scale::Scale;

pub fn compare(scale: &Scale) {
    println!("\n## Redis\n\nClient and server on one machine, the client with a thread for each core.");
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        speed::decisions(&server, scale).await;
        speed::denials(&server, scale).await;
        speed::limits(&server, scale).await;
        speed::longest_calls(&server, scale).await;
        sizes::compare(&server, scale).await;
    });
}
