//! An authority of a test's own, and servers that have certificates of it.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::redis_server::{Folder, RedisServer};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
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
        // Two of one name would pass for each other, up to their signatures.
        let folder = Folder::new();
        params.distinguished_name.push(DnType::CommonName, folder.path().display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem, folder }
    }

    /// A certificate for a name, or for an address.
    pub fn certify(&self, name: &str) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        // One named like its authority would pass for its own.
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Certificate { pem, key: key.serialize_pem() }
    }

    /// A server that speaks TLS alone, at [`url`], with a certificate for 127.0.0.1; one that asks
    /// clients for a certificate if told so.
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

/// Where a server that speaks TLS is.
pub fn url(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}", server.port())
}
