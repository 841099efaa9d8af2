//! The compiled descriptors of a file: a tree in which each request follows the descriptors that match it.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::extractors::Named;
use super::pattern::Pattern;
use super::value::{CompiledValue, ValueFormat};
use super::values::{ExtractedValues, Pending};
use crate::key::{KeyBuf, KeyError, KeyPart, only_part};
use crate::limit::{LimitIndex, Match, MissingKeyPolicy, OnMatch, OnMissingKey, PendingMatches};
use crate::request::RequestHead;

/// All descriptors of a file.
#[derive(Default)]
pub(super) struct Tree {
    /// The extractors of the tree. Each runs at most once for a request, however many descriptors have its key.
    pub(super) extractors: Vec<Named>,
    pub(super) groups: Box<[Group]>,
    /// In the order of the file.
    pub(super) rules: Vec<Rule>,
}

/// The descriptors of a list that have the same key. A value selects one of them: the one with the exact value, or else
/// the first with a matching pattern, or else the one without a value.
pub(super) struct Group {
    /// The position of the extractor in the tree.
    extractor: usize,
    format: ValueFormat,
    exact: HashMap<Box<[u8]>, Node>,
    patterns: Vec<(Pattern, Node)>,
    any: Option<Node>,
}

/// One descriptor.
pub(super) struct Node {
    pub(super) rule: Option<usize>,
    pub(super) children: Box<[Group]>,
}

/// The `rate_limit` block of a descriptor, which may be unlimited.
pub(super) struct Rule {
    /// The extractors whose values make up the key.
    pub(super) key: Box<[(usize, ValueFormat)]>,
    pub(super) name: Option<Arc<str>>,
    /// The names of the rules that do not apply where this one does.
    pub(super) replaces: Box<[Arc<str>]>,
    /// Whether it has no limit, and thus no key.
    pub(super) is_unlimited: bool,
}

/// The rules that match a request.
type Matches = SmallVec<[(usize, Match<()>); 8]>;

impl Group {
    pub(super) fn new(extractor: usize, format: ValueFormat) -> Self {
        Self { extractor, format, exact: HashMap::new(), patterns: Vec::new(), any: None }
    }

    pub(super) fn add(&mut self, value: CompiledValue, node: Node) {
        match value {
            CompiledValue::Any => self.any = Some(node),
            CompiledValue::Exact(bytes) => drop(self.exact.insert(bytes, node)),
            CompiledValue::Pattern(pattern) => self.patterns.push((pattern, node)),
        }
    }

    /// Selects the descriptor of a value: `parts`, each preceded by its length.
    fn select(&self, parts: &[u8]) -> Option<&Node> {
        match only_part(parts) {
            Some(value) => self.select_value(value),
            // Values of several parts can't be compared with text.
            None => self.any.as_ref(),
        }
    }

    fn select_value(&self, value: &[u8]) -> Option<&Node> {
        let matches = |(pattern, _): &&(Pattern, Node)| self.format.matches(pattern, value);
        let by_pattern = || self.patterns.iter().find(matches).map(|(_, node)| node);
        self.exact.get(value).or_else(by_pattern).or(self.any.as_ref())
    }

    /// Selects the descriptors of an ambiguous value: those of its candidates, or all if these are unknown.
    fn select_ambiguous(&self, candidates: Option<&[Box<[u8]>]>) -> Vec<&Node> {
        let Some(candidates) = candidates else { return self.nodes().collect() };
        let mut selected: Vec<&Node> = Vec::new();
        for node in candidates.iter().filter_map(|value| self.select_value(value)) {
            if !selected.iter().any(|known| std::ptr::eq(*known, node)) {
                selected.push(node);
            }
        }
        selected
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.exact.values().chain(self.patterns.iter().map(|(_, node)| node)).chain(&self.any)
    }
}

/// Combines the results of two extractors. A rule that is not applicable takes precedence over a missing key.
fn combine(first: Result<(), KeyError>, second: Result<(), KeyError>) -> Result<(), KeyError> {
    match (first, second) {
        (_, Err(KeyError::NotApplicable)) => second,
        (Ok(()), _) => second,
        (Err(_), _) => first,
    }
}

impl Tree {
    /// Returns the rules that match a request, in the order of the file. A rule that applies replaces others, even if it
    /// is replaced too.
    fn matches(
        &self,
        values: &mut ExtractedValues,
        head: Option<&RequestHead<'_>>,
        policy: &MissingKeyPolicy<'_>,
    ) -> Result<Matches, Pending> {
        let mut matches = Matches::new();
        self.walk(&self.groups, Ok(()), values, head, &mut matches)?;
        matches.sort_unstable_by_key(|(rule, _)| *rule);
        let mut replaced = SmallVec::<[&Arc<str>; 8]>::new();
        for (number, matched) in &matches {
            let rule = &self.rules[*number];
            if let (Match::Applies(path), false) = (matched, rule.replaces.is_empty())
                && let Some(policy) = self.policy_of(*number, policy)
                && self.find_key(rule, *path, values, head)?.map_or_else(|error| policy.shares(error), |()| true)
            {
                replaced.extend(&rule.replaces);
            }
        }
        for (number, matched) in &mut matches {
            let rule = &self.rules[*number];
            if rule.name.as_ref().is_some_and(|name| replaced.contains(&name)) {
                *matched = Match::Replaced;
            } else if let Match::Applies(key) = matched {
                *key = self.find_key(rule, *key, values, head)?;
            }
        }
        matches.retain(|(_, matched)| *matched != Match::Applies(Err(KeyError::NotApplicable)));
        Ok(matches)
    }

