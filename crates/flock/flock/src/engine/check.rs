//! What a delivery has besides topic and payload, held against what was published and what its
//! receiver asked for: properties, subscription identifiers, and whether it asked at all.

use codec::{Property, Publish};

use super::client::Client;
use super::context::Context;
use super::plan::Plan;
use super::stamp::Stamp;
use flock_measure::ledger::StreamId;
use flock_model::{Publish as Command, TopicsId, Version};

/// When a message of ours was due, and when it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) due_ns: u64,
    pub(super) now_ns: u64,
}

/// What a PUBLISH of MQTT 5 says of its payload, each at most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told<'a> {
    format: Option<u8>,
    content_type: Option<&'a str>,
    response_topic: Option<&'a str>,
    correlation: Option<&'a [u8]>,
}

impl<'a> Told<'a> {
    /// What it says, and what is left of its expiry.
    fn of(publish: &Publish<'a>) -> (Self, Option<u32>) {
        let (mut told, mut expiry) = (Self::default(), None);
        for property in publish.properties.iter() {
            match property {
                Property::PayloadFormat(format) => told.format = Some(format),
                Property::ContentType(content_type) => told.content_type = Some(content_type),
                Property::ResponseTopic(topic) => told.response_topic = Some(topic),
                Property::CorrelationData(data) => told.correlation = Some(data),
                Property::MessageExpirySecs(secs) => expiry = Some(secs),
                _ => {}
            }
        }
        (told, expiry)
    }
}

/// Whether the message has none of the properties that come from its publisher, but for an expiry.
pub(super) fn says_nothing(publish: &Publish<'_>) -> bool {
    let is_silent = Told::of(publish).0 == Told::default();
    is_silent && publish.properties.user_properties().next().is_none()
}

impl Client {
    /// Whether the client has no subscription by which it may get this message: it has asked for
    /// nothing yet, or the broker has let it leave all that match, and the message is younger.
    pub(super) fn is_unasked(&self, stamp: &Stamp, ctx: &Context) -> bool {
        if self.hearing.is_empty() {
            // A session that lasts may have brought subscriptions from before the run.
            return self.is_fresh;
        }
        if !self.has_left {
            return false;
        }
        // The latest one that matches: those before it were left before.
        let mut matching = self.hearing.iter().rev();
        let topic = ctx.plan.topic_of(stamp.stream);
        let latest = matching.find(|hearing| {
            let own = (self.group, self.index);
            topic.is_some_and(|topic| ctx.plan.hears(own, hearing.subscription, topic))
        });
        // Published after the UNSUBACK (MQTT-3.10.4-2).
        latest.is_some_and(|hearing| {
            stamp.due_ns > hearing.left_ns.saturating_add(CLOCKS_APART_NS_MAX)
        })
    }

    /// Counts a delivery whose properties are not those of its message, or whose subscription
    /// identifiers are not those that the client gave.
    #[inline]
    pub(super) fn check_properties(
        &self,
        publish: &Publish<'_>,
        stamp: &Stamp,
        now_ns: u64,
        ctx: &mut Context,
    ) {
        let is_bare = publish.properties.iter().next().is_none();
        if self.machine.version() != codec::Version::V5 || (is_bare && !ctx.plan.any_properties) {
            return;
        }
        let times = Times { due_ns: stamp.due_ns, now_ns };
        if !are_as_sent(publish, (stamp.stream, stamp.sequence), times, &ctx.plan) {
            ctx.ledger.wrong_properties += 1;
        }
        let topic = ctx.plan.topic_of(stamp.stream);
        if !topic.is_none_or(|topic| self.are_identifiers_right(publish, topic, &ctx.plan)) {
            ctx.ledger.wrong_identifiers += 1;
        }
    }

    /// A delivery has the identifiers of the subscriptions that match (MQTT-3.3.4-3,
    /// MQTT-3.3.4-4), each once for each filter that does; where several do, it may stand for some
    /// of them only (MQTT-3.3.4-5).
    pub(super) fn are_identifiers_right(
        &self,
        publish: &Publish<'_>,
        topic: (TopicsId, u64),
        plan: &Plan,
    ) -> bool {
        let mut expected = self.hearing.iter().filter_map(|hearing| {
            let hears = plan.hears((self.group, self.index), hearing.subscription, topic);
            hears.then(|| plan.subscribes[usize::from(hearing.command)].identifier)
        });
        let mut found = publish.properties.subscription_ids().peekable();
        if found.peek().is_none() {
            // Those of a session from before the run are not known.
            return self.hearing.is_empty() || expected.any(|one| one.is_none());
        }
        let expected: Vec<Option<u32>> = expected.collect();
        if expected.is_empty() && !self.is_fresh {
            return true;
        }
        let found: Vec<u32> = found.collect();
        let times = |one: u32| found.iter().filter(|other| **other == one).count() as u64;
        found.iter().all(|&one| {
            let is_expected = expected.contains(&Some(one));
            is_expected && (times(one) < 2 || times(one) <= self.identified(one, topic, plan))
        })
    }

