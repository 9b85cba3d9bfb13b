//! A relay between brokers that are packets.

use codec::{
    Ack, AckKind, Connack, Packet, Properties, Property, PropertyBuf, Publish, QoS, Reason, Sender,
    Suback, Version,
};

use super::messages::NOT_RELAYED;
use super::*;
use crate::HOPS_PROPERTY;
use crate::settings::tests::settings;

/// A relay whose brokers have answered with these CONNACKs.
fn opened(settings: Settings, local_present: bool, remote: &Connack<'_>) -> Relay {
    let version = settings.version;
    let mut relay = Relay::new(Arc::new(settings), &Login::default(), 0);
    take(&mut relay, Side::Remote);
    give(&mut relay, Side::Remote, version, &Packet::Connack(*remote)).unwrap();
    let local = connack(local_present, Properties::EMPTY);
    give(&mut relay, Side::Local, Version::V5, &Packet::Connack(local)).unwrap();
    relay
}

fn connack(session_present: bool, properties: Properties<'_>) -> Connack<'_> {
    Connack { session_present, reason: Reason::SUCCESS, properties }
}

fn up(version: Version, lines: &[&str], properties: Properties<'_>) -> Relay {
    let mut relay = opened(settings(version, lines), false, &connack(false, properties));
    for side in Side::ALL {
        let version = relay.version_of(side);
        for id in relay.peer(side).asked.clone().into_keys() {
            let suback = Suback { packet_id: id, properties: Properties::EMPTY, reasons: &[1] };
            give(&mut relay, side, version, &Packet::Suback(suback)).unwrap();
        }
        take(&mut relay, side);
    }
    assert!(relay.is_up());
    while relay.next_action().is_some() {}
    relay
}

fn give(
    relay: &mut Relay,
    side: Side,
    version: Version,
    packet: &Packet<'_>,
) -> Result<usize, Down> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    relay.on_bytes(side, &bytes, 0)
}

/// What is to be written to a side.
fn take(relay: &mut Relay, side: Side) -> Vec<u8> {
    let bytes = relay.unwritten(side).to_vec();
    relay.on_written(side, bytes.len(), 0);
    bytes
}

fn message<'a>(topic: &'a str, qos: QoS, properties: Properties<'a>) -> Publish<'a> {
    let packet_id = if qos == QoS::AtMostOnce { 0 } else { 7 };
    let (dup, retain, payload) = (false, true, &b"payload"[..]);
    Publish { dup, qos, retain, topic, packet_id, properties, payload }
}

fn ack_bytes(version: Version, kind: AckKind, reason: Reason) -> Vec<u8> {
    let mut bytes = Vec::new();
    Packet::Ack(Ack::new(kind, 7, reason)).encode(version, &mut bytes);
    bytes
}

const NONE: Properties<'static> = Properties::EMPTY;

#[test]
fn a_message_keeps_its_identifier_and_its_own_properties() {
    let mut relay = up(Version::V5, &["# both 2 here/ there/"], NONE);
    let mut properties = PropertyBuf::new();
    properties.push(Property::SubscriptionId(3)).push(Property::MessageExpirySecs(9));
    properties.push(Property::User(HOPS_PROPERTY, "2"));
    let publish = message("here/a", QoS::ExactlyOnce, properties.as_properties());
    give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
    let bytes = take(&mut relay, Side::Remote);
    let decoded = codec::decode(&bytes, Version::V5, Sender::Client, 1_000).unwrap();
    let Some((Packet::Publish(got), _)) = decoded else { panic!("{decoded:?}") };
    assert_eq!((got.topic, got.packet_id, got.qos), ("there/a", 7, QoS::ExactlyOnce));
    assert!(got.retain);
    let properties: Vec<_> = got.properties.iter().collect();
    let hops = Property::User(HOPS_PROPERTY, "3");
    assert_eq!(properties, [Property::MessageExpirySecs(9), hops]);
    assert_eq!(relay.counts().sent, 1);
}

#[test]
fn acknowledgements_are_passed_on_with_their_reasons() {
    let mut relay = up(Version::V5, &["# both 2 here/ there/"], NONE);
    let refused = Ack::new(AckKind::Puback, 7, Reason::QUOTA_EXCEEDED);
    give(&mut relay, Side::Remote, Version::V5, &Packet::Ack(refused)).unwrap();
    let passed = ack_bytes(Version::V5, AckKind::Puback, Reason::QUOTA_EXCEEDED);
    assert_eq!(take(&mut relay, Side::Local), passed);
    assert_eq!(relay.counts().rejected, [1, 0]);
    let mut old = up(Version::V311, &["# both 2 here/ there/"], NONE);
    give(&mut old, Side::Local, Version::V5, &Packet::Ack(refused)).unwrap();
    let passed = ack_bytes(Version::V311, AckKind::Puback, Reason::SUCCESS);
    assert_eq!(take(&mut old, Side::Remote), passed);
    assert_eq!(old.counts().rejected, [0, 1]);
}

