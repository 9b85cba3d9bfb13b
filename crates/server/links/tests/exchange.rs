//! Nodes that exchange packets, over connections that break.

mod common;

use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{self, Receiver};

use common::carrier::Carrier;
use common::certificates::Authority;
use common::proxy::{Plan, Proxy};
use common::{Event, Node, PATIENCE, Recorder, fill, join, member, options, packet};
use links::{Connected, Envelope, Handler, Links, OUTBOX_BYTES_MAX, Options, Reason, SendError};
use links::{Sender, Violation};

/// Checks that the packets of each link are numbered from 1, and reports the end of each link's.
struct Counter {
    total: u64,
    next: HashMap<(String, u8), u64>,
    senders: mpsc::Sender<Sender>,
    room: mpsc::Sender<()>,
    ends: mpsc::Sender<()>,
}

/// A node with a counter, and what its counter reports.
struct Counting {
    links: Links,
    senders: Receiver<Sender>,
    room: Receiver<()>,
    ends: Receiver<()>,
}

impl Handler for Counter {
    fn on_connected(&mut self, connected: Connected) {
        let _ = self.senders.send(connected.sender);
    }

    fn on_envelope(
        &mut self,
        node: &str,
        lane: u8,
        envelope: Envelope<'_>,
    ) -> Result<(), Violation> {
        let next = self.next.entry((node.to_owned(), lane)).or_insert(1);
        assert_eq!((envelope.number, &envelope.frame[..]), (*next, &next.to_le_bytes()[..]));
        *next += 1;
        if *next > self.total {
            let _ = self.ends.send(());
        }
        Ok(())
    }

    fn on_room(&mut self, _node: &str, _lane: u8) {
        let _ = self.room.send(());
    }

    fn on_lost(&mut self, _node: &str, _lane: u8, why: &Reason) {
        assert!(matches!(why, Reason::Stopped | Reason::Closed), "{why}");
    }
}

impl Counting {
    fn start(options: Options, total: u64) -> Self {
        let ((to_senders, senders), (to_room, room)) = (mpsc::channel(), mpsc::channel());
        let (to_ends, ends) = mpsc::channel();
        let next = HashMap::new();
        let counter = Counter { total, next, senders: to_senders, room: to_room, ends: to_ends };
        let links = Links::start(options, &[], Box::new(counter)).expect("links");
        Self { links, senders, room, ends }
    }

    /// Sends packets 1 to `total` on each of its links.
    fn send_all(&mut self, links: usize, total: u64) {
        let wait = || self.senders.recv_timeout(PATIENCE).expect("it connects");
        let senders: Vec<Sender> = (0..links).map(|_| wait()).collect();
        for number in 1..=total {
            for sender in &senders {
                let mut bytes = packet(number, 0, &number.to_le_bytes());
                while let Err(error) = sender.send(bytes) {
                    let SendError::Full(refused) = error else { panic!("{error}") };
                    bytes = refused;
                    self.room.recv_timeout(PATIENCE).expect("there is room again");
                }
            }
        }
    }

    fn await_all(&self, links: usize) {
        (0..links).for_each(|_| self.ends.recv_timeout(PATIENCE).expect("all arrive"));
    }
}

/// Each node sends `total` packets on each lane to each other one.
fn exchange(names: &[&str], lanes: u8, total: u64) {
    let authority = Authority::new();
    let start = |name: &&str| {
        Counting::start(Options { lanes, ..options(name, authority.issue(name)) }, total)
    };
    let mut nodes: Vec<Counting> = names.iter().map(start).collect();
    for node in &nodes {
        for (name, other) in names.iter().zip(&nodes) {
            node.links.add(member(name, other.links.local_address()));
        }
    }
    let links = (names.len() - 1) * usize::from(lanes);
    std::thread::scope(|scope| {
        nodes.iter_mut().for_each(|node| drop(scope.spawn(|| node.send_all(links, total))));
    });
    nodes.iter().for_each(|node| node.await_all(links));
}

#[test]
fn two_nodes_exchange_a_million_packets_in_order() {
    exchange(&["n1", "n2"], 1, 500_000);
}

