//! WebSocket over real sockets, plain and above TLS, with our own client and with raw bytes.

mod common;

use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use common::certificates::Authority;
use common::{
    accept, complete, connector, exchange, good_pair, listen, pair, read, read_to_end, serve, write,
};
use net::ws::frame::{self, Opcode};
use net::ws::upgrade::{HEADER_BYTES_MAX, Offer};
use net::{
    ConnectOptions, Foreign, HandshakeError, ListenOptions, Listener, Progress, Stream,
    TlsClientContext, TlsClientOptions, TlsContext, TlsOptions, WebSocketOptions,
};

const KEY: [u8; 4] = [1, 2, 3, 4];

fn listen_plain() -> (Listener, SocketAddr) {
    listen("ws://127.0.0.1:0/mqtt", &ListenOptions::default())
}

/// A raw client behind its upgrade, and the server's end.
fn upgraded(listener: &mut Listener, address: SocketAddr) -> (TcpStream, Stream) {
    let mut client = TcpStream::connect(address).expect("connect");
    client.set_nodelay(true).expect("nodelay");
    let offer = Offer::new("localhost", "/mqtt", [7; 16]);
    client.write_all(offer.request().as_bytes()).expect("write");
    let (stream, peer) = serve(listener).expect("stream");
    assert!(peer.is_websocket);
    let answer = read_header(&mut client);
    assert_eq!(offer.parse_answer(&answer), Ok(Some(answer.len())));
    (client, stream)
}

fn read_header(client: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("read");
        bytes.push(byte[0]);
    }
    bytes
}

fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, opcode, payload, Some(KEY));
    bytes
}

fn read_exact(client: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    client.read_exact(&mut bytes).expect("read");
    bytes
}

#[test]
fn bytes_pass_both_ways_with_our_own_client() {
    let (mut listener, address) = listen_plain();
    let connector = connector(&format!("ws://{address}/mqtt"), &ConnectOptions::default());
    let ((server, _), (client, peer)) = good_pair(&mut listener, &connector);
    assert!(peer.is_websocket);
    let (mut server, mut client) = exchange(server, client);
    client.shutdown().expect("shutdown");
    assert_eq!(read_to_end(&mut server).expect("read"), b"");
    // The server has answered the close, so it may send no more data.
    assert!(server.write(&[IoSlice::new(b"x")]).is_err());
    server.shutdown().expect("shutdown");
    assert_eq!(read_to_end(&mut client).expect("read"), b"");
}

#[test]
fn bytes_pass_both_ways_above_tls() {
    let authority = Authority::new();
    authority.issue("server", "localhost", 1);
    let options = TlsOptions::new(authority.path("server.pem"), authority.path("server.key"));
    let tls = Some(Arc::new(TlsContext::load(options).expect("context")));
    let options = ListenOptions { tls, ..ListenOptions::default() };
    let (mut listener, address) = listen("wss://127.0.0.1:0/a/b", &options);
    let ca = Some(authority.path("ca.pem"));
    let options = TlsClientOptions { ca, ..TlsClientOptions::default() };
    let tls = Some(TlsClientContext::load(&options).expect("context"));
    let server_name = Some("localhost".to_owned());
    let options = ConnectOptions { tls, server_name, ..ConnectOptions::default() };
    let connector = connector(&format!("wss://{address}/a/b"), &options);
    let ((server, peer), (client, _)) = good_pair(&mut listener, &connector);
    assert!(peer.is_websocket && peer.tls.is_some());
    let (mut server, mut client) = exchange(server, client);
    server.shutdown().expect("shutdown");
    assert_eq!(read_to_end(&mut client).expect("read"), b"");
    client.shutdown().expect("shutdown");
    assert_eq!(read_to_end(&mut server).expect("read"), b"");
}

