//! What found no room in the journal, and is written when there is some: one list, in its order.
//!
//! Whoever frees memory or disk is never refused for lack of room: a session that is kept is
//! resumed though the journal takes no fact, and what is given up is so at once. What the journal
//! lacks is remembered here and tried again whenever a disk has done something. Until then a crash
//! finds what was before, so the answers that say otherwise wait; and nothing that takes room is
//! written first, so that the facts of a journal stand in the order in which they came about.
//!
//! A further kind gets a variant of [`Postponed`], and an arm of `shard/late.rs::try_again`, which
//! puts it back if there is no room again.

use std::collections::VecDeque;

use codec::Version;
use storage::{AppendError, Level, Position};
use topic::FilterId;

use crate::log::Log;
use crate::log::ends::End;
use crate::log::facts::Fact;
use crate::log::promise::Promise;
use crate::log::will::DueWill;
use crate::words::expected::Expected;
use crate::words::queue_number::QueueNumber;
use crate::{Confirm, Mail, Name, SessionKey};

/// Bytes of deletions, and of answers that wait for them. Policy: above it, what is given up is
/// refused like what needs room, and who waits for such an answer is cut off. All else is bounded
/// by what it is of: kept sessions, and what clients may have in flight.
const DELETION_BYTES_MAX: usize = 1024 * 1024;

/// A fact that is not in the journal yet, or what its commit allows.
#[derive(Debug)]
pub(crate) enum Postponed {
    /// A connection has opened a session: its [`Unwritten`] says how.
    Connect(QueueNumber),
    /// The same of a session that the journal has never heard of, which takes room.
    NewSession(QueueNumber),
    /// The session is written, and the will of its last CONNECT is not.
    Will(QueueNumber),
    /// A will that is due. The end of its session, if that has ended, stands behind it.
    DueWill(DueWill),
    /// The connection of a session has ended, maybe with the broker.
    Detached(QueueNumber),
    End(End),
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
    WillCleared(QueueNumber),
    GroupClosed(QueueNumber),
    /// A packet that says that all before it are written, and the facts of its session's CONNECT.
    Answer {
        session: SessionKey,
        connection: u64,
        packet: Box<[u8]>,
        is_of_new: bool,
    },
    /// A PUBREL, and the connection that waits for its PUBCOMP.
    Pubrel {
        session: SessionKey,
        connection: u64,
        packet_id: u16,
    },
    /// A subscription of which facts of earlier versions say more than its own.
    Subscribed {
        session: QueueNumber,
        filter: FilterId,
    },
    /// A message of another shard, with those behind it that ask for an answer.
    Mail(Mail),
}

/// A connection of a kept session that the journal does not know of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwritten {
    pub(crate) version: Version,
    pub(crate) opened_at_ms: u64,
    /// The connection has ended meanwhile.
    pub(crate) detached_ms: Option<u64>,
    /// The journal has never heard of the session.
    pub(crate) is_new: bool,
}

/// The facts that are not in a shard's journal yet.
#[derive(Debug, Default)]
pub(crate) struct PostponedFacts {
    /// What takes no room in the end. It is not behind what does, as that may free none for long.
    freeing: VecDeque<Postponed>,
    taking: VecDeque<Postponed>,
    deletion_bytes: usize,
    /// Those that have to be written before what takes room.
    first: usize,
    mails: usize,
    /// Mails that were taken out, while something that was put off later than they is tried before
    /// them.
    mails_out: usize,
    /// Where the deletion stands that was written last.
    written: Option<Position>,
}

impl Postponed {
    const fn takes_room(&self) -> bool {
        match self {
            // Not freeing: what frees room must not be behind it.
            Self::NewSession(_) | Self::Mail(_) | Self::Detached(_) | Self::Subscribed { .. } => {
                true
            }
            Self::Answer { is_of_new, .. } => *is_of_new,
            _ => false,
        }
    }

    const fn goes_first(&self) -> bool {
        matches!(
            self,
            Self::Connect(_)
                | Self::NewSession(_)
                | Self::Unsubscribed { .. }
                | Self::RetainedCleared { .. }
                | Self::WillCleared(_)
                | Self::GroupClosed(_)
                | Self::Answer { .. }
        )
    }

    /// What counts for [`DELETION_BYTES_MAX`].
    fn deletion_bytes(&self) -> usize {
        let text = match self {
            Self::Unsubscribed { filter, .. } => filter.len(),
            Self::RetainedCleared { topic, .. } => topic.len(),
            Self::WillCleared(_) | Self::GroupClosed(_) => 0,
            Self::Answer { packet, .. } => packet.len(),
            _ => return 0,
        };
        size_of::<Self>() + text
    }
}

impl PostponedFacts {
    /// Is there anything that has to be written before what takes room?
    #[inline]
    pub(super) const fn goes_first(&self) -> bool {
        self.first > 0
    }

    fn is_empty(&self) -> bool {
        self.freeing.is_empty() && self.taking.is_empty()
    }

    pub(super) fn push(&mut self, fact: Postponed) {
        self.enter(fact, VecDeque::push_back);
    }

