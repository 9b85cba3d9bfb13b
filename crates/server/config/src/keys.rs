//! Every key of the configuration, section by section, with its default and its reason.

use std::path::PathBuf;

use super::authorization::RawAuthorization;
use super::bridges::{RawBridge, RawBridgeTls, RawBridgeTopic};
use super::cluster::{RawCluster, RawClusterTls};
use super::demands::TokenField;
use super::endpoint::RawWebSocket;
use super::identity::{BodyForm, HttpMethod};
use super::namespaces::{RawNamespace, UnknownNamespace};
use super::routing::RawRouting;
use super::schema::{Section, ValueKind, bytes, bytes_or, count, count_or, secs, settings, words};
use super::telemetry::RawTelemetry;

/// All sections, in the order in which they are documented.
pub const SECTIONS: &[Section] = &[
    Server::SECTION,
    RawListener::SECTION,
    RawTls::SECTION,
    RawWebSocket::SECTION,
    Limits::SECTION,
    Durability::SECTION,
    Auth::SECTION,
    RawProvider::SECTION,
    AccessFile::SECTION,
    RawAuthorization::SECTION,
    RawNamespace::SECTION,
    Shared::SECTION,
    RawBridge::SECTION,
    RawBridgeTls::SECTION,
    RawBridgeTopic::SECTION,
    Http::SECTION,
    Section { name: "http.tls", doc: HTTP_TLS, keys: RawTls::SECTION.keys },
    Api::SECTION,
    Section { name: "api.tls", doc: API_TLS, keys: RawTls::SECTION.keys },
    SelfCheck::SECTION,
    Log::SECTION,
    Sys::SECTION,
    Events::SECTION,
    RawTelemetry::SECTION,
    RawRouting::SECTION,
    RawCluster::SECTION,
    RawClusterTls::SECTION,
];

/// What stands inside for `auto` where 0 is a size like others.
pub const AUTO: u64 = u64::MAX;

/// What a time limit of `never` means: the largest value MQTT can say.
pub const NEVER: u32 = u32::MAX;

/// A time for which 0 has a meaning of its own.
const SECS_OR_NEVER: ValueKind = secs(0, NEVER as u64 - 1).or("never", NEVER as u64);

words! {
    /// The policy at the full queue of a session.
    QueueOverflow {
        /// The oldest queued message is dropped.
        DropOldest = "drop_oldest",
        /// The new message is dropped.
        DropNewest = "drop_newest",
        /// The new message is dropped, and an MQTT 5 publisher gets 0x97.
        Reject = "reject",
        /// The session's connection is closed (0x97); its queue is kept.
        Disconnect = "disconnect",
    }
}

words! {
    /// The level of storage that an acknowledgement confirms.
    DurabilityLevel {
        /// In memory: lost when the process ends.
        Memory = "memory",
        /// Written to the operating system: survives the end of the process, not a loss of power.
        Disk = "disk",
        /// On the medium: survives a loss of power.
        Fsync = "fsync",
        /// On the media of a majority of the NATS servers of a cluster: survives the loss of a
        /// machine.
        Quorum = "quorum",
    }
}

words! {
    /// The policy for messages that must be stored when there is no space.
    WhenFull {
        /// MQTT 5 publishers get 0x97; the connections of MQTT 3 publishers are closed.
        Refuse = "refuse",
        /// Their publishers are paused until there is space.
        Wait = "wait",
    }
}

words! {
    /// Which member of a shared subscription gets a message.
    SharedStrategy {
        /// Any of them.
        Random = "random",
        /// One after the other.
        RoundRobin = "round_robin",
        /// The one with the fewest unacknowledged messages.
        LeastInFlight = "least_in_flight",
        /// The same one for as long as it can take messages.
        Sticky = "sticky",
        /// By the publisher's client ID.
        HashClient = "hash_client",
        /// By the topic: keeps the order per topic.
        HashTopic = "hash_topic",
    }
}

words! {
    /// The owner of a session.
    SessionOwner {
        /// The user that opened it. Clients without a username are one user.
        User = "user",
        /// Every client with its client ID.
        Anybody = "anybody",
    }
}

words! {
    /// The kind of a provider.
    ProviderKind {
        /// A JSON Web Token in the password.
        Jwt = "jwt",
        /// A service that answers HTTP requests.
        Http = "http",
        /// The client certificate.
        Certificate = "certificate",
        /// Registered clients with their certificates.
        Registry = "registry",
    }
}

words! {
    /// The field of a certificate that names a client which states no username.
    NameSource {
        /// The common name, or the whole subject.
        Subject = "subject",
        /// The alternative names of hosts.
        Dns = "dns",
        /// The alternative names that are URIs.
        Uri = "uri",
        /// The alternative names that are addresses.
        Ip = "ip",
        /// The alternative names that are mailboxes.
        Email = "email",
    }
}

words! {
    /// The action after a denied PUBLISH or SUBSCRIBE.
    DenyAction {
        /// The client stays connected.
        Ignore = "ignore",
        /// The connection is closed (0x87).
        Disconnect = "disconnect",
    }
}

words! {
    /// Whether clients must have a certificate.
    ClientAuth {
        /// None is requested.
        None = "none",
        /// A certificate is verified if the client sends one.
        Optional = "optional",
        /// The handshake fails without a valid one.
        Require = "require",
    }
}

