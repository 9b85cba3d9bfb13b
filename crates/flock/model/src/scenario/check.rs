//! What no scenario may ask for, whatever it was written in.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::model::{
    Command, Connect, Filters, GroupId, LifeCycle, Pattern, Payload, Publish, QoS, Scenario, Stage,
    Step, Subscribe, Version, Who,
};
use crate::scenario::units::show_time;
use crate::scenario::v5_keys;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: SubjectKind,
    /// The id of what it is about.
    pub subject: String,
    pub message: String,
}

/// What a problem is about; ids are unique within a kind only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubjectKind {
    Scenario,
    Clients,
    Topics,
    Subscription,
    LifeCycle,
}

/// Everything that is wrong with `scenario`; empty means that the engine can run it.
pub fn check(scenario: &Scenario) -> Vec<Problem> {
    let mut checker = Checker { scenario, problems: Vec::new(), connected: BTreeSet::new() };
    checker.names();
    for stage in &scenario.stages {
        for cycle in &stage.life_cycles {
            checker.life_cycle(stage, cycle);
            checker.faults_in_time(stage, cycle);
        }
    }
    checker.whole();
    checker.problems
}

struct Checker<'a> {
    scenario: &'a Scenario,
    problems: Vec<Problem>,
    /// Groups that have connected in this or an earlier stage.
    connected: BTreeSet<GroupId>,
}

