//! Each kind of event as a log line, below `$SYS/broker/events/` and as a CloudEvent.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::{Arc, Mutex};

use broker::Settings;
use serde_json::{Value, json};
use topic::{Claim, InterestCounts};

use super::happened::tests::{examples, refused};
use super::*;
use config::{Config, Machine};

/// Fields of `data` that log lines leave out: they repeat others, or are for programs.
const NOT_LOGGED: [&str; 5] =
    ["sequence_number", "disconnection_reason", "reason_code", "session_expiry_secs", "filters"];

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that are written, in JSON.
fn logged(work: impl FnOnce()) -> Vec<Value> {
    let sink = Sink::default();
    let writer = sink.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, work);
    let bytes = sink.0.lock().unwrap().clone();
    let lines = String::from_utf8(bytes).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn life_cycle() -> LifeCycle {
    let config = Config::defaults(&Machine::here()).events;
    LifeCycle::new(
        &config,
        &Shared::new(Settings::default(), broker::Homes::of_one_cell(1), 1),
        Clock::start(),
    )
}

/// All that is reported of the examples.
fn reported() -> Vec<Happened<'static>> {
    let events: &'static [Event] = Box::leak(examples().into_boxed_slice());
    let refused = Box::leak(Box::new(refused("c", "u")));
    let of_shards = events.iter().flat_map(|event| happened::of(event, "red"));
    of_shards.chain([refused.happened()]).collect()
}

fn fields(kind: &EventKind) -> BTreeSet<&str> {
    kind.fields.split(", ").collect()
}

#[test]
fn every_kind_has_the_fields_of_the_table_in_all_renderings() {
    let life_cycle = life_cycle();
    let mut seen = HashSet::new();
    for happened in reported() {
        let kind = happened.kind;
        seen.insert(kind.name);
        let data = happened.data.as_object().unwrap();
        assert_eq!(data.keys().map(String::as_str).collect::<BTreeSet<_>>(), fields(kind));
        let event = life_cycle.cloud_event("1-1", &happened);
        assert_eq!(event["type"], format!("quelea.{}", kind.name));
        assert_eq!(event["data"], happened.data);
        let lines = logged(|| happened.log());
        assert_eq!(lines.len(), usize::from(kind.line.is_some()), "{}", kind.name);
        let Some((level, text)) = kind.line else { continue };
        let line = &lines[0];
        assert_eq!(line["message"], text);
        assert_eq!(line["level"], level.as_str());
        for (name, value) in data.iter().filter(|(name, _)| !NOT_LOGGED.contains(&name.as_str())) {
            assert_eq!(line.get(name).unwrap_or(&Value::Null), value, "{}: {name}", kind.name);
        }
    }
    let elsewhere = ["ban.", "bridge.", "certificate.", "cluster.", "events.", "rule.", "stream."];
    let of_shards =
        EVENT_KINDS.iter().filter(|kind| !elsewhere.iter().any(|it| kind.name.starts_with(it)));
    assert_eq!(seen, of_shards.map(|kind| kind.name).collect());
}

#[test]
fn every_field_of_the_table_has_a_place_in_log_lines() {
    for kind in EVENT_KINDS.iter().filter(|kind| kind.line.is_some()) {
        let data = fields(kind).into_iter().map(|name| (name.to_owned(), json!("x"))).collect();
        let happened = Happened::of_broker(kind, Value::Object(data));
        let line = logged(|| happened.log()).remove(0);
        let own = fields(kind).into_iter().filter(|name| !NOT_LOGGED.contains(name));
        for name in own {
            assert_eq!(line[name], "x", "{}: {name}", kind.name);
        }
    }
}

#[test]
fn a_line_leaves_out_what_has_no_value_and_cuts_long_texts() {
    let client_id = "x".repeat(200).into();
    let purged = Event::SessionPurged { client_id, username: None };
    let all: Vec<_> = happened::of(&purged, DEFAULT).collect();
    let line = logged(|| all[0].log()).remove(0);
    assert!(line.get("namespace").is_none() && line.get("username").is_none(), "{line}");
    assert_eq!(line["client_id"], format!("{}… (200 bytes)", "x".repeat(100)));
}

#[test]
fn lost_messages_are_published_below_sys_if_there_is_a_subscriber() {
    let life_cycle = life_cycle();
    let published = |life_cycle: &LifeCycle| {
        let mut topics = Vec::new();
        for event in examples() {
            life_cycle.on_event(&event, "red", &LinePace::default(), 1, |message| {
                let body: Value = serde_json::from_slice(message.payload()).unwrap();
                assert_eq!(body["namespace"], "red");
                topics.push(message.topic().to_owned());
            });
        }
        topics.sort_unstable();
        topics.dedup();
        topics
    };
    assert_eq!(published(&life_cycle), [""; 0]);
    let interest = &life_cycle.shared.interest;
    InterestCounts::new(0, interest).add(interest, "$SYS/broker/events/#", Claim::Want);
    let mut table: Vec<_> = EVENT_KINDS.iter().filter_map(|kind| kind.sys_topic()).collect();
    table.sort_unstable();
    assert_eq!(published(&life_cycle), table);
}

#[test]
fn rows_of_one_name_stand_together_and_have_the_same_fields() {
    let mut names = HashSet::new();
    for rows in EVENT_KINDS.chunk_by(|a, b| a.name == b.name) {
        assert!(names.insert(rows[0].name), "{}", rows[0].name);
        assert!(rows.iter().all(|row| row.fields == rows[0].fields));
        assert!(!rows[0].when.is_empty() && rows[1..].iter().all(|row| row.when.is_empty()));
    }
}

#[test]
fn a_flood_of_refused_log_ins_leaves_room_for_other_events() {
    let config = Config::defaults(&Machine::here()).events;
    let life_cycle = life_cycle();
    let mut reading = life_cycle.readers.add(Caller::always("me"), Wanted::default()).unwrap();
    let refuse = |number: u32, client_id: &str, address: &str| {
        let address = format!("{address}:{number}");
        let refused = ClientRefused { address: &address, ..refused(client_id, "u") };
        life_cycle.on_refused(&refused, false, 5_000);
    };
    let mut reported = |kind: &str| {
        let all = std::iter::from_fn(|| reading.queue.try_recv().ok());
        let of_kind = format!("event: quelea.{kind}\n");
        all.filter(|bytes| String::from_utf8_lossy(bytes).contains(&of_kind)).count()
    };
    let share = config.per_second_max.div_ceil(REFUSALS_PART) as usize;
    (1..=1_000).for_each(|number| refuse(number, "victim", "10.0.0.1"));
    assert_eq!(reported("client.refused"), share.div_ceil(4), "of one address");
    for number in 1..=10_000 {
        refuse(number, "victim", &format!("10.1.{}.{}", number / 256, number % 256));
    }
    assert_eq!(reported("client.refused"), share - share.div_ceil(4));
    for _ in 0..config.per_client_per_second_max {
        let client_id = "victim".into();
        let purged = Event::SessionPurged { client_id, username: None };
        life_cycle.on_event(&purged, DEFAULT, &LinePace::default(), 5_000, |_| {});
    }
    assert_eq!(reported("session.purged"), config.per_client_per_second_max as usize);
    assert_eq!(life_cycle.withheld(), 11_000 - share as u64);
}
