//! A relay between two model sessions, whose connections are cut at any byte: nothing that a
//! session has is lost, and nothing is doubled at QoS 2.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bridge::{Action, Direction, Login, Relay, Settings, Side, TopicMap};
use codec::{
    Ack, AckKind, Connack, Packet, Properties, Publish, QoS, Reason, Sender, Suback, Version,
};
use proptest::prelude::*;
use topic::TopicLimits;

#[derive(Clone, Debug)]
enum Step {
    Publish {
        at: Side,
        qos: QoS,
    },
    /// Some bytes of a side arrive: at the relay, or from it.
    Move {
        side: Side,
        to_relay: bool,
        bytes: usize,
    },
    Cut,
    /// One broker closes the connection, perhaps because of a message.
    Close {
        by: Side,
    },
    /// Both connections are cut, and one broker forgets its session.
    Lose {
        at: Side,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = || prop_oneof![Just(Side::Local), Just(Side::Remote)];
    let qos = prop_oneof![Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)];
    let step = prop_oneof![
        4 => (side(), qos).prop_map(|(at, qos)| Step::Publish { at, qos }),
        20 => (side(), any::<bool>(), 1..40usize)
            .prop_map(|(side, to_relay, bytes)| Step::Move { side, to_relay, bytes }),
        1 => Just(Step::Cut),
        1 => side().prop_map(|by| Step::Close { by }),
        1 => side().prop_map(|at| Step::Lose { at }),
    ];
    prop::collection::vec(step, 1..300)
}

/// The session of a broker, with few identifiers, so that they are used again soon.
struct Session {
    version: Version,
    exists: bool,
    is_online: bool,
    is_subscribed: bool,
    queue: VecDeque<(u32, QoS)>,
    in_flight: Vec<InFlight>,
    incoming: BTreeSet<u16>,
    next_id: u16,
    /// Messages that were accepted, with how often.
    accepted: BTreeMap<u32, u32>,
}

struct InFlight {
    id: u16,
    number: u32,
    qos: QoS,
    is_released: bool,
}

const IDS: u16 = 4;
const WINDOW: usize = 3;

impl Session {
    fn new(version: Version) -> Self {
        Self {
            version,
            exists: false,
            is_online: false,
            is_subscribed: false,
            queue: VecDeque::new(),
            in_flight: Vec::new(),
            incoming: BTreeSet::new(),
            next_id: 0,
            accepted: BTreeMap::new(),
        }
    }

    fn connect(&mut self, out: &mut Vec<u8>) {
        let connack = Connack {
            session_present: self.exists,
            reason: Reason::SUCCESS,
            properties: Properties::EMPTY,
        };
        (self.exists, self.is_online) = (true, true);
        Packet::Connack(connack).encode(self.version, out);
        for flight in &self.in_flight {
            match flight.is_released {
                true => self.ack(AckKind::Pubrel, flight.id, Reason::SUCCESS, out),
                false => self.write(flight, true, out),
            }
        }
    }

    fn lose(&mut self) -> Vec<u32> {
        let queued = self.queue.drain(..).map(|(number, _)| number);
        let lost = queued.chain(self.in_flight.drain(..).map(|flight| flight.number)).collect();
        (self.exists, self.is_subscribed, self.next_id) = (false, false, 0);
        self.incoming.clear();
        lost
    }

    fn pump(&mut self, out: &mut Vec<u8>) {
        while self.in_flight.len() < WINDOW {
            let Some((number, qos)) = self.queue.pop_front() else { return };
            loop {
                self.next_id = self.next_id % IDS + 1;
                if self.in_flight.iter().all(|flight| flight.id != self.next_id) {
                    break;
                }
            }
            let flight = InFlight { id: self.next_id, number, qos, is_released: false };
            self.write(&flight, false, out);
            self.in_flight.push(flight);
        }
    }

    fn write(&self, flight: &InFlight, dup: bool, out: &mut Vec<u8>) {
        let publish = Publish {
            dup,
            qos: flight.qos,
            retain: false,
            topic: "t",
            packet_id: flight.id,
            properties: Properties::EMPTY,
            payload: &flight.number.to_be_bytes(),
        };
        publish.encode(self.version, out);
    }

    fn ack(&self, kind: AckKind, id: u16, reason: Reason, out: &mut Vec<u8>) {
        Packet::Ack(Ack::new(kind, id, reason)).encode(self.version, out);
    }