impl Checker<'_> {
    fn problem(&mut self, kind: SubjectKind, subject: &str, message: impl Into<String>) {
        self.problems.push(Problem { kind, subject: subject.to_owned(), message: message.into() });
    }

    fn whole(&mut self) {
        let scenario = self.scenario;
        let id = scenario.id.as_str();
        if scenario.brokers.iter().any(|broker| broker.addresses.is_empty()) {
            self.problem(SubjectKind::Scenario, id, "a broker needs an address");
        }
        if scenario.brokers_distinct && scenario.brokers.len() < 2 {
            self.problem(
                SubjectKind::Scenario,
                id,
                "`brokers_distinct` needs at least two brokers",
            );
        }
        let clients: u64 = scenario.groups.iter().map(|group| group.count).sum();
        if clients > u64::from(u32::MAX) {
            self.problem(
                SubjectKind::Scenario,
                id,
                format!("{clients} clients: at most 4,294,967,295 are possible"),
            );
        }
        if scenario.search.is_some() && !publishes_measured(scenario) {
            let message = "a search for a rate needs a measured stage that publishes";
            self.problem(SubjectKind::Scenario, id, message);
        }
        let Some(wanted) = scenario.expect.copies_per_message else { return };
        let found = scenario.estimate().copies_per_message.unwrap_or(0.0);
        // Scaled counts are rounded, so the ratio of small numbers moves.
        let is_scaled = (scenario.scale - 1.0).abs() > f64::EPSILON;
        if !is_scaled && (wanted - found).abs() > wanted * COPIES_TOLERANCE {
            self.problem(
                SubjectKind::Scenario,
                id,
                format!(
                    "the subscriptions lead to {found:.2} copies of a message, but `copies` in [expect] is {wanted}"
                ),
            );
        }
    }

    fn names(&mut self) {
        let scenario = self.scenario;
        for group in &scenario.groups {
            self.enough(
                SubjectKind::Clients,
                &group.id,
                &group.client_ids,
                group.offset..group.offset.saturating_add(group.count),
            );
        }
        for topics in &scenario.topics {
            self.enough(
                SubjectKind::Topics,
                &topics.id,
                &topics.names,
                topics.offset..topics.offset.saturating_add(topics.count),
            );
            let mut name = String::new();
            topics.names.write(topics.offset, &mut name);
            if name.is_empty() || name.contains(['+', '#']) {
                self.problem(
                    SubjectKind::Topics,
                    &topics.id,
                    format!("a topic name must not be empty or have wildcards, got `{name}`"),
                );
            }
        }
        for subscription in &scenario.subscriptions {
            match &subscription.filters {
                Filters::Topics { .. } => {}
                Filters::Pattern { pattern, offset, count, .. } => {
                    self.enough(
                        SubjectKind::Subscription,
                        &subscription.id,
                        pattern,
                        *offset..offset.saturating_add(*count),
                    );
                    if let Err(detail) = check_filter(&pattern.name(*offset)) {
                        self.problem(SubjectKind::Subscription, &subscription.id, detail);
                    }
                }
            }
        }
    }

    fn enough(&mut self, kind: SubjectKind, subject: &str, pattern: &Pattern, wanted: Range<u64>) {
        let what = match kind {
            SubjectKind::Clients => "client IDs",
            SubjectKind::Topics => "topics",
            _ => "filters",
        };
        let Some(capacity) = pattern.capacity() else { return };
        if wanted.is_empty() {
            self.problem(
                kind,
                subject,
                format!("`{subject}` has no {what}: `count` must be at least 1"),
            );
        } else if wanted.end > capacity {
            let message = format!(
                "the pattern `{pattern}` has {capacity} {what}, but {} are needed (offset + count)",
                wanted.end
            );
            self.problem(kind, subject, message);
        }
    }

    fn life_cycle(&mut self, stage: &Stage, cycle: &LifeCycle) {
        if cycle.steps.is_empty() {
            self.problem(SubjectKind::LifeCycle, &cycle.id, format!("`{}` has no steps", cycle.id));
        }
        self.steps(stage, cycle, &cycle.steps);
    }

    fn steps(&mut self, stage: &Stage, cycle: &LifeCycle, steps: &[Step]) {
        for step in steps {
            let group = match cycle.who {
                Who::Clients(group) => group,
                Who::Conductor => {
                    self.conductor(stage, cycle, &step.command);
                    continue;
                }
            };
            match &step.command {
                Command::Connect(connect) => self.connect(cycle, group, connect),
                Command::Publish(publish) => {
                    self.needs_connection(cycle, group, "publish");
                    self.publish(stage, cycle, publish);
                }
                Command::Subscribe(subscribe) => {
                    self.needs_connection(cycle, group, "subscribe");
                    self.subscribe(cycle, subscribe);
                }
                Command::Receive(receive) => {
                    self.needs_connection(cycle, group, "receive");
                    let pattern = receive.message_pattern.as_deref().unwrap_or("");
                    if let Err(error) = regex_lite::Regex::new(pattern) {
                        self.problem(
                            SubjectKind::LifeCycle,
                            &cycle.id,
                            format!("the pattern `{pattern}` of `receive` is not valid: {error}"),
                        );
                    }
                }
                Command::Unsubscribe(_) => self.needs_connection(cycle, group, "unsubscribe"),
                Command::Disconnect(_) => self.needs_connection(cycle, group, "disconnect"),
                Command::Stall { .. } => self.needs_connection(cycle, group, "stall"),
                Command::For(repeat) => {
                    self.endless(stage, cycle, repeat.times.is_none(), "`repeat`");
                    self.steps(stage, cycle, &repeat.steps);
                }
                Command::Fault(_) => {
                    self.problem(
                        SubjectKind::LifeCycle,
                        &cycle.id,
                        "`fault` is not possible for clients: remove `clients` from this [[stage.do]]",
                    );
                }
                Command::Delay(_) | Command::StartTimer(_) | Command::StopTimer(_) => {}
            }
        }
    }

    fn conductor(&mut self, stage: &Stage, cycle: &LifeCycle, command: &Command) {
        match command {
            Command::Fault(_)
            | Command::Delay(_)
            | Command::StartTimer(_)
            | Command::StopTimer(_) => {}
            Command::For(repeat) => {
                self.endless(stage, cycle, repeat.times.is_none(), "`repeat`");
                self.steps(stage, cycle, &repeat.steps);
            }
            _ => self.problem(
                SubjectKind::LifeCycle,
                &cycle.id,
                "without `clients`, the conductor runs the steps: use only `fault`, `delay`, `repeat` and timers",
            ),
        }
    }

    /// A fault behind the end of its stage would never be done, and the run would look as if the
    /// broker had stood it.
    fn faults_in_time(&mut self, stage: &Stage, cycle: &LifeCycle) {
        let Some(end_us) = stage.duration_us else { return };
        if cycle.who == Who::Conductor
            && let Some(at_us) = first_fault_behind(&cycle.steps, &mut 0, end_us)
        {
            let message = format!(
                "a fault is due {} into stage `{}`, which ends after {}: it would never happen",
                show_time(at_us),
                stage.id,
                show_time(end_us)
            );
            self.problem(SubjectKind::LifeCycle, &cycle.id, message);
        }
    }

    fn needs_connection(&mut self, cycle: &LifeCycle, group: GroupId, what: &str) {
        if !self.connected.contains(&group) {
            let id = &self.scenario.group(group).id;
            self.problem(
                SubjectKind::LifeCycle,
                &cycle.id,
                format!("the clients of `{id}` {what} without a `connect` ahead of it"),
            );
        }
    }

    fn connect(&mut self, cycle: &LifeCycle, group: GroupId, connect: &Connect) {
        self.connected.insert(group);
        if connect.brokers.is_empty() {
            self.problem(SubjectKind::LifeCycle, &cycle.id, "`connect` needs at least one broker");
        }
        if connect.timeout_us == 0 {
            self.problem(SubjectKind::LifeCycle, &cycle.id, "`timeout` must be above 0");
        }
        if let Some(will) = &connect.will {
            self.payload(cycle, &will.payload);
        }
        self.needs_v5(cycle, v5_keys::of_connect(connect));
    }

    fn subscribe(&mut self, cycle: &LifeCycle, subscribe: &Subscribe) {
        let wrong = match subscribe.identifier {
            _ if subscribe.retain_handling > 2 => "`retain_handling` must be 0, 1 or 2",
            _ if subscribe.ack_delay_us > 0 && subscribe.qos == QoS::AtMostOnce => {
                "`ack_delay` needs qos = 1 or 2: QoS 0 has no acknowledgements"
            }
            Some(id) if !(1..=IDENTIFIER_MAX).contains(&id) => {
                "`identifier` must be from 1 to 268,435,455"
            }
            _ => return self.needs_v5(cycle, v5_keys::of_subscribe(subscribe)),
        };
        self.problem(SubjectKind::LifeCycle, &cycle.id, wrong);
    }

    /// What a client of MQTT 3 cannot send.
    fn needs_v5(&mut self, cycle: &LifeCycle, key: Option<&str>) {
        if let Some(key) = key
            && !self.speaks_v5(cycle)
        {
            let message = format!("`{key}` needs MQTT 5: version = \"5\"");
            self.problem(SubjectKind::LifeCycle, &cycle.id, message);
        }
    }

    fn publish(&mut self, stage: &Stage, cycle: &LifeCycle, publish: &Publish) {
        self.endless(stage, cycle, publish.count.is_none(), "`publish`");
        self.request(cycle, publish);
        self.payload(cycle, &publish.payload);
        if publish.pace.in_flight == Some(0) {
            self.problem(
                SubjectKind::LifeCycle,
                &cycle.id,
                "`in_flight` must be at least 1; omit it for the limit of the broker",
            );
        }
    }

    fn request(&mut self, cycle: &LifeCycle, publish: &Publish) {
        self.needs_v5(cycle, v5_keys::of_publish(publish));
        if publish.reply_to.is_some() && !publish.payload.stamped {
            self.problem(
                SubjectKind::LifeCycle,
                &cycle.id,
                "`reply_to` needs a stamp: use a payload of at least 16 bytes without `unstamped`",
            );
        }
    }

    fn speaks_v5(&self, cycle: &LifeCycle) -> bool {
        match cycle.who {
            Who::Clients(group) => self.scenario.group(group).version == Version::V5,
            Who::Conductor => false,
        }
    }

    fn payload(&mut self, cycle: &LifeCycle, payload: &Payload) {
        if payload.bytes_min() > payload.bytes_max() {
            self.problem(
                SubjectKind::LifeCycle,
                &cycle.id,
                "`random_from` must not be above `random_to`",
            );
        }
    }

    fn endless(&mut self, stage: &Stage, cycle: &LifeCycle, is_endless: bool, what: &str) {
        if is_endless && stage.duration_us.is_none() {
            self.problem(
                SubjectKind::LifeCycle,
                &cycle.id,
                format!(
                    "{what} has no count and stage `{}` has no duration: it would never end",
                    stage.id
                ),
            );
        }
    }
}

