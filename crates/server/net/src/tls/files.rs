//! PEM files: certificates, keys and revocation lists, with errors that name file and section.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};
use thiserror::Error;

use super::{certificate, named};

/// Why TLS cannot be set up. Each says which file and what to do.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{}: section {section} is damaged: {error}", path.display())]
    Damaged { path: PathBuf, section: usize, error: pem::Error },
    #[error("{}: no {what} in it: expected a section `BEGIN {label}`", path.display())]
    Empty { path: PathBuf, what: &'static str, label: &'static str },
    #[error("{}: the key is not usable: {reason}", path.display())]
    Key { path: PathBuf, reason: String },
    #[error(
        "{} and {} do not belong together: the key is not that of the first certificate",
        certificate.display(),
        key.display()
    )]
    KeyMismatch { certificate: PathBuf, key: PathBuf },
    #[error("{}: section {section} is not a valid certificate: {reason}", path.display())]
    Certificate { path: PathBuf, section: usize, reason: String },
    #[error("{}: the revocation list is not usable: {reason}", path.display())]
    Revocation { path: PathBuf, reason: String },
    #[error("client certificates are requested, but no file of CA certificates is set")]
    ClientCaMissing,
    #[error("a certificate and its key must be set together")]
    KeyMissing,
    #[error("no CA certificates found on this system: name a file of them, or set SSL_CERT_FILE")]
    SystemCaMissing,
    #[error("cannot read the CA certificates of this system: {0}")]
    SystemCa(String),
    #[error("must be a host name or IP address, got `{0}`")]
    ServerName(String),
    #[error("unknown cipher suite `{name}`; valid: {known}")]
    Cipher { name: String, known: String },
    #[error("TLS: {0}")]
    Other(#[from] rustls::Error),
}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<CertificateDer<'static>> = sections(path)?;
    if found.is_empty() {
        let (path, label) = (path.to_owned(), "CERTIFICATE");
        return Err(TlsError::Empty { path, what: "certificate", label });
    }
    Ok(found)
}

/// The first private key of the file: PKCS #8, SEC1 or PKCS #1.
pub(super) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|error| match error {
            pem::Error::NoItemsFound if bytes.windows(9).any(|window| window == b"ENCRYPTED") => {
                let reason = "it is encrypted: decrypt it first, as with `openssl pkey`".to_owned();
                TlsError::Key { path: path.to_owned(), reason }
            }
            pem::Error::NoItemsFound => {
                TlsError::Empty { path: path.to_owned(), what: "private key", label: "PRIVATE KEY" }
            }
            error => TlsError::Damaged { path: path.to_owned(), section: 1, error },
        })
        .and_then(|key| match certificate::rsa_bits(&key) {
            Some(bits) if bits < RSA_BITS_MIN => {
                let reason = format!(
                    "an RSA key must have at least {RSA_BITS_MIN} bits, got {bits}: create a new \
                key, as with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`, \
                and a certificate for it"
                );
                Err(TlsError::Key { path: path.to_owned(), reason })
            }
            _ => Ok(key),
        })
}

/// A chain with the key of its first certificate, which may have any version.
pub(super) fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    (certificate, key): (&Path, &Path),
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let read = self::key(key)?;
    let name = |error| name_files(error, certificate, key);
    if !chain.first().is_some_and(|own| named::is_version_1(own)) {
        return CertifiedKey::from_der(chain, read, provider).map_err(name);
    }
    let own = provider.key_provider.load_private_key(read).map_err(name)?;
    // A key that does not know its public half is not compared, as in rustls.
    let is_its = own.public_key().is_none_or(|own| named::public_key(&chain[0]) == Some(own));
    match is_its {
        true => Ok(CertifiedKey::new(chain, own)),
        false => Err(name(InconsistentKeys::KeyMismatch.into())),
    }
}

/// As rustls has it.
const RSA_BITS_MIN: usize = 2048;

pub(super) fn revocation_lists(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let found: Vec<CertificateRevocationListDer<'static>> = sections(path)?;
    if found.is_empty() {
        let (path, label) = (path.to_owned(), "X509 CRL");
        return Err(TlsError::Empty { path, what: "revocation list", label });
    }
    Ok(found)
}

/// A store of the certificates in a file, each of which must be usable as a trust anchor.
pub(super) fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates(path)?.into_iter().enumerate() {
        roots.add(certificate).map_err(|error| TlsError::Certificate {
            path: path.to_owned(),
            section: index + 1,
            reason: error.to_string(),
        })?;
    }
    Ok(roots)
}

/// Names the file at fault in an error about a certificate chain and its key.
pub(super) fn name_files(error: rustls::Error, certificate: &Path, key: &Path) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::KeyMismatch { certificate: certificate.to_owned(), key: key.to_owned() }
        }
        rustls::Error::InvalidCertificate(reason) => TlsError::Certificate {
            path: certificate.to_owned(),
            section: 1,
            reason: reason.to_string(),
        },
        other => TlsError::Key { path: key.to_owned(), reason: other.to_string() },
    }
}

fn sections<T: PemObject>(path: &Path) -> Result<Vec<T>, TlsError> {
    let bytes = read(path)?;
    let mut found = Vec::new();
    for section in T::pem_slice_iter(&bytes) {
        found.push(section.map_err(|error| TlsError::Damaged {
            path: path.to_owned(),
            section: found.len() + 1,
            error,
        })?);
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::Unreadable { path: path.to_owned(), error })
}
