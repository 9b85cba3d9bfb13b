//! From the file's tables to the model: names become indices, defaults become values.

mod connect;
mod faults;
mod sinks;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use toml::Spanned;

use super::check::{SubjectKind, check};
use super::format::{self, File};
use super::units::Ramp;
use super::{ScenarioError, did_you_mean};
use crate::model::{
    self, Assign, Broker, BrokerId, ClientGroup, Command, Content, Delay, Expect, Filters, GroupId,
    LifeCycle, Order, Pace, Pattern, Payload, Phase, Publish, Rate, Receive, Repeat, Scenario,
    Search, Slice, Spread, Stage, Step, Subscribe, Subscription, SubscriptionId, Tls, TopicGroup,
    TopicsId, Transport, Version, Who,
};

use super::ReadFile;
use flock_measure::threshold::Threshold;

type Lowered<T> = Result<T, ScenarioError>;

/// The scenario of a file that has stages of its own.
pub(super) fn lower(
    file: &str,
    text: &str,
    parsed: &File,
    read: ReadFile<'_>,
) -> Lowered<Scenario> {
    let mut lowering = Lowering {
        file,
        text,
        parsed,
        read,
        brokers: in_order(&parsed.brokers),
        groups: in_order(&parsed.clients),
        topics: in_order(&parsed.topics),
        subscriptions: in_order(&parsed.subscriptions),
        spans: HashMap::new(),
    };
    let scenario = lowering.scenario()?;
    match check(&scenario).into_iter().next() {
        None => Ok(scenario),
        Some(problem) => {
            let span = lowering.spans.get(&(problem.kind, problem.subject)).cloned();
            let span = span.unwrap_or_else(|| parsed.id.span());
            Err(ScenarioError::new(file, problem.message).at(text, span))
        }
    }
}

struct Lowering<'a> {
    file: &'a str,
    text: &'a str,
    parsed: &'a File,
    read: ReadFile<'a>,
    brokers: Vec<&'a str>,
    groups: Vec<&'a str>,
    topics: Vec<&'a str>,
    subscriptions: Vec<&'a str>,
    /// Where each subject of a [`super::check::Problem`] stands.
    spans: HashMap<(SubjectKind, String), Range<usize>>,
}

/// The names of a table in the order of the file.
fn in_order<T>(table: &BTreeMap<String, Spanned<T>>) -> Vec<&str> {
    let mut names: Vec<(usize, &str)> =
        table.iter().map(|(name, value)| (value.span().start, name.as_str())).collect();
    names.sort_unstable();
    names.into_iter().map(|(_, name)| name).collect()
}

impl<'a> Lowering<'a> {
    fn scenario(&mut self) -> Lowered<Scenario> {
        let parsed = self.parsed;
        let mut scenario = Scenario {
            id: parsed.id.get_ref().clone(),
            title: parsed.title.clone(),
            description: parsed.about.summary.clone(),
            seed: parsed.seed.unwrap_or(1),
            brokers: self.lower_brokers()?,
            brokers_distinct: parsed.brokers_distinct,
            source_addresses: Vec::new(),
            groups: Vec::new(),
            topics: Vec::new(),
            subscriptions: Vec::new(),
            sinks: Vec::new(),
            stages: Vec::new(),
            drain_us: parsed.drain.map_or(DRAIN_US, |time| time.0),
            warm_up_us: parsed.warm_up.as_ref().map(|time| time.get_ref().0),
            cool_down_us: parsed.cool_down.as_ref().map(|time| time.get_ref().0),
            expect: self.expect()?,
            search: self.search()?,
            scale: 1.0,
        };
        for address in &parsed.source_addresses {
            let parsed = address.get_ref().parse();
            scenario.source_addresses.push(parsed.map_err(|_| {
                self.error(
                    address.span(),
                    format!("must be an IP address, got `{}`", address.get_ref()),
                )
            })?);
        }
        for name in self.groups.clone() {
            scenario.groups.push(self.group(name)?);
        }
        for name in self.topics.clone() {
            scenario.topics.push(self.topic_group(name)?);
        }
        for name in self.subscriptions.clone() {
            scenario.subscriptions.push(self.subscription(name)?);
        }
        for stage in &parsed.stage {
            scenario.stages.push(self.stage(stage)?);
        }
        if scenario.stages.is_empty() {
            return Err(self.error(parsed.id.span(), "the scenario has no [[stage]]"));
        }
        scenario.sinks = self.sinks(&scenario)?;
        self.check_shared(&scenario)?;
        self.check_margins(&scenario)?;
        Ok(scenario)
    }

