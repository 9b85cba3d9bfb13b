//! The blocking client against Debian's mosquitto, in both protocol versions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use client::blocking::{Client, ClientError, Message};
use client::{ConnectOptions, Endpoint, WillOptions};
use codec::{PropertyBuf, QoS, Reason, SubscribeOptions, Version};

/// Only a hang can reach it.
const WAIT: Duration = Duration::from_secs(30);

/// A port that was free may be taken before mosquitto has it; it gives up then.
const STARTS_MAX: u32 = 5;

/// A mosquitto on a free port, killed on drop.
struct Mosquitto {
    process: Child,
    port: u16,
    config: std::path::PathBuf,
}

impl Mosquitto {
    fn start() -> Self {
        for _ in 0..STARTS_MAX {
            let mut broker = Self::spawn();
            if broker.answers() {
                return broker;
            }
        }
        panic!("mosquitto does not answer, or ends at once, at each of {STARTS_MAX} ports");
    }

    fn spawn() -> Self {
        let port = net::free_port().unwrap();
        let config = std::env::temp_dir().join(format!("client-test-{port}.conf"));
        let mut file = std::fs::File::create(&config).unwrap();
        writeln!(file, "listener {port} 127.0.0.1\nallow_anonymous true\npersistence false")
            .unwrap();
        let process = Command::new("mosquitto")
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .or_else(|_| Command::new("/usr/sbin/mosquitto").arg("-c").arg(&config).spawn())
            .expect("mosquitto is installed (apt-get install mosquitto)");
        Self { process, port, config }
    }

    /// That its port is open says too little: somebody else may have it for a moment.
    fn answers(&mut self) -> bool {
        let started = Instant::now();
        while started.elapsed() < WAIT && self.process.try_wait().unwrap().is_none() {
            if Client::connect(&self.endpoint(), &options(Version::V311, "probe"), WAIT).is_ok() {
                return self.process.try_wait().unwrap().is_none();
            }
            std::thread::yield_now();
        }
        false
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(format!("tcp://127.0.0.1:{}", self.port))
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.config);
    }
}

fn options(version: Version, client_id: &str) -> ConnectOptions {
    ConnectOptions { version, client_id: client_id.into(), ..ConnectOptions::default() }
}

#[test]
#[ignore = "needs mosquitto: make test SUITES=foreign"]
fn every_qos_makes_the_round_in_every_version() {
    let broker = Mosquitto::start();
    for version in [Version::V31, Version::V311, Version::V5] {
        let mine = options(version, "round");
        let (mut client, connected) = Client::connect(&broker.endpoint(), &mine, WAIT).unwrap();
        assert!(!connected.session_present);
        let granted =
            client.subscribe(&[("a/+", SubscribeOptions::new(QoS::ExactlyOnce))]).unwrap();
        assert_eq!(granted, [Reason(2)]);
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let message = Message::new("a/b", vec![qos as u8; 200_000]).qos(qos);
            assert!(!client.publish(&message).unwrap().is_error());
            let came = client.recv(Some(WAIT)).unwrap().unwrap();
            assert_eq!((came.topic.as_str(), came.qos), ("a/b", qos));
            assert_eq!(came.payload, message.payload);
        }
        client.unsubscribe(&["a/+"]).unwrap();
        client.publish(&Message::new("a/b", "unheard").qos(QoS::AtLeastOnce)).unwrap();
        assert_eq!(client.recv(Some(Duration::from_millis(20))).unwrap(), None);
        client.disconnect().unwrap();
    }
}

#[test]
#[ignore = "needs mosquitto: make test SUITES=foreign"]
fn a_window_of_messages_is_acknowledged_one_by_one() {
    let broker = Mosquitto::start();
    let (mut client, _) =
        Client::connect(&broker.endpoint(), &options(Version::V5, "window"), WAIT).unwrap();
    let message = Message::new("w", "x").qos(QoS::AtLeastOnce);
    let mut sent: Vec<_> = (0..500).map(|_| client.send(&message).unwrap().unwrap()).collect();
    while !sent.is_empty() {
        let done = client.acknowledged(WAIT).unwrap().expect("mosquitto acknowledges all");
        sent.retain(|ticket| *ticket != done.ticket);
    }
    assert_eq!(client.in_flight(), 0);
}

