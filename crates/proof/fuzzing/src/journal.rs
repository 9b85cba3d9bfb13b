//! The facts of the journal: an input is a record kind and a record.

use broker::journal::{
    Archived, Fact, GroupOpened, InFlightBuf, Origin, ProgressBuf, Purpose, QueueId, QueueNumber,
    Sent, SessionOpened, Stage, Stamps, StoredMessage, StoredWill, StreamRecord, Streamed,
    Subscribed, read_attributes,
};
use codec::{QoS, Version};

pub fn journal(input: &[u8]) {
    let Some((&kind, bytes)) = input.split_first() else { return };
    let Ok(fact) = Fact::decode(kind, bytes) else { return };
    assert_eq!(write(fact), input, "a fact has one encoding");
    match fact {
        Fact::Progress(progress) => {
            let mut again = ProgressBuf::default();
            for entry in progress.iter() {
                again.push(entry.queue, entry.floor, entry.above.iter());
            }
            assert_eq!(again.as_progress(), progress);
        }
        Fact::InFlight(in_flight) => {
            let mut again = InFlightBuf::default();
            in_flight.iter().for_each(|sent| again.push(sent));
            assert_eq!(again.as_in_flight(), in_flight);
        }
        Fact::Streamed(streamed) => {
            let record = StreamRecord::decode(streamed.record).expect("a fact has a record");
            let mut again = Vec::new();
            record.encode(&mut again);
            assert_eq!(again, streamed.record, "a record has one encoding");
            // What they are is the provider's to say; reading them must end.
            let _ = read_attributes(record.attributes);
            assert!(streamed.message().is_some() && streamed.stamps.iter().count() > 0);
        }
        _ => {}
    }
}

fn write(fact: Fact<'_>) -> Vec<u8> {
    let mut out = vec![fact.kind()];
    let rest = fact.encode(&mut out);
    out.extend_from_slice(rest);
    out
}

pub fn seeds() -> Vec<Vec<u8>> {
    let message = StoredMessage {
        serial: 300,
        origin: Some(Origin { source: 3, serial: 70_000 }),
        queue: Some(QueueNumber::MAX),
        qos: QoS::ExactlyOnce,
        retain: true,
        expires_at_ms: 1_700_000_000_000,
        owner: "user anna",
        author: 0x1234_5678_9abc_def0,
        topic: "a/ä",
        properties: b"\x01\x01",
        payload: b"payload",
    };
    let unowned = StoredMessage { owner: "", author: 0, ..message };
    let plain = StoredMessage { origin: None, expires_at_ms: u64::MAX, ..unowned };
    let (progress, in_flight) = lists();
    let session = QueueNumber::MIN;
    let (identifier, serial, filter) = (7, 300, "a/+/#");
    let formerly = Subscribed { session, options: 1, identifier, serial, filter };
    let facts = [
        Fact::SessionOpened(SessionOpened {
            session,
            version: Version::V5,
            opened_at_ms: 1_700_000_000_000,
            expiry_secs: u32::MAX,
            client_id: "client",
            username: "user",
        }),
        Fact::SessionDetached { session, at_ms: 5, expiry_secs: 6 },
        Fact::SessionEnded { session: QueueNumber::MAX },
        Fact::Subscribed(Subscribed {
            session,
            options: 0x2a,
            identifier: 268_435_455,
            serial: 7,
            filter: "a/+/#",
        }),
        Fact::Formerly(formerly),
        Fact::Unsubscribed { session, filter: "a/+/#" },
        Fact::Message(message),
        Fact::Message(plain),
        Fact::Progress(progress.as_progress()),
        Fact::InFlight(in_flight.as_in_flight()),
        Fact::Received { session, packet_id: 1, serial: 300 },
        Fact::Undone { session, packet_id: 1, serial: 300 },
        Fact::Released { session, packet_id: 1 },
        Fact::Retained(plain),
        Fact::RetainedCleared { topic: "a/ä" },
        Fact::Will(StoredWill {
            session,
            delay_secs: 30,
            message_expiry_secs: Some(60),
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "will",
            properties: b"",
            payload: b"gone",
        }),
        Fact::WillCleared { session },
        Fact::GroupOpened(GroupOpened {
            queue: session,
            from_serial: 1,
            name: "g",
            filter: "jobs/#",
        }),
        Fact::GroupClosed { queue: session },
    ];
    facts.map(write).into_iter().chain(streamed_seeds()).collect()
}

fn streamed_seeds() -> impl Iterator<Item = Vec<u8>> {
    let records = [stream_record(None, &[]), stream_record(Some("anna"), ATTRIBUTES)];
    records.map(|record| streamed_facts(&record)).into_iter().flatten()
}

/// One with a list in it, as written by `put_attributes`.
const ATTRIBUTES: &[u8] = b"\x04site\x02\x02\x00\x01a\x01\x032.5";

fn stream_record(username: Option<&str>, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let record = StreamRecord {
        at_ms: 1_700_000_000_000,
        life: 0x1234_5678_9abc_def0,
        qos: QoS::AtLeastOnce,
        retain: username.is_some(),
        expires_at_ms: if username.is_some() { 1_700_000_060_000 } else { u64::MAX },
        client_id: "car-7",
        username,
        attributes,
        topic: "cars/7",
        properties: b"\x01\x01",
        payload: b"{}",
    };
    record.encode(&mut bytes);
    bytes
}

fn streamed_facts(record: &[u8]) -> Vec<Vec<u8>> {
    let session = QueueNumber::MIN;
    let purposes = [
        Purpose::Streams,
        Purpose::Message,
        Purpose::Taken { session, packet_id: 7 },
        Purpose::WillTaken { session: None },
        Purpose::DeadLetter { consumer: 3, cursor: b"cursor" },
    ];
    let mut buffer = Vec::new();
    let stamps = Stamps::write([(1, 0), (300, 70_000)].into_iter(), &mut buffer);
    let streamed = |purpose| {
        let fact = Streamed { serial: 300, purpose, owner: "user anna", author: 0, stamps, record };
        write(Fact::Streamed(fact))
    };
    let archived = Archived { stream: 1, next: 300, file: 7, end: 70_000 };
    let others =
        [Fact::Archived(archived), Fact::Cursor { consumer: 3, cursor: b"cursor" }].map(write);
    purposes.into_iter().map(streamed).chain(others).collect()
}

fn lists() -> (ProgressBuf, InFlightBuf) {
    let (mut progress, mut in_flight) = (ProgressBuf::default(), InFlightBuf::default());
    progress.push(QueueId::Handover, 10, [(12, 13), (400, 400)]);
    progress.push(QueueNumber::MAX.into(), 0, []);
    progress.push(QueueId::Seen(1), 7, []);
    let session = QueueNumber::MIN;
    let mut add = |queue, stage| {
        in_flight.push(Sent { session, packet_id: 65_535, stage, queue, serial: 500 });
    };
    add(Some(session), Stage::AwaitsPubrec);
    add(Some(QueueNumber::MAX), Stage::AwaitsPubcomp);
    add(None, Stage::Over);
    (progress, in_flight)
}
