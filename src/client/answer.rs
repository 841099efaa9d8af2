//! Parses the limits in the headers of a response.

use std::time::{Duration, SystemTime};

use http::header::{AsHeaderName, DATE, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use httpdate::parse_http_date;
use sfv::{Item, List, ListEntry, Parser};

use crate::time::ceil_seconds;

/// The longest header that is read, in bytes.
const MAX_HEADER: usize = 4_096;

/// Values from here on are Unix times. Smaller ones are seconds from now.
const FIRST_UNIX_TIME: u64 = 1_000_000_000;

/// Values from here on are Unix times in milliseconds.
const FIRST_UNIX_MILLIS: u64 = 100_000_000_000;

/// The longest time of a quota in older headers: a year.
const LONGEST_RESET: Duration = Duration::from_secs(366 * 86_400);

/// The wait that a rejection asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wait {
    AtLeast(Duration),
    Unspecified,
    /// The call must not be repeated.
    Forever,
}

/// The remaining quota of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quota {
    pub(super) remaining: u64,
    /// The time for which this must last. Whole seconds, rounded up.
    pub(super) within: Duration,
    /// The size of the limit, if it is known.
    size: u64,
    /// The limit in calls per second, if it is known.
    pub(super) limit: Option<f64>,
}

/// The longest time over which calls are spread. What remains of a daily quota may be used sooner.
const LONGEST_SPREAD: f64 = 60.0;

impl Quota {
    /// Returns whether the time is long enough to be known approximately.
    pub(super) fn is_long(&self) -> bool {
        self.within >= Duration::from_secs(2)
    }

    /// Returns whether the calls that remain are known closely enough to act on them. A small bucket is empty after
    /// each call, and full again soon.
    pub(super) fn is_exact(&self) -> bool {
        self.is_long() || self.size >= 10
    }

    /// Returns the rate at which the quota lasts, in calls per second.
    pub(super) fn rate(&self) -> f64 {
        let seconds = self.within.as_secs_f64().min(LONGEST_SPREAD) - 0.5;
        let spread = if self.is_long() { self.remaining as f64 / seconds } else { f64::INFINITY };
        spread.min(self.limit.unwrap_or(f64::INFINITY))
    }
}

/// Returns the wait that a response asks for, if it is a rejection.
pub(super) fn rejection<R>(response: &Response<R>) -> Option<Wait> {
    let headers = response.headers();
    let is_exhausted = text(headers, "grpc-status") == Some("8");
    if is_exhausted && let Some(pushback) = headers.get("grpc-retry-pushback-ms") {
        let millis = pushback.to_str().ok().and_then(number);
        return Some(millis.map_or(Wait::Forever, |millis| Wait::AtLeast(Duration::from_millis(millis))));
    }
    if !is_exhausted && !matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let used_up = || quotas(headers).into_iter().filter(|quota| quota.remaining == 0).map(|quota| quota.within).max();
    Some(retry_after(headers).or_else(used_up).map_or(Wait::Unspecified, Wait::AtLeast))
}

/// Reads the quotas in the headers of a response.
pub(super) fn quotas(headers: &HeaderMap) -> Vec<Quota> {
    let policies = list(headers, "ratelimit-policy");
    let quota = |item: &Item| {
        let policy = policies.iter().find(|policy| policy.bare_item == item.bare_item);
        let size = policy.and_then(|policy| integer(policy, "q")).unwrap_or_default();
        let window = policy.and_then(|policy| integer(policy, "w")).map(|window| window as f64);
        let window = window.filter(|window| size > 0 && (1.0..=LONGEST_SPREAD).contains(window));
        Some(Quota {
            remaining: integer(item, "r")?,
            within: Duration::from_secs(integer(item, "t")?),
            size,
            limit: window.map(|window| size as f64 / window),
        })
    };
    let older = PREFIXES.iter().filter_map(|names| older_quota(headers, names));
    list(headers, "ratelimit").iter().filter_map(quota).chain(older).collect()
}

