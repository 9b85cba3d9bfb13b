//! Peers that are no node of the cluster, or break the protocol.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::certificates::Authority;
use common::{CLUSTER, Event, Node, join, options, packet};
use links::hello::{EXPORTED_BYTES, EXPORTER_LABEL, Greeting, Hello, Secret};
use links::{
    Files, HANDSHAKE_MS_MAX, HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX, Options, Origin, Violation,
};
use net::{TlsClientContext, TlsClientOptions};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use socket2::{Domain, Socket, Type};

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A node `n2` that waits for `n1`.
fn node(authority: &Authority) -> Node {
    let node = Node::start(options("n2", authority.issue("n2")));
    node.links.add(common::member("n1", SocketAddr::from(([127, 0, 0, 1], 9))));
    node
}

fn connect(node: &Node) -> TcpStream {
    TcpStream::connect(node.links.local_address()).expect("connect")
}

/// TLS to the node, with these files.
fn tls(node: &Node, ca: &Files, own: Option<&Files>) -> Tls {
    let context = TlsClientContext::load(&TlsClientOptions {
        ca: Some(ca.ca.clone()),
        certificate: own.map(|files| files.certificate.clone()),
        key: own.map(|files| files.key.clone()),
        alpn: vec!["quelea-link".to_owned()],
        ..TlsClientOptions::default()
    });
    let config = Arc::clone(context.expect("files").config());
    let name = ServerName::try_from("n2").expect("name");
    let mut stream =
        StreamOwned::new(ClientConnection::new(config, name).expect("tls"), connect(node));
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).expect("the node's part is sound");
    }
    stream
}

fn hello(name: &str) -> Hello {
    Hello { versions: 1..=1, cluster: CLUSTER, lane: 0, session: 7, name: name.to_owned() }
}

/// The peer has got this, until the node closed the connection.
fn rest(mut stream: impl std::io::Read) -> Vec<u8> {
    let mut got = Vec::new();
    // That the connection was reset is as good.
    let _ = stream.read_to_end(&mut got);
    got
}

/// Sends bytes within TLS. The node closes the connection without an answer, for this reason.
fn refused(node: &Node, mut stream: Tls, bytes: &[u8]) -> String {
    stream.write_all(bytes).expect("it is open");
    let why = node.until_failed();
    assert_eq!(rest(stream), b"");
    why
}

#[test]
fn a_peer_without_a_sound_certificate_is_refused_by_tls() {
    let authority = Authority::new();
    let node = node(&authority);
    let sound = authority.issue("n1");
    let why = |own: Option<&Files>| {
        let stream = tls(&node, &sound, own);
        let why = node.until_failed();
        assert_eq!(rest(stream), b"");
        why
    };
    assert_eq!(why(None), "peer sent no certificates");
    let other = Authority::new();
    let foreign = why(Some(&other.issue("n1")));
    assert!(foreign.contains("UnknownIssuer"), "{foreign}");
    assert!(why(Some(&authority.issue_expired("n1"))).contains("xpired"));
}

#[test]
fn a_certificate_of_no_member_is_refused() {
    let authority = Authority::new();
    let node = node(&authority);
    let refused_as = |certificate: &str, name: &str| {
        let files = authority.issue(certificate);
        refused(&node, tls(&node, &files, Some(&files)), &hello(name).encode())
    };
    assert_eq!(refused_as("n0", "n0"), "unknown node n0: only members of the cluster may connect");
    let not_issued = "the certificate of the peer is not issued for node n1";
    assert_eq!(refused_as("n0", "n1"), not_issued);
    let direction = "node n3 has to wait: the node with the smaller name connects";
    assert_eq!(refused_as("n3", "n3"), direction);
    assert!(refused_as("n2", "n2").starts_with("node n2 has to wait"), "it is the node itself");
}

