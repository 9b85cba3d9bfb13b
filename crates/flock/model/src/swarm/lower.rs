//! From Swarm's elements to the model.

mod connect;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::xml::{Element, has, looks_at_texts, message_pattern};
use crate::model::{
    Assign, Broker, ClientGroup, Command, Content, Delay, Disconnect, Expect, Filters, GroupId,
    LifeCycle, Order, Pace, Pattern, Payload, Phase, Publish, QoS, Rate, Receive, Repeat,
    STAMP_BYTES, Scenario, Slice, Spread, Stage, Step, Subscribe, Subscription, SubscriptionId,
    Tls, TopicGroup, TopicsId, Transport, Version, Who,
};
use crate::scenario::check::{SubjectKind, check};
use crate::scenario::{ScenarioError, did_you_mean, units};

type Lowered<T> = Result<T, ScenarioError>;

pub(super) fn lower(
    file: &str,
    text: &str,
    root: &Element,
    stand_in: Option<&Payload>,
) -> Lowered<Scenario> {
    let mut lowering = Lowering {
        file,
        text,
        names: BTreeMap::new(),
        spans: HashMap::new(),
        ignored: RefCell::default(),
        stand_in,
        replaced: RefCell::default(),
        unchecked: RefCell::default(),
        left_out: RefCell::default(),
    };
    lowering.expect_name(root, "scenario")?;
    let mut scenario = lowering.scenario(root)?;
    lowering.all_known(root)?;
    if stand_in.is_some() && lowering.replaced.borrow().is_empty() {
        let message = "no payload generator that --payload could replace";
        return Err(ScenarioError::new(file, message));
    }
    scenario.description = lowering.differences();
    match check(&scenario).into_iter().next() {
        None => Ok(scenario),
        Some(problem) => {
            let span = lowering.spans.get(&(problem.kind, problem.subject)).cloned();
            let span = span.unwrap_or_else(|| root.span.clone());
            Err(ScenarioError::new(file, problem.message).at(text, span))
        }
    }
}

struct Lowering<'a> {
    file: &'a str,
    text: &'a str,
    /// By kind, the ids in order; XML ids are unique over all kinds, references say which kinds
    /// fit.
    names: BTreeMap<&'static str, Vec<String>>,
    spans: HashMap<(SubjectKind, String), Range<usize>>,
    /// Attributes that only Swarm's extensions know.
    ignored: RefCell<Vec<String>>,
    stand_in: Option<&'a Payload>,
    /// Payload generators that it stands for.
    replaced: RefCell<BTreeSet<String>>,
    /// Elements whose `expectedDuration` is not checked.
    unchecked: RefCell<BTreeSet<String>>,
    /// Attributes that only MQTT 5 has, of clients that speak MQTT 3.
    left_out: RefCell<BTreeSet<String>>,
}

