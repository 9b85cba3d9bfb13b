//! The few figures that everybody looks for, computed once for all formats.

use super::text;
use crate::{
    Due, HostLoad, Latency, LatencyKind, Outcome, RateSearch, Results, Routing, Second,
    SinkResults, Totals,
};

/// Headline figures of a run. `None` where the run has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Averages over the seconds in which messages were published or due, without the first and
    /// last one: those of the measured stages, if they publish.
    pub published_per_sec: Option<f64>,
    /// Over the same seconds, or later ones where nothing came while messages were published (they
    /// were queued, say).
    pub received_per_sec: Option<f64>,
    /// By sinks, over the whole seconds of the measured stages.
    pub routed_per_sec: Option<f64>,
    /// Of what came.
    pub average_us: Option<f64>,
    /// Of all that was due: absent where so much never came that nobody knows.
    pub p50_us: Option<f64>,
    pub p75_us: Option<f64>,
    pub p90_us: Option<f64>,
    pub p95_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p999_us: Option<f64>,
    /// Of what came.
    pub max_us: Option<f64>,
    /// Of what was due: without latency, as it never came.
    pub latency_missing: u64,
    /// In per cent of one core.
    pub cpu_average_percent: Option<f64>,
    pub cpu_max_percent: Option<f64>,
    pub cpu_us_per_message: Option<f64>,
    pub memory_average_bytes: Option<f64>,
    pub memory_max_bytes: Option<f64>,
    pub memory_per_connection_bytes: Option<f64>,
    /// Of a hold that is long enough to have one.
    pub memory_slope: Option<MemorySlope>,
    pub connections_max: u64,
    /// To subscribers and sinks.
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
}

/// How the broker's memory rose while the load was the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemorySlope {
    pub bytes_per_hour: f64,
    pub late_bytes_per_hour: f64,
    pub over_secs: f64,
}

impl MemorySlope {
    fn of(load: &HostLoad) -> Option<Self> {
        (load.memory_slope_secs >= SLOPE_SECS_MIN).then_some(Self {
            bytes_per_hour: load.memory_slope_bytes_per_sec * 3600.0,
            late_bytes_per_hour: load.memory_slope_late_bytes_per_sec * 3600.0,
            over_secs: load.memory_slope_secs,
        })
    }

    /// `+1.20 MB per hour over 60 min, -3.10 KB over the second half`.
    pub fn words(&self) -> String {
        let signed = |bytes: f64| match bytes < 0.0 {
            true => text::bytes(bytes),
            false => format!("+{}", text::bytes(bytes)),
        };
        let (all, late) = (signed(self.bytes_per_hour), signed(self.late_bytes_per_hour));
        format!(
            "{all} per hour over {}, {late} over its second half",
            text::seconds(self.over_secs)
        )
    }
}

/// In less, a slope is what happened to be going on.
const SLOPE_SECS_MIN: f64 = 60.0;

