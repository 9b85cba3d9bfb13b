//! Requests and their answers (MQTT 5, section 4.10): a publish with a response topic and
//! correlation data, and the message that comes back with the same data.
//!
//! What is open is known by its correlation data, which is the number of the request's stream and
//! its number in it: of each request it is known whether it was answered, once or more often.

use std::collections::VecDeque;

use client::NotSent;
use codec::{Property, PropertyBuf, Publish, QoS};
use hashbrown::HashMap;

use super::client::Client;
use super::context::Context;
use super::plan::Plan;
use super::publish::Flight;
use super::stamp::Reading;
use super::task::wire_qos;
use flock_measure::LatencyKind;
use flock_measure::ledger::StreamId;

/// Requests of one client that have no answer yet, and answers that it could not send yet.
#[derive(Default)]
pub(super) struct Dialogue {
    /// By correlation data: when the request was due, and its QoS.
    open: HashMap<u64, (u64, u8)>,
    waiting: VecDeque<Answer>,
}

struct Answer {
    topic: String,
    correlation: Option<Vec<u8>>,
    payload: Vec<u8>,
    qos: QoS,
}

impl Client {
    /// Whether a further request can be remembered; one that cannot keeps its due time.
    pub(super) fn may_ask(&self) -> bool {
        self.dialogue().is_none_or(|dialogue| dialogue.open.len() < OPEN_MAX)
    }

    pub(super) fn ask(&mut self, flight: &Flight, qos: u8, ctx: &mut Context) {
        ctx.tally.totals.requests += 1;
        // Nothing is over before the answer is there.
        ctx.tally.owed += 1;
        let dialogue = self.extra.get_or_insert_default().dialogue.get_or_insert_default();
        dialogue.open.insert(flight.correlation(), (flight.due_ns(), qos));
    }

    /// The topic on which the client wants its answers.
    pub(super) fn reply_topic(&self, plan: &Plan, command: u16) -> Option<String> {
        let topics = plan.publishes[usize::from(command)].command.reply_to?;
        let count = plan.scenario.topic_group(topics).count.max(1);
        Some(plan.scenario.topic_name(topics, self.index % count))
    }

    /// Takes a message that is an answer; `false` for any other.
    pub(super) fn hear_answer(
        &mut self,
        message: &Publish<'_>,
        now_ns: u64,
        ctx: &mut Context,
    ) -> bool {
        if self.dialogue().is_none() {
            return false;
        }
        let Some(correlation) = correlation_of(message) else { return false };
        let number = correlation.try_into().map(u64::from_be_bytes);
        let dialogue = self.extra.as_mut().and_then(|extra| extra.dialogue.as_mut());
        let asked = number.ok().zip(dialogue).and_then(|(n, dialogue)| dialogue.open.remove(&n));
        match asked {
            Some((due_ns, qos)) => {
                ctx.tally.totals.answers += 1;
                ctx.tally.message_latency(LatencyKind::RoundTrip, qos, due_ns, now_ns);
                self.check_answer(message, now_ns, ctx);
            }
            // A second answer, or one to nothing that this client asked.
            None => {
                let is_resumed = message.qos != QoS::AtMostOnce && self.is_resumed();
                ctx.tally.totals.answers_unasked += 1;
                ctx.tally.totals.answers_again += u64::from(is_resumed);
            }
        }
        true
    }

    /// Counts what an answer has that it was not sent with: its payload is that of the request, its
    /// topic the one that was named, its QoS what service and asker agree on.
    fn check_answer(&self, answer: &Publish<'_>, now_ns: u64, ctx: &mut Context) {
        let plan = &ctx.plan;
        // The stamp is sealed with the topic of the request, so that a whole one is on another.
        let topic_of = |stream: StreamId| plan.topic_name_of(stream);
        let read = ctx.stamps.read(answer.topic, answer.payload, now_ns, topic_of);
        ctx.ledger.damaged += u64::from(plan.all_stamped && read == Reading::Damaged);
        let commands = 0..plan.publishes.len() as u16;
        let is_mine = |command: &u16| {
            let planned = &plan.publishes[usize::from(*command)];
            plan.families[planned.family].group == self.group
        };
        let mut named = commands.filter(is_mine).filter_map(|at| self.reply_topic(plan, at));
        ctx.ledger.wrong_topic += u64::from(!named.any(|topic| topic == answer.topic));
        let asked = || {
            let commands = self.hearing.iter().map(|hearing| usize::from(hearing.command));
            commands.map(|command| plan.subscribes[command].qos as u8)
        };
        let mut sent = plan.subscribes.iter().filter_map(|subscribe| subscribe.respond);
        let is_agreed = sent.any(|sent| {
            asked().any(|own| (sent as u8).min(own).min(self.granted) == answer.qos as u8)
        });
        ctx.ledger.wrong_qos += u64::from(!is_agreed);
        ctx.ledger.wrong_retain += u64::from(answer.retain);
        // Services send the correlation data and nothing else.
        let is_known = |property| {
            matches!(property, Property::CorrelationData(_) | Property::SubscriptionId(_))
        };
        ctx.ledger.wrong_properties += u64::from(!answer.properties.iter().all(is_known));
    }

