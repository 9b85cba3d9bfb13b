//! Publishing, and retained messages.

use broker::command::Publication;
use broker::{Answer, Command, Name, Quota, Scope};
use codec::{Property, PropertyBuf, QoS, Reason};
use futures_util::future::join_all;
use session::Message;
use topic::Cursor;
use web::axum::http::StatusCode;

use super::call::{Call, too_much};
use super::clients::{check_filter, check_topic};
use super::paging::{TopicMark, other_answer};
use super::problem::Problem;
use super::route::Outcome;
use super::schema::Rows;
use super::views::{
    PAYLOAD_SHOWN_MAX, Publish, PublishBatch, Published, PublishedBatch, Retain, Retained,
    RetainedCleared, qos_of,
};
use super::{Api, json, of_base64, scopes};
use crate::run::durability;

/// Messages of one batch.
const BATCH_MAX: usize = 100;

/// Topics that one call clears at the same time: they share the writes of the logs.
const CLEARS_MAX: usize = 100;

/// What MQTT can say of a text.
const TEXT_BYTES_MAX: usize = 65_535;

pub(crate) async fn publish(api: &Api, call: &Call) -> Outcome {
    let scope = scopes::of_publish(api, call)?;
    let publication = publication_of(api, call.body()?, "body")?;
    json(&to_answer(send(api, scope, publication).await?)?)
}

/// Nothing is published unless all can be understood.
pub(crate) async fn publish_batch(api: &Api, call: &Call) -> Outcome {
    let scope = scopes::of_publish(api, call)?;
    let PublishBatch { messages } = call.body()?;
    if messages.len() > BATCH_MAX {
        let count = messages.len();
        return Err(too_much(format!("must have at most {BATCH_MAX} messages, got {count}")));
    }
    let understood: Result<Vec<_>, _> = messages
        .into_iter()
        .enumerate()
        .map(|(at, message)| publication_of(api, message, &format!("body, messages[{at}]")))
        .collect();
    let mut results = Vec::new();
    for publication in understood? {
        results.push(published(send(api, scope, publication).await?));
    }
    let refused = results.iter().filter(|result| result.reason_code >= 0x80).count() as u64;
    json(&PublishedBatch { results, refused })
}

pub(crate) async fn list_retained(api: &Api, call: &Call) -> Outcome {
    let filter = call.text("filter").unwrap_or("#");
    check_filter(api, "query parameter filter", filter)?;
    let now_ms = api.facts.clock.now_ms();
    let scopes = match scopes::of_list(api, call)? {
        Some(scope) => vec![scope],
        None => scopes::all_with(api, Quota::RetainedMessages),
    };
    let row = |message: Message| {
        let namespace = scopes::name(api, Scope::of(&message));
        Retained::of(namespace, &message, PAYLOAD_SHOWN_MAX, now_ms)
    };
    json(&stored(api, call, &scopes, filter, row).await?)
}

/// A page of the retained messages of these namespaces.
async fn stored<T>(
    api: &Api,
    call: &Call,
    scopes: &[Scope],
    filter: &str,
    row: impl Fn(Message) -> T,
) -> Result<Rows<T>, Problem> {
    let rows = api.collect(
        call,
        |from, max| {
            let TopicMark { scope, after } = begin(scopes, from);
            let after = after.map(|topic| Cursor::at(&topic));
            (scope, Command::Retained { filter: filter.into(), after, max })
        },
        |from, answer| match answer {
            Answer::Retained { messages, after } => {
                let scope = begin(scopes, from).scope;
                let after = after.map(|cursor| cursor.topic().to_vec());
                Some((messages, next(scopes, scope, after)))
            }
            _ => None,
        },
        row,
    );
    rows.await
}

/// Where a page begins that goes on at a mark: its namespace may have nothing any more.
fn begin(scopes: &[Scope], mark: &TopicMark) -> TopicMark {
    match scopes.iter().find(|scope| **scope >= mark.scope) {
        Some(scope) if *scope != mark.scope => TopicMark { scope: *scope, after: None },
        _ => mark.clone(),
    }
}

/// Where the next page begins: in the same namespace or the one behind it. None: all were listed.
fn next(scopes: &[Scope], scope: Scope, after: Option<Vec<u8>>) -> Option<TopicMark> {
    if after.is_some() {
        return Some(TopicMark { scope, after });
    }
    let behind = scopes.iter().find(|other| **other > scope);
    behind.map(|scope| TopicMark { scope: *scope, after: None })
}

