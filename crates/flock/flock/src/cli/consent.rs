//! Load goes to a broker that the user named, or agreed to: the one on the default port may serve
//! others.

use std::io::{IsTerminal as _, Write as _};

use super::args::Lab;
use flock_measure::text::counted;
use flock_model::Scenario;

/// Asks on a terminal, unless the broker `is_named`, by an address (`option` is how), its command
/// or its process, or the user said yes beforehand.
pub(super) fn ask(
    scenario: &Scenario,
    is_named: bool,
    option: &str,
    lab: &Lab,
) -> anyhow::Result<()> {
    let has_process = lab.broker_command.is_some() || lab.pid.is_some() || !lab.node.is_empty();
    if is_named || has_process || lab.yes {
        return Ok(());
    }
    let brokers = scenario.brokers.iter().flat_map(|broker| &broker.addresses);
    let brokers = brokers.map(String::as_str).collect::<Vec<_>>().join(", ");
    let (input, output) = (std::io::stdin(), std::io::stderr());
    if input.is_terminal() && output.is_terminal() {
        let clients = counted(scenario.estimate().clients, "client");
        let question = format!("Start the load of {clients} on {brokers}? [y/N] ");
        output.lock().write_all(question.as_bytes())?;
        let mut answer = String::new();
        input.read_line(&mut answer)?;
        if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
            return Ok(());
        }
    }
    anyhow::bail!("not started: name the broker with {option}, or confirm {brokers} with --yes")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::args::{Args, Command};
    use super::*;
    use flock_model::catalogue;
    use flock_model::scenario::Choice;

    #[test]
    fn a_broker_is_named_by_its_address_its_process_or_its_command() {
        let is_allowed = |options: &[&str]| {
            let line = [&["flock", "run", "MB-B1"], options].concat();
            let Command::Run(run) = Args::try_parse_from(line).unwrap().command else {
                unreachable!("it is a run")
            };
            let scenario = catalogue::find(&run.scenario, &Choice::default()).unwrap().scenario;
            ask(&scenario, !run.broker.is_empty(), "--broker", &run.lab).is_ok()
        };
        for options in [
            ["--yes"].as_slice(),
            &["--broker", "localhost"],
            &["--pid", "1"],
            &["--broker-command", "mosquitto"],
            &["--node", "127.0.0.1:1883=pid:1"],
        ] {
            assert!(is_allowed(options), "{options:?}");
        }
    }
}