    fn error(&self, span: Range<usize>, message: impl Into<String>) -> ScenarioError {
        ScenarioError::new(self.file, message).at(self.text, span)
    }

    fn find(&self, names: &[&str], name: &Spanned<String>, what: &str) -> Lowered<u32> {
        self.find_at(names, name.get_ref(), name.span(), what)
    }

    fn find_at(&self, names: &[&str], name: &str, span: Range<usize>, what: &str) -> Lowered<u32> {
        match names.iter().position(|known| *known == name) {
            Some(at) => Ok(at as u32),
            None => {
                let hint = did_you_mean(name, names.iter().copied()).or_else(|| match names {
                    [] => Some(format!("the file defines no {what}")),
                    names => Some(format!("defined: {}", names.join(", "))),
                });
                Err(self.error(span, format!("unknown {what} `{name}`")).hint(hint))
            }
        }
    }

    fn pattern(&self, source: &Spanned<String>) -> Lowered<Pattern> {
        Pattern::parse(source.get_ref())
            .map_err(|error| self.error(source.span(), error.to_string()))
    }

    fn lower_brokers(&self) -> Lowered<Vec<Broker>> {
        if self.brokers.is_empty() {
            return Ok(vec![default_broker()]);
        }
        self.brokers.iter().map(|name| self.broker(name)).collect()
    }

    fn broker(&self, name: &str) -> Lowered<Broker> {
        let spanned = &self.parsed.brokers[name];
        let broker = spanned.get_ref();
        let path = broker.path.clone().unwrap_or_else(|| "/mqtt".to_owned());
        let transport = match broker.transport {
            format::Transport::Tcp => Transport::Tcp,
            format::Transport::Tls => Transport::Tls,
            format::Transport::Ws => Transport::Ws { path },
            format::Transport::Wss => Transport::Wss { path },
            format::Transport::Unix => Transport::Unix,
        };
        let is_ws = matches!(transport, Transport::Ws { .. } | Transport::Wss { .. });
        let wrong = match (&broker.path, &broker.tls) {
            (Some(_), _) if !is_ws => "`path` needs transport = \"ws\" or \"wss\"",
            (_, Some(_)) if !transport.is_tls() => "`tls` needs transport = \"tls\" or \"wss\"",
            (_, Some(tls)) if tls.cert_file.is_some() != tls.key_file.is_some() => {
                "`cert_file` and `key_file` need each other"
            }
            (_, Some(tls)) if tls.insecure && tls.ca_file.is_some() => {
                "`insecure` accepts any certificate: remove it, or `ca_file`"
            }
            _ => {
                let tls = broker.tls.clone().unwrap_or_default();
                let addresses = broker.addresses.clone();
                return Ok(Broker { id: name.to_owned(), addresses, transport, tls });
            }
        };
        Err(self.error(self.header_of(spanned.span()), format!("broker `{name}`: {wrong}")))
    }

    /// Load around measured stages, where there is no stage that can have it.
    fn check_margins(&self, scenario: &Scenario) -> Lowered<()> {
        let can = scenario.stages.iter().any(Stage::is_steady);
        let searches = scenario.search.is_some();
        let steady = "a measured stage with a duration in which all clients do one thing until \
                      the end";
        let given = [
            ("warm_up", &self.parsed.warm_up, can || searches),
            ("cool_down", &self.parsed.cool_down, can && !searches),
        ];
        for (name, time, has_effect) in given {
            if let Some(time) = time
                && time.get_ref().0 > 0
                && !has_effect
            {
                let why = if searches { "is not possible with [search]" } else { "needs" };
                let rest = if searches { String::new() } else { format!(" {steady}") };
                return Err(self.error(time.span(), format!("`{name}` {why}{rest}")));
            }
        }
        Ok(())
    }

