//! Runs worlds by seed: `cargo run -p quelea-sim -- SEED [COUNT] [KIND]...`.

use std::process::ExitCode;
use std::str::FromStr;

use sim::{CellsToll, ClusterToll, Options, Sabotage, StreamToll, Toll, run_many};

const USAGE: &str =
    "usage: sim SEED [COUNT] [--durable] [--hostile] [--policy] [--driven] [--service]
           [--spans] [--cluster] [--cells] [--streams] [--answer-twice]

  sim 17                    one world
  sim 0 10000               many
  sim 0 10000 --durable     many, with disks and crashes
  sim 0 10000 --hostile     many, with clients that do their worst
  sim 0 10000 --policy      many, with access rules and credentials that change
  sim 0 10000 --driven      many, with aliases, keep-alives and little room for packets
  sim 0 10000 --service     many, with an authorization service that takes its time
  sim 0 10000 --spans       many, with traces of messages
  sim 0 10000 --cluster     many, with several nodes and a simulated engine
  sim 0 10000 --cells       many, with several cells whose owners end alone
  sim 0 10000 --streams     many, with disks, crashes, streams and consumers
  sim 0 10000 --answer-twice          many, with answers that come again
  sim 0 10000 --driven --durable      kinds go together; --cluster goes with --driven only
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
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(fault) => {
            eprintln!("{fault}\n\n{USAGE}");
            return ExitCode::from(2);
        }
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
    if options.streams {
        let streams = reports.iter().fold(StreamToll::default(), |sum, r| sum.plus(&r.streams));
        println!("{streams:#?}");
    }
    if options.cells {
        let cells = reports.iter().fold(CellsToll::default(), |sum, r| sum.plus(&r.cells));
        println!("{cells:#?}");
    }
    if options.cluster {
        println!(
            "{:#?}",
            reports.iter().fold(ClusterToll::default(), |sum, r| sum.plus(&r.cluster))
        );
    }
    ExitCode::SUCCESS
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut numbers = Vec::new();
    let (mut options, mut is_all, mut answers_twice) = (Options::default(), false, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--durable" => {
                let steps = Options::durable().steps.max(options.steps);
                options = Options { durable: true, steps, ..options };
            }
            "--streams" => {
                let steps = Options::streams().steps.max(options.steps);
                options = Options { streams: true, durable: true, steps, ..options };
            }
            "--trace" => options.trace_lines = number("--trace", arguments.next())?,
            "--calm" => options.calm = true,
            "--hostile" => options.hostile = true,
            "--policy" => options.policy = true,
            "--driven" => options.driven = true,
            "--service" => options.service = true,
            "--spans" => options.spans = true,
            "--answer-twice" => answers_twice = true,
            "--cluster" => {
                let steps = Options::cluster().steps;
                options = Options { cluster: true, steps, ..options };
            }
            "--cells" => {
                let steps = Options::cells().steps;
                options = Options { cells: true, durable: true, steps, ..options };
            }
            "--all" => is_all = true,
            other if other.starts_with('-') => return Err(format!("{other}: unknown flag")),
            _ => numbers.push(number("SEED and COUNT", Some(argument))?),
        }
    }
    let (first, count) = match numbers[..] {
        [first] => (first, 1),
        [first, count] => (first, count),
        _ => return Err(format!("give SEED, or SEED and COUNT: got {} numbers", numbers.len())),
    };
    options.sabotage = answers_twice.then_some(Sabotage::AnswerTwice);
    check(&options)?;
    Ok(Arguments { first, count, options, is_all })
}

fn number<N: FromStr>(what: &str, text: Option<String>) -> Result<N, String> {
    let text = text.ok_or_else(|| format!("{what}: a number is missing"))?;
    text.parse().map_err(|_| format!("{what}: must be a whole number, got '{text}'"))
}

/// Worlds that do not exist are refused: a flag without effect would look like a proof.
fn check(options: &Options) -> Result<(), String> {
    let beside_cluster = [
        ("--durable", options.durable, "its nodes have logs and crash already"),
        ("--hostile", options.hostile, "hostile clients know one broker only"),
        ("--policy", options.policy, "operators know one broker only"),
    ];
    if let Some((flag, _, why)) = beside_cluster.iter().find(|it| it.1 && options.cluster) {
        return Err(format!(
            "--cluster cannot be combined with {flag}: {why}. Valid: --cluster [--driven]"
        ));
    }
    let beside_streams = [
        ("--hostile", options.hostile),
        ("--policy", options.policy),
        ("--service", options.service),
        ("--cluster", options.cluster),
    ];
    if let Some((flag, _)) = beside_streams.iter().find(|it| it.1 && options.streams) {
        return Err(format!(
            "--streams cannot be combined with {flag}: streams are known to honest clients of one \
            broker only. Valid: --streams [--driven]"
        ));
    }
    let beside_service = [
        ("--hostile", options.hostile),
        ("--policy", options.policy),
        ("--cluster", options.cluster),
    ];
    if let Some((flag, _)) = beside_service.iter().find(|it| it.1 && options.service) {
        return Err(format!(
            "--service cannot be combined with {flag}: rules of clients are decided there. Valid: \
            --service [--driven] [--durable]"
        ));
    }
    let beside_cells = [
        ("--hostile", options.hostile),
        ("--policy", options.policy),
        ("--service", options.service),
        ("--cluster", options.cluster),
        ("--streams", options.streams),
        ("--spans", options.spans),
    ];
    if let Some((flag, _)) = beside_cells.iter().find(|it| it.1 && options.cells) {
        return Err(format!(
            "--cells cannot be combined with {flag}: only honest clients know several cells. \
            Valid: --cells [--driven]"
        ));
    }
    if options.calm && !options.durable {
        return Err("--calm needs --durable: only worlds with disks crash".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags_are_kept_in_any_order() {
        for line in ["7 3 --durable --hostile --policy", "--policy 7 --hostile 3 --durable"] {
            let options = parsed(line).map(|found| found.options);
            assert!(options.is_ok_and(|o| o.durable && o.hostile && o.policy), "{line}");
        }
        for line in ["7 --streams --driven", "--driven 7 --streams"] {
            let options = parsed(line).map(|found| found.options);
            assert!(options.is_ok_and(|o| o.streams && o.durable && o.driven), "{line}");
        }
        for line in ["7 --cluster --driven", "7 --driven --answer-twice --cluster"] {
            let options = parsed(line).map(|found| found.options);
            assert!(options.is_ok_and(|o| o.cluster && o.driven), "{line}");
        }
    }

    #[test]
    fn what_has_no_effect_is_refused() {
        let refused = [
            ("1 --calm", "--durable"),
            ("1 --cluster --durable", "--cluster [--driven]"),
            ("1 --hostile --cluster", "hostile clients know one broker only"),
            ("1 --cluster --policy", "--policy"),
            ("1 --streams --hostile", "--streams [--driven]"),
            ("1 --cells --policy", "--cells [--driven]"),
            ("1 --durabel", "--durabel"),
            ("1 2 3", "3 numbers"),
            ("--trace", "--trace"),
            ("x", "'x'"),
            ("", "0 numbers"),
        ];
        for (line, named) in refused {
            let fault = parsed(line).err().unwrap_or_default();
            assert!(fault.contains(named), "{line}: {fault}");
        }
    }
}
