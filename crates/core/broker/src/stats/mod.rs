//! Metrics and `$SYS` topics of a shard, and the clients that lose messages.

pub(crate) mod droppers;
pub(crate) mod metrics;
pub mod sys;
