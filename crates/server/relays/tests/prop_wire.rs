//! The wire form of relays, for any frame and any bytes.

use std::net::SocketAddr;

use net::{CertificateInfo, PeerAddress, PeerInfo, ProxyTls, TlsInfo, UnixCredentials};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use relays::Refused;
use relays::wire::{Arrival, CREDIT_BYTES_MAX, Ended, Frame, decode, encode};

fn addresses() -> impl Strategy<Value = PeerAddress> {
    prop_oneof![Just(PeerAddress::Unix), any::<SocketAddr>().prop_map(PeerAddress::Inet)]
}

fn texts() -> impl Strategy<Value = String> {
    "[a-zä]{0,20}"
}

fn certificates() -> impl Strategy<Value = CertificateInfo> {
    let names = (texts(), texts(), vec(texts(), 0..4), texts());
    (names, any::<u64>(), any::<bool>()).prop_map(|(names, not_after_secs, is_unissued)| {
        let (common_name, subject, alternative_names, fingerprint_sha256) = names;
        CertificateInfo {
            common_name,
            subject,
            alternative_names,
            fingerprint_sha256,
            not_after_secs,
            is_unissued,
        }
    })
}

fn tls() -> impl Strategy<Value = TlsInfo> {
    let versions = prop_oneof![Just("TLSv1.2"), Just("TLSv1.3"), Just("unknown")];
    let ciphers = prop_oneof![Just("TLS13_AES_256_GCM_SHA384"), Just("unknown")];
    let names = (versions, ciphers, of(texts()), of(texts()));
    (names, any::<bool>(), of(certificates())).prop_map(|(names, is_resumed, certificate)| {
        let (version, cipher, server_name, alpn) = names;
        TlsInfo {
            version,
            cipher,
            server_name: server_name.map(Into::into),
            alpn: alpn.map(Into::into),
            is_resumed,
            certificate: certificate.map(Box::new),
        }
    })
}

fn proxies() -> impl Strategy<Value = ProxyTls> {
    (any::<bool>(), of(texts()), of(texts()), of(texts())).prop_map(
        |(is_verified, version, common_name, cipher)| ProxyTls {
            is_verified,
            version,
            common_name,
            cipher,
        },
    )
}

fn arrivals() -> impl Strategy<Value = Arrival> {
    let unix = any::<(i32, u32, u32)>().prop_map(|(process_id, user_id, group_id)| {
        UnixCredentials { process_id, user_id, group_id }
    });
    let addresses = (addresses(), of(addresses()));
    let peer = (addresses, of(tls()), of(proxies()), of(texts()), any::<bool>(), of(unix));
    let bytes = (vec(vec(any::<u8>(), 0..99), 0..3), texts(), vec(any::<u8>(), 0..4096));
    (peer, bytes).prop_map(|(peer, (chain, listener, bytes))| {
        let ((address, proxied_by), tls, proxy_tls, authority, is_websocket, unix) = peer;
        let (tls, proxy_tls) = (tls.map(Box::new), proxy_tls.map(Box::new));
        let proxy_authority = authority.map(Into::into);
        let peer =
            PeerInfo { address, proxied_by, tls, proxy_tls, proxy_authority, is_websocket, unix };
        Arrival { peer, chain, listener, bytes }
    })
}

fn frames() -> impl Strategy<Value = Frame> {
    let count = || 0..=CREDIT_BYTES_MAX;
    prop_oneof![
        arrivals().prop_map(|arrival| Frame::Open(Box::new(arrival))),
        count().prop_map(Frame::Opened),
        Just(Frame::Refused(Refused::NotOwner)),
        Just(Frame::Refused(Refused::NoRoom)),
        vec(any::<u8>(), 1..5000).prop_map(Frame::Data),
        count().prop_map(Frame::Credit),
        count().prop_map(Frame::Returned),
        Just(Frame::Close(Ended::Stream)),
        Just(Frame::Close(Ended::Epoch)),
    ]
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn a_frame_is_read_as_it_was_written(frame in frames()) {
        prop_assert_eq!(decode(&encoded(&frame)), Ok(frame));
    }

    /// All but those whose last field goes to the end.
    #[test]
    fn a_part_of_a_frame_is_none(frame in frames(), at in any::<prop::sample::Index>()) {
        let bytes = encoded(&frame);
        let open_end = match &frame {
            Frame::Open(arrival) => arrival.bytes.len(),
            Frame::Data(data) => data.len() - 1,
            _ => 0,
        };
        let part = at.index(bytes.len() - open_end);
        prop_assert!(decode(&bytes[..part]).is_err(), "{part}");
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in vec(any::<u8>(), 0..300), kind in 0_u8..9) {
        let bytes = [&[kind], &bytes[..]].concat();
        if let Ok(frame) = decode(&bytes) {
            prop_assert_eq!(decode(&encoded(&frame)), Ok(frame));
        }
    }
}

/// Another version reads and writes the same.
#[test]
fn frames_have_their_bytes() {
    let address = PeerAddress::Inet(SocketAddr::from(([192, 0, 2, 7], 1883)));
    let peer = PeerInfo {
        address,
        proxied_by: Some(PeerAddress::Unix),
        tls: None,
        proxy_tls: None,
        proxy_authority: Some("a".into()),
        is_websocket: true,
        unix: Some(UnixCredentials { process_id: 1, user_id: 2, group_id: 300 }),
    };
    let (chain, listener, bytes) = (vec![vec![5, 6]], "l".to_owned(), vec![16, 0]);
    let open = Frame::Open(Box::new(Arrival { peer, chain, listener, bytes }));
    let expected = [
        &[1, 1, 1 + 2 + 16 + 32][..],
        &[4, 192, 0, 2, 7, 0xdb, 14, 0, 1, b'a', 1, 2, 0xac, 2, 1, 2, 5, 6, 1, b'l', 16, 0],
    ];
    assert_eq!(encoded(&open), expected.concat());
    assert_eq!(encoded(&Frame::Opened(300)), [2, 0xac, 2]);
    assert_eq!(encoded(&Frame::Refused(Refused::NotOwner)), [3, 1]);
    assert_eq!(encoded(&Frame::Refused(Refused::NoRoom)), [3, 2]);
    assert_eq!(encoded(&Frame::Data(vec![9])), [4, 9]);
    assert_eq!(encoded(&Frame::Credit(1)), [5, 1]);
    assert_eq!(encoded(&Frame::Returned(1)), [6, 1]);
    assert_eq!(encoded(&Frame::Close(Ended::Stream)), [7, 1]);
    assert_eq!(encoded(&Frame::Close(Ended::Epoch)), [7, 2]);
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    let why = |bytes: &[u8]| decode(bytes).expect_err("it is no frame").to_string();
    let of = |what, at| format!("invalid data of a relayed connection: {what} (byte {at})");
    assert_eq!(why(&[]), of("it ends early", 0));
    assert_eq!(why(&[0]), of("an unknown kind of frame", 1));
    assert_eq!(why(&[4]), of("data without a byte", 1));
    assert_eq!(why(&[5, 0x81, 0x80, 4]), of("more than a credit can be", 4));
    assert_eq!(why(&[7, 1, 1]), of("there are bytes behind the end", 2));
    assert_eq!(why(&[7, 3]), of("an unknown reason to close", 2));
    let version = "unsupported version of an arrival: upgrade the older node";
    assert_eq!(why(&[1, 2]), of(version, 2));
    assert_eq!(why(&[1, 1, 64]), of("an unknown flag of an arrival", 3));
}
