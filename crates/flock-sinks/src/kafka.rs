//! A reader of all partitions of a topic, from their ends on, without a consumer group.

use std::time::Duration;

use flock_model::{KafkaSink, Mechanism, SinkTls};
use krafka::auth::{AuthConfig, TlsConfig};
use krafka::consumer::{AutoOffsetReset, Consumer, ConsumerRecord, TopicPartition};
use krafka::{Kafka, KrafkaError};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::event::{Envelope, unwrap};
use crate::{OnArrival, SinkError, State};

pub(crate) struct Reader {
    consumer: Consumer,
}

impl Reader {
    /// Connects, and notes where each partition ends now.
    pub(crate) async fn open(sink: &str, settings: &KafkaSink) -> Result<Self, SinkError> {
        let servers = settings.servers.join(",");
        let failed = |reason: String| SinkError::Kafka {
            sink: sink.to_owned(),
            servers: servers.clone(),
            reason,
        };
        match timeout(OPEN_TIME_MAX, open(settings)).await {
            Ok(Ok(Some(consumer))) => Ok(Self { consumer }),
            Ok(Ok(None)) => Err(SinkError::NoTopic {
                sink: sink.to_owned(),
                servers,
                topic: settings.topic.clone(),
            }),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", OPEN_TIME_MAX.as_secs()))),
        }
    }

    /// Passes on each record, until `stopped`.
    pub(crate) async fn run(
        self,
        on_arrival: &OnArrival,
        state: &State,
        mut stopped: oneshot::Receiver<()>,
    ) {
        loop {
            let polled = tokio::select! {
                polled = self.consumer.poll(POLL_TIME_MAX) => polled,
                _ = &mut stopped => break,
            };
            match polled {
                Ok(records) => records.iter().for_each(|record| pass_on(record, on_arrival)),
                Err(error) => {
                    state.fail(error.to_string());
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
            }
        }
        // What is left of the connections ends with the runtime.
        let _ = timeout(CLOSE_TIME_MAX, self.consumer.close()).await;
    }
}

/// `None`: there is no such topic.
async fn open(settings: &KafkaSink) -> krafka::Result<Option<Consumer>> {
    let kafka = Kafka::builder(settings.servers.join(","))
        .client_id("flock")
        .security(security(settings))
        .allow_auto_create_topics(false)
        .connect_timeout(REQUEST_TIME_MAX)
        .request_timeout(REQUEST_TIME_MAX)
        .connect()
        .await?;
    let consumer = kafka
        .consumer_without_group()
        // Where the server has deleted what was to be read: nothing that is left is passed over.
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .fetch_max_wait(FETCH_WAIT_MAX)
        .max_poll_records(RECORDS_MAX)
        .metrics_push(false)
        .build()
        .await?;
    let topic = settings.topic.as_str();
    let found = match consumer.fetch_metadata(Some(topic)).await {
        Err(error) if is_unknown_topic(&error) => return Ok(None),
        found => found?,
    };
    let Some(info) = found.topics.first() else { return Ok(None) };
    let partitions: Vec<_> = info.partitions.keys().copied().collect();
    if partitions.is_empty() {
        return Ok(None);
    }
    consumer.assign(topic, partitions.clone()).await?;
    for partition in partitions {
        let (_, end) = consumer.fetch_watermarks(topic, partition).await?;
        consumer.seek_many([(TopicPartition::new(topic, partition), end)]).await?;
    }
    Ok(Some(consumer))
}

fn is_unknown_topic(error: &KrafkaError) -> bool {
    error.to_string().to_ascii_lowercase().contains("unknown topic")
}

fn security(settings: &KafkaSink) -> AuthConfig {
    let tls = settings.tls.as_ref().map(tls_config);
    let Some(login) = &settings.login else {
        return tls.map_or_else(AuthConfig::plaintext, AuthConfig::ssl);
    };
    let (username, password) = (&login.username, &login.password);
    let auth = match login.mechanism {
        Mechanism::Plain => AuthConfig::sasl_plain(username, password),
        Mechanism::ScramSha256 => AuthConfig::sasl_scram_sha256(username, password),
        Mechanism::ScramSha512 => AuthConfig::sasl_scram_sha512(username, password),
    };
    match tls {
        Some(tls) => auth.with_tls(tls),
        None => auth,
    }
}

fn tls_config(tls: &SinkTls) -> TlsConfig {
    let mut config = match (&tls.ca_file, tls.insecure) {
        (_, true) => TlsConfig::insecure(),
        (Some(file), false) => TlsConfig::new().with_ca_cert(file),
        // The roots of Mozilla, which are built in.
        (None, false) => TlsConfig::new(),
    };
    if let (Some(certificate), Some(key)) = (&tls.cert_file, &tls.key_file) {
        config = config.with_client_cert(certificate, key);
    }
    if let Some(name) = &tls.server_name {
        config = config.with_sni_hostname(name);
    }
    config
}

fn pass_on(record: &ConsumerRecord, on_arrival: &OnArrival) {
    let text = |name: &str| record.header_str(name);
    let envelope = Envelope {
        content_type: text("content-type"),
        is_binary: text("ce_specversion").is_some(),
        subject: text("ce_subject").map(Into::into),
        body: record.value.as_deref().unwrap_or_default(),
    };
    unwrap(envelope, &mut |event| on_arrival(event));
}

const OPEN_TIME_MAX: Duration = Duration::from_secs(30);
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);
/// A server answers earlier if it has something.
const FETCH_WAIT_MAX: Duration = Duration::from_millis(250);
const POLL_TIME_MAX: Duration = Duration::from_millis(500);
const FAILURE_PAUSE: Duration = Duration::from_millis(200);
/// Of one poll.
const RECORDS_MAX: i32 = 1_000;

#[cfg(test)]
mod tests {
    use krafka::Headers;
    use routing::Binding;

    use super::*;
    use crate::testing::{check, forms, routed};

    #[test]
    fn records_of_the_brokers_rules_are_unwrapped_in_every_form() {
        for (form, reading) in forms() {
            let output = routed(form, Binding::Kafka, reading);
            let body = output.body.map(Into::into);
            let mut record = ConsumerRecord::new("t", 0, 7, None, body);
            let mut headers = Headers::new();
            for header in output.headers {
                headers.push((header.name, Some(header.value.into_bytes().into())));
            }
            record.headers = headers;
            check(form, |on_arrival| pass_on(&record, on_arrival));
        }
    }
}
