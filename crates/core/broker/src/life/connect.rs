//! CONNECT, once the client is known to be who it says: session, takeover, CONNACK.

use codec::{Connack, Packet, Property, PropertyBuf, Reason, Version};
use session::{LinkSettings, MemoryKind, NEVER, Rates, Will};

use crate::Shard;
use crate::parts::client;
use crate::parts::client::Client;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::connect_request::ConnectRequest;
use crate::{Ended, Event, Name, Quota, Scope, admission};

/// Numbers of connections that go with each millisecond of broker time.
pub(crate) const SEQUENCES_PER_MS: u64 = 1000;

/// The largest packet there can be, header included (section 2.1.4): no limit that is worth
/// telling.
const PACKET_BYTES_MAX: u32 = 268_435_455 + 5;

/// A client that is connected.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    pub client: Name<'a>,
    /// As proved.
    pub username: Option<&'a str>,
    pub peer: &'a str,
}

/// A connection whose client needs no more to be known is let in though its owner's share is used
/// up, if nothing else is kept for it.
const IDENTITY_BYTES_USUAL: usize = 1024;

impl Shard {
    /// Why its namespace does not take a connection: it was closed or deleted while that was on its
    /// way here, or has as much as it may have.
    pub(crate) fn bars(&mut self, request: &ConnectRequest) -> Option<Reason> {
        let now_ms = self.cx.now_ms;
        if request.scope.is_first() {
            return None;
        }
        let known = self.sessions.find(request.name());
        let is_connected =
            known.and_then(|slot| self.sessions.get(slot)).is_some_and(Client::is_connected);
        let Some(space) = self.cx.space(request.scope).filter(|space| !space.is_closed()) else {
            return Some(Reason::BANNED);
        };
        if space.wait(Quota::Connects, now_ms).is_some() {
            space.note_refused(Quota::Connects);
            return Some(Reason::CONNECTION_RATE_EXCEEDED);
        }
        space.charge(Quota::Connects, 1, now_ms);
        let lacks_place = !is_connected && space.lacks(Quota::Connections, 1)
            || known.is_none() && space.lacks(Quota::Sessions, 1);
        lacks_place.then_some(Reason::QUOTA_EXCEEDED)
    }

    pub(crate) fn open(
        &mut self,
        slot: u32,
        connection: u64,
        request: ConnectRequest,
        session_present: bool,
    ) {
        let now_ms = self.cx.now_ms;
        let limits = &request.limits;
        let settings = link_settings(&request, self.cx.shared.settings.spans.is_some());
        let rates = Rates { messages: limits.message_rate, bytes: limits.byte_rate };
        let username = request.proved_username();
        let grants = request.grants_by(&self.sessions.rules);
        let sequence = self.sessions.next_sequence(now_ms);
        let Some(client) = self.sessions.get_mut(slot) else { return };
        client.charge_owner(&self.cx, &request);
        let has_rules = session_present && !(client.grants.is_open() && grants.is_open());
        client.session.attach(settings, rates, self.cx.shared.seed, now_ms);
        if let Some(link) = client.session.link_mut() {
            link.peer = request.peer.clone();
            link.sequence = sequence;
            link.set_auth_method(request.auth_method.clone());
        }
        client.connection = connection;
        client.session_expiry_secs =
            request.session_expiry_secs.min(limits.session_expiry_max_secs);
        client.expires_at_ms = NEVER;
        client.limits = request.limits.clone();
        client.grants = grants;
        client.username = username.map(Into::into);
        client.principal = request.principal.clone();
        client.rechecks = has_rules;
        // MQTT-3.1.3-9: back before its delay has passed, so the will that there was is not sent.
        let (undecided, will) = client.split_will(request.will.clone());
        let old_will = std::mem::replace(&mut client.will, will);
        let kept = self.keep_session(slot, request.version);
        let Some(client) = self.sessions.get_mut(slot) else { return };
        if let Err(error) = &kept {
            client.refuse_session(&mut self.cx, error, session_present, old_will);
        }
        client.recharge();
        let fits = kept.is_err() || write_connack(client, &request, session_present);
        let event = Event::Connected {
            client_id: client.id.clone(),
            username: request.username,
            peer: request.peer,
            version: request.version,
            keep_alive_secs: settings.keep_alive_secs,
            session_present,
            sequence,
        };
        client.publish_load();
        let scope = client.scope;
        self.note_online(slot);
        self.cx.report(scope, event);
        let Some(client) = self.sessions.get_mut(slot) else { return };
        self.cx.count_opened(client.scope);
        client.mark_dirty(&mut self.cx);
        undecided.into_iter().for_each(|will| client.ask_about_will(&mut self.cx, will));
        if has_rules {
            self.recheck_receiving(slot);
        }
        if !fits {
            self.cx.doomed.push((slot, Ended::PacketLimitTooLow));
        }
    }
}

