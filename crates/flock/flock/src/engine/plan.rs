//! The scenario prepared for execution: streams numbered, steps flattened, names at hand.
//!
//! Everything here is arithmetic over the model, shared read-only by all load threads. A **stream**
//! is one client of a group publishing on one topic; streams of one publish rule form a [`Family`]
//! with a block of consecutive numbers, `clients x stride` of them, so that a number tells client
//! and topic without any table.

use std::sync::Arc;

use super::stamp::{STAMP_BYTES, STREAMS_MAX, Sum};
use flock_measure::LatencyKind;
use flock_measure::ledger::{Agreed, Path, ShareKey, StreamId};
use flock_model::{
    Assign, Command, Connect, Content, Delay, Disconnect, Filters, GroupId, Members, Publish, QoS,
    Rate, Receive, Scenario, Step, Subscribe, Subscription, SubscriptionId, TopicsId, Who, Will,
};

/// See the module's text.
#[derive(Debug)]
pub struct Plan {
    pub scenario: Scenario,
    pub families: Vec<Family>,
    pub connects: Vec<Connect>,
    pub publishes: Vec<PublishPlan>,
    pub subscribes: Vec<Subscribe>,
    pub timers: Vec<String>,
    /// Whether every message of the run carries a stamp.
    pub all_stamped: bool,
    /// Whether any is published to be retained.
    pub any_retained: bool,
    /// Whether any message has properties, or any subscription an identifier.
    pub any_properties: bool,
    /// Whether any client answers requests.
    pub any_answers: bool,
    /// Whether some publish asks for answers.
    pub any_asks: bool,
    listeners: Vec<Subscriber>,
    /// By group: whether another has the same client ids.
    taken_over: Vec<bool>,
    /// By stage, then by group.
    programs: Vec<Vec<Vec<Op>>>,
}

/// All streams of one group on one topic group by one rule, at one QoS: order is promised for each
/// QoS by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    pub group: GroupId,
    pub topics: TopicsId,
    pub assign: Assign,
    pub qos: QoS,
    pub retain: bool,
    pub base: StreamId,
    /// Numbers per client: the most topics that any client has.
    pub stride: u32,
    pub clients: u64,
    pub topic_count: u64,
}

/// A publish command, ready to be executed.
#[derive(Debug)]
pub struct PublishPlan {
    pub command: Publish,
    pub family: usize,
    /// Whole payload, or the longest of them; the stamp overwrites its beginning.
    pub filler: Vec<u8>,
    /// Of the filler behind the stamp, where it is the same for every message.
    pub(super) rest: Option<Sum>,
}

/// A group that listens by a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    pub group: GroupId,
    pub subscription: SubscriptionId,
    pub qos: QoS,
    /// Nobody hears what it publishes itself.
    pub no_local: bool,
}

/// One step of a client's program. Numbers are positions in the plan's lists.
#[derive(Clone, Debug)]
pub enum Op {
    Connect(u16),
    Disconnect(Disconnect),
    Publish(u16),
    Subscribe(u16),
    Unsubscribe(Vec<SubscriptionId>),
    Receive(Receive),
    /// Start of a loop; its end stands at `end`.
    Loop {
        times: Option<u64>,
        rate: Option<Rate>,
        end: usize,
    },
    /// Back to the start.
    Again {
        start: usize,
    },
    Delay(Delay),
    StartTimer(u16),
    StopTimer(u16),
    Stall {
        duration_ns: u64,
    },
}

/// Why a scenario cannot be executed as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "the scenario has more than {STREAMS_MAX} pairs of publisher and topic: use a \
         smaller --scale"
    )]
    TooManyStreams,
    #[error("the scenario has more than 65,535 steps of one kind")]
    TooManyCommands,
}

