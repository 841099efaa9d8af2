//! The answers of cells: how stores set them, and what callers read.

use std::mem;
use std::time::Duration;

use super::cell::{Cell, Report, UNANSWERED, Verdict};
use crate::algorithm::{Algorithm, CompactState, KeyState, Lockout, NEVER};
use crate::time::ceil_micros;

/// For stores: the answer.
impl Cell {
    /// Applies the override of the key. Ignores an override of another algorithm or period. See
    /// [`Store::access_override`](crate::Store::access_override).
    pub fn apply_override(&mut self, by: &Algorithm) {
        if self.algorithm.with_size(by.size()) == Some(*by) {
            self.resize(by.size());
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
        self.uses_overage = false;
        self.used = self.algorithm.capacity.saturating_sub(remaining);
        let report = self.report_mut();
        report.remaining = remaining;
        (report.more_after, report.reset_after) = (more_after.map(ceil_micros), ceil_micros(reset_after));
    }

    /// Sets the mark by which the store recognizes the charge when it is refunded: three numbers of its choice. On the
    /// cell of a [penalty](Self::is_of_penalty), set only the [mark](Self::mark) of a store of this crate, because it
    /// tells how long the key is locked out.
    pub fn set_mark(&mut self, [expires_at, at, detail]: [u64; 3]) {
        self.report_mut();
        self.mark = CompactState { expires_at, at, detail };
    }

    /// Marks that there was capacity in the limit's overage only. A denial uses none.
    pub fn set_uses_overage(&mut self) {
        self.uses_overage = true;
    }

    /// Marks that this request began a lockout of the key: the number of consecutive lockouts, from 1, and the length
    /// of this one. It is reported as [`Event::PenaltyBegan`](crate::Event::PenaltyBegan).
    pub fn set_new_lockout(&mut self, level: u32, span: Duration) {
        let report = self.report_mut();
        (report.is_locked_out, report.lockout) = (true, Some(Lockout { level: level.max(1), span }));
    }

    /// Sets whether the limit contributes to the decision, as [`is_enforced`](Self::is_enforced) describes. By default,
    /// limits in [shadow mode](crate::store::Veto::Shadow) do not. Stores set it for limits in quota mode.
    pub fn set_enforced(&mut self, is_enforced: bool) {
        self.is_enforced = is_enforced;
    }

    /// Answers whether the cost is available.
    #[inline(always)]
    pub(crate) fn peek(&mut self, state: &KeyState, now: u64) {
        self.now = now;
        let (algorithm, cost) = (&self.algorithm, self.cost);
        self.used = state.used(algorithm, now);
        self.wait = algorithm.wait(state, now, cost, self.used);
        if self.wait == 0 {
            self.delay = algorithm.delay(state, now, cost);
        }
    }

    /// Completes the answer after a [`peek`](Self::peek). Charges the cost if `takes`, which requires that it is available.
    #[inline(always)]
    pub(crate) fn complete(&mut self, state: &mut KeyState, takes: bool) {
        let (algorithm, now) = (&self.algorithm, self.now);
        let takes = takes && self.cost > 0;
        self.uses_overage = self.cost > 0 && self.used.saturating_add(self.cost) > algorithm.capacity;
        if takes {
            state.charge(algorithm, now, self.cost);
            self.used += self.cost;
        }
        self.mark = state.summary(algorithm, now);
        if takes && self.is_of_penalty() {
            self.peek(&KeyState::Compact(self.mark), now);
            self.report_mut().lockout = Lockout::begun(&self.mark, now);
        }
    }

    /// Answers as a store has answered an equal question, but at a later instant, before
    /// [`sufficient_until`](Self::sufficient_until), if nothing has changed.
    pub(crate) fn answer_like(&mut self, known: &Self, now: u64) {
        let asked = mem::replace(self, known.clone());
        self.texts = asked.texts;
        if self.own_size != asked.own_size || self.overage_percent != asked.overage_percent {
            (self.algorithm, self.own_size, self.overage_percent) =
                (asked.algorithm, asked.own_size, asked.overage_percent);
        }
        let mut state = KeyState::Compact(self.mark);
        if self.algorithm.keeps_log() && (1..NEVER).contains(&self.wait) {
            self.wait = self.wait.saturating_sub(now.saturating_sub(self.now));
            self.now = now;
        } else {
            self.peek(&state, now);
        }
        self.complete(&mut state, false);
    }

    /// Returns the instant, in µs, until which the summary of the state answers as the state itself.
    pub(crate) fn sufficient_until(&self) -> u64 {
        if self.algorithm.keeps_log() && self.used > 0 { self.mark.at } else { u64::MAX }
    }

    /// Adds the answer of the limit's penalty. A cost of 0 is always allowed.
    pub(crate) fn restrict(&mut self, penalty: &Self) {
        // A store of another crate sets the answer only.
        let left = penalty.mark.wait(&penalty.algorithm, penalty.now, 0).max(penalty.wait);
        let reset_after = ceil_micros(penalty.reset_after());
        if left == 0 && reset_after == 0 {
            return;
        }
        let report = self.report_mut();
        report.reset_after = report.reset_after.max(reset_after);
        if left > 0 {
            let more_after = if report.remaining > 0 { Some(0) } else { report.more_after };
            report.more_after = more_after.map(|after| after.max(left)).filter(|after| *after < NEVER);
            report.remaining = 0;
            (report.is_locked_out, report.lockout) = (true, penalty.lockout());
            if self.cost > 0 {
                self.wait = self.wait.max(left);
            }
        }
    }

    /// Returns the largest cost that is available now, with overage.
    pub(crate) fn available(&self) -> u64 {
        if self.is_locked_out() { 0 } else { self.algorithm.hard_capacity().saturating_sub(self.used) }
    }

    pub(super) fn report(&self) -> Report {
        let (algorithm, state) = (&self.algorithm, &self.mark);
        self.reported.as_deref().copied().unwrap_or_else(|| Report {
            remaining: algorithm.remaining(self.used),
            more_after: algorithm.more_after(state, self.now, self.used),
            reset_after: algorithm.reset_after(state, self.now),
            is_locked_out: false,
            lockout: None,
            share: None,
        })
    }

    #[cold]
    fn report_mut(&mut self) -> &mut Report {
        let report = self.report();
        self.reported.insert(Box::new(report))
    }
}

/// The outcome of a decision.
impl Cell {
    /// Returns the detail of the request in metrics, as [`Limit::metric_detail`](crate::Limit::metric_detail) computed
    /// it. Clients may choose it, so bound the number and the length of the details that you keep.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.texts.as_ref()?.detail.as_deref()
    }

