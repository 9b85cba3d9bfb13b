//! How firmly things are kept: levels, rules of topics, and the sizes of the logs.

use std::time::Duration;

use storage::SettingsError;
use topic::TopicLimits;

use super::derived::Deriving;
use super::keys::{AUTO, Durability, DurabilityLevel, Limits, Server, WhenFull};
use super::schema::bytes;
use super::source::{Problem, Settings, nearest};
use super::{Listener, Machine, Value, cluster, routing};

/// What is kept, how firmly, and in which space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurabilityConfig {
    pub level: DurabilityLevel,
    /// Filters with a level of their own; the first that matches holds.
    pub topics: Vec<(String, DurabilityLevel)>,
    pub when_full: WhenFull,
    /// The firmest level of messages and sessions. `Memory`: only streams need a log.
    pub level_max: DurabilityLevel,
    /// There are streams, which are stored whatever the levels are.
    pub has_streams: bool,
    /// Resolved: never 0.
    pub segment_bytes: u32,
    /// Resolved. 0: no limit.
    pub log_bytes_max: u64,
    commit_delay_ms: u32,
    will_grace_secs: u32,
    space_percent: u32,
    reclaim_percent: u32,
    reclaim_bytes_per_sec: u32,
}

impl DurabilityConfig {
    /// Whether anything asks for more than memory.
    pub fn has_journal(&self) -> bool {
        self.level_max != DurabilityLevel::Memory || self.has_streams
    }

    /// How many shards there are, and what their logs may take, if nobody has said it.
    pub(super) fn resolve_sizes(
        &mut self,
        deriving: &mut Deriving,
        server: &mut Server,
        machine: &Machine,
    ) {
        deriving.shards(server, self.has_journal(), machine);
        let least = u64::from(self.segment_bytes) * u64::from(server.shards) * SEGMENTS_MIN;
        let disk = (machine.disk_bytes)(&server.data_dir).filter(|_| self.has_journal());
        deriving.log(&mut self.log_bytes_max, least, disk);
    }

    /// The same with segments of this size: a cluster fixes it when it is made.
    #[must_use]
    pub fn with_segment_bytes(&self, segment_bytes: u32) -> Self {
        Self { segment_bytes, ..self.clone() }
    }

    /// What has to be the same on all nodes of a cluster. The size of the log is not: unless it is
    /// configured, it follows from the disk of each machine. The delay of commits has no effect in
    /// a cluster.
    #[must_use]
    pub fn of_cluster(&self) -> Self {
        Self { log_bytes_max: AUTO, commit_delay_ms: 0, ..self.clone() }
    }

    /// How long the will of a session that ended with the broker waits for its client.
    pub fn will_grace(&self) -> Duration {
        Duration::from_secs(self.will_grace_secs.into())
    }

    /// How long a commit that is not alone waits for others.
    pub fn commit_delay(&self) -> Duration {
        Duration::from_millis(self.commit_delay_ms.into())
    }

    /// The sizes of one shard's log among those of so many shards.
    ///
    /// # Errors
    ///
    /// When a share of `log_bytes_max` is too small to work in.
    pub fn journal_settings(&self, shards: u16) -> Result<storage::Settings, SettingsError> {
        let usual = storage::Settings::default();
        let batch_bytes_max = usual.batch_bytes_max.min(self.segment_bytes / 16);
        let settings = storage::Settings {
            segment_bytes: self.segment_bytes,
            record_bytes_max: record_bytes_max(self.segment_bytes),
            batch_bytes_max,
            reclaim_chunk_bytes: batch_bytes_max,
            reserve_bytes: usual.reserve_bytes.min(self.segment_bytes / 8),
            log_bytes_max: match self.log_bytes_max {
                0 | AUTO => u64::MAX,
                all => all / u64::from(shards),
            },
            space_percent: self.space_percent,
            reclaim_percent: self.reclaim_percent,
            reclaim_bytes_per_sec: self.reclaim_bytes_per_sec,
            ..usual
        };
        settings.check()?;
        Ok(settings)
    }
}

