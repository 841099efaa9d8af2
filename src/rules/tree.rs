//! The compiled descriptors of a file: a tree in which each request follows the descriptors that match it.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::extractors::{Matcher, Named, ValueFormat};
use crate::key::head::RequestHead;
use crate::key::{Extracted, KeyBuf, KeyError, KeyPart, PendingKey};
use crate::limit::{LimitIndex, Match, MissingKeyPolicy, OnMatch, OnMissingKey, PendingMatches};

/// All descriptors of a file.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) extractors: Vec<Named>,
    pub(super) groups: Groups,
    /// In the order of the file.
    pub(super) rules: Vec<TreeRule>,
}

/// A `rate_limit` block.
pub(super) struct TreeRule {
    pub(super) is_unlimited: bool,
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
    exact: HashMap<Box<[u8]>, Branch>,
    patterns: Vec<(Box<str>, Branch)>,
    any: Option<Branch>,
}

/// One descriptor.
pub(super) struct Branch {
    pub(super) rule: Option<usize>,
    pub(super) children: Groups,
}

impl Group {
    pub(super) fn add(&mut self, matcher: Matcher, branch: Branch) {
        match matcher {
            Matcher::Any => self.any = Some(branch),
            Matcher::Exact(bytes) => drop(self.exact.insert(bytes, branch)),
            Matcher::Pattern(pattern) => self.patterns.push((pattern, branch)),
        }
    }

    fn select(&self, value: &KeyBuf, format: ValueFormat) -> Option<&Branch> {
        // Values of several parts can't be compared with text.
        let Some(value) = value.only_part() else { return self.any.as_ref() };
        let matches = |(pattern, _): &&(Box<str>, Branch)| format.matches(pattern, value);
        let by_pattern = || self.patterns.iter().find(matches).map(|(_, branch)| branch);
        self.exact.get(value).or_else(by_pattern).or(self.any.as_ref())
    }

    fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.exact.values().chain(self.patterns.iter().map(|(_, branch)| branch)).chain(&self.any)
    }
}

/// The values that the extractors of a tree find in one request. Each extractor runs at most once, and only if its
/// value matters.
type Values = SmallVec<[Value; 8]>;

enum Value {
    NotExtracted,
    Extracted(Result<KeyBuf, KeyError>),
    Pending(PendingKey),
}

impl Value {
    /// Runs an extractor unless it has run.
    fn extract(&mut self, named: &Named, head: &RequestHead<'_>) {
        if let Self::NotExtracted = self {
            let mut key = KeyBuf::default();
            let format = named.format;
            *self = match named.extractor.extract(head, &mut key) {
                Ok(Extracted::Done) => Self::Extracted(Ok(format.mask(key))),
                Ok(pending) => Self::Pending(Box::pin(async move { Ok(format.mask(pending.complete(key).await?)) })),
                Err(missing) => Self::Extracted(Err(missing)),
            };
        }
    }
}

/// The position of an extractor that has not returned yet.
type Pending = usize;

/// The rules that match a request.
type Matches = SmallVec<[(usize, Match<()>); 8]>;

/// A search for the rules that match a request.
struct Search<'a> {
    tree: &'a Tree,
    values: &'a mut Values,
    /// If there is no head, all extractors have run.
    head: Option<&'a RequestHead<'a>>,
    matches: Matches,
}

impl<'a> Search<'a> {
    fn value(&mut self, extractor: usize) -> Result<Result<&KeyBuf, KeyError>, Pending> {
        let value = &mut self.values[extractor];
        if let Some(head) = self.head {
            value.extract(&self.tree.extractors[extractor], head);
        }
        match value {
            Value::Extracted(found) => Ok(found.as_ref().map_err(|missing| *missing)),
            _ => Err(extractor),
        }
    }

