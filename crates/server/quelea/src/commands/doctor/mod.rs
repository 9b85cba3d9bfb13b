//! `quelea doctor`: looks at the machine with the eyes of a configured broker, and names for each
//! thing that is wrong the command that mends it.
//!
//! It changes nothing, but for a scratch file with which it measures the disk, and removes.

mod files;
mod network;
mod system;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::serve::ServeArgs;
use crate::run;
use base::{EXIT_FAILURE, EXIT_OK, print};
use config::{Config, Loaded, Machine};
use system::System;

/// The flags of `quelea doctor`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Configuration file of the broker (TOML).
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data directory, if the broker is started with --data.
    #[arg(short, long, value_name = "DIR")]
    data: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was found about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub area: &'static str,
    pub level: Level,
    pub text: String,
    /// The command that mends it, or what else to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// The broker runs, and something will hurt.
    Warn,
    /// The broker does not start, or does not do what is configured.
    Fail,
}

#[derive(Serialize)]
struct Report<'a> {
    level: Level,
    checks: &'a [Finding],
}

/// Runs the command. Exit code 1: something failed.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let serve =
        ServeArgs { config: args.config.clone(), data: args.data.clone(), ..ServeArgs::default() };
    let machine = Machine::here();
    let findings = match serve.reread() {
        Ok(loaded) => examine(&loaded, &machine),
        Err(error) => vec![Finding::fail("configuration", error.to_string(), "correct the file")],
    };
    let level = findings.iter().map(|found| found.level).max().unwrap_or(Level::Ok);
    match args.json {
        true => {
            let report = Report { level, checks: &findings };
            let text = serde_json::to_string_pretty(&report).unwrap_or_default();
            print(format!("{text}\n").as_bytes());
        }
        false => {
            print(findings.iter().map(Finding::lines).collect::<String>().as_bytes());
        }
    }
    ExitCode::from(if level == Level::Fail { EXIT_FAILURE } else { EXIT_OK })
}

fn examine(loaded: &Loaded, machine: &Machine) -> Vec<Finding> {
    let config = &loaded.config;
    let mut found = Vec::new();
    configuration(config, &mut found);
    let broker = files::running_broker(&config.server.data_dir);
    let system = System { root: Path::new("/"), broker };
    system.descriptors(config, machine, &mut found);
    system.kernel(config, &mut found);
    system.memory(config, machine, &mut found);
    system.clock(base::wall_ms() / 1000, &mut found);
    network::ports(config, &mut found);
    network::certificates(config, base::wall_ms() / 1000, &mut found);
    files::permissions(config, &mut found);
    files::disk(config, machine, &mut found);
    found
}

/// What a start would refuse, and what `--check-config` remarks.
fn configuration(config: &Config, found: &mut Vec<Finding>) {
    let area = "configuration";
    match run::check_files(config) {
        Ok(notes) if notes.is_empty() => {
            found.push(Finding::ok(area, "it is valid, and all files that it names are usable"));
        }
        Ok(notes) => {
            let fix = "see docs/use/configuration.md";
            found.extend(notes.into_iter().map(|note| Finding::warn(area, note, fix)));
        }
        Err(error) => {
            found.push(Finding::fail(area, format!("{error:#}"), "correct the file or the key"));
        }
    }
}

impl Finding {
    fn ok(area: &'static str, text: impl Into<String>) -> Self {
        Self { area, level: Level::Ok, text: text.into(), fix: None }
    }

    fn warn(area: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { area, level: Level::Warn, text: text.into(), fix: Some(fix.into()) }
    }

    fn fail(area: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Fail, ..Self::warn(area, text, fix) }
    }

    fn lines(&self) -> String {
        let word = match self.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        let fix = self.fix.as_ref().map(|fix| format!("      fix: {fix}\n")).unwrap_or_default();
        format!("{word:<5} {}: {}\n{fix}", self.area, self.text)
    }
}

const EXAMPLES: &str = "\
Exit code 0: nothing failed; there may be warnings. 1: something failed.
Run it as the user of the broker to check permissions as the broker meets them.

Examples:
  quelea doctor --config /etc/quelea/quelea.toml --data /var/lib/quelea
  quelea doctor --config quelea.toml --json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_level_area_and_the_command_that_mends() {
        let found = Finding::warn("disk", "it is slow", "buy another");
        assert_eq!(found.lines(), "warn  disk: it is slow\n      fix: buy another\n");
        assert_eq!(Finding::ok("disk", "fine").lines(), "ok    disk: fine\n");
        assert!(Level::Fail > Level::Warn && Level::Warn > Level::Ok);
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(json["level"], "warn");
    }
}
