//! What a node asks of the engine and of its machine, and what it is answered.

use std::sync::Arc;

use storage::{Command, Completion};

use crate::wire::Portion;

/// The number of a message in a stream; the first is 1, 0 stands for none.
pub type Sequence = u64;

/// The number of a shard.
pub type ShardId = u16;

/// A message of a stream, as appended.
pub type Body = Arc<[u8]>;

/// The name by which a request is answered. Unique for the stream, and for the key-value store,
/// within the life of a [`Node`](crate::Node).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Something that is asked of a stream. Each request is answered once; when that takes longer than
/// [`ANSWER_MS_MAX`], by [`Answer::Unknown`].
#[derive(Clone, Debug)]
pub enum Request {
    /// Append `body` if `after` is the sequence of the last message.
    Append { after: Sequence, body: Body },
    /// The message with this sequence, as the leader of the stream has it.
    Message { sequence: Sequence },
    /// The first and the last sequence, as the leader has them.
    Ends,
    /// Remove all messages before this one.
    Purge { before: Sequence },
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A quorum has it on disk, under this sequence.
    Appended(Sequence),
    /// Another message was the last one. Not stored.
    WrongSequence,
    /// The engine has no space. Certainly not stored, nor will it be.
    NoSpace(String),
    /// The engine cannot take it now: no server or no leader. Certainly not stored, nor will it be.
    Unavailable(String),
    /// `None`: there is no message with this sequence.
    Message(Option<Body>),
    /// An empty stream that was never written to has `first` 1 and `last` 0.
    Ends {
        first: Sequence,
        last: Sequence,
    },
    Purged,
    /// No answer, or one that leaves open what happened: the reason.
    Unknown(String),
}

/// Something that is asked of the key with the lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseRequest {
    /// The value as the leader of the store has it.
    Read,
    /// Put `value` if the key has this revision; 0: if there is no such key.
    Write { expected: u64, value: Vec<u8> },
}

/// The answer to a [`LeaseRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseAnswer {
    Found {
        revision: u64,
        value: Vec<u8>,
    },
    Missing,
    /// The new revision.
    Written(u64),
    /// The key has another revision. Not written.
    Conflict,
    /// No answer, or one that leaves open what happened: the reason.
    Unknown(String),
}

/// What a node wants done. Effects are to be carried out in their order.
#[derive(Debug)]
pub enum Effect {
    /// Ask the stream.
    Ask(RequestId, Request),
    /// Ask the key-value store.
    AskLease(RequestId, LeaseRequest),
    /// Deliver the messages of the stream from this sequence on, in order, with
    /// [`Node::on_message`](crate::Node::on_message). Replaces an earlier one.
    Follow(Sequence),
    /// Deliver no more of it.
    Unfollow,
    /// The local copy of a shard is void: remove its files, forget its replay.
    StartOver(ShardId),
    /// A new writer begins: what is not whole is dropped ([`storage::Follow::on_new_writer`]).
    NewWriter(ShardId, Sequence),
    /// A message of the stream that is followed: write what it holds of its shard to the local
    /// copy, and replay it.
    Apply(Sequence, Portion),
    /// A message that this node has appended: write what it holds of its shard to the local copy.
    Store(Sequence, Portion),
    /// Do this with the local copy, and give the completion to the journal. A segment is made of
    /// nothing (sparse); recycling is removing one file and making the other.
    Background(ShardId, Command),
    /// Give this to the journal.
    Done(ShardId, Completion),
    /// The journal is to do without its segments up to this one ([`storage::Journal::renew`]).
    Renew(ShardId, u32),
    /// The node has another role.
    Role(Role),
}

/// What a node is for its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Follows the stream.
    Standby,
    /// Has the lease, and takes the stream over.
    Claiming { epoch: u64 },
    /// The stream is its own: the journals may be opened.
    Active { epoch: u64 },
    /// It has given the role back as requested.
    Released,
    /// It was active or about to be, and may not go on: its journals and connections must end.
    Ended(String),
}

/// Milliseconds after which a request that is not answered is answered by `Unknown`.
pub const ANSWER_MS_MAX: u64 = 1000;
