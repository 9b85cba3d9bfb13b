//! Certificates that OpenSSL verifies and webpki does not: those of X.509 version 1, those without
//! alternative names, and those that are themselves in the file of authorities. They count only
//! with a file of authorities, whose owner decides what is in it.
//!
//! - Version 1 has no extensions, so such a certificate limits nothing and is an authority of
//!   nothing. It is accepted if a certificate of the file has signed it, not through intermediates.
//! - A certificate that is in the file is accepted as itself. webpki takes it for an authority
//!   only, as openssl marks self-signed certificates by default.
//! - The common name is a host name if there are no alternative names, as before RFC 6125.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{self, WebPkiSupportedAlgorithms};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerMisbehaved,
    RootCertStore, SignatureScheme,
};
use x509_cert::certificate::{CertificateInner, Raw, Version};
use x509_cert::crl::CertificateList;
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier};
use x509_cert::der::oid::db::rfc5280::{ID_KP_CLIENT_AUTH, ID_KP_SERVER_AUTH};
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::ext::pkix::{
    BasicConstraints, ExtendedKeyUsage, KeyUsage, NameConstraints, SubjectAltName,
};

use super::certificate;

type Certificate = CertificateInner<Raw>;

/// The certificates of a file of authorities.
#[derive(Debug)]
pub(super) struct Named {
    authorities: Vec<CertificateDer<'static>>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Has it version 1?
pub(super) fn is_version_1(der: &[u8]) -> bool {
    let version = |certificate: Certificate| certificate.tbs_certificate().version();
    Certificate::from_der(der).is_ok_and(|certificate| version(certificate) == Version::V1)
}

/// The public key of a certificate of any version.
pub(super) fn public_key(der: &[u8]) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let certificate = Certificate::from_der(der).ok()?;
    let key = certificate.tbs_certificate().subject_public_key_info().to_der().ok()?;
    Some(SubjectPublicKeyInfoDer::from(key))
}

/// The signature of a handshake by the key of a certificate of any version.
pub(super) fn verify_tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    if !is_version_1(certificate) {
        return crypto::verify_tls12_signature(message, certificate, signed, algorithms);
    }
    let possible = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let (_, possible) = possible.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    let (key_algorithm, key) = key_of(certificate).ok_or(CertificateError::BadEncoding)?;
    let is_valid = possible.iter().any(|algorithm| {
        algorithm.public_key_alg_id().as_ref() == key_algorithm
            && algorithm.verify_signature(&key, message, signed.signature()).is_ok()
    });
    match is_valid {
        true => Ok(HandshakeSignatureValid::assertion()),
        false => Err(CertificateError::BadSignature.into()),
    }
}

/// The same for TLS 1.3.
pub(super) fn verify_tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    if !is_version_1(certificate) {
        return crypto::verify_tls13_signature(message, certificate, signed, algorithms);
    }
    let key = public_key(certificate).ok_or(CertificateError::BadEncoding)?;
    crypto::verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
}

impl Named {
    pub(super) fn new(
        authorities: Vec<CertificateDer<'static>>,
        revoked: Vec<CertificateRevocationListDer<'static>>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { authorities, revoked, algorithms }
    }

    /// Does the file vouch for a certificate that webpki has refused with this error?
    fn vouch(
        &self,
        der: &CertificateDer<'_>,
        usage: ObjectIdentifier,
        now: UnixTime,
        error: Error,
    ) -> Result<(), Error> {
        let issuer = match self.authorities.iter().find(|own| *own == der) {
            Some(own) if certificate::is_self_issued(own) && permits(own, usage) => own,
            _ if is_version_1(der) => match self.issuer_of(der, now) {
                Some(issuer) => issuer,
                None => return Err(other(VersionOne)),
            },
            _ => return Err(error),
        };
        check_dates(der, now)?;
        self.check_revocation(der, issuer)
    }

