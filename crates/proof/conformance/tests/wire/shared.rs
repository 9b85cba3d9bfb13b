//! Shared subscriptions.

use conformance::broker::granting_shared_qos_2;
use conformance::wire::{self, first};
use conformance::{Connect, Peer, Publish, Version, broker, fresh, proves};

fn shared(topic: &str) -> String {
    format!("$share/group/{topic}")
}

/// The two members of a group, of which the caller wants to know who gets the one message.
fn receiver(members: &mut Vec<Peer>, publisher: &mut Peer) -> Peer {
    let fence = fresh("fence");
    for member in members.iter_mut() {
        member.subscribe(&fence, 0);
    }
    publisher.publish(Publish::new(&fence, "x"));
    let mut chosen = None;
    for (index, member) in members.iter_mut().enumerate() {
        let packet = member.recv();
        if packet.message(member.version).topic != fence {
            assert_eq!(chosen.replace((index, packet)), None, "two members got the message");
            assert_eq!(member.recv_message().topic, fence);
        }
    }
    let (index, packet) = chosen.expect("some member gets the message");
    let mut member = members.remove(index);
    member.give_back(packet);
    member
}

fn each_message_goes_to_one_member(version: Version) {
    let topic = fresh("shared");
    let mut members = [(); 3].map(|()| Peer::connect(version));
    members.iter_mut().for_each(|member| assert_eq!(member.subscribe(shared(&topic), 1), 1));
    let mut outsider = Peer::connect(version);
    outsider.subscribe(&topic, 1);
    let mut publisher = Peer::connect(version);
    for round in 0..30u8 {
        publisher.publish(Publish::new(&topic, [round]).qos(1));
        assert_eq!(outsider.take().payload, [round]);
    }
    let fence = fresh("fence");
    members.iter_mut().for_each(|member| assert_eq!(member.subscribe(&fence, 0), 0));
    publisher.publish(Publish::new(&fence, "fence"));
    let mut arrived = Vec::new();
    for member in &mut members {
        loop {
            let message = member.take();
            if message.topic == fence {
                break;
            }
            arrived.push(message.payload[0]);
        }
    }
    arrived.sort_unstable();
    assert_eq!(arrived, (0..30).collect::<Vec<_>>());
}
proves!(each_message_goes_to_one_member: V5 [mqtt5] V311 [mqtt311]);

#[test]
fn mqtt_4_8_2_3_granted_qos_is_respected() {
    for granted in 0..3 {
        let topic = fresh("shared");
        let mut member = Peer::connect(Version::V5);
        assert_eq!(member.subscribe(shared(&topic), granted), granted);
        let mut publisher = Peer::connect(Version::V5);
        for published in 0..3 {
            publisher.publish(Publish::new(&topic, "x").qos(published));
            assert_eq!(member.take().qos, granted.min(published));
        }
    }
}

#[test]
fn mqtt_4_8_2_1_share_name_of_one_character() {
    let topic = fresh("shared");
    let mut member = Peer::connect(Version::V5);
    assert_eq!(member.subscribe(format!("$share/g/{topic}"), 0), 0);
    Peer::connect(Version::V5).publish(Publish::new(&topic, "x"));
    assert_eq!(member.take().topic, topic);
}

#[test]
fn groups_of_different_names_each_get_the_message() {
    let topic = fresh("shared");
    let mut members = ["one", "two"].map(|group| {
        let mut member = Peer::connect(Version::V5);
        member.subscribe(format!("$share/{group}/{topic}"), 0);
        member
    });
    Peer::connect(Version::V5).publish(Publish::new(&topic, "x"));
    members.iter_mut().for_each(|member| assert_eq!(member.take().payload, b"x"));
}

#[test]
fn shared_subscriptions_get_no_retained_messages() {
    let topic = fresh("shared");
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "kept").qos(1).retain());
    let mut member = Peer::connect(Version::V5);
    member.subscribe(shared(&topic), 1);
    member.expect_nothing_from(&mut publisher);
    publisher.publish(Publish::new(&topic, "").retain());
}

