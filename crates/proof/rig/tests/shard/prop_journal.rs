//! Facts survive the way into a record and back, and any bytes are a fact or malformed.

use broker::journal::{
    Archived, Fact, GroupOpened, InFlightBuf, Origin, ProgressBuf, QueueId, QueueNumber, Sent,
    SessionOpened, Stage, StoredMessage, StoredWill, Subscribed,
};
use codec::{QoS, Version};
use proptest::prelude::*;

/// What facts are made of, owned.
#[derive(Clone, Debug)]
struct Parts {
    session: QueueNumber,
    queue: Option<QueueNumber>,
    numbers: [u64; 3],
    small: u32,
    packet_id: u16,
    byte: u8,
    qos: QoS,
    version: Version,
    flag: bool,
    origin: Option<(u16, u64)>,
    texts: [String; 2],
    blobs: [Vec<u8>; 2],
    entries: Vec<(u64, u32, Vec<u8>)>,
    sent: Vec<(QueueNumber, u16, bool, Option<QueueNumber>, u64)>,
}

fn queue_number() -> impl Strategy<Value = QueueNumber> {
    let any = any::<u64>().prop_filter_map("not a queue's", QueueNumber::new);
    prop_oneof![any, Just(QueueNumber::MIN), Just(QueueNumber::MAX)]
}

fn parts() -> impl Strategy<Value = Parts> {
    let number = prop_oneof![0_u64..300, any::<u64>(), Just(u64::MAX)];
    let blob = || prop::collection::vec(any::<u8>(), 0..200);
    (
        (prop::array::uniform3(number), any::<u32>(), any::<u16>(), any::<u8>()),
        (queue_number(), prop::option::of(queue_number())),
        prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]),
        prop::sample::select(vec![Version::V31, Version::V311, Version::V5]),
        (any::<bool>(), any::<Option<(u16, u64)>>()),
        (["\\PC{0,40}", "\\PC{0,40}"], [blob(), blob()]),
        prop::collection::vec(
            (any::<u64>(), any::<u32>(), prop::collection::vec(1_u8.., 0..5)),
            0..6,
        ),
        prop::collection::vec(
            (
                queue_number(),
                1_u16..,
                any::<bool>(),
                prop::option::of(queue_number()),
                any::<u64>(),
            ),
            0..6,
        ),
    )
        .prop_map(|(head, (session, queue), qos, version, flags, own, entries, sent)| {
            let (numbers, small, packet_id, byte) = head;
            let ((flag, origin), (texts, blobs)) = (flags, own);
            Parts {
                session,
                queue,
                numbers,
                small,
                packet_id,
                byte,
                qos,
                version,
                flag,
                origin,
                texts,
                blobs,
                entries,
                sent,
            }
        })
}

fn lists(parts: &Parts) -> (ProgressBuf, InFlightBuf) {
    let (mut progress, mut in_flight) = (ProgressBuf::default(), InFlightBuf::default());
    for (queue, floor, steps) in &parts.entries {
        let mut last = u64::from(*floor);
        let above = steps.iter().map(|step| {
            let from = last + u64::from(*step);
            last = from + u64::from(*step) / 3;
            (from, last)
        });
        progress.push(QueueId::of_number(*queue), u64::from(*floor), above);
    }
    for &(session, packet_id, released, queue, serial) in &parts.sent {
        let stage = if released { Stage::AwaitsPubcomp } else { Stage::AwaitsPubrec };
        in_flight.push(Sent { session, packet_id, stage, queue, serial });
    }
    (progress, in_flight)
}

fn facts<'a>(p: &'a Parts, lists: &'a (ProgressBuf, InFlightBuf)) -> Vec<Fact<'a>> {
    let (session, [serial, b, c]) = (p.session, p.numbers);
    let (packet_id, qos, retain) = (p.packet_id, p.qos, p.flag);
    let [topic, other] = [p.texts[0].as_str(), p.texts[1].as_str()];
    let [properties, payload] = [p.blobs[0].as_slice(), p.blobs[1].as_slice()];
    let (options, identifier) = (p.byte, p.small);
    let subscribed = Subscribed { session, options, identifier, serial: b, filter: topic };
    let message = StoredMessage {
        serial,
        origin: p.origin.map(|(source, serial)| Origin { source, serial }),
        queue: p.queue,
        qos,
        retain,
        expires_at_ms: c,
        owner: other,
        author: b,
        topic,
        properties,
        payload,
    };
    vec![
        Fact::SessionOpened(SessionOpened {
            session,
            version: p.version,
            opened_at_ms: b,
            expiry_secs: p.small,
            client_id: topic,
            username: other,
        }),
        Fact::SessionDetached { session, at_ms: b, expiry_secs: p.small },
        Fact::Taken { session, packet_id, message },
        Fact::WillTaken { session: p.queue, message },
        Fact::SessionEnded { session },
        Fact::Subscribed(subscribed),
        Fact::Formerly(subscribed),
        Fact::Unsubscribed { session, filter: topic },
        Fact::Message(message),
        Fact::Progress(lists.0.as_progress()),
        Fact::InFlight(lists.1.as_in_flight()),
        Fact::Received { session, packet_id, serial: b },
        Fact::Undone { session, packet_id, serial: b },
        Fact::Released { session, packet_id },
        Fact::Retained(message),
        Fact::RetainedCleared { topic },
        Fact::Will(StoredWill {
            session,
            delay_secs: p.small,
            message_expiry_secs: p.flag.then_some(p.small),
            qos,
            retain,
            topic,
            properties,
            payload,
        }),
        Fact::WillCleared { session },
        Fact::GroupOpened(GroupOpened {
            queue: session,
            from_serial: b,
            name: topic,
            filter: other,
        }),
        Fact::GroupClosed { queue: session },
        Fact::Archived(Archived { stream: p.small, next: b, file: serial, end: c }),
        Fact::Cursor { consumer: p.small, cursor: payload },
    ]
}

fn encode(fact: Fact<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let rest = fact.encode(&mut bytes);
    bytes.extend_from_slice(rest);
    bytes
}

proptest! {
    #[test]
    fn facts_come_back(parts in parts()) {
        let lists = lists(&parts);
        for fact in facts(&parts, &lists) {
            let bytes = encode(fact);
            prop_assert_eq!(Fact::decode(fact.kind(), &bytes), Ok(fact));
        }
    }

    #[test]
    fn lists_come_back_entry_by_entry(parts in parts()) {
        let (progress, in_flight) = lists(&parts);
        let entries: Vec<_> = progress.as_progress().iter().collect();
        prop_assert_eq!(entries.len(), parts.entries.len());
        for (entry, (queue, floor, steps)) in entries.iter().zip(&parts.entries) {
            prop_assert_eq!((entry.queue.number(), entry.floor), (*queue, u64::from(*floor)));
            let total: u64 = steps.iter().map(|step| u64::from(*step) + u64::from(*step) / 3).sum();
            let above: Vec<(u64, u64)> = entry.above.iter().collect();
            prop_assert_eq!(above.len(), steps.len());
            let last = above.last().map_or(entry.floor, |(_, through)| *through);
            prop_assert_eq!(last, entry.floor + total);
        }
        prop_assert_eq!(in_flight.as_in_flight().iter().count(), parts.sent.len());
    }

    /// What can be read is written back to the same bytes: a fact has one encoding.
    #[test]
    fn any_bytes_are_one_fact_or_none(
        kind in 0_u8..21,
        bytes in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        if let Ok(fact) = Fact::decode(kind, &bytes) {
            prop_assert_eq!(fact.kind(), kind);
            prop_assert_eq!(encode(fact), bytes);
        }
    }
}
