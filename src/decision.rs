//! What was decided about one request.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, mem, slice};

use crate::hash::KeyHash;
use crate::record::Record;
use crate::terms::Terms;
use crate::time::{self, Timestamp};

/// Whether a limit has room for a cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// There is room. The request goes on after `delay`, which only a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) makes longer than zero.
    Allow {
        /// How long the request waits before it goes on.
        delay: Duration,
    },
    /// There is no room.
    Deny {
        /// The shortest wait after which the same cost would have room, if nothing else comes:
        /// exact to the microsecond. `None` where no wait can help, as for a cost over the
        /// limit's capacity.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// There is room, at once.
    pub const NOW: Self = Self::Allow { delay: Duration::ZERO };

    /// What this and another limit's verdict on one request say together: room where both have
    /// room, after the longer delay; or else the longer wait of those that deny.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Allow { delay: one }, Self::Allow { delay: other }) => Self::Allow { delay: one.max(other) },
            (Self::Deny { retry_after: one }, Self::Deny { retry_after: other }) => {
                Self::Deny { retry_after: one.zip(other).map(|(one, other)| one.max(other)) }
            }
            (denied @ Self::Deny { .. }, _) | (_, denied @ Self::Deny { .. }) => denied,
        }
    }

    /// There is room.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }
}

/// [`Verdict`] of one limit, in µs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Room {
    /// `over`: it reaches into the limit's overage.
    Now {
        delay: u128,
        over: bool,
    },
    After(u128),
    Never,
}

impl Room {
    pub(crate) const NOW: Self = Self::Now { delay: 0, over: false };

    pub(crate) const fn is_now(&self) -> bool {
        matches!(self, Self::Now { .. })
    }

    pub(crate) const fn is_after(&self) -> bool {
        matches!(self, Self::After(_))
    }
}

impl From<Room> for Verdict {
    fn from(room: Room) -> Self {
        match room {
            Room::Now { delay, .. } => Self::Allow { delay: time::micros(delay) },
            Room::After(after) => Self::Deny { retry_after: Some(time::micros(after)) },
            Room::Never => Self::Deny { retry_after: None },
        }
    }
}

/// What is left of a limit for one key, at one instant. In µs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Standing {
    pub(crate) remaining: u64,
    pub(crate) more_after: Option<u128>,
    pub(crate) reset_after: u128,
}

impl Standing {
    pub(crate) const fn untouched(capacity: u64) -> Self {
        Self { remaining: capacity, more_after: None, reset_after: 0 }
    }
}

/// What one limit says of a request.
///
/// It is moved about more often than it is read, so it is small, and all of it is words: a word that is
/// copied right after a part of it was written stalls the processor. Spans are told as [`Duration`]s when
/// asked for.
#[derive(Clone)]
pub struct Outcome {
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
    pub(crate) mark: Record,
    remaining: u64,
    /// The low 64 bits of each span, in µs.
    wait: u64,
    more_after: u64,
    reset_after: u64,
    /// Which limit it is, on whatever limiter: part of its hash.
    pub(crate) identity: u64,
    /// What else there is to say: see [`Rest`].
    rest: u64,
}

/// What of an outcome takes less than a word, and how it is packed into one: the limit's index (14
/// bits), whether it reaches into overage (1) and whether it is not enforced (1), what the wait is (2), whether more will be left (1), and the high bits of the three spans (15
/// each: none is longer than it takes to pay back twice what a bucket can hold, under 2^79 µs).
#[derive(Clone, Copy)]
struct Rest {
    limit: u16,
    is_over: bool,
    is_shadow: bool,
    kind: u64,
    grows: bool,
    high: [u64; 3],
}

/// The wait is a delay, the time until the request would be allowed, or nothing.
const NOW: u64 = 0;
const AFTER: u64 = 1;
const NEVER: u64 = 2;

const LIMIT: u16 = (1 << 14) - 1;
const HIGH: u64 = (1 << 15) - 1;

impl Rest {
    #[inline]
    fn pack(self) -> u64 {
        let [wait, more, reset] = self.high;
        let flags = u64::from(self.is_over) << 14 | u64::from(self.is_shadow) << 15 | u64::from(self.grows) << 18;
        u64::from(self.limit) | flags | self.kind << 16 | wait << 19 | more << 34 | reset << 49
    }

    #[inline]
    fn unpack(packed: u64) -> Self {
        let high = [19, 34, 49].map(|from| packed >> from & HIGH);
        let is = |bit: u32| packed >> bit & 1 == 1;
        let limit = packed as u16 & LIMIT;
        Self { limit, is_over: is(14), is_shadow: is(15), kind: packed >> 16 & 3, grows: is(18), high }
    }
}

