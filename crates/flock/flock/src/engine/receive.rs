//! What arrives at one client: what is counted of it, and held against what was sent.

use codec::{Publish, QoS};

use super::check::CLOCKS_APART_NS_MAX;
use super::client::Client;
use super::context::{Context, TimerKind};
use super::stamp::{Reading, WILL_STREAM};
use flock_measure::LatencyKind;
use flock_measure::ledger::{Path, Received, StreamId};

impl Client {
    #[inline]
    pub(super) fn on_message(&mut self, publish: &Publish<'_>, now_ns: u64, ctx: &mut Context) {
        let qos = publish.qos as u8;
        let totals = &mut ctx.tally.totals;
        totals.received[usize::from(qos)] += 1;
        totals.received_bytes += publish.payload.len() as u64;
        self.claim(publish, ctx);
        if qos > 0 && self.machine.leaves_acks() {
            self.hold_ack(publish, now_ns, ctx);
        } else {
            ctx.tally.totals.pubacks_sent += u64::from(qos == 1);
        }
        if self.hear_answer(publish, now_ns, ctx) {
            return;
        }
        self.answer(publish, ctx);
        let topic_of = |stream: StreamId| ctx.plan.topic_name_of(stream);
        let read = ctx.stamps.read(publish.topic, publish.payload, now_ns, topic_of);
        let (stamp, is_early) = match read {
            Reading::Ours { stamp, is_early } => (stamp, is_early),
            other => return book_others(other, publish, ctx),
        };
        if stamp.stream == WILL_STREAM {
            ctx.tally.totals.wills_received += 1;
            self.hear_will(publish, (stamp.sequence, now_ns), ctx);
            return;
        }
        self.check_properties(publish, &stamp, now_ns, ctx);
        if self.is_unasked(&stamp, ctx) {
            ctx.ledger.misrouted += 1;
            return;
        }
        if self.is_retained_copy(publish, stamp.stream, stamp.due_ns, ctx) {
            ctx.tally.totals.received_retained += 1;
            let may_repeat = self.link_generation > 0 || self.hearing.len() > 1;
            ctx.ledger.receive_stored(self.at, stamp.stream, stamp.sequence, may_repeat);
            let path = ctx.plan.path(self.group, self.index, stamp.stream);
            ctx.ledger.check_agreed(path.granted(self.granted), qos);
            return;
        }
        ctx.tally.totals.received_early += u64::from(is_early);
        let received = Received {
            client: self.at,
            stream: stamp.stream,
            sequence: stamp.sequence,
            dup: publish.dup,
            // What is younger than the connection cannot have come over an earlier one.
            may_be_dup: !self.is_fresh
                && stamp.due_ns <= self.up_ns.saturating_add(CLOCKS_APART_NS_MAX),
            qos,
            times_ns: (stamp.due_ns, now_ns),
            sessions: self.sessions(),
        };
        let (plan, group, index) = (&ctx.plan, self.group, self.index);
        let find = || plan.path(group, index, stamp.stream).granted(self.granted);
        let path = ctx.ledger.receive(received, find);
        let kind = match path {
            Path::Plain { routed: true, .. } | Path::Shared { routed: true, .. } => {
                LatencyKind::Routed
            }
            Path::Plain { .. } | Path::Shared { .. } => LatencyKind::EndToEnd,
            // It is no delivery that anybody waited for.
            Path::Misrouted => return,
        };
        ctx.tally.message_latency(kind, qos, stamp.due_ns, now_ns);
        let is_routed = kind == LatencyKind::Routed;
        ctx.tally.client_latency(self.at, is_routed, stamp.due_ns, now_ns);
    }

    /// Whether the broker sent it because it had it in store. Counts a retain flag that is wrong.
    fn is_retained_copy(
        &self,
        publish: &Publish<'_>,
        stream: StreamId,
        due_ns: u64,
        ctx: &mut Context,
    ) -> bool {
        if !publish.retain && !ctx.plan.any_retained {
            return false;
        }
        let sent_so = ctx.plan.retains(stream);
        let as_published = self.keeps_retain_flag(ctx);
        // In store can only be what was published so; and what was published after the last
        // subscription comes as it is published.
        let is_live = !sent_so || due_ns > self.subscribed_ns;
        let expected = if is_live { as_published && sent_so } else { publish.retain };
        // Nor is anything in store for who asks for nothing of it (MQTT-3.3.1-11), or for a member
        // of a shared group.
        let is_unwanted = !is_live && publish.retain && !as_published && !self.takes_stored(ctx);
        ctx.ledger.wrong_retain += u64::from(publish.retain != expected || is_unwanted);
        publish.retain && !is_live && !as_published
    }

    /// Whether some subscription of the client's brings what the broker has in store.
    fn takes_stored(&self, ctx: &Context) -> bool {
        self.hearing.is_empty()
            || self.hearing.iter().any(|hearing| {
                let handling = ctx.plan.subscribes[usize::from(hearing.command)].retain_handling;
                handling < 2 && !ctx.plan.is_shared(hearing.subscription)
            })
    }

    fn keeps_retain_flag(&self, ctx: &Context) -> bool {
        self.hearing
            .iter()
            .any(|hearing| ctx.plan.subscribes[usize::from(hearing.command)].retain_as_published)
    }

    fn hold_ack(&mut self, publish: &Publish<'_>, now_ns: u64, ctx: &mut Context) {
        let delay_us = self
            .hearing
            .iter()
            .map(|hearing| ctx.plan.subscribes[usize::from(hearing.command)].ack_delay_us)
            .max()
            .unwrap_or(0);
        if delay_us == 0 {
            ctx.tally.totals.pubacks_sent += u64::from(publish.qos == QoS::AtLeastOnce);
            self.machine.acknowledge(publish.packet_id, publish.qos, &mut self.outbox);
            return;
        }
        let due_ns = now_ns + delay_us * 1_000;
        let held = &mut self.extra.get_or_insert_default().held_acks;
        if held.is_empty() {
            ctx.timers.set(due_ns, self.at, TimerKind::Acks);
        }
        held.push_back((due_ns, publish.packet_id, publish.qos));
    }
}

/// A QoS 2 message came again under a number that is still taken. On a connection on which it had
/// come (`is_here`) nobody may send it again (MQTT-4.4.0-1); on another, it is known anyway.
pub(super) fn on_repeated((dup, is_here): (bool, bool), ctx: &mut Context) {
    ctx.ledger.repeated += u64::from(is_here);
    ctx.ledger.missing_dup += u64::from(!is_here && !dup);
}

fn book_others(read: Reading, publish: &Publish<'_>, ctx: &mut Context) {
    match read {
        Reading::Foreign { age_ns, is_early } => {
            ctx.tally.totals.received_foreign += 1;
            ctx.tally.totals.received_foreign_live += u64::from(!publish.retain);
            // A run that only subscribes measures what others publish. What is from a broker's
            // store has the age of its stay there.
            if ctx.plan.streams() == 0 && !publish.retain {
                ctx.tally.totals.received_early += u64::from(is_early);
                ctx.tally.latency(LatencyKind::EndToEnd, publish.qos as u8, age_ns);
            }
        }
        Reading::WrongTopic => ctx.ledger.wrong_topic += 1,
        // Where nobody stamps, or not everybody, it may well be what was sent.
        Reading::Damaged if ctx.plan.all_stamped && ctx.plan.streams() > 0 => {
            ctx.ledger.damaged += 1;
        }
        Reading::Damaged => ctx.tally.totals.received_foreign += u64::from(ctx.plan.all_stamped),
        Reading::Ours { .. } => {}
    }
}
