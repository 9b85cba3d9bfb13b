//! What comes from connections: bytes, and the packets in them.

use std::sync::Arc;

use codec::{AckKind, Packet, Reason, Sender, Violation};
use session::{Acked, NEVER, PauseReason, large_packet_len};

use crate::parts::client::Pace;
use crate::parts::flow::{PAUSE_MS, SMALL_BYTES_MAX};
use crate::parts::taken::Taken;
use crate::publish::check::check;
use crate::words::expected::Expected;
use crate::words::input::{Input, Rest};
use crate::words::settings::OUTBOX_BYTES_MIN;
use crate::{Ended, Shard};

impl Shard {
    /// Bytes came from a connection. They may hold any part of any number of packets. After a
    /// pause call it even without bytes: some may have been put aside.
    pub fn on_bytes(&mut self, slot: u32, connection: u64, bytes: &[u8], now_ms: u64) -> Rest {
        self.cx.now_ms = now_ms;
        let has_no_more = self.cx.flow.work.has_no_more();
        // The driver has not heard yet that the connection has ended.
        let Some(link) = self.sessions.link(slot, connection) else { return Rest::Nothing };
        let has_to_wait = has_no_more && !link.is_lost;
        // A client whose packets wait here, put aside, is not silent: we do not listen.
        if !bytes.is_empty() || !link.inbox.is_empty() {
            link.last_packet_ms = now_ms;
        }
        let unread = link.outbox.len();
        if has_to_wait && (link.asks_for_much || bytes.len() > SMALL_BYTES_MAX) {
            if let Some(client) = self.sessions.get_mut(slot) {
                client.wait_for_turn(&mut self.cx);
            }
            return self.sessions.put_aside(slot, connection, bytes);
        }
        let rest = if link.inbox.is_empty() {
            let taken = self.on_packets(slot, connection, Input::of(bytes));
            self.sessions.put_aside(slot, connection, &bytes[taken.bytes..])
        } else {
            self.on_more_bytes(slot, connection, bytes)
        };
        if unread >= OUTBOX_BYTES_MIN
            && let Some(client) = self.sessions.connected(slot, connection)
        {
            client.check_reading(&mut self.cx, unread);
        }
        self.finish();
        rest
    }

    /// Handles the whole packets at the front of the bytes.
    pub(crate) fn on_packets(&mut self, slot: u32, connection: u64, input: Input<'_>) -> Taken {
        let Input { bytes, memory } = input;
        self.cx.flow.work.begin();
        // The topic is that of the latest PUBLISH.
        let (mut taken, mut topic) = (self.taken_from(slot, connection), "");
        while taken.bytes < bytes.len() && !self.cx.flow.work.is_spent() {
            let Self { cx, sessions, log, groups, .. } = self;
            let found = sessions.with_index(slot).filter(|(c, _)| c.connection == connection);
            let Some((client, router)) = found else { break };
            let Some(link) = client.session.link() else { break };
            if link.is_refusing() {
                // It is sent again with the next connection, like all behind what was refused.
                taken.bytes = bytes.len();
                break;
            }
            // The last packets of a connection that is gone cannot come later.
            let may_wait = !link.is_lost;
            let max = client.limits.packet_bytes_max;
            let rest = &bytes[taken.bytes..];
            let decoded = codec::decode_behind(topic, rest, link.version(), Sender::Client, max);
            // By reference: a packet is large to move.
            let (packet, packet_len) = match &decoded {
                Ok(Some((packet, packet_len))) => (packet, *packet_len),
                Ok(None) | Err(_) => {
                    let too_long = || client.limits.too_long_request(rest);
                    let violation = decoded.as_ref().err().copied().or_else(too_long);
                    let ended = violation.map(Ended::Violation);
                    ended.into_iter().for_each(|it| self.end_noted(slot, &mut taken, bytes, it));
                    break;
                }
            };
            let outcome = if let Packet::Publish(publish) = packet {
                let arrived = (publish, packet_len, bytes.len());
                if client.has_to_come_later(cx, log.as_deref(), groups, router, arrived, may_wait) {
                    break;
                }
                topic = publish.topic;
                let checked = check(client, cx, log.as_deref(), publish, memory);
                checked.and_then(|checked| self.publish(slot, publish, checked))
            } else {
                if may_wait && self.goes_on_later(slot, (packet, packet_len)) {
                    break;
                }
                self.on_packet(slot, rest[0], packet).map(|()| Pace::default())
            };
            taken.count(packet, packet_len);
            let pace = match outcome {
                Ok(pace) => pace,
                Err(ended) => {
                    self.end_noted(slot, &mut taken, bytes, ended);
                    break;
                }
            };
            if !self.cx.doomed.is_empty() {
                self.finish();
            }
            // The rest waits until the subscriber has caught up.
            if pace.pause_ms > 0 && may_wait && self.pause(slot, pace, taken.is_burst(bytes)) {
                taken.is_paused = true;
                break;
            }
        }
        self.note_taken(slot, &mut taken, bytes);
        let Some(client) = self.sessions.connected(slot, connection) else {
            self.cx.flow.work.end();
            return taken;
        };
        taken.is_paused |= client.note_taken(&mut self.cx, &taken, taken.is_burst(bytes));
        taken
    }