/// Which limit was charged what, and whose bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) limit: u16,
    pub(crate) identity: u64,
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
    pub(crate) is_enforced: bool,
}

impl Outcome {
    #[inline]
    pub(crate) fn new(of: Subject, room: Room, mark: Record, standing: Standing) -> Self {
        let Subject { limit, identity, key, cost, is_enforced } = of;
        let Standing { remaining, more_after, reset_after } = standing;
        let (kind, wait, is_over) = match room {
            Room::Now { delay, over } => (NOW, delay, over),
            Room::After(after) => (AFTER, after, false),
            Room::Never => (NEVER, 0, false),
        };
        let (grows, more_after) = (more_after.is_some(), more_after.unwrap_or_default());
        let high = [wait, more_after, reset_after].map(|span| (span >> 64) as u64 & HIGH);
        Self {
            key,
            cost,
            mark,
            remaining,
            wait: wait as u64,
            more_after: more_after as u64,
            reset_after: reset_after as u64,
            identity,
            rest: Rest { limit, is_over, is_shadow: !is_enforced, kind, grows, high }.pack(),
        }
    }

    /// Whether it alone has room.
    #[inline]
    pub(crate) fn is_allowed(&self) -> bool {
        Rest::unpack(self.rest).kind == NOW
    }

    /// Whether it denies the request.
    #[inline]
    pub(crate) fn denies(&self) -> bool {
        let Rest { kind, is_shadow, .. } = Rest::unpack(self.rest);
        kind != NOW && !is_shadow
    }

    #[inline]
    fn room(&self) -> Room {
        let Rest { kind, is_over, high: [high, ..], .. } = Rest::unpack(self.rest);
        let wait = whole(high, self.wait);
        match kind {
            NOW => Room::Now { delay: wait, over: is_over },
            AFTER => Room::After(wait),
            _ => Room::Never,
        }
    }

    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        let Rest { grows, high: [_, more, reset], .. } = Rest::unpack(self.rest);
        Standing {
            remaining: self.remaining,
            more_after: grows.then(|| whole(more, self.more_after)),
            reset_after: whole(reset, self.reset_after),
        }
    }

    /// Which limit: its position among the limits that were given to the limiter.
    #[must_use]
    pub fn limit(&self) -> usize {
        usize::from(Rest::unpack(self.rest).limit)
    }

    /// What the request was to take from this limit, in tokens.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether this limit alone had room. One that is [not enforced](Self::is_enforced) says what it would
    /// have done.
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> Verdict {
        self.room().into()
    }

    /// Whether the limit counts for the [decision](Decision::verdict): one in the
    /// [shadow](crate::Limit::shadow) does not.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        !Rest::unpack(self.rest).is_shadow
    }

    /// Whether there was only room in the limit's overage: see [`Limit::soft`](crate::Limit::soft).
    #[must_use]
    pub fn uses_overage(&self) -> bool {
        Rest::unpack(self.rest).is_over
    }

    /// The largest cost, in tokens, that this limit would still allow at this instant, after the
    /// request was decided. Overage does not count.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The shortest wait after which [`remaining`](Self::remaining) is larger, if nothing more
    /// comes. `None` where it won't grow.
    #[must_use]
    #[inline]
    pub fn more_after(&self) -> Option<Duration> {
        self.standing().more_after.map(time::micros)
    }

    /// How long until it is as if this limit had never been used, if nothing more comes.
    #[must_use]
    #[inline]
    pub fn reset_after(&self) -> Duration {
        time::micros(self.standing().reset_after)
    }
}

#[inline]
fn whole(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("limit", &self.limit())
            .field("cost", &self.cost)
            .field("verdict", &self.verdict())
            .field("enforced", &self.is_enforced())
            .field("uses_overage", &self.uses_overage())
            .field("remaining", &self.remaining)
            .field("more_after", &self.more_after())
            .field("reset_after", &self.reset_after())
            .finish_non_exhaustive()
    }
}

/// What was decided about one request by all the limits that apply to it, at one instant.
#[derive(Debug)]
#[must_use = "a denied request is `Ok` too: ask `is_allowed`"]
pub struct Decision {
    at: Timestamp,
    task: Task,
    by: DecidedBy,
    outcomes: Outcomes,
}

/// What was asked for. As wide as a word, for the reason that [`Outcome`] tells.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum Task {
    /// To know.
    Tell,
    /// To take, if there is room.
    Take,
}

