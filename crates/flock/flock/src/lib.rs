//! `flock`: a load lab for MQTT brokers.
//!
//! It runs any published MQTT benchmark against any broker, checks that nothing was lost, and
//! writes an honest report. It does not know any broker's insides: what it learns, it learns over
//! the wire, from `/proc`, or from a metrics page.
//!
//! Start reading at [`flock_model`]: everything there turns some text into a
//! [`flock_model::Scenario`]. This crate executes one; [`flock_measure`] is what comes of it, and
//! [`flock_report`] tells about that.

pub mod agent;
pub mod cli;
pub mod engine;
pub mod export;
pub mod faults;
pub mod http;
pub mod keep;
pub mod prometheus;
pub mod selftest;
pub mod sizing;
pub mod standin;
pub mod versus;
