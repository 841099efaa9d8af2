//! A store on Memcached, by its meta commands, which compare and swap.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_memcached::{Client, Error, MetaProtocol, Status};
use tokio::sync::Mutex;
use tower_ratelimit::StoreError;
use tower_ratelimit::store::{CompareAndSwap, Versioned};

/// A Memcached server. Connections that are not in use are kept for the next request.
pub(crate) struct Memcached {
    address: String,
    idle: Mutex<Vec<Client>>,
}

impl Memcached {
    /// Connects to a server, such as `tcp://127.0.0.1:11211`.
    pub(crate) async fn connect(address: &str) -> Result<Self, StoreError> {
        let client = Client::new(address).await.map_err(StoreError::new)?;
        Ok(Self { address: address.to_owned(), idle: Mutex::new(vec![client]) })
    }

    /// Runs a command on a connection of its own. A connection whose command failed is dropped: nothing is sent twice,
    /// because it may be unknown whether the server has executed the command.
    async fn run<T>(&self, command: impl AsyncFnOnce(&mut Client) -> Result<T, Error>) -> Result<T, StoreError> {
        let idle = self.idle.lock().await.pop();
        let mut client = match idle {
            Some(client) => client,
            None => Client::new(&self.address).await.map_err(StoreError::new)?,
        };
        let result = command(&mut client).await.map_err(StoreError::new)?;
        self.idle.lock().await.push(client);
        Ok(result)
    }
}

impl CompareAndSwap for Memcached {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        // v: return the value, c: return its version.
        let flags = Some(&["v", "c"][..]);
        let found = self.run(async |client| client.meta_get(key, false, None, flags).await).await?;
        Ok(found.and_then(|found| Some(Versioned { value: found.data?, version: found.cas? })))
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<u64>,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        // C: only if this is the version. ME: only if there is no value.
        let condition = expected.map_or("ME".to_owned(), |version| format!("C{version}"));
        let expiry = format!("T{}", expiry(ttl));
        let set = async |client: &mut Client| match client
            .meta_set(key, value, false, None, Some(&[&condition, &expiry]))
            .await
        {
            Ok(_) => Ok(true),
            Err(Error::Protocol(Status::Exists | Status::NotFound | Status::NotStored)) => Ok(false),
            Err(error) => Err(error),
        };
        self.run(set).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let delete = async |client: &mut Client| match client.meta_delete(key, false, None, None).await {
            Ok(_) | Err(Error::Protocol(Status::NotFound)) => Ok(()),
            Err(error) => Err(error),
        };
        self.run(delete).await
    }
}

/// Returns a TTL in seconds, rounded up, as Memcached understands it: over 30 days it is the time of expiry, which has
/// 31 bits, and 0 is never.
fn expiry(ttl: Duration) -> u64 {
    const MONTH: u64 = 30 * 24 * 60 * 60;
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    if seconds <= MONTH {
        return seconds;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(now.as_secs() + seconds).filter(|expiry| *expiry <= i32::MAX as u64).unwrap_or(0)
}

impl std::fmt::Debug for Memcached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memcached").field("address", &self.address).finish_non_exhaustive()
    }
}
