//! A node that is active for cell 2 and sends what no owner of a cell sends, or nothing.

mod common;

use std::sync::mpsc::{self, Receiver};

use broker::cells::frame::Frame;
use broker::cells::lane::Packet;
use broker::cells::wire::{LaneHello, Route, VERSION, encode};
use cells::Owner;
use links::{Connected, Envelope, Handler, Links, Member, Reason, Sender, Violation};
use rig::publish;

use common::{PATIENCE, World, texts};

/// The third node. It has links, and no gateways.
struct Hostile {
    links: Links,
    events: Receiver<Event>,
}

enum Event {
    Connected(Sender),
    Hello(LaneHello, u64),
}

struct Recorder(mpsc::Sender<Event>);

/// Reads nothing until the test ends.
struct Silent(Receiver<()>);

impl Handler for Silent {
    fn on_connected(&mut self, _: Connected) {
        let _ = self.0.recv();
    }

    fn on_envelope(&mut self, _: &str, _: u8, _: Envelope<'_>) -> Result<(), Violation> {
        Ok(())
    }

    fn on_lost(&mut self, _node: &str, _lane: u8, _why: &Reason) {}
}

impl Handler for Recorder {
    fn on_connected(&mut self, connected: Connected) {
        let _ = self.0.send(Event::Connected(connected.sender));
    }

    fn on_envelope(&mut self, _: &str, _: u8, it: Envelope<'_>) -> Result<(), Violation> {
        if let Ok(Some(hello)) = it.lane_hello() {
            let _ = self.0.send(Event::Hello(hello, it.received));
        }
        Ok(())
    }

    fn on_lost(&mut self, _node: &str, _lane: u8, _why: &Reason) {}
}

impl Hostile {
    fn start(world: &World) -> Self {
        let (sender, events) = mpsc::channel();
        Self { links: start(world, Box::new(Recorder(sender))), events }
    }

    /// Waits for the next connection.
    fn connected(&self) -> Sender {
        loop {
            if let Event::Connected(sender) = self.next() {
                return sender;
            }
        }
    }

    /// Begins the lane on it as an owner does. Returns what the other end has received.
    fn begin(&self, sender: &Sender) -> u64 {
        loop {
            let Event::Hello(LaneHello { attempt, seen }, received) = self.next() else { continue };
            if seen == ATTEMPT {
                return received;
            }
            sender.send(hello(LaneHello { attempt: ATTEMPT, seen: attempt })).expect("room");
        }
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("it happens")
    }
}

/// Node 3, which only node 1 knows.
fn start(world: &World, handler: Box<dyn Handler>) -> Links {
    let links = Links::start(world.options("n3"), &[], handler).expect("links");
    links.add(member("n1", &world.nodes[0].links));
    world.nodes[0].links.add(member("n3", &links));
    let owner = Owner { node: "n3".to_owned(), epoch: EPOCH };
    world.nodes[0].cells.owner_changed(2, Some(owner));
    links
}

fn member(name: &str, links: &Links) -> Member {
    Member { name: name.to_owned(), address: links.local_address().to_string() }
}

fn hello(hello: LaneHello) -> Vec<u8> {
    let mut bytes = Vec::new();
    Envelope::of_hello(VERSION, ROUTE, hello, 0).encode(&mut bytes);
    bytes
}

fn packet(route: Route, number: u64, received: u64, frame: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packet = Packet { number, received, age_ms: 0, frame };
    Envelope::new(VERSION, route, packet).encode(&mut bytes);
    bytes
}

fn frame(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, 0, &mut bytes);
    bytes
}

