//! Events in: bytes, mail, commands, deadlines, completed writes.

mod bytes;
pub(crate) mod change;
mod commands;
mod connections;
mod exchange;
pub(crate) mod gather;
mod journal;
mod late;
mod look;
pub(crate) mod restore;
mod sweep;
mod ticks;
