//! Retained messages: kept, and sent to who subscribes.

pub(crate) mod keep;
