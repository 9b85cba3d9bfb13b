//! Lies about everything that goes with a message: properties, retained messages, what CONNACK,
//! SUBACK and acknowledgements say. Each is told by its name, and an honest broker is not accused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Draft, Mosquitto, V5, completed_with, publish, run_on, total};
use flock::engine::BrokerAccess;
use flock::standin::{Damage, Dup, Mischief, RetainedMischief, StandIn, Unavailable, WillMischief};
use flock_measure::{Outcome, Results};
use flock_model::Expect;
use flock_report::expect::unmet;

/// What speaks against the run: what was expected otherwise, and what makes it invalid but for how
/// busy the machine was.
fn against(results: &Results) -> Vec<String> {
    let busy = ["1 % of the messages", "the busiest load thread", " of the CPU of this machine"];
    let is_busy = |words: &String| busy.iter().any(|part| words.contains(part));
    let reasons = results.validity.reasons.iter().filter(|words| !is_busy(words)).cloned();
    unmet(&Expect::default(), results).into_iter().chain(reasons).collect()
}

fn is_told(mischief: Mischief, text: &str, words: &str) {
    let told = against(&completed_with(mischief, text));
    assert!(told.iter().any(|line| line.contains(words)), "{mischief:?}: {told:?}");
}

fn is_clean(text: &str) {
    let results = completed_with(Mischief::default(), text);
    assert_eq!(against(&results), Vec::<String>::new());
    assert!(total(&results).received > 0);
    let broker = Mosquitto::start();
    let results = run_on(text, &broker.address, BrokerAccess::None);
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    assert_eq!(against(&results), Vec::<String>::new(), "mosquitto");
}

fn damaging(damage: Damage) -> Mischief {
    Mischief { damage: Some(damage), damage_every: 5, ..Mischief::default() }
}

fn five(keys: &str) -> String {
    format!("rate = \"100/s\", count = 5, payload = 16, {keys}")
}

/// Two pairs, five messages each, and a good-bye.
fn pairs(keys: &str) -> String {
    Draft::new(V5, 2).drain("1s").connected("pairs", 1).publishing(&five(keys)).leaving().text()
}

const PROPERTIES: &str = "qos = 1, expiry = \"60s\", content_type = \"a/b\", payload_format = 0, \
                          user_properties = { one = \"1\", two = \"2\" }";

#[test]
fn properties_that_are_not_those_of_the_message_are_told() {
    let text = pairs(PROPERTIES);
    is_clean(&text);
    for damage in [Damage::UserProperties, Damage::Expiry, Damage::LongerExpiry] {
        is_told(damaging(damage), &text, "2 with wrong properties");
    }
    // Nor may any come where none was sent.
    is_told(damaging(Damage::ContentType), &pairs("qos = 0"), "2 with wrong properties");
}

#[test]
fn requests_lose_neither_their_correlation_nor_their_answer() {
    let asks = publish(&five("qos = 1, reply_to = \"answers\""));
    let text = format!(
        "{}\n[topics.answers]\nnames = \"answers/{{i}}\"\ncount = 2\n\
         [subscriptions.answers]\ntopics = \"answers\"\n",
        Draft::new(V5, 2)
            .drain("1s")
            .stage(
                "connect",
                &[
                    (
                        "sub",
                        "{ connect = {} }, { subscribe = { to = \"pairs\", qos = 1, respond = 1 } }",
                    ),
                    ("pub", "{ connect = {} }, { subscribe = { to = \"answers\", qos = 1 } }"),
                ],
            )
            .stage("publish", &[("pub", &asks)])
            .leaving()
            .text()
    );
    is_clean(&text);
    is_told(damaging(Damage::Correlation), &text, "with wrong properties");
}

#[test]
fn a_subscription_identifier_is_the_one_that_was_given() {
    let subscribe = "{ connect = {} }, { subscribe = { to = \"pairs\", qos = 1, identifier = 7 } }";
    let text = Draft::new(V5, 2)
        .drain("1s")
        .stage("connect", &[("sub", subscribe), ("pub", "{ connect = {} }")])
        .publishing(&five("qos = 1"))
        .leaving()
        .text();
    is_clean(&text);
    for damage in [Damage::Identifier, Damage::IdentifierTwice] {
        is_told(damaging(damage), &text, "2 with a wrong subscription identifier");
    }
    is_told(
        damaging(Damage::Identifier),
        &pairs("qos = 1"),
        "with a wrong subscription identifier",
    );
}

