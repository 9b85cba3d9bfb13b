//! One simulated client: its connection, and what comes over it.
//!
//! A [`Client`] is about four hundred bytes with everything, and owns no buffer while idle. Its
//! parts are spread over several files: the connection here, its end in `leave.rs`, the program in
//! `task.rs`, publishing in `publish.rs`, what arrives in `receive.rs`, its will in `wills.rs`.

use std::collections::VecDeque;
use std::io::IoSlice;

use client::{Acks, Event, Machine, Read, Wire};
use codec::QoS;
use mio::{Interest, Token};

use super::context::{Context, TimerKind};
use super::failover::{Failure, Way};
use super::plan::Plan;
use super::publish::{Flight, Publishing};
use super::receive::on_repeated;
use super::request::Dialogue;
use super::stay::{Break, Breaks};
use super::task::{Task, Wait, described, wire_version};
use super::wills::Ending;
use flock_measure::LatencyKind;
use flock_measure::ledger::Session;
use flock_model::{Connect, GroupId, SubscriptionId, Version};

pub(super) struct Client {
    /// Position in the thread's list, and token of the socket.
    pub(super) at: u32,
    /// Position among the thread's clients of the group.
    pub(super) slot: u32,
    pub(super) group: GroupId,
    /// Position in the group, over all threads and agents.
    pub(super) index: u64,
    pub(super) machine: Machine<Flight>,
    pub(super) link: Link,
    pub(super) wire: Option<Wire>,
    partial: Vec<u8>,
    pub(super) outbox: Vec<u8>,
    /// Bytes of the outbox that are sent.
    outbox_done: usize,
    pub(super) task: Task,
    pub(super) publishing: Option<Box<Publishing>>,
    pub(super) hearing: Vec<Hearing>,
    /// Position in the plan's list; `NO_CONNECT` before the first.
    connect: u16,
    attempts: u16,
    pub(super) way: Way,
    /// The next attempt goes where the broker said.
    pub(super) is_referred: bool,
    /// How often the program has begun to connect.
    calls: u32,
    /// Returns to a session that was lost, and returns of any kind: what came between may have been
    /// missed by right.
    pub(super) generation: u16,
    returns: u16,
    /// Connections that went on with the session of the one before.
    resumptions: u16,
    /// Number of the connection.
    pub(super) link_generation: u16,
    /// When the broker last granted a subscription.
    pub(super) subscribed_ns: u64,
    /// When the present connection was accepted.
    pub(super) up_ns: u64,
    /// Whether it has ever unsubscribed from anything.
    pub(super) has_left: bool,
    /// The lowest QoS that the broker granted where a higher one was asked for.
    pub(super) granted: u8,
    /// The session began with the present connection.
    pub(super) is_fresh: bool,
    was_up: bool,
    stalled: bool,
    link_since_ns: u64,
    pub(super) link_at_ns: u64,
    /// When the last connection ended, and when its session did or will; 0 ahead of the first.
    pub(super) down_ns: u64,
    pub(super) session_until_ns: u64,
    /// When the broker last said something.
    pub(super) heard_ns: u64,
    /// Messages received that no `receive` command has claimed.
    pub(super) unclaimed: u64,
    pub(super) extra: Option<Box<Extra>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Down,
    /// Connecting, handshakes, CONNECT sent.
    Opening,
    /// Waiting for the next attempt.
    Backoff,
    Up,
    /// Gone silent on purpose; the broker is to notice.
    Silent,
}

/// A subscription that the client took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hearing {
    /// Position of the command in the plan's list.
    pub(super) command: u16,
    pub(super) subscription: SubscriptionId,
    /// `u64::MAX` until acknowledged.
    pub(super) since_ns: u64,
    /// `u64::MAX` until left.
    pub(super) until_ns: u64,
    /// `u64::MAX` until the broker has acknowledged that.
    pub(super) left_ns: u64,
}

/// What few clients need.
#[derive(Default)]
pub(super) struct Extra {
    pub(super) held_acks: VecDeque<(u64, u16, QoS)>,
    pub(super) stopwatches: Vec<(u16, u64)>,
    pub(super) pattern: Option<regex_lite::Regex>,
    pub(super) dialogue: Option<Dialogue>,
    /// A server that the broker named, and that is none of the addresses given.
    pub(super) elsewhere: Option<client::Route>,
    pub(super) breaks: Breaks,
}

