//! Reads the descriptors of a file, and compiles them to limits.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::error::{Problem, RulesError};
use super::extractors::{Extractors, Matcher, REMOTE_ADDRESS, ValueFormat, is_pattern};
use super::fields::{self, SECOND_LIMIT};
use super::limit::Rule;
use super::proxy_call::ProxyCall;
use super::tree::{Branch, Group, Groups, Tree, TreeRule};
use super::yaml::YamlNode;
use crate::error::{Position, RulePosition};
use crate::limit::{IndexPosition, Limit, LimitIndex, OnMissingKey, check_name};
use crate::select::when::is_credential;

/// A descriptor of a path.
#[derive(Clone, Copy)]
struct Descriptor<'a> {
    key: &'a str,
    /// The value or the pattern that it matches, or `None` for any value.
    value: Option<&'a str>,
    /// The position of its extractor in the tree.
    extractor: usize,
    /// Whether each value that it matches has its own bucket.
    has_bucket_per_value: bool,
    detailed_metric: bool,
    value_to_metric: bool,
}

impl<'a> Descriptor<'a> {
    /// Returns the value as names, metrics and explanations show it: credentials are hidden.
    fn shown(&self) -> Option<&'a str> {
        let name = self.key.strip_prefix("header.").or(self.key.strip_prefix("query."));
        let is_hidden = self.key == "bearer" || name.is_some_and(is_credential);
        self.value.map(|value| if is_hidden { "*" } else { value })
    }
}

/// Compiles the descriptors of a document to limits, in the order of the document.
pub(super) fn limits(
    root: &YamlNode,
    extractors: &Extractors,
    file: &Option<Arc<Path>>,
) -> Result<Vec<Limit>, RulesError> {
    let mut compiler = Compiler {
        domain: "",
        file,
        extractors,
        problems: Vec::new(),
        tree: Tree::default(),
        limits: Vec::new(),
        uses: HashMap::new(),
        replaced: Vec::new(),
    };
    compiler.compile(root).unwrap_or_else(|problem| compiler.problems.push(problem));
    let Compiler { problems, tree, limits, uses, .. } = compiler;
    if !problems.is_empty() {
        return Err(RulesError::new(file.clone(), problems));
    }
    let index: Arc<dyn LimitIndex> = Arc::new(Arc::new(tree));
    let complete = |(number, mut limit, path_hash): (_, Limit, _)| {
        let name = limit.name();
        if check_name(name).is_err() || uses[name] > 1 {
            limit.name = hashed_name(name, path_hash).into();
        }
        limit.position = Some(IndexPosition { index: index.clone(), position: number });
        limit
    };
    Ok(limits.into_iter().map(complete).collect())
}

/// Returns the domain of a document.
pub(super) fn domain(root: &YamlNode) -> Result<&str, Problem> {
    root.required("domain", "the domain is missing: write `domain: shop`, for example")
}

struct Compiler<'a> {
    domain: &'a str,
    file: &'a Option<Arc<Path>>,
    extractors: &'a Extractors,
    problems: Vec<Problem>,
    tree: Tree,
    /// The limits with the numbers of their rules, names that may be invalid, and hashes of their paths.
    limits: Vec<(usize, Limit, u64)>,
    /// The number of rules with each name.
    uses: HashMap<String, usize>,
    /// The names of rules that others replace, with their positions.
    replaced: Vec<(&'a str, Position)>,
}

/// The lines of the descriptors in a list, by their extractors and values. As compiled, because the same address can be
/// written in several ways.
type DescriptorLines = HashMap<(usize, Matcher), usize>;

impl<'a> Compiler<'a> {
    /// Compiles a document. Like the other methods, returns a problem or adds several to the others.
    fn compile(&mut self, root: &'a YamlNode) -> Result<(), Problem> {
        let domain = root.check_fields("the file", fields::FILE).and_then(|()| domain(root));
        self.domain = domain.as_ref().copied().unwrap_or_default();
        if let (Ok(domain), Some(required)) = (&domain, &self.extractors.domain)
            && *domain != &**required
        {
            let message = format!("the domain is {domain:?}, but {required:?} is expected: write `domain: {required}`");
            self.problems.push(Problem::new(root.position("domain"), message));
        }
        self.tree.groups = self.groups(root, &[])?;
        let names: HashSet<_> = self.tree.rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
        // The name of an invalid rule is not known.
        let is_valid = self.problems.is_empty();
        let unknown = self.replaced.iter().filter(|(name, _)| is_valid && !names.contains(name));
        self.problems.extend(unknown.map(|(name, at)| {
            Problem::new(*at, format!("no rule of this file has the `name` {name:?}: add it to one, or leave this out"))
        }));
        let replaced: HashSet<_> = self.tree.rules.iter().flat_map(|rule| rule.replaces.clone()).collect();
        for rule in &mut self.tree.rules {
            rule.name = rule.name.take().filter(|name| replaced.contains(name));
        }
        domain.map(drop)
    }

