//! The program `quelea`: what surrounds the broker core on a real machine.
//!
//! It knows files, threads, sockets and people: configuration, command line, identity back-ends,
//! HTTP, logs. It does not know protocol rules; those are in `broker` and below.
//!
//! Start reading at `main.rs`.

pub mod api;
pub mod auth;
pub mod backup;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod disk;
pub mod http;
pub mod life_cycle;
pub mod log_tool;
pub mod logging;
pub mod memory;
pub mod metrics;
mod moment;
pub mod namespaces;
pub mod process;
pub mod run;
pub mod security;
