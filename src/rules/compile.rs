//! Compiles the descriptors of a file to limits.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::iter;
use std::path::Path;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::allowance::Allowance;
use super::descriptor::Descriptor;
use super::extractors::Extractors;
use super::metric_detail::{self, MetricDetail, MetricPart};
use super::policy::Policy;
use super::problem::{Position, Problem};
use super::tree::{Group, Node, Rule, Tree, TreeIndex};
use super::value::{CompiledValue, ValueFormat};
use crate::algorithm::FixedWindow;
use crate::error::RulePosition;
use crate::limit::{Limit, LimitIndex, OnMissingKey};

/// A descriptor with a `rate_limit` block, and its path.
struct RuleSource<'a> {
    policy: &'a Policy,
    /// The descriptors from the outermost one inwards.
    path: Vec<&'a Descriptor>,
    /// The extractors whose values have separate buckets.
    key: Vec<(usize, ValueFormat)>,
}

/// Compiles descriptors to limits, in the order of the file.
pub(super) fn limits(
    domain: &str,
    descriptors: &[Descriptor],
    extractors: &Extractors,
    file: Option<&Arc<Path>>,
) -> Result<Vec<Limit>, Vec<Problem>> {
    let mut builder = TreeBuilder::new(extractors);
    let groups = builder.add_descriptors(descriptors, &[], &[]);
    let sources = std::mem::take(&mut builder.sources);
    let names = names(domain, &sources);
    let limits: Vec<Option<Limit>> =
        sources.iter().zip(names).map(|(source, name)| builder.add_rule(source, name)).collect();
    let TreeBuilder { tree, problems, .. } = builder;
    if !problems.is_empty() {
        return Err(problems);
    }
    let index: Arc<dyn LimitIndex> = Arc::new(TreeIndex(Arc::new(Tree { groups, ..tree })));
    let located = |(number, limit): (usize, Option<Limit>)| {
        let Position { line, column } = sources[number].policy.position;
        let position = RulePosition { file: file.cloned(), line, column };
        Some(limit?.indexed(index.clone(), number).with_rule_position(position))
    };
    Ok(limits.into_iter().enumerate().filter_map(located).collect())
}

struct TreeBuilder<'a, 'e> {
    extractors: &'e Extractors,
    /// The tree without its groups.
    tree: Tree,
    /// The positions of extractors in the tree, by their names.
    positions: HashMap<&'a str, (usize, ValueFormat)>,
    sources: Vec<RuleSource<'a>>,
    problems: Vec<Problem>,
}

impl<'a, 'e> TreeBuilder<'a, 'e> {
    fn new(extractors: &'e Extractors) -> Self {
        let (tree, positions) = (Tree::default(), HashMap::new());
        Self { extractors, tree, positions, sources: Vec::new(), problems: Vec::new() }
    }

