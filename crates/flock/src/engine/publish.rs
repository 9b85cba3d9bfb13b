//! Publishing: the schedule of one client's messages, and how they are put on the wire cheaply.
//!
//! With a rate the loop is open: message `k` is due at its time whatever happens, and that time
//! travels in the payload. A message that cannot be sent then (window full, socket congested,
//! reconnecting) keeps its due time and is sent as soon as it can be: what the broker makes its
//! publishers wait is latency.

use std::sync::Arc;

use client::{NotSent, Unacknowledged};
use codec::{Properties, Property, PropertyBuf, QoS, Reason};

use super::client::Client;
use super::lane::Lane;
use super::plan::PublishPlan;
use super::stamp::{STAMP_BYTES, Stamp};
use super::task::{Wait, wire_qos};
use crate::measure::LatencyKind;
use crate::measure::ledger::{Sent, StreamId};
use crate::model::{Content, Members, Order, Phase, Rate};

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
    bytes: Vec<u8>,
    /// Where the packet identifier stands; 0 for QoS 0.
    id_at: usize,
    /// The same with the topic's alias instead of its name.
    short: Option<(Vec<u8>, usize)>,
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
}

impl Client {
    pub(super) fn begin_publishing(&mut self, command: u16, lane: &mut Lane) {
        let planned = &lane.plan.publishes[usize::from(command)];
        let clients = lane.plan.scenario.group(self.group).count;
        let topics = lane.plan.scenario.topic_group(planned.command.topics).count;
        let pace = planned.command.pace;
        let rate = lane.pace.of(pace.rate);
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
        lane.tally.wanted_per_sec += rate.map_or(0.0, Rate::per_sec);
        self.publishing = Some(Box::new(Publishing {
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
        }));
        self.task.wait = Wait::Publishing;
    }

    /// Sends what is due and can be sent.
    pub(super) fn pump(&mut self, lane: &mut Lane) {
        let Some(mut publishing) = self.publishing.take() else { return };
        let plan = Arc::clone(&lane.plan);
        let planned = &plan.publishes[usize::from(publishing.command)];
        lane.lend(&mut self.outbox);
        let outcome = self.pump_some(&mut publishing, planned, lane);
        match outcome {
            Pumped::Done => {
                let last_ns = publishing.due_ns(publishing.next.saturating_sub(1));
                lane.tally.wanted_per_sec -= publishing.rate.map_or(0.0, Rate::per_sec);
                publishing.active = false;
                let now = lane.now_ns();
                self.task.ready(last_ns.unwrap_or(now).max(self.task.logical_ns()));
            }
            Pumped::Later(due_ns) => self.wake_at(due_ns, lane),
            Pumped::Again => lane.again.push(self.at),
            Pumped::Blocked => publishing.is_blocked = true,
        }
        self.publishing = Some(publishing);
    }

