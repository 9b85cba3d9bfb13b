//! The life of a session: connect, subscribe, the end.

pub(crate) mod clean_up;
pub(crate) mod connect;
pub(crate) mod ending;
mod keeping;
mod pump;
pub(crate) mod rights;
pub(crate) mod suback;
pub(crate) mod subscribe;
mod wills;