    fn speaks_v5(&self, who: Who) -> bool {
        match who {
            Who::Clients(group) => {
                let group = self.parsed.clients[self.groups[group.index()]].get_ref();
                let version = group.version.or(self.parsed.connect.version);
                version.unwrap_or_default() == Version::V5
            }
            Who::Conductor => false,
        }
    }

    fn group(&mut self, name: &str) -> Lowered<ClientGroup> {
        let spanned = &self.parsed.clients[name];
        self.spans.insert((SubjectKind::Clients, name.to_owned()), self.header_of(spanned.span()));
        let group = spanned.get_ref();
        let client_ids = match &group.id {
            Some(id) => self.pattern(id)?,
            None => Pattern::parse("{i}")
                .map(|numbers| numbers.prefixed(&format!("{name}-")))
                .map_err(|error| self.error(spanned.span(), error.to_string()))?,
        };
        Ok(ClientGroup {
            id: name.to_owned(),
            client_ids,
            offset: group.offset,
            count: group.count.0,
            here: Slice::whole(group.count.0),
            version: group.version.or(self.parsed.connect.version).unwrap_or_default(),
            scales: group.scales,
        })
    }

    fn topic_group(&mut self, name: &str) -> Lowered<TopicGroup> {
        let spanned = &self.parsed.topics[name];
        self.spans.insert((SubjectKind::Topics, name.to_owned()), self.header_of(spanned.span()));
        let topics = spanned.get_ref();
        Ok(TopicGroup {
            id: name.to_owned(),
            names: self.pattern(&topics.names)?,
            offset: topics.offset,
            count: topics.count.map_or(1, |count| count.0),
            scales: topics.scales && topics.count.is_some(),
        })
    }

    fn subscription(&mut self, name: &str) -> Lowered<Subscription> {
        let spanned = &self.parsed.subscriptions[name];
        self.spans
            .insert((SubjectKind::Subscription, name.to_owned()), self.header_of(spanned.span()));
        let given = spanned.get_ref();
        let filters = match (&given.topics, &given.filter) {
            (Some(topics), None) => Filters::Topics {
                topics: TopicsId(self.find(&self.topics, topics, "topic group")?),
                prefix: given
                    .share
                    .as_ref()
                    .map_or(String::new(), |name| format!("$share/{name}/")),
            },
            (None, Some(filter)) => Filters::Pattern {
                pattern: self.pattern(filter)?,
                offset: given.offset.unwrap_or(0),
                count: given.count.map_or(1, |count| count.0),
                scales: given.scales.unwrap_or(true) && given.count.is_some(),
            },
            _ => {
                let message = format!("subscription `{name}` needs either `topics` or `filter`");
                return Err(self.error(self.header_of(spanned.span()), message));
            }
        };
        if given.filter.is_some() && given.share.is_some() {
            let message = "`share` needs `topics`; with `filter`, use $share/NAME/FILTER";
            return Err(self.error(self.header_of(spanned.span()), message));
        }
        let numbers = [
            ("count", given.count.is_some()),
            ("offset", given.offset.is_some()),
            ("scales", given.scales.is_some()),
        ];
        let of_topics = numbers.iter().find(|(_, is_given)| *is_given && given.topics.is_some());
        if let Some((key, _)) = of_topics {
            let message = format!(
                "`{key}` needs `filter`; with `topics`, a subscription has the names of the group"
            );
            return Err(self.error(self.header_of(spanned.span()), message));
        }
        Ok(Subscription {
            id: name.to_owned(),
            filters,
            assign: given.assign,
            routed: given.routed,
        })
    }

    /// A table's span cut down to its first line.
    fn header_of(&self, span: Range<usize>) -> Range<usize> {
        let end = self.text[span.clone()].find('\n').map_or(span.end, |at| span.start + at);
        span.start..end
    }

    fn stage(&mut self, spanned: &Spanned<format::Stage>) -> Lowered<Stage> {
        let stage = spanned.get_ref();
        let span = self.header_of(spanned.span());
        let mut life_cycles = Vec::new();
        for cycle in &stage.cycles {
            life_cycles.push(self.life_cycle(&stage.name, cycle)?);
        }
        if life_cycles.is_empty() && stage.duration.is_none() {
            let message = format!("stage `{}` has neither steps nor a duration", stage.name);
            return Err(self.error(span, message));
        }
        Ok(Stage {
            id: stage.name.clone(),
            duration_us: stage.duration.map(|time| time.0),
            measured: stage.measured,
            expected_us: stage.expected.map(|time| time.0),
            life_cycles,
        })
    }

