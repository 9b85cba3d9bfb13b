//! Spans: the way of single messages through the broker, for OpenTelemetry.
//!
//! A PUBLISH that belongs to a sampled trace gets a span, and is passed on with the `traceparent`
//! of that span (W3C Trace Context). Each packet to a client with a sampled `traceparent` gets a
//! span when the driver has written it. So a message has no more fields than others, and one that
//! was queued or stored keeps its trace.

use std::collections::{BTreeMap, VecDeque};

use codec::{Properties, Property, PropertyBuf, Publish, Reason, Version, varint};
use session::{Link, Message};

use crate::observe::trace::{Partial, cut};
use crate::state::Context;
use crate::{Name, Scope, SessionKey};

/// Spans of a shard that its driver has not taken yet; more are counted
/// ([`crate::Effects::take_spans`]).
pub const SPANS_MAX: usize = 1_000;

/// Packets to clients that get a span, for each message and shard. Of those beyond it one in a turn
/// gets a span, and the others are counted there ([`Span::left_out`]).
pub const SPANS_PER_MESSAGE_MAX: u32 = 16;

/// Messages of a shard that get a span in a second, and how many of them are of one client. Further
/// ones are passed on unchanged, and counted as lost: a publisher sets the flag as it likes.
pub const RECEIVED_PER_SECOND_MAX: u32 = 1_000;
pub const RECEIVED_PER_CLIENT_MAX: u32 = 250;

/// Packets of a shard to clients that get a span in a second; more are counted as lost.
pub const SENT_PER_SECOND_MAX: u32 = 4_000;

/// Messages whose spans are counted, the latest ones. One that is older counts as new.
const RECENT_MAX: usize = 64;

/// A longer `tracestate` is passed on, but not noted.
const TRACE_STATE_BYTES_MAX: usize = 512;

/// How messages are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanSettings {
    /// Of a million messages without a `traceparent`, the number that begins a trace.
    pub sampled_per_million: u32,
}

/// A trace, and the span in it that is the parent of what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    /// Bit 0: sampled.
    pub flags: u8,
}

/// What a span is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanKind {
    /// A PUBLISH of a client was accepted, or refused for want of resources.
    #[default]
    Receive,
    /// A PUBLISH was written to a client.
    Send,
}

/// A step of a message on its way.
#[derive(Clone, Debug, Default)]
pub struct Span {
    pub kind: SpanKind,
    pub context: TraceContext,
    /// `None`: the trace begins here.
    pub parent: Option<[u8; 8]>,
    pub trace_state: Box<str>,
    /// In broker time, until the driver has taken it.
    pub at_ms: u64,
    pub scope: Scope,
    pub client_id: Box<str>,
    pub topic: Box<str>,
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub payload_bytes: usize,
    /// Why the message was refused, if it was.
    pub refused: Option<Reason>,
    /// Packets to other clients that have no span of their own.
    pub left_out: u32,
}

/// What a shard keeps for its spans.
#[derive(Debug)]
pub(crate) struct Spans {
    settings: SpanSettings,
    random: u64,
    /// Packets to clients that are not written whole yet.
    partial: BTreeMap<u64, Partial>,
    recent: VecDeque<Recent>,
    second: Second,
}

/// What got a span in the present second.
#[derive(Debug, Default)]
struct Second {
    /// In seconds of broker time.
    number: u64,
    received: u32,
    /// By the client: no more than all together.
    received_of: BTreeMap<u64, u32>,
    sent: u32,
}

/// A message that was written to clients lately.
#[derive(Debug)]
struct Recent {
    parent: [u8; 8],
    spans: u32,
    /// Of its last span: the round of [`crate::Effects::take_spans`], and the place.
    last: (u64, usize),
}

/// The front of a PUBLISH on its way to a client.
struct Front<'a> {
    topic: &'a [u8],
    properties: Properties<'a>,
    payload_bytes: usize,
}

impl TraceContext {
    /// The length of a `traceparent` of version 00.
    const TEXT_BYTES: usize = 55;

