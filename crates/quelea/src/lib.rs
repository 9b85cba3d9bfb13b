//! The program `quelea`: what surrounds the broker core on a real machine.
//!
//! It knows files, threads, sockets and people: configuration, command line, identity back-ends,
//! HTTP, logs. It does not know protocol rules; those are in `broker` and below.
//!
//! Start reading at `main.rs`.

pub mod api;
pub mod cluster;
pub mod commands;
pub mod http;
pub mod life_cycle;
pub mod logging;
pub mod metrics;
pub mod run;
pub mod security;
