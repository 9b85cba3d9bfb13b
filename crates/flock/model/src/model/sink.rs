//! What is behind the broker: a Kafka topic or a webhook that routed messages come out of.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::TopicsId;

/// One receiver of routed messages. It is owed every message on its topics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sink {
    pub id: String,
    pub kind: SinkKind,
    /// The topic groups whose messages are routed to it.
    pub topics: Vec<TopicsId>,
    /// How long routed messages may take to arrive after publishing stopped, before they count as
    /// lost.
    pub drain_us: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SinkKind {
    Kafka(KafkaSink),
    Webhook(WebhookSink),
}

/// A topic of Kafka, which flock reads from its end on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KafkaSink {
    /// The first servers to ask, as `host:port`. They name all others.
    pub servers: Vec<String>,
    pub topic: String,
    /// None: no TLS.
    pub tls: Option<SinkTls>,
    /// None: no SASL.
    pub login: Option<SinkLogin>,
}

/// TLS towards Kafka.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SinkTls {
    /// PEM file with the roots to trust; `None` trusts those of Mozilla.
    pub ca_file: Option<String>,
    /// Accept any server certificate.
    pub insecure: bool,
    /// Name to ask for and to check, when it is not the host of the address.
    pub server_name: Option<String>,
    /// PEM files of the client certificate.
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
}

/// A SASL login.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkLogin {
    pub mechanism: Mechanism,
    pub username: String,
    pub password: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    #[default]
    Plain,
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

/// An HTTP server of flock, which accepts events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WebhookSink {
    /// Where it listens, as `host:port`.
    pub listen: String,
    /// The one path that it answers; `None` answers all.
    pub path: Option<String>,
    /// From the arrival of an event to its answer.
    pub delay_us: u64,
    pub refuse: Option<Refuse>,
}

/// Requests that the webhook refuses, so that the sender has to repeat them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refuse {
    /// From 400 to 599.
    pub status: u16,
    /// Of all requests, above 0 and below 1.
    pub share: f64,
}

impl SinkKind {
    /// As in a file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kafka(_) => "kafka",
            Self::Webhook(_) => "webhook",
        }
    }
}

impl fmt::Display for SinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kafka(kafka) => {
                let tls = if kafka.tls.is_some() { ", TLS" } else { "" };
                write!(f, "topic {} of Kafka at {}{tls}", kafka.topic, kafka.servers.join(", "))
            }
            Self::Webhook(webhook) => {
                let path = webhook.path.as_deref().unwrap_or("");
                write!(f, "webhook at http://{}{path}", webhook.listen)
            }
        }
    }
}

// A password is shown nowhere.
impl fmt::Debug for SinkLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} as {:?}", self.mechanism, self.username)
    }
}
