//! Spans as OTLP has them, with the names of OpenTelemetry's semantic conventions for messaging.

use broker::{Scope, SpanKind};

use crate::exporter::Resource;
use crate::otlp::{
    KIND_CONSUMER, KIND_PRODUCER, KeyValue, ResourceSpans, STATUS_ERROR, ScopeSpans, SpanMessage,
    Status, TracesRequest,
};
use crate::queue::Finished;

/// A request with all these spans. `namespace_of`: the name of a scope that is not the first.
pub(crate) fn request(
    resource: &Resource,
    batch: &[Finished],
    namespace_of: &dyn Fn(Scope) -> String,
) -> TracesRequest {
    let spans = batch.iter().map(|finished| message_of(finished, namespace_of)).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(resource.scope()), spans }];
    let own = ResourceSpans { resource: Some(resource.to_message()), scope_spans };
    TracesRequest { resource_spans: vec![own] }
}

fn message_of(finished: &Finished, namespace_of: &dyn Fn(Scope) -> String) -> SpanMessage {
    let Finished { span, end_ms } = finished;
    let (operation, kind) = match span.kind {
        SpanKind::Receive => ("receive", KIND_CONSUMER),
        SpanKind::Send => ("send", KIND_PRODUCER),
    };
    let mut attributes = vec![
        KeyValue::text("messaging.system", "mqtt"),
        KeyValue::text("messaging.operation.name", operation),
        KeyValue::text("messaging.operation.type", operation),
        KeyValue::text("messaging.destination.name", &span.topic),
        KeyValue::text("messaging.client.id", &span.client_id),
        KeyValue::int("messaging.message.body.size", span.payload_bytes as u64),
        KeyValue::int("messaging.mqtt.qos", span.qos.into()),
    ];
    let flags = [("messaging.mqtt.retain", span.retain), ("messaging.mqtt.dup", span.dup)];
    attributes.extend(flags.iter().filter(|own| own.1).map(|own| KeyValue::flag(own.0, true)));
    if !span.scope.is_first() {
        attributes.push(KeyValue::text("quelea.namespace", &namespace_of(span.scope)));
    }
    if span.left_out > 0 {
        attributes.push(KeyValue::int("quelea.deliveries_without_span", span.left_out.into()));
    }
    let refused = span.refused.map(|reason| reason.word());
    if let Some(reason) = &refused {
        attributes.push(KeyValue::text("error.type", reason));
    }
    SpanMessage {
        trace_id: span.context.trace_id.to_vec(),
        span_id: span.context.span_id.to_vec(),
        trace_state: span.trace_state.to_string(),
        parent_span_id: span.parent.map_or_else(Vec::new, |id| id.to_vec()),
        // Topics are too many for a name (semantic conventions, low cardinality).
        name: operation.to_owned(),
        kind,
        start_time_unix_nano: span.at_ms.saturating_mul(NANOS_PER_MS),
        end_time_unix_nano: span.at_ms.max(*end_ms).saturating_mul(NANOS_PER_MS),
        attributes,
        status: refused.map(|message| Status { message, code: STATUS_ERROR }),
        flags: span.context.flags.into(),
    }
}

const NANOS_PER_MS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use broker::{Span, TraceContext};
    use codec::Reason;

    use super::*;
    use crate::otlp::Value;

    fn message(span: Span) -> SpanMessage {
        let finished = Finished { span, end_ms: 3 };
        message_of(&finished, &|scope| format!("namespace-{}", scope.number()))
    }

    fn value(message: &SpanMessage, key: &str) -> Option<Value> {
        let own = message.attributes.iter().find(|own| own.key == key)?;
        own.value.as_ref()?.value.clone()
    }

    #[test]
    fn a_span_has_the_names_of_the_semantic_conventions() {
        let context = TraceContext { trace_id: [1; 16], span_id: [2; 8], flags: 1 };
        let own = message(Span {
            context,
            parent: Some([3; 8]),
            at_ms: 2,
            scope: Scope::new(4),
            client_id: "c".into(),
            topic: "a/b".into(),
            qos: 1,
            retain: true,
            payload_bytes: 5,
            ..Span::default()
        });
        assert_eq!((own.trace_id.as_slice(), own.span_id.as_slice()), (&[1; 16][..], &[2; 8][..]));
        assert_eq!((own.parent_span_id, own.kind, &*own.name), (vec![3; 8], 5, "receive"));
        assert_eq!((own.start_time_unix_nano, own.end_time_unix_nano), (2_000_000, 3_000_000));
        assert_eq!((own.status, own.flags), (None, 1));
        let own = message(Span { kind: SpanKind::Send, left_out: 7, at_ms: 9, ..Span::default() });
        assert_eq!((own.kind, &*own.name), (4, "send"));
        assert_eq!(value(&own, "quelea.deliveries_without_span"), Some(Value::Int(7)));
        assert_eq!(value(&own, "quelea.namespace"), None);
        assert!(own.end_time_unix_nano >= own.start_time_unix_nano);
        assert!(own.parent_span_id.is_empty());
    }

    #[test]
    fn a_refused_message_is_an_error_with_its_reason() {
        let own = message(Span { refused: Some(Reason::QUOTA_EXCEEDED), ..Span::default() });
        assert_eq!(own.status.as_ref().map(|status| status.code), Some(STATUS_ERROR));
        let word = Value::Text("quota_exceeded".into());
        assert_eq!(value(&own, "error.type"), Some(word));
    }
}
