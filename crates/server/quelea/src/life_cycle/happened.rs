//! What has happened, with all that is reported of it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use broker::{Ended, Event, ReportedFilters};
use codec::Reason;
use serde_json::{Value, json};
use session::QueueLimit;

use super::table::{self, EventKind};
use base::shown;
use config::namespaces::DEFAULT;

/// Something that has happened.
#[derive(Debug)]
pub(crate) struct Happened<'a> {
    pub(crate) kind: &'static EventKind,
    /// The client it is about. None: about no client.
    pub(crate) client_id: Option<&'a str>,
    pub(crate) address: Option<IpAddr>,
    /// Where it has happened. None: in the broker as a whole.
    pub(crate) namespace: Option<Box<str>>,
    /// The fields of its kind.
    pub(crate) data: Value,
}

/// A connection that was refused before it came to a shard.
#[derive(Debug)]
pub(crate) struct ClientRefused<'a> {
    /// None: there was no complete CONNECT.
    pub(crate) client_id: Option<&'a str>,
    pub(crate) username: Option<&'a str>,
    pub(crate) address: &'a str,
    pub(crate) listener: &'a str,
    /// None: it is not known yet.
    pub(crate) namespace: Option<Box<str>>,
    /// None: the broker itself refuses it.
    pub(crate) provider: Option<&'a str>,
    pub(crate) reason_code: Reason,
    pub(crate) detail: &'a str,
}

/// The longest unverified name that is reported whole, in bytes.
const UNPROVED_BYTES_MAX: usize = 256;

impl ClientRefused<'_> {
    pub(super) fn happened(&self) -> Happened<'_> {
        let data = json!({
            "namespace": self.namespace,
            "client_id": self.client_id.map(unproved),
            "username": self.username.map(unproved),
            "address": self.address,
            "listener": self.listener,
            "provider": self.provider,
            "reason": self.reason_code.word(),
            "reason_code": self.reason_code.0,
            "detail": self.detail,
        });
        let client_id = self.client_id.filter(|own| own.len() <= UNPROVED_BYTES_MAX);
        let (address, namespace) = (ip(self.address), self.namespace.clone());
        Happened { kind: &table::CLIENT_REFUSED, client_id, address, namespace, data }
    }
}

fn unproved(text: &str) -> Cow<'_, str> {
    if text.len() <= UNPROVED_BYTES_MAX { text.into() } else { shown(text) }
}

fn ip(address: &str) -> Option<IpAddr> {
    address.parse().ok().map(|address: SocketAddr| address.ip())
}

impl<'a> Happened<'a> {
    pub(crate) fn of_broker(kind: &'static EventKind, data: Value) -> Self {
        Self { kind, client_id: None, address: None, namespace: None, data }
    }

    fn of_event(
        event: &'a Event,
        kind: &'static EventKind,
        namespace: &str,
        mut data: Value,
    ) -> Self {
        let (client_id, username, address) = client_of(event);
        let common: [(&str, Value); 4] = [
            ("namespace", namespace.into()),
            ("client_id", client_id.into()),
            ("username", username.into()),
            ("address", Some(address).filter(|it| !it.is_empty()).into()),
        ];
        for (name, value) in common {
            if kind.fields.split(", ").any(|field| field == name) {
                data[name] = value;
            }
        }
        let namespace = data.get("namespace").map(|_| namespace.into());
        Self { kind, client_id, address: ip(address), namespace, data }
    }

    /// `clients/dev-7`, in another namespace than the default one `namespaces/red/clients/dev-7`.
    pub(crate) fn subject(&self) -> Option<String> {
        let client_id = self.client_id?;
        Some(match self.namespace.as_deref().filter(|name| *name != DEFAULT) {
            Some(name) => format!("namespaces/{name}/clients/{client_id}"),
            None => format!("clients/{client_id}"),
        })
    }

    pub(crate) fn full_type(&self) -> String {
        format!("quelea.{}", self.kind.name)
    }
}

/// What is reported of an event. A client that connects without a session has created one.
pub(super) fn of<'a>(event: &'a Event, namespace: &str) -> impl Iterator<Item = Happened<'a>> {
    let is_new = matches!(event, Event::Connected { session_present: false, .. });
    let created = is_new.then(|| Happened::of_event(event, &table::CREATED, namespace, json!({})));
    let happened = Happened::of_event(event, kind_of(event), namespace, data_of(event));
    created.into_iter().chain([happened])
}