    /// Ends a connection behind the packets that were taken from it.
    fn end_noted(&mut self, slot: u32, taken: &mut Taken, bytes: &[u8], ended: Ended) {
        self.trace_taken(slot, taken, bytes);
        self.end(slot, ended);
        self.finish();
    }

    fn note_taken(&mut self, slot: u32, taken: &mut Taken, bytes: &[u8]) {
        self.trace_taken(slot, taken, bytes);
        self.cx.count_taken(taken);
    }

    fn pause(&mut self, slot: u32, pace: Pace, is_burst: bool) -> bool {
        let (client, pace) = (self.sessions.get_mut(slot), pace.as_same_shard());
        client.is_some_and(|client| client.pause_as_publisher(&mut self.cx, pace, is_burst))
    }

    /// Deals with any packet but a PUBLISH, of which `on_packets` takes care.
    fn on_packet(&mut self, slot: u32, first: u8, packet: &Packet<'_>) -> Result<(), Ended> {
        self.cx.metrics.count_received(first);
        match packet {
            Packet::Publish(_) => {}
            Packet::Ack(ack) if ack.kind == AckKind::Pubrel => self.on_pubrel(slot, ack.packet_id),
            Packet::Ack(ack) => self.on_ack(slot, ack)?,
            Packet::Subscribe(subscribe) => {
                self.on_subscribe(slot, subscribe)?;
                self.pump(slot);
            }
            Packet::Unsubscribe(unsubscribe) => self.on_unsubscribe(slot, unsubscribe)?,
            Packet::Pingreq => {
                let Some(client) = self.sessions.get_mut(slot).expected() else { return Ok(()) };
                if let Some(link) = client.session.link_mut() {
                    link.write(&Packet::Pingresp);
                }
                client.mark_dirty(&mut self.cx);
            }
            Packet::Disconnect(disconnect) => {
                if let Some(client) = self.sessions.get_mut(slot).expected() {
                    client.on_disconnect(disconnect)?;
                }
            }
            Packet::Auth(auth) => {
                if let Some(client) = self.sessions.get_mut(slot).expected() {
                    client.on_auth(&mut self.cx, auth)?;
                }
            }
            Packet::Connect(_) => {
                return Err(Ended::Violation(Violation {
                    reason: Reason::PROTOCOL_ERROR,
                    clause: "MQTT-3.1.0-2",
                    detail: "a second CONNECT on the same connection",
                }));
            }
            Packet::Connack(_) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Pingresp => {
                return Err(Ended::Violation(Violation {
                    reason: Reason::PROTOCOL_ERROR,
                    clause: "MQTT-4.13.1-1",
                    detail: "packet that only servers send",
                }));
            }
        }
        Ok(())
    }

    pub(crate) fn on_ack(&mut self, slot: u32, ack: &codec::Ack<'_>) -> Result<(), Ended> {
        let is_pubrec = ack.kind == AckKind::Pubrec && !ack.reason.is_error();
        if is_pubrec && self.keep_pubrec(slot, ack.packet_id) {
            return Ok(());
        }
        let Self { cx, sessions, .. } = self;
        let Some(client) = sessions.get_mut(slot).expected() else { return Ok(()) };
        match client.session.on_ack(ack).map_err(Ended::Violation)? {
            Acked::Complete(origin) => {
                self.finish_delivery(slot, origin, true);
                self.pump(slot);
            }
            Acked::Release | Acked::Unknown | Acked::Mismatch => client.mark_dirty(cx),
        }
        Ok(())
    }

    /// More of what was put aside. A large packet gets just what it lacks, so that its memory can
    /// become the message's.
    pub(crate) fn on_more_bytes(&mut self, slot: u32, connection: u64, bytes: &[u8]) -> Rest {
        let Some(link) = self.sessions.link(slot, connection) else { return Rest::Nothing };
        let arrived = link.inbox.len();
        let large_len = large_packet_len(&link.inbox);
        let lacks = large_len.and_then(|len| len.checked_sub(arrived)).filter(|lacks| *lacks > 0);
        let (more, rest) = bytes.split_at(bytes.len().min(lacks.unwrap_or(usize::MAX)));
        link.put_aside(more);
        if lacks.is_some_and(|lacks| more.len() < lacks) {
            return Rest::of(link.gathers());
        }
        let inbox = std::mem::take(&mut link.inbox);
        if large_len != Some(inbox.len()) {
            let taken = self.on_packets(slot, connection, Input::of(&inbox));
            return self.sessions.put_back(slot, connection, inbox, taken.bytes);
        }
        // It has its memory for itself.
        let packet = Arc::new(inbox);
        let input = Input { bytes: &packet, memory: Some(&packet) };
        let taken = self.on_packets(slot, connection, input);
        // The packet has ended the connection.
        let Some(link) = self.sessions.link(slot, connection) else { return Rest::Nothing };
        if taken.bytes == 0 {
            link.inbox = Arc::unwrap_or_clone(packet);
            link.put_aside(rest);
            return Rest::Some;
        }
        link.note_gathered(taken.bytes);
        let taken = match taken.is_paused || rest.is_empty() {
            true => 0,
            false => self.on_packets(slot, connection, Input::of(rest)).bytes,
        };
        self.sessions.put_aside(slot, connection, &rest[taken..])
    }

