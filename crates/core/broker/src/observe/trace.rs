//! Traces: the packets of some clients, for operators who look at them.
//!
//! Packets of clients are noted once they are taken, those of the broker when the driver has
//! written them. While nothing is traced this costs a branch for each read and each write.

use std::sync::Arc;

use codec::{Packet, Sender};
use session::Link;

use crate::parts::client::Client;
use crate::parts::taken::Taken;
use crate::parts::tracing::{TracedConnection, Tracing};
use crate::state::Context;
use crate::words::traced::{TraceFilter, Traced, TracedDetails};
use crate::{ConnectRequest, Ended, Name, Shard};

/// Traces at a time; more are refused.
pub const TRACES_MAX: usize = 8;

/// Bytes of a payload that a trace may ask for.
pub const TRACED_PAYLOAD_BYTES_MAX: u16 = 1_024;

/// Bytes of a text that are noted; the rest is left out.
const TRACED_TEXT_BYTES_MAX: usize = 1_024;

/// Filters and reason codes of a packet that are noted.
const FILTERS_MAX: usize = 16;

/// Notes of a shard that its driver has not taken yet; more are counted
/// ([`Traced::lost_before`]).
const NOTES_MAX: usize = 1_000;

impl Shard {
    /// From now on these are traced.
    pub fn set_traces(&mut self, filters: &Arc<[TraceFilter]>) {
        let mut tracing = self.cx.tracing.take().unwrap_or_default();
        if filters.is_empty() {
            let spans = tracing.spans.take();
            self.cx.tracing = spans.map(|spans| Box::new(Tracing::of_spans(spans)));
            return;
        }
        let slots = self.sessions.slots();
        for client in slots.into_iter().filter_map(|slot| self.sessions.get(slot)) {
            let Some(link) = client.session.link() else { continue };
            // Of those that were traced until now it is known where their next packet begins.
            if tracing.connection(client.name(), link).is_none() {
                tracing.partial.remove(&client.connection);
                if !link.outbox.is_empty() {
                    tracing.unknown.insert(client.connection);
                }
            }
        }
        tracing.filters = filters.clone();
        self.cx.tracing = Some(tracing);
    }

    /// What is about to be taken from a connection.
    #[inline(always)]
    pub(crate) fn taken_from(&self, slot: u32, connection: u64) -> Taken {
        let mut taken = Taken::default();
        if self.cx.tracing.is_some() {
            taken.traced = self.traced(slot, connection);
        }
        taken
    }

    #[cold]
    fn traced(&self, slot: u32, connection: u64) -> Option<Box<TracedConnection>> {
        let client = self.sessions.get(slot).filter(|client| client.connection == connection)?;
        let tracing = self.cx.tracing.as_ref()?;
        tracing.connection(client.name(), client.session.link()?).map(Box::new)
    }

    /// Notes the packets that were taken.
    #[inline(always)]
    pub(crate) fn trace_taken(&mut self, slot: u32, taken: &mut Taken, bytes: &[u8]) {
        let end = taken.bytes;
        if let Some(traced) = &mut taken.traced {
            self.note_packets(traced, slot, &bytes[..end]);
        }
    }

    #[cold]
    fn note_packets(&mut self, traced: &mut TracedConnection, slot: u32, bytes: &[u8]) {
        while traced.noted < bytes.len() {
            let rest = &bytes[traced.noted..];
            let version = traced.version;
            let Ok(Some((packet, len))) = codec::decode(rest, version, Sender::Client, u32::MAX)
            else {
                return;
            };
            traced.noted += len;
            let known = |alias| {
                let client = self.sessions.get(slot)?;
                client.session.link()?.topic_of(alias).map(Into::into)
            };
            let topic = traced.topic_of(&packet, known);
            self.cx.note_packet(traced, true, &packet, len, topic);
        }
    }

