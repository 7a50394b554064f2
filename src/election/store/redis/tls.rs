//! TLS: what a connection is encrypted with, and whom it trusts.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, crypto::ring,
};

use super::frame::Inbox;
use super::wire::Broken;
use crate::election::error::Error;

/// How connections are encrypted: whose certificates are trusted, and which one is shown.
///
/// The default trusts the certificate authorities that the system trusts, read at the first connection on a thread
/// of its own, and shows no certificate. TLS 1.3 and 1.2 are spoken, and the server's certificate is checked at each
/// connection.
///
/// # Examples
///
/// ```no_run
/// use taskrunner::election::{RedisStore, Tls};
///
/// let tls = Tls::default()
///     .with_ca(std::fs::read("ca.pem")?)?
///     .with_client_certificate(std::fs::read("client.pem")?, std::fs::read("client.key")?)?;
/// let store = RedisStore::open("rediss://leases.internal")?.with_tls(tls);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    /// Trusted in the place of the system's, if there are any.
    authorities: Vec<CertificateDer<'static>>,
    client: Option<Arc<SingleCertAndKey>>,
    /// Made at the first connection, and shared by the clones.
    config: Arc<OnceLock<Arc<ClientConfig>>>,
}

impl Tls {
    /// Trusts the certificate authorities of this PEM text, and those of the system no more.
    ///
    /// Called again, it adds to them.
    ///
    /// # Errors
    ///
    /// A [`Configuration`](crate::election::ErrorKind::Configuration) error if there is no certificate in it,
    /// or one that cannot be read.
    pub fn with_ca(mut self, pem: impl AsRef<[u8]>) -> Result<Self, Error> {
        const WHAT: &str = "the certificate authority";
        let certificates = certificates(pem.as_ref(), WHAT)?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|error| unusable(WHAT, &error))?;
        }
        self.authorities.extend(certificates);
        self.config = Arc::default();
        Ok(self)
    }

    /// Shows this certificate to servers that ask for one: its chain and its private key, both as PEM text.
    ///
    /// # Errors
    ///
    /// A [`Configuration`](crate::election::ErrorKind::Configuration) error if one of them is missing or cannot be
    /// read (a key that is protected by a password cannot), or if the key is not the certificate's. It repeats
    /// nothing of the key.
    pub fn with_client_certificate(
        mut self,
        certificate_pem: impl AsRef<[u8]>,
        key_pem: impl AsRef<[u8]>,
    ) -> Result<Self, Error> {
        const WHAT: &str = "the client certificate";
        let chain = certificates(certificate_pem.as_ref(), WHAT)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_ref()).map_err(|error| match error {
            pem::Error::NoItemsFound => Error::options(
                "the client certificate's key has no private key in PEM, or one that is protected by a password",
            ),
            error => unusable("the client certificate's key", &of_pem(&error)),
        })?;
        let certified =
            CertifiedKey::from_der(chain, key, &provider()).map_err(|error| unusable(WHAT, &error))?;
        self.client = Some(Arc::new(certified.into()));
        self.config = Arc::default();
        Ok(self)
    }

    /// The beginning of a connection to the server that the user calls so, once it [is loaded](Self::is_loaded).
    pub(super) fn tunnel(&self, host: &str) -> Result<Tunnel, Broken> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Broken::Misconfigured(format!("{host:?} is no name that a certificate can have")))?;
        let config = self.config().map_err(Broken::Misconfigured)?;
        let connection = ClientConnection::new(config, name).map_err(broken)?;
        Ok(Tunnel { connection, is_closed: false })
    }

    /// Whether a connection can begin without a look at what the system trusts.
    pub(super) fn is_loaded(&self) -> bool {
        !self.authorities.is_empty() || self.config.get().is_some()
    }

    /// Reads what the system trusts, which takes as long as its files do. An error says what to put right.
    pub(super) fn load(&self) -> Result<(), String> {
        self.config().map(drop)
    }

    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has both versions")
            .with_root_certificates(self.roots()?);
        let mut config = match &self.client {
            Some(client) => config.with_client_cert_resolver(Arc::clone(client) as _),
            None => config.with_no_client_auth(),
        };
        // Connections last, so little is saved by one that is resumed without a look at the certificate.
        config.resumption = Resumption::disabled();
        Ok(Arc::clone(self.config.get_or_init(|| Arc::new(config))))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        if !self.authorities.is_empty() {
            roots.add_parsable_certificates(self.authorities.iter().cloned());
            return Ok(roots);
        }
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let errors = found.errors.iter().map(|error| format!(": {error}")).collect::<String>();
            return Err(format!(
                "this system has no certificate authorities (install them, or name one by Tls::with_ca){errors}"
            ));
        }
        Ok(roots)
    }
}

