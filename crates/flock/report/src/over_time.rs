//! The charts of a run over time, in sections.

use maud::Markup;

use super::chart::{Chart, Joined, Line, Unit};
use super::drawing::Events;
use super::heat;
use flock_measure::figures::{has_no_subscriber, headline};
use flock_measure::{
    HostSample, LatencyKind, LatencyPoint, Phase, QosSecond, QosSeries, Results, Second, StepSpread,
};

/// Title and figures of each section that has some; `distributions` belong to the latencies.
pub(super) fn sections(
    results: &Results,
    distributions: Vec<Markup>,
) -> Vec<(&'static str, Vec<Markup>)> {
    let events = Events { marks: marks(results), outages: outages(results) };
    let until = results.series.last().map_or(0.0, |second| f64::from(second.at_secs));
    let figures = |charts: Vec<Chart>| -> Vec<Markup> {
        let all = charts.into_iter().filter(|chart| !chart.is_empty());
        all.map(|chart| Chart { events: events.clone(), until, ..chart }.figure()).collect()
    };
    let mut all_messages = messages(results);
    if !events.outages.is_empty() {
        all_messages[0].note = OUTAGE_NOTE.to_owned();
    }
    let mut latency = figures(vec![headline_latency(results)]);
    latency.extend(heat_map(results, &events));
    latency.extend(distributions);
    latency.extend(figures(latencies(results)));
    let all = [
        ("Messages", figures(all_messages)),
        ("Latency", latency),
        ("Operations", figures(operations(results))),
        ("Broker", figures(broker(results))),
    ];
    all.into_iter().filter(|(_, figures)| !figures.is_empty()).collect()
}

/// What a line shows of a second, and of the seconds of a step.
type Of = fn(&Second) -> f64;
type RangeOf = fn(&StepSpread) -> (u64, u64);

fn line(results: &Results, name: &str, of: Of) -> Line {
    Line::new(name, results.series.iter().map(|second| (f64::from(second.at_secs), of(second))))
}

/// With the least and the most of a second, in steps of several.
fn ranged(results: &Results, name: &str, of: Of, range: RangeOf) -> Line {
    let of_second = |second: &Second| match second.spread {
        Some(spread) => {
            let (low, high) = range(&spread);
            (low as f64, high as f64)
        }
        None => (of(second), of(second)),
    };
    Line { ranges: results.series.iter().map(of_second).collect(), ..line(results, name, of) }
}

fn messages(results: &Results) -> Vec<Chart> {
    let mut lines = vec![ranged(results, "published", |s| s.per_sec(s.published), |s| s.published)];
    // What nobody listened for did not come to nought.
    if !has_no_subscriber(results) {
        lines.push(ranged(results, "received", |s| s.per_sec(s.received), |s| s.received));
    }
    lines.push(line(results, "due", |s| s.per_sec(s.scheduled)));
    let backlog = ranged(
        results,
        "backlog",
        |second| second.backlog.max(0) as f64,
        |spread| (spread.backlog.0.max(0) as u64, spread.backlog.1.max(0) as u64),
    );
    let mut all = vec![Chart::over_time("Messages per second", Unit::PerSecond, lines)];
    all.extend([
        by_qos(results, "Published per second by QoS", |second| second.published),
        by_qos(results, "Received per second by QoS", |second| second.received),
        Chart {
            note: "Deliveries due and not yet received at the end of each second.".to_owned(),
            ..Chart::over_time("Backlog", Unit::Count, vec![backlog])
        },
    ]);
    all.into_iter().map(Chart::without_zeros).collect()
}

fn by_qos(results: &Results, title: &str, of: fn(&QosSecond) -> u64) -> Chart {
    let line = |level: &QosSeries| {
        let points = in_step(results, level);
        let points =
            points.map(|(second, own)| (f64::from(second.at_secs), second.per_sec(of(&own))));
        Line::new(&format!("QoS {}", level.qos), points)
    };
    let lines = results.qos_series.iter().map(line).collect();
    Chart::over_time(title, Unit::PerSecond, lines).without_zeros()
}

/// Each second, and what happened in it at this QoS.
fn in_step<'a>(
    results: &'a Results,
    level: &'a QosSeries,
) -> impl Iterator<Item = (&'a Second, QosSecond)> {
    let mut own = level.seconds.iter().copied().peekable();
    results.series.iter().map(move |second| {
        let own = own.next_if(|one| one.at_secs == second.at_secs);
        (second, own.unwrap_or_default())
    })
}