/// Reads a list (RFC 9651), which can have several lines. Ignores inner lists.
fn list(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let lines = || headers.get_all(name).iter().map(|line| line.as_bytes());
    if lines().map(<[u8]>::len).sum::<usize>() > MAX_HEADER {
        return Vec::new();
    }
    let list: List = Parser::new(&lines().collect::<Vec<_>>().join(&b", "[..])).parse().unwrap_or_default();
    let item = |entry| if let ListEntry::Item(item) = entry { Some(item) } else { None };
    list.into_iter().filter_map(item).collect()
}

/// Reads an integer or a decimal, which is rounded up.
fn integer(item: &Item, name: &str) -> Option<u64> {
    let value = item.params.get(name)?;
    let decimal = || Some(f64::from(value.as_decimal()?).ceil() as i64);
    u64::try_from(value.as_integer().map(i64::from).or_else(decimal)?).ok()
}

/// The names of a limit, of what remains of it, and of the time of more, before `RateLimit` had a single header.
const PREFIXES: [[&str; 3]; 3] = [
    ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
    ["x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"],
];

/// Reads the headers with these names.
fn older_quota(headers: &HeaderMap, [limit, remaining, reset]: &[&str; 3]) -> Option<Quota> {
    let unix_time = |since_epoch| Some(until(SystemTime::UNIX_EPOCH.checked_add(since_epoch)?, headers));
    let within = match number(text(headers, *reset)?)? {
        seconds @ ..FIRST_UNIX_TIME => Duration::from_secs(seconds),
        seconds @ ..FIRST_UNIX_MILLIS => unix_time(Duration::from_secs(seconds))?,
        millis => unix_time(Duration::from_millis(millis))?,
    };
    let size = text(headers, *limit).and_then(number).unwrap_or_default();
    let quota = Quota { remaining: number(text(headers, *remaining)?)?, within, size, limit: None };
    (within <= LONGEST_RESET).then_some(quota)
}

/// Reads `Retry-After`: of several lines, the longest.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let wait = |text: &str| {
        let seconds = number(text).map(Duration::from_secs);
        seconds.or_else(|| Some(until(parse_http_date(text.trim()).ok()?, headers)))
    };
    let lines = headers.get_all(RETRY_AFTER).iter().filter_map(|line| line.to_str().ok());
    // A proxy may have joined several lines by commas. Dates contain a comma, so only numbers can be told apart.
    lines.filter_map(|line| wait(line).or_else(|| line.split(',').filter_map(wait).max())).max()
}

/// Returns the time until an instant in whole seconds, rounded up: since the response was sent, if it has a `Date`,
/// since the clocks of client and server differ.
fn until(time: SystemTime, headers: &HeaderMap) -> Duration {
    let sent = text(headers, DATE).and_then(|date| parse_http_date(date).ok());
    let span = time.duration_since(sent.unwrap_or_else(SystemTime::now)).unwrap_or_default();
    Duration::from_secs(ceil_seconds(span))
}

fn text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    Some(headers.get(name)?.to_str().ok()?.trim())
}

