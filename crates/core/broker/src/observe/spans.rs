//! Spans: the way of single messages through the broker, for OpenTelemetry.
//!
//! A PUBLISH that belongs to a sampled trace gets a span, and is passed on with the `traceparent`
//! of that span (W3C Trace Context). Each packet to a client with a sampled `traceparent` gets a
//! span when the driver has written it. So a message has no more fields than others, and one that
//! was queued or stored keeps its trace.

use codec::{Properties, Property, PropertyBuf, Publish, Reason, Version, varint};
use session::{Link, Message};

use crate::observe::trace::cut;
use crate::parts::sampling::Spans;
use crate::state::Context;
use crate::words::span::{Span, SpanKind, TRACEPARENT, TraceContext, given};
use crate::{Name, SessionKey};

/// A longer `tracestate` is passed on, but not noted.
const TRACE_STATE_BYTES_MAX: usize = 512;

/// The front of a PUBLISH on its way to a client.
struct Front<'a> {
    topic: &'a [u8],
    properties: Properties<'a>,
    payload_bytes: usize,
}

impl Context {
    /// Notes a PUBLISH that is accepted, if it belongs to a trace. Returns what its message carries
    /// on instead of its `traceparent`.
    #[cold]
    pub(crate) fn note_received(
        &mut self,
        client: Name<'_>,
        key: SessionKey,
        publish: &Publish<'_>,
        topic: &str,
    ) -> Option<TraceContext> {
        let spans = self.tracing.as_mut()?.spans.as_mut()?;
        let mut parents = given(publish.properties, TRACEPARENT);
        let parent = match (parents.next(), parents.next()) {
            (None, _) => None,
            (Some(text), None) if let Some(parent) = TraceContext::parse(text) => Some(parent),
            _ => {
                self.metrics.traceparents_invalid.add(1);
                return None;
            }
        };
        let context = spans.begin(parent)?;
        if !spans.second.takes_received(key.as_u64(), self.now_ms) {
            self.effects.lose_span();
            return None;
        }
        let trace_state = trace_state(publish.properties);
        self.effects.note_span(Span {
            kind: SpanKind::Receive,
            context,
            parent: parent.map(|parent| parent.span_id),
            trace_state,
            at_ms: self.now_ms,
            scope: client.scope(),
            client_id: cut(client.text()),
            topic: cut(topic),
            qos: publish.qos as u8,
            retain: publish.retain,
            dup: publish.dup,
            payload_bytes: publish.payload.len(),
            refused: None,
            left_out: 0,
        });
        Some(context)
    }

    /// A message is refused that may have a span.
    pub(crate) fn note_span_refused(&mut self, message: &Message, reason: Reason) {
        if self.tracing.as_ref().is_none_or(|tracing| tracing.spans.is_none()) {
            return;
        }
        let properties = Properties::from_raw(message.properties());
        let Some(context) = TraceContext::of(properties) else { return };
        let spans = self.effects.spans_mut().iter_mut().rev();
        if let Some(span) = spans.into_iter().find(|span| span.context == context) {
            span.refused = Some(reason);
        }
    }

    /// The driver has written `count` bytes of the outbox, or will as the connection ends.
    pub(crate) fn note_spans_sent(
        &mut self,
        client: Name<'_>,
        link: &Link,
        connection: u64,
        count: usize,
    ) {
        // Older versions have no user properties.
        if link.version() < Version::V5 {
            return;
        }
        let Some(mut spans) = self.tracing.as_mut().and_then(|it| it.spans.take()) else { return };
        let mut partial = spans.partial.remove(&connection).unwrap_or_default();
        let mut left = count;
        for slice in link.outbox.slices() {
            let slice = &slice[..slice.len().min(left)];
            left -= slice.len();
            partial.take(slice, &mut |head, len| {
                self.note_sent_span(&mut spans, client, link, (head, len));
            });
            if left == 0 {
                break;
            }
        }
        if !partial.is_empty() {
            spans.partial.insert(connection, partial);
        }
        if let Some(tracing) = &mut self.tracing {
            tracing.spans = Some(spans);
        }
    }

    fn note_sent_span(
        &mut self,
        spans: &mut Spans,
        client: Name<'_>,
        link: &Link,
        (head, len): (&[u8], usize),
    ) {
        let Some(front) = Front::of(head, len) else { return };
        let Some(parent) = TraceContext::of(front.properties) else { return };
        if !parent.is_sampled() {
            return;
        }
        if let Some(at) = spans.is_left_out(parent.span_id, self.effects.next_span()) {
            return self.effects.count_left_out(at);
        }
        if !spans.second.takes_sent(self.now_ms) {
            return self.effects.lose_span();
        }
        let alias = front.properties.topic_alias().filter(|_| front.topic.is_empty());
        let topic = alias.and_then(|alias| link.topic_sent_as(alias)).unwrap_or(front.topic);
        self.effects.note_span(Span {
            kind: SpanKind::Send,
            context: TraceContext { span_id: spans.next_id(), ..parent },
            parent: Some(parent.span_id),
            trace_state: trace_state(front.properties),
            at_ms: self.now_ms,
            scope: client.scope(),
            client_id: cut(client.text()),
            topic: cut(&String::from_utf8_lossy(topic)),
            qos: head[0] >> 1 & 3,
            retain: head[0] & 1 != 0,
            dup: head[0] & 8 != 0,
            payload_bytes: front.payload_bytes,
            refused: None,
            left_out: 0,
        });
    }
}

