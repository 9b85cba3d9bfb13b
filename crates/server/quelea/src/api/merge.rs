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
    /// What this node answers alone.
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
    let numbers = ["queued_bytes", "session_bytes", "retained_bytes", "unsent_bytes", "logged_bytes"];
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
    let other = used("allocated_bytes").saturating_sub(used("client_bytes") + used("log_cache_bytes"));
    sum["other_bytes"] = other.into();
    let bytes_of = |owner: &Value| -> u64 {
        numbers.iter().filter_map(|name| owner[*name].as_u64()).sum()
    };
    owners.rows.sort_by_key(|owner| std::cmp::Reverse(bytes_of(owner)));
    owners.rows.truncate(ground.limit);
    sum["owners"] = owners.rows.into();
    sum
}

/// Use and limits are added: those of a node once for each node, all others for each cell.
pub(super) fn limits(_: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut all = Grouped::new(&["max", "used", "refused"]);
    for (is_first, Part { mut value, .. }) in by_node(parts) {
        for mut row in rows(&mut value) {
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

/// Those of this node, then those that only a cell has, then cells that do not answer.
pub(super) fn alarms(ground: &Ground<'_>, parts: Vec<Part>) -> Value {
    let mut own = ground.own.clone();
    let mut all = rows(&mut own);
    for Part { cell, mut value, .. } in parts {
        for mut alarm in rows(&mut value) {
            if all.contains(&alarm) {
                continue;
            }
            let subject = alarm["subject"].as_str().unwrap_or_default();
            let subject = format!("cell {cell} {subject}").trim_end().to_owned();
            alarm["subject"] = subject.into();
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
                    add_number(&mut self.rows[place][*name], &row[*name]);
                }
            }
            None => {
                self.keys.push(key);
                self.rows.push(row);
            }
        }
    }
}