#[test]
fn garbage_gets_no_answer() {
    let authority = Authority::new();
    let node = node(&authority);
    let files = authority.issue("n1");
    let mut plain = connect(&node);
    plain.write_all(b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0").expect("it is open");
    assert!(node.until_failed().contains("orrupt"), "no TLS");
    assert_eq!(rest(plain), b"");
    let stream = || tls(&node, &files, Some(&files));
    let magic = "the peer does not speak the protocol of cluster links";
    assert_eq!(refused(&node, stream(), b"GET / HTTP/1.1\r\n\r\n"), magic);
    let too_long = "invalid hello: it is longer than 512 bytes";
    assert_eq!(refused(&node, stream(), b"quelinks\xff\xff"), too_long);
    assert_eq!(refused(&node, stream(), b"quelinks\0\0"), "invalid hello: it ends early");
    let other_lane = Hello { lane: 1, ..hello("n1") };
    let why =
        "node n1 asks for connection 1 of 1, counted from 0: set the same number on all nodes";
    assert_eq!(refused(&node, stream(), &other_lane.encode()), why);
}

/// It has a certificate of a member, but not the secret: it gets the node's hello, and no proof.
#[test]
fn a_wrong_proof_gets_no_proof() {
    let authority = Authority::new();
    let node = node(&authority);
    let files = authority.issue("n1");
    let mut stream = tls(&node, &files, Some(&files));
    stream.write_all(&hello("n1").encode()).expect("it is open");
    let mut got = hello("n2").encode();
    stream.read_exact(&mut got).expect("its hello");
    assert_eq!(Hello::decode(&got[10..]).expect("a hello").name, "n2");
    stream.write_all(&[7; 32]).expect("it is open");
    assert_eq!(node.until_failed(), "node n1 has another secret: it must be the same on all nodes");
    assert_eq!(rest(stream), b"");
}

/// Of two nodes with other options, `n1` and `n2`, what each reports.
fn mismatch(change: impl FnOnce(Options) -> Options) -> [String; 2] {
    let authority = Authority::new();
    let one = Node::start(options("n1", authority.issue("n1")));
    let other = Node::start(change(options("n2", authority.issue("n2"))));
    one.links.add(other.member());
    other.links.add(one.member());
    [other.until_failed(), one.until_failed()]
}

#[test]
fn nodes_of_other_clusters_secrets_and_versions_have_no_link() {
    let closed = "the peer closed the connection";
    let cluster = mismatch(|options| Options { cluster: [0; 16], ..options });
    assert_eq!(cluster, ["node n1 is of another cluster", closed]);
    let secret = mismatch(|options| Options { secret: Secret::new(*b"other"), ..options });
    assert_eq!(secret, ["node n1 has another secret: it must be the same on all nodes", closed]);
    let versions = mismatch(|options| Options { versions: 2..=3, ..options });
    let why = "the peer speaks versions 1 to 1, this node 2 to 3: upgrade the older node";
    assert_eq!(versions, [why, closed]);
}

#[test]
fn nodes_use_the_lower_of_their_highest_versions() {
    let authority = Authority::new();
    let start = |name, versions: RangeInclusive<u8>| {
        Node::start(Options { versions, ..options(name, authority.issue(name)) })
    };
    let (one, other) = (start("n1", 1..=1), start("n2", 1..=7));
    assert_eq!(join(&one, &other).map(|connected| connected.version), [1, 1]);
}

/// The node that connects checks as well.
#[test]
fn an_impostor_that_listens_is_refused() {
    let authority = Authority::new();
    let one = Node::start(options("n1", authority.issue("n1")));
    let refused_by = |files: Files| {
        let name = "n2";
        let impostor = Node::start(options(name, files));
        impostor.links.add(one.member());
        one.links.add(impostor.member());
        let why = one.until_failed();
        one.links.remove(name);
        why
    };
    let other = Authority::new();
    let foreign = other.issue("n2");
    let why = refused_by(foreign);
    assert!(why.contains("UnknownIssuer"), "{why}");
    let why = refused_by(authority.issue("n3"));
    assert!(why.contains("not valid for name"), "{why}");
    let why = refused_by(authority.issue_expired("n2"));
    assert!(why.contains("xpired"), "{why}");
}

/// A member with a proof, as one that is compromised or has a bug.
fn member_peer(node: &Node, files: &Files) -> Tls {
    let mut stream = tls(node, files, Some(files));
    let exported = [0; EXPORTED_BYTES];
    let exported = stream.conn.export_keying_material(exported, EXPORTER_LABEL, None);
    let secret = Secret::new(*b"secret of the cluster");
    let mut greeting = Greeting::connect(hello("n1"), secret, exported.expect("TLS is done"));
    loop {
        stream.write_all(&greeting.take_output()).expect("it is open");
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        let agreed = greeting.on_bytes(&mut &byte[..], &mut |_| Ok(0)).expect("it is a node");
        if agreed.is_some() {
            return stream;
        }
    }
}

#[test]
fn a_node_that_breaks_the_protocol_is_disconnected() {
    let authority = Authority::new();
    let node = node(&authority);
    let files = authority.issue("n1");
    let lost_by = |bytes: &[u8]| {
        let mut stream = member_peer(&node, &files);
        stream.write_all(bytes).expect("it is open");
        node.until_lost()
    };
    assert!(lost_by(&[0xff; 4]).contains("longer than 257 MiB"), "4 GB");
    let why = lost_by(&[0; 4]);
    assert!(why.contains("it ends early"), "{why}");
    assert_eq!(lost_by(&packet(1, 0, b"violation")), "a violation");
}

/// The handler has passed packets on to another thread.
#[test]
fn a_violation_that_is_found_later_closes_the_connection() {
    let authority = Authority::new();
    let one = Node::start(options("n1", authority.issue("n1")));
    let other = Node::start(options("n2", authority.issue("n2")));
    let [_, connected] = join(&one, &other);
    assert!(!connected.sender.is_dead());
    connected.sender.close(Violation("found later".to_owned()));
    assert_eq!(other.until_lost(), "found later");
    assert_eq!(one.until_lost(), "the peer closed the connection");
    assert!(connected.sender.is_dead());
    connected.sender.close(Violation("of no link".to_owned()));
    assert!(!other.until_connected().sender.is_dead(), "the next one lives");
}

/// Neither holds its connection for longer than a handshake may take.
#[test]
fn silence_and_one_byte_a_second_end_with_the_time_of_a_handshake() {
    let authority = Authority::new();
    let node = node(&authority);
    let files = authority.issue("n1");
    let silent = connect(&node);
    let mut slow = tls(&node, &files, Some(&files));
    let dripping = thread::spawn(move || {
        let hello = hello("n1").encode();
        let mut sent = hello.iter().take_while(|byte| {
            thread::sleep(Duration::from_secs(1));
            slow.write_all(&[**byte]).is_ok()
        });
        assert!(sent.by_ref().count() < hello.len());
        rest(slow)
    });
    let late = format!("the handshake took more than {HANDSHAKE_MS_MAX} ms");
    assert_eq!([node.until_failed(), node.until_failed()], [late.clone(), late]);
    assert_eq!(rest(silent), b"");
    assert_eq!(dripping.join().expect("it ends"), b"");
}

fn connect_from(from: Ipv4Addr, node: &Node) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("bind");
    socket.connect(&node.links.local_address().into()).expect("connect");
    socket
}

