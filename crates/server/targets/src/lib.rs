//! Where rules send: a batch of records goes in, an outcome per record comes out. Targets are Kafka
//! and webhooks.
//!
//! **Does not know** cursors, rules and MQTT: the caller decides what is sent again, and when.
//!
//! **Start reading** at `batch.rs`, then `kafka/target.rs` and `relay.rs`.
//!
//! **Invariants.** Every accepted batch gets exactly one answer, and every wait has a time-out.
//! [`Target::send`] never waits: a full queue returns the batch. Each connection is opened by
//! [`Dialer`], which checks the address between resolving and connecting. No error and no `Debug`
//! shows a secret.

mod batch;
mod dial;
mod jobs;
pub mod kafka;
mod networks;
mod relay;
mod secret;
mod threads;
mod versions;
pub mod webhook;

pub use batch::{Answer, Answers, Batch, Full, Outcome, Record, Target};
pub use dial::{DialError, Dialer, Resolve, System, TENANT_CONNECTIONS_MAX, TlsFiles};
pub use networks::{HostError, Networks};
pub use secret::{Secret, SecretError};
pub use threads::Threads;
