//! [`Outgoing`] against a plain list: packet ids round the ring, windows, resends, shared messages.

use codec::{AckKind, Packet, QoS, Sender, Version};
use proptest::prelude::*;
use session::{
    Acked, Delivery, Identifiers, Link, LinkSettings, Message, MessageParts, NEVER, Origin,
    Outgoing, Rates, Terms,
};

const PACKET_IDS: u32 = 65_535;
const NOW_MS: u64 = 1000;

#[derive(Clone, Debug)]
enum Step {
    Start {
        qos: QoS,
        group: u64,
    },
    /// Acknowledge the n-th in flight, or an id that is not.
    Ack {
        kind: AckKind,
        nth: usize,
        failed: bool,
    },
    Unknown {
        packet_id: u16,
    },
    Reconnect {
        send_max: u16,
    },
    /// The connection ends, and what belongs to groups goes to others.
    GiveBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let qos = prop_oneof![Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)];
    let kind = prop_oneof![Just(AckKind::Puback), Just(AckKind::Pubrec), Just(AckKind::Pubcomp)];
    let step = prop_oneof![
        6 => (qos, 0..3u64).prop_map(|(qos, group)| Step::Start { qos, group }),
        8 => (kind, 0..20usize, prop::bool::weighted(0.1))
            .prop_map(|(kind, nth, failed)| Step::Ack { kind, nth, failed }),
        1 => any::<u16>().prop_map(|packet_id| Step::Unknown { packet_id }),
        1 => (1..10u16).prop_map(|send_max| Step::Reconnect { send_max }),
        1 => Just(Step::GiveBack),
    ];
    prop::collection::vec(step, 1..200)
}

#[derive(Clone, Debug)]
struct Entry {
    packet_id: u16,
    qos: QoS,
    group: u64,
    is_released: bool,
    number: u64,
    is_unsent: bool,
}

/// What in-flight deliveries are, said the long way.
#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    /// Ids handed out so far.
    started: u64,
}

impl Model {
    fn next_packet_id(&self) -> u16 {
        (self.started % u64::from(PACKET_IDS)) as u16 + 1
    }

    fn ack(&mut self, kind: AckKind, packet_id: u16, failed: bool) -> Acked {
        let found = self.entries.iter().position(|entry| entry.packet_id == packet_id);
        let Some(place) = found else { return Acked::Unknown };
        let entry = &mut self.entries[place];
        match (kind, entry.qos, entry.is_released) {
            (AckKind::Puback, QoS::AtLeastOnce, _) => {}
            (AckKind::Pubrec, QoS::ExactlyOnce, false) if failed => {}
            (AckKind::Pubcomp, QoS::ExactlyOnce, true) => {
                let entry = self.entries.remove(place);
                // The claim of a group ends here.
                return Acked::Complete(Origin { group: entry.group, serial: 0 });
            }
            (AckKind::Pubrec, QoS::ExactlyOnce, _) => {
                entry.is_released = true;
                return Acked::Release;
            }
            _ => return Acked::Mismatch,
        }
        let entry = self.entries.remove(place);
        Acked::Complete(Origin { group: entry.group, serial: 0 })
    }

    fn unsent(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_unsent).count()
    }
}

fn message(number: u64) -> Message {
    Message::new(&MessageParts {
        topic: "t",
        properties: &[],
        payload: &number.to_be_bytes(),
        qos: QoS::ExactlyOnce,
        retain: false,
        expires_at_ms: NEVER,
        publisher: 0,
        author: 0,
        level: 0,
        scope: 0,
    })
}

fn link(send_max: u16) -> Link {
    let settings = LinkSettings {
        version: Version::V5,
        is_bridge: false,
        keep_alive_secs: 0,
        send_max,
        receive_max: 10,
        packet_bytes_max: u32::MAX,
        alias_out_max: 0,
        alias_in_max: 0,
        problem_info: true,
        rewrites_properties: false,
        outbox_bytes_max: u32::MAX,
    };
    Link::new(settings, Rates::default(), 0, NOW_MS)
}

