//! Wills: what a client names in its CONNECT, which of them have to come, and what came.

use codec::{Property, PropertyBuf};

use super::client::Client;
use super::context::Context;
use super::judge::PartJudge;
use super::plan::{Plan, Subscriber};
use super::stamp::{STAMP_BYTES, Stamp, Sum, WILL_STREAM};
use super::task::wire_qos;
use flock_measure::Integrity;
use flock_measure::ledger::{SentTable, Wills, judge_wills};
use flock_model::{Content, TopicsId, Will};

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
        let topic = ctx.plan.scenario.topic_name(will.topics, self.will_topic(will, ctx));
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

    fn will_topic(&self, will: &Will, ctx: &Context) -> u64 {
        let clients = ctx.plan.scenario.group(self.group).count;
        let count = ctx.plan.scenario.topic_group(will.topics).count;
        let own = will.assign.topics_of(self.index, clients, count);
        if own.is_empty() { 0 } else { own.nth(0) }
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
            topic: self.will_topic(will, ctx),
            qos: will.qos as u8,
            retain: will.retain,
            owed: 0,
            open: 0,
            first_ns: u64::MAX,
            last_ns: 0,
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

    /// A connection ended that had a will.
    pub(super) fn end_will(&self, ending: Ending, ctx: &mut Context) {
        let will = self.connect_command(ctx).and_then(|command| command.will.as_ref());
        let Some(delay_secs) = will.map(|will| will.delay_secs) else { return };
        let due_ns = ctx.now_ns() + u64::from(delay_secs) * 1_000_000_000;
        let Some(number) = self.number(&ctx.plan) else { return };
        let Some(wills) = ctx.wills.get_mut(&number) else { return };
        match ending {
            Ending::GoodBye => {}
            Ending::Unknown => wills.open += 1,
            Ending::Broken => {
                wills.owed += 1;
                wills.first_ns = wills.first_ns.min(due_ns);
                wills.last_ns = wills.last_ns.max(due_ns);
            }
        }
    }
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
            && entry.strictness(qos).generation == 0
            && entry.since_ns < wills.first_ns
            && end_ns >= wills.last_ns.saturating_add(wait_ns);
        let came = self.harvests[thread].ledger.wills.get(&(at, number)).copied().unwrap_or(0);
        judge_wills(wills, came, is_whole, all);
    }
}
