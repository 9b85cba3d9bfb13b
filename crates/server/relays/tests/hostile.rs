//! A node that violates the protocol of relays loses its link, and nothing else happens.

mod common;

use std::sync::mpsc::{self, Receiver, Sender};

use broker::cells::lane::Packet;
use broker::cells::wire::{FRONT, Route, VERSION};
use common::certificates::Authority;
use common::{CELL, EPOCH, Far, Node, PATIENCE, join, link_options, pattern, rest, works};
use links::{Connected, Envelope, Handler, Links, Member, Reason, Violation};
use net::{PeerAddress, PeerInfo};
use relays::wire::{
    ARRIVAL_BYTES_MAX, Arrival, CREDIT_BYTES_MAX, CREDIT_BYTES_MIN, Ended, FRAME_COST, Frame,
    decode, encode,
};
use relays::{Client, Refused};

/// A node with links and no relays.
struct Peer {
    links: Links,
    connected: Receiver<Connected>,
    frames: Receiver<(u64, Frame)>,
}

struct Recorder {
    connected: Sender<Connected>,
    frames: Sender<(u64, Frame)>,
}

impl Handler for Recorder {
    fn on_connected(&mut self, connected: Connected) {
        let _ = self.connected.send(connected);
    }

    fn on_envelope(&mut self, _: &str, _: u8, envelope: Envelope<'_>) -> Result<(), Violation> {
        let frame = decode(&envelope.frame).expect("the node sends what is valid");
        let _ = self.frames.send((envelope.number, frame));
        Ok(())
    }

    fn on_lost(&mut self, _: &str, _: u8, _: &Reason) {}
}

impl Peer {
    fn start(name: &str, authority: &Authority) -> Self {
        let ((connected_to, connected), (frames_to, frames)) = (mpsc::channel(), mpsc::channel());
        let recorder = Recorder { connected: connected_to, frames: frames_to };
        let links = Links::start(link_options(name, authority), &[], Box::new(recorder));
        Self { links: links.expect("links"), connected, frames }
    }

    fn join(&self, name: &str, node: &Node) {
        let address = |links: &Links| links.local_address().to_string();
        node.links.add(Member { name: name.to_owned(), address: address(&self.links) });
        let member = Member { name: node.name.clone(), address: address(&node.links) };
        self.links.add(member);
    }

    /// The next connection with this node. After one that is lost there is another.
    fn next(&self, node: &Node) -> Link<'_> {
        let connected = self.connected.recv_timeout(PATIENCE).expect("a link");
        node.until_connected();
        while self.frames.try_recv().is_ok() {}
        Link { peer: self, connected }
    }
}

struct Link<'a> {
    peer: &'a Peer,
    connected: Connected,
}

impl Link<'_> {
    fn send_bytes(&self, number: u64, frame: &[u8]) {
        let (from_epoch, lane) = (0, self.connected.lane);
        let route = Route { from_cell: FRONT, to_cell: CELL, from_epoch, to_epoch: EPOCH, lane };
        let mut bytes = Vec::new();
        let packet = Packet { number, received: 0, age_ms: 0, frame };
        Envelope::new(VERSION, route, packet).encode(&mut bytes);
        self.connected.sender.send(bytes).expect("it is open");
    }

    fn send(&self, number: u64, frame: &Frame) {
        let mut bytes = Vec::new();
        encode(frame, &mut bytes);
        self.send_bytes(number, &bytes);
    }

    fn next(&self) -> (u64, Frame) {
        self.peer.frames.recv_timeout(PATIENCE).expect("a frame")
    }

    /// Opens a relay.
    fn open(&self, number: u64, node: &Node) -> Far {
        self.send(number, &open(b"CONNECT"));
        assert_eq!(self.next(), (number ^ 1, Frame::Opened(7)));
        Far::new(node.arrived().2.stream)
    }
}

fn open(bytes: &[u8]) -> Frame {
    Frame::Open(Box::new(arrival(bytes)))
}

fn arrival(bytes: &[u8]) -> Arrival {
    let peer = PeerInfo {
        address: PeerAddress::Unix,
        proxied_by: None,
        tls: None,
        proxy_tls: None,
        proxy_authority: None,
        is_websocket: false,
        unix: None,
    };
    Arrival { peer, chain: Vec::new(), listener: "listener".to_owned(), bytes: bytes.to_vec() }
}