    /// A client is let in. Its packets are traced from their first byte.
    pub(crate) fn trace_connect(&mut self, request: &ConnectRequest) {
        let Some(tracing) = &self.cx.tracing else { return };
        let (scope, client_id) = (request.scope, &*request.client_id);
        let traces = tracing.traces(scope, client_id, &request.peer) & !tracing.of_topics();
        if traces == 0 {
            return;
        }
        let username = request.username.as_deref();
        let username = username.map_or_else(String::new, |name| format!(", username {name}"));
        let text = format!(
            "MQTT {}, clean start {}, keep-alive {} s, session expiry {} s{}{username}",
            request.version,
            request.clean_start,
            request.keep_alive_secs,
            request.session_expiry_secs,
            if request.will.is_some() { ", with a will" } else { "" },
        );
        let details = TracedDetails { text: cut(&text), ..TracedDetails::default() };
        self.cx.note_traced(Traced {
            traces,
            at_ms: self.cx.now_ms,
            scope,
            client_id: client_id.into(),
            address: request.peer.clone(),
            is_from_client: true,
            packet: "CONNECT",
            details,
            ..Traced::default()
        });
    }
}

impl Context {
    /// The driver has written `count` bytes of the outbox, which still has them.
    #[cold]
    pub(crate) fn trace_written(&mut self, client: &Client, count: usize) {
        let Some(link) = client.session.link() else { return };
        self.note_spans_sent(client.name(), link, client.connection, count);
        let is_all = count >= link.outbox.len();
        self.trace_sent(client.name(), link, client.connection, count);
        if let Some(tracing) = self.tracing.as_mut().filter(|_| is_all) {
            tracing.unknown.remove(&client.connection);
        }
    }

    /// A connection ends. All that is left for it is taken as sent; by spans only if there is a
    /// network connection.
    #[cold]
    pub(crate) fn trace_end(
        &mut self,
        client: Name<'_>,
        link: &Link,
        connection: u64,
        ended: &Ended,
    ) {
        if !link.is_lost {
            self.note_spans_sent(client, link, connection, link.outbox.len());
        }
        self.trace_sent(client, link, connection, link.outbox.len());
        let Some(tracing) = &mut self.tracing else { return };
        tracing.spans.iter_mut().for_each(|spans| spans.forget(connection));
        tracing.partial.remove(&connection);
        tracing.unknown.remove(&connection);
        let Some(mut traced) = tracing.connection(client, link) else { return };
        traced.traces &= !tracing.of_topics();
        if traced.traces == 0 {
            return;
        }
        let text = ended.word().as_ref().into();
        let details = TracedDetails { text, ..TracedDetails::default() };
        self.note_traced(Traced { packet: "closed", details, ..traced.blank(self.now_ms) });
    }

    fn trace_sent(&mut self, client: Name<'_>, link: &Link, connection: u64, count: usize) {
        let Some(tracing) = &mut self.tracing else { return };
        if tracing.unknown.contains(&connection) {
            return;
        }
        let Some(traced) = tracing.connection(client, link) else { return };
        let mut partial = tracing.partial.remove(&connection).unwrap_or_default();
        let mut left = count;
        for slice in link.outbox.slices() {
            let slice = &slice[..slice.len().min(left)];
            left -= slice.len();
            partial.take(slice, &mut |head, len| self.note_sent(&traced, link, head, len));
        }
        if !partial.head.is_empty()
            && let Some(tracing) = &mut self.tracing
        {
            tracing.partial.insert(connection, partial);
        }
    }

    /// A packet was sent, of which this is the beginning.
    fn note_sent(&mut self, traced: &TracedConnection, link: &Link, head: &[u8], len: usize) {
        let shortened = shortened(head, len);
        let head = shortened.as_deref().unwrap_or(head);
        let decoded = codec::decode(head, traced.version, Sender::Server, u32::MAX);
        let Ok(Some((packet, _))) = decoded else { return self.lose_one() };
        let topic = traced.topic_of_sent(&packet, |alias| link.topic_sent_as(alias));
        self.note_packet(traced, false, &packet, len, topic);
    }