#[test]
fn a_higher_qos_and_an_alias_that_nobody_allowed_are_told() {
    is_told(damaging(Damage::HigherQos), &pairs("qos = 1"), "2 with a wrong QoS");
    is_told(damaging(Damage::Alias), &pairs("qos = 0"), "protocol errors");
}

#[test]
fn a_broker_that_says_nobody_hears_it_and_delivers_is_told() {
    let deny = Mischief { deny_every: 5, ..Mischief::default() };
    is_told(deny, &pairs("qos = 1"), "2 delivered despite 0x10");
    let shared = pairs("qos = 1").replace(
        "[subscriptions.pairs]\ntopics = \"pairs\"",
        "[subscriptions.pairs]\nfilter = \"$share/g/pairs/{i}\"\ncount = 2",
    );
    is_told(deny, &shared, "2 delivered despite 0x10");
    is_clean(&shared);
}

#[test]
fn a_suback_that_grants_more_than_was_asked_for_breaks_the_protocol() {
    let more = Mischief { grants_more: true, ..Mischief::default() };
    is_told(more, &pairs("qos = 1"), "2 protocol errors");
}

#[test]
fn what_comes_to_who_has_not_subscribed_is_misrouted() {
    let text = Draft::new(V5, 1)
        .drain("300ms")
        .stage("connect", &[("sub", "{ connect = {} }"), ("pub", "{ connect = {} }")])
        .publishing(&five("qos = 0"))
        .stage("subscribe", &[("sub", "{ subscribe = { to = \"pairs\", qos = 0 } }")])
        .stage("again", &[("pub", &publish(&five("qos = 0")))])
        .leaving()
        .text();
    is_clean(&text);
    is_told(Mischief { forces: true, ..Mischief::default() }, &text, "5 misrouted");
}

#[test]
fn qos_2_messages_that_are_never_released_are_told() {
    let text = pairs("qos = 2").replace("qos = 1", "qos = 2");
    is_clean(&text);
    let endless = Mischief { unreleased_every: 5, ..Mischief::default() };
    is_told(endless, &text, "2 without PUBREL");
}

/// Five retained messages each, the last of which counts, and subscribers who come later.
fn retained(keys: &str) -> String {
    let subscribe = "{ connect = {} }, { subscribe = { to = \"pairs\", qos = 1 } }";
    let keep = publish(&five(&format!("retain = true, {keys}")));
    Draft::new(V5, 2)
        .drain("1s")
        .stage("fill", &[("pub", &format!("{{ connect = {{}} }}, {keep}"))])
        .hold("1100ms")
        .stage("subscribe", &[("sub", subscribe)])
        .leaving()
        .text()
}

#[test]
fn what_is_retained_at_qos_0_is_owed_to_who_subscribes_later() {
    is_owed_later(&retained("qos = 0"));
}

#[test]
fn what_is_retained_at_qos_1_is_owed_to_who_subscribes_later() {
    is_owed_later(&retained("qos = 1, expiry = \"1h\", content_type = \"a/b\""));
    let high = Mischief { damage_every: 1, ..damaging(Damage::HigherQos) };
    is_told(high, &retained("qos = 1"), "2 with a wrong QoS");
}

fn is_owed_later(text: &str) {
    is_clean(text);
    let forgetful = Mischief { retained: RetainedMischief::Forgotten, ..Mischief::default() };
    let latencies = completed_with(forgetful, text).latencies;
    assert!(latencies.iter().all(|latency| latency.missing == 0), "{latencies:?}");
    for (retained, words) in [
        (RetainedMischief::Forgotten, "2 lost"),
        (RetainedMischief::Stale, "2 outdated retained messages"),
        (RetainedMischief::Unmarked, "2 with a wrong retain flag"),
        (RetainedMischief::Twice, "2 duplicated"),
        (RetainedMischief::Misrouted, "2 misrouted"),
    ] {
        is_told(Mischief { retained, ..Mischief::default() }, text, words);
    }
}

#[test]
fn who_asks_for_nothing_retained_gets_nothing() {
    let ask = "to = \"pairs\", qos = 1 }";
    let text = retained("qos = 1").replace(ask, "to = \"pairs\", qos = 1, retain_handling = 2 }");
    // The stand-in knows no retain handling.
    is_told(Mischief::default(), &text, "2 with a wrong retain flag");
}

