//! Every key of the configuration, section by section, with its default and its reason.

use std::path::PathBuf;

use super::schema::{
    Kind, Section, bytes, bytes_or, count, count_or, secs, secs_or, settings, words,
};

/// All sections, in the order in which they are documented.
pub const SECTIONS: &[Section] = &[
    Server::SECTION,
    RawListener::SECTION,
    RawTls::SECTION,
    RawWebSocket::SECTION,
    Limits::SECTION,
    Durability::SECTION,
    Auth::SECTION,
    AccessFile::SECTION,
    Shared::SECTION,
    Http::SECTION,
    Log::SECTION,
    Sys::SECTION,
];

/// What a time limit of `never` means: the largest value MQTT can say.
pub const NEVER: u32 = u32::MAX;

words! {
    /// What happens to a message for a session whose queue is full.
    QueueOverflow {
        /// The oldest queued message makes room.
        DropOldest = "drop_oldest",
        /// The new message is not queued.
        DropNewest = "drop_newest",
        /// The new message is not queued, and its publisher is told (0x97) where MQTT 5 allows it.
        Reject = "reject",
        /// The session's connection is closed (0x97); its queue is kept.
        Disconnect = "disconnect",
    }
}

words! {
    /// How firmly something is kept before it is acknowledged.
    DurabilityLevel {
        /// In memory: the end of the process loses it.
        Memory = "memory",
        /// Handed to the operating system: survives the end of the process, not a loss of power.
        Disk = "disk",
        /// On the medium: survives a loss of power.
        Fsync = "fsync",
    }
}

words! {
    /// What happens to messages that must be kept while there is no space for them.
    WhenFull {
        /// Their publishers are told (0x97), or cut off where MQTT 3 has no word for it.
        Refuse = "refuse",
        /// Their publishers are not read until there is space.
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
        /// By the publisher's client id.
        HashClient = "hash_client",
        /// By the topic: keeps the order per topic.
        HashTopic = "hash_topic",
    }
}

words! {
    /// Whose a session is.
    SessionOwner {
        /// Of the user who opened it. Clients without a user name are one user.
        User = "user",
        /// Of everybody who knows its client id.
        Anybody = "anybody",
    }
}

words! {
    /// Whether clients must show a certificate.
    ClientAuth {
        /// They are not asked for one.
        None = "none",
        /// A certificate is checked when there is one.
        Optional = "optional",
        /// The handshake fails without a valid one.
        Require = "require",
    }
}

words! {
    /// What of a client's certificate becomes its user name.
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
    /// The oldest TLS version that is spoken.
    TlsVersion {
        /// TLS 1.2.
        V12 = "1.2",
        /// TLS 1.3.
        V13 = "1.3",
    }
}

words! {
    /// How much is logged.
    LogLevel {
        /// Faults that need an operator.
        Error = "error",
        /// What an operator should look at.
        Warn = "warn",
        /// Start, stop, reload and protocol violations.
        Info = "info",
        /// Also each connection.
        Debug = "debug",
        /// Also each packet.
        Trace = "trace",
    }
}