impl<'a> Front<'a> {
    /// `head`: the beginning of a packet of `len` bytes. None: it is no PUBLISH, or too little of
    /// it is there.
    fn of(head: &'a [u8], len: usize) -> Option<Self> {
        const PUBLISH: u8 = 3;
        if head[0] >> 4 != PUBLISH {
            return None;
        }
        let (_, length_bytes) = varint::read(&head[1..]).ok()??;
        let (topic_len, rest) = head[1 + length_bytes..].split_first_chunk()?;
        let topic_len = usize::from(u16::from_be_bytes(*topic_len));
        let (topic, rest) = rest.split_at_checked(topic_len)?;
        let rest = if head[0] >> 1 & 3 > 0 { rest.get(2..)? } else { rest };
        let (properties_len, bytes) = varint::read(rest).ok()??;
        let properties = &rest[bytes..];
        let front_bytes = head.len() - properties.len() + properties_len as usize;
        let properties = &properties[..properties.len().min(properties_len as usize)];
        Some(Self {
            topic,
            properties: Properties::from_raw(properties),
            payload_bytes: len.saturating_sub(front_bytes),
        })
    }
}

/// Writes the properties of a PUBLISH as its message carries them on: without those that are
/// written for each receiver, and with the `traceparent` of the broker's own span if there is one.
pub(crate) fn write_forwarded(
    properties: Properties<'_>,
    own: Option<TraceContext>,
    buffer: &mut PropertyBuf,
) {
    let own = own.map(TraceContext::to_text);
    let mut is_replaced = false;
    buffer.clear();
    for property in properties.iter() {
        match (property, &own) {
            (Property::TopicAlias(_) | Property::MessageExpirySecs(_), _) => {}
            // In its place: user properties keep their order (MQTT-3.3.2-18).
            (Property::User(TRACEPARENT, _), Some(own)) => {
                is_replaced = true;
                buffer.push(Property::User(TRACEPARENT, own));
            }
            (other, _) => {
                buffer.push(other);
            }
        }
    }
    if let Some(own) = own.filter(|_| !is_replaced) {
        buffer.push(Property::User(TRACEPARENT, &own));
    }
}

fn trace_state(properties: Properties<'_>) -> Box<str> {
    let mut state = String::new();
    // Several are one list.
    for text in given(properties, TRACESTATE) {
        if !state.is_empty() {
            state.push(',');
        }
        state.push_str(text);
        if state.len() > TRACE_STATE_BYTES_MAX {
            return Box::default();
        }
    }
    state.into()
}

const TRACESTATE: &str = "tracestate";

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_replaced_in_its_place_or_put_behind() {
        let own = TraceContext::parse(GIVEN).unwrap();
        for (given, expected) in [
            (
                vec![Property::User("a", "1"), Property::User("traceparent", "x")],
                vec![Property::User("a", "1"), Property::User("traceparent", GIVEN)],
            ),
            (
                vec![
                    Property::TopicAlias(1),
                    Property::User("traceparent", "x"),
                    Property::User("b", "2"),
                ],
                vec![Property::User("traceparent", GIVEN), Property::User("b", "2")],
            ),
            (
                vec![Property::MessageExpirySecs(1), Property::User("tracestate", "c=1")],
                vec![Property::User("tracestate", "c=1"), Property::User("traceparent", GIVEN)],
            ),
        ] {
            let mut before = PropertyBuf::new();
            for property in given {
                before.push(property);
            }
            let mut after = PropertyBuf::new();
            write_forwarded(before.as_properties(), Some(own), &mut after);
            assert_eq!(after.as_properties().iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn several_states_are_one_list_and_a_long_one_is_left_out() {
        let state = |texts: &[&str]| {
            let mut buffer = PropertyBuf::new();
            for text in texts {
                buffer.push(Property::User(TRACESTATE, text));
            }
            trace_state(buffer.as_properties())
        };
        assert_eq!(&*state(&["a=1", "b=2"]), "a=1,b=2");
        assert_eq!(&*state(&[&"a".repeat(TRACE_STATE_BYTES_MAX + 1)]), "");
    }
}