/// A node with a relay from a third one, which goes on whatever the peer does.
struct World {
    node: Node,
    peer: Peer,
    other: Node,
}

impl World {
    fn new() -> Self {
        let authority = Authority::new();
        let (node, other) = (Node::start("n1", &authority), Node::start("n3", &authority));
        join(&node, &other);
        let peer = Peer::start("n2", &authority);
        peer.join("n2", &node);
        Self { node, peer, other }
    }

    /// For what a peer that does this to a new link loses it.
    fn lost_by(&self, act: impl FnOnce(&Link<'_>)) -> String {
        let (mut client, mut far) = self.other.relay(&self.node);
        let link = self.peer.next(&self.node);
        act(&link);
        let (name, why) = self.node.until_lost();
        assert_eq!(name, "n2");
        works(&mut client, &mut far);
        why
    }

    fn violation(&self, act: impl FnOnce(&Link<'_>)) -> String {
        let why = self.lost_by(act);
        let what = why.strip_prefix("the node violates the protocol of relays: ");
        what.map(str::to_owned).unwrap_or_else(|| panic!("{why}"))
    }
}

#[test]
fn frames_of_relays_that_never_were_close_the_link() {
    let world = World::new();
    let never = "a relay that was never opened";
    for number in [1, 2, 3, 4, u64::MAX] {
        let data = Frame::Data(b"data".to_vec());
        assert_eq!(world.violation(|link| link.send(number, &data)), never, "{number}");
    }
    let close = Frame::Close(Ended::Stream);
    assert_eq!(world.violation(|link| link.send(2, &close)), never, "this node has begun none");
    let skips = |link: &Link<'_>| link.send(5, &open(b"CONNECT"));
    assert_eq!(world.violation(skips), never, "numbers come in order");
}

#[test]
fn a_number_is_opened_once() {
    let world = World::new();
    let twice = "a relay was opened twice or out of order";
    let open_again = |link: &Link<'_>| {
        let far = link.open(3, &world.node);
        link.send(3, &open(b"CONNECT"));
        assert_eq!(far.rest(), b"", "its relay is over");
    };
    assert_eq!(world.violation(open_again), twice);
    let after_close = |link: &Link<'_>| {
        let far = link.open(3, &world.node);
        link.send(3, &Frame::Close(Ended::Stream));
        assert_eq!(far.rest(), b"");
        link.send(3, &open(b"CONNECT"));
    };
    assert_eq!(world.violation(after_close), twice);
}

#[test]
fn more_than_a_credit_closes_the_link() {
    let world = World::new();
    let over = |link: &Link<'_>| {
        let mut far = link.open(3, &world.node);
        let most = pattern(CREDIT_BYTES_MIN as usize - FRAME_COST as usize);
        link.send(3, &Frame::Data(most.clone()));
        assert_eq!(far.read(most.len()), most);
        // It may have more by now, but not so much.
        link.send(3, &Frame::Data(vec![7; CREDIT_BYTES_MAX as usize]));
        assert_eq!(far.rest(), b"");
    };
    assert_eq!(world.violation(over), "more data than the credit of the relay");
    let kept = |link: &Link<'_>| {
        let far = link.open(3, &world.node);
        link.send(3, &Frame::Returned(1));
        drop(far.rest());
    };
    assert_eq!(world.violation(kept), "more is given back than was lent");
    let too_much = |link: &Link<'_>| {
        let far = link.open(3, &world.node);
        link.send(3, &Frame::Credit(CREDIT_BYTES_MAX - CREDIT_BYTES_MIN + 1));
        drop(far.rest());
    };
    assert_eq!(world.violation(too_much), "a credit that no relay can have");
    let none = |link: &Link<'_>| {
        let far = link.open(3, &world.node);
        link.send(3, &Frame::Credit(0));
        drop(far.rest());
    };
    assert_eq!(world.violation(none), "a credit that no relay can have");
}

#[test]
fn answers_have_to_be_asked_for() {
    let world = World::new();
    let of_home = |link: &Link<'_>| {
        let far = link.open(3, &world.node);
        link.send(3, &Frame::Opened(7));
        drop(far.rest());
    };
    assert_eq!(world.violation(of_home), "an answer to no open");
    let refused = |link: &Link<'_>| {
        let far = link.open(3, &world.node);
        link.send(3, &Frame::Refused(Refused::NoRoom));
        drop(far.rest());
    };
    assert_eq!(world.violation(refused), "an answer to no open");
}