    /// Answers a request, if that is what the client is there for: the payload goes back.
    pub(super) fn answer(&mut self, request: &Publish<'_>, ctx: &mut Context) {
        if !ctx.plan.any_answers {
            return;
        }
        let mut commands = self.hearing.iter().map(|hearing| usize::from(hearing.command));
        let Some(qos) = commands.find_map(|command| ctx.plan.subscribes[command].respond) else {
            return;
        };
        let topic = request.properties.find(|property| match property {
            Property::ResponseTopic(topic) => Some(topic),
            _ => None,
        });
        let Some(topic) = topic else { return };
        let answer = Answer {
            topic: topic.to_owned(),
            correlation: correlation_of(request).map(<[u8]>::to_vec),
            payload: request.payload.to_vec(),
            qos: wire_qos(qos),
        };
        let waits = self.dialogue().map_or(0, |dialogue| dialogue.waiting.len());
        if waits == 0 && self.send_answer(&answer, ctx).is_ok() {
            return;
        }
        if waits >= WAITING_MAX {
            ctx.tally.error("answer", "too many queued answers", || self.id(&ctx.plan));
            return;
        }
        let dialogue = self.extra.get_or_insert_default().dialogue.get_or_insert_default();
        dialogue.waiting.push_back(answer);
    }

    /// Sends what waited, as far as it can be sent now.
    pub(super) fn answer_on(&mut self, ctx: &mut Context) {
        while let Some(answer) = self.take_waiting() {
            ctx.lend(&mut self.outbox);
            if self.send_answer(&answer, ctx).is_err() {
                let dialogue = self.extra.as_mut().and_then(|extra| extra.dialogue.as_mut());
                if let Some(dialogue) = dialogue {
                    dialogue.waiting.push_front(answer);
                }
                return;
            }
        }
    }

    fn take_waiting(&mut self) -> Option<Answer> {
        self.extra.as_mut()?.dialogue.as_mut()?.waiting.pop_front()
    }

    fn send_answer(&mut self, answer: &Answer, ctx: &mut Context) -> Result<(), NotSent> {
        if !self.machine.is_connected() {
            return Err(NotSent::NotConnected);
        }
        if self.congested() {
            return Err(NotSent::WindowFull);
        }
        let packet_id = match answer.qos {
            QoS::AtMostOnce => 0,
            qos => self.machine.begin_publish(qos, Flight::answer(ctx.now_ns()), u16::MAX)?,
        };
        let mut properties = PropertyBuf::new();
        if let Some(correlation) = &answer.correlation {
            properties.push(Property::CorrelationData(correlation));
        }
        let publish = Publish {
            dup: false,
            qos: answer.qos,
            retain: false,
            topic: &answer.topic,
            packet_id,
            properties: properties.as_properties(),
            payload: &answer.payload,
        };
        publish.encode(self.machine.version(), &mut self.outbox);
        ctx.tally.totals.answers_sent += 1;
        Ok(())
    }

    /// Requests without an answer at the end of the run. Their latency is what they have waited, at
    /// least.
    pub(super) fn unanswered(&mut self, ctx: &mut Context) {
        let now_ns = ctx.now_ns();
        let Some(dialogue) = self.dialogue() else { return };
        for (due_ns, qos) in dialogue.open.values() {
            ctx.tally.totals.requests_unanswered += 1;
            if ctx.tally.was_measured(*due_ns) {
                let waited_ns = now_ns.saturating_sub(*due_ns);
                ctx.tally.unfinished(LatencyKind::RoundTrip, *qos, waited_ns, 1);
            }
        }
    }

    fn dialogue(&self) -> Option<&Dialogue> {
        self.extra.as_ref()?.dialogue.as_ref()
    }
}

fn correlation_of<'a>(message: &Publish<'a>) -> Option<&'a [u8]> {
    message.properties.find(|property| match property {
        Property::CorrelationData(data) => Some(data),
        _ => None,
    })
}

/// Requests of a client that may be open; further ones wait.
const OPEN_MAX: usize = 65_536;
/// Answers of a client that may wait for the broker to take them; further ones are not sent, and
/// listed as errors.
const WAITING_MAX: usize = 65_536;
