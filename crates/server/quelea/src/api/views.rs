//! What is told and taken, as JSON.

use broker::command::{ConnectionView, GroupView, ReceiverView, SessionView, SubscriptionView};
use codec::{Properties, Property, QoS};
use session::{Message, NEVER};

use super::client_details::ClientDetails;
use super::schema::record;

record! {
    /// A client: its session, and its connection if it has one.
    Client {
        /// The namespace that it belongs to.
        namespace: String,
        /// The client ID.
        client_id: String,
        /// The username; null: none.
        username: Option<String>,
        /// Whether it is connected.
        connected: bool,
        /// Address and port of the client.
        address: Option<String>,
        /// The version of MQTT of the connection.
        protocol: Option<String>,
        /// The keep-alive of the connection; 0: none.
        keep_alive_secs: Option<u16>,
        /// Seconds since the last packet of the client.
        silent_secs: Option<u64>,
        /// Seconds that the session outlives the connection; null: it does not expire.
        session_expiry_secs: Option<u32>,
        /// Seconds until the session expires; null: connected, or it does not expire.
        expires_in_secs: Option<u64>,
        /// The session is stored in the durable log.
        durable: bool,
        /// The session has a will.
        has_will: bool,
        /// Number of subscriptions.
        subscriptions: u64,
        /// Number of shared subscriptions.
        shared_subscriptions: u64,
        /// Messages in the queue, in memory and in the log.
        queued_messages: u64,
        /// Bytes of queued messages in memory.
        queued_bytes: u64,
        /// Messages sent to the client and not acknowledged.
        in_flight: u64,
        /// The limit of `in_flight`.
        in_flight_max: Option<u16>,
        /// QoS 2 messages from the client that it has not released.
        incoming: u64,
        /// Bytes queued for the socket.
        unsent_bytes: Option<u64>,
        /// When the connection was accepted; null: not connected.
        connected_at: Option<String>,
        /// The listener of the connection.
        listener: Option<String>,
        /// Messages from the client on this connection.
        messages_received: Option<u64>,
        /// Messages to the client on this connection.
        messages_sent: Option<u64>,
        /// Bytes from the client on this connection, since its first message.
        bytes_received: Option<u64>,
        /// Bytes to the client on this connection, since its first message.
        bytes_sent: Option<u64>,
        /// More about one client; null in lists.
        details: Option<ClientDetails>,
    }
}

record! {
    /// The cluster that this node belongs to, as this node knows it.
    Cluster {
        /// The name of this node.
        node: String,
        /// standby, claiming, active, suspended (its lease expired), released or ended.
        role: String,
        /// Epoch of the lease. Each takeover increases it. 0 if there are several cells.
        epoch: u64,
        /// The node with the lease; null: none, or there are several cells.
        active: Option<String>,
        /// Its address for clients (`cluster.advertise`).
        active_address: Option<String>,
        /// Seconds until this node stops serving unless the lease is renewed; 0 on standbys and
        /// suspended nodes.
        lease_remaining_seconds: f64,
        /// This node has a connection to NATS.
        engine_connected: bool,
        /// This node, and the nodes that reported their status in the last five seconds.
        nodes: Vec<ClusterNode>,
        /// The cells; empty: the cluster has one.
        cells: Vec<ClusterCell>,
    }
}

record! {
    /// A cell of a cluster with several.
    ClusterCell {
        /// Its number.
        cell: u16,
        /// The node that is active for it; null: none.
        active: Option<String>,
        /// The epoch of that node. Each takeover increases it.
        epoch: Option<u64>,
        /// The role of this node: standby, claiming, active, suspended, released or ended; null: it
        /// is connecting to NATS.
        role: Option<String>,
        /// Messages of its log that this node has not read yet.
        lag_messages: u64,
    }
}

