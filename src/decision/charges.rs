//! The charges of a request.

use std::borrow::Cow;
use std::iter;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use smallvec::SmallVec;

use super::charge::Charge;
use super::outcome::Outcome;
use crate::algorithm::Algorithm;
use crate::key::hash::KeyHash;

/// The charges of a request, each with its [`Outcome`]. It dereferences to a slice of them.
#[derive(Clone, Debug, Default)]
pub struct Charges {
    outcomes: SmallVec<[Outcome; 1]>,
    texts: Option<Arc<Texts>>,
}

/// The texts of limits, which some requests have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts {
    /// The names of all limits, by position, for stores with readable keys.
    names: Arc<[Name]>,
    /// The details of the request in metrics, with the positions of their limits.
    details: Vec<(usize, String)>,
}

#[derive(Debug)]
struct Name {
    identity: KeyHash,
    /// The name of the limit, escaped.
    name: String,
    /// The name with the algorithm and the period.
    full: String,
}

impl Charges {
    /// Creates an empty list of charges of limits with these texts.
    #[inline]
    pub(crate) fn new(texts: &Option<Arc<Texts>>) -> Self {
        Self { outcomes: SmallVec::new(), texts: texts.clone() }
    }

    /// Creates a list of one charge, in place: moving it would take 30 instructions.
    #[inline(always)]
    pub(crate) fn of_one(charge: Charge, texts: &Option<Arc<Texts>>) -> Self {
        Self { outcomes: SmallVec::from_buf([charge.into()]), texts: texts.clone() }
    }

