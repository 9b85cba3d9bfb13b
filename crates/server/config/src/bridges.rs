//! `[[bridges]]`: connections of this broker to others.

use std::path::PathBuf;

use topic::TopicLimits;

use super::keys::Limits;
use super::namespaces::{DEFAULT, Namespace};
use super::schema::{ValueKind, bytes_or, count, secs, settings, words};
use super::source::{Problem, Settings, unknown};
use super::values;

words! {
    /// The protocol that a bridge speaks with the remote.
    BridgeProtocol {
        /// MQTT 3.1.1.
        V311 = "3.1.1",
        /// MQTT 5.
        V5 = "5",
    }
}

words! {
    /// The direction of a topic map.
    BridgeDirection {
        /// From the remote to this broker.
        In = "in",
        /// From this broker to the remote.
        Out = "out",
        /// In both directions.
        Both = "both",
    }
}

settings! {
    /// A bridge: this broker connects to another one (the remote), and relays messages. See
    /// `docs/use/bridges.md`. A restart applies changes.
    "bridges" => RawBridge {
        /// The name of the bridge: letters, digits, `.`, `_` and `-`, at most 64 bytes. The client
        /// ID of its session in this broker is `$bridge/NAME`.
        name: Option<String> = ValueKind::Text("a name"), "";
        /// Addresses of the remote, tried in this order: `tcp://`, `tls://`, `ws://`, `wss://` or
        /// `unix://`, as for listeners. Host names are resolved at each attempt.
        addresses: Vec<String> = ValueKind::List("URLs such as tls://broker.example:8883"), "";
        /// The client ID at the remote. It must be different for each bridge to a remote. Not set:
        /// the name of the bridge.
        client_id: Option<String> = ValueKind::Text("a client ID"), "";
        /// The username at the remote.
        username: Option<String> = ValueKind::Text("a username"), "";
        /// File with the password at the remote, one line. It is read at each attempt.
        password_file: Option<PathBuf> = ValueKind::Path, "";
        /// The MQTT version: `5`, or `3.1.1` for a remote that does not know 5.
        protocol: BridgeProtocol = ValueKind::OneOf(BridgeProtocol::WORDS), "5";
        /// Discards both sessions when the bridge disconnects. Messages of the meantime are then
        /// not relayed.
        clean_session: bool = ValueKind::Flag, "false";
        /// The keep-alive at the remote.
        keep_alive_secs: u16 = secs(5, 65_535), "60";
        /// The namespace of the topics in this broker. Not set: `default`.
        namespace: Option<String> = ValueKind::Text("a name of [[namespaces]]"), "";
        /// The most unacknowledged messages in each direction. An MQTT 5 remote may allow fewer.
        /// Not set: 100 with MQTT 5, 20 with MQTT 3.1.1. More than a 3.1.1 remote accepts are lost
        /// there.
        in_flight_max: Option<u16> = count(1, 65_535), "";
        /// The largest packet that is sent to the remote, with topic and properties. An MQTT 5
        /// remote may allow less. Larger messages are not relayed, and counted.
        packet_bytes_max: u32 = bytes_or("unlimited", u32::MAX as u64), "unlimited";
        /// Announces a bridge to an MQTT 3.1.1 remote, so that it sends no messages back. A remote
        /// that refuses this is connected to without it.
        announce: bool = ValueKind::Flag, "true";
        /// Publishes the retained state of the bridge, `1` or `0`, at both brokers:
        /// `$SYS/broker/connection/CLIENT_ID/state`, as mosquitto does.
        notifications: bool = ValueKind::Flag, "true";
        /// Messages that have crossed so many bridges are dropped (MQTT 5).
        hops_max: u8 = count(1, 100), "8";
    }
}

settings! {
    /// For `tls://` and `wss://` addresses of a bridge. The files are read at each attempt.
    "bridges.tls" => RawBridgeTls {
        /// Authorities that sign the certificate of the remote, PEM. Not set: those of the system.
        ca: Option<PathBuf> = ValueKind::Path, "";
        /// Client certificate with its chain, PEM.
        certificate: Option<PathBuf> = ValueKind::Path, "";
        /// Private key of `certificate`, PEM.
        key: Option<PathBuf> = ValueKind::Path, "";
        /// The name in the certificate of the remote, and in SNI. Not set: the host of the address.
        server_name: Option<String> = ValueKind::Text("a host name"), "";
    }
}

