//! The PROXY parser against headers built otherwise.

use std::net::SocketAddr;

use net::proxy::{Sniff, parse, sniff};
use proptest::collection::vec;
use proptest::prelude::*;

fn v1(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (source.ip(), destination.ip());
    let (from_port, to_port) = (source.port(), destination.port());
    format!("PROXY {family} {from} {to} {from_port} {to_port}\r\n").into_bytes()
}

fn v2(source: SocketAddr, destination: SocketAddr, tlvs: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for address in [source, destination] {
        match address {
            SocketAddr::V4(address) => body.extend(address.ip().octets()),
            SocketAddr::V6(address) => body.extend(address.ip().octets()),
        }
    }
    body.extend(source.port().to_be_bytes());
    body.extend(destination.port().to_be_bytes());
    for (kind, value) in tlvs {
        body.push(*kind);
        body.extend((value.len() as u16).to_be_bytes());
        body.extend(value);
    }
    let family = if source.is_ipv4() { 0x11 } else { 0x21 };
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    bytes.push(family);
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn addresses() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    prop_oneof![
        any::<([u8; 4], u16, [u8; 4], u16)>()
            .prop_map(|(a, ap, b, bp)| ((a, ap).into(), (b, bp).into())),
        any::<([u8; 16], u16, [u8; 16], u16)>()
            .prop_map(|(a, ap, b, bp)| ((a, ap).into(), (b, bp).into())),
    ]
}

proptest! {
    #[test]
    fn headers_are_read_whole_and_no_further(
        (source, destination) in addresses(),
        // Kinds that mean nothing to us.
        tlvs in vec((0x30u8..0xe0, vec(any::<u8>(), 0..50)), 0..5),
        is_v1 in any::<bool>(),
        behind in vec(any::<u8>(), 0..20),
    ) {
        let header = if is_v1 { v1(source, destination) } else { v2(source, destination, &tlvs) };
        for cut in 0..header.len() {
            prop_assert_eq!(parse(&header[..cut]), Ok(None));
        }
        let bytes = [&header[..], &behind].concat();
        let (parsed, len) = parse(&bytes).expect("good").expect("whole");
        prop_assert_eq!(len, header.len());
        prop_assert_eq!(parsed.source, Some(source));
        prop_assert_eq!(parsed.destination, Some(destination));
    }

    #[test]
    fn any_bytes_behind_a_signature_give_a_verdict(
        is_v1 in any::<bool>(),
        bytes in vec(any::<u8>(), 0..300),
    ) {
        let start = if is_v1 { &b"PROXY "[..] } else { b"\r\n\r\n\0\r\nQUIT\n" };
        let bytes = [start, &bytes].concat();
        prop_assert_eq!(sniff(&bytes), Sniff::Header);
        if let Ok(Some((_, len))) = parse(&bytes) {
            prop_assert!(len <= bytes.len());
        }
    }

    #[test]
    fn no_client_is_mistaken_for_a_proxy(bytes in vec(any::<u8>(), 1..50)) {
        let is_like_one = bytes[0] == b'P' || bytes[0] == b'\r';
        prop_assert!(is_like_one || sniff(&bytes) == Sniff::Other);
    }
}