    /// Creates charges without names.
    pub(crate) fn of<T: Into<Outcome>>(charges: impl IntoIterator<Item = T>) -> Self {
        Self { outcomes: charges.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Returns the charges at these positions, for stores that pass on a part of a request.
    ///
    /// # Panics
    ///
    /// Panics if there is no charge at a position.
    #[must_use]
    pub fn select(&self, positions: impl IntoIterator<Item = usize>) -> Self {
        let mut selected = Self::new(&self.texts);
        selected.outcomes.extend(positions.into_iter().map(|position| self[position].clone()));
        selected
    }

    /// Sets all costs to 0.
    pub(crate) fn clear_costs(&mut self) {
        self.iter_mut().for_each(|outcome| outcome.charge.cost = 0);
    }

    /// Removes all answers, and the sizes of overrides.
    pub(crate) fn ask_again(&mut self) {
        for outcome in self.iter_mut() {
            outcome.charge = outcome.asked_again(outcome.cost);
            *outcome = outcome.unanswered();
        }
    }

    /// Wants no blocks of tokens besides the costs.
    pub(crate) fn want_no_blocks(&mut self) {
        self.iter_mut().filter(|outcome| outcome.wanted_block() > 0).for_each(|outcome| outcome.want_block(0));
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, outcome: impl Into<Outcome>) {
        self.outcomes.push(outcome.into());
    }

    #[inline]
    pub(crate) fn extend(&mut self, charges: impl Iterator<Item = Charge>) {
        self.outcomes.extend(charges.map(Outcome::from));
    }

    /// Adds the charges of another request. The costs of a key that both have add up, and its size is that of the first.
    pub(crate) fn add(&mut self, others: &Self) {
        if self.is_empty() {
            return self.clone_from(others);
        }
        for charge in others.iter() {
            match self.outcomes.iter_mut().find(|known| known.fingerprint() == charge.fingerprint()) {
                Some(known) => known.charge.cost = known.cost.saturating_add(charge.cost),
                None => self.push(charge.unanswered()),
            }
            if let Some(detail) = others.detail(charge.limit()).filter(|_| self.detail(charge.limit()).is_none()) {
                self.set_detail(charge.limit(), detail.to_owned());
            }
        }
    }

    /// Reserves capacity for more charges if the capacity of the first allocation is used up.
    #[inline]
    pub(crate) fn reserve(&mut self, more: usize) {
        if !self.is_empty() && self.len() == self.outcomes.capacity() {
            self.outcomes.reserve(more);
        }
    }

    /// Replaces the texts after the positions of limits have changed.
    pub(crate) fn set_texts(&mut self, texts: &Option<Arc<Texts>>) {
        self.texts.clone_from(texts);
    }

    /// Excludes denials of these charges from strikes.
    pub(crate) fn disable_strikes(&mut self) {
        self.iter_mut().for_each(Outcome::disable_strikes);
    }

    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(&mut Outcome) -> bool) {
        self.outcomes.retain(|outcome| is_kept(outcome));
    }

    /// Takes the outcomes of the same charges. If they are those of others, none counts as answered.
    pub(crate) fn take_outcomes(&mut self, answered: Self) {
        let are_equal = answered.len() == self.len() && answered.iter().zip(&**self).all(|(one, own)| one.answers(own));
        if are_equal {
            self.outcomes = answered.outcomes;
        } else {
            self.iter_mut().for_each(Outcome::set_unanswered);
        }
    }

    /// Returns the only charge, unless its limit has a penalty.
    #[inline]
    pub(crate) fn only_state(&mut self) -> Option<&mut Outcome> {
        match &mut *self.outcomes {
            [outcome] if outcome.penalty().is_none() => Some(outcome),
            _ => None,
        }
    }

    /// Returns whether a limit has a penalty.
    pub(crate) fn have_penalties(&self) -> bool {
        self.iter().any(|outcome| outcome.penalty().is_some())
    }

    /// Returns the states that decide the request: of each charge that of the limit, then that of its penalty. Each is
    /// the position of the charge, and whether it is the penalty's.
    pub(crate) fn states(&self) -> impl Iterator<Item = (usize, bool)> {
        self.iter().enumerate().flat_map(|(position, outcome)| {
            let of_penalty = outcome.penalty().map(|_| (position, true));
            iter::once((position, false)).chain(of_penalty)
        })
    }

    /// Returns the fingerprints of these [states](Self::states).
    pub(crate) fn fingerprints(&self) -> impl Iterator<Item = u128> {
        self.states().map(|(position, is_penalty)| match is_penalty {
            true => self[position].penalty_fingerprint(),
            false => self[position].fingerprint(),
        })
    }

    /// Returns the readable name of the charge at a position, such as `daily:fw86400s`, which is as unique among the
    /// limits of a key as the [fingerprint](Charge::fingerprint). `None` unless the store
    /// [asks for it](crate::Store::has_readable_keys).
    ///
    /// # Panics
    ///
    /// Panics if there is no charge at this position.
    #[must_use]
    pub fn readable_name(&self, position: usize) -> Option<Cow<'_, str>> {
        let charge = &self[position];
        let name = self.texts.as_ref()?.names.get(charge.limit())?;
        // Requests may have other sizes, with other periods.
        let is_own = charge.identity == name.identity;
        Some(if is_own { Cow::Borrowed(&name.full) } else { readable_name(&name.name, &charge.algorithm).into() })
    }

    /// Returns the detail of the request in metrics, as [`Limit::metric_detail`](crate::Limit::metric_detail) computed
    /// it for the limit at a position. Clients may choose it, so bound the number and the length of the details that
    /// you keep.
    pub(crate) fn detail(&self, limit: usize) -> Option<&str> {
        self.texts.as_ref()?.details.iter().find(|(of, _)| *of == limit).map(|(_, detail)| &**detail)
    }

    pub(crate) fn set_detail(&mut self, limit: usize, detail: String) {
        Arc::make_mut(self.texts.get_or_insert_default()).details.push((limit, detail));
    }
}

impl Deref for Charges {
    type Target = [Outcome];

    #[inline]
    fn deref(&self) -> &[Outcome] {
        &self.outcomes
    }
}

impl DerefMut for Charges {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Outcome] {
        &mut self.outcomes
    }
}

impl Texts {
    /// Creates the texts of limits with these escaped names and charges.
    pub(crate) fn new<'a>(names: impl Iterator<Item = String>, charges: impl Iterator<Item = &'a Charge>) -> Arc<Self> {
        let name = |(name, charge): (String, &Charge)| Name {
            identity: charge.identity,
            full: readable_name(&name, &charge.algorithm),
            name,
        };
        Arc::new(Self { names: names.zip(charges).map(name).collect(), details: Vec::new() })
    }
}

fn readable_name(name: &str, algorithm: &Algorithm) -> String {
    format!("{name}:{}{}", algorithm.tag(), algorithm.state_period())
}