#[test]
fn a_message_that_is_not_relayed_is_answered_and_reported_once() {
    let mut properties = PropertyBuf::new();
    properties.push(Property::PacketBytesMax(60));
    let mut relay = up(Version::V5, &["a/# out 2  "], properties.as_properties());
    let mut hops = PropertyBuf::new();
    hops.push(Property::User(HOPS_PROPERTY, "4"));
    let mut strange = PropertyBuf::new();
    strange.push(Property::User(HOPS_PROPERTY, "many"));
    let long = format!("a/{}", "x".repeat(60));
    let cases = [
        (message("b", QoS::AtLeastOnce, NONE), Refusal::Unmapped),
        (message("a/b", QoS::AtLeastOnce, hops.as_properties()), Refusal::Hops),
        (message("a/b", QoS::AtLeastOnce, strange.as_properties()), Refusal::Hops),
        (message(&long, QoS::AtLeastOnce, NONE), Refusal::Size),
    ];
    let mut reported = Vec::new();
    for (publish, refusal) in cases {
        let before = relay.counts().refused[0][refusal as usize];
        give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
        let expected = ack_bytes(Version::V5, AckKind::Puback, NOT_RELAYED);
        assert_eq!(take(&mut relay, Side::Local), expected, "{refusal:?}");
        assert_eq!(take(&mut relay, Side::Remote), [], "{refusal:?}");
        assert_eq!(relay.counts().refused[0][refusal as usize], before + 1);
        while let Some(Action::Dropped { refusal, .. }) = relay.next_action() {
            reported.push(refusal);
        }
    }
    assert_eq!(reported, [Refusal::Unmapped, Refusal::Hops, Refusal::Size]);
}

/// The remote may have accepted it before it became too large, and know its identifier.
#[test]
fn a_repetition_is_refused_once_the_other_side_has_released_it() {
    let mut relay = up(Version::V311, &["a out 2  "], NONE);
    let publish = Publish { dup: true, ..message("b", QoS::ExactlyOnce, NONE) };
    give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
    assert_eq!(take(&mut relay, Side::Local), []);
    let pubrel = ack_bytes(Version::V311, AckKind::Pubrel, Reason::SUCCESS);
    assert_eq!(take(&mut relay, Side::Remote), pubrel);
    let pubcomp = Ack::new(AckKind::Pubcomp, 7, Reason::SUCCESS);
    give(&mut relay, Side::Remote, Version::V311, &Packet::Ack(pubcomp)).unwrap();
    let refused = ack_bytes(Version::V5, AckKind::Pubrec, NOT_RELAYED);
    assert_eq!(take(&mut relay, Side::Local), refused);
}

/// A remote that has lost its latest changes in a crash uses it for another message.
#[test]
fn an_identifier_that_the_remote_uses_again_is_released_first() {
    let first = message("a", QoS::ExactlyOnce, NONE);
    let other = Publish { payload: b"other", ..first };
    let mut before = up(Version::V311, &["a in 2  "], NONE);
    give(&mut before, Side::Remote, Version::V311, &Packet::Publish(first)).unwrap();
    let mut relay = up(Version::V311, &["a in 2  "], NONE);
    relay.set_unreleased(before.take_unreleased());
    let version = Version::V311;
    let again = Packet::Publish(Publish { dup: true, ..first });
    give(&mut relay, Side::Remote, version, &again).unwrap();
    assert_eq!(take(&mut relay, Side::Local)[0], 0x3D);
    // It waits until the identifier is free here, and nothing is taken meanwhile.
    let other = Packet::Publish(other);
    assert_eq!(give(&mut relay, Side::Remote, version, &other), Ok(0));
    let pubrel = ack_bytes(Version::V5, AckKind::Pubrel, Reason::SUCCESS);
    assert_eq!(take(&mut relay, Side::Local), pubrel);
    assert_eq!(give(&mut relay, Side::Remote, version, &other), Ok(0));
    assert_eq!(take(&mut relay, Side::Local), []);
    // This answer is not for the remote.
    let pubcomp = Packet::Ack(Ack::new(AckKind::Pubcomp, 7, Reason::SUCCESS));
    give(&mut relay, Side::Local, Version::V5, &pubcomp).unwrap();
    assert_eq!(take(&mut relay, Side::Remote), []);
    assert!(give(&mut relay, Side::Remote, version, &other).unwrap() > 0);
    assert_eq!(take(&mut relay, Side::Local)[0], 0x35);
    give(&mut relay, Side::Local, Version::V5, &pubcomp).unwrap();
    let passed = ack_bytes(version, AckKind::Pubcomp, Reason::SUCCESS);
    assert_eq!(take(&mut relay, Side::Remote), passed);
    // Now it is free.
    give(&mut relay, Side::Remote, version, &Packet::Publish(first)).unwrap();
    assert_eq!(take(&mut relay, Side::Local)[0], 0x35);
}