impl Lowering<'_> {
    /// What is not as in the file, in words.
    fn differences(&self) -> String {
        let (ignored, replaced) = (self.ignored.borrow(), self.replaced.borrow());
        let replaced: Vec<&str> = replaced.iter().map(String::as_str).collect();
        let unchecked = self.unchecked.borrow();
        let unchecked: Vec<String> = unchecked.iter().map(|name| format!("<{name}>")).collect();
        let left_out: Vec<String> = self.left_out.borrow().iter().cloned().collect();
        [
            (&replaced.join(", "), "Payload generators replaced by --payload"),
            (&ignored.join(", "), "Ignored, as for Swarm's extensions"),
            (&unchecked.join(", "), "Not checked, `expectedDuration` of"),
            (&left_out.join(", "), "Left out, as MQTT 3 does not have it"),
        ]
        .iter()
        .filter(|(names, _)| !names.is_empty())
        .map(|(names, what)| format!("{what}: {names}."))
        .collect::<Vec<_>>()
        .join(" ")
    }

    fn scenario(&mut self, root: &Element) -> Lowered<Scenario> {
        self.children(
            root,
            &["brokers", "clientGroups", "topicGroups", "subscriptions", "stages"],
        )?;
        let stem = self.file.rsplit(['/', '\\']).next().unwrap_or(self.file);
        let id = stem.strip_suffix(".xml").unwrap_or(stem).to_owned();
        let mut scenario = Scenario {
            title: id.clone(),
            id,
            description: String::new(),
            seed: 1,
            brokers: Vec::new(),
            brokers_distinct: false,
            source_addresses: Vec::new(),
            groups: Vec::new(),
            topics: Vec::new(),
            subscriptions: Vec::new(),
            sinks: Vec::new(),
            stages: Vec::new(),
            drain_us: 10_000_000,
            warm_up_us: None,
            cool_down_us: None,
            expect: Expect::default(),
            search: None,
            scale: 1.0,
        };
        for broker in self.section(root, "brokers", true, &["broker", "websocket-broker"])? {
            scenario.brokers.push(self.broker(broker)?);
        }
        for group in self.section(root, "clientGroups", true, &["clientGroup"])? {
            scenario.groups.push(self.group(group)?);
        }
        for topics in self.section(root, "topicGroups", false, &["topicGroup"])? {
            scenario.topics.push(self.topic_group(topics)?);
        }
        for subscription in self.section(root, "subscriptions", false, &["subscription"])? {
            let lowered = self.subscription(subscription, &scenario)?;
            scenario.subscriptions.push(lowered);
        }
        let stages = self.section(root, "stages", true, &["stage"])?;
        let texts_matter = stages.iter().any(|stage| looks_at_texts(stage));
        for stage in stages {
            let stage = self.stage(stage, &mut scenario, texts_matter)?;
            scenario.stages.push(stage);
        }
        Ok(scenario)
    }

    fn error(&self, element: &Element, message: impl Into<String>) -> ScenarioError {
        ScenarioError::new(self.file, message).at(self.text, element.span.clone())
    }

    /// An error at the attribute, inside its element.
    fn wrong(
        &self,
        element: &Element,
        attribute: &str,
        message: impl Into<String>,
    ) -> ScenarioError {
        let tag = &self.text[element.span.clone()];
        let span = match tag.find(&format!(" {attribute}=")) {
            Some(at) => {
                let from = element.span.start + at + 1;
                from..from + attribute.len()
            }
            None => {
                element.child(attribute).map_or(element.span.clone(), |child| child.span.clone())
            }
        };
        ScenarioError::new(self.file, message).at(self.text, span)
    }

    fn expect_name(&self, element: &Element, name: &str) -> Lowered<()> {
        if element.name == name {
            return Ok(());
        }
        Err(self.error(element, format!("expected <{name}>, got <{}>", element.name)))
    }

    fn children(&self, element: &Element, known: &[&str]) -> Lowered<()> {
        for child in &element.children {
            if !known.contains(&child.name.as_str()) {
                let hint = did_you_mean(&child.name, known.iter().copied())
                    .unwrap_or_else(|| format!("valid names: {}", known.join(", ")));
                let message = format!("unknown element <{}> in <{}>", child.name, element.name);
                return Err(self.error(child, message).hint(Some(hint)));
            }
        }
        Ok(())
    }

    /// Attributes that nobody asked for are unknown.
    fn all_known(&self, element: &Element) -> Lowered<()> {
        for attribute in &element.attributes {
            if !attribute.taken.get() {
                let message =
                    format!("unknown attribute `{}` of <{}>", attribute.name, element.name);
                return Err(self.wrong(element, &attribute.name, message));
            }
        }
        if !element.text.is_empty() && !element.read.get() {
            return Err(self.error(element, format!("<{}> has no text", element.name)));
        }
        for child in &element.children {
            if !child.taken.get() {
                let message = format!(
                    "<{}> has no effect in this <{}>, or is given twice",
                    child.name, element.name
                );
                return Err(self.error(child, message));
            }
            self.all_known(child)?;
        }
        Ok(())
    }

    /// What is left on an element whose schema ends in a wildcard goes to Swarm's extensions, and
    /// says nothing here. It is remembered, to be told.
    fn take_rest(&self, element: &Element) {
        for attribute in element.attributes.iter().filter(|attribute| !attribute.taken.get()) {
            attribute.taken.set(true);
            let told = format!("`{}` of <{}>", attribute.name, element.name);
            let mut ignored = self.ignored.borrow_mut();
            if !ignored.contains(&told) {
                ignored.push(told);
            }
        }
    }

    fn section<'e>(
        &self,
        root: &'e Element,
        name: &str,
        required: bool,
        items: &[&str],
    ) -> Lowered<Vec<&'e Element>> {
        let Some(section) = root.child(name) else {
            return match required {
                true => Err(self.error(root, format!("<{name}> is missing"))),
                false => Ok(Vec::new()),
            };
        };
        self.children(section, items)?;
        if required && section.children.is_empty() {
            return Err(self.error(section, format!("<{name}> is empty")));
        }
        Ok(section.each_child().collect())
    }

    fn id(&mut self, element: &Element, kind: &'static str) -> Lowered<String> {
        let id = self.required(element, "id")?.to_owned();
        if self.names.values().flatten().any(|known| *known == id) {
            return Err(self.wrong(element, "id", format!("the id `{id}` is used twice")));
        }
        self.names.entry(kind).or_default().push(id.clone());
        let problem_kind = match kind {
            "client group" => SubjectKind::Clients,
            "topic group" => SubjectKind::Topics,
            "subscription" => SubjectKind::Subscription,
            "life cycle" => SubjectKind::LifeCycle,
            _ => SubjectKind::Scenario,
        };
        self.spans.insert((problem_kind, id.clone()), element.span.clone());
        Ok(id)
    }

    fn required<'e>(&self, element: &'e Element, name: &str) -> Lowered<&'e str> {
        element
            .value(name)
            .ok_or_else(|| self.error(element, format!("<{}> needs `{name}`", element.name)))
    }

    fn reference(
        &self,
        element: &Element,
        attribute: &str,
        id: &str,
        kind: &'static str,
    ) -> Lowered<u32> {
        let known = self.names.get(kind).map_or(&[][..], Vec::as_slice);
        match known.iter().position(|name| name == id) {
            Some(at) => Ok(at as u32),
            None => {
                let hint = did_you_mean(id, known.iter().map(String::as_str));
                Err(self.wrong(element, attribute, format!("unknown {kind} `{id}`")).hint(hint))
            }
        }
    }

    /// An optional value parsed by `parse`, whose error is shown at the attribute.
    fn parsed<T>(
        &self,
        element: &Element,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Lowered<Option<T>> {
        let Some(text) = element.value(name) else { return Ok(None) };
        parse(text.trim()).map(Some).map_err(|message| self.wrong(element, name, message))
    }

    fn time(&self, element: &Element, name: &str) -> Lowered<Option<u64>> {
        self.parsed(element, name, units::time)
    }

    /// What MQTT has in seconds.
    fn secs(&self, element: &Element, name: &str) -> Lowered<Option<u32>> {
        self.parsed(element, name, |text| {
            let us = units::time(text)?;
            match us % 1_000_000 {
                0 => Ok(u32::try_from(us / 1_000_000).unwrap_or(u32::MAX)),
                _ => Err(format!("`{name}` must be whole seconds, got `{text}`")),
            }
        })
    }

    /// How long a stage takes is held against what was expected. Of its parts nobody knows when
    /// they are over; that is told.
    fn expected(&self, element: &Element) -> Lowered<()> {
        if self.time(element, "expectedDuration")?.is_some() {
            self.unchecked.borrow_mut().insert(element.name.clone());
        }
        Ok(())
    }

    fn flag(&self, element: &Element, name: &str, default: bool) -> Lowered<bool> {
        let flag = self.parsed(element, name, |text| match text {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(format!("`{name}` must be true or false, got `{text}`")),
        })?;
        Ok(flag.unwrap_or(default))
    }

    fn number(&self, element: &Element, name: &str, default: u64) -> Lowered<u64> {
        let number = self.parsed(element, name, |text| {
            text.parse().map_err(|_| format!("`{name}` must be a whole number, got `{text}`"))
        })?;
        Ok(number.unwrap_or(default))
    }

    fn count(&self, element: &Element, name: &str, default: u64) -> Lowered<u64> {
        Ok(self.parsed(element, name, units::count)?.unwrap_or(default))
    }

    fn qos(&self, element: &Element, default: QoS) -> Lowered<QoS> {
        let qos = self.parsed(element, "qos", |text| {
            text.parse::<u8>()
                .map_err(|_| format!("QoS must be 0, 1 or 2, got `{text}`"))?
                .try_into()
        })?;
        Ok(qos.unwrap_or(default))
    }

    fn pattern(&self, element: &Element, name: &str, source: &str) -> Lowered<Pattern> {
        Pattern::parse(source).map_err(|error| self.wrong(element, name, error.to_string()))
    }

    fn broker(&mut self, element: &Element) -> Lowered<Broker> {
        self.children(element, &["address", "port", "transport", "path"])?;
        let id = self.id(element, "broker")?;
        let address = self.required(element, "address")?.trim().to_owned();
        let port = self.parsed(element, "port", |text| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("a port must be from 1 to 65535, got `{text}`")),
        })?;
        let port = port.ok_or_else(|| self.error(element, "the broker needs a `port`"))?;
        let is_tls = self.parsed(element, "transport", |text| match text {
            "TCP" => Ok(false),
            "TLS" => Ok(true),
            _ => Err(format!("the transport must be TCP or TLS, got `{text}`")),
        })?;
        let is_tls = is_tls.unwrap_or(false);
        let transport = match element.name.as_str() {
            "websocket-broker" => {
                let path = element.value("path").unwrap_or("/mqtt").to_owned();
                if is_tls { Transport::Wss { path } } else { Transport::Ws { path } }
            }
            _ if is_tls => Transport::Tls,
            _ => Transport::Tcp,
        };
        let addresses = address.split(',').map(|one| with_port(one.trim(), port)).collect();
        Ok(Broker { id, addresses, transport, tls: Tls::default() })
    }

    fn group(&mut self, element: &Element) -> Lowered<ClientGroup> {
        let known = ["clientIdPattern", "clientIdPatternOffset", "count", "mqttVersion", "mqtt"];
        self.children(element, &known)?;
        let id = self.id(element, "client group")?;
        let client_ids = match element.value("clientIdPattern") {
            Some(source) => self.pattern(element, "clientIdPattern", source)?,
            None => self.pattern(element, "id", "{i}")?.prefixed(&format!("{id}-")),
        };
        let count = self.count(element, "count", 1)?;
        // The older dialect nests: <mqtt><version>5</version></mqtt>.
        let (holder, name) = match element.child("mqtt") {
            Some(mqtt) => (mqtt, "version"),
            None => (element, "mqttVersion"),
        };
        let version = self.parsed(holder, name, |text| match text {
            "3" => Ok(Version::V311),
            "5" => Ok(Version::V5),
            _ => Err(format!("the MQTT version must be 3 or 5, got `{text}`")),
        })?;
        Ok(ClientGroup {
            client_ids,
            offset: self.number(element, "clientIdPatternOffset", 0)?,
            count,
            here: Slice::whole(count),
            version: version.unwrap_or(Version::V5),
            scales: true,
            id,
        })
    }

    fn topic_group(&mut self, element: &Element) -> Lowered<TopicGroup> {
        self.children(element, &["topicNamePattern", "topicNamePatternOffset", "count"])?;
        let id = self.id(element, "topic group")?;
        let source = self.required(element, "topicNamePattern")?;
        let count = self.count(element, "count", 1)?;
        Ok(TopicGroup {
            id,
            names: self.pattern(element, "topicNamePattern", source)?,
            offset: self.number(element, "topicNamePatternOffset", 0)?,
            count,
            scales: count > 1,
        })
    }

    fn subscription(&mut self, element: &Element, scenario: &Scenario) -> Lowered<Subscription> {
        self.children(element, &["topicGroup", "topicFilter", "wildCard"])?;
        let id = self.id(element, "subscription")?;
        let is_wild = self.flag(element, "wildCard", false)?;
        let filters = match (element.value("topicGroup"), element.value("topicFilter")) {
            (Some(group), None) => {
                let topics =
                    TopicsId(self.reference(element, "topicGroup", group, "topic group")?);
                match is_wild {
                    false => Filters::Topics { topics, prefix: String::new() },
                    true => one_filter(&above(&scenario.topic_group(topics).names)),
                }
            }
            (None, Some(_)) if is_wild => {
                let message = "`wildCard` needs `topicGroup`; write wildcards into `topicFilter`";
                return Err(self.wrong(element, "wildCard", message));
            }
            (None, Some(filter)) => one_filter(filter),
            _ => {
                return Err(self
                    .error(element, "a subscription needs either `topicGroup` or `topicFilter`"));
            }
        };
        Ok(Subscription { id, filters, assign: Assign::Partition, routed: false })
    }

    fn stage(
        &mut self,
        element: &Element,
        scenario: &mut Scenario,
        texts_matter: bool,
    ) -> Lowered<Stage> {
        self.children(element, &["lifeCycle"])?;
        let id = self.id(element, "stage")?;
        let mut life_cycles = Vec::new();
        for cycle in element.each_child() {
            life_cycles.push(self.life_cycle(cycle, scenario, texts_matter)?);
        }
        if life_cycles.is_empty() {
            return Err(self.error(element, "a stage needs a <lifeCycle>"));
        }
        let publishes = |element: &Element| has(element, "publish");
        Ok(Stage {
            id,
            duration_us: None,
            measured: publishes(element),
            expected_us: self.time(element, "expectedDuration")?,
            life_cycles,
        })
    }

    fn life_cycle(
        &mut self,
        element: &Element,
        scenario: &mut Scenario,
        texts_matter: bool,
    ) -> Lowered<LifeCycle> {
        let id = self.id(element, "life cycle")?;
        let group = self.required(element, "clientGroup")?;
        let group = GroupId(self.reference(element, "clientGroup", group, "client group")?);
        let mut commands = Commands { names: self, scenario, group, texts_matter };
        let steps = commands.steps(element)?;
        self.expected(element)?;
        Ok(LifeCycle { id, who: Who::Clients(group), steps })
    }
}