    fn note_packet(
        &mut self,
        traced: &TracedConnection,
        is_from_client: bool,
        packet: &Packet<'_>,
        len: usize,
        topic: Option<Box<str>>,
    ) {
        let Some(tracing) = &self.tracing else { return };
        let (mut traces, mut payload_bytes) = (0, 0);
        for filter in tracing.filters.iter().filter(|own| traced.traces & own.bit() != 0) {
            let is_meant = match (&filter.topic, &topic) {
                (None, _) => true,
                (Some(wanted), Some(topic)) => topic::matches(wanted, topic),
                (Some(_), None) => false,
            };
            if is_meant {
                traces |= filter.bit();
                payload_bytes = payload_bytes.max(filter.payload_bytes);
            }
        }
        if traces == 0 {
            return;
        }
        let mut details = details_of(packet, payload_bytes.min(TRACED_PAYLOAD_BYTES_MAX));
        if let Packet::Publish(publish) = packet {
            // The head of a large packet has only the beginning of its payload.
            let shown = publish.payload.len();
            let before = body_bytes(publish.encoded_len(traced.version)) - shown;
            details.payload_bytes = Some(body_bytes(len).saturating_sub(before) as u64);
        }
        details.topic = topic.map(|topic| cut(&topic));
        self.note_traced(Traced {
            traces,
            is_from_client,
            packet: packet.name(),
            bytes: len as u64,
            details,
            ..traced.blank(self.now_ms)
        });
    }

    fn note_traced(&mut self, mut traced: Traced) {
        let Some(tracing) = &mut self.tracing else { return };
        if self.effects.traced.len() >= NOTES_MAX {
            tracing.lost += 1;
            return;
        }
        traced.lost_before = std::mem::take(&mut tracing.lost);
        self.effects.traced.push(traced);
    }

    fn lose_one(&mut self) {
        if let Some(tracing) = &mut self.tracing {
            tracing.lost += 1;
        }
    }
}

/// The head of a packet of which the rest was left out, as a whole one. None: it is whole.
fn shortened(head: &[u8], len: usize) -> Option<Vec<u8>> {
    if head.len() >= len {
        return None;
    }
    let length_bytes = head[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
    let body = &head[1 + length_bytes..];
    let mut short = vec![head[0]];
    let mut rest = body.len();
    loop {
        let byte = (rest % 0x80) as u8;
        rest /= 0x80;
        short.push(byte | if rest > 0 { 0x80 } else { 0 });
        if rest == 0 {
            break;
        }
    }
    short.extend_from_slice(body);
    Some(short)
}

/// What is behind the fixed header of a packet of this length.
fn body_bytes(len: usize) -> usize {
    let of = |length_bytes: usize| len.saturating_sub(1 + length_bytes);
    (1..4)
        .map(|bytes| (bytes, of(bytes)))
        .find(|(bytes, body)| *body < 1 << (7 * bytes))
        .map_or_else(|| of(4), |(_, body)| body)
}

fn details_of(packet: &Packet<'_>, payload_bytes: u16) -> TracedDetails {
    let none = TracedDetails::default();
    let some = |reasons: &[u8]| reasons.iter().take(FILTERS_MAX).copied().collect();
    match packet {
        Packet::Publish(publish) => {
            let shown = publish.payload.len().min(usize::from(payload_bytes));
            TracedDetails {
                packet_id: (publish.packet_id > 0).then_some(publish.packet_id),
                qos: Some(publish.qos as u8),
                retain: publish.retain,
                dup: publish.dup,
                payload: publish.payload[..shown].into(),
                ..none
            }
        }
        Packet::Ack(ack) => {
            TracedDetails { packet_id: Some(ack.packet_id), reasons: vec![ack.reason.0], ..none }
        }
        Packet::Subscribe(subscribe) => {
            let filters = subscribe.filters.iter().take(FILTERS_MAX);
            let qos = subscribe.filters.iter().map(|(_, options)| options.qos as u8).max();
            let filters = filters.map(|(filter, _)| cut(filter)).collect();
            TracedDetails { packet_id: Some(subscribe.packet_id), filters, qos, ..none }
        }
        Packet::Unsubscribe(unsubscribe) => {
            let filters = unsubscribe.filters.iter().take(FILTERS_MAX).map(cut).collect();
            TracedDetails { packet_id: Some(unsubscribe.packet_id), filters, ..none }
        }
        Packet::Suback(suback) => TracedDetails {
            packet_id: Some(suback.packet_id),
            reasons: some(suback.reasons),
            ..none
        },
        Packet::Unsuback(unsuback) => TracedDetails {
            packet_id: Some(unsuback.packet_id),
            reasons: some(unsuback.reasons),
            ..none
        },
        Packet::Connack(connack) => {
            let text = if connack.session_present { "session present" } else { "new session" };
            TracedDetails { reasons: vec![connack.reason.0], text: text.into(), ..none }
        }
        Packet::Disconnect(disconnect) => {
            TracedDetails { reasons: vec![disconnect.reason.0], ..none }
        }
        Packet::Auth(auth) => TracedDetails { reasons: vec![auth.reason.0], ..none },
        Packet::Connect(_) | Packet::Pingreq | Packet::Pingresp => none,
    }
}

/// No more of a text than is noted.
pub(crate) fn cut(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(TRACED_TEXT_BYTES_MAX)].into()
}

