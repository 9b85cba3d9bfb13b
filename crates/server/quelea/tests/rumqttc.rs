//! rumqttc, a client that others wrote, against `quelea serve`.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use conformance::broker::{PLAIN, Quelea};
use rumqttc::v5;
use rumqttc::{Client, Event, LastWill, MqttOptions, Packet, QoS};

const LEVELS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// A connected client of 3.1.1 and the packets that come in, read by a thread of its own.
fn connect(quelea: &Quelea, options: impl FnOnce(&mut MqttOptions)) -> (Client, Receiver<Packet>) {
    let address = quelea.address("tcp");
    let id = conformance::fresh_client();
    let mut settings = MqttOptions::new(id, address.ip().to_string(), address.port());
    settings.set_max_packet_size(4 << 20, 4 << 20);
    options(&mut settings);
    let (client, mut connection) = Client::new(settings, 100);
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for event in connection.iter().map_while(Result::ok) {
            if let Event::Incoming(packet) = event
                && sender.send(packet).is_err()
            {
                break;
            }
        }
    });
    (client, receiver)
}

/// The next packet for which `pick` finds something; others before it are dropped.
fn wait<P, T>(packets: &Receiver<P>, pick: impl Fn(P) -> Option<T>) -> T {
    loop {
        let packet = packets.recv_timeout(ANSWER_TIMEOUT).expect("the packet that has to come");
        if let Some(found) = pick(packet) {
            return found;
        }
    }
}

fn suback(packet: Packet) -> Option<()> {
    matches!(packet, Packet::SubAck(_)).then_some(())
}

fn publish(packet: Packet) -> Option<rumqttc::Publish> {
    if let Packet::Publish(publish) = packet { Some(publish) } else { None }
}

#[test]
fn rumqttc_3_1_1_publishes_and_receives() {
    let quelea = Quelea::start(PLAIN);
    let (client, packets) = connect(&quelea, |_| {});
    client.subscribe("rumqttc/+", QoS::ExactlyOnce).expect("a running client");
    wait(&packets, suback);
    for (level, payload) in LEVELS.into_iter().zip(["zero", "one", "two"]) {
        let topic = format!("rumqttc/{payload}");
        client.publish(&topic, level, false, payload).expect("a running client");
        let message = wait(&packets, publish);
        assert_eq!((message.topic, &message.payload[..]), (topic, payload.as_bytes()));
        assert_eq!(message.qos, level);
    }
    let large = vec![b'x'; 1 << 20];
    client.publish("rumqttc/large", QoS::AtLeastOnce, false, large.clone()).expect("a client");
    assert_eq!(wait(&packets, publish).payload.len(), large.len());
}

#[test]
fn rumqttc_3_1_1_gets_retained_messages_and_wills() {
    let quelea = Quelea::start(PLAIN);
    let (victim, victims) = connect(&quelea, |options| {
        options.set_last_will(LastWill::new("will", "gone", QoS::AtLeastOnce, true));
    });
    victim.publish("kept", QoS::AtLeastOnce, true, "kept").expect("a running client");
    wait(&victims, |packet| matches!(packet, Packet::PubAck(_)).then_some(()));
    let (client, packets) = connect(&quelea, |_| {});
    client.subscribe("kept", QoS::AtLeastOnce).expect("a running client");
    let kept = wait(&packets, publish);
    assert_eq!((&kept.payload[..], kept.retain), (&b"kept"[..], true));
    client.subscribe("will", QoS::AtLeastOnce).expect("a running client");
    wait(&packets, suback);
    // The connection goes with its reader, without a DISCONNECT: the reader ends at the next
    // packet that nobody takes.
    drop(victims);
    victim.subscribe("anything", QoS::AtMostOnce).expect("a running client");
    assert_eq!(&wait(&packets, publish).payload[..], b"gone");
}

/// The same for MQTT 5.
fn connect_v5(quelea: &Quelea) -> (v5::Client, Receiver<v5::mqttbytes::v5::Packet>) {
    let address = quelea.address("tcp");
    let id = conformance::fresh_client();
    let settings = v5::MqttOptions::new(id, address.ip().to_string(), address.port());
    let (client, mut connection) = v5::Client::new(settings, 100);
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for event in connection.iter().map_while(Result::ok) {
            if let v5::Event::Incoming(packet) = event
                && sender.send(packet).is_err()
            {
                break;
            }
        }
    });
    (client, receiver)
}

#[test]
fn rumqttc_5_publishes_and_receives_with_properties() {
    use v5::mqttbytes::QoS;
    use v5::mqttbytes::v5::{Packet, PublishProperties};

    let quelea = Quelea::start(PLAIN);
    let (client, packets) = connect_v5(&quelea);
    client.subscribe("rumqttc/#", QoS::ExactlyOnce).expect("a running client");
    wait(&packets, |packet| matches!(packet, Packet::SubAck(_)).then_some(()));
    for level in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let properties = PublishProperties {
            content_type: Some("text/plain".into()),
            user_properties: vec![("a".into(), "1".into()), ("b".into(), "2".into())],
            message_expiry_interval: Some(1000),
            ..PublishProperties::default()
        };
        let topic = "rumqttc/properties";
        client
            .publish_with_properties(topic, level, false, "payload", properties.clone())
            .expect("a running client");
        let message = wait(&packets, |packet| {
            if let Packet::Publish(publish) = packet { Some(publish) } else { None }
        });
        assert_eq!((&message.topic[..], message.qos), (topic.as_bytes(), level));
        let received = message.properties.expect("the properties");
        assert_eq!(received.content_type, properties.content_type);
        assert_eq!(received.user_properties, properties.user_properties);
        assert!(received.message_expiry_interval.is_some_and(|secs| secs <= 1000));
    }
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
