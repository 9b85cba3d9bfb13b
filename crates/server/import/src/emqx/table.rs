//! Options of EMQX 5 with one value, and what becomes of them.

use crate::report::Fate::{self, Differs, NotNeeded, Rights, Unsupported};

/// How a value is read, and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Count,
    Seconds,
    Bytes,
    Rate,
    Flag,
}

/// What becomes of an option.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// A key (without a section: of the listener), the form of the value, and what `infinity` is.
    Key(&'static str, Form, &'static str),
    /// Not needed at this value, else as stated.
    Unless(&'static str, Fate, &'static str),
    Always(Fate, &'static str),
    /// Code reads it.
    Special,
}

use Action::{Always, Key, Special, Unless};
use Form::{Bytes, Count, Flag, Rate, Seconds};

/// What a path is, by the longest name in the table that it begins with.
pub(super) fn find(table: &[(&'static str, Action)], path: &str) -> Option<Action> {
    let is_it = |name: &str| {
        path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
    };
    let found = table.iter().filter(|(name, _)| is_it(name));
    found.max_by_key(|(name, _)| name.len()).map(|(_, action)| *action)
}

const OWN: &str = "the broker chooses it";
const SOCKET: &str = "sockets are tuned by the system";
const SAFE: &str = "TLS is configured safely without it";
const POOL: &str = "the pool of connections manages itself";

#[rustfmt::skip]
pub(super) const MQTT: &[(&str, Action)] = &[
    ("max_packet_size", Key("limits.packet_bytes_max", Bytes, "")),
    ("max_clientid_len", Key("limits.client_id_bytes_max", Count, "")),
    ("max_topic_levels", Key("limits.topic_levels_max", Count, "")),
    ("max_topic_alias", Key("limits.topic_alias_max", Count, "")),
    ("max_qos_allowed", Key("limits.qos_max", Count, "")),
    ("retain_available", Key("limits.retain_available", Flag, "")),
    ("wildcard_subscription", Key("limits.wildcard_available", Flag, "")),
    ("shared_subscription", Key("limits.shared_available", Flag, "")),
    ("shared_subscription_strategy", Special),
    ("shared_subscription_initial_sticky_pick", Always(NotNeeded, OWN)),
    ("exclusive_subscription", Unless("false", Unsupported, "there are no exclusive subscriptions")),
    ("session_expiry_interval", Key("limits.session_expiry_v3_secs", Seconds, "never")),
    ("message_expiry_interval", Key("limits.message_expiry_max_secs", Seconds, "never")),
    ("max_mqueue_len", Key("limits.queued_messages_max", Count, "4294967295")),
    ("mqueue_store_qos0", Key("limits.queue_qos0_offline", Flag, "")),
    ("mqueue_priorities", Unless("disabled", Unsupported, "queues have no priorities")),
    ("mqueue_default_priority", Always(NotNeeded, "queues have no priorities")),
    ("max_inflight", Key("limits.in_flight_max", Count, "65535")),
    ("max_awaiting_rel", Key("limits.receive_max", Count, "65535")),
    ("await_rel_timeout", Always(NotNeeded, "a QoS 2 message ends with its session")),
    ("retry_interval", Always(NotNeeded, "messages are sent again when the client connects (MQTT-4.4.0-1)")),
    ("upgrade_qos", Unless("false", Unsupported, "MQTT forbids it (MQTT-3.8.4-8)")),
    ("idle_timeout", Key("limits.connect_timeout_secs", Seconds, "3600")),
    ("keepalive_multiplier", Always(Differs, "clients are disconnected after 1.5 times their keep-alive, as MQTT says")),
    ("keepalive_backoff", Always(Differs, "clients are disconnected after 1.5 times their keep-alive, as MQTT says")),
    ("keepalive_check_interval", Always(NotNeeded, OWN)),
    ("server_keepalive", Unless("disabled", Unsupported, "limits.keep_alive_max_secs shortens longer keep-alives")),
    ("max_subscriptions", Key("limits.subscriptions_per_client_max", Count, "10000000")),
    ("ignore_loop_deliver", Unless("false", Unsupported, "MQTT 5 clients set No Local themselves")),
    ("strict_mode", Unless("true", NotNeeded, "packets are always checked strictly")),
    ("response_information", Unless("", Unsupported, "the CONNACK has no response information")),
    ("use_username_as_clientid", Unless("false", Rights, "client IDs are those that clients send. A session belongs to its user, who cannot be disconnected by others")),
    ("peer_cert_as_username", Special),
    ("peer_cert_as_clientid", Unless("disabled", Rights, "client IDs are those that clients send: grant rights by username")),
    ("clientid_override", Unless("disabled", Rights, "client IDs are those that clients send: grant rights by username")),
    ("client_attrs_init", Always(Rights, "attributes come from `attributes` of [[authentication]]")),
];

#[rustfmt::skip]
pub(super) const LISTENER: &[(&str, Action)] = &[
    ("bind", Special),
    ("enable", Special),
    ("enabled", Special),
    ("max_connections", Key("connections_max", Count, "unlimited")),
    ("max_conn_rate", Key("connections_per_second_max", Rate, "unlimited")),
    ("messages_rate", Key("messages_per_second_max", Rate, "unlimited")),
    ("bytes_rate", Key("bytes_per_second_max", Rate, "unlimited")),
    ("max_conn_burst", Always(Unsupported, "connections have no burst of their own")),
    ("messages_burst", Always(Unsupported, "set limits.messages_burst")),
    ("bytes_burst", Always(Unsupported, "set limits.bytes_burst")),
    ("limiter", Always(Unsupported, "set messages_per_second_max and bytes_per_second_max")),
    ("acceptors", Always(NotNeeded, OWN)),
    ("mountpoint", Unless("", Rights, "clients cannot be confined to a prefix: use namespaces (docs/use/namespaces.md) or access rules")),
    ("zone", Unless("default", Unsupported, "there are no zones: set limits of the listener")),
    ("access_rules", Special),
    ("proxy_protocol", Unless("false", Rights, "set proxy_protocol = true and trusted_proxies, the addresses of the proxies, on this listener")),
    ("proxy_protocol_timeout", Always(NotNeeded, "limits.connect_timeout_secs includes it")),
    ("authentication", Special),
    ("enable_authn", Special),
    ("tcp_options", Always(NotNeeded, SOCKET)),
    ("tcp_backend", Always(NotNeeded, SOCKET)),
    ("parse_unit", Always(NotNeeded, OWN)),
    ("websocket.mqtt_path", Special),
    ("websocket.check_origin_enable", Special),
    ("websocket.check_origins", Special),
    ("websocket.allow_origin_absence", Unless("true", Differs, "clients without an Origin header may connect: only browsers send it")),
    ("websocket.proxy_address_header", Always(Differs, "X-Forwarded-For is used from trusted_proxies only")),
    ("websocket.proxy_port_header", Always(NotNeeded, "the port of a client is not used")),
    ("websocket.fail_if_no_subprotocol", Unless("true", Differs, "MQTT requires the subprotocol (MQTT-6.0.0-3)")),
    ("websocket.mqtt_piggyback", Always(NotNeeded, OWN)),
    ("websocket.compress", Unless("false", Unsupported, "frames are not compressed")),
    ("websocket", Always(NotNeeded, OWN)),
    ("ssl_options.certfile", Special),
    ("ssl_options.keyfile", Special),
    ("ssl_options.cacertfile", Special),
    ("ssl_options.verify", Special),
    ("ssl_options.fail_if_no_peer_cert", Special),
    ("ssl_options.versions", Special),
    ("ssl_options.password", Unless("", Rights, "keys must not be encrypted: decrypt the file")),
    ("ssl_options.ciphers", Unless("", Differs, "the cipher suites are fixed; all of them have forward secrecy")),
    ("ssl_options.enable_crl_check", Unless("false", Rights, "lists of revoked certificates are files: set crl in [listeners.tls]")),
    ("ssl_options.partial_chain", Unless("false", Rights, "a client certificate needs its whole chain")),
    ("ssl_options.verify_peer_ext_key_usage", Unless("disabled", Rights, "client certificates must be usable for client authentication, and no more is checked")),
    ("ssl_options.depth", Always(NotNeeded, SAFE)),
    ("ssl_options", Always(NotNeeded, SAFE)),
];

#[rustfmt::skip]
pub(super) const RETAINER: &[(&str, Action)] = &[
    ("enable", Key("limits.retain_available", Flag, "")),
    ("max_retained_messages", Special),
    ("backend.max_retained_messages", Special),
    ("max_payload_size", Always(Unsupported, "limits.packet_bytes_max limits all messages")),
    ("msg_expiry_interval", Always(Unsupported, "retained messages end by their own message expiry; see limits.message_expiry_max_secs")),
    ("msg_expiry_interval_override", Always(Unsupported, "see limits.message_expiry_max_secs")),
    ("allow_never_expire", Unless("true", Unsupported, "see limits.message_expiry_max_secs")),
    ("stop_publish_clear_msg", Unless("false", Unsupported, "clearing messages are always delivered")),
    ("msg_clear_interval", Always(NotNeeded, OWN)),
    ("msg_clear_limit", Always(NotNeeded, OWN)),
    ("flow_control", Always(NotNeeded, OWN)),
    ("delivery_rate", Always(NotNeeded, "retained messages are sent as clients read them")),
    ("max_publish_rate", Always(Unsupported, "limits.messages_per_second_max limits all messages")),
    ("backend", Always(NotNeeded, "retained messages are stored with all others")),
];

#[rustfmt::skip]
pub(super) const LOG: &[(&str, Action)] = &[
    ("console.enable", Special),
    ("console.level", Special),
    ("console.formatter", Special),
    ("file.enable", Special),
    ("file.level", Special),
    ("file.path", Special),
    ("file.formatter", Special),
    ("file.default.enable", Special),
    ("file.default.level", Special),
    ("file.default.path", Special),
    ("console", Always(NotNeeded, OWN)),
    ("file", Always(NotNeeded, "logrotate rotates the file")),
    ("audit", Always(Unsupported, "calls of the management API are in the log")),
    ("throttling", Always(NotNeeded, "log.client_lines_per_second_max does it")),
];

/// What is configured outside these sections, by its first key.
#[rustfmt::skip]
pub(super) const OTHERS: &[(&str, Action)] = &[
    ("node", Always(NotNeeded, "a broker needs no name; server.data_dir has its data")),
    ("cluster", Always(Differs, "a cluster here has an active node and standbys: see docs/use/cluster.md")),
    ("rpc", Always(NotNeeded, "nodes do not call each other")),
    ("dashboard", Always(Unsupported, "the management API has users of its own: see docs/use/api.md")),
    ("api_key", Always(Unsupported, "the management API has users of its own: see docs/use/api.md")),
    ("broker", Always(NotNeeded, OWN)),
    ("sysmon", Always(NotNeeded, "metrics and $SYS topics show load")),
    ("alarm", Always(Unsupported, "Prometheus rules alert: see docs/use/metrics.md")),
    ("telemetry", Always(NotNeeded, "the broker reports nothing to its makers")),
    ("license", Always(NotNeeded, "the broker needs no licence key")),
    ("prometheus", Always(Differs, "GET /metrics at http.listen has other names: see docs/use/metrics.md")),
    ("opentelemetry", Always(Unsupported, "set [telemetry] by hand: see docs/use/telemetry.md")),
    ("sys_topics", Always(Differs, "$SYS topics have mosquitto's names: see docs/use/sys-topics.md")),
    ("delayed", Always(Unsupported, "messages cannot be delayed")),
    ("rewrite", Always(Rights, "topics are not rewritten: grant the topics that clients use")),
    ("auto_subscribe", Always(Unsupported, "clients must subscribe themselves")),
    ("topic_metrics", Always(Unsupported, "messages are not counted by topic")),
    ("slow_subs", Always(Differs, "`quelea ctl clients list` shows lag")),
    ("flapping_detect", Always(Unsupported, "set auth.flapping_max")),
    ("banned", Always(Rights, "write the bans into auth.ban_file")),
    ("force_shutdown", Always(NotNeeded, "each connection has limits: see docs/use/security.md")),
    ("force_gc", Always(NotNeeded, "there is no garbage collection")),
    ("conn_congestion", Always(NotNeeded, "slow connections are in logs and metrics")),
    ("overload_protection", Always(NotNeeded, "limits.memory_bytes_max and others do it")),
    ("limiter", Always(Unsupported, "set limits.messages_per_second_max and others")),
    ("zones", Always(Rights, "there are no zones: set limits and rights of the listeners")),
    ("rule_engine", Always(Unsupported, "there are no rules on messages: subscribe with a program")),
    ("bridges", Always(Unsupported, "an MQTT bridge is written as [[bridges]]")),
    ("connectors", Always(Unsupported, "an MQTT bridge is written as [[bridges]]")),
    ("actions", Always(Unsupported, "subscribe with a program")),
    ("sources", Always(Unsupported, "an MQTT bridge is written as [[bridges]]")),
    ("cluster_link", Always(Unsupported, "use [[bridges]]")),
    ("exhook", Always(Rights, "hooks are not called: use HTTP services for authentication")),
    ("plugins", Always(Rights, "plugins cannot be loaded")),
    ("gateway", Always(Unsupported, "only MQTT is spoken")),
    ("file_transfer", Always(Unsupported, "files are not received")),
    ("schema_registry", Always(Unsupported, "payloads are not decoded")),
    ("schema_validation", Always(Rights, "payloads are not checked")),
    ("message_transformation", Always(Unsupported, "payloads are not changed")),
    ("multi_tenancy", Always(Rights, "use namespaces: see docs/use/namespaces.md")),
    ("durable_sessions", Always(NotNeeded, "sessions are durable: see durability.level")),
    ("durable_storage", Always(NotNeeded, "sessions are durable: see durability.level")),
    ("session_persistence", Always(NotNeeded, "sessions are durable: see durability.level")),
    ("stats", Always(NotNeeded, OWN)),
    ("psk_authentication", Always(Rights, "there is no TLS with pre-shared keys")),
    ("crl_cache", Always(Unsupported, "lists of revoked certificates are files: set crl in [listeners.tls]")),
    ("ldap", Always(Unsupported, "LDAP is not asked")),
    ("vm_memory_high_watermark", Always(NotNeeded, OWN)),
];

#[rustfmt::skip]
pub(super) const HTTP: &[(&str, Action)] = &[
    ("type", Special),
    ("mechanism", Special),
    ("backend", Special),
    ("enable", Special),
    ("method", Special),
    ("url", Special),
    ("headers", Special),
    ("body", Special),
    ("pool_size", Key("requests_max", Count, "")),
    ("request_timeout", Key("timeout_secs", Seconds, "60")),
    ("connect_timeout", Always(NotNeeded, "timeout_secs includes it")),
    ("enable_pipelining", Always(NotNeeded, POOL)),
    ("max_inactive", Always(NotNeeded, POOL)),
    ("request", Always(NotNeeded, POOL)),
    ("precondition", Unless("", Rights, "conditions are not evaluated: name the provider in `authentication` of its listeners")),
    ("ssl.enable", Always(NotNeeded, "the scheme of url says it")),
    ("ssl.cacertfile", Special),
    ("ssl.verify", Special),
    ("ssl.certfile", Always(Unsupported, "the broker shows no certificate to the service")),
    ("ssl.keyfile", Always(Unsupported, "the broker shows no certificate to the service")),
    ("ssl", Always(NotNeeded, SAFE)),
];

#[rustfmt::skip]
pub(super) const JWT: &[(&str, Action)] = &[
    ("mechanism", Special),
    ("enable", Special),
    ("from", Special),
    ("use_jwks", Special),
    ("algorithm", Special),
    ("secret", Special),
    ("secret_base64_encoded", Special),
    ("public_key", Special),
    ("endpoint", Special),
    ("refresh_interval", Special),
    ("verify_claims", Special),
    ("disconnect_after_expire", Unless("true", Differs, "a connection ends when its token does")),
    ("acl_claim_name", Special),
    ("headers", Unless("", Unsupported, "the key set is fetched without headers of its own")),
    ("pool_size", Always(NotNeeded, POOL)),
    ("precondition", Unless("", Rights, "conditions are not evaluated: name the provider in `authentication` of its listeners")),
    ("ssl.enable", Always(NotNeeded, "the scheme of jwks_url says it")),
    ("ssl.cacertfile", Special),
    ("ssl.verify", Special),
    ("ssl", Always(NotNeeded, SAFE)),
];