#[test]
fn what_a_connack_rules_out_is_not_sent_and_makes_the_run_invalid() {
    let no_qos = Mischief { claims_qos_0: true, ..Mischief::default() };
    let results = completed_with(no_qos, &pairs("qos = 1"));
    assert_eq!(results.totals.published_all(), 0);
    is_told(no_qos, &pairs("qos = 1"), "clients that could not finish their steps: 2");
    is_told(no_qos, &pairs("qos = 1"), "10 of 10 messages were due and not sent");

    let text = pairs("qos = 0").replace("payload = 16", "payload = 500");
    let small = Mischief { claims_packet_bytes_max: 400, ..Mischief::default() };
    let results = completed_with(small, &text);
    assert_eq!(results.totals.published_all(), 0);
    is_told(small, &text, "10 of 10 messages were due and not sent");
    let large = Mischief { claims_packet_bytes_max: 600, ..small };
    assert_eq!(against(&completed_with(large, &text)), Vec::<String>::new());
}

#[test]
fn more_in_flight_than_the_receive_maximum_breaks_the_protocol() {
    let connect = format!("{V5}\nreceive_max = 2");
    let subscribe =
        "{ connect = {} }, { subscribe = { to = \"pairs\", ack_delay = \"200ms\", qos = 1 } }";
    let text = Draft::new(&connect, 1)
        .drain("2s")
        .stage("connect", &[("sub", subscribe), ("pub", "{ connect = {} }")])
        .publishing(&five("qos = 1"))
        .leaving()
        .text();
    // The stand-in does not look at it. (Nor is mosquitto 2.0.11 an honest example: it sends two
    // for the first that is acknowledged.)
    is_told(Mischief::default(), &text, "protocol errors");
    // Two at a time are never too many, however late a busy machine lets the client answer.
    let prompt = text.replace("ack_delay = \"200ms\", ", "").replace("count = 5", "count = 2");
    assert_eq!(against(&completed_with(Mischief::default(), &prompt)), Vec::<String>::new());
}

#[test]
fn a_silent_client_is_missed_in_time() {
    let text = Draft::new("version = \"5\"\nkeep_alive = \"1s\"", 1)
        .drain("1s")
        .connected("pairs", 1)
        .publishing(&five("qos = 1"))
        .stage("leave", &[("pub", "{ disconnect = { how = \"silent\" } }")])
        .text();
    // The stand-in knows no keep-alive.
    is_told(Mischief::default(), &text, "1 silent clients not disconnected");
    let broker = Mosquitto::start();
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    assert_eq!(results.integrity.unnoticed, 0, "{:?}", results.errors);
}

#[test]
fn nobody_is_owed_his_own_messages_who_asked_for_none() {
    let steps = |no_local: bool| {
        format!(
            "{{ connect = {{}} }}, {{ subscribe = {{ to = \"pairs\", qos = 1, no_local = {no_local} }} }}"
        )
    };
    for no_local in [false, true] {
        let text = Draft::new(V5, 2)
            .drain("300ms")
            .stage("connect", &[("pub", &steps(no_local)), ("sub", &steps(false))])
            .publishing(&five("qos = 1"))
            .leaving()
            .text();
        let broker = Mosquitto::start();
        let results = run_on(&text, &broker.address, BrokerAccess::None);
        assert_eq!(against(&results), Vec::<String>::new());
        assert_eq!(total(&results).received, if no_local { 10 } else { 20 });
        if no_local {
            // The stand-in does not look at it.
            is_told(Mischief::default(), &text, "10 misrouted");
        }
    }
}

#[test]
fn what_is_younger_than_its_connection_was_not_sent_before() {
    // The stand-in says that it has a session, as an honest broker may that was used before.
    let text = Draft::new("version = \"5\"\nclean_start = false\nsession_expiry = \"1m\"", 2)
        .drain("1s")
        .connected("pairs", 1)
        .publishing(&five("qos = 1"))
        .leaving()
        .text();
    let lying = Mischief { claims_sessions: true, mark_dup_every: 5, ..Mischief::default() };
    is_told(lying, &text, "2 marked DUP on first delivery");
    let honest = Mischief { claims_sessions: true, ..Mischief::default() };
    assert_eq!(against(&completed_with(honest, &text)), Vec::<String>::new());
}

