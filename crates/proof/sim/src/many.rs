//! Many worlds, on all cores.

use std::panic::{catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::{Failure, Options, Report, run};

/// Runs the worlds of `count` seeds. Unless `goes_on`, no world begins after a failure. Failures
/// come in the order of their seeds.
pub fn run_many(
    first: u64,
    count: u64,
    options: Options,
    goes_on: bool,
) -> (Vec<Report>, Vec<Failure>) {
    let end = first.saturating_add(count);
    let next = AtomicU64::new(first);
    let results = Mutex::new((Vec::new(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let outcome = catch_unwind(|| run(seed, options)).unwrap_or_else(|panic| {
                eprintln!("seed {seed}: a panic");
                resume_unwind(panic)
            });
            let Ok(mut results) = results.lock() else { return };
            match outcome {
                Ok(report) => results.0.push(report),
                Err(failure) => {
                    results.1.push(failure);
                    if !goes_on {
                        next.store(end, Ordering::Relaxed);
                    }
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (reports, mut failures) = results.into_inner().unwrap_or_default();
    failures.sort_by_key(|failure| failure.seed);
    (reports, failures)
}
