//! `[[rules]]`.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::DeValue;

use super::reader::{Origin, Reader, Table, given};
use super::{
    Definitions, HeaderValueSpec, Named, Order, RETRIES_MAX, RuleSpec, Start, StreamSpec,
    TargetKind, TargetSpec,
};
use crate::condition::{Condition, Part, RawCondition};
use crate::dispatch::DispatchRules;
use crate::enrich::{Enrichment, Enrichments, Template};
use crate::event::PayloadReading;
use crate::form::Form;
use crate::property::Property;
use crate::rule::{Destination, Draft, Rule, Target};

const KEYS: [&str; 21] = [
    "name",
    "enabled",
    "stream",
    "start",
    "filter",
    "conditions",
    "enrichments",
    "payload",
    "form",
    "target",
    "topic",
    "key",
    "order",
    "lanes",
    "in_flight_max",
    "batch_messages_max",
    "batch_bytes_max",
    "attempts_max",
    "retry_secs",
    "skip_expired",
    "dead_letter",
];
const CONDITION_KEYS: [&str; 4] = ["key", "operator", "value", "values"];
const KAFKA_KEYS: [&str; 2] = ["topic", "key"];

/// The default key of a Kafka record: no key, no order.
const DEFAULT_KEY: &str = "${mqtt.message.topicName}";

/// Batches under way.
const LANES_LIMIT: u64 = 256;
const IN_FLIGHT_LIMIT: u64 = 100_000;
const BATCH_MESSAGES_LIMIT: u64 = 10_000;
const BATCH_BYTES_LIMIT: u64 = 64 << 20;
const ATTEMPTS_LIMIT: u64 = 1_000;
/// A week.
const RETRY_SECS_LIMIT: u64 = 7 * 86_400;

/// What rules may refer to.
pub(super) struct Known<'k> {
    /// Also those that could not be read, which has been reported.
    streams: BTreeSet<&'k str>,
    target_names: BTreeSet<&'k str>,
    targets: BTreeMap<&'k str, &'k TargetSpec>,
}

impl<'k> Known<'k> {
    pub(super) fn new(
        streams: &'k Named<'_, StreamSpec>,
        targets: &'k Named<'_, TargetSpec>,
        base: &'k Definitions,
    ) -> Self {
        let own = targets.entries.iter().map(|(_, target)| target);
        let by_name = own.chain(&base.targets).map(|target| (&*target.name, target));
        let of_base = base.streams.iter().map(|stream| &*stream.name);
        let target_names = base.targets.iter().map(|target| &*target.name);
        Self {
            streams: streams.names.iter().map(|name| &**name).chain(of_base).collect(),
            target_names: targets.names.iter().map(|name| &**name).chain(target_names).collect(),
            targets: by_name.collect(),
        }
    }

    /// None: it has been reported why.
    pub(super) fn rule(
        &self,
        reader: &mut Reader<'_>,
        table: &Table<'_>,
        name: String,
    ) -> Option<RuleSpec> {
        reader.check_keys(table, &KEYS);
        let before = reader.count_of_problems();
        let enrichments = enrichments(reader, table);
        let conditions = conditions(reader, table, &enrichments);
        let readings = [("declared", PayloadReading::Declared), ("json", PayloadReading::Json)];
        let properties = self.properties(reader, table, &enrichments);
        let draft = Draft {
            name,
            is_enabled: reader.flag(table, "enabled").unwrap_or(true),
            filter: reader.required_text(table, "filter"),
            conditions,
            enrichments,
            form: reader.word(table, "form", &Form::WORDS).unwrap_or_default(),
            payload: reader.word(table, "payload", &readings).unwrap_or_default(),
            properties,
            target: self.target(reader, table),
        };
        let stream = self.stream(reader, table);
        let dead_letter = reader.text(table, "dead_letter");
        if let Some(name) = &dead_letter
            && !self.streams.contains(&**name)
        {
            reader.problem_at(table, "dead_letter", format!("no stream is named '{name}'"));
        }
        let starts = [("new", Start::New), ("beginning", Start::Beginning)];
        let start = reader.word(table, "start", &starts).unwrap_or_default();
        let skip_expired = reader.flag(table, "skip_expired").unwrap_or(false);
        let dispatch = dispatch(reader, table);
        let orders = [("topic", Order::Topic), ("none", Order::None)];
        let order = reader.word(table, "order", &orders);
        // What is missing or wrong has been reported.
        if reader.count_of_problems() > before {
            return None;
        }
        let is_kafka = matches!(&draft.target, Some(target) if target.destination.is_kafka());
        let usual = if is_kafka { Order::Topic } else { Order::None };
        let order = order.unwrap_or(usual);
        let stream = stream?;
        match Rule::new(draft) {
            Ok(rule) => {
                Some(RuleSpec { rule, stream, start, dead_letter, skip_expired, dispatch, order })
            }
            Err(error) => {
                let key = error.key.strip_prefix("target.").unwrap_or(error.key);
                reader.problem_at(table, key, error.detail);
                None
            }
        }
    }

