//! When a publisher has to wait, and for how long it is not read.

use codec::{Packet, Publish, Subscribe};
use session::{Gate, Message, Turn};

use crate::clients::Sessions;
use crate::clients::client::Pace;
use crate::durable::Durable;
use crate::groups::table::Groups;
use crate::shard::context::Context;
use crate::sure::Sure;
use crate::{Quota, Scope, SessionKey, Space};

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

/// Who waits for its namespace is looked at again after so long: its limits may have changed.
const SPACE_LOOK_MS: u64 = 10_000;

/// How long a publisher waits for space on the disk before it is looked at again.
pub(crate) const FULL_PAUSE_MS: u64 = 100;

/// What a fact of a subscription adds to its filter at the most.
const FACT_BYTES_MAX: usize = 64;

/// What was taken from a connection in one go.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    packets: u64,
    publishes: u64,
    publish_bytes: usize,
    pub(crate) bytes: usize,
    /// The connection is not to be read on for now.
    pub(crate) is_paused: bool,
}

impl Taken {
    pub(crate) const fn count(&mut self, packet: &Packet<'_>, packet_len: usize) {
        self.bytes += packet_len;
        self.packets += 1;
        if matches!(packet, Packet::Publish(_)) {
            self.publishes += 1;
            self.publish_bytes += packet_len;
        }
    }

    /// Does a publisher that sends so much in one go send all it can?
    pub(crate) const fn is_burst(&self, bytes: &[u8]) -> bool {
        self.publishes >= BURST_MESSAGES || bytes.len() >= BURST_BYTES
    }
}

impl Durable {
    /// Can this publish not be taken now, because the disk is behind, or because much mail lies
    /// before a shard that may want it? Then its publisher waits.
    pub(crate) fn has_to_come_later(
        &self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &Groups,
        slot: u32,
        (publish, is_alone): (&Publish<'_>, bool),
    ) -> bool {
        if !cx.flow.broadcasts.is_empty() && sessions.waits_for_broadcast(cx, slot, publish) {
            sessions.wait_for_turn(cx, slot);
            return true;
        }
        if let Some(pause_ms) = sessions.wait_for_disk_ms(cx, self, groups, slot, publish) {
            sessions.pause(cx, slot, pause_ms);
            return true;
        }
        if self.line_is_full_for(sessions, slot, publish) {
            sessions.pause(cx, slot, CONGESTION_PAUSE_MS.into());
            return true;
        }
        if let Some(subscriber) = sessions.pausing_subscriber(cx, slot, publish) {
            sessions.wait_for_subscriber(cx, slot, subscriber);
            return true;
        }
        match sessions.full_window_of(cx, slot, (publish, is_alone)) {
            Some(shard) => {
                sessions.wait_for_credit(cx, slot, shard);
                true
            }
            None => false,
        }
    }
}

impl Sessions {
    /// Do very many SUBSCRIBEs wait until other shards have heard of them? Then this one does, too.
    pub(crate) fn waits_for_barrier(&mut self, cx: &mut Context, slot: u32) -> bool {
        let is_full = cx.flow.barrier.is_full();
        if is_full {
            self.pause(cx, slot, CONGESTION_PAUSE_MS.into());
        }
        is_full
    }
}

impl Durable {
    /// Has the log of a kept session no room for this SUBSCRIBE yet, though its disk has? It waits
    /// for the next segment like a publish, and is refused on a full disk only.
    pub(crate) fn subscribes_later(
        &self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        subscribe: &Subscribe<'_>,
    ) -> bool {
        let bytes = subscribe.filters.iter().map(|(filter, _)| filter.len() + FACT_BYTES_MAX).sum();
        self.fact_waits(cx, sessions, slot, bytes)
    }

    /// The same of the next filter of a long one, which is done in portions.
    pub(crate) fn filter_waits(
        &self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        filter: &str,
    ) -> bool {
        self.fact_waits(cx, sessions, slot, filter.len() + FACT_BYTES_MAX)
    }

