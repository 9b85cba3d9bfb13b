//! Nodes that are one broker: the journals of all shards are one replicated stream, one node
//! writes, others follow.
//!
//! # What it does not know
//!
//! MQTT, and what the records of a journal mean. And the machine: no socket, file, thread, clock or
//! random source is touched here. A [`Node`] gets what happened and returns [`Effect`]s. The
//! server carries them out with NATS JetStream and files, the simulator with an engine that fails
//! in all ways.
//!
//! # Where to start reading
//!
//! [`Node`] (`node.rs`) for the life of a node, `lease.rs` for who may be active,
//! `claims.rs` for which cells a node takes, `writer.rs` for
//! how journals are appended, `sequencer.rs` for which messages count, `wire.rs` for the bytes,
//! `entry.rs` for what a node is refused for at its start, `files.rs` for the small files,
//! `replication.rs` for the files of MQTT streams.
//!
//! # Invariants
//!
//! - All nodes agree which messages of a stream count, from the stream alone.
//! - A local copy holds a prefix of what counts. What it lacks can be read from the stream.
//! - A commit is reported when a quorum has all of it, never before.
//! - Bytes leave to clients only under a lease that held after all that led to them.

mod block_wire;
mod claims;
mod commits;
mod effect;
mod entry;
mod files;
mod lease;
mod log;
mod node;
mod replication;
mod sequencer;
mod spacing;
mod wire;
mod writer;

pub use block_wire::{BLOCK_BYTES_MAX, BlockFile, BlockMessage, first_file_of};
pub use claims::{CLAIM_STEP_MS, Claims};
pub use effect::{
    ANSWER_MS_MAX, Answer, Body, Effect, LeaseAnswer, LeaseRequest, Request, RequestId, Role,
    Sequence, ShardId,
};
pub use entry::{
    BlockMark, CELLS_FORMAT, CELLS_MAX, Extent, FORMAT, Facts, Foreign, Mark, Misfit, Peers,
    Record, RecordError,
};
pub use files::{FileFault, FileStep, FileTask, file_value, read_file};
pub use lease::{Identity, Lease, LeaseValue, Standing, Timing};
pub use log::ShardLog;
pub use node::{Node, Settings, StreamStatus};
pub use replication::{BlockRequest, PutId, Replication};
pub use sequencer::{Cursor, Sequencer, Unreadable, Verdict};
pub use wire::{
    CELL, ClusterId, Content, Header, Message, Origin, Piece, Portion, VERSION, WireError, decode,
};
pub use writer::{MESSAGE_BYTES_MAX, span_bytes_min};
