//! `flock commander`: runs for whoever asks over HTTP.
//!
//! `api` is what can be asked, `jobs` keeps scenarios and runs and carries one out at a time.

mod api;
mod jobs;

use std::io::Write as _;
use std::net::ToSocketAddrs as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args;
use super::run::survive_full_places;
use crate::keep;
use jobs::Jobs;

/// Listens until it is told to end. Prints `listening HOST:PORT` when ready.
pub(super) fn command(args: &args::Commander) -> anyhow::Result<ExitCode> {
    let token = token(args)?;
    guard(&args.http, token.is_some())?;
    anyhow::ensure!(
        args.lab.prometheus.is_none(),
        "--prometheus: not possible here, /metrics is part of the HTTP API"
    );
    anyhow::ensure!(
        args.lab.interval.is_none(),
        "--progress: not possible here, GET /runs/ID shows the progress"
    );
    keep::check(&args.lab.out).map_err(anyhow::Error::msg)?;
    survive_full_places()?;
    let is_ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second one ends the program at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&is_ending))?;
        signal_hook::flag::register(signal, Arc::clone(&is_ending))?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let jobs = Arc::new(Jobs::new(args));
    let router = api::router(Arc::clone(&jobs), token);
    let server = web::Server::start(&args.http, LIMITS, router)
        .with_context(|| format!("cannot listen on {}", args.http))?;
    let mut out = std::io::stdout();
    writeln!(out, "listening {}", server.address())?;
    out.flush()?;
    signals.forever().next();
    jobs.close();
    Ok(ExitCode::SUCCESS)
}

fn token(args: &args::Commander) -> anyhow::Result<Option<String>> {
    let token = match &args.token_file {
        Some(file) => std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?,
        None => match std::env::var("FLOCK_TOKEN") {
            Ok(token) => token,
            Err(_) => return Ok(None),
        },
    };
    let token = token.trim();
    anyhow::ensure!(
        token.len() >= TOKEN_BYTES_MIN && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "the token must have at least {TOKEN_BYTES_MIN} printable characters and no spaces"
    );
    Ok(Some(token.to_owned()))
}

/// Whoever reaches a commander can make load: not everybody on the network by default.
fn guard(address: &str, has_token: bool) -> anyhow::Result<()> {
    let found = address.to_socket_addrs();
    let mut found = found.with_context(|| {
        format!(
            "must be an address such as 127.0.0.1:8080, \
    got `{address}`"
        )
    })?;
    anyhow::ensure!(
        has_token || found.all(|address| address.ip().is_loopback()),
        "{address} can be reached by other machines: use --token-file FILE, or listen on 127.0.0.1"
    );
    Ok(())
}

const LIMITS: web::Limits = web::Limits {
    connections_max: CONNECTIONS_MAX,
    // Whoever makes requests of it makes them from one machine.
    connections_per_address_max: CONNECTIONS_MAX,
    head_time_max: Duration::from_secs(10),
    // Ten seconds each for head and body, a minute to wait for the end of a run, one to answer.
    connection_time_max: Duration::from_secs(140),
    // Each may wait for the end of a run.
    blocking_threads_max: CONNECTIONS_MAX,
    keepalive_secs: None,
};
const CONNECTIONS_MAX: usize = 32;
const TOKEN_BYTES_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_need_a_token() {
        for address in ["127.0.0.1:0", "[::1]:1", "127.0.0.2:3882"] {
            assert!(guard(address, false).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:0", "[::]:1", "10.0.0.1:3882"] {
            let told = guard(address, false).unwrap_err().to_string();
            assert!(told.contains("--token-file") && told.contains(address), "{told}");
            assert!(guard(address, true).is_ok(), "{address}");
        }
        assert!(guard("3882", true).is_err());
    }
}
