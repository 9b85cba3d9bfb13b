//! Requests and answers against a real broker: the round trip is measured, and what is not answered
//! is counted one by one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Mosquitto, drained_for, run_on};
use flock::engine::BrokerAccess;
use flock::standin::{Damage, Mischief, StandIn};
use flock_measure::{LatencyKind, Results};

/// Ten clients that ask, two that answer with these keys, and so many requests of each.
fn asking(answering: &str, qos: u8, drain: &str) -> String {
    let text = format!(
        r#"
id = "t"
title = "t"
drain = "60s"
[connect]
version = "5"
[clients.service]
count = 2
[clients.asker]
count = 10
[topics.requests]
names = "rr/ask/{{i}}"
count = 10
[topics.answers]
names = "rr/answer/{{i}}"
count = 10
[subscriptions.work]
topics = "requests"
share = "services"
assign = "all"
[subscriptions.answers]
topics = "answers"
[[stage]]
name = "connect"
[[stage.do]]
clients = "service"
steps = [{{ connect = {{}} }}, {{ subscribe = {{ to = "work", qos = {qos}{answering} }} }}]
[[stage.do]]
clients = "asker"
steps = [{{ connect = {{}} }}, {{ subscribe = {{ to = "answers", qos = {qos} }} }}]
[[stage]]
name = "publish"
measured = true
[[stage.do]]
clients = "asker"
steps = [{{ publish = {{ to = "requests", reply_to = "answers", qos = {qos}, rate = "50/s", count = 20, payload = 32 }} }}]
[[stage]]
name = "disconnect"
[[stage.do]]
clients = "asker"
steps = [{{ disconnect = {{}} }}]
"#
    );
    drained_for(text, drain)
}

/// What a broker that does this to every twentieth delivery makes of it: the half of them are
/// answers.
fn lied_to(mischief: Mischief) -> Results {
    let broker = StandIn::start(mischief).unwrap();
    run_on(&asking(", respond = 1", 1, "300ms"), &broker.address, BrokerAccess::None)
}

#[test]
fn what_is_done_to_answers_is_seen_as_it_is_of_other_messages() {
    let damaged = |damage| {
        let damage_every = 20;
        lied_to(Mischief { damage: Some(damage), damage_every, ..Mischief::default() })
    };
    let honest = lied_to(Mischief::default());
    assert!(honest.integrity.is_clean(), "{:?}", honest.integrity);
    for (damage, named) in [
        (Damage::Payload, "damaged"),
        (Damage::LowerQos, "with a wrong QoS"),
        (Damage::RetainFlag, "with a wrong retain flag"),
        (Damage::Topic, "with a wrong topic"),
    ] {
        let results = damaged(damage);
        let wrongs = results.integrity.wrongs();
        let found = wrongs.iter().find(|(what, _)| *what == named).map_or(0, |(_, count)| *count);
        // A request that is damaged comes back as it is.
        assert!(found >= 20, "{damage:?}: {wrongs:?}");
        let unmet = flock_report::expect::unmet(&flock_model::Expect::default(), &results);
        assert!(unmet.iter().any(|line| line.contains(named)), "{unmet:?}");
    }
}

#[test]
fn answers_that_come_twice_fail_the_run() {
    let results = lied_to(Mischief { duplicate_every: 20, ..Mischief::default() });
    assert!(results.totals.answers_unasked > 0, "{:?}", results.totals);
    let unmet = flock_report::expect::unmet(&flock_model::Expect::default(), &results);
    assert!(unmet.iter().any(|line| line.contains("answers without cause, 0")), "{unmet:?}");
    let page = flock_report::summary(&results);
    assert!(page.contains("NOT OK                all 200 requests were answered;"), "{page}");
}

#[test]
fn one_connection_that_was_cut_excuses_no_second_answer() {
    let cut = "[[stage]]\nname = \"cut\"\n[[stage.do]]\nsteps = [{ fault = { cut = { clients = \
               \"asker\", share = 0.1 } } }, { delay = \"500ms\" }]\n[[stage]]\nname = \"publish\"";
    let text = asking(", respond = 1", 1, "300ms")
        .replace("version = \"5\"", "version = \"5\"\nreconnect = true")
        .replace("[[stage]]\nname = \"publish\"", cut);
    let run = |mischief| {
        let broker = StandIn::start(mischief).unwrap();
        run_on(&text, &broker.address, BrokerAccess::None)
    };
    let any = flock_model::Expect { duplicated_max: None, ..flock_model::Expect::default() };
    let results = run(Mischief { duplicate_every: 20, ..Mischief::default() });
    assert_eq!(results.totals.connections_cut, 1);
    let unmet = flock_report::expect::unmet(&any, &results);
    assert!(unmet.iter().any(|line| line.contains("answers without cause, 0")), "{unmet:?}");
    let page = flock_report::summary(&results);
    assert!(page.contains("NOT OK                all 200 requests were answered;"), "{page}");
    let honest = run(Mischief::default());
    assert_eq!(flock_report::expect::unmet(&any, &honest), Vec::<String>::new());
}

fn round_trips(results: &Results) -> (u64, u64) {
    let trips = results.latencies.iter().filter(|one| one.kind == LatencyKind::RoundTrip);
    trips.fold((0, 0), |sum, one| (sum.0 + one.summary.count, sum.1 + one.unfinished))
}

#[test]
fn every_request_is_matched_with_its_answer() {
    let broker = Mosquitto::start();
    for qos in [0, 1] {
        let text = asking(&format!(", respond = {qos}"), qos, "60s");
        let results = run_on(&text, &broker.address, BrokerAccess::None);
        let totals = results.totals;
        assert_eq!((totals.requests, totals.answers_sent), (200, 200), "QoS {qos}");
        assert_eq!((totals.answers, totals.answers_unasked), (200, 0), "QoS {qos}");
        assert_eq!(totals.requests_unanswered, 0);
        assert_eq!(round_trips(&results), (200, 0));
        // The requests themselves are judged as any message, and answers are none of those.
        let integrity = results.integrity.total();
        assert_eq!((integrity.received, integrity.lost), (200, 0), "{:?}", results.integrity);
        assert!(results.integrity.is_clean(), "{:?}", results.integrity);
        assert!(results.series.iter().any(|second| second.round_trip.count > 0));
    }
}

#[test]
fn a_request_without_an_answer_is_counted_and_its_wait_is_in_the_latency() {
    let broker = Mosquitto::start();
    // The services listen, and say nothing.
    let text = asking("", 1, "300ms");
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    let totals = results.totals;
    assert_eq!((totals.requests, totals.answers, totals.requests_unanswered), (200, 0, 200));
    assert_eq!(round_trips(&results), (200, 200));
    assert_eq!(results.integrity.total().lost, 0, "the requests arrived");
    let unmet = flock_report::expect::unmet(&flock_model::Expect::default(), &results);
    assert!(unmet.iter().any(|line| line.contains("200 requests without an answer")), "{unmet:?}");
    let page = flock_report::summary(&results);
    assert!(page.contains("200 of 200 requests were not answered"), "{page}");
}
