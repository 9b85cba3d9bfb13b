//! The PROXY protocol's header, both versions.

use net::proxy::{HEADER_BYTES_MAX, ProxyError, Sniff, parse, sniff};

pub fn proxy_header(bytes: &[u8]) {
    match parse(bytes) {
        Ok(Some((header, len))) => {
            assert_eq!(sniff(bytes), Sniff::Header);
            assert!(len <= bytes.len().min(HEADER_BYTES_MAX));
            assert_eq!(header.source.is_some(), header.destination.is_some());
            assert_eq!(parse(&bytes[..len]), Ok(Some((header, len))));
            for cut in [0, 1, len / 2, len - 1] {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "cut at {cut}");
            }
        }
        Ok(None) => {
            assert_ne!(sniff(bytes), Sniff::Other);
            assert!(bytes.len() < HEADER_BYTES_MAX, "a header ends somewhere");
        }
        Err(ProxyError::Missing) => assert_eq!(sniff(bytes), Sniff::Other),
        Err(_) => assert_eq!(sniff(bytes), Sniff::Header),
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [
        "PROXY TCP4 192.0.2.7 192.0.2.1 4660 1883\r\n",
        "PROXY TCP6 2001:db8::7 ::1 1 65535\r\nMQTT",
        "PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n",
    ]
    .map(|line| line.as_bytes().to_vec())
    .to_vec();
    let ssl =
        tlv(0x20, &[&[7, 0, 0, 0, 0], &tlv(0x21, b"TLSv1.3")[..], &tlv(0x22, b"cn")].concat());
    let tlvs = [&tlv(0x01, b"mqtt")[..], &tlv(0x02, b"broker.example"), &ssl, &tlv(0x04, b"")];
    for (command, family, addresses) in
        [(0x21, 0x11, 12), (0x21, 0x21, 36), (0x21, 0x31, 216), (0x21, 0, 0), (0x20, 0, 0)]
    {
        let body = [&vec![9; addresses][..], &tlvs.concat()].concat();
        let len = (body.len() as u16).to_be_bytes();
        let signature = b"\r\n\r\n\0\r\nQUIT\n";
        seeds.push([&signature[..], &[command, family], &len, &body].concat());
    }
    seeds
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let len = (value.len() as u16).to_be_bytes();
    [&[kind], &len[..], value].concat()
}
