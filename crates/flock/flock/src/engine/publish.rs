//! Publishing: the schedule of one client's messages, and how they are put on the wire cheaply.
//!
//! With a rate the loop is open: message `k` is due at its time whatever happens, and that time
//! travels in the payload. A message that cannot be sent then (window full, socket congested,
//! reconnecting) keeps its due time and is sent as soon as it can be: what the broker makes its
//! publishers wait is latency.

use std::sync::Arc;

use client::{NotSent, Unacknowledged};
use codec::{PropertyBuf, QoS, Reason};

use super::client::Client;
use super::context::Context;
use super::head::{CORRELATION_BYTES, encode_head, push_properties};
use super::plan::PublishPlan;
use super::stamp::{STAMP_BYTES, Stamp, Stamps, Sum};
use super::task::{Wait, wire_qos};
use flock_measure::LatencyKind;
use flock_measure::ledger::{Sent, StreamId};
use flock_model::{Content, Members, Order, Phase, Piece, Rate};

/// What is remembered of a QoS 1 or 2 message until it is acknowledged, enough to send it again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    due_ns: u64,
    stream: StreamId,
    sequence: u32,
    command: u16,
}

/// A publish command under way.
#[derive(Debug)]
pub(super) struct Publishing {
    command: u16,
    active: bool,
    /// Number of the next message.
    next: u64,
    count: u64,
    start_ns: u64,
    rate: Option<Rate>,
    own: Members,
    /// Messages due by then were held back by the broker (window, congestion, reconnect): that
    /// they are late is not the tool's doing.
    excused_ns: u64,
    is_blocked: bool,
    /// Steps through the topics; goes on from command to command.
    walk: u64,
    heads: Vec<Head>,
}

/// A PUBLISH packet up to its payload, for one topic.
#[derive(Clone, Debug)]
struct Head {
    position: u64,
    stream: StreamId,
    copies: u32,
    topic: Sum,
    bytes: Vec<u8>,
    payload_bytes: usize,
    /// Where the packet identifier stands; 0 for QoS 0.
    id_at: usize,
    /// Where the correlation data of a request stand; 0 for what is no request.
    correlation_at: usize,
    /// The same with the topic's alias instead of its name.
    short: Option<(Vec<u8>, usize, usize)>,
    /// The connection that knows the alias.
    known_to: Option<u16>,
}

enum Pumped {
    Done,
    /// The next message is due then.
    Later(u64),
    /// Something will happen that lets us go on (acknowledgement, socket writable, reconnected).
    Blocked,
    /// Others have their turn first.
    Again,
    /// The broker said that it does not take such messages.
    Unfit(&'static str),
}

impl Client {
    pub(super) fn begin_publishing(&mut self, command: u16, ctx: &mut Context) {
        let publishing = self.publishing_of(command, ctx);
        ctx.tally.begin_publisher(publishing.per_sec());
        self.publishing = Some(Box::new(publishing));
        self.task.wait = Wait::Publishing;
    }

    fn publishing_of(&mut self, command: u16, ctx: &Context) -> Publishing {
        let planned = &ctx.plan.publishes[usize::from(command)];
        let clients = ctx.plan.scenario.group(self.group).count;
        let topics = ctx.plan.scenario.topic_group(planned.command.topics).count;
        let pace = planned.command.pace;
        let rate = ctx.pace.of(pace.rate);
        let phase_ns = match (rate, pace.phase) {
            (Some(rate), Phase::Spread) if clients > 0 => {
                let interval_ns = u128::from(rate.per_us) * 1_000 / u128::from(rate.count);
                (interval_ns * u128::from(self.index) / u128::from(clients)) as u64
            }
            _ => 0,
        };
        let (mut walk, mut heads) = (0, Vec::new());
        if let Some(before) = self.publishing.take() {
            walk = before.walk;
            if before.command == command {
                heads = before.heads;
            }
        }
        Publishing {
            command,
            active: true,
            next: 0,
            count: planned.command.count.unwrap_or(u64::MAX),
            start_ns: self.task.logical_ns() + phase_ns,
            rate,
            own: planned.command.assign.topics_of(self.index, clients, topics),
            excused_ns: 0,
            is_blocked: false,
            walk,
            heads,
        }
    }