/// Lowers the commands of one life cycle.
struct Commands<'l, 'a> {
    names: &'l Lowering<'a>,
    scenario: &'l mut Scenario,
    group: GroupId,
    texts_matter: bool,
}

impl Commands<'_, '_> {
    fn steps(&mut self, parent: &Element) -> Lowered<Vec<Step>> {
        self.names.children(parent, COMMANDS)?;
        let mut steps = Vec::new();
        for element in parent.each_child() {
            if !matches!(element.name.as_str(), "delay" | "rampUp") {
                self.names.expected(element)?;
            }
            steps.push(Step { command: self.command(element)? });
        }
        Ok(steps)
    }

    fn command(&mut self, element: &Element) -> Lowered<Command> {
        let names = self.names;
        Ok(match element.name.as_str() {
            "connect" => Command::Connect(self.connect(element)?),
            "disconnect" => Command::Disconnect(self.disconnect(element)?),
            "publish" => Command::Publish(self.publish(element)?),
            "subscribe" => Command::Subscribe(self.subscribe(element)?),
            "unsubscribe" => Command::Unsubscribe(self.subscriptions(element, "from")?),
            "receive" => Command::Receive(self.receive(element)?),
            "for" => Command::For(Repeat {
                times: Some(names.count(element, "times", 1)?),
                rate: names.parsed(element, "rate", units::rate)?,
                steps: self.steps(element)?,
            }),
            "delay" => self.delay(element)?,
            "rampUp" => {
                let duration_us = self.duration(element)?;
                Command::Delay(Delay { duration_us, spread: Spread::Linear })
            }
            "wait" => self.wait(element)?,
            "startTimer" => Command::StartTimer(names.required(element, "id")?.to_owned()),
            _ => Command::StopTimer(names.required(element, "id")?.to_owned()),
        })
    }

