use super::*;
use flock_measure::figures::{Figures, Verdict, verdicts};
use flock_measure::sample;
use flock_measure::{
    AgentInfo, FaultRecord, Integrity, IntegrityCount, Latency, LatencyKind, LatencySummary,
    Outcome, Phase, RateSearch, Sizing, Validity,
};

#[test]
fn what_the_tool_and_its_clocks_did_is_shown() {
    let mut results = sample::results(1.0);
    let before = Format::Html.render(&results);
    assert!(!before.contains("time until read by flock") && !before.contains("clock drift"));
    results.validity.receive_lag = LatencySummary { count: 7, p99_us: 1_234, ..Default::default() };
    let agent = AgentInfo {
        address: "there:3881".to_owned(),
        clock_drift_us: -1_900.0,
        clock_drift_error_us: 30.0,
        clock_readings: 12,
        ..AgentInfo::default()
    };
    results.run.agents = vec![AgentInfo::default(), agent];
    let page = Format::Html.render(&results);
    assert!(page.contains("time until read by flock") && page.contains("1.23 ms"));
    assert!(page.contains("30 us, 12 readings") && page.contains("the commander's clock"));
    assert!(Format::Markdown.render(&results).contains("time until read by flock"));
}

#[test]
fn what_a_search_found_is_ahead_of_the_figures() {
    let mut results = sample::results(1.0);
    results.rate_search =
        Some(RateSearch { rate_held: 800.0, rate_delivered: 790.0, ..RateSearch::default() });
    results.sizing = Some(Sizing { held: Some(12_000), ..Sizing::default() });
    let page = Format::Html.render(&results);
    let tiles = page.find("class=\"tiles\"").unwrap();
    for found in ["<b>highest sustained rate</b>: 800/s", "<b>most connections</b>: 12,000"] {
        assert!(page.find(found).is_some_and(|at| at < tiles), "{found}");
    }
}

#[test]
fn a_loss_while_the_tool_did_not_read_is_told_as_such() {
    let mut results = sample::results(1.0);
    results.integrity = Integrity::default();
    let count =
        IntegrityCount { qos: 1, expected: 100, received: 90, lost: 10, ..Default::default() };
    results.integrity.by_qos = vec![count];
    let words = |results: &Results| {
        let all = verdicts(results);
        all.into_iter().find(|(_, words)| words.contains("10 lost")).unwrap()
    };
    results.validity.receive_lag = LatencySummary { max_us: 5_000, ..Default::default() };
    assert!(!words(&results).1.contains("did not read"));
    results.validity.receive_lag.max_us = 1_500_000;
    let (is, told) = words(&results);
    assert!(told.contains("flock did not read for up to 1.50 s"), "{told}");
    // It is a loss all the same.
    assert_eq!(is, Verdict::Bad);
}

#[test]
fn rates_are_those_of_the_measured_seconds() {
    let mut results = sample::results(1.0);
    let all = Figures::of(&results).published_per_sec.unwrap();
    // A warm-up in which twice as much was sent.
    let phase = |name: &str, from_secs, to_secs, measured| Phase {
        name: name.to_owned(),
        from_secs,
        to_secs,
        measured,
    };
    results.phases = vec![
        phase("warm-up", 5.0, 30.5, false),
        phase("publish", 30.5, 50.2, true),
        phase("cool-down", 50.2, 60.0, false),
    ];
    for second in results.series.iter_mut().filter(|second| second.at_secs <= 31) {
        second.published *= 2;
    }
    let measured = Figures::of(&results).published_per_sec.unwrap();
    assert!((measured / all - 1.0).abs() < 0.01, "{measured}, {all} before");
    results.phases.clear();
    assert!(Figures::of(&results).published_per_sec.unwrap() > all * 1.3);
}

#[test]
fn the_headline_leaves_the_ramp_out() {
    let figures = Figures::of(&sample::results(1.0));
    assert_eq!(figures.published_per_sec, Some(1_000.0));
    assert!(figures.received_per_sec.is_some_and(|rate| (980.0..1_000.0).contains(&rate)));
    assert_eq!(figures.lost, 2);
    assert!(figures.p50_us.is_some_and(|us| (200.0..500.0).contains(&us)));
}

