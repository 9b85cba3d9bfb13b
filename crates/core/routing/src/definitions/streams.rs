//! `[[streams]]`.

use super::reader::{Reader, Table};
use super::{DEFAULT_NAMESPACE, FILTERS_MAX, StreamDurability, StreamSpec, WhenFull};
use crate::rule::{check_filter, check_name};

const KEYS: [&str; 13] = [
    "name",
    "namespace",
    "filters",
    "qos_min",
    "retained",
    "payload_bytes_max",
    "durability",
    "age_max_secs",
    "bytes_max",
    "messages_max",
    "file_bytes",
    "consumed",
    "full",
];

const MIB: u64 = 1 << 20;
/// The default: a quarter of `bytes_max`, and not more than this.
const FILE_BYTES: u64 = 64 * MIB;
const FILE_BYTES_MIN: u64 = MIB;
const FILE_BYTES_MAX: u64 = 1 << 30;
/// More than any disk has: 1 PiB.
const BYTES_LIMIT: u64 = 1 << 50;
/// MQTT has no larger packets.
const PAYLOAD_BYTES_LIMIT: u64 = 256 * MIB;
const MESSAGES_LIMIT: u64 = 1_000_000_000_000;
/// A hundred years.
const AGE_SECS_LIMIT: u64 = 36_500 * 86_400;

const DURABILITIES: [(&str, StreamDurability); 2] =
    [("disk", StreamDurability::Disk), ("fsync", StreamDurability::Fsync)];
const FULL: [(&str, WhenFull); 2] =
    [("drop_oldest", WhenFull::DropOldest), ("reject", WhenFull::Reject)];

pub(super) fn stream(
    reader: &mut Reader<'_>,
    table: &Table<'_>,
    name: String,
) -> Option<StreamSpec> {
    reader.check_keys(table, &KEYS);
    let namespace = reader.text(table, "namespace").unwrap_or_else(|| DEFAULT_NAMESPACE.into());
    if let Err(error) = check_name("namespace", &namespace) {
        reader.problem_at(table, error.key, error.detail);
    }
    let bytes_max = reader.size(table, "bytes_max", FILE_BYTES_MIN..=BYTES_LIMIT);
    let file_bytes = reader.size(table, "file_bytes", FILE_BYTES_MIN..=FILE_BYTES_MAX);
    if let (Some(file), Some(all)) = (file_bytes, bytes_max)
        && file > all
    {
        let detail = "must not be above bytes_max: messages are deleted file by file";
        reader.problem_at(table, "file_bytes", detail.into());
    }
    let usual = bytes_max.map_or(FILE_BYTES, |all| (all / 4).clamp(FILE_BYTES_MIN, FILE_BYTES));
    Some(StreamSpec {
        name,
        namespace,
        filters: filters(reader, table),
        qos_min: reader.count(table, "qos_min", 0..=2).unwrap_or(0) as u8,
        retained: reader.flag(table, "retained"),
        payload_bytes_max: reader.size(table, "payload_bytes_max", 0..=PAYLOAD_BYTES_LIMIT),
        durability: reader.word(table, "durability", &DURABILITIES).unwrap_or_default(),
        age_max_secs: reader.secs(table, "age_max_secs", 1..=AGE_SECS_LIMIT),
        bytes_max,
        messages_max: reader.count(table, "messages_max", 1..=MESSAGES_LIMIT),
        file_bytes: file_bytes.unwrap_or(usual),
        consumed: reader.flag(table, "consumed").unwrap_or(false),
        full: reader.word(table, "full", &FULL).unwrap_or_default(),
    })
}

fn filters(reader: &mut Reader<'_>, table: &Table<'_>) -> Vec<String> {
    let filters = reader.texts(table, "filters", FILTERS_MAX).unwrap_or_default();
    for (index, filter) in filters.iter().enumerate() {
        if let Err(error) = check_filter(filter) {
            reader.problem_at(table, &format!("filters.{index}"), error.detail);
        }
    }
    filters
}
