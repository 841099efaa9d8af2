//! Rules that change: of files under load, and in Redis.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::redis_server::{Folder, RedisServer};

use crate::program::{Program, command, wait_until};

fn rules(domain: &str, limit: u32) -> String {
    let limit = format!("{{ name: a, unit: year, requests_per_unit: {limit} }}");
    format!("domain: {domain}\ndescriptors: [{{ key: remote_address, rate_limit: {limit} }}]")
}

async fn policy(program: &Program) -> String {
    let answer = program.auth("GET", "/", "192.0.2.1", &[]).await;
    answer.header("ratelimit-policy").unwrap_or_default().to_owned()
}

async fn wait_for_limit(program: &Program, limit: u32) {
    let expected = format!("\"a\";q={limit};w=31536000");
    wait_until("the rules apply", async || policy(program).await == expected).await;
}

#[tokio::test]
async fn reloads_lose_no_answer_and_invalid_files_keep_the_rules() {
    let program = Program::with_rules(&rules("test", 1_000_000), &[]);
    let (is_done, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = async {
        while !is_done.load(Ordering::Relaxed) {
            assert_eq!(program.auth("GET", "/", "192.0.2.2", &[]).await.status, 200);
            answers.fetch_add(1, Ordering::Relaxed);
        }
    };
    let reload = async {
        for limit in [2_000_000, 3_000_000] {
            program.replace_rules(&rules("test", limit));
            wait_for_limit(&program, limit).await;
        }
        for (count, (broken, message)) in
            [("domain: test\ndescriptors: 5", "2:14: "), (&*rules("other", 5), "is expected: write `domain: test`")]
                .into_iter()
                .enumerate()
        {
            program.replace_rules(broken);
            wait_until("the mistake is logged", async || program.log().contains(message)).await;
            let rejected = program.metric("ratelimit_rules_loads_total{domain=\"test\",result=\"rejected\"}").await;
            assert_eq!(rejected, (count + 1) as f64);
            assert_eq!(policy(&program).await, "\"a\";q=3000000;w=31536000");
        }
        program.replace_rules(&rules("test", 4_000_000));
        wait_for_limit(&program, 4_000_000).await;
        assert_eq!(program.metric("ratelimit_rules_loads_total{domain=\"test\",result=\"applied\"}").await, 3.0);
        is_done.store(true, Ordering::Relaxed);
    };
    tokio::join!(load, reload);
    assert!(answers.load(Ordering::Relaxed) > 100, "{answers:?}");
}

#[tokio::test]
async fn domains_share_nothing() {
    let (redis, folder) = (RedisServer::start(), Folder::new());
    let files = ["test", "other"].map(|domain| folder.write(&format!("{domain}.yaml"), rules(domain, 1)));
    let files = files.join(",");
    for more in [&[][..], &["--redis", &redis.url(), "--deadline-ms", "5000"]] {
        let program = Program::start(&[&["--rules", &files], more].concat());
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-forwarded-for", "192.0.2.1")];
        for path in ["/auth/test", "/auth/other"] {
            let answers = [program.get(path, &headers).await.status, program.get(path, &headers).await.status];
            assert_eq!(answers.map(|status| status.as_u16()), [200, 429], "{path}");
        }
    }
}

#[tokio::test]
async fn rules_in_redis_are_followed() {
    let (redis, folder) = (RedisServer::start(), Folder::new());
    let url = redis.url();
    let program = Program::with_rules(&rules("test", 5), &["--redis", &url, "--follow-rules", "--deadline-ms", "5000"]);
    wait_for_limit(&program, 5).await;
    let publish = |text: &str| {
        let file = folder.write("published.yaml", text);
        command().args(["--redis", &url, "--publish-rules", "--rules", &file]).output().expect("the program runs")
    };
    assert!(publish(&rules("test", 7)).status.success());
    wait_for_limit(&program, 7).await;
    let rejected = publish("domain: test\ndescriptors: 5");
    assert!(!rejected.status.success());
    assert!(String::from_utf8_lossy(&rejected.stderr).contains("published.yaml:2:14: "), "{rejected:?}");
    assert!(publish(&rules("other", 9)).status.success());
    tokio::time::sleep(Duration::from_secs(2)).await;
    wait_for_limit(&program, 7).await;
}