    fn on_packet(&mut self, packet: &Packet<'_>, out: &mut Vec<u8>) {
        match packet {
            Packet::Publish(publish) => self.on_publish(publish, out),
            Packet::Ack(ack) => self.on_ack(ack, out),
            Packet::Subscribe(subscribe) => {
                self.is_subscribed = true;
                let suback = Suback {
                    packet_id: subscribe.packet_id,
                    properties: Properties::EMPTY,
                    reasons: &[2],
                };
                Packet::Suback(suback).encode(self.version, out);
            }
            Packet::Connect(_) => self.connect(out),
            Packet::Pingreq => Packet::Pingresp.encode(self.version, out),
            other => panic!("{other:?}"),
        }
        self.pump(out);
    }

    fn on_publish(&mut self, publish: &Publish<'_>, out: &mut Vec<u8>) {
        let number = u32::from_be_bytes(publish.payload.try_into().unwrap());
        let is_new = publish.qos == QoS::AtLeastOnce || self.incoming.insert(publish.packet_id);
        if is_new {
            *self.accepted.entry(number).or_default() += 1;
        }
        let kind = match publish.qos {
            QoS::AtLeastOnce => AckKind::Puback,
            _ => AckKind::Pubrec,
        };
        self.ack(kind, publish.packet_id, Reason::SUCCESS, out);
    }

    fn on_ack(&mut self, ack: &Ack<'_>, out: &mut Vec<u8>) {
        let id = ack.packet_id;
        if ack.kind == AckKind::Pubrel {
            let known = self.incoming.remove(&id);
            let reason = if known { Reason::SUCCESS } else { Reason::PACKET_IDENTIFIER_NOT_FOUND };
            return self.ack(AckKind::Pubcomp, id, reason, out);
        }
        let Some(at) = self.in_flight.iter().position(|flight| flight.id == id) else {
            panic!("{ack:?} for nothing");
        };
        let flight = &mut self.in_flight[at];
        match (ack.kind, flight.qos, flight.is_released) {
            (AckKind::Puback, QoS::AtLeastOnce, _) | (AckKind::Pubcomp, QoS::ExactlyOnce, true) => {
                self.in_flight.remove(at);
            }
            (AckKind::Pubrec, QoS::ExactlyOnce, _) => {
                assert!(!ack.reason.is_error());
                flight.is_released = true;
                self.ack(AckKind::Pubrel, id, Reason::SUCCESS, out);
            }
            _ => panic!("{ack:?} for a message of {:?}", flight.qos),
        }
    }
}

struct World {
    settings: Arc<Settings>,
    relay: Relay,
    sessions: [Session; 2],
    /// On the way to the relay, and from it.
    to_relay: [Vec<u8>; 2],
    from_relay: [Vec<u8>; 2],
    is_local_open: bool,
    published: Vec<(Side, u32, QoS)>,
    excused: BTreeSet<u32>,
    /// Messages that may come twice: a session was lost while they were on their way.
    doubtful: BTreeSet<u32>,
    closes: u32,
}

/// One more would give a message up.
const CLOSES_MAX: u32 = 2;

impl World {
    fn new(version: Version) -> Self {
        let maps = vec![TopicMap {
            filter: "t".into(),
            direction: Direction::Both,
            qos: QoS::ExactlyOnce,
            local_prefix: String::new(),
            remote_prefix: String::new(),
        }];
        let settings = Arc::new(Settings {
            version,
            clean_session: false,
            keep_alive_secs: 0,
            is_announced: true,
            maps,
            in_flight_max: 10,
            hops_max: 4,
            remote_packet_bytes_max: u32::MAX,
            packet_bytes_max: 1_000,
            topic: TopicLimits { levels_max: 8, bytes_max: 100 },
        });
        Self {
            relay: Relay::new(settings.clone(), &Login::default(), 0),
            settings,
            sessions: [Session::new(Version::V5), Session::new(version)],
            to_relay: Default::default(),
            from_relay: Default::default(),
            is_local_open: false,
            published: Vec::new(),
            excused: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            closes: 0,
        }
    }

    fn cut(&mut self, closed_by: Option<Side>) {
        let closed_by = closed_by.filter(|_| self.closes < CLOSES_MAX);
        self.closes += u32::from(closed_by.is_some());
        let (suspects, _) = self.relay.take_suspects(closed_by);
        let unreleased = self.relay.take_unreleased();
        self.relay = Relay::new(self.settings.clone(), &Login::default(), 0);
        self.relay.set_unreleased(unreleased);
        self.relay.set_suspects(suspects);
        self.to_relay = Default::default();
        self.from_relay = Default::default();
        self.is_local_open = false;
        self.sessions.iter_mut().for_each(|session| session.is_online = false);
    }

