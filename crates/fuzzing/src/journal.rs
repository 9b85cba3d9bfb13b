//! The facts of the journal: an input is a record kind and a record.

use broker::journal::{
    Fact, GroupOpened, InFlightBuf, Origin, ProgressBuf, Sent, SessionOpened, Stage, StoredMessage,
    StoredWill, Subscribed,
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
        queue: u64::MAX,
        qos: QoS::ExactlyOnce,
        retain: true,
        expires_at_ms: 1_700_000_000_000,
        topic: "a/ä",
        properties: b"\x01\x01",
        payload: b"payload",
    };
    let plain = StoredMessage { origin: None, expires_at_ms: u64::MAX, ..message };
    let mut progress = ProgressBuf::default();
    progress.push(1, 10, [(12, 13), (400, 400)]);
    progress.push(2, 0, []);
    let mut in_flight = InFlightBuf::default();
    for (queue, stage) in [(1, Stage::AwaitsPubrec), (9, Stage::AwaitsPubcomp)] {
        in_flight.push(Sent { session: 1, packet_id: 65_535, stage, queue, serial: 500 });
    }
    let facts = [
        Fact::SessionOpened(SessionOpened {
            session: 1,
            version: Version::V5,
            opened_at_ms: 1_700_000_000_000,
            expiry_secs: u32::MAX,
            client_id: "client",
            username: "user",
        }),
        Fact::SessionDetached { session: 1, at_ms: 5, expiry_secs: 6 },
        Fact::SessionEnded { session: 128 },
        Fact::Subscribed(Subscribed {
            session: 1,
            options: 0x2a,
            identifier: 268_435_455,
            from_serial: 7,
            filter: "a/+/#",
        }),
        Fact::Unsubscribed { session: 1, filter: "a/+/#" },
        Fact::Message(message),
        Fact::Message(plain),
        Fact::Progress(progress.as_progress()),
        Fact::InFlight(in_flight.as_in_flight()),
        Fact::Received { session: 1, packet_id: 1, serial: 300 },
        Fact::Undone { session: 1, packet_id: 1, serial: 300 },
        Fact::Released { session: 1, packet_id: 1 },
        Fact::Retained(plain),
        Fact::RetainedCleared { topic: "a/ä" },
        Fact::Will(StoredWill {
            session: 1,
            delay_secs: 30,
            message_expiry_secs: Some(60),
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "will",
            properties: b"",
            payload: b"gone",
        }),
        Fact::WillCleared { session: 1 },
        Fact::GroupOpened(GroupOpened { queue: 9, from_serial: 1, name: "g", filter: "jobs/#" }),
        Fact::GroupClosed { queue: 9 },
    ];
    facts.map(write).into()
}
