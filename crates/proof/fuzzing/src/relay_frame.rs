//! What nodes send one another for relayed connections: an input is a frame.

use std::net::{Ipv6Addr, SocketAddr};

use net::{CertificateInfo, PeerAddress, PeerInfo, ProxyTls, TlsInfo, UnixCredentials};
use relays::Refused;
use relays::wire::{ARRIVAL_BYTES_MAX, Arrival, CREDIT_BYTES_MIN, Ended, Frame, decode, encode};

pub fn relay_frame(input: &[u8]) {
    let Ok(frame) = decode(input) else { return };
    if let Frame::Open(arrival) = &frame {
        assert!(arrival.bytes.len() <= CREDIT_BYTES_MIN as usize);
        assert!(input.len() - arrival.bytes.len() <= 1 + ARRIVAL_BYTES_MAX);
    }
    // Names of TLS that are not known here are not kept.
    let again = written(&frame);
    assert!(again == input || has_tls(&frame), "a frame has one encoding");
    assert_eq!(decode(&again), Ok(frame));
}

fn has_tls(frame: &Frame) -> bool {
    matches!(frame, Frame::Open(arrival) if arrival.peer.tls.is_some())
}

fn written(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes);
    bytes
}

/// Each kind of frame, and arrivals with all and with little.
pub fn seeds() -> Vec<Vec<u8>> {
    let open = |peer, chain| {
        let (listener, bytes) = ("tcp://:1883".to_owned(), b"\x10\x0c\0\x04MQTT".to_vec());
        Frame::Open(Box::new(Arrival { peer, chain, listener, bytes }))
    };
    let frames = [
        open(known(), vec![vec![0x30, 0x82], vec![0x30]]),
        open(PeerInfo { tls: None, proxy_tls: None, unix: None, ..known() }, Vec::new()),
        Frame::Opened(9),
        Frame::Refused(Refused::NotOwner),
        Frame::Refused(Refused::NoRoom),
        Frame::Data(b"data".to_vec()),
        Frame::Credit(4096),
        Frame::Returned(60_000),
        Frame::Close(Ended::Stream),
        Frame::Close(Ended::Epoch),
    ];
    frames.iter().map(written).collect()
}

fn known() -> PeerInfo {
    let text = |text: &str| Some(text.to_owned());
    let certificate = CertificateInfo {
        common_name: "device".to_owned(),
        subject: "CN=device,O=Example".to_owned(),
        alternative_names: vec!["DNS:device".to_owned(), "IP:192.0.2.7".to_owned()],
        fingerprint_sha256: "0123456789abcdef".to_owned(),
        not_after_secs: 2_000_000_000,
        is_unissued: true,
    };
    let tls = TlsInfo {
        version: "TLSv1.3",
        cipher: "TLS13_AES_256_GCM_SHA384",
        server_name: Some("broker".into()),
        alpn: Some("mqtt".into()),
        is_resumed: true,
        certificate: Some(Box::new(certificate)),
    };
    let (version, common_name, cipher) = (text("TLSv1.2"), text("device"), None);
    PeerInfo {
        address: PeerAddress::Inet(SocketAddr::from(([192, 0, 2, 7], 50_000))),
        proxied_by: Some(PeerAddress::Inet(SocketAddr::from((Ipv6Addr::LOCALHOST, 1)))),
        tls: Some(Box::new(tls)),
        proxy_tls: Some(Box::new(ProxyTls { is_verified: true, version, common_name, cipher })),
        proxy_authority: Some("broker.example".into()),
        is_websocket: true,
        unix: Some(UnixCredentials { process_id: -1, user_id: 0, group_id: 300 }),
    }
}
