//! What was decided about one request.

use std::cell::RefCell;
use std::time::Duration;
use std::{fmt, mem, slice};

use crate::hash::KeyHash;
use crate::record::Record;
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
    Now { delay: u128 },
    After(u128),
    Never,
}

impl Room {
    pub(crate) const NOW: Self = Self::Now { delay: 0 };

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
            Room::Now { delay } => Self::Allow { delay: time::micros(delay) },
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
/// It is moved about more often than it is read, so it is kept small: its spans, which pass 64 bits
/// only where a bucket takes more than 584,554 years to fill, are told as [`Duration`]s when asked for.
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
    /// The others.
    high: [u16; 3],
    limit: u16,
    /// Which limit it is, on whatever limiter: part of its hash.
    pub(crate) identity: u32,
    /// What the wait is.
    kind: Kind,
    /// Whether more will be left.
    grows: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    /// The delay.
    Now,
    /// The time until it would be allowed.
    After,
    /// Nothing.
    Never,
}

/// Which limit was charged what, and whose bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) limit: u16,
    pub(crate) identity: u32,
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
}

impl Outcome {
    #[inline]
    pub(crate) fn new(of: Subject, room: Room, mark: Record, standing: Standing) -> Self {
        let Subject { limit, identity, key, cost } = of;
        let Standing { remaining, more_after, reset_after } = standing;
        let (kind, wait) = match room {
            Room::Now { delay } => (Kind::Now, delay),
            Room::After(after) => (Kind::After, after),
            Room::Never => (Kind::Never, 0),
        };
        let (grows, more_after) = (more_after.is_some(), more_after.unwrap_or_default());
        Self {
            key,
            cost,
            mark,
            remaining,
            wait: wait as u64,
            more_after: more_after as u64,
            reset_after: reset_after as u64,
            high: [high(wait), high(more_after), high(reset_after)],
            limit,
            identity,
            kind,
            grows,
        }
    }

    #[inline]
    pub(crate) fn is_allowed(&self) -> bool {
        matches!(self.kind, Kind::Now)
    }

    #[inline]
    fn room(&self) -> Room {
        let wait = whole(self.high[0], self.wait);
        match self.kind {
            Kind::Now => Room::Now { delay: wait },
            Kind::After => Room::After(wait),
            Kind::Never => Room::Never,
        }
    }

    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        Standing {
            remaining: self.remaining,
            more_after: self.grows.then(|| whole(self.high[1], self.more_after)),
            reset_after: whole(self.high[2], self.reset_after),
        }
    }

    /// Which limit: its position among the limits that were given to the limiter.
    #[must_use]
    pub fn limit(&self) -> usize {
        usize::from(self.limit)
    }

    /// What the request was to take from this limit, in tokens.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether this limit alone had room.
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> Verdict {
        self.room().into()
    }

    /// The largest cost, in tokens, that this limit would still allow at this instant, after the
    /// request was decided.
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
fn high(span: u128) -> u16 {
    // 2^32 intervals of 366 days are under 2^77 µs.
    (span >> 64) as u16
}

#[inline]
fn whole(high: u16, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("limit", &self.limit)
            .field("cost", &self.cost)
            .field("verdict", &self.verdict())
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
    /// Whether it was to be taken, and not only decided.
    asked: bool,
    outcomes: Outcomes,
}

impl Decision {
    /// A decision to which the outcomes of all limits are to be added.
    #[inline]
    pub(crate) fn new(at: Timestamp, asked: bool) -> Self {
        Self { at, asked, outcomes: Outcomes::None }
    }

    #[inline]
    pub(crate) fn push(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// The instant at which it was decided, on the store's clock.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The verdict of all limits together.
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> Verdict {
        self.outcomes().iter().map(Outcome::verdict).fold(Verdict::NOW, Verdict::and)
    }

    /// Whether every limit had room.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.outcomes().iter().all(Outcome::is_allowed)
    }

    /// Whether it is taken if all limits allow it.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether it was not only decided, but also taken.
    pub(crate) fn is_charged(&self) -> bool {
        self.asked && self.is_allowed()
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

    /// What proves that this request was charged, for a refund. Nothing, where it was not.
    pub fn into_receipt(self) -> Receipt {
        let is_charged = self.is_charged();
        let mut charged = self.outcomes;
        if is_charged {
            charged.retain(|outcome| outcome.cost > 0);
        } else {
            charged = Outcomes::None;
        }
        Receipt { charged }
    }
}

/// Proof of what a request was charged, and when: what can be given back, exactly and once.
///
/// A refund gives back what of the charge still counts, and nothing else: it never banks credit,
/// never moves a reset, never touches a later window.
#[derive(Debug)]
#[must_use = "a receipt that is dropped gives nothing back: pass it to `refund`"]
pub struct Receipt {
    charged: Outcomes,
}

impl Receipt {
    /// What was charged, by all limits that it was charged from.
    pub(crate) fn charged(&self) -> &[Outcome] {
        self.charged.as_slice()
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
#[derive(Debug)]
enum Outcomes {
    None,
    One(Outcome),
    Several(Several),
}

impl Outcomes {
    #[inline]
    fn as_slice(&self) -> &[Outcome] {
        match self {
            Self::None => &[],
            Self::One(outcome) => slice::from_ref(outcome),
            Self::Several(outcomes) => &outcomes.0,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Outcome] {
        match self {
            Self::None => &mut [],
            Self::One(outcome) => slice::from_mut(outcome),
            Self::Several(outcomes) => &mut outcomes.0,
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
        };
        several.0.push(outcome);
        *self = Self::Several(several);
    }

    fn retain(&mut self, is_kept: impl Fn(&Outcome) -> bool) {
        match self {
            Self::One(outcome) if !is_kept(outcome) => *self = Self::None,
            Self::Several(outcomes) => outcomes.0.retain(is_kept),
            Self::None | Self::One(_) => {}
        }
    }
}

#[derive(Debug)]
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
