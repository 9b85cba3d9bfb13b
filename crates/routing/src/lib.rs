//! Rules: which published messages are routed, and what they become.
//!
//! A [`Record`] is a published message, with what was known of its publisher at the time of the
//! publish. An [`Event`] is that record as a CloudEvent.
//!
//! It does not know sockets, clocks, threads or files: time and event IDs are arguments.

pub mod condition;
pub mod enrich;
pub mod event;
pub mod form;
pub mod record;

mod json;
mod media_type;
#[cfg(test)]
mod testing;

pub use condition::{Condition, ConditionError, Given, Operator, RawCondition};
pub use enrich::{Enriched, Enrichment, EnrichmentError, Enrichments, Template, Variable};
pub use event::{Event, Origin, PayloadReading};
pub use form::{Binding, Form, Header, Output};
pub use json::{JSON_BYTES_MAX, JSON_DEPTH_MAX};
pub use record::Record;
