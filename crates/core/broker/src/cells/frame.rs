//! What one cell sends another.
//!
//! Each frame belongs to a shard of the sender, and those of one shard arrive in their order. All
//! are of one life of either side: a link drops what an earlier owner has sent.

use std::sync::Arc;

use codec::Reason;
use session::{Message, MessageParts};
use topic::Cursor;
use topic::interest::{Change, Snapshot};

use crate::words::homes::Place;
use crate::{Scope, SessionKey, ShardId};

/// Messages of a question have a number, by which its answer is known; 0: it has no answer.
#[derive(Clone, Debug)]
pub enum Frame {
    /// Deliver to the subscribers of your cell.
    Publish(Box<Carried>),
    /// Keep, replace or clear the retained message of a topic that has its home with you.
    Retain(Box<Carried>),
    /// The answer to both.
    Answer { number: u64, reason: Reason },
    /// Look up retained messages, of one of your shards.
    Query(Box<Query>),
    /// One page of them. `next`: where to go on.
    Page { number: u64, messages: Vec<Message>, next: Option<PageEnd> },
    /// Say when all messages of this shard of mine that came before are dealt with.
    AskGrant { number: u64, from: ShardId },
    /// They are.
    Granted { number: u64 },
    /// Send me your summary. `ask` counts the questions of a life.
    AskSummary { ask: u64 },
    /// The answer.
    Summary { ask: u64, snapshot: Box<Snapshot> },
    /// What has changed in it since.
    Changes { through: u64, changes: Vec<Change> },
    /// Your summary up to this number counts here.
    Counts { through: u64 },
    /// Let each of your shards say what it has sent before. `from`: the shard of mine that asks.
    Ask { number: u64, from: ShardId },
    /// This shard of mine has sent what it had, for a question of that shard of yours.
    Passed { number: u64, to: ShardId, by: ShardId },
}

/// A message on its way to another cell.
#[derive(Clone, Debug)]
pub struct Carried {
    pub number: u64,
    /// The shard of the sender.
    pub from: ShardId,
    /// As in [`crate::Confirm`].
    pub serial: u64,
    pub is_will: bool,
    /// The name of the account that is charged for its bytes in a journal. Empty: nobody.
    pub owner: Arc<str>,
    pub message: Message,
}

/// Which retained messages are wanted.
#[derive(Clone, Debug)]
pub struct Query {
    pub number: u64,
    pub scope: Scope,
    pub filter: Arc<str>,
    /// None: from the beginning.
    pub after: Option<PageEnd>,
}

/// How far the pages of a query have come in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageEnd {
    pub shard: ShardId,
    /// None: that shard comes next, from its beginning.
    pub after: Option<Cursor>,
}

/// Stands for a publisher of another cell, in messages that come from there. No session here has
/// it: mail for it goes to the gateway.
pub fn foreign_publisher(place: Place, publisher: u64) -> u64 {
    let key = SessionKey::from_u64(publisher);
    if key == SessionKey::NOBODY {
        return publisher;
    }
    SessionKey::new(place, key.generation() ^ key.shard().rotate_right(6), key.slot()).as_u64()
}

impl Frame {
    /// As it is at the gateway of a cell that it comes to without a link, since both have their
    /// owner in one process. `place`: that of the sender there.
    pub fn arrived(self, place: Place) -> Self {
        let carried = |mut own: Box<Carried>| {
            own.message = of_foreigner(&own.message, place);
            own
        };
        match self {
            Self::Publish(own) => Self::Publish(carried(own)),
            Self::Retain(own) => Self::Retain(carried(own)),
            Self::Page { number, messages, next } => {
                let messages = messages.iter().map(|own| of_foreigner(own, place)).collect();
                Self::Page { number, messages, next }
            }
            other => other,
        }
    }
}

fn of_foreigner(message: &Message, place: Place) -> Message {
    Message::new(&MessageParts {
        topic: message.topic(),
        properties: message.properties(),
        payload: message.payload(),
        qos: message.qos(),
        retain: message.retain(),
        expires_at_ms: message.expires_at_ms(),
        publisher: foreign_publisher(place, message.publisher()),
        author: message.author(),
        level: message.level(),
        scope: message.scope(),
    })
}
