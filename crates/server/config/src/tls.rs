//! TLS of a server: of a listener, of HTTP, and of the API.

use std::path::PathBuf;

use super::keys::{CertificateIdentity, ClientAuth, RawTls, TlsVersion};
use super::source::{Problem, Settings};
use super::values;

/// TLS of a server. The files are named, not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    pub certificate: PathBuf,
    pub chain: Option<PathBuf>,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
    pub client_auth: ClientAuth,
    pub crl: Option<PathBuf>,
    pub min_version: TlsVersion,
    /// Of listeners only.
    pub own: OfListener,
}

/// What only a listener does with certificates of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfListener {
    pub identity: CertificateIdentity,
    /// It accepts those whose thumbprint is in a registry, whoever has issued them.
    pub takes_registered: bool,
}

impl OfListener {
    const NONE: Self = Self { identity: CertificateIdentity::None, takes_registered: false };
}

/// TLS of the server that a section such as `http.tls` describes; none if it has defaults only.
/// The outer `None` is a mistake of this crate.
pub(super) fn of_section(
    section: &str,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Option<Option<TlsConfig>> {
    let raw = RawTls::lower(values(settings, RawTls::SECTION, section))?;
    let names_files = [&raw.certificate, &raw.key, &raw.chain, &raw.client_ca, &raw.crl];
    let is_default = names_files.into_iter().all(Option::is_none)
        && (raw.client_auth, raw.min_version) == (ClientAuth::None, TlsVersion::V12);
    if is_default {
        return Some(None);
    }
    let mut problem = |key: &str, detail: String| {
        problems.push(Problem { place: settings.place(key), key: key.into(), detail });
    };
    let tls = lower(section, "it", raw, OfListener::NONE, &mut problem);
    Some(tls)
}

/// `what` needs a certificate.
pub(super) fn lower(
    section: &str,
    what: &str,
    raw: RawTls,
    own: OfListener,
    problem: &mut dyn FnMut(&str, String),
) -> Option<TlsConfig> {
    if raw.client_auth != ClientAuth::None && raw.client_ca.is_none() && !own.takes_registered {
        let detail = "needs client_ca, the authorities that sign client certificates".into();
        problem(&format!("{section}.client_auth"), detail);
    }
    if raw.client_auth == ClientAuth::None && (raw.client_ca.is_some() || raw.crl.is_some()) {
        let detail = "client_ca and crl have no effect without client_auth; set it to \
                      \"require\" or \"optional\"";
        problem(section, detail.into());
    }
    let (Some(certificate), Some(key)) = (raw.certificate, raw.key) else {
        problem(section, format!("{what} needs both certificate and key"));
        return None;
    };
    Some(TlsConfig {
        certificate,
        chain: raw.chain,
        key,
        client_ca: raw.client_ca,
        client_auth: raw.client_auth,
        crl: raw.crl,
        min_version: raw.min_version,
        own,
    })
}
