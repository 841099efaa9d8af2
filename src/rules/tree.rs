//! The compiled descriptors of a file: a tree in which each request follows the descriptors that match it.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use smallvec::SmallVec;

use super::extractors::{Matcher, Named, ValueFormat};
use super::proxy_call::{ProxyCall, ProxyDescriptor};
use crate::key::head::RequestHead;
use crate::key::{Extracted, KeyBuf, KeyError, KeyPart};
use crate::limit::{LimitAt, LimitIndex, Match, OnMatch, OnMissingKey, Value, Values};
use crate::select::when::report_near_miss;

/// All descriptors of a file.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) extractors: Vec<Named>,
    /// The positions of extractors, by their names. A path that repeats a key has several values for it, so its
    /// extractor has several positions, in the order of the path.
    pub(super) positions: HashMap<String, Vec<usize>>,
    pub(super) groups: Groups,
    /// In the order of the file.
    pub(super) rules: Vec<TreeRule>,
    /// The number of requests that were examined for a route that was meant.
    pub(super) examined: AtomicUsize,
}

/// A `rate_limit` block.
pub(super) struct TreeRule {
    pub(super) is_unlimited: bool,
    /// The name, if other rules replace it.
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<String>,
    /// The extractors of its key. An unlimited rule has none.
    pub(super) key: Vec<usize>,
}

/// The descriptors of a list, by the positions of their extractors.
pub(super) type Groups = Box<[(usize, Group)]>;

/// The descriptors of a list that have the same key. A value selects one of them: the one with the exact value, or else
/// the first with a matching pattern, or else the one without a value.
#[derive(Default)]
pub(super) struct Group {
    /// In the order of the file.
    branches: Vec<Branch>,
    /// The positions of branches, by the values that select them.
    exact: HashMap<Box<[u8]>, usize>,
    patterns: Vec<(Box<str>, usize)>,
    any: Option<usize>,
}

/// One descriptor.
pub(super) struct Branch {
    pub(super) rule: Option<usize>,
    pub(super) children: Groups,
}

impl Group {
    pub(super) fn add(&mut self, matcher: Matcher, branch: Branch) {
        let position = self.branches.len();
        self.branches.push(branch);
        match matcher {
            Matcher::Any => self.any = Some(position),
            Matcher::Exact(bytes) => drop(self.exact.insert(bytes, position)),
            Matcher::Pattern(pattern) => self.patterns.push((pattern, position)),
        }
    }

    /// Returns the position of the branch that a value selects.
    fn select(&self, value: &KeyBuf, format: ValueFormat) -> Option<usize> {
        // Values of several parts can't be compared with text.
        let Some(value) = value.only_part() else { return self.any };
        let matches = |(pattern, _): &&(Box<str>, usize)| format.matches(pattern, value);
        let by_pattern = || self.patterns.iter().find(matches).map(|(_, branch)| branch);
        self.exact.get(value).or_else(by_pattern).copied().or(self.any)
    }
}

impl Named {
    /// Runs the extractor.
    fn value(&self, head: &RequestHead<'_>) -> Value {
        let mut key = KeyBuf::default();
        let format = self.format;
        match self.extractor.extract(head, &mut key) {
            Ok(Extracted::Done) => Value::Extracted(Ok(format.mask(key))),
            Ok(pending) => Value::Pending(Box::pin(async move { Ok(format.mask(pending.complete(key).await?)) })),
            Err(missing) => Value::Extracted(Err(missing)),
        }
    }
}

/// The position of a value that has to be completed.
type PendingValue = usize;

/// The rules that match a request.
type Matches = SmallVec<[(usize, Match<()>); 8]>;

/// A search for the rules that match a request.
struct Search<'a, 'l> {
    tree: &'a Tree,
    values: &'a mut Values,
    head: &'a RequestHead<'a>,
    limit: &'a LimitAt<'l>,
    finds_all: bool,
    matches: Matches,
}

