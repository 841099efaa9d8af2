//! From descriptors to limits.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::iter;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::allowance::Allowance;
use super::descriptor::Descriptor;
use super::extractors::{Extractors, Named};
use super::policy::Policy;
use super::problem::Problem;
use super::tree::{Finder, Group, Node, Rule, Tree};
use super::value::{Form, Value};
use crate::algorithm::FixedWindow;
use crate::limit::{Limit, LimitIndex, OnMissingKey};

/// A descriptor with a limit, and its way there.
struct Found<'a> {
    descriptor: &'a Descriptor,
    policy: &'a Policy,
    /// Keys and values, from the outermost descriptor on.
    names: Vec<(&'a str, Option<&'a str>)>,
    /// The extractors of the values that have buckets of their own.
    charged: Vec<(usize, Form)>,
}

/// The limits of `descriptors`, in the order of the file.
pub(super) fn limits(
    domain: &str,
    descriptors: &[Descriptor],
    extractors: &Extractors,
) -> Result<Vec<Limit>, Vec<Problem>> {
    let mut planting =
        Planting { extractors, tree: Tree::default(), places: HashMap::new(), found: Vec::new(), problems: Vec::new() };
    let descriptors = planting.plant(descriptors, &[], &[]);
    let found = std::mem::take(&mut planting.found);
    let limits: Vec<Option<Limit>> =
        found.iter().zip(names(domain, &found)).map(|(rule, name)| planting.rule(rule, name)).collect();
    let Planting { tree, problems, .. } = planting;
    if !problems.is_empty() {
        return Err(problems);
    }
    let finder: Arc<dyn LimitIndex> = Arc::new(Finder(Arc::new(Tree { descriptors, ..tree })));
    let limits = limits.into_iter().enumerate();
    Ok(limits.filter_map(|(index, limit)| Some(limit?.indexed(finder.clone(), index))).collect())
}

struct Planting<'a, 'e> {
    extractors: &'e Extractors,
    /// All but its descriptors.
    tree: Tree,
    /// Where extractors are in the tree, by their names.
    places: HashMap<&'a str, (usize, Form)>,
    found: Vec<Found<'a>>,
    problems: Vec<Problem>,
}

impl<'a> Planting<'a, '_> {
    fn plant(
        &mut self,
        descriptors: &'a [Descriptor],
        charged: &[(usize, Form)],
        names: &[(&'a str, Option<&'a str>)],
    ) -> Box<[Group]> {
        let mut groups: Vec<Group> = Vec::new();
        let mut group_of: HashMap<&str, usize> = HashMap::new();
        // Spelled differently, an address is the same.
        let mut taken: HashMap<(&str, Box<[u8]>), usize> = HashMap::new();
        for descriptor in descriptors {
            let key = descriptor.key.as_str();
            let (extractor, form) = match self.extractor(key) {
                Ok(extractor) => extractor,
                Err(message) => {
                    self.problems.push(Problem::new(descriptor.position, message));
                    continue;
                }
            };
            let value = match Value::of(form, &descriptor.value) {
                Ok(value) => value,
                Err(message) => {
                    self.problems.push(Problem::new(descriptor.value_position, message));
                    continue;
                }
            };
            if let Value::Exactly(bytes) = &value
                && let Some(line) = taken.insert((key, bytes.clone()), descriptor.position.line)
            {
                let message = format!("this is the same value of `{key}` as on line {line}: keep one");
                self.problems.push(Problem::new(descriptor.value_position, message));
            }
            let mut charged = charged.to_vec();
            if !matches!(value, Value::Exactly(_)) && !descriptor.share_threshold {
                charged.push((extractor, form));
            }
            let names: Vec<_> = names.iter().copied().chain([(key, descriptor.value.as_str())]).collect();
            let rule = descriptor.rate_limit.as_ref().map(|policy| {
                self.found.push(Found { descriptor, policy, names: names.clone(), charged: charged.clone() });
                self.found.len() - 1
            });
            let within = self.plant(&descriptor.descriptors, &charged, &names);
            let group = *group_of.entry(key).or_insert_with(|| {
                groups.push(Group::new(extractor, form));
                groups.len() - 1
            });
            groups[group].add(value, Node { rule, within });
        }
        groups.into()
    }

    /// Where the extractor called `name` is in the tree, and what it writes.
    fn extractor(&mut self, name: &'a str) -> Result<(usize, Form), String> {
        if let Some(known) = self.places.get(name) {
            return Ok(*known);
        }
        let Named { extractor, form } = self.extractors.find(name)?;
        self.tree.extractors.push(extractor);
        let place = (self.tree.extractors.len() - 1, form);
        self.places.insert(name, place);
        Ok(place)
    }

    /// Adds a rule to the tree, and makes its limit, if it has one.
    fn rule(&mut self, found: &Found<'a>, name: String) -> Option<Limit> {
        let policy = found.policy;
        let mut keys = Vec::new();
        for (name, at) in &policy.key {
            match self.extractor(name) {
                Ok(extractor) => keys.push(extractor),
                Err(message) => self.problems.push(Problem::new(*at, message)),
            }
        }
        let limit = found.limit(name).map_err(|problem| self.problems.push(problem)).ok().flatten();
        // What is unlimited charges nobody.
        let charged = match (&limit, policy.key.is_empty()) {
            (None, _) => Vec::new(),
            (Some(_), true) => found.charged.clone(),
            (Some(_), false) => keys,
        };
        self.tree.rules.push(Rule {
            charged: charged.into(),
            name: policy.name.as_deref().map(Arc::from),
            replaces: policy.replaces.iter().map(|name| Arc::from(name.as_str())).collect(),
        });
        limit
    }
}

impl Found<'_> {
    /// The limit, if there is one.
    fn limit(&self, name: String) -> Result<Option<Limit>, Problem> {
        let Self { descriptor, policy, .. } = self;
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
        let mut limit = limit.map_err(|error| Problem::new(policy.position, error.to_string()))?;
        if let (Some(percent), Allowance::Limited(_)) = (policy.soft, policy.allowance) {
            limit = limit.try_soft(percent).map_err(|error| Problem::new(policy.soft_at, error.to_string()))?;
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
        // A proxy sends no descriptor that lacks a value, and no limit applies; but who names what
        // is charged means everyone.
        let missing = if policy.key.is_empty() { OnMissingKey::Skip } else { OnMissingKey::Reject };
        Ok(Some(limit.on_missing_key(policy.on_missing_key.unwrap_or(missing))))
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
