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