record! {
    /// A node of a cluster.
    ClusterNode {
        /// Its name.
        node: String,
        /// standby, claiming, active, suspended (its lease expired), released or ended.
        role: String,
        /// The version of the program.
        version: String,
        /// Its address for clients (`cluster.advertise`).
        address: Option<String>,
        /// Checksum of the settings that must be the same on all nodes.
        settings: String,
        /// The condition that limits the node; null: none.
        detail: Option<String>,
        /// The epoch of the lease that the node last read.
        epoch: u64,
        /// Seconds since its last status report.
        silent_seconds: f64,
        /// Messages that it has not read yet, in the shard with the most.
        lag_messages: u64,
        /// Bytes of the log that it has not read yet.
        lag_bytes: u64,
        /// Age of the last message that it has read; 0: no message is missing.
        lag_seconds: f64,
        /// Its copy of the log of each shard.
        shards: Vec<ClusterShard>,
        /// Its copies of the files of streams; null: the cluster stores none.
        stream_files: Option<ClusterFiles>,
    }
}

record! {
    /// The copies of the files of streams on a node.
    ClusterFiles {
        /// Messages that it has not copied yet.
        lag_messages: u64,
        /// It has so few left that it can become active.
        caught_up: bool,
        /// The error that stops or delays it; null: none.
        fault: Option<String>,
    }
}

record! {
    /// The copy of a shard's log on a node.
    ClusterShard {
        /// The shard.
        shard: u64,
        /// The last message of the stream that it has read or written.
        last_message: u64,
        /// Bytes of the log up to there, since the log began.
        bytes: u64,
        /// It has read all messages that the stream had when the node started.
        caught_up: bool,
        /// The error that stops it; null: none.
        fault: Option<String>,
        /// Messages that it has not read yet.
        lag_messages: u64,
        /// Bytes of the log that it has not read yet.
        lag_bytes: u64,
        /// Age of the last message that it has read; 0: no message is missing.
        lag_seconds: f64,
    }
}

record! {
    /// A namespace in which a client ID has a session.
    Home {
        /// The name of the namespace.
        namespace: String,
        /// Whether it is connected.
        connected: bool,
    }
}

record! {
    /// A namespace with its limits and usage.
    Namespace {
        /// The name of the namespace.
        name: String,
        /// open; suspended: its clients are refused; deleted: its data is being deleted.
        state: String,
        /// The origin: broker (the default namespace), configuration, client or operator.
        maker: String,
        /// The host names that select it.
        hosts: Vec<String>,
        /// Limits and usage; empty for the default namespace.
        quotas: Vec<NamespaceQuota>,
    }
}

record! {
    /// A limit of a namespace, and its usage.
    NamespaceQuota {
        /// connections, sessions, subscriptions, retained_messages, retained_bytes; per second
        /// connects, messages_in, bytes_in, messages_out, bytes_out.
        name: String,
        /// The limit, at a time or per second; null: none.
        max: Option<u64>,
        /// The present number; for a limit per second the number since the start.
        count: u64,
        /// How often the limit refused or delayed something.
        refused: u64,
    }
}

record! {
    /// A ban.
    Ban {
        /// The kind: client, user or address.
        kind: String,
        /// The client ID, username, address, or network such as 10.0.0.0/8.
        who: String,
        /// The namespace of a client ID or username; *: all namespaces.
        namespace: String,
        /// The end, such as 2030-12-31T23:59:59Z; null: none.
        until: Option<String>,
        /// The ban is in `auth.ban_file`, which the API does not change.
        by_hand: bool,
    }
}

record! {
    /// A ban to add.
    NewBan {
        /// The kind: client, user or address.
        kind: String,
        /// The client ID, username, address, or network such as 10.0.0.0/8.
        who: String,
        /// The namespace of a client ID or username; *: all namespaces.
        /// May be omitted while there is only the default one. Addresses are banned in all.
        namespace: Option<String>,
        /// The duration in seconds. Without this and `until`, the ban has no end.
        for_secs: Option<u64>,
        /// The end, such as 2030-12-31T23:59:59Z.
        until: Option<String>,
    }
}

record! {
    /// The result of a disconnect by filters.
    Disconnected {
        /// Number of clients that were disconnected.
        disconnected: u64,
    }
}

record! {
    /// The result of clearing the cache of the authorization service.
    CacheCleared {
        /// Number of connections whose cached answers were removed.
        connections: u64,
    }
}

record! {
    /// A subscription of one client.
    Subscription {
        /// The filter, without a share name.
        filter: String,
        /// The share name; null: it is not shared.
        share: Option<String>,
        /// The highest QoS of deliveries.
        qos: u8,
        /// The client does not receive its own messages (No Local).
        no_local: bool,
        /// Messages keep their retain flag (Retain As Published).
        retain_as_published: bool,
        /// The subscription identifier; null: none.
        identifier: Option<u32>,
    }
}

