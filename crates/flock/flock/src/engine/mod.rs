//! The engine: executes a [`Scenario`](flock_model::Scenario) and gives
//! [`Results`](flock_measure::Results).
//!
//! Load threads (`worker`) own their clients outright; the conductor ([`conductor`]) tells them
//! when a stage begins and ends, gathers what they count each second, and judges at the end. All
//! of it shares one read-only [`plan`] and one [`clock`].

mod check;
mod client;
pub mod clock;
pub mod conductor;
pub mod contention;
mod context;
mod failover;
mod head;
pub mod host;
mod hunt;
pub mod judge;
mod leave;
pub mod owner;
pub mod plan;
pub mod pool;
pub mod preflight;
mod publish;
mod receive;
mod relay;
mod request;
pub mod run;
mod script;
mod search;
mod session;
mod sinks;
mod stamp;
mod stay;
pub mod surroundings;
pub mod tally;
mod task;
mod valid;
mod watch;
mod wills;
mod worker;

pub use conductor::{DRAIN, Progress};
pub(crate) use hunt::{Hunt, Outcome as Step, is_tool_the_limit};
pub use run::{BrokerAccess, Options, RunError, run, save};
pub(crate) use valid::THREAD_CPU_MAX_PERCENT;
