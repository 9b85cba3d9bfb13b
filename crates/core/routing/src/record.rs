//! A published message, as rules see it.

use policy::Attributes;

/// A published message, with what was known of its publisher at the time of the publish.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The `id` of the event. It must not be empty, and differ from those of all other records.
    pub id: &'a str,
    /// The namespace of the publisher. It must not be empty.
    pub namespace: &'a str,
    /// When the broker received it, in ms since 1970.
    pub time_ms: u64,
    pub client_id: &'a str,
    /// The authentication name. None: the client has not authenticated with one.
    pub username: Option<&'a str>,
    pub attributes: &'a Attributes,
    pub topic: &'a str,
    /// 0, 1 or 2.
    pub qos: u8,
    pub retain: bool,
    /// Message Expiry Interval.
    pub expiry_secs: Option<u32>,
    /// Payload Format Indicator: 0, or 1 for text in UTF-8.
    pub payload_format: u8,
    pub content_type: Option<&'a str>,
    pub response_topic: Option<&'a str>,
    pub correlation_data: Option<&'a [u8]>,
    /// Names and values in their order; a name may be repeated.
    pub user_properties: &'a [(&'a str, &'a str)],
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// The first user property of this name.
    pub(crate) fn user_property(&self, name: &str) -> Option<&'a str> {
        self.user_properties.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }
}
