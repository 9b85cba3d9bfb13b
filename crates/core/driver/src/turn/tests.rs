use std::iter;

use broker::{ConnectRequest, Figure, Homes, Metrics, Settings, Shared};
use codec::Version;
use policy::Access;

use super::coming_and_going::{ARRIVALS_PER_TURN, CLOSINGS_PER_TURN};
use super::writing::BROADCAST_WRITES_PER_TURN;
use super::*;
use crate::mailbox::Handover;
use crate::testing::{Alarm, Clock, Flaws, MemoryHost, Pipe, PipeEnd};

type TestDriver = Driver<MemoryHost>;
type Mailboxes = Arc<[Arc<Mailbox<MemoryHost>>]>;

const BEGIN_MS: u64 = 1_700_000_000_000;

/// Much room for what is written.
const ROOM: usize = 1 << 24;

fn request(client_id: String) -> ConnectRequest {
    ConnectRequest {
        version: Version::V5,
        is_bridge: false,
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

/// So many drivers with a shard each.
#[expect(clippy::arc_with_non_send_sync, reason = "a host in memory stays on its thread")]
fn drivers_with(count: u16, settings: Settings) -> (Vec<TestDriver>, Mailboxes) {
    let shared = Shared::new(settings, Homes::of_one_cell(count), 1);
    let clock = Clock::new(BEGIN_MS);
    let mailboxes: Mailboxes =
        (0..count).map(|_| Arc::new(Mailbox::new(Alarm::default()))).collect();
    let driver = |index: u16| {
        Driver::new(DriverParts {
            host: MemoryHost::new(&clock),
            mailboxes: mailboxes.clone(),
            index: usize::from(index),
            shards: vec![Shard::new(index, shared.clone(), Access::open())],
            shutdown_grace_ms: 1000,
            incoming_room: IncomingRoom::new(1 << 30, 1 << 28),
        })
    };
    ((0..count).map(driver).collect(), mailboxes)
}

fn drivers(count: u16) -> (Vec<TestDriver>, Mailboxes) {
    drivers_with(count, Settings::default())
}

/// A client's end of a connection, and what the driver gets of it.
fn connect(shard: ShardId, client_id: String) -> (PipeEnd, Handover<MemoryHost>) {
    let (socket, client) = Pipe::new(ROOM, 0, Flaws::default());
    let (request, rest) = (request(client_id), Vec::new());
    (client, Handover { socket, shard, request, rest, permit: (), charge: () })
}

/// So many clients of the first driver, connected.
fn crowd(count: usize, mailboxes: &Mailboxes, rest: &[u8]) -> Vec<PipeEnd> {
    let client = |number| {
        let (client, mut handover) = connect(0, format!("client-{number}"));
        handover.rest = rest.to_vec();
        mailboxes[0].put(Item::Connection(Box::new(handover)));
        client
    };
    (0..count).map(client).collect()
}

fn turn(driver: &mut TestDriver) {
    let (ready, has_more) = driver.host_mut().ready(usize::MAX, |_| 0);
    driver.turn(driver.host().now(), ready.into_iter(), has_more);
}

fn turn_without_sockets(driver: &mut TestDriver) {
    driver.turn(driver.host().now(), iter::empty(), false);
}

/// Turns of a driver until something is so, but not for ever.
fn drive_until(driver: &mut TestDriver, is_so: impl Fn(&TestDriver) -> bool) {
    for _ in 0..10_000 {
        if is_so(driver) {
            return;
        }
        turn(driver);
    }
    panic!("it does not come to that");
}

fn count<T: Figure>(driver: &TestDriver, figure: impl Fn(&Metrics) -> &T) -> u64 {
    driver.shards[0].shared().total(figure)
}

#[test]
fn a_storm_of_connections_is_opened_over_several_turns() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let _clients = crowd(ARRIVALS_PER_TURN + 1, &mailboxes, &[]);
    turn_without_sockets(driver);
    assert_eq!(driver.connections.len(), ARRIVALS_PER_TURN);
    assert!(driver.has_work(driver.host().now()), "one more is left");
    turn_without_sockets(driver);
    assert_eq!(driver.connections.len(), ARRIVALS_PER_TURN + 1);
}

#[test]
fn who_brings_one_connection_does_not_wait_behind_the_storm_of_another() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let storm: Vec<PipeEnd> = (0..10 * ARRIVALS_PER_TURN)
        .map(|number| {
            let (client, mut handover) = connect(0, format!("storm-{number:03}"));
            handover.request.origin = "10.0.0.1".into();
            mailboxes[0].put(Item::Connection(Box::new(handover)));
            client
        })
        .collect();
    let (newcomer, mut handover) = connect(0, "newcomer".into());
    handover.request.origin = "10.0.0.2".into();
    mailboxes[0].put(Item::Connection(Box::new(handover)));
    turn_without_sockets(driver);
    turn_without_sockets(driver);
    assert!(!newcomer.take(usize::MAX).is_empty(), "it has its CONNACK");
    let is_open = |client: &PipeEnd| !client.take(usize::MAX).is_empty();
    assert_eq!(storm.iter().filter(|client| is_open(client)).count(), 2 * ARRIVALS_PER_TURN - 1);
    for _ in 0..10 {
        turn_without_sockets(driver);
    }
    assert_eq!(driver.connections.len(), storm.len() + 1, "the others have theirs, too");
    assert!(!driver.has_work(driver.host().now()));
}

