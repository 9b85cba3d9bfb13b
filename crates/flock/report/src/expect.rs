//! Did the run show what its scenario expects?

use flock_measure::text::{count, micros};
use flock_measure::{Due, LatencyKind, Outcome, Results, Routing, SinkResults};
use flock_model::Expect;

/// What was expected and did not come true, in words; empty if all did.
pub fn unmet(expect: &Expect, results: &Results) -> Vec<String> {
    let integrity = results.integrity.total();
    let sinks = || results.routing.iter().flat_map(|routing| &routing.sinks);
    let routed = results.routing.as_ref().map(Routing::total).unwrap_or_default();
    // Those without a cause are among the wrongs, which nothing allows.
    let explained = integrity.duplicated - integrity.duplicated_without_cause();
    let totals = &results.totals;
    let answers_without_cause = totals.answers_without_cause().min(totals.answers_unasked);
    let limits = [
        ("lost", integrity.lost - results.lost_beyond(), Some(expect.lost_max)),
        ("duplicated", explained, expect.duplicated_max),
        ("out of order", integrity.reordered, expect.reordered_max),
        ("lost at sinks", routed.lost, Some(expect.lost_max)),
        ("duplicated at sinks", routed.duplicated, expect.duplicated_max),
        ("out of order at sinks", routed.reordered, expect.reordered_max),
        ("requests without an answer", results.totals.requests_unanswered, Some(expect.lost_max)),
        (
            "answers repeated or not requested",
            results.totals.answers_unasked - answers_without_cause,
            expect.duplicated_max,
        ),
        ("answers without cause", answers_without_cause, Some(0)),
        ("failed connects", results.totals.connects_failed, Some(expect.connect_failures_max)),
    ];
    let mut unmet: Vec<String> = limits
        .into_iter()
        .filter_map(|(what, found, max)| Some((what, found, max?)))
        .filter(|(_, found, max)| found > max)
        .map(|(what, found, max)| format!("{} {what}, {} allowed", count(found), count(max)))
        .collect();
    // Publishers that were cut off in the middle, by a fault or the user, leave some open.
    let is_whole = results.run.outcome == Outcome::Completed && results.faults.is_empty();
    let refused = results.totals.publishes_refused;
    let open = results.integrity.unacknowledged.saturating_sub(refused);
    if is_whole && open > 0 {
        unmet.push(format!("{} not acknowledged, 0 allowed", count(open)));
    }
    let wrongs = results.integrity.wrongs().into_iter().filter(|(_, count_of)| *count_of > 0);
    unmet.extend(wrongs.map(|(what, count_of)| format!("{} {what}, 0 allowed", count(count_of))));
    let wrongs = sinks().flat_map(SinkResults::wrongs).filter(|(_, count_of)| *count_of > 0);
    let at_sinks = |(what, n): (&str, u64)| format!("{} {what} at sinks, 0 allowed", count(n));
    unmet.extend(wrongs.map(at_sinks));
    let due = Due::of(results, LatencyKind::EndToEnd);
    for (percentile, max_us) in &expect.latency_max_us {
        // The names were checked when the scenario was read.
        let Ok(at) = percentile.parse::<f64>() else { continue };
        let (found, allowed) = (due.micros_at(at), micros(*max_us as f64));
        match found.filter(|found| found > max_us) {
            Some(found) => unmet.push(format!(
                "p{percentile} of the latency is {}, {allowed} allowed",
                micros(found as f64)
            )),
            None if due.is_open_at(at) => unmet.push(format!(
                "p{percentile} of the latency is unknown, {allowed} allowed: {} never came to an end",
                due.open_words().unwrap_or_default()
            )),
            None if found.is_none() => {
                unmet.push(format!("no latency was measured, but p{percentile} has a limit"));
            }
            None => {}
        }
    }
    unmet.extend(expect.metrics.iter().filter_map(|threshold| threshold.unmet(results)));
    unmet
}

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::sample;

    #[test]
    fn sinks_have_the_limits_of_subscribers() {
        let results = sample::routed();
        let limits =
            ["2 lost", "3 lost at sinks", "2 duplicated at sinks", "1 out of order at sinks"];
        let unmet_by = |expect: &Expect| unmet(expect, &results);
        assert_eq!(unmet_by(&Expect::default()), limits.map(|words| format!("{words}, 0 allowed")));
        let lenient = Expect {
            lost_max: 3,
            duplicated_max: None,
            reordered_max: Some(1),
            ..Expect::default()
        };
        assert_eq!(unmet_by(&lenient), Vec::<String>::new());
        let mut damaged = results.clone();
        damaged.routing.as_mut().unwrap().sinks[0].unreadable = 4;
        let found = unmet(&lenient, &damaged);
        assert_eq!(found, ["4 not readable as events at sinks, 0 allowed"]);
    }

    #[test]
    fn limits_are_judged() {
        let results = sample::results(1.0);
        assert_eq!(unmet(&Expect::default(), &results), ["2 lost, 0 allowed"]);
        let mut lenient = Expect { lost_max: 2, ..Expect::default() };
        assert_eq!(unmet(&lenient, &results), Vec::<String>::new());
        lenient.latency_max_us.insert("99.9".into(), 1_000);
        let found = unmet(&lenient, &results);
        assert!(found[0].starts_with("p99.9 of the latency is 8"), "{found:?}");
        // A limit that what came keeps, and what did not come does not.
        lenient.latency_max_us = [("99".to_owned(), 60_000_000)].into();
        assert_eq!(unmet(&lenient, &results), Vec::<String>::new());
        let mut shedding = results.clone();
        shedding.latencies[1].missing = 600;
        let found = unmet(&lenient, &shedding);
        assert!(
            found[0].contains("p99 of the latency is unknown, 60 s allowed: 600 of"),
            "{found:?}"
        );
    }
}
