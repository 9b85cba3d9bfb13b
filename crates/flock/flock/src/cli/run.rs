//! `flock run`: from a name and options to results, reports and an exit code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;

use super::consent;
use super::index;
use super::progress::ProgressLine;
use super::repeat::carry_out_all;
use super::say::{note, out, say};
use super::{FAILED, NOT_VALID, args};
use crate::engine::{self, BrokerAccess, Options, Progress, surroundings};
use crate::export::Exporter;
use crate::faults::EnsembleSpec;
use crate::keep;
use crate::prometheus::Endpoint;
use flock_measure::text;
use flock_measure::{BrokerInfo, Outcome, Results, RunSet};
use flock_model::scenario::check::check;
use flock_model::scenario::credentials::credentials;
use flock_model::scenario::words::{parameters, payload_words};
use flock_model::{Command, Length, Scenario, Spread, Stage};
use flock_report::expect::unmet;
use flock_report::{Format, summary};

/// What a scenario was made of.
#[derive(Default)]
pub(super) struct Origin<'a> {
    /// The text; empty where flags were all there was.
    pub source: &'a str,
    /// What options changed of it, by their names.
    pub overrides: BTreeMap<String, String>,
}

pub(super) fn run(args: &args::Run) -> anyhow::Result<ExitCode> {
    let (set, payload) = (&args.changes.set, args.payload.as_ref());
    let loaded = super::catalogue::load_with(&args.scenario, set, payload)?;
    let scenario = placed(prepared(loaded.scenario, args)?, &args.lab);
    let is_named = loaded.names_broker || !args.broker.is_empty();
    consent::ask(&scenario, is_named, "--broker HOST:PORT", &args.lab)?;
    let mut overrides = args.changes.overrides();
    overrides.extend(payload.map(|it| ("payload".to_owned(), payload_words(it))));
    let origin = Origin { source: &loaded.source, overrides };
    match args.find.quest(&scenario, args.changes.duration)? {
        Some(quest) => super::sizing::carry_out(&quest, &scenario, &origin, &args.lab),
        None => carry_out_all(&scenario, &origin, &args.lab, args.runs),
    }
}

/// The scenario with the changes of the options.
fn prepared(mut scenario: Scenario, args: &args::Run) -> anyhow::Result<Scenario> {
    let (transport, tls) = (args.secure.transport(), args.secure.tls());
    scenario.aim(&args.broker, transport.as_ref(), tls.as_ref()).map_err(anyhow::Error::msg)?;
    scenario = changed(scenario, &args.changes);
    scenario.search = args.find.rate_search()?.or(scenario.search);
    let sought = args.find.find_connections.or(args.find.find_connect_rate);
    if let Some(words) = without_effect(&scenario, &args.changes, sought.is_some()) {
        anyhow::bail!("{words}");
    }
    scenario.expect.metrics.extend(args.expect.iter().cloned());
    if let Some(file) = &args.credentials {
        equip(&mut scenario, file)?;
    }
    checked(scenario)
}

/// The scenario, if it can run.
pub(super) fn checked(scenario: Scenario) -> anyhow::Result<Scenario> {
    if let Some(problem) = check(&scenario).into_iter().next() {
        anyhow::bail!("{}: {}", scenario.id, problem.message);
    }
    Ok(scenario)
}

/// An option that changes nothing of the scenario as it has become, and why. A search for a size
/// sets ramps and lengths by itself.
pub(super) fn without_effect(
    scenario: &Scenario,
    args: &args::Changes,
    seeks_size: bool,
) -> Option<String> {
    let mut ramps = false;
    scenario.each_command(&mut |_, _, command| {
        if let Command::Delay(delay) = command {
            ramps |= matches!(delay.spread, Spread::Linear | Spread::LinearDown);
        }
    });
    let lasts = scenario.stages.iter().any(|stage| stage.measured && stage.duration_us.is_some());
    let is_steady = scenario.stages.iter().any(Stage::is_steady);
    let searches = scenario.search.is_some();
    let no_margin = "no measured stage with a duration has one load until its end";
    let all = [
        ("--duration", args.duration, lasts || seeks_size, "no measured stage has a duration"),
        (
            "--ramp",
            args.ramp,
            ramps && !seeks_size,
            "the scenario has no ramp, or a search sets it",
        ),
        ("--warm-up", args.warm_up, is_steady || searches, no_margin),
        ("--cool-down", args.cool_down, is_steady && !searches, no_margin),
    ];
    let found = all.into_iter().find(|(_, us, has_effect, _)| us.unwrap_or(0) > 0 && !has_effect);
    found.map(|(name, _, _, why)| format!("{name} has no effect: {why}"))
}

