//! Reads the descriptors of a file, and compiles them to limits.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::error::{Problem, RulesError};
use super::extractors::{Extractors, Named, REMOTE_ADDRESS, ValueFormat, is_pattern};
use super::fields;
use super::limit::Rule;
use super::tree::{Branch, Group, Groups, Tree, TreeRule};
use super::yaml::YamlNode;
use crate::error::{Position, RulePosition};
use crate::key::heads::RequestHead;
use crate::key::{KeyExtractor, KeyPart};
use crate::limit::{IndexPosition, Limit, LimitIndex, OnMissingKey};

/// A descriptor: the value that a request must have, the limit that then applies, and nested descriptors.
#[derive(Clone, Debug)]
pub(super) struct Descriptor {
    /// The name of an extractor, and its position.
    key: String,
    key_at: Position,
    /// The value or the pattern that it matches, or `None` for any value.
    value: Option<String>,
    /// The position of the value, or of the key if it has none.
    value_at: Position,
    rule: Option<Rule>,
    descriptors: Vec<Descriptor>,
    /// Whether each value that it matches has its own bucket.
    has_bucket_per_value: bool,
    detailed_metric: bool,
    value_to_metric: bool,
}

impl Descriptor {
    /// Reads the descriptors of a mapping. Adds a problem of each that is invalid to `problems`.
    pub(super) fn read_all(parent: &YamlNode, problems: &mut Vec<Problem>) -> Result<Vec<Self>, Problem> {
        let mut descriptors = Vec::new();
        for node in parent.list("descriptors")? {
            match Self::read(node, problems) {
                Ok(descriptor) => descriptors.push(descriptor),
                Err(problem) => problems.push(problem),
            }
        }
        Ok(descriptors)
    }

    fn read(node: &YamlNode, problems: &mut Vec<Problem>) -> Result<Self, Problem> {
        let descriptors = Self::read_all(node, problems)?;
        node.check_fields("a descriptor", fields::DESCRIPTOR)?;
        let value = node.text("value")?;
        let is_shared = node.flag("share_threshold")?;
        let message = "only values with a `*` can share a threshold: add one to `value`, or leave this out";
        node.reject_if(is_shared && !value.is_some_and(is_pattern), "share_threshold", message)?;
        let key = node.required("key", "a descriptor has no key: write `key: remote_address`, for example")?;
        Ok(Self {
            key: key.to_owned(),
            key_at: node.position("key"),
            value: value.map(str::to_owned),
            value_at: node.position(if value.is_some() { "value" } else { "key" }),
            rule: Rule::read(node)?,
            descriptors,
            has_bucket_per_value: !is_shared && value.is_none_or(is_pattern),
            detailed_metric: node.flag("detailed_metric")?,
            value_to_metric: node.flag("value_to_metric")?,
        })
    }
}

/// Compiles descriptors to limits, in the order of the file.
pub(super) fn limits(
    domain: &str,
    descriptors: &[Descriptor],
    extractors: &Extractors,
    file: &Option<Arc<Path>>,
) -> Result<Vec<Limit>, RulesError> {
    let (problems, tree, positions) = (Vec::new(), Tree::default(), HashMap::new());
    let mut compiler =
        Compiler { domain, file, extractors, problems, tree, positions, limits: Vec::new(), uses: HashMap::new() };
    compiler.tree.groups = compiler.groups(descriptors, &[]);
    let Compiler { problems, tree, limits, uses, .. } = compiler;
    if !problems.is_empty() {
        return Err(RulesError::new(file.clone(), problems));
    }
    let index: Arc<dyn LimitIndex> = Arc::new(Arc::new(tree));
    let complete = |(number, mut limit, path_hash): (_, Limit, _)| {
        let name = limit.name();
        if name.len() > MAX_LENGTH || !name.chars().all(is_printable) || uses[name] > 1 {
            limit.name = hashed_name(name, path_hash).into();
        }
        limit.position = Some(IndexPosition { index: index.clone(), position: number });
        limit
    };
    Ok(limits.into_iter().map(complete).collect())
}

