//! What happens to streams and rules, as log lines and life-cycle events.

use std::sync::Arc;

use base::Clock;
use broker::streams::{ConsumerNumber, StreamNumber};
use routing::definitions::DEFAULT_NAMESPACE;
use serde_json::{Value, json};
use session::Message;
use streams::{Happening, State};

use super::figures::Names;
use crate::life_cycle::line_pace::LinePace;
use crate::life_cycle::table::{self, EventKind};
use crate::life_cycle::{Happened, LifeCycle, Subject};

/// Where happenings are reported.
pub(crate) struct Reporter {
    pub(crate) life_cycle: Arc<LifeCycle>,
    pub(crate) lines: Arc<LinePace>,
    /// Publishes an event.
    pub(crate) publish: Box<dyn Fn(Message) + Send>,
    pub(crate) clock: Clock,
}

impl Reporter {
    /// Logs what happened, and publishes it. The reasons are those of targets, and name no secret.
    pub(super) fn report(&self, happening: &Happening, names: &Names) {
        let Some((kind, stream, data)) = described(happening, names) else {
            if *happening == Happening::StreamsSet {
                tracing::debug!("all shards have the streams");
            }
            return;
        };
        let spec = names.streams.get(&stream);
        let namespace = spec.map_or(DEFAULT_NAMESPACE, |spec| &spec.namespace);
        let mut happened = Happened::of_broker(kind, data);
        happened.namespace = Some(namespace.into());
        happened.data["namespace"] = namespace.into();
        happened.data["stream"] = names.stream(stream).into();
        let now_ms = self.clock.now_ms();
        if Subject::of_routing(&happened).is_none_or(|it| self.lines.allows_of(it, 1, now_ms)) {
            happened.log();
        }
        // A stream that stores such events would cause further events for ever.
        let topic = kind.topic("events");
        let is_stored = spec
            .is_some_and(|spec| spec.filters.iter().any(|filter| topic::matches(filter, &topic)));
        let message = self.life_cycle.on_paced(&happened, now_ms).filter(|_| !is_stored);
        if let Some(message) = message {
            (self.publish)(message);
        }
    }
}

/// The kind of event, the stream that it is about, and its data without namespace and stream.
/// None: there is no event.
fn described(
    happening: &Happening,
    names: &Names,
) -> Option<(&'static EventKind, StreamNumber, Value)> {
    let rule = |number: ConsumerNumber| names.consumer(number);
    let of_rule = |number: ConsumerNumber| {
        let facts = names.consumers.get(&number);
        let name = facts.map(|facts| &*facts.spec.stream).unwrap_or_default();
        let mut all = names.streams.iter();
        all.find(|(_, spec)| spec.name == name).map_or(StreamNumber(u32::MAX), |(own, _)| *own)
    };
    Some(match happening {
        Happening::State { consumer, name, state } => {
            let data = json!({ "rule": &**name, "state": state.name(), "reason": state.reason() });
            (kind_of_state(state)?, of_rule(*consumer), data)
        }
        Happening::Started { consumer, run } => {
            let data = json!({ "rule": rule(*consumer), "run": run });
            (&table::RULE_STARTED, of_rule(*consumer), data)
        }
        Happening::Ended { consumer } => {
            (&table::RULE_REMOVED, of_rule(*consumer), json!({ "rule": rule(*consumer) }))
        }
        Happening::Dropped { consumer, shard, ordinals, count, outcome } => {
            let data = json!({
                "rule": rule(*consumer),
                "reason": outcome.name(),
                "count": count,
                "shard": shard,
                "first": ordinals.start,
                "next": ordinals.end,
            });
            (&table::RULE_MESSAGES_DROPPED, of_rule(*consumer), data)
        }
        Happening::Undelivered { consumer, stream, reason, attempts, answer, record } => {
            let data = json!({
                "rule": rule(*consumer),
                "reason": reason.name(),
                "attempts": attempts,
                "detail": answer,
                "dead_letter": stream.map(|stream| names.stream(stream)),
                "shard": record.shard,
                "first": record.ordinal,
            });
            (&table::RULE_NOT_DELIVERED, of_rule(*consumer), data)
        }
        Happening::WriteFault { stream, fault } => {
            (&table::STREAM_WRITE_FAILED, *stream, json!({ "detail": fault }))
        }
        Happening::WriteResumed { stream } => (&table::STREAM_WRITE_RESUMED, *stream, json!({})),
        Happening::Broken { stream, shard, detail } => {
            (&table::STREAM_STOPPED, *stream, json!({ "shard": shard, "detail": detail }))
        }
        Happening::Full { stream, is_full: true } => (&table::STREAM_FULL, *stream, json!({})),
        Happening::Full { stream, is_full: false } => (&table::STREAM_ACCEPTS, *stream, json!({})),
        Happening::StreamsSet => return None,
    })
}

