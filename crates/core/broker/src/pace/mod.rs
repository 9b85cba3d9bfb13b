//! When a connection is read: room, turns, verdicts of a service.

pub(crate) mod capacity;
pub(crate) mod credit;
pub(crate) mod pause;
pub(crate) mod pausing;
pub(crate) mod service;
pub(crate) mod shortage;
pub(crate) mod turns;
