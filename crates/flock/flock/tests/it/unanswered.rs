//! What a broker does not answer, or answers and does not mean, is not left out of the figures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Draft, V5, run_with};
use flock::standin::Mischief;
use flock_measure::figures::Figures;
use flock_measure::threshold::Threshold;
use flock_measure::{LatencyKind, Outcome, Results, Second};

const FIVE: &str = "qos = 1, rate = \"100/s\", count = 5, payload = 16";

/// With a length for the stage of this name.
fn lasting(text: &str, stage: &str, time: &str) -> String {
    let name = format!("name = \"{stage}\"\n");
    text.replace(&name, &format!("{name}duration = \"{time}\"\n"))
}

#[test]
fn a_connect_that_is_tried_again_counts_from_its_first_attempt() {
    let again = format!("{V5}\ntimeout = \"300ms\"\nretries = 3\nretry_interval = \"50ms\"");
    let text = Draft::new(&again, 1).connected("pairs", 1).publishing(FIVE).leaving().text();
    let results = run_with(Mischief { ignore_connects: 2, ..Mischief::default() }, &text);
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    let connect = results.latency(LatencyKind::Connect, None).unwrap();
    assert_eq!((connect.summary.count, connect.unfinished), (2, 0));
    assert!(connect.summary.p50_us >= 340_000, "{:?}", connect.summary);
}

#[test]
fn a_connect_that_is_never_answered_has_a_latency() {
    let text = Draft::new(&format!("{V5}\ntimeout = \"300ms\""), 1).connected("pairs", 1).text();
    let results = run_with(Mischief { ignore_connects: 1, ..Mischief::default() }, &text);
    let connect = results.latency(LatencyKind::Connect, None).unwrap();
    assert_eq!((connect.summary.count, connect.unfinished), (2, 1));
    assert!(connect.summary.max_us >= 290_000, "{:?}", connect.summary);
}

#[test]
fn a_client_without_an_answer_at_the_end_of_its_stage_makes_the_run_invalid() {
    let text = Draft::new(V5, 1).connected("pairs", 1).publishing(FIVE).leaving().drain("300ms");
    let results = run_with(
        Mischief { ignore_subscribes: true, ..Mischief::default() },
        &lasting(&text.text(), "connect", "2s"),
    );
    assert_eq!(results.run.outcome, Outcome::Completed);
    let reason = &results.validity.reasons[0];
    assert_eq!(reason, "clients that could not finish their steps: 1");
}

#[test]
fn a_subscribe_that_is_never_answered_does_not_keep_the_run_for_ever() {
    let text = Draft::new(&format!("{V5}\ntimeout = \"300ms\""), 1)
        .connected("pairs", 1)
        .publishing(FIVE)
        .leaving()
        .drain("300ms");
    let mischief = Mischief { ignore_subscribes: true, ..Mischief::default() };
    let results = run_with(mischief, &text.text());
    assert_eq!(results.run.outcome, Outcome::Completed);
    let reason = &results.validity.reasons[0];
    assert_eq!(reason, "clients that could not finish their steps: 1");
    let told = results.errors.iter().find(|error| error.what == "program").unwrap();
    assert!(told.reason.contains("no answer to SUBSCRIBE"), "{told:?}");
}

#[test]
fn a_broker_that_stands_still_does_not_hold_connections() {
    let text =
        Draft::new(V5, 2).drain("300ms").connected("pairs", 1).hold("1200ms").leaving().text();
    for (ignore_pings, lost) in [(false, 0), (true, 4)] {
        let results = run_with(Mischief { ignore_pings, ..Mischief::default() }, &text);
        assert_eq!(results.run.outcome, Outcome::Completed);
        assert_eq!(results.totals.connections_lost, lost);
        let told = format!("connections lost without a fault: {lost}");
        assert_eq!(results.validity.reasons.contains(&told), lost > 0, "{:?}", results.validity);
    }
}

