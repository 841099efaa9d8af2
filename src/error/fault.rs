//! Values out of their range.

use std::time::Duration;

use super::message::Message;

/// A value out of its range, found by a constructor that also runs at compile time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    Zero { what: &'static str },
    PeriodZero { what: &'static str },
    PeriodTooLong { what: &'static str, is: Duration },
    PeriodNotWhole { what: &'static str, is: Duration },
    DrainTooLong { capacity: u64, amount: u32, interval: Duration },
    Buckets { period: Duration, buckets: u32 },
    Ipv4Prefix { bits: u8 },
    Ipv6Prefix { bits: u8 },
    DayOfMonth { day: u32 },
    NoMonth,
    NoProcesses,
    Denials { denials: u32 },
    Doubling { first: Duration, longest: Duration },
}

impl Fault {
    /// Describes the fault, its value and the remedy. `const`, so that panics at compile time name the value too.
    pub(crate) const fn message(self) -> Message {
        let message = Message::new();
        match self {
            Self::Zero { what } => message.text(what).text(" is 0: allow at least 1 token, or leave the limit out"),
            Self::PeriodZero { what } => message.text(what).text(" is 0: use at least 1 µs"),
            Self::PeriodTooLong { what, is } => {
                message.text(what).text(" ").span(is).text(" is longer than 366 days: shorten it")
            }
            Self::PeriodNotWhole { what, is } => {
                message.text(what).text(" ").span(is).text(" is not a whole number of microseconds: round it")
            }
            Self::DrainTooLong { capacity, amount, interval } => message
                .text("a bucket of ")
                .number(capacity as u128)
                .text(" tokens takes more than 142 years to fill or drain at ")
                .number(amount as u128)
                .text(" per ")
                .span(interval)
                .text(": lower the capacity, or raise the rate"),
            Self::Buckets { period, buckets: 0 } => {
                message.text("period ").span(period).text(" is divided into 0 buckets: use at least 1")
            }
            Self::Buckets { period, buckets } => {
                let message = message.text("period ").span(period).text(" does not divide into ");
                let message = message.number(buckets as u128).text(" buckets of whole microseconds: use ");
                match fewer_buckets(period.as_micros(), buckets) {
                    Some(fewer) => message.number(fewer as u128).text(", for example"),
                    None => message.text("a number that divides ").number(period.as_micros()),
                }
            }
            Self::Denials { denials } => message
                .text("a lockout begins after ")
                .number(denials as u128)
                .text(" denials: use 1 to 1,000, or leave the penalty out"),
            Self::Doubling { first, longest } => message
                .text("the first lockout lasts ")
                .span(first)
                .text(", longer than the longest, ")
                .span(longest)
                .text(": shorten the first, or lengthen the longest"),
            Self::Ipv4Prefix { bits } => {
                message.text("an IPv4 prefix has ").number(bits as u128).text(" bits: use 1 to 32")
            }
            Self::Ipv6Prefix { bits } => {
                message.text("an IPv6 prefix has ").number(bits as u128).text(" bits: use 1 to 128")
            }
            Self::DayOfMonth { day } => {
                message.text("no month has a day ").number(day as u128).text(": use one from 1 to 31")
            }
            Self::NoMonth => message.text("`from_day` is for months: use `CalendarWindow::monthly`, or leave it out"),
            Self::NoProcesses => {
                message.text("a limit is shared by 0 processes: count all processes that share it, including this one")
            }
        }
    }
}

/// Returns the largest number of buckets into which a period of `micros` divides, searching a little below `buckets`.
const fn fewer_buckets(micros: u128, buckets: u32) -> Option<u32> {
    let mut fewer = buckets - 1;
    while fewer > 0 && buckets - fewer <= 4096 {
        if micros.is_multiple_of(fewer as u128) {
            return Some(fewer);
        }
        fewer -= 1;
    }
    None
}
