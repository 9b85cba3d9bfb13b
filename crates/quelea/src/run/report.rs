//! Events of the shards as log lines.

use broker::{Ended, Event, sys};
use codec::Reason;
use serde_json::json;
use session::Message;

use super::line_pace::{About, LinePace};
use crate::config::namespaces::DEFAULT;
use crate::logging::shown;

/// Writes one event, as far as the pace of lines allows: INFO, or WARN where something was lost.
/// The namespace is told unless it is the default one.
pub(super) fn log(event: &Event, namespace: &str, pace: &LinePace, now_ms: u64) {
    if let Some(about) = about(event)
        && !pace.allows(about, now_ms)
    {
        return;
    }
    let namespace = Some(namespace).filter(|name| *name != DEFAULT);
    match event {
        Event::Connected {
            client_id,
            username,
            peer,
            version,
            keep_alive_secs,
            session_present,
            ..
        } => {
            tracing::info!(
                namespace,
                client = &*shown(client_id),
                user = &*user(username.as_deref()),
                %peer,
                ?version,
                keep_alive_secs,
                session_present,
                "client connected"
            );
        }
        Event::Disconnected { client_id, peer, ended, .. } => {
            log_end(namespace, &shown(client_id), peer, ended);
        }
        Event::Denied { client_id, username, peer, action, topic, rule, count } => {
            tracing::info!(
                namespace,
                client = &*shown(client_id),
                user = &*user(username.as_deref()),
                peer = peer_of(peer),
                action,
                topic = &*shown(topic),
                rule = &*shown(rule),
                count,
                "not allowed by the access rules"
            );
        }
        Event::Refused { client_id, username, peer, topic, count } => {
            tracing::warn!(
                namespace,
                client = &*shown(client_id),
                user = &*user(username.as_deref()),
                peer = peer_of(peer),
                topic = &*shown(topic),
                count,
                "publishes refused: no room"
            );
        }
        Event::Stranger { client_id, username, peer } => {
            log_stranger(namespace, client_id, username.as_deref(), peer);
        }
        Event::SessionRefused { client_id, username, peer } => {
            log_session_refused(namespace, client_id, username.as_deref(), peer);
        }
        Event::SessionExpired { client_id, .. } => {
            tracing::debug!(namespace, client = &*shown(client_id), "session expired");
        }
        other => log_losses(other, namespace),
    }
}

fn log_losses(event: &Event, namespace: Option<&str>) {
    match event {
        Event::Cut { client_id, username, peer, bytes, held } => {
            tracing::warn!(
                namespace,
                client = &*shown(client_id),
                user = &*user(username.as_deref()),
                peer = peer_of(peer),
                bytes,
                held,
                "connection closed: the broker is short of memory and this user is the largest consumer"
            );
        }
        Event::Dropped { client_id, reason, count } => {
            tracing::warn!(
                namespace,
                client = &*shown(client_id),
                ?reason,
                count,
                "deliveries dropped"
            );
        }
        Event::TooManySubscriptions { client_id, username, peer, filter, count } => {
            tracing::warn!(
                namespace,
                client = &*shown(client_id),
                user = &*user(username.as_deref()),
                peer = peer_of(peer),
                filter = &*shown(filter),
                count,
                "subscriptions refused: more than a client may have, or ask for at a time"
            );
        }
        Event::RetainedRefused { topic, count } => {
            tracing::warn!(
                namespace,
                topic = &*shown(topic),
                count,
                "retained messages refused: the limit is reached"
            );
        }
        other => log_rest(other, namespace),
    }
}

fn log_rest(event: &Event, namespace: Option<&str>) {
    match event {
        Event::NotKept { client_id, error } => {
            tracing::error!(
                namespace,
                client = &*shown(client_id),
                %error,
                "session refused: the durable log cannot store it"
            );
        }
        Event::WillNotKept { client_id, error } => {
            tracing::warn!(
                namespace,
                client = &*shown(client_id),
                %error,
                "the durable log cannot store the will of a session: it is lost if the broker ends"
            );
        }
        Event::GroupDropped { group, count } => {
            tracing::warn!(
                namespace,
                group = &*shown(group),
                count,
                "messages of a shared subscription dropped"
            );
        }
        Event::LogUnreadable { shard, fault, count } => {
            let text = "the durable log cannot be read: queued messages are retried";
            tracing::error!(shard, %fault, count, "{text}");
        }
        Event::SessionPurged { client_id, .. } => {
            tracing::info!(namespace, client = &*shown(client_id), "session purged by an operator");
        }
        _ => {}
    }
}