#[test]
fn three_nodes_exchange_a_million_packets_in_order_on_two_lanes() {
    exchange(&["n1", "n2", "n3"], 2, 1_000_000 / 12);
}

/// The lanes of two cells on a connection that breaks again and again, at any byte: in the
/// handshake of TLS, in that of nodes, in a packet.
#[test]
fn what_a_broken_connection_loses_is_sent_again() {
    let authority = Authority::new();
    let total = 200_000;
    let mut plans: Vec<Plan> = [300, 1500, 2500, 3000, 3300, 4000].map(Plan::CutAfter).into();
    plans.extend((1..12).map(|n| Plan::CutAfter(n * 77_777)));
    plans.extend([20_001, 90_002].map(|cut_after| Plan::Slow { cut_after }));
    plans.extend([50_003, 400_004].map(Plan::CutConnectorAfter));
    let cuts = plans.len();
    let (to_done, done) = mpsc::channel();
    let start = |name: &str| {
        let carrier = Box::new(Carrier::new(total, to_done.clone()));
        Links::start(options(name, authority.issue(name)), &[], carrier).expect("links")
    };
    let (one, other) = (start("n1"), start("n2"));
    let proxy = Proxy::start(other.local_address(), plans);
    one.add(member("n2", proxy.address()));
    other.add(member("n1", one.local_address()));
    let losses = [(); 2].map(|()| done.recv_timeout(PATIENCE).expect("all arrives"));
    assert!(losses.iter().all(|losses| *losses >= 10), "{losses:?} with {cuts} plans");
}

/// What one of them sends does not arrive, while it hears the other.
#[test]
fn a_link_that_is_silent_in_one_direction_is_lost_on_both_sides() {
    let authority = Authority::new();
    let start =
        |name| Node::start(Options { link_ms: 2000, ..options(name, authority.issue(name)) });
    let (one, other) = (start("n1"), start("n2"));
    let proxy = Proxy::start(other.links.local_address(), vec![Plan::StallAfter(20_000)]);
    one.links.add(member("n2", proxy.address()));
    other.links.add(one.member());
    let connected = one.until_connected();
    let first = other.until_connected();
    fill(&connected.sender);
    assert_eq!(other.until_lost(), "nothing has arrived for 2000 ms");
    one.until_lost();
    assert!(
        matches!(connected.sender.send(vec![7]), Err(SendError::Closed(bytes)) if bytes == [7])
    );
    // Each side has given the session up that it could not hear.
    let (again, second) = (one.until_connected(), other.until_connected());
    assert_ne!(second.own_session, first.own_session);
    assert_eq!((second.own_session, second.peer_session), (again.peer_session, again.own_session));
}

#[test]
fn a_silent_link_lives_by_its_heartbeats() {
    let authority = Authority::new();
    let start =
        |name| Node::start(Options { link_ms: 500, ..options(name, authority.issue(name)) });
    let (one, other) = (start("n1"), start("n2"));
    let third = Node::start(Options { link_ms: 3000, ..options("n3", authority.issue("n3")) });
    let fourth = Proxy::start(third.links.local_address(), vec![Plan::StallAfter(4000)]);
    // Within the time of its life a silent link of others dies, this one does not.
    let [connected, _] = join(&one, &other);
    let stalled = Node::start(Options { link_ms: 3000, ..options("n0", authority.issue("n0")) });
    stalled.links.add(member("n3", fourth.address()));
    third.links.add(stalled.member());
    let sender = stalled.until_connected().sender;
    fill(&sender);
    third.until_lost();
    connected.sender.send(packet(1, 0, b"first")).expect("it is the same connection");
    let first = other.until(|event| match event {
        Event::Packet(_, _, _, frame) => Some(frame),
        Event::Lost { why, .. } => panic!("{why}"),
        _ => None,
    });
    assert_eq!(first, b"first");
}

