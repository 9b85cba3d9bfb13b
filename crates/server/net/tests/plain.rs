//! TCP and unix sockets, with and without the PROXY protocol, over real sockets.

mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::{env, fs, process};

use common::{accept, complete, listen, read, read_to_end, serve, write};
use net::proxy::ProxyError;
use net::{
    Address, HandshakeError, ListenOptions, Listener, PeerAddress, Progress, ProxyOptions,
    TcpOptions,
};

fn proxied(trusted: &str) -> ListenOptions {
    let trusted = vec![trusted.parse().expect("range")];
    ListenOptions { proxy: Some(ProxyOptions { trusted }), ..ListenOptions::default() }
}

fn socket_path(name: &str) -> PathBuf {
    env::temp_dir().join(format!("quelea-net-{}-{name}.sock", process::id()))
}

#[test]
fn bytes_pass_both_ways_over_tcp() {
    let (mut listener, address) = listen("tcp://127.0.0.1:0", &ListenOptions::default());
    let mut client = TcpStream::connect(address).expect("connect");
    let (mut stream, peer) = serve(&mut listener).expect("stream");
    assert_eq!(peer.address, PeerAddress::Inet(client.local_addr().expect("address")));
    assert_eq!(stream.local_address(), Some(address));
    client.write_all(b"hello").expect("write");
    assert_eq!(read(&mut stream, 5).expect("read"), b"hello");
    write(&mut stream, b"world").expect("write");
    stream.shutdown().expect("shutdown");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("read");
    assert_eq!(answer, "world");
    client.write_all(b"late").expect("write");
    client.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(read_to_end(&mut stream).expect("read"), b"late");
}

#[test]
fn a_congested_connection_takes_what_fits_and_loses_nothing() {
    let (mut listener, address) = listen("tcp://127.0.0.1:0", &ListenOptions::default());
    let mut client = TcpStream::connect(address).expect("connect");
    let (mut stream, _) = serve(&mut listener).expect("stream");
    let sent: Vec<u8> = (0..8_000_000u32).map(|n| (n % 251) as u8).collect();
    let expected = sent.clone();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        client.read_exact(&mut got).expect("read");
        assert!(got == expected);
    });
    write(&mut stream, &sent).expect("write");
    reader.join().expect("reader");
}

#[test]
fn nothing_to_accept_is_none() {
    let (listener, _) = listen("tcp://127.0.0.1:0", &ListenOptions::default());
    assert!(listener.accept().expect("accept").is_none());
}

#[test]
fn an_occupied_port_is_named() {
    let (_listener, address) = listen("tcp://127.0.0.1:0", &ListenOptions::default());
    let error = Listener::bind(&Address::tcp(address), &ListenOptions::default()).err();
    let error = error.expect("an error");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&format!("cannot listen on tcp://{address}")), "{error}");
}

#[test]
fn an_empty_host_takes_both_families_and_maps_ipv4() {
    let options = ListenOptions {
        tcp: TcpOptions {
            keepalive_secs: Some(60),
            user_timeout_secs: Some(30),
            ..TcpOptions::default()
        },
        ..ListenOptions::default()
    };
    let (mut listener, address) = listen("tcp://*:0", &options);
    let client = TcpStream::connect(("127.0.0.1", address.port())).expect("connect");
    let (_stream, peer) = serve(&mut listener).expect("stream");
    assert_eq!(peer.address, PeerAddress::Inet(client.local_addr().expect("address")));
}

