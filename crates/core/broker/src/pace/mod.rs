//! When a connection is read: room, turns, verdicts of a service.

pub(crate) mod capacity;
pub(crate) mod pause;
pub(crate) mod verdicts;