words! {
    /// The field of a client certificate that becomes the username.
    CertificateIdentity {
        /// Nothing.
        None = "none",
        /// The common name of the subject.
        CommonName = "cn",
        /// The whole subject as an RFC 4514 string.
        DistinguishedName = "dn",
    }
}

words! {
    /// The oldest TLS version that is accepted.
    TlsVersion {
        /// TLS 1.2.
        V12 = "1.2",
        /// TLS 1.3.
        V13 = "1.3",
    }
}

words! {
    /// The least severe level that is logged.
    LogLevel {
        /// Errors that need an operator.
        Error = "error",
        /// Conditions that an operator should check.
        Warn = "warn",
        /// Start, stop, reload, connections and protocol violations.
        Info = "info",
        /// In addition: expired sessions and details of decisions.
        Debug = "debug",
        /// In addition: each packet.
        Trace = "trace",
    }
}

words! {
    /// The format of a log line.
    LogFormat {
        /// Text.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

settings! {
    /// The process: threads, data, stopping.
    "server" => Server {
        /// Threads that serve connections (workers). `auto`: one per core.
        workers: u16 = count_or("auto", 64), "auto";
        /// Parts (shards) of sessions and topics, each with its own log. Fixed when the data
        /// directory is made. `auto`: one per core, at least 4; `workers` if nothing is stored.
        shards: u16 = count_or("auto", 64), "auto";
        /// Threads that accept connections, do handshakes and authenticate. `auto`: a quarter of
        /// the cores, at least one.
        acceptor_threads: u16 = count_or("auto", 64), "auto";
        /// Ties each worker to one core. It helps on a machine that runs nothing else.
        pin_workers: bool = ValueKind::Flag, "false";
        /// The directory of the logs and small files. Only one process at a time can use it. Unused
        /// if nothing is stored: see `[durability]`.
        data_dir: PathBuf = ValueKind::Path, "quelea-data";
        /// The longest time of a shutdown. The broker disconnects its clients (0x8B for MQTT 5),
        /// sends what is queued for their sockets, and closes the logs.
        shutdown_grace_secs: u32 = secs(0, 3_600), "10";
        /// How often the broker looks for changes of the files that SIGHUP reloads. A changed one
        /// is reloaded when it has stayed the same for this long. `off`: by SIGHUP only.
        watch_files_secs: u32 = secs(1, 3_600).or("off", 0), "5";
    }
}

settings! {
    /// Where clients connect. Without any `[[listeners]]`, the broker listens on port 1883 of the
    /// loopback addresses only. A limit set here replaces the one in `[limits]` for this listener.
    /// `connections_max` and `connections_per_second_max` apply in addition to those in `[limits]`.
    "listeners" => RawListener {
        /// Scheme, address and port: `tcp://` (or `mqtt://`), `tls://` (or `mqtts://`), `ws://`,
        /// `wss://`, or `unix:///path/to/socket`. `*` as the address means all addresses. Without a
        /// port: 1883, 8883, 80, 443.
        url: Option<String> = ValueKind::Text("a URL such as tcp://127.0.0.1:1883"), "";
        /// The name of the listener in logs, metrics and `quelea ctl listeners`. Default: its URL.
        name: Option<String> = ValueKind::Text("a name"), "";
        /// Permission bits of the file of a `unix://` listener, in octal. A client must be able to
        /// write to the file. Not set: from the umask of the process.
        unix_mode: Option<String> = ValueKind::Text("permission bits in octal, such as 0660"), "";
        /// Admits clients without username and certificate. Not set: `auth.allow_anonymous`
        /// decides. If that is not set, only loopback and Unix listeners admit them, and only
        /// without authentication.
        allow_anonymous: Option<bool> = ValueKind::Flag, "";
        /// Providers that check a client, in this order, until one accepts or refuses it: names of
        /// `[[authentication]]`, and `file` (the password file). Empty: all, `file` last.
        authentication: Vec<String> = ValueKind::List("names of providers"), "";
        /// The namespace of clients for which no source in `namespace_from` names one. Not set:
        /// they are refused (0x87), or, without sources, in `default`.
        namespace: Option<String> = ValueKind::Text("a name of [[namespaces]]"), "";
        /// Sources of a client's namespace. `host`: the TLS host name, see `namespaces.hosts`.
        /// `username`: the part before the first colon, which is removed. `attribute`: attribute
        /// `namespace` of the credential. If two disagree, the client is refused.
        namespace_from: Vec<String> = ValueKind::List("\"host\", \"username\" and \"attribute\""), "";
        /// The policy for clients that name an unknown namespace: `refuse` them (0x87), or `create`
        /// it without limits of its own.
        namespace_unknown: UnknownNamespace = ValueKind::OneOf(UnknownNamespace::WORDS), "refuse";
        /// Expects a PROXY protocol header (v1 or v2) first, and takes the client's address from
        /// it. Needs `trusted_proxies`.
        proxy_protocol: bool = ValueKind::Flag, "false";
        /// Addresses from which a PROXY header is accepted. All other connections are closed:
        /// direct clients need another listener.
        trusted_proxies: Vec<String> = ValueKind::List("networks such as 10.0.0.0/8"), "";
        /// The username from a client certificate: none, the common name (`cn`), or the subject
        /// (`dn`, as an RFC 4514 string). Needs `tls.client_auth`.
        identity_from_certificate: CertificateIdentity =
            ValueKind::OneOf(CertificateIdentity::WORDS), "none";
        /// Accepts client certificates that `client_ca` has not issued, such as self-signed ones,
        /// if a registry has their thumbprint (`docs/use/authentication.md`). Needs
        /// `tls.client_auth`.
        registered_certificates: bool = ValueKind::Flag, "false";
        /// The most connections of this listener at a time. Further ones get 0x89 (server busy).
        connections_max: Option<u32> = count_or("unlimited", u32::MAX as u64), "";
        /// The most new connections of this listener per second. Further ones wait in the system's
        /// queue.
        connections_per_second_max: Option<u32> = count_or("unlimited", u32::MAX as u64), "";
        /// The durability level of messages and sessions of this listener, instead of
        /// `durability.level`.
        durability: Option<DurabilityLevel> = ValueKind::OneOf(DurabilityLevel::WORDS), "";
        /// As in `[limits]`.
        packet_bytes_max: Option<u32> = bytes(20, PACKET_BYTES_MAX), "";
        /// As in `[limits]`.
        keep_alive_max_secs: Option<u16> = secs(1, 65_535).or("unlimited", 0), "";
        /// As in `[limits]`.
        in_flight_max: Option<u16> = count(1, 65_535), "";
        /// As in `[limits]`.
        receive_max: Option<u16> = count(1, 65_535), "";
        /// As in `[limits]`.
        topic_alias_max: Option<u16> = count(0, 65_535), "";
        /// As in `[limits]`.
        qos_max: Option<u8> = count(0, 2), "";
        /// As in `[limits]`.
        messages_per_second_max: Option<u32> = count_or("unlimited", u32::MAX as u64), "";
        /// As in `[limits]`.
        bytes_per_second_max: Option<u64> = bytes_or("unlimited", u32::MAX as u64), "";
    }
}

settings! {
    /// For `tls://` and `wss://` listeners. SIGHUP reloads the files.
    "listeners.tls" => RawTls {
        /// The server's certificate, then those of its issuers up to one that clients trust, PEM.
        certificate: Option<PathBuf> = ValueKind::Path, "";
        /// More issuer certificates, PEM, in any order (mosquitto: `cafile`). Issuers that
        /// `certificate` lacks are taken from here and from `client_ca`.
        chain: Option<PathBuf> = ValueKind::Path, "";
        /// The private key of the certificate, PEM (PKCS#8, PKCS#1 or SEC1).
        key: Option<PathBuf> = ValueKind::Path, "";
        /// The certificate authorities that sign client certificates, PEM.
        client_ca: Option<PathBuf> = ValueKind::Path, "";
        /// Client certificates. `none`: not requested. `optional`: verified if the client sends
        /// one. `require`: the handshake fails without a valid one.
        client_auth: ClientAuth = ValueKind::OneOf(ClientAuth::WORDS), "none";
        /// Revoked client certificates, PEM.
        crl: Option<PathBuf> = ValueKind::Path, "";
        /// The oldest TLS version that is accepted.
        min_version: TlsVersion = ValueKind::OneOf(TlsVersion::WORDS), "1.2";
    }
}

settings! {
    /// Limits, with the effect of each. Every dropped message is counted by reason.
    "limits" => Limits {
        /// The most connections at a time. Further ones get 0x89 (server busy). Capped by the limit
        /// of open files (`ulimit -Hn`), minus an eighth (at most 1024) for the broker's files.
        connections_max: u32 = count_or("unlimited", u32::MAX as u64), "1000000";
        /// The most new connections per second. Further ones wait in the system's queue.
        connections_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "unlimited";
        /// The longest time to a complete CONNECT, handshakes included. Then the connection ends.
        connect_timeout_secs: u32 = secs(1, 3_600), "10";
        /// TCP keep-alive, of HTTP as well. An idle client is probed after this time, then four
        /// times at a quarter of it. Then it is disconnected. 0: no probes.
        tcp_keepalive_secs: u32 = secs(0, 32_767), "300";
        /// The largest CONNECT, and the largest AUTH before the CONNACK. A larger one closes the
        /// connection as soon as its header is read.
        connect_bytes_max: u32 = bytes(1 << 10, PACKET_BYTES_MAX), "128KiB";
        /// Memory for CONNECT packets that are incomplete or are being checked. Without free memory
        /// a CONNECT gets 0x89 (server busy). Above half of it, unfinished connections are closed
        /// after a quarter of `connect_timeout_secs`. `auto`: a sixteenth of `memory_bytes_max`.
        arrivals_bytes_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The same for each address (IPv6: each /64). Without free memory a CONNECT gets 0x97
        /// (quota exceeded). `auto`: a quarter of `arrivals_bytes_max`.
        arrivals_bytes_per_address_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// Memory for packets above 4 KiB that are incomplete or waiting. Without free memory
        /// senders are paused, and slow ones disconnected (`docs/use/security.md`). `auto`: an
        /// eighth of `memory_bytes_max`, at least twice the next key.
        incoming_bytes_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The same for each user of a namespace; for clients without a proved username, for each
        /// address (IPv6: /64). `auto`: a quarter of `incoming_bytes_max`, at least twice the
        /// largest `packet_bytes_max`.
        incoming_bytes_per_user_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The largest packet, announced to MQTT 5 clients. A larger one closes the connection with
        /// 0x95 as soon as its header is read.
        packet_bytes_max: u32 = bytes(20, PACKET_BYTES_MAX), "16MiB";
        /// The longest topic name, filter or share name. A longer one is refused with 0x90 or 0x8F
        /// (0x80 in a SUBACK of MQTT 3). Without such a code the connection is closed.
        topic_bytes_max: u16 = bytes(1, 65_535), "1KiB";
        /// The most levels of a topic name or filter. More are refused with 0x90 or 0x8F.
        topic_levels_max: u16 = count(1, 65_535), "128";
        /// The longest client ID. A longer one is refused with 0x85 (return code 2 of MQTT 3).
        client_id_bytes_max: u16 = bytes(23, 65_535), "256";
        /// The longest client ID of an MQTT 3.1 client, in characters. The specification says 23. A
        /// longer one is refused with return code 2.
        client_id_v31_chars_max: u16 = count(1, 65_535), "65535";
        /// The longest username. A longer one is refused with 0x86.
        username_bytes_max: u16 = bytes(1, 65_535), "1KiB";
        /// The longest password or token. A longer one is refused with 0x86.
        password_bytes_max: u16 = bytes(1, 65_535), "16KiB";
        /// The most bytes of properties of a publish or will (MQTT 5). A publish with more gets
        /// 0x97 (at QoS 0 the connection is closed), a will 0x95.
        properties_bytes_max: u32 = bytes(0, PACKET_BYTES_MAX), "16KiB";
        /// The most bytes of subscriptions of one client. Each counts its filter and 172 bytes; a
        /// shared one in addition its share name, and 285 bytes for each shard. Further ones get
        /// 0x97 (0x80 for MQTT 3).
        subscription_bytes_per_client_max: u32 = bytes(1 << 10, 1 << 31), "8MiB";
        /// The most subscriptions of one client. Further ones are refused with 0x97.
        subscriptions_per_client_max: u32 = count(1, 10_000_000), "10000";
        /// The most shared subscriptions (`$share/...`) of one client. Further ones are refused
        /// with 0x97. Each one adds work to every publish that matches.
        shared_subscriptions_per_client_max: u32 = count(1, 10_000_000), "100";
        /// The most filters in one SUBSCRIBE. Further ones get 0x97. A SUBSCRIBE or UNSUBSCRIBE
        /// above 128 KiB with more than 1 KiB for each filter gets 0x95.
        filters_per_packet_max: u32 = count(1, 65_536), "1024";
        /// The most bytes of all sessions, wills and subscriptions, shared between users as in
        /// `queues_bytes_max`. Above its share, a user's new ones are refused with 0x97 (MQTT 3:
        /// return code 3, 0x80). `auto`: an eighth of `memory_bytes_max`.
        sessions_bytes_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The most unacknowledged messages to one client, which may request fewer with Receive
        /// Maximum. Others wait in its queue.
        in_flight_max: u16 = count(1, 65_535), "1000";
        /// The most unacknowledged QoS 1 and 2 messages from one client, announced as Receive
        /// Maximum. More close the connection with 0x93.
        receive_max: u16 = count(1, 65_535), "1000";
        /// The most topic aliases that a client may define, announced to MQTT 5 clients, and that
        /// the broker defines for a client.
        topic_alias_max: u16 = count(0, 65_535), "32";
        /// The most messages queued for one session. At the limit `queue_overflow` decides.
        queued_messages_max: u32 = count(1, u32::MAX as u64), "100000";
        /// The most bytes queued for one session. At the limit `queue_overflow` decides. `auto`: a
        /// sixteenth of `memory_bytes_max`, 1 MiB to 256 MiB.
        queued_bytes_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The most bytes in memory queued for all sessions. A user (or an address) may use as much
        /// as it leaves free: alone half, one of nine a tenth. Above that its queues count as full.
        /// `auto`: a quarter of `memory_bytes_max`.
        queues_bytes_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The policy at a full queue. `drop_oldest`: the oldest queued message is dropped.
        /// `drop_newest`: the new message is dropped. `reject`: the publisher gets 0x97.
        /// `disconnect`: the subscriber's connection is closed (0x97).
        queue_overflow: QueueOverflow = ValueKind::OneOf(QueueOverflow::WORDS), "drop_oldest";
        /// Queues QoS 0 messages for sessions that are offline.
        queue_qos0_offline: bool = ValueKind::Flag, "false";
        /// The most unsent bytes of one connection. Above it QoS 0 messages to this client are
        /// dropped, and QoS 1 and 2 messages wait in its queue. One packet always fits.
        outbox_bytes_max: u32 = bytes(1 << 10, 1 << 30), "1MiB";
        /// The most retained messages. Further ones are refused with 0x97; replacing and clearing
        /// are accepted. `auto`: one for each 512 bytes of `retained_bytes_max`.
        retained_messages_max: u32 = count(0, u32::MAX as u64 / 2).or("auto", u32::MAX as u64), "auto";
        /// The most bytes of retained messages. More are refused with 0x97; clearing is accepted.
        /// `auto`: a quarter of `memory_bytes_max`.
        retained_bytes_max: u64 = bytes(0, AUTO / 2).or("auto", AUTO), "auto";
        /// Of these, the most bytes of one user, or of one address without a proved username.
        /// `auto`: as in `queues_bytes_max`.
        retained_bytes_per_user_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// Memory that the process may allocate. Towards the limit the largest users are throttled,
        /// then refused, then disconnected (`docs/use/security.md`). At the limit all messages are
        /// refused. `auto`: 80 % of the memory of the machine or cgroup.
        memory_bytes_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The most messages per second from one connection. Above this rate the connection is
        /// throttled.
        messages_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "unlimited";
        /// How many messages may come at once. `auto`: as many as in one second.
        messages_burst: u32 = count_or("auto", u32::MAX as u64), "auto";
        /// The most bytes per second from one connection. Above this rate the connection is
        /// throttled.
        bytes_per_second_max: u64 = bytes_or("unlimited", u32::MAX as u64), "unlimited";
        /// How many bytes may come at once. `auto`: as many as in one second.
        bytes_burst: u64 = bytes_or("auto", u32::MAX as u64), "auto";
        /// The longest time that a session outlives its connection, announced to MQTT 5 clients
        /// that request more. Then it ends, with its queued messages.
        session_expiry_max_secs: u32 = SECS_OR_NEVER, "90d";
        /// The time that a session of MQTT 3 with clean session 0 outlives its connection, at most
        /// `session_expiry_max_secs`.
        session_expiry_v3_secs: u32 = SECS_OR_NEVER, "never";
        /// The longest time that a message may wait. `never`: as long as its publisher says.
        message_expiry_max_secs: u32 = secs(1, NEVER as u64 - 1).or("never", NEVER as u64), "never";
        /// The longest keep-alive. MQTT 5 clients that request more, or none, get this one.
        keep_alive_max_secs: u16 = secs(1, 65_535).or("unlimited", 0), "unlimited";
        /// The keep-alive of MQTT 5 clients that request none. `off`: none.
        keep_alive_default_secs: u16 = secs(1, 65_535).or("off", 0), "off";
        /// The longest delay of a will. A longer one is shortened.
        will_delay_max_secs: u32 = SECS_OR_NEVER, "never";
        /// The largest will payload. A CONNECT with a larger one gets 0x95 (return code 3 of MQTT
        /// 3).
        will_payload_bytes_max: u16 = bytes(0, 65_535), "65535";
        /// The most bytes of a will: topic, properties and payload. A CONNECT with a larger one
        /// gets 0x95 (return code 3 of MQTT 3).
        will_bytes_max: u32 = bytes(0, PACKET_BYTES_MAX), "80KiB";
        /// The highest QoS of messages from clients, announced to MQTT 5 clients. A higher one
        /// closes the connection with 0x9B.
        qos_max: u8 = count(0, 2), "2";
        /// Retained messages are allowed. If not, one closes the connection with 0x9A.
        retain_available: bool = ValueKind::Flag, "true";
        /// Subscriptions with wildcards are allowed. If not, they are refused with 0xA2.
        wildcard_available: bool = ValueKind::Flag, "true";
        /// Shared subscriptions are allowed. If not, they are refused with 0x9E.
        shared_available: bool = ValueKind::Flag, "true";
        /// Subscription identifiers are allowed. If not, they are refused with 0xA1.
        subscription_ids_available: bool = ValueKind::Flag, "true";
    }
}

settings! {
    /// How persistent sessions and their messages are stored: see `docs/use/durability.md`. If all
    /// levels are `memory` and `routing.file` is not set, no directory is used.
    "durability" => Durability {
        /// The level that an acknowledgement confirms. `memory`: none. `disk`: stored by the
        /// operating system. `fsync`: on the medium. `quorum`: on the media of a majority of NATS
        /// servers.
        level: DurabilityLevel = ValueKind::OneOf(DurabilityLevel::WORDS), "fsync";
        /// Topics with a level of their own, whatever their listener has: `FILTER=LEVEL`. The first
        /// filter that matches applies.
        topics: Vec<String> = ValueKind::List("rules such as sensors/#=disk"), "";
        /// The policy for messages that must be stored when there is no space. `refuse`: 0x97, or
        /// the connection of an MQTT 3 publisher is closed. `wait`: publishers are paused until
        /// there is space.
        when_full: WhenFull = ValueKind::OneOf(WhenFull::WORDS), "refuse";
        /// Size of a log file. Each shard has one, and about three when it is busy. `auto`: a
        /// little more than twice the largest `packet_bytes_max`, at least 16 MiB. On small
        /// devices, lower that limit.
        segment_bytes: u32 = bytes(64 << 10, 1 << 30).or("auto", 0), "auto";
        /// The most bytes of all logs, divided equally between shards. The limit acts like a full
        /// disk. `auto`: 80 % of the free space at the start (with what is stored), at least four
        /// segments for each shard.
        log_bytes_max: u64 =
            bytes(256 << 10, AUTO / 2).or("auto", AUTO).or("unlimited", 0), "auto";
        /// Milliseconds that a commit may wait for others, so that all logs are synced together. A
        /// publisher that is alone does not wait. 0: none. No effect in a cluster.
        commit_delay_ms: u32 = count(0, 1_000), "0";
        /// Seconds that the will of a session without expiry waits for its client, after the broker
        /// has ended with the connection open. It is published if the client does not come back.
        will_grace_secs: u32 = count(0, 3_600), "10";
        /// Space is reclaimed once a log takes more than this percentage of the bytes that are
        /// needed, plus two segments. Smaller: less space, more copying.
        space_percent: u32 = count(110, 1_000), "200";
        /// The most bytes that reclaiming reads for every 100 bytes appended.
        reclaim_percent: u32 = count(150, 10_000), "200";
        /// Bytes per second that reclaiming may read in each log, even if less is appended.
        reclaim_bytes_per_sec: u32 = bytes(1 << 10, u32::MAX as u64), "8MiB";
    }
}

settings! {
    /// Authentication of clients. See `docs/use/authentication.md`.
    "auth" => Auth {
        /// Usernames and passwords, as written by `quelea passwd` or `mosquitto_passwd`. SIGHUP
        /// reloads the file.
        password_file: Option<PathBuf> = ValueKind::Path, "";
        /// Admits clients without username and certificate on every listener without its own
        /// setting. Not set: see `listeners.allow_anonymous`.
        allow_anonymous: Option<bool> = ValueKind::Flag, "";
        /// The clients that may resume, clear or take over a session. `user`: those of the user
        /// that opened it; others get 0x87. `anybody`: every client with the client ID; always so
        /// without authentication.
        session_owner: SessionOwner = ValueKind::OneOf(SessionOwner::WORDS), "user";
        /// Offers SCRAM-SHA-256 (MQTT 5 enhanced authentication) to users of the password file that
        /// have SCRAM credentials.
        scram: bool = ValueKind::Flag, "true";
        /// Threads that check passwords. A check takes tens of milliseconds of one core, and
        /// reserves the memory of its hash (argon2id: 19 MiB). If an eighth of
        /// `limits.memory_bytes_max` is too little for all threads, fewer checks run.
        threads: u16 = count(1, 64), "2";
        /// The most queued password checks. Addresses are served in rotation. At the limit the
        /// address with the most gets 0x89 (server busy).
        queue_max: u32 = count(1, 10_000_000), "10000";
        /// Failed logins per second that are checked for one address (IPv6: /64), after a burst of
        /// 64. Further ones wait, or get 0x89. Use `unlimited` for a proxy that does not forward
        /// addresses.
        failures_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "5";
        /// The most successful checks in the cache, which saves hashing at reconnects. 0: no cache.
        /// Cached answers of HTTP services take at most 32 MiB, and are dropped first when memory
        /// is short.
        cache_entries_max: u32 = count(0, 10_000_000), "100000";
        /// How long a successful check stays in the cache.
        cache_secs: u32 = secs(1, 604_800), "1h";
        /// File of banned clients (`docs/use/security.md`). They are refused even with valid
        /// credentials (0x8A). SIGHUP reloads the file and disconnects clients that it bans (0x98).
        ban_file: Option<PathBuf> = ValueKind::Path, "";
        /// The most connects of one client ID and username in `flapping_window_secs`. A client with
        /// more is banned for `flapping_ban_secs` (0x8A). Each further ban is twice as long, up to
        /// a day.
        flapping_max: u32 = count_or("unlimited", u32::MAX as u64), "unlimited";
        /// The time in which connects are counted.
        flapping_window_secs: u32 = secs(1, 86_400), "1m";
        /// Duration of the first ban.
        flapping_ban_secs: u32 = secs(1, 86_400), "5m";
    }
}

settings! {
    /// Providers that authenticate clients, in addition to the password file. See
    /// `docs/use/authentication.md`. A text with placeholders takes `${username}`, `${clientid}`,
    /// `${peerhost}`, `${cert_common_name}`,
    /// `${cert_subject}`, `${cert_dns}`, `${cert_email}`, `${cert_uri}`, `${cert_ip}`,
    /// `${cert_fingerprint}`, and of a token each claim, as `${claims.sub}`.
    "authentication" => RawProvider {
        /// The name of the provider in listeners and logs.
        name: Option<String> = ValueKind::Text("a name"), "";
        /// The kind of provider. `jwt`: a JSON Web Token in the password. `http`: a service that is
        /// asked over HTTP. `certificate`: the client certificate. `registry`: a file of registered
        /// clients with their certificates.
        kind: Option<ProviderKind> = ValueKind::OneOf(ProviderKind::WORDS), "";
        /// The username, with placeholders. Not set: `${claims.sub}` of a token,
        /// `${cert_common_name}` of a certificate.
        username: Option<String> = ValueKind::Text("a text with placeholders"), "";
        /// The attributes of a client, with placeholders. Access rules use them as
        /// `%{attributes.NAME}`. The claim `client_attrs` of a token is added.
        attributes: Vec<String> = ValueKind::List("attributes such as site=${claims.site}"), "";
        /// `jwt`: a file with the secret that signs tokens (HS256, HS384, HS512), at least 32
        /// bytes. SIGHUP reloads this file and the next two.
        secret_file: Option<PathBuf> = ValueKind::Path, "";
        /// `jwt`: whether `secret_file` has the secret as base64.
        secret_base64_encoded: bool = ValueKind::Flag, "false";
        /// `jwt`: public keys, PEM. RSA (RS256 to PS512), P-256, P-384, P-521 (ES256 to ES512) or
        /// Ed25519 (EdDSA).
        key_file: Option<PathBuf> = ValueKind::Path, "";
        /// `jwt`: a JSON Web Key Set.
        jwks_file: Option<PathBuf> = ValueKind::Path, "";
        /// `jwt`: URL of a JSON Web Key Set. Fetched at the start, at each interval, and at an
        /// unknown key, at most every 10 s. If that fails, the present keys stay in force.
        jwks_url: Option<String> = ValueKind::Text("a URL such as https://id.example/keys"), "";
        /// `jwt`: how often the key set of `jwks_url` is fetched.
        jwks_refresh_secs: u32 = secs(10, 604_800), "10m";
        /// `jwt`: the field of the CONNECT that has the token. A token in an AUTH packet is not
        /// affected.
        from: TokenField = ValueKind::OneOf(TokenField::WORDS), "password";
        /// `jwt`: the value that the claim `iss` must have. Not set: it is not checked.
        issuer: Option<String> = ValueKind::Text("an issuer"), "";
        /// `jwt`: values of which the claim `aud` must be or contain one. Empty: it is not checked.
        audience: Vec<String> = ValueKind::List("audiences"), "";
        /// `jwt`: claims with the value that they must be or contain, with placeholders.
        claims: Vec<String> = ValueKind::List("claims such as device=${clientid}"), "";
        /// `jwt`: how much clocks may differ when `exp`, `nbf` and `iat` are checked.
        leeway_secs: u32 = secs(0, 3_600), "30";
        /// `jwt`: refuses tokens without `exp`. With it, a connection ends when its token does.
        expiry_required: bool = ValueKind::Flag, "true";
        /// `http`: the service, as EMQX asks it. It answers 204, or 200 and a JSON object with
        /// `result` (`allow`, `deny` or `ignore`), `is_superuser`, `client_attrs`, `expire_at`.
        /// Path and query may have placeholders.
        url: Option<String> = ValueKind::Text("a URL such as https://id.example/mqtt"), "";
        /// `http`: how it is asked: with the fields as the body, or as the query.
        method: HttpMethod = ValueKind::OneOf(HttpMethod::WORDS), "post";
        /// `http`: headers of each request, with placeholders.
        headers: Vec<String> = ValueKind::List("headers such as Authorization: Bearer x"), "";
        /// `http`: the fields of each request, with placeholders, `${password}` among them. Empty:
        /// `clientid`, `username` and `password`.
        body: Vec<String> = ValueKind::List("fields such as clientid=${clientid}"), "";
        /// `http`: what the body is: JSON, or what a web form sends. Only with `method = "post"`.
        body_form: BodyForm = ValueKind::OneOf(BodyForm::WORDS), "json";
        /// `http`: the longest time of an answer. After 8 failures in a row, from at least 3 client
        /// addresses, the broker stops for 5 s. Then it probes the service each second.
        timeout_secs: u32 = secs(1, 60), "5";
        /// `http`: requests at a time; one address (IPv6: /64) may have a quarter of them. Further
        /// ones wait, as in `auth.queue_max`.
        requests_max: u32 = count(1, 10_000), "64";
        /// `http`: how long an `allow` without `Cache-Control: max-age` is cached. 0: not.
        cache_secs: u32 = secs(0, 86_400), "0";
        /// `registry`: the clients, in the JSON of Event Grid (`docs/use/authentication.md`).
        /// SIGHUP reloads the file.
        registry_file: Option<PathBuf> = ValueKind::Path, "";
        /// `registry`: fields of the certificate that name a client without a username. The first
        /// that the certificate has is used. Empty: such clients go to the next provider.
        name_sources: Vec<String> =
            ValueKind::List("\"subject\", \"dns\", \"uri\", \"ip\" and \"email\""), "";
        /// `jwt`, `http`: authorities that sign the certificate of an `https://` service, PEM. Not
        /// set: those of the system.
        ca: Option<PathBuf> = ValueKind::Path, "";
        /// `jwt`: the claim with access rules of EMQX. Not set: `acl`. A token that has rules in
        /// `acl` is refused when another claim is named here.
        acl_claim_name: Option<String> = ValueKind::Text("a claim such as acl"), "";
        /// `jwt`, `http`: does not carry out access rules of EMQX (`acl`) in a token or an answer.
        /// Without it, rules that are not understood refuse the login.
        acl_ignored: bool = ValueKind::Flag, "false";
    }
}

settings! {
    /// Rights of clients. See `docs/use/authorization.md`.
    "access" => AccessFile {
        /// Rules in the format of the ACL file of mosquitto; patterns may have
        /// `%{attributes.NAME}`. Not set: all clients may do everything. SIGHUP reloads the file.
        acl_file: Option<PathBuf> = ValueKind::Path, "";
        /// Groups of clients, sets of topics, and the rights of groups on sets, in addition to
        /// `acl_file`. SIGHUP reloads the file.
        policy_file: Option<PathBuf> = ValueKind::Path, "";
        /// Accepts subscriptions that could never receive anything under the rules, as mosquitto
        /// does, instead of refusing them with 0x87.
        accept_all_subscriptions: bool = ValueKind::Flag, "false";
        /// The action after a denied PUBLISH or SUBSCRIBE.
        deny_action: DenyAction = ValueKind::OneOf(DenyAction::WORDS), "ignore";
    }
}

settings! {
    /// Shared subscriptions.
    "shared" => Shared {
        /// The group member that gets a message. `random`: any. `round_robin`: one after the other.
        /// `least_in_flight`: that with the fewest unacknowledged messages. `sticky`: the same
        /// while it can take messages. `hash_client`: by the publisher's client ID. `hash_topic`:
        /// by topic, which keeps its order.
        strategy: SharedStrategy = ValueKind::OneOf(SharedStrategy::WORDS), "round_robin";
    }
}

settings! {
    /// HTTP for operators: `/metrics`, `/healthz`, `/readyz`. It has no authentication of its own.
    "http" => Http {
        /// Address and port, or `off`.
        listen: String =
            ValueKind::Text("an address and port such as 127.0.0.1:9883, or \"off\""), "127.0.0.1:9883";
        /// Host names without a port that a proxy passes on, while this and the API listen on
        /// loopback. Other names get 421 (protection against DNS rebinding). Addresses and
        /// `localhost` are always accepted.
        hosts: Vec<String> = ValueKind::List("names such as broker.example"), "";
    }
}

settings! {
    /// The management API, which `quelea ctl` uses: see `docs/use/api.md`. Each request needs a
    /// token or a password, also on the same machine.
    "api" => Api {
        /// `off`; `http`, at the address of `http.listen`; or an address and port of its own.
        listen: String =
            ValueKind::Text("\"off\", \"http\", or an address such as 127.0.0.1:9884"), "off";
        /// File with an admin's token and the address of the API, for `quelea ctl`. Made at the
        /// first start, with mode 0600. Default: `api.token` in `server.data_dir`.
        token_file: Option<PathBuf> = ValueKind::Path, "";
        /// Users of the API with their passwords, as written by `quelea passwd`. The next three
        /// keys and `api_users` of namespaces give them rights.
        password_file: Option<PathBuf> = ValueKind::Path, "";
        /// Users that may see everything; `*`: all users of the file. Once a namespace has
        /// `api_users`, viewers must be named.
        viewers: Vec<String> = ValueKind::List("usernames, or *"), "*";
        /// Users that may also publish, change retained messages and end connections.
        operators: Vec<String> = ValueKind::List("usernames"), "";
        /// Users that may do everything.
        admins: Vec<String> = ValueKind::List("usernames"), "";
        /// Common names of client certificates whose owners are viewers without a token or a
        /// password; `*`: all certificates. This and the next two keys need `client_auth`.
        certificate_viewers: Vec<String> = ValueKind::List("common names, or *"), "";
        /// Common names of client certificates whose owners are operators.
        certificate_operators: Vec<String> = ValueKind::List("common names"), "";
        /// Common names of client certificates whose owners are admins.
        certificate_admins: Vec<String> = ValueKind::List("common names"), "";
        /// Allows an address that other machines can reach without TLS. Tokens and passwords are
        /// then sent in clear text.
        allow_remote: bool = ValueKind::Flag, "false";
    }
}

settings! {
    /// The broker connects to each of its listeners, publishes a message and waits for it. See
    /// `docs/use/operations.md`.
    "self_check" => SelfCheck {
        /// The interval of the checks. `off`: never.
        interval_secs: u32 = secs(1, 3_600).or("off", 0), "off";
        /// After this many failures in a row `/readyz` answers 503, until a check succeeds.
        failures_max: u32 = count(1, 1_000), "3";
    }
}

settings! {
    /// Logs.
    "log" => Log {
        /// The least severe level that is logged.
        level: LogLevel = ValueKind::OneOf(LogLevel::WORDS), "info";
        /// The format of a line.
        format: LogFormat = ValueKind::OneOf(LogFormat::WORDS), "text";
        /// `stderr`, `stdout`, or a file, to which the broker appends. A new file has mode 0600.
        /// logrotate rotates it, and SIGHUP reopens it.
        target: String = ValueKind::Text("stderr, stdout or a path"), "stderr";
        /// The most lines per second of one kind about clients. Further ones are counted, and the
        /// count is logged.
        client_lines_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "100";
    }
}

settings! {
    /// The topics under `$SYS/broker/`.
    "sys" => Sys {
        /// The interval at which they are published. `off`: never.
        interval_secs: u32 = secs(1, 86_400).or("off", 0), "10";
    }
}

settings! {
    /// Life-cycle events of clients, bans, certificates and nodes. The management API streams them
    /// without any setting. See `docs/use/events.md`.
    "events" => Events {
        /// Publishes events below `$SYS/events/`. Needs `access.acl_file` or `access.policy_file`,
        /// because events name clients, users and addresses.
        sys: bool = ValueKind::Flag, "false";
        /// The `source` of each event.
        source: String = ValueKind::Text("a URI reference"), "/quelea";
        /// The most events per second. At most a quarter is about clients of one address. Refused
        /// logins have a tenth in addition. Further events are counted and reported.
        per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "2000";
        /// The most events a second about one client.
        per_client_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "20";
    }
}

const HTTP_TLS: &str = "HTTPS at `http.listen`. SIGHUP reloads the files.";

const API_TLS: &str = "HTTPS at an address of the API's own (`api.listen`). SIGHUP reloads the \
                       files. An API at the address of HTTP uses `[http.tls]`.";

/// What MQTT's four-byte remaining length can say, header included.
const PACKET_BYTES_MAX: u64 = 268_435_455 + 5;
