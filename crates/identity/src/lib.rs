//! Who a client is, what it may do, and which namespace it belongs to: providers of
//! authentication, bans, access rules, namespaces.
//!
//! It does not know connections, shards or the order of a CONNECT.
//!
//! Start reading at `auth/mod.rs`, then `namespaces/mod.rs`.

pub mod auth;
pub mod namespaces;
