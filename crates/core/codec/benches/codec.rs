//! Nanoseconds to decode and encode the common packets.
//!
//! `cargo bench -p quelea-codec`

use std::hint::black_box;

use codec::{
    Ack, AckKind, Connect, FilterBuf, Packet, Properties, Property, PropertyBuf, Publish, QoS,
    Reason, Sender, Subscribe, SubscribeOptions, Version, decode,
};
use criterion::{Criterion, criterion_group, criterion_main};

/// 31 bytes, as topics of the field are.
const TOPIC: &str = "fleet/0042/vehicle/17/telemetry";

fn publish<'a>(qos: QoS, properties: Properties<'a>, payload: &'a [u8]) -> Packet<'a> {
    let packet_id = if qos == QoS::AtMostOnce { 0 } else { 4711 };
    Packet::Publish(Publish {
        dup: false,
        qos,
        retain: false,
        topic: TOPIC,
        packet_id,
        properties,
        payload,
    })
}

fn packets(then: &mut dyn FnMut(&str, Packet<'_>, Version)) {
    let mut buf = PropertyBuf::new();
    buf.push(Property::MessageExpirySecs(3600)).push(Property::User("trace", "0af7651916cd43dd"));
    let two = buf.as_properties();
    let none = Properties::EMPTY;
    let (small, large) = ([b'x'; 64], [b'x'; 1024]);
    let (qos0, qos1) = (QoS::AtMostOnce, QoS::AtLeastOnce);
    then("publish_qos0_64b_v311", publish(qos0, none, &small), Version::V311);
    then("publish_qos1_64b_v311", publish(qos1, none, &small), Version::V311);
    then("publish_qos0_1k_v311", publish(qos0, none, &large), Version::V311);
    then("publish_qos0_64b_v5", publish(qos0, none, &small), Version::V5);
    then("publish_qos1_64b_v5", publish(qos1, none, &small), Version::V5);
    then("publish_qos1_64b_v5_two_props", publish(qos1, two, &small), Version::V5);
    let puback = Ack::new(AckKind::Puback, 4711, Reason::SUCCESS);
    then("puback_v311", Packet::Ack(puback), Version::V311);
    then("puback_v5", Packet::Ack(puback), Version::V5);
    let mut filters = FilterBuf::new();
    filters.push("fleet/+/vehicle/+/telemetry", SubscribeOptions::new(QoS::AtLeastOnce));
    let subscribe = Subscribe { packet_id: 1, properties: none, filters: filters.as_filters() };
    then("subscribe_v5", Packet::Subscribe(subscribe), Version::V5);
    let connect = Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive_secs: 60,
        client_id: "vehicle-0042-17",
        properties: none,
        will: None,
        username: Some("fleet"),
        password: Some(b"correct horse battery"),
        bridge: false,
    };
    then("connect_v5", Packet::Connect(connect), Version::V5);
}

/// Decodes a packet and looks at it as a session would, in place.
#[inline(never)]
fn read(bytes: &[u8], version: Version) -> usize {
    match decode(bytes, version, Sender::Client, 1 << 20) {
        Ok(Some((Packet::Publish(publish), taken))) => {
            let lengths = publish.topic.len() + publish.payload.len();
            taken + lengths + usize::from(publish.packet_id) + publish.properties.raw().len()
        }
        Ok(Some((Packet::Ack(ack), taken))) => taken + usize::from(ack.packet_id),
        Ok(Some((_, taken))) => taken,
        Ok(None) | Err(_) => 0,
    }
}

fn decoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    packets(&mut |name, packet, version| {
        let mut bytes = Vec::new();
        packet.encode(version, &mut bytes);
        group.bench_function(name, |bencher| {
            bencher.iter(|| read(black_box(&bytes), version));
        });
    });
    group.finish();
}

fn encoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    packets(&mut |name, packet, version| {
        let mut out = Vec::with_capacity(4096);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                out.clear();
                black_box(&packet).encode(version, &mut out);
                black_box(out.len())
            });
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(50)
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = decoding, encoding
}
criterion_main!(benches);
