//! Carries mail between the active cells of this node and all other cells of the cluster.
//!
//! Each active cell has a [`Gateway`](broker::cells::gateway::Gateway) for each other cell, and
//! behind it one [`Lane`](broker::cells::lane::Lane) for each lane of the links. The
//! thread of the links drives all of them. Invariants:
//!
//! - A frame belongs to a shard, and the shard chooses the lane. So the order of each shard holds.
//!   Interest is on lane 0.
//! - Lanes begin anew when either cell has a new epoch. A packet of another epoch is dropped.
//! - On each connection a lane begins with [`LaneHello`](broker::cells::wire::LaneHello)s. Packets
//!   that are older do not reach it.
//! - Nothing is given to links or to shards for a cell after [`Cells::close`] has returned. Packets
//!   that links have accepted are under way, as those in the network are.
//! - Packets of a cell leave while its lease is held. What is queued waits for it.
//! - A [`Task`] makes no call that blocks. It takes the lock of a cell for each batch of that cell.
//!
//! Two cells of one node use the same lanes without a connection. So frames wait until the other
//! cell is open as well, and the wire form translates expiry to the clock of the other cell.
//!
//! Limits:
//!
//! | what | limit | at the limit |
//! |---|---|---|
//! | mail of shards that the thread has not taken | credit windows | publishers are paused |
//! | frames of a lane | `FRAMES_MAX`, `BYTES_MAX` of `broker::cells::lane` | others overflow |
//! | frames that overflow | credit windows: gateways keep most of them | publishers are paused |
//! | packets that wait on a link | limits of `links` | the lane keeps them |
//!
//! A peer that sends what no owner of a cell sends loses its link. The frame counts as received, so
//! it does not come again. The cell goes on.
//!
//! It does **not** know leases, sessions of clients, sockets, or the configuration. It writes no
//! log: the host of the links logs why a link is closed.
//!
//! Start reading at `handle.rs`, then `task.rs`, `own.rs`, `track.rs`.

#![forbid(unsafe_code)]

mod figures;
mod gate;
mod handle;
mod own;
mod queue;
mod task;
mod track;
mod way;

pub use figures::Figures;
pub use handle::{Cells, Deliver, Facts, IsHeld, OwnCell, Owner};
pub use task::Task;