    fn duration(&self, element: &Element) -> Lowered<u64> {
        let duration = self.names.time(element, "duration")?;
        duration.ok_or_else(|| {
            self.names.error(element, format!("<{}> needs a `duration`", element.name))
        })
    }

    fn delay(&self, element: &Element) -> Lowered<Command> {
        let spread =
            self.names.parsed(element, "spread", |text| match text.to_lowercase().as_str() {
                "none" => Ok(Spread::None),
                "linear" => Ok(Spread::Linear),
                _ => Err(format!("the spread must be none or linear, got `{text}`")),
            })?;
        let duration_us = self.duration(element)?;
        Ok(Command::Delay(Delay { duration_us, spread: spread.unwrap_or(Spread::None) }))
    }

    /// The older dialect: a pause, or the wait for one message.
    fn wait(&mut self, element: &Element) -> Lowered<Command> {
        let Some(from) = element.value("for") else {
            return Ok(Command::Delay(Delay {
                duration_us: self.duration(element)?,
                spread: Spread::None,
            }));
        };
        let from = self.subscription(element, "for", from)?;
        Ok(Command::Receive(Receive {
            from: Some(from),
            count: 1,
            message_pattern: message_pattern(element),
            timeout_us: self.names.time(element, "duration")?,
        }))
    }

