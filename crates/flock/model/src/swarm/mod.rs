//! HiveMQ Swarm's scenario XML, both dialects, read as it is.
//!
//! `xml` makes a tree with positions, `lower` makes the model of it. What Swarm leaves open is
//! decided so (and said in `docs/flock/swarm.md`):
//!
//! - Topics of a group are cut into blocks, one per client; a client walks its block round robin.
//!   Equal counts give pairs. With fewer topics than clients, consecutive clients share a topic.
//! - `subscribe to` may name a topic group: an unnamed subscription to its exact names.
//! - `wildCard="true"` subscribes to the text in front of the pattern's first varying level, and
//!   `#`.
//! - Messages of 16 bytes or more carry the lab's stamp in place of their first 16 bytes, so that
//!   latency and integrity are measured, unless some `receive` looks at the message's text.

mod lower;
mod xml;

use crate::model::{Payload, Scenario};
use crate::scenario::ScenarioError;

/// The scenario in `text`; `file` is for messages, and its stem becomes the id. `stand_in` replaces
/// what payload generators, which are Java classes, would make.
pub fn parse(
    file: &str,
    text: &str,
    stand_in: Option<&Payload>,
) -> Result<Scenario, ScenarioError> {
    let root = xml::parse(file, text)?;
    lower::lower(file, text, &root, stand_in)
}

#[cfg(test)]
mod tests;
