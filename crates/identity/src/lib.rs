//! Authentication providers, bans, access rules and namespaces.
//!
//! It does not know connections, shards or the order of a CONNECT.
//!
//! Start reading at `auth/mod.rs`, then `namespaces/mod.rs`.

pub mod auth;
pub mod namespaces;
