//! The way of a message: from its publisher to subscribers here, groups and other shards.

pub(crate) mod asked;
pub(crate) mod broadcast;
pub(crate) mod capacity;
pub(crate) mod deliver;
pub(crate) mod in_streams;
pub(crate) mod publish;
pub(crate) mod router;
pub(crate) mod stream_index;
