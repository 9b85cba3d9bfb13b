//! The PROXY protocol, versions 1 and 2, as parsers over bytes
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// What a proxy says about the connection that it passes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client. `None` if the proxy speaks for itself (`LOCAL`, a health check) or does not
    /// know.
    pub source: Option<SocketAddr>,
    /// Where the client connected to.
    pub destination: Option<SocketAddr>,
    /// The host name that the client asked for (TLV `AUTHORITY`).
    pub authority: Option<String>,
    /// TLS between client and proxy (TLV `SSL`).
    pub tls: Option<ProxyTls>,
}

/// What a proxy says about TLS that ended at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyTls {
    /// The client sent a certificate and the proxy verified it.
    pub is_verified: bool,
    pub version: Option<String>,
    /// The common name of the client's certificate. Trust it only if `is_verified`.
    pub common_name: Option<String>,
    pub cipher: Option<String>,
}

/// Whether a byte stream opens with a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniff {
    Header,
    Other,
    /// Too few bytes to decide.
    Unsure,
}

/// Why a PROXY header, or its absence, refuses a connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProxyError {
    #[error("the connection is not from trusted_proxies: direct clients need another listener")]
    Untrusted,
    #[error("the trusted proxy sent no PROXY header: enable the PROXY protocol at the proxy")]
    Missing,
    #[error("the PROXY header exceeds {HEADER_BYTES_MAX} bytes")]
    TooLong,
    #[error("the PROXY v1 line is malformed")]
    Line,
    #[error("the PROXY v2 header has an unknown version or command")]
    Command,
    #[error("the PROXY v2 addresses are incomplete")]
    Addresses,
    #[error("a TLV of the PROXY v2 header is malformed")]
    Tlv,
    #[error("the checksum of the PROXY v2 header is wrong")]
    Checksum,
}

/// Longest header accepted, in bytes, version 1 or 2.
pub const HEADER_BYTES_MAX: usize = 8 * 1024;

/// Tells by the first bytes whether a PROXY header follows. No MQTT, TLS or HTTP client can be
/// mistaken for one: they differ in the first byte.
pub fn sniff(bytes: &[u8]) -> Sniff {
    if bytes.starts_with(V1_PREFIX) || bytes.starts_with(V2_SIGNATURE) {
        Sniff::Header
    } else if V1_PREFIX.starts_with(bytes) || V2_SIGNATURE.starts_with(bytes) {
        Sniff::Unsure
    } else {
        Sniff::Other
    }
}

/// Reads the header at the front of `bytes` and says how long it is. `None`: it goes on after them.
pub fn parse(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    match sniff(bytes) {
        Sniff::Unsure => Ok(None),
        Sniff::Other => Err(ProxyError::Missing),
        Sniff::Header if bytes.starts_with(V1_PREFIX) => parse_v1(bytes),
        Sniff::Header => parse_v2(bytes),
    }
}

fn parse_v1(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    let Some(line_feed) = bytes.iter().take(V1_BYTES_MAX).position(|&byte| byte == b'\n') else {
        return if bytes.len() >= V1_BYTES_MAX { Err(ProxyError::Line) } else { Ok(None) };
    };
    let line = bytes[V1_PREFIX.len()..line_feed].strip_suffix(b"\r").ok_or(ProxyError::Line)?;
    let line = str::from_utf8(line).map_err(|_| ProxyError::Line)?;
    let (source, destination) = parse_v1_addresses(line).ok_or(ProxyError::Line)?;
    let header = ProxyHeader { source, destination, ..ProxyHeader::default() };
    Ok(Some((header, line_feed + 1)))
}

/// Source and destination; both `None` for `UNKNOWN`, after which anything may stand.
fn parse_v1_addresses(line: &str) -> Option<(Option<SocketAddr>, Option<SocketAddr>)> {
    let mut words = line.split(' ');
    let is_v4 = match words.next()? {
        "TCP4" => true,
        "TCP6" => false,
        "UNKNOWN" => return Some((None, None)),
        _ => return None,
    };
    let ip = |word: &str| -> Option<IpAddr> {
        if is_v4 {
            word.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
        } else {
            word.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
        }
    };
    let source_ip = ip(words.next()?)?;
    let destination_ip = ip(words.next()?)?;
    let source_port = parse_v1_port(words.next()?)?;
    let destination_port = parse_v1_port(words.next()?)?;
    if words.next().is_some() {
        return None;
    }
    let source = SocketAddr::new(source_ip, source_port);
    let destination = SocketAddr::new(destination_ip, destination_port);
    Some((Some(source), Some(destination)))
}