#[test]
fn mqtt_6_0_0_2_packets_may_be_cut_into_frames_and_frames_into_bytes() {
    let (mut listener, address) = listen_plain();
    let mut client = TcpStream::connect(address).expect("connect");
    client.set_nodelay(true).expect("nodelay");
    let mut bytes = Offer::new("localhost", "/mqtt", [7; 16]).request().as_bytes().to_vec();
    let mut fragment = frame(Opcode::Binary, b"ab");
    fragment[0] &= 0x7f;
    bytes.extend(fragment);
    bytes.extend(frame(Opcode::Ping, b"are you there"));
    bytes.extend(frame(Opcode::Continuation, b"cd"));
    bytes.extend(frame(Opcode::Binary, b""));
    bytes.extend(frame(Opcode::Binary, &[b'x'; 70_000]));
    let writer = std::thread::spawn(move || {
        let (slow, fast) = bytes.split_at(300);
        for byte in slow {
            client.write_all(&[*byte]).expect("write");
        }
        client.write_all(fast).expect("write");
        client
    });
    let (mut stream, _) = serve(&mut listener).expect("stream");
    let got = read(&mut stream, 70_004).expect("read");
    assert!(got.starts_with(b"abcdx") && got.len() == 70_004);
    let mut client = writer.join().expect("writer");
    read_header(&mut client);
    assert_eq!(read_exact(&mut client, 15), b"\x8a\x0dare you there");
}

#[test]
fn frames_that_come_with_the_upgrade_are_not_lost() {
    let (mut listener, address) = listen_plain();
    let mut client = TcpStream::connect(address).expect("connect");
    let mut bytes = Offer::new("localhost", "/mqtt", [7; 16]).request().as_bytes().to_vec();
    bytes.extend(frame(Opcode::Binary, b"early"));
    client.write_all(&bytes).expect("write");
    let (mut stream, _) = serve(&mut listener).expect("stream");
    assert_eq!(read(&mut stream, 5).expect("read"), b"early");
}

#[test]
fn mqtt_6_0_0_1_a_text_frame_closes_with_1003() {
    let (mut listener, address) = listen_plain();
    let (mut client, mut stream) = upgraded(&mut listener, address);
    client.write_all(&frame(Opcode::Text, b"{}")).expect("write");
    let error = read(&mut stream, 1).expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(error.to_string().contains("MQTT-6.0.0-1"), "{error}");
    assert_eq!(read_exact(&mut client, 4), [0x88, 2, 0x03, 0xeb]);
}

#[test]
fn a_frame_beyond_the_limit_closes_with_1009() {
    let websocket = WebSocketOptions { frame_bytes_max: 100, ..WebSocketOptions::default() };
    let options = ListenOptions { websocket, ..ListenOptions::default() };
    let (mut listener, address) = listen("ws://127.0.0.1:0/mqtt", &options);
    let (mut client, mut stream) = upgraded(&mut listener, address);
    client.write_all(&frame(Opcode::Binary, &[0; 100])).expect("write");
    assert_eq!(read(&mut stream, 100).expect("read").len(), 100);
    client.write_all(&frame(Opcode::Binary, &[0; 101])[..8]).expect("write");
    assert!(read(&mut stream, 1).is_err());
    assert_eq!(read_exact(&mut client, 4), [0x88, 2, 0x03, 0xf1]);
}

#[test]
fn a_close_is_answered_in_kind() {
    let (mut listener, address) = listen_plain();
    let (mut client, mut stream) = upgraded(&mut listener, address);
    client.write_all(&frame(Opcode::Binary, b"last")).expect("write");
    client.write_all(&frame(Opcode::Close, &4000u16.to_be_bytes())).expect("write");
    assert_eq!(read_to_end(&mut stream).expect("read"), b"last");
    assert_eq!(read_exact(&mut client, 4), [0x88, 2, 0x0f, 0xa0]);
    stream.shutdown().expect("shutdown");
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("read");
    assert_eq!(rest, b"");
}

#[test]
fn our_close_goes_out_once() {
    let (mut listener, address) = listen_plain();
    let (mut client, mut stream) = upgraded(&mut listener, address);
    write(&mut stream, b"last").expect("write");
    stream.shutdown().expect("shutdown");
    stream.shutdown().expect("shutdown");
    let mut got = Vec::new();
    client.read_to_end(&mut got).expect("read");
    assert_eq!(got, b"\x82\x04last\x88\x02\x03\xe8");
}

