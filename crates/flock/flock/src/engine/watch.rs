//! Whose CPU and memory are read during a run: the broker's, and that of all that takes part in the
//! run. What the machine spends beyond it, other programs spend.

use super::host::Sampler;
use super::owner::{Owner, Process, is_within, owner};
use super::relay::{RelayWatch, leads_to};
use super::run::{BrokerAccess, RunError};
use crate::faults::{BrokerProcess, Ensemble};
use flock_model::Scenario;

/// What is watched of a run.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) broker: Option<BrokerProcess>,
    pub(super) load: Option<Sampler>,
    /// The broker's process, where its socket told it.
    pub(super) found: Option<u32>,
    /// Whether it passes clients on.
    pub(super) relay: Option<RelayWatch>,
    pub(super) notes: Vec<String>,
    pub(super) company: Company,
}

/// Processes of this machine that take part in the run besides flock and the broker.
#[derive(Debug, Default)]
pub(super) struct Company {
    members: Vec<(u32, Sampler)>,
    /// Why some are not known: then nobody knows what other programs spend.
    pub(super) unknown: Option<String>,
    /// Whether some broker runs here.
    pub(super) is_local: bool,
}

impl Company {
    /// CPU of all of them so far. One that has ended has spent what it had.
    pub(super) fn cpu_secs(&mut self, at_secs: f64) -> f64 {
        let secs = self.members.iter_mut().map(|(_, sampler)| {
            sampler.sample(at_secs);
            sampler.last().and_then(|sample| sample.cpu_secs).unwrap_or(0.0)
        });
        secs.sum()
    }

    fn add(&mut self, pid: u32, besides: Option<u32>) {
        let is_known = |root: u32| is_within(pid, root) || is_within(root, pid);
        // Our own children are counted with us.
        let is_counted = is_within(pid, std::process::id())
            || besides.is_some_and(is_known)
            || self.members.iter().any(|(member, _)| is_known(*member));
        if !is_counted {
            self.members.push((pid, Sampler::of_process(pid)));
        }
    }
}

pub(super) fn watch(
    scenario: &Scenario,
    access: BrokerAccess,
    ensemble: &Ensemble,
    agents: &[String],
) -> Result<Watched, RunError> {
    let address = super::run::first_address(scenario);
    let is_unwatched = matches!(access, BrokerAccess::None);
    let mut watched = Watched::default();
    let process = match access {
        BrokerAccess::None => None,
        BrokerAccess::Metrics(url) => {
            let sampler =
                Sampler::of_page(&url).map_err(|why| RunError::Metrics(url.clone(), why))?;
            if !sampler.is_there() {
                return Err(RunError::NoMetrics(url));
            }
            watched.load = Some(sampler);
            None
        }
        BrokerAccess::Pid(pid) => {
            let process = BrokerProcess::of_pid(pid, address)?;
            watched.notes.extend(check_owner(pid, address)?);
            Some(process)
        }
        BrokerAccess::Command(command) => Some(BrokerProcess::start(command, address)?),
        BrokerAccess::Process(process) => Some(process),
    };
    let mut pid = process.as_ref().and_then(BrokerProcess::pid);
    watched.load = pid.map(Sampler::of_process).or(watched.load);
    watched.broker = process;
    let brokers = brokers_of(scenario);
    if is_unwatched && let [Owner::Processes(found)] = &brokers[..] {
        // A broker of several processes that nothing joins has no load of its own.
        if let [only] = &found[..]
            && !only.is_proxy()
            && !only.is_above_us()
        {
            pid = Some(only.pid);
            watched.found = pid;
            watched.load = Some(Sampler::of_process(only.pid).found_by_its_socket());
        }
    }
    watched.relay = pid.or_else(|| only_process(&brokers)).map(RelayWatch::new);
    watched.company.is_local = brokers.iter().any(|broker| *broker != Owner::Remote);
    let agents = agents.iter().map(|agent| owner(agent)).filter(|owner| *owner != Owner::Remote);
    for owner in brokers.into_iter().chain(agents) {
        take_in(&mut watched.company, owner, pid);
    }
    ensemble.pids().into_iter().for_each(|member| watched.company.add(member, pid));
    Ok(watched)
}

/// Whoever listens, where it is one process: a known proxy, if it is not measured.
fn only_process(brokers: &[Owner]) -> Option<u32> {
    match brokers {
        [Owner::Processes(found)] if found.len() == 1 => Some(found[0].pid),
        _ => None,
    }
}

/// Who listens at each address of the scenario's brokers, those of one process together.
fn brokers_of(scenario: &Scenario) -> Vec<Owner> {
    let mut all: Vec<Owner> = Vec::new();
    for address in scenario.brokers.iter().flat_map(|broker| &broker.addresses) {
        let found = owner(address);
        if !all.contains(&found) {
            all.push(found);
        }
    }
    all
}

fn take_in(company: &mut Company, owner: Owner, broker: Option<u32>) {
    match owner {
        Owner::Remote | Owner::Ours => {}
        Owner::Processes(all) => {
            for process in all {
                if process.is_proxy() && broker.is_none() {
                    let words = process.words();
                    company.unknown = Some(format!(
                        "{words} forwards to the broker, whose own process cannot be found"
                    ));
                }
                if process.is_above_us() {
                    let words = process.words();
                    company.unknown = Some(format!("{words}, the broker, started flock"));
                    continue;
                }
                company.add(process.pid, broker);
            }
        }
        // What was given with an option is known by that.
        Owner::Unknown(why) => {
            if broker.is_none() {
                company.unknown = Some(why);
            }
        }
    }
}

/// Refuses a process that is not the one that will be measured. Of one behind a relay that is said.
fn check_owner(pid: u32, address: &str) -> Result<Option<String>, RunError> {
    let Owner::Processes(owners) = owner(address) else { return Ok(None) };
    let is_known = owners.iter().find(|one| is_within(one.pid, pid) || is_within(pid, one.pid));
    if is_known.is_some() {
        return Ok(None);
    }
    let relay = |one: &&Process| one.is_proxy() || leads_to(address, one.pid, pid);
    if let Some(relay) = owners.iter().find(relay) {
        return Ok(Some(format!(
            "{} listens on {address} and passes clients on to process {pid} (--pid): CPU and \
             memory are those of the latter, latency includes both",
            relay.words()
        )));
    }
    let owners: Vec<String> = owners.iter().map(Process::words).collect();
    Err(RunError::NotTheBroker { pid, address: address.to_owned(), owners: owners.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_a_proxy_or_a_wall_is_not_known_unless_the_user_tells_it() {
        let proxy = Process { pid: u32::MAX, name: "docker-proxy".to_owned() };
        let behind = [Owner::Processes(vec![proxy]), Owner::Unknown("a wall".to_owned())];
        for (owner, words) in behind.into_iter().zip(["(docker-proxy) forwards", "a wall"]) {
            let mut company = Company::default();
            take_in(&mut company, owner.clone(), None);
            assert!(company.unknown.is_some_and(|why| why.contains(words)));
            let mut company = Company::default();
            take_in(&mut company, owner, Some(std::process::id()));
            assert_eq!(company.unknown, None);
        }
    }

    #[test]
    fn our_own_children_and_the_brokers_are_counted_once() {
        let mut company = Company::default();
        company.add(std::process::id(), None);
        company.add(1, Some(1));
        assert!(company.members.is_empty());
        company.add(1, None);
        company.add(1, None);
        assert_eq!(company.members.len(), 1);
        assert!(company.cpu_secs(1.0) >= 0.0);
    }
}
