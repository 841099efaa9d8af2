//! What came of a charge: how stores answer it, and what callers read.

use std::mem;
use std::ops::Deref;
use std::time::Duration;

use super::charge::{Charge, Veto};
use super::penalty::{PenaltyOutcome, Strike};
use super::verdict::{UNANSWERED, Verdict};
use crate::algorithm::{Algorithm, CompactState, KeyState, Lockout, NEVER};
use crate::time::ceil_micros;

/// What came of a [`Charge`], to which it dereferences.
///
/// A limiter creates it without an answer. The store fills in the answer, and [`Decision::outcomes`] returns it.
///
/// [`Decision::outcomes`]: crate::Decision::outcomes
#[derive(Clone, Debug)]
pub struct Outcome {
    // Before the fields that are `Copy`: a clone then copies all these at once.
    /// What only some outcomes have.
    pub(super) details: Option<Box<Details>>,
    pub(crate) charge: Charge,
    /// The time until the cost is available: 0 if it is, or [`NEVER`], or [`UNANSWERED`]. All spans are in µs.
    pub(crate) wait: u64,
    /// The time for which an allowed request waits before it proceeds.
    delay: u64,
    /// The instant of the decision, in µs.
    pub(crate) now: u64,
    /// The tokens in use after the decision.
    pub(crate) used: u64,
    /// The [summary](KeyState::summary) of the state after the decision.
    pub(crate) mark: CompactState,
    /// The part of the overage that is a debt, in percent of the size.
    pub(super) debt_percent: u32,
    /// Whether an allowed request takes a part of its cost from the overage.
    uses_overage: bool,
    is_enforced: bool,
    pub(super) is_locked_out: bool,
}

/// What only some outcomes have.
#[derive(Clone, Debug, Default)]
pub(super) struct Details {
    pub(super) penalty: Option<PenaltyOutcome>,
    /// The lockout that the request has begun.
    pub(super) lockout: Option<Lockout>,
    /// The values to report in place of those that follow from the mark.
    report: Option<ReportedValues>,
    /// The fingerprint of the share that has answered.
    share: Option<u128>,
    /// The tokens that an allowed request takes for a lease, at most.
    pub(super) wanted_block: u64,
    /// The tokens that it has taken.
    pub(super) block: u64,
}

/// The values that the outcome reports beside its verdict.
#[derive(Clone, Copy, Debug)]
struct ReportedValues {
    remaining: u64,
    /// [`NEVER`] if there never is more.
    more_after: u64,
    reset_after: u64,
    debt: u64,
}

impl Deref for Outcome {
    type Target = Charge;

    #[inline]
    fn deref(&self) -> &Charge {
        &self.charge
    }
}

impl From<Charge> for Outcome {
    /// Creates the outcome of a charge that is not answered yet.
    #[inline(always)]
    fn from(charge: Charge) -> Self {
        Self {
            details: None,
            charge,
            wait: UNANSWERED,
            delay: 0,
            now: 0,
            used: 0,
            mark: CompactState::UNUSED,
            debt_percent: 0,
            uses_overage: false,
            is_enforced: charge.veto != Veto::Shadow,
            is_locked_out: false,
        }
    }
}

/// For stores: the answer.
impl Outcome {
    /// Applies the override of the key. Ignores an override of another algorithm or period. See
    /// [`Store::access_override`](crate::Store::access_override).
    pub fn apply_override(&mut self, by: &Algorithm) {
        if self.algorithm.with_size(by.size()) == Some(*by) {
            self.charge.resize(by.size());
        }
    }

    /// Sets the answer.
    ///
    /// - `verdict`: whether the limit had capacity, whether or not it is enforced, and how long the request waits.
    /// - `remaining`: the largest cost, in tokens, that the limit would still allow at the same instant, after the
    ///   decision and without overage.
    /// - `more_after`: the shortest wait after which `remaining` is larger if no other request arrives, or `None` if it
    ///   never is.
    /// - `reset_after`: the time until the key is as if it had never been used if no other request arrives.
    pub fn answer(&mut self, verdict: Verdict, remaining: u64, more_after: Option<Duration>, reset_after: Duration) {
        (self.wait, self.delay) = match verdict {
            Verdict::Allow { delay } => (0, ceil_micros(delay)),
            Verdict::Deny { retry_after } => {
                (retry_after.map_or(NEVER, |wait| ceil_micros(wait).clamp(1, UNANSWERED - 1)), 0)
            }
        };
        (self.uses_overage, self.is_locked_out) = (false, false);
        self.used = self.algorithm.capacity.saturating_sub(remaining);
        let more_after = more_after.map_or(NEVER, ceil_micros);
        self.details_mut().report =
            Some(ReportedValues { remaining, more_after, reset_after: ceil_micros(reset_after), debt: 0 });
    }