    fn disconnect(&self, element: &Element) -> Lowered<Disconnect> {
        let method = self.names.parsed(element, "method", |text| match text {
            "with-disconnect-message" => Ok(Disconnect::Message),
            "close-tcp-socket" => Ok(Disconnect::Close),
            "simulate-keepalive-timeout" => Ok(Disconnect::Silent),
            _ => Err(format!(
                "must be with-disconnect-message, close-tcp-socket or \
                simulate-keepalive-timeout, got `{text}`"
            )),
        })?;
        Ok(method.unwrap_or(Disconnect::Message))
    }

    fn publish(&self, element: &Element) -> Lowered<Publish> {
        let names = self.names;
        names.children(element, &[])?;
        let topics = names.required(element, "topicGroup")?;
        let rate: Option<Rate> = names.parsed(element, "rate", units::rate)?;
        let waits = names.flag(element, "waitForAck", false)?;
        // The older dialect says whether a client walks its topics; both values mean what we do
        // anyway with one topic each.
        let walks = names.flag(element, "roundRobin", true)?;
        let publish = Publish {
            topics: TopicsId(names.reference(element, "topicGroup", topics, "topic group")?),
            assign: if walks { Assign::Partition } else { Assign::Pairwise },
            order: Order::RoundRobin,
            qos: names.qos(element, QoS::AtMostOnce)?,
            retain: names.flag(element, "retain", false)?,
            payload: self.payload(element)?,
            expiry_secs: self.of_v5(
                element,
                "messageExpiry",
                names.secs(element, "messageExpiry")?,
            ),
            count: Some(names.count(element, "count", 1)?),
            pace: Pace { rate, phase: Phase::Together, in_flight: waits.then_some(1) },
            reply_to: None,
            topic_alias: false,
            user_properties: Vec::new(),
            content_type: None,
            payload_format: None,
        };
        names.take_rest(element);
        Ok(publish)
    }

