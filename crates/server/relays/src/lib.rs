//! Client connections that are relayed between the nodes of a cluster.
//!
//! A client connects to any node, its *front*. If the cell of its client id is active on another
//! node, its *home*, the front passes its bytes on from the CONNECT on, and the home's over to the
//! client. At the home the client is one end of a [`Stream::pair`](net::Stream::pair): to the cell,
//! a relayed connection is a socket like another.
//!
//! Packets of relays share the connections of [`links`] with packets of cells. A relay is bound to
//! one connection of a link. When that is lost the relay is over on both sides: no relay is
//! resumed.
//!
//! Each direction has a credit: bytes that may be sent and have not been written to the other
//! stream. It grows while data flows, by bytes that the receiver lends, and idle senders give it
//! back. So a client that never reads holds up its own connection only.
//!
//! Limits:
//!
//! | what | limit | at the limit |
//! |---|---|---|
//! | relays of a node, of both ends | [`Options::relays_max`] | refused |
//! | credit of a direction | 4 to 64 KiB ([`wire`]) | no more is read |
//! | all credit above 4 KiB | [`Options::relay_bytes_max`] | it does not grow |
//! | an arrival, without bytes of the client | 64 KiB ([`wire`]) | refused |
//! | opens without an answer, of a connection | [`OPENS_MAX`] | others wait |
//! | time to write what came before the end | [`LINGER_MS`] | dropped |
//!
//! A peer that sends more than a credit, or a longer arrival, violates the protocol: its connection
//! is closed. Clients that wait to be opened count as relays.
//!
//! **Invariants.** Bytes move only while the link lives, by CLOCK_BOOTTIME. A process that was
//! paused ends its relays before it moves a byte. An idle relay owns no buffer.
//!
//! It does **not** know MQTT, authentication, leases, or the configuration. It writes no log.
//!
//! Start reading at `relays.rs`, then `wire.rs`, `task.rs`, `relay.rs`.

#![forbid(unsafe_code)]

pub mod wire;

mod link;
mod permits;
mod queue;
mod relay;
mod relays;
mod task;

pub use link::OPENS_MAX;
pub use relays::{Client, Held, Host, Options, RELAY_BYTES_MAX, Refused, RelayFigures, Relays};
pub use task::{LINGER_MS, Task};
pub use wire::{Arrival, CREDIT_BYTES_MIN};
