//! Messages for more subscribers of this shard than a turn has time for: the others get them in
//! later turns, and whoever else has something to say is heard in between.
//!
//! What comes behind such a message from its publisher, or on its topic, waits until all have got
//! it; who unsubscribes meanwhile gets it first. What is assigned to durable sessions is in the
//! journal at once (`deliver/kept.rs`), so this is about the others only.

use session::Message;
use topic::Subscription;

use crate::SessionKey;
use crate::Shard;
use crate::deliver::copies::Keeping;
use crate::parts::broadcasts::Broadcast;
use crate::parts::client::Pace;
use crate::parts::flow::UNFINISHED_MAX;
use crate::words::options::CHECK_RECEIVE;

impl Shard {
    /// Goes on with what has not reached everybody. False: there is nothing, or nothing is left of
    /// this turn.
    pub(crate) fn broadcast_on(&mut self) -> bool {
        let mut any = false;
        while !self.cx.dirty.has_gathered()
            && let left @ 1.. = self.cx.flow.work.left_for_broadcasts()
            && let Some(mut broadcast) = self.cx.flow.broadcasts.unfinished.pop_front()
        {
            let mut portion = broadcast.take_portion(left);
            self.cx.flow.work.charge_broadcast(portion.len());
            self.broadcast_to(&broadcast.message, &mut portion);
            if !broadcast.rest.is_empty() {
                self.cx.flow.broadcasts.unfinished.push_front(broadcast);
            }
            any = true;
        }
        any
    }

    /// These subscriptions get the message in later turns. They are sorted by subscriber.
    #[cold]
    pub(crate) fn put_off_broadcast(
        &mut self,
        message: &Message,
        rest: impl Iterator<Item = Subscription>,
    ) {
        if self.cx.flow.broadcasts.unfinished.len() >= UNFINISHED_MAX {
            self.finish_oldest_broadcast();
        }
        // Rules may change until then: they are asked again.
        let recheck =
            |own: Subscription| Subscription { options: own.options | CHECK_RECEIVE, ..own };
        let (message, rest) = (message.clone(), rest.map(recheck).collect());
        self.cx.flow.broadcasts.unfinished.push_back(Broadcast { message, rest });
        self.cx.metrics.broadcasts_put_off.add(1);
    }

    /// All are reached at once, however long that takes: no turn comes any more.
    pub(crate) fn finish_broadcasts(&mut self) {
        while !self.cx.flow.broadcasts.is_empty() {
            self.finish_oldest_broadcast();
        }
    }

    fn finish_oldest_broadcast(&mut self) {
        if let Some(mut broadcast) = self.cx.flow.broadcasts.unfinished.pop_front() {
            let rest = broadcast.rest.make_contiguous();
            self.broadcast_to(&broadcast.message, rest);
        }
    }

    /// A subscriber gets what it is still to get: a subscription of it ends, or the journal has a
    /// later message.
    #[cold]
    pub(crate) fn finish_broadcasts_to(&mut self, slot: u32) {
        for place in 0..self.cx.flow.broadcasts.unfinished.len() {
            let Some(broadcast) = self.cx.flow.broadcasts.unfinished.get_mut(place) else { return };
            let mut own = broadcast.take_of(slot);
            if own.is_empty() {
                continue;
            }
            let message = broadcast.message.clone();
            self.cx.flow.work.charge_broadcast(own.len());
            self.broadcast_to(&message, &mut own);
        }
    }

    fn broadcast_to(&mut self, message: &Message, found: &mut [Subscription]) {
        let delivered = self.deliver(message, found, Keeping::Late);
        let publisher = SessionKey::from_u64(message.publisher());
        self.slow_publisher_of(publisher, delivered.pace);
    }

    fn slow_publisher_of(&mut self, publisher: SessionKey, pace: Pace) {
        let Self { cx, sessions, .. } = self;
        match publisher {
            _ if pace.pause_ms == 0 || publisher == SessionKey::NOBODY => {}
            publisher if publisher.shard() == cx.id => {
                if let Some(client) = sessions.at(publisher) {
                    client.pause_as_publisher(cx, pace, false);
                }
            }
            publisher => cx.effects.slow_down(publisher, pace),
        }
    }
}
