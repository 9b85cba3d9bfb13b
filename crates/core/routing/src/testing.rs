//! Records for tests.

use std::sync::LazyLock;

use policy::{Attribute, Attributes};

use crate::record::Record;

static ATTRIBUTES: LazyLock<Attributes> = LazyLock::new(|| {
    let text = |text: &str| Attribute::Text(text.into());
    Attributes::new([
        ("site".into(), text("berlin")),
        ("floor".into(), Attribute::Number(3.into())),
        ("serial".into(), Attribute::Number(5_000_000_000_i64.into())),
        ("roles".into(), Attribute::List([text("a"), text("b")].into())),
    ])
});

/// 2026-11-29T12:00:00.007Z
pub(crate) const TIME_MS: u64 = 1_795_953_600_007;

/// A message of a client with attributes, and no properties of MQTT 5.
pub(crate) fn record(topic: &'static str, payload: &'static [u8]) -> Record<'static> {
    Record {
        id: "id-1",
        namespace: "factory",
        time_ms: TIME_MS,
        client_id: "c7",
        username: Some("Anna"),
        attributes: &ATTRIBUTES,
        topic,
        qos: 1,
        retain: false,
        expiry_secs: None,
        payload_format: 0,
        content_type: None,
        response_topic: None,
        correlation_data: None,
        user_properties: &[],
        payload,
    }
}

/// A message whose payload is declared as text.
pub(crate) fn text_record(topic: &'static str, payload: &'static str) -> Record<'static> {
    Record { payload_format: 1, ..record(topic, payload.as_bytes()) }
}