    /// Marks that the key is locked out by a [`Penalty`](crate::Penalty). Call it after [`answer`](Self::answer), which
    /// sets the wait until the end of the lockout.
    pub fn set_locked_out(&mut self) {
        self.is_locked_out = true;
        if let Some(penalty) = &mut self.details_mut().penalty {
            penalty.strike = Strike::No;
        }
    }

    /// Marks that this request began a lockout of the key: the number of consecutive lockouts, from 1, and the length
    /// of this one. Call it after [`answer`](Self::answer). It is reported as
    /// [`Event::PenaltyBegan`](crate::Event::PenaltyBegan).
    pub fn set_new_lockout(&mut self, level: u32, span: Duration) {
        self.is_locked_out = true;
        self.details_mut().lockout = Some(Lockout { level: level.max(1), span });
    }

    /// Sets the mark by which the store recognizes the charge when it is refunded: three numbers of its choice.
    pub fn set_mark(&mut self, [expires_at, at, detail]: [u64; 3]) {
        self.details_mut().report = Some(self.report());
        self.mark = CompactState { expires_at, at, detail };
    }

    /// Marks that there was capacity in the limit's overage only. A denial uses none.
    pub fn set_uses_overage(&mut self) {
        self.uses_overage = true;
    }

    /// Sets whether the limit contributes to the decision, as [`is_enforced`](Self::is_enforced) describes. By default,
    /// limits in [shadow mode](crate::store::Veto::Shadow) do not. Stores set it for limits in quota mode.
    pub fn set_enforced(&mut self, is_enforced: bool) {
        self.is_enforced = is_enforced;
    }

    /// Answers whether the cost is available. Prepares its charge if `takes`.
    #[inline(always)]
    pub(crate) fn peek(&mut self, state: &KeyState, now: u64, takes: bool) {
        if self.details.is_some() {
            self.forget_answer();
        }
        self.now = now;
        let (algorithm, cost) = (&self.charge.algorithm, self.charge.cost);
        let attempt = state.attempt(algorithm, now, if takes { cost } else { 0 });
        (self.used, self.mark) = (attempt.used, attempt.charged);
        self.wait = algorithm.wait(state, now, cost, self.used);
        if self.wait == 0 {
            self.delay = algorithm.delay(state, now, cost);
        }
    }

    /// Forgets what a store has set, because a store that wraps others may ask several of them.
    #[cold]
    fn forget_answer(&mut self) {
        let Details { penalty, wanted_block, .. } = *self.details_mut();
        *self.details_mut() = Details { penalty, wanted_block, ..Details::default() };
        self.is_locked_out = false;
    }

    /// Completes the answer after a [`peek`](Self::peek). Makes the charge that it has prepared if `takes`, which requires
    /// that the cost is available.
    #[inline(always)]
    pub(crate) fn complete(&mut self, state: &mut KeyState, takes: bool) {
        let (algorithm, now, cost) = (&self.charge.algorithm, self.now, self.charge.cost);
        let takes = takes && cost > 0;
        self.uses_overage = cost > 0 && self.used.saturating_add(cost) > algorithm.capacity;
        if takes {
            state.charge(algorithm, now, cost, self.mark);
            self.used += cost;
            if self.details.is_some() {
                self.take_block(state);
            }
        }
        self.mark = state.summary(&self.charge.algorithm, now);
    }

    /// Takes as much of the wanted block as there is without overage.
    #[cold]
    fn take_block(&mut self, state: &mut KeyState) {
        let block = self.wanted_block().min(self.algorithm.remaining(self.used));
        if block > 0 {
            let charged = state.attempt(&self.algorithm, self.now, block).charged;
            state.charge(&self.charge.algorithm, self.now, block, charged);
            self.used += block;
        }
        self.details_mut().block = block;
    }