#[test]
fn a_remote_without_retained_messages_gets_an_ordinary_one() {
    let mut properties = PropertyBuf::new();
    properties.push(Property::RetainAvailable(false));
    let mut relay = up(Version::V5, &["a out 1  "], properties.as_properties());
    let publish = message("a", QoS::AtMostOnce, NONE);
    give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
    assert_eq!(take(&mut relay, Side::Remote)[0], 0x30);
}

#[test]
fn the_window_is_the_smaller_of_both() {
    for (remote, expected) in [(None, 10), (Some(3), 3), (Some(99), 10)] {
        let mut properties = PropertyBuf::new();
        if let Some(max) = remote {
            properties.push(Property::ReceiveMax(max));
        }
        let mut relay = opened(
            settings(Version::V5, &["a out 1  "]),
            false,
            &connack(false, properties.as_properties()),
        );
        let action = relay.next_action();
        assert_eq!(action, Some(Action::OpenLocal { receive_max: expected }));
    }
}

#[test]
fn a_side_that_does_not_read_stops_the_other() {
    let mut relay = up(Version::V311, &["a both 1  "], NONE);
    let mut bytes = Vec::new();
    message("a", QoS::AtMostOnce, NONE).encode(Version::V5, &mut bytes);
    let packet_len = bytes.len();
    let many = bytes.repeat(OUT_BYTES_MAX / 5);
    let taken = relay.on_bytes(Side::Local, &many, 0).unwrap();
    assert!(taken < many.len() && taken.is_multiple_of(packet_len));
    let waiting = relay.unwritten(Side::Remote).len();
    assert!((OUT_BYTES_MAX..OUT_BYTES_MAX + packet_len).contains(&waiting), "{waiting}");
    assert!(!relay.takes(Side::Local) && relay.takes(Side::Remote));
    // It goes on where it has stopped.
    relay.on_written(Side::Remote, waiting, 0);
    assert!(relay.on_bytes(Side::Local, &many[taken..], 0).unwrap() > 0);
}

#[test]
fn a_refused_subscription_is_reported_and_the_bridge_is_up() {
    let mut relay = opened(settings(Version::V311, &["a in 1  "]), false, &connack(false, NONE));
    let suback = Suback { packet_id: u16::MAX, properties: NONE, reasons: &[0x80] };
    give(&mut relay, Side::Remote, Version::V311, &Packet::Suback(suback)).unwrap();
    let (side, filter, reason) = (Side::Remote, "a".to_owned(), Reason::UNSPECIFIED_ERROR);
    let actions: Vec<_> = std::iter::from_fn(|| relay.next_action()).collect();
    let refused = Action::Refused(Refused { side, filter, reason });
    assert_eq!(actions[2..], [refused, Action::Up]);
}

#[test]
fn a_remote_that_does_not_answer_a_ping_is_left() {
    let mut relay = up(Version::V311, &["a out 1  "], NONE);
    relay.on_tick(44_999, true).unwrap();
    assert_eq!(take(&mut relay, Side::Remote), []);
    relay.on_tick(45_000, true).unwrap();
    assert_eq!(take(&mut relay, Side::Remote), [0xC0, 0]);
    // While its bytes are not read, an answer may wait among them.
    relay.on_tick(105_000, false).unwrap();
    relay.on_tick(104_999, true).unwrap();
    assert_eq!(relay.on_tick(105_000, true), Err(Down::Silent));
    give(&mut relay, Side::Remote, Version::V311, &Packet::Pingresp).unwrap();
    relay.on_tick(105_000, true).unwrap();
}

#[test]
fn a_remote_that_does_not_know_bridges_is_told_apart_from_a_refusal() {
    let refused = Connack { reason: Reason::UNSUPPORTED_PROTOCOL_VERSION, ..connack(false, NONE) };
    let packet = Packet::Connack(refused);
    let begun = |is_announced| {
        let own = Settings { is_announced, ..settings(Version::V311, &["a out 1  "]) };
        let mut relay = Relay::new(Arc::new(own), &Login::default(), 0);
        give(&mut relay, Side::Remote, Version::V311, &packet).unwrap_err()
    };
    assert_eq!(begun(true), Down::Unannounced);
    assert!(matches!(begun(false), Down::ConnectRefused { side: Side::Remote, .. }));
}

