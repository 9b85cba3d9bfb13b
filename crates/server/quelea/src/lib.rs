//! The program `quelea`: what surrounds the broker core on a real machine.
//!
//! It knows threads, sockets and operators: listeners, workers, the management API, the cluster,
//! logs. It does not know protocol rules; those are in `broker` and below. Configuration, identity,
//! the data directory and the other commands are crates of their own.
//!
//! Start reading at `main.rs`.

pub mod api;
pub mod cluster;
pub mod commands;
mod dashboard;
pub mod history;
pub mod http;
pub mod life_cycle;
pub mod logging;
pub mod metrics;
pub mod run;
pub mod security;