    /// The stream of a rule: the only one, unless it names one.
    fn stream(&self, reader: &mut Reader<'_>, table: &Table<'_>) -> Option<String> {
        let Some(_) = table.get("stream") else {
            // What an API adds later must not change what this rule reads.
            if reader.origin == Origin::File
                && let (Some(only), 1) = (self.streams.first(), self.streams.len())
            {
                return Some((*only).to_owned());
            }
            let detail = match (self.streams.is_empty(), reader.origin) {
                (_, Origin::Api) => "missing: must be the name of a stream",
                (true, Origin::File) => {
                    "missing: add [[streams]] to the file, from which rules read"
                }
                (false, Origin::File) => {
                    "missing: must be the name of a stream, as there are several"
                }
            };
            reader.problem_at(table, "stream", detail.into());
            return None;
        };
        let name = reader.text(table, "stream")?;
        if !self.streams.contains(&*name) {
            reader.problem_at(table, "stream", format!("no stream is named '{name}'"));
            return None;
        }
        Some(name)
    }

    /// Headers of the target that its requests do not have in any case: those with values of
    /// events, and all of Kafka.
    fn properties(
        &self,
        reader: &mut Reader<'_>,
        table: &Table<'_>,
        enrichments: &Enrichments,
    ) -> Vec<Property> {
        let name = table.get("target").and_then(|value| value.get_ref().as_str());
        let spec = name.and_then(|name| self.targets.get(name));
        let (headers, is_kafka) = match spec.map(|spec| &spec.kind) {
            Some(TargetKind::Http(http)) => (&http.headers, false),
            Some(TargetKind::Kafka(kafka)) => (&kafka.headers, true),
            None => return Vec::new(),
        };
        let mut all = Vec::new();
        for header in headers {
            let path = match &header.value {
                HeaderValueSpec::Path(path) => path,
                HeaderValueSpec::Text(text) if is_kafka => {
                    all.extend(Property::fixed(&header.name, text));
                    continue;
                }
                HeaderValueSpec::Text(_) | HeaderValueSpec::File(_) => continue,
            };
            match Property::new(&header.name, path, enrichments) {
                Ok(property) => all.push(property),
                // It has been reported at the target.
                Err(_) if reader.count_of_problems() > 0 => {}
                Err(error) => reader.problem_at(table, "target", error.detail),
            }
        }
        all
    }

    fn target(&self, reader: &mut Reader<'_>, table: &Table<'_>) -> Option<Target> {
        let Some(value) = table.get("target") else {
            let detail = "missing: must be the name of a target";
            reader.problem_at(table, "target", detail.into());
            return None;
        };
        let Some(name) = value.get_ref().as_str() else {
            let detail = format!(
                "must be the name of a target in [[targets]], got {}",
                value.get_ref().type_str()
            );
            reader.problem_at(table, "target", detail);
            return None;
        };
        if !self.target_names.contains(name) {
            reader.problem_at(table, "target", format!("no target is named '{name}'"));
        }
        let spec = self.targets.get(name)?;
        let destination = match &spec.kind {
            TargetKind::Http(http) => {
                for other in KAFKA_KEYS.iter().filter(|other| table.get(other).is_some()) {
                    let detail = format!("needs a target of type kafka: '{name}' is http");
                    reader.problem_at(table, other, detail);
                }
                Destination::Http { url: http.url.clone() }
            }
            TargetKind::Kafka(_) => {
                let topic = reader.required_text(table, "topic");
                let key = reader.text(table, "key").unwrap_or_else(|| DEFAULT_KEY.into());
                let key = Template::parse(&key).map_err(|error| {
                    reader.problem_at(table, "key", error.to_string());
                });
                Destination::Kafka { topic, key: key.ok()? }
            }
        };
        Some(Target { name: name.into(), destination })
    }
}