/// Resolves what is said about durability, and checks it against the other limits.
pub(super) fn lower(
    raw: &Durability,
    limits: &Limits,
    listeners: &[Listener],
    shards: u16,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) -> DurabilityConfig {
    let mut problem = |key: &str, detail: String| {
        let key = format!("durability.{key}");
        problems.push(Problem { place: settings.place(&key), key, detail });
    };
    let topics = lower_topics(&raw.topics, limits, &mut problem);
    let levels = listeners.iter().map(|listener| listener.limits.durability);
    let levels = levels.chain(topics.iter().map(|(_, level)| *level)).chain([raw.level]);
    let packets = listeners.iter().map(|listener| listener.limits.packet_bytes_max);
    let packet_bytes_max = packets.chain([limits.packet_bytes_max]).max().unwrap_or(0);
    let needed = segment_bytes_for(packet_bytes_max, limits.topic_bytes_max);
    let lowered = DurabilityConfig {
        level: raw.level,
        level_max: levels.max_by_key(|level| *level as u8).unwrap_or(raw.level),
        has_streams: routing::is_configured(settings),
        topics,
        when_full: raw.when_full,
        segment_bytes: match raw.segment_bytes {
            0 => needed.next_multiple_of(1 << 20).max(SEGMENT_BYTES_MIN_AUTO),
            bytes => bytes,
        },
        log_bytes_max: raw.log_bytes_max,
        commit_delay_ms: raw.commit_delay_ms,
        will_grace_secs: raw.will_grace_secs,
        space_percent: raw.space_percent,
        reclaim_percent: raw.reclaim_percent,
        reclaim_bytes_per_sec: raw.reclaim_bytes_per_sec,
    };
    if lowered.has_journal() {
        check_sizes(&lowered, needed, packet_bytes_max, shards, &mut problem);
    }
    if !cluster::is_configured(settings) {
        check_quorum(&lowered, listeners, settings, problems);
    }
    lowered
}

/// Without a cluster there is no quorum to wait for.
fn check_quorum(
    lowered: &DurabilityConfig,
    listeners: &[Listener],
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    let is_quorum = |level: DurabilityLevel| level == DurabilityLevel::Quorum;
    let mut keys = Vec::new();
    if is_quorum(lowered.level) {
        keys.push("durability.level".to_owned());
    }
    if lowered.topics.iter().any(|(_, level)| is_quorum(*level)) {
        keys.push("durability.topics".to_owned());
    }
    // The others have the level of the broker.
    let own = listeners.iter().enumerate().filter(|(_, own)| {
        is_quorum(own.limits.durability) && own.limits.durability != lowered.level
    });
    keys.extend(own.map(|(index, _)| format!("listeners.{index}.durability")));
    for key in keys {
        let detail = "\"quorum\" needs a cluster: configure [cluster], or use \"fsync\"".into();
        problems.push(Problem { place: settings.place(&key), key, detail });
    }
}

fn lower_topics(
    rules: &[String],
    limits: &Limits,
    problem: &mut impl FnMut(&str, String),
) -> Vec<(String, DurabilityLevel)> {
    let limits =
        TopicLimits { levels_max: limits.topic_levels_max, bytes_max: limits.topic_bytes_max };
    let mut topics: Vec<(String, DurabilityLevel)> = Vec::new();
    for rule in rules {
        match parse_rule(rule, &limits) {
            Ok((filter, _)) if topics.iter().any(|(known, _)| *known == filter) => {
                problem("topics", format!("'{filter}' has two rules; remove one of them"));
            }
            Ok(parsed) => topics.push(parsed),
            Err(detail) => problem("topics", format!("'{rule}': {detail}")),
        }
    }
    topics
}