/// The scenario with what the lab's options say of all its clients.
pub(super) fn placed(mut scenario: Scenario, lab: &args::Lab) -> Scenario {
    if !lab.ifaddr.is_empty() {
        scenario.source_addresses.clone_from(&lab.ifaddr);
    }
    if let Some(failover) = lab.failover {
        scenario.each_command_mut(&mut |command| {
            if let Command::Connect(connect) = command {
                connect.failover = failover;
            }
        });
    }
    scenario
}

/// Gives the clients names and passwords from a file.
pub(super) fn equip(scenario: &mut Scenario, file: &Path) -> anyhow::Result<()> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let (names, passwords) =
        credentials(&text).map_err(|message| anyhow::anyhow!("{}: {message}", file.display()))?;
    scenario.each_command_mut(&mut |command| {
        if let Command::Connect(connect) = command {
            connect.username = Some(names.clone());
            connect.password = Some(passwords.clone());
        }
    });
    Ok(())
}

/// Counts, times and seed as asked for.
pub(super) fn changed(mut scenario: Scenario, args: &args::Changes) -> Scenario {
    if (args.scale - 1.0).abs() > f64::EPSILON {
        scenario = scenario.scaled(args.scale);
    }
    if (args.speed - 1.0).abs() > f64::EPSILON {
        scenario = scenario.faster(args.speed);
    }
    if let Some(ramp) = args.ramp {
        scenario = scenario.with_ramps(ramp);
    }
    if let Some(duration) = args.duration {
        scenario = scenario.with_duration(duration);
    }
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    scenario.warm_up_us = args.warm_up.or(scenario.warm_up_us);
    scenario.cool_down_us = args.cool_down.or(scenario.cool_down_us);
    scenario.with_margins()
}

/// Runs it once, writes results and reports, and says how it went.
pub(super) fn carry_out(
    scenario: &Scenario,
    origin: &Origin<'_>,
    lab: &args::Lab,
) -> anyhow::Result<ExitCode> {
    let (code, _) = carry_out_one(scenario, origin, lab, (None, endpoint(lab)?.as_ref()))?;
    Ok(ExitCode::from(code))
}

/// Where live figures are to be had, for all runs.
pub(super) fn endpoint(lab: &args::Lab) -> anyhow::Result<Option<Endpoint>> {
    match lab.prometheus.as_deref() {
        Some("") => anyhow::bail!("--prometheus needs HOST:PORT, or --restapi"),
        Some(address) => {
            Ok(Some(Endpoint::start(address).with_context(|| format!("--prometheus {address}"))?))
        }
        None => Ok(None),
    }
}

/// Everywhere that the figures of a run go while it is under way.
pub(super) struct Shown<'a> {
    line: ProgressLine,
    endpoint: Option<&'a Endpoint>,
    exporters: Vec<Exporter>,
}

impl<'a> Shown<'a> {
    pub(super) fn start(
        scenario: &Scenario,
        lab: &args::Lab,
        endpoint: Option<&'a Endpoint>,
    ) -> anyhow::Result<Self> {
        let line = ProgressLine::new(lab.interval, lab.quiet);
        Ok(Self { line, endpoint, exporters: exporters(scenario, lab)? })
    }

    pub(super) fn show(&mut self, progress: &Progress<'_>) {
        self.line.show(progress);
        if let Some(endpoint) = self.endpoint {
            endpoint.update(progress);
        }
        for exporter in &mut self.exporters {
            exporter.update(progress);
        }
    }

    /// What comes next has a line of its own.
    pub(super) fn end_line(&mut self) {
        self.line.end();
    }

    pub(super) fn end(mut self) {
        self.line.end();
        for told in self.exporters.into_iter().filter_map(Exporter::finish) {
            note!("flock: {told}");
        }
    }
}

