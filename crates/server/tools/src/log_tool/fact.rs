//! Facts of a journal as text for people, one line each.

use std::fmt::Write as _;

use broker::journal::{
    Archived, Fact, ProgressEntry, Purpose, QueueNumber, Sent, StoredMessage, StoredWill,
    StreamRecord, Streamed,
};

/// A record as text: the fact in it, or its bytes if there is none. At most `bytes` of a payload.
pub(super) fn describe(kind: u8, record: &[u8], bytes: usize) -> String {
    match Fact::decode(kind, record) {
        Ok(fact) => of_fact(&fact, bytes),
        Err(error) => format!("kind {kind}: {error}: {}", hex(record, bytes)),
    }
}

fn of_fact(fact: &Fact<'_>, bytes: usize) -> String {
    match fact {
        Fact::SessionOpened(own) => format!(
            "session opened: session {} client_id {:?} username {:?} {:?} expiry {} at {}",
            own.session,
            own.client_id,
            own.username,
            own.version,
            seconds(own.expiry_secs),
            own.opened_at_ms
        ),
        Fact::SessionDetached { session, at_ms, expiry_secs } => {
            let expiry = seconds(*expiry_secs);
            format!("session detached: session {session} expiry {expiry} at {at_ms}")
        }
        Fact::SessionEnded { session } => format!("session ended: session {session}"),
        Fact::Subscribed(own) => format!(
            "subscribed: session {} filter {:?} options {:#04x} identifier {} after serial {}",
            own.session, own.filter, own.options, own.identifier, own.serial
        ),
        Fact::Formerly(own) => format!(
            "formerly: session {} filter {:?} options {:#04x} identifier {} through serial {}",
            own.session, own.filter, own.options, own.identifier, own.serial
        ),
        Fact::Unsubscribed { session, filter } => {
            format!("unsubscribed: session {session} filter {filter:?}")
        }
        Fact::Message(message) => format!("message: {}", of_message(message, bytes)),
        Fact::Taken { session, packet_id, message } => {
            format!("taken: session {session} packet {packet_id} {}", of_message(message, bytes))
        }
        Fact::WillTaken { session, message } => {
            let session = session.map_or(0, QueueNumber::get);
            format!("will taken: session {session} {}", of_message(message, bytes))
        }
        Fact::Retained(message) => format!("retained: {}", of_message(message, bytes)),
        Fact::RetainedCleared { topic } => format!("retained cleared: topic {topic:?}"),
        Fact::Progress(list) => format!("progress:{}", joined(list.iter().map(of_progress))),
        Fact::InFlight(list) => format!("in flight:{}", joined(list.iter().map(of_in_flight))),
        Fact::Received { session, packet_id, serial } => {
            format!("received: session {session} packet {packet_id} serial {serial}")
        }
        Fact::Undone { session, packet_id, serial } => {
            format!("undone: session {session} packet {packet_id} serial {serial}")
        }
        Fact::Released { session, packet_id } => {
            format!("released: session {session} packet {packet_id}")
        }
        Fact::Will(will) => format!("will: {}", of_will(will, bytes)),
        Fact::WillCleared { session } => format!("will cleared: session {session}"),
        Fact::GroupOpened(group) => format!(
            "group opened: queue {} group {:?} filter {:?} after serial {}",
            group.queue, group.name, group.filter, group.from_serial
        ),
        Fact::GroupClosed { queue } => format!("group closed: queue {queue}"),
        Fact::Streamed(streamed) => of_streamed(streamed, bytes),
        Fact::Archived(Archived { stream, next, file: 0, end }) => {
            format!("files deleted: stream {stream} next record {next} files below {end}")
        }
        Fact::Archived(Archived { stream, next, file, end }) => {
            format!("archived: stream {stream} next record {next} file {file} end {end}")
        }
        Fact::Cursor { consumer, cursor } => {
            format!("cursor: consumer {consumer} {}", hex(cursor, bytes))
        }
    }
}

fn of_streamed(streamed: &Streamed<'_>, bytes: usize) -> String {
    let mut text = match streamed.purpose {
        Purpose::Streams => "streamed:".to_owned(),
        Purpose::Message => "streamed message:".to_owned(),
        Purpose::Taken { session, packet_id } => {
            format!("streamed taken: session {session} packet {packet_id}")
        }
        Purpose::WillTaken { session } => {
            format!("streamed will taken: session {}", session.map_or(0, QueueNumber::get))
        }
        Purpose::DeadLetter { consumer, .. } => format!("dead letter: consumer {consumer}"),
    };
    for (stream, ordinal) in streamed.stamps.iter() {
        let _ = write!(text, " stream {stream} record {ordinal}");
    }
    if let Ok(record) = StreamRecord::decode(streamed.record) {
        let _ = write!(text, " client_id {:?} at {}", record.client_id, record.at_ms);
    }
    if let Some(message) = streamed.message() {
        let _ = write!(text, " {}", of_message(&message, bytes));
    }
    text
}

