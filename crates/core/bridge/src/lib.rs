//! A bridge to another broker, as a state machine over bytes.
//!
//! A bridge has two sessions: one in this broker (local) and one at the other broker (remote). The
//! [`Relay`] passes packets between them and keeps their packet identifiers. The sessions of the
//! two brokers therefore acknowledge and resend to each other, and a bridge stores nothing.
//!
//! **Does not know** sockets, clocks, threads, files, or the inside of a broker.
//!
//! **Start reading** at [`Relay`], then `forward.rs`: what becomes of one message.
//!
//! **Invariants**
//! - A PUBLISH is acknowledged to its sender by the receiver's acknowledgement only, or because it
//!   was refused and counted.
//! - No message of one sender keeps others back for ever: what its receiver refuses is given up.
//! - A packet identifier is never freed at one side while the other side may still know it.
//! - Output is bounded: no packet is taken from one side while the other has
//!   [`OUT_BYTES_MAX`] bytes to write.

#![forbid(unsafe_code)]

mod copies;
mod forward;
mod oversize;
mod relay;
mod remote;
mod settings;
mod stale;
mod suspects;
mod unanswered;
mod unreleased;

pub use forward::{HOPS_PROPERTY, Refusal};
pub use relay::{Action, Counts, Down, Earlier, OUT_BYTES_MAX, Refused, Relay, Side};
pub use remote::{Login, PeerLimits};
pub use settings::{Direction, Settings, TopicMap};
pub use suspects::Suspects;
pub use unreleased::Unreleased;
