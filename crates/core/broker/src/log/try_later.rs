//! What found no room is put off, and taken out to be tried again.

use storage::Level;

use crate::log::facts::Fact;
use crate::log::late::{Late, LateFacts, Unwritten};
use crate::log::store::Log;
use crate::log::waiting::Step;
use crate::words::expected::Expected;
use crate::{Mail, Name, SessionKey};

impl Log {
    /// Is there mail that what comes from now on must not overtake in the journal?
    pub(crate) const fn has_late_mail(&self) -> bool {
        self.store.late.mails + self.store.late.mails_out > 0
    }

    pub(crate) fn put_off_mail(&mut self, mail: Mail) {
        self.store.late.push(Late::Mail(mail));
    }

    /// Does a retained message on the topic still wait for room in the journal? Who waits for an
    /// answer stands behind it, and nobody overtakes it.
    pub(crate) fn has_late_retained(&self, topic: Name<'_>) -> bool {
        let late = &self.store.late;
        late.mails > 0
            && late.taking.iter().any(|fact| match fact {
                Late::Mail(Mail::Retain { message, .. }) => Name::of(message) == topic,
                _ => false,
            })
    }

    /// Takes out what found no room before, to be tried [one after the other](Log::next_late).
    pub(crate) fn take_late(&mut self) -> Option<LateFacts> {
        let late = &mut self.store.late;
        if late.is_empty() {
            return None;
        }
        let rest = std::mem::take(late);
        late.written = rest.written;
        Some(rest)
    }

    /// The next that is to be tried again. None: there is none, or one has found no room.
    pub(crate) fn next_late(&mut self, rest: &mut LateFacts) -> Option<Late> {
        let late = &mut self.store.late;
        late.line_up(rest);
        if !late.is_empty() {
            return None;
        }
        let fact = rest.pop()?;
        late.mails_out = if fact.takes_room() { 0 } else { rest.mails };
        Some(fact)
    }

    /// These wait on.
    pub(crate) fn put_back_late(&mut self, rest: LateFacts) {
        self.store.late.append(rest);
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
            store.late.push(match connect.is_new {
                true => Late::NewSession(kept.queue),
                false => Late::Connect(kept.queue),
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
            store.late.push(Late::Will(kept.queue));
        }
    }

    /// A deletion is tried again.
    pub(crate) fn write_deletion(&mut self, deletion: Late) {
        let Self { store, kept } = self;
        let written = match &deletion {
            Late::Unsubscribed { session, level, filter } => {
                store.append_deletion(&Fact::Unsubscribed { session: *session, filter }, *level)
            }
            Late::RetainedCleared { topic, .. } => {
                store.append_deletion(&Fact::RetainedCleared { topic }, Level::Fsync)
            }
            Late::WillCleared(session) => {
                // What is written now is another one.
                if kept.of_queue(*session).is_none_or(|kept| kept.has_will()) {
                    return;
                }
                store.append_deletion(&Fact::WillCleared { session: *session }, Level::Disk)
            }
            Late::GroupClosed(queue) => {
                store.append_deletion(&Fact::GroupClosed { queue: *queue }, Level::Fsync)
            }
            _ => return,
        };
        let Ok(position) = written else { return store.late.push(deletion) };
        store.late.written = Some(position);
        match deletion {
            Late::RetainedCleared { confirm: Some(confirm), level, .. } => {
                store.waiting.push(position, level, Step::Answer(confirm));
            }
            Late::Unsubscribed { session, .. } => {
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
        let written = self.store.late.written.max(kept.connect_facts_end());
        if let Some(position) = written {
            let promise = Step::Packet { session, connection, packet };
            self.store.waiting.push(position, kept.journal_level(), promise);
        }
    }

    /// The journal is out of service: what waits for it never gets a success. Mail is refused as it
    /// is tried again. Returns all else.
    pub(crate) fn break_late(&mut self) -> Vec<Late> {
        let late = &mut self.store.late;
        let LateFacts { freeing, taking, .. } = std::mem::take(late);
        let mut broken = Vec::new();
        for fact in freeing.into_iter().chain(taking) {
            match fact {
                Late::Mail(_) => late.push(fact),
                other => broken.push(other),
            }
        }
        broken
    }
}