fn heat_map(results: &Results, events: &Events) -> Option<Markup> {
    let kind = headline(results);
    let heat = results.heat.iter().find(|heat| heat.kind == kind)?;
    let title = format!("All latencies, {}", kind.title());
    // As far as the lines beside it.
    let until_secs = results.series.last().map_or(0, |second| second.at_secs);
    Some(heat::figure(heat, &title, until_secs, events))
}

/// Lines of latencies; a second in which nothing arrived, a stall, say, is a gap.
fn percentiles(points: &[(u32, LatencyPoint)], of: &[(&str, PercentileOf)]) -> Vec<Line> {
    if points.iter().all(|(_, point)| point.count == 0) {
        return Vec::new();
    }
    let line = |(name, of): &(&str, PercentileOf)| {
        let value = |point: &LatencyPoint| if point.count > 0 { of(point) } else { f64::NAN };
        let joined = if *name == MAXIMUM { Joined::Highest } else { Joined::Middle };
        let points = points.iter().map(|(at_secs, point)| (f64::from(*at_secs), value(point)));
        Line { joined, ..Line::new(name, points) }
    };
    of.iter().map(line).collect()
}

type PercentileOf = fn(&LatencyPoint) -> f64;

fn headline_latency(results: &Results) -> Chart {
    type Of = fn(&Second) -> LatencyPoint;
    let (title, of): (&str, Of) = match headline(results) {
        LatencyKind::EndToEnd => ("End-to-end latency", |s| s.end_to_end),
        LatencyKind::RoundTrip => ("Latency from request to answer", |s| s.round_trip),
        LatencyKind::PublishAck => ("Latency to acknowledgement", |s| s.publish_ack),
        _ => ("Connect latency", |s| s.connect),
    };
    let points: Vec<_> = results.series.iter().map(|s| (s.at_secs, of(s))).collect();
    let lines: [(&str, PercentileOf); 3] =
        [("p50", |p| p.p50_us as f64), ("p99", |p| p.p99_us as f64), MAXIMUM_LINE];
    latency_chart(title, percentiles(&points, &lines))
}

fn latency_chart(title: &str, lines: Vec<Line>) -> Chart {
    Chart { log: true, ..Chart::over_time(title, Unit::Micros, lines) }
}

/// By QoS, as far as the run has several, and that of the tool.
fn latencies(results: &Results) -> Vec<Chart> {
    let mut all = Vec::new();
    for level in &results.qos_series {
        let points = in_step(results, level);
        let points: Vec<_> = points.map(|(s, own)| (s.at_secs, own.end_to_end)).collect();
        let lines: [(&str, PercentileOf); 5] = [
            ("average", |p| p.average_us),
            ("p50", |p| p.p50_us as f64),
            ("p75", |p| p.p75_us as f64),
            ("p90", |p| p.p90_us as f64),
            ("p95", |p| p.p95_us as f64),
        ];
        let title = format!("End-to-end latency, QoS {}", level.qos);
        all.push(latency_chart(&title, percentiles(&points, &lines)));
    }
    let acknowledged: Vec<_> = results.series.iter().map(|s| (s.at_secs, s.publish_ack)).collect();
    if headline(results) != LatencyKind::PublishAck {
        let lines: [(&str, PercentileOf); 3] =
            [("average", |p| p.average_us), ("p99", |p| p.p99_us as f64), MAXIMUM_LINE];
        all.push(latency_chart("Latency to acknowledgement", percentiles(&acknowledged, &lines)));
    }
    let own = Line {
        joined: Joined::Highest,
        ..line(results, "p99", |second| second.lateness_p99_us as f64)
    };
    let lateness = latency_chart("Lateness of flock", vec![own]).without_zeros();
    all.push(Chart { note: LATENESS_NOTE.to_owned(), ..lateness });
    all
}

