//! What a fault excuses, and what it does not: second copies, and losses around the moment at which
//! a subscriber comes, leaves or comes back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Draft, LASTING, Mosquitto, V5, completed_with, publish, run_on, total};
use flock::engine::BrokerAccess;
use flock::standin::{Mischief, StandIn};
use flock_measure::figures::{Verdict, verdicts};
use flock_measure::{Outcome, Results};
use flock_model::Expect;
use flock_report::expect::unmet;

/// What is not met though any number of duplicates is allowed.
fn unmet_by_any(results: &Results) -> Vec<String> {
    unmet(&Expect { duplicated_max: None, ..Expect::default() }, results)
}

/// Ten subscribers, of which one is cut and comes back, and messages before and after it.
fn one_cut(qos: u8, shares: bool) -> String {
    let how = format!("qos = {qos}, rate = \"200/s\", count = 10, payload = 16");
    let cut = "{ fault = { cut = { clients = \"sub\", share = 0.1 } } }, { delay = \"1s\" }";
    let text = Draft::new(&format!("{V5}\nreconnect = true"), 10)
        .drain("2s")
        .connected("pairs", qos)
        .publishing(&how)
        .hold("200ms")
        .stage("cut", &[("", cut)])
        .publishing(&how)
        .leaving()
        .text();
    let shared = "[subscriptions.pairs]\nfilter = \"$share/g/pairs/{i}\"\ncount = 10\n\
                  assign = \"all\"";
    match shares {
        true => text.replace("[subscriptions.pairs]\ntopics = \"pairs\"", shared),
        false => text,
    }
}

#[test]
fn one_connection_that_was_cut_excuses_no_second_copy_on_the_others() {
    for qos in 0..2 {
        let text = one_cut(qos, false);
        let results =
            completed_with(Mischief { duplicate_every: 10, ..Mischief::default() }, &text);
        assert_eq!(results.totals.connections_cut, 1);
        let found = total(&results);
        assert_eq!((found.duplicated, found.duplicated_without_cause()), (20, 20), "QoS {qos}");
        assert_eq!(unmet_by_any(&results), ["20 duplicated without cause, 0 allowed"]);
        let told = verdicts(&results);
        let line = told.iter().find(|(_, words)| words.contains("20 duplicated without cause"));
        assert!(line.is_some_and(|(is, _)| *is == Verdict::Bad), "{told:?}");
        let honest = completed_with(Mischief::default(), &text);
        assert_eq!((total(&honest).duplicated, unmet_by_any(&honest)), (0, Vec::new()));
    }
}

#[test]
fn a_connection_that_was_cut_excuses_no_repeat_at_qos_2_on_the_next() {
    // All come back, and have what is published then over one connection.
    let text = one_cut(2, false).replace("share = 0.1", "share = 1.0");
    let mischief = Mischief { repeat_every: 20, mark_dup_every: 20, ..Mischief::default() };
    let found = total(&completed_with(mischief, &text));
    assert_eq!((found.duplicated, found.duplicated_without_cause()), (10, 10), "{found:?}");
}

#[test]
fn one_member_that_was_cut_excuses_no_second_copy_in_its_group_at_another_time() {
    let text = one_cut(1, true);
    let honest = completed_with(Mischief::default(), &text);
    assert_eq!((total(&honest).duplicated, unmet_by_any(&honest)), (0, Vec::new()));
    // To the same member, and to another, which another thread may run.
    for (mischief, copies) in [
        (Mischief { duplicate_every: 10, ..Mischief::default() }, 20),
        // When copies at members on different threads came is not known.
        (Mischief { share_twice_every: 2, ..Mischief::default() }, 50),
    ] {
        let found = total(&completed_with(mischief, &text));
        assert!(found.duplicated_without_cause() >= copies, "{found:?}");
    }
}

/// Two subscribers that acknowledge too late for any run and lose their connection meanwhile.
fn unacknowledged(connect: &str) -> String {
    let subscribe = "subscribe = { to = \"pairs\", qos = 1, ack_delay = \"60s\" }";
    let cut = "{ fault = { cut = { clients = \"sub\", share = 1.0 } } }, { delay = \"1s\" }";
    Draft::new(connect, 2)
        .drain("3s")
        .stage(
            "connect",
            &[
                ("sub", &format!("{{ connect = {{}} }}, {{ {subscribe} }}")),
                ("pub", "{ connect = {} }"),
            ],
        )
        .publishing("qos = 1, rate = \"100/s\", count = 5, payload = 16")
        .hold("500ms")
        .stage("cut", &[("", cut)])
        .leaving()
        .text()
}

#[test]
fn what_a_resumed_session_brings_again_has_its_cause() {
    let broker = Mosquitto::start();
    let results = run_on(&unacknowledged(LASTING), &broker.address, BrokerAccess::None);
    let found = total(&results);
    assert_eq!((found.duplicated, found.duplicated_without_cause()), (10, 0), "{found:?}");
    assert_eq!(unmet_by_any(&results), Vec::<String>::new());
    assert_eq!(unmet(&Expect::default(), &results), ["10 duplicated, 0 allowed"]);
}