    /// Returns the lockout that the request began, if any.
    pub(crate) fn lockout(&self) -> Option<Lockout> {
        self.reported.as_ref()?.lockout
    }

    /// Returns whether a store has answered this cell.
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
    #[inline]
    pub(crate) fn denies(&self) -> bool {
        self.is_enforced && !self.is_allowed()
    }

    /// Returns the position of the limit among those of the limiter.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.into()
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
        self.reported.as_ref().is_some_and(|report| report.is_locked_out)
    }

    /// Returns whether there was capacity in the limit's overage only: see [`Limit::soft`](crate::Limit::soft).
    #[must_use]
    pub fn uses_overage(&self) -> bool {
        self.uses_overage && self.wait == 0
    }

    /// Returns the largest cost, in tokens, that this limit would still allow at this instant, after the decision.
    /// Overage does not count.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u64 {
        match &self.reported {
            None => self.algorithm.remaining(self.used),
            Some(report) => report.remaining,
        }
    }

    /// Returns the shortest wait after which [`remaining`](Self::remaining) is larger, if no other request arrives.
    /// `None` if it never is.
    #[must_use]
    #[inline]
    pub fn more_after(&self) -> Option<Duration> {
        let micros = match &self.reported {
            None => self.algorithm.more_after(&self.mark, self.now, self.used),
            Some(report) => report.more_after,
        };
        micros.map(Duration::from_micros)
    }

    /// Returns the time until the key is as if it had never been used, if no other request arrives.
    #[must_use]
    #[inline]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(match &self.reported {
            None => self.algorithm.reset_after(&self.mark, self.now),
            Some(report) => report.reset_after,
        })
    }
}