/// A start is reported when the rule reads.
fn kind_of_state(state: &State) -> Option<&'static EventKind> {
    match state {
        State::Starting => None,
        State::Paused | State::Suspended | State::Ending => Some(&table::RULE_RESTS),
        state if state.is_waiting() => Some(&table::RULE_WAITS),
        _ => Some(&table::RULE_DELIVERS),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc::channel;

    use broker::{Homes, Settings, Shared};
    use config::{Config, Machine};
    use data::Numbers;
    use routing::Outcome;
    use routing::dispatch::{DeadReason, RecordId};

    use super::*;

    const RULES: &str = r#"
[[streams]]
name = "plants"
filters = ["plants/#"]
[[streams]]
name = "events"
filters = ["$SYS/events/#"]
[[targets]]
name = "hook"
type = "http"
url = "https://example.com/in"
[[rules]]
name = "alarms"
stream = "plants"
filter = "plants/#"
target = "hook"
[[rules]]
name = "all"
stream = "events"
filter = "$SYS/#"
target = "hook"
"#;

    fn names() -> Names {
        let definitions = routing::definitions::parse(RULES).unwrap();
        let mut numbers = Numbers::default();
        numbers.set(["plants", "events"], ["alarms", "all"]).unwrap();
        Names::new(&numbers, &definitions)
    }

    fn happenings(stream: StreamNumber, consumer: ConsumerNumber) -> Vec<Happening> {
        let record = RecordId { shard: 0, ordinal: 3 };
        let state = |state| Happening::State { consumer, name: "alarms".into(), state };
        let undelivered = |stream, reason| {
            let answer = "422 Unprocessable Content".into();
            Happening::Undelivered { consumer, record, stream, reason, attempts: 1, answer }
        };
        let (shard, ordinals, outcome) = (0, 3..7, Outcome::DroppedByRetention);
        vec![
            state(State::Running),
            state(State::Paused),
            state(State::Suspended),
            state(State::Ending),
            state(State::Probation { until_ms: 9, reason: "connection refused".into() }),
            Happening::Started { consumer, run: 1 },
            Happening::Ended { consumer },
            Happening::Dropped { consumer, shard, ordinals, count: 4, outcome },
            undelivered(Some(stream), DeadReason::Refused),
            undelivered(None, DeadReason::AttemptsUsedUp),
            Happening::WriteFault { stream, fault: "I/O error".into() },
            Happening::WriteResumed { stream },
            Happening::Broken { stream, shard, detail: "records are missing" },
            Happening::Full { stream, is_full: true },
            Happening::Full { stream, is_full: false },
        ]
    }

    #[test]
    fn every_happening_has_the_fields_of_its_kind() {
        let mut kinds = BTreeSet::new();
        for happening in happenings(StreamNumber(1), ConsumerNumber(1)) {
            let (kind, stream, data) = described(&happening, &names()).unwrap();
            assert_eq!(stream, StreamNumber(1), "{happening:?}");
            let own = data.as_object().unwrap().keys().map(String::as_str);
            let found: BTreeSet<&str> = own.chain(["namespace", "stream"]).collect();
            assert_eq!(found, kind.fields.split(", ").collect(), "{happening:?}");
            kinds.insert(kind.name);
        }
        let is_ours =
            |kind: &&&EventKind| kind.name.starts_with("rule.") || kind.name.starts_with("stream.");
        let all = table::EVENT_KINDS.iter().filter(is_ours).map(|kind| kind.name);
        assert_eq!(kinds, all.collect());
        let starting = State::Starting;
        assert!(kind_of_state(&starting).is_none(), "the event follows when it reads");
    }

    #[test]
    fn a_stream_of_events_causes_none() {
        let config = Config { events: config::Events { sys: true, ..events() }, ..defaults() };
        let shared = Shared::new(Settings::default(), Homes::of_one_cell(1), 1);
        let clock = Clock::start();
        let life_cycle = Arc::new(LifeCycle::new(&config.events, &shared, clock));
        let interest = &shared.interest;
        let mut counts = topic::InterestCounts::new(0, interest);
        counts.add(interest, "$SYS/events/#", topic::Claim::Want);
        let (published, got) = channel();
        let publish = Box::new(move |message| published.send(message).unwrap());
        let reporter = Reporter { life_cycle, lines: Arc::default(), publish, clock };
        let all = happenings(StreamNumber(2), ConsumerNumber(2));
        all.iter().for_each(|happening| reporter.report(happening, &names()));
        assert_eq!(got.try_iter().count(), 0, "each would cause the next one");
        let all = happenings(StreamNumber(1), ConsumerNumber(1));
        all.iter().for_each(|happening| reporter.report(happening, &names()));
        assert_eq!(got.try_iter().count(), all.len());
    }

    fn defaults() -> Config {
        Config::defaults(&Machine::UNKNOWN)
    }

    fn events() -> config::Events {
        defaults().events
    }
}
