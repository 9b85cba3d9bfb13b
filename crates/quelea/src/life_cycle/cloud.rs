//! What is told of the events of shards.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use broker::{Ended, Event, Told};
use codec::Reason;
use serde_json::{Value, json};

use crate::config::namespaces::DEFAULT;
use crate::logging::shown;

/// Something that has happened.
#[derive(Debug)]
pub(crate) struct Happened<'a> {
    /// One of [`KINDS`].
    pub(crate) kind: &'static str,
    /// Whose doing it is. None: not a client's.
    pub(crate) client_id: Option<&'a str>,
    pub(crate) address: Option<IpAddr>,
    /// Where it has happened. None: in the broker as a whole.
    pub(crate) namespace: Option<Box<str>>,
    pub(crate) data: Value,
}

/// A CONNECT that was refused before it came to a shard.
#[derive(Debug)]
pub(crate) struct ClientRefused<'a> {
    pub(crate) client_id: &'a str,
    pub(crate) username: Option<&'a str>,
    pub(crate) peer: &'a str,
    pub(crate) listener: &'a str,
    /// None: it is not known yet.
    pub(crate) namespace: Option<Box<str>>,
    /// None: the broker itself refuses it.
    pub(crate) provider: Option<&'a str>,
    pub(crate) reason_code: Reason,
    pub(crate) reason: &'a str,
}

/// The longest name that is told whole of somebody who has proved nothing, in bytes.
const UNPROVED_BYTES_MAX: usize = 256;

impl ClientRefused<'_> {
    pub(super) fn happened(&self) -> Happened<'_> {
        let data = json!({
            "namespace": self.namespace,
            "client_id": unproved(self.client_id),
            "username": self.username.map(unproved),
            "address": self.peer,
            "listener": self.listener,
            "provider": self.provider,
            "reason_code": self.reason_code.0,
            "reason": self.reason,
        });
        let own = self.client_id;
        let happened = Happened::of_client("client.refused", own, self.peer, data);
        let client_id = Some(own).filter(|own| own.len() <= UNPROVED_BYTES_MAX);
        Happened { client_id, namespace: self.namespace.clone(), ..happened }
    }
}

fn unproved(text: &str) -> Cow<'_, str> {
    if text.len() <= UNPROVED_BYTES_MAX { text.into() } else { shown(text) }
}

/// The field of all events of clients.
const NAMESPACE: &str = "namespace";