#[test]
fn what_was_queued_is_rated_by_the_seconds_in_which_it_came() {
    let mut results = sample::results(1.0);
    for second in &mut results.series {
        let is_before = second.at_secs < 40;
        (second.published, second.scheduled) = if is_before { (50, 50) } else { (0, 0) };
        second.received = if is_before { 0 } else { 700 };
    }
    let figures = Figures::of(&results);
    assert_eq!((figures.published_per_sec, figures.received_per_sec), (Some(50.0), Some(700.0)));
}

#[test]
fn a_broker_that_shrank_while_clients_connected_has_no_bytes_per_connection() {
    let mut results = sample::results(1.0);
    assert_eq!(Figures::of(&results).memory_per_connection_bytes, Some(2_250.0));
    results.broker_load.as_mut().unwrap().memory_bytes_per_connection = Some(-102_000.0);
    assert_eq!(Figures::of(&results).memory_per_connection_bytes, None);
}

#[test]
fn the_page_is_whole_and_alone() {
    let page = html(&sample::results(1.0));
    for part in [
        "<!DOCTYPE html>",
        "Messages per second",
        "Latency by percentile",
        "All latencies, end to end",
        "<path class=\"h4\"",
        "data-name=\"due\"",
        "Broker CPU",
        "Broker memory",
        "2 lost in 55,000 deliveries",
        "EMQX 4.4.16",
        "other hardware",
        "net.core.somaxconn",
        "&lt;sample&gt;",
        "prefers-color-scheme:dark",
        "@media print",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    for outside in ["http://", "https://", "src=", "@import", "NaN"] {
        assert!(!page.contains(outside), "{outside} has no place in a page of its own");
    }
    assert_eq!(page.matches("<figure").count(), page.matches("</figure>").count());
    assert_eq!(page.matches("<table").count(), page.matches("</table>").count());
}

#[test]
fn a_long_hold_tells_the_slope_of_memory() {
    let mut results = sample::results(1.0);
    assert!(!summary(&results).contains("memory slope"));
    if let Some(load) = &mut results.broker_load {
        load.memory_slope_secs = 3_600.0;
        load.memory_slope_bytes_per_sec = 500.0;
        load.memory_slope_late_bytes_per_sec = -2.0;
    }
    let words = "+1.80 MB per hour over 1 h, -7.20 KB over its second half";
    assert!(summary(&results).contains(&format!("memory slope          {words}")));
    assert!(Format::Markdown.render(&results).contains(words));
}

#[test]
fn a_run_without_messages_still_makes_a_page() {
    let empty = Results::default();
    for format in Format::ALL {
        assert!(!format.render(&empty).contains("NaN"));
    }
    assert!(summary(&empty).contains("NOT OK"));
}

/// A run that publishes at QoS 0, with nobody who subscribes.
fn unheard() -> Results {
    let mut results = sample::results(1.0);
    results.scenario.subscribers = 0;
    results.integrity = Integrity::default();
    results.totals.received = [0; 3];
    results.totals.published = [55_000, 0, 0];
    results.latencies.retain(|latency| latency.kind == LatencyKind::Connect);
    results.series.iter_mut().for_each(|second| second.received = 0);
    results
}

#[test]
fn what_a_publisher_alone_cannot_see_is_unknown() {
    let results = unheard();
    let told = verdicts(&results);
    assert_eq!(
        told.iter().map(|(is, _)| *is).collect::<Vec<_>>(),
        [Verdict::Good, Verdict::Unknown]
    );
    assert!(told[0].1.starts_with("all 55,000 due messages were sent, 99 %"), "{told:?}");
    let text = summary(&results);
    assert!(
        text.contains("\nunknown               delivery: this run has no subscribers"),
        "{text}"
    );
    assert!(text.contains("published             55,000 messages, 1,000/s"), "{text}");
    assert!(!text.contains("NOT OK") && !text.contains("nothing lost"), "{text}");
    assert_eq!(Figures::of(&results).received_per_sec, None);
    let page = html(&results);
    assert!(page.contains("<li class=\"unknown\">unknown: delivery: this run has no subscribers"));
    assert!(markdown(&results).contains("- unknown: delivery"));
    // With an acknowledgement of the broker there is a latency, and delivery is as unknown.
    let mut answered = unheard();
    answered.totals.published = [0, 55_000, 0];
    answered.latencies.push(Latency {
        kind: LatencyKind::PublishAck,
        ..sample::results(1.0).latencies.remove(1)
    });
    let told = verdicts(&answered);
    assert_eq!((told[0].0, told[1].0), (Verdict::Good, Verdict::Unknown));
    assert!(told[0].1.contains("not the bottleneck"), "{told:?}");
}

#[test]
fn what_is_not_known_of_other_programs_is_said_first() {
    let mut results = sample::results(1.0);
    let good = |results: &Results| verdicts(results)[0].clone();
    assert_eq!(good(&results).1, "valid: flock was not the bottleneck");
    results.validity.contention.others_percent = Some(3.4);
    assert!(good(&results).1.ends_with("bottleneck, other programs used 3 % of the CPU"));
    results.validity.contention.others_percent = None;
    results.validity.contention.busy_percent = Some(97.2);
    results.validity.others_unknown = Some("process 7 (docker-proxy) forwards".into());
    let told = "CPU of other programs: process 7 (docker-proxy) forwards (use --pid). In all, the \
                CPU of this machine was 97 % busy";
    assert_eq!(good(&results), (Verdict::Unknown, told.to_owned()));
    for text in [summary(&results), markdown(&results), html(&results)] {
        let (said, figure) = (text.find(told), text.find("1,000/s"));
        assert!(said.is_some() && said < figure, "{text}");
    }
}

#[test]
fn notes_are_in_every_report() {
    let mut results = sample::results(1.0);
    results.validity.notes = vec!["20 connects got a shorter session expiry".into()];
    for text in [summary(&results), markdown(&results), html(&results)] {
        assert!(text.contains("20 connects got a shorter session expiry"), "{text}");
    }
}

#[test]
fn nothing_excuses_a_publisher_that_did_not_send_all() {
    let mut heard = unheard();
    heard.scenario.subscribers = 1;
    let bad = |results: &Results| verdicts(results).iter().any(|(is, _)| *is == Verdict::Bad);
    // Who only hears messages of others is owed no latency.
    heard.totals.received = std::mem::take(&mut heard.totals.published);
    assert!(!bad(&heard) && summary(&heard).contains("no message has a stamp"));
    let mut short = unheard();
    short.validity = Validity { reasons: vec!["7 of 9 messages".into()], ..Validity::default() };
    assert!(bad(&short) && !summary(&short).contains("due messages were sent,"));
}

#[test]
fn repeats_at_qos_1_are_a_fault_unless_something_explains_them() {
    let mut results = sample::results(1.0);
    let count = &mut results.integrity.by_qos[0];
    (count.lost, count.duplicated) = (0, 3);
    let words = |results: &Results| verdicts(results).remove(1);
    let without_cause = "3 duplicated without cause in 55,000 deliveries".to_owned();
    assert_eq!(words(&results), (Verdict::Bad, without_cause.clone()));
    results.totals.connections_lost = 1;
    assert_eq!(words(&results), (Verdict::Bad, without_cause), "a broken connection alone is none");
    results.integrity.by_qos[0].duplicated_explained = 3;
    let (is, text) = words(&results);
    assert_eq!(is, Verdict::Good);
    assert!(
        text.starts_with("nothing lost or out of order")
            && text.contains("3 duplicates after lost")
    );
    results.integrity.by_qos[0].qos = 2;
    assert_eq!(words(&results).0, Verdict::Bad);
}

#[test]
fn verdicts_speak_up() {
    let mut results = sample::results(1.0);
    results.run.outcome = Outcome::Failed("broker gone".into());
    results.validity =
        Validity { valid: false, reasons: vec!["the tool was late".into()], ..Validity::default() };
    results.faults =
        vec![FaultRecord { what: "kill".into(), at_secs: 20.0, ..FaultRecord::default() }];
    let words: Vec<String> = verdicts(&results).into_iter().map(|(_, words)| words).collect();
    assert_eq!(words[0], "failed: broker gone");
    assert!(words[1].contains("the tool was late"));
    assert!(html(&results).contains("Recovered after"));
}

#[test]
fn markdown_has_every_section() {
    let text = markdown(&sample::results(1.0));
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(
        headings,
        [
            "# MB-B1: p2p-1K-1K-1K-1K: 1,000 pairs, 1 msg/s each",
            "## Latency",
            "## Integrity",
            "### Most affected",
            "## Published results for reference",
            "## Environment",
            "## The scenario as it ran",
            "## The broker's configuration",
            "# broker.conf"
        ]
    );
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with("| end to end")).collect();
    assert_eq!(table.len(), 1);
    assert!(table[0].starts_with("| end to end | 1 | 55,000 |"), "{}", table[0]);
}