/// One run, of several perhaps: its exit code and its results.
pub(super) fn carry_out_one(
    scenario: &Scenario,
    origin: &Origin<'_>,
    lab: &args::Lab,
    (set, endpoint): (Option<RunSet>, Option<&Endpoint>),
) -> anyhow::Result<(u8, Results)> {
    let path = results_path(scenario, lab, set.as_ref().map(|set| set.number));
    keep::check(&lab.out).map_err(anyhow::Error::msg)?;
    if let Some(words) = deaf_words(scenario, lab) {
        anyhow::ensure!(tries_again(scenario), "not started: {words}");
        note!("flock: {words}");
    }
    let mut shown = Shown::start(scenario, lab, endpoint)?;
    survive_full_places()?;
    let stop = stop_by_signal()?;
    if !lab.quiet {
        note!("{}", opening(scenario));
    }
    let options = Options {
        on_progress: Some(Box::new(|progress| shown.show(progress))),
        ..options(scenario, origin, lab, stop)?
    };
    let mut results = engine::run(scenario, options)?;
    results.run.set = set;
    shown.end();
    out(format_args!("{}", summary(&results)));
    let judgement = judged(scenario, &results);
    if let Err(error) = keep_all(&results, &path) {
        // It was run, and what came of it stands above: "not begun" would be wrong.
        note!("flock: {error:#}");
        return Ok((FAILED, results));
    }
    say!("{:<22}{}", "report", path.with_extension("html").display());
    Ok((judgement, results))
}

/// Says of brokers that are not there how to have them; `None` if all are, or are not to be seen
/// from here.
pub(super) fn deaf_words(scenario: &Scenario, lab: &args::Lab) -> Option<String> {
    if !lab.agents.is_empty() || lab.broker_command.is_some() || !lab.node.is_empty() {
        return None;
    }
    let deaf = engine::preflight::deaf(scenario);
    (!deaf.is_empty()).then(|| {
        format!(
            "no broker listens on {}: start it, or use --broker or --broker-command",
            deaf.join(", ")
        )
    })
}

/// Clients that try again may be started before their broker is.
fn tries_again(scenario: &Scenario) -> bool {
    let mut copy = scenario.clone();
    let mut tries = false;
    copy.each_command_mut(&mut |command| {
        tries |= matches!(command, Command::Connect(connect) if connect.retries > 0);
    });
    tries
}

/// How the lab's options have a scenario run.
pub(super) fn options<'a>(
    scenario: &Scenario,
    origin: &Origin<'_>,
    lab: &args::Lab,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<Options<'a>> {
    Ok(Options {
        command: std::env::args().collect(),
        source: origin.source.to_owned(),
        parameters: parameters(scenario),
        overrides: origin.overrides.clone(),
        threads: lab.threads,
        agents: crate::agent::discover(&lab.agents)?,
        broker: access(lab),
        ensemble: ensemble(lab),
        broker_info: broker_info(lab)?,
        stop,
        on_progress: None,
    })
}

/// Who gets the live figures pushed.
pub(super) fn exporters(scenario: &Scenario, lab: &args::Lab) -> anyhow::Result<Vec<Exporter>> {
    let started = lab.influx.iter().chain(&lab.otlp).map(|sink| {
        Exporter::start(sink.clone(), &scenario.id)
            .with_context(|| format!("cannot write to {sink:?}"))
    });
    started.collect()
}

/// Set by the first signal to end. A second one ends the program at once.
pub(super) fn stop_by_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// A file that would get larger than allowed is an error like a full disk, not the end of the
/// program.
pub(super) fn survive_full_places() -> anyhow::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())?;
    Ok(())
}

/// Results and reports, each on its own: one that cannot be written keeps none of the others from
/// it. Results that their place does not take go where there is one.
pub(super) fn keep_all(results: &Results, path: &Path) -> anyhow::Result<()> {
    let kept = engine::save(results, path).map_err(|error| {
        let refuge = keep::refuge(path).filter(|refuge| engine::save(results, refuge).is_ok());
        let refuge = refuge.map_or(String::new(), |path| format!("; saved in {}", path.display()));
        anyhow::anyhow!("cannot write {}: {error}{refuge}", path.display())
    });
    let reported = write_reports(results, path);
    index::refresh(keep::folder_of(path));
    kept.and(reported)
}

pub(super) fn judged(scenario: &Scenario, results: &Results) -> u8 {
    let unmet = unmet(&scenario.expect, results);
    for line in &unmet {
        say!("{:<22}{line}", "NOT MET");
    }
    verdict(&unmet, results)
}

