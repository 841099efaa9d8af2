//! The rules of each domain, with the limiters that apply them, and their store.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::rules::{self, Extractors, RulesError};
use tower_ratelimit::{
    Builder, FixedWindow, Limit, Limiter, LiveLimits, MemoryStore, MetricsRecorder, OnStoreError, RateLimitLayer,
    RedisStore, RequestHead, RequestLimiter, Store,
};

use crate::settings::Settings;

/// The rules that apply without a file.
pub(crate) const BUILT_IN: &str = include_str!("rules.yaml");

/// The cost of a descriptor, as an extension of its request.
#[derive(Clone, Copy)]
pub(crate) struct Hits(pub(crate) u64);

/// A domain: its rules, and the state of its limits. Domains share nothing, so that their limits can have equal names.
#[derive(Clone)]
pub(crate) struct Domain {
    /// Answers an original request: with 200 if it is allowed, otherwise with the response for the client.
    pub(crate) answers: BoxCloneSyncService<Request<Body>, Response, Infallible>,
    /// Decides the descriptors of a proxy.
    pub(crate) limiter: RequestLimiter,
    pub(crate) metrics: Arc<MetricsRecorder>,
    /// Peeks at a limit of its own to find out whether the store answers.
    probe: Limiter,
}

impl Domain {
    fn new(name: &str, rules: LiveLimits, store: Arc<dyn Store>, settings: &Settings) -> Result<Self, Box<dyn Error>> {
        let metrics = Arc::new(MetricsRecorder::new().label("domain", name));
        let rules = rules.recorder(metrics.clone());
        let common = Common { settings, store, metrics: metrics.clone(), policy: settings.on_store_error()? };
        if rules.limits().iter().any(|limit| limit.algorithm().name() == "concurrency limit") {
            tracing::warn!(
                domain = name,
                "`concurrent` limits nothing in `/auth` and `/ext_authz`, because proxies do not tell them when requests \
                 end: use Envoy's rate limit filter, with negative hits at the end of a stream"
            );
        }
        // A denial of a gRPC request would have the status 200, by which proxies would forward it.
        let layer = common.apply(RateLimitLayer::live_builder(&rules)).grpc_rejections(false).try_build()?;
        let hits = |head: &RequestHead<'_>| head.extensions.get().map_or(1, |Hits(hits)| *hits);
        let limiter = common.apply(RequestLimiter::live_builder(&rules)).cost_by(hits).try_build()?;
        let probe = Limiter::builder([Limit::new("probe", FixedWindow::per_second(1))]).store(common.store.clone());
        let probe = probe.deadline(settings.deadline()).try_build()?;
        let allow = service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(StatusCode::OK.into_response()) });
        let answers = layer.layer(allow).map_response(IntoResponse::into_response);
        Ok(Self { answers: BoxCloneSyncService::new(answers), limiter, metrics, probe })
    }

    /// Returns whether the store answers.
    pub(crate) async fn store_answers(&self) -> bool {
        self.probe.peek("probe", 1).await.is_ok()
    }
}

/// The settings that both limiters of a domain have in common.
struct Common<'a> {
    settings: &'a Settings,
    store: Arc<dyn Store>,
    metrics: Arc<MetricsRecorder>,
    policy: OnStoreError,
}

impl Common<'_> {
    fn apply<T>(&self, builder: Builder<T>) -> Builder<T> {
        let builder = builder
            .store(self.store.clone())
            .deadline(self.settings.deadline())
            .on_store_error(self.policy)
            .near_limit(self.settings.near_limit)
            .recorder(self.metrics.clone());
        if self.settings.shadow { builder.shadow() } else { builder }
    }
}

