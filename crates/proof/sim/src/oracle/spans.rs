//! Spans of messages: each step of a sampled message is a span, or is counted as lost.

use std::collections::{BTreeMap, BTreeSet};

use broker::{Span, SpanKind, TraceContext};
use codec::Properties;

/// What was reported of messages that belong to a trace, and what clients saw of them.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    is_on: bool,
    /// The spans of PUBLISH packets that the broker received.
    received: BTreeSet<SpanId>,
    /// Those that a client read the traces of, and that were not reported.
    missing: BTreeSet<SpanId>,
    /// By the number of the client: packets to it that have a span.
    sent: BTreeMap<u32, u64>,
    /// Packets in a sampled trace that it has read.
    read: BTreeMap<u32, u64>,
    /// Spans that were only counted, of any client.
    lost: u64,
}

type SpanId = ([u8; 16], [u8; 8]);

const TRACEPARENT: &str = "traceparent";

impl Spans {
    pub(crate) const fn watch(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    pub(crate) const fn on_lost(&mut self, count: u64) {
        self.lost += count;
    }

    /// `client`: none of the hostile ones has a number.
    pub(crate) fn on_span(&mut self, span: &Span, client: Option<u32>) {
        self.lost += u64::from(span.left_out);
        match (span.kind, client) {
            (SpanKind::Receive, _) => {
                self.received.insert((span.context.trace_id, span.context.span_id));
            }
            (SpanKind::Send, Some(client)) => *self.sent.entry(client).or_default() += 1,
            (SpanKind::Send, None) => {}
        }
    }

    /// A client reads a PUBLISH. Its `traceparent` is that of the span of its receipt.
    pub(crate) fn on_read(
        &mut self,
        client: u32,
        properties: Properties<'_>,
    ) -> Result<(), String> {
        if !self.is_on {
            return Ok(());
        }
        let mut parents = properties.user_properties().filter(|(name, _)| *name == TRACEPARENT);
        let Some((_, text)) = parents.next() else { return Ok(()) };
        let Some(context) = TraceContext::parse(text).filter(|_| parents.next().is_none()) else {
            return Err(format!("client {client} got the traceparent {text}"));
        };
        if !context.is_sampled() {
            return Ok(());
        }
        let id = (context.trace_id, context.span_id);
        if !self.received.contains(&id) {
            self.missing.insert(id);
        }
        *self.read.entry(client).or_default() += 1;
        self.judge()
    }

    /// As many steps are without a span as were counted, at most.
    fn judge(&self) -> Result<(), String> {
        let unsent = self.read.iter().map(|(client, read)| {
            read.saturating_sub(self.sent.get(client).copied().unwrap_or_default())
        });
        let (unsent, missing) = (unsent.sum::<u64>(), self.missing.len() as u64);
        match unsent + missing > self.lost {
            true => Err(format!(
                "{missing} messages received and {unsent} packets sent have no span, and {} are \
                counted as lost",
                self.lost
            )),
            false => Ok(()),
        }
    }
}
