//! Events of the shards as log lines.

use broker::{Ended, Event, sys};
use serde_json::json;
use session::Message;

/// Writes one event. Life-cycle of single connections is DEBUG; what a person should look at is
/// INFO (a client did wrong) or WARN (something was lost).
pub(super) fn log(event: &Event) {
    match event {
        Event::Connected {
            client_id,
            username,
            peer,
            version,
            keep_alive_secs,
            session_present,
        } => {
            tracing::debug!(
                client = &**client_id,
                user = username.as_deref().unwrap_or("-"),
                %peer,
                ?version,
                keep_alive_secs,
                session_present,
                "client connected"
            );
        }
        Event::Disconnected { client_id, peer, ended } => log_end(client_id, peer, ended),
        Event::Dropped { client_id, reason, count } => {
            tracing::warn!(client = &**client_id, ?reason, count, "deliveries dropped");
        }
        Event::Denied { client_id, action, topic } => {
            tracing::info!(
                client = &**client_id,
                action,
                topic = &**topic,
                "not allowed by the access rules"
            );
        }
        Event::Refused { client_id, topic, count } => {
            tracing::warn!(
                client = &**client_id,
                topic = &**topic,
                count,
                "publishes refused: no room"
            );
        }
        Event::Stranger { client_id, username, peer } => {
            log_stranger(client_id, username.as_deref(), peer);
        }
        Event::SessionExpired { client_id } => {
            tracing::debug!(client = &**client_id, "session expired");
        }
        Event::RetainedRefused { topic } => {
            tracing::warn!(topic = &**topic, "retained message not kept: the limit is reached");
        }
        Event::LogUnreadable { shard, fault } => {
            tracing::error!(shard, %fault, "the log cannot be read; what waits there is tried again");
        }
        Event::NotKept { client_id, error } => {
            tracing::error!(client = &**client_id, %error, "session refused: the log cannot take it");
        }
        Event::WillNotKept { client_id, error } => {
            tracing::warn!(
                client = &**client_id,
                %error,
                "the log cannot take the will of a session: it is lost with the process"
            );
        }
        Event::GroupDropped { group, count } => {
            tracing::warn!(group = &**group, count, "messages of a shared subscription dropped");
        }
    }
}

/// What is published below `$SYS/broker/events`: what was lost or refused, and whose it was. JSON,
/// QoS 0, not retained; at most once a second per client and kind.
pub(super) fn message(event: &Event) -> Option<Message> {
    let (name, body) = match event {
        Event::Dropped { client_id, reason, count } => {
            let reason = format!("{reason:?}");
            ("dropped", json!({ "client": client_id, "reason": reason, "count": count }))
        }
        Event::Refused { client_id, topic, count } => {
            ("refused", json!({ "client": client_id, "topic": topic, "count": count }))
        }
        Event::GroupDropped { group, count } => {
            ("group_dropped", json!({ "group": group, "count": count }))
        }
        Event::RetainedRefused { topic } => ("retained_refused", json!({ "topic": topic })),
        Event::NotKept { client_id, error } => {
            ("session_refused", json!({ "client": client_id, "reason": error.to_string() }))
        }
        _ => return None,
    };
    Some(sys::message(&format!("events/{name}"), body.to_string().as_bytes(), false))
}

fn log_stranger(client_id: &str, username: Option<&str>, peer: &str) {
    let user = username.unwrap_or("-");
    tracing::info!(
        client = client_id,
        user,
        peer,
        "connection refused: the session of this client id belongs to another user"
    );
}

fn log_end(client_id: &str, peer: &str, ended: &Ended) {
    match ended {
        Ended::Violation(violation) => tracing::info!(
            client = client_id,
            peer,
            clause = violation.clause,
            reason = %violation.reason,
            detail = violation.detail,
            "client broke the protocol; connection closed"
        ),
        Ended::QueueFull => {
            tracing::warn!(client = client_id, peer, "queue full; connection closed");
        }
        Ended::Refused => {
            tracing::warn!(client = client_id, peer, "publish refused; connection closed");
        }
        Ended::LogFailed | Ended::NotKept => {
            tracing::warn!(client = client_id, peer, "log out of service; connection closed");
        }
        Ended::NotAuthorized => {
            tracing::info!(client = client_id, peer, "re-authentication failed; connection closed");
        }
        Ended::Client(_)
        | Ended::Network
        | Ended::KeepAlive
        | Ended::TakenOver
        | Ended::Shutdown
        | Ended::PacketLimitTooLow
        | Ended::Administrative => {
            tracing::debug!(client = client_id, peer, why = ?ended, "client disconnected");
        }
    }
}
