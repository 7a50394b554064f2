//! Servers with TLS, and certificates for them and for their clients.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::server::{Server, free_port};
use super::unique_group;

/// Set where the servers to test with were built without TLS.
const WITHOUT: &str = "TASKRUNNER_TESTS_WITHOUT_TLS";

/// Whether there is TLS to test. If it is said that there is none, the test is passed over.
pub(crate) fn is_here() -> bool {
    std::env::var_os(WITHOUT).is_none_or(|value| value != "1")
}

/// A certificate authority.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

/// When a certificate is valid.
#[derive(Clone, Copy)]
pub(crate) enum Validity {
    Now,
    Past,
    Future,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, unique_group("authority"));
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        Self { issuer, dir: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The authority's certificate as a file.
    pub(crate) fn file(&self) -> PathBuf {
        self.write("ca.pem", &self.pem())
    }

    /// A certificate for these names and addresses, and its key.
    pub(crate) fn sign(&self, names: &[&str], validity: Validity) -> (String, String) {
        let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).expect("good names");
        match validity {
            Validity::Now => {}
            Validity::Past => params.not_after = date_time_ymd(2001, 2, 3),
            Validity::Future => params.not_before = date_time_ymd(3001, 2, 3),
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// The same as files.
    pub(crate) fn sign_files(&self, names: &[&str], validity: Validity) -> (PathBuf, PathBuf) {
        let (certificate, key) = self.sign(names, validity);
        (self.write("cert.pem", &certificate), self.write("key.pem", &key))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).expect("the directory is writable");
        path
    }
}

/// What a server is started with that listens for TLS only and talks to other servers so.
pub(crate) const ONLY_TLS: [&str; 4] = ["--port", "0", "--tls-replication", "yes"];

/// A server that also listens on a port for TLS. It asks for no client certificate unless it is told to.
pub(crate) struct TlsServer {
    pub(crate) server: Server,
    pub(crate) tls_port: u16,
}

impl TlsServer {
    /// A server that proves with a certificate of this authority to be `localhost` and `127.0.0.1`.
    pub(crate) fn start(authority: &Authority, args: &[&str]) -> Self {
        Self::named(authority, &["localhost", "127.0.0.1"], Validity::Now, args)
    }

    pub(crate) fn named(authority: &Authority, names: &[&str], validity: Validity, args: &[&str]) -> Self {
        Self::by(Server::with, authority, names, validity, args)
    }

    /// A sentinel with a configuration file of these lines. It has TLS only, and asks the servers over TLS.
    pub(crate) fn sentinel(authority: &Authority, lines: &str) -> Self {
        let args = [&ONLY_TLS[..], &["--sentinel"]].concat();
        let start = |args: &[&str]| Server::configured(lines, args);
        Self::by(start, authority, &["127.0.0.1"], Validity::Now, &args)
    }

    fn by(
        start: impl FnOnce(&[&str]) -> Server,
        authority: &Authority,
        names: &[&str],
        validity: Validity,
        args: &[&str],
    ) -> Self {
        let shown = |path: &Path| path.to_str().expect("a path of the harness").to_owned();
        let (certificate, key) = authority.sign_files(names, validity);
        let (ca, certificate, key) = (shown(&authority.file()), shown(&certificate), shown(&key));
        // Last comes what the caller says otherwise.
        let tls_port = free_port();
        let port = tls_port.to_string();
        let tls = [
            &["--tls-port", &port, "--tls-cert-file", &certificate, "--tls-key-file", &key][..],
            &["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"],
            args,
        ];
        Self { server: start(&tls.concat()), tls_port }
    }

    pub(crate) fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}/", self.tls_port)
    }
}
