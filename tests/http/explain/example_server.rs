//! The explanations of the example server.

use http::Method;
use serde_json::Value;
use support::example_server::ExampleServer;
use support::http_client::Connection;

#[tokio::test]
async fn explanations_agree_with_the_responses_and_charge_nothing() {
    let server = ExampleServer::start();
    let mut connection = Connection::open(server.address).await;
    let headers = [("x-user", "ann"), ("accept", "application/json")];
    // The bucket stays full until the first request, and refills slowly.
    let path = "/token-bucket?capacity=3&amount=1&interval=1000&cost=2";
    for (allowed, remaining, status) in [(true, 1, 200), (false, 1, 429)] {
        for _ in 0..3 {
            let explanation = connection.body(Method::GET, &format!("/explain{path}"), &headers).await;
            let explanation: Value = serde_json::from_str(&explanation).expect("JSON");
            let limit = &explanation["limits"][0];
            assert_eq!(limit["name"], "token-bucket");
            assert_eq!(limit["outcome"]["allowed"], allowed, "{explanation:#}");
            assert_eq!(limit["outcome"]["remaining"], remaining, "{explanation:#}");
            assert_eq!(limit["cost"], 2, "{explanation:#}");
        }
        assert_eq!(connection.get(path, &headers).await, status);
    }
}

#[tokio::test]
async fn explanations_have_the_costs_of_the_explained_route() {
    let server = ExampleServer::start();
    let mut connection = Connection::open(server.address).await;
    for (method, left) in [(Method::GET, 9), (Method::POST, 8)] {
        let explanation = connection.body(method, "/explain/user", &[]).await;
        let expected = format!("allowed, decided by the store (memory)\n  user: allowed, {left} of 10 left");
        assert!(explanation.starts_with(&expected), "{explanation}");
    }
    let explanation = connection.body(Method::GET, "/explain/friends", &[]).await;
    assert!(explanation.contains("  second: allowed") && explanation.contains("\n  day: allowed"), "{explanation}");
}