/// Who decided about a request: see [`OnStoreError`](crate::OnStoreError).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
// As wide as a word, too.
#[repr(u64)]
pub enum DecidedBy {
    /// The store.
    Store,
    /// This process by itself, with its share of the limits, as the store could not.
    Local,
    /// Nobody: the store could not, and the request goes on uncounted; or no limit applies to it. There
    /// are no outcomes.
    Nobody,
}

impl Decision {
    /// A decision to which the outcomes of all limits are to be added.
    #[inline]
    pub(crate) fn new(at: Timestamp, asked: bool) -> Self {
        let task = if asked { Task::Take } else { Task::Tell };
        Self { at, task, by: DecidedBy::Store, outcomes: Outcomes::None }
    }

    #[inline]
    pub(crate) fn push(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// Lets a request go on that nobody has decided about.
    pub(crate) fn by_nobody(at: Timestamp) -> Self {
        Self { by: DecidedBy::Nobody, ..Self::new(at, false) }
    }

    /// The same, decided in the store's place.
    pub(crate) fn locally(self) -> Self {
        Self { by: DecidedBy::Local, ..self }
    }

    /// The same, to tell: nothing can be given back of it.
    pub(crate) fn told(&self) -> Self {
        Self { task: Task::Tell, outcomes: self.outcomes.clone(), ..*self }
    }

    /// The same, as far as one limit is concerned.
    pub(crate) fn only(mut self, limit: usize) -> Self {
        self.outcomes.retain(|outcome| outcome.limit() == limit);
        self
    }

    /// Who decided.
    #[must_use]
    pub fn decided_by(&self) -> DecidedBy {
        self.by
    }

    /// The instant at which it was decided, on the clock of whoever did.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The verdict of all limits together that are enforced.
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> Verdict {
        let enforced = self.outcomes().iter().filter(|outcome| outcome.is_enforced());
        enforced.map(Outcome::verdict).fold(Verdict::NOW, Verdict::and)
    }

    /// Whether every limit had room that is enforced.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        !self.outcomes().iter().any(Outcome::denies)
    }

    /// Whether it is taken if all limits allow it.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.task, Task::Take)
    }

    /// Whether it was not only decided, but also taken.
    pub(crate) fn is_charged(&self) -> bool {
        self.is_asked() && self.is_allowed()
    }

    /// How long an allowed request waits before it goes on: the longest delay of all limits.
    /// Zero where it was denied.
    #[must_use]
    #[inline]
    pub fn delay(&self) -> Duration {
        match self.verdict() {
            Verdict::Allow { delay } => delay,
            Verdict::Deny { .. } => Duration::ZERO,
        }
    }

    /// The shortest wait after which the same request would be allowed, if nothing else comes:
    /// the longest of the limits that denied it. `None` where it was allowed, and where no wait
    /// can help.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() {
            return None;
        }
        match self.verdict() {
            Verdict::Allow { .. } => None,
            Verdict::Deny { retry_after } => retry_after,
        }
    }

    /// What each limit says, in the order in which the limits were given.
    #[must_use]
    #[inline]
    pub fn outcomes(&self) -> &[Outcome] {
        self.outcomes.as_slice()
    }

    /// What each limit says, to note what was given back.
    pub(crate) fn outcomes_mut(&mut self) -> &mut [Outcome] {
        self.outcomes.as_mut_slice()
    }

    /// Notes which limits were of another size for this request, if any.
    pub(crate) fn overridden(self, overridden: &[Arc<Terms>]) -> Self {
        if overridden.is_empty() {
            return self;
        }
        Self { outcomes: self.outcomes.overridden(overridden.into()), ..self }
    }

    /// The terms of all limits that were of another size for this request.
    pub(crate) fn all_overridden(&self) -> &[Arc<Terms>] {
        self.outcomes.all_overridden()
    }

    /// What proves that this request was charged, for a refund. Nothing, where it was not.
    pub fn into_receipt(self) -> Receipt {
        let is_charged = self.is_charged();
        let mut charged = self.outcomes;
        if is_charged {
            charged.retain(|outcome| outcome.cost > 0 && outcome.is_allowed());
        } else {
            charged = Outcomes::None;
        }
        Receipt { by: self.by, charged }
    }
}

/// Proof of what a request was charged, and when: what can be given back, exactly and once.
///
/// A refund gives back what of the charge still counts, and nothing else: it never banks credit,
/// never moves a reset, never touches a later window.
#[derive(Debug)]
#[must_use = "a receipt that is dropped gives nothing back: pass it to `refund`"]
pub struct Receipt {
    /// Who was paid.
    pub(crate) by: DecidedBy,
    charged: Outcomes,
}

