//! A world for a driver in memory: sockets with readiness as the system tells it, a clock that
//! somebody sets, a host that keeps what it is told.

mod host;
mod pipe;

pub use host::{Alarm, BackEnd, Clock, MemoryHost, Reports};
pub use pipe::{Flaws, Pipe, PipeEnd};