impl Plan {
    pub fn new(scenario: Scenario) -> Result<Arc<Self>, PlanError> {
        let mut plan = Self {
            families: Vec::new(),
            connects: Vec::new(),
            publishes: Vec::new(),
            subscribes: Vec::new(),
            timers: Vec::new(),
            all_stamped: true,
            any_retained: false,
            any_properties: false,
            any_answers: false,
            any_asks: false,
            taken_over: Vec::new(),
            listeners: Vec::new(),
            programs: Vec::new(),
            scenario,
        };
        let stages = std::mem::take(&mut plan.scenario.stages);
        for stage in &stages {
            let mut programs = vec![Vec::new(); plan.scenario.groups.len()];
            for cycle in &stage.life_cycles {
                // A group with several life cycles in a stage runs them one after another.
                if let Who::Clients(group) = cycle.who {
                    plan.lower(group, &cycle.steps, &mut programs[group.index()])?;
                }
            }
            plan.programs.push(programs);
        }
        plan.scenario.stages = stages;
        plan.any_retained = plan.families.iter().any(|family| family.retain);
        let has_properties = |planned: &PublishPlan| planned.command.has_properties();
        plan.any_properties = plan.publishes.iter().any(has_properties)
            || plan.subscribes.iter().any(|subscribe| subscribe.identifier.is_some());
        plan.any_asks = plan.publishes.iter().any(|planned| planned.command.reply_to.is_some());
        plan.any_answers = plan.subscribes.iter().any(|subscribe| subscribe.respond.is_some());
        plan.taken_over = taken_over(&plan.scenario);
        plan.all_stamped = plan.publishes.iter().all(|planned| planned.command.payload.stamped);
        Ok(Arc::new(plan))
    }

    fn lower(
        &mut self,
        group: GroupId,
        steps: &[Step],
        ops: &mut Vec<Op>,
    ) -> Result<(), PlanError> {
        for step in steps {
            match &step.command {
                Command::Connect(connect) => {
                    ops.push(Op::Connect(push(&mut self.connects, connect.clone())?));
                }
                Command::Disconnect(how) => ops.push(Op::Disconnect(*how)),
                Command::Publish(publish) => {
                    let family = self.family(group, publish)?;
                    let planned = PublishPlan::new(publish, family, self.scenario.seed);
                    ops.push(Op::Publish(push(&mut self.publishes, planned)?));
                }
                Command::Subscribe(subscribe) => {
                    self.add_listeners(group, subscribe);
                    ops.push(Op::Subscribe(push(&mut self.subscribes, subscribe.clone())?));
                }
                Command::Unsubscribe(from) => ops.push(Op::Unsubscribe(from.clone())),
                Command::Receive(receive) => ops.push(Op::Receive(receive.clone())),
                Command::For(repeat) => {
                    let start = ops.len();
                    ops.push(Op::Loop { times: repeat.times, rate: repeat.rate, end: 0 });
                    self.lower(group, &repeat.steps, ops)?;
                    let at = ops.len();
                    ops.push(Op::Again { start });
                    if let Op::Loop { end, .. } = &mut ops[start] {
                        *end = at;
                    }
                }
                Command::Delay(delay) => ops.push(Op::Delay(*delay)),
                Command::StartTimer(name) => ops.push(Op::StartTimer(self.timer(name)?)),
                Command::StopTimer(name) => ops.push(Op::StopTimer(self.timer(name)?)),
                Command::Stall { duration_us } => {
                    ops.push(Op::Stall { duration_ns: duration_us * 1_000 });
                }
                // Faults are the conductor's; the model does not allow them here.
                Command::Fault(_) => {}
            }
        }
        Ok(())
    }

    fn timer(&mut self, name: &str) -> Result<u16, PlanError> {
        match self.timers.iter().position(|known| known == name) {
            Some(at) => Ok(at as u16),
            None => push(&mut self.timers, name.to_owned()),
        }
    }

    fn family(&mut self, group: GroupId, publish: &Publish) -> Result<usize, PlanError> {
        let same = |family: &Family| {
            (family.group, family.topics, family.assign, family.qos, family.retain)
                == (group, publish.topics, publish.assign, publish.qos, publish.retain)
        };
        if let Some(at) = self.families.iter().position(same) {
            return Ok(at);
        }
        let clients = self.scenario.group(group).count;
        let topic_count = self.scenario.topic_group(publish.topics).count;
        let stride = match publish.assign {
            Assign::Pairwise => 1,
            Assign::All => topic_count,
            Assign::Partition => topic_count.div_ceil(clients.max(1)).max(1),
            Assign::Window(each) => u64::from(each).min(topic_count),
        };
        let used = self.streams();
        if used.saturating_add(stride.saturating_mul(clients)) > STREAMS_MAX {
            return Err(PlanError::TooManyStreams);
        }
        self.families.push(Family {
            group,
            topics: publish.topics,
            assign: publish.assign,
            qos: publish.qos,
            retain: publish.retain,
            base: used as StreamId,
            stride: stride as u32,
            clients,
            topic_count,
        });
        Ok(self.families.len() - 1)
    }