#[test]
fn pings_without_end_do_not_hold_the_thread() {
    let (mut listener, address) = listen_plain();
    let (mut client, mut stream) = upgraded(&mut listener, address);
    let flood = frame(Opcode::Ping, b"").repeat(20_000);
    let writer = std::thread::spawn(move || {
        // The server hangs up in the middle of it.
        while client.write_all(&flood).is_ok() {}
    });
    let mut waiter = common::Waiter::new(&mut stream);
    let mut scratch = [0; 64];
    let error = loop {
        match stream.read(&mut scratch) {
            Ok(net::Read::WouldBlock) => waiter.wait(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("without end"), "{error}");
    drop(stream);
    writer.join().expect("writer");
}

#[test]
fn what_is_not_an_upgrade_gets_an_answer_in_http() {
    let good = Offer::new("localhost", "/mqtt", [7; 16]).request().to_owned();
    for (request, status) in [
        ("GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "426"),
        (good.replace("/mqtt", "/admin"), "404"),
        (good.replace("Protocol: mqtt", "Protocol: chat"), "400"),
        ("\x10\x0c\0\x04MQTT\x04\x02\0<\0\0".to_owned(), "400"),
        (good.replace("Host", &format!("X: {}\r\nHost", "y".repeat(HEADER_BYTES_MAX))), "431"),
    ] {
        let (mut listener, address) = listen_plain();
        let mut client = TcpStream::connect(address).expect("connect");
        client.write_all(request.as_bytes()).expect("write");
        let error = serve(&mut listener).err().expect("a refusal");
        let is_mqtt = request.starts_with('\x10');
        assert_eq!(error.label(), if is_mqtt { "foreign" } else { "websocket" }, "{error}");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("read");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("Connection: close"), "{answer}");
    }
}

#[test]
fn an_endless_header_is_refused_at_the_limit() {
    let (mut listener, address) = listen_plain();
    let mut client = TcpStream::connect(address).expect("connect");
    client.write_all(b"GET /mqtt HTTP/1.1\r\nX: ").expect("write");
    let mut handshake = accept(&mut listener);
    let mut scratch = [0; 512];
    assert!(matches!(handshake.advance(&mut scratch), Ok(Progress::Pending)));
    client.write_all(&[b'y'; HEADER_BYTES_MAX]).expect("write");
    let error = complete(handshake).err().expect("a refusal");
    assert_eq!(error.label(), "websocket");
}

#[test]
fn a_client_reports_the_refusal() {
    let (mut listener, address) = listen_plain();
    let connector = connector(&format!("ws://{address}/other"), &ConnectOptions::default());
    let (server, client) = pair(&mut listener, &connector);
    assert!(server.is_err());
    let error = client.err().expect("a refusal");
    assert!(error.to_string().contains("got 404"), "{error}");
}

#[test]
fn only_trusted_forwarders_name_the_client() {
    for (trusted, expected) in [("127.0.0.1", "192.0.2.7:0"), ("10.0.0.0/8", "127.0.0.1:")] {
        let trusted_forwarders = vec![trusted.parse().expect("range")];
        let websocket = WebSocketOptions { trusted_forwarders, ..WebSocketOptions::default() };
        let options = ListenOptions { websocket, ..ListenOptions::default() };
        let (mut listener, address) = listen("ws://127.0.0.1:0/mqtt", &options);
        let mut client = TcpStream::connect(address).expect("connect");
        let offer = Offer::new("localhost", "/mqtt", [7; 16]);
        let header = "X-Forwarded-For: 6.6.6.6, 192.0.2.7\r\nUpgrade";
        let request = offer.request().replacen("Upgrade", header, 1);
        client.write_all(request.as_bytes()).expect("write");
        let (_stream, peer) = serve(&mut listener).expect("stream");
        assert!(peer.address.to_string().starts_with(expected), "{}", peer.address);
        assert_eq!(peer.proxied_by.is_some(), trusted == "127.0.0.1");
    }
}

#[test]
fn a_congested_websocket_holds_little_and_loses_nothing() {
    let (mut listener, address) = listen_plain();
    let (mut client, mut stream) = upgraded(&mut listener, address);
    let payload = vec![7; 8_000_000];
    let mut taken = 0;
    while taken < payload.len() {
        match stream.write(&[IoSlice::new(&payload[taken..])]).expect("write") {
            0 => break,
            n => taken += n,
        }
    }
    assert!(stream.wants_write() && taken < payload.len());
    let total = payload.len();
    let reader = std::thread::spawn(move || {
        let mut got = 0;
        while got < total {
            let head = read_exact(&mut client, 2);
            let len = match head[1] {
                126 => u16::from_be_bytes(read_exact(&mut client, 2).try_into().expect("2")).into(),
                127 => {
                    u64::from_be_bytes(read_exact(&mut client, 8).try_into().expect("8")) as usize
                }
                short => usize::from(short),
            };
            assert!(head[0] == 0x82 && len <= 64 * 1024, "{head:?} {len}");
            assert!(read_exact(&mut client, len).iter().all(|byte| *byte == 7));
            got += len;
        }
    });
    write(&mut stream, &payload[taken..]).expect("write");
    reader.join().expect("reader");
}

/// The frames of a server, as far as they are whole.
fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let [0x82, short, rest @ ..] = bytes {
        let (len, rest) = match *short {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            127 => {
                let (len, rest) = rest.split_at(8);
                (u64::from_be_bytes(len.try_into().expect("8 bytes")) as usize, rest)
            }
            len => (usize::from(len), rest),
        };
        frames.push(rest[..len].to_vec());
        bytes = &rest[len..];
    }
    assert_eq!(bytes, b"\x88\x02\x03\xe8");
    frames
}

#[test]
fn a_frame_ends_where_a_packet_does() {
    let (mut listener, address) = listen_plain();
    let (mut client, mut stream) = upgraded(&mut listener, address);
    let long = [&[0x30, 0x80, 0x01][..], &[b'x'; 128]].concat();
    // Of two packets of 40,000 bytes the second does not fit into one call of the socket any more.
    let large = [&[0x30, 0xc0, 0xb8, 0x02][..], &[b'y'; 40_000]].concat();
    let packets = [b"\x20\x02\0\0".to_vec(), b"\xd0\0".to_vec(), long, large.clone(), large];
    // Cut into slices where they do not end.
    let bytes = packets.concat();
    let (first, rest) = bytes.split_at(5);
    let (second, third) = rest.split_at(100);
    let slices = [IoSlice::new(first), IoSlice::new(second), IoSlice::new(third)];
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("read");
        got
    });
    let taken = stream.write(&slices).expect("write");
    write(&mut stream, &bytes[taken..]).expect("write");
    while !stream.flush().expect("flush") {
        std::thread::yield_now();
    }
    stream.shutdown().expect("shutdown");
    while !stream.flush().expect("flush") {
        std::thread::yield_now();
    }
    assert_eq!(frames(&reader.join().expect("reader")), packets);
}

