//! The commands for data directories: `quelea log` and `quelea backup`.
//!
//! They do not know how a broker runs; they ask it through the socket in the data directory.
//!
//! Start reading at `backup.rs`, then `log_tool.rs`.

pub mod backup;
pub mod log_tool;