fn of_message(message: &StoredMessage<'_>, bytes: usize) -> String {
    let mut text = format!("serial {}", message.serial);
    if let Some(origin) = message.origin {
        let _ = write!(text, " from source {} serial {}", origin.source, origin.serial);
    }
    if let Some(queue) = message.queue {
        let _ = write!(text, " queue {queue}");
    }
    let _ = write!(text, " topic {:?} qos {}", message.topic, message.qos as u8);
    if message.retain {
        text.push_str(" retain");
    }
    if message.expires_at_ms != u64::MAX {
        let _ = write!(text, " expires at {}", message.expires_at_ms);
    }
    if !message.owner.is_empty() {
        let _ = write!(text, " owner {:?}", message.owner);
    }
    if message.author != 0 {
        let _ = write!(text, " author {:016x}", message.author);
    }
    push_payload(&mut text, message.properties, message.payload, bytes);
    text
}

fn of_will(will: &StoredWill<'_>, bytes: usize) -> String {
    let mut text = format!(
        "session {} topic {:?} qos {} delay {}",
        will.session,
        will.topic,
        will.qos as u8,
        seconds(will.delay_secs)
    );
    if will.retain {
        text.push_str(" retain");
    }
    push_payload(&mut text, will.properties, will.payload, bytes);
    text
}

fn of_progress(entry: ProgressEntry<'_>) -> String {
    let queue = entry.queue.number();
    let mut text = format!(" queue {queue} up to {}", entry.floor);
    let run = |(from, through)| match from == through {
        true => format!("{from}"),
        false => format!("{from} to {through}"),
    };
    let above: Vec<String> = entry.above.iter().map(run).collect();
    if !above.is_empty() {
        let _ = write!(text, " and {}", above.join(" and "));
    }
    text
}

fn of_in_flight(sent: Sent) -> String {
    let queue = sent.queue.map_or(0, QueueNumber::get);
    format!(
        " session {} packet {} {:?} queue {queue} serial {}",
        sent.session, sent.packet_id, sent.stage, sent.serial
    )
}

fn push_payload(text: &mut String, properties: &[u8], payload: &[u8], bytes: usize) {
    if !properties.is_empty() {
        let _ = write!(text, " properties {}", hex(properties, bytes));
    }
    let _ = write!(text, " payload of {} bytes", payload.len());
    if bytes > 0 {
        let shown = &payload[..payload.len().min(bytes)];
        let more = if shown.len() < payload.len() { "..." } else { "" };
        let _ = write!(text, " \"{}\"{more}", shown.escape_ascii());
    }
}

fn joined(entries: impl Iterator<Item = String>) -> String {
    entries.collect::<Vec<_>>().join(",")
}

fn hex(bytes: &[u8], count: usize) -> String {
    let mut text: String = bytes.iter().take(count).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > count {
        text.push_str("...");
    }
    text
}

/// `u32::MAX` stands for never.
fn seconds(secs: u32) -> String {
    if secs == u32::MAX { "never".to_owned() } else { format!("{secs} s") }
}

#[cfg(test)]
mod tests {
    use broker::journal::QueueId;

    use super::*;

    fn described(fact: Fact<'_>) -> String {
        let mut record = Vec::new();
        let rest = fact.encode(&mut record);
        record.extend_from_slice(rest);
        describe(fact.kind(), &record, 4)
    }

    #[test]
    fn a_message_is_reported_with_the_front_of_its_payload() {
        let message = StoredMessage {
            serial: 7,
            origin: None,
            queue: None,
            qos: codec::QoS::AtLeastOnce,
            retain: true,
            expires_at_ms: u64::MAX,
            owner: "user anna",
            author: 0xa1,
            topic: "a/b",
            properties: &[],
            payload: b"ab\ncdef",
        };
        assert_eq!(
            described(Fact::Message(message)),
            "message: serial 7 topic \"a/b\" qos 1 retain owner \"user anna\" author 00000000000000a1 payload of 7 bytes \"ab\\nc\"..."
        );
    }

    #[test]
    fn lists_are_reported_entry_by_entry() {
        let mut progress = broker::journal::ProgressBuf::default();
        progress.push(QueueId::of_number(1), 10, [(12, 12), (15, 19)]);
        progress.push(QueueId::of_number(2), 3, []);
        let text = described(Fact::Progress(progress.as_progress()));
        assert_eq!(text, "progress: queue 1 up to 10 and 12 and 15 to 19, queue 2 up to 3");
    }

    #[test]
    fn what_is_no_fact_is_shown_as_bytes() {
        let text = describe(99, &[1, 2, 3, 4, 5], 4);
        assert!(text.starts_with("kind 99: ") && text.ends_with(": 01020304..."), "{text}");
    }
}