impl Client {
    pub(super) fn new(at: u32, slot: u32, group: GroupId, index: u64, ctx: &Context) -> Self {
        let version = ctx.plan.scenario.group(group).version;
        let held = ctx.plan.subscribes.iter().any(|subscribe| subscribe.ack_delay_us > 0);
        Self {
            at,
            slot,
            group,
            index,
            machine: Machine::new(
                wire_version(version),
                if held { Acks::Manual } else { Acks::Automatic },
            ),
            link: Link::Down,
            wire: None,
            partial: Vec::new(),
            outbox: Vec::new(),
            outbox_done: 0,
            task: Task::default(),
            publishing: None,
            hearing: Vec::new(),
            connect: NO_CONNECT,
            attempts: 0,
            way: Way::default(),
            is_referred: false,
            calls: 0,
            generation: 0,
            returns: 0,
            resumptions: 0,
            link_generation: 0,
            subscribed_ns: 0,
            up_ns: 0,
            has_left: false,
            granted: u8::MAX,
            is_fresh: false,
            was_up: false,
            stalled: false,
            link_since_ns: 0,
            link_at_ns: 0,
            down_ns: 0,
            session_until_ns: 0,
            heard_ns: 0,
            unclaimed: 0,
            extra: None,
        }
    }

    pub(super) fn id(&self, plan: &Plan) -> String {
        let group = plan.scenario.group(self.group);
        group.client_ids.name(group.offset + self.index)
    }

    /// The id that the broker is told.
    pub(super) fn wire_id(&self, ctx: &Context) -> String {
        let id = self.id(&ctx.plan);
        match self.connect_command(ctx) {
            Some(command) if command.fresh_id => format!("{id}-{}", self.calls),
            _ => id,
        }
    }

    /// How the client is to be judged over breaks from which it came back: QoS 0 may be missed in
    /// any and never comes again, the rest may be missed only in one that lost the session. A break
    /// that lasts excuses nothing.
    pub(super) fn sessions(&self) -> (Session, Session) {
        let fleeting = Session { generation: self.returns, resumptions: 0 };
        (fleeting, Session { generation: self.generation, resumptions: self.resumptions })
    }

    /// Whether some connection went on with the session of the one before.
    pub(super) fn is_resumed(&self) -> bool {
        self.resumptions > 0
    }

    pub(super) fn in_flight(&self) -> usize {
        self.machine.in_flight()
    }

    pub(super) fn congested(&self) -> bool {
        self.outbox.len() - self.outbox_done >= OUTBOX_BYTES_MAX
    }

