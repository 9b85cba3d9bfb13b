//! Messages for more subscribers of this shard than a turn has time for: the others get them in
//! later turns, and whoever else has something to say is heard in between.
//!
//! What comes behind such a message from its publisher, or on its topic, waits until all have got
//! it; who unsubscribes meanwhile gets it first. What is assigned to durable sessions is in the
//! journal at once (`durable/in_flight.rs`), so this is about the others only.

use std::collections::VecDeque;

use codec::Publish;
use session::Message;
use topic::Subscription;

use crate::deliver::copies::Keeping;
use crate::deliver::copies::options::CHECK_RECEIVE;
use crate::durable::Durable;
use crate::pace::capacity::topic_of;
use crate::parts::client::{Client, Pace};
use crate::parts::flow::UNFINISHED_MAX;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::{Mail, Name, SessionKey};

#[derive(Debug, Default)]
pub(crate) struct Broadcasts {
    /// The oldest first, as they are to be got.
    unfinished: VecDeque<Broadcast>,
}

#[derive(Debug)]
struct Broadcast {
    message: Message,
    /// Of those who have not got it, in the order of the subscribers.
    rest: VecDeque<Subscription>,
}

impl Broadcasts {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// Would a message of this publisher on this topic overtake an unfinished broadcast?
    fn is_overtaken_by(&self, publisher: u64, topic: Name<'_, [u8]>) -> bool {
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
    fn take_of(&mut self, slot: u32) -> Vec<Subscription> {
        let first = self.rest.partition_point(|subscription| subscription.subscriber < slot);
        let end = self.rest.partition_point(|subscription| subscription.subscriber <= slot);
        self.rest.drain(first..end).collect()
    }

    /// Those of the next subscribers, with so many subscriptions or hardly more.
    fn take_portion(&mut self, count: usize) -> Vec<Subscription> {
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

impl Client {
    /// Has a publish to wait until others have reached everybody?
    #[cold]
    pub(crate) fn waits_for_broadcast(&self, cx: &Context, publish: &Publish<'_>) -> bool {
        let topic = Name::new(self.scope, topic_of(self, publish).as_bytes());
        cx.flow.broadcasts.is_overtaken_by(self.key.as_u64(), topic)
    }
}

impl Sessions {
    /// These subscriptions get the message in later turns. They are sorted by subscriber.
    #[cold]
    pub(crate) fn put_off_broadcast(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        message: &Message,
        rest: impl Iterator<Item = Subscription>,
    ) {
        if cx.flow.broadcasts.unfinished.len() >= UNFINISHED_MAX {
            self.finish_oldest_broadcast(cx, durable);
        }
        // Rules may change until then: they are asked again.
        let recheck =
            |own: Subscription| Subscription { options: own.options | CHECK_RECEIVE, ..own };
        let (message, rest) = (message.clone(), rest.map(recheck).collect());
        cx.flow.broadcasts.unfinished.push_back(Broadcast { message, rest });
        cx.metrics.broadcasts_put_off.add(1);
    }

    /// Goes on with what has not reached everybody. False: there is nothing, or nothing is left of
    /// this turn.
    pub(crate) fn broadcast_on(&mut self, cx: &mut Context, durable: &mut Durable) -> bool {
        let mut any = false;
        while !cx.dirty.has_gathered()
            && let left @ 1.. = cx.flow.work.left_for_broadcasts()
            && let Some(mut broadcast) = cx.flow.broadcasts.unfinished.pop_front()
        {
            let mut portion = broadcast.take_portion(left);
            cx.flow.work.charge_broadcast(portion.len());
            self.broadcast_to(cx, durable, &broadcast.message, &mut portion);
            if !broadcast.rest.is_empty() {
                cx.flow.broadcasts.unfinished.push_front(broadcast);
            }
            any = true;
        }
        any
    }

    /// All are reached at once, however long that takes: no turn comes any more.
    pub(crate) fn finish_broadcasts(&mut self, cx: &mut Context, durable: &mut Durable) {
        while !cx.flow.broadcasts.is_empty() {
            self.finish_oldest_broadcast(cx, durable);
        }
    }

    fn finish_oldest_broadcast(&mut self, cx: &mut Context, durable: &mut Durable) {
        if let Some(mut broadcast) = cx.flow.broadcasts.unfinished.pop_front() {
            let rest = broadcast.rest.make_contiguous();
            self.broadcast_to(cx, durable, &broadcast.message, rest);
        }
    }

    /// A subscriber gets what it is still to get: a subscription of it ends, or the journal has a
    /// later message.
    #[cold]
    pub(crate) fn finish_broadcasts_to(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        slot: u32,
    ) {
        for place in 0..cx.flow.broadcasts.unfinished.len() {
            let Some(broadcast) = cx.flow.broadcasts.unfinished.get_mut(place) else { return };
            let mut own = broadcast.take_of(slot);
            if own.is_empty() {
                continue;
            }
            cx.flow.work.charge_broadcast(own.len());
            let message = broadcast.message.clone();
            self.broadcast_to(cx, durable, &message, &mut own);
        }
    }

    fn broadcast_to(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        message: &Message,
        found: &mut [Subscription],
    ) {
        let delivered = self.deliver_to_all(cx, durable, message, found, Keeping::Late);
        let publisher = SessionKey::from_u64(message.publisher());
        self.slow_publisher_of(cx, publisher, delivered.pace);
    }

    fn slow_publisher_of(&mut self, cx: &mut Context, publisher: SessionKey, pace: Pace) {
        match publisher {
            _ if pace.pause_ms == 0 || publisher == SessionKey::NOBODY => {}
            publisher if publisher.shard() == cx.id => {
                if let Some(client) = self.at(publisher) {
                    client.pause_as_publisher(cx, pace, false);
                }
            }
            publisher => cx.effects.slow_down(publisher, pace),
        }
    }
}
