//! Wills: what a client names in its CONNECT, which of them have to come, and what came.

use codec::{Property, PropertyBuf, Publish};

use super::check::says_nothing;
use super::client::Client;
use super::context::Context;
use super::judge::PartJudge;
use super::plan::{Plan, Subscriber};
use super::stamp::{STAMP_BYTES, Stamp, Sum, WILL_STREAM};
use super::task::wire_qos;
use flock_measure::Integrity;
use flock_measure::ledger::{Ledger, Path, SentTable, Wills, judge_wills};
use flock_model::{Content, GroupId, TopicsId, Version, Will};

/// How a connection ended, as far as its will goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// DISCONNECT with 0x00 has reached the kernel, and nothing of ours was under way.
    GoodBye,
    /// Closed, or DISCONNECT asked for the will.
    Broken,
    /// The broker may have seen one or the other, or be gone itself.
    Unknown,
}

impl Client {
    pub(super) fn will_options(&self, will: &Will, ctx: &Context) -> client::WillOptions {
        let (topics, topic) = will_topic((self.group, self.index), will, &ctx.plan);
        let topic = ctx.plan.scenario.topic_name(topics, topic);
        let mut payload = match &will.payload.content {
            Content::Fixed(bytes) => bytes.clone(),
            _ => vec![b'w'; will.payload.bytes_max() as usize],
        };
        if is_stamped(will) && payload.len() >= STAMP_BYTES {
            // What is beyond the last number is not judged: see `has_will`.
            let sequence = self.number(&ctx.plan).unwrap_or(u32::MAX) & ctx.stamps.sequences_max();
            let stamp = Stamp { due_ns: ctx.now_ns(), stream: WILL_STREAM, sequence };
            let (sum, rest) = (Sum::of(topic.as_bytes()), Sum::of(&payload[STAMP_BYTES..]));
            payload[..STAMP_BYTES].copy_from_slice(&ctx.stamps.write(stamp, sum, rest));
        }
        let mut properties = PropertyBuf::new();
        if let Some(secs) = will.expiry_secs {
            properties.push(Property::MessageExpirySecs(secs));
        }
        client::WillOptions {
            topic,
            payload,
            qos: wire_qos(will.qos),
            retain: will.retain,
            delay_secs: will.delay_secs,
            properties,
        }
    }

    /// The client's number in the whole run, if there is one for it.
    fn number(&self, plan: &Plan) -> Option<u32> {
        let before: u64 =
            plan.scenario.groups[..self.group.index()].iter().map(|group| group.count).sum();
        u32::try_from(before + self.index).ok()
    }

    /// A CONNECT goes out that names a will.
    pub(super) fn note_will(&self, ctx: &mut Context) {
        let Some(command) = self.connect_command(ctx) else { return };
        let Some(will) = command.will.as_ref().filter(|will| is_stamped(will)) else { return };
        let Some(number) = self.number(&ctx.plan).filter(|n| *n < ctx.stamps.sequences_max())
        else {
            return;
        };
        let named = Wills {
            topics: will.topics.0,
            topic: will_topic((self.group, self.index), will, &ctx.plan).1,
            qos: will.qos as u8,
            retain: will.retain,
            owed: 0,
            open: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            ended_ns: 0,
            is_mixed: false,
        };
        let is_delayed = will.delay_secs > 0;
        let same = (named.topics, named.topic, named.qos, named.retain);
        let wills = ctx.wills.entry(number).or_insert(named);
        wills.is_mixed |= (wills.topics, wills.topic, wills.qos, wills.retain) != same;
        if is_delayed {
            // Who comes back in time has taken it back, if its session is still there.
            wills.open += std::mem::take(&mut wills.owed);
        }
    }

    /// A will came. What was in store is no further one, nor is what may be sent again.
    pub(super) fn hear_will(
        &mut self,
        publish: &Publish<'_>,
        (number, now_ns): (u32, u64),
        ctx: &mut Context,
    ) {
        let may_be_again = publish.dup && !self.is_fresh;
        ctx.ledger.wrong_dup += u64::from(publish.dup && self.is_fresh);
        let will = will_of(number, &ctx.plan);
        let is_stored = publish.retain && will.is_none_or(|(_, will)| will.retain);
        let is_live = !is_stored && !may_be_again;
        if is_live {
            ctx.ledger.wills.entry((self.at, number)).or_default().note(now_ns);
        }
        let Some((owner, will)) = will else { return };
        ctx.ledger.wrong_retain += u64::from(publish.retain && !will.retain);
        let topic = will_topic(owner, will, &ctx.plan);
        // Subscriptions from before the run are not known.
        if self.is_fresh || !self.hearing.is_empty() {
            let path = ctx.plan.path_of((self.group, self.index), owner, topic, will.qos);
            ctx.ledger.check_agreed(path.granted(self.granted), publish.qos as u8);
            if path == Path::Misrouted {
                return;
            }
        }
        if self.machine.version() == codec::Version::V5 {
            self.check_will(publish, (owner.0, will), topic, (&ctx.plan, &mut ctx.ledger));
        }
    }

