//! Helpers for all parts of the program `quelea`: time, memory accounting, random bytes, dates,
//! terminal output.
//!
//! It does not know brokers, clients or configuration.
//!
//! Start reading at `clock.rs`.

mod clock;
mod lines;
pub mod memory;
pub mod moment;
mod process;
mod random;
mod shown;
mod terminal;

pub use clock::{Clock, boot_ms, wall_ms};
pub use lines::json_line;
pub use process::{Process, ending_the_process, resident_bytes};
pub use random::{equal_in_constant_time, random};
pub use shown::{seen, seen_json, seen_lines, shown};
pub use terminal::{
    EXIT_FAILURE, EXIT_OK, EXIT_OPEN, EXIT_TIMEOUT, EXIT_UNDECIDED, EXIT_USAGE, complain, print,
};