/// The row of an event in the table.
pub(super) fn kind_of(event: &Event) -> &'static EventKind {
    match event {
        Event::Connected { .. } => &table::CONNECTED,
        Event::Disconnected { ended, .. } => how_it_ended(ended).0,
        Event::Subscribed { .. } => &table::SUBSCRIBED,
        Event::Unsubscribed { .. } => &table::UNSUBSCRIBED,
        Event::Dropped { .. } | Event::GroupDropped { .. } => &table::DROPPED,
        Event::Denied { .. } => &table::DENIED,
        Event::Refused { .. } => &table::REFUSED,
        Event::TooManySubscriptions { .. } => &table::SUBSCRIPTIONS_REFUSED,
        Event::Stranger { .. } | Event::SessionRefused { .. } => &table::SESSION_REFUSED,
        Event::SessionExpired { .. } => &table::EXPIRED,
        Event::SessionPurged { .. } => &table::PURGED,
        Event::RetainedRefused { .. } => &table::RETAINED_REFUSED,
        Event::JournalUnreadable { .. } => &table::LOG_UNREADABLE,
        Event::NotKept { .. } => &table::SESSION_NOT_STORED,
        Event::WillNotKept { .. } => &table::WILL_NOT_STORED,
    }
}

/// Client id, user name and address, where it has them.
pub(super) fn client_of(event: &Event) -> (Option<&str>, Option<&str>, &str) {
    match event {
        Event::Connected { client_id, username, peer, .. }
        | Event::Disconnected { client_id, username, peer, .. }
        | Event::Subscribed { client_id, username, peer, .. }
        | Event::Unsubscribed { client_id, username, peer, .. }
        | Event::Denied { client_id, username, peer, .. }
        | Event::Refused { client_id, username, peer, .. }
        | Event::TooManySubscriptions { client_id, username, peer, .. }
        | Event::Stranger { client_id, username, peer }
        | Event::SessionRefused { client_id, username, peer } => {
            (Some(client_id), username.as_deref(), peer)
        }
        Event::SessionExpired { client_id, username }
        | Event::SessionPurged { client_id, username } => {
            (Some(client_id), username.as_deref(), "")
        }
        Event::Dropped { client_id, .. }
        | Event::NotKept { client_id, .. }
        | Event::WillNotKept { client_id, .. } => (Some(client_id), None, ""),
        Event::RetainedRefused { .. }
        | Event::JournalUnreadable { .. }
        | Event::GroupDropped { .. } => (None, None, ""),
    }
}

/// The other fields of its kind.
fn data_of(event: &Event) -> Value {
    match event {
        Event::Connected { version, keep_alive_secs, session_present, sequence, .. } => json!({
            "protocol": version.to_string(),
            "keep_alive_secs": keep_alive_secs,
            "session_present": session_present,
            "sequence_number": sequence,
        }),
        Event::Disconnected { ended, sequence, session_expiry_secs, .. } => {
            let (_, disconnection_reason, detail) = how_it_ended(ended);
            json!({
                "sequence_number": sequence,
                "reason": ended.word(),
                "disconnection_reason": disconnection_reason,
                "reason_code": ended.reason().0,
                "detail": detail,
                "session_expiry_secs":
                    Some(*session_expiry_secs).filter(|secs| *secs != u32::MAX),
            })
        }
        Event::Subscribed { filters, .. } => filters_of(filters, true),
        Event::Unsubscribed { filters, .. } => filters_of(filters, false),
        Event::Dropped { reason, count, .. } => {
            let limit = reason.limit().map(QueueLimit::word);
            json!({ "group": null, "reason": reason.word(), "limit": limit, "count": count })
        }
        Event::GroupDropped { group, limit, count } => {
            let limit = limit.map(QueueLimit::word);
            json!({ "group": group, "reason": "shared_group", "limit": limit, "count": count })
        }
        Event::Denied { action, topic, rule, count, .. } => {
            json!({ "action": action, "topic": topic, "rule": rule, "count": count })
        }
        Event::Refused { topic, count, .. } | Event::RetainedRefused { topic, count } => {
            json!({ "topic": topic, "count": count })
        }
        Event::TooManySubscriptions { filter, count, .. } => {
            json!({ "filter": filter, "count": count })
        }
        Event::Stranger { .. } => json!({
            "reason": "other_user",
            "detail": "the session of this client ID belongs to another user",
        }),
        Event::SessionRefused { .. } => json!({
            "reason": Reason::QUOTA_EXCEEDED.word(),
            "detail": "the sessions and wills of its user or address use too much memory",
        }),
        Event::NotKept { error, .. } | Event::WillNotKept { error, .. } => {
            json!({ "reason": "log_unavailable", "detail": error.to_string() })
        }
        Event::JournalUnreadable { shard, fault, count } => {
            json!({ "shard": shard, "detail": fault.to_string(), "count": count })
        }
        Event::SessionExpired { .. } | Event::SessionPurged { .. } => json!({}),
    }
}

