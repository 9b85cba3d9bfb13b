//! Mail that has arrived and could not be processed at once.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use session::Message;

use crate::{Mail, SessionKey};

/// Places for mail that waits which are kept ready.
const MAIL_KEPT: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Mail for which the turn in which it came was not enough.
    unread: Line,
    /// Mail that waits for a broadcast, and what must not overtake it. It came before what is
    /// unread, as far as that keeps an order.
    deferred: Line,
}

/// Mail in its order.
#[derive(Debug, Default)]
struct Line {
    mails: VecDeque<Mail>,
    /// Whose messages, and on which topics, are among it, as marks, and how many.
    marked: HashMap<u64, u32, FixedState>,
}

impl Inbox {
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.mails.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unread.mails.is_empty() && self.deferred.mails.is_empty()
    }

    pub(crate) fn push_unread(&mut self, mail: Mail) {
        self.unread.push(mail);
    }

    /// The oldest, if there is any.
    pub(crate) fn next_unread(&mut self) -> Option<Mail> {
        self.unread.pop()
    }

    /// It waits for a broadcast, or behind what does.
    pub(crate) fn defer(&mut self, mail: Mail) {
        self.deferred.push(mail);
    }

    /// The oldest that waits for a broadcast, unless it still has to.
    pub(crate) fn next_deferred(&mut self, has_to_wait: impl Fn(&Mail) -> bool) -> Option<Mail> {
        let first = self.deferred.mails.front()?;
        if has_to_wait(first) { None } else { self.deferred.pop() }
    }

    /// Must this not overtake what waits for a broadcast?
    pub(crate) fn is_behind_deferred(&self, mail: &Mail) -> bool {
        !self.deferred.mails.is_empty() && !self.deferred.may_be_passed_by(mail)
    }

    /// May this go before what is unread?
    pub(crate) fn may_pass(&self, mail: &Mail) -> bool {
        self.unread.may_be_passed_by(mail)
    }
}

impl Line {
    fn push(&mut self, mail: Mail) {
        for mark in mail.message().into_iter().flat_map(marks_of) {
            *self.marked.entry(mark).or_default() += 1;
        }
        self.mails.push_back(mail);
    }

    fn pop(&mut self) -> Option<Mail> {
        let next = self.mails.pop_front();
        for mark in next.as_ref().and_then(Mail::message).into_iter().flat_map(marks_of) {
            if let Some(count) = self.marked.get_mut(&mark) {
                *count -= 1;
                if *count == 0 {
                    self.marked.remove(&mark);
                }
            }
        }
        if self.mails.is_empty() {
            self.mails.shrink_to(MAIL_KEPT);
            self.marked.shrink_to(MAIL_KEPT);
        }
        next
    }

    /// A message may go before it, if none of its publisher and none on its topic is there: their
    /// order is all that is promised. One that is known by its serial may not, as those come in
    /// order.
    fn may_be_passed_by(&self, mail: &Mail) -> bool {
        let Mail::Publish { message, confirm, .. } = mail else { return false };
        message.publisher() != SessionKey::NOBODY.as_u64()
            && confirm.is_none_or(|confirm| confirm.serial == 0)
            && !marks_of(message).iter().any(|mark| self.marked.contains_key(mark))
    }
}

/// What stands for its publisher, and for its topic. Two that are the same by chance wait for each
/// other.
fn marks_of(message: &Message) -> [u64; 2] {
    let hasher = FixedState::default();
    [hasher.hash_one(message.publisher()), hasher.hash_one(message.topic_bytes())]
}
