//! TLS as a listener offers it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerSessionMemoryCache,
    UnbufferedServerConnection, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ServerConfig, SupportedProtocolVersion};

use super::certificate;
use super::files::{self, TlsError};
use super::named::{self, Named, NamedClients};
use super::registered::{RegisteredVerifier, Thumbprints};
use super::session::Session;
use crate::CertificateInfo;

/// Which files and rules a TLS listener works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM: the server's certificate, then those that lead to its CA.
    pub certificate: PathBuf,
    /// PEM: certificates from which the chain is completed, in any order.
    pub chain: Option<PathBuf>,
    /// PEM: the certificate's key, unencrypted, as PKCS #8, SEC1 or PKCS #1.
    pub key: PathBuf,
    /// PEM: the CAs that may have issued client certificates.
    pub client_ca: Option<PathBuf>,
    pub client_auth: ClientAuth,
    /// Certificates with these thumbprints are accepted as well, whoever has issued them. Such a
    /// listener needs no `client_ca`, and resumes no sessions: each handshake checks the
    /// thumbprint. None: only what `client_ca` has issued.
    pub registered: Option<Vec<Thumbprints>>,
    /// PEM: lists of revoked client certificates. Each certificate's issuer must have one; a list
    /// past its date still counts.
    pub revocation_lists: Option<PathBuf>,
    pub version_min: TlsVersion,
    /// Application protocols (ALPN), best first. A client that asks for none of them is refused,
    /// one that does not ask is not; an empty list lets everyone in. Default `mqtt` and, for
    /// WebSocket, `http/1.1`.
    pub alpn: Vec<String>,
    /// TLS 1.2 sessions kept for clients that know no tickets. Default 4,096; the oldest is
    /// dropped.
    pub sessions_max: usize,
}

/// What is asked of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate is asked for.
    #[default]
    None,
    /// A certificate is asked for; one that is sent must be good.
    Optional,
    /// Without a good certificate there is no connection.
    Require,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    #[default]
    V12,
    V13,
}

/// A listener's TLS, shared by its connections. [`TlsContext::reload`] changes it for those to
/// come.
pub struct TlsContext {
    options: TlsOptions,
    current: RwLock<Loaded>,
}

#[derive(Clone)]
struct Loaded {
    config: Arc<ServerConfig>,
    /// Of the server.
    certificate: Arc<CertificateInfo>,
    registered: Option<Arc<RegisteredVerifier>>,
    names: Vec<String>,
    chain_note: Option<String>,
}

impl TlsOptions {
    /// The defaults: no client certificates, TLS 1.2 and 1.3.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            certificate: certificate.into(),
            chain: None,
            key: key.into(),
            client_ca: None,
            client_auth: ClientAuth::None,
            registered: None,
            revocation_lists: None,
            version_min: TlsVersion::V12,
            alpn: vec!["mqtt".to_owned(), "http/1.1".to_owned()],
            sessions_max: 4096,
        }
    }
}

impl TlsContext {
    /// Reads the files.
    pub fn load(options: TlsOptions) -> Result<Self, TlsError> {
        let current = RwLock::new(load(&options)?);
        Ok(Self { options, current })
    }

    /// Reads the files again. On an error what was loaded before stays. Open connections keep what
    /// they began with; sessions from before cannot be resumed, so that a revoked certificate does
    /// not live on in one.
    pub fn reload(&self) -> Result<(), TlsError> {
        let loaded = load(&self.options)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }

    /// The last second at which the server's certificate is valid, in seconds since 1970.
    pub fn not_after_secs(&self) -> u64 {
        self.certificate().not_after_secs
    }

    /// The server's certificate.
    pub fn certificate(&self) -> Arc<CertificateInfo> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).certificate.clone()
    }

    /// The host names and addresses for which the server's certificate is issued.
    pub fn names(&self) -> Vec<String> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).names.clone()
    }

    /// What clients may miss in the chain of certificates that they are sent.
    pub fn chain_note(&self) -> Option<String> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).chain_note.clone()
    }

    pub fn options(&self) -> &TlsOptions {
        &self.options
    }

    /// As it is now, for those who do handshakes themselves.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).config)
    }

    pub(crate) fn session(&self) -> Result<Session, rustls::Error> {
        let loaded = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let connection = UnbufferedServerConnection::new(loaded.config)?;
        Ok(Session::server(connection, loaded.registered))
    }
}

