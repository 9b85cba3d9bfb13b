//! What the repository does to itself: the conformance table and the rules of the house.
//!
//! Purpose: `cargo xtask docs` writes the generated documents. `docs/develop/conformance.md` is
//! made here from the names of tests, and `cargo xtask tidy` checks the house rules; the tests of
//! this crate check both, so that neither goes stale.
//!
//! What it does not know: anything about MQTT beyond the ids of statements, and no crate of ours.
//!
//! Where to start reading: [`conformance::write`] and [`tidy::faults`].

pub mod conformance;
pub mod docs;
pub mod layers;
pub mod missing;
pub mod mutants;
pub mod prose;
mod rust;
pub mod source;
mod texts;
pub mod tidy;
