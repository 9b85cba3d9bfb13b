//! Mail between shards.

use std::sync::Arc;

use codec::{QoS, Reason};
use session::{Account, LARGE_BYTES_MIN, Message, Respondent};
use topic::Cursor;

use crate::Scope;
use crate::words::group_names::GroupName;
use crate::words::homes::Place;
use crate::words::member::Member;

/// What counts whole of a message that can wait in a queue.
const WHOLE_BYTES_MAX: usize = 2 * 1024;

/// The number of a shard, fixed when the broker starts. At most [`topic::SHARDS_MAX`] of them.
pub type ShardId = u16;

/// A session as other shards know it: shard, generation and place. Never reused for another
/// session while somebody may still hold it (the generation sees to that).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(u64);

impl SessionKey {
    pub const NOBODY: Self = Self(0);

    pub(crate) const fn new(shard: ShardId, generation: u16, slot: u32) -> Self {
        Self((shard as u64) << 48 | (generation as u64) << 32 | slot as u64)
    }

    pub const fn shard(self) -> ShardId {
        (self.0 >> 48) as u16
    }

    pub(crate) const fn generation(self) -> u16 {
        (self.0 >> 32) as u16
    }

    pub(crate) const fn slot(self) -> u32 {
        self.0 as u32
    }

    pub(crate) const fn from_u64(key: u64) -> Self {
        Self(key)
    }

    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// Where the answer to a publish is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    pub publisher: SessionKey,
    /// Tells the publisher's connections apart: an answer for an earlier one is void.
    pub connection: u64,
    /// Of the acknowledgement that waits on that connection.
    pub ack_number: u32,
    pub packet_id: u16,
    /// Who is asked, and thus whose answer it is.
    pub respondent: Respondent,
    /// Of a message that the publisher's shard has in its journal until all have it, a QoS 2
    /// publish or a will: distinguished by it from one that was mailed before. 0: none.
    pub serial: u64,
    /// It is a will. Their serials grow by themselves: they do not wait for a commit.
    pub is_will: bool,
    /// The account that is charged for its bytes in a journal, by its number.
    pub owner: u32,
    /// It was accepted before and is only retained anew: it cannot be refused any more.
    pub is_again: bool,
}

/// A request for retained messages, page by page.
#[derive(Clone, Debug)]
pub struct RetainedQuery {
    pub subscriber: SessionKey,
    /// The place that is asked.
    pub home: Place,
    /// Of the subscriber, and thus of the filter.
    pub scope: Scope,
    /// Only to look the messages up: the subscriber knows its page by the number.
    pub filter: Arc<str>,
    /// Which of the subscriber's subscriptions asks, counted.
    pub ask: u32,
    /// The page that comes next, by its number among all that the subscriber's shard asks for.
    pub page: u64,
    /// The home has heard from all shards of all cells since it was asked.
    pub is_settled: bool,
    pub after: Option<Cursor>,
    /// If the home is another cell: which shard there is asked next.
    pub shard: ShardId,
}

/// What a barrier is for: what its questions make sure of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierKind {
    /// All other places know what this shard claims.
    Known,
    /// What all other shards, of all cells, have sent has come.
    Arrived,
}

/// How a message of a shared group has come to a member.
#[derive(Clone, Copy, Debug)]
pub struct GroupWay {
    /// How often it was passed on.
    pub hops: u8,
    /// The serial in the queue of the group's home, or 0.
    pub serial: u64,
    /// If it has waited there in memory: its number among those that have, else 0.
    pub number: u64,
    /// The first member that may not receive it, or [`SessionKey::NOBODY`].
    pub denied_by: SessionKey,
    /// Since then there was a member without room, who was not asked.
    pub has_skipped: bool,
}

impl GroupWay {
    /// Nobody may yet have turned it down.
    pub const fn new(hops: u8, serial: u64) -> Self {
        let (number, denied_by, has_skipped) = (0, SessionKey::NOBODY, false);
        Self { hops, serial, number, denied_by, has_skipped }
    }
}

