//! The program `flock`; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    flock::cli::main()
}
