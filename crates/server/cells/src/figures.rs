//! What status and metrics show.

use crate::handle::Owner;

/// Of one active cell, about one other cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    pub cell: u16,
    pub other: u16,
    /// Of the other cell. None: it has none.
    pub owner: Option<Owner>,
    /// All lanes have begun on a connection.
    pub is_connected: bool,
    /// Questions that are not answered, in either direction.
    pub waiting: usize,
    /// Frames that the other cell has not acknowledged, and their bytes.
    pub kept_frames: usize,
    pub kept_bytes: usize,
    /// Frames that wait for room in a lane.
    pub overflow_frames: usize,
}