    fn life_cycle(&mut self, stage: &str, spanned: &Spanned<format::Cycle>) -> Lowered<LifeCycle> {
        let cycle = spanned.get_ref();
        let (who, name) = match &cycle.clients {
            None => (Who::Conductor, "conductor"),
            Some(name) => {
                let group = self.find(&self.groups, name, "client group")?;
                (Who::Clients(GroupId(group)), name.get_ref().as_str())
            }
        };
        let id = format!("{stage}.{name}");
        self.spans.insert((SubjectKind::LifeCycle, id.clone()), self.header_of(spanned.span()));
        let mut steps = Vec::new();
        self.steps(who, &cycle.steps, &mut steps)?;
        Ok(LifeCycle { id, who, steps })
    }

    fn steps(&self, who: Who, from: &[Spanned<format::Step>], to: &mut Vec<Step>) -> Lowered<()> {
        for spanned in from {
            match spanned.get_ref() {
                format::Step::Connect(given) => {
                    to.extend(self.ramp(who, given.ramp.or(self.parsed.connect.ramp)));
                    to.push(Command::Connect(self.connect(who, given, spanned.span())?).into());
                }
                format::Step::Disconnect(given) => {
                    to.extend(self.ramp(who, given.ramp));
                    to.push(Command::Disconnect(given.how).into());
                }
                format::Step::Fault(fault) => to.extend(self.fault(fault)?),
                other => to.push(self.command(who, other)?.into()),
            }
        }
        Ok(())
    }

    /// The delay in front of a ramped command. A rate is turned into the time that it takes now,
    /// which then stays when counts are scaled.
    fn ramp(&self, who: Who, ramp: Option<Ramp>) -> Option<Step> {
        let duration_us = match ramp? {
            Ramp::Over(duration_us) => duration_us,
            Ramp::Rate(rate) => rate.due_us(self.clients_of(who)),
        };
        Some(Command::Delay(Delay { duration_us, spread: Spread::Linear }).into())
    }

    fn clients_of(&self, who: Who) -> u64 {
        match who {
            Who::Clients(group) => {
                self.parsed.clients[self.groups[group.index()]].get_ref().count.0
            }
            Who::Conductor => 1,
        }
    }

    fn command(&self, who: Who, step: &format::Step) -> Lowered<Command> {
        let delay = |duration_us, spread| Command::Delay(Delay { duration_us, spread });
        Ok(match step {
            format::Step::Publish(publish) => Command::Publish(self.publish(who, publish)?),
            format::Step::Subscribe(subscribe) => Command::Subscribe(self.subscribe(subscribe)?),
            format::Step::Unsubscribe(from) => Command::Unsubscribe(self.subscription_ids(from)?),
            format::Step::Receive(receive) => Command::Receive(self.receive(receive)?),
            format::Step::Repeat(repeat) => {
                let mut steps = Vec::new();
                self.steps(who, &repeat.steps, &mut steps)?;
                Command::For(Repeat {
                    times: repeat.times.map(|times| times.0),
                    rate: repeat.rate.map(|rate| rate.0),
                    steps,
                })
            }
            format::Step::Delay(time) => delay(time.0, Spread::None),
            format::Step::Spread(time) => delay(time.0, Spread::Linear),
            format::Step::SpreadDown(time) => delay(time.0, Spread::LinearDown),
            format::Step::SpreadRandom(time) => delay(time.0, Spread::Random),
            format::Step::StartTimer(name) => Command::StartTimer(name.clone()),
            format::Step::StopTimer(name) => Command::StopTimer(name.clone()),
            format::Step::Stall(time) => Command::Stall { duration_us: time.0 },
            // Ramps and faults that end by themselves are several steps.
            format::Step::Connect(_) | format::Step::Disconnect(_) | format::Step::Fault(_) => {
                return Err(ScenarioError::new(self.file, "several steps"));
            }
        })
    }

