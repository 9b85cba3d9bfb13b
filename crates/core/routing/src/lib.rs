//! Rules: which published messages are routed, and what they become.
//!
//! A [`Record`] is a published message, with what was known of its publisher at the time of the
//! publish. An [`Event`] is that record as a CloudEvent. A [`Rule`] has a topic filter, conditions
//! over the event, enrichments, a form and a target. [`Rule::verdict`] says whether it matches, and
//! [`Rule::output`] makes the headers and the body that the target receives.
//!
//! A [`Cursor`] knows how far a consumer is, and that all outcomes add up. A [`Dispatch`] says what
//! is sent to a target next, and what its answers mean.
//!
//! Streams, targets and rules are read from TOML ([`definitions::parse`]), and rules from the JSON
//! of Azure Event Grid ([`event_grid::read`]).
//!
//! It does not know sockets, clocks, threads or files: time and event IDs are arguments.
//!
//! # Invariants
//!
//! - Rules are compiled once. Evaluation cannot fail: what could be wrong is refused before.
//! - The JSON of a record is parsed once at most, for all rules, and only if a condition or a form
//!   needs it. It is limited in bytes and depth.
//! - An enrichment takes precedence over an attribute of the same name: publishers cannot forge it.

pub mod condition;
pub mod cursor;
pub mod definitions;
pub mod dispatch;
pub mod enrich;
pub mod event;
pub mod event_grid;
pub mod form;
pub mod property;
pub mod record;
pub mod rule;

mod json;
mod media_type;
#[cfg(test)]
mod testing;

pub use condition::{Condition, ConditionError, Given, Operator, RawCondition};
pub use cursor::{Cursor, Outcome};
pub use definitions::{Definitions, Problem, RuleSpec, StreamSpec, TargetSpec};
pub use dispatch::{Dispatch, DispatchRules};
pub use enrich::{Enriched, Enrichment, EnrichmentError, Enrichments, Template, Variable};
pub use event::{Event, Origin, PayloadReading};
pub use form::{Binding, Form, Header, Output};
pub use json::{JSON_BYTES_MAX, JSON_DEPTH_MAX};
pub use property::Property;
pub use record::Record;
pub use rule::{Destination, Rule, RuleError, Target, Verdict};
