//! Limits that a scenario or a command line sets to any figure of a run: `p99 <= 10ms`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::figures::{Figures, headline};
use crate::text::{bytes, micros, number};
use crate::{Due, HostLoad, LatencyKind, LatencySummary, RateSearch, Results};

/// One limit, such as `received_per_sec >= 40000`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    pub metric: String,
    pub comparison: Comparison,
    /// Times in microseconds, sizes in bytes.
    pub limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    AtMost,
    AtLeast,
    Below,
    Above,
    Equal,
}

impl Comparison {
    const ALL: [(&str, Self); 5] = [
        ("<=", Self::AtMost),
        (">=", Self::AtLeast),
        ("==", Self::Equal),
        ("<", Self::Below),
        (">", Self::Above),
    ];

    fn holds(self, found: f64, limit: f64) -> bool {
        match self {
            Self::AtMost => found <= limit,
            Self::AtLeast => found >= limit,
            Self::Below => found < limit,
            Self::Above => found > limit,
            Self::Equal => (found - limit).abs() <= f64::EPSILON * limit.abs().max(1.0),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(_, comparison)| comparison == self);
        f.write_str(named.map_or("", |(sign, _)| sign))
    }
}

impl Threshold {
    /// Reads a metric's name and a limit like `<= 10ms`.
    pub fn new(metric: &str, limit: &str) -> Result<Self, String> {
        let (metric, limit) = (metric.trim(), limit.trim());
        let signs = Comparison::ALL.iter();
        let Some((sign, comparison)) = signs.into_iter().find(|(sign, _)| limit.starts_with(sign))
        else {
            return Err(format!(
                "must be a limit such as \"<= 10ms\", \">= 40000\" or \"== 0\", got `{limit}`"
            ));
        };
        if !is_known(metric) {
            return Err(format!(
                "unknown metric `{metric}`; valid: {FIGURES}, a latency such as end_to_end.p99, \
                timer.NAME.p99, or a path in the results such as totals.connections_lost"
            ));
        }
        let limit = limit[sign.len()..].trim();
        let dimension = Dimension::of(metric);
        let limit = quantity(limit, dimension).map_err(|why| format!("`{metric}` {why}"))?;
        Ok(Self { metric: metric.to_owned(), comparison: *comparison, limit })
    }

    /// Reads both in one, as `p99<=10ms`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.find(['<', '>', '=']) {
            Some(at) => Self::new(&text[..at], &text[at..]),
            None => Err(format!("must be a limit such as p99<=10ms, got `{text}`")),
        }
    }

    /// What is wrong, in words; `None` if the limit holds.
    pub fn unmet(&self, results: &Results) -> Option<String> {
        let Self { metric, comparison, limit } = self;
        let is_limit_above = matches!(comparison, Comparison::AtMost | Comparison::Below);
        let found = found(metric, results);
        let is_within = found.is_none_or(|found| comparison.holds(found, *limit));
        if let Some(share) = open_words(metric, results)
            && (found.is_none() || (is_limit_above && is_within))
        {
            return Some(format!(
                "{metric} is unknown, {comparison} {} expected: {share} never came to an end",
                self.shown(*limit)
            ));
        }
        let Some(found) = found else {
            return Some(format!(
                "{metric} was not measured, {comparison} {} expected",
                self.shown(*limit)
            ));
        };
        (!comparison.holds(found, *limit)).then(|| {
            format!(
                "{metric} is {}, {comparison} {} expected",
                self.shown(found),
                self.shown(*limit)
            )
        })
    }

    /// A value in the metric's unit.
    fn shown(&self, value: f64) -> String {
        match Dimension::of(&self.metric) {
            Dimension::Bytes => bytes(value),
            Dimension::Time | Dimension::Micros => micros(value),
            _ => number(value),
        }
    }
}

/// What a metric counts in, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dimension {
    /// A latency whose name has no unit, so that its limit needs one.
    Time,
    /// The name says microseconds.
    Micros,
    Seconds,
    Bytes,
    Percent,
    PerSecond,
    Number,
}

