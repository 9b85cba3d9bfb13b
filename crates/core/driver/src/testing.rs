//! A world for a driver in memory: sockets with readiness as the system reports it, a clock that
//! somebody sets, a host that keeps what is reported to it.

mod host;
mod pipe;

pub use host::{Alarm, BackEnd, Clock, InPlaceDisk, MemoryHost, Reports};
pub use pipe::{Flaws, Pipe, PipeEnd};
