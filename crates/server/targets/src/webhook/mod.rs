//! Events to HTTP endpoints.
//!
//! **Start reading** at `target.rs`, then `verdict.rs` for what an answer means.

mod client;
mod settings;
mod sign;
mod target;
mod validation;
mod verdict;

pub use settings::{PERMANENT, Settings, SettingsError, Validation, is_free_header};
pub use target::Webhook;
