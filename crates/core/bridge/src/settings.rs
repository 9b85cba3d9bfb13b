//! What a bridge relays: its topic maps, and the limits of this broker.

use codec::{QoS, Version};
use topic::TopicLimits;

/// What a bridge is configured to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// 3.1.1 or 5.
    pub version: Version,
    /// Both sessions begin empty with each connection, and end with it.
    pub clean_session: bool,
    /// 0: none.
    pub keep_alive_secs: u16,
    /// Announces a bridge to a remote of MQTT 3.1.1.
    pub is_announced: bool,
    /// In order: the first map that matches a topic maps it.
    pub maps: Vec<TopicMap>,
    /// The most messages in flight, in each direction.
    pub in_flight_max: u16,
    /// A message that has crossed so many bridges is dropped (MQTT 5).
    pub hops_max: u8,
    /// The largest packet that this broker accepts.
    pub packet_bytes_max: u32,
    /// The largest packet that is sent to the remote, which may accept less.
    pub remote_packet_bytes_max: u32,
    /// Limits of topics in this broker.
    pub topic: TopicLimits,
}

/// Topics that a bridge relays. As with mosquitto, the filter stands behind a prefix at each side,
/// and the prefixes are exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMap {
    /// May be empty: then the prefixes are topics.
    pub filter: String,
    pub direction: Direction,
    /// The highest QoS of the subscription.
    pub qos: QoS,
    pub local_prefix: String,
    pub remote_prefix: String,
}

/// Which way messages are relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the remote.
    In,
    /// To the remote.
    Out,
    Both,
}

impl Direction {
    pub const fn has_in(self) -> bool {
        matches!(self, Self::In | Self::Both)
    }

    pub const fn has_out(self) -> bool {
        matches!(self, Self::Out | Self::Both)
    }
}

impl TopicMap {
    /// The filter of the subscription in this broker.
    pub fn local_filter(&self) -> String {
        format!("{}{}", self.local_prefix, self.filter)
    }

    /// The filter of the subscription at the remote.
    pub fn remote_filter(&self) -> String {
        format!("{}{}", self.remote_prefix, self.filter)
    }
}

impl Settings {
    /// Does any map relay to the remote?
    pub(crate) fn has_out(&self) -> bool {
        self.maps.iter().any(|map| map.direction.has_out())
    }

    /// Does any map relay from the remote?
    pub(crate) fn has_in(&self) -> bool {
        self.maps.iter().any(|map| map.direction.has_in())
    }
}

/// The topic maps, ready to be asked.
#[derive(Debug)]
pub(crate) struct Ways {
    /// From this broker to the remote.
    out: Vec<Way>,
    /// From the remote to this broker.
    into: Vec<Way>,
}

#[derive(Debug)]
struct Way {
    filter: String,
    from: String,
    to: String,
}

impl Ways {
    pub(crate) fn of(maps: &[TopicMap]) -> Self {
        let way =
            |filter, from: &String, to: &String| Way { filter, from: from.clone(), to: to.clone() };
        let out = maps.iter().filter(|map| map.direction.has_out());
        let into = maps.iter().filter(|map| map.direction.has_in());
        Self {
            out: out
                .map(|map| way(map.local_filter(), &map.local_prefix, &map.remote_prefix))
                .collect(),
            into: into
                .map(|map| way(map.remote_filter(), &map.remote_prefix, &map.local_prefix))
                .collect(),
        }
    }

    /// The topic at the remote of a message of this broker; None: no map matches.
    pub(crate) fn topic_out(&self, topic: &str) -> Option<String> {
        exchange(&self.out, topic)
    }

    /// The topic in this broker of a message of the remote; None: no map matches.
    pub(crate) fn topic_in(&self, topic: &str) -> Option<String> {
        exchange(&self.into, topic)
    }
}

/// Does `wide` match every topic that `narrow` matches?
pub(crate) fn covers(wide: &str, narrow: &str) -> bool {
    if narrow.starts_with('$') && wide.starts_with(['+', '#']) {
        return false;
    }
    let mut inner = narrow.split('/');
    for level in wide.split('/') {
        match (level, inner.next()) {
            ("#", _) => return true,
            ("+", Some(other)) if other != "#" => {}
            (level, Some(other)) if level == other => {}
            _ => return false,
        }
    }
    inner.next().is_none()
}

/// The first way whose filter matches the topic exchanges the prefix.
fn exchange(ways: &[Way], topic: &str) -> Option<String> {
    let way = ways.iter().find(|way| topic::matches(&way.filter, topic))?;
    Some(format!("{}{}", way.to, topic.strip_prefix(way.from.as_str())?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn map(line: &str) -> TopicMap {
        let words: Vec<&str> = line.split(' ').collect();
        let [filter, direction, qos, local, remote] = words[..] else { panic!("{line}") };
        TopicMap {
            filter: filter.into(),
            direction: match direction {
                "in" => Direction::In,
                "out" => Direction::Out,
                _ => Direction::Both,
            },
            qos: QoS::from_bits(qos.parse().unwrap()).unwrap(),
            local_prefix: local.into(),
            remote_prefix: remote.into(),
        }
    }

    pub(crate) fn settings(version: Version, lines: &[&str]) -> Settings {
        Settings {
            version,
            clean_session: false,
            keep_alive_secs: 60,
            is_announced: true,
            maps: lines.iter().map(|line| map(line)).collect(),
            in_flight_max: 10,
            hops_max: 4,
            packet_bytes_max: 1_000,
            remote_packet_bytes_max: u32::MAX,
            topic: TopicLimits { levels_max: 8, bytes_max: 100 },
        }
    }

    #[test]
    fn prefixes_are_exchanged_as_mosquitto_does() {
        let maps = Ways::of(
            &["# both 1 here/ there/", "+/temp out 1  a/", " out 1 one two", "x/# in 1  "].map(map),
        );
        assert_eq!(maps.topic_out("here/a/b").as_deref(), Some("there/a/b"));
        assert_eq!(maps.topic_in("there/a/b").as_deref(), Some("here/a/b"));
        assert_eq!(maps.topic_out("hall/temp").as_deref(), Some("a/hall/temp"));
        assert_eq!(maps.topic_out("one").as_deref(), Some("two"));
        assert_eq!(maps.topic_out("one/more"), None);
        assert_eq!(maps.topic_in("x/y").as_deref(), Some("x/y"));
        assert_eq!(maps.topic_out("x/y"), None);
        assert_eq!(maps.topic_in("two"), None);
    }

    #[test]
    fn a_filter_covers_what_it_matches_in_any_case() {
        for (wide, narrow) in [
            ("#", "a/b"),
            ("a/#", "a"),
            ("a/#", "a/+/c"),
            ("a/+", "a/b"),
            ("+/#", "a/#"),
            ("a", "a"),
        ] {
            assert!(covers(wide, narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [
            ("a/+", "a/#"),
            ("+", "a/b"),
            ("a/b", "a/+"),
            ("#", "$SYS/#"),
            ("a/b", "a"),
            ("+/b", "a/+"),
            ("a", "a/b"),
        ] {
            assert!(!covers(wide, narrow), "{wide} {narrow}");
        }
    }

    #[test]
    fn the_first_of_overlapping_maps_maps_a_topic() {
        let maps = Ways::of(&["a/# out 1  x/", "# out 1  y/"].map(map));
        assert_eq!(maps.topic_out("a/b").as_deref(), Some("x/a/b"));
        assert_eq!(maps.topic_out("b").as_deref(), Some("y/b"));
    }
}
