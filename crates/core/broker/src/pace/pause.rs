//! When a publisher has to wait, and for how long it is not read.

use codec::{Publish, QoS};
use session::{Message, ReadPauses, Turn};

use crate::log::store::Log;
use crate::parts::client::{Client, Pace};
use crate::parts::flow::{PAUSE_MS, RECHECK_MS};
use crate::parts::groups::Groups;
use crate::parts::router::Router;
use crate::parts::taken::Taken;
use crate::state::Context;
use crate::{Quota, Scope, SessionKey, ShardId, Space};

/// What a fact of a subscription adds to its filter at the most.
const FACT_BYTES_MAX: usize = 64;

/// What a PUBLISH waits for before it is taken.
pub(crate) enum Later {
    Turn,
    Ms(u64),
    Subscriber(SessionKey),
    Credit(ShardId),
}

impl Client {
    /// Can this publish not be taken now, because the disk is behind, or because much mail lies
    /// before a shard that may want it, or because its namespace has used up a rate? Then its
    /// publisher waits. `arrived`: the bytes that are there, with the packet.
    #[inline]
    pub(crate) fn has_to_come_later(
        &mut self,
        cx: &mut Context,
        log: Option<&Log>,
        groups: &Groups,
        router: &mut Router,
        (publish, packet_len, arrived): (&Publish<'_>, usize, usize),
        may_wait: bool,
    ) -> bool {
        // Also one whose connection is gone: what it has sent before that counts.
        if self.grants.asks_service() && self.publish_waits_for_verdict(cx, log, publish) {
            return true;
        }
        let publish = (publish, packet_len == arrived);
        if may_wait && let Some(later) = self.why_later(cx, log, groups, router, publish) {
            self.wait(cx, later);
            return true;
        }
        // Each session has registered with its namespace.
        !cx.spaces.is_empty() && self.waits_in_space(cx, packet_len, may_wait)
    }

    fn why_later(
        &self,
        cx: &mut Context,
        log: Option<&Log>,
        groups: &Groups,
        router: &mut Router,
        (publish, is_alone): (&Publish<'_>, bool),
    ) -> Option<Later> {
        let may_be_logged = |router: &Router| {
            publish.qos != QoS::AtMostOnce || self.may_be_streamed(router, publish)
        };
        if !cx.flow.broadcasts.is_empty() && self.waits_for_broadcast(cx, publish) {
            return Some(Later::Turn);
        }
        if let Some(log) = log {
            if may_be_logged(router)
                && let Some(pause_ms) = self.wait_for_disk_ms(cx, log, groups, router, publish)
            {
                return Some(Later::Ms(pause_ms));
            }
            // It would join a line that is full.
            let waits_for_line = log.line_is_full()
                && publish.qos != QoS::ExactlyOnce
                && log.is_in_line(self.key.slot());
            if waits_for_line {
                return Some(Later::Ms((*PAUSE_MS.start()).into()));
            }
        }
        if !cx.flow.pauses.is_empty()
            && let Some(subscriber) = self.pausing_subscriber(cx, publish)
        {
            return Some(Later::Subscriber(subscriber));
        }
        self.full_window_of(cx, router, (publish, is_alone)).map(Later::Credit)
    }

    /// Has the journal of a kept session no room for these filters yet, though its disk has? It
    /// waits for the next segment like a publish, and is refused on a full disk only.
    pub(crate) fn filters_wait<'a>(
        &mut self,
        cx: &mut Context,
        log: Option<&Log>,
        filters: impl Iterator<Item = &'a str>,
    ) -> bool {
        let bytes = filters.map(|filter| filter.len() + FACT_BYTES_MAX).sum();
        let waits = self.is_kept && log.is_some_and(|log| log.would_wait(bytes, 1));
        if waits {
            self.pause(cx, (*PAUSE_MS.start()).into());
        }
        waits
    }

    fn wait(&mut self, cx: &mut Context, later: Later) {
        match later {
            Later::Turn => self.wait_for_turn(cx),
            Later::Ms(pause_ms) => self.pause(cx, pause_ms),
            Later::Subscriber(subscriber) => self.wait_for_subscriber(cx, subscriber),
            Later::Credit(shard) => self.wait_for_credit(cx, shard),
        }
    }

    /// Counts what was taken from its connection. True: it has used up its rate, or its part of the
    /// turn, and is read on later.
    pub(crate) fn note_taken(&mut self, cx: &mut Context, taken: &Taken, is_burst: bool) -> bool {
        let is_spent = cx.flow.work.is_spent();
        let asks_for_much = cx.flow.work.end();
        // One of its packets may have ended the connection.
        let Some(link) = self.session.link_mut() else { return false };
        link.asks_for_much = asks_for_much;
        if is_burst {
            link.note_burst(cx.now_ms);
        }
        link.tally_taken(taken.publishes, taken.bytes);
        let until = link.charge(taken.publishes, taken.bytes as u64, cx.now_ms);
        if let Some(until) = until {
            self.pause_until(cx, until);
        }
        let now_ms = cx.now_ms;
        let rest = taken.bytes - taken.publish_bytes;
        if rest > 0
            && !self.scope.is_first()
            && let Some(space) = cx.space(self.scope)
        {
            // Who acknowledges or subscribes does not wait for those who publish.
            space.charge_control(Quota::BytesIn, rest as u64, now_ms);
        }
        if is_spent {
            self.wait_for_turn(cx);
        }
        let is_slowed = cx.shared.memory_is_tight() && taken.publishes > 0 && self.slow_largest(cx);
        until.is_some() || is_spent || is_slowed
    }

    /// Asks its namespace whether this PUBLISH may be taken now, and charges it. True: it may not.
    /// Then it has a time of its own, behind those who asked before, and is charged already.
    ///
    /// Call it when nothing else is in the way. Who is gone cannot wait, and is charged only.
    #[inline(never)]
    pub(crate) fn waits_in_space(
        &mut self,
        cx: &mut Context,
        packet_len: usize,
        may_wait: bool,
    ) -> bool {
        let now_ms = cx.now_ms;
        let Some(space) = cx.space(self.scope) else { return false };
        let (quota, until) = longest_wait(space, now_ms);
        let Some(link) = self.session.link_mut() else { return false };
        if let Some(at_ms) = link.turn().map(|turn| turn.at_ms) {
            if !may_wait || until.is_none() || at_ms <= now_ms {
                link.take_turn();
                return false;
            }
            self.pause_until(cx, at_ms.min(now_ms + 100 * RECHECK_MS));
            return true;
        }
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
        self.pause_until(cx, at_ms.min(now_ms + 100 * RECHECK_MS));
        true
    }

    /// A subscriber is behind: pauses this publisher for a moment. A publisher that sends a message
    /// now and then does not overload the subscriber, and is only paused if that is urgent. False:
    /// it is not paused.
    pub(crate) fn pause_as_publisher(
        &mut self,
        cx: &mut Context,
        pace: Pace,
        is_burst: bool,
    ) -> bool {
        // The connection may have ended since its message was mailed.
        let Some(link) = self.session.link_mut() else { return false };
        if is_burst || link.sends_bursts(cx.now_ms) {
            // While it waits it cannot send as much as it would.
            link.note_burst(cx.now_ms);
        } else if !pace.is_urgent {
            return false;
        }
        self.pause(cx, pace.pause_ms.into());
        true
    }

    /// Reads nothing from it for a moment, because a subscriber or the disk is slow.
    pub(crate) fn pause(&mut self, cx: &mut Context, pause_ms: u64) {
        self.pause_until(cx, cx.now_ms + pause_ms);
    }

    pub(crate) fn pause_until(&mut self, cx: &mut Context, until_ms: u64) {
        self.change_read_pauses(cx, |pauses| pauses.pause_until(until_ms));
    }

    /// All changes of the reasons go through here, so the driver always knows the latest state.
    pub(crate) fn change_read_pauses<T: Default>(
        &mut self,
        cx: &mut Context,
        change: impl FnOnce(&mut ReadPauses) -> T,
    ) -> T {
        let Some(link) = self.session.link_mut() else { return T::default() };
        let outcome = change(&mut link.read_pauses);
        cx.effects.pause(self.connection, link.read_pauses.reads_at_ms());
        outcome
    }
}

impl Context {
    pub(crate) fn count_taken(&self, taken: &Taken) {
        self.metrics.count_publishes_received(taken.publishes);
        self.metrics.bytes_received.add(taken.bytes as u64);
    }

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