    /// Reads a `traceparent`. None: it is invalid, and has no effect.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let (front, rest) = bytes.split_at_checked(Self::TEXT_BYTES)?;
        let [version] = hex(&front[..2])?;
        // A later version may have more fields, behind another dash.
        let is_known = match version {
            0 => rest.is_empty(),
            0xFF => false,
            _ => rest.first().is_none_or(|first| *first == b'-'),
        };
        let has_dashes = [2, 35, 52].iter().all(|at| front[*at] == b'-');
        let (trace_id, span_id) = (hex(&front[3..35])?, hex(&front[36..52])?);
        let [flags] = hex(&front[53..])?;
        let is_valid = is_known && has_dashes && trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, flags })
    }

    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    fn to_text(self) -> String {
        let Self { trace_id, span_id, flags } = self;
        let (trace_id, span_id) = (u128::from_be_bytes(trace_id), u64::from_be_bytes(span_id));
        // Flags that are not of version 00 must not be passed on.
        format!("00-{trace_id:032x}-{span_id:016x}-{:02x}", flags & (SAMPLED | RANDOM))
    }

    /// That of a message. None: it has none, or one that is invalid.
    fn of(properties: Properties<'_>) -> Option<Self> {
        // Nearly no message has one: what is too short for it is not looked into.
        if properties.raw().len() < Self::TEXT_BYTES + TRACEPARENT.len() {
            return None;
        }
        let mut given = given(properties, TRACEPARENT);
        given.next().filter(|_| given.next().is_none()).and_then(Self::parse)
    }
}

impl Spans {
    pub(crate) fn new(settings: SpanSettings, seed: u64) -> Self {
        let recent = VecDeque::with_capacity(RECENT_MAX);
        let (partial, second) = (BTreeMap::new(), Second::default());
        Self { settings, random: seed, partial, recent, second }
    }

    pub(crate) fn forget(&mut self, connection: u64) {
        self.partial.remove(&connection);
    }

    /// SplitMix64: IDs need to differ, not to be secret.
    const fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Never 0, which is invalid.
    fn next_id(&mut self) -> [u8; 8] {
        (self.next_random() | 1).to_be_bytes()
    }

    fn samples(&mut self) -> bool {
        self.settings.sampled_per_million > 0
            && self.next_random() % 1_000_000 < self.settings.sampled_per_million.into()
    }

    /// The context of a new span. None: what follows is not traced.
    fn begin(&mut self, parent: Option<TraceContext>) -> Option<TraceContext> {
        match parent {
            Some(parent) => {
                parent.is_sampled().then(|| TraceContext { span_id: self.next_id(), ..parent })
            }
            None => self.samples().then(|| {
                let (high, low) = (self.next_random().to_be_bytes(), self.next_id());
                let mut trace_id = [0; 16];
                trace_id[..8].copy_from_slice(&high);
                trace_id[8..].copy_from_slice(&low);
                TraceContext { trace_id, span_id: self.next_id(), flags: SAMPLED }
            }),
        }
    }

    /// A message was written to a client. `next`: the round and the place of the next span.
    /// Some: it is counted at the span there.
    fn is_left_out(&mut self, parent: [u8; 8], next: (u64, usize)) -> Option<usize> {
        let known = self.recent.iter_mut().rev().find(|recent| recent.parent == parent);
        let Some(recent) = known else {
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(Recent { parent, spans: 1, last: next });
            return None;
        };
        if recent.spans >= SPANS_PER_MESSAGE_MAX && recent.last.0 == next.0 {
            return Some(recent.last.1);
        }
        recent.spans += 1;
        recent.last = next;
        None
    }
}

impl Second {
    fn begin(&mut self, now_ms: u64) {
        let number = now_ms / 1000;
        if self.number != number {
            *self = Self { number, ..Self::default() };
        }
    }

    fn takes_received(&mut self, client: u64, now_ms: u64) -> bool {
        self.begin(now_ms);
        if self.received >= RECEIVED_PER_SECOND_MAX {
            return false;
        }
        let own = self.received_of.entry(client).or_default();
        let is_taken = *own < RECEIVED_PER_CLIENT_MAX;
        *own += u32::from(is_taken);
        self.received += u32::from(is_taken);
        is_taken
    }

    fn takes_sent(&mut self, now_ms: u64) -> bool {
        self.begin(now_ms);
        let is_taken = self.sent < SENT_PER_SECOND_MAX;
        self.sent += u32::from(is_taken);
        is_taken
    }
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

fn given<'a>(properties: Properties<'a>, name: &str) -> impl Iterator<Item = &'a str> {
    properties.user_properties().filter(move |(own, _)| *own == name).map(|(_, value)| value)
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