    /// Sends what is due and can be sent.
    pub(super) fn pump(&mut self, ctx: &mut Context) {
        let Some(mut publishing) = self.publishing.take() else { return };
        let plan = Arc::clone(&ctx.plan);
        let planned = &plan.publishes[usize::from(publishing.command)];
        ctx.lend(&mut self.outbox);
        let outcome = self.pump_some(&mut publishing, planned, ctx);
        match outcome {
            Pumped::Done => {
                let last_ns = publishing.due_ns(publishing.next.saturating_sub(1));
                ctx.tally.end_publisher(publishing.per_sec());
                publishing.active = false;
                let now = ctx.now_ns();
                self.task.ready(last_ns.unwrap_or(now).max(self.task.logical_ns()));
            }
            Pumped::Later(due_ns) => self.wake_at(due_ns, ctx),
            Pumped::Again => ctx.again.push(self.at),
            Pumped::Unfit(why) => {
                self.publishing = Some(publishing);
                return self.give_up(why, ctx);
            }
            Pumped::Blocked => {
                publishing.is_blocked = true;
                if let Some(give_up_ns) = self.task.give_up_ns {
                    self.wake_at(give_up_ns, ctx);
                }
            }
        }
        self.publishing = Some(publishing);
    }

    fn pump_some(
        &mut self,
        publishing: &mut Publishing,
        planned: &PublishPlan,
        ctx: &mut Context,
    ) -> Pumped {
        if publishing.own.is_empty() {
            return Pumped::Done;
        }
        if let Some(why) = self.unfit(planned) {
            return Pumped::Unfit(why);
        }
        let mut now = ctx.now_ns();
        if std::mem::take(&mut publishing.is_blocked) {
            publishing.excused_ns = now;
        }
        for _ in 0..BURST_MAX {
            if publishing.next >= publishing.count {
                return Pumped::Done;
            }
            let due_ns = match publishing.due_ns(publishing.next) {
                None => now,
                Some(due_ns) => {
                    if due_ns > now {
                        now = ctx.now_ns();
                    }
                    if due_ns > now {
                        return Pumped::Later(due_ns);
                    }
                    due_ns
                }
            };
            if self.congested() {
                return Pumped::Blocked;
            }
            match self.send(publishing, planned, (due_ns, now), ctx) {
                Ok(()) => publishing.next += 1,
                Err(NotSent::PacketTooLarge) => return Pumped::Unfit(TOO_LARGE),
                Err(_) => return Pumped::Blocked,
            }
        }
        Pumped::Again
    }

    /// What a broker's CONNACK rules out is not sent (MQTT-3.2.2-11, MQTT-3.2.2-14).
    fn unfit(&self, planned: &PublishPlan) -> Option<&'static str> {
        if !self.machine.is_connected() {
            return None;
        }
        let qos = wire_qos(planned.command.qos);
        let retains = planned.command.retain && !self.machine.peer_retains();
        match () {
            () if qos > self.machine.peer_qos_max() => Some(QOS_TOO_HIGH),
            () if retains => Some(NOT_RETAINED),
            () => None,
        }
    }