impl<'a> Search<'a, '_> {
    fn value(&mut self, extractor: usize) -> Result<Result<&KeyBuf, KeyError>, PendingValue> {
        let value = &mut self.values[extractor];
        if let Value::NotExtracted = value {
            *value = self.tree.extractors[extractor].value(self.head);
        }
        match value {
            Value::Extracted(found) => Ok(found.as_ref().map_err(|missing| *missing)),
            _ => Err(extractor),
        }
    }

    /// Adds the rules of groups that match the request. `key` is the result for the path so far. Returns whether one of
    /// the rules rejects the request.
    fn walk(&mut self, groups: &'a Groups, key: Result<(), KeyError>) -> Result<bool, PendingValue> {
        let mut rejects = false;
        for (extractor, group) in groups {
            let format = self.tree.extractors[*extractor].format;
            let selected = self.value(*extractor)?.map(|value| group.select(value, format));
            if matches!(format, ValueFormat::Path) && selected == Ok(group.any) && !self.finds_all {
                let is_meant = |path: &&str| {
                    let mut value = KeyBuf::default();
                    value.push(path.as_bytes());
                    group.select(&value, format) != group.any
                };
                report_near_miss(&self.tree.examined, self.head, iter::once(self.head.path()).filter(is_meant));
            }
            let key = key.and(selected.map(drop));
            if let Err(KeyError::NotProvided | KeyError::Ambiguous) = selected {
                // The value may be that of any descriptor: all are misconfigured, or the client has sent several. The
                // first that rejects the request decides for all, because the others come later in the file.
                for branch in &group.branches {
                    if self.enter(branch, key)? {
                        rejects = true;
                        break;
                    }
                }
            } else if let Some(branch) = selected.unwrap_or(group.any) {
                rejects |= self.enter(&group.branches[branch], key)?;
            }
        }
        Ok(rejects)
    }

    /// Adds the rules of a branch that match the request. Returns whether one of them rejects it in any case.
    fn enter(&mut self, branch: &'a Branch, key: Result<(), KeyError>) -> Result<bool, PendingValue> {
        let mut rejects = false;
        if let Some(number) = branch.rule {
            let rule = &self.tree.rules[number];
            let policy = key.err().filter(|_| !self.finds_all).and_then(|error| match error {
                KeyError::Ambiguous if rule.is_unlimited => Some(OnMissingKey::Skip),
                _ => (self.limit)(number).map(|limit| limit.missing_key_policy(error)),
            });
            if (key, policy) != (Err(KeyError::Ambiguous), Some(OnMissingKey::Skip)) {
                self.matches.push((number, Some(key)));
            }
            rejects = policy == Some(OnMissingKey::Reject) && rule.name.is_none();
        }
        Ok(self.walk(&branch.children, key)? || rejects)
    }

    /// Returns the rules that match, in the order of the file. A rule that applies replaces others, even if it is
    /// replaced too.
    fn run(mut self) -> Result<Matches, PendingValue> {
        let tree = self.tree;
        self.walk(&tree.groups, Ok(()))?;
        let mut matches = std::mem::take(&mut self.matches);
        matches.sort_unstable_by_key(|(rule, _)| *rule);
        let mut replaced = SmallVec::<[&String; 8]>::new();
        for (number, matched) in &matches {
            let rule = &tree.rules[*number];
            let Some(path) = matched.filter(|_| !rule.replaces.is_empty()) else { continue };
            let limit = (self.limit)(*number);
            let shares = |error| limit.is_some_and(|limit| limit.missing_key_policy(error) == OnMissingKey::Share);
            if (rule.is_unlimited || limit.is_some()) && self.key(&rule.key, path)?.err().is_none_or(shares) {
                replaced.extend(&rule.replaces);
            }
        }
        for (number, matched) in &mut matches {
            let rule = &tree.rules[*number];
            if rule.name.as_ref().is_some_and(|name| replaced.contains(&name)) {
                *matched = None;
            } else if let Some(key) = matched {
                *key = self.key(&rule.key, *key)?;
            }
        }
        Ok(matches)
    }

    /// Returns whether the request has the values of these extractors, given the result for a path.
    fn key(&mut self, extractors: &[usize], path: Result<(), KeyError>) -> Result<Result<(), KeyError>, PendingValue> {
        extractors.iter().try_fold(path, |key, extractor| Ok(key.and(self.value(*extractor)?.map(drop))))
    }
}

impl Tree {
    fn visit(&self, matches: &[(usize, Match<()>)], values: &Values, mut visit: impl FnMut(usize, Match<&KeyBuf>)) {
        for (rule, matched) in matches {
            let mut key = KeyBuf::default();
            if let Some(Ok(())) = matched {
                for extractor in &self.rules[*rule].key {
                    if let Value::Extracted(Ok(value)) = &values[*extractor] {
                        self.extractors[*extractor].format.append_key(value, &mut key);
                    }
                }
            }
            visit(*rule, matched.map(|found| found.map(|()| &key)));
        }
    }
}

/// Finds the limit that applies to a descriptor of a proxy.
impl Tree {
    fn position(&self, key: &str, earlier: usize) -> Option<usize> {
        self.positions.get(key)?.get(earlier).copied()
    }