impl Figures {
    pub fn of(results: &Results) -> Self {
        let mut integrity = results.integrity.total();
        let routing = results.routing.as_ref();
        routing.into_iter().for_each(|routing| integrity.add(&routing.total()));
        let mut figures = Self {
            connections_max: results.totals.connections_max,
            routed_per_sec: routing.map(Routing::received_per_sec),
            lost: integrity.lost,
            duplicated: integrity.duplicated,
            reordered: integrity.reordered,
            ..Self::default()
        };
        let sends = |second: &Second| second.published + second.scheduled + second.publishing;
        let measured = measured_seconds(results);
        let whole = busy(&measured, sends, 0);
        let publishing = match whole.is_empty() {
            true => busy(&results.series, sends, 1),
            false => whole,
        };
        if let Some(last) = publishing.last() {
            // What came before the figures were taken is none of theirs.
            let from = results.series.partition_point(|second| second.at_secs <= last.at_secs);
            let later = busy(&results.series[from..], |second| second.received, 1);
            let is_queued = publishing.iter().all(|second| second.received == 0);
            let receiving = if is_queued && !later.is_empty() { later } else { publishing };
            figures.published_per_sec = Some(average(publishing, |second| second.published));
            let rate = average(receiving, |second| second.received);
            figures.received_per_sec = (!has_no_subscriber(results)).then_some(rate);
        } else {
            // A run that only subscribes.
            let receiving = busy(&results.series, |second| second.received, 1);
            let rate = || average(receiving, |second| second.received);
            figures.received_per_sec = (!receiving.is_empty()).then(rate);
        }
        figures.add_latency(results);
        if let Some(load) = &results.broker_load {
            let known = |value: f64| (value > 0.0).then_some(value);
            figures.cpu_average_percent = known(load.cpu_percent_average);
            figures.cpu_max_percent = known(load.cpu_percent_max);
            figures.cpu_us_per_message = load.cpu_us_per_message;
            figures.memory_average_bytes = known(load.memory_bytes_average);
            figures.memory_max_bytes = known(load.memory_bytes_max as f64);
            // A broker that was still busy with its start may have shrunk while clients connected.
            figures.memory_per_connection_bytes = load.memory_bytes_per_connection.and_then(known);
            figures.memory_slope = MemorySlope::of(load);
        }
        figures
    }

    /// That of the kind that stands for the run.
    fn add_latency(&mut self, results: &Results) {
        let due = Due::of(results, headline(results));
        let at = |percentile| due.micros_at(percentile).map(|us| us as f64);
        self.latency_missing = due.missing;
        self.p50_us = at(50.0);
        self.p75_us = at(75.0);
        self.p90_us = at(90.0);
        self.p95_us = at(95.0);
        self.p99_us = at(99.0);
        self.p999_us = at(99.9);
        if due.histogram.is_empty() {
            return;
        }
        let summary = due.histogram.summary();
        self.average_us = Some(summary.average_us);
        self.max_us = Some(summary.max_us as f64);
    }
}

/// Which latency stands for the run.
pub fn headline(results: &Results) -> LatencyKind {
    let has = |kind| {
        let is_due = |latency: &Latency| latency.summary.count + latency.missing > 0;
        results.latencies.iter().any(|latency| latency.kind == kind && is_due(latency))
    };
    [LatencyKind::RoundTrip, LatencyKind::EndToEnd, LatencyKind::Routed, LatencyKind::PublishAck]
        .into_iter()
        .find(|kind| has(*kind))
        .unwrap_or(LatencyKind::Connect)
}

/// The seconds that lie in measured phases from their beginning to their end.
fn measured_seconds(results: &Results) -> Vec<Second> {
    let is_within = |second: &&Second| {
        // What is told of second `n` happened between `n - 1` and `n`.
        let to = f64::from(second.at_secs);
        let mut measured = results.phases.iter().filter(|phase| phase.measured);
        let from = to - f64::from(second.secs());
        measured.any(|phase| phase.from_secs <= from && to <= phase.to_secs)
    };
    results.series.iter().filter(is_within).copied().collect()
}

/// The seconds from the first to the last in which `of` counts something; `cut` of them at either
/// end, which are rarely whole, are left out where enough is left.
fn busy(series: &[Second], of: impl Fn(&Second) -> u64, cut: usize) -> &[Second] {
    let Some(first) = series.iter().position(|second| of(second) > 0) else { return &[] };
    let last = series.iter().rposition(|second| of(second) > 0).unwrap_or(first);
    if last - first >= 3 { &series[first + cut..=last - cut] } else { &series[first..=last] }
}

fn average(seconds: &[Second], of: fn(&Second) -> u64) -> f64 {
    let secs: u32 = seconds.iter().map(Second::secs).sum();
    seconds.iter().map(of).sum::<u64>() as f64 / f64::from(secs.max(1))
}

/// What a line says of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Bad,
    /// Neither: it was not for this run to see.
    Unknown,
}