#[test]
fn what_a_member_that_is_lost_had_not_acknowledged_may_go_to_another() {
    let text = unacknowledged(V5).replace(
        "[subscriptions.pairs]\ntopics = \"pairs\"",
        "[subscriptions.pairs]\nfilter = \"$share/g/pairs/{i}\"\ncount = 2\nassign = \"all\"",
    );
    // Only the first member is cut; its messages go to the other.
    let text = text.replace("share = 1.0", "share = 0.5");
    let broker = Mosquitto::start();
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    assert_eq!(total(&results).duplicated_without_cause(), 0, "{:?}", total(&results));
}

/// Subscribers that do this while their publishers publish for four seconds.
fn meanwhile(connect: &str, before: &str, steps: &str, qos: u8) -> Draft {
    let how = format!("qos = {qos}, rate = \"50/s\", count = 200, payload = 16");
    Draft::new(connect, 2)
        .drain("1s")
        .stage("connect", &[("pub", "{ connect = {} }"), ("sub", before)])
        .stage("publish", &[("pub", &publish(&how)), ("sub", steps)])
}

const CONNECT: &str = "{ connect = {} }";

fn subscribe(qos: u8) -> String {
    format!("{{ subscribe = {{ to = \"pairs\", qos = {qos} }} }}")
}

fn as_group(text: &str) -> String {
    text.replace(
        "[subscriptions.pairs]\ntopics = \"pairs\"",
        "[subscriptions.pairs]\nfilter = \"$share/g/pairs/{i}\"\ncount = 2\nassign = \"all\"",
    )
}

/// Of 400 messages, those that are owed for certain are lost and counted, and no others.
fn is_owed(mischief: Mischief, text: &str, owed: std::ops::Range<u64>) {
    let results = completed_with(mischief, text);
    let found = total(&results);
    assert!(owed.contains(&found.lost), "{found:?}");
    assert_eq!(found.lost + found.received + found.unjudged, 400, "{found:?}");
    assert!(!unmet_by_any(&results).is_empty());
}

fn is_honest(text: &str) {
    let honest = StandIn::start(Mischief::default()).unwrap();
    let broker = Mosquitto::start();
    for address in [&honest.address, &broker.address] {
        let results = run_on(text, address, BrokerAccess::None);
        assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
        let found = total(&results);
        assert_eq!((found.lost, found.duplicated, unmet_by_any(&results)), (0, 0, Vec::new()));
        assert!(found.received > 0);
    }
}

#[test]
fn what_is_sent_a_while_after_the_suback_is_owed() {
    let deaf = Mischief { forgets_newcomers: true, ..Mischief::default() };
    for (qos, shares) in [(0, false), (1, false), (1, true)] {
        let late = format!("{{ delay = \"1s\" }}, {}", subscribe(qos));
        let plain = meanwhile(V5, CONNECT, &late, qos).leaving().text();
        let text = if shares { as_group(&plain) } else { plain };
        // Three of four seconds, less the margin of the run and 0.1 s.
        is_owed(deaf, &text, 50..301);
        is_honest(&text);
    }
}

#[test]
fn what_is_sent_a_while_ahead_of_leaving_is_owed() {
    let silent = Mischief { lose_every: 1, ..Mischief::default() };
    for how in ["{ disconnect = {} }", "{ unsubscribe = \"pairs\" }"] {
        let before = format!("{CONNECT}, {}", subscribe(1));
        let text =
            meanwhile(V5, &before, &format!("{{ delay = \"3s\" }}, {how}"), 1).leaving().text();
        // Up to the end of the second second, or a little later.
        is_owed(silent, &text, 150..401);
        is_honest(&text);
    }
}

#[test]
fn a_subscriber_that_comes_back_is_owed_what_is_sent_a_while_later() {
    let deaf = Mischief { forgets_newcomers: true, ..Mischief::default() };
    let connect = format!("{V5}\nreconnect = true");
    let before = format!("{CONNECT}, {}", subscribe(1));
    let text = |steps: &str, how: &str| {
        let draft = meanwhile(&connect, &before, steps, 1).leaving().text();
        let cut = format!("[[stage.do]]\nsteps = [{{ delay = \"1s\" }}, {how}]\n");
        draft.replace(
            "[[stage]]\nname = \"disconnect\"",
            &format!("{cut}[[stage]]\nname = \"disconnect\""),
        )
    };
    let cut = "{ fault = { cut = { clients = \"sub\", share = 1.0 } } }";
    let broken = text("{ delay = \"1s\" }", cut);
    is_owed(deaf, &broken, 50..301);
    is_honest(&broken);
    let leave = "{ unsubscribe = \"pairs\" }";
    let again = format!("{{ delay = \"1s\" }}, {leave}, {}", subscribe(1));
    let left = meanwhile(V5, &before, &again, 1).leaving().text();
    is_owed(deaf, &left, 50..301);
    is_honest(&left);
}

#[test]
fn a_group_whose_members_were_all_away_is_owed_nothing_of_that_time() {
    let connect = format!("{V5}\nreconnect = true");
    let before = format!("{CONNECT}, {}", subscribe(1));
    let draft = meanwhile(&connect, &before, "{ delay = \"1s\" }", 1).leaving().text();
    let cut = "[[stage.do]]\nsteps = [{ delay = \"1s\" }, { fault = { cut = { clients = \"sub\", \
               share = 1.0 } } }]\n[[stage]]\nname = \"disconnect\"";
    let text = as_group(&draft.replace("[[stage]]\nname = \"disconnect\"", cut));
    is_honest(&text);
    let deaf = Mischief { forgets_newcomers: true, ..Mischief::default() };
    is_owed(deaf, &text, 50..301);
}