/// One item of a mail batch. Items from one shard to another arrive in the order of sending.
#[derive(Clone, Debug)]
pub enum Mail {
    /// Deliver to the subscribers you have (shared groups are the sender's affair). `owner`: of its
    /// place in a journal, by the number of the account, also where nobody waits for the answer.
    Publish { message: Message, confirm: Option<Confirm>, owner: u32 },
    /// The answer to a publish with `confirm`; `refused` is the message that found no room.
    Confirmed { confirm: Confirm, reason: Reason, refused: Option<Message> },
    /// A subscriber of this publisher's messages is slow: read on from it a little later.
    /// Unless that is urgent, only if it sends bursts.
    Congested { publisher: SessionKey, pause_ms: u32, is_urgent: bool },
    /// Keep, replace or (empty payload) clear the retained message of a topic that is yours; with
    /// its owner.
    Retain { message: Message, confirm: Option<Confirm>, owner: Option<Arc<Account>> },
    /// Look up retained messages.
    QueryRetained(Box<RetainedQuery>),
    /// One page of them; `query.after` is where to go on, if there are more.
    Retained { query: Box<RetainedQuery>, messages: Vec<Message>, is_last: bool },
    /// Somebody joined a shared group.
    Join { group: Arc<GroupName>, member: Member },
    /// Somebody left it.
    Leave { group: u64, member: SessionKey },
    /// The sender's group chose a session of yours.
    Offer { group: Arc<GroupName>, member: SessionKey, message: Message, way: GroupWay },
    /// You are the home of the group: keep it, as no member could take it, or the journal keeps
    /// all. `number`: of one that has waited there before, else 0.
    Park { group: Arc<GroupName>, message: Message, number: u64, confirm: Option<Confirm> },
    /// The group's home has messages waiting, or none any more.
    Waiting { group: u64, any: bool },
    /// After a start: up to this one your serials have come here in an earlier life.
    Seen { serial: u64 },
    /// A member has acknowledged what you, its home, keep for the group.
    GroupDone { group: u64, serial: u64 },
    /// It could not take it, or is gone.
    GroupReturned { group: u64, serial: u64 },
    /// No member with room may have it: you are the group's home, keep it until others have room.
    GroupDenied { group: Arc<GroupName>, message: Message, way: GroupWay },
    /// A member can take messages again.
    Pull { group: u64 },
    /// It is connected again.
    Online { group: u64, member: SessionKey },
    /// So many bytes of messages have been mailed to you by now, since the start.
    AskGrant { from: ShardId, bytes: u64 },
    /// They are dealt with.
    Grant { by: ShardId, bytes: u64 },
    /// Say when you have dealt with all mail of mine before this.
    Ask { from: ShardId, number: u64, kind: BarrierKind },
    /// The answer. It is behind all mail that was sent before.
    Passed { by: ShardId, number: u64, kind: BarrierKind },
    /// The queue of this subscriber of mine is long: take no publish of QoS 1 or 2 for it whose
    /// payload has so many bytes. The filter is its key.
    Pause { subscriber: SessionKey, filter: Arc<str>, bytes_min: usize },
    /// Take them again.
    Resume { subscriber: SessionKey },
}

impl Mail {
    /// Has it to stay behind what was sent before it, however long that takes? What carries
    /// messages, counts them, or asks for them.
    pub(crate) const fn keeps_order(&self) -> bool {
        matches!(
            self,
            Self::Publish { .. }
                | Self::Retain { .. }
                | Self::Offer { .. }
                | Self::Park { .. }
                | Self::GroupDenied { .. }
                | Self::Seen { .. }
                | Self::AskGrant { .. }
                | Self::QueryRetained(_)
        )
    }

    /// The message that it carries to another shard, if it does.
    #[inline]
    pub(crate) const fn message(&self) -> Option<&Message> {
        match self {
            Self::Publish { message, .. }
            | Self::Retain { message, .. }
            | Self::Offer { message, .. }
            | Self::Park { message, .. }
            | Self::GroupDenied { message, .. } => Some(message),
            _ => None,
        }
    }

    /// Bytes of that, for what may lie before the shard.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message().map_or(0, counted_bytes)
    }
}

/// What can wait in a queue counts for a quarter if it is large, and never for more than the
/// smallest that need not be copied: counted whole, a few would have to wait for a turn of each
/// other shard, and those with subscribers on many shards would come behind all others. At QoS 0 it
/// is dropped if too many come to an outbox at a time.
fn counted_bytes(message: &Message) -> usize {
    let bytes = message.heap_bytes();
    if message.qos() == QoS::AtMostOnce {
        return bytes;
    }
    bytes.min(WHOLE_BYTES_MAX.max(bytes / 4)).min(LARGE_BYTES_MIN)
}