#[test]
fn a_link_is_closed_for_what_no_owner_sends_and_cells_go_on() {
    let mut world = World::new(2, &[0, 1, 1], 1);
    world.link_all();
    (0..2).for_each(|cell| world.announce(cell));
    let hostile = Hostile::start(&world);
    let (subscriber, publisher) = (world.connect(1, "s"), world.connect(0, "p"));
    world.subscribe(1, subscriber, "a/b", 0);
    let misfit = frame(&Frame::AskGrant { number: 1, from: 63 });
    let sound = frame(&Frame::AskGrant { number: 1, from: 0 });
    let old = Route { from_epoch: EPOCH - 1, ..ROUTE };
    let cases: [(&[Vec<u8>], &str); 9] = [
        (&[packet(ROUTE, 1, 0, &[99])], "unknown kind of frame"),
        // The one before counts.
        (&[packet(ROUTE, 2, 0, &misfit)], "a frame of shard 63 of another cell"),
        (&[packet(ROUTE, 9, 0, &sound)], "gap between frames of another cell: 9 follows 2"),
        (&[packet(ROUTE, 0, 1000, &[])], "acknowledged frame 1000 was not sent"),
        (&[packet(old, 77, 0, &[99]), packet(ROUTE, 0, 0, &[0])], "it ends early"),
        (
            &[packet(Route { lane: 5, ..ROUTE }, 3, 0, &sound)],
            "packet for connection 5 on connection 0",
        ),
        (&[packet(Route { from_cell: 3, ..ROUTE }, 3, 0, &sound)], "cell 3 for cell 0 of 3 cells"),
        (
            &[packet(Route { from_cell: 1, from_epoch: 1, ..ROUTE }, 1, 0, &sound)],
            "packet of cell 1 for cell 0: its owner is node n2",
        ),
        (&[packet(ROUTE, 3, 0, &sound), packet(ROUTE, 4, 0, &[98])], "unknown kind of frame"),
    ];
    let received = [0, 1, 2, 2, 2, 2, 2, 2, 2];
    for (number, (packets, why)) in cases.into_iter().enumerate() {
        let sender = hostile.connected();
        // Before the hellos it is of an earlier connection.
        sender.send(packet(ROUTE, 55, 0, &sound)).expect("room");
        assert_eq!(hostile.begin(&sender), received[number], "{why}");
        packets.iter().for_each(|packet| sender.send(packet.clone()).expect("room"));
        let lost = world.nodes[0].losses.recv_timeout(PATIENCE).expect("the link is closed");
        assert!(lost.contains(why), "{lost}");
        let text = format!("{number}");
        world.cells[0].lab.send(publisher, &publish("a/b", text.as_bytes(), 0, 0));
        world.until("a message", |world| world.read(1, subscriber) == [text.as_str()]);
    }
    assert_eq!(hostile.begin(&hostile.connected()), 4);
    drop(hostile.links);
}

#[test]
fn a_silent_node_does_not_delay_others() {
    let mut world = World::new(2, &[0, 1, 1], 1);
    world.link_all();
    (0..2).for_each(|cell| world.announce(cell));
    // Node 2 believes that it has cell 2, so messages of cell 1 do not wait for an owner.
    world.announce_to(1, 2);
    let (end, silent) = mpsc::channel();
    let _links = start(&world, Box::new(Silent(silent)));
    // It is dropped first, also if the test fails.
    let end = end;
    // As long as the summary of cell 2 is unknown, it is sent all messages.
    let flood = world.connect(0, "f");
    let large = "x".repeat(100_000);
    for _ in 0..50 {
        world.cells[0].lab.send(flood, &publish("f", large.as_bytes(), 0, 0));
    }
    world.until("messages that wait", |world| {
        world.figures(0, 2).is_some_and(|figures| figures.kept_bytes > large.len())
    });
    let (subscriber, publisher) = (world.connect(0, "s"), world.connect(1, "p"));
    world.subscribe(0, subscriber, "a/b", 1);
    world.exchange((1, publisher), "a/b", &texts(100), &[(0, subscriber)]);
    drop(end);
}

const EPOCH: u64 = 9;

const ATTEMPT: u64 = 7;

const ROUTE: Route = Route { from_cell: 2, to_cell: 0, from_epoch: EPOCH, to_epoch: 1, lane: 0 };
