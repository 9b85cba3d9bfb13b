//! The few fields of an X.509 certificate (RFC 5280) by which a peer is named. Reads certificates
//! that rustls has verified, or our own; still, any bytes give an answer or `None`, never a panic.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};

use crate::peer::CertificateInfo;

/// Reads a DER encoding. `None` if it is no certificate.
pub(crate) fn parse(der: &[u8]) -> Option<CertificateInfo> {
    let mut outer = Der(der);
    let mut certificate = Der(outer.expect(SEQUENCE)?);
    let mut body = Der(certificate.expect(SEQUENCE)?);
    if body.peek() == Some(VERSION) {
        body.next()?;
    }
    body.expect(INTEGER)?; // serial number
    body.expect(SEQUENCE)?; // signature algorithm
    body.expect(SEQUENCE)?; // issuer
    let mut validity = Der(body.expect(SEQUENCE)?);
    validity.next()?;
    let not_after_secs = parse_time(validity.next()?)?;
    let subject = body.expect(SEQUENCE)?;
    body.expect(SEQUENCE)?; // public key
    let mut info = CertificateInfo { not_after_secs, ..CertificateInfo::default() };
    (info.common_name, info.subject) = parse_subject(subject)?;
    while let Some((tag, value)) = body.next() {
        if tag == EXTENSIONS {
            info.alternative_names = parse_extensions(value)?;
        }
    }
    for byte in Sha256::digest(der) {
        let _ = write!(info.fingerprint_sha256, "{byte:02x}");
    }
    Some(info)
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
        let Some(found) = others.iter().find(is_issuer) else {
            return parse_subject(issuer).map(|(_, name)| name);
        };
        let is_top = issuer_and_subject(found).is_some_and(|(issuer, subject)| issuer == subject);
        if is_top {
            return None;
        }
        let found = found.clone();
        chain.push(found);
    }
    None
}

/// The two names of a certificate, as they are encoded.
fn issuer_and_subject(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut outer = Der(der);
    let mut certificate = Der(outer.expect(SEQUENCE)?);
    let mut body = Der(certificate.expect(SEQUENCE)?);
    if body.peek() == Some(VERSION) {
        body.next()?;
    }
    body.expect(INTEGER)?; // serial number
    body.expect(SEQUENCE)?; // signature algorithm
    let issuer = body.expect(SEQUENCE)?;
    body.expect(SEQUENCE)?; // validity
    Some((issuer, body.expect(SEQUENCE)?))
}

/// The length in bits of an RSA key; none if it is of another kind.
pub(super) fn rsa_bits(key: &PrivateKeyDer<'_>) -> Option<usize> {
    let mut rsa = match key {
        PrivateKeyDer::Pkcs1(key) => Der(key.secret_pkcs1_der()),
        PrivateKeyDer::Pkcs8(key) => {
            let mut outer = Der(key.secret_pkcs8_der());
            let mut body = Der(outer.expect(SEQUENCE)?);
            body.expect(INTEGER)?; // version
            let mut algorithm = Der(body.expect(SEQUENCE)?);
            if algorithm.expect(OBJECT_ID)? != RSA_ENCRYPTION {
                return None;
            }
            Der(body.expect(OCTETS)?)
        }
        _ => return None,
    };
    let mut body = Der(rsa.expect(SEQUENCE)?);
    body.expect(INTEGER)?; // version
    let modulus = body.expect(INTEGER)?;
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    let first = modulus.get(zeros)?;
    Some((modulus.len() - zeros) * 8 - first.leading_zeros() as usize)
}

/// The first common name, and the whole name as RFC 4514 writes it: last attribute first.
fn parse_subject(der: &[u8]) -> Option<(String, String)> {
    let mut common_name = None;
    let mut parts = Vec::new();
    let mut sets = Der(der);
    while let Some((_, set)) = sets.next() {
        let mut joined = String::new();
        let mut attributes = Der(set);
        while let Some((_, attribute)) = attributes.next() {
            let mut attribute = Der(attribute);
            let kind = attribute.expect(OBJECT_ID)?;
            let value = parse_string(attribute.next()?);
            if kind == COMMON_NAME && common_name.is_none() {
                common_name = Some(value.clone());
            }
            if !joined.is_empty() {
                joined.push('+');
            }
            match ATTRIBUTES.iter().find(|(id, _)| *id == kind) {
                Some((_, name)) => joined.push_str(name),
                None => joined.push_str(&dotted(kind)),
            }
            joined.push('=');
            escape(&value, &mut joined);
        }
        parts.push(joined);
    }
    parts.reverse();
    Some((common_name.unwrap_or_default(), parts.join(",")))
}

fn parse_extensions(der: &[u8]) -> Option<Vec<String>> {
    let mut extensions = Der(Der(der).expect(SEQUENCE)?);
    while let Some((_, extension)) = extensions.next() {
        let mut extension = Der(extension);
        if extension.expect(OBJECT_ID)? != ALTERNATIVE_NAME {
            continue;
        }
        if extension.peek() == Some(BOOLEAN) {
            extension.next()?;
        }
        let mut names = Der(Der(extension.expect(OCTETS)?).expect(SEQUENCE)?);
        let mut found = Vec::new();
        while let Some(name) = names.next() {
            found.extend(parse_alternative_name(name));
        }
        return Some(found);
    }
    Some(Vec::new())
}

