//! What a shard keeps across a start: its journal, what is written into it, and where in it
//! everything stands.
//!
//! It calls nobody. Whoever appends a fact says by arguments what it is about; whoever has to go on
//! is returned. Sessions are named by their slots, groups by their [`KeptId`].
//!
//! Start reading at [`Log::take_commands`] (`writing.rs`) for the flow, then
//!
//! - `facts/`: what records say,
//! - `store.rs`: the journal with its tables: where each message stands, who needs it,
//! - `queues.rs`: the kinds of queues, and how far each is,
//! - `kept.rs`: the kept sessions, by slot and by queue,
//! - `kept_sessions.rs`: what is written of a session,
//! - `ends.rs`: its end, and who may not be answered before that is written,
//! - `will.rs`: its will,
//! - `sent.rs`: messages assigned to sessions: in flight, or waiting in the journal,
//! - `since.rs`: from which message on a filter counts,
//! - `promise.rs`: acknowledgements and packets that wait for a commit,
//! - `line.rs`: what of one publisher waits for a commit, in its order,
//! - `track.rs`: where the dispatched messages of one queue are,
//! - `handovers.rs`: QoS 2 publishes on their way to other shards,
//! - `kept_groups.rs`: the queues of shared groups,
//! - `retained_facts.rs`: what is written of retained messages,
//! - `streams.rs`: messages that streams have, and the cursors of consumers,
//! - `postponed.rs`: what found no room in the journal, in one list,
//! - `replay.rs`, `rebuild.rs`: from the records of a journal to what holds at its end, and back to
//!   the tables.
//!
//! `docs/develop/durable-sessions.md` says why it is so.

mod ends;
pub mod facts;
mod forget;
pub(crate) mod handovers;
mod kept;
mod kept_groups;
pub(crate) mod kept_sessions;
pub(crate) mod line;
pub(crate) mod postponed;
mod promise;
pub(crate) mod queues;
pub(crate) mod rebuild;
pub(crate) mod replay;
mod retained_facts;
pub(crate) mod sent;
mod since;
pub(crate) mod store;
mod stream_facts;
pub(crate) mod streams;
mod texts;
pub(crate) mod track;
pub(crate) mod will;
pub(crate) mod writing;

use std::sync::Arc;

use session::Account;
use storage::{Completion, Fault, FaultKind, Journal, Position, Status};

pub(crate) use ends::End;
pub(crate) use kept::Kept;
pub(crate) use kept_groups::{ForGroup, Surplus};
pub(crate) use line::InLine;
pub(crate) use promise::Promise;
pub use replay::{Replay, Restored, Unreadable};
use store::Store;
pub(crate) use store::{Class, Loaded, OWNER_BYTES_MAX, level_of};

use crate::Waits;
use crate::words::ledger::Ledger;
use crate::words::queue_number::{KeptId, QueueId};
use crate::words::shared::{JournalSpace, JournalState};

/// The journal of a shard, with all that is known of what stands in it.
#[derive(Debug)]
pub(crate) struct Log {
    store: Store,
    pub(crate) kept: Kept,
}

/// What a completion of the disk has brought.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The queues that may go on.
    pub(crate) readers: Vec<QueueId>,
    /// A record cannot be read.
    pub(crate) unreadable: Option<Fault>,
}

impl Log {
    /// The key of the group whose queue this is.
    pub(crate) fn group_of(&self, id: KeptId) -> Option<u64> {
        self.store.groups.get(id).map(|kept| kept.group)
    }

    /// The journal, for the driver.
    pub(crate) const fn journal(&self) -> &Journal {
        &self.store.journal
    }

    pub(crate) const fn journal_mut(&mut self) -> &mut Journal {
        &mut self.store.journal
    }

    pub(crate) fn status(&self) -> Status {
        self.store.journal.status()
    }

    /// Would a record of so many bytes be refused for now, though the disk is not known to be full?
    pub(crate) fn would_wait(&self, bytes: usize, records: usize) -> bool {
        self.store.would_wait(bytes, records)
    }

    /// What is left for messages, if that gets short.
    pub(crate) fn space_left(&self) -> Option<JournalSpace> {
        self.store.space_left()
    }

    /// The account of an owner in another shard, by its number.
    pub(crate) fn owner(&mut self, number: u32, ledger: &Ledger) -> Option<Arc<Account>> {
        self.store.owner(number, ledger)
    }

    /// Is so much waiting for the disk that publishers had better pause?
    #[inline]
    pub(crate) fn is_disk_behind(&self) -> bool {
        self.store.is_behind()
    }

    /// What waits in the journal for another shard.
    pub(crate) fn waits(&self) -> Waits {
        let handovers = self.store.handovers.waiting_count();
        Waits { handovers, dispatched: self.store.groups.dispatched(), ..Waits::default() }
    }

    /// The disk has carried out a command.
    pub(crate) fn on_completed(&mut self, completion: Completion) -> Heard {
        let read_back = self.store.journal.on_completed(completion);
        let mut heard = Heard { readers: self.store.take_retry(), unreadable: None };
        let Some(read_back) = read_back else { return heard };
        let chunk = match read_back.result {
            Ok(chunk) => Some(chunk),
            Err(fault) => {
                heard.unreadable = Some(fault);
                None
            }
        };
        match self.store.on_read(read_back.id, chunk) {
            Ok(served) => heard.readers.extend(served),
            Err(position) => heard.unreadable = Some(damage_at(position)),
        }
        heard
    }

    /// Records were written in place. Returns the queues that may go on.
    pub(crate) fn on_written(&mut self) -> Vec<QueueId> {
        self.store.take_retry()
    }

    /// Time has passed. Returns the queues that may try again.
    pub(crate) fn on_tick(&mut self, now_ms: u64) -> Vec<QueueId> {
        self.store.journal.on_tick(now_ms);
        self.store.expire_messages(now_ms);
        let mut readers = self.store.take_retry();
        readers.extend(self.store.take_unreadable());
        readers
    }

    pub(crate) fn has_caches_to_fit(&self) -> bool {
        self.store.has_caches_to_fit()
    }

    /// Gives back memory that nobody needs, about once a second. Returns the bytes that are left of
    /// it.
    pub(crate) fn fit_caches(&mut self) -> u64 {
        self.store.fit_caches();
        self.store.cache_bytes() as u64
    }

    /// The state of the journal, and whether it is another than when this was asked last.
    pub(crate) fn note_status(&mut self) -> (JournalState, bool) {
        let status = self.status();
        let state = JournalState {
            full: matches!(status, Status::Full(_)),
            poisoned: status.is_out_of_service(),
            behind: self.store.is_behind(),
            space: self.store.space_left(),
        };
        let has_changed = status != self.store.reported;
        self.store.reported = status;
        (state, has_changed)
    }
}

fn damage_at(position: Position) -> Fault {
    let detail = format!("the record at {position} differs from the written one");
    Fault { kind: FaultKind::Io, detail }
}