#[test]
fn a_packet_larger_than_a_call_of_the_socket_takes_several_frames() {
    let (mut listener, address) = listen_plain();
    let (mut client, mut stream) = upgraded(&mut listener, address);
    let large = [&[0x30, 0xa0, 0x8d, 0x06][..], &[b'z'; 100_000]].concat();
    let expected = [&large[..], b"\xd0\0"].concat();
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("read");
        got
    });
    write(&mut stream, &expected).expect("write");
    stream.shutdown().expect("shutdown");
    while !stream.flush().expect("flush") {
        std::thread::yield_now();
    }
    let frames = frames(&reader.join().expect("reader"));
    assert_eq!(frames.concat(), expected);
    assert_eq!(frames.last().expect("a frame"), b"\xd0\0");
}

#[test]
fn tls_and_plain_mqtt_on_a_websocket_listener_are_reported_as_that() {
    for (bytes, foreign) in [
        (&b"\x10\x0d\0\x04MQTT\x05\x02\0\0\0\0\0"[..], Foreign::Mqtt),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", Foreign::Tls),
    ] {
        let (mut listener, address) = listen_plain();
        let mut client = TcpStream::connect(address).expect("connect");
        client.write_all(bytes).expect("write");
        let error = serve(&mut listener).err().expect("an error");
        assert!(matches!(error, HandshakeError::Foreign(found) if found == foreign), "{error}");
    }
}