    /// How many numbers were given to streams.
    pub fn streams(&self) -> u64 {
        self.families
            .last()
            .map_or(0, |last| u64::from(last.base) + u64::from(last.stride) * last.clients)
    }

    /// Whether the messages of a stream are published to be retained.
    pub fn retains(&self, stream: StreamId) -> bool {
        self.locate(stream).is_some_and(|(family, ..)| family.retain)
    }

    /// Whether the last message of the stream is what a broker has in store for its topic: it is
    /// retained, does not expire soon, and nobody else publishes there.
    pub fn retains_one(&self, stream: StreamId) -> bool {
        let Some((family, ..)) = self.locate(stream) else { return false };
        let is_alone = match family.assign {
            Assign::Partition => true,
            Assign::Pairwise => family.clients <= family.topic_count,
            Assign::All | Assign::Window(_) => family.clients == 1,
        };
        let same = self.families.iter().filter(|other| other.topics == family.topics).count() == 1;
        let mut commands = self.publishes.iter().map(|planned| &planned.command);
        let is_short = |publish: &Publish| publish.expiry_secs.is_some_and(|s| s < EXPIRY_SECS_MIN);
        let expires = commands.any(|publish| publish.retain && is_short(publish));
        family.retain && is_alone && same && !expires
    }

    /// How many messages that were retained in the stages before one those who subscribe in it are
    /// to get, as far as it is known which.
    pub fn stored_in(&self, stage: usize) -> u64 {
        if !self.any_retained {
            return 0;
        }
        let published = |family: usize| {
            let is_of = |at: u16| self.publishes[usize::from(at)].family == family;
            let mut ops = self.programs[..stage].iter().flatten().flatten();
            ops.any(|op| matches!(op, Op::Publish(at) if is_of(*at)))
        };
        let subscribes = |subscriber: &&Subscriber| {
            self.programs[stage][subscriber.group.index()].iter().any(|op| {
                let Op::Subscribe(at) = op else { return false };
                let subscribe = &self.subscribes[usize::from(*at)];
                subscribe.retain_handling == 0 && subscribe.to.contains(&subscriber.subscription)
            })
        };
        let subscribers: Vec<&Subscriber> = self.listeners.iter().filter(subscribes).collect();
        let mut all = 0;
        let families = self.families.iter().enumerate().filter(|(_, family)| family.retain);
        for (_, family) in families.filter(|(at, _)| published(*at)) {
            let numbers = 0..family.stride * family.clients as u32;
            for stream in numbers.map(|number| family.base + number) {
                all += self.stored_copies(&subscribers, stream);
            }
        }
        all
    }

    fn stored_copies(&self, subscribers: &[&Subscriber], stream: StreamId) -> u64 {
        if !self.retains_one(stream) {
            return 0;
        }
        let Some((topics, index)) = self.topic_of(stream) else { return 0 };
        let mut copies = 0;
        for subscriber in subscribers {
            let subscription = self.scenario.subscription(subscriber.subscription);
            self.each_match(subscription, topics, index, &mut |filter, shared| {
                let members = self.clients_of(subscriber.group, filter, subscription).len();
                copies += if shared { 0 } else { members };
            });
        }
        copies
    }

    /// Whether other clients of the scenario connect under the ids of this group's, which ends its
    /// connections.
    pub fn is_taken_over(&self, group: GroupId) -> bool {
        self.taken_over[group.index()]
    }

    /// The commands that publish on a stream.
    pub fn commands_of(&self, stream: StreamId) -> impl Iterator<Item = &PublishPlan> {
        let after = self.families.partition_point(|family| family.base <= stream);
        self.publishes.iter().filter(move |planned| planned.family + 1 == after)
    }

    /// Whether a client hears a stream by this subscription.
    pub fn hears(
        &self,
        client: (GroupId, u64),
        subscription: SubscriptionId,
        topic: (TopicsId, u64),
    ) -> bool {
        self.filters_heard(client, subscription, topic) > 0
    }

    /// By how many filters of the subscription a client hears a topic.
    pub fn filters_heard(
        &self,
        (group, client): (GroupId, u64),
        subscription: SubscriptionId,
        (topics, index): (TopicsId, u64),
    ) -> u64 {
        let model = self.scenario.subscription(subscription);
        let mut heard = 0;
        self.each_match(model, topics, index, &mut |filter, _| {
            let clients = self.clients_of(group, filter, model);
            heard += u64::from(clients.position(client).is_some());
        });
        heard
    }

