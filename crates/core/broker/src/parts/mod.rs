//! The parts of a shard: state, and what it does to itself. None has another as an argument.

pub(crate) mod barrier;
pub(crate) mod buffers;
pub(crate) mod client;
pub(crate) mod droppers;
pub(crate) mod effects;
pub(crate) mod filter_pauses;
pub(crate) mod flow;
pub(crate) mod groups;
pub(crate) mod inbox;
pub(crate) mod members;
pub(crate) mod packed;
pub(crate) mod retained;
pub(crate) mod router;
pub(crate) mod sessions;
pub(crate) mod shortage;
pub(crate) mod slots;
pub(crate) mod stream_index;
pub(crate) mod subscriptions;
pub(crate) mod timers;
pub(crate) mod windows;
pub(crate) mod work;
pub(crate) mod write_order;
