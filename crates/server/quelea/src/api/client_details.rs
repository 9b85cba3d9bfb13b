//! What is known of one client beyond its row in a list.

use std::time::Duration;

use base::moment;
use broker::Scope;
use broker::command::{SessionDetails, SessionView};
use identity::auth::policy_file;
use policy::{Attribute, Identity, Principal, Source};
use serde_json::{Map, Number, Value};

use super::schema::record;
use super::{Api, scopes};

record! {
    /// One client, beyond its row in a list.
    ClientDetails {
        /// The version of TLS; null: the connection has none that ends at the broker.
        tls_version: Option<String>,
        /// The cipher suite of TLS.
        tls_cipher: Option<String>,
        /// The provider that authenticated the client; null: anonymous, or not known.
        provider: Option<String>,
        /// The name of the log-in, if the username is only a part of it.
        login: Option<String>,
        /// Access rules do not apply to the client.
        superuser: bool,
        /// When the credential of the client ends; null: never, or not known.
        credential_expires_at: Option<String>,
        /// The attributes of the client by name: texts, numbers and lists.
        attributes: Value,
        /// The groups of the policy file that the client is in.
        groups: Vec<String>,
        /// The will; null: none.
        will: Option<ClientWill>,
        /// Messages that the client lost lately, by reason. Each shard remembers 64 clients for an
        /// hour.
        dropped: Vec<Drop>,
        /// The last events of the client, the newest first. The broker keeps 20 of a client and
        /// 1,000 in all, and at most 200 a second.
        events: Vec<ClientEvent>,
    }
}

record! {
    /// An event of a client.
    ClientEvent {
        /// When it happened.
        time: String,
        /// The type without `quelea.`, such as session.connected.
        kind: String,
        /// The fields of its type.
        data: Value,
    }
}

record! {
    /// A will, without its payload.
    ClientWill {
        /// The topic.
        topic: String,
        /// The QoS.
        qos: u8,
        /// Whether it is retained.
        retain: bool,
        /// Bytes of the payload.
        payload_bytes: u64,
        /// Seconds between the end of the connection and the will.
        delay_secs: u32,
    }
}

record! {
    /// Messages that a client lost for one reason.
    Drop {
        /// The reason.
        reason: String,
        /// The number of messages.
        messages: u64,
    }
}

pub(crate) fn of(api: &Api, scope: Scope, view: &SessionView) -> Option<ClientDetails> {
    let details = view.details.as_deref()?;
    let connection = view.connection.as_ref();
    let tls = connection.and_then(|connection| connection.tls);
    let principal = details.principal.as_deref();
    let attributes = principal.map(|principal| {
        principal.attributes.iter().map(|(name, value)| (name.to_owned(), json_of(value)))
    });
    let will = details.will.as_ref().map(|will| ClientWill {
        topic: will.topic.to_string(),
        qos: will.qos,
        retain: will.retain,
        payload_bytes: will.payload_bytes,
        delay_secs: will.delay_secs,
    });
    let ends_ms = principal.and_then(|principal| principal.expires_at_ms);
    let dropped = details.dropped.iter().filter(|(_, messages)| *messages > 0);
    Some(ClientDetails {
        tls_version: tls.map(|(version, _)| version.to_owned()),
        tls_cipher: tls.map(|(_, cipher)| cipher.to_owned()),
        provider: provider_of(api, view, details),
        login: principal.and_then(|principal| principal.login.as_deref()).map(Into::into),
        superuser: principal.is_some_and(|principal| principal.is_superuser),
        credential_expires_at: ends_ms.map(|ends_ms| wall_time(api, ends_ms)),
        events: events_of(api, scope, view),
        attributes: Value::Object(attributes.map(Map::from_iter).unwrap_or_default()),
        groups: groups_of(api, scope, view, principal),
        will,
        dropped: dropped
            .map(|(reason, messages)| Drop { reason: reason.word().into(), messages: *messages })
            .collect(),
    })
}

/// A time of broker time.
pub(crate) fn wall_time(api: &Api, at_ms: u64) -> String {
    let (now_ms, wall_ms) = (api.facts.clock.now_ms(), api.facts.clock.wall_ms());
    moment::text_of(Duration::from_millis((at_ms + wall_ms).saturating_sub(now_ms)).as_secs())
}

/// A credential that says no more than a user name leaves no trace of its provider: then it is
/// known if there is only one.
fn provider_of(api: &Api, view: &SessionView, details: &SessionDetails) -> Option<String> {
    let config = &api.facts.config;
    let number = details.principal.as_deref().and_then(|principal| principal.provider);
    if let Some(provider) = number.and_then(|number| config.authentication.get(number as usize)) {
        return Some(provider.name.clone());
    }
    view.username.as_ref()?;
    let listener = view.connection.as_ref().map(|connection| &*connection.listener)?;
    let own = config.listeners.iter().find(|own| own.name == *listener)?;
    let all = config.authentication.iter().map(|provider| provider.name.as_str());
    let file = config.auth.password_file.as_ref().map(|_| PASSWORD_FILE);
    let candidates: Vec<&str> = match own.authentication.as_slice() {
        [] => file.into_iter().chain(all).collect(),
        names => names.iter().map(String::as_str).collect(),
    };
    match candidates.as_slice() {
        [only] => Some((*only).to_owned()),
        _ => None,
    }
}

/// The name of `auth.password_file` among the providers of a listener.
const PASSWORD_FILE: &str = "password_file";

fn groups_of(
    api: &Api,
    scope: Scope,
    view: &SessionView,
    principal: Option<&Principal>,
) -> Vec<String> {
    let (files, namespace) = (api.facts.rule_files.get(), scopes::name(api, scope));
    let is_own = |file: &&identity::auth::rules::RuleFile| {
        file.source == Source::PolicyFile && file.namespace == namespace
    };
    // It is in force, so it can be read.
    let Some(policy) = files.iter().find(is_own).and_then(|it| policy_file::parse(&it.text).ok())
    else {
        return Vec::new();
    };
    let who = Identity::new(&view.client_id, view.username.as_deref()).with(principal);
    let own = policy.groups.iter().filter(|group| group.query.holds(who));
    own.map(|group| group.name.clone()).collect()
}

fn events_of(api: &Api, scope: Scope, view: &SessionView) -> Vec<ClientEvent> {
    let events = api.facts.life_cycle.recent.of(&scopes::name(api, scope), &view.client_id);
    let shown = events.into_iter().map(|event| ClientEvent {
        time: wall_time(api, event.at_ms),
        kind: event.kind.to_owned(),
        data: event.data,
    });
    shown.collect()
}

fn json_of(value: &Attribute) -> Value {
    match value {
        Attribute::Text(text) => Value::from(&**text),
        Attribute::Number(number) => {
            let text = number.to_string();
            text.parse::<Number>().map_or_else(|_| text.into(), Value::Number)
        }
        Attribute::List(items) => items.iter().map(json_of).collect(),
    }
}
