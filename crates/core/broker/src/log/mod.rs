//! Durable sessions: a shard's journal, what is written into it, and what is rebuilt from it.
//!
//! Start reading at [`Durable::take_commands`] (`writing.rs`) for the flow, then
//!
//! - `store.rs`: the journal with its tables: where each message stands, who needs it,
//! - `queues.rs`: the kinds of queues, and how far each is,
//! - `kept.rs`: the kept sessions, by slot and by queue,
//! - `kept_sessions.rs`: what is written of a session,
//! - `session_ends.rs`: its end, and who may not be answered before that is written,
//! - `will.rs`: its will, from there to its recipients,
//! - `in_flight.rs`: messages assigned to sessions: in flight, or waiting in the journal,
//! - `backlog.rs`: those that wait in the journal,
//! - `since.rs`: from which message on a filter counts,
//! - `unlogged.rs`: those of which the journal knows the packet id only,
//! - `promise.rs`: acknowledgements and packets that wait for a commit,
//! - `line.rs`: what of one publisher waits for a commit, in its order,
//! - `track.rs`: where the dispatched messages of one queue are,
//! - `handover.rs`: QoS 2 publishes on their way to other shards,
//! - `kept_groups.rs`: the queues of shared groups,
//! - `retained_facts.rs`: what is written of retained messages,
//! - `streams.rs`: messages that streams have, and the cursors of consumers,
//! - `postponed.rs`: what found no room in the journal, in one list,
//! - `replay.rs` and `restore.rs`: from the journal back to the state.
//!
//! `docs/develop/durable-sessions.md` says why it is so.

mod backlog;
pub(crate) mod ends;
pub mod facts;
mod forget;
pub(crate) mod handovers;
mod in_flight;
mod kept;
mod kept_groups;
mod kept_sessions;
pub(crate) mod line;
pub(crate) mod postponed;
pub(crate) mod promise;
pub(crate) mod queues;
pub(crate) mod replay;
pub(crate) mod restore;
mod retained_facts;
mod since;
mod store;
mod stream_facts;
mod streams;
mod texts;
mod track;
mod unlogged;
pub(crate) mod will;
pub(crate) mod writing;

use storage::{Completion, Journal, Status};

pub(crate) use kept::Kept;
pub(crate) use promise::Promise;
pub use replay::{Replay, Restored, Unreadable};
use store::Store;
pub(crate) use store::{OWNER_BYTES_MAX, level_of};
pub(crate) use unlogged::unlogged;

use crate::parts::groups::Groups;
use crate::parts::notices::Subject;
use crate::parts::retained::Retained;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::queue_number::KeptId;
use crate::words::queue_number::QueueId;
use crate::words::shared::JournalState;
use crate::{Durability, Shard, Waits};

/// What a shard keeps across a start: its journal, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    store: Option<Box<Store>>,
    pub(crate) kept: Kept,
}

impl Durable {
    /// The key of the group whose queue this is.
    pub(crate) fn group_of(&self, id: KeptId) -> Option<u64> {
        self.store.as_ref()?.groups.get(id).map(|kept| kept.group)
    }

    /// Is anything kept across a start?
    #[inline]
    pub(crate) const fn has_journal(&self) -> bool {
        self.store.is_some()
    }

    /// At which level a message of a client is kept.
    pub(crate) fn level_of(&self, cx: &Context, topic: &str, durability: Durability) -> u8 {
        match self.store {
            Some(_) => cx.shared.settings.level_of(topic, durability),
            None => 0,
        }
    }

    /// The journal, for the driver.
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.store.as_ref().map(|store| &store.journal)
    }

    pub(crate) fn journal_mut(&mut self) -> Option<&mut Journal> {
        self.store.as_mut().map(|store| &mut store.journal)
    }

    /// Would a record of so many bytes be refused for now, though the disk is not known to be full?
    pub(crate) fn would_wait(&self, bytes: usize, records: usize) -> bool {
        self.store.as_ref().is_some_and(|store| store.would_wait(bytes, records))
    }

    /// Another shard has had serials up to this one from here.
    pub(crate) fn skip_serials(&mut self, serial: u64) {
        if let Some(store) = &mut self.store {
            store.skip_serials(serial);
        }
    }

    /// What waits in the journal for another shard.
    pub(crate) fn waits(&self) -> Waits {
        let Some(store) = &self.store else { return Waits::default() };
        let (handovers, dispatched) = (store.handovers.waiting_count(), store.groups.dispatched());
        Waits { handovers, dispatched, ..Waits::default() }
    }

    /// The disk has carried out a command. Returns the queues that may go on.
    pub(crate) fn on_completed(
        &mut self,
        cx: &mut Context,
        completion: Completion,
    ) -> Vec<QueueId> {
        let Some(store) = self.store.as_mut().expected() else { return Vec::new() };
        let read_back = store.journal.on_completed(completion);
        let mut waiters = store.take_retry();
        let Some(read_back) = read_back else { return waiters };
        let chunk = match read_back.result {
            Ok(chunk) => Some(chunk),
            Err(fault) => {
                cx.note_of_shard(Subject::JournalUnreadable(fault), 1);
                None
            }
        };
        match store.on_read(read_back.id, chunk) {
            Ok(served) => waiters.extend(served),
            Err(position) => cx.report_damaged(position),
        }
        waiters
    }

    /// Records were written in place. Returns the queues that may go on.
    pub(crate) fn on_written(&mut self) -> Vec<QueueId> {
        self.store.as_mut().map_or_else(Vec::new, |store| store.take_retry())
    }

    /// Time has passed. Returns the queues that may try again.
    pub(crate) fn on_tick(&mut self, now_ms: u64) -> Vec<QueueId> {
        let Some(store) = &mut self.store else { return Vec::new() };
        store.journal.on_tick(now_ms);
        store.expire_messages(now_ms);
        let mut waiters = store.take_retry();
        waiters.extend(store.take_unreadable());
        waiters
    }

    pub(crate) fn has_caches_to_fit(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.has_caches_to_fit())
    }

    /// Gives back memory that nobody needs, and says what is left of it. About once a second.
    pub(crate) fn fit_caches(&mut self, cx: &Context) {
        let Some(store) = &mut self.store else { return };
        store.fit_caches();
        cx.metrics.log_cache_bytes.set(store.cache_bytes() as u64);
    }

    /// Looks at the state of the journal, and does once what follows from a change of it. True: it
    /// has changed.
    pub(crate) fn note_status(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
    ) -> bool {
        let Some(store) = &mut self.store else { return false };
        let status = store.journal.status();
        let state = JournalState {
            full: matches!(status, Status::Full(_)),
            poisoned: status.is_out_of_service(),
            behind: store.is_behind(),
            space: store.space_left(),
        };
        cx.shared.set_journal_state(cx.id, state);
        if status == store.reported {
            return false;
        }
        store.reported = status;
        if state.poisoned {
            self.break_promises(cx, sessions, groups, retained);
        } else if state.full {
            self.wait_for_no_end(cx, sessions);
        }
        true
    }

    fn status_of_journal(&self) -> Option<Status> {
        self.store.as_ref().map(|store| store.journal.status())
    }
}

/// Carries mail between the shards of a process until none is left: after [`Shard::open_journal`],
/// so that each knows the shared groups of all.
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
