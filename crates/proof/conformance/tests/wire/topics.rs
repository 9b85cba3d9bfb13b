//! Topic names and filters: what matches what.

use conformance::{Peer, Publish, Version, fresh, proves};

/// Subscribes to a filter below a fresh prefix, publishes to every topic, and returns those that
/// arrived, in order.
fn arrivals(version: Version, filter: &str, topics: &[&str]) -> Vec<String> {
    let base = fresh("match");
    let mut peer = Peer::connect(version);
    assert_eq!(peer.subscribe(format!("{base}/{filter}"), 0), 0);
    let fence = fresh("fence");
    peer.subscribe(&fence, 0);
    for topic in topics {
        peer.publish(Publish::new(format!("{base}/{topic}"), "x"));
    }
    peer.publish(Publish::new(&fence, "x"));
    let mut arrived = Vec::new();
    loop {
        let topic = peer.take().topic;
        match topic.strip_prefix(&format!("{base}/")) {
            Some(rest) => arrived.push(rest.to_owned()),
            None => return arrived,
        }
    }
}

fn wildcards_match_as_defined(version: Version) {
    let topics = ["a", "a/b", "a/b/c", "b/b", "", "/", "a/", "/b", "a//c"];
    let expected: [(&str, &[&str]); 11] = [
        ("#", &topics),
        ("a/#", &["a", "a/b", "a/b/c", "a/", "a//c"]),
        ("a/b/#", &["a/b", "a/b/c"]),
        ("+", &["a", ""]),
        ("+/+", &["a/b", "b/b", "/", "a/", "/b"]),
        ("a/+", &["a/b", "a/"]),
        ("+/b", &["a/b", "b/b", "/b"]),
        ("a/+/c", &["a/b/c", "a//c"]),
        ("+/b/#", &["a/b", "a/b/c", "b/b", "/b"]),
        ("/+", &["/", "/b"]),
        ("a", &["a"]),
    ];
    for (filter, matching) in expected {
        assert_eq!(arrivals(version, filter, &topics), matching, "filter {filter}");
    }
}
proves!(wildcards_match_as_defined:
    V5 [mqtt_4_7_1_1 mqtt_4_7_1_2] V311 [mqtt311_4_7_1_2 mqtt311_4_7_1_3] V31 [mqtt31]);

fn names_are_compared_without_normalisation(version: Version) {
    let topics = ["Case", "case", "e\u{301}", "\u{e9}", "a b", " a b", "a%20b", "a\u{200b}"];
    for filter in topics {
        assert_eq!(arrivals(version, filter, &topics), [filter]);
    }
    let slashes = ["x", "x/", "/x", "//x", "x//"];
    for filter in slashes {
        assert_eq!(arrivals(version, filter, &slashes), [filter]);
    }
}
proves!(names_are_compared_without_normalisation: V5 [mqtt_4_7_3_4] V311 [mqtt311_4_7_3_4]);

fn leading_wildcards_do_not_match_dollar_topics(version: Version) {
    let name = fresh("dollar").replace('/', "-");
    let topic = format!("$hidden/{name}");
    let plain = format!("shown/{name}");
    let mut peer = Peer::connect(version);
    peer.subscribe(format!("+/{name}"), 0);
    peer.subscribe(format!("+/{name}/#"), 0);
    let mut publisher = Peer::connect(version);
    publisher.send(Publish::new(&topic, "hidden").encoded(version));
    publisher.ping();
    publisher.publish(Publish::new(&plain, "shown"));
    let message = peer.take();
    assert_eq!((message.topic, &message.payload[..]), (plain, &b"shown"[..]));
}
proves!(leading_wildcards_do_not_match_dollar_topics:
    V5 [mqtt_4_7_2_1] V311 [mqtt311_4_7_2_1]);

/// Without MQTT 5 there is no upper bound that a client is told; every length must work.
fn names_may_be_65535_bytes_long(version: Version) {
    let base = fresh("long");
    for bytes in [1_000, 65_535] {
        let topic = format!("{base}/{}", "x".repeat(bytes - base.len() - 1));
        let mut peer = Peer::connect(version);
        assert_eq!(peer.subscribe(&topic, 0), 0);
        peer.publish(Publish::new(&topic, "x"));
        assert_eq!(peer.take().topic, topic);
    }
}
proves!(names_may_be_65535_bytes_long: V5 [mqtt_4_7_3_3] V311 [mqtt311_4_7_3_3]);