    /// Appends one message. `(due, now)`.
    fn send(
        &mut self,
        publishing: &mut Publishing,
        planned: &PublishPlan,
        times: (u64, u64),
        ctx: &mut Context,
    ) -> Result<(), NotSent> {
        if !self.machine.is_connected() {
            return Err(NotSent::NotConnected);
        }
        let (due_ns, now_ns) = times;
        let command = &planned.command;
        let qos = wire_qos(command.qos);
        let window = command.pace.in_flight.unwrap_or(u16::MAX);
        let is_shut = qos != QoS::AtMostOnce && !self.machine.has_window(window);
        let is_request = command.reply_to.is_some();
        if is_shut || (is_request && !self.may_ask()) {
            return Err(NotSent::WindowFull);
        }
        let position = match command.order {
            Order::RoundRobin => publishing.walk % publishing.own.len(),
            Order::Random => ctx.random.below(publishing.own.len()),
        };
        publishing.walk += 1;
        let at = self.head_at(publishing, planned, position, ctx);
        let head = &mut publishing.heads[at];
        if head.packet_bytes() > self.machine.peer_packet_bytes_max() as usize {
            return Err(NotSent::PacketTooLarge);
        }
        if publishing.rate.is_some() && due_ns > publishing.excused_ns {
            ctx.tally.latency(LatencyKind::Lateness, 0, now_ns - due_ns);
        }
        let Some(sequence) = self.book(planned, head, now_ns, ctx) else {
            publishing.count = publishing.next;
            return Err(NotSent::WindowFull);
        };
        let flight = Flight { due_ns, stream: head.stream, sequence, command: publishing.command };
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => match self.machine.begin_publish(qos, flight, window) {
                Ok(packet_id) => packet_id,
                Err(refused) => {
                    // All identifiers are taken: the number is spent, and nobody promised it.
                    ctx.give_up_on(flight.stream, sequence, 0);
                    return Err(refused);
                }
            },
        };
        let start = self.outbox.len();
        let (id_at, correlation_at) = head.write(self.link_generation, &mut self.outbox);
        if is_request {
            let at = start + correlation_at;
            self.outbox[at..at + CORRELATION_BYTES]
                .copy_from_slice(&flight.correlation().to_be_bytes());
        }
        if packet_id != 0 {
            self.outbox[start + id_at..start + id_at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
        let topic = head.topic;
        self.append_payload(planned, &flight, topic, ctx);
        if is_request {
            self.ask(&flight, command.qos as u8, ctx);
        }
        if matches!(planned.command.payload.content, Content::RandomSize { .. }) {
            // Such a payload has a length of its own, and its head is made for it alone.
            publishing.heads.pop();
        }
        Ok(())
    }

    /// Counts a message, and gives its number in the stream; `None` when all numbers are used up.
    fn book(
        &self,
        planned: &PublishPlan,
        head: &Head,
        now_ns: u64,
        ctx: &mut Context,
    ) -> Option<u32> {
        let qos = planned.command.qos as u8;
        let mut sequence = 0;
        if planned.command.payload.stamped {
            let family = &ctx.plan.families[planned.family];
            let slot = self.slot as usize * family.stride as usize + head.position as usize;
            let sent = &mut ctx.sent[planned.family];
            if slot >= sent.len() {
                sent.resize(slot + 1, Sent::default());
            }
            let entry = &mut sent[slot];
            sequence = entry.count;
            if sequence >= ctx.stamps.sequences_max() {
                ctx.tally.totals.programs_cut_short += 1;
                let told = "a publisher stopped: its stream has no more sequence numbers";
                ctx.tally.error("publish", told, || self.id(&ctx.plan));
                return None;
            }
            entry.note(qos, now_ns, ctx.marks_max);
        }
        let tally = &mut ctx.tally;
        tally.totals.publishes_scheduled += 1;
        tally.totals.published[usize::from(qos)] += 1;
        tally.owed += u64::from(head.copies);
        Some(sequence)
    }

    fn append_payload(
        &mut self,
        planned: &PublishPlan,
        flight: &Flight,
        topic: Sum,
        ctx: &mut Context,
    ) {
        let bytes = self.payload_bytes(planned, flight);
        ctx.tally.totals.published_bytes += bytes as u64;
        write_payload(planned, flight, bytes, topic, self.index, ctx.stamps, &mut self.outbox);
    }

    /// The size of a message's payload: fixed, or drawn from stream and sequence so that a repeat
    /// is equal.
    fn payload_bytes(&self, planned: &PublishPlan, flight: &Flight) -> usize {
        match planned.command.payload.content {
            Content::RandomSize { bytes_min, bytes_max } => {
                let seed = u64::from(flight.stream) << 32 | u64::from(flight.sequence);
                let span = u64::from(bytes_max - bytes_min) + 1;
                bytes_min as usize + super::plan::Random::new(seed).below(span) as usize
            }
            _ => planned.filler.len(),
        }
    }

    /// Finds or makes the head for a topic; returns where it stands.
    fn head_at(
        &mut self,
        publishing: &mut Publishing,
        planned: &PublishPlan,
        position: u64,
        ctx: &mut Context,
    ) -> usize {
        let heads = &mut publishing.heads;
        if let Some(at) = heads.iter().position(|head| head.position == position) {
            return at;
        }
        if heads.len() >= HEADS_MAX {
            heads.swap_remove((position % HEADS_MAX as u64) as usize);
        }
        let topic = publishing.own.nth(position);
        let family = &ctx.plan.families[planned.family];
        let stream = family.base + self.index as u32 * family.stride + position as u32;
        let own = ctx.plan.own_copies((self.group, self.index), planned.command.topics, topic);
        let copies = ctx.copies(planned.command.topics, topic).saturating_sub(own);
        let random_size = matches!(planned.command.payload.content, Content::RandomSize { .. });
        let payload_bytes = if random_size {
            let sent = &ctx.sent[planned.family];
            let slot = self.slot as usize * ctx.plan.families[planned.family].stride as usize;
            let sequence = sent.get(slot + position as usize).map_or(0, |sent| sent.count);
            let flight = Flight { due_ns: 0, stream, sequence, command: publishing.command };
            self.payload_bytes(planned, &flight)
        } else {
            planned.filler.len()
        };
        let name = ctx.plan.scenario.topic_name(planned.command.topics, topic);
        let alias = u16::try_from(heads.len() + 1)
            .ok()
            .filter(|&alias| planned.command.topic_alias && alias <= self.machine.topic_alias_max())
            .filter(|_| publishing.own.len() <= HEADS_MAX as u64 && !random_size);
        let reply = self.reply_topic(&ctx.plan, publishing.command);
        let encode = |name: &str, alias: Option<u16>| {
            let with = (alias, reply.as_deref());
            encode_head(self.machine.version(), planned, name, with, payload_bytes)
        };
        let (bytes, id_at, correlation_at) = encode(&name, alias);
        let short = alias.map(|alias| encode("", Some(alias)));
        let sum = Sum::of(name.as_bytes());
        heads.push(Head {
            position,
            stream,
            copies,
            topic: sum,
            bytes,
            payload_bytes,
            id_at,
            correlation_at,
            short,
            known_to: None,
        });
        heads.len() - 1
    }

    // --- Acknowledgements and repeats

    pub(super) fn on_published(
        &mut self,
        flight: &Flight,
        qos: QoS,
        reason: Reason,
        now_ns: u64,
        ctx: &mut Context,
    ) {
        ctx.tally.totals.pubacks_received += u64::from(qos == QoS::AtLeastOnce);
        if flight.is_answer() {
            if reason.is_error() {
                let text = format!("refused: {reason} (0x{:02X})", reason.0);
                ctx.tally.error("answer", &text, || self.id(&ctx.plan));
            }
            return;
        }
        if reason.is_error() {
            ctx.tally.totals.publishes_refused += 1;
            if ctx.tally.was_measured(flight.due_ns) {
                ctx.tally.missing(LatencyKind::PublishAck, qos as u8);
            }
            // What was refused may still have reached some subscribers, so that it stays owed: a
            // drain that waits too long does no harm, one that ends too early invents losses.
            ctx.give_up_on(flight.stream, flight.sequence, 0);
            let text = format!("refused: {reason} (0x{:02X})", reason.0);
            ctx.tally.error("publish", &text, || self.id(&ctx.plan));
            return;
        }
        ctx.tally.acknowledged(now_ns);
        if reason == Reason::NO_MATCHING_SUBSCRIBERS {
            ctx.tally.totals.acknowledged_no_subscribers += 1;
            ctx.note_unheard(flight.stream, flight.sequence);
        }
        ctx.tally.message_latency(LatencyKind::PublishAck, qos as u8, flight.due_ns, now_ns);
    }

    /// The session is there: repeats what was not acknowledged, with its identifiers.
    pub(super) fn repeat_open(&mut self, ctx: &mut Context) {
        let plan = Arc::clone(&ctx.plan);
        let mut outbox = std::mem::take(&mut self.outbox);
        for open in self.machine.unacknowledged() {
            match open {
                // Who asked it asks no more, or was answered.
                Unacknowledged::Publish { token, .. } if token.is_answer() => {}
                Unacknowledged::Publish { packet_id, token, .. } => {
                    ctx.tally.totals.publishes_repeated += 1;
                    ctx.resent.push((token.stream, token.sequence));
                    self.encode_again(token, (true, packet_id), &plan, ctx.stamps, &mut outbox);
                }
                Unacknowledged::Pubrel { packet_id, .. } => {
                    self.machine.repeat_pubrel(packet_id, &mut outbox);
                }
            }
        }
        self.outbox = outbox;
    }

    /// The session is gone: what was not acknowledged is sent as new.
    pub(super) fn publish_forgotten(&mut self, forgotten: Vec<Flight>, ctx: &mut Context) {
        let plan = Arc::clone(&ctx.plan);
        for flight in forgotten.into_iter().filter(|flight| !flight.is_answer()) {
            let qos = wire_qos(plan.publishes[usize::from(flight.command)].command.qos);
            match self.machine.begin_publish(qos, flight, u16::MAX) {
                Ok(packet_id) => {
                    ctx.tally.totals.publishes_repeated += 1;
                    ctx.resent.push((flight.stream, flight.sequence));
                    let mut outbox = std::mem::take(&mut self.outbox);
                    self.encode_again(&flight, (false, packet_id), &plan, ctx.stamps, &mut outbox);
                    self.outbox = outbox;
                }
                // The new window is smaller than the old one.
                Err(_) => ctx.give_up_on(flight.stream, flight.sequence, 0),
            }
        }
    }

    fn encode_again(
        &self,
        flight: &Flight,
        (dup, packet_id): (bool, u16),
        plan: &super::plan::Plan,
        stamps: Stamps,
        out: &mut Vec<u8>,
    ) {
        let planned = &plan.publishes[usize::from(flight.command)];
        let Some((topics, index)) = plan.topic_of(flight.stream) else { return };
        let topic = plan.scenario.topic_name(topics, index);
        let mut payload = Vec::new();
        let (bytes, sum) = (self.payload_bytes(planned, flight), Sum::of(topic.as_bytes()));
        write_payload(planned, flight, bytes, sum, self.index, stamps, &mut payload);
        let mut properties = PropertyBuf::new();
        if self.machine.version() == codec::Version::V5 {
            let (reply, correlation) =
                (self.reply_topic(plan, flight.command), flight.correlation().to_be_bytes());
            let reply = reply.as_deref().map(|reply| (reply, &correlation));
            push_properties(&planned.command, reply, &mut properties);
        }
        let publish = codec::Publish {
            dup,
            qos: wire_qos(planned.command.qos),
            retain: planned.command.retain,
            topic: &topic,
            packet_id,
            properties: properties.as_properties(),
            payload: &payload,
        };
        publish.encode(self.machine.version(), out);
    }

    /// The stage is over: what was due by then and was held back has a little more time to be sent.
    /// `false` if there is nothing such.
    pub(super) fn catch_up(&mut self, ctx: &mut Context) -> bool {
        let is_reachable = self.is_reachable();
        let (Some(end_ns), Some(publishing)) = (ctx.stage_end_ns, &mut self.publishing) else {
            return false;
        };
        if !publishing.active || publishing.rate.is_none() || !is_reachable {
            return false;
        }
        // A run that is cut short ends before its stage does.
        let due = publishing.due_by(end_ns.min(ctx.clock.now_ns()));
        publishing.count = due.max(publishing.next);
        if publishing.next >= publishing.count {
            return false;
        }
        self.task.give_up_ns = Some(ctx.now_ns() + CATCH_UP_NS_MAX);
        ctx.again.push(self.at);
        true
    }

    /// Stops where it is; what was due by now, or by the end of the stage if that has passed, and
    /// was not sent counts as skipped. In a closed loop nothing is due.
    pub(super) fn stop_publishing(&mut self, ctx: &mut Context) {
        if let Some(publishing) = self.publishing.as_mut().filter(|one| one.rate.is_none()) {
            publishing.active = false;
        }
        let until_ns = ctx.now_ns().min(ctx.stage_end_ns.unwrap_or(u64::MAX));
        let Some(publishing) = &mut self.publishing else { return };
        if std::mem::take(&mut publishing.active) {
            ctx.tally.end_publisher(publishing.per_sec());
            skip(publishing, until_ns, ctx);
        }
    }

    /// Stops for good, and counts all that the stage had still planned as skipped.
    pub(super) fn abandon_publishing(&mut self, ctx: &mut Context) {
        let Some(publishing) = &mut self.publishing else { return };
        if std::mem::take(&mut publishing.active) {
            cut_off(publishing, ctx);
        }
    }

    /// A publish command that will not be begun in this stage.
    pub(super) fn skip_publishing(&mut self, command: u16, ctx: &mut Context) {
        let publishing = self.publishing_of(command, ctx);
        ctx.tally.begin_publisher(publishing.per_sec());
        cut_off(&publishing, ctx);
    }

    /// Messages without an acknowledgement at the end of the run. Those of which only the last word
    /// is missing (PUBCOMP) were promised all the same.
    pub(super) fn unacknowledged(&mut self, ctx: &mut Context) {
        let now_ns = ctx.now_ns();
        for open in self.machine.unacknowledged() {
            let (token, is_taken) = match open {
                Unacknowledged::Publish { token, .. } => (token, false),
                Unacknowledged::Pubrel { token, .. } => (token, true),
            };
            if token.is_answer() {
                continue;
            }
            let waited_ns = if ctx.tally.was_measured(token.due_ns) {
                now_ns.saturating_sub(token.due_ns)
            } else {
                0
            };
            let qos = ctx.plan.publishes[usize::from(token.command)].command.qos as u8;
            if waited_ns > 0 {
                ctx.tally.unfinished(LatencyKind::PublishAck, qos, waited_ns, 1);
            }
            if is_taken {
                ctx.ledger.uncompleted += 1;
            } else {
                ctx.give_up_on(token.stream, token.sequence, waited_ns);
            }
        }
    }
}

impl Flight {
    /// Of an answer, which belongs to no command.
    pub(super) fn answer(now_ns: u64) -> Self {
        Self { due_ns: now_ns, stream: 0, sequence: 0, command: ANSWER }
    }