impl Verdict {
    pub fn of(is_good: bool) -> Self {
        if is_good { Self::Good } else { Self::Bad }
    }

    /// Of the lines that say so in HTML.
    pub fn class(self) -> Option<&'static str> {
        match self {
            Self::Good => None,
            Self::Bad => Some("bad"),
            Self::Unknown => Some("unknown"),
        }
    }

    /// In front of the line, in words.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Bad => "NOT OK",
            Self::Unknown => "unknown",
        }
    }
}

/// One line for each thing that speaks for or against the run, or that it could not see.
pub fn verdicts(results: &Results) -> Vec<(Verdict, String)> {
    let told = told_verdicts(results).into_iter();
    let mut all: Vec<_> = told.map(|(good, words)| (Verdict::of(good), words)).collect();
    if let Some(words) = unjudged_words(results) {
        all.insert(0, (Verdict::Unknown, words));
    }
    if let Some(words) = others_unknown_words(results) {
        all.insert(0, (Verdict::Unknown, words));
    }
    if has_no_subscriber(results) && results.routing.is_none() {
        all.push((Verdict::Unknown, NO_SUBSCRIBER.to_owned()));
    } else if is_without_latency(results) && results.totals.published_all() == 0 {
        all.push((Verdict::Unknown, NO_LATENCY.to_owned()));
    }
    all.extend(missing_words(results).map(|words| (Verdict::Unknown, words)));
    all
}

/// Deliveries of which nobody can say whether they were owed, where they are so many that "nothing
/// lost" would be said of the rest only.
pub fn unjudged_words(results: &Results) -> Option<String> {
    let integrity = results.integrity.total();
    let all = integrity.expected + integrity.unjudged;
    let percent = integrity.unjudged as f64 * 100.0 / all.max(1) as f64;
    (percent > UNJUDGED_PERCENT_MAX).then(|| {
        let [unjudged, all] = [integrity.unjudged, all].map(text::count);
        let why = unjudged_cause(results);
        format!("not judged: {unjudged} of {all} deliveries ({} %): {why}", text::number(percent))
    })
}

fn unjudged_cause(results: &Results) -> String {
    let margin = match results.integrity.settled_us {
        0 => String::new(),
        us => format!(" came less than {} earlier,", text::micros(us as f64)),
    };
    format!("their subscribers were away,{margin} were leaving, or left ahead of retained messages")
}

/// More are told ahead of all else.
const UNJUDGED_PERCENT_MAX: f64 = 3.0;

/// Where nobody knows what other programs did, that flock kept up says little of the broker.
pub fn others_unknown_words(results: &Results) -> Option<String> {
    let why = results.validity.others_unknown.as_ref()?;
    let busy = results.validity.contention.busy_percent;
    let busy = busy.map_or(String::new(), |busy| {
        format!(". In all, the CPU of this machine was {busy:.0} % busy")
    });
    Some(format!("CPU of other programs: {why} (use --pid){busy}"))
}

/// What the percentiles make of what never came.
fn missing_words(results: &Results) -> Option<String> {
    let kind = headline(results);
    let share = Due::of(results, kind).missing_words()?;
    Some(format!(
        "latency, {}: {share} never came to an end. Percentiles count them as the slowest; average \
             and maximum leave them out",
        kind.title()
    ))
}

/// Whether it publishes and has nobody who could hear that, as `flock pub` by itself.
pub fn has_no_subscriber(results: &Results) -> bool {
    let totals = &results.totals;
    results.scenario.subscribers == 0
        && totals.published_all() > 0
        && totals.received_all() == 0
        && results.integrity.total().expected == 0
}

const NO_SUBSCRIBER: &str =
    "delivery: this run has no subscribers (use `flock sub` in another terminal)";

const NO_LATENCY: &str = "latency: no message has a stamp of flock in its first 16 bytes";