/// All kinds, with the fields of `data`, and when they are told.
pub const KINDS: [(&str, &str, &str); 24] = [
    (
        "session.created",
        "namespace, client_id, username",
        "A client has connected, and had no session.",
    ),
    (
        "session.connected",
        "namespace, client_id, username, address, protocol, keep_alive_secs, session_present, \
         sequence_number",
        "A client has connected.",
    ),
    (
        "session.disconnected",
        "namespace, client_id, username, address, sequence_number, disconnection_reason, reason_code, \
         detail, session_expiry_secs",
        "A connection has ended. With `session_expiry_secs` 0 its session has ended, too; null: it \
         never does.",
    ),
    (
        "session.expired",
        "namespace, client_id, username",
        "A session has ended that its client has not come back to.",
    ),
    ("session.purged", "namespace, client_id, username", "An operator has ended a session."),
    (
        "session.subscribed",
        "namespace, client_id, username, filters, count",
        "A client has subscribed. `filters` has 16 at most, each with the QoS that it got; `count` \
         is how many there were.",
    ),
    (
        "session.unsubscribed",
        "namespace, client_id, username, filters, count",
        "A client has unsubscribed; the same.",
    ),
    (
        "messages.dropped",
        "namespace, client_id, group, reason, count",
        "Deliveries to a client or a shared group were dropped, at most one event a second for \
         each.",
    ),
    (
        "messages.refused",
        "namespace, client_id, username, topic, count",
        "Publishes of a client were refused for lack of room; the topic is that of the first.",
    ),
    (
        "access.denied",
        "namespace, client_id, username, action, topic, rule, count",
        "What a client wanted was not allowed; topic and rule are those of the first.",
    ),
    (
        "session.refused",
        "namespace, client_id, username, address, detail",
        "A client was refused: the session is another user's, or too much for who pays for it.",
    ),
    (
        "client.refused",
        "namespace, client_id, username, address, listener, provider, reason_code, reason",
        "A CONNECT was refused at its listener. Nothing of it is proved. `provider` is who said no: \
         a name of `[[authentication]]` or `file`; null: the broker itself. `namespace` is null \
         where it is not known yet.",
    ),
    ("ban.made", "kind, who, namespace, until, by", "Somebody was banned by the API."),
    ("ban.removed", "kind, who, namespace, by", "A ban was taken back."),
    (
        "certificate.expiring",
        "listener, expires_at, days_left",
        "The certificate of a listener ends within a fortnight, or has; told once a day.",
    ),
    (
        "cluster.role_changed",
        "node, role, before, epoch, active",
        "The role of this node in its cluster has changed: `standby`, `claiming`, `active`, \
         `suspended`, `released`. `active` is the node with the lease.",
    ),
    (
        "cluster.suspended",
        "node, epoch, reason",
        "The lease of the active node expired. The node serves no client until it renews the \
         lease. The API's stream has this event at once; subscribers get it when the node resumes.",
    ),
    (
        "cluster.resumed",
        "node, epoch, suspended_secs",
        "The active node has renewed its lease and serves again.",
    ),
    (
        "cluster.caught_up",
        "node, messages, bytes, secs",
        "A standby has read the replicated logs and can take over. Reported by the standby.",
    ),
    (
        "cluster.log_unavailable",
        "node, shards, reason",
        "NATS has no quorum for the logs of these shards: acknowledgements and publishers wait.",
    ),
    ("cluster.log_available", "node, unavailable_secs", "All replicated logs have a quorum again."),
    (
        "cluster.node_appeared",
        "node, by, version, address",
        "Another node of the cluster has started, or reports its status again. `by` is the node \
         that reports it.",
    ),
    (
        "cluster.node_silent",
        "node, by",
        "Another node of the cluster has reported no status for 5 s.",
    ),
    (
        "events.withheld",
        "count",
        "There were more events than may be told: look at the clients anew.",
    ),
];

impl<'a> Happened<'a> {
    pub(crate) fn of_broker(kind: &'static str, data: Value) -> Self {
        Self { kind, client_id: None, address: None, namespace: None, data }
    }

    fn of_client(kind: &'static str, client_id: &'a str, peer: &str, data: Value) -> Self {
        let address = peer.parse().ok().map(|peer: SocketAddr| peer.ip());
        Self { kind, client_id: Some(client_id), address, namespace: None, data }
    }

    pub(crate) fn within(mut self, namespace: Box<str>) -> Self {
        self.data[NAMESPACE] = (&*namespace).into();
        self.namespace = Some(namespace);
        self
    }

    /// `clients/dev-7`, in another namespace than the default one `namespaces/red/clients/dev-7`.
    pub(crate) fn subject(&self) -> Option<String> {
        let client_id = self.client_id?;
        Some(match self.namespace.as_deref().filter(|name| *name != DEFAULT) {
            Some(name) => format!("namespaces/{name}/clients/{client_id}"),
            None => format!("clients/{client_id}"),
        })
    }

    /// Below which it is published.
    pub(crate) fn topic(&self) -> String {
        format!("$SYS/events/{}", self.kind.replace('.', "/"))
    }

    pub(crate) fn full_type(&self) -> String {
        format!("quelea.{}", self.kind)
    }
}

/// What is told of an event.
pub(super) fn of<'a>(
    event: &'a Event,
    namespace: &str,
) -> impl Iterator<Item = Happened<'a>> + use<'a> {
    let namespace: Box<str> = namespace.into();
    anywhere(event).into_iter().flatten().map(move |happened| happened.within(namespace.clone()))
}

