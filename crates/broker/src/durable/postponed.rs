//! What found no room in the log, and is written when there is some.
//!
//! Whoever frees memory or disk is never refused for lack of room: a session that is kept is
//! resumed though the log cannot be told, and what is given up is so at once. What the log lacks is
//! remembered here and tried again whenever a disk has done something. Until then a crash finds
//! what was before, so the answers that say otherwise wait; and nothing that takes room is written
//! first, so that the facts of a log stand in the order in which they came about.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use codec::{Reason, Version};
use storage::{AppendError, Level, Position};

use super::promise::Promise;
use super::store::Class;
use crate::clients::Sessions;
use crate::durable::Durable;
use crate::journal::{Fact, QueueNumber};
use crate::shard::context::Context;
use crate::sure::Sure;
use crate::{Confirm, Ended, SessionKey};

/// Bytes of deletions, and of answers that wait for them. Policy: above it, what is given up is
/// refused like what needs room, and who waits for such an answer is cut off.
const DELETION_BYTES_MAX: usize = 1024 * 1024;

/// What a fact adds to its texts at the most, and some more.
const FACT_BYTES_MAX: usize = 128;

/// What a shard's log has yet to be told.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// By the queues of their sessions. Bounded: one for each session that is kept.
    connects: BTreeMap<QueueNumber, LateConnect>,
    /// Those of sessions that the log has never heard of, and their answers. They wait behind all
    /// else, as they take room. Bounded: a new session is refused where the disk is full.
    news: BTreeMap<QueueNumber, LateConnect>,
    answers: Vec<Deletion>,
    /// Sessions that are written and whose will is not. Bounded in the same way.
    wills: BTreeSet<QueueNumber>,
    deletions: VecDeque<Deletion>,
    deletion_bytes: usize,
    /// Where the deletion stands that was written last.
    written: Option<Position>,
}

/// A connection has opened a session that is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateConnect {
    pub(crate) version: Version,
    pub(crate) opened_at_ms: u64,
    /// The connection has ended meanwhile.
    detached_ms: Option<u64>,
}

/// A fact that takes others away, or what its commit allows.
#[derive(Debug)]
pub(crate) enum Deletion {
    Unsubscribed {
        session: QueueNumber,
        level: Level,
        filter: Box<str>,
    },
    RetainedCleared {
        topic: Box<str>,
        level: Level,
        confirm: Option<Confirm>,
    },
    WillCleared {
        session: QueueNumber,
    },
    /// A packet that says that all before it are written, and what its session's CONNECT told.
    Answer {
        session: SessionKey,
        connection: u64,
        packet: Box<[u8]>,
    },
}

impl Late {
    /// Is there anything that has to be written before what takes room?
    #[inline]
    pub(crate) fn goes_first(&self) -> bool {
        !self.connects.is_empty() || !self.deletions.is_empty() || !self.news.is_empty()
    }

    /// Has the log yet to be told something that an answer to this session would promise?
    pub(crate) fn concerns(&self, queue: QueueNumber) -> bool {
        let mut deletions = self.deletions.iter();
        self.connects.contains_key(&queue)
            || self.is_new(queue)
            || deletions
                .any(|it| matches!(it, Deletion::Unsubscribed { session, .. } if *session == queue))
    }

    pub(crate) fn put_connect(&mut self, queue: QueueNumber, version: Version, opened_at_ms: u64) {
        self.connects.insert(queue, LateConnect { version, opened_at_ms, detached_ms: None });
    }

    /// The same of a session that the log has never heard of.
    pub(crate) fn put_new(&mut self, queue: QueueNumber, version: Version, opened_at_ms: u64) {
        self.news.insert(queue, LateConnect { version, opened_at_ms, detached_ms: None });
    }

    /// Has the log never heard of the session?
    pub(crate) fn is_new(&self, queue: QueueNumber) -> bool {
        self.news.contains_key(&queue)
    }

    /// The connection that the log does not know of has ended. False: it knows.
    pub(crate) fn note_detached(&mut self, queue: QueueNumber, now_ms: u64) -> bool {
        let connect = self.connects.get_mut(&queue).or_else(|| self.news.get_mut(&queue));
        connect.map(|connect| connect.detached_ms = Some(now_ms)).is_some()
    }

    pub(crate) fn put_will(&mut self, queue: QueueNumber) {
        self.wills.insert(queue);
    }

