//! Names of topics, filters and groups, in their scopes.

pub(crate) mod name;
pub mod topics;

pub use topics::*;
