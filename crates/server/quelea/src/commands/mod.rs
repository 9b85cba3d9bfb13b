//! The command line.
//!
//! Exit codes: 0 done; 1 it failed while running; 2 wrong usage or configuration; 3 the check of
//! security has found something (`serve --check-config --security`). `pub` and `sub`
//! also end as mosquitto's clients do: 27 when `-W` seconds have passed, and with the reason code
//! or, for MQTT 3, the return code when the broker refuses the connection.

#[cfg(feature = "cli")]
pub mod clients;
pub mod doctor;
pub mod health;
#[cfg(feature = "import")]
pub mod import;
#[cfg(feature = "cli")]
pub mod plan;
#[cfg(feature = "cli")]
pub mod rules;
pub mod serve;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use base::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, complain, print};

use crate::cluster;
use tools::{backup, log_tool};

/// quelea, an MQTT broker for MQTT 3.1, 3.1.1 and 5, with its tools.
#[derive(Debug, Parser)]
#[command(
    name = "quelea",
    version = env!("BUILD_VERSION"),
    arg_required_else_help = true,
    after_help = EXAMPLES
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the broker.
    Serve(serve::ServeArgs),
    #[cfg(feature = "cli")]
    #[command(flatten)]
    Client(Box<clients::ClientCommand>),
    /// Translate the configuration of mosquitto or EMQX.
    #[cfg(feature = "import")]
    Import(import::ImportArgs),
    /// Check whether a broker works, for health checks of containers.
    Health(health::HealthArgs),
    /// Check machine, files and certificates, with the command that mends each fault.
    Doctor(doctor::DoctorArgs),
    /// Inspect and repair durable logs.
    Log(log_tool::LogArgs),
    /// Copy a data directory, even while a broker uses it.
    Backup(backup::BackupArgs),
    /// Set up and operate a cluster.
    Cluster(cluster::ClusterArgs),
    /// Estimate nodes, cells and machines for a load, with the constant behind each figure.
    #[cfg(feature = "cli")]
    Plan(plan::PlanArgs),
    /// Print shell completions.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages of all commands.
    #[command(after_help = "Examples:\n  quelea man /usr/local/share/man/man1")]
    Man {
        /// An existing directory. Files of the same names are replaced.
        directory: PathBuf,
    },
}

/// Parses the arguments of this process.
///
/// # Errors
///
/// The exit code when there is nothing to run: help was asked for, or the usage is wrong. The text
/// has been printed.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
    Cli::try_parse_from(arguments).map_err(|error| {
        // Nothing can be reported when standard error is closed.
        let _ = error.print();
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE))
    })
}

/// Runs every command but `serve`, which is the broker and not the business of this module.
pub fn run_tool(command: Command) -> ExitCode {
    let code = match command {
        #[cfg(feature = "cli")]
        Command::Client(command) => command.run(),
        #[cfg(feature = "import")]
        Command::Import(args) => import::run(&args),
        Command::Health(args) => health::run(&args),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Log(args) => return log_tool::run(&args),
        Command::Backup(args) => return backup::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        #[cfg(feature = "cli")]
        Command::Plan(args) => plan::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "quelea", &mut script);
            print(&script);
            EXIT_OK
        }
        Command::Man { directory } => match clap_mangen::generate_to(Cli::command(), &directory) {
            Ok(()) => EXIT_OK,
            Err(error) => {
                complain(&format!("cannot write manual pages to {}: {error}", directory.display()));
                EXIT_FAILURE
            }
        },
        Command::Serve(_) => EXIT_USAGE,
    };
    ExitCode::from(code)
}

#[cfg(feature = "cli")]
const EXAMPLES: &str = "\
Examples:
  quelea serve                            run a broker on port 1883 of this machine
  quelea sub -t 'home/#' -v               print what is published below home
  quelea pub -t home/lamp -m on           publish one message
  quelea passwd passwords anna            add a user to a password file
  quelea ctl clients list                 the clients of a running broker
  quelea plan --clients 1000000 --rate 50000   the nodes that a load needs
  quelea backup quelea-data copy          copy the data of a running broker
  quelea completions bash > ~/.local/share/bash-completion/completions/quelea";

#[cfg(not(feature = "cli"))]
const EXAMPLES: &str = "\
Examples:
  quelea serve                            run a broker on port 1883 of this machine
  quelea backup quelea-data copy          copy the data of a running broker
  quelea completions bash > ~/.local/share/bash-completion/completions/quelea";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_end_with_two_and_help_with_zero() {
        let code = |arguments: &[&str]| parse(arguments.iter().map(OsString::from)).unwrap_err();
        assert_eq!(code(&["quelea", "serve", "--prot", "1"]), ExitCode::from(EXIT_USAGE));
        assert_eq!(code(&["quelea"]), ExitCode::from(EXIT_USAGE));
        assert_eq!(code(&["quelea", "--help"]), ExitCode::SUCCESS);
        assert_eq!(code(&["quelea", "health", "--help"]), ExitCode::SUCCESS);
    }

    #[test]
    fn every_command_shows_examples() {
        for command in Cli::command().get_subcommands() {
            let has_examples = command.get_after_help().is_some();
            assert!(has_examples || command.get_name() == "completions", "{}", command.get_name());
        }
    }
}
