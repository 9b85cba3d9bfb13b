//! What a run measured: the one type ([`Results`]) that the engine fills, agents send to their
//! commander, and every report is drawn from.
//!
//! `Results` is plain data. It serialises to the JSON file that a run leaves behind and back
//! again without loss, histograms included, so that a report, a comparison or a merge never needs
//! the run itself. Start reading at [`results::Results`]; [`histogram::LatencyHistogram`] is what
//! the load threads record into.

pub mod clients;
mod due;
pub mod figures;
pub mod heat;
pub mod histogram;
mod host;
pub mod ledger;
pub mod results;
mod routing;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
pub mod series;
pub mod service;
mod sizing;
pub mod stats;
pub mod text;
pub mod threshold;

pub use clients::{ClientLatency, ClientTally};
pub use due::Due;
pub use heat::{Heat, HeatSecond, STEPS_PER_DECADE, step_from_us};
pub use histogram::{LatencyHistogram, LatencyKind};
pub use results::*;
pub use routing::{Minute, Routing, SinkMinute, SinkResults};
pub use service::Service;
pub use sizing::{Sizing, SizingStep, Sought};
