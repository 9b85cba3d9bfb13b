//! Every option of mosquitto 1.4 to 2.1: where it belongs, and what becomes of it.

use crate::report::Fate::{self, Differs, NotNeeded, Rights, Unsupported};

/// One option.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) scope: Scope,
    pub(super) kind: Kind,
    pub(super) action: Action,
}

/// What an option is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Global,
    /// Of all listeners, or with `per_listener_settings` of one.
    Security,
    Listener,
    Bridge,
}

/// What values it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One word. mosquitto ignores what follows it, as it does for the next two.
    Flag,
    Number,
    Word,
    /// All that follows the name. mosquitto refuses a second one.
    Text,
    /// The same, and there may be several.
    Texts,
}

impl Kind {
    /// What counts of what follows the name.
    pub(super) fn value_of(self, text: &str) -> &str {
        match self {
            Self::Flag | Self::Number | Self::Word => {
                text.split_whitespace().next().unwrap_or_default()
            }
            Self::Text | Self::Texts => text,
        }
    }
}

/// What becomes of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// A key of a section, or without one of the listener or bridge. The word stands for 0.
    Key(&'static str, &'static str, Option<&'static str>),
    /// Not needed at this value, else as stated.
    Unless(&'static str, Fate, &'static str),
    /// The same whatever its value.
    Always(Fate, &'static str),
    /// Code reads it.
    Special,
}

/// The option with this name.
pub(super) fn find(name: &str) -> Option<&'static Known> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let name = alias.map_or(name, |(_, known)| known);
    KNOWN.iter().find(|known| known.name == name)
}

/// Other names of the same options.
const ALIASES: [(&str, &str); 2] =
    [("maximum_qos", "max_qos"), ("retained_persistence", "persistence")];

/// The options that load a plugin.
pub(super) const PLUGINS: [&str; 4] = ["auth_plugin", "plugin", "global_plugin", "plugin_load"];

/// All names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|known| known.name)
}

const fn global(name: &'static str, kind: Kind, action: Action) -> Known {
    Known { name, scope: Scope::Global, kind, action }
}

const fn security(name: &'static str, kind: Kind, action: Action) -> Known {
    Known { name, scope: Scope::Security, kind, action }
}

const fn listener(name: &'static str, kind: Kind, action: Action) -> Known {
    Known { name, scope: Scope::Listener, kind, action }
}

const fn bridge(name: &'static str, kind: Kind, action: Action) -> Known {
    Known { name, scope: Scope::Bridge, kind, action }
}

use Action::{Always, Key, Special, Unless};
use Kind::{Flag, Number, Text, Texts, Word};

const STORED: &str = "each message is stored before it is acknowledged";
const LIBRARY: &str = "it tunes a library that the broker does not use";
const FIXED_CIPHERS: &str = "the cipher suites are fixed; all of them have forward secrecy";
const PLUGIN: &str = "";
const KEY_FILES: &str = "keys are read from PEM files only: set key to such a file";
const LAZY: &str = "bridges are always connected";
const OLD: &str = "mosquitto ignores it as well";

