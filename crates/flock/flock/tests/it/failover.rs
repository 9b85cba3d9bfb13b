//! Clients with several addresses, of which not all serve.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use codec::PropertyBuf;
use common::{Draft, LASTING, publish, total};
use flock::engine::{Options, run};
use flock::faults::Link;
use flock::standin::{Mischief, StandIn};
use flock_measure::{Outcome, Results};

const CLIENTS: u64 = 6;

/// Refuses every client with 0x9C, and names another server if there is one.
struct Standby {
    address: String,
    asked: Arc<AtomicU64>,
}

impl Standby {
    fn start(reference: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut properties = PropertyBuf::new();
        if let Some(reference) = reference {
            properties.push(codec::Property::ServerReference(reference));
        }
        let raw = properties.as_properties().raw().to_vec();
        let mut connack = vec![0x20, raw.len() as u8 + 3, 0, 0x9C, raw.len() as u8];
        connack.extend(raw);
        let asked = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Some only look whether somebody listens.
                if refuse(stream, &connack).is_ok() {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn refuse(mut stream: TcpStream, connack: &[u8]) -> std::io::Result<()> {
    // All of the CONNECT first: what is unread when a socket is closed resets it.
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    stream.read_exact(&mut vec![0; usize::from(head[1])])?;
    stream.write_all(connack)
}

fn run_with(addresses: &[&str], connect: &str) -> Results {
    let text = Draft::new(connect, CLIENTS)
        .connected("pairs", 1)
        .publishing("qos = 1, rate = \"50/s\", count = 20, payload = 16")
        .leaving()
        .text();
    let mut scenario = common::scenario(&text, "");
    scenario.brokers[0].addresses = addresses.iter().map(|one| (*one).to_owned()).collect();
    run(&scenario, Options { threads: Some(2), ..Options::default() }).unwrap()
}

fn is_whole(results: &Results) -> bool {
    let counts = total(results);
    results.run.outcome == Outcome::Completed
        && results.totals.connects_failed == 0
        && (counts.lost, counts.received) == (0, CLIENTS * 20)
}

#[test]
fn clients_find_the_address_that_serves() {
    let active = StandIn::start(Mischief::default()).unwrap();
    let (first, last) = (Standby::start(None), Standby::start(None));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let addresses = [first.address.as_str(), &gone, &active.address, &last.address];
    let results = run_with(&addresses, "version = \"5\"");
    assert!(is_whole(&results), "{:?}", results.errors);
    assert!(first.asked() > 0 && last.asked() > 0);
    assert_eq!(results.totals.connects_ok, 2 * CLIENTS);
}

#[test]
fn a_client_that_may_not_go_elsewhere_stays() {
    let active = StandIn::start(Mischief::default()).unwrap();
    let standby = Standby::start(None);
    let addresses = [standby.address.as_str(), &active.address];
    let results = run_with(&addresses, "version = \"5\"\nfailover = \"off\"");
    assert_eq!(results.totals.connects_failed, CLIENTS, "{:?}", results.errors);
}

#[test]
fn a_server_reference_is_followed_at_once() {
    let active = StandIn::start(Mischief::default()).unwrap();
    let others = [Standby::start(None), Standby::start(None)];
    let guide = Standby::start(Some(&active.address));
    let addresses =
        [guide.address.as_str(), &others[0].address, &others[1].address, &active.address];
    // Clients 0 and 4 of each group begin at the guide and ask none of the others.
    let results = run_with(&addresses, "version = \"5\"");
    assert!(is_whole(&results), "{:?}", results.errors);
    assert_eq!(guide.asked(), 4);
    // Clients 1 and 5, which go through both, and client 2.
    assert_eq!((others[0].asked(), others[1].asked()), (4, 6));
}

#[test]
fn other_servers_are_followed_only_if_that_is_asked_for() {
    let active = StandIn::start(Mischief::default()).unwrap();
    let guide = Standby::start(Some(&active.address));
    let stayed = run_with(&[&guide.address], "version = \"5\"");
    assert_eq!(stayed.totals.connects_failed, 2 * CLIENTS, "{:?}", stayed.errors);
    assert!(stayed.errors.iter().any(|error| error.what == "reference"), "{:?}", stayed.errors);
    let followed = run_with(&[&guide.address], "version = \"5\"\nfailover = \"any\"");
    assert!(is_whole(&followed), "{:?}", followed.errors);
}

#[test]
fn clients_that_lose_an_address_go_on_at_another() {
    let active = StandIn::start(Mischief::default()).unwrap();
    let links = [(); 2].map(|()| Link::start(0, &active.address).unwrap());
    let addresses = links.each_ref().map(|link| link.listen().to_string());
    let text = Draft::new(LASTING, CLIENTS)
        .connected("pairs", 1)
        .stage(
            "publish",
            &[("pub", &publish("qos = 1, rate = \"50/s\", count = 50, payload = 16"))],
        )
        .text();
    let mut scenario = common::scenario(&text, "");
    scenario.drain_us = 1_000_000;
    scenario.brokers[0].addresses = addresses.to_vec();
    let [first, _second] = links;
    let doomed = Mutex::new(Some(first));
    let options = Options {
        threads: Some(2),
        on_progress: Some(Box::new(move |progress| {
            if progress.totals.acknowledged > 0 {
                doomed.lock().unwrap().take();
            }
        })),
        ..Options::default()
    };
    let results = run(&scenario, options).unwrap();
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    // Half of them began there.
    assert_eq!(results.totals.reconnects, CLIENTS, "{:?}", results.errors);
    assert_eq!(results.totals.acknowledged, CLIENTS * 50);
}
