//! The relay as a process, over sockets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Relay(Child, String);

impl Relay {
    fn start(workers: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_floor"))
            .args(["127.0.0.1:0", workers])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Self(child, address.trim_end().to_string())
    }

    /// A connection of MQTT 3.1.1 or 5 whose CONNECT was answered.
    fn connect(&self, level: u8) -> TcpStream {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut connect = vec![0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', level, 2, 0, 60, 0, 0];
        if level == 5 {
            connect[1] = 13;
            connect.push(0);
        }
        stream.write_all(&connect).unwrap();
        let connack: &[u8] = if level == 5 { &[0x20, 3, 0, 0, 0] } else { &[0x20, 2, 0, 0] };
        expect(&mut stream, connack);
        stream
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
}

fn subscribe(stream: &mut TcpStream, filter: &str) {
    let len = filter.len() as u8;
    let mut bytes = vec![0x82, len + 5, 0, 1, 0, len];
    bytes.extend(filter.as_bytes());
    bytes.push(1);
    stream.write_all(&bytes).unwrap();
    expect(stream, &[0x90, 3, 0, 1, 1]);
}

const PUBLISH_7: [u8; 9] = [0x32, 7, 0, 1, b't', 0, 7, b'h', b'i'];
const PUBLISH_1: [u8; 9] = [0x32, 7, 0, 1, b't', 0, 1, b'h', b'i'];

#[test]
fn a_publish_reaches_every_subscriber_and_is_acknowledged() {
    let relay = Relay::start("2");
    let mut subscribers: Vec<_> = (0..3).map(|_| relay.connect(4)).collect();
    for subscriber in &mut subscribers {
        subscribe(subscriber, "t");
    }
    let mut publisher = relay.connect(4);
    // In two parts: the relay puts them together.
    publisher.write_all(&PUBLISH_7[..4]).unwrap();
    publisher.write_all(&PUBLISH_7[4..]).unwrap();
    expect(&mut publisher, &[0x40, 2, 0, 7]);
    for subscriber in &mut subscribers {
        expect(subscriber, &PUBLISH_1);
    }
}

#[test]
fn members_of_a_group_take_turns() {
    let relay = Relay::start("1");
    let mut members: Vec<_> = (0..2).map(|_| relay.connect(4)).collect();
    for member in &mut members {
        subscribe(member, "$share/g/#");
    }
    let mut publisher = relay.connect(4);
    publisher.write_all(&PUBLISH_7.repeat(4)).unwrap();
    expect(&mut publisher, &[0x40, 2, 0, 7].repeat(4));
    for member in &mut members {
        expect(member, &PUBLISH_1);
        expect(member, &[0x32, 7, 0, 1, b't', 0, 2, b'h', b'i']);
    }
}

#[test]
fn version_5_has_its_own_answers() {
    let relay = Relay::start("1");
    let mut client = relay.connect(5);
    client.write_all(&[0x82, 7, 0, 1, 0, 0, 1, b't', 1]).unwrap();
    expect(&mut client, &[0x90, 4, 0, 1, 0, 1]);
    client.write_all(&[0xc0, 0]).unwrap();
    expect(&mut client, &[0xd0, 0]);
}