    fn is_answer(&self) -> bool {
        self.command == ANSWER
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// The correlation data of a request: no two of a run have the same.
    pub(super) fn correlation(&self) -> u64 {
        correlation(self.stream, self.sequence)
    }

    fn stamp(&self) -> Stamp {
        Stamp { due_ns: self.due_ns, stream: self.stream, sequence: self.sequence }
    }
}

/// The correlation data of the request with this number in its stream.
pub(super) fn correlation(stream: StreamId, sequence: u32) -> u64 {
    u64::from(stream) << 32 | u64::from(sequence)
}

/// All that was still planned will not be sent, and stays due.
fn cut_off(publishing: &Publishing, ctx: &mut Context) {
    let end_ns = ctx.planned_end_ns();
    let until_ns = publishing.last_due_ns().map_or(end_ns, |last_ns| end_ns.min(last_ns));
    match until_ns > ctx.now_ns() && until_ns < u64::MAX && !publishing.own.is_empty() {
        true => ctx.tally.cut_publisher_off(publishing.per_sec(), until_ns),
        false => ctx.tally.end_publisher(publishing.per_sec()),
    }
    skip(publishing, end_ns, ctx);
}

/// Counts what was due by `until_ns` and was never sent. Its latency is what it has waited, or will
/// have by then, at least.
fn skip(publishing: &Publishing, until_ns: u64, ctx: &mut Context) {
    let due = publishing.due_by(until_ns);
    let skipped = due.saturating_sub(publishing.next);
    if skipped == 0 || publishing.own.is_empty() {
        return;
    }
    ctx.tally.totals.publishes_skipped += skipped;
    ctx.tally.totals.publishes_scheduled += skipped;
    if publishing.rate.is_none() || until_ns == u64::MAX {
        // They were not due at any known time.
        return;
    }
    let plan = Arc::clone(&ctx.plan);
    let command = &plan.publishes[usize::from(publishing.command)].command;
    let topic = publishing.own.nth(publishing.walk % publishing.own.len());
    let copies = u64::from(ctx.copies(command.topics, topic));
    let heard = plan.heard_at(command.topics, topic, command.qos);
    let seen_ns = until_ns.max(ctx.now_ns());
    // Long waits are told in steps, each message with the wait of the youngest of its step.
    let step = skipped.div_ceil(SKIPPED_STEPS);
    let mut from = publishing.next;
    while from < due {
        let to = (from + step).min(due);
        let due_ns = publishing.due_ns(to - 1).unwrap_or(until_ns);
        if ctx.tally.was_measured(due_ns) {
            let waited_ns = seen_ns.saturating_sub(due_ns);
            if command.qos != flock_model::QoS::AtMostOnce {
                let kind = LatencyKind::PublishAck;
                ctx.tally.unfinished(kind, command.qos as u8, waited_ns, to - from);
            }
            if let Some((kind, qos)) = heard {
                ctx.tally.unfinished(kind, qos, waited_ns, (to - from) * copies);
            }
        }
        from = to;
    }
}

impl Publishing {
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Of its schedule; 0 in a closed loop.
    fn per_sec(&self) -> f64 {
        self.rate.map_or(0.0, Rate::per_sec)
    }

