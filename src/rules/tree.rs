//! The descriptors at work: a tree of which a request walks what it meets.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::pattern::Pattern;
use super::value::{Form, Value};
use super::values::{HasToWait, Values};
use crate::key::{KeyBuf, KeyError, KeyExtractor, only_part};
use crate::limit::{LimitIndex, OnMatch, OnMissingKey, PendingMatches};
use crate::request::RequestHead;

/// All descriptors of a file.
#[derive(Default)]
pub(super) struct Tree {
    /// What takes values from requests. Each is asked once, whatever number of descriptors want it.
    pub(super) extractors: Vec<Arc<dyn KeyExtractor>>,
    pub(super) descriptors: Box<[Group]>,
    /// In the order of the file.
    pub(super) rules: Vec<Rule>,
}

/// The descriptors of a list that have one key, of which a request meets one: that of its value, or else
/// the first whose pattern fits, or else the one without a value.
pub(super) struct Group {
    /// Where its extractor is.
    extractor: usize,
    form: Form,
    exactly: HashMap<Box<[u8]>, Node>,
    like: Vec<(Pattern, Node)>,
    any: Option<Node>,
}

/// One descriptor.
pub(super) struct Node {
    pub(super) rule: Option<usize>,
    pub(super) within: Box<[Group]>,
}

/// What a descriptor says of its limit, even if that is none.
pub(super) struct Rule {
    /// The extractors whose values say whose bucket is charged.
    pub(super) charged: Box<[(usize, Form)]>,
    pub(super) name: Option<Arc<str>>,
    /// The names of the rules that do not apply where this one does.
    pub(super) replaces: Box<[Arc<str>]>,
}

/// A rule that a request has met, though perhaps without a value that is charged.
type Met = (usize, Result<(), KeyError>);
type AllMet = SmallVec<[Met; 8]>;

impl Group {
    pub(super) fn new(extractor: usize, form: Form) -> Self {
        Self { extractor, form, exactly: HashMap::new(), like: Vec::new(), any: None }
    }

    pub(super) fn add(&mut self, value: Value, node: Node) {
        match value {
            Value::Any => self.any = Some(node),
            Value::Exactly(bytes) => drop(self.exactly.insert(bytes, node)),
            Value::Like(pattern) => self.like.push((pattern, node)),
        }
    }

    /// The descriptor that takes what the extractor has written: `parts`, each behind its length.
    fn choose(&self, parts: &[u8]) -> Option<&Node> {
        // No text can be compared with several parts.
        let Some(found) = only_part(parts) else { return self.any.as_ref() };
        let like = || self.like.iter().find(|(pattern, _)| self.form.fits(pattern, found)).map(|(_, node)| node);
        self.exactly.get(found).or_else(like).or(self.any.as_ref())
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.exactly.values().chain(self.like.iter().map(|(_, node)| node)).chain(&self.any)
    }
}

/// That a rule is not for a request weighs more than that its key is missing.
fn heavier(so_far: Result<(), KeyError>, next: Result<(), KeyError>) -> Result<(), KeyError> {
    match (so_far, next) {
        (_, Err(KeyError::NotApplicable)) => next,
        (Ok(()), _) => next,
        (Err(_), _) => so_far,
    }
}

impl Tree {
    /// The rules that a request meets, and what they charge: in the order of the file.
    fn meet(&self, values: &mut Values, head: Option<&RequestHead<'_>>) -> Result<AllMet, HasToWait> {
        let mut met = AllMet::new();
        self.walk(&self.descriptors, Ok(()), values, head, &mut met)?;
        met.sort_unstable_by_key(|(rule, _)| *rule);
        self.replace(&mut met);
        for (rule, met) in &mut met {
            for (extractor, _) in &self.rules[*rule].charged {
                *met = heavier(*met, values.of(*extractor, self, head)?.map(drop));
            }
        }
        met.retain(|(_, met)| *met != Err(KeyError::NotApplicable));
        Ok(met)
    }