/// Its handler stands for the process: no thread of the links runs.
#[test]
fn a_paused_process_finds_its_link_dead_before_it_reads() {
    struct Pausing(Recorder, Receiver<()>);
    impl Handler for Pausing {
        fn on_connected(&mut self, connected: Connected) {
            self.0.on_connected(connected);
        }
        fn on_envelope(&mut self, node: &str, lane: u8, of: Envelope<'_>) -> Result<(), Violation> {
            let is_pause = &*of.frame == b"pause";
            self.0.on_envelope(node, lane, of)?;
            if is_pause {
                self.1.recv_timeout(PATIENCE).expect("the test goes on");
            }
            Ok(())
        }
        fn on_lost(&mut self, node: &str, lane: u8, why: &Reason) {
            self.0.on_lost(node, lane, why);
        }
    }
    let authority = Authority::new();
    // The one that waits for the other's end has the longer time.
    let options = |name, link_ms| Options { link_ms, ..options(name, authority.issue(name)) };
    let (go_on, paused) = mpsc::channel();
    let (sender, events) = mpsc::channel();
    let handler = Box::new(Pausing(Recorder(sender), paused));
    let (one, other) =
        (Node::start(options("n1", 4000)), Node::start_with(options("n2", 2500), handler, events));
    let [connected, before] = join(&one, &other);
    for frame in [&b"pause"[..], b"too late"] {
        connected.sender.send(packet(1, 0, frame)).expect("room");
    }
    assert_eq!(other.until_packet().1, b"pause");
    assert_eq!(one.until_lost(), "nothing has arrived for 4000 ms");
    go_on.send(()).expect("it waits");
    let why = other.until(|event| match event {
        Event::Lost { why, .. } => Some(why),
        Event::Packet(_, _, _, frame) => panic!("{frame:?}"),
        _ => None,
    });
    assert_eq!(why, "nothing has arrived for 2500 ms");
    let after = other.until_connected();
    assert_ne!(after.own_session, before.own_session);
}

#[test]
fn a_session_goes_on_over_a_short_loss() {
    let authority = Authority::new();
    let [one, other] = ["n1", "n2"].map(|name| Node::start(options(name, authority.issue(name))));
    let plans = vec![Plan::CutConnectorAfter(10_000), Plan::CutAfter(10_000)];
    let proxy = Proxy::start(other.links.local_address(), plans);
    one.links.add(member("n2", proxy.address()));
    other.links.add(one.member());
    let sessions = |connected: &Connected| (connected.own_session, connected.peer_session);
    let first = one.until_connected();
    let (own, peer) = sessions(&first);
    assert_eq!(sessions(&other.until_connected()), (peer, own));
    fill(&first.sender);
    one.until_lost();
    // The acceptor has not noticed.
    assert_eq!(other.until_lost(), "the node has connected again");
    let second = one.until_connected();
    assert_eq!(sessions(&second), (own, peer));
    assert_eq!(sessions(&other.until_connected()), (peer, own));
    fill(&second.sender);
    one.until_lost();
    assert_eq!(sessions(&one.until_connected()), (own, peer));
}

#[test]
fn a_sender_is_refused_at_the_limit_and_hears_of_room() {
    struct Gated(Receiver<()>);
    impl Handler for Gated {
        fn on_connected(&mut self, _connected: Connected) {
            self.0.recv_timeout(PATIENCE).expect("the test goes on");
        }
        fn on_envelope(&mut self, _: &str, _: u8, _: Envelope<'_>) -> Result<(), Violation> {
            Ok(())
        }
        fn on_lost(&mut self, _node: &str, _lane: u8, _why: &Reason) {}
    }
    let authority = Authority::new();
    let (open, gate) = mpsc::channel();
    let handler = Box::new(Gated(gate));
    // It reads nothing until its gate opens.
    let other = Links::start(options("n2", authority.issue("n2")), &[], handler).expect("links");
    let one = Node::start(options("n1", authority.issue("n1")));
    one.links.add(member("n2", other.local_address()));
    other.add(one.member());
    let sender = one.until_connected().sender;
    fill(&sender);
    let (bytes, packets) = sender.queued();
    assert!(bytes <= OUTBOX_BYTES_MAX && bytes > OUTBOX_BYTES_MAX - 200_000, "{bytes}");
    assert!(packets > 100);
    let refused = vec![7; 200_000];
    assert_eq!(sender.send(refused.clone()), Err(SendError::Full(refused.clone())));
    assert_eq!(one.links.send("n2", 0, refused.clone()), Err(SendError::Full(refused)));
    open.send(()).expect("it waits");
    one.until(|event| matches!(event, Event::Room).then_some(()));
    assert!(sender.queued().0 <= OUTBOX_BYTES_MAX / 2);
    one.links.send("n2", 0, packet(1, 0, b"more")).expect("there is room");
    let unknown = one.links.send("n3", 0, vec![7]);
    assert_eq!(unknown, Err(SendError::Closed(vec![7])));
}