#[cfg(test)]
mod tests {
    use codec::{Properties, Publish, QoS, Version};

    use super::*;
    use crate::parts::tracing::{HEAD_BYTES_MAX, Partial};

    fn publish(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "a/b",
            packet_id: 7,
            properties: Properties::EMPTY,
            payload,
        };
        Packet::Publish(publish).encode(Version::V5, &mut bytes);
        bytes
    }

    #[test]
    fn packets_are_found_however_their_bytes_are_cut() {
        let large = publish(&[1; 3 * HEAD_BYTES_MAX]);
        let mut bytes = Vec::new();
        for packet in [publish(b"x"), vec![0xD0, 0], large.clone(), publish(&[2; 200])] {
            bytes.extend_from_slice(&packet);
        }
        for portion in [1, 2, 3, 1_000, HEAD_BYTES_MAX, bytes.len()] {
            let (mut partial, mut found) = (Partial::default(), Vec::new());
            for some in bytes.chunks(portion) {
                partial.take(some, &mut |head, len| {
                    let short = shortened(head, len);
                    let whole = short.as_deref().unwrap_or(head);
                    let decoded = codec::decode(whole, Version::V5, Sender::Server, u32::MAX);
                    found.push((decoded.unwrap().unwrap().0.name(), len));
                    assert!(whole.len() <= HEAD_BYTES_MAX + 1);
                });
            }
            let lens = [publish(b"x").len(), 2, large.len(), publish(&[2; 200]).len()];
            let names = ["PUBLISH", "PINGRESP", "PUBLISH", "PUBLISH"];
            assert_eq!(found, names.into_iter().zip(lens).collect::<Vec<_>>(), "{portion}");
            assert!(partial.head.is_empty());
        }
    }

    #[test]
    fn a_body_is_what_is_behind_the_fixed_header() {
        for payload in [0, 1, 119, 120, 121, 16_375, 16_376, 16_377, 3 * HEAD_BYTES_MAX] {
            let bytes = publish(&vec![1; payload]);
            // The topic with its length, the packet ID, no properties.
            assert_eq!(body_bytes(bytes.len()), payload + 5 + 2 + 1, "{payload}");
        }
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "é".repeat(TRACED_TEXT_BYTES_MAX);
        assert_eq!(cut(&text).len(), TRACED_TEXT_BYTES_MAX);
        assert_eq!(cut(&text[2..]).len(), TRACED_TEXT_BYTES_MAX);
        assert_eq!(&*cut("ab"), "ab");
    }
}