/// Without what it holds: of a key nothing is shown.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.authorities.len())
            .field("client_certificate", &self.client.is_some())
            .finish_non_exhaustive()
    }
}

/// Named at each use: the process may have no default, or another library's.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(Error::options(format!("{what} has no certificate in PEM"))),
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(what, &of_pem(&error))),
    }
}

/// What is wrong with a PEM text, in our words: the error itself holds lines of the text, which may be a key's.
fn of_pem(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins a section is none: if the lines were joined, keep the line ends"
        }
        pem::Error::MissingSectionEnd { .. } => {
            "a section does not end: if the lines were joined, keep the line ends"
        }
        pem::Error::Base64Decode(_) => "a section is not in Base64",
        pem::Error::SectionTooLarge => "a section is too large",
        _ => "it is not in PEM",
    }
}

fn unusable(what: &str, error: &dyn fmt::Display) -> Error {
    Error::options(format!("{what} cannot be used: {error}"))
}

/// One connection's encryption. It does no I/O: bytes go in on one side and come out on the other.
pub(super) struct Tunnel {
    connection: ClientConnection,
    is_closed: bool,
}

impl Tunnel {
    /// As many bytes as go into one record.
    pub(super) const RECORD: usize = 16 * 1024;

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Whether the server said that nothing comes any more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Encrypts no more than a [`RECORD`](Self::RECORD), which comes out of [`outgoing`](Self::outgoing).
    pub(super) fn seal(&mut self, plain: &[u8]) {
        self.connection.writer().write_all(plain).expect("one record fits into the empty buffer");
    }

    /// What is to be sent, taken out.
    pub(super) fn outgoing(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut bytes).expect("a vector takes what is written to it");
        }
        bytes
    }

    /// Decrypts what came into the inbox.
    pub(super) fn open(&mut self, mut sealed: &[u8], inbox: &mut Inbox) -> Result<(), Broken> {
        while !sealed.is_empty() {
            self.connection.read_tls(&mut sealed).map_err(Broken::Io)?;
            let was_handshaking = self.is_handshaking();
            let state = self.connection.process_new_packets().map_err(|error| match error {
                rustls::Error::InvalidMessage(_) if !was_handshaking => {
                    Broken::Garbage("what is no TLS record")
                }
                error => broken(error),
            })?;
            self.is_closed |= state.peer_has_closed();
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            match self.connection.reader().read_exact(&mut plain) {
                Ok(()) => inbox.add(&plain),
                Err(error) => return Err(Broken::Io(error)),
            }
            // Nothing is read after it.
            if self.is_closed {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}

/// What is wrong, and what to do where trying again cannot help.
fn broken(error: rustls::Error) -> Broken {
    let advice = match &error {
        rustls::Error::InvalidCertificate(bad) => of_certificate(bad),
        rustls::Error::AlertReceived(alert) => match of_alert(*alert) {
            Some(advice) => advice,
            None => return Broken::Io(io::Error::other(error)),
        },
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS on this port: name its port for TLS, or begin the URL with redis://"
        }
        rustls::Error::PeerIncompatible(_) => "the server must speak TLS 1.2 or 1.3",
        _ => return Broken::Io(io::Error::other(error)),
    };
    Broken::Misconfigured(format!("{error}; {advice}"))
}

fn of_certificate(bad: &CertificateError) -> &'static str {
    match bad {
        CertificateError::UnknownIssuer => {
            "no trusted certificate authority has signed the server's certificate: name the right one by Tls::with_ca"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the URL must name the server as its certificate does"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "renew the server's certificate, or set this machine's clock right"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "wait until the server's certificate is valid, or set this machine's clock right"
        }
        _ => "the server needs another certificate",
    }
}

/// What a server means that refuses us; nothing where that may pass.
fn of_alert(alert: AlertDescription) -> Option<&'static str> {
    use AlertDescription as Alert;
    match alert {
        Alert::CertificateRequired
        | Alert::NoCertificate
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::DecryptError => Some(
            "the server wants a client certificate that it trusts: show one by Tls::with_client_certificate",
        ),
        // A server of TLS 1.2 says no more than this, also where it misses a certificate.
        Alert::HandshakeFailure | Alert::ProtocolVersion | Alert::InsufficientSecurity => Some(
            "the server has no version or cipher in common with TLS 1.2 and 1.3 as spoken here, or wants a client certificate",
        ),
        Alert::UnrecognisedName => Some("the URL must name the server as its certificate does"),
        _ => None,
    }
}