/// Decimal, no sign, no leading zeros.
fn parse_v1_port(word: &str) -> Option<u16> {
    let is_canonical = word == "0" || !word.starts_with(['0', '+']);
    if is_canonical { word.parse().ok() } else { None }
}

fn parse_v2(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<V2_FIXED_BYTES>() else {
        return Ok(None);
    };
    let body_len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let len = V2_FIXED_BYTES + body_len;
    if len > HEADER_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    let is_local = match fixed[12] {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyError::Command),
    };
    let Some(body) = rest.get(..body_len) else {
        return Ok(None);
    };
    if is_local {
        // The addresses and TLVs of a LOCAL header must be skipped, whatever they are.
        return Ok(Some((ProxyHeader::default(), len)));
    }
    let (mut header, tlvs) = parse_v2_addresses(fixed[13], body)?;
    parse_v2_tlvs(tlvs, &bytes[..len], &mut header)?;
    Ok(Some((header, len)))
}

fn parse_v2_addresses(family: u8, body: &[u8]) -> Result<(ProxyHeader, &[u8]), ProxyError> {
    let short = ProxyError::Addresses;
    let port = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (source, destination, tlvs) = match family {
        0x11 => {
            let (block, tlvs) = body.split_first_chunk::<12>().ok_or(short)?;
            let ip =
                |at: usize| Ipv4Addr::new(block[at], block[at + 1], block[at + 2], block[at + 3]);
            let source = SocketAddr::new(ip(0).into(), port(block, 8));
            let destination = SocketAddr::new(ip(4).into(), port(block, 10));
            (Some(source), Some(destination), tlvs)
        }
        0x21 => {
            let (source_ip, rest) = body.split_first_chunk::<16>().ok_or(short)?;
            let (destination_ip, rest) = rest.split_first_chunk::<16>().ok_or(short)?;
            let (ports, tlvs) = rest.split_first_chunk::<4>().ok_or(short)?;
            let source = SocketAddr::new(Ipv6Addr::from(*source_ip).into(), port(ports, 0));
            let destination =
                SocketAddr::new(Ipv6Addr::from(*destination_ip).into(), port(ports, 2));
            (Some(source), Some(destination), tlvs)
        }
        // Known families that say nothing of use for a byte stream over IP: datagrams and unix
        // paths.
        0x12 => (None, None, body.get(12..).ok_or(short)?),
        0x22 => (None, None, body.get(36..).ok_or(short)?),
        0x31 | 0x32 => (None, None, body.get(216..).ok_or(short)?),
        // UNSPEC and anything else: the receiver ignores the addresses, whose length is unknown.
        _ => (None, None, &[][..]),
    };
    Ok((ProxyHeader { source, destination, ..ProxyHeader::default() }, tlvs))
}

fn parse_v2_tlvs(tlvs: &[u8], whole: &[u8], header: &mut ProxyHeader) -> Result<(), ProxyError> {
    for tlv in Tlvs(tlvs) {
        let (kind, value) = tlv?;
        match kind {
            TLV_AUTHORITY => header.authority = Some(text(value)?),
            TLV_CHECKSUM => check_crc32c(value, whole)?,
            TLV_SSL => header.tls = parse_ssl(value)?,
            _ => {}
        }
    }
    Ok(())
}

fn parse_ssl(value: &[u8]) -> Result<Option<ProxyTls>, ProxyError> {
    let (fixed, tlvs) = value.split_first_chunk::<5>().ok_or(ProxyError::Tlv)?;
    if fixed[0] & SSL_CLIENT_USED_TLS == 0 {
        return Ok(None);
    }
    let has_certificate = fixed[0] & (SSL_CERTIFICATE_HERE | SSL_CERTIFICATE_SESSION) != 0;
    let is_valid = fixed[1..] == [0; 4];
    let mut tls = ProxyTls { is_verified: has_certificate && is_valid, ..ProxyTls::default() };
    for tlv in Tlvs(tlvs) {
        let (kind, value) = tlv?;
        match kind {
            TLV_SSL_VERSION => tls.version = Some(text(value)?),
            TLV_SSL_COMMON_NAME => tls.common_name = Some(text(value)?),
            TLV_SSL_CIPHER => tls.cipher = Some(text(value)?),
            _ => {}
        }
    }
    Ok(Some(tls))
}

