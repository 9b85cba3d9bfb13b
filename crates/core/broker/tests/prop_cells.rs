//! Frames between cells: any of them comes back from its bytes, and no bytes do harm. Lanes: over
//! any connections, all that is pushed is delivered once and in order, whatever a peer sends.

use std::collections::VecDeque;

use broker::cells::frame::{Carried, Frame, PageEnd, Query, foreign_publisher};
use broker::cells::lane::{BYTES_MAX, FRAMES_MAX, Lane, Packet};
use broker::cells::wire::{Envelope, Envelopes, Route, VERSION, decode, decode_owned, encode};
use broker::{PLACES_MAX, Scope};
use codec::{QoS, Reason};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use session::{Message, MessageParts, NEVER};
use topic::Cursor;
use topic::interest::{Change, Lanes, Snapshot};

const PLACE: u16 = 8;

fn numbers() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(number, shift)| number >> shift)
}

fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

prop_compose! {
    fn messages()(
        topic in "[a-z/$ü]{1,30}",
        properties in vec(any::<u8>(), 0..20),
        payload in prop_oneof![9 => 0..300_usize, 1 => 32_000..40_000_usize],
        (qos, retain, level) in (qos(), any::<bool>(), 0..128_u8),
        expires_at_ms in prop_oneof![Just(NEVER), 0..NEVER],
        (publisher, author) in (numbers(), numbers()),
        scope in prop_oneof![Just(0), any::<u16>()],
    ) -> Message {
        let payload = vec![7; payload];
        Message::new(&MessageParts {
            topic: &topic,
            properties: &properties,
            payload: &payload,
            qos,
            retain,
            expires_at_ms,
            publisher,
            author,
            level,
            scope,
        })
    }
}

prop_compose! {
    fn carried()(
        number in numbers(),
        from in 0..PLACES_MAX,
        serial in numbers(),
        is_will in any::<bool>(),
        owner in "[a-zü ]{0,40}",
        message in messages(),
    ) -> Box<Carried> {
        Box::new(Carried { number, from, serial, is_will, owner: owner.into(), message })
    }
}

prop_compose! {
    fn ends()(shard in 0..PLACES_MAX, after in option::of(vec(any::<u8>(), 0..40))) -> PageEnd {
        PageEnd { shard, after: after.map(|topic| Cursor::at(&topic)) }
    }
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        any::<u8>().prop_map(Change::Depth),
        any::<u32>().prop_map(|lane| Change::Set { lane }),
        any::<u32>().prop_map(|lane| Change::Clear { lane }),
    ]
}

fn snapshots() -> impl Strategy<Value = Box<Snapshot>> {
    let lanes = prop_oneof![
        btree_set(0..1_u32 << 27, 0..50).prop_map(|set| Lanes::List(set.into_iter().collect())),
        vec(any::<u64>(), 0..50).prop_map(Lanes::Bitmap),
    ];
    (numbers(), any::<u32>(), lanes).prop_map(|(number, depths, lanes)| {
        Box::new(Snapshot::new(number, depths & !1, lanes).expect("a sound one"))
    })
}

fn frames() -> impl Strategy<Value = Frame> {
    let query = (numbers(), any::<u16>(), "[a-z]{1,9}(/\\+)?(/#)?", option::of(ends()));
    prop_oneof![
        4 => carried().prop_map(Frame::Publish),
        2 => carried().prop_map(Frame::Retain),
        1 => (numbers(), any::<u8>())
            .prop_map(|(number, reason)| Frame::Answer { number, reason: Reason(reason) }),
        1 => query.prop_map(|(number, scope, filter, after)| {
            let scope = Scope::new(scope);
            Frame::Query(Box::new(Query { number, scope, filter: filter.into(), after }))
        }),
        2 => (numbers(), vec(messages(), 0..5), option::of(ends()))
            .prop_map(|(number, messages, next)| Frame::Page { number, messages, next }),
        1 => (numbers(), 0..PLACES_MAX)
            .prop_map(|(number, from)| Frame::AskGrant { number, from }),
        1 => numbers().prop_map(|number| Frame::Granted { number }),
        1 => numbers().prop_map(|ask| Frame::AskSummary { ask }),
        1 => (numbers(), snapshots())
            .prop_map(|(ask, snapshot)| Frame::Summary { ask, snapshot }),
        1 => (numbers(), vec(changes(), 0..50))
            .prop_map(|(through, changes)| Frame::Changes { through, changes }),
        1 => numbers().prop_map(|through| Frame::Counts { through }),
        1 => (numbers(), 0..PLACES_MAX).prop_map(|(number, from)| Frame::Ask { number, from }),
        1 => (numbers(), 0..PLACES_MAX, 0..PLACES_MAX)
            .prop_map(|(number, to, by)| Frame::Passed { number, to, by }),
    ]
}

