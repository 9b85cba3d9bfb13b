//! A scenario as it runs, in words: with its scale, lengths, rates and addresses, whatever it was
//! written in and however it was changed. A file and the options that changed it give the same;
//! this is for who has neither.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::units::show_time;
use crate::model::{
    Assign, Broker, ClientGroup, Command, Connect, Content, Delay, Directions, Disconnect,
    Failover, Fault, Filters, LifeCycle, Order, Party, Payload, Phase, Publish, Rate, Refuse,
    Repeat, Scenario, Sink, SinkKind, Spread, Stage, Step, Subscribe, Subscription, TopicsId,
    Version, Who,
};
use flock_measure::text;

/// All of it, a line for each thing.
pub fn words(scenario: &Scenario) -> String {
    let writer = Writer { scenario };
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}, scale {}, seed {}", scenario.id, scenario.scale, scenario.seed);
    for broker in &scenario.brokers {
        let _ = writeln!(out, "broker {}", broker_words(broker));
    }
    for group in &scenario.groups {
        let _ = writeln!(out, "clients {}", group_words(group));
    }
    for topics in &scenario.topics {
        let names = topics.names.source();
        let from = offset(topics.offset);
        let _ = writeln!(out, "topics {}: {} named {names}{from}", topics.id, topics.count);
    }
    for subscription in &scenario.subscriptions {
        let _ = writeln!(out, "subscription {}", writer.subscription(subscription));
    }
    for sink in &scenario.sinks {
        let _ = writeln!(out, "{}", writer.sink(sink));
    }
    for stage in &scenario.stages {
        writer.stage(stage, &mut out);
    }
    let _ = writeln!(out, "then up to {} for messages in flight", show_time(scenario.drain_us));
    if let Some(search) = &scenario.search {
        let _ = writeln!(
            out,
            "search for the highest total rate from {} to {} messages per second with p{} below \
                 {}, in steps of {}",
            search.rate_min,
            search.rate_max,
            search.percentile,
            show_time(search.latency_max_us),
            show_time(search.step_us)
        );
    }
    out
}

/// Values that a reader of the report looks for.
pub fn parameters(scenario: &Scenario) -> BTreeMap<String, String> {
    let estimate = scenario.estimate();
    let mut all = BTreeMap::new();
    for stage in &scenario.stages {
        if let Some(us) = stage.duration_us {
            all.insert(format!("stage {}", stage.id), show_time(us));
        }
        let (before_us, after_us) = scenario.margins_of(stage);
        for (name, us) in [("warm-up", before_us), ("cool-down", after_us)] {
            if us > 0 {
                all.insert(format!("{name} of {}", stage.id), show_time(us));
            }
        }
    }
    if let Some(copies) = estimate.copies_per_message {
        all.insert("copies per message".to_owned(), text::number(copies));
        let rate = |rate: Option<f64>| {
            rate.map_or("unthrottled".to_owned(), |rate| format!("{}/s", text::number(rate)))
        };
        all.insert("publish rate".to_owned(), rate(estimate.publishes_per_sec));
        if let Some(answers) = estimate.answers_per_sec {
            all.insert("answers to come".to_owned(), rate(Some(answers)));
        }
        all.insert(
            "payload".to_owned(),
            format!("{} B at most", text::count(u64::from(estimate.payload_bytes_max))),
        );
    }
    for broker in &scenario.brokers {
        all.insert(format!("transport to {}", broker.id), broker.transport.to_string());
    }
    all
}

/// `, after a warm-up of 10s and before a cool-down of 2s`.
fn margin_words((before_us, after_us): (u64, u64)) -> String {
    match (before_us, after_us) {
        (0, 0) => String::new(),
        (_, 0) => format!(", after a warm-up of {}", show_time(before_us)),
        (0, _) => format!(", before a cool-down of {}", show_time(after_us)),
        _ => format!(
            ", after a warm-up of {} and before a cool-down of {}",
            show_time(before_us),
            show_time(after_us)
        ),
    }
}

struct Writer<'a> {
    scenario: &'a Scenario,
}