/// Lower-case digits only.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

const SAMPLED: u8 = 1;
/// Level 2 of the standard: the trace ID is random.
const RANDOM: u8 = 2;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn spans(sampled_per_million: u32) -> Spans {
        Spans::new(SpanSettings { sampled_per_million }, 7)
    }

    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        let context = TraceContext::parse(GIVEN).unwrap();
        assert_eq!(context.to_text(), GIVEN);
        assert!(context.is_sampled());
        let later = format!("cc{}-what-is-new", &GIVEN[2..]);
        assert_eq!(TraceContext::parse(&later), Some(context));
        assert!(!TraceContext::parse(&GIVEN.replace("-01", "-02")).unwrap().is_sampled());
        for wrong in [
            String::new(),
            GIVEN[..54].into(),
            format!("{GIVEN}-more"),
            format!("ff{}", &GIVEN[2..]),
            format!("cc{}.", &GIVEN[2..]),
            GIVEN.to_uppercase(),
            GIVEN.replace('-', "_"),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16)),
            GIVEN.replace('a', "g"),
            "é".repeat(28),
        ] {
            assert_eq!(TraceContext::parse(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unknown_flags_are_not_passed_on() {
        let context = TraceContext::parse(&GIVEN.replace("-01", "-ff")).unwrap();
        assert!(context.to_text().ends_with("-03"));
    }

    #[test]
    fn a_span_keeps_the_trace_of_its_parent() {
        let mut spans = spans(1_000_000);
        let parent = TraceContext::parse(GIVEN).unwrap();
        let own = spans.begin(Some(parent)).unwrap();
        assert_eq!(own.trace_id, parent.trace_id);
        assert_ne!(own.span_id, parent.span_id);
        assert_eq!(spans.begin(Some(TraceContext { flags: 0, ..parent })), None);
        let (one, two) = (spans.begin(None).unwrap(), spans.begin(None).unwrap());
        assert_ne!(one.trace_id, two.trace_id);
        assert!(one.is_sampled());
    }

    #[test]
    fn as_many_messages_are_sampled_as_the_ratio_says() {
        let mut some = spans(10_000);
        let begun = (0..100_000).filter(|_| some.begin(None).is_some()).count();
        assert!((800..1_200).contains(&begun), "{begun}");
        let mut none = spans(0);
        assert!((0..1_000).all(|_| none.begin(None).is_none()));
    }

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
    fn packets_beyond_the_limit_of_a_message_are_counted_at_its_last_span_of_the_turn() {
        let mut spans = spans(0);
        let one = [1; 8];
        for number in 0..SPANS_PER_MESSAGE_MAX as usize {
            assert_eq!(spans.is_left_out(one, (0, number)), None);
        }
        assert_eq!(spans.is_left_out(one, (0, 16)), Some(15));
        assert_eq!(spans.is_left_out([2; 8], (0, 16)), None);
        // The spans were taken: another one is to count at.
        assert_eq!(spans.is_left_out(one, (1, 0)), None);
        assert_eq!(spans.is_left_out(one, (1, 1)), Some(0));
        for other in 0..RECENT_MAX as u64 {
            spans.is_left_out((other + 100).to_be_bytes(), (1, 1));
        }
        assert!(spans.recent.len() <= RECENT_MAX);
    }

    #[test]
    fn a_client_leaves_spans_to_others_and_a_second_ends() {
        let mut second = Second::default();
        let mut taken = |client, now_ms| {
            (0..2_000).filter(|_| second.takes_received(client, now_ms)).count() as u32
        };
        assert_eq!(taken(1, 5_000), RECEIVED_PER_CLIENT_MAX);
        let others: u32 = (2..10).map(|client| taken(client, 5_999)).sum();
        assert_eq!(others, RECEIVED_PER_SECOND_MAX - RECEIVED_PER_CLIENT_MAX);
        assert_eq!(taken(1, 6_000), RECEIVED_PER_CLIENT_MAX);
        let sent = (0..9_000).filter(|_| second.takes_sent(6_000)).count() as u32;
        assert_eq!(sent, SENT_PER_SECOND_MAX);
        assert!(second.takes_sent(7_000));
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