    /// What was to be said of a connection of the session, or of its end, is void.
    pub(crate) fn forget_session(&mut self, queue: QueueNumber) {
        self.connects.remove(&queue);
        self.news.remove(&queue);
        self.wills.remove(&queue);
    }

    /// The will of the session is what is written now.
    pub(crate) fn forget_will(&mut self, queue: QueueNumber) {
        self.wills.remove(&queue);
        let Self { deletions, deletion_bytes, .. } = self;
        deletions.retain(|it| {
            let clears_it = matches!(it, Deletion::WillCleared { session } if *session == queue);
            *deletion_bytes -= if clears_it { it.bytes() } else { 0 };
            !clears_it
        });
    }

    /// Puts a deletion off that the log refused with this error. Err: that cannot be helped.
    pub(crate) fn put_off(
        &mut self,
        error: AppendError,
        deletion: impl FnOnce() -> Deletion,
    ) -> Result<(), AppendError> {
        if !passes(&error) || !self.push(deletion()) {
            return Err(error);
        }
        Ok(())
    }

    /// Puts an answer to the client of this queue off. False: there are too many.
    pub(crate) fn push_answer(&mut self, queue: QueueNumber, answer: Deletion) -> bool {
        if !self.is_new(queue) {
            return self.push(answer);
        }
        self.has_room_for(&answer) && {
            self.answers.push(answer);
            true
        }
    }

    /// False: there are too many.
    fn push(&mut self, deletion: Deletion) -> bool {
        self.has_room_for(&deletion) && {
            self.deletions.push_back(deletion);
            true
        }
    }

    fn has_room_for(&mut self, deletion: &Deletion) -> bool {
        let has_room = self.deletion_bytes <= DELETION_BYTES_MAX;
        self.deletion_bytes += if has_room { deletion.bytes() } else { 0 };
        has_room
    }

    fn pop(&mut self) -> Option<Deletion> {
        let deletion = self.deletions.pop_front()?;
        self.deletion_bytes -= deletion.bytes();
        Some(deletion)
    }
}

impl Deletion {
    fn bytes(&self) -> usize {
        let text = match self {
            Self::Unsubscribed { filter, .. } => filter.len(),
            Self::RetainedCleared { topic, .. } => topic.len(),
            Self::WillCleared { .. } => 0,
            Self::Answer { packet, .. } => packet.len(),
        };
        size_of::<Self>() + text
    }

    fn fact(&self) -> Option<(Fact<'_>, Level)> {
        match self {
            Self::Unsubscribed { session, level, filter } => {
                Some((Fact::Unsubscribed { session: *session, filter }, *level))
            }
            Self::RetainedCleared { topic, .. } => {
                Some((Fact::RetainedCleared { topic }, Level::Fsync))
            }
            Self::WillCleared { session } => {
                Some((Fact::WillCleared { session: *session }, Level::Disk))
            }
            Self::Answer { .. } => None,
        }
    }
}

impl Durable {
    /// Tries to write what found no room before.
    pub(crate) fn try_late(&mut self, cx: &mut Context, sessions: &mut Sessions) {
        if self.try_late_connects(cx, sessions) && self.try_deletions(sessions) {
            self.try_unkept_wills(sessions);
            self.try_new_sessions(cx, sessions);
        }
    }

    /// False: some have to wait on.
    fn try_late_connects(&mut self, cx: &mut Context, sessions: &mut Sessions) -> bool {
        while let Some(store) = &mut self.store
            && let Some((queue, connect)) = store.late.connects.pop_first()
        {
            let Some(slot) = sessions.find_queue(queue) else { continue };
            match self.write_late(cx, sessions, slot, connect, Class::Essential) {
                Ok(()) => {}
                Err(error) if passes(&error) => {
                    if let Some(store) = &mut self.store {
                        store.late.connects.insert(queue, connect);
                    }
                    return false;
                }
                // Nothing is promised any more.
                Err(_) => {}
            }
        }
        true
    }

    fn write_late(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        connect: LateConnect,
        class: Class,
    ) -> Result<(), AppendError> {
        let LateConnect { version, opened_at_ms, detached_ms } = connect;
        self.write_connect(cx, sessions, slot, version, opened_at_ms, class)?;
        if let Some(at_ms) = detached_ms {
            self.keep_detached(sessions, slot, at_ms);
        }
        Ok(())
    }