#[test]
fn whatever_may_change_the_figures_is_disclosed() {
    let results = sample::results(1.0);
    for text in [html(&results), markdown(&results)] {
        for part in [
            "commit 0123456789ab, quick build",
            "duration 55s",
            "stage publish: 55s, measured",
            "8 vCPU, 32 GB",
            "broker -c broker.conf",
            "listener 1883",
            "1.50 cores, 2 GB",
            "47 us (median of 7), 31 us at least",
            "governor performance",
            "NUMA nodes 2",
            "virtual machine (Amazon EC2)",
            "container (docker)",
            "no limits of CPU or memory",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}

#[test]
fn csv_has_a_row_per_second_and_as_many_fields_as_names() {
    let text = csv(&sample::results(1.0));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 61);
    let names = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == names));
}

#[test]
fn the_terminal_gets_the_essentials() {
    let text = summary(&sample::results(1.0));
    assert!(
        text.contains("2 lost in 55,000 deliveries") && text.contains("36.2 us per message"),
        "{text}"
    );
}

#[test]
fn an_outage_is_shaded_as_long_as_it_lasts() {
    let mut results = sample::results(1.0);
    assert!(!html(&results).contains("class=\"outage\""), "a slow second is none");
    for second in &mut results.series[20..24] {
        (second.received, second.acknowledged) = (0, 0);
    }
    let page = html(&results);
    let shaded = "<rect class=\"outage\" ";
    let charts = page.matches("<figure class=\"chart\"").count();
    let drawn = page.matches(shaded).count();
    assert!(drawn >= 5 && drawn < charts, "all over time have it, {drawn} of {charts}");
    let mut widths = page.split(shaded).skip(1).map(|rest| rest.split('"').nth(5).unwrap());
    let first = widths.next().unwrap();
    assert!(widths.all(|width| width == first) && first.parse::<f64>().unwrap() > 30.0, "{first}");
    assert!(page.contains("Shaded: messages were due"));
    // A broker that is asked for nothing is not down.
    results.series.iter_mut().for_each(|second| second.scheduled = 0);
    assert!(!html(&results).contains(shaded));
}

