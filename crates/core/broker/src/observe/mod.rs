//! What is told of messages and clients: counted notices, traces, spans, loads.

pub(crate) mod load;
pub(crate) mod note;
pub(crate) mod spans;
pub(crate) mod trace;