    fn enter(&mut self, fact: Postponed, put: fn(&mut VecDeque<Postponed>, Postponed)) {
        self.deletion_bytes += fact.deletion_bytes();
        self.first += usize::from(fact.goes_first());
        self.mails += usize::from(matches!(fact, Postponed::Mail(_)));
        put(if fact.takes_room() { &mut self.taking } else { &mut self.freeing }, fact);
    }

    fn pop(&mut self) -> Option<Postponed> {
        let fact = self.freeing.pop_front().or_else(|| self.taking.pop_front())?;
        self.deletion_bytes -= fact.deletion_bytes();
        self.first -= usize::from(fact.goes_first());
        self.mails -= usize::from(matches!(fact, Postponed::Mail(_)));
        Some(fact)
    }

    /// False: there are too many.
    pub(super) fn push_deletion(&mut self, deletion: Postponed) -> bool {
        let has_room = self.deletion_bytes <= DELETION_BYTES_MAX;
        if has_room {
            self.push(deletion);
        }
        has_room
    }

    /// Puts a deletion off that the journal refused with this error. Err: that cannot be helped.
    pub(super) fn put_off(
        &mut self,
        error: AppendError,
        deletion: impl FnOnce() -> Postponed,
    ) -> Result<(), AppendError> {
        match passes(&error) && self.push_deletion(deletion()) {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Ends of sessions that find no room.
    pub(super) fn ends(&mut self) -> impl Iterator<Item = &mut End> {
        self.freeing.iter_mut().filter_map(|fact| match fact {
            Postponed::End(end) => Some(end),
            _ => None,
        })
    }

    /// Facts that were put off only to keep their order behind older mail do not stop the loop.
    fn line_up(&mut self, rest: &mut Self) {
        while self.mails_out > 0 && self.freeing.is_empty() {
            match self.pop() {
                Some(fact) => rest.push(fact),
                None => return,
            }
        }
    }

    /// These stand behind what was put off since they were taken out. But mail of a fact that was
    /// tried before older mail stays behind that: receivers remember only the highest serial.
    fn append(&mut self, mut rest: Self) {
        let Self { freeing, taking, written, mails_out, .. } = std::mem::take(self);
        freeing.into_iter().rev().for_each(|fact| rest.enter(fact, VecDeque::push_front));
        if mails_out > 0 {
            taking.into_iter().for_each(|fact| rest.enter(fact, VecDeque::push_back));
        } else {
            taking.into_iter().rev().for_each(|fact| rest.enter(fact, VecDeque::push_front));
        }
        rest.written = rest.written.max(written);
        *self = rest;
    }
}

impl Log {
    /// Is there mail that what comes from now on must not overtake in the journal?
    pub(crate) const fn has_late_mail(&self) -> bool {
        self.store.postponed.mails + self.store.postponed.mails_out > 0
    }

    pub(crate) fn put_off_mail(&mut self, mail: Mail) {
        self.store.postponed.push(Postponed::Mail(mail));
    }

    /// Does a retained message on the topic still wait for room in the journal? Who waits for an
    /// answer stands behind it, and nobody overtakes it.
    pub(crate) fn has_late_retained(&self, topic: Name<'_>) -> bool {
        let postponed = &self.store.postponed;
        postponed.mails > 0
            && postponed.taking.iter().any(|fact| match fact {
                Postponed::Mail(Mail::Retain { message, .. }) => Name::of(message) == topic,
                _ => false,
            })
    }

    /// Takes out what found no room before, to be tried [one after the other](Log::next_late).
    pub(crate) fn take_late(&mut self) -> Option<PostponedFacts> {
        let postponed = &mut self.store.postponed;
        if postponed.is_empty() {
            return None;
        }
        let rest = std::mem::take(postponed);
        postponed.written = rest.written;
        Some(rest)
    }

    /// The next that is to be tried again. None: there is none, or one has found no room.
    pub(crate) fn next_late(&mut self, rest: &mut PostponedFacts) -> Option<Postponed> {
        let postponed = &mut self.store.postponed;
        postponed.line_up(rest);
        if !postponed.is_empty() {
            return None;
        }
        let fact = rest.pop()?;
        postponed.mails_out = if fact.takes_room() { 0 } else { rest.mails };
        Some(fact)
    }

    /// These wait on.
    pub(crate) fn put_back_late(&mut self, rest: PostponedFacts) {
        self.store.postponed.append(rest);
    }

    /// Is there room for a new session, of so many bytes?
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        !self.store.journal.would_wait(bytes, 1)
    }

    /// Takes the connection out that the journal does not know of. None: it is void, or was written
    /// with a later connection.
    pub(crate) fn take_unwritten(&mut self, slot: u32) -> Option<Unwritten> {
        self.kept.get_mut(slot)?.rare.as_mut()?.unwritten.take()
    }

    /// The fact of the connection is appended later.
    pub(crate) fn put_off_connect(&mut self, slot: u32, connect: Unwritten) {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return };
        if kept.rare().unwritten.replace(connect).is_none() {
            store.postponed.push(match connect.is_new {
                true => Postponed::NewSession(kept.queue),
                false => Postponed::Connect(kept.queue),
            });
        }
    }