fn anywhere(event: &Event) -> [Option<Happened<'_>>; 2] {
    match event {
        Event::Connected { client_id, username, peer, session_present, .. } => {
            let data = json!({ "client_id": client_id, "username": username });
            let created = Happened::of_client("session.created", client_id, peer, data);
            [(!session_present).then_some(created), connected(event)]
        }
        Event::Disconnected { .. } => [disconnected(event), None],
        other => [of_session(other).or_else(|| of_trouble(other)), None],
    }
}

fn connected(event: &Event) -> Option<Happened<'_>> {
    let Event::Connected {
        client_id,
        username,
        peer,
        version,
        keep_alive_secs,
        session_present,
        sequence,
    } = event
    else {
        return None;
    };
    let data = json!({
        "client_id": client_id,
        "username": username,
        "address": peer,
        "protocol": version.to_string(),
        "keep_alive_secs": keep_alive_secs,
        "session_present": session_present,
        "sequence_number": sequence,
    });
    Some(Happened::of_client("session.connected", client_id, peer, data))
}

fn disconnected(event: &Event) -> Option<Happened<'_>> {
    let Event::Disconnected { client_id, username, peer, ended, sequence, session_expiry_secs } =
        event
    else {
        return None;
    };
    let expiry_secs = (*session_expiry_secs != u32::MAX).then_some(session_expiry_secs);
    let data = json!({
        "client_id": client_id,
        "username": username,
        "address": peer,
        "sequence_number": sequence,
        "disconnection_reason": reason_word(ended),
        "reason_code": ended.reason().0,
        "detail": detail(ended),
        "session_expiry_secs": expiry_secs,
    });
    Some(Happened::of_client("session.disconnected", client_id, peer, data))
}

fn of_session(event: &Event) -> Option<Happened<'_>> {
    let of_name = |kind, client_id, username: &Option<Box<str>>| {
        let data = json!({ "client_id": client_id, "username": username });
        Some(Happened::of_client(kind, client_id, "", data))
    };
    match event {
        Event::SessionExpired { client_id, username } => {
            of_name("session.expired", client_id, username)
        }
        Event::SessionPurged { client_id, username } => {
            of_name("session.purged", client_id, username)
        }
        Event::Subscribed { client_id, username, peer, filters } => {
            let data = filters_of(client_id, username.as_deref(), filters, true);
            Some(Happened::of_client("session.subscribed", client_id, peer, data))
        }
        Event::Unsubscribed { client_id, username, peer, filters } => {
            let data = filters_of(client_id, username.as_deref(), filters, false);
            Some(Happened::of_client("session.unsubscribed", client_id, peer, data))
        }
        Event::Stranger { client_id, username, peer } => {
            let detail = "the session is another user's";
            let data = refused(client_id, username.as_deref(), peer, detail);
            Some(Happened::of_client("session.refused", client_id, peer, data))
        }
        Event::SessionRefused { client_id, username, peer } => {
            let detail = "its user or address has too many bytes of sessions and wills";
            let data = refused(client_id, username.as_deref(), peer, detail);
            Some(Happened::of_client("session.refused", client_id, peer, data))
        }
        _ => None,
    }
}

fn of_trouble(event: &Event) -> Option<Happened<'_>> {
    match event {
        Event::Dropped { client_id, reason, count } => {
            let reason = format!("{reason:?}");
            let data =
                json!({ "client_id": client_id, "group": null, "reason": reason, "count": count });
            Some(Happened::of_client("messages.dropped", client_id, "", data))
        }
        Event::GroupDropped { group, count } => {
            let data = json!({ "client_id": null, "group": group, "reason": null, "count": count });
            Some(Happened::of_broker("messages.dropped", data))
        }
        Event::Refused { client_id, username, peer, topic, count } => {
            let data = json!({
                "client_id": client_id, "username": username, "topic": topic, "count": count,
            });
            Some(Happened::of_client("messages.refused", client_id, peer, data))
        }
        Event::Denied { client_id, username, peer, action, topic, rule, count } => {
            let data = json!({
                "client_id": client_id,
                "username": username,
                "action": action,
                "topic": topic,
                "rule": rule,
                "count": count,
            });
            Some(Happened::of_client("access.denied", client_id, peer, data))
        }
        _ => None,
    }
}

