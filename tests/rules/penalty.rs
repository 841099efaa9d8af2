//! Penalties in rules files.

use std::time::Duration;

use http::StatusCode;
use tower_ratelimit::{ManualClock, MemoryStore, Timestamp};

use crate::service::{Limited, from};

const SECOND: Duration = Duration::from_secs(1);

/// Returns the lengths of the first lockouts in seconds, under a limit of one per second with a penalty after two
/// denials. Each begins when the previous one has ended.
fn lockouts(penalty: &str) -> Vec<u64> {
    let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
    let yaml = format!(
        "
domain: shop
descriptors:
- key: remote_address
  rate_limit: {{ unit: second, requests_per_unit: 1, penalty: {penalty} }}
"
    );
    let limited = Limited::by(&yaml).store(MemoryStore::new().clock(clock.clone()));
    let denied = || limited.send(from("192.0.2.1")).status == StatusCode::TOO_MANY_REQUESTS;
    let denial = |_| {
        assert!(!denied() && denied(), "one a second");
        // From now on, the limit alone would deny for less than a second.
        assert!(denied());
        let mut seconds = 0;
        while denied() {
            clock.advance(SECOND);
            seconds += 1;
            assert!(seconds < 100, "{penalty}");
        }
        // The allowed request at the end of a lockout is not a denial.
        clock.advance(SECOND);
        assert!(limited.allows(from("192.0.2.2")));
        clock.advance(SECOND);
        seconds
    };
    (0..4).map(denial).collect()
}

#[test]
fn lockouts_last_as_long_as_the_file_says() {
    assert_eq!(lockouts("{ denials: 2, within: 7s }"), [7; 4]);
    assert_eq!(lockouts("{ denials: 2, within: 7s, locked_out_for: 3s }"), [3; 4]);
    assert_eq!(lockouts("{ denials: 2, within: 7s, locked_out_for: 3s, up_to: 10s }"), [3, 6, 10, 10]);
    assert_eq!(lockouts("{ denials: 2, within: 7s, locked_out_for: 3s, up_to: 10s, remembered_for: 1s }"), [3; 4]);
    assert_eq!(
        lockouts("{ denials: 2, within: 1s, locked_out_for: 3s, up_to: 10s, remembered_for: 1m }"),
        [3, 6, 10, 10]
    );
    // JSON is valid YAML.
    assert_eq!(lockouts(r#"{ "denials": 2, "within": "7s", "locked_out_for": "3s" }"#), [3; 4]);
}
