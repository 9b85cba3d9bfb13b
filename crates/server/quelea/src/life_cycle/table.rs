//! All kinds of events in one table, from which log lines, messages below `$SYS/broker/events/`,
//! CloudEvents and the tables of `docs/use/events.md` and `docs/use/sys-topics.md` are made.

use tracing::Level;

use super::line_pace::About;

/// One kind of event. Rows with the same name are one kind with several log lines.
#[derive(Debug)]
pub struct EventKind {
    /// The type of the CloudEvent without `quelea.`, and with slashes the topic.
    pub name: &'static str,
    /// The names in `data`.
    pub fields: &'static str,
    /// When it happens.
    pub when: &'static str,
    /// Level and text of the log line. None: not logged.
    pub line: Option<(Level, &'static str)>,
    /// Published below `$SYS/broker/events/`.
    pub is_on_sys: bool,
    /// Why there is no CloudEvent. None: there is one.
    pub not_exported: Option<&'static str>,
    /// What limits the rate of its lines.
    pub(super) about: Option<About>,
}

impl EventKind {
    const fn new(name: &'static str, fields: &'static str, when: &'static str) -> Self {
        let (line, about, not_exported) = (None, None, None);
        Self { name, fields, when, line, is_on_sys: false, not_exported, about }
    }

    const fn logged(self, level: Level, text: &'static str) -> Self {
        Self { line: Some((level, text)), ..self }
    }

    const fn limited(self, about: About) -> Self {
        Self { about: Some(about), ..self }
    }

    const fn on_sys(self) -> Self {
        Self { is_on_sys: true, ..self }
    }

    const fn not_exported(self, why: &'static str) -> Self {
        Self { not_exported: Some(why), ..self }
    }

    /// `$SYS/events/session/connected`.
    pub fn topic(&self, root: &str) -> String {
        format!("$SYS/{root}/{}", self.name.replace('.', "/"))
    }