#[test]
fn a_storm_of_farewells_is_closed_over_several_turns() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let count = CLOSINGS_PER_TURN * 2 + 1;
    let clients = crowd(count, &mailboxes, &[]);
    drive_until(driver, |driver| driver.connections.len() == count);
    clients.iter().for_each(|client| client.send(b"\xe0\x00"));
    let mut turns_that_closed = 0;
    while !driver.connections.is_empty() {
        let before = driver.connections.len();
        turn(driver);
        let closed = before - driver.connections.len();
        assert!(closed <= CLOSINGS_PER_TURN);
        turns_that_closed += usize::from(closed > 0);
        assert!(driver.closing.is_empty() || driver.has_leftovers());
    }
    assert!(turns_that_closed > 2);
    assert!(clients.iter().all(PipeEnd::is_closed));
}

#[test]
fn mail_between_drivers_opens_no_connections() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let _clients = crowd(1, &mailboxes, &[]);
    driver.turn_for_mail(driver.host().now());
    assert!(!driver.has_mail() && driver.connections.is_empty());
    assert!(driver.has_work(driver.host().now()));
    turn_without_sockets(driver);
    assert_eq!(driver.connections.len(), 1);
}

#[test]
fn nobody_is_taken_for_silent_before_all_that_has_come_is_looked_at() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let clients: Vec<PipeEnd> = ["one", "other"]
        .into_iter()
        .map(|name| {
            let (client, mut handover) = connect(0, name.into());
            handover.request.keep_alive_secs = 10;
            mailboxes[0].put(Item::Connection(Box::new(handover)));
            client
        })
        .collect();
    drive_until(driver, |driver| driver.connections.len() == 2 && !driver.host().has_ready());
    // The process stood still, and both have said meanwhile that they are there.
    clients.iter().for_each(|client| client.send(b"\xc0\x00"));
    driver.host().clock().pass(Duration::from_secs(20));
    let (first, has_more) = driver.host_mut().ready(1, |_| 0);
    assert!(has_more);
    driver.turn(driver.host().now(), first.into_iter(), has_more);
    turn(driver);
    assert_eq!(count(driver, |m| &m.keep_alive_timeouts), 0);
    // Who says nothing goes, however much there is to look at.
    driver.host().clock().pass(Duration::from_secs(20));
    for _ in 0..10 {
        driver.turn(driver.host().now(), iter::empty(), true);
        driver.host().clock().pass(Duration::from_millis(UNHEARD_MS_MAX / 5));
    }
    assert_eq!(count(driver, |m| &m.keep_alive_timeouts), 2);
}

