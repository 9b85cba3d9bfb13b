//! When a publisher has to wait, and for how long it is not read.

use crate::client::Pace;
use crate::{Quota, Scope, SessionKey, Shard};
use codec::{Packet, Publish, Subscribe};
use session::Message;

/// How long a publisher waits for a slow subscriber before it is read on.
pub(crate) const CONGESTION_PAUSE_MS: u32 = 2;

/// The longest such wait, while the queue of the subscriber is not on the way to its limit.
pub(crate) const CONGESTION_PAUSE_MS_MAX: u32 = 64;

/// How long publishers wait at first, and at most, for one whose queue is.
pub(crate) const OVERRUN_MS_MIN: u32 = 8;
pub(crate) const OVERRUN_MS_MAX: u32 = 512;

/// A publisher that sends so many messages, or bytes, in one go sends all it can: it waits for
/// subscribers that are behind.
const BURST_MESSAGES: u64 = 8;
const BURST_BYTES: usize = 16 * 1024;

/// How long a publisher waits for space on the disk before it is looked at again.
pub(crate) const FULL_PAUSE_MS: u64 = 100;

/// What a fact of a subscription adds to its filter at the most.
const FACT_BYTES_MAX: usize = 64;

/// What was taken from a connection in one go.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    packets: u64,
    publishes: u64,
    pub(crate) bytes: usize,
    /// The connection is not to be read on for now.
    pub(crate) is_paused: bool,
}

impl Taken {
    pub(crate) const fn count(&mut self, packet: &Packet<'_>, packet_len: usize) {
        self.bytes += packet_len;
        self.packets += 1;
        self.publishes += matches!(packet, Packet::Publish(_)) as u64;
    }

    /// Does a publisher that sends so much in one go send all it can?
    pub(crate) const fn is_burst(&self, bytes: &[u8]) -> bool {
        self.publishes >= BURST_MESSAGES || bytes.len() >= BURST_BYTES
    }
}