/// Kinds without a plain text form are left out.
fn parse_alternative_name((tag, value): (u8, &[u8])) -> Option<String> {
    let text = || str::from_utf8(value).ok();
    match tag {
        0x81 => Some(format!("email:{}", text()?)),
        0x82 => Some(format!("DNS:{}", text()?)),
        0x86 => Some(format!("URI:{}", text()?)),
        0x87 => match value.len() {
            4 => <[u8; 4]>::try_from(value).ok().map(|ip| format!("IP:{}", Ipv4Addr::from(ip))),
            16 => <[u8; 16]>::try_from(value).ok().map(|ip| format!("IP:{}", Ipv6Addr::from(ip))),
            _ => None,
        },
        _ => None,
    }
}

/// UTCTime or GeneralizedTime, both in the one form that RFC 5280 allows, as seconds since 1970.
fn parse_time((tag, value): (u8, &[u8])) -> Option<u64> {
    let text = str::from_utf8(value).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match (tag, text.len()) {
        (UTC_TIME, 12) => {
            let year: i64 = text[..2].parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, &text[2..])
        }
        (GENERALIZED_TIME, 14) => (text[..4].parse().ok()?, &text[4..]),
        _ => return None,
    };
    let field = |at: usize| rest[at..at + 2].parse::<i64>().ok();
    let days = days_since_1970(year, field(0)?, field(2)?);
    let secs = days * 86_400 + field(4)? * 3_600 + field(6)? * 60 + field(8)?;
    Some(u64::try_from(secs).unwrap_or(0))
}

/// The civil calendar with years that begin in March, so that a leap day is the last of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

fn parse_string((tag, value): (u8, &[u8])) -> String {
    if tag == BMP_STRING {
        let (pairs, _) = value.as_chunks::<2>();
        let units = pairs.iter().map(|pair| u16::from_be_bytes(*pair));
        return char::decode_utf16(units).map(|unit| unit.unwrap_or('\u{fffd}')).collect();
    }
    String::from_utf8_lossy(value).into_owned()
}

/// RFC 4514, section 2.4.
fn escape(value: &str, out: &mut String) {
    for (at, character) in value.char_indices() {
        let is_last = at + character.len_utf8() == value.len();
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => out.extend(['\\', character]),
            '#' if at == 0 => out.push_str("\\#"),
            ' ' if at == 0 || is_last => out.push_str("\\ "),
            '\0' => out.push_str("\\00"),
            _ => out.push(character),
        }
    }
}

fn dotted(object_id: &[u8]) -> String {
    let mut text = String::new();
    let mut arc = 0u64;
    for &byte in object_id {
        arc = arc << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        if text.is_empty() {
            let first = (arc / 40).min(2);
            let _ = write!(text, "{first}.{}", arc - first * 40);
        } else {
            let _ = write!(text, ".{arc}");
        }
        arc = 0;
    }
    text
}

/// A run of DER elements: tag, length, value.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let len = bytes.iter().fold(0u64, |len, &byte| len << 8 | u64::from(byte));
                (usize::try_from(len).ok()?, rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, value))
    }

    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| value)
    }
}

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const BMP_STRING: u8 = 0x1e;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

/// Longer chains are a mistake, and clients do not take them.
const CHAIN_MAX: usize = 10;

/// RFC 8017, appendix A.1.
const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// The short names of RFC 4514 and of RFC 2985's e-mail address.
const ATTRIBUTES: [(&[u8], &str); 11] = [
    (COMMON_NAME, "CN"),
    (&[0x55, 0x04, 0x05], "serialNumber"),
    (&[0x55, 0x04, 0x06], "C"),
    (&[0x55, 0x04, 0x07], "L"),
    (&[0x55, 0x04, 0x08], "ST"),
    (&[0x55, 0x04, 0x09], "STREET"),
    (&[0x55, 0x04, 0x0a], "O"),
    (&[0x55, 0x04, 0x0b], "OU"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19], "DC"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01], "UID"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x01], "emailAddress"),
];

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn certificate() -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["sensor.example".to_owned()]).expect("names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CountryName, "DE");
        params.distinguished_name.push(DnType::OrganizationName, "Weaver, Birds");
        params.distinguished_name.push(DnType::CommonName, "sensor 7");
        params.subject_alt_names.push(SanType::IpAddress([192, 0, 2, 7].into()));
        params.subject_alt_names.push(SanType::URI("urn:x".try_into().expect("uri")));
        params.not_after = date_time_ymd(2040, 2, 29);
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
        assert_eq!(parse_time((UTC_TIME, b"700101000000Z")), Some(0));
        assert_eq!(parse_time((UTC_TIME, b"491231235959Z")), Some(2_524_607_999));
        assert_eq!(parse_time((GENERALIZED_TIME, b"20000229000000Z")), Some(951_782_400));
        assert_eq!(parse_time((GENERALIZED_TIME, b"99991231235959Z")), Some(253_402_300_799));
        assert_eq!(parse_time((UTC_TIME, b"7001010000Z")), None);
        assert_eq!(parse_time((UTC_TIME, "7001010000\u{e9}Z".as_bytes())), None);
    }

    #[test]
    fn names_are_escaped_as_rfc_4514_says() {
        let mut out = String::new();
        escape(" #a+b\\ ", &mut out);
        assert_eq!(out, "\\ #a\\+b\\\\\\ ");
        assert_eq!(dotted(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d]), "1.2.840.113549");
    }
}