fn dispatch(reader: &mut Reader<'_>, table: &Table<'_>) -> DispatchRules {
    let usual = DispatchRules::default();
    let mut count = |name, limit, usual: usize| {
        reader.count(table, name, 1..=limit).map_or(usual, |count| count as usize)
    };
    let lanes = count("lanes", LANES_LIMIT, usual.lanes);
    let in_flight_max = count("in_flight_max", IN_FLIGHT_LIMIT, usual.in_flight_max);
    let messages = count("batch_messages_max", BATCH_MESSAGES_LIMIT, usual.batch_records_max);
    let attempts_max = count("attempts_max", ATTEMPTS_LIMIT, usual.attempts_max as usize);
    let bytes = reader.size(table, "batch_bytes_max", 1..=BATCH_BYTES_LIMIT);
    let retries = reader.numbers(table, "retry_secs", RETRIES_MAX, 1..=RETRY_SECS_LIMIT);
    if retries.as_ref().is_some_and(Vec::is_empty) {
        reader.problem_at(table, "retry_secs", "must have at least one number".into());
    }
    DispatchRules {
        lanes,
        in_flight_max,
        batch_records_max: messages,
        batch_bytes_max: bytes.map_or(usual.batch_bytes_max, |bytes| bytes as usize),
        attempts_max: attempts_max as u32,
        retry_after_ms: retries
            .map_or(usual.retry_after_ms, |all| all.into_iter().map(|secs| 1_000 * secs).collect()),
        probation_ms: usual.probation_ms,
    }
}

fn conditions(
    reader: &mut Reader<'_>,
    rule: &Table<'_>,
    enrichments: &Enrichments,
) -> Vec<Condition> {
    let mut all = Vec::new();
    if rule.get("conditions").is_none() {
        return all;
    }
    for table in reader.list(rule, "conditions").unwrap_or_default() {
        reader.check_keys(&table, &CONDITION_KEYS);
        let before = reader.count_of_problems();
        let raw = RawCondition {
            key: reader.required_text(&table, "key"),
            operator: reader.required_text(&table, "operator"),
            value: table.get("value").map(|value| given(value.get_ref())),
            values: table.get("values").map(|value| given(value.get_ref())),
        };
        if reader.count_of_problems() > before {
            continue;
        }
        match Condition::new(&raw, enrichments) {
            Ok(condition) => all.push(condition),
            Err(error) => {
                let key = match error.part {
                    Part::Key => "key",
                    Part::Operator => "operator",
                    Part::Value => "value",
                    Part::Values => "values",
                };
                reader.problem_at(&table, key, error.detail);
            }
        }
    }
    all
}

fn enrichments(reader: &mut Reader<'_>, rule: &Table<'_>) -> Enrichments {
    let Some(table) = reader.table(rule, "enrichments") else { return Enrichments::default() };
    let mut all = Vec::new();
    for (key, value) in table.table.iter() {
        let name: &str = key.get_ref();
        let DeValue::String(text) = value.get_ref() else {
            let detail = format!("must be a text, got {}", value.get_ref().type_str());
            reader.problem(value.span().start, &table.key(name), detail);
            continue;
        };
        match Enrichment::parse(name, text) {
            Ok(enrichment) => all.push(enrichment),
            Err(error) => {
                reader.problem(key.span().start, &table.key(name), error.to_string());
            }
        }
    }
    Enrichments::new(all).unwrap_or_else(|error| {
        reader.problem(table.span.start, &table.path, error.to_string());
        Enrichments::default()
    })
}
