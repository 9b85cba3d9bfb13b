use codec::{Connack, FilterBuf, Property, Suback, SubscribeOptions};

use super::*;

fn connected(properties: &[Property<'_>]) -> Machine<u32> {
    let mut machine = Machine::new(Version::V5, Acks::Automatic);
    let mut out = Vec::new();
    machine.connect(&ConnectOptions::default(), 0, &mut out);
    let mut list = codec::PropertyBuf::new();
    for property in properties {
        list.push(*property);
    }
    let connack = Connack {
        session_present: false,
        reason: Reason::SUCCESS,
        properties: list.as_properties(),
    };
    feed(&mut machine, &Packet::Connack(connack));
    machine
}

/// Gives the machine one packet from the server, and returns what it answers and the event's name.
fn feed(machine: &mut Machine<u32>, packet: &Packet<'_>) -> (Vec<u8>, String) {
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    packet.encode(machine.version(), &mut bytes);
    let (event, taken) = machine.next(&bytes, &mut out).unwrap().unwrap();
    assert_eq!(taken, bytes.len());
    let text = format!("{event:?}");
    (out, text)
}

fn publish(qos: QoS, packet_id: u16) -> Publish<'static> {
    Publish {
        dup: false,
        qos,
        retain: false,
        topic: "t",
        packet_id,
        properties: Properties::EMPTY,
        payload: b"x",
    }
}

fn ack(kind: AckKind, packet_id: u16) -> Packet<'static> {
    Packet::Ack(Ack { kind, packet_id, reason: Reason::SUCCESS, properties: Properties::EMPTY })
}

#[test]
fn an_idle_machine_is_small() {
    assert!(size_of::<Machine<[u64; 2]>>() <= 136, "{}", size_of::<Machine<[u64; 2]>>());
}

#[test]
fn the_window_is_the_servers_receive_maximum() {
    let mut machine = connected(&[Property::ReceiveMax(2)]);
    let mut out = Vec::new();
    let message = publish(QoS::AtLeastOnce, 0);
    assert_eq!(machine.publish(&message, 7, &mut out), Ok(Some(1)));
    assert_eq!(machine.publish(&message, 8, &mut out), Ok(Some(2)));
    assert_eq!(machine.publish(&message, 9, &mut out), Err(NotSent::WindowFull));
    let (_, event) = feed(&mut machine, &ack(AckKind::Puback, 2));
    assert!(event.contains("token: 8"), "{event}");
    assert_eq!(machine.publish(&message, 9, &mut out), Ok(Some(3)));
    assert_eq!(machine.in_flight(), 2);
}

#[test]
fn qos_2_goes_through_its_four_packets_both_ways() {
    let mut machine = connected(&[]);
    let mut out = Vec::new();
    machine.publish(&publish(QoS::ExactlyOnce, 0), 5, &mut out).unwrap();
    assert_eq!(feed(&mut machine, &ack(AckKind::Pubrec, 1)).0, [0x62, 2, 0, 1]);
    let (_, event) = feed(&mut machine, &ack(AckKind::Pubcomp, 1));
    assert!(event.contains("token: 5") && event.contains("ExactlyOnce"), "{event}");

    let incoming = Packet::Publish(publish(QoS::ExactlyOnce, 9));
    let (answer, event) = feed(&mut machine, &incoming);
    assert_eq!(answer, [0x50, 2, 0, 9]);
    assert!(event.starts_with("Message"), "{event}");
    let (_, event) = feed(&mut machine, &incoming);
    assert!(event.starts_with("Repeated"), "{event}");
    assert_eq!(feed(&mut machine, &ack(AckKind::Pubrel, 9)).0, [0x70, 2, 0, 9]);
    let (_, event) = feed(&mut machine, &incoming);
    assert!(event.starts_with("Message"), "{event}");
}

