//! Streams as shards and their owner talk about them: which there are, what is stored in them, and
//! what the journal remembers of their files and consumers.
//!
//! A shard writes a message for a stream into its journal, with a number that grows by one with
//! each record of the stream on this shard: its *ordinal*. Once that is committed, the owner of
//! streams gets the record ([`StreamNews`]), moves it into the stream's files, and orders the
//! journal to release it ([`StreamOrder`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Durability, Scope};

/// Names a stream. It is given once and never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamNumber(pub u32);

/// Names a consumer. It is given once and never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConsumerNumber(pub u32);

/// What a stream takes.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    pub number: StreamNumber,
    pub scope: Scope,
    /// Topic filters. A message that matches one of them is stored once. Without any the stream
    /// takes dead letters only.
    pub filters: Vec<Box<str>>,
    /// Messages of a lower QoS are not stored: 0 to 2.
    pub qos_min: u8,
    /// Some: only messages with this retain flag.
    pub retain: Option<bool>,
    /// Bytes of a payload. A larger message is not stored.
    pub payload_bytes_max: usize,
    /// When an acknowledgement may leave: `Disk` or above.
    pub level: Durability,
    /// The stream is full, and refuses what matches. Its owner raises it.
    pub is_full: Arc<Flag>,
}

impl StreamSettings {
    /// Does a filter match, whatever else the stream asks of a message?
    pub(crate) fn may_take(&self, scope: Scope, topic: &str) -> bool {
        self.scope == scope && self.filters.iter().any(|filter| topic::matches(filter, topic))
    }
}

/// The streams of all shards.
#[derive(Clone, Debug, Default)]
pub struct StreamSet {
    /// Random, of this process ([`crate::log::facts::StreamRecord::life`]).
    pub life: u64,
    pub streams: Vec<StreamSettings>,
    /// So much waits for files that publishers of all streams are paused. Their owner raises it.
    pub is_behind: Arc<Flag>,
}

/// What one thread says and many read.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    pub fn set(&self, is_raised: bool) {
        self.0.store(is_raised, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Faults that tests plant, to see that they are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamFlaw {
    /// Records are reported before they are committed.
    UncommittedRead,
    /// Records count as synced when they are committed at level `disk`.
    SyncedEarly,
    /// A message that was taken on is stored again when a start passes it on.
    HandoverStoredAgain,
    /// Records that files have stay in the journal.
    PinsJournal,
    /// A will is not stored if its session is kept.
    WillLost,
    /// The newest record of a start is forgotten, and its number is given again.
    OrdinalReused,
}

/// What a shard reports, in its order.
#[derive(Clone, Debug)]
pub enum StreamNews {
    /// Committed records, which follow those before.
    Stored { stream: StreamNumber, first: u64, records: Vec<StoredRecord> },
    /// Records below `next` outlive a loss of power: files are made of these.
    Synced { stream: StreamNumber, next: u64 },
    /// The journal copies records of streams to reclaim space: they are to be moved into files.
    NeedsSpace,
    /// The answer to an order: it is committed, or not done.
    Done { order: u64, result: Result<(), OrderRefusal> },
}

/// A committed record.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// Broker time, in milliseconds.
    pub at_ms: u64,
    /// A [`crate::log::facts::StreamRecord`].
    pub bytes: Arc<Vec<u8>>,
}

/// Why an order was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderRefusal {
    /// There was no room in the journal: the owner gives the order again later.
    TryAgain,
    /// The journal is out of service.
    Failed,
    /// The stream is not there any more.
    NoStream,
    /// The record is larger than a journal takes.
    TooLarge,
}

/// What the owner of streams has a shard do. Each is answered by [`StreamNews::Done`].
#[derive(Clone, Debug)]
pub struct StreamOrder {
    pub id: u64,
    pub change: StreamChange,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum StreamChange {
    /// These are the streams from now on. What the journal has of others is released.
    Set(Arc<StreamSet>),
    /// Records below `next` are durable in files, the last of them in `file` ahead of `end`.
    Archived { stream: StreamNumber, next: u64, file: u64, end: u64 },
    /// The files below this one are gone.
    Dropped { stream: StreamNumber, first_file: u64 },
    /// How far a consumer is. It is done when it is committed at this level.
    Cursor { consumer: ConsumerNumber, cursor: Vec<u8>, level: Durability },
    /// The consumer has ended: its cursor is forgotten.
    EndConsumer { consumer: ConsumerNumber },
    /// A record that its consumer could not deliver: its outcome and its place in the stream of
    /// dead letters are one record of the journal.
    DeadLetter {
        consumer: ConsumerNumber,
        cursor: Vec<u8>,
        stream: StreamNumber,
        /// A [`crate::log::facts::StreamRecord`].
        record: Arc<Vec<u8>>,
    },
}

/// What the journal of a shard has of streams and consumers at a start. Records that are in no file
/// yet follow as [`StreamNews::Stored`].
#[derive(Clone, Debug, Default)]
pub struct StreamsFound {
    pub streams: BTreeMap<StreamNumber, StreamFound>,
    pub cursors: BTreeMap<ConsumerNumber, Vec<u8>>,
}

/// What the journal of a shard has of one stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamFound {
    /// Records below are in files, or were deleted with them.
    pub archived: u64,
    /// The number of the next record.
    pub next: u64,
    /// How far files must reach, by their numbers.
    pub reach: BTreeMap<u64, u64>,
    /// The files below are gone. Their numbers are not used again.
    pub first_file: u64,
}