fn filters_of(reported: &ReportedFilters, have_qos: bool) -> Value {
    let filter = |(filter, qos): &(Box<str>, u8)| match have_qos {
        true => json!({ "filter": filter, "qos": qos }),
        false => json!({ "filter": filter }),
    };
    let filters: Vec<Value> = reported.filters.iter().map(filter).collect();
    json!({ "filters": filters, "count": reported.count })
}

const DENIED: &str = "a PUBLISH or SUBSCRIBE was denied (access.deny_action)";
const CELL_LOST: &str = "another cell had a new owner, and may have delivered a QoS 2 message";
const REVOKED: &str = "the entry of the client in the registry was changed or deleted";

/// The row of the table, the word that Azure Event Grid has for it, and a sentence.
fn how_it_ended(ended: &Ended) -> (&'static EventKind, &'static str, Cow<'static, str>) {
    let (kind, word, detail) = match ended {
        Ended::Client(Reason::NORMAL_DISCONNECTION) => {
            (&table::DISCONNECTED, "ClientInitiatedDisconnect", "the client sent DISCONNECT")
        }
        Ended::Client(_) => (
            &table::DISCONNECTED,
            "ClientInitiatedDisconnect",
            "the client sent DISCONNECT with a reason code, and its will is published",
        ),
        Ended::Network => (&table::DISCONNECTED, "ConnectionLost", "the connection was lost"),
        Ended::KeepAlive => (
            &table::DISCONNECTED,
            "ConnectionLost",
            "no packet arrived within one and a half keep-alive intervals",
        ),
        Ended::TakenOver => (
            &table::DISCONNECTED,
            "SessionTakenOver",
            "another connection with the same client ID was opened",
        ),
        Ended::Shutdown => {
            (&table::DISCONNECTED, "ServerInitiatedDisconnect", "the broker is stopping")
        }
        Ended::Administrative => {
            (&table::DISCONNECTED, "ServerInitiatedDisconnect", "an operator closed the connection")
        }
        Ended::PacketLimitTooLow => (
            &table::DISCONNECTED,
            "ClientError",
            "the maximum packet size of the client is below the size of a CONNACK",
        ),
        Ended::Violation(violation) => {
            let detail = format!("{}: {}", violation.clause, violation.detail);
            return (&table::CLOSED, "ClientError", detail.into());
        }
        Ended::NotAuthorized => {
            (&table::CLOSED, "ClientAuthenticationError", "re-authentication failed")
        }
        Ended::Denied => (&table::CLOSED, "ClientError", DENIED),
        Ended::CredentialExpired => {
            (&table::CLOSED, "ClientAuthenticationError", "the credential has expired")
        }
        Ended::CredentialRevoked => (&table::CLOSED, "ClientAuthenticationError", REVOKED),
        Ended::Banned => (&table::CLOSED, "ServerInitiatedDisconnect", "the client was banned"),
        Ended::QueueFull => {
            (&table::CLOSED_AT_LIMIT, "SessionOverflow", "the queue of the session is full")
        }
        Ended::Refused => (
            &table::CLOSED_AT_LIMIT,
            "QuotaExceeded",
            "a publish was refused, which this version of MQTT cannot report",
        ),
        Ended::Crowded => {
            (&table::CLOSED_AT_LIMIT, "QuotaExceeded", "no memory is left for incomplete packets")
        }
        Ended::LargestConsumer { bytes, owner_bytes } => {
            let detail = format!(
                "the broker is out of memory and the user or address is the largest consumer: \
                 {bytes} bytes in this connection, {owner_bytes} in all"
            );
            return (&table::CLOSED_AT_LIMIT, "QuotaExceeded", detail.into());
        }
        Ended::CellLost => (&table::CLOSED_AT_LIMIT, "ServerError", CELL_LOST),
        Ended::JournalFailed | Ended::NotKept => {
            (&table::CLOSED_AT_LIMIT, "ServerError", "the durable log is out of service")
        }
    };
    (kind, word, detail.into())
}

#[cfg(test)]
pub(super) mod tests {
    use codec::{Version, Violation};

    use super::*;

