//! `flock`: the load lab.

pub mod measure;
