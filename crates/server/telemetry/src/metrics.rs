//! Metrics as OTLP has them, made from the page that Prometheus reads: there is one list of
//! metrics, and both have the same names and numbers.

use std::collections::BTreeMap;

use crate::exporter::Resource;
use crate::otlp::{
    CUMULATIVE, Gauge, Histogram, HistogramPoint, KeyValue, Metric, MetricData, MetricsRequest,
    Number, NumberPoint, ResourceMetrics, ScopeMetrics, Sum,
};

/// In nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// When the counters began at 0.
    pub(crate) started: u64,
    pub(crate) now: u64,
}

/// A metric of the page while it is read.
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: Kind,
    numbers: Vec<NumberPoint>,
    /// By their labels but `le`.
    histograms: BTreeMap<String, HistogramPoint>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
}

/// A line with a value.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: &'a str,
}

/// A request with all metrics of the page.
pub(crate) fn request(resource: &Resource, page: &str, times: Times) -> MetricsRequest {
    let metrics = metrics_of(page, times);
    let scope_metrics = vec![ScopeMetrics { scope: Some(resource.scope()), metrics }];
    let own = ResourceMetrics { resource: Some(resource.to_message()), scope_metrics };
    MetricsRequest { resource_metrics: vec![own] }
}

fn metrics_of(page: &str, times: Times) -> Vec<Metric> {
    let mut metrics = Vec::new();
    let mut family: Option<Family<'_>> = None;
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            metrics.extend(family.take().map(Family::finish));
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            family = Some(Family::new(name, help));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind = match rest.rsplit(' ').next() {
                Some("counter") => Kind::Counter,
                Some("histogram") => Kind::Histogram,
                _ => Kind::Gauge,
            };
            family.iter_mut().for_each(|family| family.kind = kind);
        } else if let Some(sample) = Sample::parse(line)
            && let Some(family) = &mut family
        {
            family.add(&sample, times);
        }
    }
    metrics.extend(family.map(Family::finish));
    metrics
}

impl<'a> Family<'a> {
    fn new(name: &'a str, help: &'a str) -> Self {
        let (numbers, histograms) = (Vec::new(), BTreeMap::new());
        Self { name, help, kind: Kind::Gauge, numbers, histograms }
    }

    fn add(&mut self, sample: &Sample<'_>, times: Times) {
        if self.kind == Kind::Histogram {
            return self.add_to_histogram(sample, times);
        }
        self.numbers.push(NumberPoint {
            // A gauge has no beginning.
            start_time_unix_nano: if self.kind == Kind::Counter { times.started } else { 0 },
            time_unix_nano: times.now,
            value: Some(number_of(sample.value)),
            attributes: attributes_of(sample.labels.iter()),
        });
    }

    fn add_to_histogram(&mut self, sample: &Sample<'_>, times: Times) {
        let Some(part) = sample.name.strip_prefix(self.name) else { return };
        let own = sample.labels.iter().filter(|(name, _)| *name != "le");
        let key = own.clone().map(|(name, value)| format!("{name}={value:?},")).collect();
        let point = self.histograms.entry(key).or_insert_with(|| HistogramPoint {
            start_time_unix_nano: times.started,
            time_unix_nano: times.now,
            attributes: attributes_of(own),
            ..HistogramPoint::default()
        });
        let value: f64 = sample.value.parse().unwrap_or(0.0);
        match part {
            "_sum" => point.sum = Some(value),
            "_count" => point.count = value as u64,
            "_bucket" => {
                // Those of the page contain the smaller ones.
                let before: u64 = point.bucket_counts.iter().sum();
                point.bucket_counts.push((value as u64).saturating_sub(before));
                let bound = sample.labels.iter().find(|(name, _)| *name == "le");
                let bound = bound.and_then(|(_, bound)| bound.parse::<f64>().ok());
                point.explicit_bounds.extend(bound.filter(|bound| bound.is_finite()));
            }
            _ => {}
        }
    }