#[test]
fn a_message_of_an_old_remote_that_is_too_large_is_answered_and_skipped() {
    let mut relay = up(Version::V311, &["a in 1  "], NONE);
    let large = Publish { payload: &[0x30; 2_000], ..message("a", QoS::AtLeastOnce, NONE) };
    let mut bytes = Vec::new();
    large.encode(Version::V311, &mut bytes);
    message("a", QoS::AtMostOnce, NONE).encode(Version::V311, &mut bytes);
    // In pieces, as they come.
    let mut waiting = Vec::new();
    for piece in bytes.chunks(5) {
        waiting.extend_from_slice(piece);
        let taken = relay.on_bytes(Side::Remote, &waiting, 0).unwrap();
        waiting.drain(..taken);
    }
    assert_eq!(waiting, []);
    assert_eq!(relay.counts().refused[1][Refusal::Size as usize], 1);
    assert_eq!(relay.counts().received, 1);
    let puback = ack_bytes(Version::V311, AckKind::Puback, Reason::SUCCESS);
    assert_eq!(take(&mut relay, Side::Remote), puback);
}

#[test]
fn subscriptions_that_are_gone_are_removed() {
    let own = Arc::new(settings(Version::V311, &["a in 1  "]));
    let mut relay = Relay::new(own, &Login::default(), 0);
    relay.set_earlier(Side::Remote, vec![Earlier { filter: "old/#".into(), was_up: true }]);
    take(&mut relay, Side::Remote);
    let connack = Packet::Connack(connack(false, NONE));
    give(&mut relay, Side::Remote, Version::V311, &connack).unwrap();
    give(&mut relay, Side::Local, Version::V5, &connack).unwrap();
    let bytes = take(&mut relay, Side::Remote);
    let unsuback = [0xB0, 2, 0xFF, 0xFE];
    assert!(!relay.is_up());
    let wanted = b"\xA2\x09\xFF\xFE\x00\x05old/#";
    assert!(bytes.ends_with(wanted), "{bytes:?}");
    relay.on_bytes(Side::Remote, &[0x90, 3, 0xFF, 0xFF, 1], 0).unwrap();
    assert!(!relay.is_up());
    relay.on_bytes(Side::Remote, &unsuback, 0).unwrap();
    assert!(relay.is_up());
}

#[test]
fn a_covered_filter_is_subscribed_to_once_the_wider_one_is_refused() {
    let lines = ["a/# in 1  ", "a/b in 1  ", "a/c in 2  "];
    let mut relay = opened(settings(Version::V311, &lines), false, &connack(false, NONE));
    let asked = |relay: &Relay| relay.sides[1].asked.values().cloned().collect::<Vec<_>>();
    assert_eq!(asked(&relay), ["a/c", "a/#"]);
    relay.on_bytes(Side::Remote, &[0x90, 3, 0xFF, 0xFF, 0x80], 0).unwrap();
    assert_eq!(asked(&relay), ["a/b", "a/c"]);
}

#[test]
fn the_local_session_queues_before_a_remote_is_there() {
    let own = settings(Version::V311, &["a/# out 2 here/ ", "b in 1  ", "c both 1  "]);
    let mut relay = Relay::queueing(Arc::new(own), 0);
    relay.set_earlier(Side::Local, vec![Earlier { filter: "old".into(), was_up: true }]);
    assert_eq!(relay.next_action(), Some(Action::OpenLocal { receive_max: 1 }));
    assert!(relay.next_action().is_none());
    give(&mut relay, Side::Local, Version::V5, &Packet::Connack(connack(true, NONE))).unwrap();
    assert_eq!(relay.next_action(), Some(Action::QueueOpened { was_present: true }));
    let asked: Vec<_> = relay.sides[0].asked.values().rev().cloned().collect();
    assert_eq!(asked, ["here/a/#", "c", "old"]);
    let (packet, _) =
        codec::decode(&take(&mut relay, Side::Local), Version::V5, Sender::Client, 99)
            .map(|it| it.map(|(packet, len)| (format!("{packet:?}"), len)))
            .unwrap()
            .unwrap();
    assert!(packet.contains("Subscribe"), "{packet}");
    // What is in flight is neither relayed nor acknowledged.
    let publish = message("here/a/b", QoS::AtLeastOnce, NONE);
    give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
    for id in [u16::MAX, u16::MAX - 1] {
        assert!(relay.next_action().is_none());
        let suback = Suback { packet_id: id, properties: NONE, reasons: &[1] };
        give(&mut relay, Side::Local, Version::V5, &Packet::Suback(suback)).unwrap();
    }
    relay.on_bytes(Side::Local, &[0xB0, 4, 0xFF, 0xFD, 0, 0], 0).unwrap();
    assert_eq!(relay.next_action(), Some(Action::Up));
    assert_eq!(take(&mut relay, Side::Local), []);
    assert_eq!(take(&mut relay, Side::Remote), []);
}