impl Dimension {
    fn of(metric: &str) -> Self {
        let behind = metric.split_once('.').map_or(metric, |(_, rest)| rest);
        let last = behind.rsplit('.').next().unwrap_or(behind);
        let is_statistic = |name: &&str| *name != "count" && is_statistic(name);
        match last {
            _ if last.ends_with("bytes") || last.contains("_bytes_") => Self::Bytes,
            _ if last.ends_with("_us") || last.contains("_us_") => Self::Micros,
            _ if last.ends_with("_secs") => Self::Seconds,
            _ if last.contains("percent") => Self::Percent,
            _ if last.ends_with("per_sec") || last.starts_with("rate_") => Self::PerSecond,
            _ if [metric, behind, last].iter().any(is_statistic) => Self::Time,
            _ => Self::Number,
        }
    }

    /// The units that a limit may have, in those of the results.
    fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Time | Self::Micros | Self::Seconds => &TIMES,
            Self::Bytes => &SIZES,
            Self::Percent => &[("%", 1.0)],
            Self::PerSecond => &[("/s", 1.0)],
            Self::Number => &[],
        }
    }

    fn valid(self) -> &'static str {
        match self {
            Self::Time => "a time with its unit, such as 10ms",
            Self::Micros => "microseconds, or a time such as 10ms",
            Self::Seconds => "seconds, or a time such as 10s",
            Self::Bytes => "a size such as 300MB",
            Self::Percent => "a percentage such as 75%",
            Self::PerSecond => "a rate such as 40000/s",
            Self::Number => "a number such as 40000",
        }
    }
}

/// In microseconds.
const TIMES: [(&str, f64); 6] =
    [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3_600e6), ("d", 86_400e6)];
const SIZES: [(&str, f64); 7] = [
    ("B", 1.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
];

/// A number with a unit of its dimension; without one only where the metric's name says it.
fn quantity(text: &str, dimension: Dimension) -> Result<f64, String> {
    let wrong = || format!("must be {}, got `{text}`", dimension.valid());
    let split = text.find(|c: char| c.is_ascii_alphabetic() || c == '%' || c == '/');
    let (digits, unit) = text.split_at(split.unwrap_or(text.len()));
    let digits: String = digits.trim().chars().filter(|c| *c != '_' && *c != ',').collect();
    let value: f64 = digits.parse().map_err(|_| wrong())?;
    let unit = unit.trim();
    if unit.is_empty() {
        return if dimension == Dimension::Time { Err(wrong()) } else { Ok(value) };
    }
    let (_, factor) = dimension.units().iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    Ok(match dimension {
        Dimension::Seconds => value * factor / 1e6,
        _ => value * factor,
    })
}

fn is_known(metric: &str) -> bool {
    if figure(metric, &Figures::default()).is_some() {
        return true;
    }
    match metric.split_once('.') {
        Some(("timer", rest)) => rest.rsplit_once('.').is_some_and(|(_, last)| is_statistic(last)),
        Some((kind, last)) if kind_of(kind).is_some() => is_statistic(last),
        _ => {
            let empty = Results {
                broker_load: Some(HostLoad::default()),
                rate_search: Some(RateSearch::default()),
                ..Results::default()
            };
            serde_json::to_value(empty).is_ok_and(|empty| match at_path(&empty, metric) {
                Some(value) => value.is_number() || value.is_null(),
                None => false,
            })
        }
    }
}

fn is_statistic(name: &str) -> bool {
    statistic(&LatencySummary::default(), name).is_some()
        || name.strip_prefix('p').is_some_and(|p| percentile(p).is_some())
}

/// The value of a metric; `None` if the run has none.
fn found(metric: &str, results: &Results) -> Option<f64> {
    if let Some(value) = figure(metric, &Figures::of(results)) {
        return value;
    }
    match metric.split_once('.') {
        Some(("timer", rest)) => {
            let (name, last) = rest.rsplit_once('.')?;
            let timer = results.timers.iter().find(|timer| timer.name == name)?;
            (timer.summary.count > 0).then(|| statistic(&timer.summary, last))?
        }
        Some((kind, last)) if kind_of(kind).is_some() => {
            let due = Due::of(results, kind_of(kind)?);
            if due.histogram.is_empty() {
                return None;
            }
            let exact = last.strip_prefix('p').and_then(percentile);
            match exact {
                Some(at) => due.micros_at(at).map(|us| us as f64),
                None => statistic(&due.histogram.summary(), last),
            }
        }
        _ => at_path(&serde_json::to_value(results).ok()?, metric)?.as_f64(),
    }
}

/// How much has no end, if the value of a latency may be that of it.
fn open_words(metric: &str, results: &Results) -> Option<String> {
    let (due, last) = match metric.split_once('.') {
        Some(("timer", rest)) => {
            let (name, last) = rest.rsplit_once('.')?;
            let timer = results.timers.iter().find(|timer| timer.name == name)?;
            let mut due = Due { unfinished: timer.unfinished, ..Due::default() };
            due.histogram.record_micros_n(timer.summary.max_us, timer.summary.count);
            (due, last)
        }
        Some((kind, last)) if kind_of(kind).is_some() => (Due::of(results, kind_of(kind)?), last),
        _ => (Due::of(results, headline(results)), metric),
    };
    let last = last.strip_suffix("_us").unwrap_or(last);
    let percentile = match last {
        // One without an end moves them.
        "average" | "max" => 100.0,
        "p999" => 99.9,
        last => last.strip_prefix('p').and_then(percentile)?,
    };
    if due.is_open_at(percentile) { due.open_words() } else { None }
}

fn percentile(text: &str) -> Option<f64> {
    text.parse().ok().filter(|p| *p > 0.0 && *p <= 100.0)
}

fn kind_of(name: &str) -> Option<LatencyKind> {
    serde_json::from_value(Value::String(name.to_owned())).ok()
}

fn statistic(summary: &LatencySummary, name: &str) -> Option<f64> {
    let fields = serde_json::to_value(summary).ok()?;
    let of = |name: &str| fields.get(name).and_then(Value::as_f64);
    of(name).or_else(|| of(&format!("{name}_us")))
}

fn at_path<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| match value {
        Value::Array(list) => list.get(name.parse::<usize>().ok()?),
        _ => value.get(name),
    })
}