pub(crate) async fn show_retained(api: &Api, call: &Call) -> Outcome {
    let topic = call.needed("topic");
    check_stored(topic)?;
    let scope = scopes::of_one(api, call)?;
    let home = api.shards.shared.place_of_topic(Name::new(scope, topic));
    let command = Command::Retained { filter: topic.into(), after: None, max: 1 };
    let own = scopes::name(api, scope);
    match api.shards.ask(home, scope, command).await? {
        Answer::Retained { messages, .. } => match messages.first() {
            Some(message) => {
                let payload_max =
                    call.number("payload_bytes_max").map_or(usize::MAX, |max| max as usize);
                json(&Retained::of(own, message, payload_max, api.facts.clock.now_ms()))
            }
            None if scopes::are_several(api) => {
                let detail = format!("no retained message on '{topic}' in the namespace '{own}'");
                let problem = Problem::new(StatusCode::NOT_FOUND, detail);
                Err(problem.fix("select another namespace with the parameter `namespace`"))
            }
            None => Err(Problem::missing("retained message on", topic)),
        },
        _ => Err(other_answer()),
    }
}

pub(crate) async fn set_retained(api: &Api, call: &Call) -> Outcome {
    let scope = scopes::of_publish(api, call)?;
    let Retain { payload, payload_base64, qos, message_expiry_secs, content_type } = call.body()?;
    let message = Publish {
        payload,
        payload_base64,
        qos,
        message_expiry_secs,
        content_type,
        ..empty(call.needed("topic"))
    };
    let publication = publication_of(api, message, "body")?;
    if publication.payload.is_empty() {
        let fix = "DELETE /retained/message clears it";
        return Err(Problem::bad(
            "body",
            "a retained message needs a payload: an empty one clears \
        the topic",
        )
        .fix(fix));
    }
    json(&to_answer(send(api, scope, publication).await?)?)
}

pub(crate) async fn clear_retained(api: &Api, call: &Call) -> Outcome {
    let topic = call.needed("topic");
    check_stored(topic)?;
    let scope = scopes::of_one(api, call)?;
    to_answer(send(api, scope, clearing(api, topic)).await?).map(|_| None)
}

/// A page of those whose topics match a filter. Subscribers are notified as by a client that clears
/// each topic.
pub(crate) async fn clear_matching(api: &Api, call: &Call) -> Outcome {
    let filter = call.needed("filter");
    check_filter(api, "query parameter filter", filter)?;
    let scope = scopes::of_one(api, call)?;
    let topic_of = |message: Message| message.topic().to_owned();
    let Rows { items, cursor } = stored(api, call, &[scope], filter, topic_of).await?;
    let (matched, mut cleared, mut refused) = (items.len() as u64, 0, 0);
    let to_clear = if call.flag("dry_run") == Some(true) { &[] } else { &items[..] };
    for topics in to_clear.chunks(CLEARS_MAX) {
        let sent = topics.iter().map(|topic| send(api, scope, clearing(api, topic)));
        for answer in join_all(sent).await {
            match answer.is_ok_and(|reason| !reason.is_error()) {
                true => cleared += 1,
                false => refused += 1,
            }
        }
    }
    json(&RetainedCleared { matched, cleared, refused, cursor })
}

/// The publish that clears a topic.
fn clearing(api: &Api, topic: &str) -> Publication {
    Publication {
        topic: topic.into(),
        properties: Box::default(),
        payload: Box::default(),
        qos: QoS::AtMostOnce,
        retain: true,
        expiry_secs: None,
        durability: durability(api.facts.config.durability.level),
    }
}

/// Whatever was retained can be shown and cleared, also on a topic that is refused today.
fn check_stored(topic: &str) -> Result<(), Problem> {
    let detail = "must have no wildcards; GET /retained takes a filter";
    let is_one = !topic.contains(['+', '#']);
    if is_one { Ok(()) } else { Err(Problem::bad("query parameter topic", detail)) }
}

/// A retained message without anything.
fn empty(topic: &str) -> Publish {
    Publish {
        topic: topic.to_owned(),
        payload: None,
        payload_base64: None,
        qos: None,
        retain: Some(true),
        message_expiry_secs: None,
        content_type: None,
        response_topic: None,
        correlation_data_base64: None,
        user_properties: None,
    }
}

/// Messages on one topic go through one shard, in their order.
async fn send(api: &Api, scope: Scope, publication: Publication) -> Result<Reason, Problem> {
    // Of a batch some topics may have their home in another cell: any shard passes them on there.
    let place = api.shards.shared.place_of_topic(Name::new(scope, &publication.topic));
    let shard = place % api.shards.count();
    match api.shards.ask(shard, scope, Command::Publish(publication)).await? {
        Answer::Published(reason) => Ok(reason),
        _ => Err(other_answer()),
    }
}

fn published(reason: Reason) -> Published {
    let matched = reason == Reason::SUCCESS;
    Published { reason_code: reason.0, reason: reason.word(), matched }
}

/// A refusal is a failure of the call.
fn to_answer(reason: Reason) -> Result<Published, Problem> {
    match reason {
        Reason::QUOTA_EXCEEDED => {
            let detail = "quota exceeded (0x97): the memory, the log, the retained store or the \
            queue of a subscriber is full";
            Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail))
        }
        reason if reason.is_error() => {
            let detail = format!("the message was refused: {reason}");
            Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail).fix("look at /logs"))
        }
        reason => Ok(published(reason)),
    }
}

