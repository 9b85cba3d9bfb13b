//! From the file's tables to the model: names become indices, defaults become values.

mod faults;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use toml::Spanned;

use super::check::{SubjectKind, check};
use super::format::{self, File};
use super::units::{Ramp, show_time};
use super::{ScenarioError, did_you_mean};
use crate::model::{
    self, Broker, BrokerId, ClientGroup, Command, Connect, Content, Delay, Expect, Filters,
    GroupId, LifeCycle, Pace, Pattern, Payload, Publish, Rate, Receive, Reconnect, Repeat,
    Scenario, Search, Slice, Spread, Stage, Step, Subscribe, Subscription, SubscriptionId, Tls,
    TopicGroup, TopicsId, Transport, Who, Will,
};

use super::ReadFile;
use super::credentials::credentials;
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
            brokers: self.lower_brokers(),
            brokers_distinct: parsed.brokers_distinct,
            source_addresses: Vec::new(),
            groups: Vec::new(),
            topics: Vec::new(),
            subscriptions: Vec::new(),
            stages: Vec::new(),
            drain_us: parsed.drain.map_or(DRAIN_US, |time| time.0),
            warm_up_us: parsed.warm_up.map(|time| time.0),
            cool_down_us: parsed.cool_down.map(|time| time.0),
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

    fn lower_brokers(&self) -> Vec<Broker> {
        if self.brokers.is_empty() {
            return vec![default_broker()];
        }
        let lowered = self.brokers.iter().map(|name| {
            let broker = self.parsed.brokers[*name].get_ref();
            let path = broker.path.clone().unwrap_or_else(|| "/mqtt".to_owned());
            Broker {
                id: (*name).to_owned(),
                addresses: broker.addresses.clone(),
                transport: match broker.transport {
                    format::Transport::Tcp => Transport::Tcp,
                    format::Transport::Tls => Transport::Tls,
                    format::Transport::Ws => Transport::Ws { path },
                    format::Transport::Wss => Transport::Wss { path },
                    format::Transport::Unix => Transport::Unix,
                },
                tls: broker.tls.clone(),
            }
        });
        lowered.collect()
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
                offset: given.offset,
                count: given.count.map_or(1, |count| count.0),
                scales: given.scales && given.count.is_some(),
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
        Ok(LifeCycle { id, who, expected_us: cycle.expected.map(|time| time.0), steps })
    }

    fn steps(&self, who: Who, from: &[Spanned<format::Step>], to: &mut Vec<Step>) -> Lowered<()> {
        for spanned in from {
            match spanned.get_ref() {
                format::Step::Connect(given) => {
                    to.extend(self.ramp(who, given.ramp.or(self.parsed.connect.ramp)));
                    to.push(Command::Connect(self.connect(given)?).into());
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
            format::Step::Connect(given) => Command::Connect(self.connect(given)?),
            format::Step::Disconnect(given) => Command::Disconnect(given.how),
            // Faults that end by themselves are several steps.
            format::Step::Fault(_) => return Err(ScenarioError::new(self.file, "a fault")),
        })
    }

    fn connect(&self, step: &format::Connect) -> Lowered<Connect> {
        let file = &self.parsed.connect;
        let default = Connect::default();
        let brokers = match step.brokers.as_ref().or(file.brokers.as_ref()) {
            Some(names) => self.broker_ids(names)?,
            None => (0..self.brokers.len().max(1) as u32).map(BrokerId).collect(),
        };
        let pattern = |own: &Option<Spanned<String>>, shared: &Option<Spanned<String>>| {
            own.as_ref().or(shared.as_ref()).map(|source| self.pattern(source)).transpose()
        };
        let time = |own: Option<super::units::Time>,
                    shared: Option<super::units::Time>,
                    default| { own.or(shared).map_or(default, |time| time.0) };
        let keep_alive_us = time(step.keep_alive, file.keep_alive, 60_000_000);
        let expiry_us = time(step.session_expiry, file.session_expiry, 0);
        let keep_alive_secs = u16::try_from(keep_alive_us / 1_000_000).map_err(|_| {
            let given = show_time(keep_alive_us);
            ScenarioError::new(
                self.file,
                format!("`keep_alive` must be at most 65535s, got {given}"),
            )
        })?;
        let will = step.will.as_ref().or(file.will.as_ref());
        let properties = step.user_properties.as_ref().or(file.user_properties.as_ref());
        let (mut username, mut password) =
            (pattern(&step.username, &file.username)?, pattern(&step.password, &file.password)?);
        if let Some(name) = step.credentials.as_ref().or(file.credentials.as_ref()) {
            let found = (self.read)(name.get_ref()).and_then(|text| credentials(&text));
            let found = found.map_err(|message| self.error(name.span(), message))?;
            (username, password) = (Some(found.0), Some(found.1));
        }
        let reconnects = step.reconnect.or(file.reconnect).unwrap_or(false);
        Ok(Connect {
            brokers,
            timeout_us: time(step.timeout, file.timeout, default.timeout_us),
            keep_alive_secs,
            clean_start: step.clean_start.or(file.clean_start).unwrap_or(true),
            session_expiry_secs: u32::try_from(expiry_us / 1_000_000).unwrap_or(u32::MAX),
            receive_max: step.receive_max.or(file.receive_max),
            username,
            password,
            will: will.map(|will| self.will(will)).transpose()?,
            user_properties: pairs(properties),
            retries: step.retries.or(file.retries).unwrap_or(0),
            retry_interval_us: time(
                step.retry_interval,
                file.retry_interval,
                default.retry_interval_us,
            ),
            fresh_id: step.fresh_id.or(file.fresh_id).unwrap_or(false),
            reconnect: reconnects.then(Reconnect::default),
            failover: step.failover.or(file.failover).unwrap_or_default(),
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

    fn will(&self, will: &format::Will) -> Lowered<Will> {
        Ok(Will {
            topics: TopicsId(self.find(&self.topics, &will.topics, "topic group")?),
            assign: will.assign,
            payload: self.payload(will.payload.as_ref(), will.topics.span())?,
            qos: will.qos,
            retain: will.retain,
            delay_secs: will.delay.map_or(0, |time| secs(time.0)),
            expiry_secs: will.expiry.map(|time| secs(time.0)),
        })
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
        Ok(Publish {
            topics: TopicsId(self.find(&self.topics, &given.to, "topic group")?),
            assign: given.assign,
            order: given.order,
            qos: given.qos,
            retain: given.retain,
            payload_format: self.payload_format(given.payload_format.as_ref(), payload.stamped)?,
            payload,
            expiry_secs: given.expiry.map(|time| secs(time.0)),
            count: given.count.map(|count| count.0),
            pace: Pace {
                rate,
                phase: given.phase,
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
        let range = table.random_from.zip(table.random_to);
        let content = match (table.bytes, &table.text, table.random, range) {
            (Some(size), None, None, None) => Content::Filler { bytes: size.0 },
            (None, Some(text), None, None) => Content::Fixed(text.clone().into_bytes()),
            (None, None, Some(size), None) => Content::Random { bytes: size.0 },
            (None, None, None, Some((from, to))) => {
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

fn secs(us: u64) -> u32 {
    u32::try_from(us / 1_000_000).unwrap_or(u32::MAX)
}

fn pairs(table: Option<&BTreeMap<String, String>>) -> Vec<(String, String)> {
    table.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())).collect()
}

const DEFAULT_BROKER: &str = "main";
const DRAIN_US: u64 = 10_000_000;
/// As emqtt-bench's default.
const PAYLOAD_BYTES: u32 = 256;