words! {
    /// The shape of a log line.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

settings! {
    /// The process: threads, data, stopping.
    "server" => Server {
        /// Worker threads that own connections and state. `auto`: one per core.
        workers: u16 = count_or("auto", 64), "auto";
        /// Shards of state, fixed when the data directory is made. `auto`: the larger of 4 and the
        /// number of cores.
        shards: u16 = count_or("auto", 64), "auto";
        /// Door threads, which do handshakes and admit connections. `auto`: a quarter of the cores,
        /// at least one.
        door_threads: u16 = count_or("auto", 64), "auto";
        /// Ties each worker to one core. Helps when the machine is the broker's alone.
        pin_workers: bool = Kind::Flag, "false";
        /// Where state is kept. One process at a time can use it. Not touched where nothing is
        /// kept: see `[durability]`.
        data_dir: PathBuf = Kind::Path, "quelea-data";
        /// How long a shutdown may take: clients are told (0x8B for MQTT 5), what is queued in
        /// sockets is sent, and the logs are closed in order; then the process ends.
        shutdown_grace_secs: u32 = secs(0, 3_600), "10";
    }
}

settings! {
    /// Where clients connect. Without any `[[listeners]]`, the broker listens on port 1883 of the
    /// loopback addresses only. A limit set here replaces the one in `[limits]` for this listener.
    "listeners" => RawListener {
        /// Scheme, address and port: `tcp://` (or `mqtt://`), `tls://` (or `mqtts://`), `ws://`,
        /// `wss://`, or `unix:///path/to/socket`. `*` as the address means all addresses. Without a
        /// port: 1883, 8883, 80, 443.
        url: Option<String> = Kind::Text("a URL such as tcp://127.0.0.1:1883"), "";
        /// How logs and metrics call it. Default: its URL.
        name: Option<String> = Kind::Text("a name"), "";
        /// Admits clients that show neither user name nor certificate. Not set:
        /// `auth.allow_anonymous` decides, and without that only loopback and Unix listeners admit
        /// them, and only if no authentication is configured.
        allow_anonymous: Option<bool> = Kind::Flag, "";
        /// Expects a PROXY protocol header (v1 or v2) before anything else. Needs
        /// `trusted_proxies`.
        proxy_protocol: bool = Kind::Flag, "false";
        /// From which addresses a PROXY header is believed; connections from elsewhere are closed,
        /// with a header or without. Direct clients need a listener of their own.
        trusted_proxies: Vec<String> = Kind::List("networks such as 10.0.0.0/8"), "";
        /// What of a client's certificate becomes its user name. Needs `tls.client_auth`.
        identity_from_certificate: CertificateIdentity =
            Kind::OneOf(CertificateIdentity::WORDS), "none";
        /// Connections of this listener at a time. More are closed before the handshake.
        connections_max: Option<u32> = count_or("unlimited", u32::MAX as u64), "";
        /// New connections per second of this listener. More wait in the system's queue.
        connections_per_second_max: Option<u32> = count_or("unlimited", u32::MAX as u64), "";
        /// How firmly what comes through this listener is kept: instead of `durability.level`.
        durability: Option<DurabilityLevel> = Kind::OneOf(DurabilityLevel::WORDS), "";
        /// As in `[limits]`.
        packet_bytes_max: Option<u32> = bytes(20, PACKET_BYTES_MAX), "";
        /// As in `[limits]`.
        keep_alive_max_secs: Option<u16> = secs_or("unlimited", 0, 65_535), "";
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
    /// For `tls://` and `wss://` listeners. The files are read again on SIGHUP.
    "listeners.tls" => RawTls {
        /// The server's certificate, then those of its issuers up to one that clients trust, PEM.
        certificate: Option<PathBuf> = Kind::Path, "";
        /// More certificates of issuers, PEM, in any order: those that `certificate` lacks are
        /// taken from here, and from `client_ca`. For what mosquitto calls `cafile`.
        chain: Option<PathBuf> = Kind::Path, "";
        /// The private key of the certificate, PEM (PKCS#8, PKCS#1 or SEC1).
        key: Option<PathBuf> = Kind::Path, "";
        /// The certificate authorities that sign client certificates, PEM.
        client_ca: Option<PathBuf> = Kind::Path, "";
        /// Whether clients must show a certificate.
        client_auth: ClientAuth = Kind::OneOf(ClientAuth::WORDS), "none";
        /// Revoked client certificates, PEM.
        crl: Option<PathBuf> = Kind::Path, "";
        /// The oldest TLS version that is spoken.
        min_version: TlsVersion = Kind::OneOf(TlsVersion::WORDS), "1.2";
    }
}

settings! {
    /// For `ws://` and `wss://` listeners.
    "listeners.websocket" => RawWebSocket {
        /// The only path that is upgraded. Not set: any path.
        path: Option<String> = Kind::Text("a path such as /mqtt"), "";
        /// The web pages whose scripts may connect, or "*" for all. Empty: all where every client
        /// has to show a password, else those of the same host and port; on a loopback listener
        /// only if the page calls that host `localhost` or by its address. Clients that send no
        /// Origin header, which is all but browsers, are not affected.
        origins: Vec<String> = Kind::List("origins such as https://example.org"), "";
    }
}

settings! {
    /// Named limits. What happens at each is said with it; each drop is counted by reason.
    "limits" => Limits {
        /// Connections in all. More are answered with 0x89 (server busy) and closed.
        connections_max: u32 = count_or("unlimited", u32::MAX as u64), "1000000";
        /// New connections per second in all. More wait in the system's queue.
        connections_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "unlimited";
        /// How long a client may take from the first byte of its connection (TLS and WebSocket
        /// handshake included) to a complete CONNECT. Then it is closed.
        connect_timeout_secs: u32 = secs(1, 3_600), "10";
        /// The largest CONNECT accepted, and the largest AUTH before the CONNACK. A larger one ends
        /// the connection as soon as its header is seen.
        connect_bytes_max: u32 = bytes(1 << 10, PACKET_BYTES_MAX), "128KiB";
        /// Bytes held for connections that are not admitted yet, in all. A CONNECT that is not
        /// complete asks for its whole length before it is waited for, and gets from the first half
        /// only; who waits for the check of a password asks, too. More are answered with 0x89
        /// (server busy). Above half of it who has dawdled for a quarter of
        /// `connect_timeout_secs` is closed. `auto`: a sixteenth of `memory_bytes_max`.
        arrivals_bytes_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The same for each address (of IPv6, each /64). More are answered with 0x97 (quota
        /// exceeded). `auto`: a quarter of `arrivals_bytes_max`.
        arrivals_bytes_per_address_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// The largest packet accepted, told to MQTT 5 clients. A larger one ends the connection
        /// with 0x95 as soon as its header is seen.
        packet_bytes_max: u32 = bytes(20, PACKET_BYTES_MAX), "16MiB";
        /// The longest topic name or filter. A longer one is refused with 0x90 or 0x8F.
        topic_bytes_max: u16 = bytes(1, 65_535), "65535";
        /// Levels of a topic name or filter, so that matching costs a bounded time. More are
        /// refused with 0x90 or 0x8F.
        topic_levels_max: u16 = count(1, 65_535), "128";
        /// The longest client id. A longer one is refused with 0x85.
        client_id_bytes_max: u16 = bytes(23, 65_535), "65535";
        /// The longest client id of an MQTT 3.1 client, in characters. Its specification says 23,
        /// but devices in the field have longer ones and other brokers take them; 23 refuses them
        /// with code 2.
        client_id_v31_chars_max: u16 = count(1, 65_535), "65535";
        /// The longest user name. A longer one is refused with 0x86.
        username_bytes_max: u16 = bytes(1, 65_535), "1KiB";
        /// The longest password, or token in its place. A longer one is refused with 0x86.
        password_bytes_max: u16 = bytes(1, 65_535), "16KiB";
        /// Subscriptions of one client; more are refused with 0x97. A few hundred bytes each: the
        /// default bounds a client to a few MiB, and is far above what bridges and back-ends use.
        subscriptions_per_client_max: u32 = count(1, 10_000_000), "10000";
        /// Unacknowledged messages to one client, together with its own Receive Maximum. The rest
        /// waits in its queue. 1000 fill a path of 10 ms at 100,000 messages a second, and cost
        /// memory only while in use.
        in_flight_max: u16 = count(1, 65_535), "1000";
        /// Unacknowledged QoS 1 and 2 messages from one client, told to MQTT 5 clients as Receive
        /// Maximum. More end the connection with 0x93.
        receive_max: u16 = count(1, 65_535), "1000";
        /// Topic aliases a client may define, told to MQTT 5 clients; also how many the broker
        /// defines towards a client at most.
        topic_alias_max: u16 = count(0, 65_535), "32";
        /// Messages queued for one session. At the limit `queue_overflow` decides.
        queued_messages_max: u32 = count(1, u32::MAX as u64), "100000";
        /// Bytes queued for one session. At the limit `queue_overflow` decides.
        queued_bytes_max: u64 = bytes(1, u64::MAX / 2), "256MiB";
        /// What a full queue does with the next message. The newest state is worth most in
        /// telemetry, hence the default; choose `reject` where a publisher must know.
        queue_overflow: QueueOverflow = Kind::OneOf(QueueOverflow::WORDS), "drop_oldest";
        /// Queues QoS 0 messages for sessions that are offline, too.
        queue_qos0_offline: bool = Kind::Flag, "false";
        /// Bytes waiting in a connection for a slow socket. Above it QoS 0 messages to this client
        /// are dropped and QoS 1 and 2 messages wait in its queue. One packet is always taken.
        outbox_bytes_max: u32 = bytes(1 << 10, 1 << 30), "1MiB";
        /// Retained messages. More are refused with 0x97.
        retained_messages_max: u32 = count(0, u32::MAX as u64), "1000000";
        /// Bytes of retained messages. More are refused with 0x97.
        retained_bytes_max: u64 = bytes(0, u64::MAX / 2), "1GiB";
        /// Memory that the process holds: what is allocated, not what the system still counts as
        /// resident. Near it new connections are refused with 0x89 and messages with 0x97, and so
        /// they are if what is resident exceeds it by an eighth. `auto`: 80 % of what the machine
        /// or its cgroup has.
        memory_bytes_max: u64 = bytes_or("auto", u64::MAX / 2), "auto";
        /// Messages per second from one connection. Above it the connection is read more slowly.
        messages_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "unlimited";
        /// How many messages may come at once. `auto`: those of one second.
        messages_burst: u32 = count_or("auto", u32::MAX as u64), "auto";
        /// Bytes per second from one connection. Above it the connection is read more slowly.
        bytes_per_second_max: u64 = bytes_or("unlimited", u32::MAX as u64), "unlimited";
        /// How many bytes may come at once. `auto`: those of one second.
        bytes_burst: u64 = bytes_or("auto", u32::MAX as u64), "auto";
        /// The longest a session outlives its connection, told to MQTT 5 clients that ask for more.
        /// A session that goes loses what it was promised, so nothing goes unless you say so.
        session_expiry_max_secs: u32 = secs_or("never", NEVER as u64, NEVER as u64), "never";
        /// How long the session of a 3.1 or 3.1.1 client with clean session 0 outlives its
        /// connection. The standard says forever.
        session_expiry_v3_secs: u32 = secs_or("never", NEVER as u64, NEVER as u64), "never";
        /// The longest a message may wait. `never`: as its publisher says.
        message_expiry_max_secs: u32 = secs_or("never", NEVER as u64, NEVER as u64), "never";
        /// The longest keep alive. MQTT 5 clients that ask for more, or for none, are told this
        /// one.
        keep_alive_max_secs: u16 = secs_or("unlimited", 0, 65_535), "unlimited";
        /// The keep alive that MQTT 5 clients that ask for none are told. `off`: none.
        keep_alive_default_secs: u16 = secs_or("off", 0, 65_535), "off";
        /// The longest delay of a will. A longer one is shortened.
        will_delay_max_secs: u32 = secs_or("never", NEVER as u64, NEVER as u64), "never";
        /// The largest will payload. A CONNECT with a larger one is refused with 0x95.
        will_payload_bytes_max: u16 = bytes(0, 65_535), "65535";
        /// The highest QoS of messages from clients, told to MQTT 5 clients. A higher one ends the
        /// connection with 0x9B.
        qos_max: u8 = count(0, 2), "2";
        /// Retained messages are allowed. If not, one ends the connection with 0x9A.
        retain_available: bool = Kind::Flag, "true";
        /// Subscriptions with wildcards are allowed. If not, they are refused with 0xA2.
        wildcard_available: bool = Kind::Flag, "true";
        /// Shared subscriptions are allowed. If not, they are refused with 0x9E.
        shared_available: bool = Kind::Flag, "true";
        /// Subscription identifiers are allowed. If not, they are refused with 0xA1.
        subscription_ids_available: bool = Kind::Flag, "true";
    }
}

settings! {
    /// How firmly persistent sessions and their messages are kept. `docs/durability.md` says what
    /// each level promises. Where nothing asks for more than `memory`, no directory is touched.
    "durability" => Durability {
        /// What an acknowledgement waits for: `memory` for nothing, `disk` until the operating
        /// system has it, `fsync` until it is on the medium. QoS 0 and sessions that end with their
        /// connection are never kept.
        level: DurabilityLevel = Kind::OneOf(DurabilityLevel::WORDS), "fsync";
        /// Topics whose messages have a level of their own, whatever their listener says:
        /// `FILTER=LEVEL`. The first that matches holds.
        topics: Vec<String> = Kind::List("rules such as sensors/#=disk"), "";
        /// What happens to messages that must be kept while there is no space for them.
        when_full: WhenFull = Kind::OneOf(WhenFull::WORDS), "refuse";
        /// Size of a log file. Each shard has one from its first start on, and about three once it
        /// is busy. A record takes at most half of it, hence `auto`: twice the largest
        /// `packet_bytes_max` and a little, at least 16 MiB. For small devices, lower that limit.
        segment_bytes: u32 = bytes_or("auto", 1 << 30), "auto";
        /// Bytes of all logs; each shard has an equal share. Reaching it is as if the disk were
        /// full.
        log_bytes_max: u64 = bytes_or("unlimited", u64::MAX / 2), "unlimited";
        /// Space is reclaimed once a log uses more than this many per cent of what is needed of
        /// it, and two segments on top. Less means less space and more copying.
        space_percent: u32 = count(110, 1_000), "200";
        /// Bytes that reclaiming may read for each 100 bytes appended.
        reclaim_percent: u32 = count(150, 10_000), "200";
        /// Bytes per second that reclaiming may read in each log, however little is appended.
        reclaim_bytes_per_sec: u32 = bytes(1 << 10, u32::MAX as u64), "8MiB";
    }
}

settings! {
    /// Who is who. See `docs/security.md`.
    "auth" => Auth {
        /// User names and passwords, as `quelea passwd` or `mosquitto_passwd` writes them. Read
        /// again on SIGHUP.
        password_file: Option<PathBuf> = Kind::Path, "";
        /// Admits clients that show neither user name nor certificate, on every listener that does
        /// not say otherwise. Not set: see `listeners.allow_anonymous`.
        allow_anonymous: Option<bool> = Kind::Flag, "";
        /// Who may resume a session, end it by a clean start or take its connection over: the
        /// `user` who opened it (others are refused with 0x87), or `anybody` who knows its client
        /// id. Where nothing proves user names, it is always anybody.
        session_owner: SessionOwner = Kind::OneOf(SessionOwner::WORDS), "user";
        /// Offers SCRAM-SHA-256 (MQTT 5 enhanced authentication) to users of the password file that
        /// have SCRAM credentials.
        scram: bool = Kind::Flag, "true";
        /// Threads that check passwords. One check takes tens of milliseconds of one core.
        threads: u16 = count(1, 64), "2";
        /// Checks that may wait. Addresses take turns. Above it the address that has the most is
        /// answered with 0x89 (server busy).
        queue_max: u32 = count(1, 10_000_000), "10000";
        /// Wrong log-ins per second that are checked for one address (of IPv6, one /64); 64 may
        /// come at once. More wait, users in turn, or are answered with 0x89. Right ones do not
        /// count. For a proxy that does not say who is behind it, set `unlimited`.
        failures_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "5";
        /// Successful checks that are remembered, so that a storm of reconnects is not a storm of
        /// password hashing. 0: none.
        cache_entries_max: u32 = count(0, 10_000_000), "100000";
        /// How long a successful check is remembered.
        cache_secs: u32 = secs(1, 604_800), "1h";
    }
}

settings! {
    /// Who may do what. See `docs/security.md`.
    "access" => AccessFile {
        /// Rules in the format of mosquitto's ACL file. Not set: everybody may do everything. Read
        /// again on SIGHUP.
        acl_file: Option<PathBuf> = Kind::Path, "";
        /// Accepts subscriptions that the rules let receive nothing, as mosquitto does, instead of
        /// refusing them with 0x87.
        accept_all_subscriptions: bool = Kind::Flag, "false";
    }
}

settings! {
    /// Shared subscriptions.
    "shared" => Shared {
        /// Which member of a group gets a message.
        strategy: SharedStrategy = Kind::OneOf(SharedStrategy::WORDS), "round_robin";
    }
}

settings! {
    /// HTTP for operators: `/metrics`, `/healthz`, `/readyz`. It has no authentication of its own.
    "http" => Http {
        /// Address and port, or `off`. 9883 goes with 1883 and 8883 and is used by no common broker
        /// or exporter.
        listen: String =
            Kind::Text("an address and port such as 127.0.0.1:9883, or \"off\""), "127.0.0.1:9883";
    }
}

settings! {
    /// Logs.
    "log" => Log {
        /// How much is logged.
        level: LogLevel = Kind::OneOf(LogLevel::WORDS), "info";
        /// The shape of a line.
        format: LogFormat = Kind::OneOf(LogFormat::WORDS), "text";
        /// Where to: `stderr`, `stdout`, or a file, which is appended to. One that is made is for
        /// the user of the broker only (mode 0600).
        target: String = Kind::Text("stderr, stdout or a path"), "stderr";
        /// Size of a log file. A full one is renamed to end in `.1`, the one before to end in `.2`,
        /// and so on.
        file_bytes_max: u64 = bytes_or("unlimited", u64::MAX / 2), "16MiB";
        /// Full log files that are kept. The oldest goes when there is one more.
        files_kept: u16 = count(0, 1_000), "4";
        /// Lines per second of one kind about clients: connected, disconnected, refused, denied and
        /// so on. More are counted, and told as one line.
        client_lines_per_second_max: u32 = count_or("unlimited", u32::MAX as u64), "100";
    }
}

settings! {
    /// The topics under `$SYS/broker/`.
    "sys" => Sys {
        /// How often they are published. `off`: never.
        interval_secs: u32 = secs_or("off", 0, 86_400), "10";
    }
}

/// What MQTT's four-byte remaining length can say, header included.
const PACKET_BYTES_MAX: u64 = 268_435_455 + 5;