    /// When the last of a known number of messages is due.
    fn last_due_ns(&self) -> Option<u64> {
        if self.count == u64::MAX { None } else { self.due_ns(self.count.saturating_sub(1)) }
    }

    /// How many messages are due before this time; all, where a closed loop decides.
    fn due_by(&self, at_ns: u64) -> u64 {
        let Some(rate) = self.rate else {
            // Without an end there is no number that was planned.
            return if self.count == u64::MAX { self.next } else { self.count };
        };
        let elapsed_ns = u128::from(at_ns.saturating_sub(self.start_ns));
        let interval_ns = u128::from(rate.per_us) * 1_000;
        let due = (elapsed_ns * u128::from(rate.count)).div_ceil(interval_ns);
        u64::try_from(due).unwrap_or(u64::MAX).min(self.count)
    }

    /// When message `k` is due; `None` in a closed loop, where that is when it can be sent.
    #[inline]
    fn due_ns(&self, k: u64) -> Option<u64> {
        let rate = self.rate?;
        let offset_ns = u128::from(k) * u128::from(rate.per_us) * 1_000 / u128::from(rate.count);
        Some(self.start_ns + offset_ns as u64)
    }
}

impl Head {
    /// Of the whole packet, at most.
    fn packet_bytes(&self) -> usize {
        self.bytes.len() + self.payload_bytes
    }