    /// An event of each kind, and of each end of a connection.
    pub(crate) fn examples() -> Vec<Event> {
        let client_id: Box<str> = "c".into();
        let (username, peer): (Option<Box<str>>, Box<str>) =
            (Some("u".into()), "10.0.0.7:1".into());
        let (topic, rule): (Box<str>, Box<str>) = ("t".into(), "r".into());
        let filters = ReportedFilters { filters: vec![("a/#".into(), 1)], count: 1 };
        let error = storage::AppendError::Closed;
        let fault = storage::Fault { kind: storage::FaultKind::Io, detail: "read".into() };
        let mut events: Vec<Event> = ends()
            .into_iter()
            .map(|ended| Event::Disconnected {
                client_id: client_id.clone(),
                username: username.clone(),
                peer: peer.clone(),
                ended,
                sequence: 7,
                session_expiry_secs: u32::MAX,
            })
            .collect();
        macro_rules! of_client {
            ($kind:ident { $($field:ident $(: $value:expr)?),* }) => {
                events.push(Event::$kind {
                    client_id: client_id.clone(), username: username.clone(), peer: peer.clone(),
                    $($field $(: $value)?),*
                })
            };
        }
        of_client!(Connected {
            version: Version::V5,
            keep_alive_secs: 60,
            session_present: false,
            sequence: 7
        });
        of_client!(Subscribed { filters: filters.clone() });
        of_client!(Unsubscribed { filters });
        of_client!(Denied { action: "publish", topic: topic.clone(), rule, count: 1 });
        of_client!(Refused { topic: topic.clone(), count: 1 });
        of_client!(TooManySubscriptions { filter: topic.clone(), count: 1 });
        of_client!(Stranger {});
        of_client!(SessionRefused {});
        events.extend([
            Event::SessionExpired { client_id: client_id.clone(), username: username.clone() },
            Event::SessionPurged { client_id: client_id.clone(), username },
            Event::GroupDropped { group: "g".into(), limit: None, count: 1 },
            Event::GroupDropped { group: "g".into(), limit: Some(QueueLimit::Bytes), count: 1 },
            Event::RetainedRefused { topic, count: 1 },
            Event::JournalUnreadable { shard: 3, fault, count: 1 },
            Event::NotKept { client_id: client_id.clone(), error: error.clone() },
            Event::WillNotKept { client_id: client_id.clone(), error },
        ]);
        let of = |reason| Event::Dropped { client_id: client_id.clone(), reason, count: 1 };
        events.extend(session::Dropped::ALL.map(of));
        events
    }

    fn ends() -> Vec<Ended> {
        let (reason, clause, detail) = (Reason::PROTOCOL_ERROR, "MQTT-3.1.0-2", "a second CONNECT");
        vec![
            Ended::Client(Reason::NORMAL_DISCONNECTION),
            Ended::Client(Reason::DISCONNECT_WITH_WILL),
            Ended::Network,
            Ended::Violation(Violation { reason, clause, detail }),
            Ended::KeepAlive,
            Ended::TakenOver,
            Ended::QueueFull,
            Ended::Refused,
            Ended::Crowded,
            Ended::LargestConsumer { bytes: 5, owner_bytes: 9 },
            Ended::JournalFailed,
            Ended::CellLost,
            Ended::NotKept,
            Ended::Shutdown,
            Ended::Administrative,
            Ended::PacketLimitTooLow,
            Ended::NotAuthorized,
            Ended::Denied,
            Ended::CredentialExpired,
            Ended::CredentialRevoked,
            Ended::Banned,
        ]
    }

    pub(crate) fn refused<'a>(client_id: &'a str, username: &'a str) -> ClientRefused<'a> {
        ClientRefused {
            client_id: Some(client_id),
            username: Some(username),
            address: "10.0.0.7:1",
            listener: "tcp",
            namespace: Some("red".into()),
            provider: None,
            reason_code: Reason::NOT_AUTHORIZED,
            detail: "wrong password",
        }
    }

    #[test]
    fn names_that_nothing_verifies_are_shortened() {
        let long = "x".repeat(300);
        let of_c = refused("c", &long);
        let happened = of_c.happened();
        assert_eq!(happened.subject().as_deref(), Some("namespaces/red/clients/c"));
        assert_eq!(happened.address, "10.0.0.7".parse().ok());
        assert!(happened.data["username"].as_str().expect("a name").len() < 200);
        assert_eq!(refused(&long, "u").happened().subject(), None);
    }

    #[test]
    fn the_words_for_an_end_are_those_of_event_grid() {
        let words = [
            "ClientAuthenticationError",
            "ClientAuthorizationError",
            "ClientError",
            "ClientInitiatedDisconnect",
            "ConnectionLost",
            "IpForbidden",
            "QuotaExceeded",
            "ServerError",
            "ServerInitiatedDisconnect",
            "SessionOverflow",
            "SessionTakenOver",
        ];
        for ended in ends() {
            assert!(words.contains(&how_it_ended(&ended).1), "{ended:?}");
        }
    }
}
