//! The way of a message to the subscribers of this shard.

pub(crate) mod broadcast;
pub(crate) mod copies;