#[test]
fn what_a_publisher_was_to_send_that_never_got_in_counts() {
    let publish = common::publish("qos = 1, rate = \"100/s\", payload = 16");
    let steps = format!("{{ connect = {{}} }}, {publish}");
    let text = Draft::new(V5, 2).stage("publish", &[("pub", &steps)]).text();
    let results = run_with(
        Mischief { ignore_connects: 1, ..Mischief::default() },
        &lasting(&text, "publish", "2s"),
    );
    let totals = &results.totals;
    assert!((190..=200).contains(&totals.publishes_skipped), "{totals:?}");
    assert!(!results.validity.valid, "{:?}", results.validity);
}

#[test]
fn what_comes_after_an_unsubscribe_is_misrouted() {
    let text = Draft::new(V5, 1)
        .drain("300ms")
        .connected("pairs", 1)
        .publishing(FIVE)
        .stage("unsubscribe", &[("sub", "{ unsubscribe = \"pairs\" }")])
        .stage("again", &[("pub", &common::publish(FIVE))])
        .leaving()
        .text();
    for (keeps_subscriptions, misrouted) in [(false, 0), (true, 5)] {
        let mischief = Mischief { keeps_subscriptions, ..Mischief::default() };
        let results = run_with(mischief, &text);
        assert_eq!(results.run.outcome, Outcome::Completed);
        assert_eq!(results.integrity.misrouted, misrouted, "{:?}", results.integrity);
        assert_eq!(common::total(&results).lost, 0);
    }
}

#[test]
fn a_run_of_which_the_broker_refused_a_part_is_not_valid() {
    let text = Draft::new(V5, 1).drain("300ms").connected("pairs", 1).publishing(FIVE).leaving();
    let mischief = Mischief { refuse_every: 5, ..Mischief::default() };
    let results = run_with(mischief, &text.text());
    let reason = &results.validity.reasons[0];
    assert_eq!(reason, "messages refused by the broker: 1");
    assert_eq!(common::total(&results).lost, 0, "nobody promised it");
}

#[test]
fn a_session_after_a_clean_start_breaks_the_protocol() {
    let text = Draft::new(V5, 1).connected("pairs", 1).text();
    let results = run_with(Mischief { claims_sessions: true, ..Mischief::default() }, &text);
    assert!(matches!(results.run.outcome, Outcome::Failed(_)), "{:?}", results.run.outcome);
    let told = results.errors.iter().find(|error| error.what == "protocol").unwrap();
    assert!(told.reason.contains("MQTT-3.2.2-2"), "{told:?}");
}

#[test]
fn a_rate_at_which_nothing_is_acknowledged_does_not_hold() {
    let keys = "latency_max = \"10s\"\nrate_min = 400\nrate_max = 400";
    let text =
        common::drained_for(common::searching(10, keys), "300ms").replace("qos = 0", "qos = 1");
    let results = run_with(Mischief { acknowledge_after: u64::MAX, ..Mischief::default() }, &text);
    let found = results.rate_search.unwrap();
    assert_eq!(found.rate_held, 0.0, "{found:#?}");
    assert!(found.steps.iter().all(|step| step.why.contains("not acknowledged")), "{found:#?}");
}

/// Two pairs whose publishers go on for `time`, and a broker that is gone after 100 messages.
fn with_a_broker_that_dies(how: &str, time: &str) -> Results {
    let publish = format!("payload = 16, {how}");
    let text = Draft::new(V5, 2).drain("300ms").connected("pairs", 0).publishing(&publish).text();
    let text = lasting(&text, "publish", time).replace("duration", "measured = true\nduration");
    run_with(Mischief { die_after: 100, ..Mischief::default() }, &text)
}

