//! Pages of retained messages belong to the subscription that asked for them.

use broker::Mail;
use codec::{AckKind, FilterBuf, Packet, Property, PropertyBuf, RetainHandling, SubscribeOptions};
use rig::{Conn, Got, Lab, Received, level, persistent, request, request_with, retained, window};

/// QoS 1 and identifier 5, or QoS 0 and identifier 7.
const OLD: (u8, u32) = (1, 5);
const NEW: (u8, u32) = (0, 7);

fn ask(lab: &mut Lab, conn: Conn, packet_id: u16, filters: &[(&str, RetainHandling)], new: bool) {
    let (qos, identifier) = if new { NEW } else { OLD };
    let mut asked = FilterBuf::new();
    for (filter, retain_handling) in filters {
        let retain_handling = *retain_handling;
        asked.push(
            filter,
            SubscribeOptions { retain_handling, ..SubscribeOptions::new(level(qos)) },
        );
    }
    let mut properties = PropertyBuf::new();
    properties.push(Property::SubscriptionId(identifier));
    let (properties, filters) = (properties.as_properties(), asked.as_filters());
    lab.send_only(conn, &Packet::Subscribe(codec::Subscribe { packet_id, properties, filters }));
}

/// What came before the SUBACK of the second subscription, and behind it.
fn around_the_second(lab: &mut Lab, conn: Conn) -> (Vec<Received>, Vec<Received>) {
    let (mut before, mut behind, mut is_behind) = (Vec::new(), Vec::new(), false);
    while let Some(got) = lab.take(conn) {
        match got {
            Got::Suback(3, _) => is_behind = true,
            Got::Publish(received) => {
                if received.qos == 1 {
                    lab.ack(conn, AckKind::Puback, received.packet_id);
                }
                if is_behind { behind.push(received) } else { before.push(received) }
            }
            _ => {}
        }
    }
    assert!(is_behind, "the second subscription is acknowledged");
    (before, behind)
}

fn is_of(received: &Received, (qos, identifier): (u8, u32)) -> bool {
    received.retain && received.qos == qos && received.identifiers == [identifier]
}

fn with_one_retained(shards: u16) -> Lab {
    let mut lab = Lab::new(shards);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("t/a", b"old", 1, 1));
    lab
}

/// A second subscription, so many deliveries of mail behind the first.
fn second(
    (shards, filter, rounds): (u16, &str, usize),
    unsubscribes: bool,
    handling: RetainHandling,
) -> (Vec<Received>, Vec<Received>) {
    let mut lab = with_one_retained(shards);
    let client = lab.open(request("client"));
    ask(&mut lab, client, 1, &[(filter, RetainHandling::Always)], false);
    for _ in 0..rounds {
        lab.deliver_mail();
    }
    lab.flush();
    if unsubscribes {
        lab.unsubscribe_all(client, &[filter]);
    }
    ask(&mut lab, client, 3, &[(filter, handling)], true);
    lab.settle();
    assert!(lab.shards.iter().all(|shard| shard.waits().are_over()));
    around_the_second(&mut lab, client)
}

fn all_cases() -> impl Iterator<Item = (u16, &'static str, usize)> {
    let shards = [1, 3].into_iter();
    let filters = shards.flat_map(|shards| ["t/a", "t/#"].map(|filter| (shards, filter)));
    filters.flat_map(|(shards, filter)| (0..4).map(move |rounds| (shards, filter, rounds)))
}

#[test]
fn mqtt_3_3_1_11_nothing_that_a_subscription_before_has_asked_for_comes_with_handling_2() {
    for case in all_cases() {
        for unsubscribes in [true, false] {
            let (before, behind) = second(case, unsubscribes, RetainHandling::Never);
            assert_eq!(behind, [], "{case:?}, unsubscribed: {unsubscribes}");
            assert!(before.iter().all(|received| is_of(received, OLD)));
        }
    }
}

#[test]
fn mqtt_3_8_4_4_a_subscription_that_asks_again_gets_all_by_its_own_options() {
    for case in all_cases() {
        for unsubscribes in [true, false] {
            let (before, behind) = second(case, unsubscribes, RetainHandling::Always);
            assert!(before.iter().all(|received| is_of(received, OLD)));
            assert!(
                matches!(behind.as_slice(), [one] if is_of(one, NEW)),
                "{case:?}, unsubscribed: {unsubscribes}: {behind:?}"
            );
        }
    }
}

