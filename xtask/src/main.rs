//! `cargo xtask COMMAND`.

use std::process::ExitCode;

use anyhow::Result;
use xtask::{conformance, docs, source, tidy};

fn main() -> Result<ExitCode> {
    let root = source::root();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["docs"] => docs::write(&root).map(|()| ExitCode::SUCCESS),
        ["conformance"] => conformance::write(&root).map(|()| ExitCode::SUCCESS),
        ["conformance", "--check"] => Ok(report(conformance::stale(&root)?)),
        ["tidy"] => Ok(report(tidy::faults(&root)?)),
        _ => {
            eprintln!("usage: cargo xtask docs | conformance [--check] | tidy");
            Ok(ExitCode::from(2))
        }
    }
}

fn report(faults: Vec<String>) -> ExitCode {
    for fault in &faults {
        eprintln!("{fault}");
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
