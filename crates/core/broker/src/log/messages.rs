//! Messages, as records of the journal have them.

use std::sync::Arc;

use session::{Account, Message, MessageParts};
use storage::{Level, RecordKind};

use crate::log::facts::{Fact, StoredMessage};
use crate::{Durability, Name};

/// Of the weight of a dead letter in the journal, what counts for the cursor in it.
pub(super) const CURSOR_SHARE: u32 = 8;

/// The owner of a message is stored with it, so that it is known after a start. Policy: a longer
/// name is not.
pub(crate) const OWNER_BYTES_MAX: usize = 1024;

pub(crate) fn level_of(durability: u8) -> Level {
    if durability >= Durability::Fsync as u8 { Level::Fsync } else { Level::Disk }
}

/// The owner, as a fact names it.
pub(super) fn noted(owner: Option<&Arc<Account>>) -> &str {
    let name = owner.map_or("", |owner| owner.name());
    if name.len() > OWNER_BYTES_MAX { "" } else { name }
}

pub(super) fn stored_message<'a>(
    message: &'a Message,
    topic: &'a str,
    serial: u64,
    owner: Option<&'a Arc<Account>>,
) -> StoredMessage<'a> {
    let (_, properties, payload) = message.parts_on_wire();
    StoredMessage {
        serial,
        origin: None,
        queue: None,
        qos: message.qos(),
        retain: message.retain(),
        expires_at_ms: message.expires_at_ms(),
        owner: noted(owner),
        author: message.author(),
        topic,
        properties,
        payload,
    }
}

/// A message as it was kept. The session that published it is forgotten, the client ID only where
/// nobody needs it.
pub(super) fn message_of(stored: &StoredMessage<'_>) -> Message {
    let topic = Name::of_key(stored.topic);
    Message::new(&MessageParts {
        topic: topic.text(),
        properties: stored.properties,
        payload: stored.payload,
        qos: stored.qos,
        retain: stored.retain,
        expires_at_ms: stored.expires_at_ms,
        publisher: 0,
        author: stored.author,
        level: Durability::Fsync as u8,
        scope: topic.scope().number(),
    })
}

pub(super) fn message_in(kind: RecordKind, bytes: &[u8]) -> Option<(u64, Message)> {
    let stored = match Fact::decode(kind.get(), bytes) {
        Ok(
            Fact::Message(stored)
            | Fact::Taken { message: stored, .. }
            | Fact::WillTaken { message: stored, .. },
        ) => stored,
        Ok(Fact::Streamed(streamed)) => streamed.message()?,
        _ => return None,
    };
    Some((stored.serial, message_of(&stored)))
}
