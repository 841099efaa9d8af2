//! From descriptors to limits.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::iter;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::allowance::Allowance;
use super::descriptor::{Descriptor, Wanted};
use super::extractors::{Extractors, Named};
use super::policy::Policy;
use super::problem::Problem;
use super::rule::{Level, Parts, Path, Rule};
use super::value::Chosen;
use crate::algorithm::FixedWindow;
use crate::key::KeyExtractor;
use crate::limit::{Limit, MissingKey};

/// A descriptor with a limit, and its way there.
struct Found<'a> {
    descriptor: &'a Descriptor,
    policy: &'a Policy,
    path: Arc<Path>,
    /// Keys and values, from the outermost descriptor on.
    names: Vec<(&'a str, Option<&'a str>)>,
}

/// The limits of `descriptors`, in the order of the file.
pub(super) fn limits(
    domain: &str,
    descriptors: &[Descriptor],
    extractors: &Extractors,
) -> Result<Vec<Limit>, Vec<Problem>> {
    let mut search = Search { extractors, found: Vec::new(), problems: Vec::new() };
    search.walk(descriptors, &[], &[]);
    let Search { found, mut problems, .. } = search;
    let names = names(domain, &found);
    // By what they replace: a file can have many rules, and each is asked.
    let mut replacing: HashMap<&str, Vec<Arc<Path>>> = HashMap::new();
    for rule in &found {
        for name in &rule.policy.replaces {
            replacing.entry(name).or_default().push(rule.path.clone());
        }
    }
    let mut limits = Vec::new();
    for (rule, name) in found.iter().zip(names) {
        let replaced_by = rule.policy.name.as_deref().and_then(|name| replacing.get(name)).cloned();
        match rule.limit(name, replaced_by.unwrap_or_default(), extractors) {
            Ok(limit) => limits.extend(limit),
            Err(wrong) => problems.extend(wrong),
        }
    }
    if problems.is_empty() { Ok(limits) } else { Err(problems) }
}

struct Search<'a, 'e> {
    extractors: &'e Extractors,
    found: Vec<Found<'a>>,
    problems: Vec<Problem>,
}

impl<'a> Search<'a, '_> {
    fn walk(&mut self, descriptors: &'a [Descriptor], above: &[Arc<Level>], names: &[(&'a str, Option<&'a str>)]) {
        let mut beside: HashMap<&str, Vec<&Wanted>> = HashMap::new();
        for Descriptor { key, value, .. } in descriptors {
            beside.entry(key).or_default().push(value);
        }
        // Spelled differently, an address is the same.
        let mut taken: HashMap<(&str, Box<[u8]>), usize> = HashMap::new();
        for descriptor in descriptors {
            let named = match self.extractors.find(&descriptor.key) {
                Ok(named) => named,
                Err(message) => {
                    self.problems.push(Problem::new(descriptor.position, message));
                    continue;
                }
            };
            let beside = beside[descriptor.key.as_str()].iter().copied();
            let level = match level(descriptor, named, beside) {
                Ok(level) => Arc::new(level),
                Err(message) => {
                    self.problems.push(Problem::new(descriptor.value_position, message));
                    continue;
                }
            };
            if let Some(bytes) = level.chosen.exactly()
                && let Some(line) = taken.insert((&descriptor.key, bytes.into()), descriptor.position.line)
            {
                let message = format!("this is the same value of `{}` as on line {line}: keep one", descriptor.key);
                self.problems.push(Problem::new(descriptor.value_position, message));
            }
            let path: Vec<Arc<Level>> = above.iter().cloned().chain([level]).collect();
            let names: Vec<_> = names.iter().copied().chain([(&*descriptor.key, descriptor.value.as_str())]).collect();
            if let Some(policy) = &descriptor.rate_limit {
                let path = path.clone().into();
                self.found.push(Found { descriptor, policy, path, names: names.clone() });
            }
            self.walk(&descriptor.descriptors, &path, &names);
        }
    }
}