#[test]
fn mqtt_3_1_2_22_after_a_standstill_sockets_are_read_before_anybody_is_silent() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let (client, mut handover) = connect(0, "one".into());
    handover.request.keep_alive_secs = 5;
    mailboxes[0].put(Item::Connection(Box::new(handover)));
    drive_until(driver, |driver| driver.connections.len() == 1 && !driver.host().has_ready());
    client.send(b"\xc0\x00");
    driver.host().clock().pass(Duration::from_secs(20));
    // The look at the sockets was interrupted, or older than the standstill.
    turn_without_sockets(driver);
    assert!(driver.has_work(driver.host().now()), "it looks again at once");
    turn(driver);
    turn(driver);
    assert_eq!(count(driver, |m| &m.keep_alive_timeouts), 0);
    // A client that says nothing is disconnected after one more look.
    driver.host().clock().pass(Duration::from_secs(20));
    turn(driver);
    turn(driver);
    assert_eq!(count(driver, |m| &m.keep_alive_timeouts), 1);
}

#[test]
fn turns_that_take_long_one_after_the_other_spare_nobody() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let (_client, mut handover) = connect(0, "one".into());
    handover.request.keep_alive_secs = 5;
    mailboxes[0].put(Item::Connection(Box::new(handover)));
    drive_until(driver, |driver| driver.connections.len() == 1 && !driver.host().has_ready());
    for _ in 0..STANDSTILLS_MAX {
        driver.host().clock().pass(Duration::from_millis(2 * STANDSTILL_MS));
        turn(driver);
    }
    assert_eq!(count(driver, |m| &m.keep_alive_timeouts), 0);
    for _ in 0..2 {
        driver.host().clock().pass(Duration::from_millis(2 * STANDSTILL_MS));
        turn(driver);
    }
    assert_eq!(count(driver, |m| &m.keep_alive_timeouts), 1);
}

#[test]
fn a_driver_sleeps_until_the_first_of_its_pauses_is_over() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let _clients = crowd(3, &mailboxes, &[]);
    drive_until(driver, |driver| driver.connections.len() == 3);
    let until_ms = |ms| driver.now_ms + ms;
    let number = |key: usize| driver.connections[key].number;
    let pauses = [(number(0), until_ms(60_000)), (number(1), until_ms(30_000)), (number(2), NEVER)];
    driver.shards[0].effects_mut().pauses.extend(pauses);
    driver.take_pauses(0);
    assert_eq!(driver.waiting.until_ms, pauses[1].1);
    driver.now_ms = pauses[1].1 - 1;
    driver.on_time();
    assert!(!driver.connections[1].is_read());
    driver.now_ms = pauses[1].1;
    driver.on_time();
    assert!(driver.connections[1].is_read());
    assert_eq!((driver.waiting.until_ms, driver.waiting.keys.len()), (pauses[0].1, 1));
}

#[test]
fn a_turn_for_mail_forgets_no_sockets_that_it_was_not_reported_of() {
    let (mut drivers, _) = drivers(1);
    let driver = &mut drivers[0];
    driver.turn(driver.host().now(), iter::empty(), true);
    driver.turn_for_mail(driver.host().now());
    assert_eq!(driver.fall_asleep(driver.host().now()), 0);
    turn_without_sockets(driver);
    assert_ne!(driver.fall_asleep(driver.host().now()), 0);
}

