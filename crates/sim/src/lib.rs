//! The deterministic simulator: the second driver of the broker's shards.
//!
//! A whole broker, its network and its clients run on one thread from one seed: bytes arrive in any
//! pieces, mail between shards is delayed, connections break in the middle of packets, clients are
//! slow, take over and come back. The [`Oracle`](oracle::Oracle) knows what the standards promise
//! and judges what the clients saw. A seed that fails can be run again as often as needed.
//!
//! It does **not** know: real sockets, clocks, threads.
//!
//! Start reading at [`run`].

#![forbid(unsafe_code)]

pub mod client;
pub mod oracle;
mod random;
pub mod world;

pub use world::{Failure, Options, Report, Sabotage, run};
