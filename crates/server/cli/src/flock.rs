//! `quelea flock`: the load tool, which is a program of its own.
//!
//! It is installed as `quelea-flock`, because the `flock` of util-linux is on every machine. Cargo
//! calls it `flock`, so that name counts in a directory of Cargo's only.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use base::{EXIT_FAILURE, complain};

#[derive(Clone, Debug, Default, Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct FlockArgs {
    /// The command of flock and its flags: `quelea flock help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// Becomes that program; returns only when there is none.
pub fn run(args: FlockArgs) -> u8 {
    let near = env::current_exe().ok();
    let program = near.as_deref().and_then(Path::parent).and_then(installed_in);
    let program = program.unwrap_or_else(|| INSTALLED.into());
    let error = Command::new(&program).args(args.arguments).exec();
    complain(&format!(
        "cannot run {}: {error}; build it with `cargo build --release -p flock`, and install it as \
         {INSTALLED} in the directory of quelea or of the PATH",
        program.display()
    ));
    EXIT_FAILURE
}

fn installed_in(directory: &Path) -> Option<PathBuf> {
    let installed = directory.join(INSTALLED);
    if installed.is_file() {
        return Some(installed);
    }
    let built = directory.join("flock");
    (directory.join(".cargo-lock").is_file() && built.is_file()).then_some(built)
}

const INSTALLED: &str = "quelea-flock";

const EXAMPLES: &str = "\
Examples:
  quelea flock list                       what can be run
  quelea flock run MB-B1 --duration 10s   a published benchmark against a broker on this machine
  quelea flock run --help";