/// The exit code of a run.
pub(super) fn verdict(unmet: &[String], results: &Results) -> u8 {
    let is_complete = matches!(results.run.outcome, Outcome::Completed | Outcome::Interrupted(_));
    match (is_complete && unmet.is_empty(), results.validity.valid) {
        (false, _) => FAILED,
        (true, false) => NOT_VALID,
        (true, true) => 0,
    }
}

/// The reports beside the results.
pub(super) fn write_reports(results: &Results, path: &Path) -> anyhow::Result<()> {
    let each = Format::ALL.map(|format| {
        let path = path.with_extension(format.ending());
        keep::write(&path, &format.render(results))
            .with_context(|| format!("cannot write {}", path.display()))
    });
    each.into_iter().find(Result::is_err).unwrap_or(Ok(()))
}

/// Where results go; with a number, if they are one of several runs.
pub(super) fn results_path(scenario: &Scenario, lab: &args::Lab, number: Option<u32>) -> PathBuf {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let stamp: String = text::date(now.map_or(0, |since| since.as_millis() as u64))
        .trim_end_matches(" UTC")
        .chars()
        .map(|c| if c.is_ascii_digit() { c } else { '-' })
        .collect();
    let mut name = lab.name.clone().unwrap_or_else(|| format!("{}-{stamp}", scenario.id));
    if let Some(number) = number {
        name = format!("{name}-{number}");
    }
    let safe: String = name
        .chars()
        .map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .collect();
    lab.out.join(format!("{safe}.json"))
}

pub(super) fn access(lab: &args::Lab) -> BrokerAccess {
    match (lab.pid, &lab.broker_command, &lab.metrics) {
        (Some(pid), _, _) => BrokerAccess::Pid(pid),
        (None, Some(command), _) => {
            BrokerAccess::Command(command.split_whitespace().map(str::to_owned).collect())
        }
        (None, None, Some(url)) => BrokerAccess::Metrics(url.clone()),
        (None, None, None) => BrokerAccess::None,
    }
}

pub(super) fn ensemble(lab: &args::Lab) -> EnsembleSpec {
    let (nodes, engines) = (lab.node.clone(), lab.engine.clone());
    EnsembleSpec { nodes, engines, links: lab.link.clone() }
}

/// What the options say of the broker.
pub(super) fn broker_info(lab: &args::Lab) -> anyhow::Result<BrokerInfo> {
    Ok(BrokerInfo {
        name: lab.broker_name.clone(),
        version: lab.broker_version.clone(),
        host: lab.broker_host.clone(),
        config: broker_config(lab)?,
        ..BrokerInfo::default()
    })
}

fn broker_config(lab: &args::Lab) -> anyhow::Result<String> {
    let Some(path) = &lab.broker_config else { return Ok(String::new()) };
    surroundings::config_file(path).with_context(|| {
        format!("--broker-config {}: must be a text file of at most 256 KiB", path.display())
    })
}

fn opening(scenario: &Scenario) -> String {
    let estimate = scenario.estimate();
    let addresses: Vec<String> =
        scenario.brokers.iter().flat_map(|broker| broker.addresses.clone()).collect();
    format!(
        "{}: {}\n{} ({} publish, {} subscribe), {}, broker {}\n{}",
        scenario.id,
        scenario.title,
        text::counted(estimate.clients, "client"),
        text::count(estimate.publishers),
        text::count(estimate.subscribers),
        text::counted(estimate.topics, "topic"),
        addresses.join(", "),
        length_words(scenario)
    )
}

/// `about 20 min and more`: how long some scenarios take, each so many times.
pub(super) fn lengths_words(lengths: impl Iterator<Item = Length>, times: f64) -> String {
    let (secs, is_open) = lengths.fold((0.0, false), |(secs, is_open), length| {
        (secs + length.secs(), is_open || length.is_open)
    });
    let more = if is_open { " and more" } else { "" };
    format!("about {}{more}", text::seconds(secs * times))
}

/// How long it will take, as far as that is known.
pub(super) fn length_words(scenario: &Scenario) -> String {
    let length = scenario.length();
    if let Some(search) = scenario.search {
        let step = text::seconds(search.step_us as f64 / 1e6);
        return format!("takes dozens of steps of at least {step}");
    }
    let time = text::seconds(length.secs());
    match (length.is_open, length.us) {
        (false, _) => format!("takes about {time}"),
        (true, 0) => "time unknown: the end does not depend on time".to_owned(),
        (true, _) => format!("takes {time}, plus steps that do not depend on time"),
    }
}