    /// Returns the rule at the end of the path that a descriptor spells out.
    fn rule_of(&self, descriptor: &ProxyDescriptor) -> Option<usize> {
        let (mut groups, mut rule) = (&self.groups, None);
        for (key, earlier, value) in descriptor.entries() {
            let extractor = self.position(key, earlier)?;
            let (_, group) = groups.iter().find(|(position, _)| *position == extractor)?;
            let format = self.extractors[extractor].format;
            let branch = &group.branches[group.select(&format.normalize(value), format)?];
            (groups, rule) = (&branch.children, branch.rule);
        }
        rule
    }

    fn find_for_descriptor(
        &self,
        call: &ProxyCall,
        values: &mut Values,
        limit: &LimitAt<'_>,
        on_match: &mut OnMatch<'_>,
    ) {
        let Some(number) = self.rule_of(call.own()) else { return };
        values.iter_mut().for_each(|value| *value = Value::Extracted(Err(KeyError::NotSent)));
        for (key, earlier, value) in call.own().entries() {
            if let Some(position) = self.position(key, earlier) {
                values[position] = Value::Extracted(Ok(self.extractors[position].format.normalize(value)));
            }
        }
        let rule = &self.rules[number];
        let replaces = |name: &String, other: usize| {
            let is_in_force = self.rules[other].is_unlimited || limit(other).is_some();
            is_in_force && self.rules[other].replaces.contains(name)
        };
        let is_replaced = rule.name.as_ref().is_some_and(|name| {
            call.descriptors.iter().filter_map(|other| self.rule_of(other)).any(|other| replaces(name, other))
        });
        let has_key = rule.key.iter().all(|position| matches!(values[*position], Value::Extracted(Ok(_))));
        let key = if has_key { Ok(()) } else { Err(KeyError::NotSent) };
        self.visit(&[(number, (!is_replaced).then_some(key))], values, on_match);
    }
}

/// Finds the limits of a file that apply to a request.
impl LimitIndex for Arc<Tree> {
    fn find<'a>(
        &self,
        head: &RequestHead<'_>,
        values: &mut Values,
        limit: &LimitAt<'a>,
        finds_all: bool,
        on_match: &mut OnMatch<'_>,
    ) -> Result<(), PendingValue> {
        values.resize_with(self.extractors.len(), || Value::NotExtracted);
        if let Some(call) = ProxyCall::of(head) {
            self.find_for_descriptor(call, values, limit, on_match);
            return Ok(());
        }
        let search = Search { tree: self, values: &mut *values, head, limit, finds_all, matches: Matches::new() };
        let matches = search.run()?;
        self.visit(&matches, values, on_match);
        Ok(())
    }

    fn describe_key(&self, position: usize, head: &RequestHead<'_>) -> Vec<KeyPart> {
        let key = &self.rules[position].key;
        let Some(call) = ProxyCall::of(head) else {
            return key.iter().flat_map(|extractor| self.extractors[*extractor].extractor.describe(head)).collect();
        };
        let part = |(name, earlier, value): (&str, usize, &str)| {
            let extractor = self.position(name, earlier).filter(|extractor| key.contains(extractor))?;
            Some(match self.extractors[extractor].format {
                ValueFormat::Text(_) => KeyPart::secret(name.to_owned(), value),
                _ => KeyPart::new(name.to_owned(), value),
            })
        };
        call.own().entries().filter_map(part).collect()
    }

    fn max_matches(&self, limit: &LimitAt<'_>) -> usize {
        max_matches(&self.groups, limit)[0]
    }
}

/// Returns the largest number of limits that apply to one request, and the number of those that share a bucket for
/// missing keys.
fn max_matches(groups: &Groups, limit: &LimitAt<'_>) -> [usize; 2] {
    let of_branch = |branch: &Branch| {
        let [most, shared] = max_matches(&branch.children, limit);
        let policy = branch.rule.and_then(limit).map(|limit| limit.missing_key_policy(KeyError::NotProvided));
        [most + usize::from(policy.is_some()), shared + usize::from(policy == Some(OnMissingKey::Share))]
    };
    let mut sum = [0, 0];
    for (_, group) in groups {
        let branches = group.branches.iter().map(of_branch);
        let [most, shared] = branches.fold([0, 0], |[most, shared], [own, all]| [most.max(own), shared + all]);
        // If the server provides no value, all limits that share a bucket for missing keys apply together.
        sum = [sum[0] + most.max(shared), sum[1] + shared];
    }
    sum
}
