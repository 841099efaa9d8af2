//! Settings from the command line and the environment.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tower_ratelimit::key::{self, TrustedProxies};
use tower_ratelimit::rules::Extractors;
use tower_ratelimit::{AddressList, ConfigError, OnStoreError, RedisConfig, Share};
use tracing::Level;

/// A standalone rate limiter for proxies and services in any language, over HTTP and gRPC.
///
/// Without arguments, it applies the rules that --print-rules prints, and keeps their state in memory.
#[derive(Clone, Debug, Parser)]
#[command(version, name = "tower-ratelimit", max_term_width = 100)]
pub(crate) struct Settings {
    /// Rules files, each with a domain of its own, separated by commas. They are reloaded when they change.
    /// Default: the built-in rules.
    #[arg(long, env = "RATELIMIT_RULES", value_name = "FILE", value_delimiter = ',')]
    pub(crate) rules: Vec<PathBuf>,

    /// Print the built-in rules, and exit.
    #[arg(long)]
    pub(crate) print_rules: bool,

    /// Follow the rules that were published in Redis for the domains of the files. A file applies until its domain has
    /// published rules.
    #[arg(long, env = "RATELIMIT_FOLLOW_RULES", requires = "redis")]
    pub(crate) follow_rules: bool,

    /// Publish the rules files in Redis for all processes with --follow-rules, and exit.
    #[arg(long, requires = "redis", requires = "rules")]
    pub(crate) publish_rules: bool,

    /// Keys that only the descriptors of proxies have, such as those of Envoy's actions, separated by commas. Rules may
    /// use them besides `remote_address`, `method`, `path`, `host`, `bearer`, `header.NAME` and `query.NAME`.
    #[arg(
        long,
        env = "RATELIMIT_DESCRIPTOR_KEYS",
        value_name = "KEY",
        value_delimiter = ',',
        default_value = "generic_key,header_match,query_match,masked_remote_address,source_cluster,destination_cluster"
    )]
    pub(crate) descriptor_keys: Vec<String>,

    /// The address for checks over HTTP and gRPC. Keep it private.
    #[arg(long, env = "RATELIMIT_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// The address of /metrics and /explain, for operators only.
    #[arg(long, env = "RATELIMIT_LISTEN_ADMIN", value_name = "ADDRESS", default_value = "127.0.0.1:6070")]
    pub(crate) listen_admin: SocketAddr,

    /// The networks of trusted proxies, separated by commas. Only they can send checks, and their X-Forwarded-For has
    /// the client's address.
    #[arg(
        long,
        env = "RATELIMIT_TRUSTED_PROXIES",
        value_name = "NETWORK",
        value_delimiter = ',',
        default_value = "127.0.0.0/8,::1"
    )]
    pub(crate) trusted_proxies: Vec<String>,

    /// The most keys of a domain in the memory of this process. A key counts once for each limit, and takes about 50
    /// bytes.
    #[arg(long, env = "RATELIMIT_MAX_KEYS", value_name = "NUMBER", default_value = "1000000")]
    pub(crate) max_keys: NonZeroUsize,

    /// The URL of Redis: redis://… or, with TLS, rediss://…, and several of a Cluster or of Sentinels, separated by
    /// commas. Default: the memory of this process.
    #[arg(long, env = "RATELIMIT_REDIS", hide_env_values = true, value_name = "URL", value_delimiter = ',')]
    pub(crate) redis: Vec<String>,

    /// Connect to a Redis Cluster by these URLs.
    #[arg(long, env = "RATELIMIT_REDIS_CLUSTER", requires = "redis", conflicts_with = "redis_sentinel")]
    pub(crate) redis_cluster: bool,

    /// The name of the master, if the URLs are those of Sentinels.
    #[arg(long, env = "RATELIMIT_REDIS_SENTINEL", value_name = "MASTER", requires = "redis")]
    pub(crate) redis_sentinel: Option<String>,

    /// The user of Redis, or of the master behind Sentinels. Default: the user `default`.
    #[arg(long, env = "RATELIMIT_REDIS_USER", value_name = "USER", requires = "redis_password")]
    pub(crate) redis_user: Option<String>,

    /// The password of that user, in place of those in the URLs.
    #[arg(long, env = "RATELIMIT_REDIS_PASSWORD", hide_env_values = true, value_name = "PASSWORD", requires = "redis")]
    pub(crate) redis_password: Option<String>,

    /// A PEM file with the certificate authorities of Redis. Default: those of the system.
    #[arg(long, env = "RATELIMIT_REDIS_CA", value_name = "FILE", requires = "redis")]
    pub(crate) redis_ca: Option<PathBuf>,

    /// The prefix of all keys in Redis, which a slash and the domain follow.
    #[arg(long, env = "RATELIMIT_REDIS_PREFIX", value_name = "PREFIX", default_value = "ratelimit")]
    pub(crate) redis_prefix: String,

    /// Start even if Redis does not answer. Until it does, --on-store-error applies.
    #[arg(long, env = "RATELIMIT_START_WITHOUT_REDIS", requires = "redis")]
    pub(crate) start_without_redis: bool,

    /// 32 random hexadecimal digits with which keys are hashed in Redis, the same in all processes. Default: a constant
    /// that is public.
    #[arg(
        long,
        env = "RATELIMIT_SECRET",
        hide_env_values = true,
        value_name = "DIGITS",
        requires = "redis",
        value_parser = secret
    )]
    pub(crate) secret: Option<[u8; 16]>,

    /// The deadline of a call to Redis, in ms.
    #[arg(long, env = "RATELIMIT_DEADLINE_MS", value_name = "MS", default_value = "50")]
    pub(crate) deadline_ms: u64,

    /// The policy while Redis does not answer. A limit of the rules may have an `on_store_error` of its own.
    #[arg(long, env = "RATELIMIT_ON_STORE_ERROR", value_name = "POLICY", value_enum, default_value_t = Policy::Reject)]
    pub(crate) on_store_error: Policy,

    /// The number of processes that share the limits, for --on-store-error decide-locally.
    #[arg(long, env = "RATELIMIT_PROCESSES", value_name = "NUMBER", default_value = "1")]
    pub(crate) processes: u32,

    /// Count and report, but deny nothing.
    #[arg(long, env = "RATELIMIT_SHADOW")]
    pub(crate) shadow: bool,

    /// The usage, in percent of a limit, from which metrics count a key as near its limit.
    #[arg(long, env = "RATELIMIT_NEAR_LIMIT", value_name = "PERCENT", default_value = "80")]
    pub(crate) near_limit: u32,

    /// Be unhealthy while the store does not answer.
    #[arg(long, env = "RATELIMIT_HEALTH_NEEDS_STORE")]
    pub(crate) health_needs_store: bool,

    /// The time after SIGTERM for which checks are still answered, in seconds. Health checks already fail.
    #[arg(long, env = "RATELIMIT_DRAIN_SECONDS", value_name = "SECONDS", default_value = "5")]
    pub(crate) drain_seconds: u64,

    /// The least severe log lines to write: error, warn, info, debug or trace.
    #[arg(long, env = "RATELIMIT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: Level,
}