/// Two parts of a program that subscribe to the same filter, as handling 1 is meant for.
#[test]
fn mqtt_3_8_4_4_what_is_to_come_is_not_lost_when_handling_1_changes_the_options() {
    for case in all_cases() {
        let (before, behind) = second(case, false, RetainHandling::IfNew);
        assert!(before.iter().all(|received| is_of(received, OLD)));
        assert!(behind.iter().all(|received| is_of(received, NEW)), "{case:?}: {behind:?}");
        assert_eq!(before.len() + behind.len(), 1, "{case:?}");
        let (_, behind) = second(case, true, RetainHandling::IfNew);
        assert!(matches!(behind.as_slice(), [one] if is_of(one, NEW)), "{case:?}: {behind:?}");
    }
}

#[test]
fn the_last_entry_of_a_filter_in_a_subscribe_decides() {
    let mut lab = with_one_retained(3);
    let client = lab.open(request("client"));
    let (always, never) = (RetainHandling::Always, RetainHandling::Never);
    ask(&mut lab, client, 3, &[("t/#", always), ("t/#", never)], true);
    lab.settle();
    assert_eq!(around_the_second(&mut lab, client).1, []);
    ask(&mut lab, client, 3, &[("t/#", never), ("t/#", always)], true);
    lab.settle();
    assert_eq!(around_the_second(&mut lab, client).1.len(), 1);
}

#[test]
fn further_pages_are_of_the_subscription_that_asked_for_the_first() {
    for handling in [RetainHandling::Never, RetainHandling::Always] {
        for unsubscribes in [true, false] {
            let mut lab = Lab::new(2);
            let publisher = lab.open(request("publisher"));
            for number in 0..500 {
                lab.send(publisher, &retained(&format!("t/{number}"), b"old", 1, 1));
            }
            let client = lab.open(request_with("client", window(7)));
            ask(&mut lab, client, 1, &[("t/#", RetainHandling::Always)], false);
            lab.settle();
            if unsubscribes {
                lab.unsubscribe_all(client, &["t/#"]);
            }
            ask(&mut lab, client, 3, &[("t/#", handling)], true);
            lab.settle();
            // What the session has of the first pages comes by what it was subscribed then.
            let (_, behind) = around_the_second(&mut lab, client);
            let new = behind.iter().filter(|received| is_of(received, NEW)).count();
            let expected = if handling == RetainHandling::Always { 500 } else { 0 };
            assert_eq!(new, expected, "{handling:?}, unsubscribed: {unsubscribes}");
        }
    }
}

#[test]
fn pages_that_an_earlier_connection_has_asked_for_are_not_of_a_new_subscription() {
    for clean_start in [false, true] {
        let mut lab = with_one_retained(3);
        let first = lab.open(persistent("client"));
        ask(&mut lab, first, 1, &[("t/#", RetainHandling::Always)], false);
        let next = broker::ConnectRequest { clean_start, ..persistent("client") };
        let next = lab.connect_only(next);
        lab.unsubscribe_all(next, &["t/#"]);
        ask(&mut lab, next, 3, &[("t/#", RetainHandling::Never)], true);
        lab.settle();
        assert_eq!(around_the_second(&mut lab, next), (vec![], vec![]));
    }
}

#[test]
fn who_subscribes_and_unsubscribes_all_the_time_asks_for_no_more_pages_than_others() {
    let mut lab = with_one_retained(3);
    let client = lab.open(request("client"));
    for _ in 0..100 {
        ask(&mut lab, client, 1, &[("t/#", RetainHandling::Always)], false);
        lab.unsubscribe_all(client, &["t/#"]);
    }
    let mails = lab.shards.iter().flat_map(|shard| shard.effects().mail.iter().flatten());
    let asked = mails.filter(|mail| matches!(mail, Mail::QueryRetained(_))).count();
    assert_eq!(asked, 3, "one page of each shard is under way");
    ask(&mut lab, client, 3, &[("t/#", RetainHandling::Always)], true);
    lab.settle();
    let (before, behind) = around_the_second(&mut lab, client);
    assert_eq!((before.len(), behind.len()), (0, 1));
}
