//! A span of a message, and the trace that it belongs to.

use codec::{Properties, Reason};

use crate::Scope;

/// Spans of a shard that its driver has not taken yet; more are counted
/// ([`crate::Effects::take_spans`]).
pub const SPANS_MAX: usize = 1_000;

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

    pub(crate) fn to_text(self) -> String {
        let Self { trace_id, span_id, flags } = self;
        let (trace_id, span_id) = (u128::from_be_bytes(trace_id), u64::from_be_bytes(span_id));
        // Flags that are not of version 00 must not be passed on.
        format!("00-{trace_id:032x}-{span_id:016x}-{:02x}", flags & (SAMPLED | RANDOM))
    }

    /// That of a message. None: it has none, or one that is invalid.
    pub(crate) fn of(properties: Properties<'_>) -> Option<Self> {
        // Nearly no message has one: what is too short for it is not looked into.
        if properties.raw().len() < Self::TEXT_BYTES + TRACEPARENT.len() {
            return None;
        }
        let mut given = given(properties, TRACEPARENT);
        given.next().filter(|_| given.next().is_none()).and_then(Self::parse)
    }
}

/// Lower-case digits only.
pub(crate) fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
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

pub(crate) const SAMPLED: u8 = 1;

/// Level 2 of the standard: the trace ID is random.
pub(crate) const RANDOM: u8 = 2;

pub(crate) fn given<'a>(properties: Properties<'a>, name: &str) -> impl Iterator<Item = &'a str> {
    properties.user_properties().filter(move |(own, _)| *own == name).map(|(_, value)| value)
}

pub(crate) const TRACEPARENT: &str = "traceparent";

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

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
}
