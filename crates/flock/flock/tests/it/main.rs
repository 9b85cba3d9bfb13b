//! Runs of the lab against brokers, and against a stand-in that breaks the rules on purpose. One
//! program: each file is a module.

mod accounts;
mod agents;
mod boxed;
mod caught;
mod cli;
mod commander;
mod common;
mod durable;
mod engine;
mod failover;
mod families;
mod faults;
mod lies;
mod matrix;
mod requests;
mod results_schema;
mod sizing;
mod terminals;
mod transports;
mod unanswered;
