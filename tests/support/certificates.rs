//! A certificate authority for a test, and servers with its certificates.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::redis_server::{Folder, RedisServer};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The certificate of the authority.
    pub pem: String,
    folder: Folder,
}

/// A certificate and its key, in PEM.
pub struct Certificate {
    pub pem: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("names");
        // The name is random, because authorities with the same name differ only in their signatures.
        let folder = Folder::new();
        params.distinguished_name.push(DnType::CommonName, folder.path().display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem, folder }
    }

    /// Creates a certificate for a name or an address.
    pub fn certify(&self, name: &str) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        // A certificate with the name of its authority would be taken for the authority's own.
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Certificate { pem, key: key.serialize_pem() }
    }

    /// Starts a server that only accepts TLS, at [`url`], with a certificate for 127.0.0.1. It requests client
    /// certificates if configured to.
    pub fn server(&self, asks_clients: bool) -> RedisServer {
        let Certificate { pem, key } = self.certify("127.0.0.1");
        let files = [
            ("--tls-cert-file", "cert.pem", &pem),
            ("--tls-key-file", "key.pem", &key),
            ("--tls-ca-cert-file", "ca.pem", &self.pem),
        ];
        RedisServer::start_by(|port| {
            let mut args = vec!["--port".to_owned(), "0".to_owned(), "--tls-port".to_owned(), port.to_string()];
            for (arg, name, text) in files {
                args.extend([arg.to_owned(), self.folder.write(&format!("{port}-{name}"), text)]);
            }
            args.extend(["--tls-auth-clients".to_owned(), if asks_clients { "yes" } else { "no" }.to_owned()]);
            args
        })
    }
}

/// Returns the URL of a server with TLS.
pub fn url(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}", server.port())
}