struct Compiler<'a> {
    domain: &'a str,
    file: &'a Option<Arc<Path>>,
    extractors: &'a Extractors,
    problems: Vec<Problem>,
    tree: Tree,
    /// The positions of extractors in the tree, by their names.
    positions: HashMap<&'a str, usize>,
    /// The limits with the numbers of their rules, names that may be invalid, and hashes of their paths.
    limits: Vec<(usize, Limit, u64)>,
    /// The number of rules with each name.
    uses: HashMap<String, usize>,
}

impl<'a> Compiler<'a> {
    /// Compiles the descriptors of a list, which is nested in the descriptors `outer`.
    fn groups(&mut self, descriptors: &'a [Descriptor], outer: &[&'a Descriptor]) -> Groups {
        let mut groups = BTreeMap::<_, Group>::new();
        // As compiled, because the same address can be written in several ways.
        let mut lines = HashMap::new();
        for descriptor in descriptors {
            let Descriptor { key, value, value_at, .. } = descriptor;
            let Some(extractor) = self.extractor(key, descriptor.key_at) else { continue };
            let matcher = self.named(descriptor).format.matcher(value.as_deref());
            let Some(matcher) = self.check(*value_at, matcher) else { continue };
            if let Some(line) = lines.insert((extractor, matcher.clone()), descriptor.key_at.line) {
                let value = value.as_ref().map_or(String::new(), |value| format!(" = {value:?}"));
                let message = format!("`{key}`{value} is the same as on line {line}: keep one");
                self.problems.push(Problem::new(*value_at, message));
            }
            let path = [outer, &[descriptor]].concat();
            let rule = descriptor.rule.as_ref().map(|rule| self.rule(rule, &path));
            let branch = Branch { rule, children: self.groups(&descriptor.descriptors, &path) };
            groups.entry(extractor).or_default().add(matcher, branch);
        }
        groups.into_iter().collect()
    }

    /// Compiles the rule of the last descriptor of a path. Returns its number.
    fn rule(&mut self, rule: &'a Rule, path: &[&'a Descriptor]) -> usize {
        let number = self.tree.rules.len();
        let mut key: Vec<usize> = rule.key.iter().filter_map(|(name, at)| self.extractor(name, *at)).collect();
        let generated = || format!("{}.{}", self.domain, display(path, "_", "."));
        let name = rule.name.clone().unwrap_or_else(generated);
        if let Some(limit) = &rule.limit {
            *self.uses.entry(name.clone()).or_default() += 1;
            if rule.key.is_empty() {
                let distinct = path.iter().filter(|descriptor| descriptor.has_bucket_per_value);
                key.extend(distinct.map(|descriptor| self.positions[&*descriptor.key]));
            }
            // The hash is the same on all machines and in all versions, because buckets are stored by the name.
            let mut hasher = SipHasher13::new();
            let values = path.iter().map(|descriptor| (&descriptor.key, &descriptor.value));
            (self.domain, values.collect::<Vec<_>>()).hash(&mut hasher);
            let mut limit = limit.clone();
            limit.name = name.into();
            let limit = self.limit(limit, rule, path);
            self.limits.push((number, limit, hasher.finish()));
        } else {
            key.clear();
        }
        let (name, replaces) = (rule.name.clone(), rule.replaces.clone());
        self.tree.rules.push(TreeRule { is_unlimited: rule.limit.is_none(), name, replaces, key });
        number
    }

    /// Completes a limit by the properties of its path.
    fn limit(&mut self, mut limit: Limit, rule: &Rule, path: &[&Descriptor]) -> Limit {
        self.check(rule.soft_at, limit.check_overage(limit.algorithm()));
        // The path with the values of a request, as Envoy's rate limit service writes it in the names of metrics. Parts
        // without an extractor are the same for all requests.
        let is_detailed = path.last().is_some_and(|descriptor| descriptor.detailed_metric);
        let part = |descriptor: &&Descriptor| {
            let asks = (is_detailed || descriptor.value_to_metric) && descriptor.has_bucket_per_value;
            let text = if asks { descriptor.key.clone() } else { display(&[descriptor], "_", ".") };
            (text, asks.then(|| self.named(descriptor).extractor.clone()))
        };
        let parts: Vec<_> = path.iter().map(part).collect();
        if parts.iter().any(|(_, extractor)| extractor.is_some()) {
            limit = limit.metric_detail(move |head| {
                let detail = parts.iter().map(|(text, extractor)| {
                    let value = extractor.as_ref().and_then(|extractor| value_of(&**extractor, head));
                    join(text, "_", value.as_deref())
                });
                Some(detail.collect::<Vec<_>>().join("."))
            });
        }
        // Without a value there is no descriptor, as in Envoy's service, so no limit applies. A limit with a `key` of
        // its own is meant for all requests. So is one by the client's address: a request without it has bypassed the
        // proxy, or the server is misconfigured.
        let is_address = |descriptor: &&Descriptor| {
            descriptor.key == REMOTE_ADDRESS || matches!(self.named(descriptor).format, ValueFormat::Address { .. })
        };
        let is_for_all = !rule.key.is_empty() || path.iter().any(is_address);
        let missing = if is_for_all { OnMissingKey::Reject } else { OnMissingKey::Skip };
        limit.rule_path = Some(display(path, "=", " > ").into());
        limit.rule_position = Some(Arc::new(RulePosition { file: self.file.clone(), at: rule.at }));
        limit.on_missing_key(rule.on_missing_key.unwrap_or(missing))
    }

    /// Returns the position of an extractor in the tree. Adds the extractor if it is new.
    fn extractor(&mut self, name: &'a str, at: Position) -> Option<usize> {
        if let Some(known) = self.positions.get(name) {
            return Some(*known);
        }
        let named = self.check(at, self.extractors.find(name))?;
        let position = self.tree.extractors.len();
        self.tree.extractors.push(named);
        self.positions.insert(name, position);
        Some(position)
    }

    /// Returns the value of a result, or adds its error to the problems.
    fn check<T>(&mut self, at: Position, result: Result<T, impl ToString>) -> Option<T> {
        result.map_err(|error| self.problems.push(Problem::new(at, error))).ok()
    }

    /// Returns the extractor of a descriptor, which is in the tree.
    fn named(&self, descriptor: &Descriptor) -> &Named {
        &self.tree.extractors[self.positions[&*descriptor.key]]
    }
}

