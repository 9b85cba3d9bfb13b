//! The life of a session: connect, subscribe, the end.

pub(crate) mod cleanup;
pub(crate) mod connect;
pub(crate) mod ending;
pub(crate) mod subscribe;