    /// Takes the answer to an equal question, brought forward by so many µs. Requires that nothing has changed, and
    /// that this is before [`sufficient_until`](Self::sufficient_until).
    pub(crate) fn answer_like(&mut self, known: &Self, elapsed: u64) {
        let Self { charge: asked, debt_percent, .. } = mem::replace(self, known.clone());
        let wait = self.wait;
        self.debt_percent = debt_percent;
        if self.own_size != asked.own_size || self.overage_percent != asked.overage_percent {
            self.charge = asked;
        }
        let later = |span: u64| if span < NEVER { span.saturating_sub(elapsed) } else { span };
        if let Some(Details { report: Some(report), .. }) = self.details.as_deref_mut() {
            // A store of another crate sets the answer only, from which no state follows.
            self.wait = later(self.wait);
            (report.more_after, report.reset_after) = (later(report.more_after), later(report.reset_after));
            return;
        }
        // By its own clock, because a calendar is decided by the wall clock.
        // During the pause of a leased limit, nobody can take what is free again.
        let pause = if wait > 0 { self.algorithm.pause() } else { 0 };
        let (mut state, now) = (KeyState::Compact(self.mark), self.now + elapsed.saturating_sub(pause));
        if self.algorithm.keeps_log() && (1..NEVER).contains(&self.wait) {
            self.wait = later(self.wait);
            self.now = now;
        } else {
            self.peek(&state, now, false);
            // A denial stands for a while after a token is free again.
            if wait > 0 && self.algorithm.term > 0 {
                self.wait = later(wait);
            }
        }
        self.complete(&mut state, false);
        if let Some(penalty) = self.penalty() {
            self.peek_penalty(penalty.state, penalty.now + elapsed);
        }
    }

    /// Marks that no store has answered.
    pub(crate) fn set_unanswered(&mut self) {
        self.wait = UNANSWERED;
    }

    pub(crate) fn set_veto(&mut self, veto: Veto) {
        (self.charge.veto, self.is_enforced) = (veto, veto != Veto::Shadow);
    }

    /// Returns the mark of a slot: that of its bucket, without the state of the key, so that all slots of a bucket have the
    /// same. A store of another crate has marks of its own.
    pub(crate) fn slot_mark(&self) -> CompactState {
        match self.given_report() {
            Some(_) => self.mark,
            None => CompactState { expires_at: self.mark.expires_at, ..CompactState::UNUSED },
        }
    }

    /// Takes the answer of a share.
    pub(crate) fn take_share(&mut self, share: &Self) {
        *self = Self {
            charge: self.charge,
            used: self.algorithm.hard_capacity().saturating_sub(share.available()),
            ..share.clone()
        };
        let details = self.details_mut();
        (details.report, details.share) = (Some(share.report()), Some(share.fingerprint()));
    }

    /// Returns whether this share has answered.
    pub(crate) fn is_of_share(&self, share: &Charge) -> bool {
        self.details.as_ref().is_some_and(|details| details.share == Some(share.fingerprint()))
    }

    /// Returns whether the outcome of another charge [follows](Self::answer_like) from this one: all that it depends on is
    /// equal. If this charge was allowed, the limit may be larger, unless it keeps a log, whose summary is of one size, or
    /// can be overridden.
    pub(crate) fn answers(&self, asked: &Self) -> bool {
        let question = |charge: &Self| {
            let penalty = charge.penalty().map(|asked| (asked.penalty, asked.makes_strikes));
            let flags = (charge.veto, charge.is_overridable, charge.limit, penalty);
            let algorithm = &charge.algorithm;
            (charge.key, charge.identity, charge.cost, algorithm.kind, [algorithm.span, algorithm.term.into()], flags)
        };
        let size = |charge: &Charge| (charge.own_size, charge.overage_percent);
        let (known, new) = (&self.algorithm, &asked.algorithm);
        let is_wider = new.hard_capacity() >= known.hard_capacity() && new.amount >= known.amount;
        let follows = self.given_report().is_none() && !self.is_overridable && !known.keeps_log();
        let any_size = is_wider && self.is_allowed() && follows;
        question(self) == question(asked) && (any_size || size(self) == size(asked))
    }

    /// Returns the instant, in µs, until which later answers follow from this one, of the instant `at`.
    pub(crate) fn sufficient_until(&self, at: u64) -> u64 {
        // A store of another crate sets the answer only, which says when it changes, but not to what.
        if let Some(report) = self.given_report() {
            let changes = [report.more_after, report.reset_after].into_iter();
            return changes.filter(|after| *after > 0).min().map_or(u64::MAX, |after| at.saturating_add(after));
        }
        if self.algorithm.is_concurrency && !self.is_allowed() {
            return at;
        }
        if self.algorithm.keeps_log() && self.used > 0 {
            return at.saturating_add(self.mark.at.saturating_sub(self.now));
        }
        u64::MAX
    }

