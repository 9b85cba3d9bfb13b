use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use broker::{ConnectRequest, Counter, Metrics, Settings};
use codec::Version;
use net::{ListenOptions, Listener, Progress};

use super::coming_and_going::{ARRIVALS_PER_TURN, CLOSINGS_PER_TURN};
use super::writing::BROADCAST_WRITES_PER_TURN;
use super::*;
use crate::config::CertificateIdentity;
use crate::origin::Origin;
use crate::run::allowance::Allowance;
use crate::run::gate::{Entrance, Gate};
use crate::run::workers::tests::{idle_workers, idle_workers_with};

fn request(client_id: String) -> ConnectRequest {
    ConnectRequest {
        version: Version::V5,
        scope: broker::Scope::FIRST,
        clean_start: true,
        keep_alive_secs: 0,
        client_id: client_id.into(),
        is_assigned: false,
        username: None,
        is_proved: true,
        principal: None,
        will: None,
        session_expiry_secs: 0,
        receive_max: 1,
        packet_bytes_max: u32::MAX,
        alias_max: 0,
        problem_info: false,
        response_info: false,
        auth_method: None,
        auth_data: None,
        limits: Arc::default(),
        peer: Box::default(),
        origin: Box::default(),
    }
}

/// A listener, and who may come in.
struct Entry {
    listener: Listener,
    entrance: Arc<Entrance>,
}

impl Entry {
    fn open() -> Self {
        let url = "tcp://127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&url, &ListenOptions::default()).unwrap();
        let gate = Arc::new(Gate::new(0));
        let entrance = Arc::new(Entrance {
            name: "test".into(),
            limits: Arc::default(),
            allow_anonymous: true,
            chain: Arc::default(),
            identity: CertificateIdentity::None,
            belonging: crate::namespaces::Belonging::default(),
            has_layers: false,
            connections_max: 0,
            counts: gate.add_listener("test"),
            gate,
        });
        Self { listener, entrance }
    }

    /// A client's end of a connection, and the broker's.
    fn connect(&self, shard: ShardId, client_id: String) -> (TcpStream, Handover) {
        let client = TcpStream::connect(self.listener.local_address().unwrap()).unwrap();
        let mut handshake = self.listener.accept().unwrap().expect("a connection waits");
        let Ok(Progress::Done(stream, _)) = handshake.advance(&mut [0; 16]) else {
            panic!("plain TCP has nothing to negotiate");
        };
        let seat = self.entrance.sit().unwrap();
        let request = request(client_id);
        let charge = Arc::new(Allowance::new(0, 0)).begin(Origin::Local, 0);
        (client, Handover { stream, shard, request, rest: Vec::new(), seat, charge })
    }
}

#[test]
fn a_storm_of_connections_is_opened_over_several_turns() {
    let (mut workers, mailboxes) = idle_workers(1);
    let entry = Entry::open();
    let mut clients = Vec::new();
    for number in 0..ARRIVALS_PER_TURN + 1 {
        let (client, handover) = entry.connect(0, format!("client-{number}"));
        clients.push(client);
        mailboxes[0].put(Item::Connection(Box::new(handover)));
    }
    let nothing = events();
    workers[0].turn(&nothing);
    assert_eq!(workers[0].connections.len(), ARRIVALS_PER_TURN);
    assert!(workers[0].has_work(), "one more is left");
    workers[0].turn(&nothing);
    assert_eq!(workers[0].connections.len(), ARRIVALS_PER_TURN + 1);
}

#[test]
fn a_storm_of_farewells_is_closed_over_several_turns() {
    let (mut workers, mailboxes) = idle_workers(1);
    let entry = Entry::open();
    let count = CLOSINGS_PER_TURN * 2 + 1;
    let mut clients: Vec<_> = (0..count)
        .map(|number| {
            let (client, handover) = entry.connect(0, format!("client-{number}"));
            mailboxes[0].put(Item::Connection(Box::new(handover)));
            client
        })
        .collect();
    drive_until(&mut workers[0], |worker| worker.connections.len() == count);
    for client in &mut clients {
        client.write_all(b"\xe0\x00").unwrap();
    }
    let mut ready = events();
    let mut turns_that_closed = 0;
    while !workers[0].connections.is_empty() {
        let before = workers[0].connections.len();
        poll(workers[0].queue(), &mut ready, 1).unwrap();
        workers[0].turn(&ready);
        let closed = before - workers[0].connections.len();
        assert!(closed <= CLOSINGS_PER_TURN);
        turns_that_closed += usize::from(closed > 0);
        assert!(workers[0].closing.is_empty() || workers[0].has_leftovers());
    }
    assert!(turns_that_closed > 2);
    for mut client in clients {
        assert!(client.read_to_end(&mut Vec::new()).is_ok());
    }
}

