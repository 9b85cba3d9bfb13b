//! The commands of `quelea` that are clients of a broker, or prepare its files: `ctl`, `pub`,
//! `sub`, `passwd`, `policy`, and `flock`, which starts the load lab.
//!
//! They do not know how a broker runs.
//!
//! Start reading at `publish.rs`, then `ctl/mod.rs`.

pub mod ctl;
pub mod flock;
pub mod passwd;
pub mod policy;
pub mod publish;
pub mod subscribe;

mod connection;
mod format;
mod property;
