//! The way of a message to the subscribers of this shard.

mod backlog;
pub(crate) mod broadcast;
pub(crate) mod copies;
pub(crate) mod kept;
mod resend;
