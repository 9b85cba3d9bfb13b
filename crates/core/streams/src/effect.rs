//! What the owner of streams wants done, and what happened.

use std::ops::Range;
use std::sync::Arc;

use broker::streams::{ConsumerNumber, StreamNumber, StreamOrder};
use routing::dispatch::{BatchId, DeadReason, RecordId};
use routing::{Outcome, Output};
use storage::stream::StreamCommand;

use crate::event_id::EventId;
use crate::view::State;

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// For a shard, in this order. Answered by [`broker::streams::StreamNews::Done`].
    Order { shard: u16, order: StreamOrder },
    /// For the disk, in this order for each stream. Writes are answered by
    /// [`crate::Hub::on_file`].
    File { stream: StreamNumber, command: StreamCommand },
    /// For the target of a consumer. Answered by [`crate::Hub::on_answer`]. `is_alone`: nothing
    /// else may be under way to the target at the same time.
    Send { consumer: ConsumerNumber, batch: BatchId, is_alone: bool, records: Vec<Outgoing> },
    /// For logs and events.
    Happened(Happening),
}

/// A record for a target.
#[derive(Clone, PartialEq, Debug)]
pub struct Outgoing {
    pub id: RecordId,
    /// The `id` of the event: all copies of the record have it.
    pub event_id: EventId,
    /// The key of the Kafka record.
    pub key: Option<String>,
    pub output: Output,
    /// When it was published, by the wall clock as it is now, in milliseconds.
    pub time_ms: u64,
}

/// What operators may want to know.
#[derive(Clone, PartialEq, Debug)]
pub enum Happening {
    /// A consumer waits for something else than before, or goes on.
    State { consumer: ConsumerNumber, name: Arc<str>, state: State },
    /// The first cursors of a consumer, or those of a seek, are committed: it may be confirmed.
    Started { consumer: ConsumerNumber, run: u64 },
    /// The journals have forgotten the consumer.
    Ended { consumer: ConsumerNumber },
    /// Records that a consumer will not get.
    Dropped {
        consumer: ConsumerNumber,
        shard: u16,
        ordinals: Range<u64>,
        /// Of these, so many had no outcome.
        count: u64,
        outcome: Outcome,
    },
    /// The record is in the stream of dead letters. None: there is none, and it is discarded.
    Undelivered {
        consumer: ConsumerNumber,
        record: RecordId,
        stream: Option<StreamNumber>,
        reason: DeadReason,
        attempts: u32,
        answer: String,
    },
    /// Blocks cannot be written. They are tried again every second.
    WriteFault { stream: StreamNumber, fault: String },
    /// Blocks are written again.
    WriteResumed { stream: StreamNumber },
    /// A record cannot be stored in a file, or news of a shard do not follow those before.
    Broken { stream: StreamNumber, shard: u16, detail: &'static str },
    /// A stream that rejects has reached its limits, or has space again.
    Full { stream: StreamNumber, is_full: bool },
    /// All shards have the streams of [`crate::Hub::set_streams`].
    StreamsSet,
}