impl Sessions {
    /// Broker time does not go back from one process to the next; a client connects less often than
    /// that.
    fn next_sequence(&mut self, now_ms: u64) -> u64 {
        self.sequence = (self.sequence + 1).max(now_ms * SEQUENCES_PER_MS);
        self.sequence
    }
}

impl Context {
    /// Would one more session exceed the share of its owner? Then it is refused.
    pub(crate) fn lacks_room_for(&self, request: &ConnectRequest) -> bool {
        let will_bytes = client::will_bytes(request.will.as_deref());
        let (username, principal) = (request.proved_username(), request.principal.as_deref());
        let who_bytes = request.client_id.len() + client::identity_bytes(username, principal);
        let is_usual = will_bytes == 0 && who_bytes <= IDENTITY_BYTES_USUAL;
        if request.session_expiry_secs == 0 && is_usual {
            return false;
        }
        let bytes = client::SESSION_BYTES + who_bytes + will_bytes;
        let Some(owner) = request.owner() else { return false };
        let account = self.shared.account(&owner);
        let lacks = account.lacks_room(MemoryKind::Sessions, bytes as u64);
        if lacks {
            account.count_refusal(MemoryKind::Sessions, bytes as u64);
        }
        lacks
    }

    pub(crate) fn refuse_session_of(&mut self, request: ConnectRequest) -> Vec<u8> {
        let answer = admission::refuse(&request, Reason::QUOTA_EXCEEDED);
        let ConnectRequest { scope, client_id, username, peer, .. } = request;
        self.metrics.sessions_refused.add(1);
        self.report(scope, Event::SessionRefused { client_id, username, peer });
        answer
    }

    /// The CONNACK for who connects with the client id of another user's session.
    pub(crate) fn refuse_stranger(&mut self, request: ConnectRequest) -> Vec<u8> {
        let answer = admission::refuse(&request, Reason::NOT_AUTHORIZED);
        let ConnectRequest { scope, client_id, username, peer, .. } = request;
        self.metrics.strangers.add(1);
        self.report(scope, Event::Stranger { client_id, username, peer });
        answer
    }
}

fn link_settings(request: &ConnectRequest, has_spans: bool) -> LinkSettings {
    let limits = &request.limits;
    LinkSettings {
        version: request.version,
        is_bridge: request.is_bridge,
        keep_alive_secs: keep_alive(request),
        send_max: request.receive_max.min(limits.in_flight_max),
        receive_max: limits.receive_max,
        packet_bytes_max: request.packet_bytes_max,
        alias_out_max: request.alias_max.min(limits.alias_out_max),
        alias_in_max: limits.alias_in_max,
        problem_info: request.problem_info,
        rewrites_properties: has_spans,
        outbox_bytes_max: limits.outbox_bytes_max,
    }
}

/// The keep-alive in force (MQTT-3.1.2-21): only MQTT 5 clients can be sent another one.
fn keep_alive(request: &ConnectRequest) -> u16 {
    let limits = &request.limits;
    if request.version < Version::V5 {
        return request.keep_alive_secs;
    }
    let asked = match request.keep_alive_secs {
        0 => limits.keep_alive_default_secs,
        secs => secs,
    };
    match (asked, limits.keep_alive_max_secs) {
        (asked, 0) => asked,
        (0, max) => max,
        (asked, max) => asked.min(max),
    }
}

/// False if not even the shortest CONNACK fits the client.
fn write_connack(client: &mut Client, request: &ConnectRequest, session_present: bool) -> bool {
    let mut properties = PropertyBuf::new();
    if request.version >= Version::V5 {
        add_limits(client, request, &mut properties);
    }
    let Some(link) = client.session.link_mut() else { return false };
    link.write(&Packet::Connack(Connack {
        session_present,
        reason: Reason::SUCCESS,
        properties: properties.as_properties(),
    }))
}

