//! The metrics of the example server.

use std::collections::{BTreeMap, BTreeSet};

use support::example_server::ExampleServer;
use support::http_client::{Connection, get};
use support::split_mix::Random;

use crate::prometheus::promtool;

/// Returns the values of the series of a metric, by their labels.
fn series(text: &str, metric: &str) -> BTreeMap<String, f64> {
    let series = text.lines().filter_map(|line| line.strip_prefix(metric)?.rsplit_once(' '));
    let labelled = series.filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'));
    labelled.map(|(labels, value)| (labels.to_owned(), value.parse().expect("a number"))).collect()
}

fn names(text: &str) -> BTreeSet<&str> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect()
}

#[tokio::test]
async fn metrics_agree_with_the_responses_to_10_000_requests() {
    const ROUTES: [&str; 4] = ["fixed-window", "sliding-log", "token-bucket", "leaky-bucket"];
    let server = ExampleServer::start();
    let mut connection = Connection::open(server.address).await;
    let mut random = Random(2_026);
    let mut expected = BTreeMap::<String, f64>::new();
    let mut tokens = BTreeMap::<String, f64>::new();
    let mut before = String::new();
    for request in 0..10_000 {
        // One of each combination comes first, so that all series exist early.
        let route = if request < 8 { ROUTES[request / 2] } else { random.one_of(&ROUTES) };
        let cost = if request < 8 { 1 + 19 * (request as u64 % 2) } else { 1 + random.below(12) };
        let user = format!("user-{request}");
        let path = format!("/{route}?cost={cost}");
        let outcome = match connection.get(&path, &[("x-user", &user)]).await {
            200 => "allowed",
            429 => "denied",
            status => panic!("{path}: {status}"),
        };
        let labels = format!(r#"{{limit="{route}",outcome="{outcome}",decided_by="memory"}}"#);
        *expected.entry(labels).or_default() += 1.0;
        if outcome == "allowed" {
            *tokens.entry(format!(r#"{{limit="{route}"}}"#)).or_default() += cost as f64;
        }
        if request == 100 {
            before = get(server.address, "/metrics").await.expect("metrics");
        }
    }
    let after = get(server.address, "/metrics").await.expect("metrics");
    assert_eq!(expected.len(), 8, "each route allowed and denied: {expected:#?}");
    // Other limits of the server have decided nothing.
    let used =
        |metric| series(&after, metric).into_iter().filter(|(_, value)| *value > 0.0).collect::<BTreeMap<_, _>>();
    assert_eq!(used("ratelimit_decisions_total"), expected);
    assert_eq!(used("ratelimit_tokens_total"), tokens);
    assert_eq!(names(&after), names(&before), "the number of series does not depend on the number of keys");
    assert_eq!(promtool(&["check", "metrics"], &after), Ok(()));
}