settings! {
    /// Topics that a bridge relays. The first map that matches a topic is used.
    "bridges.topics" => RawBridgeTopic {
        /// A topic filter, behind the prefix of each broker. Empty: the prefixes are the topics.
        filter: Option<String> = ValueKind::Text("a topic filter such as sensors/#"), "";
        /// The direction: `in` (from the remote), `out` (to the remote) or `both`.
        direction: Option<BridgeDirection> = ValueKind::OneOf(BridgeDirection::WORDS), "";
        /// The highest QoS. A message with a lower one keeps its own.
        qos: u8 = count(0, 2), "1";
        /// This broker has the topics below this prefix, which precedes `filter`.
        local_prefix: Option<String> = ValueKind::Text("the beginning of topics"), "";
        /// The remote has the topics below this prefix, which precedes `filter`.
        remote_prefix: Option<String> = ValueKind::Text("the beginning of topics"), "";
    }
}

/// A bridge, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct BridgeConfig {
    pub name: String,
    /// At least one.
    pub addresses: Vec<net::Address>,
    pub client_id: String,
    pub username: Option<String>,
    pub password_file: Option<PathBuf>,
    pub protocol: BridgeProtocol,
    pub clean_session: bool,
    pub keep_alive_secs: u16,
    pub namespace: Option<String>,
    pub in_flight_max: u16,
    /// 0: unlimited.
    pub packet_bytes_max: u32,
    pub is_announced: bool,
    pub has_notifications: bool,
    pub hops_max: u8,
    pub tls: BridgeTls,
    /// At least one.
    pub topics: Vec<BridgeTopic>,
}

/// TLS of a bridge. The files are named, not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeTls {
    pub ca: Option<PathBuf>,
    /// Certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
    pub server_name: Option<String>,
}

/// Topics that a bridge relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeTopic {
    pub filter: String,
    pub direction: BridgeDirection,
    pub qos: u8,
    pub local_prefix: String,
    pub remote_prefix: String,
}

impl BridgeTopic {
    /// The filters in this broker and at the remote.
    pub fn filters(&self) -> [String; 2] {
        [&self.local_prefix, &self.remote_prefix].map(|prefix| format!("{prefix}{}", self.filter))
    }

    fn shares_a_direction(&self, other: &Self) -> bool {
        self.direction == other.direction
            || [self.direction, other.direction].contains(&BridgeDirection::Both)
    }
}

/// Lowers all of them. A contradiction becomes a problem with the place of the key to change.
pub(super) fn lower(
    namespaces: &[Namespace],
    limits: &Limits,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Option<Vec<BridgeConfig>> {
    let mut all: Vec<BridgeConfig> = Vec::new();
    let count = settings.count_of("bridges");
    if count > BRIDGES_MAX {
        let detail = format!("there may be {BRIDGES_MAX} of them, got {count}");
        problems.push(Problem { place: String::new(), key: "bridges".into(), detail });
        return None;
    }
    for index in 0..count {
        let own = format!("bridges.{index}");
        let mut lowering = Lowering { own, limits, settings, problems };
        let bridge = lowering.lower(namespaces)?;
        if all.iter().any(|other| other.name == bridge.name) {
            lowering.problem("name", "another bridge has this name".into());
        }
        all.push(bridge);
    }
    Some(all)
}

struct Lowering<'a> {
    /// `bridges.0`.
    own: String,
    limits: &'a Limits,
    settings: &'a Settings,
    problems: &'a mut Vec<Problem>,
}