record! {
    /// A receiver of messages on a topic: a client, or a shared group.
    Receiver {
        /// The client; null: a shared group.
        client_id: Option<String>,
        /// The share name of the group.
        share: Option<String>,
        /// The filter that matches.
        filter: String,
        /// The highest QoS of deliveries; of a group, of any member.
        qos: u8,
        /// Whether it, or a member of the group, is connected.
        connected: bool,
        /// False: the access rules deny the client messages on this topic. Always true for a group:
        /// its members are checked one by one.
        allowed: bool,
    }
}

record! {
    /// A shared group.
    Group {
        /// The namespace that it belongs to.
        namespace: String,
        /// The share name.
        share: String,
        /// The filter.
        filter: String,
        /// Number of members.
        members: u64,
        /// Number of connected members.
        online: u64,
        /// Queued messages that no member could accept yet.
        waiting: u64,
    }
}

record! {
    /// A member of a shared group.
    Member {
        /// The client; null: its session has just ended.
        client_id: Option<String>,
        /// The highest QoS of deliveries.
        qos: u8,
        /// Whether it is connected.
        connected: bool,
        /// Messages sent to the client and not acknowledged, of all its subscriptions.
        in_flight: u64,
    }
}

record! {
    /// A retained message.
    Retained {
        /// The namespace that it belongs to.
        namespace: String,
        /// The topic.
        topic: String,
        /// Its QoS.
        qos: u8,
        /// Bytes of the payload.
        payload_bytes: u64,
        /// The payload in base64. In a list the first 256 bytes.
        payload_base64: String,
        /// The payload as text, if it is UTF-8 and shown whole.
        payload: Option<String>,
        /// Seconds until it expires; null: never.
        expires_in_secs: Option<u64>,
        /// The content type.
        content_type: Option<String>,
        /// The user properties.
        user_properties: Vec<UserProperty>,
    }
}

record! {
    /// A user property of MQTT 5.
    UserProperty {
        /// The name.
        name: String,
        /// The value.
        value: String,
    }
}

record! {
    /// A message to publish. The payload is text or base64; without both it is empty.
    Publish {
        /// The topic, without wildcards.
        topic: String,
        /// The payload as text.
        payload: Option<String>,
        /// The payload in base64.
        payload_base64: Option<String>,
        /// 0 to 2; 0 if omitted. Messages of QoS 1 and 2 are stored for persistent sessions.
        qos: Option<u8>,
        /// Retain the message; with an empty payload: clear the retained message.
        retain: Option<bool>,
        /// Seconds until it expires.
        message_expiry_secs: Option<u32>,
        /// The content type.
        content_type: Option<String>,
        /// The topic for a response.
        response_topic: Option<String>,
        /// The data that identifies the request of a response, in base64.
        correlation_data_base64: Option<String>,
        /// User properties, in their order.
        user_properties: Option<Vec<UserProperty>>,
    }
}

record! {
    /// Messages to publish, one after the other.
    PublishBatch {
        /// The messages, at most 100.
        messages: Vec<Publish>,
    }
}

record! {
    /// A message to retain.
    Retain {
        /// The payload as text.
        payload: Option<String>,
        /// The payload in base64.
        payload_base64: Option<String>,
        /// 0 to 2; 0 if omitted.
        qos: Option<u8>,
        /// Seconds until it expires.
        message_expiry_secs: Option<u32>,
        /// The content type.
        content_type: Option<String>,
    }
}

record! {
    /// The result of a publish.
    Published {
        /// The reason code of a PUBACK: 0 or 16, or 128 and more for a refusal.
        reason_code: u8,
        /// Its name, such as `success` or `no_matching_subscribers`.
        reason: String,
        /// There is a matching subscription.
        matched: bool,
    }
}

record! {
    /// The results of a batch.
    PublishedBatch {
        /// The results, in the order of the messages.
        results: Vec<Published>,
        /// Number of refused messages.
        refused: u64,
    }
}