/// Two clients with a will, who leave so, and subscribers who stay for longer.
fn with_wills(how: &str) -> String {
    let subscribe = "{ connect = {} }, { subscribe = { to = \"wills\", qos = 1 } }";
    let connect = "{ connect = { will = { topics = \"wills\", qos = 1, payload = 16 } } }";
    Draft::new(V5, 2)
        .drain("500ms")
        .stage("subscribe", &[("sub", subscribe)])
        .stage("connect", &[("pub", connect)])
        .stage("leave", &[("pub", how)])
        .hold("1100ms")
        .stage("disconnect", &[("sub", "{ disconnect = {} }")])
        .text()
        + "[topics.wills]\nnames = \"wills/{i}\"\ncount = 2\n\
           [subscriptions.wills]\nfilter = \"wills/{i}\"\ncount = 2\n"
}

#[test]
fn a_will_comes_once_and_only_of_who_did_not_say_good_bye() {
    let doing = |will| Mischief { will, ..Mischief::default() };
    let broken = [
        "{ disconnect = { how = \"close\" } }",
        "{ disconnect = { how = \"message-with-will\" } }",
    ];
    for how in broken {
        let text = with_wills(how);
        is_clean_of_wills(&text, 2);
        is_told(doing(WillMischief::Forgotten), &text, "2 wills not delivered");
        is_told(doing(WillMischief::Twice), &text, "2 wills delivered again");
    }
    let text = with_wills("{ disconnect = {} }");
    is_clean_of_wills(&text, 0);
    is_told(doing(WillMischief::Always), &text, "2 wills without cause");
}

#[test]
fn a_will_comes_as_it_was_named_and_to_whoever_asked() {
    let text = with_wills("{ disconnect = { how = \"close\" } }");
    let misrouted = Mischief { will: WillMischief::Misrouted, ..Mischief::default() };
    is_told(misrouted, &text, "2 misrouted");
    // A second copy is one however it is marked.
    let again = Mischief { will: WillMischief::Twice, mark_dup_every: 2, ..Mischief::default() };
    is_told(again, &text, "2 wills delivered again");
    is_told(again, &text, "2 marked DUP on first delivery");
    let every = |damage| Mischief { damage_every: 1, ..damaging(damage) };
    let told = [
        (Damage::LowerQos, "2 with a wrong QoS"),
        (Damage::HigherQos, "2 with a wrong QoS"),
        (Damage::RetainFlag, "2 with a wrong retain flag"),
        (Damage::ContentType, "2 with wrong properties"),
        (Damage::Identifier, "2 with a wrong subscription identifier"),
    ];
    for (damage, words) in told {
        is_told(every(damage), &text, words);
    }
    let expiring = text.replace("payload = 16 }", "payload = 16, expiry = \"1h\" }");
    is_clean_of_wills(&expiring, 2);
    is_told(every(Damage::LongerExpiry), &expiring, "2 with wrong properties");
    let flag = against(&completed_with(every(Damage::RetainFlag), &text));
    assert!(!flag.iter().any(|line| line.contains("wills")), "{flag:?}");
}

#[test]
fn a_will_does_not_come_before_its_client_goes() {
    let text = with_wills("{ delay = \"2500ms\" }, { disconnect = { how = \"close\" } }");
    is_clean_of_wills(&text, 2);
    let early = Mischief { will: WillMischief::Early, ..Mischief::default() };
    is_told(early, &text, "2 wills without cause");
    is_told(early, &text, "2 wills not delivered");
}

fn is_clean_of_wills(text: &str, wills: u64) {
    let broker = Mosquitto::start();
    let honest = StandIn::start(Mischief::default()).unwrap();
    for address in [&broker.address, &honest.address] {
        let results = run_on(text, address, BrokerAccess::None);
        assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
        assert_eq!(against(&results), Vec::<String>::new(), "{address}");
        assert_eq!(results.totals.wills_received, wills);
    }
}

#[test]
fn what_is_sent_again_says_so() {
    let connect = "version = \"5\"\nclean_start = false\nsession_expiry = \"1m\"\nreconnect = true";
    let text = Draft::new(connect, 1)
        .drain("500ms")
        .connected("pairs", 2)
        .publishing(&five("qos = 2"))
        .stage(
            "cut",
            &[("", "{ fault = { cut = { clients = \"sub\", share = 1.0 } } }, { delay = \"1s\" }")],
        )
        .leaving()
        .text();
    let again = |dup| Mischief {
        sends_again: Some(dup),
        claims_sessions: true,
        unreleased_every: 5,
        ..Mischief::default()
    };
    is_told(again(Dup::Unmarked), &text, "1 sent again without DUP");
    let told = against(&completed_with(again(Dup::Marked), &text));
    assert!(!told.iter().any(|line| line.contains("DUP")), "{told:?}");
}

