//! Plain types that everybody names. They know nothing of the crate but each other.

pub mod admission;
pub(crate) mod asked;
pub(crate) mod calendar;
pub mod command;
pub(crate) mod connection_numbers;
pub(crate) mod event;
pub(crate) mod expected;
pub(crate) mod group_names;
pub(crate) mod ledger;
pub(crate) mod mail;
pub(crate) mod metrics;
pub(crate) mod name;
pub(crate) mod namespace;
pub(crate) mod rules;
pub(crate) mod settings;
pub(crate) mod shared;
pub mod streams;
pub mod sys;
pub mod topics;
pub(crate) mod waits;
