//! What a shard keeps across a start: its journal, what is written into it, and where in it
//! everything stands.
//!
//! It calls nobody. Whoever appends a fact says by arguments what it is about; whoever has to go on
//! is returned. Sessions are named by their slots, groups by their
//! [`KeptId`](crate::words::queue_number::KeptId).
//!
//! Tables, which know nothing of each other but what stands below them:
//!
//! - `facts/`, `messages.rs`: what records say,
//! - `track.rs`: where the dispatched messages of one queue are,
//! - `since.rs`: from which message on a filter counts,
//! - `kept.rs`: the kept sessions, by slot and by queue,
//! - `ends.rs`: their ends, and who may not be answered before those are written,
//! - `handovers.rs`: QoS 2 publishes and wills on their way to other shards,
//! - `group_queues.rs`: the queues of shared groups,
//! - `own_streams.rs`: what streams have,
//! - `waiting.rs`: what waits for a commit,
//! - `reads.rs`: what is read back from the disk,
//! - `late.rs`: what found no room in the journal.
//!
//! [`Log`](store::Log) has them all (`store.rs`). What it does with them:
//!
//! - `writing.rs`: the end of a turn, and reclaiming; `queues.rs`: how far each queue is,
//! - `kept_sessions.rs`, `will.rs`, `retained_facts.rs`: what is written of a session, its will,
//!   and retained messages,
//! - `sent.rs`: messages assigned to sessions: in flight, or waiting in the journal,
//! - `passing.rs`: what is taken on, passed on, and known when it comes again,
//! - `kept_groups.rs`, `streams.rs`: messages of groups and streams,
//! - `commits.rs`, `try_later.rs`: what goes on with a commit, or when there is room,
//! - `replay.rs`, `rebuild.rs`: from the records of a journal to what holds at its end, and back to
//!   the tables.
//!
//! `docs/develop/durable-sessions.md` says why it is so.

mod commits;
pub(crate) mod ends;
pub mod facts;
mod forget;
mod group_queues;
pub(crate) mod handovers;
pub(crate) mod kept;
pub(crate) mod kept_groups;
pub(crate) mod kept_sessions;
pub(crate) mod late;
mod lone_wills;
pub(crate) mod messages;
mod own_streams;
pub(crate) mod passing;
pub(crate) mod queues;
mod reads;
pub(crate) mod rebuild;
pub(crate) mod replay;
mod retained_facts;
pub(crate) mod sent;
mod since;
pub(crate) mod store;
mod stream_facts;
pub(crate) mod streams;
mod texts;
mod track;
mod try_later;
pub(crate) mod waiting;
mod will;
pub(crate) mod writing;
