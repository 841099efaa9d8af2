//! Costs that are known late, from the response or by a permit. The same tests run in memory and on Redis.

mod debts;
mod failures;
mod handlers;
mod losses;
mod quotas;
mod random;
mod rates;
mod rejections;
mod responses;
mod sizes;
mod wire;

use tower_ratelimit::Permit;

/// Settles each limit that applies to the request at the same cost. Returns the largest shortfall.
async fn settle_each(permit: &Permit, actual: u64) -> u64 {
    let mut shortfall = 0;
    for permit in permit.limits().iter().filter_map(|limit| permit.limit(limit.name())) {
        shortfall = shortfall.max(permit.settle(actual).await.expect("a settlement").shortfall);
    }
    shortfall
}
