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

use super::failover::{Failure, Way};
use super::lane::{Kind, Lane};
use super::plan::Plan;
use super::publish::{Flight, Publishing};
use super::request::Dialogue;
use super::task::{Task, Wait, described, wire_version};
use super::wills::Ending;
use flock_measure::LatencyKind;
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
    generation: u16,
    returns: u16,
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
    /// When the last connection ended.
    down_ns: u64,
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
}

impl Client {
    pub(super) fn new(at: u32, slot: u32, group: GroupId, index: u64, lane: &Lane) -> Self {
        let version = lane.plan.scenario.group(group).version;
        let held = lane.plan.subscribes.iter().any(|subscribe| subscribe.ack_delay_us > 0);
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
    pub(super) fn wire_id(&self, lane: &Lane) -> String {
        let id = self.id(&lane.plan);
        match self.connect_command(lane) {
            Some(command) if command.fresh_id => format!("{id}-{}", self.calls),
            _ => id,
        }
    }

    /// How the client is to be judged over breaks from which it came back: QoS 0 may be missed in
    /// any, the rest only in one that lost the session. A break that lasts excuses nothing.
    pub(super) fn generations(&self) -> (u16, u16) {
        (self.returns, self.generation)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.machine.in_flight()
    }

    pub(super) fn congested(&self) -> bool {
        self.outbox.len() - self.outbox_done >= OUTBOX_BYTES_MAX
    }

    pub(super) fn connect_command<'a>(&self, lane: &'a Lane) -> Option<&'a Connect> {
        lane.plan.connects.get(usize::from(self.connect))
    }

    // --- Connecting

    /// Starts to connect as the command says. Does nothing while connected.
    pub(super) fn connect(&mut self, command: u16, lane: &mut Lane) {
        if matches!(self.link, Link::Up | Link::Opening | Link::Backoff) {
            return;
        }
        self.connect = command;
        self.calls += 1;
        self.attempts = 0;
        self.was_up = false;
        self.open(lane);
    }

    fn open(&mut self, lane: &mut Lane) {
        let Some(command) = self.connect_command(lane) else { return };
        let timeout_ns = self.attempt_us(command, self.was_up, lane) * 1_000;
        let sources = &lane.sources;
        let source = (!sources.is_empty()).then(|| sources[self.index as usize % sources.len()]);
        let route = self.route(command, lane).clone();
        let seed = lane.random.draw();
        let opened = route.open(source, seed).and_then(|mut wire| {
            let both = Interest::READABLE | Interest::WRITABLE;
            lane.registry.register(&mut wire, Token(self.at as usize), both)?;
            Ok(wire)
        });
        let now = lane.now_ns();
        lane.tally.totals.connects_started += 1;
        if self.attempts == 0 {
            // What a broker does not answer at once is not answered sooner for being asked again.
            self.link_since_ns = now;
        }
        match opened {
            Ok(wire) => {
                self.wire = Some(wire);
                self.link = Link::Opening;
                self.set_link_timer(now + timeout_ns, lane);
            }
            Err(error) => self.link_failed(Failure::Address, &error.to_string(), lane),
        }
    }

    fn set_link_timer(&mut self, at_ns: u64, lane: &mut Lane) {
        self.link_at_ns = at_ns;
        lane.timers.set(at_ns, self.at, Kind::Link);
    }

    /// The connection attempt failed: again after a while, or not.
    fn link_failed(&mut self, failure: Failure, reason: &str, lane: &mut Lane) {
        self.drop_wire(lane);
        self.end_attempt(lane);
        self.link = Link::Down;
        let what = if self.was_up { "reconnect" } else { "connect" };
        lane.tally.error(what, reason, || self.id(&lane.plan));
        if let Some(wait_ns) = self.move_on(failure, lane) {
            self.link = Link::Backoff;
            self.set_link_timer(lane.now_ns() + wait_ns, lane);
            return;
        }
        let Some(command) = self.connect_command(lane) else { return };
        let wait_ns = match command.reconnect {
            Some(policy) if self.was_up => {
                let doubled = policy.delay_us.saturating_mul(1 << self.attempts.min(20));
                Some(doubled.min(self.round_pause_us_max(policy.delay_max_us, lane)) * 1_000)
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
                let jitter_ns = lane.random.below(jitter_us * 1_000 + 1);
                self.set_link_timer(lane.now_ns() + wait_ns + jitter_ns, lane);
            }
            None => {
                lane.tally.totals.connects_failed += 1;
                if reason == TIMED_OUT {
                    self.unconnected(lane);
                }
                self.on_link_hopeless(lane);
            }
        }
    }

    /// The broker may have taken the CONNECT, and the will with it.
    pub(super) fn end_attempt(&self, lane: &mut Lane) {
        if self.link == Link::Opening {
            self.end_will(Ending::Unknown, lane);
        }
    }

    /// A connect that had no answer has waited so long at least. (A refusal is an answer.)
    fn unconnected(&self, lane: &mut Lane) {
        let waited_ns = lane.now_ns().saturating_sub(self.link_since_ns);
        lane.tally.unfinished(LatencyKind::Connect, 0, waited_ns, 1);
    }

    /// The run is over.
    pub(super) fn end_opening(&self, lane: &mut Lane) {
        if matches!(self.link, Link::Opening) {
            self.unconnected(lane);
        }
    }

    /// How long the program has waited for an answer of the broker's, if it does.
    pub(super) fn unanswered_ns(&self, lane: &Lane) -> Option<u64> {
        let since_ns = match self.task.wait {
            Wait::Connecting => self.link_since_ns,
            Wait::Answers(_) => self.task.asked_ns(),
            _ => return None,
        };
        Some(lane.now_ns().saturating_sub(since_ns))
    }

    /// The connection that was up is gone, and nobody asked for it.
    pub(super) fn link_lost(&mut self, reason: &str, lane: &mut Lane) {
        if self.link != Link::Up {
            return self.link_failed(Failure::Address, reason, lane);
        }
        lane.tally.totals.connections_lost += 1;
        let is_planned = reason == CUT || lane.plan.is_taken_over(self.group);
        lane.tally.totals.connections_cut += u64::from(is_planned);
        lane.tally.error("connection", reason, || self.id(&lane.plan));
        self.end_will(if reason == CUT { Ending::Broken } else { Ending::Unknown }, lane);
        self.link_down(lane);
        self.move_away(lane);
        let policy = self.connect_command(lane).and_then(|command| command.reconnect);
        match policy {
            Some(policy) => {
                self.was_up = true;
                self.attempts = 0;
                self.link = Link::Backoff;
                let jitter_ns = lane.random.below(policy.jitter_us * 1_000 + 1);
                let wait_ns = policy.delay_us * 1_000 + jitter_ns;
                self.set_link_timer(lane.now_ns() + wait_ns, lane);
            }
            None => self.on_link_hopeless(lane),
        }
    }

    /// Books the end of a connection that was up.
    pub(super) fn link_down(&mut self, lane: &mut Lane) {
        self.drop_wire(lane);
        lane.tally.connections -= 1;
        self.link = Link::Down;
        self.down_ns = lane.now_ns();
        self.link_generation = self.link_generation.wrapping_add(1);
        self.machine.on_closed();
    }

    pub(super) fn drop_wire(&mut self, lane: &mut Lane) {
        if let Some(mut wire) = self.wire.take() {
            // A socket that is closed leaves the poll by itself; this is for the lower layers.
            let _ = lane.registry.deregister(&mut wire);
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

    fn send_connect(&mut self, lane: &mut Lane) {
        self.note_will(lane);
        let options = self.connect_options(lane);
        lane.lend(&mut self.outbox);
        let now_ms = lane.now_ns() / 1_000_000;
        self.machine.connect(&options, now_ms, &mut self.outbox);
        self.flush(lane);
    }

    fn on_connected(&mut self, session_present: bool, now_ns: u64, lane: &mut Lane) {
        let nanos = now_ns - self.link_since_ns;
        lane.tally.latency(LatencyKind::Connect, 0, nanos);
        lane.tally.totals.connects_ok += 1;
        lane.tally.connections += 1;
        self.link = Link::Up;
        self.arrive();
        self.up_ns = now_ns;
        self.set_keep_alive(lane);
        if self.is_subscribed() {
            self.returns = self.returns.wrapping_add(1);
        }
        // What MQTT 3.1 kept, its CONNACK does not tell.
        let is_told = lane.plan.scenario.group(self.group).version != Version::V31;
        self.is_fresh = !session_present && (is_told || self.asks_for_a_clean_start(lane));
        let again = self.was_up;
        lane.tally.totals.reconnects += u64::from(again);
        if session_present {
            self.repeat_open(lane);
        } else {
            self.on_session_gone(lane);
            // Identifiers start afresh before the first new request.
            let forgotten = self.machine.forget();
            self.resubscribe(again, lane);
            self.publish_forgotten(forgotten, lane);
        }
        if self.task.wait == Wait::Connecting {
            self.task.ready(now_ns);
        }
    }

    fn asks_for_a_clean_start(&self, lane: &Lane) -> bool {
        self.connect_command(lane).is_some_and(|command| command.clean_start)
    }

    /// A session that was meant to end with its connection excuses what was missed meanwhile. One
    /// that was meant to last does not: its broker forgot it, and what was missed is lost.
    fn on_session_gone(&mut self, lane: &mut Lane) {
        if !self.is_subscribed() {
            return;
        }
        // Whoever comes under a new name has no session to find.
        let is_new = self.connect_command(lane).is_some_and(|command| command.fresh_id);
        let asked_to_last = self.is_lasting(lane) && !self.asks_for_a_clean_start(lane) && !is_new;
        // What MQTT 3.1 kept, its CONNACK does not tell.
        let is_told = lane.plan.scenario.group(self.group).version != Version::V31;
        if asked_to_last && !is_told {
            return;
        }
        if asked_to_last && !self.has_expired(lane) {
            lane.ledger.forgotten += 1;
            lane.tally
                .error("session", "the broker forgot a persistent session", || self.id(&lane.plan));
        } else {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Whether the session was without a connection for as long as it was to be kept.
    fn has_expired(&self, lane: &Lane) -> bool {
        let away_ns = lane.now_ns().saturating_sub(self.down_ns);
        let expiry_secs = self.connect_command(lane).map(|command| command.session_expiry_secs);
        lane.plan.scenario.group(self.group).version == Version::V5
            && expiry_secs.is_some_and(|secs| away_ns / 1_000_000_000 >= u64::from(secs))
    }

    /// Whether a subscription of an earlier connection is still to be heard.
    pub(super) fn is_subscribed(&self) -> bool {
        self.hearing.iter().any(|hearing| hearing.until_ns == u64::MAX)
    }

    /// Whether the session outlives its connection.
    pub(super) fn is_lasting(&self, lane: &Lane) -> bool {
        let version = lane.plan.scenario.group(self.group).version;
        self.connect_command(lane).is_some_and(|command| match version {
            Version::V5 => command.session_expiry_secs > 0,
            Version::V31 | Version::V311 => !command.clean_start,
        })
    }

    fn set_keep_alive(&mut self, lane: &mut Lane) {
        if let Some(at_ms) = self.machine.next_tick_ms() {
            self.set_link_timer(at_ms * 1_000_000, lane);
        } else {
            self.link_at_ns = u64::MAX;
        }
    }

    // --- Readiness

    pub(super) fn on_ready(&mut self, scratch: &mut [u8], lane: &mut Lane) {
        let Some(wire) = &mut self.wire else { return };
        if !wire.is_open() {
            match wire.advance(scratch) {
                Ok(true) => self.send_connect(lane),
                Ok(false) => return,
                Err(error) => self.link_failed(Failure::Address, &error.to_string(), lane),
            }
        } else if !self.outbox.is_empty() || wire.wants_write() {
            self.flush(lane);
        }
        self.read(scratch, lane);
        self.go_on(lane);
    }

    /// Lets program and publishing do what they can, and sends the result.
    pub(super) fn go_on(&mut self, lane: &mut Lane) {
        self.answer_on(lane);
        self.step(lane);
        let congested = self.congested();
        self.flush(lane);
        if congested && !self.congested() {
            lane.again.push(self.at);
        }
    }

    pub(super) fn set_stalled(&mut self, stalled: bool, lane: &mut Lane) {
        self.stalled = stalled;
        if !stalled {
            lane.again.push(self.at);
        }
    }

    /// Reads what there is, at most [`READS_MAX`] buffers in a turn.
    pub(super) fn read(&mut self, scratch: &mut [u8], lane: &mut Lane) {
        if self.stalled {
            return;
        }
        for turn in 0.. {
            let Some(wire) = &mut self.wire else { return };
            if !wire.is_open() {
                return;
            }
            if turn == READS_MAX {
                lane.again.push(self.at);
                return;
            }
            match wire.read(scratch) {
                Ok(Read::Bytes(n)) => {
                    let drained = wire.is_drained(n, scratch.len());
                    lane.tally.totals.bytes_in += n as u64;
                    self.take_bytes(&scratch[..n], lane);
                    if drained {
                        return;
                    }
                }
                Ok(Read::WouldBlock) => return,
                Ok(Read::Closed) => return self.on_closed("closed by the broker", lane),
                Err(error) => return self.on_closed(&error.to_string(), lane),
            }
        }
    }

    fn on_closed(&mut self, reason: &str, lane: &mut Lane) {
        if self.link == Link::Silent {
            lane.tally.totals.disconnects += 1;
            self.end_will(Ending::Broken, lane);
            self.link_down(lane);
            let now = lane.now_ns();
            if self.task.wait == Wait::Silence {
                self.task.ready(now);
            }
        } else {
            self.link_lost(reason, lane);
        }
    }

    fn take_bytes(&mut self, bytes: &[u8], lane: &mut Lane) {
        if self.link == Link::Silent {
            return;
        }
        let now_ns = lane.now_ns();
        self.heard_ns = now_ns;
        lane.lend(&mut self.outbox);
        if self.partial.is_empty() {
            let taken = self.take_packets(bytes, now_ns, lane);
            if taken < bytes.len() && self.wire.is_some() {
                lane.lend(&mut self.partial);
                self.partial.extend_from_slice(&bytes[taken..]);
                if let Ok(Some(len)) = codec::packet_len(&self.partial) {
                    self.partial.reserve(len.saturating_sub(self.partial.len()));
                }
            }
            return;
        }
        let mut partial = std::mem::take(&mut self.partial);
        partial.extend_from_slice(bytes);
        let taken = self.take_packets(&partial, now_ns, lane);
        partial.drain(..taken);
        if partial.is_empty() || self.wire.is_none() {
            lane.take_back(&mut partial);
        } else {
            self.partial = partial;
        }
    }

    /// Takes all whole packets; returns the bytes taken.
    fn take_packets(&mut self, bytes: &[u8], now_ns: u64, lane: &mut Lane) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            match self.machine.next(&bytes[taken..], &mut self.outbox) {
                Ok(Some((event, len))) => {
                    taken += len;
                    self.on_event(event, now_ns, lane);
                    if self.wire.is_none() {
                        return bytes.len();
                    }
                }
                Ok(None) => break,
                Err(violation) => {
                    lane.ledger.breaches += 1;
                    lane.tally.error("protocol", &violation.to_string(), || self.id(&lane.plan));
                    self.link_lost("the broker broke the protocol", lane);
                    return bytes.len();
                }
            }
        }
        taken
    }

    fn on_event(&mut self, event: Event<'_, Flight>, now_ns: u64, lane: &mut Lane) {
        match event {
            Event::Message(publish) => self.on_message(&publish, now_ns, lane),
            Event::Published { token, qos, reason, .. } => {
                self.on_published(&token, qos, reason, now_ns, lane);
                self.on_settled(now_ns, lane);
            }
            Event::Connected { session_present: true, .. } if self.asks_for_a_clean_start(lane) => {
                let told = "a session is said to be there though a clean start was asked for \
                            (MQTT-3.2.2-2)";
                lane.ledger.breaches += 1;
                lane.tally.error("protocol", told, || self.id(&lane.plan));
                self.link_failed(Failure::Client, "the broker broke the protocol", lane);
            }
            Event::Connected { session_present, .. } => {
                self.on_connected(session_present, now_ns, lane);
            }
            Event::Refused { reason, properties } => {
                let why = described(reason, properties.reason_string());
                self.refer(reason, properties, lane);
                self.link_failed(Failure::of(reason), &format!("refused: {why}"), lane);
            }
            Event::Disconnected { reason, properties } => {
                let why = described(reason, properties.reason_string());
                self.refer(reason, properties, lane);
                self.link_lost(&format!("DISCONNECT: {why}"), lane);
            }
            Event::Subscribed { reasons, .. } => self.on_subscribed(reasons, now_ns, lane),
            Event::Unsubscribed { reasons, .. } => self.on_unsubscribed(reasons, now_ns, lane),
            Event::Auth(_) => self.link_lost("the broker asks for enhanced authentication", lane),
            Event::Repeated { dup, .. } => self.on_repeated(dup, lane),
            Event::AckedAgain { kind } => lane.ledger.count_repeated_ack(kind),
            Event::Nothing => self.on_settled(now_ns, lane),
        }
    }

    /// Bytes on their way out: at most one write per call unless the socket takes all.
    pub(super) fn flush(&mut self, lane: &mut Lane) {
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
                    lane.tally.totals.bytes_out += n as u64;
                }
                // What the broker sent before it closed is still to be read; reading finds the end.
                Err(_) => {
                    self.outbox_done = self.outbox.len();
                    lane.again.push(self.at);
                }
            }
        }
        if wire.wants_write() {
            // An error shows at the next read.
            let _ = wire.flush();
        }
        if started {
            self.machine.on_sent(lane.clock.now_ns() / 1_000_000);
        }
        if self.outbox_done == self.outbox.len() {
            self.outbox.clear();
            self.outbox_done = 0;
            lane.take_back(&mut self.outbox);
        } else if self.outbox_done > OUTBOX_BYTES_MAX {
            self.outbox.drain(..self.outbox_done);
            self.outbox_done = 0;
        }
    }

    // --- Timers

    pub(super) fn on_timer(&mut self, at_ns: u64, kind: Kind, lane: &mut Lane) {
        match kind {
            Kind::Task => {
                if self.task.timer_ns != at_ns {
                    return;
                }
                self.on_task_timer(lane);
            }
            Kind::Link => {
                if self.link_at_ns != at_ns {
                    return;
                }
                self.on_link_timer(lane);
            }
            Kind::Acks => self.on_acks_due(lane),
        }
        self.go_on(lane);
    }

    fn on_link_timer(&mut self, lane: &mut Lane) {
        match self.link {
            Link::Backoff => self.open(lane),
            Link::Opening => self.link_failed(Failure::Address, TIMED_OUT, lane),
            Link::Up => {
                lane.lend(&mut self.outbox);
                let now_ms = lane.now_ns() / 1_000_000;
                if self.machine.on_tick(now_ms, &mut self.outbox) {
                    self.set_keep_alive(lane);
                } else {
                    self.link_lost("no answer to PINGREQ", lane);
                }
            }
            Link::Down | Link::Silent => {}
        }
    }

    fn on_acks_due(&mut self, lane: &mut Lane) {
        let now = lane.now_ns();
        lane.lend(&mut self.outbox);
        let Some(extra) = &mut self.extra else { return };
        while let Some(&(due_ns, packet_id, qos)) = extra.held_acks.front() {
            if due_ns > now {
                lane.timers.set(due_ns, self.at, Kind::Acks);
                return;
            }
            extra.held_acks.pop_front();
            self.machine.acknowledge(packet_id, qos, &mut self.outbox);
        }
    }
}

/// Counts what cannot be laid to the account of any message of this run.
const NO_CONNECT: u16 = u16::MAX;
const TIMED_OUT: &str = "timed out";
/// Why a connection ended that a fault of the scenario cut.
pub(super) const CUT: &str = "cut on purpose";
/// Unsent bytes at which a client holds back further messages: they keep their due time.
const OUTBOX_BYTES_MAX: usize = 64 * 1024;
/// Buffers that one client may read before others have their turn.
const READS_MAX: usize = 8;
