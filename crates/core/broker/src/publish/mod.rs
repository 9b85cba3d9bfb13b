//! The way of a PUBLISH: checked, routed, answered, passed on.

pub(crate) mod answer;
pub(crate) mod check;
pub(crate) mod in_streams;
mod onward;
mod refuse;
mod repeat;
pub(crate) mod route;
mod take_on;
