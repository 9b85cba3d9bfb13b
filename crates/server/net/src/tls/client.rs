//! TLS as a connector asks for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedCipherSuite,
    SupportedProtocolVersion,
};

use super::files::{self, TlsError};
use super::named::{self, Named, NamedServers};
use super::server::{TlsVersion, versions};
use super::session::Session;

/// Whom a TLS client trusts and how it names itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClientOptions {
    /// PEM: the CAs trusted to vouch for servers. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// Accept any certificate from any server. For tests only: anybody on the way can listen in.
    pub is_insecure: bool,
    /// PEM: the client's certificate chain; together with `key`.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Application protocols (ALPN) to offer. Default none, which every broker accepts.
    pub alpn: Vec<String>,
    pub version_min: TlsVersion,
    /// Do not offer TLS 1.3, to see how a server copes. Default off.
    pub is_version_12_only: bool,
    /// Names of the cipher suites to offer, as IANA has them (`TLS_AES_256_GCM_SHA384`). Default:
    /// all that are safe.
    pub ciphers: Vec<String>,
    /// Sessions remembered for resumption. Default 256; 0 turns resumption off.
    pub sessions_max: usize,
}

/// A client's TLS, shared by its connections.
#[derive(Clone)]
pub struct TlsClientContext {
    config: Arc<ClientConfig>,
}

impl Default for TlsClientOptions {
    fn default() -> Self {
        Self {
            ca: None,
            is_insecure: false,
            certificate: None,
            key: None,
            alpn: Vec::new(),
            version_min: TlsVersion::V12,
            is_version_12_only: false,
            ciphers: Vec::new(),
            sessions_max: 256,
        }
    }
}

impl TlsClientContext {
    /// Reads the files.
    pub fn load(options: &TlsClientOptions) -> Result<Self, TlsError> {
        let provider = Arc::new(provider(&options.ciphers)?);
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(match options.is_version_12_only {
                true => VERSION_12,
                false => versions(options.version_min),
            })?;
        let builder = match &options.ca {
            _ if options.is_insecure => {
                let verifier = Arc::new(AnyServer(Arc::clone(&provider)));
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
            Some(path) => {
                let algorithms = provider.signature_verification_algorithms;
                let named = Named::new(files::certificates(path)?, Vec::new(), algorithms);
                let verifier = Arc::new(NamedServers { roots: roots(options)?, named });
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
            None => builder.with_root_certificates(roots(options)?),
        };
        let mut config = match (&options.certificate, &options.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => {
                let own = files::certified_key(
                    files::certificates(certificate)?,
                    (certificate, key),
                    &provider,
                )?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
            }
            _ => return Err(TlsError::KeyMissing),
        };
        config.alpn_protocols = options.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config.resumption = match options.sessions_max {
            0 => Resumption::disabled(),
            max => Resumption::in_memory_sessions(max),
        };
        Ok(Self { config: Arc::new(config) })
    }

    /// The cryptography of all TLS here.
    pub fn provider() -> CryptoProvider {
        super::cryptography()
    }

    /// For other users of rustls, such as clients of HTTP.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// `server_name` is checked against the certificate and sent as SNI.
    pub(crate) fn session(&self, server_name: ServerName<'static>) -> Result<Session, TlsError> {
        let config = Arc::clone(&self.config);
        Ok(Session::client(UnbufferedClientConnection::new(config, server_name)?))
    }
}

pub(crate) fn parse_server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    let host = if host.is_empty() { "localhost" } else { host };
    ServerName::try_from(host.to_owned()).map_err(|_| TlsError::ServerName(host.to_owned()))
}

/// Only these cipher suites; all if none is named.
fn provider(ciphers: &[String]) -> Result<CryptoProvider, TlsError> {
    let mut provider = super::cryptography();
    let name_of = |suite: &SupportedCipherSuite| {
        let name = format!("{:?}", suite.suite());
        // rustls distinguishes those of TLS 1.3; IANA does not.
        name.replacen("TLS13_", "TLS_", 1)
    };
    if let Some(unknown) = ciphers.iter().find(|cipher| {
        !provider.cipher_suites.iter().any(|suite| name_of(suite).eq_ignore_ascii_case(cipher))
    }) {
        let known: Vec<String> = provider.cipher_suites.iter().map(name_of).collect();
        return Err(TlsError::Cipher { name: unknown.clone(), known: known.join(", ") });
    }
    if !ciphers.is_empty() {
        provider.cipher_suites.retain(|suite| {
            ciphers.iter().any(|cipher| name_of(suite).eq_ignore_ascii_case(cipher))
        });
    }
    Ok(provider)
}

fn roots(options: &TlsClientOptions) -> Result<RootCertStore, TlsError> {
    if let Some(path) = &options.ca {
        return files::roots(path);
    }
    let mut roots = RootCertStore::empty();
    // Systems have a few certificates that rustls does not accept as anchors; the others serve.
    roots.add_parsable_certificates(authorities(None)?);
    Ok(roots)
}

/// The CA certificates of a PEM file, or those of the system.
///
/// # Errors
///
/// A file that cannot be read, or a system without CA certificates.
pub fn authorities(ca: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    if let Some(path) = ca {
        return files::certificates(path);
    }
    let found = rustls_native_certs::load_native_certs();
    match found.errors.into_iter().next() {
        _ if !found.certs.is_empty() => Ok(found.certs),
        None => Err(TlsError::SystemCaMissing),
        Some(error) => Err(TlsError::SystemCa(error.to_string())),
    }
}

/// Checks signatures, so that the handshake itself is sound, but not who signed.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        named::verify_tls12(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        named::verify_tls13(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

static VERSION_12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
