//! How the answers of cells become one.

use serde_json::{Map, Value, json};

use super::asked::Silent;
use super::topics;

/// Makes one answer.
pub(crate) type Merge = fn(&Ground<'_>, Vec<Part>) -> Value;

/// The answer of a cell.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) cell: u16,
    /// The node that is active for it.
    pub(crate) node: String,
    pub(crate) value: Value,
}

/// What a merge knows beside the answers of cells.
#[derive(Debug)]
pub(crate) struct Ground<'a> {
    /// This node.
    pub(crate) node: &'a str,
    /// What it answers alone.
    pub(crate) own: Value,
    /// Of each cell.
    pub(crate) shards: u16,
    /// The most rows.
    pub(crate) limit: usize,
    pub(crate) missing: &'a [(u16, Silent)],
}

/// Where a list of all cells goes on: `3~REST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) cell: u16,
    /// The cursor of the cell; none: its begin.
    pub(super) rest: Option<String>,
}

impl Cursor {
    pub(super) fn read(text: &str) -> Option<Self> {
        let (cell, rest) = text.split_once('~')?;
        let rest = Some(rest.to_owned()).filter(|rest| !rest.is_empty());
        Some(Self { cell: cell.parse().ok()?, rest })
    }

    pub(super) fn write(&self) -> String {
        format!("{}~{}", self.cell, self.rest.as_deref().unwrap_or_default())
    }
}

/// The rows of a page, or the messages that a page of a change is about.
pub(super) fn rows_of(page: &Value) -> usize {
    let matched = page["matched"].as_u64().unwrap_or_default() as usize;
    page["items"].as_array().map_or(matched, Vec::len)
}

/// Appends the page of a cell. Returns where that goes on.
pub(super) fn add_page(page: &mut Value, mut more: Value) -> Option<String> {
    let rest = more["cursor"].as_str().map(str::to_owned);
    if page.is_null() {
        *page = more;
    } else if let Some(rows) = page.get_mut("items").and_then(Value::as_array_mut) {
        rows.append(&mut self::rows(&mut more));
    } else {
        add_numbers(page, &more);
    }
    rest
}

/// The page with its own cursor.
pub(super) fn page(mut page: Value, cursor: Option<String>) -> Value {
    if page.is_null() {
        page = json!({ "items": [] });
    }
    page["cursor"] = cursor.map_or(Value::Null, Value::from);
    page
}

/// Adds the numbers of fields that both have.
fn add_numbers(sum: &mut Value, more: &Value) {
    let Some(fields) = sum.as_object_mut() else { return };
    for (name, value) in fields {
        add_number(value, &more[name.as_str()]);
    }
}

/// One that is unknown on one side is that of the other.
fn add_number(sum: &mut Value, more: &Value) {
    match (sum.as_u64(), more.as_u64()) {
        (Some(one), Some(other)) => *sum = one.saturating_add(other).into(),
        (None, Some(other)) if sum.is_null() => *sum = other.into(),
        _ => {}
    }
}

