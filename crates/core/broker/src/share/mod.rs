//! Shared subscriptions: who of a group gets a message, and what waits for the group.

pub(crate) mod denied;
mod home;
mod joining;
pub(crate) mod offer;
