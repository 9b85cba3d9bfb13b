//! A disk that exists in memory only and loses what a real one may lose, driven by a seed.
//!
//! Behind the feature `testing`: for the tests of this crate and the simulator of the broker.

mod disk;
mod mend;
mod rng;

pub use disk::{Crash, Faults, SimDisk, Written};
pub use mend::mend_checksums;
pub use rng::Rng;
