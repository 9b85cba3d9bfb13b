//! The driver of shards: reads what clients send, gives it to their shards, carries mail, writes
//! what shards have for clients, and hands disks their work, turn by turn.
//!
//! Shards are state machines without input and output; a [`Driver`] has some of them, with the
//! connections of their clients. What is outside of it has an interface: the [`Socket`] of a
//! client, the [`Mailbox`] between drivers, and the [`Host`], which is all else. The threads of the
//! server drive it with sockets of the system, the simulator with sockets in memory.
//!
//! It does **not** know: the kinds of sockets, threads, event queues, files, configuration, what is
//! said in the journal.
//!
//! Start reading at [`Driver::turn`].
//!
//! Invariants: mail that was sent before bytes were read is taken before them. What a socket did
//! not take is written when it can be, and nothing is read or written once a shard has ended the
//! connection but its farewell. No client makes a turn longer than its limits.

#![forbid(unsafe_code)]

mod allowance;
mod host;
mod mailbox;
mod origin;
mod shards;
mod socket;
#[cfg(feature = "testing")]
pub mod testing;
mod turn;

pub use allowance::{Allowance, Charge, Owner, Purpose, ScopedOwner, Sharer, Short};
pub use host::{Host, Waker};
pub use mailbox::{Asked, Handover, Item, Mailbox};
pub use origin::Origin;
#[cfg(feature = "testing")]
pub use shards::Flaw;
pub use shards::{Places, Shards};
pub use socket::{Read, Socket};
pub use turn::{Driver, DriverParts, IncomingRoom, Ready, SLEEP_MS_MAX};