/// A node comes through while others hold all places.
#[test]
fn connections_in_their_handshake_are_bounded() {
    let authority = Authority::new();
    let node = Node::start(options("n2", authority.issue("n2")));
    let failed = || {
        node.until(|event| match event {
            Event::Failed { origin: Origin::Address(address), why } => Some((address.ip(), why)),
            _ => None,
        })
    };
    let from = |number: usize| Ipv4Addr::new(127, 0, 0, 10 + number as u8);
    let mut held = Vec::new();
    for _ in 0..=HANDSHAKES_PER_ADDRESS_MAX {
        held.push(connect_from(from(0), &node));
    }
    let (address, why) = failed();
    assert_eq!(address, IpAddr::V4(from(0)));
    assert_eq!(why, "too many connections of this address are in their handshake (limit 32)");
    for number in HANDSHAKES_PER_ADDRESS_MAX..HANDSHAKES_MAX {
        held.push(connect_from(from(number / HANDSHAKES_PER_ADDRESS_MAX), &node));
    }
    let one = Node::start(options("n1", authority.issue("n1")));
    node.links.add(one.member());
    one.links.add(node.member());
    one.until_connected();
    let (address, why) = failed();
    assert_eq!(address, IpAddr::V4(from(0)), "it was the first");
    assert!(why.starts_with("too many connections are in their handshake (limit 128)"), "{why}");
}