    /// Appends the head; returns where in it the packet identifier and the correlation data stand.
    #[inline]
    fn write(&mut self, connection: u16, out: &mut Vec<u8>) -> (usize, usize) {
        if let Some((short, id_at, correlation_at)) = &self.short {
            if self.known_to == Some(connection) {
                out.extend_from_slice(short);
                return (*id_at, *correlation_at);
            }
            self.known_to = Some(connection);
        }
        out.extend_from_slice(&self.bytes);
        (self.id_at, self.correlation_at)
    }
}

/// Appends the payload of a message, which is the same whenever it is sent.
#[inline]
fn write_payload(
    planned: &PublishPlan,
    flight: &Flight,
    bytes: usize,
    topic: Sum,
    client: u64,
    stamps: Stamps,
    out: &mut Vec<u8>,
) {
    let payload = &planned.command.payload;
    let filler = &planned.filler[..bytes];
    let start = out.len();
    let is_stamped = payload.stamped && bytes >= STAMP_BYTES;
    if let Content::Composed { pieces, .. } = &payload.content {
        for piece in pieces {
            match piece {
                Piece::Bytes(text) => out.extend_from_slice(text),
                Piece::Time(unit) => {
                    let digits = unit.digits(stamps.wall_ns_at(flight.due_ns()));
                    out.extend_from_slice(digits.as_bytes());
                }
                Piece::Client(names) => {
                    out.extend_from_slice(names.name(client).as_bytes());
                }
            }
        }
        out.resize(start + bytes, b' ');
        if is_stamped {
            let rest = Sum::of(&out[start + STAMP_BYTES..]);
            let stamp = stamps.write(flight.stamp(), topic, rest);
            out[start..start + STAMP_BYTES].copy_from_slice(&stamp);
        }
    } else if is_stamped {
        out.extend_from_slice(&stamps.write(flight.stamp(), topic, planned.rest_of(bytes)));
        out.extend_from_slice(&filler[STAMP_BYTES..]);
    } else {
        out.extend_from_slice(filler);
    }
}

/// No command has this number.
const ANSWER: u16 = u16::MAX;
const QOS_TOO_HIGH: &str = "not sent: the QoS is above the maximum QoS of the CONNACK";
const NOT_RETAINED: &str = "not sent: the CONNACK says that retain is not available";
const TOO_LARGE: &str = "not sent: the message is larger than the maximum packet size of the \
     CONNACK";
/// Messages of one client in one go, before others have their turn.
const BURST_MAX: usize = 2_048;
/// What was due in a stage and held back may be sent for so long after its end.
pub(super) const CATCH_UP_NS_MAX: u64 = 1_000_000_000;
/// Steps in which the waits of messages are told that were never sent.
const SKIPPED_STEPS: u64 = 1_000;
/// Topics per client whose packet heads are kept.
const HEADS_MAX: usize = 16;