#[test]
fn an_identifier_comes_once_for_each_filter_that_matches() {
    let both =
        "{ connect = {} }, { subscribe = { to = [\"all\", \"pairs\"], qos = 1, identifier = 7 } }";
    let text = Draft::new(V5, 2)
        .subscription("all", "pairs/#")
        .drain("1s")
        .stage("connect", &[("sub", both), ("pub", "{ connect = {} }")])
        .publishing(&five("qos = 1"))
        .leaving()
        .text();
    // mosquitto sends one copy for each, or one copy with both.
    let broker = Mosquitto::start();
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    assert_eq!(results.integrity.wrong_identifiers, 0, "{:?}", results.errors);
}

#[test]
fn what_a_connack_says_is_not_available_is_not_used() {
    let lacks = |what| Mischief { claims_no: Some(what), ..Mischief::default() };
    let plain = pairs("qos = 1");
    let filter = |filter: &str| {
        let other = format!("[subscriptions.pairs]\nfilter = \"{filter}\"\ncount = 2");
        plain.replace("[subscriptions.pairs]\ntopics = \"pairs\"", &other)
    };
    let identified =
        plain.replace("to = \"pairs\", qos = 1 }", "to = \"pairs\", qos = 1, identifier = 7 }");
    assert_ne!(identified, plain);
    for (what, text, name) in [
        (Unavailable::Wildcards, filter("+/{i}"), "wildcard subscriptions"),
        (Unavailable::Shared, filter("$share/g/pairs/{i}"), "shared subscriptions"),
        (Unavailable::Identifiers, identified, "subscription identifiers"),
        (Unavailable::Retain, pairs("qos = 1, retain = true"), "retain"),
    ] {
        let results = completed_with(lacks(what), &text);
        let told = &results.errors[0];
        assert!(told.reason.contains(&format!("{name} ")), "{told:?}");
        assert_eq!((told.what.as_str(), told.count), ("program", 2));
        let asked = results.totals.subscribes_ok;
        assert_eq!(asked, if what == Unavailable::Retain { 2 } else { 0 }, "{what:?}");
        assert!(!results.validity.valid);
        assert_eq!(against(&completed_with(lacks(what), &plain)), Vec::<String>::new(), "{what:?}");
    }
}

/// Subscribers that come back after so long.
fn coming_back(connect: &str, away: &str) -> String {
    let connect = format!("version = \"5\"\nclean_start = false\n{connect}");
    let back = format!("{{ disconnect = {{}} }}, {{ delay = \"{away}\" }}, {{ connect = {{}} }}");
    Draft::new(&connect, 2)
        .drain("1s")
        .connected("pairs", 1)
        .publishing(&five("qos = 1"))
        .stage("return", &[("sub", &back)])
        .leaving()
        .text()
}

#[test]
fn a_session_that_had_ended_is_not_there_again() {
    let again = Mischief { claims_sessions_again: true, ..Mischief::default() };
    let text = coming_back("", "6s");
    is_told(again, &text, "2 protocol errors");
    is_clean(&text);
    // A broker may be a little late to see that a connection has ended.
    assert_eq!(completed_with(again, &coming_back("", "10ms")).integrity.breaches, 0);
    let lasting = coming_back("session_expiry = \"1m\"", "6s");
    assert_eq!(against(&completed_with(again, &lasting)), Vec::<String>::new());
}

#[test]
fn a_session_that_is_gone_early_is_told_and_one_that_expired_as_announced_is_not() {
    let text = coming_back("session_expiry = \"1m\"", "2s");
    is_told(Mischief::default(), &text, "2 persistent sessions lost");
    let announced = Mischief { claims_expiry_secs: Some(1), ..Mischief::default() };
    let results = completed_with(announced, &text);
    assert_eq!(against(&results), Vec::<String>::new());
    // Publishers connect once.
    let note = "6 connects got a shorter session expiry than asked for";
    assert!(results.validity.notes.iter().any(|one| one == note), "{:?}", results.validity);
    let longer = Mischief { claims_expiry_secs: Some(3), ..announced };
    is_told(longer, &text, "2 persistent sessions lost");
}

#[test]
fn a_session_from_before_the_run_is_noted() {
    let found = Mischief { claims_sessions: true, ..Mischief::default() };
    let results = completed_with(found, &coming_back("session_expiry = \"1m\"", "10ms"));
    let note = "4 connects found a session from before the run";
    assert!(results.validity.notes.iter().any(|one| one == note), "{:?}", results.validity);
}