    fn payload(&self, element: &Element) -> Lowered<Payload> {
        let generator = element.attribute("payloadGeneratorType").unwrap_or("static");
        let message = element.attribute("message").unwrap_or("").as_bytes().to_vec();
        if generator != "static" {
            let Some(stand_in) = self.names.stand_in else {
                let message = format!("the payload generator `{generator}` is a Java class");
                let hint = "use another payload instead, for example --payload 128";
                let error = self.names.wrong(element, "payloadGeneratorType", message);
                return Err(error.hint(Some(hint.to_owned())));
            };
            self.names.replaced.borrow_mut().insert(generator.to_owned());
            let stamped = stand_in.stamped && !self.texts_matter;
            return Ok(Payload { content: stand_in.content.clone(), stamped });
        }
        let stamped = !self.texts_matter && message.len() >= STAMP_BYTES as usize;
        Ok(Payload { content: Content::Fixed(message), stamped })
    }

    fn subscribe(&mut self, element: &Element) -> Lowered<Subscribe> {
        self.names.children(element, &[])?;
        let attribute = if element.attribute("to").is_some() { "to" } else { "subscription" };
        Ok(Subscribe {
            to: self.subscriptions(element, attribute)?,
            qos: self.names.qos(element, QoS::ExactlyOnce)?,
            ack_delay_us: self.names.time(element, "ackDelay")?.unwrap_or(0),
            no_local: false,
            retain_as_published: false,
            respond: None,
            retain_handling: 0,
            identifier: None,
        })
    }

