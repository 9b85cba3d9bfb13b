//! The streams and consumers of a world, as its seed throws them.

use std::sync::Arc;

use broker::streams::{ConsumerNumber, StreamNumber, StreamSettings};
use broker::{Durability, Scope};
use routing::rule::Draft;
use routing::{Condition, DispatchRules, Enrichments, Form, Given, RawCondition, Rule};
use storage::stream::StreamLimits;
use streams::{ConsumerDefinition, Full, HubSettings, Order, Start, StreamDefinition};

use crate::dice::pick;
use crate::random::Random;

/// A stream of a world.
#[derive(Clone, Debug)]
pub(crate) struct StreamPlan {
    pub(crate) number: u32,
    pub(crate) filters: Vec<&'static str>,
    pub(crate) qos_min: u8,
    pub(crate) retain: Option<bool>,
    pub(crate) payload_bytes_max: usize,
    pub(crate) level: Durability,
    pub(crate) limits: StreamLimits,
    pub(crate) full: Full,
}

/// A consumer of a world.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerPlan {
    pub(crate) number: u32,
    pub(crate) stream: u32,
    pub(crate) filter: &'static str,
    /// Only topics with this end.
    pub(crate) topic_end: Option<&'static str>,
    pub(crate) skip_expired: bool,
    pub(crate) dead_letter: Option<u32>,
    pub(crate) order: Order,
    pub(crate) start: Start,
    pub(crate) dispatch: DispatchRules,
    /// Its target refuses one of so many. 0: none.
    pub(crate) refused_of: u64,
}

/// The stream that dead letters go to.
pub(crate) const DEAD_LETTERS: u32 = 90;

const FILTERS: [&str; 10] =
    ["#", "t/#", "t/#", "t/+/1", "t/0/0", "t/+/+", "r/#", "g/#", "w/#", "t/1/#"];

impl StreamPlan {
    pub(crate) fn any(number: u32, random: &mut Random) -> Self {
        let count = 1 + random.below(2);
        let filters = (0..count).map(|_| pick(&FILTERS, random)).collect();
        let rare = |random: &mut Random| random.chance(20);
        let has_limits = random.chance(40);
        let retain = rare(random).then(|| random.chance(50));
        let payload_bytes_max = if rare(random) { 200 } else { 1 << 20 };
        let full = if has_limits && random.chance(30) { Full::Reject } else { Full::DropOldest };
        Self {
            number,
            filters,
            qos_min: if random.chance(70) { 0 } else { 1 + random.below(2) as u8 },
            retain,
            payload_bytes_max,
            level: pick(&[Durability::Disk, Durability::Fsync], random),
            limits: limits(has_limits, random),
            full,
        }
    }

    /// It takes dead letters only.
    pub(crate) fn of_dead_letters(random: &mut Random) -> Self {
        Self {
            number: DEAD_LETTERS,
            filters: Vec::new(),
            qos_min: 0,
            retain: None,
            payload_bytes_max: 1 << 20,
            level: pick(&[Durability::Disk, Durability::Fsync], random),
            limits: limits(false, random),
            full: Full::DropOldest,
        }
    }

    /// May it lose records to its limits?
    pub(crate) const fn may_drop(&self) -> bool {
        let limits = &self.limits;
        limits.records_max.is_some()
            || limits.bytes_max.is_some()
            || limits.age_ms_max.is_some()
            || limits.consumed
    }

    /// May it lose records that a consumer has not passed?
    pub(crate) fn may_drop_unread(&self) -> bool {
        self.may_drop() && !self.limits.consumed && self.full == Full::DropOldest
    }

    /// Does it take such a message?
    pub(crate) fn takes(&self, topic: &str, qos: u8, is_retained: bool, bytes: usize) -> bool {
        self.filters.iter().any(|filter| topic::matches(filter, topic))
            && qos >= self.qos_min
            && self.retain.is_none_or(|retain| retain == is_retained)
            && bytes <= self.payload_bytes_max
    }

    pub(crate) fn settings(&self) -> StreamSettings {
        StreamSettings {
            number: StreamNumber(self.number),
            scope: Scope::FIRST,
            filters: self.filters.iter().map(|filter| (*filter).into()).collect(),
            qos_min: self.qos_min,
            retain: self.retain,
            payload_bytes_max: self.payload_bytes_max,
            level: self.level,
            is_full: Arc::default(),
        }
    }

    pub(crate) const fn identity(&self) -> [u8; 16] {
        [self.number as u8; 16]
    }

    pub(crate) fn definition(&self) -> StreamDefinition {
        StreamDefinition {
            number: StreamNumber(self.number),
            name: format!("stream-{}", self.number).into(),
            limits: self.limits,
            full: self.full,
            identity: self.identity(),
        }
    }
}

