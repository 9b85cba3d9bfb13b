//! `cargo xtask COMMAND`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use xtask::{conformance, docs, layers, prose, source, tidy};

fn main() -> Result<ExitCode> {
    let root = source::root();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["docs"] => docs::write(&root).map(|()| ExitCode::SUCCESS),
        ["conformance"] => conformance::write(&root).map(|()| ExitCode::SUCCESS),
        ["conformance", "--check"] => Ok(report(conformance::stale(&root)?)),
        ["layers"] => layers::report(&root).map(|found| show(&found)),
        ["prose"] => Ok(list_marks(&prose::marks(&root)?, None)),
        ["prose", file] => Ok(list_marks(&prose::marks(&root)?, Some(file))),
        ["tidy"] => Ok(report(tidy::faults(&root)?)),
        _ => {
            eprintln!(
                "usage: cargo xtask docs | conformance [--check] | layers | prose [FILE] | tidy"
            );
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

fn show(found: &layers::Report) -> ExitCode {
    for (from, to, names) in &found.upward {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        println!("upward: {from} -> {to}: {}", names.join(", "));
    }
    for file in &found.circle {
        println!("circle: {file}");
    }
    for (file, function) in &found.functions {
        println!("parts: {file}: {function}");
    }
    println!("{:?}", found.counts);
    ExitCode::SUCCESS
}

/// The marks of a file, or how many each file has.
fn list_marks(marks: &[prose::Mark], file: Option<&str>) -> ExitCode {
    let mut counts = BTreeMap::<&str, usize>::new();
    for mark in marks {
        *counts.entry(&mark.path).or_default() += 1;
        if file == Some(mark.path.as_str()) {
            println!("{mark}");
        }
    }
    if file.is_none() {
        counts.iter().for_each(|(path, count)| println!("\"{path}\" = {count}"));
    }
    ExitCode::SUCCESS
}
