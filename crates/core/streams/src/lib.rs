//! The owner of streams and consumers, as a state machine.
//!
//! Shards report committed records ([`Hub::on_news`]). The owner keeps them in memory, moves them
//! into files, and orders the journals to release them. It reads records for consumers, decides
//! what is sent to their targets, and keeps a cursor of each in the journals that have the records.
//!
//! ```text
//! shard   on_news(Stored)  -> tail          consumers at the front read it from memory
//!         on_news(Synced)  -> block         Effect::File, and on_file(..)
//!         on_news(Done)    <- Effect::Order Archived, Dropped, Cursor, DeadLetter, EndConsumer
//! target  Effect::Send     -> on_answer(..) outcomes, retries, dead letters
//! ```
//!
//! **Does not know**: sockets, clocks, threads or files. Time is an argument, in milliseconds of
//! broker time, and files are read through [`ReadFiles`].
//!
//! **Start reading** at [`Hub`], then `consumer/mod.rs`.
//!
//! # Invariants
//!
//! - Files are made of records that outlive a loss of power, and a journal releases a record only
//!   once its file is durable.
//! - A file is deleted once no journal names it, and once the outcomes that consumers had by then
//!   are committed.
//! - Each record since the start of a run has one outcome for a consumer, is in flight, or is
//!   pending: [`Sum::adds_up`].
//! - A cursor that is committed never covers a record without an outcome, and never goes back: one
//!   fact of a consumer is under way to a shard at a time.
//! - An answer to a batch of an earlier run changes nothing.
//! - A consumer that waits, or is behind, stops no other: consumers have turns that are bounded.

mod consumer;
mod definition;
mod effect;
mod event_id;
mod front;
mod hub;
mod message;
mod orders;
mod reader;
mod settings;
mod stream;
mod stream_view;
mod tail;
mod turn;
mod view;
mod work;

pub use definition::{
    ConsumerDefinition, DefinitionError, Full, Order, Position, Seek, Start, StreamDefinition,
};
pub use effect::{Effect, Happening, Outgoing};
pub use event_id::EventId;
pub use hub::Hub;
pub use message::{ANSWER_CHARS_MAX, names};
pub use reader::ReadFiles;
#[cfg(feature = "testing")]
pub use settings::Flaw;
pub use settings::HubSettings;
pub use stream_view::StreamView;
pub use view::{ConsumerView, Counters, ShardView, State, Sum};
