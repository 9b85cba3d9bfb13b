//! Kafka, and what speaks its protocol, such as Azure Event Hubs.
//!
//! The client library is krafka ([decision 126](../../../../docs/decisions/0126-kafka-client.md)).
//! Its producer is idempotent and waits for all replicas, so its own retries store nothing twice.
//! A new producer is begun after a fatal error and with each start of the program: records without
//! an answer are sent again by the caller, and may then be stored twice.

mod connection;
mod errors;
mod settings;
mod target;
mod token;

pub use settings::{Compression, Login, Settings, SettingsError};
pub use target::Kafka;
pub use token::{TokenEndpoint, TokenError};