#[test]
fn a_violation_that_is_found_later_closes_the_link() {
    let authority = Authority::new();
    let [one, other] = ["n1", "n2"].map(|name| Node::start(options(name, authority.issue(name))));
    let [connected, _] = join(&one, &other);
    connected.sender.close(Violation("an answer to no question".to_owned()));
    assert_eq!(connected.sender.send(vec![7]), Err(SendError::Closed(vec![7])));
    assert_eq!(one.until_lost(), "an answer to no question");
    assert_eq!(other.until_lost(), "the peer closed the connection");
    let again = one.until_connected().sender;
    again.send(packet(1, 0, b"again")).expect("it is another connection");
    assert_eq!(other.until_packet(), (1, b"again".to_vec()));
}

#[test]
fn large_packets_arrive_whole() {
    let authority = Authority::new();
    let [one, other] = ["n1", "n2"].map(|name| Node::start(options(name, authority.issue(name))));
    let [connected, _] = join(&one, &other);
    let large: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    connected.sender.send(packet(1, 0, &large)).expect("it is alone");
    assert!(other.until_packet() == (1, large));
    connected.sender.send(packet(2, 0, b"small")).expect("room");
    assert_eq!(other.until_packet(), (2, b"small".to_vec()));
}

#[test]
fn a_member_that_is_removed_is_disconnected_and_may_come_back() {
    let authority = Authority::new();
    let [one, other] = ["n1", "n2"].map(|name| Node::start(options(name, authority.issue(name))));
    let [_, before] = join(&one, &other);
    other.links.remove("n1");
    assert_eq!(other.until_lost(), "the node was removed from the cluster");
    one.until_lost();
    assert_eq!(other.links.send("n1", 0, vec![7]), Err(SendError::Closed(vec![7])));
    // It tries again.
    assert_eq!(other.until_failed(), "unknown node n1: only members of the cluster may connect");
    other.links.add(one.member());
    one.until_connected();
    assert_ne!(other.until_connected().own_session, before.own_session);
    // The one that connects removes the other.
    one.links.remove("n2");
    assert_eq!(one.until_lost(), "the node was removed from the cluster");
    assert_eq!(other.until_lost(), "the peer closed the connection");
}

#[test]
fn certificates_are_read_again() {
    let authority = Authority::new();
    let one = Node::start(options("n1", authority.issue("n1")));
    let other = Node::start(options("n2", authority.issue_expired("n2")));
    one.links.add(other.member());
    other.links.add(one.member());
    let why = one.until_failed();
    assert!(why.contains("xpired"), "{why}");
    let files = authority.issue("n2");
    other.links.reload().expect("they are sound");
    one.until_connected();
    let sender = other.until_connected().sender;
    fs::write(&files.key, "damaged").expect("write");
    let error = other.links.reload().expect_err("it is damaged");
    assert!(error.to_string().contains("n2.key"), "{error}");
    sender.send(packet(5, 0, b"still here")).expect("links stay");
    assert_eq!(one.until_packet(), (5, b"still here".to_vec()));
}

#[test]
fn a_host_name_is_resolved_and_an_unknown_one_reported() {
    let authority = Authority::new();
    let [one, other] = ["n1", "n2"].map(|name| Node::start(options(name, authority.issue(name))));
    let unknown = links::Member { name: "n2".to_owned(), address: "n2.invalid:1".to_owned() };
    one.links.add(unknown.clone());
    other.links.add(one.member());
    let why = one.until_failed();
    assert!(why.starts_with("cannot resolve n2.invalid:1: "), "{why}");
    let address = format!("localhost:{}", other.links.local_address().port());
    one.links.add(links::Member { address, ..unknown });
    one.until_connected();
}