    fn fact_waits(
        &self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        bytes: usize,
    ) -> bool {
        let is_kept = sessions.get(slot).is_some_and(|client| client.durable.is_some());
        let Some(store) = self.store.as_ref().filter(|_| is_kept) else { return false };
        let waits = store.would_wait(bytes, 1);
        if waits {
            sessions.pause(cx, slot, CONGESTION_PAUSE_MS.into());
        }
        waits
    }
}

impl Sessions {
    /// Counts what was taken from a connection. True: it has used up its rate, or its part of the
    /// turn, and is read on later.
    pub(crate) fn note_taken(
        &mut self,
        cx: &mut Context,
        slot: u32,
        connection: u64,
        taken: &Taken,
        is_burst: bool,
    ) -> bool {
        let now_ms = cx.now_ms;
        cx.metrics.packets_received.add(taken.packets);
        cx.metrics.bytes_received.add(taken.bytes as u64);
        let (is_spent, asks_for_much) = (cx.flow.work.is_spent(), cx.flow.work.end());
        // One of its packets has ended the connection.
        let Some(link) = self.link(slot, connection) else { return false };
        link.asks_for_much = asks_for_much;
        if is_burst {
            link.note_burst(now_ms);
        }
        let until = link.charge(taken.publishes, taken.bytes as u64, now_ms);
        if let Some(until) = until {
            self.shut_until(cx, slot, until);
        }
        let rest = taken.bytes - taken.publish_bytes;
        if rest > 0 && !cx.spaces.is_empty() && !self.scope_of(slot).is_first() {
            self.charge_rest(cx, slot, rest as u64);
        }
        if is_spent {
            self.wait_for_turn(cx, slot);
        }
        let is_slowed =
            cx.shared.memory_is_tight() && taken.publishes > 0 && self.slow_largest(cx, slot);
        until.is_some() || is_spent || is_slowed
    }

    /// Asks the namespace whether this PUBLISH may be taken now, and charges it. True: it may not.
    /// Then it has a time of its own, behind those who asked before, and is charged already.
    ///
    /// Call it when nothing else is in the way. Who is gone cannot wait, and is charged only.
    #[inline(always)]
    pub(crate) fn waits_for_space(
        &mut self,
        cx: &mut Context,
        slot: u32,
        (packet_len, may_wait): (usize, bool),
    ) -> bool {
        // Each session has told its namespace of itself.
        if cx.spaces.is_empty() {
            return false;
        }
        let scope = self.scope_of(slot);
        !scope.is_first() && self.waits_in_space(cx, slot, scope, (packet_len, may_wait))
    }

    #[inline(never)]
    fn waits_in_space(
        &mut self,
        cx: &mut Context,
        slot: u32,
        scope: Scope,
        (packet_len, may_wait): (usize, bool),
    ) -> bool {
        let now_ms = cx.now_ms;
        let Some(space) = cx.space(scope) else { return false };
        let (quota, until) = longest_wait(space, now_ms);
        let Some(client) = self.get_mut(slot).sure() else { return false };
        let Some(link) = client.session.link_mut() else { return false };
        if let Some(at_ms) = link.turn().map(|turn| turn.at_ms) {
            if !may_wait || until.is_none() || at_ms <= now_ms {
                link.take_turn();
                return false;
            }
            self.shut_until(cx, slot, at_ms.min(now_ms + SPACE_LOOK_MS));
            return true;
        }
        let Some(space) = cx.spaces.get(&scope) else { return false };
        let bytes = packet_len as u64;
        if !may_wait {
            space.charge_late(Quota::MessagesIn, 1, now_ms);
            space.charge_late(Quota::BytesIn, bytes, now_ms);
            return false;
        }
        let own = space.charge(Quota::MessagesIn, 1, now_ms);
        let own = own.max(space.charge(Quota::BytesIn, bytes, now_ms));
        let Some(until) = until else { return false };
        space.note_refused(quota);
        let at_ms = own.unwrap_or(until).max(until);
        link.wait_for_turn(Turn { at_ms, bytes });
        self.shut_until(cx, slot, at_ms.min(now_ms + SPACE_LOOK_MS));
        true
    }