    fn broker_ids(&self, names: &Spanned<format::OneOrMany>) -> Lowered<Vec<BrokerId>> {
        let find =
            |name: &String| self.find_at(&self.brokers, name, names.span(), "broker").map(BrokerId);
        names.get_ref().0.iter().map(find).collect()
    }

    fn subscription_ids(&self, names: &Spanned<format::OneOrMany>) -> Lowered<Vec<SubscriptionId>> {
        let find = |name: &String| {
            self.find_at(&self.subscriptions, name, names.span(), "subscription")
                .map(SubscriptionId)
        };
        names.get_ref().0.iter().map(find).collect()
    }

    fn publish(&self, who: Who, given: &format::Publish) -> Lowered<Publish> {
        let rate = match (&given.rate, &given.total_rate) {
            (Some(_), Some(total)) => {
                return Err(self.error(
                    total.span(),
                    "`rate` (per client) and `total_rate` exclude each other",
                ));
            }
            (Some(rate), None) => rate.get_ref().0,
            (None, Some(total)) => {
                total.get_ref().0.map(|total| split(total, self.clients_of(who)))
            }
            (None, None) => None,
        };
        let payload = self.payload(given.payload.as_ref(), given.to.span())?;
        if let (Some(phase), None) = (&given.phase, rate) {
            return Err(self.error(phase.span(), "`phase` needs a `rate` or `total_rate`"));
        }
        let order = given.order.as_ref().map_or(Order::default(), |order| *order.get_ref());
        if let (Some(given), Order::Random, Assign::Pairwise) = (&given.order, order, given.assign)
        {
            let message = "`order` needs an `assign` that gives a client several topics, such as \
                           \"all\"";
            return Err(self.error(given.span(), message));
        }
        Ok(Publish {
            topics: TopicsId(self.find(&self.topics, &given.to, "topic group")?),
            assign: given.assign,
            order,
            qos: given.qos,
            retain: given.retain,
            payload_format: self.payload_format(given.payload_format.as_ref(), payload.stamped)?,
            payload,
            expiry_secs: given
                .expiry
                .as_ref()
                .map(|time| self.whole_secs(time, "expiry"))
                .transpose()?,
            count: given.count.map(|count| count.0),
            pace: Pace {
                rate,
                phase: given.phase.as_ref().map_or(Phase::default(), |phase| *phase.get_ref()),
                in_flight: given.in_flight.as_ref().map(|window| window.get_ref().0),
            },
            reply_to: given
                .reply_to
                .as_ref()
                .map(|name| self.find(&self.topics, name, "topic group").map(TopicsId))
                .transpose()?,
            topic_alias: given.topic_alias,
            user_properties: pairs(given.user_properties.as_ref()),
            content_type: given.content_type.clone(),
        })
    }

    /// A broker may look whether a payload that claims to be UTF-8 is (MQTT 5, 3.3.2.3.2), and a
    /// stamp is not.
    fn payload_format(&self, given: Option<&Spanned<u8>>, stamped: bool) -> Lowered<Option<u8>> {
        let Some(given) = given else { return Ok(None) };
        match *given.get_ref() {
            0 => Ok(Some(0)),
            1 if !stamped => Ok(Some(1)),
            1 => Err(self.error(
                given.span(),
                "`payload_format = 1` needs a payload with `unstamped = true`",
            )),
            _ => Err(self.error(given.span(), "`payload_format` must be 0 (bytes) or 1 (UTF-8)")),
        }
    }

    fn payload(&self, given: Option<&format::Payload>, span: Range<usize>) -> Lowered<Payload> {
        let table = match given {
            None => return Ok(Payload::filler(PAYLOAD_BYTES)),
            Some(format::Payload::Filler(size)) => return Ok(Payload::filler(size.0)),
            Some(format::Payload::Table(table)) => table,
        };
        let range = (table.random_from, table.random_to);
        let content = match (table.bytes, &table.text, table.random, range) {
            (Some(size), None, None, (None, None)) => Content::Filler { bytes: size.0 },
            (None, Some(text), None, (None, None)) => Content::Fixed(text.clone().into_bytes()),
            (None, None, Some(size), (None, None)) => Content::Random { bytes: size.0 },
            (None, None, None, (Some(from), Some(to))) => {
                Content::RandomSize { bytes_min: from.0, bytes_max: to.0 }
            }
            _ => {
                let message = "a payload table needs one of `bytes`, `text`, `random`, or both `random_from` and `random_to`";
                return Err(self.error(span, message));
            }
        };
        let mut payload = Payload { content, stamped: false };
        payload.stamped = !table.unstamped && payload.bytes_min() >= model::STAMP_BYTES;
        Ok(payload)
    }

