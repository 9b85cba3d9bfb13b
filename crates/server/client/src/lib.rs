//! An MQTT client in two layers, for 3.1, 3.1.1 and 5.
//!
//! - [`Machine`] is the protocol alone: bytes in, [`Event`]s and bytes out. It owns no socket,
//!   clock, thread or buffer, and an idle one is about a hundred bytes, so that a load generator
//!   can hold hundreds of thousands on a thread.
//! - [`blocking::Client`] puts one machine on one connection and waits: for command-line tools,
//!   tests and bridges.
//!
//! It does not know: any broker's insides, topic matching, what a message means. It keeps nothing
//! on disk: a session lives as long as its machine.
//!
//! Start reading at [`Machine`]. Invariants: a packet identifier is never reused while its exchange
//! is open; a QoS 2 message is handed out once per exchange; no more QoS 1 and 2 messages are in
//! flight than the server's receive maximum allows.

pub mod blocking;
mod machine;
mod options;
mod wire;

pub use machine::{Acks, Event, Machine, NotSent, PeerTakes, Unacknowledged};
pub use options::{ConnectOptions, WillOptions};
pub use wire::{Endpoint, Read, Route, TlsOptions, TlsVersion, Wire};