fn operations(results: &Results) -> Vec<Chart> {
    let line = |name: &str, of: Of| line(results, name, of);
    let chart = |title: &str, unit, lines| Chart::over_time(title, unit, lines).without_zeros();
    let connections =
        ranged(results, "connections", |s| s.connections as f64, |spread| spread.connections);
    let connects = vec![
        line("connected", |s| s.per_sec(s.connects)),
        line("failed", |s| s.per_sec(s.connect_failures)),
        line("disconnected", |s| s.per_sec(s.disconnects)),
        line("subscribed", |s| s.per_sec(s.subscribes)),
    ];
    // As the broker sees them.
    let packets = vec![
        line("PUBLISH in", |s| s.per_sec(s.published)),
        line("PUBLISH out", |s| s.per_sec(s.received)),
        line("PUBACK in", |s| s.per_sec(s.pubacks_sent)),
        line("PUBACK out", |s| s.per_sec(s.pubacks_received)),
    ];
    let bytes =
        vec![line("in", |s| s.per_sec(s.bytes_out)), line("out", |s| s.per_sec(s.bytes_in))];
    // Without acknowledgements it is what the chart of messages shows.
    let has_pubacks = results.totals.pubacks_sent + results.totals.pubacks_received > 0;
    let packets = if has_pubacks { packets } else { Vec::new() };
    vec![
        chart("Connections", Unit::Count, vec![connections]),
        chart("Connects and subscriptions per second", Unit::PerSecond, connects),
        chart("Packets into and out of the broker", Unit::PerSecond, packets),
        chart("Bytes into and out of the broker", Unit::BytesPerSecond, bytes),
    ]
}

fn broker(results: &Results) -> Vec<Chart> {
    let Some(load) = &results.broker_load else { return Vec::new() };
    let gap_secs = SAMPLE_GAP_SECS * f64::from(results.step_secs());
    let sampled = |name: &str, of: SampleOf, most: SampleOf| {
        let mut line = Line::new(name, []);
        for sample in &load.samples {
            let Some(value) = of(sample) else { continue };
            // A broker that is down has no samples.
            if let Some(before) = line.points.last().map(|point| point.0)
                && sample.at_secs - before > gap_secs
            {
                line.points.push((before + gap_secs / 2.0, f64::NAN));
                line.ranges.push((f64::NAN, f64::NAN));
            }
            line.points.push((sample.at_secs, value));
            line.ranges.push((value, most(sample).unwrap_or(value).max(value)));
        }
        vec![line]
    };
    let cpu = sampled("CPU", |s| s.cpu_percent, |s| s.cpu_percent_max);
    let memory = sampled(
        "resident",
        |s| s.memory_bytes.map(|bytes| bytes as f64),
        |s| s.memory_bytes_max.map(|bytes| bytes as f64),
    );
    vec![
        Chart::over_time("Broker CPU (100 % is one core)", Unit::Percent, cpu).without_zeros(),
        Chart::over_time("Broker memory", Unit::Bytes, memory).without_zeros(),
    ]
}

type SampleOf = fn(&HostSample) -> Option<f64>;

/// From when to when messages were due, and none was acknowledged or arrived.
fn outages(results: &Results) -> Vec<(f64, f64)> {
    if !results.series.iter().any(|second| second.received + second.acknowledged > 0) {
        // Nothing of it was for this run to see.
        return Vec::new();
    }
    let mut all: Vec<(f64, f64)> = Vec::new();
    for second in results.series.iter().filter(|second| second.outage_secs() > 0) {
        let to = f64::from(second.at_secs);
        let from = to - f64::from(second.outage_secs());
        match all.last_mut().filter(|last| last.1 >= from) {
            Some(last) => last.1 = to,
            None => all.push((from, to)),
        }
    }
    all
}

/// Faults, or where there are none the begin of each stage; of stages near each other a measured
/// one.
fn marks(results: &Results) -> Vec<(f64, String)> {
    if !results.faults.is_empty() {
        return results.faults.iter().map(|fault| (fault.at_secs, fault.what.clone())).collect();
    }
    let room = results.run.duration_secs / MARKS_MAX;
    let mut marked: Vec<&Phase> = Vec::new();
    for phase in &results.phases {
        match marked.last_mut().filter(|last| phase.from_secs - last.from_secs < room) {
            Some(last) if phase.measured && !last.measured => *last = phase,
            Some(_) => {}
            None => marked.push(phase),
        }
    }
    marked.iter().map(|phase| (phase.from_secs, phase.name.clone())).collect()
}

const MAXIMUM: &str = "maximum";
const MAXIMUM_LINE: (&str, PercentileOf) = (MAXIMUM, |point| point.max_us as f64);
const LATENESS_NOTE: &str = "Time from the due time of a message until it was handed to the \
     kernel. Latencies include it.";
const OUTAGE_NOTE: &str = "Shaded: messages were due, but none arrived or was acknowledged.";
/// Samples are taken once a second and at the edges of stages.
const SAMPLE_GAP_SECS: f64 = 1.8;
/// More marks than this say nothing.
const MARKS_MAX: f64 = 14.0;