    fn add_descriptors(
        &mut self,
        descriptors: &'a [Descriptor],
        outer_key: &[(usize, ValueFormat)],
        outer_path: &[&'a Descriptor],
    ) -> Box<[Group]> {
        let mut groups: Vec<Group> = Vec::new();
        let mut group_of: HashMap<&str, usize> = HashMap::new();
        // The same address can be written in several ways.
        let mut known: HashMap<(&str, Box<[u8]>), usize> = HashMap::new();
        for descriptor in descriptors {
            let name = descriptor.key.as_str();
            let (extractor, format) = match self.extractor(name) {
                Ok(extractor) => extractor,
                Err(message) => {
                    self.problems.push(Problem::new(descriptor.position, message));
                    continue;
                }
            };
            let value = match CompiledValue::new(format, &descriptor.value) {
                Ok(value) => value,
                Err(message) => {
                    self.problems.push(Problem::new(descriptor.value_position, message));
                    continue;
                }
            };
            if let CompiledValue::Exact(bytes) = &value
                && let Some(line) = known.insert((name, bytes.clone()), descriptor.position.line)
            {
                let message = format!("this is the same value of `{name}` as on line {line}: keep one");
                self.problems.push(Problem::new(descriptor.value_position, message));
            }
            let mut key = outer_key.to_vec();
            if !matches!(value, CompiledValue::Exact(_)) && !descriptor.share_threshold {
                key.push((extractor, format));
            }
            let path: Vec<_> = outer_path.iter().copied().chain([descriptor]).collect();
            let rule = descriptor.rate_limit.as_ref().map(|policy| {
                self.sources.push(RuleSource { policy, path: path.clone(), key: key.clone() });
                self.sources.len() - 1
            });
            let children = self.add_descriptors(&descriptor.descriptors, &key, &path);
            let group = *group_of.entry(name).or_insert_with(|| {
                groups.push(Group::new(extractor, format));
                groups.len() - 1
            });
            groups[group].add(value, Node { rule, children });
        }
        groups.into()
    }

    /// Returns the position of an extractor in the tree and the format of its values. Adds the extractor if it is new.
    fn extractor(&mut self, name: &'a str) -> Result<(usize, ValueFormat), String> {
        if let Some(known) = self.positions.get(name) {
            return Ok(*known);
        }
        let named = self.extractors.find(name)?;
        let position = (self.tree.extractors.len(), named.format);
        self.tree.extractors.push(named);
        self.positions.insert(name, position);
        Ok(position)
    }

    /// Adds a rule to the tree. Returns its limit unless it is unlimited.
    fn add_rule(&mut self, source: &RuleSource<'a>, name: String) -> Option<Limit> {
        let policy = source.policy;
        let mut own_key = Vec::new();
        for (name, at) in &policy.key {
            match self.extractor(name) {
                Ok(extractor) => own_key.push(extractor),
                Err(message) => self.problems.push(Problem::new(*at, message)),
            }
        }
        let needs_address = self.needs_address(source);
        let limit = source.limit(name, needs_address).map_err(|problem| self.problems.push(problem)).ok().flatten();
        let limit = limit.map(|limit| match self.metric_detail(source) {
            Some(detail) => limit.metric_detail(move |head| Some(detail.of(head))),
            None => limit,
        });
        let key = match (&limit, policy.key.is_empty()) {
            // An unlimited rule charges nothing.
            (None, _) => Vec::new(),
            (Some(_), true) => source.key.clone(),
            (Some(_), false) => own_key,
        };
        self.tree.rules.push(Rule {
            key: key.into(),
            name: policy.name.as_deref().map(Arc::from),
            replaces: policy.replaces.iter().map(|name| Arc::from(name.as_str())).collect(),
            is_unlimited: limit.is_none(),
        });
        limit
    }

    /// Returns whether a descriptor on the path has the client's address as its key.
    fn needs_address(&self, source: &RuleSource<'a>) -> bool {
        let extractor = |descriptor: &&Descriptor| &self.tree.extractors[self.positions[&*descriptor.key].0];
        source.path.iter().map(extractor).any(|extractor| extractor.is_client_address)
    }

    /// Returns the detail by which the metrics of a limit are split, if its descriptors ask for it.
    fn metric_detail(&self, source: &RuleSource<'a>) -> Option<MetricDetail> {
        let is_detailed = source.descriptor().detailed_metric;
        let part = |descriptor: &&Descriptor| {
            let asks = is_detailed || descriptor.value_to_metric;
            let (extractor, _) = self.positions[&*descriptor.key];
            MetricPart::new(descriptor, asks.then(|| &self.tree.extractors[extractor]))
        };
        MetricDetail::new(source.path.iter().map(part).collect())
    }
}

impl<'a> RuleSource<'a> {
    /// Returns the descriptor that has the `rate_limit` block.
    fn descriptor(&self) -> &'a Descriptor {
        self.path.last().expect("a path ends with the descriptor")
    }

    /// Returns the keys and values of the path.
    fn path(&self) -> Vec<(&str, Option<&str>)> {
        self.path.iter().map(|descriptor| (&*descriptor.key, descriptor.value.as_str())).collect()
    }

