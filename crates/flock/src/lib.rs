//! `flock`: a load lab for MQTT brokers.
//!
//! It runs any published MQTT benchmark against any broker, checks that nothing was lost, and
//! writes an honest report. It does not know any broker's insides: what it learns, it learns over
//! the wire, from `/proc`, or from a metrics page.
//!
//! Start reading at [`model`]: everything before it turns some text into a [`model::Scenario`],
//! everything after it executes one or tells about it.

pub mod agent;
pub mod catalogue;
pub mod cli;
pub mod compare;
pub mod engine;
pub mod expect;
pub mod export;
pub mod faults;
pub mod http;
pub mod keep;
pub mod matrix;
pub mod measure;
pub mod model;
pub mod noise;
pub mod prometheus;
pub mod report;
pub mod scenario;
pub mod selftest;
pub mod standin;
pub mod stats;
pub mod swarm;
pub mod threshold;
pub mod versus;