fn filters_of(client_id: &str, username: Option<&str>, told: &Told, have_qos: bool) -> Value {
    let filter = |(filter, qos): &(Box<str>, u8)| match have_qos {
        true => json!({ "filter": filter, "qos": qos }),
        false => json!({ "filter": filter }),
    };
    let filters: Vec<Value> = told.filters.iter().map(filter).collect();
    json!({
        "client_id": client_id, "username": username, "filters": filters, "count": told.count,
    })
}

fn refused(client_id: &str, username: Option<&str>, peer: &str, detail: &str) -> Value {
    json!({ "client_id": client_id, "username": username, "address": peer, "detail": detail })
}

/// The words of Azure Event Grid's life-cycle events.
const fn reason_word(ended: &Ended) -> &'static str {
    match ended {
        Ended::Client(_) => "ClientInitiatedDisconnect",
        Ended::Network | Ended::KeepAlive => "ConnectionLost",
        Ended::Violation(_) | Ended::PacketLimitTooLow => "ClientError",
        Ended::TakenOver => "SessionTakenOver",
        Ended::QueueFull => "SessionOverflow",
        Ended::Refused | Ended::Crowded | Ended::LargestConsumer => "QuotaExceeded",
        Ended::LogFailed | Ended::NotKept => "ServerError",
        Ended::Shutdown | Ended::Administrative | Ended::Banned => "ServerInitiatedDisconnect",
        Ended::NotAuthorized | Ended::CredentialExpired => "ClientAuthenticationError",
    }
}