impl Writer<'_> {
    fn sink(&self, sink: &Sink) -> String {
        let name = |topics: &TopicsId| self.scenario.topic_group(*topics).id.as_str();
        let topics: Vec<&str> = sink.topics.iter().map(name).collect();
        let mut faults = String::new();
        if let SinkKind::Webhook(webhook) = &sink.kind {
            if webhook.delay_us > 0 {
                faults += &format!(", answers after {}", show_time(webhook.delay_us));
            }
            if let Some(Refuse { status, share }) = webhook.refuse {
                faults += &format!(", refuses {} % with {status}", text::number(share * 100.0));
            }
        }
        let (what, wait) = (&sink.kind, show_time(sink.drain_us));
        let topics = topics.join(", ");
        format!("sink {}: {what}{faults}; topics {topics}; waits up to {wait}", sink.id)
    }

    fn stage(&self, stage: &Stage, out: &mut String) {
        let length = stage.duration_us.map_or("until all steps are done".to_owned(), show_time);
        let measured = if stage.measured { ", measured" } else { "" };
        let margins = margin_words(self.scenario.margins_of(stage));
        let _ = writeln!(out, "stage {}: {length}{measured}{margins}", stage.id);
        for cycle in &stage.life_cycles {
            self.cycle(cycle, out);
        }
    }

    fn cycle(&self, cycle: &LifeCycle, out: &mut String) {
        let who = match cycle.who {
            Who::Clients(group) => self.scenario.group(group).id.as_str(),
            Who::Conductor => "the run itself",
        };
        let _ = writeln!(out, "  {who}");
        self.steps(&cycle.steps, 2, out);
    }

    fn steps(&self, steps: &[Step], depth: usize, out: &mut String) {
        for step in steps {
            let _ =
                writeln!(out, "{:indent$}{}", "", self.command(&step.command), indent = depth * 2);
            if let Command::For(repeat) = &step.command {
                self.steps(&repeat.steps, depth + 1, out);
            }
        }
    }

    fn command(&self, command: &Command) -> String {
        match command {
            Command::Connect(connect) => self.connect(connect),
            Command::Disconnect(how) => match how {
                Disconnect::Message => "disconnect".to_owned(),
                Disconnect::MessageWithWill => {
                    "disconnect with 0x04, so that the will is sent".to_owned()
                }
                Disconnect::Close => "close the connection".to_owned(),
                Disconnect::Silent => "fall silent".to_owned(),
            },
            Command::Publish(publish) => self.publish(publish),
            Command::Subscribe(subscribe) => self.subscribe(subscribe),
            Command::Unsubscribe(from) => {
                let names = from.iter().map(|id| self.scenario.subscription(*id).id.as_str());
                format!("unsubscribe from {}", names.collect::<Vec<_>>().join(", "))
            }
            Command::Receive(receive) => {
                let from = receive.from.map_or(String::new(), |id| {
                    format!(" of {}", self.scenario.subscription(id).id)
                });
                let pattern = receive
                    .message_pattern
                    .as_ref()
                    .map_or(String::new(), |pattern| format!(" that match {pattern}"));
                let timeout = receive
                    .timeout_us
                    .map_or(String::new(), |us| format!(", for {} at most", show_time(us)));
                format!("wait for {} messages{from}{pattern}{timeout}", receive.count)
            }
            Command::For(repeat) => repeat_words(repeat),
            Command::Delay(delay) => delay_words(delay),
            Command::StartTimer(name) => format!("start the timer {name}"),
            Command::StopTimer(name) => format!("stop the timer {name}"),
            Command::Stall { duration_us } => {
                format!("do not read for {}", show_time(*duration_us))
            }
            Command::Fault(fault) => self.fault(fault),
        }
    }

    fn connect(&self, connect: &Connect) -> String {
        let brokers = connect.brokers.iter().map(|id| self.scenario.broker(*id).id.as_str());
        let session = match (connect.clean_start, connect.session_expiry_secs) {
            (true, 0) => "clean start".to_owned(),
            (true, secs) => format!("clean start, session for {secs} s"),
            (false, secs) => format!("session kept, expiry {secs} s (MQTT 5)"),
        };
        let mut out = format!(
            "connect to {}, {session}, keep-alive {} s, timeout {}",
            brokers.collect::<Vec<_>>().join(", "),
            connect.keep_alive_secs,
            show_time(connect.timeout_us)
        );
        if let Some(max) = connect.receive_max {
            let _ = write!(out, ", receive maximum {max}");
        }
        if let Some(will) = &connect.will {
            let topics = &self.scenario.topic_group(will.topics).id;
            let _ = write!(out, ", will to {topics}, QoS {}", u8::from(will.qos));
        }
        let words = [
            (connect.username.is_some(), "with a username"),
            (connect.password.is_some(), "with a password"),
            (!connect.user_properties.is_empty(), "with user properties"),
            (connect.fresh_id, "with a new client ID each time"),
            (connect.reconnect.is_some(), "reconnect after a lost connection"),
        ];
        for (_, word) in words.into_iter().filter(|(is, _)| *is) {
            let _ = write!(out, ", {word}");
        }
        match connect.failover {
            Failover::Listed => {}
            Failover::Off => out.push_str(", always to the same address"),
            Failover::Any => out.push_str(", to any Server Reference"),
        }
        if connect.retries > 0 {
            let pause = show_time(connect.retry_interval_us);
            let _ = write!(out, ", tried {} times more, {pause} apart", connect.retries);
        }
        out
    }

    fn publish(&self, publish: &Publish) -> String {
        let pace = match publish.pace.rate {
            Some(rate) => rate_words(rate),
            None => "unthrottled".to_owned(),
        };
        let mut out = format!(
            "publish to {}{}: QoS {}, {}, {pace}",
            self.scenario.topic_group(publish.topics).id,
            assign_words(publish.assign),
            u8::from(publish.qos),
            payload_words(&publish.payload),
        );
        if let Some(window) = publish.pace.in_flight {
            let _ = write!(out, ", {window} in flight at most");
        }
        if let Some(count) = publish.count {
            let _ = write!(out, ", {count} messages each");
        }
        if let Some(secs) = publish.expiry_secs {
            let _ = write!(out, ", expiry {secs} s");
        }
        if let Some(topics) = publish.reply_to {
            let topics = &self.scenario.topic_group(topics).id;
            let _ = write!(out, ", as a request with the answer on {topics}");
        }
        let words = [
            (publish.retain, "retained"),
            (publish.topic_alias, "with topic aliases"),
            (publish.order == Order::Random, "topics at random"),
            (publish.pace.phase == Phase::Together, "all clients at the same time"),
            (!publish.user_properties.is_empty(), "with user properties"),
            (publish.content_type.is_some(), "with a content type"),
            (publish.payload_format.is_some(), "with a payload format"),
        ];
        for (_, word) in words.into_iter().filter(|(is, _)| *is) {
            let _ = write!(out, ", {word}");
        }
        out
    }

    fn subscribe(&self, subscribe: &Subscribe) -> String {
        let names = subscribe.to.iter().map(|id| self.scenario.subscription(*id).id.as_str());
        let mut out = format!(
            "subscribe to {}, QoS {}",
            names.collect::<Vec<_>>().join(", "),
            u8::from(subscribe.qos)
        );
        if subscribe.ack_delay_us > 0 {
            let _ = write!(out, ", acknowledging after {}", show_time(subscribe.ack_delay_us));
        }
        let words = [
            (subscribe.no_local, "no local"),
            (subscribe.retain_as_published, "retained as published"),
        ];
        for (_, word) in words.into_iter().filter(|(is, _)| *is) {
            let _ = write!(out, ", {word}");
        }
        if let Some(qos) = subscribe.respond {
            let _ = write!(out, ", answering requests at QoS {}", u8::from(qos));
        }
        if subscribe.retain_handling > 0 {
            let _ = write!(out, ", retain handling {}", subscribe.retain_handling);
        }
        if let Some(identifier) = subscribe.identifier {
            let _ = write!(out, ", identifier {identifier}");
        }
        out
    }

    fn subscription(&self, subscription: &Subscription) -> String {
        let what = match &subscription.filters {
            Filters::Topics { topics, prefix } if prefix.is_empty() => {
                format!("the topics {}", self.scenario.topic_group(*topics).id)
            }
            Filters::Topics { topics, prefix } => {
                format!("{prefix} and topics {}", self.scenario.topic_group(*topics).id)
            }
            Filters::Pattern { pattern, offset: from, count, .. } => {
                format!("{count} filters {}{}", pattern.source(), offset(*from))
            }
        };
        let routed = if subscription.routed { ", routed" } else { "" };
        format!("{}: {what}{}{routed}", subscription.id, assign_words(subscription.assign))
    }

    fn fault(&self, fault: &Fault) -> String {
        if let Fault::Cut { group, share } = fault {
            return format!("cut {} % of {}", share * 100.0, self.scenario.group(*group).id);
        }
        let whom = match fault.party() {
            Some(Party::Broker(id)) => self.scenario.broker(id).id.clone(),
            Some(Party::Node(which)) => format!("node {which}"),
            Some(Party::Engine(at)) => format!("engine {at}"),
            None => String::new(),
        };
        let how = match fault {
            Fault::CutLinks { directions: Directions::Out, .. } => ", outgoing",
            Fault::CutLinks { directions: Directions::In, .. } => ", incoming",
            _ => "",
        };
        format!("{} {whom}{how}", fault.name())
    }
}

