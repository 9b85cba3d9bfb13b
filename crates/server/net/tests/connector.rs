//! The connecting side without TLS and WebSocket, which have tests of their own.

mod common;

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;
use std::{env, process};

use common::{connector, exchange, good_pair, listen, read, serve, write};
use net::{Address, Connect, ConnectOptions, HandshakeError, ListenOptions, Listener, PeerAddress};

/// Only a hang can reach it.
const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn bytes_pass_both_ways_over_tcp() {
    let (mut listener, address) = listen("tcp://127.0.0.1:0", &ListenOptions::default());
    let connector = connector(&format!("tcp://{address}"), &ConnectOptions::default());
    let ((server, _), (client, peer)) = good_pair(&mut listener, &connector);
    assert_eq!(peer.address, PeerAddress::Inet(address));
    exchange(server, client);
}

#[test]
fn bytes_pass_both_ways_over_a_unix_socket() {
    let path = env::temp_dir().join(format!("quelea-net-{}-connector.sock", process::id()));
    let address = Address::Unix(path);
    let mut listener = Listener::bind(&address, &ListenOptions::default()).expect("bind");
    let connector = connector(&address.to_string(), &ConnectOptions::default());
    let ((server, _), (client, _)) = good_pair(&mut listener, &connector);
    exchange(server, client);
}

/// The whole of 127.0.0.0/8 is local on Linux without any set-up.
#[cfg(target_os = "linux")]
#[test]
fn the_source_address_is_as_asked() {
    let (mut listener, address) = listen("tcp://127.0.0.1:0", &ListenOptions::default());
    let connector = connector(&format!("tcp://{address}"), &ConnectOptions::default());
    let source: IpAddr = "127.7.7.7".parse().expect("address");
    for _ in 0..2 {
        let handshake = connector.connect(&Connect::from_ip(source)).expect("connect");
        let (stream, peer) = serve(&mut listener).expect("stream");
        let PeerAddress::Inet(found) = peer.address else {
            panic!("{:?}", peer.address);
        };
        assert_eq!(found.ip(), source);
        assert_eq!(stream.local_address(), Some(address));
        drop(handshake);
    }
}

#[test]
fn a_refused_connection_is_an_error() {
    // Bound, but nobody listens.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("socket");
    let any = "127.0.0.1:0".parse::<std::net::SocketAddr>().expect("address");
    socket.bind(&any.into()).expect("bind");
    let port = socket.local_addr().expect("address").as_socket().expect("inet").port();
    let connector = connector(&format!("tcp://127.0.0.1:{port}"), &ConnectOptions::default());
    let error = connector.connect_blocking(&Connect::default(), TIMEOUT).err().expect("an error");
    let HandshakeError::Io(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_blocking_connect_tries_each_address_of_the_name() {
    let (mut listener, address) = listen("tcp://127.0.0.1:0", &ListenOptions::default());
    // May resolve to ::1 first, where nobody listens.
    let url = format!("tcp://localhost:{}", address.port());
    let connector = connector(&url, &ConnectOptions::default());
    assert!(connector.address_count() >= 1);
    let connected = connector.connect_blocking(&Connect::default(), TIMEOUT);
    let (mut client, _) = connected.expect("a connection");
    let (mut server, _) = serve(&mut listener).expect("stream");
    write(&mut client, b"hello").expect("write");
    assert_eq!(read(&mut server, 5).expect("read"), b"hello");
}

#[test]
fn a_silent_server_is_given_up() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("ws://{}/mqtt", silent.local_addr().expect("address"));
    let connector = connector(&url, &ConnectOptions::default());
    let result = connector.connect_blocking(&Connect::default(), Duration::from_millis(20));
    let error = result.err().expect("an error");
    assert!(
        matches!(&error, HandshakeError::Io(io) if io.kind() == ErrorKind::TimedOut),
        "{error}"
    );
}

#[test]
fn an_address_without_its_options_is_refused_at_once() {
    let address: Address = "tls://127.0.0.1:1".parse().expect("url");
    let error = net::Connector::new(&address, &ConnectOptions::default()).err().expect("an error");
    assert!(error.to_string().contains("needs TLS options"), "{error}");
}
