//! The deterministic simulator: the second driver of the broker's shards.
//!
//! A whole broker, its network and its clients run on one thread from one seed: bytes arrive in any
//! pieces, mail between shards is delayed, connections break in the middle of packets, clients are
//! slow, take over and come back. In durable worlds the shards have logs on simulated disks, and
//! the broker ends at any moment. The [`Oracle`](oracle::Oracle) knows what the standards promise
//! and judges what the clients saw. A seed that fails can be run again as often as needed.
//!
//! It does **not** know: real sockets, clocks, threads, files.
//!
//! Start reading at [`run`]; what only durable worlds have is in `crash.rs` and `disks.rs`.
//!
//! Invariant: the same seed and options give the same world, step by step.

#![forbid(unsafe_code)]

pub mod client;
mod cluster;
mod crash;
mod damage;
mod disks;
mod driven;
mod hostile;
mod ledger;
mod many;
mod network;
mod node;
pub mod oracle;
mod policy;
mod random;
mod sabotage;
mod stranger;
mod trace;
mod wall;
mod world;

pub use self::cluster::Toll as ClusterToll;
pub use crash::Toll;
pub use driven::Toll as DrivenToll;
pub use many::run_many;
pub use sabotage::{Sabotage, fact};
pub use world::{Failure, Options, Report, run};
