//! Metrics and `$SYS` topics of a shard.

pub(crate) mod metrics;
pub mod sys;