fn text(value: &[u8]) -> Result<String, ProxyError> {
    str::from_utf8(value).map(str::to_owned).map_err(|_| ProxyError::Tlv)
}

/// The sum covers the whole header with the sum itself taken as zero.
fn check_crc32c(value: &[u8], whole: &[u8]) -> Result<(), ProxyError> {
    let stated: [u8; 4] = value.try_into().map_err(|_| ProxyError::Tlv)?;
    let at = value.as_ptr().addr() - whole.as_ptr().addr();
    let mut zeroed = whole.to_vec();
    zeroed[at..at + 4].fill(0);
    if crc32c(&zeroed) == u32::from_be_bytes(stated) { Ok(()) } else { Err(ProxyError::Checksum) }
}

/// Bit by bit: at most once per connection, over at most [`HEADER_BYTES_MAX`] bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// Type, length (two bytes), value; repeated to the end.
struct Tlvs<'a>(&'a [u8]);

impl<'a> Iterator for Tlvs<'a> {
    type Item = Result<(u8, &'a [u8]), ProxyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let parsed = self.0.split_first_chunk::<3>().and_then(|(head, rest)| {
            let len = usize::from(u16::from_be_bytes([head[1], head[2]]));
            rest.split_at_checked(len).map(|(value, rest)| (head[0], value, rest))
        });
        let Some((kind, value, rest)) = parsed else {
            self.0 = &[];
            return Some(Err(ProxyError::Tlv));
        };
        self.0 = rest;
        Some(Ok((kind, value)))
    }
}

const V1_PREFIX: &[u8] = b"PROXY ";
const V1_BYTES_MAX: usize = 107;
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const V2_FIXED_BYTES: usize = 16;
const TLV_AUTHORITY: u8 = 0x02;
const TLV_CHECKSUM: u8 = 0x03;
const TLV_SSL: u8 = 0x20;
const TLV_SSL_VERSION: u8 = 0x21;
const TLV_SSL_COMMON_NAME: u8 = 0x22;
const TLV_SSL_CIPHER: u8 = 0x23;
const SSL_CLIENT_USED_TLS: u8 = 1;
const SSL_CERTIFICATE_HERE: u8 = 2;
const SSL_CERTIFICATE_SESSION: u8 = 4;
const CRC32C_POLYNOMIAL: u32 = 0x82f6_3b78;

#[cfg(test)]
mod tests {
    use super::*;

    fn v1(line: &str) -> Result<Option<(ProxyHeader, usize)>, ProxyError> {
        parse(line.as_bytes())
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = V2_SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend((value.len() as u16).to_be_bytes());
        bytes.extend(value);
        bytes
    }

    const IPV4_BLOCK: [u8; 12] = [192, 0, 2, 7, 192, 0, 2, 1, 0x12, 0x34, 0x07, 0x5b];

    #[test]
    fn a_v1_line_names_the_client() {
        let text = "PROXY TCP4 192.0.2.7 192.0.2.1 4660 1883\r\nrest";
        let (header, len) = v1(text).expect("good").expect("whole");
        assert_eq!(header.source, Some("192.0.2.7:4660".parse().expect("address")));
        assert_eq!(header.destination, Some("192.0.2.1:1883".parse().expect("address")));
        assert_eq!(&text[len..], "rest");
        let (header, _) = v1("PROXY TCP6 ::1 ::2 1 2\r\n").expect("good").expect("whole");
        assert_eq!(header.source, Some("[::1]:1".parse().expect("address")));
        let (header, _) = v1("PROXY UNKNOWN what ever\r\n").expect("good").expect("whole");
        assert_eq!(header, ProxyHeader::default());
    }