/// All that a message says, once it has come to the cell for which the sender is at [`PLACE`].
fn text_of_message(message: &Message, is_sent: bool, later_ms: u64) -> String {
    let (topic, properties, payload) = message.parts_on_wire();
    let publisher = match is_sent {
        true => foreign_publisher(PLACE, message.publisher()),
        false => message.publisher(),
    };
    let expires_at_ms = match message.expires_at_ms() {
        at_ms if is_sent && at_ms != NEVER => {
            at_ms.max(SENT_MS).saturating_add(later_ms).min(NEVER - 1)
        }
        at_ms => at_ms,
    };
    let (author, level, scope) = (message.author(), message.level(), message.scope());
    let flags = (message.qos(), message.retain());
    let numbers = (publisher, author, level, scope, expires_at_ms);
    format!("{topic:?} {properties:?} {payload:?} {flags:?} {numbers:?}")
}

fn text_of(frame: &Frame, is_sent: bool, later_ms: u64) -> String {
    let message = |it: &Message| text_of_message(it, is_sent, later_ms);
    match frame {
        Frame::Publish(it) | Frame::Retain(it) => {
            let is_publish = matches!(frame, Frame::Publish(_));
            let Carried { number, from, serial, is_will, owner, .. } = &**it;
            let head = (is_publish, number, from, serial, is_will, owner);
            format!("{head:?} {}", message(&it.message))
        }
        Frame::Page { number, messages, next } => {
            let messages: Vec<_> = messages.iter().map(message).collect();
            format!("{number} {messages:?} {next:?}")
        }
        other => format!("{other:?}"),
    }
}

const SENT_MS: u64 = 1_000_000;

proptest! {
    #[test]
    fn every_frame_comes_back(frame in frames(), later_ms in 0..10_000_000_u64) {
        let mut bytes = Vec::new();
        encode(&frame, SENT_MS, &mut bytes);
        let sent = text_of(&frame, true, later_ms);
        let now_ms = SENT_MS + later_ms;
        let came = decode(&bytes, PLACE, now_ms).expect("it is a frame");
        prop_assert_eq!(&text_of(&came, false, later_ms), &sent);
        let came = decode_owned(bytes, PLACE, now_ms).expect("it is a frame");
        prop_assert_eq!(&text_of(&came, false, later_ms), &sent);
    }

    #[test]
    fn a_part_of_a_frame_is_none(frame in frames(), at in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        encode(&frame, SENT_MS, &mut bytes);
        let at = at.index(bytes.len());
        prop_assert!(decode(&bytes[..at], PLACE, SENT_MS).is_err());
        bytes.push(0);
        prop_assert!(decode(&bytes, PLACE, SENT_MS).is_err());
    }

    #[test]
    fn bytes_that_are_damaged_do_no_harm(
        frame in frames(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = Vec::new();
        encode(&frame, SENT_MS, &mut bytes);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode(&bytes, PLACE, SENT_MS);
    }

    #[test]
    fn any_bytes_do_no_harm(mut bytes in vec(any::<u8>(), 0..200), kind in 0..13_u8) {
        let _ = Envelopes::default().next(&mut &*bytes);
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        let _ = decode(&bytes, PLACE, SENT_MS);
    }

    #[test]
    fn lanes_deliver_all_once_and_in_order(steps in vec(steps(), 1..400)) {
        let mut network = Network::default();
        for step in steps {
            network.take(step);
        }
        network.settle();
    }

    #[test]
    fn a_hostile_peer_does_no_harm(packets in vec(hostile(), 1..300)) {
        let mut lane = Lane::new();
        let mut pushed = 0;
        for Hostile { number, received, frame, connects, pushes } in packets {
            if let Some(received) = connects {
                let _ = lane.reconnect(received);
            }
            let (before, faults) = (lane.received(), number > lane.received() + 1);
            let result = lane.on_packet(Packet { number, received, age_ms: number, frame: &frame });
            prop_assert!(result.is_err() || !faults);
            prop_assert_eq!(lane.received() - before, u64::from(matches!(result, Ok(Some(_)))));
            for _ in 0..pushes {
                pushed += u64::from(lane.push(vec![1; 1000], 0).is_ok());
            }
            let delivered = lane.received();
            while let Some(packet) = lane.next_packet(0) {
                prop_assert!(packet.number <= pushed && packet.received == delivered);
            }
            let (frames, bytes) = lane.kept();
            prop_assert!(frames <= FRAMES_MAX && bytes <= BYTES_MAX);
        }
    }
}

#[derive(Clone, Debug)]
struct Hostile {
    number: u64,
    received: u64,
    frame: Vec<u8>,
    connects: Option<u64>,
    pushes: usize,
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let number = || prop_oneof![8 => 0..6_u64, 1 => any::<u64>()];
    (number(), number(), vec(any::<u8>(), 0..9), option::of(number()), 0..3_usize).prop_map(
        |(number, received, frame, connects, pushes)| Hostile {
            number,
            received,
            frame,
            connects,
            pushes,
        },
    )
}

/// What happens next between the two ends.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push {
        end: usize,
        bytes: usize,
    },
    /// An end writes so many packets.
    Send {
        end: usize,
        packets: usize,
    },
    /// So many packets arrive at an end.
    Arrive {
        end: usize,
        packets: usize,
    },
    /// The end's timer.
    Tick {
        end: usize,
    },
    /// The connection breaks: what is under way is lost. `knows_late`: an end that goes on until
    /// the next connection.
    Cut {
        knows_late: usize,
    },
    Connect,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize, 1..40_usize).prop_map(|(end, bytes)| Step::Push { end, bytes }),
        1 => (0..2_usize, 100_000..300_000_usize)
            .prop_map(|(end, bytes)| Step::Push { end, bytes }),
        6 => (0..2_usize, 1..90_usize).prop_map(|(end, packets)| Step::Send { end, packets }),
        6 => (0..2_usize, 1..90_usize).prop_map(|(end, packets)| Step::Arrive { end, packets }),
        2 => (0..2_usize).prop_map(|end| Step::Tick { end }),
        2 => (0..3_usize).prop_map(|knows_late| Step::Cut { knows_late }),
        3 => Just(Step::Connect),
    ]
}