#[test]
fn when_much_is_read_who_sends_more_waits_for_the_next_turn_and_who_sends_little_does_not() {
    const ROOM: usize = 1024;
    let publish = [b"\x30\x80\x02\x00\x01t\x00".as_slice(), &[7; 252]].concat();
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let clients = crowd(2, &mailboxes, &[]);
    drive_until(driver, |driver| driver.connections.len() == 2);
    let taken = |driver: &TestDriver| count(driver, |m| &m.publishes_received);
    // Connections are numbered in the order in which they are opened.
    let [much, little] = [0, 1];
    driver.buffer = vec![0; ROOM].into();
    driver.bytes_left = ROOM;

    clients[0].send(&publish.repeat(8));
    driver.read(much, false);
    assert_eq!((taken(driver), driver.bytes_left), (3, 0));
    driver.read(much, false);
    assert_eq!(taken(driver), 3, "it waits");
    clients[1].send(&publish);
    driver.read(little, false);
    assert_eq!(taken(driver), 4);
    assert!(driver.has_work(driver.host().now()), "there is more to read");
    drive_until(driver, |driver| taken(driver) == 9);
}

#[test]
fn a_broadcast_is_written_over_several_turns() {
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let size = BROADCAST_WRITES_PER_TURN.max(broker::BROADCAST_MIN) + 2;
    let clients = crowd(size, &mailboxes, b"\x82\x07\x00\x01\x00\x00\x01t\x00");
    drive_until(driver, |driver| {
        count(driver, |m| &m.subscriptions) == size as u64 && !driver.has_work(driver.host().now())
    });
    clients[0].send(b"\x30\x05\x00\x01t\x00x");
    drive_until(driver, |driver| count(driver, |m| &m.publishes_received) == 1);
    let mut turns = 1;
    while driver.has_broadcast() {
        assert!(driver.has_work(driver.host().now()));
        turn_without_sockets(driver);
        turns += 1;
    }
    // The publisher's own copy comes by itself.
    let others = size - 1;
    assert_eq!(turns, others.div_ceil(BROADCAST_WRITES_PER_TURN));
    assert!(clients.iter().all(|client| client.take(usize::MAX).ends_with(b"t\x00x")));
}

#[test]
fn what_the_layers_of_a_socket_have_taken_is_sent_when_there_is_room_though_nobody_says_more() {
    const PAYLOAD: usize = 100;
    let (mut drivers, mailboxes) = drivers(1);
    let driver = &mut drivers[0];
    let (socket, subscriber) = Pipe::new(30, 1000, Flaws::default());
    let (request, rest) = (request("slow".into()), b"\x82\x07\x00\x01\x00\x00\x01t\x00".to_vec());
    let handover = Handover { socket, shard: 0, request, rest, permit: (), charge: () };
    mailboxes[0].put(Item::Connection(Box::new(handover)));
    let publisher = crowd(1, &mailboxes, &[]).remove(0);
    drive_until(driver, |driver| count(driver, |m| &m.subscriptions) == 1);
    publisher.send(&[b"\x30\x68\x00\x01t\x00".as_slice(), &[7; PAYLOAD]].concat());
    drive_until(driver, |driver| count(driver, |m| &m.publishes_sent) == 1);
    let mut received = Vec::new();
    for _ in 0..20 {
        received.extend(subscriber.take(usize::MAX));
        turn(driver);
    }
    assert!(received.ends_with(&[7; PAYLOAD]), "{} bytes came", received.len());
}

#[test]
fn who_comes_in_a_turn_that_has_no_more_work_to_give_gets_none_of_it() {
    const SUBSCRIBERS: usize = 20;
    const PUBLISHES: u64 = 20;
    let units = SUBSCRIBERS as u32 * PUBLISHES as u32;
    let settings = Settings { turn_units: units, ..Settings::default() };
    let (mut drivers, mailboxes) = drivers_with(1, settings);
    let driver = &mut drivers[0];
    let _crowd = crowd(SUBSCRIBERS, &mailboxes, b"\x82\x07\x00\x01\x00\x00\x01t\x00");
    let (publisher, handover) = connect(0, "publisher".into());
    mailboxes[0].put(Item::Connection(Box::new(handover)));
    drive_until(driver, |driver| {
        driver.connections.len() == SUBSCRIBERS + 1 && !driver.has_work(driver.host().now())
    });
    let flood = b"\x30\x05\x00\x01t\x00x".repeat(1000);
    let (_other, mut handover) = connect(0, "other".into());
    handover.rest = flood.clone();
    mailboxes[0].put(Item::Connection(Box::new(handover)));
    publisher.send(&flood);
    turn(driver);
    let taken = count(driver, |m| &m.publishes_received);
    assert!(taken <= PUBLISHES + 1, "{taken} in a turn that has {PUBLISHES}");
    drive_until(driver, |driver| count(driver, |m| &m.publishes_received) == 2000);
}