/// The properties of a CONNACK: what differs from what the client asked for or may assume.
///
/// The order is the one of mosquitto, because its public tests compare whole packets; to the
/// standard it is all one (section 2.2.2.2).
fn add_limits(client: &Client, request: &ConnectRequest, properties: &mut PropertyBuf) {
    let limits = &request.limits;
    if limits.alias_in_max > 0 {
        properties.push(Property::TopicAliasMax(limits.alias_in_max));
    }
    let keep_alive_secs = keep_alive(request);
    if keep_alive_secs != request.keep_alive_secs {
        properties.push(Property::ServerKeepAliveSecs(keep_alive_secs));
    }
    if request.is_assigned {
        properties.push(Property::AssignedClientId(&request.client_id));
    }
    if let Some(method) = &request.auth_method {
        properties.push(Property::AuthMethod(method));
    }
    if let Some(data) = &request.auth_data {
        properties.push(Property::AuthData(data));
    }
    if !limits.retain_available {
        properties.push(Property::RetainAvailable(false));
    }
    if limits.packet_bytes_max < PACKET_BYTES_MAX {
        properties.push(Property::PacketBytesMax(limits.packet_bytes_max));
    }
    if limits.receive_max != u16::MAX {
        properties.push(Property::ReceiveMax(limits.receive_max));
    }
    if limits.qos_max != codec::QoS::ExactlyOnce {
        properties.push(Property::QosMax(limits.qos_max as u8));
    }
    if client.session_expiry_secs != request.session_expiry_secs {
        properties.push(Property::SessionExpirySecs(client.session_expiry_secs));
    }
    if !limits.wildcard_available {
        properties.push(Property::WildcardAvailable(false));
    }
    if !limits.subscription_ids_available {
        properties.push(Property::SubscriptionIdAvailable(false));
    }
    if !limits.shared_available {
        properties.push(Property::SharedAvailable(false));
    }
    let response_prefix = format!("$response/{}/", request.client_id);
    // A property has 65,535 bytes at most; the longest client ids leave no room for more.
    let fits = u16::try_from(response_prefix.len()).is_ok();
    // It is the beginning of topic names (3.1.2.11.7), which have no wildcards.
    let is_topic = !request.client_id.contains(['+', '#']);
    if request.response_info && fits && is_topic {
        properties.push(Property::ResponseInfo(&response_prefix));
    }
}

impl Client {
    /// May who connects go on with its session, or end it? It has one owner as long as it lasts.
    pub(crate) fn is_owner(&self, cx: &Context, request: &ConnectRequest) -> bool {
        let owner = self.username.as_deref();
        self.expires_at_ms <= cx.now_ms
            || cx.shared.settings.session_owner.admits(owner, request.proved_username())
    }

    fn charge_owner(&mut self, cx: &Context, request: &ConnectRequest) {
        if let Some(owner) = request.owner() {
            let account = cx.shared.account(&owner);
            self.session.outgoing.charge_to(account.clone());
            self.charged.move_to(account);
        }
    }

    /// The journal cannot take a session that is to outlive its connection: no promise is made of
    /// it.
    fn refuse_session(
        &mut self,
        cx: &mut Context,
        error: &storage::AppendError,
        session_present: bool,
        old_will: Option<Box<Will>>,
    ) {
        self.will = old_will;
        if !session_present {
            self.session_expiry_secs = 0;
        }
        if let Some(link) = self.session.link_mut() {
            link.write(&Packet::Connack(Connack {
                session_present: false,
                reason: Reason::SERVER_UNAVAILABLE,
                properties: codec::Properties::EMPTY,
            }));
        }
        let event = Event::NotKept { client_id: self.id.clone(), error: error.clone() };
        cx.report(self.scope, event);
        cx.doomed.push((self.key.slot(), Ended::NotKept));
    }
}

impl Context {
    fn count_opened(&mut self, scope: Scope) {
        self.metrics.connections.add(1);
        self.metrics.connections_opened.add(1);
        self.count_in_space(scope, Quota::Connections, 1);
    }
}
