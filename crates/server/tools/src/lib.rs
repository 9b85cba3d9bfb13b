//! The commands for data directories: `quelea log` and `quelea backup`.
//!
//! They do not know how a broker runs; they ask it through the socket in the data directory.
//!
//! Start reading at `backup.rs`, then `archive.rs` and `log_tool.rs`.

pub mod archive;
pub mod backup;
pub mod log_tool;