/// Two ends, and what is under way to each of them.
#[derive(Default)]
struct Network {
    ends: [End; 2],
    is_connected: bool,
}

#[derive(Default)]
struct End {
    lane: Lane,
    /// Bytes of the connection, in the packets that wrote them.
    under_way: VecDeque<Vec<u8>>,
    envelopes: Envelopes,
    pushed: u64,
    delivered: u64,
}

impl Network {
    fn take(&mut self, step: Step) {
        match step {
            Step::Push { end, bytes } => self.ends[end].push(bytes),
            Step::Send { end, packets } => self.send(end, packets),
            Step::Arrive { end, packets } => self.arrive(end, packets),
            Step::Tick { end } => self.ends[end].lane.ask_ack(),
            Step::Cut { knows_late } => self.cut(knows_late),
            Step::Connect => self.connect(),
        }
    }

    fn send(&mut self, end: usize, packets: usize) {
        for _ in 0..packets {
            let Some(packet) = self.ends[end].lane.next_packet(0) else { return };
            let mut bytes = Vec::new();
            Envelope::new(VERSION, route(end), packet).encode(&mut bytes);
            if self.is_connected {
                self.ends[1 - end].under_way.push_back(bytes);
            }
        }
    }

    fn arrive(&mut self, end: usize, packets: usize) {
        let End { lane, under_way, envelopes, delivered, .. } = &mut self.ends[end];
        for bytes in under_way.drain(..packets.min(under_way.len())) {
            let half = bytes.len() / 2;
            for mut part in [&bytes[..half], &bytes[half..]] {
                while let Some(envelope) = envelopes.next(&mut part).expect("it is a packet") {
                    assert_eq!(envelope.route, route(1 - end));
                    let frame = lane.on_packet(envelope.packet()).expect("the peer has no fault");
                    if let Some(frame) = frame {
                        assert_eq!(frame[..8], delivered.to_le_bytes(), "the next one");
                        *delivered += 1;
                    }
                }
            }
        }
    }

    fn cut(&mut self, knows_late: usize) {
        self.is_connected = false;
        for (number, end) in self.ends.iter_mut().enumerate() {
            end.under_way.clear();
            end.envelopes = Envelopes::default();
            if number != knows_late {
                end.lane.disconnect();
            }
        }
    }

    fn connect(&mut self) {
        self.cut(2);
        let received = [0, 1].map(|end| self.ends[end].lane.received());
        for end in [0, 1] {
            self.ends[end].lane.reconnect(received[1 - end]).expect("the peer has no fault");
        }
        self.is_connected = true;
    }

    /// All arrives once the network is sound.
    fn settle(&mut self) {
        self.connect();
        for _ in 0..4 {
            for end in [0, 1] {
                self.send(end, usize::MAX);
                self.arrive(1 - end, usize::MAX);
                self.ends[1 - end].lane.ask_ack();
            }
        }
        for end in [0, 1] {
            assert_eq!(self.ends[1 - end].delivered, self.ends[end].pushed);
            assert_eq!(self.ends[end].lane.kept(), (0, 0), "all is acknowledged");
        }
    }
}

impl End {
    fn push(&mut self, bytes: usize) {
        let mut frame = self.pushed.to_le_bytes().to_vec();
        frame.resize(8 + bytes, 0);
        let is_accepted = self.lane.push(frame, 0).is_ok();
        let (frames, bytes_kept) = self.lane.kept();
        assert!(is_accepted || frames == FRAMES_MAX || bytes_kept + 8 + bytes > BYTES_MAX);
        assert!(frames <= FRAMES_MAX && bytes_kept <= BYTES_MAX);
        self.pushed += u64::from(is_accepted);
    }
}

fn route(from: usize) -> Route {
    let (from_cell, to_cell) = (from as u16, 1 - from as u16);
    Route { from_cell, to_cell, from_epoch: 5 + from as u64, to_epoch: 6 - from as u64, lane: 2 }
}
