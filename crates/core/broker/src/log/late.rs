//! What found no room in the journal, and is written when there is some: one list, in its order.
//!
//! Whoever frees memory or disk is never refused for lack of room: a session that is kept is
//! resumed though the journal takes no fact, and what is given up is so at once. What the journal
//! lacks is remembered here and tried again whenever a disk has done something. Until then a crash
//! finds what was before, so the answers that say otherwise wait; and nothing that takes room is
//! written first, so that the facts of a journal stand in the order in which they came about.
//!
//! A further kind gets a variant of [`Late`], and an arm of `shard/late.rs::try_again`, which
//! puts it back if there is no room again.

use std::collections::VecDeque;

use codec::Version;
use session::Message;
use storage::{AppendError, Level, Position};
use topic::FilterId;

use crate::log::ends::End;
use crate::words::publisher::KnownPublisher;
use crate::words::queue_number::QueueNumber;
use crate::{Confirm, Mail, SessionKey};

/// Bytes of deletions, and of answers that wait for them. Policy: above it, what is given up is
/// refused like what needs room, and who waits for such an answer is cut off. All else is bounded
/// by what it is of: kept sessions, and what clients may have in flight.
pub(super) const DELETION_BYTES_MAX: usize = 1024 * 1024;

/// A fact that is not in the journal yet, or what its commit allows.
#[derive(Debug)]
pub(crate) enum Late {
    /// A connection has opened a session: its [`Unwritten`] says how.
    Connect(QueueNumber),
    /// The same of a session that the journal has never heard of, which takes room.
    NewSession(QueueNumber),
    /// The session is written, and the will of its last CONNECT is not.
    Will(QueueNumber),
    /// The will of a session that ends with its connection. `client`: the hash of its client id,
    /// which waits for it.
    LoneWill {
        session: SessionKey,
        client: u64,
    },
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
pub(crate) struct LateFacts {
    /// What takes no room in the end. It is not behind what does, as that may free none for long.
    pub(super) freeing: VecDeque<Late>,
    pub(super) taking: VecDeque<Late>,
    pub(super) deletion_bytes: usize,
    /// Those that have to be written before what takes room.
    pub(super) first: usize,
    pub(super) mails: usize,
    /// Mails that were taken out, while something that was put off later than they is tried before
    /// them.
    pub(super) mails_out: usize,
    /// Where the deletion stands that was written last.
    pub(super) written: Option<Position>,
}

impl Late {
    pub(super) const fn takes_room(&self) -> bool {
        match self {
            // Not freeing: what frees room must not be behind it.
            Self::NewSession(_)
            | Self::Mail(_)
            | Self::Detached(_)
            | Self::LoneWill { .. }
            | Self::Subscribed { .. } => true,
            Self::Answer { is_of_new, .. } => *is_of_new,
            _ => false,
        }
    }

    pub(super) const fn goes_first(&self) -> bool {
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
    pub(super) fn deletion_bytes(&self) -> usize {
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

impl LateFacts {
    /// Is there anything that has to be written before what takes room?
    #[inline]
    pub(super) const fn goes_first(&self) -> bool {
        self.first > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.freeing.is_empty() && self.taking.is_empty()
    }

    pub(super) fn push(&mut self, fact: Late) {
        self.enter(fact, VecDeque::push_back);
    }

    pub(super) fn enter(&mut self, fact: Late, put: fn(&mut VecDeque<Late>, Late)) {
        self.deletion_bytes += fact.deletion_bytes();
        self.first += usize::from(fact.goes_first());
        self.mails += usize::from(matches!(fact, Late::Mail(_)));
        put(if fact.takes_room() { &mut self.taking } else { &mut self.freeing }, fact);
    }

    pub(super) fn pop(&mut self) -> Option<Late> {
        let fact = self.freeing.pop_front().or_else(|| self.taking.pop_front())?;
        self.deletion_bytes -= fact.deletion_bytes();
        self.first -= usize::from(fact.goes_first());
        self.mails -= usize::from(matches!(fact, Late::Mail(_)));
        Some(fact)
    }

    /// False: there are too many.
    pub(super) fn push_deletion(&mut self, deletion: Late) -> bool {
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
        deletion: impl FnOnce() -> Late,
    ) -> Result<(), AppendError> {
        match passes(&error) && self.push_deletion(deletion()) {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Ends of sessions that find no room.
    pub(super) fn ends(&mut self) -> impl Iterator<Item = &mut End> {
        self.freeing.iter_mut().filter_map(|fact| match fact {
            Late::End(end) => Some(end),
            _ => None,
        })
    }

    /// Facts that were put off only to keep their order behind older mail do not stop the loop.
    pub(super) fn line_up(&mut self, rest: &mut Self) {
        while self.mails_out > 0 && self.freeing.is_empty() {
            match self.pop() {
                Some(fact) => rest.push(fact),
                None => return,
            }
        }
    }

    /// These stand behind what was put off since they were taken out. But mail of a fact that was
    /// tried before older mail stays behind that: receivers remember only the highest serial.
    pub(super) fn append(&mut self, mut rest: Self) {
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

/// Will the journal take it later?
pub(crate) const fn passes(error: &AppendError) -> bool {
    matches!(error, AppendError::Full(_) | AppendError::Backlog { .. })
}

/// A will that is published, and not in the journal as a message yet.
#[derive(Debug)]
pub(crate) struct DueWill {
    pub(crate) session: QueueNumber,
    pub(crate) message: Message,
    /// Kept here: the session may be over first, and its client may return as somebody else.
    pub(crate) publisher: KnownPublisher,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(serials: &[u64]) -> LateFacts {
        let mut facts = LateFacts::default();
        serials.iter().for_each(|serial| facts.push(Late::Mail(Mail::Seen { serial: *serial })));
        facts
    }

    fn serials(mut facts: LateFacts) -> Vec<u64> {
        let next = |fact| match fact {
            Late::Mail(Mail::Seen { serial }) => serial,
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
        let mut of_will = LateFacts { mails_out: 2, ..late(&[3]) };
        of_will.append(late(&[1, 2]));
        assert_eq!((of_will.mails, of_will.mails_out), (3, 0));
        assert_eq!(serials(of_will), [1, 2, 3]);
    }
}