    #[test]
    fn bad_v1_lines_are_refused() {
        for line in [
            "PROXY TCP4 192.0.2.7 192.0.2.1 4660 1883\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 4660\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 4660 65536\r\n",
            "PROXY TCP4 192.0.2.7 192.0.2.1 04660 1\r\n",
            "PROXY TCP4 ::1 ::1 1 1\r\n",
            "PROXY TCP5 ::1 ::1 1 1\r\n",
            "PROXY TCP6 ::1  ::1 1 1\r\n",
            "PROXY TCP6 ::1 ::1 1 1 1\r\n",
            "PROXY \r\n",
        ] {
            assert_eq!(v1(line), Err(ProxyError::Line), "{line}");
        }
        let endless = format!("PROXY UNKNOWN {}", "x".repeat(200));
        assert_eq!(v1(&endless), Err(ProxyError::Line));
    }

    #[test]
    fn a_v2_header_names_client_authority_and_certificate() {
        let mut ssl = vec![SSL_CLIENT_USED_TLS | SSL_CERTIFICATE_HERE, 0, 0, 0, 0];
        ssl.extend(tlv(TLV_SSL_VERSION, b"TLSv1.3"));
        ssl.extend(tlv(TLV_SSL_COMMON_NAME, b"sensor-1"));
        ssl.extend(tlv(TLV_SSL_CIPHER, b"AES"));
        let mut body = IPV4_BLOCK.to_vec();
        body.extend(tlv(0xee, b"unknown"));
        body.extend(tlv(TLV_AUTHORITY, b"broker.example"));
        body.extend(tlv(TLV_SSL, &ssl));
        let bytes = v2(0x21, 0x11, &body);
        let (header, len) = parse(&bytes).expect("good").expect("whole");
        assert_eq!(len, bytes.len());
        assert_eq!(header.source, Some("192.0.2.7:4660".parse().expect("address")));
        assert_eq!(header.authority.as_deref(), Some("broker.example"));
        let tls = header.tls.expect("tls");
        assert!(tls.is_verified);
        assert_eq!(tls.common_name.as_deref(), Some("sensor-1"));
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
    }

    #[test]
    fn an_unverified_certificate_is_not_called_verified() {
        for flags_and_result in [[1, 0, 0, 0, 0], [3, 0, 0, 0, 1]] {
            let mut body = IPV4_BLOCK.to_vec();
            body.extend(tlv(TLV_SSL, &flags_and_result));
            let (header, _) = parse(&v2(0x21, 0x11, &body)).expect("good").expect("whole");
            assert!(!header.tls.expect("tls").is_verified);
        }
    }

    #[test]
    fn local_and_foreign_families_name_nobody() {
        for (command, family, body) in [
            (0x20, 0x00, &[][..]),
            (0x20, 0x11, &[1, 2, 3][..]),
            (0x21, 0x00, &[9; 40][..]),
            (0x21, 0x31, &[0; 216][..]),
        ] {
            let (header, _) = parse(&v2(command, family, body)).expect("good").expect("whole");
            assert_eq!(header, ProxyHeader::default());
        }
    }

    #[test]
    fn bad_v2_headers_are_refused() {
        assert_eq!(parse(&v2(0x31, 0x11, &IPV4_BLOCK)), Err(ProxyError::Command));
        assert_eq!(parse(&v2(0x22, 0x11, &IPV4_BLOCK)), Err(ProxyError::Command));
        assert_eq!(parse(&v2(0x21, 0x11, &IPV4_BLOCK[..11])), Err(ProxyError::Addresses));
        assert_eq!(parse(&v2(0x21, 0x21, &[0; 35])), Err(ProxyError::Addresses));
        let mut body = IPV4_BLOCK.to_vec();
        body.extend([TLV_AUTHORITY, 0, 9, b'x']);
        assert_eq!(parse(&v2(0x21, 0x11, &body)), Err(ProxyError::Tlv));
        let long = v2(0x21, 0x11, &vec![0; HEADER_BYTES_MAX]);
        assert_eq!(parse(&long[..V2_FIXED_BYTES]), Err(ProxyError::TooLong));
        assert_eq!(parse(b"\x10\x00"), Err(ProxyError::Missing));
    }

    #[test]
    fn the_checksum_is_checked() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut body = IPV4_BLOCK.to_vec();
        body.extend(tlv(TLV_CHECKSUM, &[0; 4]));
        let mut bytes = v2(0x21, 0x11, &body);
        assert_eq!(parse(&bytes), Err(ProxyError::Checksum));
        let sum = crc32c(&bytes).to_be_bytes();
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&sum);
        assert!(parse(&bytes).is_ok());
    }
}