impl Lowering<'_> {
    fn lower(&mut self, namespaces: &[Namespace]) -> Option<BridgeConfig> {
        let raw = RawBridge::lower(values(self.settings, RawBridge::SECTION, &self.own))?;
        let name = raw.name.clone().unwrap_or_default();
        if !super::namespaces::is_name(&name) {
            let detail = "must be 1 to 64 letters, digits, `.`, `_` or `-`";
            self.problem("name", detail.into());
        }
        let addresses = self.addresses(&raw.addresses);
        if raw.password_file.is_some() && raw.username.is_none() {
            self.problem("password_file", "needs username".into());
        }
        let own = raw.namespace.as_deref().filter(|own| *own != DEFAULT);
        let names = namespaces.iter().map(|namespace| &*namespace.name);
        if let Some(own) = own.filter(|own| !names.clone().any(|name| name == *own)) {
            self.problem("namespace", unknown("namespaces", own, names));
        }
        let tls = self.tls(&addresses)?;
        let topics = self.topics()?;
        Some(BridgeConfig {
            client_id: raw.client_id.unwrap_or_else(|| name.clone()),
            name,
            addresses,
            username: raw.username,
            password_file: raw.password_file,
            protocol: raw.protocol,
            clean_session: raw.clean_session,
            keep_alive_secs: raw.keep_alive_secs,
            namespace: raw.namespace,
            in_flight_max: raw.in_flight_max.unwrap_or(match raw.protocol {
                BridgeProtocol::V311 => IN_FLIGHT_V311,
                BridgeProtocol::V5 => IN_FLIGHT_V5,
            }),
            packet_bytes_max: raw.packet_bytes_max,
            is_announced: raw.announce,
            has_notifications: raw.notifications,
            hops_max: raw.hops_max,
            tls,
            topics,
        })
    }

    fn addresses(&mut self, texts: &[String]) -> Vec<net::Address> {
        if texts.is_empty() || texts.len() > ADDRESSES_MAX {
            let detail = format!(
                "must have between 1 and {ADDRESSES_MAX} URLs, as in \
                addresses = [\"tls://broker.example:8883\"]"
            );
            self.problem("addresses", detail);
        }
        let mut addresses = Vec::new();
        for text in texts {
            match text.parse() {
                Ok(address) => addresses.push(address),
                Err(error) => self.problem("addresses", format!("{error}")),
            }
        }
        addresses
    }

    fn tls(&mut self, addresses: &[net::Address]) -> Option<BridgeTls> {
        let own = format!("{}.tls", self.own);
        let raw = RawBridgeTls::lower(values(self.settings, RawBridgeTls::SECTION, &own))?;
        if self.settings.has_section(&own) && !addresses.iter().any(net::Address::is_tls) {
            let detail = "no address is tls:// or wss://";
            self.problem("addresses", detail.into());
        }
        let client = match (raw.certificate, raw.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => {
                self.problem("tls.certificate", "needs tls.key".into());
                None
            }
            (None, Some(_)) => {
                self.problem("tls.key", "needs tls.certificate".into());
                None
            }
        };
        Some(BridgeTls { ca: raw.ca, client, server_name: raw.server_name })
    }

    fn topics(&mut self) -> Option<Vec<BridgeTopic>> {
        let list = format!("{}.topics", self.own);
        let count = self.settings.count_of(&list);
        if count == 0 || count > TOPICS_MAX {
            let detail = format!(
                "must have between 1 and {TOPICS_MAX} entries: write [[bridges.topics]] with \
                filter and direction"
            );
            self.problem("topics", detail);
        }
        let mut topics: Vec<BridgeTopic> = Vec::new();
        for index in 0..count.min(TOPICS_MAX) {
            let own = format!("{list}.{index}");
            let raw = RawBridgeTopic::lower(values(self.settings, RawBridgeTopic::SECTION, &own))?;
            let key = |name: &str| format!("topics.{index}.{name}");
            let Some(direction) = raw.direction else {
                self.problem(&key("direction"), "is missing; write in, out or both".into());
                continue;
            };
            let topic = BridgeTopic {
                filter: raw.filter.unwrap_or_default(),
                direction,
                qos: raw.qos,
                local_prefix: raw.local_prefix.unwrap_or_default(),
                remote_prefix: raw.remote_prefix.unwrap_or_default(),
            };
            if let Some(detail) = self.fault(&topic) {
                self.problem(&key("filter"), detail);
            }
            let [local, remote] = topic.filters();
            let is_same = |other: &&BridgeTopic| {
                let [own, far] = other.filters();
                other.shares_a_direction(&topic) && (own == local || far == remote)
            };
            if topics.iter().any(|other| is_same(&other)) {
                let detail = "another map of the bridge has this filter in this direction";
                self.problem(&key("filter"), detail.into());
            }
            topics.push(topic);
        }
        Some(topics)
    }

    /// What is wrong with a topic map.
    fn fault(&self, topic: &BridgeTopic) -> Option<String> {
        for (name, prefix) in
            [("local_prefix", &topic.local_prefix), ("remote_prefix", &topic.remote_prefix)]
        {
            if prefix.contains(['+', '#']) {
                return Some(format!("{name} must not have wildcards, got '{prefix}'"));
            }
        }
        let [local, remote] = topic.filters();
        let own = TopicLimits {
            levels_max: self.limits.topic_levels_max,
            bytes_max: self.limits.topic_bytes_max,
        };
        let any = TopicLimits { levels_max: u16::MAX, bytes_max: u16::MAX };
        for (broker, filter, limits) in [("this broker", local, own), ("the remote", remote, any)] {
            if let Err(error) = topic::check_filter(&filter, &limits) {
                return Some(format!("'{filter}' at {broker}: {error}"));
            }
            if filter.starts_with("$share/") {
                return Some(format!("'{filter}' at {broker}: shared subscriptions are refused"));
            }
        }
        None
    }

    fn problem(&mut self, key: &str, detail: String) {
        let key = format!("{}.{key}", self.own);
        self.problems.push(Problem { place: self.settings.place(&key), key, detail });
    }
}

/// Each has a thread.
const BRIDGES_MAX: usize = 32;

const ADDRESSES_MAX: usize = 16;

/// Each is a subscription.
const TOPICS_MAX: usize = 500;