#[test]
fn a_broker_that_dies_is_measured_by_all_of_the_planned_time() {
    // Dead after one second of four.
    let results = with_a_broker_that_dies("qos = 0, rate = \"50/s\"", "4s");
    let figures = Figures::of(&results);
    let (sent, came) = (figures.published_per_sec.unwrap(), figures.received_per_sec.unwrap());
    // What was sent ahead of the stage may come in it: of each pair, one a second at the most.
    assert!(came > 0.0 && came <= sent + 2.0 && sent < 100.0, "{sent} and {came} per second");
    let met = Threshold::parse("received_per_sec >= 40").unwrap().unmet(&results);
    assert!(met.is_some_and(|words| words.contains("expected")));
    assert!(flock_report::html(&results).contains("Shaded: messages were due"));
    // What was due stays due.
    let phase = results.phases.iter().find(|phase| phase.measured).unwrap();
    assert!(phase.to_secs - phase.from_secs >= 3.9, "{phase:?}");
    let is_whole = |second: &&Second| {
        let to = f64::from(second.at_secs);
        phase.from_secs <= to - 1.0 && to <= phase.to_secs
    };
    // In every second, early or late as a busy machine tells it, and 400 in all.
    let due: Vec<u64> = results.series.iter().filter(is_whole).map(|one| one.scheduled).collect();
    assert!(due.len() >= 2 && due.iter().all(|due| *due > 0), "{due:?}");
    let (skipped, sent) = (results.totals.publishes_skipped, results.totals.published_all());
    assert_eq!(skipped + sent, 400, "{:?}", results.totals);
    assert!(sent >= 100 && skipped > 0, "{sent} and {skipped}");
}

#[test]
fn a_closed_loop_is_measured_by_all_of_the_planned_time_as_well() {
    let results = with_a_broker_that_dies("qos = 1, in_flight = 1", "3s");
    let figures = Figures::of(&results);
    let came = figures.received_per_sec.unwrap();
    let most = results.totals.received_all() as f64 / 2.0;
    // Of whole seconds in it, there are two at least.
    assert!(most > 0.0 && came <= most, "{came} of {most} per second: {:?}", results.series);
}

#[test]
fn publishers_that_never_got_in_have_messages_due() {
    let text = Draft::new(&format!("{V5}\ntimeout = \"300ms\""), 2)
        .stage("arrive", &[("pub", "{ connect = {} }")])
        .publishing("qos = 0, payload = 16, rate = \"50/s\"")
        .text();
    let text = lasting(&text, "publish", "3s").replace("duration", "measured = true\nduration");
    // One of the two is not let in.
    let results = run_with(Mischief { ignore_connects: 1, ..Mischief::default() }, &text);
    let due: u64 = results.series.iter().map(|second| second.scheduled).sum();
    // 300 in three seconds; of one publisher it would be half as many.
    assert!(due > 225, "{due}: {:?}", results.series);
}

#[test]
fn a_run_without_one_latency_is_not_valid() {
    let told = |payload: u64, mischief: Mischief| {
        let how = format!("qos = 0, rate = \"100/s\", count = 5, payload = {payload}");
        let text = Draft::new(V5, 1).drain("300ms").connected("pairs", 0).publishing(&how);
        run_with(mischief, &text.leaving().text()).validity.reasons
    };
    let is_told = |reasons: &[String], why: &str| {
        let words = format!("no message latency was measured: {why}");
        reasons.iter().any(|reason| reason.contains(&words))
    };
    assert!(is_told(&told(8, Mischief::default()), "payloads below 16 B have no stamp"));
    let none = Mischief { lose_every: 1, ..Mischief::default() };
    assert!(is_told(&told(16, none), "no message arrived or was acknowledged"));
    assert!(!is_told(&told(16, Mischief::default()), ""));
    // Nor is one due that nobody wants to measure.
    let text = Draft::new(V5, 1).drain("300ms").connected("pairs", 0);
    let text = text.publishing("qos = 0, rate = \"100/s\", count = 5, payload = 16").hold("100ms");
    let text = text.leaving().text().replace("\"hold\"", "\"hold\"\nmeasured = true");
    assert!(!is_told(&run_with(Mischief::default(), &text).validity.reasons, ""));
}