fn limits(has_some: bool, random: &mut Random) -> StreamLimits {
    let file_bytes = pick(&[600, 2_000, 6_000, 20_000], random);
    let mut limits = StreamLimits { file_bytes, ..StreamLimits::default() };
    if has_some {
        match random.below(4) {
            0 => limits.records_max = Some(10 + random.below(60) as u64),
            1 => limits.bytes_max = Some(2_000 + random.below(20_000) as u64),
            2 => limits.age_ms_max = Some(2_000 + random.below(60_000) as u64),
            _ => limits.consumed = true,
        }
    }
    limits
}

impl ConsumerPlan {
    pub(crate) fn any(number: u32, stream: &StreamPlan, random: &mut Random) -> Self {
        let own = stream.filters.first().copied().unwrap_or("#");
        let filter = if random.chance(60) { own } else { pick(&FILTERS, random) };
        let topic_end = random.chance(25).then(|| pick(&["0", "1", "2"], random));
        let has_dead_letter = stream.number != DEAD_LETTERS && random.chance(60);
        let attempts_max = pick(&[3, 1_000_000, 1_000_000], random);
        Self {
            number,
            stream: stream.number,
            filter,
            topic_end,
            skip_expired: random.chance(30),
            dead_letter: has_dead_letter.then_some(DEAD_LETTERS),
            order: if random.chance(80) { Order::Lanes } else { Order::None },
            start: if random.chance(50) { Start::Beginning } else { Start::New },
            dispatch: DispatchRules {
                lanes: pick(&[1, 2, 8], random),
                batch_records_max: pick(&[1, 3, 500], random),
                batch_bytes_max: pick(&[600, 512 << 10], random),
                in_flight_max: pick(&[2, 20, 10_000], random),
                attempts_max,
                retry_after_ms: vec![10, 100, 1000],
                probation_ms: (50, 1000),
            },
            refused_of: pick(&[0, 3, 7], random),
        }
    }

    /// Is the topic one that it wants?
    pub(crate) fn matches(&self, topic: &str) -> bool {
        topic::matches(self.filter, topic)
    }

    /// Does its condition hold?
    pub(crate) fn holds(&self, topic: &str) -> bool {
        self.topic_end.is_none_or(|end| topic.ends_with(end))
    }

    pub(crate) fn name(&self) -> String {
        format!("consumer-{}", self.number)
    }

    pub(crate) fn definition(&self) -> ConsumerDefinition {
        let enrichments = Enrichments::default();
        let raw = self.topic_end.map(|end| RawCondition {
            key: "subject".into(),
            operator: "StringEndsWith".into(),
            value: None,
            values: Some(Given::List(vec![Given::Text(end.into())])),
        });
        let condition = |raw: RawCondition| match Condition::new(&raw, &enrichments) {
            Ok(condition) => condition,
            Err(error) => panic!("{error}"),
        };
        let draft = Draft {
            name: self.name(),
            is_enabled: true,
            filter: self.filter.into(),
            conditions: raw.into_iter().map(condition).collect(),
            form: Form::Raw,
            ..Draft::default()
        };
        let rule = match Rule::new(draft) {
            Ok(rule) => Arc::new(rule),
            Err(error) => panic!("{error}"),
        };
        ConsumerDefinition {
            number: ConsumerNumber(self.number),
            name: self.name().into(),
            stream: StreamNumber(self.stream),
            namespace: "sim".into(),
            rule,
            dispatch: self.dispatch.clone(),
            order: self.order,
            start: self.start,
            dead_letter: self.dead_letter.map(StreamNumber),
            skip_expired: self.skip_expired,
            in_flight_bytes_max: 64 << 10,
        }
    }
}

/// How much the owner keeps in memory, and how long it waits.
pub(crate) fn hub_settings(shards: u16, random: &mut Random) -> HubSettings {
    HubSettings {
        memory_max: pick(&[8_000, 40_000, 1 << 20], random),
        block_age_ms: pick(&[0, 100, 3_000], random),
        block_bytes_wait: pick(&[500, 5_000, 1 << 20], random),
        writing_bytes_max: pick(&[500, 20_000, 1 << 20], random),
        read_bytes_max: pick(&[1_000, 1 << 20], random),
        cursor_ms: pick(&[0, 50, 500], random),
        idle_cursor_ms: pick(&[50, 500, 2_000], random),
        retry_ms: 200,
        ending_ms: 500,
        turn_records: pick(&[1, 5, 500], random),
        turns: pick(&[1, 64], random),
        ..HubSettings::new(shards)
    }
}
