//! Shared subscriptions: groups, their members and queues.

pub(crate) mod denied;
pub(crate) mod group_names;
pub(crate) mod members;
pub(crate) mod share;
pub(crate) mod table;