/// A headline figure by name: `Some(None)` if the run has none.
fn figure(name: &str, figures: &Figures) -> Option<Option<f64>> {
    Some(match name {
        "published_per_sec" => figures.published_per_sec,
        "received_per_sec" => figures.received_per_sec,
        "routed_per_sec" => figures.routed_per_sec,
        "average" => figures.average_us,
        "p50" => figures.p50_us,
        "p75" => figures.p75_us,
        "p90" => figures.p90_us,
        "p95" => figures.p95_us,
        "p99" => figures.p99_us,
        "p99.9" => figures.p999_us,
        "max" => figures.max_us,
        "cpu_average_percent" => figures.cpu_average_percent,
        "cpu_max_percent" => figures.cpu_max_percent,
        "cpu_us_per_message" => figures.cpu_us_per_message,
        "memory_average_bytes" => figures.memory_average_bytes,
        "memory_max_bytes" => figures.memory_max_bytes,
        "memory_per_connection_bytes" => figures.memory_per_connection_bytes,
        "connections_max" => Some(figures.connections_max as f64),
        "lost" => Some(figures.lost as f64),
        "duplicated" => Some(figures.duplicated as f64),
        "reordered" => Some(figures.reordered as f64),
        _ => return None,
    })
}

const FIGURES: &str = "one of published_per_sec, received_per_sec, routed_per_sec, average, p50, p75, p90, p95, p99, p99.9, max, cpu_average_percent, cpu_max_percent, cpu_us_per_message, memory_average_bytes, memory_max_bytes, memory_per_connection_bytes, connections_max, lost, duplicated, reordered";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Timer, sample};

    fn unmet(text: &str) -> Option<String> {
        Threshold::parse(text).unwrap().unmet(&sample::results(1.0))
    }

    #[test]
    fn any_metric_can_have_a_limit() {
        let results = sample::results(1.0);
        let rate = Figures::of(&results).received_per_sec.unwrap();
        for holds in [
            format!("received_per_sec >= {rate}"),
            "lost<=2".to_owned(),
            "lost == 2".to_owned(),
            "end_to_end.p99.9 <= 1h".replace("1h", "60m"),
            "end_to_end.average < 10s".to_owned(),
            "totals.connects_failed <= 1000000".to_owned(),
            "run.duration_secs > 0".to_owned(),
        ] {
            assert_eq!(unmet(&holds), None, "{holds}");
        }
        assert_eq!(unmet("lost <= 1"), Some("lost is 2, <= 1 expected".to_owned()));
        let late = unmet("p99 < 1us").unwrap();
        assert!(late.starts_with("p99 is ") && late.ends_with("< 1 us expected"), "{late}");
        let held = Threshold::parse("rate_search.rate_held >= 40000").unwrap();
        let search = |rate_held| Results {
            rate_search: Some(RateSearch { rate_held, ..RateSearch::default() }),
            ..Results::default()
        };
        assert_eq!(held.unmet(&search(48_000.0)), None);
        assert!(held.unmet(&search(31.0)).is_some() && held.unmet(&results).is_some());
        assert!(unmet("timer.nobody.p50 <= 1s").unwrap().contains("was not measured"));
    }

    #[test]
    fn what_is_not_measured_holds_no_limit() {
        let empty = Results::default();
        for text in ["cpu_us_per_message <= 100", "p99 <= 10s", "broker_load.cpu_percent_max < 50"]
        {
            let said = Threshold::parse(text).unwrap().unmet(&empty).unwrap();
            assert!(said.contains("was not measured"), "{said}");
        }
    }

    #[test]
    fn a_percentile_of_what_never_came_meets_no_limit() {
        let mut results = sample::results(1.0);
        let said = |results: &Results, text: &str| Threshold::parse(text).unwrap().unmet(results);
        // 550 of 55,000 is a hundredth.
        results.latencies[1].missing = 540;
        assert_eq!(said(&results, "p99 <= 60m"), None);
        assert_eq!(said(&results, "end_to_end.p99 <= 60m"), None);
        results.latencies[1].missing = 700;
        for metric in ["p99", "p99.9", "max", "average", "end_to_end.p99", "end_to_end.p999_us"] {
            let words = said(&results, &format!("{metric} <= 60m")).unwrap();
            let is_told = words.contains("is unknown, <= 3,600 s expected: 700 of 55,700 (1.26 %)");
            assert!(is_told, "{words}");
        }
        assert_eq!(said(&results, "p95 <= 60m"), None);
        assert!(said(&results, "p95 < 1us").unwrap().starts_with("p95 is "));
        // What has waited for too long is no less for it.
        results.latencies[1].missing = 0;
        results.latencies[1].unfinished = 700;
        assert!(said(&results, "p99 <= 60m").unwrap().contains("unknown"));
        assert_eq!(said(&results, "p99 >= 1us"), None);
        results.timers = vec![Timer { name: "t".into(), ..Timer::default() }];
        (results.timers[0].summary.count, results.timers[0].unfinished) = (10, 1);
        assert!(said(&results, "timer.t.max <= 60m").unwrap().contains("1 of 10"));
        assert_eq!(said(&results, "timer.t.p50 <= 60m"), None);
    }

    #[test]
    fn a_limit_has_the_unit_of_its_metric() {
        for (text, limit) in [
            ("p99 <= 10ms", 10_000.0),
            ("cpu_us_per_message <= 100", 100.0),
            ("validity.lateness.p99_us <= 1ms", 1_000.0),
            ("run.duration_secs >= 10s", 10.0),
            ("run.duration_secs >= 10", 10.0),
            ("memory_max_bytes <= 300MB", 300e6),
            ("cpu_max_percent <= 75%", 75.0),
            ("received_per_sec >= 40000/s", 40_000.0),
            ("end_to_end.count >= 5", 5.0),
        ] {
            assert_eq!(Threshold::parse(text).map(|it| it.limit), Ok(limit), "{text}");
        }
    }

    #[test]
    fn bad_limits_are_refused() {
        for (text, said) in [
            ("p99", "must be a limit"),
            ("p99 10ms", "must be a limit"),
            ("p99 <= soon", "must be a time with its unit, such as 10ms, got `soon`"),
            ("p99 < 10", "`p99` must be a time with its unit, such as 10ms, got `10`"),
            ("end_to_end.p99.9 < 10", "must be a time"),
            ("timer.login.average < 10", "must be a time"),
            ("max <= 10MB", "must be a time"),
            ("received_per_sec >= 10ms", "must be a rate"),
            ("lost <= 5%", "must be a number"),
            ("memory_max_bytes <= 10ms", "must be a size"),
            ("speed <= 3", "unknown metric `speed`"),
            ("totals.speed <= 3", "unknown metric"),
            ("end_to_end.p101 <= 3", "unknown metric"),
            ("run.command <= 3", "unknown metric"),
        ] {
            let error = Threshold::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