    fn finish(self) -> Metric {
        let data = match self.kind {
            Kind::Gauge => MetricData::Gauge(Gauge { data_points: self.numbers }),
            Kind::Counter => MetricData::Sum(Sum {
                data_points: self.numbers,
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            Kind::Histogram => MetricData::Histogram(Histogram {
                data_points: self.histograms.into_values().collect(),
                aggregation_temporality: CUMULATIVE,
            }),
        };
        Metric {
            name: self.name.to_owned(),
            description: self.help.to_owned(),
            unit: unit_of(self.name).to_owned(),
            data: Some(data),
        }
    }
}

impl<'a> Sample<'a> {
    /// None: the line is none.
    fn parse(line: &'a str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let name_len = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(name_len);
        let mut labels = Vec::new();
        if let Some(mut inside) = rest.strip_prefix('{') {
            while !inside.starts_with('}') {
                let (label, behind) = inside.split_once("=\"")?;
                let (value, behind) = unquoted(behind)?;
                labels.push((label, value));
                inside = behind.strip_prefix(',').unwrap_or(behind);
            }
            rest = &inside[1..];
        }
        Some(Self { name, labels, value: rest.trim() })
    }
}

/// The value of a label, and what is behind its quote.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

fn attributes_of<'a>(labels: impl Iterator<Item = &'a (&'a str, String)>) -> Vec<KeyValue> {
    labels.map(|(name, value)| KeyValue::text(name, value)).collect()
}

fn number_of(text: &str) -> Number {
    match text.parse() {
        Ok(whole) => Number::Int(whole),
        Err(_) => Number::Double(text.parse().unwrap_or(f64::NAN)),
    }
}

/// In UCUM. Names have their units last.
fn unit_of(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    let name = name.strip_suffix("_max").unwrap_or(name);
    match name.rsplit('_').next() {
        Some("bytes") => "By",
        Some("seconds") => "s",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { started: 1, now: 2 };

    const PAGE: &str = "\
# HELP a_total Counts of a.
# TYPE a_total counter
a_total{shard=\"0\",reason=\"x \\\"y\\\\z\\n, }\"} 18446744073709551615
a_total{shard=\"1\"} 7
# HELP b_bytes Size of b.
# TYPE b_bytes gauge
b_bytes 1.5
# HELP c_seconds How long c took.
# TYPE c_seconds histogram
c_seconds_bucket{le=\"0.001\"} 2
c_seconds_bucket{le=\"0.5\"} 2
c_seconds_bucket{le=\"+Inf\"} 5
c_seconds_sum 3.25
c_seconds_count 5
";

    #[test]
    fn counters_gauges_and_histograms_keep_their_numbers() {
        let metrics = metrics_of(PAGE, TIMES);
        let names: Vec<_> = metrics.iter().map(|own| (&*own.name, &*own.unit)).collect();
        assert_eq!(names, [("a_total", ""), ("b_bytes", "By"), ("c_seconds", "s")]);
        assert_eq!(metrics[0].description, "Counts of a.");
        let Some(MetricData::Sum(sum)) = &metrics[0].data else { panic!("{:?}", metrics[0]) };
        assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
        let [large, small] = sum.data_points.as_slice() else { panic!("{sum:?}") };
        // More than OTLP's integers can say.
        assert_eq!(large.value, Some(Number::Double(18_446_744_073_709_551_615.0)));
        assert_eq!(large.attributes[1], KeyValue::text("reason", "x \"y\\z\n, }"));
        assert_eq!((small.value, small.start_time_unix_nano), (Some(Number::Int(7)), 1));
        let Some(MetricData::Gauge(gauge)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
        assert_eq!(gauge.data_points[0].value, Some(Number::Double(1.5)));
        assert_eq!(gauge.data_points[0].start_time_unix_nano, 0);
        let Some(MetricData::Histogram(own)) = &metrics[2].data else { panic!("{:?}", metrics[2]) };
        let point = &own.data_points[0];
        assert_eq!((point.count, point.sum), (5, Some(3.25)));
        assert_eq!(
            (&*point.bucket_counts, &*point.explicit_bounds),
            (&[2, 0, 3][..], &[0.001, 0.5][..])
        );
    }

    #[test]
    fn lines_that_are_no_samples_are_skipped() {
        for line in ["", "name", "name{a=\"b", "name{a} 1", "# EOF"] {
            assert!(Sample::parse(line).is_none(), "{line}");
        }
        assert!(metrics_of("a 1\n", TIMES).is_empty());
    }
}
