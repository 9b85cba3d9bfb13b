//! The deterministic simulator.
//!
//! A whole broker, its network and its clients run on one thread from one seed: bytes arrive in any
//! pieces, mail between drivers is delayed, connections break in the middle of packets, clients are
//! slow, take over and come back. The shards are driven by the drivers of the server (`driver`), on
//! hosts in memory: each takes a turn when something has woken it. In durable worlds the shards
//! have journals on simulated disks, and the broker ends at any moment. The
//! [`Oracle`](oracle::Oracle) knows what the standards promise and judges what the clients saw. A
//! seed that fails can be run again as often as needed.
//!
//! It does **not** know: real sockets, clocks, threads, files.
//!
//! Start reading at [`run`]; the drivers are in `node.rs`, what comes of their turns in
//! `network.rs`, what only durable worlds have in `crash.rs` and `disks.rs`.
//!
//! Invariant: the same seed and options give the same world, step by step.

#![forbid(unsafe_code)]

mod cells;
pub mod client;
mod cluster;
mod crash;
mod damage;
mod dice;
mod disks;
mod hostile;
mod ledger;
mod lines;
mod many;
mod network;
mod node;
pub mod oracle;
mod policy;
mod random;
mod sabotage;
mod service;
mod silence;
mod stranger;
mod stream_world;
mod trace;
mod wall;
mod world;

pub use self::cells::Toll as CellsToll;
pub use self::cluster::Toll as ClusterToll;
pub use broker::RetainedFlaw;
pub use broker::cells::gateway::GatewayFlaw;
pub use crash::Toll;
pub use many::run_many;
pub use node::Turns;
pub use sabotage::{Sabotage, fact};
pub use stream_world::Toll as StreamToll;
pub use world::{Failure, Options, Report, run};