fn load(options: &TlsOptions) -> Result<Loaded, TlsError> {
    let mut chain = files::certificates(&options.certificate)?;
    let mut others = Vec::new();
    for path in options.chain.iter().chain(&options.client_ca) {
        others.extend(files::certificates(path)?);
    }
    let missing = certificate::complete(&mut chain, &others);
    let chain_note = chain_note(options, &chain, missing);
    let Some(info) = chain.first().and_then(|first| certificate::parse(first)) else {
        let reason = "not an X.509 certificate".to_owned();
        let path = options.certificate.clone();
        return Err(TlsError::Certificate { path, section: 1, reason });
    };
    let provider = Arc::new(provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions(options.version_min))?;
    let verifier = client_verifier(options)?;
    let registered = options.registered.clone().filter(|_| options.client_auth != ClientAuth::None);
    let registered = registered.map(|all| {
        let is_mandatory = options.client_auth == ClientAuth::Require;
        Arc::new(RegisteredVerifier::new(verifier.clone(), all, is_mandatory))
    });
    let builder = match (registered.clone(), verifier) {
        (Some(registered), _) => builder.with_client_cert_verifier(registered),
        (None, Some(verifier)) => builder.with_client_cert_verifier(verifier),
        (None, None) => builder.with_no_client_auth(),
    };
    let paths = (&*options.certificate, &*options.key);
    let certificate = files::certified_key(chain, paths, &provider)?;
    let mut config = builder.with_cert_resolver(Arc::new(OneCertificate(Arc::new(certificate))));
    config.alpn_protocols = options.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config.ignore_client_order = true;
    match &registered {
        None => {
            config.ticketer = aws_lc_rs::Ticketer::new()?;
            config.session_storage = ServerSessionMemoryCache::new(options.sessions_max);
            // One is enough for a client that holds one connection, and each costs a
            // signature-free but real record.
            config.send_tls13_tickets = 1;
        }
        Some(_) => {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
    }
    let bare = |name: &String| {
        name.strip_prefix("DNS:").or_else(|| name.strip_prefix("IP:")).map(str::to_owned)
    };
    let names = info.alternative_names.iter().filter_map(bare).collect();
    let certificate = Arc::new(info);
    Ok(Loaded { config: Arc::new(config), certificate, registered, names, chain_note })
}

/// What clients may miss in what they are sent.
fn chain_note(
    options: &TlsOptions,
    chain: &[CertificateDer<'static>],
    missing: Option<String>,
) -> Option<String> {
    let path = options.certificate.display();
    if chain.first().is_some_and(|own| named::is_version_1(own)) {
        return Some(format!(
            "{path}: the certificate has X.509 version 1 and no host names, so clients other than those of OpenSSL refuse it. Create it with `openssl x509 -req ... -extfile FILE`, with `subjectAltName = DNS:NAME` in FILE"
        ));
    }
    missing.map(|issuer| {
        format!(
            "{path}: the certificate of its issuer '{issuer}' is missing, so clients that only trust a root CA cannot verify it. Append it to the file, or set `chain`"
        )
    })
}

/// The suites with AES-128 and SHA-256 first. Clients put SHA-384 first, which few processors have
/// instructions for, and hashing is a good part of a handshake.
fn provider() -> CryptoProvider {
    let mut provider = super::cryptography();
    provider.cipher_suites.sort_by_key(|suite| !SUITES_FIRST.contains(&suite.suite()));
    provider
}

fn client_verifier(options: &TlsOptions) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    if options.client_auth == ClientAuth::None {
        return Ok(None);
    }
    let path = match options.client_ca.as_deref() {
        None if options.registered.is_some() => return Ok(None),
        path => path.ok_or(TlsError::ClientCaMissing)?,
    };
    let roots = Arc::new(files::roots(path)?);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider);
    if let Some(lists) = &options.revocation_lists {
        // As others do, only the client's own certificate is looked up, not the CAs above it.
        builder =
            builder.with_crls(files::revocation_lists(lists)?).only_check_end_entity_revocation();
    }
    if options.client_auth == ClientAuth::Optional {
        builder = builder.allow_unauthenticated();
    }
    let issued = builder.build();
    let issued = issued.map_err(|error| verifier_error(&error.to_string(), options, path))?;
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    let lists = options.revocation_lists.as_deref().map(files::revocation_lists).transpose()?;
    let named = Named::new(files::certificates(path)?, lists.unwrap_or_default(), algorithms);
    Ok(Some(Arc::new(NamedClients { issued, named })))
}

fn verifier_error(reason: &str, options: &TlsOptions, client_ca: &Path) -> TlsError {
    let reason = reason.to_owned();
    match &options.revocation_lists {
        Some(path) => TlsError::Revocation { path: path.clone(), reason },
        None => TlsError::Certificate { path: client_ca.to_owned(), section: 1, reason },
    }
}

/// Answers every client with the same certificate and notes which name it asked for, since rustls
/// tells nobody else.
#[derive(Debug)]
struct OneCertificate(Arc<CertifiedKey>);

impl ResolvesServerCert for OneCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        SERVER_NAME.set(hello.server_name().map(Box::from));
        Some(Arc::clone(&self.0))
    }
}

/// The name that the client of the step just made asked for, if it was the step that read its
/// hello: rustls resolves the certificate within that very call, on this thread.
pub(super) fn take_server_name() -> Option<Box<str>> {
    SERVER_NAME.take()
}

thread_local! {
    static SERVER_NAME: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

pub(super) fn versions(min: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    match min {
        TlsVersion::V12 => rustls::ALL_VERSIONS,
        TlsVersion::V13 => VERSION_13,
    }
}

const SUITES_FIRST: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

static VERSION_13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aes_128_comes_first_and_no_suite_is_lost() {
        let suites = provider().cipher_suites;
        assert!(suites[..3].iter().all(|suite| SUITES_FIRST.contains(&suite.suite())));
        let default = aws_lc_rs::default_provider().cipher_suites;
        assert_eq!(suites.len(), default.len());
        assert!(default.iter().all(|suite| suites.contains(suite)));
    }
}