    /// Whether filters of the subscription are those of shared groups.
    pub fn is_shared(&self, subscription: SubscriptionId) -> bool {
        match &self.scenario.subscription(subscription).filters {
            Filters::Topics { prefix, .. } => prefix.starts_with(SHARE),
            Filters::Pattern { pattern, .. } => pattern.source().starts_with(SHARE),
        }
    }

    /// Copies of a message on this topic that its publisher does not get because it asked for
    /// nothing of its own (MQTT-3.8.3-3).
    pub fn own_copies(&self, (group, client): (GroupId, u64), topics: TopicsId, index: u64) -> u32 {
        let mut own = 0;
        let deaf = |subscriber: &&Subscriber| subscriber.no_local && subscriber.group == group;
        for subscriber in self.listeners.iter().filter(deaf) {
            let subscription = self.scenario.subscription(subscriber.subscription);
            self.each_match(subscription, topics, index, &mut |filter, _| {
                let members = self.clients_of(group, filter, subscription);
                own += u32::from(members.position(client).is_some());
            });
        }
        own
    }

    /// The name of the topic that a stream is published on.
    pub fn topic_name_of(&self, stream: StreamId) -> Option<String> {
        let (topics, index) = self.topic_of(stream)?;
        Some(self.scenario.topic_name(topics, index))
    }

    fn add_listeners(&mut self, group: GroupId, subscribe: &Subscribe) {
        for &subscription in &subscribe.to {
            let known = |subscriber: &&mut Subscriber| {
                (subscriber.group, subscriber.subscription) == (group, subscription)
            };
            match self.listeners.iter_mut().find(known) {
                Some(subscriber) => {
                    subscriber.qos = subscriber.qos.max(subscribe.qos);
                    subscriber.no_local &= subscribe.no_local;
                }
                None => {
                    let Subscribe { qos, no_local, .. } = *subscribe;
                    self.listeners.push(Subscriber { group, subscription, qos, no_local });
                }
            }
        }
    }

    pub fn program(&self, stage: usize, group: usize) -> &[Op] {
        &self.programs[stage][group]
    }

    pub fn listeners(&self) -> &[Subscriber] {
        &self.listeners
    }

    /// Whether any client publishes in this stage.
    pub fn publishes_in(&self, stage: usize) -> bool {
        let mut all = self.programs[stage].iter().flatten();
        all.any(|op| matches!(op, Op::Publish(_)))
    }

    /// Whether any client connects in this stage.
    pub fn connects_in(&self, stage: usize) -> bool {
        let mut all = self.programs[stage].iter().flatten();
        all.any(|op| matches!(op, Op::Connect(_)))
    }

    /// Clients, over all agents, that publish in this stage.
    pub fn publishers_in(&self, stage: usize) -> u64 {
        let groups = self.scenario.groups.iter().zip(&self.programs[stage]);
        groups
            .filter(|(_, ops)| ops.iter().any(|op| matches!(op, Op::Publish(_))))
            .map(|(group, _)| group.count)
            .sum()
    }

    /// Whether some publisher sends as soon as it may, and not by a schedule.
    pub fn is_closed_loop(&self) -> bool {
        let closed = |planned: &PublishPlan| planned.command.pace.rate.is_none();
        self.scenario.search.is_none() && self.publishes.iter().any(closed)
    }

    /// Messages per second that all publishers of this stage together are asked for; `None` where a
    /// closed loop decides.
    pub fn publish_rate_in(&self, stage: usize) -> Option<f64> {
        let groups = self.scenario.groups.iter().zip(&self.programs[stage]);
        let rates = groups.flat_map(|(group, ops)| {
            ops.iter().filter_map(|op| match op {
                Op::Publish(command) => Some((group.count, *command)),
                _ => None,
            })
        });
        rates
            .map(|(clients, command)| {
                let rate = self.publishes[usize::from(command)].command.pace.rate?;
                Some(rate.per_sec() * clients as f64)
            })
            .sum()
    }