#[rustfmt::skip]
const KNOWN: &[Known] = &[
    // The process, files, limits.
    global("allow_duplicate_messages", Flag, Unless("true", Differs, "a client with overlapping subscriptions gets each message once")),
    global("autosave_interval", Number, Always(NotNeeded, STORED)),
    global("autosave_on_changes", Flag, Always(NotNeeded, STORED)),
    global("check_retain_source", Flag, Unless("false", Differs, "a retained message stays when its publisher loses the right to its topic: clear it")),
    global("clientid_prefixes", Text, Always(Rights, "client IDs are not restricted: grant rights by username")),
    global("connection_messages", Flag, Unless("true", Unsupported, "connections are logged at level info: set log.level = \"warn\"")),
    global("include_dir", Texts, Special),
    global("log_dest", Texts, Special),
    global("log_facility", Text, Always(NotNeeded, "the service manager forwards standard error to syslog")),
    global("log_timestamp", Flag, Always(NotNeeded, "log lines always have a time")),
    global("log_timestamp_format", Text, Always(NotNeeded, "times in logs are RFC 3339")),
    global("log_type", Word, Special),
    global("max_inflight_bytes", Number, Always(Unsupported, "in_flight_max limits messages, outbox_bytes_max limits unsent bytes")),
    global("max_inflight_messages", Number, Special),
    global("max_keepalive", Number, Special),
    global("max_packet_size", Number, Special),
    global("max_queued_bytes", Number, Special),
    global("max_queued_messages", Number, Special),
    global("memory_limit", Number, Key("limits", "memory_bytes_max", Some("auto"))),
    global("message_size_limit", Number, Special),
    global("packet_buffer_size", Number, Always(NotNeeded, "the size of buffers follows the packets")),
    global("per_listener_settings", Flag, Special),
    global("persistence", Flag, Special),
    global("persistence_file", Text, Always(NotNeeded, "the files in server.data_dir have fixed names")),
    global("persistence_location", Text, Special),
    global("persistent_client_expiration", Word, Special),
    global("pid_file", Text, Always(NotNeeded, "the service manager knows the process; a lock in server.data_dir keeps a second one out")),
    global("queue_qos0_messages", Flag, Key("limits", "queue_qos0_offline", None)),
    global("retain_available", Flag, Key("limits", "retain_available", None)),
    global("retain_expiry_interval", Number, Always(Unsupported, "retained messages end by their own message expiry; see limits.message_expiry_max_secs")),
    global("set_tcp_nodelay", Flag, Unless("true", NotNeeded, "it is always on")),
    global("sys_interval", Number, Key("sys", "interval_secs", Some("off"))),
    global("upgrade_outgoing_qos", Flag, Unless("false", Unsupported, "MQTT forbids it (MQTT-3.8.4-8)")),
    global("user", Text, Always(NotNeeded, "start the broker as this user, for example by User= of its service")),
    global("websockets_headers_size", Number, Always(NotNeeded, LIBRARY)),
    global("websockets_log_level", Number, Always(NotNeeded, LIBRARY)),
    global("global_max_clients", Number, Always(Unsupported, "limits.sessions_bytes_max limits all sessions; namespaces have sessions_max")),
    global("global_max_connections", Number, Key("limits", "connections_max", Some("unlimited"))),
    global("enable_control_api", Flag, Unless("false", Unsupported, "use the management API (docs/use/api.md)")),
    global("retry_interval", Texts, Always(NotNeeded, OLD)),
    global("store_clean_interval", Number, Always(NotNeeded, OLD)),
    global("reconnect_messages", Texts, Always(NotNeeded, OLD)),
    global("max_log_entries", Number, Always(NotNeeded, OLD)),
    global("ffdc_output", Texts, Always(NotNeeded, OLD)),
    global("trace_level", Text, Always(NotNeeded, OLD)),
    global("trace_output", Texts, Always(NotNeeded, OLD)),

    // Who may do what.
    security("acl_file", Text, Special),
    security("allow_anonymous", Flag, Special),
    security("allow_zero_length_clientid", Flag, Unless("true", Differs, "clients without a client ID get one from the broker")),
    security("auth_plugin", Texts, Always(Rights, PLUGIN)),
    security("auth_plugin_deny_special_chars", Flag, Always(NotNeeded, "a rule with %c or %u never matches a name with +, # or /")),
    security("auto_id_prefix", Text, Always(Unsupported, "the client IDs that the broker makes have no prefix")),
    security("password_file", Text, Special),
    security("plugin", Texts, Always(Rights, PLUGIN)),
    security("global_plugin", Texts, Always(Rights, PLUGIN)),
    security("plugin_load", Texts, Always(Rights, PLUGIN)),
    security("plugin_use", Texts, Always(Rights, PLUGIN)),
    security("psk_file", Text, Always(Rights, "there is no TLS with pre-shared keys: give the clients certificates or passwords")),

    // Listeners.
    listener("port", Number, Special),
    listener("listener", Texts, Special),
    listener("bind_address", Text, Special),
    listener("bind_interface", Text, Always(Rights, "listeners are bound to addresses: give the listener that of the interface")),
    listener("socket_domain", Word, Special),
    listener("protocol", Word, Special),
    listener("http_dir", Text, Always(Unsupported, "serve files with a web server")),
    listener("websockets_origin", Texts, Special),
    listener("max_connections", Number, Special),
    listener("max_qos", Number, Key("", "qos_max", None)),
    listener("max_topic_alias", Number, Key("", "topic_alias_max", None)),
    listener("max_topic_alias_broker", Number, Always(NotNeeded, "topic_alias_max is for both directions")),
    listener("mount_point", Text, Always(Rights, "clients cannot be confined to a prefix: use namespaces (docs/use/namespaces.md) or access rules")),
    listener("use_username_as_clientid", Flag, Unless("false", Rights, "client IDs are those that clients send. A session belongs to its user, who cannot be disconnected by others")),
    listener("accept_protocol_versions", Texts, Always(Unsupported, "all versions of MQTT are accepted")),
    listener("enable_proxy_protocol", Number, Special),
    listener("proxy_protocol_v2_require_tls", Flag, Unless("false", Rights, "the broker does not check that clients of a proxy used TLS")),
    listener("listener_allow_anonymous", Flag, Special),
    listener("listener_auto_id_prefix", Text, Always(Unsupported, "the client IDs that the broker makes have no prefix")),

    // Their TLS.
    listener("cafile", Text, Special),
    listener("capath", Text, Special),
    listener("certfile", Text, Special),
    listener("keyfile", Text, Special),
    listener("require_certificate", Flag, Special),
    listener("use_identity_as_username", Flag, Special),
    listener("use_subject_as_username", Flag, Special),
    listener("crlfile", Text, Special),
    listener("tls_version", Text, Special),
    listener("ciphers", Text, Always(Differs, FIXED_CIPHERS)),
    listener("ciphers_tls1.3", Text, Always(Differs, FIXED_CIPHERS)),
    listener("dhparamfile", Text, Always(NotNeeded, "key exchange is by elliptic curves")),
    listener("disable_client_cert_date_checks", Flag, Unless("false", Rights, "expired client certificates are refused")),
    listener("psk_hint", Text, Special),
    listener("tls_engine", Text, Always(Unsupported, KEY_FILES)),
    listener("tls_engine_kpass_sha1", Text, Always(Unsupported, KEY_FILES)),
    listener("tls_keyform", Text, Unless("pem", Unsupported, KEY_FILES)),

    // Bridges.
    bridge("connection", Word, Special),
    bridge("address", Text, Special),
    bridge("addresses", Text, Special),
    bridge("topic", Texts, Special),
    bridge("bridge_protocol_version", Text, Special),
    bridge("clientid", Text, Special),
    bridge("remote_clientid", Text, Special),
    bridge("username", Text, Special),
    bridge("remote_username", Text, Special),
    bridge("password", Text, Special),
    bridge("remote_password", Text, Special),
    bridge("cleansession", Flag, Key("", "clean_session", None)),
    bridge("keepalive_interval", Number, Special),
    bridge("bridge_cafile", Text, Special),
    bridge("bridge_capath", Text, Special),
    bridge("bridge_certfile", Text, Special),
    bridge("bridge_keyfile", Text, Special),
    bridge("bridge_tls_use_os_certs", Flag, Special),
    bridge("bridge_identity", Text, Special),
    bridge("bridge_psk", Text, Special),
    bridge("bridge_alpn", Text, Always(Differs, "the bridge does not request a protocol by ALPN")),
    bridge("bridge_insecure", Flag, Special),
    bridge("bridge_require_ocsp", Flag, Unless("false", Rights, "OCSP is not checked")),
    bridge("bridge_tls_version", Text, Always(NotNeeded, "the bridge uses TLS 1.3 or 1.2")),
    bridge("bridge_ciphers", Text, Always(Differs, FIXED_CIPHERS)),
    bridge("bridge_ciphers_tls1.3", Text, Always(Differs, FIXED_CIPHERS)),
    bridge("bridge_attempt_unsubscribe", Flag, Always(NotNeeded, "subscriptions that are no longer configured are removed")),
    bridge("bridge_bind_address", Text, Always(Unsupported, "the system chooses the local address")),
    bridge("bridge_max_packet_size", Number, Key("", "packet_bytes_max", Some("unlimited"))),
    bridge("bridge_max_topic_alias", Number, Always(NotNeeded, "bridges use no topic aliases")),
    bridge("bridge_outgoing_retain", Flag, Unless("true", Unsupported, "messages keep their retain flag unless an MQTT 5 remote refuses it")),
    bridge("bridge_receive_maximum", Number, Always(NotNeeded, "it follows from the limits of both brokers")),
    bridge("bridge_reload_type", Word, Always(Unsupported, "bridges change at a restart")),
    bridge("bridge_session_expiry_interval", Number, Always(Unsupported, "the session of a bridge does not expire")),
    bridge("bridge_tcp_keepalive", Texts, Always(NotNeeded, "MQTT keep-alive finds dead connections")),
    bridge("bridge_tcp_user_timeout", Number, Always(NotNeeded, "MQTT keep-alive finds dead connections")),
    bridge("idle_timeout", Number, Always(NotNeeded, LAZY)),
    bridge("threshold", Number, Always(NotNeeded, LAZY)),
    bridge("start_type", Word, Unless("automatic", Differs, LAZY)),
    bridge("restart_timeout", Texts, Always(NotNeeded, "delays between attempts grow from 1 s, with jitter")),
    bridge("round_robin", Flag, Unless("true", Differs, "the bridge stays at an address until the connection fails")),
    bridge("local_cleansession", Flag, Unless("false", Differs, "the local session of a bridge is persistent")),
    bridge("local_clientid", Text, Always(Differs, "the local session of a bridge has a reserved client ID")),
    bridge("local_username", Text, Always(Differs, "a bridge may do what its topics say, whatever the access file grants")),
    bridge("local_password", Text, Always(NotNeeded, "a bridge needs no local login")),
    bridge("notifications", Flag, Key("", "notifications", None)),
    bridge("notifications_local_only", Flag, Unless("false", Differs, "the state is published at both brokers")),
    bridge("notification_topic", Text, Always(Differs, "the state is at $SYS/broker/connection/CLIENT_ID/state")),
    bridge("try_private", Flag, Key("", "announce", None)),
];