#[test]
fn retained_messages_are_sent_for_what_the_remote_does_not_know() {
    let new = |filter: &str, was_up| Earlier { filter: filter.into(), was_up };
    for (earlier, remote_present, expected) in [
        (vec![new("a", true), new("b", true)], true, [1, 1]),
        (vec![new("a", true), new("b", false)], true, [1, 0]),
        (vec![new("a", true), new("b", true)], false, [0, 0]),
        (vec![], true, [1, 1]),
    ] {
        let own = settings(Version::V5, &["a out 1  ", "b out 1  "]);
        let mut relay = Relay::new(Arc::new(own), &Login::default(), 0);
        relay.set_earlier(Side::Local, earlier);
        let remote = connack(remote_present, NONE);
        give(&mut relay, Side::Remote, Version::V5, &Packet::Connack(remote)).unwrap();
        let local = connack(true, NONE);
        give(&mut relay, Side::Local, Version::V5, &Packet::Connack(local)).unwrap();
        let bytes = take(&mut relay, Side::Local);
        // The last byte of each SUBSCRIBE; its bits 4 and 5 are the retain handling.
        let options: Vec<_> = bytes.chunks(bytes.len() / 2).map(|it| it[it.len() - 1]).collect();
        assert_eq!(options.iter().map(|it| it >> 4).collect::<Vec<_>>(), expected);
    }
}

/// It has no stale identifiers, and nothing that the remote might have lost.
#[test]
fn a_session_that_has_only_queued_counts_as_new() {
    for (is_new, remote_present) in [(true, false), (true, true), (false, false)] {
        let own = settings(Version::V311, &["a both 2  "]);
        let mut relay = Relay::new(Arc::new(own), &Login::default(), 0);
        if is_new {
            relay.set_local_new();
        }
        for (side, version, present) in
            [(Side::Remote, Version::V311, remote_present), (Side::Local, Version::V5, true)]
        {
            let connack = Packet::Connack(connack(present, NONE));
            give(&mut relay, side, version, &connack).unwrap();
        }
        let actions: Vec<_> = std::iter::from_fn(|| relay.next_action()).collect();
        let opened = Action::Opened { local_present: !is_new, remote_present };
        assert_eq!(actions[1], opened);
        let releases = relay.sides.iter().map(|peer| peer.release.is_some());
        assert!(releases.eq([!is_new && !remote_present, is_new && remote_present]));
    }
}

/// Otherwise the receiver would take the next message with such an identifier for a repetition.
#[test]
fn a_release_that_was_cut_off_begins_anew() {
    for (receiver, lines) in [(Side::Local, "a in 2  "), (Side::Remote, "a out 2  ")] {
        let is_lost = receiver.other() == Side::Local;
        let own = settings(Version::V311, &[lines]);
        let mut relay = opened(own.clone(), !is_lost, &connack(is_lost, NONE));
        assert!(!relay.is_up() && relay.unreleased().is_due(receiver));
        for pubrel in take(&mut relay, receiver).chunks(4).take(100) {
            let id = u16::from_be_bytes([pubrel[2], pubrel[3]]);
            let pubcomp = Packet::Ack(Ack::new(AckKind::Pubcomp, id, Reason::SUCCESS));
            let version = relay.version_of(receiver);
            give(&mut relay, receiver, version, &pubcomp).unwrap();
        }
        let unreleased = relay.take_unreleased();
        // Both sessions are there now.
        let mut relay = Relay::new(Arc::new(own), &Login::default(), 0);
        relay.set_unreleased(unreleased);
        for (side, version) in [(Side::Remote, Version::V311), (Side::Local, Version::V5)] {
            give(&mut relay, side, version, &Packet::Connack(connack(true, NONE))).unwrap();
        }
        assert!(relay.peer(receiver).release.is_some());
        assert!(relay.peer(receiver.other()).release.is_none());
    }
}

/// The session of this broker was lost and is there again, but its CONNACK was not seen.
#[test]
fn an_identifier_that_this_broker_uses_again_is_released_first() {
    let first = message("a", QoS::ExactlyOnce, NONE);
    let mut before = up(Version::V311, &["a out 2  "], NONE);
    give(&mut before, Side::Local, Version::V5, &Packet::Publish(first)).unwrap();
    let mut relay = up(Version::V311, &["a out 2  "], NONE);
    relay.set_unreleased(before.take_unreleased());
    let other = Publish { payload: b"other", ..first };
    give(&mut relay, Side::Local, Version::V5, &Packet::Publish(other)).unwrap();
    let pubrel = ack_bytes(Version::V311, AckKind::Pubrel, Reason::SUCCESS);
    let sent = take(&mut relay, Side::Remote);
    assert_eq!((&sent[..4], sent[4]), (&pubrel[..], 0x35));
    // The first answer is not for the local broker.
    acked(&mut relay, Side::Remote, AckKind::Pubcomp, Reason::SUCCESS).unwrap();
    assert_eq!(take(&mut relay, Side::Local), []);
    acked(&mut relay, Side::Remote, AckKind::Pubrec, Reason::SUCCESS).unwrap();
    acked(&mut relay, Side::Remote, AckKind::Pubcomp, Reason::SUCCESS).unwrap();
    let passed = [AckKind::Pubrec, AckKind::Pubcomp]
        .map(|kind| ack_bytes(Version::V5, kind, Reason::SUCCESS));
    assert_eq!(take(&mut relay, Side::Local), passed.concat());
}