    /// The family of a stream, and its position there; `None` for a number that nobody was given.
    pub fn locate(&self, stream: StreamId) -> Option<(&Family, u64, u64)> {
        let at = self.families.partition_point(|family| family.base <= stream).checked_sub(1)?;
        let family = &self.families[at];
        let offset = stream - family.base;
        let client = u64::from(offset / family.stride);
        let position = u64::from(offset % family.stride);
        let own = family.assign.topics_of(client, family.clients, family.topic_count);
        (client < family.clients && position < own.len()).then_some((family, client, position))
    }

    /// The topic that a stream is published on.
    pub fn topic_of(&self, stream: StreamId) -> Option<(TopicsId, u64)> {
        let (family, client, position) = self.locate(stream)?;
        let own = family.assign.topics_of(client, family.clients, family.topic_count);
        Some((family.topics, own.nth(position)))
    }

    /// Calls `visit` with the position and sharedness of each filter of `subscription` that matches
    /// the topic.
    pub fn each_match(
        &self,
        subscription: &Subscription,
        topics: TopicsId,
        index: u64,
        visit: &mut dyn FnMut(u64, bool),
    ) {
        match &subscription.filters {
            Filters::Topics { topics: own, prefix } if *own == topics => {
                visit(index, prefix.starts_with(SHARE));
            }
            filters => {
                let topic = self.scenario.topic_name(topics, index);
                self.scenario.each_filter_of(filters, &topic, visit);
            }
        }
    }

    pub fn filter_count(&self, subscription: &Subscription) -> u64 {
        self.scenario.filters_in(&subscription.filters)
    }

    /// Appends filter number `filter` of a subscription as it stands in a SUBSCRIBE packet.
    pub fn write_filter(&self, subscription: &Subscription, filter: u64, out: &mut String) {
        match &subscription.filters {
            Filters::Topics { topics, prefix } => {
                out.push_str(prefix);
                let group = self.scenario.topic_group(*topics);
                group.names.write(group.offset + filter, out);
            }
            Filters::Pattern { pattern, offset, .. } => pattern.write(offset + filter, out),
        }
    }

    /// Which filters client `client` of `group` takes of a subscription.
    pub fn filters_of(&self, group: GroupId, client: u64, subscription: &Subscription) -> Members {
        let clients = self.scenario.group(group).count;
        subscription.assign.topics_of(client, clients, self.filter_count(subscription))
    }

    /// Which clients of `group` hear filter `filter` of a subscription.
    pub fn clients_of(&self, group: GroupId, filter: u64, subscription: &Subscription) -> Members {
        let clients = self.scenario.group(group).count;
        subscription.assign.clients_of(filter, clients, self.filter_count(subscription))
    }

    /// How a client comes to hear a stream.
    pub fn path(&self, group: GroupId, client: u64, stream: StreamId) -> Path {
        let Some((family, publisher, _)) = self.locate(stream) else { return Path::Misrouted };
        let Some(topic) = self.topic_of(stream) else { return Path::Misrouted };
        self.path_of((group, client), (family.group, publisher), topic, family.qos)
    }

    /// How a client comes to hear what another publishes on a topic.
    pub fn path_of(
        &self,
        (group, client): (GroupId, u64),
        publisher: (GroupId, u64),
        (topics, index): (TopicsId, u64),
        qos: QoS,
    ) -> Path {
        let sent_at = qos as u8;
        let (mut found, mut agreed) = (Path::Misrouted, Agreed { low: u8::MAX, high: 0 });
        let is_own = publisher == (group, client);
        let hears = |subscriber: &&Subscriber| {
            subscriber.group == group && !(subscriber.no_local && is_own)
        };
        for subscriber in self.listeners.iter().filter(hears) {
            let subscription = self.scenario.subscription(subscriber.subscription);
            let routed = subscription.routed;
            self.each_match(subscription, topics, index, &mut |filter, shared| {
                let members = self.clients_of(group, filter, subscription);
                if members.position(client).is_none() {
                    return;
                }
                let qos = sent_at.min(subscriber.qos as u8);
                agreed = Agreed { low: agreed.low.min(qos), high: agreed.high.max(qos) };
                if matches!(found, Path::Plain { .. }) {
                    return;
                }
                found = if shared {
                    let key =
                        ShareKey { subscription: subscriber.subscription.0, filter: filter as u32 };
                    Path::Shared { key, routed, qos: agreed }
                } else {
                    Path::Plain { routed, qos: agreed }
                };
            });
        }
        match &mut found {
            Path::Plain { qos, .. } | Path::Shared { qos, .. } => *qos = agreed,
            Path::Misrouted => {}
        }
        found
    }

