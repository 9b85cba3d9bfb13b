//! Runs worlds by seed: `cargo run -p sim -- SEED [COUNT] [KIND]...`.

use std::process::ExitCode;

use sim::{Options, Toll, run_many};

const USAGE: &str = "usage: sim SEED [COUNT] [--durable] [--hostile] [--policy] [--driven]

  sim 17                    one world
  sim 0 10000               many
  sim 0 10000 --durable     many, with disks and crashes
  sim 0 10000 --hostile     many, with clients that do their worst
  sim 0 10000 --policy      many, with access rules and credentials that change
  sim 0 10000 --driven      many, driven by the code that drives the server
  sim 17 --durable --trace 900    with more of its history
  sim 0 10000 --durable --all     go on after failures, and tell each in one line";

/// What the command line asks for.
struct Arguments {
    first: u64,
    count: u64,
    options: Options,
    is_all: bool,
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let Arguments { first, count, options, is_all } = arguments;
    let (reports, failures) = run_many(first, count, options, is_all);
    if let Some(failure) = failures.first() {
        match is_all {
            true => failures.iter().for_each(|f| eprintln!("seed {}: {}", f.seed, f.rule)),
            false => eprintln!("{failure}"),
        }
        eprintln!("{} worlds kept their promises, {} did not", reports.len(), failures.len());
        return ExitCode::FAILURE;
    }
    let received: u64 = reports.iter().map(|report| report.received).sum();
    println!("{} worlds kept their promises; {received} messages received", reports.len());
    if options.durable {
        println!("{:#?}", reports.iter().fold(Toll::default(), |sum, r| sum.plus(&r.durable)));
    }
    ExitCode::SUCCESS
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut numbers = Vec::new();
    let (mut options, mut is_all) = (Options::default(), false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--durable" => {
                let Options { trace_lines, hostile, policy, driven, .. } = options;
                options = Options { trace_lines, hostile, policy, driven, ..Options::durable() };
            }
            "--trace" => options.trace_lines = arguments.next()?.parse().ok()?,
            "--calm" => options.calm = true,
            "--hostile" => options.hostile = true,
            "--policy" => options.policy = true,
            "--driven" => options.driven = true,
            "--all" => is_all = true,
            number => numbers.push(number.parse::<u64>().ok()?),
        }
    }
    let (first, count) = match numbers[..] {
        [first] => (first, 1),
        [first, count] => (first, count),
        _ => return None,
    };
    Some(Arguments { first, count, options, is_all })
}
