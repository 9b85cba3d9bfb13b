//! Spans and metrics for an OpenTelemetry collector, as protobuf over HTTP (OTLP).
//!
//! Nothing here holds up a message: workers put spans into a queue of limited length, and threads
//! send them. While the collector is slow or away the queue fills, and what does not fit is
//! dropped and counted.

mod collector;
mod exporter;
mod metrics;
mod otlp;
mod queue;
mod spans;

pub use collector::CollectorOptions;
pub use exporter::{Exporter, ExporterOptions, Resource};
pub use queue::{Counts, QUEUE_SPANS_MAX, SpanQueue};