/// Loads the rules of all domains, and follows their changes.
///
/// # Errors
///
/// Returns an error if a setting or a file is invalid, if two files have the same domain, or if Redis does not answer.
pub(crate) async fn load(settings: &Settings) -> Result<HashMap<String, Domain>, Box<dyn Error>> {
    let redis = connect(settings).await?;
    let mut domains = HashMap::new();
    for Document { file, text, name } in documents(settings)? {
        let extractors = settings.extractors()?.for_domain(&name);
        let of_domain = redis.clone().map(|store| store.prefix(&format!("{}/{name}", settings.redis_prefix)));
        let rules = match (&of_domain, file) {
            (Some(store), _) if settings.follow_rules => {
                store.follow_rules(extractors.clone(), parse(&text, file, &extractors)?).await?
            }
            (_, Some(file)) => rules::watch(file, extractors).map_err(|error| with_remedy(&error))?,
            (_, None) => LiveLimits::try_new(parse(&text, None, &extractors)?)?,
        };
        let store: Arc<dyn Store> = match of_domain {
            Some(store) => Arc::new(store),
            None => Arc::new(MemoryStore::new().max_keys(settings.max_keys.get())),
        };
        let domain = Domain::new(&name, rules, store, settings)?;
        domains.insert(name, domain);
    }
    Ok(domains)
}

/// Publishes the rules files in Redis.
///
/// # Errors
///
/// Returns an error if a file is invalid, or Redis does not confirm the publication.
pub(crate) async fn publish(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let redis = connect(settings).await?.ok_or("there is no Redis to publish rules in: add --redis")?;
    for Document { file, text, name } in documents(settings)? {
        let extractors = settings.extractors()?.for_domain(&name);
        parse(&text, file, &extractors)?;
        redis.clone().prefix(&format!("{}/{name}", settings.redis_prefix)).publish_rules(&text, &extractors).await?;
    }
    Ok(())
}

/// A document with the rules of a domain.
struct Document<'a> {
    file: Option<&'a Path>,
    text: String,
    name: String,
}

/// Reads the rules files, or else the built-in rules.
fn documents(settings: &Settings) -> Result<Vec<Document<'_>>, String> {
    let built_in = || vec![Document { file: None, text: BUILT_IN.to_owned(), name: "default".to_owned() }];
    let mut documents: Vec<Document<'_>> = if settings.rules.is_empty() { built_in() } else { Vec::new() };
    for file in settings.rules.iter().map(|file| file.as_path()) {
        let path = file.display();
        let text = std::fs::read_to_string(file).map_err(|error| format!("--rules {path} can't be read: {error}"))?;
        let name = rules::domain(&text).map_err(|error| format!("{path}: {error}"))?;
        if let Some(other) = documents.iter().find(|other| other.name == name) {
            let other = other.file.map(Path::display).expect("a file, not the built-in rules");
            return Err(format!("{other} and {path} both have the domain {name:?}: merge them, or rename one"));
        }
        documents.push(Document { file: Some(file), text, name });
    }
    Ok(documents)
}

fn parse(text: &str, file: Option<&Path>, extractors: &Extractors) -> Result<Vec<Limit>, String> {
    let path = file.map_or(String::new(), |file| format!("{}:", file.display()));
    rules::from_yaml(text, extractors).map_err(|error| format!("{path}{}", with_remedy(&error)))
}

/// Returns the text of an error with the setting for keys that are unknown.
fn with_remedy(error: &RulesError) -> String {
    format!("{error}\nif a key is unknown because only proxies send it, add it to --descriptor-keys")
}

/// Connects to Redis. Returns `None` without --redis.
async fn connect(settings: &Settings) -> Result<Option<RedisStore>, Box<dyn Error>> {
    let Some(config) = settings.redis()? else { return Ok(None) };
    let store = if settings.start_without_redis { config.connect_lazily() } else { config.connect().await };
    let store = store.map_err(|error| format!("--redis: {}", with_sources(&error)))?;
    Ok(Some(match settings.secret {
        Some(secret) => store.secret(secret),
        None => store,
    }))
}

/// Returns the text of an error with those of its sources.
fn with_sources(error: &dyn Error) -> String {
    let source = error.source().map(|source| format!(": {}", with_sources(source)));
    error.to_string() + &source.unwrap_or_default()
}
