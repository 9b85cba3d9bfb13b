//! The few fields of an X.509 certificate (RFC 5280) by which a peer is named. Reads certificates
//! that rustls has verified, or our own; still, any bytes give an answer or `None`, never a panic.

use std::fmt::Write as _;
use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use x509_cert::attr::AttributeValue;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::asn1::{AnyRef, BmpString, UintRef};
use x509_cert::der::oid::db::rfc4519;
use x509_cert::der::oid::db::rfc5912::RSA_ENCRYPTION;
use x509_cert::der::{Decode as _, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;
use x509_cert::spki::AlgorithmIdentifierRef;

use super::distinguished_name::{ATTRIBUTES, escaped};
use crate::peer::CertificateInfo;

/// Whether a certificate may look as it does is decided by who verifies it, not here.
type Certificate = CertificateInner<Raw>;

/// Reads a DER encoding. `None` if it is no certificate.
pub fn parse(der: &[u8]) -> Option<CertificateInfo> {
    let certificate = Certificate::from_der(der).ok()?;
    let body = certificate.tbs_certificate();
    // Names that cannot be read are none.
    let names = body.get_extension::<SubjectAltName>().ok().flatten();
    let mut fingerprint_sha256 = String::new();
    for byte in Sha256::digest(der) {
        let _ = write!(fingerprint_sha256, "{byte:02x}");
    }
    Some(CertificateInfo {
        common_name: common_name(body.subject()),
        subject: written(body.subject()),
        alternative_names: names
            .map(|(_, names)| names.0.iter().filter_map(alternative_name).collect())
            .unwrap_or_default(),
        fingerprint_sha256,
        not_after_secs: body.validity().not_after.to_unix_duration().as_secs(),
        is_unissued: false,
    })
}

/// Does it name itself as its issuer?
pub(super) fn is_self_issued(der: &[u8]) -> bool {
    issuer_and_subject(der).is_some_and(|(issuer, subject)| issuer == subject)
}

/// Is it within the dates that it states?
pub(super) fn is_valid_at(der: &[u8], secs: u64) -> bool {
    let Ok(certificate) = Certificate::from_der(der) else { return false };
    let validity = certificate.tbs_certificate().validity();
    let (from, to) = (validity.not_before, validity.not_after);
    (from.to_unix_duration().as_secs()..=to.to_unix_duration().as_secs()).contains(&secs)
}

/// Appends to a chain the issuers that it lacks, as far as they are among `others`; the one at the
/// top, which has signed itself, need not be sent. Returns the name of the issuer that is missing.
pub(super) fn complete(
    chain: &mut Vec<CertificateDer<'static>>,
    others: &[CertificateDer<'static>],
) -> Option<String> {
    while chain.len() < CHAIN_MAX {
        let (issuer, subject) = issuer_and_subject(chain.last()?)?;
        if issuer == subject {
            return None;
        }
        let is_issuer = |other: &&CertificateDer<'_>| {
            issuer_and_subject(other).is_some_and(|(_, subject)| subject == issuer)
        };
        let Some(found) = others.iter().find(is_issuer) else { return Some(written(&issuer)) };
        let is_top = issuer_and_subject(found).is_some_and(|(issuer, subject)| issuer == subject);
        if is_top {
            return None;
        }
        chain.push(found.clone());
    }
    None
}

fn issuer_and_subject(der: &[u8]) -> Option<(Name, Name)> {
    let certificate = Certificate::from_der(der).ok()?;
    let body = certificate.tbs_certificate();
    Some((body.issuer().clone(), body.subject().clone()))
}

/// The length in bits of an RSA key; none if it is of another kind.
pub(super) fn rsa_bits(key: &PrivateKeyDer<'_>) -> Option<usize> {
    let rsa = match key {
        PrivateKeyDer::Pkcs1(key) => key.secret_pkcs1_der(),
        PrivateKeyDer::Pkcs8(key) => {
            // Version, algorithm, key.
            let fields = Vec::<AnyRef<'_>>::from_der(key.secret_pkcs8_der()).ok()?;
            let algorithm: AlgorithmIdentifierRef<'_> = fields.get(1)?.decode_as().ok()?;
            if algorithm.oid != RSA_ENCRYPTION {
                return None;
            }
            fields.get(2)?.value()
        }
        _ => return None,
    };
    // Version, modulus, exponents.
    let fields = Vec::<AnyRef<'_>>::from_der(rsa).ok()?;
    let modulus: UintRef<'_> = fields.get(1)?.decode_as().ok()?;
    let bytes = modulus.as_bytes();
    Some(bytes.len() * 8 - bytes.first()?.leading_zeros() as usize)
}

fn common_name(name: &Name) -> String {
    let found = name.iter().find(|attribute| attribute.oid == rfc4519::CN);
    found.map(|attribute| text(&attribute.value)).unwrap_or_default()
}

/// The whole name as RFC 4514 writes it, last attribute first, but for attributes that it has no
/// short name for: their values are written as text, too.
fn written(name: &Name) -> String {
    let mut parts: Vec<String> = name
        .iter_rdn()
        .map(|set| {
            let attributes = set.iter().map(|attribute| {
                let known = ATTRIBUTES.iter().find(|(id, _)| *id == attribute.oid);
                let kind =
                    known.map_or_else(|| attribute.oid.to_string(), |(_, name)| (*name).to_owned());
                format!("{kind}={}", escaped(&text(&attribute.value)))
            });
            attributes.collect::<Vec<_>>().join("+")
        })
        .collect();
    parts.reverse();
    parts.join(",")
}

/// Kinds without a plain text form are left out.
fn alternative_name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::Rfc822Name(text) => Some(format!("email:{text}")),
        GeneralName::DnsName(text) => Some(format!("DNS:{text}")),
        GeneralName::UniformResourceIdentifier(text) => Some(format!("URI:{text}")),
        GeneralName::IpAddress(octets) => {
            let octets = octets.as_bytes();
            let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
            let ip = v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()?;
            Some(format!("IP:{ip}"))
        }
        _ => None,
    }
}