/// Reads digits. A number that is too large is the largest, and a decimal is rounded up.
fn number(text: &str) -> Option<u64> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let more = u64::from(fraction.bytes().any(|digit| digit != b'0'));
    (are_digits(whole) && are_digits(fraction)).then(|| whole.parse().unwrap_or(u64::MAX).saturating_add(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATES: [&str; 3] =
        ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"];

    fn wait(status: u16, headers: &[(&str, &str)]) -> Option<Wait> {
        let response = headers
            .iter()
            .fold(Response::builder().status(status), |response, (name, value)| response.header(*name, *value));
        rejection(&response.body(()).unwrap())
    }

    fn seconds(seconds: u64) -> Option<Wait> {
        Some(Wait::AtLeast(Duration::from_secs(seconds)))
    }

    #[test]
    fn each_form_of_a_wait_is_read() {
        assert_eq!(wait(429, &[("retry-after", "7")]), seconds(7));
        assert_eq!(wait(503, &[("retry-after", "7")]), seconds(7));
        assert_eq!(wait(500, &[("retry-after", "7")]), None);
        for date in DATES {
            assert_eq!(wait(429, &[("retry-after", date), ("date", "Sun, 06 Nov 1994 08:49:30 GMT")]), seconds(7));
            assert_eq!(wait(429, &[("retry-after", date)]), seconds(0), "in the past");
        }
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        let Some(Wait::AtLeast(wait_for_date)) = wait(429, &[("retry-after", &soon)]) else { panic!("a wait") };
        assert!((90..=100).contains(&wait_for_date.as_secs()));
        assert_eq!(wait(429, &[("ratelimit", r#""a";r=0;t=5, "b";r=0;t=9, "c";r=3;t=99"#)]), seconds(9));
        assert_eq!(wait(429, &[("ratelimit", r#""a";r=1;t=5"#)]), Some(Wait::Unspecified));
        assert_eq!(wait(429, &[("retry-after", "2"), ("ratelimit", r#""a";r=0;t=5"#)]), seconds(2));
        assert_eq!(wait(429, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "3")]), seconds(3));
        let reset = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000005")];
        let date = ("date", "Fri, 15 Jan 2027 08:00:00 GMT");
        assert_eq!(wait(429, &[reset[0], reset[1], date]), seconds(5));
        assert_eq!(wait(429, &[reset[0], ("x-ratelimit-reset", "1800000004500"), date]), seconds(5));
        for (name, value) in [("retry-after", "9.5"), ("retry-after", "3, 10"), ("ratelimit", r#""a";r=0;t=9.5"#)] {
            assert_eq!(wait(429, &[(name, value)]), seconds(10), "{name}: {value}");
        }
        assert_eq!(wait(429, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "10")]), seconds(10));
        assert_eq!(wait(429, &[("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "10")]), seconds(10));
    }

    #[test]
    fn grpc_rejections_are_read_from_the_headers() {
        let pushback = |millis| wait(200, &[("grpc-status", "8"), ("grpc-retry-pushback-ms", millis)]);
        assert_eq!(pushback("1500"), Some(Wait::AtLeast(Duration::from_millis(1_500))));
        for invalid in ["-1", "soon", "", "1.x"] {
            assert_eq!(pushback(invalid), Some(Wait::Forever), "{invalid}");
        }
        assert_eq!(wait(200, &[("grpc-status", "8")]), Some(Wait::Unspecified));
        assert_eq!(wait(200, &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "1500")]), None);
    }

    #[test]
    fn hostile_headers_are_ignored_or_have_a_long_wait() {
        for invalid in ["-1", "NaN", "1e9", "inf", "", "1.", ".5", "1.5.0", "Mon, 99 Foo 1994 99:99:99 GMT", "0x10"] {
            assert_eq!(wait(429, &[("retry-after", invalid)]), Some(Wait::Unspecified), "{invalid}");
        }
        let huge = "9".repeat(1_000);
        assert_eq!(wait(429, &[("retry-after", &huge)]), seconds(u64::MAX));
        let Some(Wait::AtLeast(far)) = wait(429, &[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")]) else { panic!() };
        assert!(far > Duration::from_secs(200_000_000_000));
        for reset in [&huge, "99999999999", "999999999"] {
            let headers = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset)];
            assert_eq!(wait(429, &headers), Some(Wait::Unspecified), "{reset}");
        }
        let list = vec![r#""a";r=0;t=5"#; 5_000].join(", ");
        assert_eq!(wait(429, &[("ratelimit", &list)]), Some(Wait::Unspecified));
        for invalid in
            [r#""a";r=-1;t=5"#, r#""a";r=0;t=-5"#, r#""a";r=0.5;t=5"#, "((((", r#""a";r=99999999999999999;t=1"#]
        {
            assert_eq!(wait(429, &[("ratelimit", invalid)]), Some(Wait::Unspecified), "{invalid}");
        }
    }
}