#[test]
#[ignore = "needs mosquitto: make test SUITES=foreign"]
fn a_session_survives_a_reconnect() {
    let broker = Mosquitto::start();
    let lasting = ConnectOptions {
        clean_start: false,
        session_expiry_secs: 60,
        ..options(Version::V5, "lasting")
    };
    let (mut client, _) = Client::connect(&broker.endpoint(), &lasting, WAIT).unwrap();
    client.subscribe(&[("s", SubscribeOptions::new(QoS::AtLeastOnce))]).unwrap();
    let (mut other, _) =
        Client::connect(&broker.endpoint(), &options(Version::V311, "other"), WAIT).unwrap();
    other.publish(&Message::new("s", "one").qos(QoS::AtLeastOnce)).unwrap();
    let connected = client.reconnect(&broker.endpoint(), &lasting).unwrap();
    assert!(connected.session_present);
    assert_eq!(client.recv(Some(WAIT)).unwrap().unwrap().payload, b"one");
}

#[test]
#[ignore = "needs mosquitto: make test SUITES=foreign"]
fn a_dropped_client_leaves_its_will() {
    let broker = Mosquitto::start();
    let (mut heir, _) =
        Client::connect(&broker.endpoint(), &options(Version::V5, "heir"), WAIT).unwrap();
    heir.subscribe(&[("will", SubscribeOptions::new(QoS::AtMostOnce))]).unwrap();
    let will = WillOptions {
        topic: "will".into(),
        payload: b"gone".to_vec(),
        qos: QoS::AtLeastOnce,
        retain: false,
        delay_secs: 0,
        properties: PropertyBuf::new(),
    };
    let doomed = ConnectOptions { will: Some(will), ..options(Version::V5, "doomed") };
    drop(Client::connect(&broker.endpoint(), &doomed, WAIT).unwrap());
    assert_eq!(heir.recv(Some(WAIT)).unwrap().unwrap().payload, b"gone");
}

#[test]
fn a_closed_port_and_a_silent_server_are_distinguished() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let endpoint = Endpoint::new(address.to_string());
    let brief = Duration::from_millis(50);
    let refused = Client::connect(&endpoint, &ConnectOptions::default(), brief);
    assert!(matches!(refused, Err(ClientError::TimedOut(_))));
    let nobody = Endpoint::new(format!("127.0.0.1:{}", net::free_port().unwrap()));
    let refused = Client::connect(&nobody, &ConnectOptions::default(), WAIT);
    assert!(matches!(refused, Err(ClientError::Connect { .. })));
}

#[test]
fn who_waits_for_an_acknowledgement_is_reported_that_the_server_closed() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::new(server.local_addr().unwrap().to_string());
    let closing = std::thread::spawn(move || {
        let (mut socket, _) = server.accept().unwrap();
        let connect = socket.read(&mut [0; 256]).unwrap();
        assert!(connect > 0);
        socket.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
        let publish = socket.read(&mut [0; 256]).unwrap();
        assert!(publish > 0);
    });
    // On a thread of its own, so that waiting for ever would fail, too.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut client, _) = Client::connect(&endpoint, &options(Version::V5, ""), WAIT).unwrap();
        client.send(&Message::new("t", "x").qos(QoS::AtLeastOnce)).unwrap();
        sender.send((client.acknowledged(WAIT), client.acknowledged(Duration::ZERO))).unwrap();
    });
    let (first, again) = receiver.recv_timeout(2 * WAIT).expect("the wait ends");
    assert!(matches!(first, Err(ClientError::Closed)), "{first:?}");
    assert!(matches!(again, Err(ClientError::Closed)), "{again:?}");
    closing.join().unwrap();
}