record! {
    /// The result of clearing retained messages by a filter.
    RetainedCleared {
        /// Messages that match, in this page.
        matched: u64,
        /// Messages that were cleared.
        cleared: u64,
        /// Messages that could not be cleared now. The same call clears them later.
        refused: u64,
        /// For the next call with the same filter; null: no more match.
        cursor: Option<String>,
    }
}

record! {
    /// The broker.
    Broker {
        /// Its version.
        version: String,
        /// `starting`, `ready`, `not_ready`, `standby`, `stopping` or `failed`.
        state: String,
        /// The reason of `not_ready` or `standby`, as in `/readyz`.
        detail: Option<String>,
        /// Seconds since the start.
        uptime_secs: u64,
        /// Shards of state.
        shards: u16,
        /// Open connections.
        connections: u64,
        /// Sessions, with a connection or without.
        sessions: u64,
        /// Subscriptions of all sessions.
        subscriptions: u64,
        /// Retained messages.
        retained_messages: u64,
        /// Bytes of retained messages.
        retained_bytes: u64,
        /// Messages from clients since the start.
        messages_received: u64,
        /// Messages to clients since the start.
        messages_sent: u64,
        /// Deliveries that were dropped since the start, for any reason.
        messages_dropped: u64,
        /// Publishes that were refused since the start.
        publishes_refused: u64,
        /// Resident memory of the process.
        resident_bytes: u64,
    }
}

record! {
    /// A listener.
    Listener {
        /// The name in logs and metrics: that of the configuration, or the URL.
        name: String,
        /// The URL, with the present port.
        url: String,
        /// Open connections, including those without a login yet.
        connections: u64,
        /// Connections accepted since the start.
        accepted: u64,
        /// Connections with a successful login since the start.
        admitted: u64,
        /// New connections are closed at once.
        paused: bool,
        /// Expiry of the certificate, in seconds since 1970; null: no certificate.
        certificate_expires_at: Option<u64>,
        /// Whole days until then; 0: less than a day, or expired.
        certificate_days_left: Option<u64>,
        /// Subject of the certificate; null: no certificate.
        certificate_subject: Option<String>,
        /// Names of the certificate, such as DNS:mqtt.example.
        certificate_names: Vec<String>,
        /// SHA-256 of the certificate in hexadecimal digits; null: no certificate.
        certificate_fingerprint: Option<String>,
    }
}

record! {
    /// A bridge to another broker.
    Bridge {
        /// The name in the configuration.
        name: String,
        /// connecting, connected, waiting (for the next attempt) or stopped.
        state: String,
        /// The address that was tried last.
        address: String,
        /// Why the last attempt or connection ended; null: connected.
        error: Option<String>,
        /// Subscriptions that a broker has refused.
        refused_subscriptions: Vec<String>,
        /// Attempts to connect since the start.
        attempts: u64,
        /// Times that it was connected since the start.
        connects: u64,
        /// Messages relayed to the remote since the start.
        messages_out: u64,
        /// Messages relayed from the remote since the start.
        messages_in: u64,
        /// Messages to the remote that were not relayed, or that it answered with an error.
        refused_out: u64,
        /// Messages from the remote that were not relayed, or answered with an error here.
        refused_in: u64,
        /// Messages queued for the remote, or unacknowledged by it.
        lag_messages: u64,
        /// Memory of queued messages.
        lag_bytes: u64,
    }
}

record! {
    /// The log of a shard.
    Log {
        /// The shard.
        shard: u64,
        /// `opening`, `ready`, `closed`, `full` or `poisoned`.
        state: String,
        /// The metrics of the log.
        figures: Vec<Figure>,
    }
}

record! {
    /// A number with a name.
    Figure {
        /// The name of the metric, without `quelea_log_`.
        name: String,
        /// The number.
        value: u64,
    }
}

record! {
    /// The caller of the API.
    Caller {
        /// The username, or `token`.
        name: String,
        /// `viewer`, `operator`, `admin` or `tenant`.
        role: String,
        /// The namespace whose streams, targets and rules a `tenant` defines; null: other roles.
        namespace: Option<String>,
    }
}

/// Bytes of a payload that a list shows.
pub(crate) const PAYLOAD_SHOWN_MAX: usize = 256;

