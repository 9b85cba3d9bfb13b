//! Messages that not all subscribers of this shard have got yet.

use std::collections::VecDeque;

use session::Message;
use topic::Subscription;

use crate::{Mail, Name, SessionKey};

#[derive(Debug, Default)]
pub(crate) struct Broadcasts {
    /// The oldest first, as they are to be got.
    pub(crate) unfinished: VecDeque<Broadcast>,
}

#[derive(Debug)]
pub(crate) struct Broadcast {
    pub(crate) message: Message,
    /// Of those who have not got it, in the order of the subscribers.
    pub(crate) rest: VecDeque<Subscription>,
}

impl Broadcasts {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// Would a message of this publisher on this topic overtake an unfinished broadcast?
    pub(crate) fn is_overtaken_by(&self, publisher: u64, topic: Name<'_, [u8]>) -> bool {
        self.unfinished.iter().any(|Broadcast { message, .. }| {
            let has_publisher = publisher != SessionKey::NOBODY.as_u64();
            has_publisher && message.publisher() == publisher || Name::topic_of(message) == topic
        })
    }

    pub(crate) fn is_overtaken_by_message(&self, message: &Message) -> bool {
        self.is_overtaken_by(message.publisher(), Name::topic_of(message))
    }

    pub(crate) fn is_overtaken_by_mail(&self, mail: &Mail) -> bool {
        !self.is_empty()
            && mail.message().is_some_and(|message| self.is_overtaken_by_message(message))
    }

    /// The session has ended: its slot may be somebody else's soon.
    pub(crate) fn forget(&mut self, slot: u32) {
        for broadcast in &mut self.unfinished {
            broadcast.take_of(slot);
        }
    }
}

impl Broadcast {
    /// The subscriptions of one who has not got it.
    pub(crate) fn take_of(&mut self, slot: u32) -> Vec<Subscription> {
        let first = self.rest.partition_point(|subscription| subscription.subscriber < slot);
        let end = self.rest.partition_point(|subscription| subscription.subscriber <= slot);
        self.rest.drain(first..end).collect()
    }

    /// Those of the next subscribers, with so many subscriptions or hardly more.
    pub(crate) fn take_portion(&mut self, count: usize) -> Vec<Subscription> {
        let mut end = count.min(self.rest.len());
        while end > 0
            && end < self.rest.len()
            && self.rest[end].subscriber == self.rest[end - 1].subscriber
        {
            end += 1;
        }
        self.rest.drain(..end).collect()
    }
}
