//! Explains what a limiter would do with a key.

use super::Limiter;
use crate::decision::Cell;
use crate::explain::{AppliedLimit, Explanation, LimitExplanation, LimitStatus};
use crate::key::{Key, KeyBuf, KeyPart, text};

impl Limiter {
    /// Explains whether `key` may take `cost` tokens from every limit now, and takes nothing. See
    /// [`explain`](crate::explain).
    ///
    /// Unlike [`peek`](Self::peek), it reports what would be left after the tokens were taken. The key is shown,
    /// because the caller knows it.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let mails = Limiter::new([Limit::new("daily", FixedWindow::per_day(20))]);
    /// let explanation = mails.explain("ann@example.org", 21).await;
    /// assert!(!explanation.is_allowed());
    /// assert!(explanation.to_string().starts_with(
    ///     "\
    /// denied: the cost exceeds the capacity, decided by the store (memory)
    ///   daily: denied, 20 of 20 left, cost 21, by key ann@example.org, fingerprint "
    /// ));
    /// # });
    /// ```
    pub async fn explain(&self, key: impl Key, cost: u64) -> Explanation {
        let client = self.current_client();
        let mut written = KeyBuf::default();
        key.write(&mut written);
        let parts: Vec<KeyPart> = written.parts().map(|part| KeyPart::new("key", text(part))).collect();
        let cells = client.limits().cells_of(key.hash_with(client.hasher()), |_| cost);
        let explain = |(limit, cell): (_, &Cell)| {
            let applied = LimitStatus::Applies(AppliedLimit::new(None, cell));
            LimitExplanation::new(limit, applied, Some(parts.clone()))
        };
        let of_limits = cells.iter().filter(|cell| !cell.is_of_penalty());
        let limits = client.limits().as_slice().iter().zip(of_limits).map(explain).collect();
        Explanation::decided(&client, cells, limits, false).await
    }
}