fn told_verdicts(results: &Results) -> Vec<(bool, String)> {
    let mut all = Vec::new();
    match &results.run.outcome {
        Outcome::Completed => {}
        Outcome::Interrupted(why) => all.push((false, format!("interrupted: {why}"))),
        Outcome::Failed(why) => all.push((false, format!("failed: {why}"))),
    }
    match results.validity.valid {
        true => all.push(valid_verdict(results)),
        false => {
            let why = results.validity.reasons.join("; ");
            all.push((false, format!("not valid as a measurement: {why}")));
        }
    }
    let integrity = &results.integrity;
    let total = integrity.total();
    if total.expected + total.unjudged > 0 || integrity.wrongs().iter().any(|(_, n)| *n > 0) {
        all.push(integrity_verdict(results));
    }
    let sinks = results.routing.iter().flat_map(|routing| &routing.sinks);
    all.extend(sinks.map(SinkResults::verdict));
    if integrity.unacknowledged > 0 {
        let refused = match results.totals.publishes_refused {
            0 => String::new(),
            refused => format!(" ({} of them refused)", text::count(refused)),
        };
        let open = text::count(integrity.unacknowledged);
        all.push((false, format!("{open} messages were not acknowledged{refused}")));
    }
    all.extend(answers_verdict(results));
    if results.totals.connects_failed > 0 {
        all.push((
            false,
            format!("{} connects failed", text::count(results.totals.connects_failed)),
        ));
    }
    all
}

fn answers_verdict(results: &Results) -> Option<(bool, String)> {
    let Totals { requests, requests_unanswered, answers_unasked, .. } = results.totals;
    let without_cause = results.totals.answers_without_cause();
    let again = match (answers_unasked, without_cause) {
        (0, _) => String::new(),
        (n, 0) => format!("; {} answers repeated or not requested", text::count(n)),
        (n, wrong) => format!(
            "; {} answers repeated or not requested, {} without cause",
            text::count(n),
            text::count(wrong)
        ),
    };
    let words = match requests_unanswered {
        0 => format!("all {} requests were answered{again}", text::count(requests)),
        n => format!(
            "{} of {} requests were not answered{again}",
            text::count(n),
            text::count(requests)
        ),
    };
    // A connection that breaks leaves it open whether a request or an answer got through.
    let is_broken = results.totals.connections_lost > 0;
    let may_repeat = answers_unasked == 0 || (is_broken && without_cause == 0);
    (requests > 0).then_some((requests_unanswered == 0 && may_repeat, words))
}

fn integrity_verdict(results: &Results) -> (bool, String) {
    let integrity = results.integrity.total();
    let owed = text::count(integrity.expected);
    // A connection that breaks leaves publisher and broker in doubt, and at least once means again.
    let explained = integrity.duplicated - integrity.duplicated_without_cause();
    let at_least_once = results.integrity.by_qos.iter().filter(|count| count.qos == 1);
    let again: u64 =
        at_least_once.map(|count| count.duplicated - count.duplicated_without_cause()).sum();
    let over = results.lost_beyond();
    let bad = [
        ("lost", integrity.lost - over),
        ("duplicated", explained - again),
        ("out of order", integrity.reordered),
    ];
    let found: Vec<String> = bad
        .into_iter()
        .chain(results.integrity.wrongs())
        .filter(|(_, n)| *n > 0)
        .map(|(what, n)| format!("{} {what}", text::count(n)))
        .collect();
    let words = match (found.is_empty(), again) {
        (true, 0) if integrity.expected == 0 => "no delivery was judged".to_owned(),
        (true, 0) => format!("nothing lost, duplicated or out of order in {owed} deliveries"),
        (true, _) => format!("nothing lost or out of order in {owed} deliveries"),
        (false, _) => format!("{} in {owed} deliveries", found.join(", ")),
    };
    let repeats = match again {
        0 => String::new(),
        _ => format!(
            "; {} duplicates after lost connections, which QoS 1 allows",
            text::count(again)
        ),
    };
    let beyond = match over {
        0 => String::new(),
        _ => format!("; {} lost at QoS 0 at rates that failed", text::count(over)),
    };
    let unjudged = match (integrity.unjudged, unjudged_words(results)) {
        (0, _) | (_, Some(_)) => String::new(),
        (n, None) => {
            format!("; {} others were not judged: {}", text::count(n), unjudged_cause(results))
        }
    };
    let starved = starved_words(results, integrity.lost - over);
    // Where nothing at all could be judged, nothing is known to be well.
    let is_good = found.is_empty() && integrity.expected > 0;
    (is_good, words + &starved + &repeats + &beyond + &unjudged)
}