impl Client {
    pub(crate) fn of(namespace: String, view: SessionView, now_ms: u64) -> Self {
        let connection = view.connection.as_ref();
        let of = |what: fn(&ConnectionView) -> u64| connection.map(what);
        let expires = (view.expires_at_ms != NEVER && connection.is_none())
            .then(|| view.expires_at_ms.saturating_sub(now_ms) / 1000);
        Self {
            namespace,
            connected: connection.is_some(),
            address: connection.map(|it| it.address.to_string()),
            protocol: connection.map(|it| it.version.to_string()),
            keep_alive_secs: connection.map(|it| it.keep_alive_secs),
            silent_secs: of(|it| it.last_packet_ms).map(|ms| now_ms.saturating_sub(ms) / 1000),
            in_flight_max: connection.map(|it| it.send_max),
            unsent_bytes: of(|it| it.unsent_bytes),
            connected_at: None,
            listener: connection.map(|it| it.listener.to_string()),
            messages_received: of(|it| it.tally.messages_in),
            messages_sent: of(|it| it.tally.messages_out),
            bytes_received: of(|it| it.tally.bytes_in),
            bytes_sent: of(|it| it.tally.bytes_out),
            details: None,
            client_id: view.client_id.into(),
            username: view.username.map(Into::into),
            session_expiry_secs: (view.expiry_secs != u32::MAX).then_some(view.expiry_secs),
            expires_in_secs: expires,
            durable: view.is_durable,
            has_will: view.has_will,
            subscriptions: view.subscriptions,
            shared_subscriptions: view.shared_subscriptions,
            queued_messages: view.queued,
            queued_bytes: view.queued_bytes,
            in_flight: view.in_flight,
            incoming: view.incoming,
        }
    }
}

impl From<SubscriptionView> for Subscription {
    fn from(view: SubscriptionView) -> Self {
        Self {
            filter: view.filter.into(),
            share: view.share.map(Into::into),
            qos: view.qos,
            no_local: view.no_local,
            retain_as_published: view.retain_as_published,
            identifier: (view.identifier != 0).then_some(view.identifier),
        }
    }
}

impl From<ReceiverView> for Receiver {
    fn from(view: ReceiverView) -> Self {
        Self {
            client_id: view.share.is_none().then(|| view.client_id.into()),
            share: view.share.map(Into::into),
            filter: view.filter.into(),
            qos: view.qos,
            connected: view.connected,
            allowed: view.allowed,
        }
    }
}

impl Group {
    pub(crate) fn of(namespace: String, view: GroupView) -> Self {
        let GroupView { scope: _, share, filter, members, online, waiting } = view;
        Self { namespace, share: share.into(), filter: filter.into(), members, online, waiting }
    }
}

impl Retained {
    /// With the first `payload_max` bytes of the payload.
    pub(crate) fn of(
        namespace: String,
        message: &Message,
        payload_max: usize,
        now_ms: u64,
    ) -> Self {
        let payload = message.payload();
        let shown = payload.len().min(payload_max);
        let text = std::str::from_utf8(payload).ok().filter(|_| shown == payload.len());
        let mut user_properties = Vec::new();
        let mut content_type = None;
        for property in Properties::from_raw(message.properties()).iter() {
            match property {
                Property::User(name, value) => user_properties
                    .push(UserProperty { name: name.to_owned(), value: value.to_owned() }),
                Property::ContentType(text) => content_type = Some(text.to_owned()),
                _ => {}
            }
        }
        Self {
            namespace,
            topic: message.topic().to_owned(),
            qos: message.qos() as u8,
            payload_bytes: payload.len() as u64,
            payload_base64: super::base64_of(&payload[..shown]),
            payload: text.map(str::to_owned),
            expires_in_secs: (message.expires_at_ms() != NEVER)
                .then(|| message.expires_at_ms().saturating_sub(now_ms) / 1000),
            content_type,
            user_properties,
        }
    }
}

/// 0 if it is left out.
pub(crate) fn qos_of(level: Option<u8>) -> Option<QoS> {
    match level.unwrap_or(0) {
        0 => Some(QoS::AtMostOnce),
        1 => Some(QoS::AtLeastOnce),
        2 => Some(QoS::ExactlyOnce),
        _ => None,
    }
}