impl Receipt {
    pub(crate) fn of(by: DecidedBy, charged: Outcome) -> Self {
        Self { by, charged: Outcomes::One(charged) }
    }

    /// Adds what was charged besides, by the same.
    pub(crate) fn push(&mut self, charged: Outcome) {
        self.charged.push(charged);
    }

    /// Notes which limits were of another size for this request, if any.
    pub(crate) fn overridden(self, overridden: &[Arc<Terms>]) -> Self {
        if overridden.is_empty() {
            return self;
        }
        Self { charged: self.charged.overridden(overridden.into()), ..self }
    }

    /// What was charged, by all limits that it was charged from.
    pub(crate) fn charged(&self) -> &[Outcome] {
        self.charged.as_slice()
    }

    /// The terms of all limits that were of another size for this request.
    pub(crate) fn all_overridden(&self) -> &[Arc<Terms>] {
        self.charged.all_overridden()
    }

    /// Whether there is nothing to give back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.charged().is_empty()
    }
}

/// The outcomes of a request: one, mostly, which lies here; several in a vector that an earlier
/// request on this thread has left, so that they take no allocation either.
///
/// Were several to lie here, it would take longer to move even one about than to decide.
#[derive(Clone, Debug)]
enum Outcomes {
    None,
    One(Outcome),
    Several(Several),
    /// With the terms of limits that were of another size for this request: seldom, and so apart.
    Overridden(Box<Overridden>),
}

#[derive(Clone, Debug)]
struct Overridden {
    outcomes: Several,
    terms: Box<[Arc<Terms>]>,
}

impl Outcomes {
    #[inline]
    fn as_slice(&self) -> &[Outcome] {
        match self {
            Self::None => &[],
            Self::One(outcome) => slice::from_ref(outcome),
            Self::Several(outcomes) => &outcomes.0,
            Self::Overridden(overridden) => &overridden.outcomes.0,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Outcome] {
        match self {
            Self::None => &mut [],
            Self::One(outcome) => slice::from_mut(outcome),
            Self::Several(outcomes) => &mut outcomes.0,
            Self::Overridden(overridden) => &mut overridden.outcomes.0,
        }
    }

    #[cold]
    fn overridden(self, terms: Box<[Arc<Terms>]>) -> Self {
        let mut outcomes = Several::spare();
        outcomes.0.extend_from_slice(self.as_slice());
        Self::Overridden(Box::new(Overridden { outcomes, terms }))
    }

    fn all_overridden(&self) -> &[Arc<Terms>] {
        match self {
            Self::Overridden(overridden) => &overridden.terms,
            Self::None | Self::One(_) | Self::Several(_) => &[],
        }
    }

    #[inline]
    fn push(&mut self, outcome: Outcome) {
        match self {
            Self::None => *self = Self::One(outcome),
            _ => self.push_another(outcome),
        }
    }

    fn push_another(&mut self, outcome: Outcome) {
        let mut several = match mem::replace(self, Self::None) {
            Self::None => Several::spare(),
            Self::One(first) => {
                let mut several = Several::spare();
                several.0.push(first);
                several
            }
            Self::Several(several) => several,
            Self::Overridden(mut overridden) => {
                overridden.outcomes.0.push(outcome);
                *self = Self::Overridden(overridden);
                return;
            }
        };
        several.0.push(outcome);
        *self = Self::Several(several);
    }

    fn retain(&mut self, is_kept: impl Fn(&Outcome) -> bool) {
        match self {
            Self::One(outcome) if !is_kept(outcome) => *self = Self::None,
            Self::Several(outcomes) => outcomes.0.retain(is_kept),
            Self::Overridden(overridden) => overridden.outcomes.0.retain(is_kept),
            Self::None | Self::One(_) => {}
        }
    }
}

#[derive(Clone, Debug)]
struct Several(Vec<Outcome>);

/// The most vectors that a thread keeps, and the most outcomes that there is room for in one of them.
const SPARES: usize = 64;
const LARGEST: usize = 8;

thread_local! {
    static SPARE: RefCell<Vec<Vec<Outcome>>> = const { RefCell::new(Vec::new()) };
}

impl Several {
    fn spare() -> Self {
        // A thread that ends has none any more.
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        Self(spare.ok().flatten().unwrap_or_else(|| Vec::with_capacity(4)))
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        let mut outcomes = mem::take(&mut self.0);
        outcomes.clear();
        if outcomes.capacity() <= LARGEST {
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARES {
                    spare.push(outcomes);
                }
            });
        }
    }
}