/// A remote of MQTT 3.1.1 cannot tell how many it accepts. Mosquitto accepts so many by default
/// (`max_inflight_messages`). It acknowledges further ones, drops them, and closes the connection.
const IN_FLIGHT_V311: u16 = 20;
const IN_FLIGHT_V5: u16 = 100;

#[cfg(test)]
mod tests {
    use crate::{BridgeDirection, BridgeProtocol, Machine, SourceFile, Sources, load};

    const MACHINE: Machine = Machine { cores: 2, has_ipv6: true, ..Machine::UNKNOWN };

    const HEAD: &str = "[[bridges]]\nname = \"b\"\naddresses = [\"tcp://one.example\"]\n";
    const MAP: &str = "[[bridges.topics]]\nfilter = \"a/#\"\ndirection = \"out\"\n";

    fn read(text: &str) -> Result<Vec<super::BridgeConfig>, String> {
        let file = SourceFile { path: "/etc/quelea.toml".into(), text: text.into() };
        let loaded = load(&Sources { file: Some(file), ..Sources::default() }, &MACHINE);
        loaded.map(|loaded| loaded.config.bridges).map_err(|error| error.to_string())
    }

    #[test]
    fn a_bridge_is_read_with_its_tls_and_its_topics() {
        let text = "[[bridges]]\nname = \"cloud\"\naddresses = [\"tls://one.example\", \
            \"tcp://two.example:1884\"]\nprotocol = \"3.1.1\"\npacket_bytes_max = \"2KiB\"\n[bridges.tls]\nca = \"ca.pem\"\n\
            [[bridges.topics]]\nfilter = \"#\"\ndirection = \"both\"\nqos = 2\n\
            local_prefix = \"l/\"\nremote_prefix = \"r/\"\n\
            [[bridges.topics]]\nlocal_prefix = \"x\"\nremote_prefix = \"y\"\ndirection = \"in\"\n";
        let bridges = read(&format!("{text}{}", HEAD.to_owned() + MAP)).unwrap();
        let [cloud, second] = &bridges[..] else { panic!("{bridges:?}") };
        assert_eq!((&*cloud.client_id, cloud.protocol), ("cloud", BridgeProtocol::V311));
        assert_eq!((cloud.in_flight_max, second.in_flight_max), (20, 100));
        assert_eq!((cloud.packet_bytes_max, second.packet_bytes_max), (2048, 0));
        assert_eq!(cloud.tls.ca.as_deref(), Some(std::path::Path::new("/etc/ca.pem")));
        assert_eq!(cloud.addresses.len(), 2);
        assert_eq!(cloud.topics[0].filters(), ["l/#", "r/#"]);
        assert_eq!(cloud.topics[1].filters(), ["x", "y"]);
        assert_eq!(cloud.topics[1].direction, BridgeDirection::In);
        assert_eq!(second.topics.len(), 1);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_key() {
        let with = |more: &str| read(&format!("{HEAD}{more}{MAP}")).unwrap_err();
        let topic = |text: &str| read(&format!("{HEAD}[[bridges.topics]]\n{text}")).unwrap_err();
        for (problem, expected) in [
            (read(HEAD).unwrap_err(), "bridges.0.topics: must have between 1 and 500"),
            (with("password_file = \"p\"\n"), "bridges.0.password_file: needs username"),
            (with("namespace = \"x\"\n"), "no [[namespaces]] has the name 'x'"),
            (with("[bridges.tls]\nca = \"c\"\n"), "no address is tls:// or wss://"),
            (with("[bridges.tls]\nkey = \"c\"\n"), "needs tls.certificate"),
            (topic("filter = \"a\"\n"), "bridges.0.topics.0.direction: is missing"),
            (topic("direction = \"in\"\n"), "topic is empty"),
            (topic("filter = \"#\"\ndirection = \"in\"\nlocal_prefix = \"a\"\n"), "'a#' at this"),
            (topic("filter = \"b\"\ndirection = \"in\"\nlocal_prefix = \"+/\"\n"), "wildcards"),
            (topic("filter = \"$share/g/b\"\ndirection = \"in\"\n"), "shared subscriptions"),
            (read(&format!("{HEAD}{MAP}{MAP}")).unwrap_err(), "another map of the bridge"),
            (read(&format!("{HEAD}{MAP}{HEAD}{MAP}")).unwrap_err(), "another bridge has"),
            (with("qos = 3\n"), "did you mean"),
        ] {
            assert!(problem.contains(expected), "{expected} not in {problem}");
        }
        let scheme = format!("{HEAD}{MAP}").replace("tcp:", "quic:");
        assert!(read(&scheme).unwrap_err().contains("unknown scheme"));
    }
}