    fn pump_some(
        &mut self,
        publishing: &mut Publishing,
        planned: &PublishPlan,
        lane: &mut Lane,
    ) -> Pumped {
        if publishing.own.is_empty() {
            return Pumped::Done;
        }
        let mut now = lane.now_ns();
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
                        now = lane.now_ns();
                    }
                    if due_ns > now {
                        return Pumped::Later(due_ns);
                    }
                    due_ns
                }
            };
            if self.congested() || self.send(publishing, planned, (due_ns, now), lane).is_err() {
                return Pumped::Blocked;
            }
            publishing.next += 1;
        }
        Pumped::Again
    }

    /// Appends one message. `(due, now)`.
    fn send(
        &mut self,
        publishing: &mut Publishing,
        planned: &PublishPlan,
        times: (u64, u64),
        lane: &mut Lane,
    ) -> Result<(), NotSent> {
        if !self.machine.is_connected() {
            return Err(NotSent::NotConnected);
        }
        let (due_ns, now_ns) = times;
        let command = &planned.command;
        let qos = wire_qos(command.qos);
        let window = command.pace.in_flight.unwrap_or(u16::MAX);
        if qos != QoS::AtMostOnce && !self.machine.has_window(window) {
            return Err(NotSent::WindowFull);
        }
        let position = match command.order {
            Order::RoundRobin => publishing.walk % publishing.own.len(),
            Order::Random => lane.random.below(publishing.own.len()),
        };
        publishing.walk += 1;
        let at = self.head_at(publishing, planned, position, lane);
        let head = &mut publishing.heads[at];
        if publishing.rate.is_some() && due_ns > publishing.excused_ns {
            lane.tally.latency(LatencyKind::Lateness, 0, now_ns - due_ns);
        }
        let sequence = self.book(planned, head, now_ns, lane);
        let flight = Flight { due_ns, stream: head.stream, sequence, command: publishing.command };
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => match self.machine.begin_publish(qos, flight, window) {
                Ok(packet_id) => packet_id,
                Err(refused) => {
                    // All identifiers are taken: the number is spent, and nobody promised it.
                    lane.unpromised.push((flight.stream, sequence));
                    return Err(refused);
                }
            },
        };
        let start = self.outbox.len();
        let id_at = head.write(self.link_generation, &mut self.outbox);
        if packet_id != 0 {
            self.outbox[start + id_at..start + id_at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
        self.append_payload(planned, &flight, lane);
        if matches!(planned.command.payload.content, Content::RandomSize { .. }) {
            // Such a payload has a length of its own, and its head is made for it alone.
            publishing.heads.pop();
        }
        Ok(())
    }

    /// Counts a message, and gives its number in the stream.
    fn book(&mut self, planned: &PublishPlan, head: &Head, now_ns: u64, lane: &mut Lane) -> u32 {
        let qos = planned.command.qos as u8;
        let tally = &mut lane.tally;
        tally.totals.publishes_scheduled += 1;
        tally.totals.published[usize::from(qos)] += 1;
        tally.owed += u64::from(head.copies);
        if !planned.command.payload.stamped {
            return 0;
        }
        let family = &lane.plan.families[planned.family];
        let slot = self.slot as usize * family.stride as usize + head.position as usize;
        let sent = &mut lane.sent[planned.family];
        if slot >= sent.len() {
            sent.resize(slot + 1, Sent::default());
        }
        let entry = &mut sent[slot];
        if entry.count == 0 {
            entry.first_ns = now_ns;
        }
        entry.qos = qos;
        entry.last_ns = now_ns;
        entry.count += 1;
        entry.count - 1
    }

    fn append_payload(&mut self, planned: &PublishPlan, flight: &Flight, lane: &mut Lane) {
        let bytes = self.payload_bytes(planned, flight);
        lane.tally.totals.published_bytes += bytes as u64;
        let filler = &planned.filler[..bytes];
        if planned.command.payload.stamped && bytes >= STAMP_BYTES {
            let stamp = Stamp {
                tag: lane.tag,
                due_ns: flight.due_ns,
                stream: flight.stream,
                sequence: flight.sequence,
            };
            self.outbox.extend_from_slice(&stamp.to_bytes());
            self.outbox.extend_from_slice(&filler[STAMP_BYTES..]);
        } else {
            self.outbox.extend_from_slice(filler);
        }
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
        lane: &mut Lane,
    ) -> usize {
        let heads = &mut publishing.heads;
        if let Some(at) = heads.iter().position(|head| head.position == position) {
            return at;
        }
        if heads.len() >= HEADS_MAX {
            heads.swap_remove((position % HEADS_MAX as u64) as usize);
        }
        let topic = publishing.own.nth(position);
        let family = &lane.plan.families[planned.family];
        let stream = family.base + self.index as u32 * family.stride + position as u32;
        let copies = lane.copies(planned.command.topics, topic);
        let random_size = matches!(planned.command.payload.content, Content::RandomSize { .. });
        let payload_bytes = if random_size {
            let sent = &lane.sent[planned.family];
            let slot = self.slot as usize * lane.plan.families[planned.family].stride as usize;
            let sequence = sent.get(slot + position as usize).map_or(0, |sent| sent.count);
            let flight = Flight { due_ns: 0, stream, sequence, command: publishing.command };
            self.payload_bytes(planned, &flight)
        } else {
            planned.filler.len()
        };
        let name = lane.plan.scenario.topic_name(planned.command.topics, topic);
        let alias = u16::try_from(heads.len() + 1)
            .ok()
            .filter(|&alias| planned.command.topic_alias && alias <= self.machine.topic_alias_max())
            .filter(|_| publishing.own.len() <= HEADS_MAX as u64 && !random_size);
        let encode = |name: &str, alias: Option<u16>| {
            encode_head(self.machine.version(), planned, name, alias, payload_bytes)
        };
        let (bytes, id_at) = encode(&name, alias);
        let short = alias.map(|alias| encode("", Some(alias)));
        heads.push(Head { position, stream, copies, bytes, id_at, short, known_to: None });
        heads.len() - 1
    }

    // --- Acknowledgements and repeats

    pub(super) fn on_published(
        &mut self,
        flight: &Flight,
        qos: QoS,
        reason: Reason,
        now_ns: u64,
        lane: &mut Lane,
    ) {
        let waited_ns = now_ns.saturating_sub(flight.due_ns);
        if reason.is_error() {
            lane.tally.totals.publishes_refused += 1;
            // What was refused may still have reached some subscribers, so that it stays owed: a
            // drain that waits too long does no harm, one that ends too early invents losses.
            lane.unpromised.push((flight.stream, flight.sequence));
            let text = format!("refused: {reason} (0x{:02x})", reason.0);
            lane.tally.error("publish", &text, || self.id(&lane.plan));
            return;
        }
        lane.tally.totals.acknowledged += 1;
        if reason == Reason::NO_MATCHING_SUBSCRIBERS {
            lane.tally.totals.acknowledged_no_subscribers += 1;
        }
        lane.tally.latency(LatencyKind::PublishAck, qos as u8, waited_ns);
    }

    /// The session is there: repeats what was not acknowledged, with its identifiers.
    pub(super) fn repeat_open(&mut self, lane: &mut Lane) {
        let plan = Arc::clone(&lane.plan);
        let mut outbox = std::mem::take(&mut self.outbox);
        for open in self.machine.unacknowledged() {
            match open {
                Unacknowledged::Publish { packet_id, token, .. } => {
                    lane.tally.totals.publishes_repeated += 1;
                    self.encode_again(token, (true, packet_id), &plan, lane.tag, &mut outbox);
                }
                Unacknowledged::Pubrel { packet_id } => {
                    self.machine.repeat_pubrel(packet_id, &mut outbox);
                }
            }
        }
        self.outbox = outbox;
    }

    /// The session is gone: what was not acknowledged is sent as new.
    pub(super) fn publish_forgotten(&mut self, forgotten: Vec<Flight>, lane: &mut Lane) {
        let plan = Arc::clone(&lane.plan);
        for flight in forgotten {
            let qos = wire_qos(plan.publishes[usize::from(flight.command)].command.qos);
            match self.machine.begin_publish(qos, flight, u16::MAX) {
                Ok(packet_id) => {
                    lane.tally.totals.publishes_repeated += 1;
                    let mut outbox = std::mem::take(&mut self.outbox);
                    self.encode_again(&flight, (false, packet_id), &plan, lane.tag, &mut outbox);
                    self.outbox = outbox;
                }
                // The new window is smaller than the old one.
                Err(_) => lane.unpromised.push((flight.stream, flight.sequence)),
            }
        }
    }

    fn encode_again(
        &self,
        flight: &Flight,
        (dup, packet_id): (bool, u16),
        plan: &super::plan::Plan,
        tag: u16,
        out: &mut Vec<u8>,
    ) {
        let planned = &plan.publishes[usize::from(flight.command)];
        let Some((topics, index)) = plan.topic_of(flight.stream) else { return };
        let mut payload = planned.filler[..self.payload_bytes(planned, flight)].to_vec();
        if planned.command.payload.stamped && payload.len() >= STAMP_BYTES {
            let stamp = Stamp {
                tag,
                due_ns: flight.due_ns,
                stream: flight.stream,
                sequence: flight.sequence,
            };
            payload[..STAMP_BYTES].copy_from_slice(&stamp.to_bytes());
        }
        let publish = codec::Publish {
            dup,
            qos: wire_qos(planned.command.qos),
            retain: planned.command.retain,
            topic: &plan.scenario.topic_name(topics, index),
            packet_id,
            properties: Properties::EMPTY,
            payload: &payload,
        };
        publish.encode(self.machine.version(), out);
    }

    /// Stops where it is; what was due by now and not sent is counted as skipped.
    pub(super) fn stop_publishing(&mut self, lane: &mut Lane) {
        let now = lane.now_ns();
        let Some(publishing) = &mut self.publishing else { return };
        if !std::mem::take(&mut publishing.active) {
            return;
        }
        if let Some(rate) = publishing.rate {
            lane.tally.wanted_per_sec -= rate.per_sec();
            let elapsed_us = u128::from(now.saturating_sub(publishing.start_ns)) / 1_000;
            let due = elapsed_us * u128::from(rate.count) / u128::from(rate.per_us);
            let due = (due as u64).min(publishing.count);
            let skipped = due.saturating_sub(publishing.next);
            lane.tally.totals.publishes_skipped += skipped;
            lane.tally.totals.publishes_scheduled += skipped;
        }
    }

    /// Messages without an acknowledgement at the end of the run.
    pub(super) fn unacknowledged(&mut self, lane: &mut Lane) {
        for open in self.machine.unacknowledged() {
            if let Unacknowledged::Publish { token, .. } = open {
                lane.unpromised.push((token.stream, token.sequence));
            }
        }
    }
}

