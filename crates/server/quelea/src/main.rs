//! The program `quelea`: parses, runs, ends with an exit code.

use std::process::ExitCode;

use base::memory::Counting;
use config::Loaded;
use quelea::commands::{self, Command, serve::ServeArgs};
use quelea::logging::Logging;

/// A message is often freed by another thread than the one that made it, which must not make the
/// two wait for each other.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let cli = match commands::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        Command::Serve(args) => match args.prepare() {
            Ok(loaded) => serve(loaded, &args),
            Err(code) => code,
        },
        tool => commands::run_tool(tool),
    }
}

fn serve(loaded: Loaded, args: &ServeArgs) -> ExitCode {
    let logging = match Logging::install(&loaded.config.log) {
        Ok(logging) => logging,
        Err(error) => {
            base::complain(&error);
            return ExitCode::from(base::EXIT_USAGE);
        }
    };
    let served = quelea::run::serve(loaded, &|| args.reread());
    if let Err(error) = &served {
        logging.log_error(error);
    }
    logging.finish();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            base::complain(&format!("{error:#}"));
            ExitCode::from(base::EXIT_FAILURE)
        }
    }
}