/// None: not held to the pace of lines.
fn about(event: &Event) -> Option<About> {
    Some(match event {
        Event::Connected { .. } => About::Connected,
        Event::Disconnected { ended, .. } if is_cut_off(ended) => About::CutOff,
        Event::Disconnected { .. } => About::Disconnected,
        Event::Denied { .. } => About::Denied,
        Event::Stranger { .. } | Event::SessionRefused { .. } => About::Refused,
        Event::Dropped { .. }
        | Event::Refused { .. }
        | Event::TooManySubscriptions { .. }
        | Event::RetainedRefused { .. }
        | Event::GroupDropped { .. } => About::Lost,
        Event::Cut { .. } => About::CutOff,
        Event::NotKept { .. } | Event::WillNotKept { .. } => About::Session,
        Event::SessionExpired { .. }
        | Event::SessionPurged { .. }
        | Event::Subscribed { .. }
        | Event::Unsubscribed { .. }
        | Event::LogUnreadable { .. } => return None,
    })
}

fn user(username: Option<&str>) -> std::borrow::Cow<'_, str> {
    username.map_or("-".into(), shown)
}

fn peer_of(peer: &str) -> &str {
    if peer.is_empty() { "-" } else { peer }
}

/// The topics below `$SYS/broker/events`, the fields of their JSON, and what has happened.
pub const SYS_EVENTS: [(&str, &str, &str); 5] = [
    ("dropped", "client, reason, count, namespace", "Deliveries to a client were dropped."),
    (
        "refused",
        "client, topic, count, namespace",
        "Publishes of a client were refused for lack of room.",
    ),
    ("group_dropped", "group, count, namespace", "Messages of a shared subscription were dropped."),
    (
        "retained_refused",
        "topic, count, namespace",
        "Retained messages were refused: a limit was reached.",
    ),
    (
        "session_refused",
        "client, reason, namespace",
        "A persistent session was refused: the log cannot take it.",
    ),
];

/// What is published below `$SYS/broker/events`: what was lost or refused, and whose it was. JSON,
/// QoS 0, not retained; at most once a second per client and kind. In [`SYS_EVENTS`].
pub(super) fn message(event: &Event, namespace: &str) -> Option<Message> {
    let (name, mut body) = match event {
        Event::Dropped { client_id, reason, count } => {
            let reason = format!("{reason:?}");
            ("dropped", json!({ "client": client_id, "reason": reason, "count": count }))
        }
        Event::Refused { client_id, topic, count, .. } => {
            ("refused", json!({ "client": client_id, "topic": topic, "count": count }))
        }
        Event::TooManySubscriptions { client_id, filter, count, .. } => {
            let body = json!({ "client": client_id, "filter": filter, "count": count });
            ("subscriptions_refused", body)
        }
        Event::GroupDropped { group, count } => {
            ("group_dropped", json!({ "group": group, "count": count }))
        }
        Event::RetainedRefused { topic, count } => {
            ("retained_refused", json!({ "topic": topic, "count": count }))
        }
        Event::NotKept { client_id, error } => {
            ("session_refused", json!({ "client": client_id, "reason": error.to_string() }))
        }
        _ => return None,
    };
    body["namespace"] = namespace.into();
    Some(sys::message(&format!("events/{name}"), body.to_string().as_bytes(), false))
}

fn log_stranger(namespace: Option<&str>, client_id: &str, username: Option<&str>, peer: &str) {
    tracing::info!(
        namespace,
        client = &*shown(client_id),
        user = &*user(username),
        peer,
        "connection refused: the session of this client id belongs to another user"
    );
}

fn log_session_refused(
    namespace: Option<&str>,
    client_id: &str,
    username: Option<&str>,
    peer: &str,
) {
    tracing::warn!(
        namespace,
        client = &*shown(client_id),
        user = &*user(username),
        peer,
        "connection refused: its user or address uses too much memory for sessions and wills"
    );
}

