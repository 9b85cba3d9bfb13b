//! `cargo xtask COMMAND`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use xtask::mutants::{self, With};
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
        ["mutants", ref rest @ ..] => match how_to_mutate(rest) {
            Some((with, only)) => Ok(code(mutants::run(&root, with, only)?)),
            None => Ok(usage()),
        },
        ["prose"] => Ok(list_marks(&prose::marks(&root)?, None)),
        ["prose", file] => Ok(list_marks(&prose::marks(&root)?, Some(file))),
        ["tidy"] => Ok(report(tidy::faults(&root)?)),
        _ => Ok(usage()),
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: cargo xtask docs | conformance [--check] | layers
       | mutants [--only NAME] [--with tests|worlds] | prose [FILE] | tidy"
    );
    ExitCode::from(2)
}

/// What is to notice the mutants, and the name of the only one to make.
fn how_to_mutate<'a>(words: &[&'a str]) -> Option<(With, Option<&'a str>)> {
    let (mut with, mut only) = (With::Tests, None);
    for pair in words.chunks(2) {
        match *pair {
            ["--only", name] => only = Some(name),
            ["--with", "tests"] => with = With::Tests,
            ["--with", "worlds"] => with = With::Worlds,
            _ => return None,
        }
    }
    Some((with, only))
}

const fn code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(faults: Vec<String>) -> ExitCode {
    for fault in &faults {
        eprintln!("{fault}");
    }
    code(faults.is_empty())
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