#[test]
fn unsubscribing_leaves_the_group() {
    let topic = fresh("shared");
    let mut leaver = Peer::connect(Version::V5);
    let mut stayer = Peer::connect(Version::V5);
    leaver.subscribe(shared(&topic), 1);
    stayer.subscribe(shared(&topic), 1);
    assert_eq!(leaver.unsubscribe(&[&shared(&topic)]).reasons, [0]);
    let mut publisher = Peer::connect(Version::V5);
    for round in 0..10u8 {
        publisher.publish(Publish::new(&topic, [round]).qos(1));
        assert_eq!(stayer.take().payload, [round]);
    }
    leaver.expect_nothing_from(&mut publisher);
}

/// The exchange of QoS 2 has begun with one member, so that member gets the message.
#[test]
fn mqtt_4_8_2_4_delivery_is_completed_when_the_member_returns() {
    let (address, _broker) = granting_shared_qos_2();
    let topic = fresh("shared");
    let connect = Connect::new(Version::V5).persistent();
    let mut member = connect.open_at(address);
    member.subscribe(shared(&topic), 2);
    let mut publisher = Connect::new(Version::V5).open_at(address);
    publisher.publish(Publish::new(&topic, "x").qos(2));
    let sent = member.recv_message();
    member.vanish();
    let mut other = Connect::new(Version::V5).open_at(address);
    other.subscribe(shared(&topic), 2);
    other.expect_nothing_from(&mut publisher);
    let mut member = connect.open_at(address);
    let resent = member.take();
    assert_eq!((resent.packet_id, resent.dup), (sent.packet_id, true));
}

#[test]
fn mqtt_4_8_2_5_a_started_qos_2_message_goes_to_nobody_else() {
    let (address, _broker) = granting_shared_qos_2();
    let topic = fresh("shared");
    let connect = Connect::new(Version::V5).persistent();
    let mut member = connect.open_at(address);
    member.subscribe(shared(&topic), 2);
    let mut publisher = Connect::new(Version::V5).open_at(address);
    publisher.publish(Publish::new(&topic, "x").qos(2));
    member.recv_message();
    let mut other = Connect::new(Version::V5).open_at(address);
    other.subscribe(shared(&topic), 2);
    member.vanish();
    // The session ends here.
    Connect::new(Version::V5).id(&connect.client_id).open_at(address).disconnect();
    other.expect_nothing_from(&mut publisher);
}

#[test]
fn mqtt_4_8_2_6_a_message_that_a_member_refuses_is_discarded() {
    for (qos, ack) in [(1, first::PUBACK), (2, first::PUBREC)] {
        let topic = fresh("shared");
        let mut members: Vec<_> = (0..2).map(|_| Peer::connect(Version::V5)).collect();
        members
            .iter_mut()
            .for_each(|member| assert_eq!(member.subscribe(shared(&topic), qos), qos));
        let mut publisher = Peer::connect(Version::V5);
        publisher.publish(Publish::new(&topic, "x").qos(qos));
        let mut chosen = receiver(&mut members, &mut publisher);
        let id = chosen.recv_message().packet_id;
        chosen.send(wire::ack_with(ack, id, 0x83));
        chosen.ping();
        members[0].expect_nothing_from(&mut publisher);
    }
}

/// QoS 1 may go to another member when one leaves with it unacknowledged; ours does.
#[test]
fn unacknowledged_qos_1_goes_back_to_the_group() {
    if !broker::is_ours() {
        return;
    }
    let topic = fresh("shared");
    let mut members: Vec<_> = (0..2).map(|_| Peer::connect(Version::V5)).collect();
    members.iter_mut().for_each(|member| assert_eq!(member.subscribe(shared(&topic), 1), 1));
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "x").qos(1));
    receiver(&mut members, &mut publisher).vanish();
    assert_eq!(members[0].take().payload, b"x");
}