    /// Counts a will whose properties or identifiers are not as they should be.
    fn check_will(
        &self,
        publish: &Publish<'_>,
        (group, will): (GroupId, &Will),
        topic: (TopicsId, u64),
        (plan, ledger): (&Plan, &mut Ledger),
    ) {
        let is_v5 = plan.scenario.group(group).version == Version::V5;
        let sent_secs = will.expiry_secs.filter(|_| is_v5);
        let left_secs = publish.properties.iter().find_map(|property| match property {
            Property::MessageExpirySecs(secs) => Some(secs),
            _ => None,
        });
        // When it was published is the broker's to know.
        let is_expiry_right = match (sent_secs, left_secs) {
            (Some(sent), Some(left)) => left <= sent,
            (sent, left) => sent == left,
        };
        ledger.wrong_properties += u64::from(!is_expiry_right || !says_nothing(publish));
        let are_named = self.are_identifiers_right(publish, topic, plan);
        ledger.wrong_identifiers += u64::from(!are_named);
    }

    /// A connection ended that had a will.
    pub(super) fn end_will(&self, ending: Ending, ctx: &mut Context) {
        let will = self.connect_command(ctx).and_then(|command| command.will.as_ref());
        let Some(delay_secs) = will.map(|will| will.delay_secs) else { return };
        let now_ns = ctx.now_ns();
        let due_ns = now_ns + u64::from(delay_secs) * 1_000_000_000;
        let Some(number) = self.number(&ctx.plan) else { return };
        let Some(wills) = ctx.wills.get_mut(&number) else { return };
        match ending {
            Ending::GoodBye => {}
            Ending::Unknown => wills.open += 1,
            Ending::Broken => {
                let is_first = wills.owed == 0 || now_ns < wills.ended_ns;
                wills.ended_ns = if is_first { now_ns } else { wills.ended_ns };
                wills.owed += 1;
                wills.first_ns = wills.first_ns.min(due_ns);
                wills.last_ns = wills.last_ns.max(due_ns);
            }
        }
    }
}

/// The client with this number, and its will; none where it may have named several.
fn will_of(number: u32, plan: &Plan) -> Option<((GroupId, u64), &Will)> {
    let mut index = u64::from(number);
    for (at, group) in plan.scenario.groups.iter().enumerate() {
        if index >= group.count {
            index -= group.count;
            continue;
        }
        let id = GroupId(u32::try_from(at).ok()?);
        let mut wills = plan.wills_of(id);
        let will = wills.next()?;
        return wills.all(|other| other == will).then_some(((id, index), will));
    }
    None
}

/// The topic of a client's will.
fn will_topic((group, client): (GroupId, u64), will: &Will, plan: &Plan) -> (TopicsId, u64) {
    let clients = plan.scenario.group(group).count;
    let count = plan.scenario.topic_group(will.topics).count;
    let own = will.assign.topics_of(client, clients, count);
    (will.topics, if own.is_empty() { 0 } else { own.nth(0) })
}

/// What carries no stamp is not known when it comes.
fn is_stamped(will: &Will) -> bool {
    will.payload.stamped && will.payload.bytes_min() >= flock_model::STAMP_BYTES
}

impl PartJudge<'_> {
    /// Counts wills that never came, came again, or came of a client that had said good-bye.
    pub(super) fn judge_wills(&self, sent: &SentTable, all: &mut Integrity) {
        for (&number, wills) in sent.wills.iter().filter(|(_, wills)| !wills.is_mixed) {
            let mut subscribers: Vec<(&Subscriber, u64)> = Vec::new();
            for subscriber in self.plan.listeners() {
                let subscription = self.plan.scenario.subscription(subscriber.subscription);
                let topics = TopicsId(wills.topics);
                self.plan.each_match(subscription, topics, wills.topic, &mut |filter, _| {
                    subscribers.push((subscriber, filter));
                });
            }
            for (subscriber, filter) in &subscribers {
                // A client with several filters that match may get several copies; so may a
                // member of a shared group get one, or none.
                let of_group =
                    subscribers.iter().filter(|(other, _)| other.group == subscriber.group);
                if of_group.count() > 1 || self.plan.is_shared(subscriber.subscription) {
                    continue;
                }
                let subscription = self.plan.scenario.subscription(subscriber.subscription);
                for client in self.plan.clients_of(subscriber.group, *filter, subscription).iter() {
                    self.judge_will_at((number, wills), (subscriber, client), all);
                }
            }
        }
    }

    fn judge_will_at(
        &self,
        (number, wills): (u32, &Wills),
        (subscriber, client): (&Subscriber, u64),
        all: &mut Integrity,
    ) {
        let Some((thread, at)) = self.find(subscriber.group, client) else { return };
        let Some(stay) = self.heard[thread].get(&(at, subscriber.subscription)) else { return };
        let entry = &stay.entry;
        // Copies that keep their flag cannot be told from those that were in store.
        if entry.since_ns == u64::MAX || (wills.retain && entry.as_published) || subscriber.no_local
        {
            return;
        }
        let wait_ns = self.plan.scenario.drain_us * 1_000;
        let end_ns = entry.since_ns.saturating_add(entry.stayed_ns);
        let qos = wills.qos.min(subscriber.qos as u8);
        let is_whole = stay.times == 1
            && entry.strictness(qos, 0).generation == 0
            && entry.since_ns < wills.first_ns
            && end_ns >= wills.last_ns.saturating_add(wait_ns);
        let came =
            self.harvests[thread].ledger.wills.get(&(at, number)).copied().unwrap_or_default();
        judge_wills(wills, came, is_whole, all);
    }
}