    fn walk(
        &self,
        descriptors: &[Group],
        so_far: Result<(), KeyError>,
        values: &mut Values,
        head: Option<&RequestHead<'_>>,
        met: &mut AllMet,
    ) -> Result<(), HasToWait> {
        for group in descriptors {
            let mut enter = |node: &Node, so_far, values: &mut Values| {
                met.extend(node.rule.map(|rule| (rule, so_far)));
                self.walk(&node.within, so_far, values, head, met)
            };
            match values.of(group.extractor, self, head)? {
                Ok(parts) => group.choose(parts).map_or(Ok(()), |node| enter(node, so_far, values))?,
                Err(KeyError::NotApplicable) => {}
                // Without its address, no request has the address that is wanted. It is reported. A request
                // with several values may have any: it is rejected for every limit that depends on them.
                Err(missing @ (KeyError::FromServer | KeyError::Ambiguous)) => {
                    group.nodes().try_for_each(|node| enter(node, heavier(so_far, Err(missing)), values))?;
                }
                Err(missing) => {
                    group.any.iter().try_for_each(|node| enter(node, heavier(so_far, Err(missing)), values))?;
                }
            }
        }
        Ok(())
    }

    /// Takes out what is replaced by another rule, be that replaced itself.
    fn replace(&self, met: &mut AllMet) {
        let replacing = met.iter().filter(|(_, met)| met.is_ok()).map(|(rule, _)| &self.rules[*rule].replaces);
        let replaced: SmallVec<[&Arc<str>; 8]> = replacing.flatten().collect();
        if !replaced.is_empty() {
            met.retain(|(rule, _)| self.rules[*rule].name.as_ref().is_none_or(|name| !replaced.contains(&name)));
        }
    }

    fn hand(&self, all: &AllMet, values: &Values, mut meet: impl FnMut(usize, Result<&KeyBuf, KeyError>)) {
        let mut key = KeyBuf::default();
        for (rule, met) in all {
            key.clear();
            if met.is_ok() {
                for (extractor, form) in &self.rules[*rule].charged {
                    form.append_key(values.known(*extractor), &mut key);
                }
            }
            meet(*rule, met.map(|()| &key));
        }
    }
}

/// What finds the limits of a file.
pub(super) struct Finder(pub(super) Arc<Tree>);

impl LimitIndex for Finder {
    fn find(&self, head: &RequestHead<'_>, meet: &mut OnMatch<'_>) -> Option<PendingMatches> {
        let Self(tree) = self;
        let mut values = Values::new(tree.extractors.len());
        if let Ok(all) = tree.meet(&mut values, Some(head)) {
            tree.hand(&all, &values, meet);
            return None;
        }
        // What the head has to say is taken from it now, and waited for only if it matters.
        values.take_all(tree, head);
        let tree = tree.clone();
        Some(Box::pin(async move {
            let mut keys = Vec::new();
            loop {
                match tree.meet(&mut values, None) {
                    Ok(all) => {
                        tree.hand(&all, &values, |rule, key| keys.push((rule, key.cloned())));
                        return keys;
                    }
                    Err(HasToWait(extractor)) => values.wait_for(extractor).await,
                }
            }
        }))
    }

    fn max_matches(&self, limit: &dyn Fn(usize) -> Option<OnMissingKey>) -> usize {
        most(&self.0.descriptors, limit)
    }
}

/// The most limits that one request can meet among these.
fn most(descriptors: &[Group], limit: &dyn Fn(usize) -> Option<OnMissingKey>) -> usize {
    let of_one = |node: &Node| usize::from(node.rule.and_then(limit).is_some()) + most(&node.within, limit);
    // Where the server tells no value, all share a bucket that say so.
    let together = |group: &Group| group.nodes().map(|node| shared(node, limit)).sum::<usize>();
    descriptors.iter().map(|group| group.nodes().map(of_one).max().unwrap_or(0).max(together(group))).sum()
}

fn shared(node: &Node, limit: &dyn Fn(usize) -> Option<OnMissingKey>) -> usize {
    let within = node.within.iter().flat_map(Group::nodes).map(|node| shared(node, limit)).sum::<usize>();
    within + usize::from(node.rule.and_then(limit) == Some(OnMissingKey::Share))
}