/// What is lost while the tool does not read is not the broker's fault alone.
fn starved_words(results: &Results, lost: u64) -> String {
    let unread_us = results.validity.receive_lag.max_us;
    if lost == 0 || unread_us < STARVED_US_MIN {
        return String::new();
    }
    format!(
        "; flock did not read for up to {}, which may have made the broker drop messages: use more cores for flock or a lower rate",
        text::micros(unread_us as f64)
    )
}

/// A subscriber that is not read for so long may fill the queues of its broker.
const STARVED_US_MIN: u64 = 100_000;

/// `48,000/s (at least 47,800/s delivered) (50,000/s did not hold)`: the rate, and where the
/// interval that it lies in ends.
pub fn search_words(search: &RateSearch) -> String {
    let rate = |rate: f64| format!("{}/s", text::number(rate));
    let held = match search.rate_held {
        0.0 => "none".to_owned(),
        held if search.rate_delivered > 0.0 => {
            format!("{} (at least {} delivered)", rate(held), rate(search.rate_delivered))
        }
        held => rate(held),
    };
    let found = match search.rate_failed {
        Some(failed) if search.limited_by_tool => {
            let at_least = if search.rate_held > 0.0 { "at least " } else { "" };
            format!("{at_least}{held}: flock was the limit, it was late at {}", rate(failed))
        }
        Some(failed) => format!("{held} ({} failed)", rate(failed)),
        None if search.rate_held > 0.0 => format!("{held}, the highest rate of the search"),
        None => held,
    };
    let Some((from, to)) = search.blurred else { return found };
    format!(
        "{found}; no sharp limit: the latency was near the limit from {} to {}, another search \
             may have any result in this range",
        rate(from),
        rate(to)
    )
}

/// All that a publisher at QoS 0 knows by itself.
fn sent_words(results: &Results) -> String {
    let sent = text::count(results.totals.published_all());
    if results.scenario.closed_loop {
        return format!("{sent} messages were sent at full speed (closed loop)");
    }
    let late = text::micros(results.validity.lateness.p99_us as f64);
    format!("all {sent} due messages were sent, 99 % of them at most {late} late")
}

/// Messages came or went, and there is no latency of any.
fn is_without_latency(results: &Results) -> bool {
    let kinds = [
        LatencyKind::EndToEnd,
        LatencyKind::Routed,
        LatencyKind::PublishAck,
        LatencyKind::RoundTrip,
    ];
    let has_messages = results.totals.published_all() + results.totals.received_all() > 0;
    has_messages && kinds.iter().all(|kind| results.latency_merged(*kind).is_empty())
}

/// The figures are the broker's, as far as can be told.
fn valid_verdict(results: &Results) -> (bool, String) {
    if is_without_latency(results) && has_no_subscriber(results) {
        return (true, sent_words(results));
    }
    if results.scenario.closed_loop {
        let words = format!(
            "closed loop: latency excludes the time for which publishers waited; flock was not \
                 the bottleneck (at most {:.0} % of a core)",
            results.validity.thread_cpu_percent_max
        );
        return (true, words);
    }
    let others = results.validity.contention.others_percent;
    let others = others.map_or(String::new(), |percent| {
        format!(", other programs used {percent:.0} % of the CPU")
    });
    (true, format!("valid: flock was not the bottleneck{others}"))
}
