//! What a scenario is, and all that it may be written in.
//!
//! Everything here turns some text (the native TOML, HiveMQ Swarm's XML, a matrix) into a
//! [`Scenario`], which the engine executes and reports tell about. Begin at [`model`].

pub mod catalogue;
pub mod matrix;
pub mod model;
pub mod scenario;
pub mod swarm;

pub use model::*;