    /// Counts what came for a namespace beside publishes: who acknowledges or subscribes does not
    /// wait for those who publish.
    #[inline(never)]
    fn charge_rest(&mut self, cx: &mut Context, slot: u32, bytes: u64) {
        let now_ms = cx.now_ms;
        if let Some(space) = cx.space(self.scope_of(slot)) {
            space.charge_control(Quota::BytesIn, bytes, now_ms);
        }
    }

    /// A subscriber on another shard is behind.
    pub(crate) fn slow_publisher(&mut self, cx: &mut Context, publisher: SessionKey, pace: Pace) {
        if let Some(slot) = self.slot_of(publisher) {
            self.hold_up(cx, slot, pace, false);
        }
    }

    /// A subscriber is behind: reads nothing from this publisher for a moment. One that sends a
    /// message now and then is not what the subscriber cannot keep up with, and is only held up if
    /// that is urgent. False: it is not held up.
    pub(crate) fn hold_up(
        &mut self,
        cx: &mut Context,
        slot: u32,
        pace: Pace,
        is_burst: bool,
    ) -> bool {
        let now_ms = cx.now_ms;
        let link = self.get_mut(slot).and_then(|client| client.session.link_mut());
        // The connection has ended since its message was mailed.
        let Some(link) = link else { return false };
        if is_burst || link.sends_bursts(now_ms) {
            // While it waits it cannot send as much as it would.
            link.note_burst(now_ms);
        } else if !pace.is_urgent {
            return false;
        }
        self.pause(cx, slot, pace.pause_ms.into());
        true
    }

    /// Reads nothing from a publisher for a moment, because a subscriber or the disk is slow.
    pub(crate) fn pause(&mut self, cx: &mut Context, slot: u32, pause_ms: u64) {
        let now_ms = cx.now_ms;
        self.shut_until(cx, slot, now_ms + pause_ms);
    }

    pub(crate) fn shut_until(&mut self, cx: &mut Context, slot: u32, until_ms: u64) {
        self.change_gate(cx, slot, |gate| gate.shut_until(until_ms));
    }

    /// Whatever says whether a connection is read goes through here, so the driver always has the
    /// latest word.
    pub(crate) fn change_gate<T: Default>(
        &mut self,
        cx: &mut Context,
        slot: u32,
        change: impl FnOnce(&mut Gate) -> T,
    ) -> T {
        let client = self.get_mut(slot);
        let Some(client) = client.filter(|client| client.is_connected()) else {
            return T::default();
        };
        let connection = client.connection;
        let Some(link) = client.session.link_mut() else { return T::default() };
        let outcome = change(&mut link.gate);
        cx.effects.pause(connection, link.gate.reads_at_ms());
        outcome
    }
}

impl Context {
    /// A connection has ended before the turn of its PUBLISH: nobody has to wait for that.
    #[cold]
    pub(crate) fn give_turn_back(&mut self, scope: Scope, turn: &Turn) {
        if let Some(space) = self.space(scope) {
            space.give_back(Quota::MessagesIn, 1);
            space.give_back(Quota::BytesIn, turn.bytes);
        }
    }

    /// A message goes out to so many subscribers of its namespace.
    #[cold]
    pub(crate) fn charge_sent(&mut self, message: &Message, receivers: u64) {
        let now_ms = self.now_ms;
        if let Some(space) = self.space(Scope::of(message)) {
            space.charge_late(Quota::MessagesOut, receivers, now_ms);
            let bytes = message.topic_bytes().len() + message.payload().len();
            space.charge_late(Quota::BytesOut, receivers * bytes as u64, now_ms);
        }
    }
}

/// The rate for which a publisher of this namespace has to wait longest, and until when.
fn longest_wait(space: &Space, now_ms: u64) -> (Quota, Option<u64>) {
    let rates = [Quota::MessagesIn, Quota::BytesIn, Quota::MessagesOut, Quota::BytesOut];
    let waits = rates.map(|quota| (quota, space.wait(quota, now_ms)));
    let longest = waits.into_iter().max_by_key(|(_, until)| *until);
    longest.unwrap_or((Quota::MessagesIn, None))
}
