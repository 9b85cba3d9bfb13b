//! When a connection is read, and how much a turn does for it.

pub(crate) mod holds;
pub(crate) mod lanes;
pub(crate) mod pause;
pub(crate) mod shortage;
pub(crate) mod work;
pub(crate) mod write_order;
