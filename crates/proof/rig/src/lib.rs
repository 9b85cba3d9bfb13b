//! Shards that one test drives, and clients that speak MQTT bytes.

#![forbid(unsafe_code)]

mod lab;
mod operator;

pub use lab::*;
pub use operator::TICKET;