fn acked(relay: &mut Relay, side: Side, kind: AckKind, reason: Reason) -> Result<usize, Down> {
    let version = relay.version_of(side);
    give(relay, side, version, &Packet::Ack(Ack::new(kind, 7, reason)))
}

#[test]
fn a_queued_message_gets_the_highest_qos_of_the_remote() {
    let v5 = |kind| ack_bytes(Version::V5, kind, Reason::SUCCESS);
    let begin = |max| {
        let mut properties = PropertyBuf::new();
        properties.push(Property::QosMax(max));
        let mut relay = up(Version::V5, &["a out 2  "], properties.as_properties());
        let publish = Packet::Publish(message("a", QoS::ExactlyOnce, NONE));
        give(&mut relay, Side::Local, Version::V5, &publish).unwrap();
        let sent = take(&mut relay, Side::Remote)[0];
        (relay, sent)
    };
    let (mut relay, sent) = begin(0);
    assert_eq!(sent, 0x31);
    assert_eq!(take(&mut relay, Side::Local), v5(AckKind::Pubrec));
    acked(&mut relay, Side::Local, AckKind::Pubrel, Reason::SUCCESS).unwrap();
    assert_eq!(take(&mut relay, Side::Local), v5(AckKind::Pubcomp));
    assert_eq!(take(&mut relay, Side::Remote), []);
    let (mut relay, sent) = begin(1);
    assert_eq!(sent, 0x33);
    assert_eq!(take(&mut relay, Side::Local), []);
    acked(&mut relay, Side::Remote, AckKind::Puback, Reason::SUCCESS).unwrap();
    assert_eq!(take(&mut relay, Side::Local), v5(AckKind::Pubrec));
    acked(&mut relay, Side::Local, AckKind::Pubrel, Reason::SUCCESS).unwrap();
    assert_eq!(take(&mut relay, Side::Local), v5(AckKind::Pubcomp));
    assert_eq!(take(&mut relay, Side::Remote), []);
}

/// Otherwise this broker would close the connection, and the remote would send the message again.
#[test]
fn what_this_broker_does_not_support_is_lowered_too() {
    let mut properties = PropertyBuf::new();
    properties.push(Property::QosMax(1)).push(Property::RetainAvailable(false));
    let mut relay =
        Relay::new(Arc::new(settings(Version::V311, &["a in 2  "])), &Login::default(), 0);
    let remote = Packet::Connack(connack(false, NONE));
    give(&mut relay, Side::Remote, Version::V311, &remote).unwrap();
    take(&mut relay, Side::Remote);
    let local = Packet::Connack(connack(false, properties.as_properties()));
    give(&mut relay, Side::Local, Version::V5, &local).unwrap();
    // The last byte of the SUBSCRIBE.
    assert_eq!(take(&mut relay, Side::Remote).last(), Some(&1));
    let publish = Packet::Publish(message("a", QoS::ExactlyOnce, NONE));
    give(&mut relay, Side::Remote, Version::V311, &publish).unwrap();
    assert_eq!(take(&mut relay, Side::Local)[0], 0x32);
    acked(&mut relay, Side::Local, AckKind::Puback, Reason::SUCCESS).unwrap();
    let pubrec = ack_bytes(Version::V311, AckKind::Pubrec, Reason::SUCCESS);
    assert_eq!(take(&mut relay, Side::Remote), pubrec);
}

/// Gives the local messages that a session sends after each connect, until the remote closes.
fn resent(suspects: Suspects, answers_ping: bool) -> (Relay, Vec<u8>) {
    let mut relay = up(Version::V311, &["a/# out 1  "], NONE);
    relay.set_suspects(suspects);
    let mut bytes = Vec::new();
    for id in [7, 8] {
        let publish = message("a/b", QoS::AtLeastOnce, NONE);
        Publish { packet_id: id, dup: true, ..publish }.encode(Version::V5, &mut bytes);
    }
    let taken = relay.on_bytes(Side::Local, &bytes, 0).unwrap();
    if taken < bytes.len() {
        assert!(!relay.takes(Side::Local) && relay.takes(Side::Remote));
    }
    if answers_ping && relay.unwritten(Side::Remote) == [0xC0, 0] {
        take(&mut relay, Side::Remote);
        give(&mut relay, Side::Remote, Version::V311, &Packet::Pingresp).unwrap();
        let more = relay.on_bytes(Side::Local, &bytes[taken..], 0).unwrap();
        assert!(more < bytes.len() - taken);
    }
    let sent = take(&mut relay, Side::Remote);
    (relay, sent)
}