/// What a limit says of the run; empty if it is met.
fn said(results: &Results, limit: &str) -> String {
    Threshold::parse(limit).unwrap().unmet(results).unwrap_or_default()
}

#[test]
fn a_broker_that_drops_messages_is_not_faster_for_it() {
    let how = "rate = \"100/s\", count = 50, payload = 16";
    for qos in [0, 1] {
        let text = Draft::new(V5, 2).drain("1s").connected("pairs", qos);
        let text = text.publishing(&format!("qos = {qos}, {how}")).leaving().text();
        let results = run_with(Mischief { lose_every: 20, ..Mischief::default() }, &text);
        let figures = Figures::of(&results);
        assert_eq!((figures.latency_missing, figures.p99_us), (5, None), "QoS {qos}");
        assert!(figures.p90_us.is_some() && figures.max_us.is_some());
        for limit in ["p99 <= 60s", "max <= 60s", "end_to_end.p99 <= 60s"] {
            let told = said(&results, limit);
            assert!(told.contains("is unknown") && told.contains("5 of 100 (5 %)"), "{told}");
        }
        assert_eq!(said(&results, "p90 <= 60m"), "");
        let forms = [
            flock_report::summary(&results),
            flock_report::html(&results),
            flock_report::markdown(&results),
        ];
        for text in forms {
            assert!(text.contains("latency, end to end: 5 of 100 (5 %) never came"), "{text}");
            assert!(text.contains("unknown"), "{text}");
        }
    }
}

#[test]
fn where_nothing_arrives_the_latency_is_not_that_of_acknowledgements() {
    let text = Draft::new(V5, 1).drain("300ms").connected("pairs", 1).publishing(FIVE).leaving();
    let results = run_with(Mischief { lose_every: 1, ..Mischief::default() }, &text.text());
    let figures = Figures::of(&results);
    assert_eq!((figures.p50_us, figures.max_us, figures.latency_missing), (None, None, 5));
    assert!(flock_report::summary(&results).contains("latency, end to end   average unknown"));
}

#[test]
fn connects_and_publishes_that_are_refused_have_no_latency_and_count() {
    let text = Draft::new(V5, 2).connected("pairs", 1).text();
    let results = run_with(Mischief { refuse: true, ..Mischief::default() }, &text);
    assert_eq!(results.latency(LatencyKind::Connect, None).unwrap().missing, 4);
    assert!(said(&results, "connect.p50 <= 60s").contains("4 of 4 (100 %) never came"));

    let text = Draft::new(V5, 1).drain("300ms").connected("pairs", 1).publishing(FIVE).leaving();
    let results = run_with(Mischief { refuse_every: 5, ..Mischief::default() }, &text.text());
    assert_eq!(results.latency(LatencyKind::PublishAck, Some(1)).unwrap().missing, 1);
    assert!(said(&results, "publish_ack.p99 <= 60s").contains("1 of 5 (20 %) never came"));
}

#[test]
fn subscribes_and_timers_that_never_end_are_lower_bounds() {
    let subscribe = "{ start_timer = \"t\" }, { connect = {} }, \
                     { subscribe = { to = \"pairs\", qos = 1 } }, { stop_timer = \"t\" }";
    let text = Draft::new(&format!("{V5}\ntimeout = \"300ms\""), 2)
        .stage("connect", &[("sub", subscribe)])
        .text();
    let mischief = Mischief { ignore_subscribes: true, ..Mischief::default() };
    let results = run_with(mischief, &text);
    let subscribes = results.latency(LatencyKind::Subscribe, None).unwrap();
    assert_eq!((subscribes.summary.count, subscribes.unfinished), (2, 2));
    assert_eq!((results.timers[0].summary.count, results.timers[0].unfinished), (2, 2));
    for limit in ["subscribe.p50 <= 60s", "timer.t.p50 <= 60s"] {
        assert!(said(&results, limit).contains("2 of 2 (100 %)"), "{}", said(&results, limit));
    }
}