fn broker_words(broker: &Broker) -> String {
    format!("{}: {} over {}", broker.id, broker.addresses.join(", "), broker.transport)
}

fn group_words(group: &ClientGroup) -> String {
    let version = match group.version {
        Version::V31 => "3.1",
        Version::V311 => "3.1.1",
        Version::V5 => "5",
    };
    let (id, ids) = (&group.id, group.client_ids.source());
    format!("{id}: {}, MQTT {version}, client IDs {ids}{}", group.count, offset(group.offset))
}

fn offset(from: u64) -> String {
    if from == 0 { String::new() } else { format!(" from {from} on") }
}

fn assign_words(assign: Assign) -> String {
    match assign {
        Assign::Pairwise => ", one each".to_owned(),
        Assign::All => ", all to each client".to_owned(),
        Assign::Partition => ", divided among them".to_owned(),
        Assign::Window(each) => format!(", {each} each"),
    }
}

fn rate_words(rate: Rate) -> String {
    // A rate that was scaled has large terms.
    let per_sec = rate.per_sec();
    if per_sec >= 1.0 || rate.per_us > 86_400_000_000 {
        return format!("{} per second and client", round(per_sec));
    }
    format!("one every {} s and client", round(1.0 / per_sec))
}

/// To four digits behind the point, without noughts.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