    /// Where it is published, if it is shown below `$SYS/broker`.
    pub fn sys_topic(&self) -> Option<String> {
        self.is_on_sys.then(|| self.topic("broker/events"))
    }
}

macro_rules! kinds {
    ($($row:ident = $kind:expr;)+) => {
        $(pub(crate) static $row: EventKind = $kind;)+
        /// All rows; those of one name stand together.
        pub static EVENT_KINDS: &[&EventKind] = &[$(&$row),+];
    };
}

const OF_CLIENT: &str = "namespace, client_id, username, address";
const DISCONNECT: &str = "namespace, client_id, username, address, sequence_number, reason, \
    disconnection_reason, reason_code, detail, session_expiry_secs";
const CLOSED_TEXT: &str = "connection closed";
const ROLE: &str = "node, role, before, epoch, active, secs";
const ROLE_WHEN: &str = "The role of this node in its [cluster](cluster.md) has changed: \
    `standby`, `claiming`, `active`, `suspended`, `released`. `active` is the node with the lease, \
    `secs` the time in the role before.";
const BRIDGE: &str = "bridge, address, reason, detail";
const BRIDGE_TEXT: &str = "bridge disconnected";
const CERTIFICATE: &str = "listener, expires_at, days_left";
const CERTIFICATE_WHEN: &str = "The certificate of a listener expires within 14 days, or has \
    expired (`days_left` is null). Reported once a day.";

const RULE_STATE: &str = "namespace, rule, stream, state, reason";
const OF_STREAM: &str = "namespace, stream";

kinds! {
    CREATED = EventKind::new("session.created", OF_CLIENT, "A client without a session has connected.");
    CONNECTED = EventKind::new(
        "session.connected",
        "namespace, client_id, username, address, protocol, keep_alive_secs, session_present, \
         sequence_number",
        "A client has connected.",
    )
    .logged(Level::INFO, "client connected").limited(About::Connected);
    DISCONNECTED = EventKind::new(
        "session.disconnected",
        DISCONNECT,
        "A connection was closed. If `session_expiry_secs` is 0, its session has ended with it. If \
         it is null, the session does not expire.",
    )
    .logged(Level::INFO, "client disconnected").limited(About::Disconnected);
    CLOSED = EventKind::new("session.disconnected", DISCONNECT, "")
        .logged(Level::INFO, CLOSED_TEXT).limited(About::CutOff);
    CLOSED_AT_LIMIT = EventKind::new("session.disconnected", DISCONNECT, "")
        .logged(Level::WARN, CLOSED_TEXT).limited(About::CutOff);
    EXPIRED = EventKind::new(
        "session.expired",
        "namespace, client_id, username",
        "A session has expired: its client did not reconnect in time.",
    )
    .logged(Level::DEBUG, "session expired");
    PURGED = EventKind::new(
        "session.purged",
        "namespace, client_id, username",
        "An operator has ended a session.",
    )
    .logged(Level::INFO, "session purged by an operator");
    SESSION_REFUSED = EventKind::new(
        "session.refused",
        "namespace, client_id, username, address, reason, detail",
        "A client was refused because of its session. `reason` is `other_user` or \
         `quota_exceeded`.",
    )
    .logged(Level::INFO, "connection refused").limited(About::Refused);
    SESSION_NOT_STORED = EventKind::new(
        "session.not_stored",
        "namespace, client_id, reason, detail",
        "A client was refused because the durable log cannot store its session.",
    )
    .logged(Level::ERROR, "session refused: the durable log cannot store it")
    .limited(About::Session).on_sys();
    WILL_NOT_STORED = EventKind::new(
        "session.will_not_stored",
        "namespace, client_id, reason, detail",
        "The durable log cannot store the will of a session. It is lost if the broker stops.",
    )
    .logged(Level::WARN, "will not stored: it is lost if the broker stops")
    .limited(About::Session).on_sys();
    SUBSCRIBED = EventKind::new(
        "session.subscribed",
        "namespace, client_id, username, address, filters, count",
        "A client has subscribed. `filters` has at most 16 filters, each with its granted QoS; \
         `count` is the number of all.",
    );
    UNSUBSCRIBED = EventKind::new(
        "session.unsubscribed",
        "namespace, client_id, username, address, filters, count",
        "A client has unsubscribed. The fields are those of `session.subscribed`, without QoS.",
    );
    SUBSCRIPTIONS_REFUSED = EventKind::new(
        "subscriptions.refused",
        "namespace, client_id, username, address, filter, count",
        "Subscriptions of a client were refused at a limit. The filter is that of the first.",
    )
    .logged(Level::WARN, "subscriptions refused: too many for one client or one request")
    .limited(About::Lost).on_sys();
    DROPPED = EventKind::new(
        "messages.dropped",
        "namespace, client_id, group, reason, limit, count",
        "Deliveries to a client or a shared group were dropped. `reason` and `limit` are those of \
         the metric `quelea_messages_dropped_total`. `limit`: the key that a full queue has reached.",
    )
    .logged(Level::WARN, "messages dropped").limited(About::Lost).on_sys();
    REFUSED = EventKind::new(
        "messages.refused",
        "namespace, client_id, username, address, topic, count",
        "Publishes of a client were refused: a queue or the memory is full. The topic is that of \
         the first.",
    )
    .logged(Level::WARN, "publishes refused: a queue or the memory is full")
    .limited(About::Lost).on_sys();
    RETAINED_REFUSED = EventKind::new(
        "messages.retained_refused",
        "namespace, topic, count",
        "Retained messages were refused at a limit. The topic is that of the first.",
    )
    .logged(Level::WARN, "retained messages refused: a limit is reached")
    .limited(About::Lost).on_sys();
    DENIED = EventKind::new(
        "access.denied",
        "namespace, client_id, username, address, action, topic, rule, count",
        "The access rules denied an action of a client. Topic and rule are those of the first \
         denial.",
    )
    .logged(Level::INFO, "access denied").limited(About::Denied);
    CLIENT_REFUSED = EventKind::new(
        "client.refused",
        "namespace, client_id, username, address, listener, provider, reason, reason_code, detail",
        "A connection was refused at its listener. Its names are not verified, and null where they \
         are unknown. `provider` is the name in `[[authentication]]`, `file`, or null for the \
         broker itself.",
    )
    .logged(Level::INFO, "connection refused");
    BAN_ADDED = EventKind::new(
        "ban.added",
        "kind, who, namespace, until, by",
        "The management API was used to add a ban. `by` is the caller.",
    )
    .logged(Level::INFO, "ban added");
    BAN_REMOVED = EventKind::new("ban.removed", "kind, who, namespace, by", "A ban was removed.")
        .logged(Level::INFO, "ban removed");
    BRIDGE_CONNECTED = EventKind::new(
        "bridge.connected",
        "bridge, address",
        "A [bridge](bridges.md) has connected to its remote, and has subscribed at both brokers.",
    )
    .logged(Level::INFO, "bridge connected");
    BRIDGE_DISCONNECTED = EventKind::new(
        "bridge.disconnected",
        BRIDGE,
        "The connection of a bridge has ended. The bridge connects again, unless `reason` is \
         `server_shutting_down` and this broker is stopping.",
    )
    .logged(Level::WARN, BRIDGE_TEXT);
    BRIDGE_STOPPED = EventKind::new("bridge.disconnected", BRIDGE, "").logged(Level::INFO, BRIDGE_TEXT);
    BRIDGE_CONNECT_FAILED = EventKind::new(
        "bridge.connect_failed",
        BRIDGE,
        "An attempt of a bridge to connect has failed. `reason` is `connect_failed`, `timeout`, or \
         the reason of the remote, such as `not_authorized`.",
    )
    .logged(Level::WARN, "bridge cannot connect").limited(About::Bridge);
    BRIDGE_MESSAGE_DROPPED = EventKind::new(
        "bridge.message_dropped",
        "bridge, direction, topic, bytes, reason",
        "A bridge does not relay a message to the remote (`direction` is `out`) or from it (`in`). \
         `bytes` is the size of the payload. Reasons are those of `quelea_bridge_refused_total`. \
         The first message of each connection and reason is reported, and each with `closes` or \
         `exhausted`.",
    )
    .logged(Level::WARN, "message not relayed");
    CERTIFICATE_EXPIRING = EventKind::new("certificate.expiring", CERTIFICATE, CERTIFICATE_WHEN)
        .logged(Level::WARN, "TLS certificate expires soon: replace the file");
    CERTIFICATE_EXPIRED = EventKind::new("certificate.expiring", CERTIFICATE, "")
        .logged(Level::ERROR, "TLS certificate expired: replace the file");
    LOG_UNREADABLE = EventKind::new(
        "log.unreadable",
        "shard, detail, count",
        "A queued message could not be read from the durable log. The broker tries again.",
    )
    .logged(Level::ERROR, "the durable log cannot be read: queued messages are retried");
    ROLE_CHANGED = EventKind::new("cluster.role_changed", ROLE, ROLE_WHEN)
        .logged(Level::INFO, "the role of this node changed");
    CLAIMING = EventKind::new("cluster.role_changed", ROLE, "")
        .logged(Level::INFO, "this node has the lease and takes over");
    ACTIVE = EventKind::new("cluster.role_changed", ROLE, "").logged(Level::INFO, "this node is active");
    SUSPENDED = EventKind::new(
        "cluster.suspended",
        "node, epoch, detail",
        "The lease of the active node expired. The node serves no client until it renews the \
         lease. The API's stream has this event at once; subscribers get it when the node resumes.",
    )
    .logged(
        Level::WARN,
        "lease expired: this node is suspended; check the NATS servers (`quelea cluster status`)",
    );
    RESUMED = EventKind::new(
        "cluster.resumed",
        "node, epoch, suspended_secs",
        "The active node has renewed its lease and serves again.",
    )
    .logged(Level::INFO, "lease renewed: this node serves again");
    READING = EventKind::new(
        "cluster.reading",
        "node, messages, bytes, left, secs",
        "A standby reads the replicated logs.",
    )
    .logged(Level::INFO, "reading the replicated logs; this node cannot take over yet")
    .not_exported("progress, every 2 s; `cluster.caught_up` reports the end");
    CAUGHT_UP = EventKind::new(
        "cluster.caught_up",
        "node, messages, bytes, secs",
        "A standby has read the replicated logs and can take over. Reported by the standby.",
    )
    .logged(Level::INFO, "caught up with the replicated logs: this node can take over");
    LOG_UNAVAILABLE = EventKind::new(
        "cluster.log_unavailable",
        "node, shards, detail",
        "NATS has no quorum for the logs of these shards: acknowledgements and publishers wait.",
    )
    .logged(
        Level::WARN,
        "the replicated log has no quorum: acknowledgements and publishers wait until it has one; \
         if that lasts, check the NATS servers (`quelea cluster status`)",
    );
    LOG_AVAILABLE = EventKind::new(
        "cluster.log_available",
        "node, unavailable_secs",
        "All replicated logs have a quorum again.",
    )
    .logged(Level::INFO, "the replicated log has a quorum again");
    CLUSTER_LOG_UNREADABLE = EventKind::new(
        "cluster.log_unreadable",
        "node, detail",
        "A standby cannot read the replicated logs, and cannot take over.",
    )
    .logged(
        Level::ERROR,
        "this node cannot follow the replicated log and cannot become active; check the other \
         nodes (`quelea cluster status`), or restore a backup",
    );
    NODE_APPEARED = EventKind::new(
        "cluster.node_appeared",
        "node, by, version, address",
        "Another node of the cluster has started, or reports its status again. `by` is the node \
         that reports it.",
    )
    .logged(Level::INFO, "node joined");
    NODE_SILENT = EventKind::new(
        "cluster.node_silent",
        "node, by",
        "Another node of the cluster has reported no status for 5 s.",
    )
    .logged(Level::WARN, "no status from node for 5 s: restart it, or replace its machine");
    RULE_DELIVERS = EventKind::new(
        "rule.state_changed",
        RULE_STATE,
        "A [rule](rules.md) delivers messages again, or waits. `state` and `reason` are those of \
         `GET /rules`.",
    )
    .logged(Level::INFO, "rule delivers messages");
    RULE_WAITS = EventKind::new("rule.state_changed", RULE_STATE, "")
        .logged(Level::WARN, "rule waits");
    RULE_RESTS = EventKind::new("rule.state_changed", RULE_STATE, "")
        .logged(Level::INFO, "rule does not deliver");
    RULE_STARTED = EventKind::new(
        "rule.started",
        "namespace, rule, stream, run",
        "A new rule begins to read its stream, or a rule continues after a seek. Each seek \
         increases `run`.",
    )
    .logged(Level::DEBUG, "rule begins to read");
    RULE_REMOVED = EventKind::new(
        "rule.removed",
        "namespace, rule, stream",
        "The definition of a rule was removed, and the last answers of its target have arrived.",
    )
    .logged(Level::INFO, "rule removed");
    RULE_MESSAGES_DROPPED = EventKind::new(
        "rule.messages_dropped",
        "namespace, rule, stream, reason, count, shard, first, next",
        "Messages were dropped before a rule delivered them. `reason` is `dropped_retention` (a \
         limit of the stream) or `dropped_damaged` (a file of the stream cannot be read). The \
         messages of the shard have the numbers from `first` to `next`, without `next`.",
    )
    .logged(Level::WARN, "messages of a stream were dropped before the rule delivered them")
    .limited(About::Rule);
    RULE_NOT_DELIVERED = EventKind::new(
        "rule.message_not_delivered",
        "namespace, rule, stream, reason, attempts, detail, dead_letter, shard, first",
        "A rule does not deliver a message. `reason` is `refused` or `attempts_used_up`, `detail` \
         the last answer of the target. `dead_letter` is the stream that has the message, or null: \
         the message is discarded. `first` is its number in the shard.",
    )
    .logged(Level::WARN, "message not delivered").limited(About::Rule);
    STREAM_FULL = EventKind::new(
        "stream.full",
        OF_STREAM,
        "A stream with `full = \"reject\"` has reached a limit. Publishes that it would store are \
         refused.",
    )
    .logged(Level::WARN, "stream full: messages are refused");
    STREAM_ACCEPTS = EventKind::new(
        "stream.accepting",
        OF_STREAM,
        "A stream that was full accepts messages again.",
    )
    .logged(Level::INFO, "stream accepts messages again");
    STREAM_WRITE_FAILED = EventKind::new(
        "stream.write_failed",
        "namespace, stream, detail",
        "A file of a stream cannot be written. The broker tries again every second. Messages stay \
         in the durable log.",
    )
    .logged(
        Level::ERROR,
        "cannot write a file of the stream; it is tried again every second, and messages stay in \
         the log",
    );
    STREAM_WRITE_RESUMED = EventKind::new(
        "stream.write_resumed",
        OF_STREAM,
        "Files of a stream can be written again.",
    )
    .logged(Level::INFO, "files of the stream are written");
    STREAM_STOPPED = EventKind::new(
        "stream.stopped",
        "namespace, stream, shard, detail",
        "A stream lacks messages of a shard, and stores no more of them until a restart.",
    )
    .logged(Level::ERROR, "stream stopped");
    WITHHELD = EventKind::new(
        "events.withheld",
        "count",
        "Events were dropped at a limit. Read the list of clients again.",
    );
}