fn rows(value: &mut Value) -> Vec<Value> {
    value["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

fn list(items: Vec<Value>) -> Value {
    json!({ "items": items, "cursor": null })
}

/// Of each node the first part is marked: what is of the node is in all parts of its cells.
fn by_node(parts: Vec<Part>) -> impl Iterator<Item = (bool, Part)> {
    let mut nodes: Vec<String> = Vec::new();
    parts.into_iter().map(move |part| {
        let is_first = !nodes.contains(&part.node);
        if is_first {
            nodes.push(part.node.clone());
        }
        (is_first, part)
    })
}

/// All numbers are added.
pub(super) fn sums(_: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut parts = parts.into_iter();
    let mut sum = parts.next().map(|part| part.value).unwrap_or_default();
    parts.for_each(|part| add_numbers(&mut sum, &part.value));
    sum
}

/// What this node says of itself, with the totals of the cells.
pub(super) fn broker(ground: &Ground<'_>, parts: Vec<Part>) -> Value {
    const OF_NODE: &[&str] = &["uptime_secs"];
    let mut sum = ground.own.clone();
    let fields = sum.as_object_mut().into_iter().flatten();
    fields.filter(|(name, _)| !OF_NODE.contains(&name.as_str())).for_each(|(_, value)| {
        if value.is_u64() {
            *value = 0.into();
        }
    });
    for (is_first, Part { mut value, .. }) in by_node(parts) {
        for name in OF_NODE {
            value[*name] = 0.into();
        }
        if !is_first {
            value["resident_bytes"] = 0.into();
        }
        add_numbers(&mut sum, &value);
    }
    sum
}

/// Present values, by the names of the series.
pub(super) fn totals(_: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut time_ms = 0;
    let mut all = Grouped::new(&["value"]);
    for Part { mut value, .. } in parts {
        time_ms = time_ms.max(value["time_ms"].as_u64().unwrap_or_default());
        let series = value["series"].as_array_mut().map(std::mem::take);
        series.into_iter().flatten().for_each(|row| all.add(row));
    }
    json!({ "time_ms": time_ms, "series": all.rows })
}

/// Samples, at the times of the cell that has most of them. A cell counts from its first sample on.
pub(super) fn history(_: &Ground<'_>, parts: Vec<Part>) -> Value {
    let times_of = |value: &Value| -> Vec<u64> {
        value["times_ms"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    };
    let parts: Vec<_> = parts.into_iter().map(|part| (times_of(&part.value), part.value)).collect();
    let Some(base) = parts.iter().rev().max_by_key(|(times, _)| times.len()) else {
        return Value::Null;
    };
    let (times, mut sum) = (base.0.clone(), base.1.clone());
    let interval_ms = sum["interval_secs"].as_u64().unwrap_or_default() * 1000;
    // The sample of a cell at each time: the last one that is not much later.
    let place_at = |own: &[u64], at: u64| {
        own.partition_point(|time| *time <= at + interval_ms / 2).checked_sub(1)
    };
    let lines = sum["series"].as_array_mut().into_iter().flatten();
    for (number, line) in lines.enumerate() {
        let total = |at: &u64| -> u64 {
            let of_cell = |(own, value): &(Vec<u64>, Value)| {
                let values = &value["series"][number]["values"];
                place_at(own, *at).and_then(|place| values[place].as_u64()).unwrap_or_default()
            };
            parts.iter().map(of_cell).sum()
        };
        line["values"] = times.iter().map(total).map(Value::from).collect();
    }
    sum
}

/// Memory is that of processes; what owners use is that of cells.
pub(super) fn memory(ground: &Ground<'_>, parts: Vec<Part>) -> Value {
    const OF_NODE: [&str; 3] = ["resident_bytes", "allocated_bytes", "max_bytes"];
    let numbers =
        ["queued_bytes", "session_bytes", "retained_bytes", "unsent_bytes", "logged_bytes"];
    let mut owners = Grouped::new(&numbers);
    let mut sum = Value::Null;
    for (is_first, Part { mut value, .. }) in by_node(parts) {
        let own = value["owners"].as_array_mut().map(std::mem::take);
        own.into_iter().flatten().for_each(|owner| owners.add(owner));
        if sum.is_null() {
            sum = value;
            continue;
        }
        if !is_first {
            for name in OF_NODE {
                value[name] = Value::Null;
            }
        }
        add_numbers(&mut sum, &value);
    }
    let used = |name: &str| sum[name].as_u64().unwrap_or_default();
    let other =
        used("allocated_bytes").saturating_sub(used("client_bytes") + used("log_cache_bytes"));
    sum["other_bytes"] = other.into();
    let bytes_of =
        |owner: &Value| -> u64 { numbers.iter().filter_map(|name| owner[*name].as_u64()).sum() };
    owners.rows.sort_by_key(|owner| std::cmp::Reverse(bytes_of(owner)));
    owners.rows.truncate(ground.limit);
    sum["owners"] = owners.rows.into();
    sum
}

/// Use and limits are added: those of a node once for each node, all others for each cell. A limit
/// of each session stays as it is.
pub(super) fn limits(_: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut all = Grouped::new(&["max", "used", "refused"]);
    for (number, (is_first, Part { mut value, .. })) in by_node(parts).enumerate() {
        for mut row in rows(&mut value) {
            let is_of_session = row["used"].is_null();
            if number > 0 && is_of_session {
                row["max"] = Value::Null;
            }
            let is_of_node = row["kind"] == "listener" || row["name"] == "limits.memory_bytes_max";
            let has_limit_of_node = row["name"] == "limits.connections_max";
            if !is_first && is_of_node {
                continue;
            }
            if !is_first && has_limit_of_node {
                row["max"] = Value::Null;
            }
            all.add(row);
        }
    }
    list(all.rows)
}

pub(super) fn drops(_: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut all = Grouped::new(&["messages"]);
    for Part { mut value, .. } in parts {
        rows(&mut value).into_iter().for_each(|row| all.add(row));
    }
    list(all.rows)
}

/// Those that have lost most, first.
pub(super) fn client_drops(ground: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut all: Vec<_> = parts.into_iter().flat_map(|mut part| rows(&mut part.value)).collect();
    let messages = |row: &Value| row["messages"].as_u64();
    let name = |row: &Value| row["client_id"].as_str().unwrap_or_default().to_owned();
    all.sort_by(|one, other| {
        messages(other).cmp(&messages(one)).then_with(|| name(one).cmp(&name(other)))
    });
    all.truncate(ground.limit);
    list(all)
}

/// A shard has its number among those of all cells.
pub(super) fn logs(ground: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut all = Vec::new();
    for Part { cell, mut value, .. } in parts {
        for mut row in rows(&mut value) {
            let shard = row["shard"].as_u64().unwrap_or_default();
            row["shard"] = (u64::from(cell) * u64::from(ground.shards) + shard).into();
            all.push(row);
        }
    }
    list(all)
}

/// Alarms that each cell of a node reports.
const ALARMS_OF_NODE: [&str; 5] = [
    "memory",
    "certificate_expires",
    "listener_paused",
    "authentication_service",
    "authorization_service",
];

/// Those of nodes, each once, then those of cells, then cells that do not answer.
pub(super) fn alarms(ground: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut own = ground.own.clone();
    let mut all = rows(&mut own);
    for (is_first, Part { cell, node, mut value }) in by_node(parts) {
        let is_other = node != ground.node;
        for mut alarm in rows(&mut value) {
            let is_of_node = alarm["kind"].as_str().is_some_and(|it| ALARMS_OF_NODE.contains(&it));
            if is_of_node && !(is_first && is_other) {
                continue;
            }
            let place = if is_of_node { node.clone() } else { format!("cell {cell}") };
            let subject = alarm["subject"].as_str().unwrap_or_default();
            alarm["subject"] = format!("{place} {subject}").trim_end().to_owned().into();
            all.push(alarm);
        }
    }
    for (cell, silent) in ground.missing {
        all.push(json!({
            "kind": "not_ready",
            "severity": "critical",
            "subject": format!("cell {cell}"),
            "detail": silent.to_string(),
            "fix": "see `quelea cluster status`, and the log of the node",
        }));
    }
    all.sort_by_key(|alarm| alarm["severity"] != "critical");
    list(all)
}

/// Levels that all cells have listed completely, in their order.
pub(super) fn topics(ground: &Ground<'_>, parts: Vec<Part>) -> Value {
    let level_of = |row: &Value| row["level"].as_str().unwrap_or_default().to_owned();
    let (mut all, mut end) = (Vec::<Value>::new(), None::<String>);
    for Part { mut value, .. } in parts {
        let has_more = value["cursor"].is_string();
        let rows = rows(&mut value);
        let last = rows.last().filter(|_| has_more).map(level_of);
        end = [end, last].into_iter().flatten().min();
        for row in rows {
            match all.iter_mut().find(|known| known["level"] == row["level"]) {
                Some(known) => add_level(known, &row),
                None => all.push(row),
            }
        }
    }
    all.sort_by_key(level_of);
    all.retain(|row| end.as_ref().is_none_or(|end| level_of(row) <= *end));
    let is_cut = all.len() > ground.limit;
    all.truncate(ground.limit);
    let last = all.last().filter(|_| is_cut || end.is_some()).map(level_of);
    json!({ "items": all, "cursor": last.map(|level| topics::cursor_behind(&level)) })
}

fn add_level(known: &mut Value, more: &Value) {
    add_number(&mut known["topics_below"], &more["topics_below"]);
    known["retained"] = (known["retained"] == true || more["retained"] == true).into();
    known["counted"] = (known["counted"] == true && more["counted"] == true).into();
}

/// Rows that are the same but for some numbers, which are added.
struct Grouped<'a> {
    numbers: &'a [&'a str],
    keys: Vec<Map<String, Value>>,
    rows: Vec<Value>,
}

impl<'a> Grouped<'a> {
    fn new(numbers: &'a [&'a str]) -> Self {
        Self { numbers, keys: Vec::new(), rows: Vec::new() }
    }

    fn add(&mut self, row: Value) {
        let mut key = row.as_object().cloned().unwrap_or_default();
        key.retain(|name, _| !self.numbers.contains(&name.as_str()));
        match self.keys.iter().position(|known| *known == key) {
            Some(place) => {
                for name in self.numbers {
                    if let Some(sum) = self.rows[place].get_mut(*name) {
                        add_number(sum, &row[*name]);
                    }
                }
            }
            None => {
                self.keys.push(key);
                self.rows.push(row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(cell: u16, node: &str, value: Value) -> Part {
        Part { cell, node: node.to_owned(), value }
    }

    fn ground<'a>(limit: usize, missing: &'a [(u16, Silent)]) -> Ground<'a> {
        Ground { node: "a", own: Value::Null, shards: 2, limit, missing }
    }

    #[test]
    fn cursors_are_read_as_they_were_written() {
        for rest in [None, Some("1.0.QQ~".to_owned())] {
            let cursor = Cursor { cell: 3, rest };
            assert_eq!(Cursor::read(&cursor.write()), Some(cursor));
        }
        for wrong in ["", "~", "x~", "-1~", "65536~", "1"] {
            assert_eq!(Cursor::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn pages_are_appended_and_counts_added() {
        let mut page = Value::Null;
        let first = json!({ "items": [1, 2], "cursor": "a" });
        assert_eq!(add_page(&mut page, first), Some("a".to_owned()));
        assert_eq!(add_page(&mut page, json!({ "items": [3], "cursor": null })), None);
        assert_eq!(rows_of(&page), 3);
        let whole = self::page(page, Some("1~".to_owned()));
        assert_eq!(whole, json!({ "items": [1, 2, 3], "cursor": "1~" }));
        assert_eq!(self::page(Value::Null, None), json!({ "items": [], "cursor": null }));
        let counts = |matched: u64| json!({ "matched": matched, "cleared": 1, "cursor": null });
        let mut page = counts(3);
        add_page(&mut page, counts(4));
        assert_eq!((rows_of(&page), &page["cleared"]), (7, &json!(2)));
    }

    #[test]
    fn what_is_of_a_node_counts_once_for_each_node() {
        let row = |name: &str, max: Value, used: Value| {
            json!({ "kind": "broker", "owner": "", "name": name, "unit": "x", "max": max,
                    "used": used, "refused": 1 })
        };
        let of = |used: u64| {
            json!({ "items": [
                row("limits.connections_max", 10.into(), used.into()),
                row("limits.memory_bytes_max", 100.into(), 50.into()),
                row("limits.retained_bytes_max", 7.into(), used.into()),
                row("limits.queued_messages_max", 9.into(), Value::Null),
                row("limits.sessions_bytes_max", Value::Null, used.into()),
            ] })
        };
        let parts = vec![part(0, "a", of(1)), part(1, "b", of(2)), part(2, "a", of(4))];
        let sum = limits(&ground(9, &[]), parts);
        let found: Vec<_> = sum["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["max"].as_u64(), row["used"].as_u64()))
            .collect();
        let expected = [
            (Some(20), Some(7)),
            (Some(200), Some(100)),
            (Some(21), Some(7)),
            (Some(9), None),
            (None, Some(7)),
        ];
        assert_eq!(found, expected);

        let of = |resident: u64, owner: &str| {
            json!({ "resident_bytes": resident, "allocated_bytes": 60, "client_bytes": 10,
                    "log_cache_bytes": 5, "other_bytes": 0, "max_bytes": null,
                    "owners": [{ "owner": owner, "queued_bytes": 2, "session_bytes": 1 }] })
        };
        let parts =
            vec![part(0, "a", of(70, "x")), part(1, "a", of(71, "y")), part(2, "b", of(1, "x"))];
        let sum = memory(&ground(1, &[]), parts);
        assert_eq!(sum["resident_bytes"], 71);
        assert_eq!((&sum["client_bytes"], &sum["other_bytes"]), (&json!(30), &json!(120 - 45)));
        assert_eq!(sum["owners"], json!([{ "owner": "x", "queued_bytes": 4, "session_bytes": 2 }]));
    }

    #[test]
    fn samples_of_cells_are_added_at_the_times_of_one() {
        let of = |times: &[u64], values: &[u64]| {
            let series = json!([{ "name": "n", "kind": "gauge", "values": values }]);
            json!({ "interval_secs": 10, "times_ms": times, "series": series })
        };
        let parts = vec![
            part(0, "a", of(&[10_000, 20_000, 30_000], &[1, 2, 3])),
            // It began later, and its clock is 4 s ahead.
            part(1, "b", of(&[24_000, 34_000], &[10, 20])),
        ];
        let sum = history(&ground(9, &[]), parts);
        assert_eq!(sum["times_ms"], json!([10_000, 20_000, 30_000]));
        assert_eq!(sum["series"][0]["values"], json!([1, 12, 23]));
    }

    #[test]
    fn levels_behind_the_end_of_a_cell_wait_for_the_next_page() {
        let level = |level: &str, below: u64| {
            json!({ "level": level, "topic": level, "retained": false, "topics_below": below,
                    "counted": true })
        };
        let parts = || {
            vec![
                part(0, "a", json!({ "items": [level("b", 1), level("d", 1)], "cursor": "x" })),
                part(
                    1,
                    "b",
                    json!({ "items": [level("a", 2), level("b", 2), level("e", 1)],
                                     "cursor": null }),
                ),
            ]
        };
        let all = topics(&ground(9, &[]), parts());
        let found: Vec<_> = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["level"].as_str().unwrap(), row["topics_below"].as_u64().unwrap()))
            .collect();
        assert_eq!(found, [("a", 2), ("b", 3), ("d", 1)]);
        assert_eq!(all["cursor"], topics::cursor_behind("d"));
        let cut = topics(&ground(1, &[]), parts());
        assert_eq!(cut["cursor"], topics::cursor_behind("a"));
    }

    #[test]
    fn an_alarm_of_a_node_is_shown_once_and_a_silent_cell_is_one() {
        let alarm = |kind: &str, severity: &str, subject: &str| {
            json!({ "kind": kind, "severity": severity, "subject": subject, "detail": "d",
                    "fix": "f" })
        };
        let of_node = || alarm("certificate_expires", "warning", "crt");
        let silent = [(2, Silent::NoOwner(2))];
        let ground = Ground { own: json!({ "items": [of_node()] }), ..ground(9, &silent) };
        let of_cell = || json!({ "items": [of_node(), alarm("log_full", "critical", "shard 1")] });
        let parts = vec![part(0, "a", of_cell()), part(1, "b", of_cell()), part(3, "b", of_cell())];
        let all = alarms(&ground, parts);
        let subjects: Vec<_> = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|alarm| alarm["subject"].as_str().unwrap())
            .collect();
        let critical = ["cell 0 shard 1", "cell 1 shard 1", "cell 3 shard 1", "cell 2"];
        assert_eq!(subjects[..4], critical);
        assert_eq!(subjects[4..], ["crt", "b crt"]);
    }

    #[test]
    fn totals_of_the_broker_keep_what_is_of_the_node() {
        let of = |connections: u64, resident: u64| {
            json!({ "version": "1", "state": "ready", "uptime_secs": 5, "shards": 2,
                    "connections": connections, "resident_bytes": resident })
        };
        let ground = Ground {
            own: json!({ "version": "1", "state": "ready", "uptime_secs": 9,
            "shards": 2, "connections": 0, "resident_bytes": 70 }),
            ..ground(9, &[])
        };
        let parts = vec![part(0, "a", of(1, 70)), part(1, "a", of(2, 70)), part(2, "b", of(4, 30))];
        let sum = broker(&ground, parts);
        assert_eq!((&sum["uptime_secs"], &sum["shards"]), (&json!(9), &json!(6)));
        assert_eq!((&sum["connections"], &sum["resident_bytes"]), (&json!(7), &json!(100)));
    }
}