impl Publishing {
    /// When message `k` is due; `None` in a closed loop, where that is when it can be sent.
    #[inline]
    fn due_ns(&self, k: u64) -> Option<u64> {
        let rate = self.rate?;
        let offset_ns = u128::from(k) * u128::from(rate.per_us) * 1_000 / u128::from(rate.count);
        Some(self.start_ns + offset_ns as u64)
    }
}

impl Head {
    /// Appends the head; returns where in it the packet identifier stands.
    #[inline]
    fn write(&mut self, connection: u16, out: &mut Vec<u8>) -> usize {
        if let Some((short, id_at)) = &self.short {
            if self.known_to == Some(connection) {
                out.extend_from_slice(short);
                return *id_at;
            }
            self.known_to = Some(connection);
        }
        out.extend_from_slice(&self.bytes);
        self.id_at
    }
}

/// A PUBLISH without its payload, and where its packet identifier stands.
fn encode_head(
    version: codec::Version,
    planned: &PublishPlan,
    topic: &str,
    alias: Option<u16>,
    payload_bytes: usize,
) -> (Vec<u8>, usize) {
    let command = &planned.command;
    let mut properties = PropertyBuf::new();
    if version == codec::Version::V5 {
        if let Some(secs) = command.expiry_secs {
            properties.push(Property::MessageExpirySecs(secs));
        }
        if let Some(alias) = alias {
            properties.push(Property::TopicAlias(alias));
        }
        for (name, value) in &command.user_properties {
            properties.push(Property::User(name, value));
        }
    }
    let qos = wire_qos(command.qos);
    let publish = codec::Publish {
        dup: false,
        qos,
        retain: command.retain,
        topic,
        packet_id: u16::from(qos != QoS::AtMostOnce),
        properties: properties.as_properties(),
        payload: &planned.filler[..payload_bytes],
    };
    let mut bytes = Vec::new();
    publish.encode_head(version, &mut bytes);
    (bytes, publish.packet_id_at(version).unwrap_or(0))
}

/// Messages of one client in one go, before others have their turn.
const BURST_MAX: usize = 2_048;
/// Topics per client whose packet heads are kept.
const HEADS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Assign, Pace, Payload, Publish, TopicsId};

    #[test]
    fn properties_go_with_every_message_of_mqtt_5_only() {
        let command = Publish {
            topics: TopicsId(0),
            assign: Assign::Pairwise,
            order: Order::RoundRobin,
            qos: crate::model::QoS::AtMostOnce,
            retain: false,
            payload: Payload::filler(16),
            expiry_secs: Some(60),
            count: None,
            pace: Pace { rate: None, phase: Phase::Spread, in_flight: None },
            topic_alias: false,
            user_properties: vec![("k".into(), "v".into())],
        };
        let planned = PublishPlan { command, family: 0, filler: vec![0; 16] };
        let head = |version| encode_head(version, &planned, "t", None, 16).0;
        assert_eq!(head(codec::Version::V311), b"\x30\x13\x00\x01t");
        let properties = b"\x0c\x02\x00\x00\x00\x3c\x26\x00\x01k\x00\x01v";
        let expected = [b"\x30\x20\x00\x01t".as_slice(), properties].concat();
        assert_eq!(head(codec::Version::V5), expected);
    }
}
