//! Bytes of a connection, and what is left of them.

use std::sync::Arc;

/// What is left of the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// All were taken.
    Nothing,
    /// Some wait, or are a part of a packet.
    Some,
    /// The beginning of a large packet: what it lacks may be read right into `Shard::inbox`.
    Large,
}

/// The memory of a packet that has it for itself.
pub(crate) type OwnMemory<'a> = Option<&'a Arc<Vec<u8>>>;

/// Bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) bytes: &'a [u8],
    /// If they are one packet.
    pub(crate) memory: OwnMemory<'a>,
}

impl<'a> Input<'a> {
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, memory: None }
    }
}

impl Rest {
    pub(crate) const fn of(gathers: bool) -> Self {
        if gathers { Self::Large } else { Self::Some }
    }
}