#[test]
fn mail_between_workers_opens_no_connections() {
    let (mut workers, mailboxes) = idle_workers(1);
    let entry = Entry::open();
    let (_client, handover) = entry.connect(0, "client".into());
    mailboxes[0].put(Item::Connection(Box::new(handover)));
    workers[0].turn_for_mail();
    assert!(!workers[0].has_mail() && workers[0].connections.is_empty());
    assert!(workers[0].has_work());
    workers[0].turn(&events());
    assert_eq!(workers[0].connections.len(), 1);
}

#[test]
fn a_worker_sleeps_until_the_first_of_its_pauses_is_over() {
    let (mut workers, mailboxes) = idle_workers(1);
    let worker = &mut workers[0];
    let entry = Entry::open();
    let _clients: Vec<_> = (0..3)
        .map(|number| {
            let (client, handover) = entry.connect(0, format!("client-{number}"));
            mailboxes[0].put(Item::Connection(Box::new(handover)));
            client
        })
        .collect();
    drive_until(worker, |worker| worker.connections.len() == 3);
    let until_ms = |ms| worker.now_ms + ms;
    let number = |key: usize| worker.connections[key].number;
    let pauses = [(number(0), until_ms(60_000)), (number(1), until_ms(30_000)), (number(2), NEVER)];
    worker.shards[0].effects.pauses.extend(pauses);
    worker.take_pauses(0);
    assert_eq!(worker.waiting.until_ms, pauses[1].1);
    worker.now_ms = pauses[1].1 - 1;
    worker.on_time();
    assert!(matches!(worker.connections[1].state, State::Paused(_)));
    worker.now_ms = pauses[1].1;
    worker.on_time();
    assert!(matches!(worker.connections[1].state, State::Open));
    assert_eq!((worker.waiting.until_ms, worker.waiting.keys.len()), (pauses[0].1, 1));
}

#[test]
fn a_turn_for_mail_forgets_no_events_that_did_not_fit() {
    let (mut workers, _) = idle_workers(1);
    let nothing = events();
    workers[0].turn(&nothing);
    workers[0].has_more_events = true;
    workers[0].turn_for_mail();
    assert_eq!(workers[0].fall_asleep(), 0);
    workers[0].turn(&nothing);
    assert_ne!(workers[0].fall_asleep(), 0);
}

/// Turns of a worker until something is so.
fn drive_until(worker: &mut Worker, is_so: impl Fn(&Worker) -> bool) {
    let mut ready = events();
    while !is_so(worker) {
        poll(worker.queue(), &mut ready, 1).unwrap();
        worker.turn(&ready);
    }
}

fn count(worker: &Worker, counter: impl Fn(&Metrics) -> &Counter) -> u64 {
    worker.shards[0].shared().total(counter)
}

#[test]
fn when_much_is_read_who_sends_more_waits_for_the_next_turn_and_who_sends_little_does_not() {
    const ROOM: usize = 1024;
    let publish = [b"\x30\x80\x02\x00\x01t\x00".as_slice(), &[7; 252]].concat();
    let (mut workers, mailboxes) = idle_workers(1);
    let worker = &mut workers[0];
    let entry = Entry::open();
    let mut clients = ["much", "little"].map(|name| {
        let (client, handover) = entry.connect(0, name.into());
        mailboxes[0].put(Item::Connection(Box::new(handover)));
        client
    });
    drive_until(worker, |worker| worker.connections.len() == 2);
    let taken = |worker: &Worker| count(worker, |m| &m.publishes_received);
    // Connections are numbered in the order in which they are opened.
    let [much, little] = [0, 1];
    worker.buffer = vec![0; ROOM].into();
    worker.bytes_left = ROOM;

    clients[0].write_all(&publish.repeat(8)).unwrap();
    while taken(worker) == 0 {
        worker.read(much, false);
    }
    assert_eq!((taken(worker), worker.bytes_left), (3, 0));
    worker.read(much, false);
    assert_eq!(taken(worker), 3, "it waits");
    clients[1].write_all(&publish).unwrap();
    while taken(worker) < 4 {
        worker.read(little, false);
    }
    assert!(worker.has_work(), "there is more to read");
    drive_until(worker, |worker| taken(worker) == 9);
}

