//! Load from several processes or hosts: agents that carry out parts of a run, and the pool that
//! leads them.
//!
//! A commander connects to each agent over TCP and speaks length-prefixed JSON (`wire`): it
//! measures the clock offset, before and during the run (`drift`), offers a work package (the
//! scenario with this agent's slice of every group), and then passes on the conductor's orders.
//! The agent runs ordinary load threads and passes on their news. An agent that cannot carry its
//! package says why, and the work is cut again among the others; one that dies in the middle is
//! reported and its part is missing from the result, which makes the run invalid.
//!
//! On one machine the same is done with child processes, to get round the limit of open files.
//!
//! There is no authentication: whoever reaches an agent's port can make it send load. Let it listen
//! on trusted networks only.

mod discover;
mod drift;
mod pool;
mod serve;
mod wire;

pub use discover::discover;
pub use pool::{AgentError, RemotePool};
pub use serve::serve;
