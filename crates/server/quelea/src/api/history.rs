//! Metrics as JSON: as they are, and as they were in the last hours.

use broker::MetricType;

use super::call::Call;
use super::problem::Problem;
use super::route::Outcome;
use super::schema::record;
use super::{Api, json};
use crate::history::{INTERVAL_SECS, Series};

record! {
    /// Metrics at a time.
    Totals {
        /// The time, in milliseconds since 1970.
        time_ms: u64,
        /// The metrics.
        series: Vec<Total>,
    }
}

record! {
    /// A metric, summed over all shards.
    Total {
        /// The name and labels, as in `/metrics`.
        name: String,
        /// `counter` (since the start) or `gauge`.
        kind: String,
        /// The value.
        value: u64,
    }
}

record! {
    /// Metrics over time.
    Samples {
        /// Seconds between two samples, if none is skipped.
        interval_secs: u64,
        /// The times of the samples, in milliseconds since 1970, oldest first.
        times_ms: Vec<u64>,
        /// The metrics.
        series: Vec<Line>,
    }
}

record! {
    /// A metric over time.
    Line {
        /// The name and labels, as in `/metrics`.
        name: String,
        /// `counter` (since the start) or `gauge`.
        kind: String,
        /// A value for each time.
        values: Vec<u64>,
    }
}

pub(crate) fn totals(api: &Api) -> Outcome {
    let history = &api.facts.history;
    let values = history.series().iter().zip(history.values());
    let series = values.map(|(series, value)| Total {
        name: series.name.clone(),
        kind: word(series.kind).to_owned(),
        value,
    });
    json(&Totals { time_ms: api.facts.clock.wall_ms(), series: series.collect() })
}

pub(crate) fn show(api: &Api, call: &Call) -> Outcome {
    let history = &api.facts.history;
    let places = wanted(history.series(), call.text("series"))?;
    let window_secs = call.number("window_secs").unwrap_or(WINDOW_SECS);
    let points_max = call.number("points_max").unwrap_or(POINTS_MAX) as usize;
    let now_ms = api.facts.clock.now_ms();
    let samples = history.since(now_ms.saturating_sub(window_secs * 1000), points_max);
    // A wall clock that was set must not make two samples change places.
    let wall_ms = api.facts.clock.wall_ms();
    let line = |place: &usize| Line {
        name: history.series()[*place].name.clone(),
        kind: word(history.series()[*place].kind).to_owned(),
        values: samples.iter().map(|sample| sample.values[*place]).collect(),
    };
    json(&Samples {
        interval_secs: INTERVAL_SECS,
        series: places.iter().map(line).collect(),
        times_ms: samples.iter().map(|it| wall_ms.saturating_sub(now_ms - it.at_ms)).collect(),
    })
}

/// The places of series; a name without labels stands for all labels.
fn wanted(series: &[Series], names: Option<&str>) -> Result<Vec<usize>, Problem> {
    let Some(names) = names else { return Ok((0..series.len()).collect()) };
    let mut places = Vec::new();
    for name in names.split(',') {
        let is = |series: &Series| {
            series.name == name || series.name.split('{').next().is_some_and(|it| it == name)
        };
        let before = places.len();
        places.extend((0..series.len()).filter(|place| is(&series[*place])));
        if places.len() == before {
            let detail = format!("no series '{name}'");
            let fix = "GET /totals lists the names";
            return Err(Problem::bad("query parameter series", detail).fix(fix));
        }
    }
    places.sort_unstable();
    places.dedup();
    Ok(places)
}

const fn word(kind: MetricType) -> &'static str {
    match kind {
        MetricType::Counter => "counter",
        MetricType::Gauge => "gauge",
    }
}

const WINDOW_SECS: u64 = 3_600;
const POINTS_MAX: u64 = 360;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_labels_stands_for_all_of_them() {
        let of = |name: &str| Series { name: name.to_owned(), kind: MetricType::Gauge };
        let series = [of("a{x=\"1\"}"), of("b"), of("a{x=\"2\"}"), of("ab")];
        let places = |names| wanted(&series, names).map_err(|problem| problem.detail);
        assert_eq!(places(None).unwrap(), [0, 1, 2, 3]);
        assert_eq!(places(Some("a")).unwrap(), [0, 2]);
        assert_eq!(places(Some("b,a{x=\"2\"},a,b")).unwrap(), [0, 1, 2]);
        assert!(places(Some("b,c")).unwrap_err().contains("'c'"));
        assert!(places(Some("")).is_err());
    }
}
