//! Spans and metrics for a collector: from the configuration to the threads that send them.

use std::time::Duration;

use ::telemetry::{CollectorOptions, Exporter, ExporterOptions, Resource};
use anyhow::Context as _;
use base::random;
use config::TelemetryConfig;

use super::parts::Parts;
use crate::http::Metrics;

/// None: nothing is sent. Dropping it sends what is left.
///
/// # Errors
///
/// When a file cannot be used, or the system gives no thread.
pub(super) fn start(parts: &Parts) -> anyhow::Result<Option<Exporter>> {
    start_with(parts, parts.metrics())
}

/// The same with the metrics of a node with several cells, whose spans are all in one queue.
///
/// # Errors
///
/// The same.
pub(super) fn start_with(parts: &Parts, metrics: Metrics) -> anyhow::Result<Option<Exporter>> {
    let Some(config) = &parts.config().telemetry else { return Ok(None) };
    let life_cycle = parts.life_cycle.clone();
    let options = ExporterOptions {
        collector: CollectorOptions {
            endpoint: config.endpoint.clone(),
            timeout: Duration::from_secs(config.timeout_secs.into()),
            headers_file: config.headers_file.clone(),
            ca: config.ca.clone(),
        },
        resource: resource(config),
        has_traces: config.traces,
        metrics_interval: match config.metrics_interval_secs {
            0 => None,
            secs => Some(Duration::from_secs(secs.into())),
        },
        exposition: metrics,
        namespace_of: Box::new(move |scope| life_cycle.namespace_of(scope).into()),
    };
    let exporter = Exporter::start(options, &parts.life_cycle.spans);
    exporter.map(Some).context("cannot start telemetry")
}

/// Of this process: a UUID of version 4.
fn instance_id() -> String {
    let bits = u128::from_be_bytes(random()) & !(0xF << 76 | 0x3 << 62) | 4 << 76 | 2 << 62;
    let text = format!("{bits:032x}");
    let parts = [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]];
    parts.join("-")
}

/// The attributes of the configuration hold where both name one.
fn resource(config: &TelemetryConfig) -> Resource {
    let version = env!("CARGO_PKG_VERSION");
    let own = [
        ("service.name", config.service_name.clone()),
        ("service.version", version.to_owned()),
        ("service.instance.id", instance_id()),
    ];
    let is_free = |name: &str| config.attributes.iter().all(|(known, _)| known != name);
    let own = own.into_iter().filter(|(name, _)| is_free(name));
    let own = own.map(|(name, value)| (name.to_owned(), value));
    Resource { attributes: own.chain(config.attributes.iter().cloned()).collect(), version }
}