#[test]
fn a_second_in_which_nothing_arrived_is_a_gap() {
    let mut results = sample::results(1.0);
    let lines = |results: &Results| html(results).matches("<polyline class=\"c2\"").count();
    let whole = lines(&results);
    results.series[40].end_to_end = flock_measure::LatencyPoint::default();
    assert_eq!(lines(&results), whole + 1, "the maximum, in two parts");
}

#[test]
fn a_day_fits_a_page_of_one_megabyte_and_its_stalls_are_seen() {
    let day = sample::day();
    let page = html(&day);
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    // Four stalls, in each chart over time. The page names the unit of its axis.
    let messages = page.split("<figcaption>Messages per second").nth(1).unwrap();
    let messages = messages.split("</figure>").next().unwrap();
    assert_eq!(messages.matches("class=\"outage\"").count(), 4);
    assert!(messages.contains(">6 h<") && messages.contains(">24 h<"), "{messages}");
    // What was received reaches down to nothing, and what came after the stall is the maximum.
    assert!(messages.contains("(0/s to "), "{messages}");
    let latency = page.split("<figcaption>End-to-end latency").nth(1).unwrap();
    assert!(latency.split("</figure>").next().unwrap().contains("· 10.0 s"), "{latency}");
    assert!(page.contains("Each point is the average of 6.40 min"));
    assert!(csv(&day).lines().count() < 4_000);
}

#[test]
fn charts_by_qos_are_of_runs_that_use_several() {
    let day = html(&sample::day());
    let short = html(&sample::results(1.0));
    for title in [
        "Published per second by QoS",
        "Received per second by QoS",
        "End-to-end latency, QoS 0",
        "End-to-end latency, QoS 1",
        "Packets into and out of the broker",
        "Bytes into and out of the broker",
    ] {
        assert!(day.contains(title), "{title}");
        assert!(!short.contains(title), "{title} has nothing to show");
    }
    for line in ["average", "p50", "p75", "p90", "p95", "PUBACK in", "PUBACK out"] {
        assert!(day.contains(&format!("data-name=\"{line}\"")), "{line}");
    }
}
