//! Durable sessions: a shard's log, what is written into it, and what is rebuilt from it.
//!
//! Start reading at [`Shard::take_disk_commands`] (`writing.rs`) for the flow, then
//!
//! - `store.rs`: the log with its tables: where each message stands, who needs it,
//! - `queues.rs`: the kinds of queues, and how far each is,
//! - `kept_sessions.rs`: what is written of a session,
//! - `session_ends.rs`: its end, and who may not be answered before that is written,
//! - `will.rs`: its will, from there to those who are owed it,
//! - `in_flight.rs`: messages that sessions are owed: in flight, or waiting in the log,
//! - `backlog.rs`: those that wait in the log,
//! - `eras.rs`: what subscriptions were when older messages came,
//! - `unlogged.rs`: those of which the log knows the packet id only,
//! - `promise.rs`: acknowledgements and packets that wait for a commit,
//! - `handover.rs`: QoS 2 publishes on their way to other shards,
//! - `kept_groups.rs`: the queues of shared groups,
//! - `postponed.rs`: what found no room in the log,
//! - `replay.rs` and `restore.rs`: from the log back to the state.
//!
//! `docs/internals/durable-sessions.md` says why it is so.

mod backlog;
mod eras;
mod forget;
pub(crate) mod handover;
mod in_flight;
mod kept_groups;
mod kept_sessions;
mod lifetimes;
pub(crate) mod line;
pub(crate) mod postponed;
pub(crate) mod promise;
pub(crate) mod queues;
pub(crate) mod replay;
pub(crate) mod restore;
pub(crate) mod session_ends;
pub(crate) mod store;
mod texts;
mod track;
mod unlogged;
pub(crate) mod will;
pub(crate) mod writing;

use storage::Status;

pub(crate) use eras::Change;
pub(crate) use kept_groups::KeptId;
pub(crate) use kept_sessions::KeptSession;
pub(crate) use postponed::Deletion;
pub(crate) use promise::Promise;
pub use replay::{Replay, Restored, Unreadable};
pub(crate) use store::{Class, PAYER_BYTES_MAX, Store, level_of, noted};
pub(crate) use track::Place;
pub(crate) use unlogged::unlogged;

use crate::Shard;

/// What a shard keeps across a start: its log, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    pub(crate) store: Option<Box<Store>>,
}

impl Durable {
    /// The key of the group whose queue this is.
    pub(crate) fn group_of(&self, id: KeptId) -> Option<u64> {
        self.store.as_ref()?.groups.get(id).map(|kept| kept.group)
    }

    pub(crate) fn status_of_log(&self) -> Option<Status> {
        self.store.as_ref().map(|store| store.log.status())
    }
}

/// Carries mail between the shards of a process until none is left: after [`Shard::open_log`], so
/// that each knows the shared groups of all.
pub fn settle(shards: &mut [Shard], now_ms: u64) {
    loop {
        let mut mails = Vec::new();
        for shard in shards.iter_mut() {
            for (to, mail) in shard.effects_mut().mail.iter_mut().enumerate() {
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