/// What that leaves out.
fn detail(ended: &Ended) -> String {
    match ended {
        Ended::Client(Reason::NORMAL_DISCONNECTION) => "it said DISCONNECT".into(),
        Ended::Client(_) => "it said DISCONNECT, and has its will published".into(),
        Ended::Network => "the connection was lost".into(),
        Ended::Violation(violation) => format!("{}: {}", violation.clause, violation.detail),
        Ended::KeepAlive => "nothing came for one and a half keep-alives".into(),
        Ended::TakenOver => "another connection has its client id".into(),
        Ended::QueueFull => "its queue is full".into(),
        Ended::Refused => "there was no room for its publish".into(),
        Ended::Crowded => "there was no room for its packets".into(),
        Ended::LargestConsumer => {
            "the broker was short of memory, and the user or address was the largest consumer"
                .into()
        }
        Ended::LogFailed | Ended::NotKept => "the log takes nothing".into(),
        Ended::Shutdown => "the broker stops".into(),
        Ended::Administrative => "an operator ended it".into(),
        Ended::PacketLimitTooLow => "no CONNACK fits its maximum packet size".into(),
        Ended::NotAuthorized => "its re-authentication failed".into(),
        Ended::CredentialExpired => "its credential has ended".into(),
        Ended::Banned => "it is banned".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use codec::Version;

    use super::*;

    fn examples() -> Vec<Event> {
        let (client_id, peer): (Box<str>, Box<str>) = ("c".into(), "10.0.0.7:1".into());
        let (username, topic, rule): (_, Box<str>, Box<str>) = (None, "t".into(), "r".into());
        let filters = Told { filters: vec![("a/#".into(), 1)], count: 1 };
        vec![
            Event::Connected {
                client_id: client_id.clone(),
                username: Some("u".into()),
                peer: peer.clone(),
                version: Version::V5,
                keep_alive_secs: 60,
                session_present: false,
                sequence: 7,
            },
            Event::Disconnected {
                client_id: client_id.clone(),
                username: username.clone(),
                peer: peer.clone(),
                ended: Ended::KeepAlive,
                sequence: 7,
                session_expiry_secs: u32::MAX,
            },
            Event::SessionExpired { client_id: client_id.clone(), username: username.clone() },
            Event::SessionPurged { client_id: client_id.clone(), username: username.clone() },
            Event::Subscribed {
                client_id: client_id.clone(),
                username: username.clone(),
                peer: peer.clone(),
                filters: filters.clone(),
            },
            Event::Unsubscribed {
                client_id: client_id.clone(),
                username: username.clone(),
                peer: peer.clone(),
                filters,
            },
            Event::Dropped {
                client_id: client_id.clone(),
                reason: session::Dropped::QueueFull,
                count: 1,
            },
            Event::GroupDropped { group: "g".into(), count: 1 },
            Event::Refused {
                client_id: client_id.clone(),
                username: username.clone(),
                peer: peer.clone(),
                topic: topic.clone(),
                count: 1,
            },
            Event::Denied {
                client_id: client_id.clone(),
                username: username.clone(),
                peer: peer.clone(),
                action: "publish",
                topic,
                rule,
                count: 1,
            },
            Event::Stranger {
                client_id: client_id.clone(),
                username: username.clone(),
                peer: peer.clone(),
            },
            Event::SessionRefused { client_id, username, peer },
        ]
    }

    #[test]
    fn every_kind_has_the_fields_that_are_documented() {
        let mut seen = HashSet::new();
        for event in examples() {
            let told: Vec<_> = of(&event, "red").collect();
            assert!(!told.is_empty(), "{event:?}");
            for happened in told {
                let known = KINDS.iter().find(|(kind, ..)| *kind == happened.kind);
                let (kind, fields, _) = known.expect("a documented kind");
                let own: HashSet<&str> = happened
                    .data
                    .as_object()
                    .expect("an object")
                    .keys()
                    .map(String::as_str)
                    .collect();
                assert_eq!(own, fields.split(", ").collect(), "{kind}");
                seen.insert(*kind);
            }
        }
        // Those of the broker itself, of listeners and of a cluster are made where they happen.
        assert_eq!(seen.len(), KINDS.len() - 13);
    }

    #[test]
    fn who_was_refused_is_told_with_the_documented_fields_and_short_names() {
        let long = "x".repeat(300);
        let refused = |client_id| {
            let refused = ClientRefused {
                client_id,
                username: Some(&long),
                peer: "10.0.0.7:1",
                listener: "tcp",
                namespace: Some("red".into()),
                provider: None,
                reason_code: Reason::NOT_AUTHORIZED,
                reason: "wrong",
            };
            let happened = refused.happened();
            (happened.subject(), happened.address, happened.data)
        };
        let (subject, address, data) = refused("c");
        assert_eq!(subject.as_deref(), Some("namespaces/red/clients/c"));
        assert_eq!(address, "10.0.0.7".parse().ok());
        let own: HashSet<&str> =
            data.as_object().expect("an object").keys().map(String::as_str).collect();
        let known = KINDS.iter().find(|(kind, ..)| *kind == "client.refused");
        assert_eq!(own, known.expect("a documented kind").1.split(", ").collect());
        assert!(data["username"].as_str().expect("a name").len() < 200);
        assert_eq!(refused(&long).0, None);
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
        for ended in [
            Ended::Client(Reason::NORMAL_DISCONNECTION),
            Ended::Network,
            Ended::KeepAlive,
            Ended::TakenOver,
            Ended::QueueFull,
            Ended::Refused,
            Ended::Crowded,
            Ended::LargestConsumer,
            Ended::LogFailed,
            Ended::NotKept,
            Ended::Shutdown,
            Ended::Administrative,
            Ended::PacketLimitTooLow,
            Ended::NotAuthorized,
            Ended::CredentialExpired,
            Ended::Banned,
        ] {
            assert!(words.contains(&reason_word(&ended)), "{ended:?}");
            assert!(!detail(&ended).is_empty());
        }
    }
}