    /// Lets the charge exceed the limit and its overage by so many percent. A queue has no debt, because its level is
    /// the delay of others.
    pub(crate) fn allow_debt(&mut self, percent: u32) {
        if self.algorithm.queue_burst().is_none() {
            self.charge.set_overage(self.overage_percent.saturating_add(percent));
            self.debt_percent = percent;
        }
    }

    /// Returns the tokens of this charge that still counted at the instant of a later outcome.
    pub(crate) fn counted_at(&self, later: &Self) -> u64 {
        let is_over = self.mark.expires_at <= later.now;
        if is_over { 0 } else { KeyState::Compact(self.mark).used(&self.algorithm, later.now).min(self.cost) }
    }

    /// Returns the largest cost that is available now, with overage.
    pub(crate) fn available(&self) -> u64 {
        if self.is_locked_out { 0 } else { self.algorithm.hard_capacity().saturating_sub(self.used) }
    }

    #[cold]
    pub(super) fn details_mut(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// Returns whether a store has set the answer, so that the state of the key does not follow from the mark.
    pub(crate) fn has_given_report(&self) -> bool {
        self.given_report().is_some()
    }

    fn given_report(&self) -> Option<&ReportedValues> {
        self.details.as_ref()?.report.as_ref()
    }

    fn report(&self) -> ReportedValues {
        let (algorithm, state, now) = (&self.algorithm, &self.mark, self.now);
        let mut report = ReportedValues {
            remaining: algorithm.remaining(self.used),
            more_after: algorithm.more_after(state, now, self.used),
            reset_after: algorithm.reset_after(state, now),
            debt: self.debt(),
        };
        let Some(details) = &self.details else { return report };
        if let Some(given) = details.report {
            return given;
        }
        if let Some(penalty) = &details.penalty {
            report.reset_after = report.reset_after.max(penalty.forgotten_after());
            let left = penalty.left();
            if left > 0 {
                let more_after = if report.remaining > 0 { left } else { report.more_after.max(left) };
                (report.remaining, report.more_after) = (0, more_after);
            }
        }
        report
    }
}

/// The kind of an [`Outcome`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum OutcomeKind {
    /// The limit had capacity.
    Allowed,
    /// The limit had capacity after a delay: see [`LeakyBucketQueue`](crate::LeakyBucketQueue).
    Delayed,
    /// The limit had capacity in its overage only: see [`Limit::soft`](crate::Limit::soft).
    Overage,
    /// A settlement took tokens beyond the limit and its overage: see [`Limit::debt`](crate::Limit::debt).
    Debt,
    /// The limit had no capacity, but is in [shadow mode](crate::Limit::shadow), so it denied nothing.
    ShadowDenied,
    /// The limit had no capacity, but another limit in [quota mode](crate::Limit::quota_mode) had.
    QuotaExceeded,
    /// The limit denied the request.
    Denied,
}

impl OutcomeKind {
    /// Returns the name of the outcome in metrics, such as `shadow_denied`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Overage => "overage",
            Self::Debt => "debt",
            Self::ShadowDenied => "shadow_denied",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Denied => "denied",
        }
    }
}

/// The outcome of a decision.
impl Outcome {
    /// Returns whether a store has answered.
    #[inline]
    pub(crate) fn is_answered(&self) -> bool {
        self.wait != UNANSWERED
    }

    /// Returns whether the limit alone had capacity.
    #[inline]
    pub(crate) fn is_allowed(&self) -> bool {
        self.wait == 0
    }

    /// Returns whether the limit denies the request.
    #[must_use]
    #[inline]
    pub fn denies(&self) -> bool {
        self.is_enforced && !self.is_allowed()
    }

    /// Returns whether the limit lets the request proceed without a delay.
    #[inline]
    pub(crate) fn allows_now(&self) -> bool {
        !self.is_enforced || self.wait == 0 && self.delay == 0
    }

    /// Returns the mark of the charge, as the store set it by [`set_mark`](Self::set_mark).
    #[must_use]
    pub fn mark(&self) -> [u64; 3] {
        [self.mark.expires_at, self.mark.at, self.mark.detail]
    }