    fn is_connected(&self, side: Side) -> bool {
        side == Side::Remote || self.is_local_open
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { at, qos } => {
                let number = self.published.len() as u32;
                self.published.push((at, number, qos));
                let session = &mut self.sessions[at as usize];
                match session.is_subscribed {
                    true => session.queue.push_back((number, qos)),
                    false => {
                        self.excused.insert(number);
                    }
                }
                if session.is_online && session.is_subscribed {
                    session.pump(&mut self.to_relay[at as usize]);
                }
            }
            Step::Move { side, to_relay: true, bytes } => self.feed(side, bytes),
            Step::Move { side, to_relay: false, bytes } => self.drain(side, bytes),
            Step::Cut => self.cut(None),
            Step::Close { by } => self.cut(Some(by)),
            Step::Lose { at } => {
                self.cut(None);
                let lost = self.sessions[at as usize].lose();
                self.excused.extend(lost);
                // The other side's messages may have arrived, and are sent again.
                let other = &self.sessions[at.other() as usize];
                self.doubtful.extend(other.in_flight.iter().map(|flight| flight.number));
            }
        }
    }

    fn feed(&mut self, side: Side, bytes: usize) {
        let wire = &mut self.to_relay[side as usize];
        let bytes = bytes.min(wire.len());
        let taken = self.relay.on_bytes(side, &wire[..bytes], 0).unwrap();
        wire.drain(..taken);
        while let Some(action) = self.relay.next_action() {
            if matches!(action, Action::OpenLocal { .. }) {
                self.is_local_open = true;
                self.sessions[0].connect(&mut self.to_relay[0]);
                self.sessions[0].pump(&mut self.to_relay[0]);
            }
            assert!(!matches!(action, Action::Refused(_) | Action::Dropped { .. }), "{action:?}");
        }
    }

    fn drain(&mut self, side: Side, bytes: usize) {
        if !self.is_connected(side) {
            return;
        }
        let unwritten = self.relay.unwritten(side);
        let bytes = bytes.min(unwritten.len());
        let wire = &mut self.from_relay[side as usize];
        wire.extend_from_slice(&unwritten[..bytes]);
        self.relay.on_written(side, bytes, 0);
        let session = &mut self.sessions[side as usize];
        let mut taken = 0;
        while let Some((packet, len)) =
            codec::decode(&wire[taken..], session.version, Sender::Client, 10_000).unwrap()
        {
            session.on_packet(&packet, &mut self.to_relay[side as usize]);
            taken += len;
        }
        wire.drain(..taken);
    }

    fn settle(&mut self) {
        self.cut(None);
        for round in 0.. {
            let before: usize = self.pending();
            for side in Side::ALL {
                self.drain(side, usize::MAX);
                self.feed(side, usize::MAX);
            }
            let is_quiet = before == 0 && self.pending() == 0;
            if is_quiet && self.relay.is_up() {
                return;
            }
            assert!(round < 10_000, "it does not settle: {:?}", self.relay);
        }
    }

    fn pending(&self) -> usize {
        let wires = self.to_relay.iter().chain(&self.from_relay).map(Vec::len);
        let unwritten = Side::ALL.map(|side| self.relay.unwritten(side).len());
        wires.sum::<usize>() + unwritten.iter().sum::<usize>()
    }

    fn check(&self) {
        for session in &self.sessions {
            assert!(session.queue.is_empty() && session.in_flight.is_empty(), "without an end");
        }
        for (at, number, qos) in &self.published {
            let times = self.sessions[at.other() as usize].accepted.get(number).copied();
            let times = times.unwrap_or(0);
            if !self.excused.contains(number) {
                assert!(times >= 1, "message {number} of {at:?} is lost");
            }
            if *qos == QoS::ExactlyOnce && !self.doubtful.contains(number) {
                assert!(times <= 1, "message {number} of {at:?} came {times} times");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_qos_2_is_not_doubled(
        steps in steps(),
        version in prop_oneof![Just(Version::V311), Just(Version::V5)],
    ) {
        let mut world = World::new(version);
        for step in &steps {
            world.step(step);
        }
        world.settle();
        world.check();
    }
}
