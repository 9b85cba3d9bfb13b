//! Durable sessions: a shard's log, what is written into it, and what is rebuilt from it.
//!
//! Start reading at [`Shard::take_disk_commands`] (`turn.rs`) for the flow, then
//!
//! - `store.rs`: the log with its tables: where each message stands, who needs it,
//! - `queue.rs`: the kinds of queues, and how far each is,
//! - `session.rs`: what is written of a session,
//! - `ends.rs`: its end, and who may not be answered before that is written,
//! - `will.rs`: its will, from there to those who are owed it,
//! - `deliver.rs`: messages that sessions are owed: in flight, or waiting in the log,
//! - `eras.rs`: what subscriptions were when older messages came,
//! - `aside.rs`: those of which the log knows the packet id only,
//! - `promise.rs`: acknowledgements and packets that wait for a commit,
//! - `handover.rs`: QoS 2 publishes on their way to other shards,
//! - `group.rs`: the queues of shared groups,
//! - `late.rs`: what found no room in the log,
//! - `replay.rs` and `restore.rs`: from the log back to the state.
//!
//! `docs/internals/durable-sessions.md` says why it is so.

mod aside;
mod deliver;
mod ends;
mod eras;
mod forget;
mod group;
mod handover;
mod late;
mod lifetimes;
mod line;
mod promise;
mod queue;
mod replay;
mod restore;
mod session;
mod store;
mod texts;
mod track;
mod turn;
mod will;

use storage::Status;

pub(crate) use aside::unlogged;
pub(crate) use eras::Change;
pub(crate) use group::KeptQueue;
pub(crate) use late::Deletion;
pub(crate) use promise::Promise;
pub use replay::{Replay, Restored, Unreadable};
pub(crate) use session::Durable;
pub(crate) use store::{Class, PAYER_BYTES_MAX, Store, level_of, noted};
pub(crate) use track::Place;

use crate::Shard;

impl Shard {
    /// The state of the log; none if the shard keeps everything in memory.
    pub fn log_status(&self) -> Option<Status> {
        self.store.as_ref().map(|store| store.log.status())
    }

    /// Sizes and counters of the log.
    pub fn log_stats(&self) -> Option<storage::Stats> {
        self.store.as_ref().map(|store| store.log.stats())
    }

    /// Where reclaiming found that the medium does not hold what was written, if it did.
    pub fn log_damage(&self) -> Option<storage::Position> {
        self.store.as_ref()?.log.damaged()
    }

    /// What recovery found is durable, so connections may come. True without a log.
    pub fn log_is_ready(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.log.is_ready())
    }

    /// Ends the log in order: complete when [`Shard::log_status`] is `Closed`, or the log is out
    /// of service.
    pub fn close_log(&mut self) {
        if let Some(store) = &mut self.store {
            store.log.close();
        }
    }

    /// Keeps the log's files as they are, for a backup, until as many [`Shard::unpin_log`].
    /// Returns what belongs to the backup: segment numbers and how many bytes of each, and the
    /// content of the manifest.
    pub fn pin_log(&mut self) -> (Vec<(u32, u64)>, Option<Vec<u8>>) {
        let Some(store) = &mut self.store else { return Default::default() };
        store.log.pin();
        (store.log.written_files(), store.log.manifest())
    }

    /// Ends a [`Shard::pin_log`].
    pub fn unpin_log(&mut self) {
        if let Some(store) = &mut self.store {
            store.log.unpin();
        }
    }
}

/// Carries mail between the shards of a process until none is left: after [`Shard::open_log`], so
/// that each knows the shared groups of all.
pub fn settle(shards: &mut [Shard], now_ms: u64) {
    loop {
        let mut mails = Vec::new();
        for shard in shards.iter_mut() {
            for (to, mail) in shard.effects.mail.iter_mut().enumerate() {
                mails.extend(mail.drain(..).map(|mail| (to, mail)));
            }
        }
        if mails.is_empty() {
            return;
        }
        for (to, mail) in mails {
            if let Some(shard) = shards.get_mut(to) {
                shard.on_mail(mail, now_ms);
            }
        }
    }
}
