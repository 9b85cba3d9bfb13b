//! `[telemetry]`: traces and metrics for an OpenTelemetry collector.

use std::path::PathBuf;

use super::Problem;
use super::schema::{ValueKind, count, secs, settings};
use super::source::{Settings, default_of};
use super::url::Url;
use super::values;

/// Where traces and metrics are sent, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct TelemetryConfig {
    /// Without a slash at its end: paths of the signals are put behind it.
    pub endpoint: String,
    pub traces: bool,
    pub traces_per_million: u32,
    /// 0: metrics are not sent.
    pub metrics_interval_secs: u32,
    pub timeout_secs: u32,
    pub service_name: String,
    pub attributes: Vec<(String, String)>,
    pub headers_file: Option<PathBuf>,
    pub ca: Option<PathBuf>,
}

/// None inside: nothing is sent.
pub(super) fn lower(
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> Option<Option<TelemetryConfig>> {
    let raw = RawTelemetry::lower(values(settings, RawTelemetry::SECTION, SECTION))?;
    let mut problem = |key: &str, detail: String| {
        let key = format!("{SECTION}.{key}");
        problems.push(Problem { place: settings.place(&key), key, detail });
    };
    let Some(endpoint) = raw.endpoint else {
        for key in RawTelemetry::SECTION.keys {
            if settings.setting(SECTION, key).value != default_of(key) {
                let detail = "has no effect without the `endpoint` of a collector";
                problem(key.name, detail.into());
            }
        }
        return Some(None);
    };
    let url = Url::parse(&endpoint).map_err(|detail| problem("endpoint", detail)).ok();
    if url.as_ref().is_some_and(|url| url.path.contains('?')) {
        let detail = "must not have a query: the paths of the signals are put behind it";
        problem("endpoint", detail.into());
    }
    if raw.headers_file.is_some() && url.as_ref().is_some_and(|url| !url.is_private()) {
        let detail = "would be sent in clear text; use an endpoint of https://";
        problem("headers_file", detail.into());
    }
    if raw.ca.is_some() && url.as_ref().is_some_and(|url| !url.is_tls) {
        problem("ca", "has no effect with an endpoint of http://; use https://".into());
    }
    if !raw.traces && raw.traces_per_million > 0 {
        problem("traces_per_million", "has no effect with traces = false".into());
    }
    if !raw.traces && raw.metrics_interval_secs == 0 {
        let detail = "nothing would be sent; set traces = true, or an interval";
        problem("metrics_interval_secs", detail.into());
    }
    let mut attributes: Vec<(String, String)> = Vec::new();
    for text in &raw.attributes {
        match text.split_once('=') {
            Some((name, _)) if name.trim() == SERVICE_NAME => {
                problem("attributes", format!("{SERVICE_NAME} is set by service_name"));
            }
            Some((name, _)) if attributes.iter().any(|(known, _)| known == name.trim()) => {
                problem("attributes", format!("'{}' is set twice", name.trim()));
            }
            Some((name, value)) if !name.trim().is_empty() => {
                attributes.push((name.trim().into(), value.trim().into()));
            }
            _ => problem("attributes", format!("must be of the form NAME=VALUE, got '{text}'")),
        }
    }
    Some(Some(TelemetryConfig {
        endpoint: endpoint.trim_end_matches('/').to_owned(),
        traces: raw.traces,
        traces_per_million: raw.traces_per_million,
        metrics_interval_secs: raw.metrics_interval_secs,
        timeout_secs: raw.timeout_secs,
        service_name: raw.service_name,
        attributes,
        headers_file: raw.headers_file,
        ca: raw.ca,
    }))
}

settings! {
    /// Traces of messages and metrics for an OpenTelemetry collector, sent as protobuf over HTTP
    /// (OTLP). See `docs/use/telemetry.md`.
    "telemetry" => RawTelemetry {
        /// The collector. `/v1/traces` and `/v1/metrics` are put behind the URL. Not set: nothing
        /// is sent, and messages get no spans.
        endpoint: Option<String> = ValueKind::Text("a URL such as http://127.0.0.1:4318"), "";
        /// Sends a span for each step of a message whose `traceparent` is sampled.
        traces: bool = ValueKind::Flag, "true";
        /// Of a million messages without a `traceparent`, the number that gets one from the broker.
        traces_per_million: u32 = count(0, 1_000_000), "0";
        /// The interval at which all metrics are sent. `off`: never.
        metrics_interval_secs: u32 = secs(1, 3_600).or("off", 0), "1m";
        /// The longest time of a request to the collector.
        timeout_secs: u32 = secs(1, 60), "10";
        /// The resource attribute `service.name`.
        service_name: String = ValueKind::Text("a name"), "quelea";
        /// Further resource attributes, such as `deployment.environment.name=test`.
        attributes: Vec<String> = ValueKind::List("NAME=VALUE"), "";
        /// A file with headers for each request, such as `Authorization: Bearer x`, one a line. The
        /// broker reads it before each request.
        headers_file: Option<PathBuf> = ValueKind::Path, "";
        /// Authorities that sign the certificate of an `https://` collector, PEM. Not set: those of
        /// the system.
        ca: Option<PathBuf> = ValueKind::Path, "";
    }
}

const SECTION: &str = "telemetry";

const SERVICE_NAME: &str = "service.name";