    /// The authority of the file that has signed it.
    fn issuer_of(&self, der: &CertificateDer<'_>, now: UnixTime) -> Option<&CertificateDer<'_>> {
        let certificate = Certificate::from_der(der).ok()?;
        let body = certificate.tbs_certificate();
        self.authorities.iter().find(|issuer| {
            let own = Certificate::from_der(issuer);
            let is_named = own.is_ok_and(|own| own.tbs_certificate().subject() == body.issuer());
            is_named
                && may_issue(issuer)
                && certificate::is_valid_at(issuer, now.as_secs())
                && self.has_signed(issuer, der)
        })
    }

    /// Is the signature of a certificate or revocation list by this key?
    fn has_signed(&self, issuer: &[u8], der: &[u8]) -> bool {
        let signed = || {
            // What is signed, the algorithm, and the signature.
            let fields = Vec::<AnyRef<'_>>::from_der(der).ok()?;
            let [body, algorithm, signature] = fields.as_slice() else { return None };
            // Of the bits, the first byte counts those that are left over: none.
            let signature = signature.value().strip_prefix(&[0])?;
            Some((body.to_der().ok()?, algorithm.value(), signature))
        };
        let (Some((body, algorithm, signature)), Some((key_algorithm, key))) =
            (signed(), key_of(issuer))
        else {
            return false;
        };
        self.algorithms.all.iter().any(|known| {
            known.signature_alg_id().as_ref() == algorithm
                && known.public_key_alg_id().as_ref() == key_algorithm
                && known.verify_signature(&key, &body, signature).is_ok()
        })
    }

    /// As webpki: with lists, the issuer must have one.
    fn check_revocation(&self, der: &[u8], issuer: &[u8]) -> Result<(), Error> {
        if self.revoked.is_empty() {
            return Ok(());
        }
        let certificate = Certificate::from_der(der).map_err(|_| CertificateError::BadEncoding)?;
        let body = certificate.tbs_certificate();
        let mut lists = self.revoked.iter().filter_map(|list| {
            let read = CertificateList::<Raw>::from_der(list).ok()?;
            let is_its =
                read.tbs_cert_list.issuer == *body.issuer() && self.has_signed(issuer, list);
            is_its.then_some(read.tbs_cert_list.revoked_certificates.unwrap_or_default())
        });
        let Some(revoked) = lists.next() else {
            return Err(CertificateError::UnknownRevocationStatus.into());
        };
        let is_revoked = |list: &[x509_cert::crl::RevokedCert<Raw>]| {
            list.iter().any(|entry| entry.serial_number == *body.serial_number())
        };
        match is_revoked(&revoked) || lists.any(|list| is_revoked(&list)) {
            true => Err(CertificateError::Revoked.into()),
            false => Ok(()),
        }
    }
}

/// Is it within the dates that it states?
fn check_dates(der: &[u8], now: UnixTime) -> Result<(), CertificateError> {
    let certificate = Certificate::from_der(der).map_err(|_| CertificateError::BadEncoding)?;
    let validity = certificate.tbs_certificate().validity();
    let not_before = UnixTime::since_unix_epoch(validity.not_before.to_unix_duration());
    let not_after = UnixTime::since_unix_epoch(validity.not_after.to_unix_duration());
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before });
    }
    match now > not_after {
        true => Err(CertificateError::ExpiredContext { time: now, not_after }),
        false => Ok(()),
    }
}

/// The algorithm of a public key, and the key.
fn key_of(der: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let certificate = Certificate::from_der(der).ok()?;
    let info = certificate.tbs_certificate().subject_public_key_info();
    let algorithm = info.algorithm.to_der().ok()?;
    let algorithm = AnyRef::from_der(&algorithm).ok()?.value().to_vec();
    Some((algorithm, info.subject_public_key.as_bytes()?.to_vec()))
}