    /// How many filters of the client's with this identifier match.
    fn identified(&self, identifier: u32, topic: (TopicsId, u64), plan: &Plan) -> u64 {
        let has_it =
            |command: u16| plan.subscribes[usize::from(command)].identifier == Some(identifier);
        // Who subscribed again has the same filters as before.
        let mut subscriptions: Vec<_> = self
            .hearing
            .iter()
            .filter(|one| has_it(one.command))
            .map(|one| one.subscription)
            .collect();
        subscriptions.sort_unstable();
        subscriptions.dedup();
        let client = (self.group, self.index);
        subscriptions.iter().map(|&one| plan.filters_heard(client, one, topic)).sum()
    }
}

/// Whether the properties are those that one of the commands sends with messages of this stream,
/// which a broker forwards unaltered (MQTT-3.3.2-4, -15, -16, -17, -20).
fn are_as_sent(
    publish: &Publish<'_>,
    (stream, sequence): (StreamId, u32),
    times: Times,
    plan: &Plan,
) -> bool {
    let Some((family, client, _)) = plan.locate(stream) else { return true };
    let is_v5 = plan.scenario.group(family.group).version == Version::V5;
    let (told, expiry) = Told::of(publish);
    if !is_v5 {
        return expiry.is_none() && says_nothing(publish);
    }
    let mut commands = plan.commands_of(stream);
    commands.any(|planned| {
        let command = &planned.command;
        let reply = command.reply_to.map(|topics| {
            let count = plan.scenario.topic_group(topics).count.max(1);
            plan.scenario.topic_name(topics, client % count)
        });
        let correlation = super::publish::correlation(stream, sequence).to_be_bytes();
        let sent = Told {
            format: command.payload_format,
            content_type: command.content_type.as_deref(),
            response_topic: reply.as_deref(),
            correlation: reply.as_ref().map(|_| correlation.as_slice()),
        };
        let users = command.user_properties.iter().map(|(name, value)| (&**name, &**value));
        told == sent
            && is_expiry_right(command, expiry, times)
            && publish.properties.user_properties().eq(users)
    })
}

/// What is left of an expiry is less by the whole seconds that the message lay with the broker
/// (MQTT-3.3.2-6), which were no more than have passed since it was due.
fn is_expiry_right(command: &Command, left: Option<u32>, times: Times) -> bool {
    match (command.expiry_secs, left) {
        (None, None) => true,
        (Some(sent), Some(left)) => {
            let passed_secs = times.now_ns.saturating_sub(times.due_ns).div_ceil(1_000_000_000);
            let (sent, left) = (u64::from(sent), u64::from(left));
            left <= sent && left + passed_secs + EXPIRY_SECS_ROUNDED >= sent
        }
        _ => false,
    }
}

/// Of a publisher on another machine. What may be its clock is not laid to the broker.
pub(super) const CLOCKS_APART_NS_MAX: u64 = 10_000_000;
/// A broker may count the second that has begun as passed.
const EXPIRY_SECS_ROUNDED: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use flock_model::{Assign, Order, Pace, Payload, Phase, QoS};

    #[test]
    fn what_is_left_of_an_expiry_is_what_was_sent_less_the_time_that_passed() {
        let command = |expiry_secs| Command {
            topics: TopicsId(0),
            assign: Assign::Pairwise,
            order: Order::RoundRobin,
            qos: QoS::AtMostOnce,
            retain: false,
            payload: Payload::filler(16),
            expiry_secs,
            count: None,
            pace: Pace { rate: None, phase: Phase::Spread, in_flight: None },
            reply_to: None,
            topic_alias: false,
            user_properties: Vec::new(),
            content_type: None,
            payload_format: None,
        };
        let after = |secs: u64| Times { due_ns: 0, now_ns: secs * 1_000_000_000 };
        let fits = |sent, left, secs| is_expiry_right(&command(sent), left, after(secs));
        assert!(fits(None, None, 9) && fits(Some(60), Some(60), 0) && fits(Some(60), Some(50), 10));
        assert!(fits(Some(60), Some(60), 10), "it may have lain with its publisher");
        assert!(!fits(Some(60), None, 0) && !fits(None, Some(60), 0), "gone, and made up");
        assert!(!fits(Some(60), Some(61), 0) && !fits(Some(60), Some(48), 10), "more, and less");
    }
}