/// Writes the keys and values of a path.
fn display(path: &[&Descriptor], between: &str, separator: &str) -> String {
    let parts = path.iter().map(|Descriptor { key, value, .. }| join(key, between, value.as_deref()));
    parts.collect::<Vec<_>>().join(separator)
}

fn join(key: &str, between: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}{between}{value}"))
}

/// Returns the value of a request. `None` if it has none, or if it is found asynchronously.
fn value_of(extractor: &dyn KeyExtractor, head: &RequestHead<'_>) -> Option<String> {
    let mut parts = extractor.describe(head);
    parts.iter_mut().for_each(KeyPart::reveal);
    let values: Option<Vec<_>> = parts.iter().map(KeyPart::value).collect();
    values.filter(|values| !values.is_empty()).map(|values| values.join(","))
}

/// The maximum length of a limit's name.
const MAX_LENGTH: usize = 64;
/// The length of the suffix: `~` and 64 bits in hexadecimal.
const SUFFIX: usize = 17;

/// Returns a name that is valid in a header, with a hash of the limit's path as a suffix.
fn hashed_name(name: &str, path_hash: u64) -> String {
    let printable = |character| if is_printable(character) { character } else { '?' };
    let start: String = name.chars().map(printable).take(MAX_LENGTH - SUFFIX).collect();
    format!("{start}~{path_hash:016x}")
}

fn is_printable(character: char) -> bool {
    matches!(character, ' '..='~')
}