fn level<'a>(
    descriptor: &Descriptor,
    Named { extractor, form }: Named,
    beside: impl Iterator<Item = &'a Wanted>,
) -> Result<Level, String> {
    let chosen = Chosen::new(form, &descriptor.value, beside)?;
    let is_charged = !chosen.is_exact() && !descriptor.share_threshold;
    Ok(Level { extractor, chosen, is_charged })
}

impl Found<'_> {
    /// The limit, if there is one.
    fn limit(
        &self,
        name: String,
        replaced_by: Vec<Arc<Path>>,
        extractors: &Extractors,
    ) -> Result<Option<Limit>, Vec<Problem>> {
        let Self { descriptor, policy, path, .. } = self;
        let mut problems = Vec::new();
        let mut charged: Vec<Arc<dyn KeyExtractor>> = Vec::new();
        for (name, at) in &policy.key {
            match extractors.find(name) {
                Ok(Named { extractor, .. }) => charged.push(extractor),
                Err(message) => problems.push(Problem::new(*at, message)),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let limit = match policy.allowance {
            Allowance::Unlimited => return Ok(None),
            Allowance::Limited(algorithm) => Limit::try_new(name, algorithm).map(|limit| match policy.cost {
                Some(cost) => limit.cost(cost.into()),
                None => limit,
            }),
            // A cost over the capacity never passes, whatever the time.
            Allowance::Nothing => {
                Limit::try_new(name, FixedWindow::per_second(1)).map(|limit| limit.cost_by(|_| u64::MAX))
            }
        };
        let mut limit = limit.map_err(|error| vec![Problem::new(policy.position, error.to_string())])?;
        if let (Some(percent), Allowance::Limited(_)) = (policy.soft, policy.allowance) {
            let soft = limit.try_soft(percent);
            limit = soft.map_err(|error| vec![Problem::new(policy.soft_at, error.to_string())])?;
        }
        if descriptor.is_shadow() {
            limit = limit.shadow();
        }
        if let Some(otherwise) = policy.on_store_error {
            limit = limit.on_store_error(otherwise);
        }
        // A proxy sends no descriptor that lacks a value, and no limit applies; but who names what
        // is charged means everyone.
        let missing = if charged.is_empty() { MissingKey::Skip } else { MissingKey::Deny };
        let parts = Parts {
            path: path.iter().cloned().collect(),
            replaced_by: replaced_by.into(),
            charged: (!charged.is_empty()).then(|| charged.into()),
        };
        Ok(Some(limit.by(Rule(Arc::new(parts))).on_missing_key(policy.on_missing_key.unwrap_or(missing))))
    }
}

/// A name for each limit that no other has, and which stays the same while its descriptors do.
fn names(domain: &str, found: &[Found<'_>]) -> Vec<String> {
    let wanted = found.iter().map(|Found { policy, names, .. }| match &policy.name {
        Some(name) => name.clone(),
        None => {
            let parts = names.iter().map(|(key, value)| match value {
                Some(value) => format!("{key}_{value}"),
                None => (*key).to_owned(),
            });
            iter::once(domain.to_owned()).chain(parts).collect::<Vec<_>>().join(".")
        }
    });
    let wanted: Vec<String> = wanted.collect();
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for name in &wanted {
        *uses.entry(name).or_default() += 1;
    }
    let name = |(name, rule): (&String, &Found<'_>)| {
        let can_stand = name.len() <= LONGEST && name.chars().all(|character| matches!(character, ' '..='~'));
        if can_stand && uses[name.as_str()] == 1 { name.clone() } else { told_apart(name, (domain, &rule.names)) }
    };
    wanted.iter().zip(found).map(name).collect()
}

/// The most characters of a limit's name.
const LONGEST: usize = 64;
/// `~`, and 64 bits.
const SUFFIX: usize = 17;

/// A name that can stand in a header, with what tells it from all others at its end.
fn told_apart(name: &str, rule: impl Hash) -> String {
    // The same on all machines and in all versions: buckets are kept under it.
    let mut hasher = SipHasher13::new();
    rule.hash(&mut hasher);
    let printable = |character| if matches!(character, ' '..='~') { character } else { '?' };
    let start: String = name.chars().map(printable).take(LONGEST - SUFFIX).collect();
    format!("{start}~{:016x}", hasher.finish())
}