/// The node is the front here.
fn begun<'a>(world: &World, link: &Link<'a>) -> (std::net::TcpStream, u64) {
    let (client, stream, peer) = world.node.client();
    let relayed =
        Client::new(stream, Box::new(()), peer, ("listener".to_owned(), b"CONNECT".to_vec()));
    assert!(world.node.relays.begin("n2", CELL, EPOCH, relayed).is_ok());
    let (number, frame) = link.next();
    assert!(matches!(frame, Frame::Open(arrival) if arrival.bytes == b"CONNECT"));
    (client, number ^ 1)
}

#[test]
fn a_home_that_answers_wrong_loses_its_link() {
    let world = World::new();
    let early = |link: &Link<'_>| {
        let (client, number) = begun(&world, link);
        link.send(number, &Frame::Data(b"early".to_vec()));
        assert_eq!(rest(client), b"", "nothing of it reaches the client");
    };
    assert_eq!(world.violation(early), "a frame before the answer to an open");
    let other_count = |link: &Link<'_>| {
        let (client, number) = begun(&world, link);
        link.send(number, &Frame::Opened(8));
        assert_eq!(rest(client), b"");
    };
    assert_eq!(world.violation(other_count), "an answer to no open");
    let of_front = |link: &Link<'_>| {
        let (_client, number) = begun(&world, link);
        link.send(number, &open(b"CONNECT"));
    };
    assert_eq!(world.violation(of_front), "a relay was opened twice or out of order");
}

/// These are found before any relay is concerned.
#[test]
fn what_is_no_frame_closes_the_link() {
    let world = World::new();
    let invalid =
        |what: &str, at: usize| format!("invalid data of a relayed connection: {what} (byte {at})");
    assert_eq!(world.lost_by(|link| link.send_bytes(3, &[99])), invalid(UNKNOWN, 1));
    let too_long = Arrival { listener: "l".repeat(ARRIVAL_BYTES_MAX), ..arrival(b"CONNECT") };
    let too_long = Frame::Open(Box::new(too_long));
    let why = world.lost_by(|link| link.send(3, &too_long));
    assert!(why.contains("an arrival is longer than 64 KiB"), "{why}");
    let huge = Arrival { chain: vec![vec![0; 80_000]], ..arrival(b"CONNECT") };
    let huge = Frame::Open(Box::new(huge));
    let why = world.lost_by(|link| link.send(3, &huge));
    assert_eq!(why, invalid("a frame is longer than 68 KiB", 0));
    let why = world.lost_by(|link| link.send(3, &open(&[7; CREDIT_BYTES_MIN as usize + 1])));
    assert!(why.contains("more of the client's bytes than the first credit"), "{why}");
}

/// What a peer has sent before it knew of the end.
#[test]
fn frames_of_a_closed_relay_are_ignored() {
    let world = World::new();
    let link = world.peer.next(&world.node);
    drop(link.open(3, &world.node));
    assert_eq!(link.next(), (2, Frame::Close(Ended::Stream)));
    for frame in [Frame::Data(b"late".to_vec()), Frame::Credit(9), Frame::Close(Ended::Stream)] {
        link.send(3, &frame);
    }
    let mut far = link.open(5, &world.node);
    link.send(5, &Frame::Data(b"data".to_vec()));
    assert_eq!(far.read(4), b"data");
}

/// Numbers begin again on another connection: what is late is not known there.
#[test]
fn numbers_of_an_earlier_connection_count_for_nothing() {
    let world = World::new();
    let link = world.peer.next(&world.node);
    let far: Vec<Far> = [3, 5, 7].map(|number| link.open(number, &world.node)).into();
    link.connected.sender.close(Violation("cut".to_owned()));
    let link = world.peer.next(&world.node);
    far.into_iter().for_each(|far| assert_eq!(far.rest(), b""));
    let mut far = link.open(3, &world.node);
    far.write(b"data");
    assert_eq!(link.next(), (2, Frame::Data(b"data".to_vec())));
}

const UNKNOWN: &str = "an unknown kind of frame";