/// May it sign certificates of any name? One of version 1 cannot say.
fn may_issue(der: &[u8]) -> bool {
    let Ok(certificate) = Certificate::from_der(der) else { return false };
    let body = certificate.tbs_certificate();
    let is_authority = match body.get_extension::<BasicConstraints>() {
        Ok(Some((_, constraints))) => constraints.ca,
        Ok(None) => body.version() == Version::V1,
        Err(_) => false,
    };
    let signs = match body.get_extension::<KeyUsage>() {
        Ok(Some((_, usage))) => usage.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    };
    is_authority && signs && matches!(body.get_extension::<NameConstraints>(), Ok(None))
}

/// Does it permit this use, or any?
fn permits(der: &[u8], usage: ObjectIdentifier) -> bool {
    let Ok(certificate) = Certificate::from_der(der) else { return false };
    match certificate.tbs_certificate().get_extension::<ExtendedKeyUsage>() {
        Ok(Some((_, usages))) => usages.0.contains(&usage),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// The names of version 1, and of certificates without alternative names.
fn is_common_name(der: &[u8], name: &ServerName<'_>) -> bool {
    let Ok(certificate) = Certificate::from_der(der) else { return false };
    if !matches!(certificate.tbs_certificate().get_extension::<SubjectAltName>(), Ok(None)) {
        return false;
    }
    let common = certificate::parse(der).map(|info| info.common_name).unwrap_or_default();
    match name {
        ServerName::IpAddress(ip) => common.parse() == Ok(IpAddr::from(*ip)),
        ServerName::DnsName(host) => {
            let host = host.as_ref();
            let is_wild = || {
                let (_, domain) = host.split_once('.')?;
                // One label, and never a whole top-level domain.
                let own = common.strip_prefix("*.").filter(|own| own.contains('.'))?;
                Some(own.eq_ignore_ascii_case(domain))
            };
            common.eq_ignore_ascii_case(host) || is_wild() == Some(true)
        }
        _ => false,
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

/// Nobody vouches for a certificate of version 1.
struct VersionOne;

/// rustls shows this form.
impl fmt::Debug for VersionOne {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for VersionOne {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the certificate has X.509 version 1, and no CA certificate of the file has signed it. \
             Append the certificate of its issuer, or create it with version 3: `openssl x509 -req \
             ... -extfile FILE`, with `subjectAltName = DNS:NAME` in FILE",
        )
    }
}

impl std::error::Error for VersionOne {}

/// Accepts what a verifier accepts, and what the file of authorities vouches for.
#[derive(Debug)]
pub(super) struct NamedClients {
    pub(super) issued: Arc<dyn ClientCertVerifier>,
    pub(super) named: Named,
}

impl ClientCertVerifier for NamedClients {
    fn offer_client_auth(&self) -> bool {
        self.issued.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.issued.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.issued.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.issued.verify_client_cert(end_entity, intermediates, now).or_else(|error| {
            self.named.vouch(end_entity, ID_KP_CLIENT_AUTH, now, error)?;
            Ok(ClientCertVerified::assertion())
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12(message, certificate, signed, &self.named.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13(message, certificate, signed, &self.named.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}

/// Servers for which the file of authorities vouches.
#[derive(Debug)]
pub(super) struct NamedServers {
    pub(super) roots: RootCertStore,
    pub(super) named: Named,
}

impl NamedServers {
    fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(end_entity);
        let chained = parsed.as_ref().map_err(Clone::clone).and_then(|parsed| {
            let all = self.named.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(parsed, &self.roots, intermediates, now, all)
        });
        chained.or_else(|error| self.named.vouch(end_entity, ID_KP_SERVER_AUTH, now, error))?;
        let named = parsed.and_then(|parsed| verify_server_name(&parsed, name));
        named.or_else(|error| match (is_common_name(end_entity, name), is_version_1(end_entity)) {
            (true, _) => Ok(()),
            (false, true) => Err(CertificateError::NotValidForName.into()),
            (false, false) => Err(error),
        })
    }
}

impl ServerCertVerifier for NamedServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates, server_name, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12(message, certificate, signed, &self.named.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13(message, certificate, signed, &self.named.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.named.algorithms.supported_schemes()
    }
}
