//! Authentication providers, bans, access rules, namespaces, and resources of Event Grid.
//!
//! It does not know connections, shards or the order of a CONNECT.
//!
//! Start reading at `auth/mod.rs`, then `namespaces/mod.rs`.

pub mod auth;
pub mod event_grid;
pub mod json;
pub mod namespaces;