#[test]
fn a_message_behind_which_the_remote_closes_three_times_is_not_relayed() {
    let (mut relay, sent) = resent(Suspects::default(), true);
    assert_eq!(sent.iter().filter(|byte| **byte == 0x3B).count(), 2);
    let (mut suspects, is_blamed) = relay.take_suspects(Some(Side::Remote));
    assert!(is_blamed);
    for _ in 1..crate::suspects::CLOSES_MAX {
        // One at a time, behind an answer of the remote.
        let (mut relay, sent) = resent(suspects, true);
        assert_eq!(sent.iter().filter(|byte| **byte == 0x3B).count(), 1);
        // An end for another reason is not counted.
        let (same, is_blamed) = relay.take_suspects(None);
        assert!(!is_blamed);
        let (mut relay, _) = resent(same, true);
        (suspects, _) = relay.take_suspects(Some(Side::Remote));
    }
    // One before the remote has answered is not, either.
    let (mut relay, sent) = resent(suspects.clone(), false);
    assert_eq!(relay.counts().refused[0][Refusal::Closes as usize], 1);
    let dropped = Action::Dropped {
        from: Side::Local,
        refusal: Refusal::Closes,
        topic: "a/b".into(),
        bytes: 7,
    };
    assert_eq!(relay.next_action(), Some(dropped));
    assert_eq!(take(&mut relay, Side::Local), ack_bytes(Version::V5, AckKind::Puback, NOT_RELAYED));
    // The other one goes on, as soon as the remote has answered.
    assert_eq!(sent, [0xC0, 0]);
}

#[test]
fn a_suspect_that_is_answered_is_none_and_lets_the_others_pass() {
    let (mut relay, _) = resent(Suspects::default(), true);
    let (suspects, _) = relay.take_suspects(Some(Side::Remote));
    let (mut relay, sent) = resent(suspects.clone(), false);
    assert_eq!(sent, [0xC0, 0]);
    // The remote closed before it has answered: nobody is to blame.
    assert_eq!(relay.take_suspects(Some(Side::Remote)), (suspects.clone(), false));
    let (mut relay, sent) = resent(suspects, true);
    assert_eq!(sent[0], 0x3B);
    acked(&mut relay, Side::Remote, AckKind::Puback, Reason::SUCCESS).unwrap();
    assert!(relay.takes(Side::Local));
    let other = Publish { packet_id: 8, ..message("a/b", QoS::AtLeastOnce, NONE) };
    give(&mut relay, Side::Local, Version::V5, &Packet::Publish(other)).unwrap();
    assert_eq!(take(&mut relay, Side::Remote)[0], 0x33);
    // A message of another client is held, too.
    let next = Packet::Publish(message("a/c", QoS::AtMostOnce, NONE));
    assert_eq!(give(&mut relay, Side::Local, Version::V5, &next), Ok(0));
}

/// The answers to the rest of a release do not release it again.
#[test]
fn an_identifier_is_released_once_while_others_are() {
    let first = message("a", QoS::ExactlyOnce, NONE);
    let mut before = up(Version::V311, &["a both 2  "], NONE);
    give(&mut before, Side::Remote, Version::V311, &Packet::Publish(first)).unwrap();
    let mut unreleased = before.take_unreleased();
    unreleased.set_due(Side::Remote);
    let own = settings(Version::V311, &["a both 2  "]);
    let mut relay = Relay::new(Arc::new(own), &Login::default(), 0);
    relay.set_unreleased(unreleased);
    for (side, version) in [(Side::Remote, Version::V311), (Side::Local, Version::V5)] {
        give(&mut relay, side, version, &Packet::Connack(connack(true, NONE))).unwrap();
    }
    let other = Packet::Publish(Publish { payload: b"other", ..first });
    for expected in [ack_bytes(Version::V5, AckKind::Pubrel, Reason::SUCCESS), Vec::new()] {
        assert_eq!(give(&mut relay, Side::Remote, Version::V311, &other), Ok(0));
        assert_eq!(take(&mut relay, Side::Local), expected);
        take(&mut relay, Side::Remote);
    }
}

/// A remote that crashes because of a message loses its session, too.
#[test]
fn a_suspect_is_sent_while_identifiers_are_released() {
    let (mut relay, sent) = suspected_while_releasing();
    assert_eq!(sent, [0xC0, 0]);
    assert!(!relay.takes(Side::Local) && relay.takes(Side::Remote));
    give(&mut relay, Side::Remote, Version::V311, &Packet::Pingresp).unwrap();
    assert!(relay.takes(Side::Local));
    let suspect = Publish { dup: true, ..message("a/b", QoS::AtLeastOnce, NONE) };
    give(&mut relay, Side::Local, Version::V5, &Packet::Publish(suspect)).unwrap();
    assert_eq!(take(&mut relay, Side::Remote)[0], 0x3B);
    let (suspects, is_blamed) = relay.take_suspects(Some(Side::Remote));
    assert!(is_blamed && suspects.closes(&suspect) == Some(2));
}