    /// Sessions that the log has never heard of take room like all that is new.
    fn try_new_sessions(&mut self, cx: &mut Context, sessions: &mut Sessions) {
        let Some(store) = self.store.as_mut().filter(|store| !store.late.news.is_empty()) else {
            return;
        };
        let mut news = std::mem::take(&mut store.late.news);
        while let Some((queue, connect)) = news.pop_first() {
            let Some(slot) = sessions.find_queue(queue) else { continue };
            let is_written = match self.has_room_for_new(sessions, slot) {
                true => self.write_late(cx, sessions, slot, connect, Class::Normal),
                false => Err(AppendError::Backlog { bytes: 0 }),
            };
            if is_written.is_err_and(|error| passes(&error)) {
                news.insert(queue, connect);
                break;
            }
        }
        let Some(store) = self.store.as_mut().sure() else { return };
        store.late.news = news;
        if store.late.news.is_empty() {
            store.late.deletions.extend(std::mem::take(&mut store.late.answers));
            self.try_deletions(sessions);
        }
    }

    /// Is there room for a session, and for its will, that the log has never heard of?
    fn has_room_for_new(&self, sessions: &Sessions, slot: u32) -> bool {
        let (Some(client), Some(store)) = (sessions.get(slot).sure(), self.store.as_ref().sure())
        else {
            return false;
        };
        let username = client.username.as_ref().map_or(0, |name| name.len());
        let will = client.will.as_ref().map_or(0, |will| {
            will.topic.len() + will.properties.len() + will.payload.len() + FACT_BYTES_MAX
        });
        let bytes = client.id.len() + username + will + FACT_BYTES_MAX;
        !store.log.would_wait(bytes, 1)
    }

    /// False: some have to wait on.
    fn try_deletions(&mut self, sessions: &Sessions) -> bool {
        while let Some(store) = &mut self.store
            && let Some(deletion) = store.late.pop()
        {
            if let Some((fact, level)) = deletion.fact() {
                let Ok(position) = store.append_deletion(&fact, level) else {
                    store.late.deletion_bytes += deletion.bytes();
                    store.late.deletions.push_front(deletion);
                    return false;
                };
                store.late.written = Some(position);
            }
            let written = store.late.written;
            match deletion {
                Deletion::RetainedCleared { confirm: Some(confirm), level, .. } => {
                    if let Some(position) = written {
                        self.promise(position, level, Promise::Confirm(confirm));
                    }
                }
                Deletion::Answer { session, connection, packet } => {
                    let slot = sessions.slot_of(session);
                    let client = slot.and_then(|slot| sessions.get(slot));
                    let Some(durable) = client.and_then(|client| client.durable.as_ref()) else {
                        continue;
                    };
                    let (level, told_at) = (durable.log_level(), durable.told_at());
                    if let Some(position) = written.max(told_at) {
                        let promise = Promise::Packet { session, connection, packet };
                        self.promise(position, level, promise);
                    }
                }
                _ => {}
            }
        }
        true
    }

    fn try_unkept_wills(&mut self, sessions: &mut Sessions) {
        while let Some(store) = &mut self.store
            && let Some(queue) = store.late.wills.pop_first()
        {
            let Some(slot) = sessions.find_queue(queue) else { continue };
            if self.keep_will(sessions, slot, Class::Essential).is_err_and(|error| passes(&error)) {
                if let Some(store) = &mut self.store {
                    store.late.wills.insert(queue);
                }
                return;
            }
        }
    }

    /// The log is out of service: what waits for it never gets a success.
    pub(crate) fn break_late(&mut self, cx: &mut Context, sessions: &mut Sessions) {
        let Some(store) = &mut self.store else { return };
        let late = std::mem::take(&mut store.late);
        for deletion in late.deletions.into_iter().chain(late.answers) {
            match deletion {
                Deletion::RetainedCleared { confirm: Some(confirm), .. } => {
                    self.confirm(cx, sessions, confirm, Reason::IMPLEMENTATION_SPECIFIC_ERROR);
                }
                Deletion::Answer { session, connection, .. } => {
                    if let Some(slot) = sessions.slot_of(session)
                        && sessions.link(slot, connection).is_some()
                    {
                        cx.doomed.push((slot, Ended::LogFailed));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Will the log take it later?
pub(crate) const fn passes(error: &AppendError) -> bool {
    matches!(error, AppendError::Full(_) | AppendError::Backlog { .. })
}