fn publication_of(api: &Api, message: Publish, place: &str) -> Result<Publication, Problem> {
    let at = |field: &str| format!("{place}, {field}");
    let limits = &api.facts.config.limits;
    let topic_place = if place.starts_with("body") { at("topic") } else { place.to_owned() };
    check_topic(api, &topic_place, &message.topic)?;
    if message.topic.starts_with("$SYS/") {
        return Err(Problem::bad(
            topic_place,
            "must not be below $SYS/, which only the broker \
        publishes",
        ));
    }
    if let Some(prefix) = topic::reserved(&message.topic) {
        let detail = format!("must not be below {prefix}, which no subscription can receive");
        return Err(Problem::bad(topic_place, detail));
    }
    let Some(qos) = qos_of(message.qos).filter(|qos| *qos as u8 <= limits.qos_max) else {
        let detail = format!("must be between 0 and {}", limits.qos_max);
        return Err(Problem::bad(at("qos"), detail));
    };
    let retain = message.retain.unwrap_or(false);
    if retain && !limits.retain_available {
        return Err(Problem::bad(
            at("retain"),
            "must be false: this broker does not support \
        retained messages (retain_available)",
        ));
    }
    let is_text = message.payload.is_some();
    let payload = match (message.payload, message.payload_base64) {
        (Some(_), Some(_)) => {
            return Err(Problem::bad(at("payload"), "excludes `payload_base64`: send one of them"));
        }
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => of_base64(&text)
            .ok_or_else(|| Problem::bad(at("payload_base64"), "must be base64 with padding"))?,
        (None, None) => Vec::new(),
    };
    if payload.len() > limits.packet_bytes_max as usize {
        let bytes_max = limits.packet_bytes_max;
        return Err(too_much(format!("must have at most {bytes_max} bytes (packet_bytes_max)")));
    }
    let properties = properties_of(
        is_text && qos != QoS::AtMostOnce,
        message.content_type.as_deref(),
        message.response_topic.as_deref(),
        message.correlation_data_base64.as_deref(),
        message.user_properties.as_deref().unwrap_or_default(),
        &at,
    )?;
    if properties.len() > limits.properties_bytes_max as usize {
        return Err(too_much("the properties must have at most limits.properties_bytes_max bytes"));
    }
    let expiry_max = limits.message_expiry_max_secs;
    let expiry = message.message_expiry_secs.unwrap_or(u32::MAX).min(expiry_max);
    Ok(Publication {
        topic: message.topic.into(),
        properties: properties.into(),
        payload: payload.into(),
        qos,
        retain,
        expiry_secs: (expiry != u32::MAX).then_some(expiry),
        durability: durability(api.facts.config.durability.level),
    })
}

/// The properties on the wire.
fn properties_of(
    is_text: bool,
    content_type: Option<&str>,
    response_topic: Option<&str>,
    correlation_data: Option<&str>,
    user: &[super::views::UserProperty],
    at: &impl Fn(&str) -> String,
) -> Result<Vec<u8>, Problem> {
    let check = |field: &str, one: Property<'_>| {
        let mut alone = PropertyBuf::new();
        alone.push(one);
        let checked = codec::check_publish_properties(alone.as_properties().raw());
        checked.map_err(|error| Problem::bad(at(field), error.detail))
    };
    let fits = |field: &str, text: &str| match text.len() <= TEXT_BYTES_MAX {
        true => Ok(()),
        false => Err(Problem::bad(at(field), "must have at most 65535 bytes")),
    };
    let mut properties = PropertyBuf::new();
    if is_text {
        properties.push(Property::PayloadFormat(1));
    }
    if let Some(text) = content_type {
        fits("content_type", text)?;
        check("content_type", Property::ContentType(text))?;
        properties.push(Property::ContentType(text));
    }
    if let Some(text) = response_topic {
        fits("response_topic", text)?;
        check("response_topic", Property::ResponseTopic(text))?;
        properties.push(Property::ResponseTopic(text));
    }
    if let Some(text) = correlation_data {
        let data = of_base64(text).filter(|data| data.len() <= TEXT_BYTES_MAX);
        let data = data.ok_or_else(|| {
            Problem::bad(at("correlation_data_base64"), "must be base64 of at most 65535 bytes")
        })?;
        properties.push(Property::CorrelationData(&data));
    }
    for one in user {
        fits("user_properties", &one.name)?;
        fits("user_properties", &one.value)?;
        check("user_properties", Property::User(&one.name, &one.value))?;
        properties.push(Property::User(&one.name, &one.value));
    }
    Ok(properties.as_properties().raw().to_vec())
}
