//! Settings: defaults, and mistakes that end the program at its start.

use std::process::Output;

use support::redis_server::Folder;

use crate::program::{Program, command};

fn output(arguments: &[&str]) -> Output {
    command().args(arguments).output().expect("the program runs")
}

/// Returns what a start that fails writes.
#[track_caller]
fn failure(arguments: &[&str]) -> String {
    // Never a port of another process.
    let output = output(&[arguments, &["--listen-admin", "127.0.0.1:0"]].concat());
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success(), "{arguments:?}: {text}");
    text
}

#[test]
fn mistakes_name_the_value_and_the_remedy() {
    let folder = Folder::new();
    let shop = folder.write("shop.yaml", "domain: shop");
    let same = folder.write("same.yaml", "domain: shop");
    let broken = folder.write("broken.yaml", "domain: shop\ndescriptors:\n- key: remote_adress\n");
    let tenant = folder.write("tenant.yaml", "domain: shop\ndescriptors:\n- key: tenant\n");
    let nameless = folder.write("nameless.yaml", "descriptors: []");
    let two = format!("{shop},{same}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = listener.local_addr().expect("an address").to_string();
    for (arguments, expected) in [
        (&["--rules", "/missing.yaml"][..], &["--rules /missing.yaml can't be read"][..]),
        (
            &["--rules", &broken],
            &["broken.yaml:3:8: no extractor is called `remote_adress`: did you mean `remote_address`?"],
        ),
        (&["--rules", &tenant], &["tenant.yaml:3:8: no extractor is called `tenant`", "--descriptor-keys"]),
        (&["--rules", &nameless], &["nameless.yaml: 1:1: the domain is missing: write `domain: shop`"]),
        (&["--rules", &two], &["shop.yaml and ", "same.yaml both have the domain \"shop\": merge them, or rename one"]),
        (&["--trusted-proxies", "0.0.0.0/0"], &["--trusted-proxies", "cover all of IPv4"]),
        (
            &["--trusted-proxies", "10.0.0.1/8"],
            &["--trusted-proxies: the network \"10.0.0.1/8\"", "write \"10.0.0.0/8\""],
        ),
        (&["--redis", "redis://a,redis://b"], &["--redis has 2 URLs: give one, or add --redis-cluster"]),
        (&["--redis", "http://127.0.0.1"], &["--redis: "]),
        (&["--redis", "redis://127.0.0.1:1"], &["--redis: "]),
        (&["--redis", "rediss://127.0.0.1", "--redis-ca", "/missing.pem"], &["--redis-ca /missing.pem can't be read"]),
        (&["--redis-cluster"], &["--redis <URL>"]),
        (&["--redis", "redis://a", "--redis-cluster", "--redis-sentinel", "m"], &["cannot be used with"]),
        (&["--redis", "redis://a", "--secret", "abc"], &["write 32 hexadecimal digits"]),
        (&["--redis", "redis://a", "--secret", "+0000000000000000000000000000001"], &["write 32 hexadecimal digits"]),
        (&["--publish-rules"], &["--redis <URL>", "--rules <FILE>"]),
        (&["--redis", "redis://a", "--redis-user", "ann"], &["--redis-password <PASSWORD>"]),
        (&["--follow-rules"], &["--redis <URL>"]),
        (&["--deadline-ms", "0"], &["deadline"]),
        (&["--max-keys", "0"], &["--max-keys <NUMBER>"]),
        (&["--near-limit", "0"], &["near_limit"]),
        (&["--processes", "0"], &["0"]),
        (&["--on-store-error", "deny"], &["possible values: reject, allow, decide-locally"]),
        (&["--listen", "8080"], &["--listen <ADDRESS>"]),
        (&["--listen", &taken], &["--listen 127.0.0.1:", "in use", "a port that is free"]),
    ] {
        let text = failure(arguments);
        for part in expected {
            assert!(text.contains(part), "{arguments:?} lack {part:?}:\n{text}");
        }
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[test]
fn environment_variables_are_settings() {
    let output = command().env("RATELIMIT_RULES", "/missing.yaml").output().expect("the program runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/missing.yaml"));
    let mut command = command();
    let output = command.args(["--redis", "redis://a"]).env("RATELIMIT_REDIS_USER", "ann").output();
    let output = output.expect("the program runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--redis-password"), "{output:?}");
}

#[test]
fn every_setting_has_an_environment_variable() {
    let help = String::from_utf8(output(&["--help"]).stdout).expect("text");
    let settings: Vec<&str> = help.split("\n      --").skip(1).collect();
    assert!(settings.len() > 20, "{help}");
    for setting in settings {
        let name = setting.split_whitespace().next().expect("a name");
        let variable = format!("[env: RATELIMIT_{}", name.replace('-', "_").to_uppercase());
        let is_command = ["print-rules", "publish-rules"].contains(&name);
        // A variable whose value is hidden has no `=`.
        let is_shown = ["=", "]"].iter().any(|end| setting.contains(&format!("{variable}{end}")));
        assert!(is_command || is_shown, "no {variable} in {setting}");
    }
}

#[tokio::test]
async fn printed_rules_are_those_without_a_file() {
    let printed = String::from_utf8(output(&["--print-rules"]).stdout).expect("text");
    assert!(printed.contains("# "), "no comments in {printed}");
    for program in [Program::start(&[]), Program::with_rules(&printed, &[])] {
        let headers = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login"), ("x-forwarded-for", "192.0.2.1")];
        let answer = program.get("/auth/default", &headers).await;
        assert_eq!(answer.header("ratelimit-policy"), Some("\"burst\";q=20;w=2, \"login\";q=5;w=900"));
    }
}

#[tokio::test]
async fn shadow_mode_denies_nothing() {
    let rules =
        "domain: test\ndescriptors: [{ key: remote_address, rate_limit: { unit: year, requests_per_unit: 1 } }]";
    let program = Program::with_rules(rules, &["--shadow"]);
    for _ in 0..3 {
        assert_eq!(program.auth("GET", "/", "192.0.2.1", &[]).await.status, 200);
    }
    let denied = "limit=\"test.remote_address\",outcome=\"shadow_denied\",decided_by=\"memory\"";
    let denied = format!("ratelimit_decisions_total{{domain=\"test\",{denied}}}");
    assert_eq!(program.metric(&denied).await, 2.0);
}