fn log_end(namespace: Option<&str>, client_id: &str, peer: &str, ended: &Ended) {
    match ended {
        Ended::Violation(violation) => tracing::info!(
            namespace,
            client = client_id,
            peer,
            clause = violation.clause,
            reason = %violation.reason,
            detail = violation.detail,
            "client broke the protocol; connection closed"
        ),
        Ended::QueueFull => {
            tracing::warn!(namespace, client = client_id, peer, "queue full; connection closed");
        }
        Ended::Refused => {
            tracing::warn!(
                namespace,
                client = client_id,
                peer,
                "publish refused; connection closed"
            );
        }
        // Told of with its bytes already.
        Ended::LargestConsumer => {}
        Ended::Crowded => {
            let text = "connection closed: no memory for its incomplete packets";
            tracing::warn!(namespace, client = client_id, peer, "{text}");
        }
        Ended::LogFailed | Ended::NotKept => {
            tracing::warn!(
                namespace,
                client = client_id,
                peer,
                "connection closed: the durable log is out of service"
            );
        }
        Ended::NotAuthorized => {
            tracing::info!(
                namespace,
                client = client_id,
                peer,
                "re-authentication failed; connection closed"
            );
        }
        Ended::CredentialExpired => {
            let text = "connection closed: its credential has expired";
            tracing::info!(namespace, client = client_id, peer, "{text}");
        }
        Ended::Banned => {
            tracing::info!(namespace, client = client_id, peer, "banned; connection closed");
        }
        Ended::Client(_)
        | Ended::Network
        | Ended::KeepAlive
        | Ended::TakenOver
        | Ended::Shutdown
        | Ended::PacketLimitTooLow
        | Ended::Administrative => {
            tracing::info!(
                namespace,
                client = client_id,
                peer,
                why = why(ended),
                "client disconnected"
            );
        }
    }
}

/// Was it the broker that found something wrong?
const fn is_cut_off(ended: &Ended) -> bool {
    match ended {
        Ended::Client(_)
        | Ended::Network
        | Ended::KeepAlive
        | Ended::TakenOver
        | Ended::Shutdown
        | Ended::PacketLimitTooLow
        | Ended::Administrative => false,
        Ended::Violation(_)
        | Ended::QueueFull
        | Ended::Refused
        | Ended::Crowded
        | Ended::LargestConsumer
        | Ended::LogFailed
        | Ended::NotKept
        | Ended::NotAuthorized
        | Ended::CredentialExpired
        | Ended::Banned => true,
    }
}

fn why(ended: &Ended) -> &'static str {
    match ended {
        Ended::Client(Reason::NORMAL_DISCONNECTION) => "by the client",
        Ended::Client(_) => "by the client, with its will",
        Ended::Network => "connection lost",
        Ended::KeepAlive => "nothing came for one and a half keep-alives",
        Ended::TakenOver => "taken over by a new connection of the same client id",
        Ended::Shutdown => "the broker stops",
        Ended::PacketLimitTooLow => "its maximum packet size is below that of a CONNACK",
        _ => "by an operator",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_event_below_sys_is_documented_with_its_fields() {
        let events = [
            Event::Dropped { client_id: "c".into(), reason: session::Dropped::QueueFull, count: 1 },
            Event::Refused {
                client_id: "c".into(),
                username: None,
                peer: "p".into(),
                topic: "t".into(),
                count: 1,
            },
            Event::GroupDropped { group: "g".into(), count: 1 },
            Event::RetainedRefused { topic: "t".into(), count: 1 },
            Event::NotKept { client_id: "c".into(), error: storage::AppendError::Closed },
        ];
        for (event, (name, fields, _)) in events.iter().zip(SYS_EVENTS) {
            let message = message(event, "red").expect("one that is published");
            assert_eq!(message.topic(), format!("$SYS/broker/events/{name}"));
            let body: serde_json::Value = serde_json::from_slice(message.payload()).expect("JSON");
            let told: HashSet<&str> =
                body.as_object().expect("an object").keys().map(String::as_str).collect();
            assert_eq!(told, fields.split(", ").collect(), "{name}");
        }
    }
}
