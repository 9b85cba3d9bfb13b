//! The command line of `flock`.
//!
//! `args` says what can be asked for, `run` carries a scenario out, `repeat` does so several times,
//! `quick` makes one of emqtt-bench's flags, `catalogue` lists and shows, `versus` sets brokers
//! side by side, `matrix` runs one over the values of parameters, `commander` does what it is told
//! over HTTP, `index` lists what is there, `consent` asks before load goes to a broker that nobody
//! named, `find` has the
//! searches, `progress` draws the line while a run goes on.

mod args;
mod catalogue;
mod commander;
mod consent;
mod find;
mod index;
mod matrix;
mod progress;
mod quick;
mod repeat;
mod run;
pub(crate) mod say;
mod selftest;
mod sizing;
mod spelling;
mod tell;
mod topics;
mod versus;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory, Parser};

use args::{Args, Command};
use say::note;

/// Runs the program with the arguments of the process.
///
/// Exit codes: 0 for a run that completed and met its expectations, 1 for one that did not, 2 for
/// what was not begun (bad input, nobody listens where the broker should be), 3 for a run that is
/// not valid as a measurement.
pub fn main() -> ExitCode {
    let args = match Args::try_parse_from(spelling::plain(std::env::args_os())) {
        Ok(args) => args,
        Err(error) => {
            // A closed pipe (`flock --help | head`) is nobody's fault.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { BAD_INPUT } else { 0 });
        }
    };
    match carry_out(args.command) {
        Ok(code) => code,
        Err(error) => {
            note!("flock: {}", told(&error));
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// The error and what led to it, each said once: many errors quote their cause already.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn carry_out(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(list) => catalogue::list(&list),
        Command::Show(show) => catalogue::show(&show),
        Command::Run(run) => run::run(&run),
        Command::Matrix(args) => matrix::matrix(&args),
        Command::Versus(versus) => versus::versus(&versus),
        Command::Conn(conn) => quick::conn(&conn),
        Command::Pub(publish) => quick::publish(&publish),
        Command::Sub(subscribe) => quick::subscribe(&subscribe),
        Command::Agent(agent) => {
            crate::agent::serve(&agent.listen, agent.once)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Commander(commander) => commander::command(&commander),
        Command::Report(report) => tell::report(&report),
        Command::Index(index) => index::index(&index),
        Command::Compare(compare) => tell::compare(&compare),
        Command::SelfTest(args) => selftest::self_test(&args),
        Command::Completions(shell) => {
            let mut script = Vec::new();
            let name = called_as();
            clap_complete::generate(shell.shell, &mut Args::command(), name, &mut script);
            catalogue::print(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(man) => {
            let place = || format!("cannot write manual pages to {}", man.directory.display());
            let pages = Args::command().name(called_as());
            clap_mangen::generate_to(pages, &man.directory).with_context(place)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// `quelea-flock` where it is installed, because util-linux has another `flock`.
fn called_as() -> &'static str {
    let path = std::env::args_os().next().unwrap_or_default();
    if Path::new(&path).file_name().is_some_and(|name| name == INSTALLED) {
        INSTALLED
    } else {
        "flock"
    }
}

const INSTALLED: &str = "quelea-flock";
const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
const NOT_VALID: u8 = 3;

#[cfg(test)]
mod tests {
    use std::io;

    use crate::faults::FaultError;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_examples_of_the_help_parse() {
        let mut command = Args::command();
        let mut seen = 0;
        let mut texts = vec![command.render_long_help().to_string()];
        for sub in command.get_subcommands_mut() {
            texts.push(sub.render_long_help().to_string());
        }
        for line in texts.iter().flat_map(|text| text.lines()) {
            let Some(example) = line.trim().strip_prefix("$ flock ") else { continue };
            let words = example.split_whitespace().map(|word| word.trim_matches('\''));
            Args::try_parse_from(["flock"].into_iter().chain(words))
                .unwrap_or_else(|error| panic!("{example}: {error}"));
            seen += 1;
        }
        assert!(seen >= 12, "only {seen} examples found");
    }

    #[test]
    fn every_option_says_what_it_is_for() {
        for command in Args::command().get_subcommands() {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument);
            }
        }
    }

    #[test]
    fn a_cause_that_an_error_quotes_is_not_told_again() {
        let quoting = FaultError::Start { command: "no.such".into(), source: gone() };
        assert_eq!(told(&quoting.into()), "cannot start the broker with `no.such`: gone");
        let wrapped = anyhow::Error::new(gone()).context("mine.toml cannot be read");
        assert_eq!(told(&wrapped), "mine.toml cannot be read: gone");
    }

    fn gone() -> io::Error {
        io::Error::other("gone")
    }
}
