//! Servers with TLS, and certificates of a private authority.

use tower_ratelimit::RedisConfig;

#[cfg(target_os = "linux")]
use crate::connections::sockets::all_send_at_once;
use crate::connections::{charge, limiter, resume};
use support::certificates::{Authority, Certificate, url};
use support::patient::{Patient, connected};
use support::redis_server::{Folder, RedisServer};
use support::sentinel::{MASTER, NEVER};

#[tokio::test]
async fn a_server_is_trusted_only_by_the_configured_authority() {
    let authority = Authority::new();
    let mut server = authority.server(false);
    let config = RedisConfig::node(url(&server)).patient();
    let limiter =
        limiter(config.clone().ca_certificates(&*authority.pem).connect().await.expect("a connection")).build();
    assert_eq!(charge(&limiter).await, 1);
    #[cfg(target_os = "linux")]
    all_send_at_once(server.port());
    server.restart();
    resume(&limiter).await;

    let another = Authority::new();
    let unknown = "an unknown authority: set `RedisConfig::ca_certificates`";
    let error = config.clone().ca_certificates(&*another.pem).connect().await.expect_err("not trusted").to_string();
    assert!(error.contains("UnknownIssuer") && error.contains(unknown), "{error}");
    let error = config.connect().await.expect_err("the system does not trust it").to_string();
    assert!(error.contains("UnknownIssuer") && error.contains(unknown), "{error}");
    let named = RedisConfig::node(format!("rediss://localhost:{}", server.port())).patient();
    let error = named.ca_certificates(&*authority.pem).connect().await.expect_err("another name").to_string();
    assert!(error.contains("not valid for name") && error.contains("check its names"), "{error}");
}

#[tokio::test]
async fn a_client_without_tls_is_named_in_the_error() {
    let server = Authority::new().server(false);
    let plain = RedisConfig::node(format!("redis://127.0.0.1:{}", server.port())).patient();
    let error = plain.connect().await.expect_err("no TLS").to_string();
    assert!(error.contains("both ends speak TLS or neither"), "{error}");
}

/// redis-rs ignores this unless it is built with a feature that accepts any certificate.
#[tokio::test]
async fn a_url_that_turns_verification_off_is_no_way_around_it() {
    let server = Authority::new().server(false);
    let config = RedisConfig::node(format!("{}/#insecure", url(&server))).patient();
    let error = config.connect().await.expect_err("not trusted").to_string();
    assert!(error.contains("insecure"), "{error}");
}

#[tokio::test]
async fn the_client_certificate_is_presented_on_request() {
    let authority = Authority::new();
    let server = authority.server(true);
    let config = RedisConfig::node(url(&server)).patient().ca_certificates(&*authority.pem);
    let error = config.clone().connect().await.expect_err("no certificate").to_string();
    assert!(error.contains("set `RedisConfig::client_certificate`"), "{error}");
    let Certificate { pem, key } = authority.certify("client");
    let store = config.clone().client_certificate(&*pem, &*key).connect().await.expect("a connection");
    assert_eq!(charge(&limiter(store).build()).await, 1);
    let (renewed_pem, renewed_key) = (pem.clone(), key.clone());
    let renewed = config.clone().before_connect(move |config| {
        let certified = config.client_certificate(&*renewed_pem, &*renewed_key);
        async { Ok(certified) }
    });
    assert_eq!(charge(&limiter(renewed.connect().await.expect("a connection")).build()).await, 2);
    let config = config.client_certificate(&*pem, &*key);
    assert!(!format!("{config:?}").contains("PRIVATE"), "{config:?}");
}

#[tokio::test]
async fn a_server_without_tls_is_named_in_the_error() {
    let server = RedisServer::start();
    let authority = Authority::new();
    let config = RedisConfig::node(url(&server)).ca_certificates(&*authority.pem);
    let error = config.connect().await.expect_err("no TLS");
    assert!(format!("{error:?}").contains("both ends speak TLS or neither"), "{error:?}");
}

/// Sentinels with TLS, and Sentinels without TLS whose master has it.
#[tokio::test]
async fn masters_named_by_sentinel_are_trusted_only_by_the_configured_authority() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let master = authority.server(false);
    let Certificate { pem, key } = authority.certify("127.0.0.1");
    let files = [("cert", &pem), ("key", &key), ("ca-cert", &authority.pem)];
    let files = files.map(|(what, text)| format!("tls-{what}-file {}\n", folder.write(what, text)));
    let sentinel = |ports: &str| {
        RedisServer::start_by(|port| {
            let text = format!(
                "{}\nbind 127.0.0.1\ndir {}\n{}tls-replication yes\ntls-auth-clients no\n\
                 sentinel monitor {MASTER} 127.0.0.1 {} 1\nsentinel down-after-milliseconds {MASTER} {NEVER}\n",
                ports.replace("PORT", &port.to_string()),
                folder.path().display(),
                files.concat(),
                master.port()
            );
            vec![folder.write(&format!("{port}.conf"), text), "--sentinel".to_owned()]
        })
    };
    let (plain, secure) = (sentinel("port PORT"), sentinel("port 0\ntls-port PORT"));
    for config in
        [RedisConfig::sentinel(MASTER, [plain.url()]).master_tls(true), RedisConfig::sentinel(MASTER, [url(&secure)])]
    {
        let config = config.patient();
        let store = connected(config.clone().ca_certificates(&*authority.pem)).await;
        assert!(charge(&limiter(store.clone()).build()).await > 0);
        #[cfg(target_os = "linux")]
        all_send_at_once(master.port());
        let another = Authority::new();
        let error = config.ca_certificates(&*another.pem).connect().await.expect_err("not trusted");
        assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
    }
}

#[test]
fn unusable_certificates_are_errors() {
    let authority = Authority::new();
    let rejected = |config: RedisConfig| format!("{:?}", config.connect_lazily().expect_err("rejected"));
    let text = rejected(RedisConfig::node("redis://127.0.0.1").ca_certificates(&*authority.pem));
    assert!(text.contains("write rediss://"), "{text}");
    let text = rejected(RedisConfig::node("rediss://127.0.0.1").ca_certificates("a path?"));
    assert!(text.contains("ca_certificates holds no certificate"), "{text}");
    let text = rejected(RedisConfig::node("rediss://127.0.0.1").client_certificate(&*authority.pem, "no key"));
    assert!(text.contains("private key"), "{text}");
    let text = rejected(RedisConfig::sentinel("limits", ["rediss://127.0.0.1"]).ca_certificates("-----"));
    assert!(text.contains("ca_certificates holds no certificate"), "{text}");
}