    /// The end of a connection is tried again.
    pub(crate) fn take_late_end(&mut self, slot: u32) {
        if let Some(rare) = self.kept.get_mut(slot).and_then(|kept| kept.rare.as_mut()) {
            rare.has_late_end = false;
        }
    }

    /// The will of the session is tried again. False: it is void, or stands behind one that is due,
    /// which brings it along: that may stand anywhere in the list.
    pub(crate) fn take_pending_will(&mut self, slot: u32) -> bool {
        let rare = self.kept.get_mut(slot).and_then(|kept| kept.rare.as_mut());
        rare.is_some_and(|it| std::mem::take(&mut it.has_pending_will) && !it.has_due_will)
    }

    /// The will of the session is written later.
    pub(crate) fn put_off_will(&mut self, slot: u32) {
        let Self { store, kept } = self;
        if let Some(kept) = kept.get_mut(slot)
            && !std::mem::replace(&mut kept.rare().has_pending_will, true)
        {
            store.postponed.push(Postponed::Will(kept.queue));
        }
    }

    /// A deletion is tried again.
    pub(crate) fn write_deletion(&mut self, deletion: Postponed) {
        let Self { store, kept } = self;
        let written = match &deletion {
            Postponed::Unsubscribed { session, level, filter } => {
                store.append_deletion(&Fact::Unsubscribed { session: *session, filter }, *level)
            }
            Postponed::RetainedCleared { topic, .. } => {
                store.append_deletion(&Fact::RetainedCleared { topic }, Level::Fsync)
            }
            Postponed::WillCleared(session) => {
                // What is written now is another one.
                if kept.of_queue(*session).is_none_or(|kept| kept.has_will()) {
                    return;
                }
                store.append_deletion(&Fact::WillCleared { session: *session }, Level::Disk)
            }
            Postponed::GroupClosed(queue) => {
                store.append_deletion(&Fact::GroupClosed { queue: *queue }, Level::Fsync)
            }
            _ => return,
        };
        let Ok(position) = written else { return store.postponed.push(deletion) };
        store.postponed.written = Some(position);
        match deletion {
            Postponed::RetainedCleared { confirm: Some(confirm), level, .. } => {
                store.promises.push(position, level, Promise::Confirm(confirm));
            }
            Postponed::Unsubscribed { session, .. } => {
                if let Some(kept) = kept.of_queue(session) {
                    let unsubscribed = &mut kept.rare().unwritten_unsubscribes;
                    *unsubscribed = unsubscribed.saturating_sub(1);
                }
            }
            _ => {}
        }
    }

    /// All before an answer is written: it leaves with the commit.
    pub(crate) fn promise_answer(
        &mut self,
        (session, connection): (SessionKey, u64),
        packet: Box<[u8]>,
    ) {
        let Some(kept) = self.kept.get(session.slot()) else { return };
        let written = self.store.postponed.written.max(kept.connect_facts_end());
        if let Some(position) = written {
            let promise = Promise::Packet { session, connection, packet };
            self.store.promises.push(position, kept.journal_level(), promise);
        }
    }

    /// The journal is out of service: what waits for it never gets a success. Mail is refused as it
    /// is tried again. Returns all else.
    pub(crate) fn break_late(&mut self) -> Vec<Postponed> {
        let postponed = &mut self.store.postponed;
        let PostponedFacts { freeing, taking, .. } = std::mem::take(postponed);
        let mut broken = Vec::new();
        for fact in freeing.into_iter().chain(taking) {
            match fact {
                Postponed::Mail(_) => postponed.push(fact),
                other => broken.push(other),
            }
        }
        broken
    }
}

/// Will the journal take it later?
pub(crate) const fn passes(error: &AppendError) -> bool {
    matches!(error, AppendError::Full(_) | AppendError::Backlog { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(serials: &[u64]) -> PostponedFacts {
        let mut facts = PostponedFacts::default();
        serials
            .iter()
            .for_each(|serial| facts.push(Postponed::Mail(Mail::Seen { serial: *serial })));
        facts
    }

    fn serials(mut facts: PostponedFacts) -> Vec<u64> {
        let next = |fact| match fact {
            Postponed::Mail(Mail::Seen { serial }) => serial,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| facts.pop().map(next)).collect()
    }

    #[test]
    fn mail_that_finds_no_room_again_stays_before_what_came_later() {
        let mut again = late(&[1]);
        again.append(late(&[2, 3]));
        assert_eq!(serials(again), [1, 2, 3]);
    }

    #[test]
    fn mail_of_a_will_that_was_tried_before_older_mail_stays_behind_it() {
        let mut of_will = PostponedFacts { mails_out: 2, ..late(&[3]) };
        of_will.append(late(&[1, 2]));
        assert_eq!((of_will.mails, of_will.mails_out), (3, 0));
        assert_eq!(serials(of_will), [1, 2, 3]);
    }
}