#[test]
fn a_qos_2_message_is_known_by_the_connection_on_which_it_came_last() {
    let mut machine = connected(&[]);
    let incoming = Packet::Publish(publish(QoS::ExactlyOnce, 9));
    feed(&mut machine, &incoming);
    let is_here = |machine: &mut Machine<u32>| feed(machine, &incoming).1.contains("is_here: true");
    assert!(is_here(&mut machine));
    machine.on_closed();
    machine.connect(&ConnectOptions::default(), 0, &mut Vec::new());
    let (reason, properties) = (Reason::SUCCESS, Properties::EMPTY);
    feed(&mut machine, &Packet::Connack(Connack { session_present: true, reason, properties }));
    assert!(!is_here(&mut machine) && is_here(&mut machine));
}

#[test]
fn open_exchanges_are_repeated_after_a_reconnect() {
    let mut machine = connected(&[]);
    let mut out = Vec::new();
    machine.publish(&publish(QoS::AtLeastOnce, 0), 1, &mut out).unwrap();
    machine.publish(&publish(QoS::ExactlyOnce, 0), 2, &mut out).unwrap();
    feed(&mut machine, &ack(AckKind::Pubrec, 2));
    machine.on_closed();
    let open = format!("{:?}", machine.unacknowledged().collect::<Vec<_>>());
    assert!(open.contains("Publish { packet_id: 1") && open.contains("Pubrel { packet_id: 2"));
    assert_eq!(machine.forget(), [1]);
    assert_eq!(machine.in_flight(), 0);
}

#[test]
fn identifiers_go_round_without_meeting_open_ones() {
    let mut machine = connected(&[]);
    let mut out = Vec::new();
    let message = publish(QoS::AtLeastOnce, 0);
    for token in 0..65_535 {
        machine.publish(&message, token, &mut out).unwrap();
    }
    assert_eq!(machine.publish(&message, 0, &mut out), Err(NotSent::WindowFull));
    feed(&mut machine, &ack(AckKind::Puback, 40_000));
    assert_eq!(machine.publish(&message, 0, &mut out), Err(NotSent::WindowFull));
    feed(&mut machine, &ack(AckKind::Puback, 1));
    assert_eq!(machine.publish(&message, 70_000, &mut out), Ok(Some(1)));
    let (_, event) = feed(&mut machine, &ack(AckKind::Puback, 65_535));
    assert!(event.contains("token: 65534"), "{event}");
    let (_, event) = feed(&mut machine, &ack(AckKind::Puback, 1));
    assert!(event.contains("token: 70000"), "{event}");
}

#[test]
fn keep_alive_pings_and_gives_up_on_silence() {
    let mut machine = connected(&[Property::ServerKeepAliveSecs(4)]);
    let mut out = Vec::new();
    assert_eq!(machine.next_tick_ms(), Some(3_000));
    assert!(machine.on_tick(2_999, &mut out) && out.is_empty());
    assert!(machine.on_tick(3_000, &mut out));
    assert_eq!(out, PINGREQ);
    assert!(!machine.on_tick(6_000, &mut out));
    feed(&mut machine, &Packet::Pingresp);
    assert!(machine.on_tick(6_000, &mut out));
}

#[test]
fn answers_nobody_asked_for_are_violations() {
    let mut machine = connected(&[]);
    let mut bytes = Vec::new();
    let suback = Suback { packet_id: 3, properties: Properties::EMPTY, reasons: &[0] };
    suback.encode(Version::V5, &mut bytes);
    assert!(machine.next(&bytes, &mut Vec::new()).is_err());
    let mut filters = FilterBuf::new();
    filters.push("a", SubscribeOptions::new(QoS::AtMostOnce));
    let id = machine.subscribe(filters.as_filters(), Properties::EMPTY, &mut Vec::new()).unwrap();
    let suback = Suback { packet_id: id, properties: Properties::EMPTY, reasons: &[0] };
    let (_, event) = feed(&mut machine, &Packet::Suback(suback));
    assert!(event.starts_with("Subscribed"), "{event}");
}

