//! Output and exit codes of commands.

use std::io::{self, Write as _};

use crate::seen_lines;

/// Writes to standard output. `false`: whoever read it has had enough, which is no failure.
pub fn print(text: &[u8]) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).is_ok()
}

/// Tells what went wrong, on standard error.
pub fn complain(error: &dyn std::fmt::Display) {
    eprintln!("quelea: {}", seen_lines(&error.to_string()));
}

/// Done.
pub const EXIT_OK: u8 = 0;
/// It failed while running.
pub const EXIT_FAILURE: u8 = 1;
/// Wrong usage or configuration.
pub const EXIT_USAGE: u8 = 2;
/// A configuration is valid, and something of it is open.
pub const EXIT_OPEN: u8 = 3;
/// Nobody here knows: a service that was not asked decides.
pub const EXIT_UNDECIDED: u8 = 6;
/// mosquitto's code for `-W` seconds that have passed.
pub const EXIT_TIMEOUT: u8 = 27;