    fn receive(&mut self, element: &Element) -> Lowered<Receive> {
        let from = match element.attribute("from") {
            None => None,
            Some(id) => Some(self.subscription(element, "from", id)?),
        };
        let timeout_us = self.names.time(element, "timeOut")?.filter(|us| *us > 0);
        // The one count that the schema lets be 0: it waits for nothing.
        let count = self.names.number(element, "count", 1)?;
        Ok(Receive { from, count, message_pattern: message_pattern(element), timeout_us })
    }

    fn subscriptions(
        &mut self,
        element: &Element,
        attribute: &str,
    ) -> Lowered<Vec<SubscriptionId>> {
        let ids = self.names.required(element, attribute)?;
        let ids: Vec<&str> = ids.split_whitespace().collect();
        ids.iter().map(|id| self.subscription(element, attribute, id)).collect()
    }

    /// The subscription of this id, or, as published scenarios do, the one to a topic group of this
    /// id.
    fn subscription(
        &mut self,
        element: &Element,
        attribute: &str,
        id: &str,
    ) -> Lowered<SubscriptionId> {
        let known = |scenario: &Scenario| scenario.subscriptions.iter().position(|s| s.id == id);
        if let Some(at) = known(self.scenario) {
            return Ok(SubscriptionId(at as u32));
        }
        let Ok(topics) = self.names.reference(element, attribute, id, "topic group") else {
            let ids =
                self.scenario.subscriptions.iter().map(|subscription| subscription.id.as_str());
            let hint =
                did_you_mean(id, ids.chain(self.scenario.topics.iter().map(|t| t.id.as_str())));
            let message = format!("unknown subscription or topic group `{id}`");
            return Err(self.names.wrong(element, attribute, message).hint(hint));
        };
        self.scenario.subscriptions.push(Subscription {
            id: id.to_owned(),
            filters: Filters::Topics { topics: TopicsId(topics), prefix: String::new() },
            assign: Assign::Partition,
            routed: false,
        });
        debug_assert!(self.group.index() < self.scenario.groups.len());
        Ok(SubscriptionId(self.scenario.subscriptions.len() as u32 - 1))
    }
}

fn one_filter(filter: &str) -> Filters {
    Filters::Pattern { pattern: Pattern::literal(filter), offset: 0, count: 1, scales: false }
}

/// One of the addresses of a broker's `address`: with a port of its own, or with the broker's.
fn with_port(address: &str, port: u16) -> String {
    let has_own = match address.rsplit_once(':') {
        Some((host, _)) => !host.contains(':') || host.ends_with(']'),
        None => false,
    };
    match (has_own, address.contains(':') && !address.starts_with('[')) {
        (true, _) => address.to_owned(),
        (false, true) => format!("[{address}]:{port}"),
        (false, false) => format!("{address}:{port}"),
    }
}

/// The filter for everything below the levels that do not vary: `a/b-[0-9]` gives `a/#`.
fn above(names: &Pattern) -> String {
    let prefix = names.literal_prefix();
    match prefix.rfind('/') {
        Some(at) => format!("{}/#", &prefix[..at]),
        None => "#".to_owned(),
    }
}

const COMMANDS: &[&str] = &[
    "connect",
    "disconnect",
    "publish",
    "subscribe",
    "unsubscribe",
    "receive",
    "for",
    "delay",
    "startTimer",
    "stopTimer",
    "rampUp",
    "wait",
];