pub fn payload_words(payload: &Payload) -> String {
    let what = match &payload.content {
        Content::Filler { bytes } => format!("{bytes} B"),
        Content::Random { bytes } => format!("{bytes} B at random"),
        Content::RandomSize { bytes_min, bytes_max } => {
            format!("{bytes_min} to {bytes_max} B at random")
        }
        Content::Fixed(bytes) => format!("the same {} B", bytes.len()),
        Content::Composed { bytes, .. } => format!("{bytes} B of a template"),
    };
    if payload.stamped { what } else { format!("{what} without a stamp") }
}

fn repeat_words(repeat: &Repeat) -> String {
    let times = repeat.times.map_or("until the stage ends".to_owned(), |n| format!("{n} times"));
    let pace = repeat.rate.map_or(String::new(), |rate| format!(", {}", rate_words(rate)));
    format!("repeat {times}{pace}")
}

fn delay_words(delay: &Delay) -> String {
    let time = show_time(delay.duration_us);
    match delay.spread {
        Spread::None => format!("wait {time}"),
        Spread::Linear => format!("start one after another over {time}"),
        Spread::LinearDown => format!("start one after another over {time}, the last one first"),
        Spread::Random => format!("start at random within {time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;
    use crate::scenario::Choice;

    #[test]
    fn what_ran_is_told_and_not_what_was_written() {
        let scenario = catalogue::find("MB-E1", &Choice::default()).unwrap().scenario;
        let mut changed = scenario.scaled(0.02).with_duration(7_000_000).with_ramps(3_000_000);
        changed.seed = 77;
        let (before, after) = (words(&scenario), words(&changed));
        for (was, is) in [(": 50000,", ": 1000,"), ("30m, measured", "7s, measured")] {
            assert!(before.contains(was) && !after.contains(was), "{was}\n{before}\n{after}");
            assert!(after.contains(is), "{is}\n{after}");
        }
        let warmed = changed.with_margins();
        let margins = "7s, measured, after a warm-up of 700ms and before a cool-down of 700ms";
        assert!(!after.contains("warm-up") && words(&warmed).contains(margins), "{after}");
        assert_eq!(parameters(&warmed)["warm-up of publish"], "700ms");
        assert!(after.contains("scale 0.02, seed 77") && after.contains("over 3s"), "{after}");
    }

    #[test]
    fn every_built_in_scenario_has_words() {
        for entry in catalogue::entries() {
            let scenario = entry.load().unwrap().scenario;
            let text = words(&scenario);
            let stages = text.lines().filter(|line| line.starts_with("stage ")).count();
            assert_eq!(stages, scenario.stages.len(), "{text}");
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