/// The policy while the store does not answer.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Policy {
    /// Answer with 503, or with the gRPC status UNAVAILABLE.
    Reject,
    /// Allow without counting.
    Allow,
    /// Decide in this process, which allows its share of each limit.
    DecideLocally,
}

/// Parses a secret.
fn secret(digits: &str) -> Result<[u8; 16], String> {
    let is_valid = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_valid);
    let hint = "write 32 hexadecimal digits, such as those of `openssl rand -hex 16`";
    number.map(u128::to_be_bytes).ok_or_else(|| hint.to_owned())
}

impl Settings {
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    /// Returns the policy while the store does not answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the number of processes is 0.
    pub(crate) fn on_store_error(&self) -> Result<OnStoreError, ConfigError> {
        let share = Share::try_one_of(self.processes)?;
        Ok(match self.on_store_error {
            Policy::Reject => OnStoreError::Reject,
            Policy::Allow => OnStoreError::Allow,
            Policy::DecideLocally => OnStoreError::DecideLocally(share),
        })
    }

    /// Returns the addresses of trusted proxies.
    ///
    /// # Errors
    ///
    /// Returns an error if a network is invalid, or if there is none.
    pub(crate) fn trusted_peers(&self) -> Result<AddressList, String> {
        self.proxies().map(drop)?;
        AddressList::try_new(key::peer_ip(), &self.trusted_proxies).map_err(|error| error.to_string())
    }

    fn proxies(&self) -> Result<TrustedProxies, String> {
        TrustedProxies::try_cidrs(&self.trusted_proxies).map_err(|error| format!("--trusted-proxies: {error}"))
    }

    /// Returns the extractors of the keys that rules can have.
    ///
    /// # Errors
    ///
    /// Returns an error if a network of the proxies is invalid, or if there is none.
    pub(crate) fn extractors(&self) -> Result<Extractors, String> {
        let client = self.proxies()?.x_forwarded_for();
        let extractors = Extractors::new().register_address("remote_address", client, 64);
        Ok(self.descriptor_keys.iter().fold(extractors, Extractors::register_descriptor_key))
    }

    /// Returns the configuration of the connection to Redis, or `None` without --redis.
    ///
    /// # Errors
    ///
    /// Returns an error if there are several URLs of one server, or a file can't be read.
    pub(crate) fn redis(&self) -> Result<Option<RedisConfig>, String> {
        let config = match (&self.redis[..], &self.redis_sentinel) {
            ([], _) => return Ok(None),
            (urls, Some(master)) => RedisConfig::sentinel(master, urls),
            (urls, None) if self.redis_cluster => RedisConfig::cluster(urls),
            ([url], None) => RedisConfig::node(url),
            (urls, None) => {
                let count = urls.len();
                return Err(format!("--redis has {count} URLs: give one, or add --redis-cluster or --redis-sentinel"));
            }
        };
        let config = config.prefix(&self.redis_prefix);
        let config = match &self.redis_password {
            Some(password) => config.credentials(self.redis_user.as_deref().unwrap_or("default"), password),
            None => config,
        };
        let Some(file) = &self.redis_ca else { return Ok(Some(config)) };
        let unreadable = |error| format!("--redis-ca {} can't be read: {error}", file.display());
        Ok(Some(config.ca_certificates(std::fs::read(file).map_err(unreadable)?)))
    }
}