    /// Does this request take more than one go? Then so much of it was done as one may take, and
    /// the packet stays where it is. True also if that has ended the connection.
    pub(crate) fn goes_on_later(
        &mut self,
        slot: u32,
        (packet, packet_len): (&Packet<'_>, usize),
    ) -> bool {
        let Some(client) = self.sessions.get_mut(slot).expected() else { return false };
        let is_large = packet_len > SMALL_BYTES_MAX || client.checks_much(&self.cx, packet);
        if let Packet::Subscribe(subscribe) = packet {
            // Very many SUBSCRIBEs wait until other shards have acknowledged them.
            if self.cx.flow.barrier.is_full() {
                client.pause(&mut self.cx, (*PAUSE_MS.start()).into());
                return true;
            }
            if !is_large {
                let filters = subscribe.filters.iter().map(|(filter, _)| filter);
                return client.filters_wait(&mut self.cx, self.log.as_deref(), filters);
            }
        }
        if !is_large {
            return false;
        }
        let outcome = self.take_some(slot, packet);
        match outcome {
            Ok(is_whole) => !is_whole,
            Err(ended) => {
                self.end(slot, ended);
                true
            }
        }
    }

    /// Where a packet of this connection is gathered. What was read into it is reported to
    /// [`Shard::on_bytes`] without bytes.
    pub fn inbox(&mut self, slot: u32, connection: u64) -> Option<&mut Vec<u8>> {
        self.sessions.link(slot, connection).map(|link| &mut link.inbox)
    }

    /// The driver has written `count` bytes of the outbox.
    pub fn on_written(&mut self, slot: u32, connection: u64, count: usize, now_ms: u64) {
        let Self { cx, sessions, log, .. } = self;
        cx.now_ms = now_ms;
        cx.metrics.bytes_sent.add(count as u64);
        let Some(client) = sessions.get_mut(slot) else { return };
        if client.connection != connection {
            return;
        }
        if cx.tracing.is_some() {
            cx.trace_written(client, count);
        }
        let has_queue = client.session.outgoing.queued() > 0 || client.has_backlog(log.as_deref());
        let waits = has_queue
            || client.session.outgoing.has_unsent()
            || client.extras.is_some()
            || client.load.as_ref().is_some_and(|load| !load.is_available());
        let outbox_bytes_max = client.limits.outbox_bytes_max;
        let Some(link) = client.session.link_mut().expected() else { return };
        let spare = link.outbox.advance(count);
        let controls = link.outbox.take_controls();
        link.note_taken(count);
        link.tally_written(count);
        let waits_to_be_read = link.read_pauses.is_paused(PauseReason::UnreadAnswers);
        let is_empty = link.outbox.is_empty();
        if is_empty && !has_queue {
            link.has_caught_up();
            // It may have been less while memory was short (`parts/shortage.rs`).
            link.set_outbox_bytes_max(outbox_bytes_max);
        }
        if let Some(buffer) = spare {
            cx.buffers.keep(buffer);
        }
        if let Some(controls) = controls {
            cx.metrics.count_controls(controls);
        }
        if waits_to_be_read {
            client.read_on_if_it_reads(cx);
        }
        if waits && is_empty {
            self.pump(slot);
        }
        self.finish();
    }

    pub(crate) fn read_on(&mut self, slot: u32, connection: u64) {
        let now_ms = self.cx.now_ms;
        // The connection has ended while it waited.
        let Some(link) = self.sessions.link(slot, connection) else { return };
        if link.is_lost {
            self.end_lost(slot, connection);
            return self.finish();
        }
        link.read_pauses.resume(PauseReason::Queued);
        if link.read_pauses.reads_at_ms() <= now_ms {
            self.on_bytes(slot, connection, &[], now_ms);
        }
        // Else it waits again, and the driver knows.
        if let Some(client) = self.sessions.connected(slot, connection)
            && client.session.link().is_some_and(|link| link.read_pauses.reads_at_ms() != NEVER)
        {
            client.change_read_pauses(&mut self.cx, |_| ());
        }
    }
}