    /// Returns the limit, or `None` if the rule is unlimited.
    fn limit(&self, name: String, needs_address: bool) -> Result<Option<Limit>, Problem> {
        let Self { policy, .. } = self;
        let descriptor = self.descriptor();
        let limit = match policy.allowance {
            Allowance::Unlimited => return Ok(None),
            Allowance::Limited(algorithm) => Limit::try_new(name, algorithm).map(|limit| match policy.cost {
                Some(cost) => limit.cost(cost.into()),
                None => limit,
            }),
            // A cost over the capacity is always denied.
            Allowance::Nothing => {
                Limit::try_new(name, FixedWindow::per_second(1)).map(|limit| limit.cost_by(|_| u64::MAX))
            }
        };
        let mut limit = limit.map_err(|error| Problem::new(policy.position, error.to_string()))?;
        if let (Some(percent), Allowance::Limited(algorithm)) = (policy.soft, policy.allowance) {
            limit = limit.soft(percent);
            limit.check_overage(&algorithm).map_err(|error| Problem::new(policy.soft_at, error.to_string()))?;
        }
        if let Some(penalty) = policy.penalty {
            limit = limit.penalty(penalty);
        }
        if descriptor.is_shadow() {
            limit = limit.shadow();
        }
        if descriptor.quota_mode {
            limit = limit.quota_mode();
        }
        if policy.overridable {
            limit = limit.overridable();
        }
        if let Some(otherwise) = policy.on_store_error {
            limit = limit.on_store_error(otherwise);
        }
        // Without a value there is no descriptor, as in Envoy's service, so no limit applies. A limit with a `key` of
        // its own is meant for all requests. So is one by the client's address: a request without it has bypassed the
        // proxy, or the server is misconfigured.
        let is_for_all = needs_address || !policy.key.is_empty();
        let missing = if is_for_all { OnMissingKey::Reject } else { OnMissingKey::Skip };
        let limit = limit.with_rule_path(self.display_path());
        Ok(Some(limit.on_missing_key(policy.on_missing_key.unwrap_or(missing))))
    }

    /// Returns the path for people, such as `path=/login > remote_address`.
    fn display_path(&self) -> String {
        let part = |(key, value): &(&str, Option<&str>)| match value {
            Some(value) => format!("{key}={value}"),
            None => (*key).to_owned(),
        };
        self.path().iter().map(part).collect::<Vec<_>>().join(" > ")
    }
}

/// Returns a unique name for each limit. It stays the same as long as the descriptors around it do.
fn names(domain: &str, sources: &[RuleSource<'_>]) -> Vec<String> {
    let wanted = sources.iter().map(|source| match &source.policy.name {
        Some(name) => name.clone(),
        None => {
            let path = source.path();
            let parts = path.into_iter().map(|(key, value)| metric_detail::part(key, value));
            iter::once(domain.to_owned()).chain(parts).collect::<Vec<_>>().join(".")
        }
    });
    let wanted: Vec<String> = wanted.collect();
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for name in &wanted {
        *uses.entry(name).or_default() += 1;
    }
    let name = |(name, source): (&String, &RuleSource<'_>)| {
        let is_valid = name.len() <= MAX_LENGTH && name.chars().all(|character| matches!(character, ' '..='~'));
        if is_valid && uses[name.as_str()] == 1 { name.clone() } else { hashed_name(name, (domain, &source.path())) }
    };
    wanted.iter().zip(sources).map(name).collect()
}

/// The maximum length of a limit's name.
const MAX_LENGTH: usize = 64;
/// The length of the suffix: `~` and 64 bits in hexadecimal.
const SUFFIX: usize = 17;

/// Returns a name that is valid in a header, with a hash of the limit's path as a suffix.
fn hashed_name(name: &str, path: impl Hash) -> String {
    // The hash is the same on all machines and in all versions, because buckets are stored by this name.
    let mut hasher = SipHasher13::new();
    path.hash(&mut hasher);
    let printable = |character| if matches!(character, ' '..='~') { character } else { '?' };
    let start: String = name.chars().map(printable).take(MAX_LENGTH - SUFFIX).collect();
    format!("{start}~{:016x}", hasher.finish())
}
