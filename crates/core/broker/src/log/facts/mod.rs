//! What a shard writes into its journal so that its durable state can be rebuilt: the facts, and
//! their bytes.
//!
//! `docs/develop/durable-sessions.md` says which fact is written when, and what is rebuilt from
//! them. In short:
//!
//! - Facts name sessions and shared groups by a *queue number*, which is given once and never used
//!   again, and messages by a *serial*, which grows by one from message to message of a shard.
//!   Neither is a place in the journal, so a record may be copied forward as it is.
//! - Each fact stands for itself: a replay may meet the facts of one session in another order than
//!   they were first written in, because reclaiming copies the oldest ones to the end.
//! - A fact is identified by its record kind. A changed layout gets a kind of its own, and the old
//!   one stays readable; kinds are never given a second meaning.
//!
//! It does not know: when to write, what a fact changes, or where a record stands.

mod fact;
mod list;
mod stream_record;
mod streamed;
mod wire;

pub use crate::words::queue_number::{QueueId, QueueNumber};
pub use fact::{
    Fact, GroupOpened, Malformed, Origin, SessionOpened, StoredMessage, StoredWill, Subscribed,
};
pub use list::{InFlight, InFlightBuf, Progress, ProgressBuf, ProgressEntry, Runs, Sent, Stage};
pub use stream_record::{StreamRecord, put_attributes, read_attributes};
pub use streamed::{Archived, Purpose, Stamps, Streamed};
