//! Runs worlds by seed: `cargo run -p sim -- SEED [COUNT]`.

use std::process::ExitCode;

use sim::{Options, run};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (first, count) = match (arguments.next(), arguments.next()) {
        (Some(Ok(first)), None) => (first, 1),
        (Some(Ok(first)), Some(Ok(count))) => (first, count),
        _ => {
            eprintln!("usage: sim SEED [COUNT]\n\n  sim 17        one world\n  sim 0 10000   many");
            return ExitCode::from(2);
        }
    };
    let mut received = 0;
    for seed in first..first.saturating_add(count) {
        match run(seed, Options::default()) {
            Ok(report) => received += report.received,
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{count} worlds kept their promises; {received} messages received");
    ExitCode::SUCCESS
}