impl Shard {
    /// Can this publish not be taken now, because the disk is behind, or because much mail lies
    /// before a shard that may want it? Then its publisher waits.
    pub(crate) fn has_to_come_later(
        &mut self,
        slot: u32,
        (publish, is_alone): (&Publish<'_>, bool),
        now_ms: u64,
    ) -> bool {
        if !self.broadcasts.is_empty() && self.waits_for_broadcast(slot, publish) {
            self.wait_for_turn(slot);
            return true;
        }
        if let Some(pause_ms) = self.wait_for_disk_ms(slot, publish) {
            self.pause(slot, pause_ms, now_ms);
            return true;
        }
        if self.line_is_full_for(slot, publish) {
            self.pause(slot, CONGESTION_PAUSE_MS.into(), now_ms);
            return true;
        }
        if let Some(subscriber) = self.holder_of(slot, publish) {
            self.wait_for_subscriber(slot, subscriber);
            return true;
        }
        match self.full_lane_of(slot, (publish, is_alone)) {
            Some(shard) => {
                self.wait_for_mail(slot, shard);
                true
            }
            None => false,
        }
    }

    /// Do very many SUBSCRIBEs wait until other shards have heard of them? Then this one does, too.
    pub(crate) fn waits_for_heard(&mut self, slot: u32, now_ms: u64) -> bool {
        let is_full = self.heard.is_full();
        if is_full {
            self.pause(slot, CONGESTION_PAUSE_MS.into(), now_ms);
        }
        is_full
    }

    /// Has the log of a kept session no room for this SUBSCRIBE yet, though its disk has? It waits
    /// for the next segment like a publish, and is refused on a full disk only.
    pub(crate) fn subscribes_later(
        &mut self,
        slot: u32,
        subscribe: &Subscribe<'_>,
        now_ms: u64,
    ) -> bool {
        let bytes = subscribe.filters.iter().map(|(filter, _)| filter.len() + FACT_BYTES_MAX).sum();
        self.fact_waits(slot, bytes, now_ms)
    }

    /// The same of the next filter of a long one, which is done in portions.
    pub(crate) fn filter_waits(&mut self, slot: u32, filter: &str, now_ms: u64) -> bool {
        self.fact_waits(slot, filter.len() + FACT_BYTES_MAX, now_ms)
    }

    fn fact_waits(&mut self, slot: u32, bytes: usize, now_ms: u64) -> bool {
        let is_kept = self.clients.get(slot).is_some_and(|client| client.durable.is_some());
        let Some(store) = self.store.as_ref().filter(|_| is_kept) else { return false };
        let waits = store.would_wait(bytes, 1);
        if waits {
            self.pause(slot, CONGESTION_PAUSE_MS.into(), now_ms);
        }
        waits
    }

    /// Counts what was taken from a connection. True: it has used up its rate, or its part of the
    /// turn, and is read on later.
    pub(crate) fn note_taken(
        &mut self,
        slot: u32,
        connection: u64,
        taken: &Taken,
        is_burst: bool,
        now_ms: u64,
    ) -> bool {
        self.metrics().packets_received.add(taken.packets);
        self.metrics().bytes_received.add(taken.bytes as u64);
        let (is_spent, asks_for_much) = (self.work.is_spent(), self.work.end());
        // One of its packets has ended the connection.
        let Some(link) = self.link(slot, connection) else { return false };
        link.asks_for_much = asks_for_much;
        if is_burst {
            link.note_burst(now_ms);
        }
        let until = link.charge(taken.publishes, taken.bytes as u64, now_ms);
        if let Some(until) = until {
            link.pause_until(until);
            self.effects.pause(connection, until);
        }
        let is_metered = !self.scope_of(slot).is_first();
        let waits = is_metered && self.meter(slot, taken, until, now_ms);
        if is_spent {
            self.wait_for_turn(slot);
        }
        let is_slowed =
            self.shared.memory_is_tight() && taken.publishes > 0 && self.slow_greedy(slot, now_ms);
        until.is_some() || waits || is_spent || is_slowed
    }

    /// Counts what was taken for the namespace. True: that has used up what it may take in or send
    /// out, and who publishes is read on later, and not before `own_ms`.
    #[inline(never)]
    fn meter(&mut self, slot: u32, taken: &Taken, own_ms: Option<u64>, now_ms: u64) -> bool {
        let until = self.charge_scope(self.scope_of(slot), taken, now_ms);
        let Some(until) = until.max(own_ms).filter(|_| until.is_some()) else { return false };
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let connection = client.connection;
        if let Some(link) = client.session.link_mut() {
            link.pause_until(until);
            self.effects.pause(connection, until);
        }
        true
    }

    fn charge_scope(&mut self, scope: Scope, taken: &Taken, now_ms: u64) -> Option<u64> {
        let space = self.space(scope)?;
        let waits = [
            (Quota::MessagesIn, space.charge(Quota::MessagesIn, taken.publishes, now_ms)),
            (Quota::BytesIn, space.charge(Quota::BytesIn, taken.bytes as u64, now_ms)),
            (Quota::MessagesOut, space.wait(Quota::MessagesOut, now_ms)),
            (Quota::BytesOut, space.wait(Quota::BytesOut, now_ms)),
        ];
        // Who acknowledges or subscribes does not wait for those who publish.
        let longest = waits.into_iter().max_by_key(|(_, until)| *until)?;
        let (quota, until) = Some(longest).filter(|_| taken.publishes > 0)?;
        if until.is_some() {
            space.note_refused(quota);
        }
        until
    }

    /// A message goes out to so many subscribers of its namespace.
    #[cold]
    pub(crate) fn charge_sent(&mut self, message: &Message, receivers: u64, now_ms: u64) {
        if let Some(space) = self.space(Scope::of(message)) {
            space.charge(Quota::MessagesOut, receivers, now_ms);
            let bytes = message.topic_bytes().len() + message.payload().len();
            space.charge(Quota::BytesOut, receivers * bytes as u64, now_ms);
        }
    }

    /// A subscriber on another shard is behind.
    pub(crate) fn slow_publisher(&mut self, publisher: SessionKey, pace: Pace, now_ms: u64) {
        if let Some(slot) = self.clients.slot_of(publisher) {
            self.hold_up(slot, pace, false, now_ms);
        }
    }

    /// A subscriber is behind: reads nothing from this publisher for a moment. One that sends a
    /// message now and then is not what the subscriber cannot keep up with, and is only held up if
    /// that is urgent. False: it is not held up.
    pub(crate) fn hold_up(&mut self, slot: u32, pace: Pace, is_burst: bool, now_ms: u64) -> bool {
        let link = self.clients.get_mut(slot).and_then(|client| client.session.link_mut());
        // The connection has ended since its message was mailed.
        let Some(link) = link else { return false };
        if is_burst || link.sends_bursts(now_ms) {
            // While it waits it cannot send as much as it would.
            link.note_burst(now_ms);
        } else if !pace.is_urgent {
            return false;
        }
        link.pause_until(now_ms + u64::from(pace.pause_ms));
        self.pause(slot, pace.pause_ms.into(), now_ms);
        true
    }

    /// The driver reads nothing from a connection until then: the client does not count as silent.
    pub fn hear_nothing_until(&mut self, slot: u32, connection: u64, until_ms: u64) {
        if let Some(link) = self.link(slot, connection) {
            link.pause_until(until_ms);
        }
    }

    /// Reads nothing from a publisher for a moment, because a subscriber or the disk is slow.
    pub(crate) fn pause(&mut self, slot: u32, pause_ms: u64, now_ms: u64) {
        if let Some(client) = self.clients.get(slot)
            && client.is_connected()
        {
            self.effects.pause(client.connection, now_ms + pause_ms);
        }
    }
}