    /// Compiles the descriptors that a mapping lists, which are nested in the descriptors `outer`. Also reports the
    /// problems of descriptors that are nested in invalid ones.
    fn groups(&mut self, parent: &'a YamlNode, outer: &[Descriptor<'a>]) -> Result<Groups, Problem> {
        let (mut groups, mut lines) = (BTreeMap::<_, Group>::new(), DescriptorLines::new());
        for node in parent.list("descriptors")? {
            let mut path = outer.to_vec();
            match (self.descriptor(node, &mut path, &mut lines), self.groups(node, &path)) {
                (Ok((extractor, matcher, rule)), Ok(children)) => {
                    groups.entry(extractor).or_default().add(matcher, Branch { rule, children });
                }
                (Err(problem), _) | (_, Err(problem)) => self.problems.push(problem),
            }
        }
        Ok(groups.into_iter().collect())
    }

    /// Compiles a descriptor without those that are nested in it, and adds it to the path. Returns its extractor, the
    /// value that it matches, and the number of its rule, if it has one.
    fn descriptor(
        &mut self,
        node: &'a YamlNode,
        path: &mut Vec<Descriptor<'a>>,
        lines: &mut DescriptorLines,
    ) -> Result<(usize, Matcher, Option<usize>), Problem> {
        node.check_fields("a descriptor", fields::DESCRIPTOR)?;
        let value = node.text("value")?;
        let is_shared = node.flag("share_threshold")?;
        let message = "only values with a `*` can share a threshold: add one to `value`, or leave this out";
        node.reject_if(is_shared && !value.is_some_and(is_pattern), "share_threshold", message)?;
        let key = node.required("key", "a descriptor has no key: write `key: remote_address`, for example")?;
        let key_at = node.position("key");
        let value_at = node.position(if value.is_some() { "value" } else { "key" });
        let earlier = path.iter().filter(|outer| outer.key == key).count();
        let extractor = self.extractor(key, earlier, key_at)?;
        path.push(Descriptor {
            key,
            value,
            extractor,
            has_bucket_per_value: !is_shared && value.is_none_or(is_pattern),
            detailed_metric: node.flag("detailed_metric")?,
            value_to_metric: node.flag("value_to_metric")?,
        });
        let matcher = self.tree.extractors[extractor].format.matcher(value);
        let matcher = matcher.map_err(|message| Problem::new(value_at, message))?;
        if let Some(line) = lines.insert((extractor, matcher.clone()), key_at.line) {
            let shown = path.last().and_then(Descriptor::shown);
            let value = shown.map_or(String::new(), |value| format!(" = {value:?}"));
            let message = format!("`{key}`{value} is the same as on line {line}: keep one{SECOND_LIMIT}");
            self.problems.push(Problem::new(value_at, message));
        }
        let rule = Rule::read(node)?.map(|rule| self.rule(rule, path));
        Ok((extractor, matcher, rule))
    }

    /// Compiles the rule of the last descriptor of a path. Returns its number.
    fn rule(&mut self, mut rule: Rule<'a>, path: &[Descriptor<'a>]) -> usize {
        let number = self.tree.rules.len();
        let mut key = Vec::new();
        for (name, at) in &rule.key {
            match self.extractor(name, 0, *at) {
                Ok(extractor) => key.push(extractor),
                Err(problem) => self.problems.push(problem),
            }
        }
        let is_unlimited = rule.limit.is_none();
        if let Some(limit) = rule.limit.take() {
            let generated = || format!("{}.{}", self.domain, display(path, "_", "."));
            let name = rule.name.map_or_else(generated, str::to_owned);
            *self.uses.entry(name.clone()).or_default() += 1;
            if rule.key.is_empty() {
                let distinct = path.iter().filter(|descriptor| descriptor.has_bucket_per_value);
                key.extend(distinct.map(|descriptor| descriptor.extractor));
            }
            // The hash is the same on all machines and in all versions, because buckets are stored by the name.
            let mut hasher = SipHasher13::new();
            let values = path.iter().map(|descriptor| (descriptor.key, descriptor.value));
            (self.domain, values.collect::<Vec<_>>()).hash(&mut hasher);
            let limit = self.limit(limit, name, &rule, path);
            self.limits.push((number, limit, hasher.finish()));
        } else {
            key.clear();
        }
        let name = rule.name.map(str::to_owned);
        let replaces = rule.replaces.iter().map(|(name, _)| (*name).to_owned()).collect();
        self.replaced.extend(rule.replaces);
        self.tree.rules.push(TreeRule { is_unlimited, name, replaces, key });
        number
    }

    /// Completes a limit by its name and the properties of its path.
    fn limit(&mut self, mut limit: Limit, name: String, rule: &Rule<'_>, path: &[Descriptor<'_>]) -> Limit {
        limit.name = name.into();
        if let Err(error) = limit.check_overage(limit.algorithm()) {
            let field = if rule.node.has("debt") { "debt" } else { "soft" };
            self.problems.push(rule.node.problem(field, error));
        }
        if let Err(error) = limit.check_lease() {
            self.problems.push(rule.node.problem("lease", error));
        }
        // The path with the values of a request, as Envoy's rate limit service writes it in the names of metrics. Parts
        // without an extractor are the same for all requests.
        let is_detailed = path.last().is_some_and(|descriptor| descriptor.detailed_metric);
        let extractor = |descriptor: &Descriptor<'_>| &self.tree.extractors[descriptor.extractor];
        let part = |(index, descriptor): (usize, &Descriptor<'_>)| {
            let asks = (is_detailed || descriptor.value_to_metric) && descriptor.has_bucket_per_value;
            let text = join(descriptor.key, "_", descriptor.shown().filter(|_| !asks));
            let earlier = path[..index].iter().filter(|outer| outer.key == descriptor.key).count();
            (text, asks.then(|| (extractor(descriptor).clone(), earlier)))
        };
        let parts: Vec<_> = path.iter().enumerate().map(part).collect();
        if parts.iter().any(|(_, extractor)| extractor.is_some()) {
            limit = limit.metric_detail(move |head| {
                let detail = parts.iter().map(|(text, extractor)| {
                    // The text of a part that has an extractor is its key.
                    let value = extractor.as_ref().and_then(|(extractor, earlier)| match ProxyCall::of(head) {
                        Some(call) => call.own().value(text, *earlier).map(str::to_owned),
                        None => extractor.text(head),
                    });
                    join(text, "_", value.as_deref())
                });
                Some(detail.collect::<Vec<_>>().join("."))
            });
        }
        // Without a value there is no descriptor, as in Envoy's service, so no limit applies. A limit with a `key` of
        // its own is meant for all requests. So is one by the client's address: a request without it has bypassed the
        // proxy, or the server is misconfigured.
        let is_address = |descriptor: &Descriptor<'_>| {
            descriptor.key == REMOTE_ADDRESS || matches!(extractor(descriptor).format, ValueFormat::Address { .. })
        };
        let is_for_all = !rule.key.is_empty() || path.iter().any(is_address);
        let missing = if is_for_all { OnMissingKey::Reject } else { OnMissingKey::Skip };
        limit.rule_path = Some(display(path, "=", " > ").into());
        limit.rule_position = Some(Arc::new(RulePosition { file: self.file.clone(), at: rule.node.at }));
        limit.on_missing_key(rule.on_missing_key.unwrap_or(missing))
    }

    /// Returns the position of the extractor of a key after `earlier` descriptors of the path with the same key. Adds
    /// the extractor to the tree if it is new.
    fn extractor(&mut self, name: &str, earlier: usize, at: Position) -> Result<usize, Problem> {
        let known = self.tree.positions.get(name).map(Vec::as_slice).unwrap_or_default();
        if let Some(position) = known.get(earlier) {
            return Ok(*position);
        }
        let named = self.extractors.find(name).map_err(|message| Problem::new(at, message))?;
        let position = self.tree.extractors.len();
        self.tree.extractors.push(named);
        self.tree.positions.entry(name.to_owned()).or_default().push(position);
        Ok(position)
    }
}

/// Writes the keys and values of a path.
fn display(path: &[Descriptor<'_>], between: &str, separator: &str) -> String {
    let parts = path.iter().map(|descriptor| join(descriptor.key, between, descriptor.shown()));
    parts.collect::<Vec<_>>().join(separator)
}

fn join(key: &str, between: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}{between}{value}"))
}

/// Returns a name that is valid in a header, with a hash of the limit's path as a suffix.
fn hashed_name(name: &str, path_hash: u64) -> String {
    let printable = |character| if matches!(character, ' '..='~') { character } else { '?' };
    // With the suffix, 64 characters.
    let start: String = name.chars().map(printable).take(47).collect();
    format!("{start}~{path_hash:016x}")
}