    fn subscribe(&self, given: &format::Subscribe) -> Lowered<Subscribe> {
        Ok(Subscribe {
            to: self.subscription_ids(&given.to)?,
            qos: given.qos,
            ack_delay_us: given.ack_delay.map_or(0, |time| time.0),
            no_local: given.no_local,
            retain_as_published: given.retain_as_published,
            respond: given.respond,
            retain_handling: given.retain_handling,
            identifier: given.identifier,
        })
    }

    fn receive(&self, given: &format::Receive) -> Lowered<Receive> {
        let from = given.from.as_ref();
        let from =
            from.map(|name| self.find(&self.subscriptions, name, "subscription")).transpose()?;
        Ok(Receive {
            from: from.map(SubscriptionId),
            count: given.count.0,
            message_pattern: given.pattern.clone(),
            timeout_us: given.timeout.map(|time| time.0),
        })
    }

    fn expect(&self) -> Lowered<Expect> {
        let given = &self.parsed.expect;
        let limit = |given: Option<format::AnyOr>| match given {
            None => Some(0),
            Some(format::AnyOr::Any) => None,
            Some(format::AnyOr::Max(max)) => Some(max),
        };
        for name in given.latency_max.keys() {
            if !name.parse::<f64>().is_ok_and(|p| p > 0.0 && p <= 100.0) {
                let message = format!(
                    "`latency_max` needs percentiles such as \"99\" or \"99.9\", got `{name}`"
                );
                return Err(ScenarioError::new(self.file, message));
            }
        }
        let metrics = given.metrics.iter().map(|(name, limit)| {
            Threshold::new(name, limit.get_ref())
                .map_err(|message| self.error(limit.span(), message))
        });
        let metrics = metrics.collect::<Lowered<_>>()?;
        Ok(Expect {
            copies_per_message: given.copies,
            lost_max: given.lost_max.unwrap_or(0),
            duplicated_max: limit(given.duplicated_max),
            reordered_max: limit(given.reordered_max),
            connect_failures_max: given.connect_failures_max.unwrap_or(0),
            latency_max_us: given.latency_max.iter().map(|(k, v)| (k.clone(), v.0)).collect(),
            metrics,
        })
    }

    fn search(&self) -> Lowered<Option<Search>> {
        let Some(given) = &self.parsed.search else { return Ok(None) };
        if !(given.percentile > 0.0 && given.percentile <= 100.0) {
            return Err(ScenarioError::new(self.file, "`percentile` must be above 0, at most 100"));
        }
        if given.rate_min > given.rate_max {
            return Err(ScenarioError::new(self.file, "`rate_min` must not be above `rate_max`"));
        }
        Ok(Some(*given))
    }
}

/// The broker of a scenario that names none.
fn default_broker() -> Broker {
    Broker {
        id: DEFAULT_BROKER.to_owned(),
        addresses: vec!["127.0.0.1:1883".to_owned()],
        transport: Transport::Tcp,
        tls: Tls::default(),
    }
}

/// A total rate as the rate of one of `clients`, in lowest terms.
fn split(total: Rate, clients: u64) -> Rate {
    let per_us = total.per_us.saturating_mul(clients);
    let divisor = gcd(total.count, per_us);
    Rate { count: total.count / divisor, per_us: per_us / divisor }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn pairs(table: Option<&BTreeMap<String, String>>) -> Vec<(String, String)> {
    table.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())).collect()
}

const DEFAULT_BROKER: &str = "main";
const DRAIN_US: u64 = 10_000_000;
/// As emqtt-bench's default.
const PAYLOAD_BYTES: u32 = 256;
