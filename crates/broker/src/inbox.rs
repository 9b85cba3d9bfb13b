//! Mail that has come and could not be dealt with at once.

use std::collections::VecDeque;

use crate::Mail;

/// Places for unread mail that are kept ready.
const UNREAD_MAIL_KEPT: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Mail for which the turn in which it came was not enough.
    unread: VecDeque<Mail>,
    /// Mail for which the log had no room; it is tried again in its order. Bounded by the receive
    /// maxima of the publishers, whose acknowledgements wait for it.
    late: Vec<Mail>,
}

impl Inbox {
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    pub(crate) fn push_unread(&mut self, mail: Mail) {
        self.unread.push_back(mail);
    }

    /// The oldest, if there is any.
    pub(crate) fn next_unread(&mut self) -> Option<Mail> {
        let next = self.unread.pop_front();
        if self.unread.is_empty() {
            self.unread.shrink_to(UNREAD_MAIL_KEPT);
        }
        next
    }

    /// Is there mail that what comes from now on must not overtake in the log?
    pub(crate) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    pub(crate) fn put_late(&mut self, mail: Mail) {
        self.late.push(mail);
    }

    pub(crate) fn take_late(&mut self) -> Vec<Mail> {
        std::mem::take(&mut self.late)
    }

    /// Does a retained message on the topic still wait for room in the log? Who waits for an answer
    /// stands behind it, and nobody overtakes it.
    pub(crate) fn has_late_retained(&self, topic: &str) -> bool {
        self.late.iter().any(|mail| match mail {
            Mail::Retain { message, .. } => message.topic() == topic,
            _ => false,
        })
    }
}
