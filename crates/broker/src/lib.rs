//! broker
pub mod access;