    /// The wills that clients of a group name.
    pub fn wills_of(&self, group: GroupId) -> impl Iterator<Item = &Will> {
        let ops = self.programs.iter().flat_map(move |stage| &stage[group.index()]);
        ops.filter_map(|op| match op {
            Op::Connect(at) => self.connects[usize::from(*at)].will.as_ref(),
            _ => None,
        })
    }

    /// The kind of latency that a message on this topic has, and the QoS of its deliveries: those
    /// of the first subscription that hears it.
    pub fn heard_at(&self, topics: TopicsId, index: u64, qos: QoS) -> Option<(LatencyKind, u8)> {
        self.listeners.iter().find_map(|subscriber| {
            let subscription = self.scenario.subscription(subscriber.subscription);
            let mut hears = false;
            self.each_match(subscription, topics, index, &mut |filter, _| {
                hears |= !self.clients_of(subscriber.group, filter, subscription).is_empty();
            });
            let kind =
                if subscription.routed { LatencyKind::Routed } else { LatencyKind::EndToEnd };
            hears.then_some((kind, qos.min(subscriber.qos) as u8))
        })
    }

    /// Copies that a message on this topic makes once everybody has subscribed.
    pub fn copies(&self, topics: TopicsId, index: u64) -> u64 {
        let mut copies = 0;
        let mut groups_shared: Vec<ShareKey> = Vec::new();
        for subscriber in &self.listeners {
            let subscription = self.scenario.subscription(subscriber.subscription);
            self.each_match(subscription, topics, index, &mut |filter, shared| {
                let members = self.clients_of(subscriber.group, filter, subscription).len();
                if !shared {
                    copies += members;
                    return;
                }
                let key =
                    ShareKey { subscription: subscriber.subscription.0, filter: filter as u32 };
                if members > 0 && !groups_shared.contains(&key) {
                    groups_shared.push(key);
                    copies += 1;
                }
            });
        }
        copies
    }
}

impl PublishPlan {
    pub(super) fn new(publish: &Publish, family: usize, seed: u64) -> Self {
        let filler = filler(publish, seed);
        let is_same = !matches!(
            publish.payload.content,
            Content::RandomSize { .. } | Content::Composed { .. }
        );
        let rest = filler.get(STAMP_BYTES..).filter(|_| is_same).map(Sum::of);
        Self { command: publish.clone(), family, filler, rest }
    }

    /// The checksum of what is behind the stamp in a payload of so many bytes.
    pub(super) fn rest_of(&self, bytes: usize) -> Sum {
        self.rest.unwrap_or_else(|| Sum::of(self.filler.get(STAMP_BYTES..bytes).unwrap_or(&[])))
    }
}

fn taken_over(scenario: &Scenario) -> Vec<bool> {
    let ids = |at: usize| {
        let group = &scenario.groups[at];
        (group.client_ids.name(group.offset), group.count)
    };
    let all = 0..scenario.groups.len();
    let shares = |at: usize| {
        all.clone().any(|other| other != at && ids(at).1 > 0 && ids(at).0 == ids(other).0)
    };
    all.clone().map(shares).collect()
}

fn push<T>(list: &mut Vec<T>, value: T) -> Result<u16, PlanError> {
    let at = u16::try_from(list.len()).map_err(|_| PlanError::TooManyCommands)?;
    list.push(value);
    Ok(at)
}

fn filler(publish: &Publish, seed: u64) -> Vec<u8> {
    match &publish.payload.content {
        Content::Fixed(bytes) => bytes.clone(),
        Content::Composed { bytes, .. } => vec![b' '; *bytes as usize],
        Content::Filler { bytes } => TEXT.iter().copied().cycle().take(*bytes as usize).collect(),
        Content::Random { bytes } | Content::RandomSize { bytes_max: bytes, .. } => {
            let mut random = Random::new(seed);
            (0..*bytes).map(|_| random.draw() as u8).collect()
        }
    }
}

/// A small seeded generator (splitmix64): the same seed makes the same run.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Evenly distributed below `end`, which is above 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }
}

const SHARE: &str = "$share/";
/// What is retained for so long is there until the run is over.
const EXPIRY_SECS_MIN: u32 = 3_600;
const TEXT: &[u8] = b"the quelea flies in flocks of millions; ";