/// Replacement characters stand where it is none: such a name is nobody's.
fn text(value: &AttributeValue) -> String {
    match value.tag() {
        Tag::BmpString => value
            .decode_as::<BmpString>()
            .map_or_else(|_| char::REPLACEMENT_CHARACTER.into(), |text| text.to_string()),
        _ => String::from_utf8_lossy(value.value()).into_owned(),
    }
}

/// Longer chains are a mistake, and clients do not take them.
const CHAIN_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType, SerialNumber};
    use rcgen::{date_time_ymd, string::BmpString};

    use super::*;

    fn certificate() -> Vec<u8> {
        certificate_with(|_| {})
    }

    /// With the same bytes but for these, which are there once or more.
    fn patched(der: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
        assert_eq!(from.len(), to.len());
        let mut der = der.to_vec();
        let found = (0..der.len()).filter(|at| der[*at..].starts_with(from)).collect::<Vec<_>>();
        assert!(!found.is_empty());
        found.into_iter().for_each(|at| der[at..at + to.len()].copy_from_slice(to));
        der
    }

    fn certificate_with(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["sensor.example".to_owned()]).expect("names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CountryName, "DE");
        params.distinguished_name.push(DnType::OrganizationName, "Weaver, Birds");
        params.distinguished_name.push(DnType::CommonName, "sensor 7");
        params.subject_alt_names.push(SanType::IpAddress([192, 0, 2, 7].into()));
        params.subject_alt_names.push(SanType::URI("urn:x".try_into().expect("uri")));
        params.not_after = date_time_ymd(2040, 2, 29);
        change(&mut params);
        let key = KeyPair::generate().expect("key");
        params.self_signed(&key).expect("certificate").der().to_vec()
    }

    #[test]
    fn a_certificate_is_named_in_full() {
        let info = parse(&certificate()).expect("a certificate");
        assert_eq!(info.common_name, "sensor 7");
        assert_eq!(info.subject, "CN=sensor 7,O=Weaver\\, Birds,C=DE");
        assert_eq!(info.alternative_names, ["DNS:sensor.example", "IP:192.0.2.7", "URI:urn:x"]);
        assert_eq!(info.not_after_secs, 2_214_086_400);
        assert_eq!(info.fingerprint_sha256.len(), 64);
    }

    #[test]
    fn damaged_certificates_do_not_panic() {
        let good = certificate();
        for cut in 0..good.len() {
            assert_eq!(parse(&good[..cut]), None, "cut at {cut}");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let _ = parse(&bad);
            }
        }
    }

    #[test]
    fn times_are_read_in_both_forms() {
        for (year, secs) in [(1970, 0), (2049, 2_493_072_000), (2050, 2_524_608_000)] {
            let der = certificate_with(|params| params.not_after = date_time_ymd(year, 1, 1));
            assert_eq!(parse(&der).expect("a certificate").not_after_secs, secs, "{year}");
        }
        // The date that RFC 5280 has for those that do not expire, and one that is none.
        let der = certificate_with(|params| params.not_after = date_time_ymd(9999, 12, 31));
        let secs = parse(&der).expect("a certificate").not_after_secs;
        assert_eq!(secs, 253_402_214_400);
        let no_month = patched(&der, b"99991231", b"99991331");
        assert_eq!(parse(&no_month), None);
    }

    #[test]
    fn names_are_written_as_rfc_4514_says() {
        assert_eq!(escaped(" #a+b\\ "), "\\ #a\\+b\\\\\\ ");
        assert_eq!(escaped("#a\0"), "\\#a\\00");
        let name = |kind: DnType, value: DnValue| {
            let der = certificate_with(|params| params.distinguished_name.push(kind, value));
            let info = parse(&der).expect("a certificate");
            info.subject.split(',').next().unwrap_or_default().to_owned()
        };
        let bmp = BmpString::try_from("h\u{e4}nfling").expect("a name");
        let email = DnType::from_oid(&[1, 2, 840, 113_549, 1, 9, 1]);
        for (kind, value, as_text) in [
            (DnType::OrganizationalUnitName, DnValue::BmpString(bmp), "OU=h\u{e4}nfling"),
            (email, "a@b".into(), "emailAddress=a@b"),
            (DnType::from_oid(&[1, 2, 840, 113_549]), "x".into(), "1.2.840.113549=x"),
        ] {
            assert_eq!(name(kind, value), as_text);
        }
    }

    /// rustls verifies what counts. Here only names are read.
    #[test]
    fn what_is_odd_about_a_certificate_takes_no_name_from_it() {
        let long = SerialNumber::from(vec![0x7f; 40]);
        let der = certificate_with(|params| params.serial_number = Some(long));
        assert_eq!(parse(&der).expect("a certificate").common_name, "sensor 7");
        let der = patched(&certificate(), b"sensor.example", b"sens\xe9r.example");
        let info = parse(&der).expect("a certificate");
        assert_eq!((info.common_name.as_str(), info.alternative_names.len()), ("sensor 7", 0));
        let der = patched(&certificate(), b"sensor 7", b"sens\xe9r 7");
        assert_eq!(parse(&der).expect("a certificate").common_name, "sens\u{fffd}r 7");
    }
}