/// Its answer would come behind the message that waits for answers of the local broker.
#[test]
fn a_suspect_does_not_wait_for_a_message_that_waits_for_a_release() {
    let (mut relay, _) = suspected_while_releasing();
    let publish = Packet::Publish(message("b/c", QoS::ExactlyOnce, NONE));
    assert_eq!(give(&mut relay, Side::Remote, Version::V311, &publish), Ok(0));
    assert!(relay.takes(Side::Local) && !relay.takes(Side::Remote));
    let suspect = Publish { dup: true, ..message("a/b", QoS::AtLeastOnce, NONE) };
    give(&mut relay, Side::Local, Version::V5, &Packet::Publish(suspect)).unwrap();
    assert_eq!(take(&mut relay, Side::Remote)[0], 0x3B);
    while relay.releasing != Releasing::Nothing {
        let released = take(&mut relay, Side::Local);
        assert!(!released.is_empty());
        for pubrel in released.chunks(4) {
            let id = u16::from_be_bytes([pubrel[2], pubrel[3]]);
            let pubcomp = Packet::Ack(Ack::new(AckKind::Pubcomp, id, Reason::SUCCESS));
            give(&mut relay, Side::Local, Version::V5, &pubcomp).unwrap();
        }
    }
    assert!(give(&mut relay, Side::Remote, Version::V311, &publish).unwrap() > 0);
}

/// The remote has closed the connection behind a message, and has lost its session.
fn suspected_while_releasing() -> (Relay, Vec<u8>) {
    let (mut relay, _) = resent(Suspects::default(), true);
    let (suspects, _) = relay.take_suspects(Some(Side::Remote));
    let settings = settings(Version::V311, &["a/# out 1  ", "b/# in 2  "]);
    let mut relay = opened(settings, true, &connack(false, NONE));
    relay.set_suspects(suspects);
    let suspect = Publish { dup: true, ..message("a/b", QoS::AtLeastOnce, NONE) };
    assert_eq!(give(&mut relay, Side::Local, Version::V5, &Packet::Publish(suspect)), Ok(0));
    let sent = take(&mut relay, Side::Remote);
    (relay, sent)
}

#[test]
fn a_message_that_the_receiver_has_no_room_for_is_sent_again() {
    for side in Side::ALL {
        let mut relay = up(Version::V5, &["a both 1  "], NONE);
        let from = side.other();
        let publish = Packet::Publish(message("a", QoS::AtLeastOnce, NONE));
        give(&mut relay, from, Version::V5, &publish).unwrap();
        let sent = take(&mut relay, side);
        let mut now_ms = 0;
        for retry in 0..crate::unanswered::RETRIES_MAX {
            acked(&mut relay, side, AckKind::Puback, Reason::QUOTA_EXCEEDED).unwrap();
            assert_eq!(take(&mut relay, from), []);
            now_ms += 1_000 << retry;
            relay.on_bytes(side, &[], now_ms).unwrap();
            relay.on_tick(now_ms, true).unwrap();
            let again = take(&mut relay, side);
            assert!(again.starts_with(&sent), "{retry} {again:?}");
            relay.on_bytes(side, &[], now_ms).unwrap();
        }
        assert_eq!(relay.counts().rejected, [0, 0]);
        acked(&mut relay, side, AckKind::Puback, Reason::QUOTA_EXCEEDED).unwrap();
        let refused = ack_bytes(Version::V5, AckKind::Puback, Reason::QUOTA_EXCEEDED);
        assert_eq!(take(&mut relay, from), refused);
        assert_eq!(relay.counts().refused[from as usize][Refusal::Exhausted as usize], 1);
        let action = relay.next_action();
        assert!(matches!(action, Some(Action::Dropped { refusal: Refusal::Exhausted, .. })));
    }
}

/// It would come again after each reconnect.
#[test]
fn a_message_that_breaks_the_protocol_is_answered_and_skipped() {
    let mut relay = up(Version::V311, &["# in 1  "], NONE);
    // A topic with U+0000, QoS 1, identifier 7.
    let mut bytes = vec![0x32, 7, 0, 3, b'a', 0, b'b', 0, 7];
    message("a", QoS::AtMostOnce, NONE).encode(Version::V311, &mut bytes);
    let taken = relay.on_bytes(Side::Remote, &bytes, 0).unwrap();
    assert_eq!(taken, bytes.len());
    assert_eq!(relay.counts().refused[1][Refusal::Malformed as usize], 1);
    assert_eq!(relay.counts().received, 1);
    let puback = ack_bytes(Version::V311, AckKind::Puback, Reason::SUCCESS);
    assert_eq!(take(&mut relay, Side::Remote), puback);
}
