//! The way of a PUBLISH: checked, routed, answered, passed on.

pub(crate) mod answer;
pub(crate) mod check;
pub(crate) mod in_streams;
mod onward;
pub(crate) mod route;
