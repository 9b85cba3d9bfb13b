//! What is told of a shard to who watches it.

pub(crate) mod metrics;
pub mod sys;
