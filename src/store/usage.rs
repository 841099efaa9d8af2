//! The resources that a store uses.

/// The resources that a store uses. Fields that the store does not know are `None`.
///
/// ```
/// use tower_ratelimit::store::StoreUsage;
///
/// let usage = StoreUsage::default().keys(12).bytes(4_096);
/// assert_eq!((usage.keys, usage.bytes, usage.queued), (Some(12), Some(4_096), None));
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct StoreUsage {
    /// The number of keys whose state is kept in this process.
    pub keys: Option<u64>,
    /// The memory that these keys take, in bytes.
    pub bytes: Option<u64>,
    /// The number of requests that wait to be sent to the database.
    pub queued: Option<u64>,
}

impl StoreUsage {
    /// Sets the number of keys.
    #[must_use]
    pub fn keys(self, keys: u64) -> Self {
        Self { keys: Some(keys), ..self }
    }

    /// Sets the number of bytes.
    #[must_use]
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// Sets the number of requests in the queue.
    #[must_use]
    pub fn queued(self, queued: u64) -> Self {
        Self { queued: Some(queued), ..self }
    }
}
