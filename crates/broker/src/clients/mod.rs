//! The clients of a shard: connections, sessions, subscriptions.

pub mod admission;
pub(crate) mod cleanup;
pub(crate) mod client;
pub(crate) mod connect;
pub(crate) mod ending;
pub(crate) mod load;
pub(crate) mod notices;
pub(crate) mod sessions;
pub(crate) mod subscribe;
pub(crate) mod subscriptions;
pub(crate) mod table;
