//! Servers that speak TLS, with certificates of an authority of our own.

use tower_ratelimit::RedisConfig;

use crate::certificates::{Authority, Certificate, url};
use crate::patient::Patient;
use crate::redis_server::RedisServer;
use crate::{charge, limiter, resume};

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_alone() {
    let authority = Authority::new();
    let mut server = authority.server(false);
    let config = RedisConfig::node(url(&server)).patient();
    let limiter = limiter(config.clone().ca_certificates(&*authority.pem).connect().await.expect("a connection"));
    assert_eq!(charge(&limiter).await, 1);
    server.restart();
    resume(&limiter).await;

    let another = Authority::new();
    let error = config.clone().ca_certificates(&*another.pem).connect().await.expect_err("not trusted");
    assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
    let error = config.connect().await.expect_err("the system does not trust it");
    assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
    let named = RedisConfig::node(format!("rediss://localhost:{}", server.port())).patient();
    let error = named.ca_certificates(&*authority.pem).connect().await.expect_err("another name");
    assert!(format!("{error:?}").contains("not valid for name"), "{error:?}");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_is_shown_ours() {
    let authority = Authority::new();
    let server = authority.server(true);
    let config = RedisConfig::node(url(&server)).patient().ca_certificates(&*authority.pem);
    let error = config.clone().connect().await.expect_err("no certificate");
    assert!(format!("{error:?}").contains("can't be reached"), "{error:?}");
    let Certificate { pem, key } = authority.certify("client");
    let store = config.clone().client_certificate(&*pem, &*key).connect().await.expect("a connection");
    assert_eq!(charge(&limiter(store)).await, 1);
    let config = config.client_certificate(&*pem, &*key);
    assert!(!format!("{config:?}").contains("PRIVATE"), "{config:?}");
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_told_as_such() {
    let server = RedisServer::start();
    let authority = Authority::new();
    let config = RedisConfig::node(url(&server)).ca_certificates(&*authority.pem);
    let error = config.connect().await.expect_err("no TLS");
    assert!(format!("{error:?}").contains("both ends speak TLS or neither"), "{error:?}");
}

#[test]
fn certificates_of_no_use_are_refused() {
    let authority = Authority::new();
    let refused = |config: RedisConfig| format!("{:?}", config.connect_lazily().expect_err("refused"));
    let text = refused(RedisConfig::node("redis://127.0.0.1").ca_certificates(&*authority.pem));
    assert!(text.contains("write rediss://"), "{text}");
    let text = refused(RedisConfig::node("rediss://127.0.0.1").ca_certificates("a path?"));
    assert!(text.contains("ca_certificates holds no certificate"), "{text}");
    let text = refused(RedisConfig::node("rediss://127.0.0.1").client_certificate(&*authority.pem, "no key"));
    assert!(text.contains("private key"), "{text}");
    let text = refused(RedisConfig::sentinel("limits", ["rediss://127.0.0.1"]).ca_certificates("-----"));
    assert!(text.contains("ca_certificates holds no certificate"), "{text}");
}