    /// Returns whether this limit alone had capacity. A limit that is [not enforced](Self::is_enforced) has a
    /// verdict, too.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::of(self.wait, self.delay)
    }

    /// Returns the kind of the outcome.
    #[must_use]
    pub fn kind(&self) -> OutcomeKind {
        match self.verdict() {
            Verdict::Deny { .. } if self.is_enforced => OutcomeKind::Denied,
            Verdict::Deny { .. } if self.veto == Veto::Quota => OutcomeKind::QuotaExceeded,
            Verdict::Deny { .. } => OutcomeKind::ShadowDenied,
            Verdict::Allow { .. } if self.uses_overage() => OutcomeKind::Overage,
            Verdict::Allow { .. } if self.cost > 0 && self.debt() > 0 => OutcomeKind::Debt,
            Verdict::Allow { delay: Duration::ZERO } => OutcomeKind::Allowed,
            Verdict::Allow { .. } => OutcomeKind::Delayed,
        }
    }

    /// Returns whether the limit contributes to the [decision](crate::Decision::verdict). A limit in [shadow
    /// mode](crate::Limit::shadow) does not. Of limits in [quota mode](crate::Limit::quota_mode), those with capacity
    /// do. If none has capacity, only the first that will have capacity does.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.is_enforced
    }

    /// Returns whether the key is locked out by a [`Penalty`](crate::Penalty) of the limit, including the request that
    /// began the lockout. A cost of 0 is allowed nevertheless.
    #[must_use]
    pub fn is_locked_out(&self) -> bool {
        self.is_locked_out
    }

    /// Returns whether there was capacity in the limit's overage only: see [`Limit::soft`](crate::Limit::soft).
    #[must_use]
    pub fn uses_overage(&self) -> bool {
        self.uses_overage && self.wait == 0 && self.debt() == 0
    }

    /// Returns the tokens in use beyond the limit and its overage: the [debt](crate::Limit::debt) that settlements have
    /// left, or what remains in use after the limit was lowered. Requests are denied while there are any.
    /// 0 if a store sets the [answer](Self::answer), which has no debt.
    #[must_use]
    pub fn debt(&self) -> u64 {
        if let Some(report) = self.given_report() {
            return report.debt;
        }
        if self.used <= self.algorithm.capacity {
            return 0;
        }
        let own = self.algorithm.with_overage(self.overage_percent - self.debt_percent);
        self.used.saturating_sub(own.hard_capacity())
    }

    /// Returns the largest cost, in tokens, that this limit would still allow at this instant, after the decision.
    /// Overage does not count.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u64 {
        match self.details {
            None => self.algorithm.remaining(self.used),
            Some(_) => self.report().remaining,
        }
    }

    /// Returns the shortest wait after which [`remaining`](Self::remaining) is larger, if no other request arrives.
    /// `None` if it never is.
    #[must_use]
    #[inline]
    pub fn more_after(&self) -> Option<Duration> {
        let micros = match self.details {
            None => self.algorithm.more_after(&self.mark, self.now, self.used),
            Some(_) => self.report().more_after,
        };
        (micros < NEVER).then(|| Duration::from_micros(micros))
    }

    /// Returns the time until the key is as if it had never been used, if no other request arrives.
    #[must_use]
    #[inline]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(match self.details {
            None => self.algorithm.reset_after(&self.mark, self.now),
            Some(_) => self.report().reset_after,
        })
    }
}

/// Two outcomes are equal if they report the same.
impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let reported = |outcome: &Self| {
            let flags = (outcome.is_enforced, outcome.uses_overage(), outcome.is_locked_out());
            (
                outcome.limit,
                outcome.cost,
                outcome.verdict(),
                flags,
                (outcome.remaining(), outcome.more_after(), outcome.reset_after()),
            )
        };
        reported(self) == reported(other)
    }
}

/// Serializes the reported values, with spans in seconds.
#[cfg(feature = "serde")]
impl serde::Serialize for Outcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let (verdict, mut fields) = (self.verdict(), serializer.serialize_struct("Outcome", 10)?);
        let seconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64());
        fields.serialize_field("allowed", &verdict.is_allowed())?;
        fields.serialize_field("enforced", &self.is_enforced)?;
        fields.serialize_field("delay_seconds", &seconds(Some(verdict.delay())))?;
        fields.serialize_field("retry_after_seconds", &seconds(verdict.retry_after()))?;
        fields.serialize_field("remaining", &self.remaining())?;
        fields.serialize_field("more_after_seconds", &seconds(self.more_after()))?;
        fields.serialize_field("reset_after_seconds", &seconds(Some(self.reset_after())))?;
        fields.serialize_field("uses_overage", &self.uses_overage())?;
        fields.serialize_field("debt", &self.debt())?;
        fields.serialize_field("locked_out", &self.is_locked_out())?;
        fields.end()
    }
}