    /// Adds the rules of groups that match the request. `key` is the result for the path so far.
    fn walk(&mut self, groups: &'a Groups, key: Result<(), KeyError>) -> Result<(), Pending> {
        for (extractor, group) in groups {
            let format = self.tree.extractors[*extractor].format;
            let selected = self.value(*extractor)?.map(|value| group.select(value, format));
            let key = key.and(selected.map(drop));
            if let Err(KeyError::NotProvided | KeyError::Ambiguous) = selected {
                // The value may be that of any descriptor: all are misconfigured, or the client has sent several.
                group.branches().try_for_each(|branch| self.enter(branch, key))?;
            } else if let Some(branch) = selected.unwrap_or(group.any.as_ref()) {
                self.enter(branch, key)?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, branch: &'a Branch, key: Result<(), KeyError>) -> Result<(), Pending> {
        self.matches.extend(branch.rule.map(|rule| (rule, Some(key))));
        self.walk(&branch.children, key)
    }

    /// Returns the rules that match, in the order of the file. A rule that applies replaces others, even if it is
    /// replaced too.
    fn run(
        tree: &'a Tree,
        values: &'a mut Values,
        head: Option<&'a RequestHead<'a>>,
        policy: &MissingKeyPolicy<'_>,
    ) -> Result<Matches, Pending> {
        let mut search = Self { tree, values, head, matches: Matches::new() };
        search.walk(&tree.groups, Ok(()))?;
        let mut matches = std::mem::take(&mut search.matches);
        matches.sort_unstable_by_key(|(rule, _)| *rule);
        let mut replaced = SmallVec::<[&String; 8]>::new();
        for (number, matched) in &matches {
            let rule = &tree.rules[*number];
            if let Some(path) = matched
                && !rule.replaces.is_empty()
                && let Some(policy) = if rule.is_unlimited { Some(OnMissingKey::Skip) } else { policy(*number) }
                && search.key(&rule.key, *path)?.err().is_none_or(|error| policy.shares(error))
            {
                replaced.extend(&rule.replaces);
            }
        }
        for (number, matched) in &mut matches {
            let rule = &tree.rules[*number];
            if rule.name.as_ref().is_some_and(|name| replaced.contains(&name)) {
                *matched = None;
            } else if let Some(key) = matched {
                *key = search.key(&rule.key, *key)?;
            }
        }
        Ok(matches)
    }

    /// Returns whether the request has the values of these extractors, given the result for a path.
    fn key(&mut self, extractors: &[usize], path: Result<(), KeyError>) -> Result<Result<(), KeyError>, Pending> {
        extractors.iter().try_fold(path, |key, extractor| Ok(key.and(self.value(*extractor)?.map(drop))))
    }
}

impl Tree {
    fn visit(&self, matches: &Matches, values: &Values, mut visit: impl FnMut(usize, Match<&KeyBuf>)) {
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

/// Finds the limits of a file that apply to a request.
impl LimitIndex for Arc<Tree> {
    fn find(
        &self,
        head: &RequestHead<'_>,
        policy: &MissingKeyPolicy<'_>,
        on_match: &mut OnMatch<'_>,
    ) -> Option<PendingMatches> {
        let mut values: Values = self.extractors.iter().map(|_| Value::NotExtracted).collect();
        if let Ok(matches) = Search::run(self, &mut values, Some(head), policy) {
            self.visit(&matches, &values, on_match);
            return None;
        }
        // All extractors read the head now. The future awaits only those whose values matter.
        values.iter_mut().zip(&self.extractors).for_each(|(value, named)| value.extract(named, head));
        let policies: Vec<_> = (0..self.rules.len()).map(policy).collect();
        let tree = self.clone();
        Some(Box::pin(async move {
            let mut found = Vec::new();
            loop {
                match Search::run(&tree, &mut values, None, &|rule| policies[rule]) {
                    Ok(matches) => {
                        tree.visit(&matches, &values, |rule, matched| {
                            found.push((rule, matched.map(|key| key.cloned())))
                        });
                        return found;
                    }
                    Err(extractor) => {
                        if let Value::Pending(key) = &mut values[extractor] {
                            values[extractor] = Value::Extracted(key.await);
                        }
                    }
                }
            }
        }))
    }

    fn describe_key(&self, position: usize, head: &RequestHead<'_>) -> Vec<KeyPart> {
        let key = self.rules[position].key.iter();
        key.flat_map(|extractor| self.extractors[*extractor].extractor.describe(head)).collect()
    }

    fn max_matches(&self, policy: &MissingKeyPolicy<'_>) -> usize {
        max_matches(&self.groups, policy)[0]
    }
}

/// Returns the largest number of limits that apply to one request, and the number of those that share a bucket for
/// missing keys.
fn max_matches(groups: &Groups, policy: &MissingKeyPolicy<'_>) -> [usize; 2] {
    let of_branch = |branch: &Branch| {
        let [most, shared] = max_matches(&branch.children, policy);
        let policy = branch.rule.and_then(policy);
        [most + usize::from(policy.is_some()), shared + usize::from(policy == Some(OnMissingKey::Share))]
    };
    let mut sum = [0, 0];
    for (_, group) in groups {
        let branches = group.branches().map(of_branch);
        let [most, shared] = branches.fold([0, 0], |[most, shared], [own, all]| [most.max(own), shared + all]);
        // If the server provides no value, all limits that share a bucket for missing keys apply together.
        sum = [sum[0] + most.max(shared), sum[1] + shared];
    }
    sum
}