    pub(super) fn connect_command<'a>(&self, ctx: &'a Context) -> Option<&'a Connect> {
        ctx.plan.connects.get(usize::from(self.connect))
    }

    // --- Connecting

    /// Starts to connect as the command says. Does nothing while connected.
    pub(super) fn connect(&mut self, command: u16, ctx: &mut Context) {
        if matches!(self.link, Link::Up | Link::Opening | Link::Backoff) {
            return;
        }
        self.connect = command;
        self.calls += 1;
        self.attempts = 0;
        self.was_up = false;
        self.open(ctx);
    }

    fn open(&mut self, ctx: &mut Context) {
        let Some(command) = self.connect_command(ctx) else { return };
        let timeout_ns = self.attempt_us(command, self.was_up, ctx) * 1_000;
        let sources = &ctx.sources;
        let source = (!sources.is_empty()).then(|| sources[self.index as usize % sources.len()]);
        let route = self.route(command, ctx).clone();
        let seed = ctx.random.draw();
        let opened = route.open(source, seed).and_then(|mut wire| {
            let both = Interest::READABLE | Interest::WRITABLE;
            ctx.registry.register(&mut wire, Token(self.at as usize), both)?;
            Ok(wire)
        });
        let now = ctx.now_ns();
        ctx.tally.totals.connects_started += 1;
        if self.attempts == 0 {
            // What a broker does not answer at once is not answered sooner for being asked again.
            self.link_since_ns = now;
        }
        match opened {
            Ok(wire) => {
                self.wire = Some(wire);
                self.link = Link::Opening;
                self.set_link_timer(now + timeout_ns, ctx);
            }
            Err(error) => self.link_failed(Failure::Address, &error.to_string(), ctx),
        }
    }

    fn set_link_timer(&mut self, at_ns: u64, ctx: &mut Context) {
        self.link_at_ns = at_ns;
        ctx.timers.set(at_ns, self.at, TimerKind::Link);
    }

    /// The connection attempt failed: again after a while, or not.
    fn link_failed(&mut self, failure: Failure, reason: &str, ctx: &mut Context) {
        self.drop_wire(ctx);
        self.end_attempt(ctx);
        self.link = Link::Down;
        let what = if self.was_up { "reconnect" } else { "connect" };
        ctx.tally.error(what, reason, || self.id(&ctx.plan));
        if let Some(wait_ns) = self.move_on(failure, ctx) {
            self.link = Link::Backoff;
            self.set_link_timer(ctx.now_ns() + wait_ns, ctx);
            return;
        }
        let Some(command) = self.connect_command(ctx) else { return };
        let wait_ns = match command.reconnect {
            Some(policy) if self.was_up => {
                let doubled = policy.delay_us.saturating_mul(1 << self.attempts.min(20));
                Some(doubled.min(self.round_pause_us_max(policy.delay_max_us, ctx)) * 1_000)
            }
            _ if u32::from(self.attempts) < command.retries => {
                Some(command.retry_interval_us * 1_000)
            }
            _ => None,
        };
        let jitter_us = command.reconnect.map_or(0, |policy| policy.jitter_us);
        match wait_ns {
            Some(wait_ns) => {
                self.attempts = self.attempts.saturating_add(1);
                self.link = Link::Backoff;
                let jitter_ns = ctx.random.below(jitter_us * 1_000 + 1);
                self.set_link_timer(ctx.now_ns() + wait_ns + jitter_ns, ctx);
            }
            None => {
                ctx.tally.totals.connects_failed += 1;
                match reason {
                    TIMED_OUT => self.unconnected(ctx),
                    _ => ctx.tally.missing(LatencyKind::Connect, 0),
                }
                self.on_link_hopeless(ctx);
            }
        }
    }

    /// The broker may have taken the CONNECT, and the will with it.
    pub(super) fn end_attempt(&self, ctx: &mut Context) {
        if self.link == Link::Opening {
            self.end_will(Ending::Unknown, ctx);
        }
    }

    /// A connect that had no answer has waited so long at least.
    fn unconnected(&self, ctx: &mut Context) {
        let waited_ns = ctx.now_ns().saturating_sub(self.link_since_ns);
        ctx.tally.unfinished(LatencyKind::Connect, 0, waited_ns, 1);
    }

    /// The run is over.
    pub(super) fn end_opening(&self, ctx: &mut Context) {
        if matches!(self.link, Link::Opening) {
            self.unconnected(ctx);
        }
    }

    /// How long the program has waited for an answer of the broker's, if it does.
    pub(super) fn unanswered_ns(&self, ctx: &Context) -> Option<u64> {
        let since_ns = match self.task.wait {
            Wait::Connecting => self.link_since_ns,
            Wait::Answers(_) => self.task.asked_ns(),
            _ => return None,
        };
        Some(ctx.now_ns().saturating_sub(since_ns))
    }

    /// The connection that was up is gone, and nobody asked for it.
    pub(super) fn link_lost(&mut self, reason: &str, ctx: &mut Context) {
        if self.link != Link::Up {
            return self.link_failed(Failure::Address, reason, ctx);
        }
        ctx.tally.totals.connections_lost += 1;
        let is_planned = reason == CUT || ctx.plan.is_taken_over(self.group);
        ctx.tally.totals.connections_cut += u64::from(is_planned);
        ctx.tally.error("connection", reason, || self.id(&ctx.plan));
        self.end_will(if reason == CUT { Ending::Broken } else { Ending::Unknown }, ctx);
        self.link_down(ctx);
        self.move_away(ctx);
        let policy = self.connect_command(ctx).and_then(|command| command.reconnect);
        match policy {
            Some(policy) => {
                self.was_up = true;
                self.attempts = 0;
                self.link = Link::Backoff;
                let jitter_ns = ctx.random.below(policy.jitter_us * 1_000 + 1);
                let wait_ns = policy.delay_us * 1_000 + jitter_ns;
                self.set_link_timer(ctx.now_ns() + wait_ns, ctx);
            }
            None => self.on_link_hopeless(ctx),
        }
    }

    /// Books the end of a connection that was up.
    pub(super) fn link_down(&mut self, ctx: &mut Context) {
        self.drop_wire(ctx);
        ctx.tally.connections -= 1;
        self.link = Link::Down;
        self.down_ns = ctx.now_ns();
        self.session_until_ns = self.session_end_ns(ctx);
        let is_shared = |hearing: &Hearing| ctx.plan.is_shared(hearing.subscription);
        if self.hearing.iter().any(is_shared) {
            ctx.ledger.note_end(self.at, self.down_ns);
        }
        self.link_generation = self.link_generation.wrapping_add(1);
        self.machine.on_closed();
    }

    pub(super) fn drop_wire(&mut self, ctx: &mut Context) {
        if let Some(mut wire) = self.wire.take() {
            // A socket that is closed leaves the poll by itself; this is for the lower layers.
            let _ = ctx.registry.deregister(&mut wire);
        }
        self.link_at_ns = u64::MAX;
        self.partial = Vec::new();
        self.outbox = Vec::new();
        self.outbox_done = 0;
        self.stalled = false;
        if let Some(extra) = &mut self.extra {
            extra.held_acks.clear();
        }
    }

    /// Whether the client is connected, or will be without a further command.
    pub(super) fn is_reachable(&self) -> bool {
        matches!(self.link, Link::Up | Link::Opening | Link::Backoff)
    }

    fn send_connect(&mut self, ctx: &mut Context) {
        self.note_will(ctx);
        let options = self.connect_options(ctx);
        ctx.lend(&mut self.outbox);
        let now_ms = ctx.now_ns() / 1_000_000;
        self.machine.connect(&options, now_ms, &mut self.outbox);
        self.flush(ctx);
    }

    fn on_connected(&mut self, session_present: bool, now_ns: u64, ctx: &mut Context) {
        let nanos = now_ns - self.link_since_ns;
        ctx.tally.latency(LatencyKind::Connect, 0, nanos);
        ctx.tally.totals.connects_ok += 1;
        ctx.tally.connections += 1;
        self.link = Link::Up;
        self.arrive();
        self.note_session(session_present, ctx);
        self.up_ns = now_ns;
        self.set_keep_alive(ctx);
        if self.is_subscribed() {
            self.returns = self.returns.wrapping_add(1);
            let to_ns = if session_present { now_ns } else { u64::MAX };
            let breaks = &mut self.extra.get_or_insert_default().breaks;
            breaks.note(Break { from_ns: self.down_ns, to_ns, is_lossy: false });
        }
        // What MQTT 3.1 kept, its CONNACK does not tell.
        let is_told = ctx.plan.scenario.group(self.group).version != Version::V31;
        self.is_fresh = !session_present && (is_told || self.asks_for_a_clean_start(ctx));
        let is_resumed = self.link_generation > 0 && !self.is_fresh;
        self.resumptions = self.resumptions.wrapping_add(u16::from(is_resumed));
        let again = self.was_up;
        ctx.tally.totals.reconnects += u64::from(again);
        if session_present {
            self.repeat_open(ctx);
        } else {
            self.on_session_gone(ctx);
            // Identifiers start afresh before the first new request.
            let forgotten = self.machine.forget();
            self.resubscribe(again, ctx);
            self.publish_forgotten(forgotten, ctx);
        }
        if self.task.wait == Wait::Connecting {
            self.task.ready(now_ns);
        }
    }

    pub(super) fn asks_for_a_clean_start(&self, ctx: &Context) -> bool {
        self.connect_command(ctx).is_some_and(|command| command.clean_start)
    }

    fn set_keep_alive(&mut self, ctx: &mut Context) {
        if let Some(at_ms) = self.machine.next_tick_ms() {
            self.set_link_timer(at_ms * 1_000_000, ctx);
        } else {
            self.link_at_ns = u64::MAX;
        }
    }

    // --- Readiness

    pub(super) fn on_ready(&mut self, scratch: &mut [u8], ctx: &mut Context) {
        let Some(wire) = &mut self.wire else { return };
        if !wire.is_open() {
            match wire.advance(scratch) {
                Ok(true) => self.send_connect(ctx),
                Ok(false) => return,
                Err(error) => self.link_failed(Failure::Address, &error.to_string(), ctx),
            }
        } else if !self.outbox.is_empty() || wire.wants_write() {
            self.flush(ctx);
        }
        self.read(scratch, ctx);
        self.go_on(ctx);
    }

    /// Lets program and publishing do what they can, and sends the result.
    pub(super) fn go_on(&mut self, ctx: &mut Context) {
        self.answer_on(ctx);
        self.step(ctx);
        let congested = self.congested();
        self.flush(ctx);
        if congested && !self.congested() {
            ctx.again.push(self.at);
        }
    }

    pub(super) fn set_stalled(&mut self, stalled: bool, ctx: &mut Context) {
        self.stalled = stalled;
        if !stalled {
            ctx.again.push(self.at);
        }
    }

    /// Reads what there is, at most [`READS_MAX`] buffers in a turn.
    pub(super) fn read(&mut self, scratch: &mut [u8], ctx: &mut Context) {
        if self.stalled {
            return;
        }
        for turn in 0.. {
            let Some(wire) = &mut self.wire else { return };
            if !wire.is_open() {
                return;
            }
            if turn == READS_MAX {
                ctx.again.push(self.at);
                return;
            }
            match wire.read(scratch) {
                Ok(Read::Bytes(n)) => {
                    let drained = wire.is_drained(n, scratch.len());
                    ctx.tally.totals.bytes_in += n as u64;
                    self.take_bytes(&scratch[..n], ctx);
                    if drained {
                        return;
                    }
                }
                Ok(Read::WouldBlock) => return,
                Ok(Read::Closed) => return self.on_closed("closed by the broker", ctx),
                Err(error) => return self.on_closed(&error.to_string(), ctx),
            }
        }
    }

    fn on_closed(&mut self, reason: &str, ctx: &mut Context) {
        if self.link == Link::Silent {
            ctx.tally.totals.disconnects += 1;
            self.end_will(Ending::Broken, ctx);
            self.link_down(ctx);
            let now = ctx.now_ns();
            if self.task.wait == Wait::Silence {
                self.task.ready(now);
            }
        } else {
            self.link_lost(reason, ctx);
        }
    }

    fn take_bytes(&mut self, bytes: &[u8], ctx: &mut Context) {
        if self.link == Link::Silent {
            return;
        }
        let now_ns = ctx.now_ns();
        self.heard_ns = now_ns;
        ctx.lend(&mut self.outbox);
        if self.partial.is_empty() {
            let taken = self.take_packets(bytes, now_ns, ctx);
            if taken < bytes.len() && self.wire.is_some() {
                ctx.lend(&mut self.partial);
                self.partial.extend_from_slice(&bytes[taken..]);
                if let Ok(Some(len)) = codec::packet_len(&self.partial) {
                    self.partial.reserve(len.saturating_sub(self.partial.len()));
                }
            }
            return;
        }
        let mut partial = std::mem::take(&mut self.partial);
        partial.extend_from_slice(bytes);
        let taken = self.take_packets(&partial, now_ns, ctx);
        partial.drain(..taken);
        if partial.is_empty() || self.wire.is_none() {
            ctx.take_back(&mut partial);
        } else {
            self.partial = partial;
        }
    }

    /// Takes all whole packets; returns the bytes taken.
    fn take_packets(&mut self, bytes: &[u8], now_ns: u64, ctx: &mut Context) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            match self.machine.next(&bytes[taken..], &mut self.outbox) {
                Ok(Some((event, len))) => {
                    taken += len;
                    self.on_event(event, now_ns, ctx);
                    if self.wire.is_none() {
                        return bytes.len();
                    }
                }
                Ok(None) => break,
                Err(violation) => {
                    ctx.ledger.breaches += 1;
                    ctx.tally.error("protocol", &violation.to_string(), || self.id(&ctx.plan));
                    self.link_lost("protocol error of the broker", ctx);
                    return bytes.len();
                }
            }
        }
        taken
    }

    fn on_event(&mut self, event: Event<'_, Flight>, now_ns: u64, ctx: &mut Context) {
        match event {
            Event::Message(publish) => self.on_message(&publish, now_ns, ctx),
            Event::Published { token, qos, reason, .. } => {
                self.on_published(&token, qos, reason, now_ns, ctx);
                self.on_settled(now_ns, ctx);
            }
            Event::Connected { session_present: true, .. } if self.has_no_session(ctx) => {
                let told = match self.asks_for_a_clean_start(ctx) {
                    true => "session present after a clean start (MQTT-3.2.2-2)",
                    false => "session present although the session had ended (MQTT-4.1.0-2)",
                };
                ctx.ledger.breaches += 1;
                ctx.tally.error("protocol", told, || self.id(&ctx.plan));
                self.link_failed(Failure::Client, "protocol error of the broker", ctx);
            }
            Event::Connected { session_present, .. } => {
                self.on_connected(session_present, now_ns, ctx);
            }
            Event::Refused { reason, properties } => {
                let why = described(reason, properties.reason_string());
                self.refer(reason, properties, ctx);
                self.link_failed(Failure::of(reason), &format!("refused: {why}"), ctx);
            }
            Event::Disconnected { reason, properties } => {
                let why = described(reason, properties.reason_string());
                self.refer(reason, properties, ctx);
                self.link_lost(&format!("DISCONNECT: {why}"), ctx);
            }
            Event::Subscribed { reasons, .. } => self.on_subscribed(reasons, now_ns, ctx),
            Event::Unsubscribed { reasons, .. } => self.on_unsubscribed(reasons, now_ns, ctx),
            Event::Auth(_) => self.link_lost("the broker requests enhanced authentication", ctx),
            Event::Repeated { dup, is_here, .. } => on_repeated((dup, is_here), ctx),
            Event::AckedAgain { kind } => ctx.ledger.count_repeated_ack(kind),
            Event::Nothing => self.on_settled(now_ns, ctx),
        }
    }

    /// Bytes on their way out: at most one write per call unless the socket takes all.
    pub(super) fn flush(&mut self, ctx: &mut Context) {
        let Some(wire) = &mut self.wire else { return };
        if !wire.is_open() {
            return;
        }
        let started = self.outbox_done < self.outbox.len();
        while self.outbox_done < self.outbox.len() {
            match wire.write(&[IoSlice::new(&self.outbox[self.outbox_done..])]) {
                Ok(0) => break,
                Ok(n) => {
                    self.outbox_done += n;
                    ctx.tally.totals.bytes_out += n as u64;
                }
                // What the broker sent before it closed is still to be read; reading finds the end.
                Err(_) => {
                    self.outbox_done = self.outbox.len();
                    ctx.again.push(self.at);
                }
            }
        }
        if wire.wants_write() {
            // An error shows at the next read.
            let _ = wire.flush();
        }
        if started {
            self.machine.on_sent(ctx.clock.now_ns() / 1_000_000);
        }
        if self.outbox_done == self.outbox.len() {
            self.outbox.clear();
            self.outbox_done = 0;
            ctx.take_back(&mut self.outbox);
        } else if self.outbox_done > OUTBOX_BYTES_MAX {
            self.outbox.drain(..self.outbox_done);
            self.outbox_done = 0;
        }
    }

    // --- Timers

    pub(super) fn on_timer(&mut self, at_ns: u64, kind: TimerKind, ctx: &mut Context) {
        match kind {
            TimerKind::Task => {
                if self.task.timer_ns != at_ns {
                    return;
                }
                self.on_task_timer(ctx);
            }
            TimerKind::Link => {
                if self.link_at_ns != at_ns {
                    return;
                }
                self.on_link_timer(ctx);
            }
            TimerKind::Acks => self.on_acks_due(ctx),
        }
        self.go_on(ctx);
    }

    fn on_link_timer(&mut self, ctx: &mut Context) {
        match self.link {
            Link::Backoff => self.open(ctx),
            Link::Opening => self.link_failed(Failure::Address, TIMED_OUT, ctx),
            Link::Up => {
                ctx.lend(&mut self.outbox);
                let now_ms = ctx.now_ns() / 1_000_000;
                if self.machine.on_tick(now_ms, &mut self.outbox) {
                    self.set_keep_alive(ctx);
                } else {
                    self.link_lost("no answer to PINGREQ", ctx);
                }
            }
            Link::Down | Link::Silent => {}
        }
    }

    fn on_acks_due(&mut self, ctx: &mut Context) {
        let now = ctx.now_ns();
        ctx.lend(&mut self.outbox);
        let Some(extra) = &mut self.extra else { return };
        while let Some(&(due_ns, packet_id, qos)) = extra.held_acks.front() {
            if due_ns > now {
                ctx.timers.set(due_ns, self.at, TimerKind::Acks);
                return;
            }
            extra.held_acks.pop_front();
            ctx.tally.totals.pubacks_sent += u64::from(qos == QoS::AtLeastOnce);
            self.machine.acknowledge(packet_id, qos, &mut self.outbox);
        }
    }
}

/// Counts what cannot be laid to the account of any message of this run.
const NO_CONNECT: u16 = u16::MAX;
const TIMED_OUT: &str = "timed out";
/// Why a connection ended that a fault of the scenario cut.
pub(super) const CUT: &str = "closed by a fault";
/// Unsent bytes at which a client holds back further messages: they keep their due time.
const OUTBOX_BYTES_MAX: usize = 64 * 1024;
/// Buffers that one client may read before others have their turn.
const READS_MAX: usize = 8;