#[test]
fn a_broadcast_is_written_over_several_turns() {
    let (mut workers, mailboxes) = idle_workers(1);
    let entry = Entry::open();
    let crowd = BROADCAST_WRITES_PER_TURN.max(broker::BROADCAST_MIN) + 2;
    let clients: Vec<_> = (0..crowd)
        .map(|number| {
            let (client, mut handover) = entry.connect(0, format!("client-{number}"));
            handover.rest = b"\x82\x07\x00\x01\x00\x00\x01t\x00".to_vec();
            mailboxes[0].put(Item::Connection(Box::new(handover)));
            client
        })
        .collect();
    drive_until(&mut workers[0], |worker| {
        count(worker, |m| &m.subscriptions) == crowd as u64 && !worker.has_work()
    });
    (&clients[0]).write_all(b"\x30\x05\x00\x01t\x00x").unwrap();
    drive_until(&mut workers[0], |worker| count(worker, |m| &m.publishes_received) == 1);
    let mut turns = 1;
    while workers[0].has_broadcast() {
        assert!(workers[0].has_work());
        workers[0].turn(&events());
        turns += 1;
    }
    // The publisher's own copy comes by itself.
    let others = crowd - 1;
    assert_eq!(turns, others.div_ceil(BROADCAST_WRITES_PER_TURN));
    for mut client in clients {
        let mut received = Vec::new();
        while !received.ends_with(b"t\x00x") {
            let mut some = [0; 64];
            let count = client.read(&mut some).unwrap();
            received.extend_from_slice(&some[..count]);
        }
    }
}

#[test]
fn a_publisher_is_not_read_while_much_of_its_mail_lies_before_a_busy_worker() {
    /// Less in all than an outbox takes, so that nothing is dropped whoever reads when.
    const MESSAGES: u64 = 1500;
    let settings = Settings { mail_bytes_max: 64 * 1024, ..Settings::default() };
    let (mut workers, mailboxes) = idle_workers_with(2, settings);
    let entry = Entry::open();
    let mut clients = [1, 0].map(|shard| {
        let (client, handover) = entry.connect(shard, format!("client-{shard}"));
        mailboxes[usize::from(shard)].put(Item::Connection(Box::new(handover)));
        client
    });
    clients[0].write_all(b"\x82\x07\x00\x01\x00\x00\x01t\x00").unwrap();
    drive_until(&mut workers[1], |worker| count(worker, |m| &m.subscriptions) == 1);
    let [mut subscriber, mut publisher] = clients;
    let publishing = std::thread::spawn(move || {
        let message = [b"\x30\x84\x04\x00\x01t\x00", [7; 512].as_slice()].concat();
        publisher.write_all(&message.repeat(MESSAGES as usize)).unwrap();
        publisher
    });
    let reading = std::thread::spawn(move || {
        let mut received = Vec::new();
        subscriber.read_to_end(&mut received).unwrap();
        received.iter().filter(|byte| **byte == 7).count() as u64
    });

    // The other worker does nothing, and the publisher is not read for long.
    drive_until(&mut workers[0], |worker| count(worker, |m| &m.mail_waits) == 1);
    let taken = count(&workers[0], |m| &m.publishes_received);
    let nothing = events();
    (0..20).for_each(|_| workers[0].turn(&nothing));
    assert_eq!(count(&workers[0], |m| &m.publishes_received), taken);
    assert!(taken * 512 < 64 * 1024, "{taken} messages are more than the limit");
    assert_eq!(workers[0].fall_asleep(), SLEEP_MS_MAX, "and it waits without being busy");
    workers[0].wake_up();

    let mut ready = events();
    while count(&workers[0], |m| &m.publishes_sent) < MESSAGES {
        for worker in &mut workers {
            poll(worker.queue(), &mut ready, 0).unwrap();
            worker.turn(&ready);
        }
    }
    let publisher = publishing.join().unwrap();
    mailboxes[1].put(Item::Shutdown);
    drive_until(&mut workers[1], |worker| worker.connections.is_empty());
    assert_eq!(reading.join().unwrap(), MESSAGES * 512);
    drop(publisher);
}