    fn walk(
        &self,
        groups: &[Group],
        key: Result<(), KeyError>,
        values: &mut ExtractedValues,
        head: Option<&RequestHead<'_>>,
        matches: &mut Matches,
    ) -> Result<(), Pending> {
        for group in groups {
            let mut enter = |node: &Node, key, values: &mut ExtractedValues| {
                matches.extend(node.rule.map(|rule| (rule, Match::Applies(key))));
                self.walk(&node.children, key, values, head, matches)
            };
            match values.get(group.extractor, &self.extractors, head)? {
                Ok(parts) => group.select(parts).map_or(Ok(()), |node| enter(node, key, values))?,
                Err(KeyError::NotApplicable) => {}
                // The value may be that of any descriptor, so all are misconfigured.
                Err(missing @ KeyError::NotProvided) => {
                    group.nodes().try_for_each(|node| enter(node, combine(key, Err(missing)), values))?;
                }
                // The request is rejected if any of its values has a limit.
                Err(missing @ KeyError::Ambiguous) => {
                    let selected = group.select_ambiguous(values.candidates(group.extractor));
                    selected.into_iter().try_for_each(|node| enter(node, combine(key, Err(missing)), values))?;
                }
                Err(missing) => {
                    group.any.iter().try_for_each(|node| enter(node, combine(key, Err(missing)), values))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the policy for missing keys of a rule, if it can apply. An unlimited one has no key of its own.
    fn policy_of(&self, rule: usize, policy: &MissingKeyPolicy<'_>) -> Option<OnMissingKey> {
        if self.rules[rule].is_unlimited { Some(OnMissingKey::Skip) } else { policy(rule) }
    }

    /// Extracts the key of a rule, given the result for its path.
    fn find_key(
        &self,
        rule: &Rule,
        path: Result<(), KeyError>,
        values: &mut ExtractedValues,
        head: Option<&RequestHead<'_>>,
    ) -> Result<Result<(), KeyError>, Pending> {
        rule.key.iter().try_fold(path, |key, (extractor, _)| {
            Ok(combine(key, values.get(*extractor, &self.extractors, head)?.map(drop)))
        })
    }

    fn visit(&self, matches: &Matches, values: &ExtractedValues, mut visit: impl FnMut(usize, Match<&KeyBuf>)) {
        let mut key = KeyBuf::default();
        for (rule, matched) in matches {
            key.clear();
            let matched = match matched {
                Match::Applies(Ok(())) => {
                    for (extractor, format) in &self.rules[*rule].key {
                        format.append_key(values.known(*extractor), &mut key);
                    }
                    Match::Applies(Ok(&key))
                }
                Match::Applies(Err(error)) => Match::Applies(Err(*error)),
                Match::Replaced => Match::Replaced,
            };
            visit(*rule, matched);
        }
    }
}

/// Finds the limits of a file that apply to a request.
pub(super) struct TreeIndex(pub(super) Arc<Tree>);

impl LimitIndex for TreeIndex {
    fn find(
        &self,
        head: &RequestHead<'_>,
        policy: &MissingKeyPolicy<'_>,
        on_match: &mut OnMatch<'_>,
    ) -> Option<PendingMatches> {
        let Self(tree) = self;
        let mut values = ExtractedValues::new(tree.extractors.len());
        if let Ok(matches) = tree.matches(&mut values, Some(head), policy) {
            tree.visit(&matches, &values, on_match);
            return None;
        }
        // All extractors read the head now. The future awaits only those whose values matter.
        values.extract_all(&tree.extractors, head);
        let replacing = |(number, rule): (usize, &Rule)| if rule.replaces.is_empty() { None } else { policy(number) };
        let policies: Vec<_> = tree.rules.iter().enumerate().map(replacing).collect();
        let tree = tree.clone();
        Some(Box::pin(async move {
            let mut found = Vec::new();
            loop {
                match tree.matches(&mut values, None, &|rule| policies[rule]) {
                    Ok(matches) => {
                        tree.visit(&matches, &values, |rule, matched| found.push((rule, matched.cloned())));
                        return found;
                    }
                    Err(Pending(extractor)) => values.wait_for(extractor).await,
                }
            }
        }))
    }

    fn describe_key(&self, position: usize, head: &RequestHead<'_>) -> Vec<KeyPart> {
        let Self(tree) = self;
        let Some(rule) = tree.rules.get(position) else { return Vec::new() };
        rule.key.iter().flat_map(|(extractor, _)| tree.extractors[*extractor].extractor.describe(head)).collect()
    }

    fn max_matches(&self, policy: &MissingKeyPolicy<'_>) -> usize {
        max_matches(&self.0.groups, policy)
    }
}

/// Returns the largest number of limits that apply to one request.
fn max_matches(groups: &[Group], policy: &MissingKeyPolicy<'_>) -> usize {
    let of_node = |node: &Node| usize::from(node.rule.and_then(policy).is_some()) + max_matches(&node.children, policy);
    // If the server provides no value, all limits that share a bucket for missing keys apply together.
    let all_shared = |group: &Group| group.nodes().map(|node| max_shared(node, policy)).sum::<usize>();
    groups.iter().map(|group| group.nodes().map(of_node).max().unwrap_or(0).max(all_shared(group))).sum()
}

fn max_shared(node: &Node, policy: &MissingKeyPolicy<'_>) -> usize {
    let children = node.children.iter().flat_map(Group::nodes).map(|node| max_shared(node, policy)).sum::<usize>();
    children + usize::from(node.rule.and_then(policy) == Some(OnMissingKey::Share))
}
