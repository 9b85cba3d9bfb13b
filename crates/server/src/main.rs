//! The program `quelea`: parses, runs, ends with an exit code.

use std::process::ExitCode;

use server::cli::{self, Command};

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        Command::Serve(args) => match args.prepare() {
            Ok(_) => {
                cli::complain(&"this build has no workers to serve with");
                ExitCode::from(cli::EXIT_FAILURE)
            }
            Err(code) => code,
        },
        tool => cli::run_tool(tool),
    }
}