#[test]
fn a_trusted_proxy_names_the_client_even_byte_by_byte() {
    let (mut listener, address) = listen("tcp://127.0.0.1:0", &proxied("127.0.0.0/8"));
    let mut client = TcpStream::connect(address).expect("connect");
    client.set_nodelay(true).expect("nodelay");
    let mut handshake = accept(&mut listener);
    let mut scratch = [0; 1024];
    let line = b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 1883\r\n";
    for byte in &line[..line.len() - 1] {
        client.write_all(&[*byte]).expect("write");
        assert!(matches!(handshake.advance(&mut scratch), Ok(Progress::Pending)));
    }
    client.write_all(b"\nMQTT").expect("write");
    let (mut stream, peer) = complete(handshake).expect("stream");
    assert_eq!(peer.address.to_string(), "192.0.2.7:4660");
    let proxy = PeerAddress::Inet(client.local_addr().expect("address"));
    assert_eq!(peer.proxied_by, Some(proxy));
    assert_eq!(read(&mut stream, 4).expect("read"), b"MQTT");
}

#[test]
fn a_trusted_proxy_must_send_a_good_header() {
    for (bytes, expected) in [
        (&b"\x10\x0c\x00\x04MQTT"[..], ProxyError::Missing),
        (b"PROXY TCP4 nonsense\r\n", ProxyError::Line),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff", ProxyError::TooLong),
    ] {
        let (mut listener, address) = listen("tcp://127.0.0.1:0", &proxied("127.0.0.1"));
        let mut client = TcpStream::connect(address).expect("connect");
        client.write_all(bytes).expect("write");
        let error = serve(&mut listener).err().expect("an error");
        assert!(matches!(error, HandshakeError::Proxy(found) if found == expected), "{error}");
    }
}

#[test]
fn who_is_no_trusted_proxy_is_closed_with_a_header_and_without() {
    for first in [&b"\x10\x0cMQTT"[..], b"PROXY TCP4 192.0.2.7 192.0.2.1 4660 1883\r\n", b""] {
        let (mut listener, address) = listen("tcp://127.0.0.1:0", &proxied("10.0.0.0/8"));
        let mut client = TcpStream::connect(address).expect("connect");
        client.write_all(first).expect("write");
        let error = serve(&mut listener).err().expect("an error");
        assert!(matches!(error, HandshakeError::Proxy(ProxyError::Untrusted)), "{error}");
    }
}

#[test]
fn a_peer_that_leaves_during_the_handshake_is_closed() {
    let (mut listener, address) = listen("tcp://127.0.0.1:0", &proxied("127.0.0.1"));
    let mut client = TcpStream::connect(address).expect("connect");
    client.write_all(b"PROXY TC").expect("write");
    drop(client);
    assert!(matches!(serve(&mut listener), Err(HandshakeError::Closed)));
}

#[test]
fn a_unix_socket_has_its_mode_its_credentials_and_its_end() {
    let path = socket_path("life");
    let address = Address::Unix(path.clone());
    let options = ListenOptions { unix_mode: Some(0o600), ..ListenOptions::default() };
    let mut listener = Listener::bind(&address, &options).expect("bind");
    let mode = fs::metadata(&path).expect("metadata").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = UnixStream::connect(&path).expect("connect");
    let (mut stream, peer) = serve(&mut listener).expect("stream");
    assert_eq!(peer.address, PeerAddress::Unix);
    if cfg!(target_os = "linux") {
        let credentials = peer.unix.expect("credentials");
        assert_eq!(credentials.process_id, process::id() as i32);
    }
    client.write_all(b"hello").expect("write");
    assert_eq!(read(&mut stream, 5).expect("read"), b"hello");
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_stale_unix_socket_is_replaced_and_a_living_one_is_not() {
    let path = socket_path("stale");
    // std does not remove the file when it drops the listener: what a crash leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bind"));
    assert!(path.exists());
    let address = Address::Unix(path.clone());
    let _living = Listener::bind(&address, &ListenOptions::default()).expect("bind over stale");
    let error = Listener::bind(&address, &ListenOptions::default()).err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

#[test]
fn a_file_in_the_way_of_a_unix_socket_stays() {
    let path = socket_path("file");
    fs::write(&path, b"precious").expect("write");
    let address = Address::Unix(path.clone());
    assert!(Listener::bind(&address, &ListenOptions::default()).is_err());
    assert_eq!(fs::read(&path).expect("read"), b"precious");
    fs::remove_file(&path).expect("remove");
}