#[test]
fn packets_too_large_for_the_server_are_not_sent() {
    let mut machine = connected(&[Property::PacketBytesMax(4)]);
    let mut out = Vec::new();
    let refused = machine.publish(&publish(QoS::AtLeastOnce, 0), 1, &mut out);
    assert_eq!((refused, out.len(), machine.in_flight()), (Err(NotSent::PacketTooLarge), 0, 0));
}

#[test]
fn a_suback_has_a_code_for_each_filter_and_grants_no_more_than_was_asked_for() {
    for (reasons, is_fine) in [
        (&[0, 1][..], true),
        (&[0x87, 0], true),
        (&[0], false),
        (&[0, 0, 0], false),
        (&[0, 2], false),
    ] {
        let mut machine = connected(&[]);
        let (mut list, mut out) = (FilterBuf::new(), Vec::new());
        list.push("a", SubscribeOptions::new(QoS::AtMostOnce));
        list.push("b", SubscribeOptions::new(QoS::AtLeastOnce));
        let id = machine.subscribe(list.as_filters(), Properties::EMPTY, &mut out).unwrap();
        let suback = Suback { packet_id: id, properties: Properties::EMPTY, reasons };
        let mut bytes = Vec::new();
        suback.encode(Version::V5, &mut bytes);
        assert_eq!(machine.next(&bytes, &mut out).is_ok(), is_fine, "{reasons:?}");
    }
}

#[test]
fn the_server_may_have_no_more_in_flight_than_the_receive_maximum() {
    let incoming = |machine: &mut Machine<u32>, id| {
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        publish(QoS::AtLeastOnce, id).encode(Version::V5, &mut bytes);
        machine.next(&bytes, &mut out).map(|_| ()).map_err(|violation| violation.clause)
    };
    let mut machine = Machine::new(Version::V5, Acks::Automatic);
    let options = ConnectOptions { receive_max: Some(2), ..ConnectOptions::default() };
    machine.connect(&options, 0, &mut Vec::new());
    let reason = Reason::SUCCESS;
    let connack = Connack { session_present: false, reason, properties: Properties::EMPTY };
    feed(&mut machine, &Packet::Connack(connack));
    assert_eq!((incoming(&mut machine, 1), incoming(&mut machine, 2)), (Ok(()), Ok(())));
    // The acknowledgements have left.
    machine.on_sent(1);
    assert_eq!((incoming(&mut machine, 1), incoming(&mut machine, 2)), (Ok(()), Ok(())));
    assert_eq!(incoming(&mut machine, 3), Err("MQTT-3.3.4-9"));
}

#[test]
fn an_alias_that_was_not_allowed_and_a_pingresp_to_nothing_are_violations() {
    let mut machine = connected(&[]);
    let mut properties = codec::PropertyBuf::new();
    properties.push(Property::TopicAlias(1));
    let aliased = Publish { properties: properties.as_properties(), ..publish(QoS::AtMostOnce, 0) };
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    aliased.encode(Version::V5, &mut bytes);
    assert_eq!(machine.next(&bytes, &mut out).unwrap_err().clause, "MQTT-3.1.2-26");
    let mut machine = connected(&[]);
    assert_eq!(machine.next(&[0xD0, 0], &mut out).unwrap_err().clause, "MQTT-3.12.4-1");
}

#[test]
fn what_pubrec_said_is_reported_with_pubcomp() {
    let mut machine = connected(&[]);
    machine.publish(&publish(QoS::ExactlyOnce, 0), 5, &mut Vec::new()).unwrap();
    let reason = Reason::NO_MATCHING_SUBSCRIBERS;
    let (kind, properties) = (AckKind::Pubrec, Properties::EMPTY);
    feed(&mut machine, &Packet::Ack(Ack { kind, packet_id: 1, reason, properties }));
    let (_, event) = feed(&mut machine, &ack(AckKind::Pubcomp, 1));
    assert!(event.contains("Reason(16)"), "{event}");
}
