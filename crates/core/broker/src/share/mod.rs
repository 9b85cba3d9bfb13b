//! Shared subscriptions: who of a group gets a message, and what waits for the group.

pub(crate) mod denied;
pub(crate) mod offer;