/// Takes what was resent off the link and compares it with what the model still expects.
fn check_resent(link: &mut Link, model: &mut Model, send_max: u16) {
    let bytes: Vec<u8> = link.outbox.slices().flatten().copied().collect();
    link.outbox.advance(bytes.len());
    let mut rest = bytes.as_slice();
    let seen = model.entries.len() - model.unsent();
    let room = usize::from(send_max).saturating_sub(seen);
    for entry in model.entries.iter_mut().filter(|entry| entry.is_unsent).take(room) {
        let (packet, len) = codec::decode(rest, Version::V5, Sender::Server, u32::MAX)
            .expect("the link keeps to the protocol")
            .expect("one packet for each delivery that the window takes");
        match packet {
            Packet::Publish(publish) => {
                assert!(publish.dup && !entry.is_released);
                assert_eq!((publish.packet_id, publish.qos), (entry.packet_id, entry.qos));
                assert_eq!(publish.payload, entry.number.to_be_bytes());
            }
            Packet::Ack(ack) => {
                assert!(entry.is_released && ack.kind == AckKind::Pubrel);
                assert_eq!(ack.packet_id, entry.packet_id);
            }
            other => panic!("nothing else is resent: {other:?}"),
        }
        entry.is_unsent = false;
        rest = &rest[len..];
    }
    assert!(rest.is_empty(), "no more than the window takes");
}

struct Run {
    outgoing: Outgoing,
    model: Model,
    link: Link,
    send_max: u16,
}

impl Run {
    /// The ring stands just before its end.
    fn new(used: u64) -> Self {
        let mut outgoing = Outgoing::default();
        let model = Model { started: used, ..Model::default() };
        let first = message(0);
        for number in 0..used {
            outgoing.start(delivery(&first, QoS::AtLeastOnce, 0));
            let packet_id = (number % u64::from(PACKET_IDS)) as u16 + 1;
            assert_eq!(
                outgoing.on_ack(AckKind::Puback, packet_id, false),
                Acked::Complete(Origin::default())
            );
        }
        Self { outgoing, model, link: link(10), send_max: 10 }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Start { qos, group } => self.start(qos, group),
            Step::Ack { kind, nth, failed } => {
                let Some(entry) = self.model.entries.get(nth) else { return };
                self.ack(kind, entry.packet_id, failed);
            }
            Step::Unknown { packet_id } => self.ack(AckKind::Puback, packet_id, false),
            Step::Reconnect { send_max } => {
                self.outgoing.resume();
                self.model.entries.iter_mut().for_each(|entry| entry.is_unsent = true);
                self.link = link(send_max);
                self.send_max = send_max;
            }
            Step::GiveBack => {
                self.outgoing.resume();
                self.model.entries.iter_mut().for_each(|entry| entry.is_unsent = true);
                let taken = self.outgoing.take_shared();
                let given = self
                    .model
                    .entries
                    .extract_if(.., |e| e.group != 0 && e.qos == QoS::AtLeastOnce);
                let given: Vec<_> = given.map(|entry| entry.number.to_be_bytes()).collect();
                let taken: Vec<_> =
                    taken.iter().map(|delivery| delivery.message.payload().to_vec()).collect();
                assert_eq!(taken, given);
                self.link = link(self.send_max);
            }
        }
        let is_all = self.outgoing.resend(
            &mut self.link,
            NOW_MS,
            |_| true,
            |_, _| panic!("nothing is too big"),
        );
        check_resent(&mut self.link, &mut self.model, self.send_max);
        assert_eq!(is_all, self.model.unsent() == 0);
        assert_eq!(usize::from(self.outgoing.in_flight()), self.model.entries.len());
        assert_eq!(self.outgoing.has_unsent(), self.model.unsent() > 0);
    }

    fn start(&mut self, qos: QoS, group: u64) {
        if !self.outgoing.is_open(self.send_max) {
            assert!(self.model.entries.len() >= usize::from(self.send_max));
            return;
        }
        assert!(self.model.entries.len() < usize::from(self.send_max));
        let packet_id = self.outgoing.next_packet_id();
        assert_eq!(packet_id, self.model.next_packet_id());
        let number = self.model.started;
        self.model.started += 1;
        self.model.entries.push(Entry {
            packet_id,
            qos,
            group,
            is_released: false,
            number,
            is_unsent: false,
        });
        self.outgoing.start(delivery(&message(number), qos, group));
    }

    fn ack(&mut self, kind: AckKind, packet_id: u16, failed: bool) {
        let acked = self.outgoing.on_ack(kind, packet_id, failed);
        assert_eq!(acked, self.model.ack(kind, packet_id, failed));
    }
}

fn delivery(message: &Message, qos: QoS, group: u64) -> Delivery {
    let terms = Terms { identifiers: Identifiers::None, group, serial: 0, qos, retain: false };
    Delivery { message: message.clone(), terms }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// MQTT-2.2.1-3, MQTT-3.3.4-9, MQTT-4.4.0-1, MQTT-4.6.0-1.
    #[test]
    fn in_flight_deliveries_are_those_of_a_plain_list(
        used in prop_oneof![Just(0), 65_500..65_540u64],
        steps in steps(),
    ) {
        let mut run = Run::new(used);
        for step in &steps {
            run.step(step);
        }
    }
}