fn parse_rule(rule: &str, limits: &TopicLimits) -> Result<(String, DurabilityLevel), String> {
    let words = DurabilityLevel::WORDS;
    let (filter, word) =
        rule.rsplit_once('=').ok_or("write FILTER=LEVEL, as in \"sensors/#=disk\"")?;
    let (filter, word) = (filter.trim(), word.trim());
    broker::names::check_filter(filter, limits).map_err(|error| error.to_string())?;
    if filter.starts_with("$share/") {
        return Err("omit $share/NAME/: a level applies to topics, not to groups".into());
    }
    let level =
        <DurabilityLevel as super::schema::FromValue>::from_value(&Value::Text(word.into()));
    let level = level.ok_or_else(|| {
        let known = words.join(", ");
        match nearest(word, words.iter().copied()) {
            Some(near) => format!("must be one of {known}, got '{word}'; did you mean '{near}'?"),
            None => format!("must be one of {known}, got '{word}'"),
        }
    })?;
    Ok((filter.to_owned(), level))
}

fn check_sizes(
    lowered: &DurabilityConfig,
    needed: u32,
    packet_bytes_max: u32,
    shards: u16,
    problem: &mut impl FnMut(&str, String),
) {
    let own = lowered.segment_bytes;
    if own < needed {
        let detail = format!(
            "a segment must have twice the largest packet (packet_bytes_max is {}), got {}. Write {} \
             or more, or \"auto\", or lower packet_bytes_max",
            show(packet_bytes_max.into()),
            show(own.into()),
            show(needed.into())
        );
        problem("segment_bytes", detail);
    } else if let Err(error) = lowered.journal_settings(shards) {
        let least = u64::from(own) * u64::from(shards) * SEGMENTS_MIN;
        let detail = match error {
            SettingsError::JournalBytes(..) => format!(
                "{shards} shards with {SEGMENTS_MIN} segments of {} each need at least {}; write \
                 that or more, or lower packet_bytes_max or segment_bytes",
                show(own.into()),
                show(least)
            ),
            other => other.to_string(),
        };
        problem("log_bytes_max", detail);
    }
}

/// The segments in which every message fits: the topic of a packet may be that of an alias.
fn segment_bytes_for(packet_bytes_max: u32, topic_bytes_max: u16) -> u32 {
    let record = packet_bytes_max + u32::from(topic_bytes_max) + FACT_BYTES_MAX;
    (2 * (record + SEGMENT_OVERHEAD_BYTES)).next_multiple_of(SEGMENT_GRAIN_BYTES)
}

fn record_bytes_max(segment_bytes: u32) -> u32 {
    (segment_bytes / 2).saturating_sub(SEGMENT_OVERHEAD_BYTES)
}

fn show(number: u64) -> String {
    bytes(0, u64::MAX).show(&Value::Number(number)).trim_matches('"').to_owned()
}

/// Smaller ones would be full in a fraction of a second, and going on in the next takes two syncs.
const SEGMENT_BYTES_MIN_AUTO: u32 = 16 << 20;
const SEGMENT_GRAIN_BYTES: u32 = 64 << 10;
/// Headers at the front, and what is left free at the end.
const SEGMENT_OVERHEAD_BYTES: u32 = 8 << 10;
/// What a record of a message has besides topic, properties and payload.
const FACT_BYTES_MAX: u32 = 1 << 10;
/// Fewer leave reclaiming no room to move; `storage` refuses them.
const SEGMENTS_MIN: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn durability(log_bytes_max: u64, segment_bytes: u32) -> DurabilityConfig {
        DurabilityConfig {
            level: DurabilityLevel::Fsync,
            topics: Vec::new(),
            when_full: WhenFull::Refuse,
            level_max: DurabilityLevel::Fsync,
            has_streams: false,
            segment_bytes,
            log_bytes_max,
            commit_delay_ms: 0,
            will_grace_secs: 10,
            space_percent: 10,
            reclaim_percent: 50,
            reclaim_bytes_per_sec: 1 << 20,
        }
    }

    #[test]
    fn nodes_with_other_disks_have_the_same_settings() {
        let (one, other) = (durability(1 << 30, 1 << 20), durability(2 << 30, 1 << 20));
        assert_eq!(one.of_cluster(), other.of_cluster());
        assert_ne!(one.of_cluster(), durability(1 << 30, 2 << 20).of_cluster());
    }
}
