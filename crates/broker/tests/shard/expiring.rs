//! What has expired takes no room in a queue (MQTT-3.3.2-5).

use crate::lab::{Conn, Got, Lab, persistent, queue, read_all, request, with_limits};
use broker::Settings;
use codec::{Packet, Property, PropertyBuf, Publish};
use session::{Overflow, QueueLimits};

const POLICIES: [Overflow; 3] = [Overflow::DropNewest, Overflow::DropOldest, Overflow::Reject];

/// Publishes these, with a lifetime or without; returns how many were refused.
fn publish(
    lab: &mut Lab,
    conn: Conn,
    numbers: std::ops::Range<u32>,
    expiry_secs: Option<u32>,
) -> usize {
    let mut properties = PropertyBuf::new();
    if let Some(secs) = expiry_secs {
        properties.push(Property::MessageExpirySecs(secs));
    }
    for number in numbers {
        let payload = number.to_string();
        let Packet::Publish(publish) = crate::lab::publish("t", payload.as_bytes(), 1, 1) else {
            unreachable!()
        };
        let properties = properties.as_properties();
        lab.send(conn, &Packet::Publish(Publish { properties, ..publish }));
    }
    let is_refusal = |got: &&Got| matches!(got, Got::Ack(_, _, reason) if reason.is_error());
    lab.take_all(conn).iter().filter(is_refusal).count()
}

fn labs(settings: &Settings) -> [Lab; 2] {
    let access = broker::Access::open();
    [Lab::with(2, settings.clone(), access), Lab::durable_with(2, settings.clone())]
}

fn texts(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|number| number.to_string()).collect()
}

#[test]
fn mqtt_3_3_2_5_what_has_expired_takes_no_room_in_the_queue_of_a_session() {
    for overflow in POLICIES {
        let rejects = overflow == Overflow::Reject;
        for (number, mut lab) in
            labs(&Settings { rejects, ..Settings::default() }).into_iter().enumerate()
        {
            for is_online in [false, true] {
                let what = format!("{overflow:?}, durable {number}, online {is_online}");
                let id = format!("subscriber-{is_online}");
                let back = || with_limits(persistent(&id), queue(10, overflow));
                let mut conn = lab.open(back());
                lab.subscribe(conn, "t", 1);
                let publisher = lab.open(request("publisher"));
                // With a window of one, the first is in flight.
                publish(&mut lab, publisher, 0..1, None);
                if !is_online {
                    lab.cut(conn);
                    conn = lab.open(back());
                    lab.cut(conn);
                }
                publish(&mut lab, publisher, 1..11, Some(2));
                lab.pass_secs(5);
                assert_eq!(publish(&mut lab, publisher, 11..16, None), 0, "{what}");
                if !is_online {
                    conn = lab.open(back());
                }
                let mut read = read_all(&mut lab, conn);
                read.dedup();
                assert_eq!(read, texts([0, 11, 12, 13, 14, 15]), "{what}");
                assert_eq!(lab.total(|metrics| &metrics.dropped_queue_full), 0, "{what}");
                lab.unsubscribe(conn, "t");
                lab.cut(conn);
                lab.cut(publisher);
            }
            assert_eq!(lab.total(|metrics| &metrics.dropped_expired), 20, "{overflow:?} {number}");
        }
    }
}

#[test]
fn mqtt_3_3_2_5_what_has_expired_takes_no_room_in_the_queue_of_a_group() {
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let standard = Settings::default().share_queue;
        let share_queue = QueueLimits { messages_max: 10, overflow, ..standard };
        for mut lab in labs(&Settings { share_queue, ..Settings::default() }) {
            let conn = lab.open(with_limits(persistent("member"), crate::lab::window(1)));
            lab.subscribe(conn, "$share/g/t", 1);
            lab.cut(conn);
            let publisher = lab.open(request("publisher"));
            publish(&mut lab, publisher, 1..11, Some(2));
            lab.pass_secs(5);
            publish(&mut lab, publisher, 11..16, None);
            let conn = lab.open(with_limits(persistent("member"), crate::lab::window(1)));
            assert_eq!(read_all(&mut lab, conn), texts(11..16), "{overflow:?}");
        }
    }
}