#[test]
fn a_publisher_is_not_read_while_much_of_its_mail_lies_before_a_busy_driver() {
    /// Less in all than an outbox takes, so that nothing is dropped.
    const MESSAGES: u64 = 1500;
    let settings = Settings { mail_bytes_max: 64 * 1024, ..Settings::default() };
    let (mut drivers, mailboxes) = drivers_with(2, settings);
    let [subscriber, publisher] = [1, 0].map(|shard| {
        let (client, handover) = connect(shard, format!("client-{shard}"));
        mailboxes[usize::from(shard)].put(Item::Connection(Box::new(handover)));
        client
    });
    subscriber.send(b"\x82\x07\x00\x01\x00\x00\x01t\x00");
    drive_until(&mut drivers[1], |driver| count(driver, |m| &m.subscriptions) == 1);
    let message = [b"\x30\x84\x04\x00\x01t\x00", [7; 512].as_slice()].concat();
    publisher.send(&message.repeat(MESSAGES as usize));

    // The other driver does nothing, and the publisher is not read for long.
    drive_until(&mut drivers[0], |driver| count(driver, |m| &m.mail_waits) == 1);
    let taken = count(&drivers[0], |m| &m.publishes_received);
    (0..20).for_each(|_| turn_without_sockets(&mut drivers[0]));
    assert_eq!(count(&drivers[0], |m| &m.publishes_received), taken);
    assert!(taken * 512 < 64 * 1024, "{taken} messages are more than the limit");
    assert_eq!(
        drivers[0].fall_asleep(drivers[0].host().now()),
        SLEEP_MS_MAX,
        "and it waits without being busy"
    );
    drivers[0].wake_up();

    let mut received = 0;
    for _ in 0..10_000 {
        drivers.iter_mut().for_each(turn);
        let bytes = subscriber.take(usize::MAX);
        received += bytes.iter().filter(|byte| **byte == 7).count() as u64;
        if received == MESSAGES * 512 {
            break;
        }
    }
    assert_eq!(received, MESSAGES * 512);
}

#[test]
fn a_driver_that_lost_the_right_to_act_sends_nothing_and_ends() {
    let lose: [fn(&mut TestDriver, &Mailboxes); 2] = [
        |_, mailboxes| mailboxes[0].put(Item::Abandon),
        // It notices before anybody tells it.
        |driver, _| driver.host_mut().lose(),
    ];
    for lose in lose {
        let (mut drivers, mailboxes) = drivers(1);
        let driver = &mut drivers[0];
        let clients = crowd(2, &mailboxes, b"\x82\x07\x00\x01\x00\x00\x01t\x00");
        drive_until(driver, |driver| count(driver, |m| &m.subscriptions) == 2);
        drive_until(driver, |driver| !driver.has_work(driver.host().now()));
        clients.iter().for_each(|client| drop(client.take(usize::MAX)));
        let (_newcomer, handover) = connect(0, "newcomer".into());

        clients[0].send(b"\x30\x05\x00\x01t\x00x");
        lose(driver, &mailboxes);
        mailboxes[0].put(Item::Connection(Box::new(handover)));
        turn(driver);

        assert!(driver.is_over() && driver.connections.is_empty());
        for client in &clients {
            assert!(client.take(usize::MAX).is_empty(), "nothing left");
            assert!(client.is_closed());
        }
    }
}
