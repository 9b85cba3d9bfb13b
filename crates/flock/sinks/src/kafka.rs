//! A reader of all partitions of a topic, from their ends on, without a consumer group.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flock_model::{KafkaSink, Mechanism, SinkTls};
use krafka::auth::{AuthConfig, TlsConfig};
use krafka::consumer::{AutoOffsetReset, Consumer, ConsumerRecord, TopicPartition};
use krafka::{Kafka, KrafkaError, Offset, PartitionId};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::event::{Envelope, unwrap};
use crate::{OnArrival, SinkError, State};

pub(crate) struct Reader {
    consumer: Consumer,
    topic: String,
    partitions: BTreeMap<PartitionId, Place>,
}

/// How far a partition is read.
struct Place {
    /// The first record that did not arrive.
    next: Offset,
    /// When a record arrived last, or when somebody looked whether there are more.
    looked: Instant,
    /// Where the partition ended at the last look.
    end: Offset,
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
            Ok(Ok(Some(reader))) => Ok(reader),
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
        mut self,
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
                Ok(records) => {
                    for record in &records {
                        self.note(record);
                        pass_on(record, on_arrival);
                    }
                }
                Err(error) => {
                    state.fail(error.to_string());
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
            }
            tokio::select! {
                () = self.look(state) => {}
                _ = &mut stopped => break,
            }
        }
        // What is left of the connections ends with the runtime.
        let _ = timeout(CLOSE_TIME_MAX, self.consumer.close()).await;
    }

    fn note(&mut self, record: &ConsumerRecord) {
        if let Some(place) = self.partitions.get_mut(&record.partition) {
            place.next = record.offset + 1;
            place.looked = Instant::now();
        }
    }

    /// Looks at partitions from which nothing came for a time. After failures the library waits up
    /// to half a minute ahead of the next attempt, and tells nobody: a seek ends that.
    async fn look(&mut self, state: &State) {
        let mut stalled = Vec::new();
        for (partition, place) in &mut self.partitions {
            if place.looked.elapsed() < SILENCE_MAX {
                continue;
            }
            place.looked = Instant::now();
            let asked = self.consumer.fetch_watermarks(&self.topic, *partition);
            let failure = match timeout(LOOK_TIME_MAX, asked).await {
                Ok(Ok((_, end))) => {
                    // What was there at the look before has had its time.
                    if place.next < std::mem::replace(&mut place.end, end) {
                        stalled.push(*partition);
                    }
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {} s", LOOK_TIME_MAX.as_secs()),
            };
            state.fail(failure);
            stalled = self.partitions.keys().copied().collect();
            break;
        }
        self.seek(&stalled, state).await;
    }

    /// Goes on where these partitions are.
    async fn seek(&self, partitions: &[PartitionId], state: &State) {
        let places = partitions.iter().filter_map(|partition| {
            let place = self.partitions.get(partition)?;
            Some((TopicPartition::new(&*self.topic, *partition), place.next))
        });
        if !partitions.is_empty()
            && let Err(error) = self.consumer.seek_many(places).await
        {
            state.fail(error.to_string());
        }
    }
}

/// `None`: there is no such topic.
async fn open(settings: &KafkaSink) -> krafka::Result<Option<Reader>> {
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
    let mut places = BTreeMap::new();
    for partition in partitions {
        let (_, end) = consumer.fetch_watermarks(topic, partition).await?;
        consumer.seek_many([(TopicPartition::new(topic, partition), end)]).await?;
        places.insert(partition, Place { next: end, looked: Instant::now(), end });
    }
    Ok(Some(Reader { consumer, topic: topic.into(), partitions: places }))
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
/// Without a record for so long, a partition is looked at.
const SILENCE_MAX: Duration = Duration::from_secs(1);
const LOOK_TIME_MAX: Duration = Duration::from_secs(2);
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