/// Whether some stage of which figures are taken publishes; without a measured one, all are.
fn publishes_measured(scenario: &Scenario) -> bool {
    let any = scenario.stages.iter().any(|stage| stage.measured);
    let mut found = false;
    scenario.each_command(&mut |stage, _, command| {
        found |= (stage.measured || !any) && matches!(command, Command::Publish(_));
    });
    found
}

/// When the first fault that comes at or behind `end_us` is due; `at_us` is where the steps begin,
/// and afterwards where they end. Repetitions without an end are there to be cut off.
fn first_fault_behind(steps: &[Step], at_us: &mut u64, end_us: u64) -> Option<u64> {
    for step in steps {
        match &step.command {
            Command::Delay(delay) => *at_us = at_us.saturating_add(delay.duration_us),
            Command::Fault(_) if *at_us >= end_us => return Some(*at_us),
            Command::For(repeat) => {
                let start_us = *at_us;
                for round in 0..repeat.times.unwrap_or(0) {
                    if let Some(rate) = repeat.rate {
                        *at_us = (*at_us).max(start_us + rate.due_us(round));
                    }
                    let before_us = *at_us;
                    let found = first_fault_behind(&repeat.steps, at_us, end_us);
                    if found.is_some() {
                        return found;
                    }
                    if *at_us == before_us && repeat.rate.is_none() {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether a filter is one, share prefix included (MQTT-4.7.1-1, 4.7.1-2, 4.8.2-1, 4.8.2-2).
pub fn check_filter(filter: &str) -> Result<(), String> {
    let plain = match filter.strip_prefix("$share/") {
        None => filter,
        Some(rest) => match rest.split_once('/') {
            Some((name, plain)) if !name.is_empty() && !name.contains(['+', '#']) => plain,
            _ => return Err(format!("a shared filter must be $share/NAME/FILTER, got `{filter}`")),
        },
    };
    if plain.is_empty() {
        return Err("a filter must not be empty".to_owned());
    }
    let levels: Vec<&str> = plain.split('/').collect();
    for (at, level) in levels.iter().enumerate() {
        let is_last = at + 1 == levels.len();
        if level.contains('#') && (*level != "#" || !is_last) {
            return Err(format!(
                "`{filter}` is not a valid filter: # must be the whole last level"
            ));
        }
        if level.contains('+') && *level != "+" {
            return Err(format!("`{filter}` is not a valid filter: + must be a whole level"));
        }
    }
    Ok(())
}

const COPIES_TOLERANCE: f64 = 0.01;
/// A variable byte integer (MQTT 5, 3.8.2.1.2).
const IDENTIFIER_MAX: u32 = 268_435_455;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        for good in ["a", "a/#", "#", "+/b", "$share/g/a/+", "/"] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for bad in ["", "a#", "#/a", "a+/b", "$share/g", "$share//a", "$share/+/a"] {
            assert!(check_filter(bad).is_err(), "{bad}");
        }
    }
}
