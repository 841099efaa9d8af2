//! The limits as a store in this process decides by them.

use super::drain::Drain;
use super::{
    Algorithm, CalendarWindow, Exact, FixedWindow, Log, Queue, Refill, SlidingLog, SlidingWindow, SlidingWindowCounter,
    TokenBucket,
};
use crate::record::Record;

/// A limit with all that can be worked out of it once, before any request comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    FixedWindow(FixedWindow),
    CalendarWindow(CalendarWindow),
    SlidingLog(SlidingLog),
    SlidingWindow(SlidingWindow),
    SlidingWindowCounter(SlidingWindowCounter),
    /// A token bucket that fills evenly, or a leaky one.
    Drain(Drain),
    /// A token bucket that fills at intervals.
    AtIntervals(TokenBucket),
    Queue(Queue),
}

impl Algorithm {
    pub(crate) fn rule(&self) -> Rule {
        match *self {
            Self::FixedWindow(limit) => Rule::FixedWindow(limit),
            Self::CalendarWindow(limit) => Rule::CalendarWindow(limit),
            Self::SlidingLog(limit) => Rule::SlidingLog(limit),
            Self::SlidingWindow(limit) => Rule::SlidingWindow(limit),
            Self::SlidingWindowCounter(limit) => Rule::SlidingWindowCounter(limit),
            Self::TokenBucket(limit) if limit.refills() == Refill::Interval => Rule::AtIntervals(limit),
            Self::TokenBucket(limit) => Rule::Drain(limit.drain()),
            Self::LeakyBucket(limit) => Rule::Drain(limit.drain()),
            Self::LeakyBucketQueue(limit) => Rule::Queue(limit.queue()),
        }
    }
}

/// By what a rule keeps for a key: something of constant size, or a log.
pub(crate) enum ByState<'a> {
    Record(&'a dyn Exact<Record>),
    Log(&'a dyn Exact<Log>),
}

impl Rule {
    /// It by what it remembers.
    pub(crate) fn exact(&self) -> ByState<'_> {
        match self {
            Self::FixedWindow(rule) => ByState::Record(rule),
            Self::CalendarWindow(rule) => ByState::Record(rule),
            Self::SlidingLog(rule) => ByState::Log(rule),
            Self::SlidingWindow(rule) => ByState::Log(rule),
            Self::SlidingWindowCounter(rule) => ByState::Record(rule),
            Self::Drain(rule) => ByState::Record(rule),
            Self::AtIntervals(rule) => ByState::Record(rule),
            Self::Queue(rule) => ByState::Record(rule),
        }
    }
}
