//! The user guide: how to limit a service, from the first limit to a fleet.
//!
//! The folders `examples` and `docs`, which some pages name, are in the repository, not in the published package.
//!
//! - [I want to…](tasks): common tasks, each with a program.
//!
//! **First steps**
//!
//! - [Algorithms](algorithms): how to choose one, with diagrams.
//! - [Keys](keys): how a limit tells clients apart, also [behind proxies](keys#behind-proxies).
//! - [Costs](costs): expensive endpoints, several limits at once, and charges that depend on the response.
//! - [Kinds of limits](limits): soft limits, other sizes, penalties, conditions, lists, and changes at runtime.
//! - [Responses](responses): status codes, headers, problem details and gRPC.
//! - [Testing](testing): a clock that your tests control.
//!
//! **Examples to copy**
//!
//! - [Programs](programs): Axum, Tonic, Hyper, a reqwest client and a worker queue.
//! - [Policies](policies): complete policies, from "one post a second" to language model tokens.
//! - [Recipes](recipes): login protection, webhooks, plans, admin endpoints.
//! - [Streams](streams): requests in flight, WebSockets, event streams, uploads, and budgets of language models.
//! - [Without HTTP](without_http): outgoing clients, jobs, sockets and queues.
//! - [Rules in a file](rules): limits in the format of Envoy's rate limit service.
//!
//! **Production**
//!
//! - [Checklist](production): what to check before you enforce a limit.
//! - [Troubleshooting](troubleshooting): what to do, by symptom.
//! - [A fleet](fleet): limits that several processes share.
//! - [Leases](leases): most decisions without a call, also in several data centres.
//! - [Monitoring](monitoring): metrics, traces, counts, a dashboard and alerts.
//! - [When the store fails](store_failures): reject, allow, or decide locally.
//! - [Redis](redis): configuration, load, memory and failures.
//! - [Security model](security): what the limiter protects against, and what it does not.
//! - [Performance](performance), and the [measurements](numbers).
//!
//! **Other crates**
//!
//! - [Comparison](comparison): features of this crate and others.
//! - [Migration](migration): from tower_governor, axum-governor or governor, and from limits of concurrency.
//!
//! **Reference**
//!
//! - [Settings](settings): every setting with its default.
//! - [Decision semantics](semantics): the rules that every store follows.
//! - [Your own store](stores): limits on any database with compare-and-swap.

// The pages link to the items of the crate by their names.
#[allow(unused_imports)]
use crate::*;

#[doc = include_str!("tasks.md")]
#[doc(alias = "auth_request")]
#[doc(alias = "brute force")]
#[doc(alias = "country")]
#[doc(alias = "geoip")]
#[doc(alias = "login")]
#[doc(alias = "standalone")]
pub mod tasks {}

pub mod algorithms;

#[doc = include_str!("keys.md")]
pub mod keys {}

#[doc = include_str!("costs.md")]
pub mod costs {}

#[doc = include_str!("limits.md")]
pub mod limits {}

#[doc(alias = "429")]
#[doc(alias = "grpc")]
#[doc(alias = "retry-after")]
#[doc = include_str!("responses.md")]
pub mod responses {}

#[doc(alias = "mock clock")]
#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc(alias = "debounce")]
#[doc = include_str!("policies.md")]
pub mod policies {}

#[doc = include_str!("programs.md")]
pub mod programs {}

#[doc = include_str!("recipes.md")]
pub mod recipes {}

#[doc(alias = "llm")]
#[doc(alias = "sse")]
#[doc(alias = "websocket")]
#[doc = include_str!("streams.md")]
pub mod streams {}

#[doc = include_str!("without_http.md")]
pub mod without_http {}

#[doc(alias = "envoy")]
#[doc = include_str!("rules.md")]
pub mod rules {}

#[doc = include_str!("production.md")]
pub mod production {}

#[doc = include_str!("troubleshooting.md")]
pub mod troubleshooting {}

#[doc = include_str!("fleet.md")]
pub mod fleet {}

#[doc(alias = "multi-region")]
#[doc = include_str!("leases.md")]
pub mod leases {}

#[doc = include_str!("store_failures.md")]
pub mod store_failures {}

#[doc(alias = "dashboard")]
#[doc(alias = "prometheus")]
#[doc = include_str!("monitoring.md")]
pub mod monitoring {}

#[doc(alias = "failover")]
#[doc = include_str!("redis.md")]
pub mod redis {}

#[doc = include_str!("security.md")]
pub mod security {}

#[doc = include_str!("performance.md")]
pub mod performance {}

#[doc = include_str!("numbers.md")]
pub mod numbers {}

#[doc = include_str!("comparison.md")]
pub mod comparison {}

#[doc(alias = "governor")]
#[doc(alias = "limit_conn")]
#[doc = include_str!("migration.md")]
pub mod migration {}

#[doc = include_str!("settings.md")]
pub mod settings {}

#[doc = include_str!("semantics.md")]
pub mod semantics {}

#[doc = include_str!("stores.md")]
pub mod stores {}
