//! `quelea cluster status` of a cluster with several cells.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{LeaseValue, Record};
use futures_util::future::join_all;
use serde::Serialize;

use super::super::engine::Engine;
use super::super::lag::Lag;
use super::super::nodes::{NodeMember, read_members};
use super::super::talk::NodeStatus;
use super::engines_of_cells;
use super::status::{self, Found, MIXED_SETTINGS, ShownNode, ShownStream};
use base::print;

#[derive(Serialize)]
struct Shown {
    nodes: Vec<ShownMember>,
    cells: Vec<ShownCell>,
}

/// A node, in the list of nodes or heard of a cell.
#[derive(Default, Serialize)]
struct ShownMember {
    node: String,
    /// The list of nodes has it.
    is_member: bool,
    /// Its address for links.
    link: Option<String>,
    is_heard: bool,
    version: Option<String>,
    /// Checksum of the settings that must be the same on all nodes.
    config: Option<String>,
    /// `cluster.advertise`.
    address: Option<String>,
    cells_active: Vec<u16>,
}

#[derive(Serialize)]
struct ShownCell {
    cell: u16,
    /// The node that serves its clients.
    active: Option<String>,
    lease: Option<ShownLease>,
    standbys_caught_up: Vec<String>,
    /// Of the standby that is furthest behind.
    #[serde(flatten)]
    lag: Lag,
    /// Why nothing is known of it. Empty: all is known.
    detail: String,
    /// That were heard.
    nodes: Vec<ShownNode>,
    streams: Vec<ShownStream>,
}

#[derive(Serialize)]
struct ShownLease {
    node: String,
    epoch: u64,
    is_released: bool,
}

/// Shows all cells.
///
/// # Errors
///
/// When the list of nodes cannot be read.
pub(super) async fn status(engine: &Engine, record: &Record, as_json: bool) -> anyhow::Result<()> {
    let members = read_members(engine).await?;
    let engines = engines_of_cells(engine, record);
    let found = join_all(engines.iter().map(status::look)).await;
    let shown = Shown::new(&members, found);
    let text = match as_json {
        true => format!("{}\n", serde_json::to_string_pretty(&shown)?),
        false => shown.text(),
    };
    print(text.as_bytes());
    Ok(())
}

impl ShownCell {
    fn new(cell: u16, found: anyhow::Result<Found>) -> Self {
        let nothing = |error: anyhow::Error| {
            let found = Found { lease: None, nodes: Vec::new(), streams: Vec::new() };
            (found, format!("{error:#}"))
        };
        let (found, detail) = found.map_or_else(nothing, |found| (found, String::new()));
        let Found { lease, nodes, streams } = found;
        let active = nodes.iter().map(|node| &node.status).filter(|status| status.role == "active");
        // A node that was stopped meanwhile may not know yet that another one has taken over.
        let active = active.max_by_key(|status| status.epoch).map(|status| status.node.clone());
        let fit = nodes.iter().filter(|node| node.status.can_take_over());
        let lags: Vec<Lag> = nodes.iter().map(|node| node.lag).collect();
        Self {
            cell,
            active,
            lease: lease.map(ShownLease::new),
            standbys_caught_up: fit.map(|node| node.status.node.clone()).collect(),
            lag: Lag::worst(&lags),
            detail,
            nodes,
            streams,
        }
    }
}

impl ShownLease {
    fn new(lease: LeaseValue) -> Self {
        let LeaseValue { holder, epoch, is_released, .. } = lease;
        Self { node: holder.node, epoch, is_released }
    }
}

impl ShownMember {
    fn hear(&mut self, status: &NodeStatus) {
        self.is_heard = true;
        self.version = Some(status.version.clone());
        self.config = Some(status.config.clone());
        self.address = Some(status.address.clone());
    }
}

impl Shown {
    fn new(members: &[NodeMember], found: Vec<anyhow::Result<Found>>) -> Self {
        let cells: Vec<_> =
            (0..).zip(found).map(|(cell, found)| ShownCell::new(cell, found)).collect();
        let mut nodes: BTreeMap<String, ShownMember> = BTreeMap::new();
        for member in members {
            let node = nodes.entry(member.node.clone()).or_default();
            node.is_member = true;
            node.link = Some(member.link.clone());
        }
        for status in cells.iter().flat_map(|cell| &cell.nodes).map(|node| &node.status) {
            nodes.entry(status.node.clone()).or_default().hear(status);
        }
        for cell in &cells {
            let active = cell.active.as_ref().and_then(|active| nodes.get_mut(active));
            active.into_iter().for_each(|node| node.cells_active.push(cell.cell));
        }
        let named = |(node, shown)| ShownMember { node, ..shown };
        Self { nodes: nodes.into_iter().map(named).collect(), cells }
    }

    fn text(&self) -> String {
        let mut text = String::from(NODES_HEAD);
        self.nodes.iter().for_each(|node| text.push_str(&node.line()));
        text.push_str(CELLS_HEAD);
        self.cells.iter().for_each(|cell| text.push_str(&cell.line(self.nodes.len())));
        let notes = self.notes();
        if !notes.is_empty() {
            text.push('\n');
        }
        text + &notes
    }

    /// What is not as it should be.
    fn notes(&self) -> String {
        let mut text = String::new();
        for node in self.nodes.iter().filter(|node| !node.is_member) {
            text.push_str(&format!("'{}' is missing in the list of nodes\n", node.node));
        }
        for cell in &self.cells {
            if let Some(why) = cell.why_not_active() {
                text.push_str(&format!("cell {}: {why}\n", cell.cell));
            }
        }
        for ((node, fault), cells) in self.faults() {
            let cells: Vec<_> = cells.into_iter().collect();
            text.push_str(&format!("'{node}': {fault} (cells {})\n", comma_list(&cells)));
        }
        if self.cells.iter().any(|cell| status::are_settings_mixed(&cell.nodes)) {
            text.push_str(MIXED_SETTINGS);
        }
        text
    }

    /// What nodes report, with the cells of which they do.
    fn faults(&self) -> BTreeMap<(&str, &str), BTreeSet<u16>> {
        let mut faults: BTreeMap<_, BTreeSet<u16>> = BTreeMap::new();
        for cell in &self.cells {
            for NodeStatus { node, detail, shards, stream_files, .. } in
                cell.nodes.iter().map(|node| &node.status)
            {
                // The stream of all shards is one.
                let of_shard =
                    shards.iter().map(|shard| &shard.fault).find(|fault| !fault.is_empty());
                let of_files = stream_files.as_ref().map(|files| &files.detail);
                let all = [Some(detail), of_shard, of_files].into_iter().flatten();
                for fault in all.filter(|fault| !fault.is_empty()) {
                    faults.entry((&**node, &**fault)).or_default().insert(cell.cell);
                }
            }
        }
        faults
    }
}

impl ShownMember {
    fn line(&self) -> String {
        let or_dash = |value: &Option<String>| match value.as_deref() {
            None | Some("") => "-".to_owned(),
            Some(value) => value.to_owned(),
        };
        let Self { node, version, config, address, link, is_heard, cells_active, .. } = self;
        let (version, config) = (or_dash(version), or_dash(config));
        let (address, link) = (or_dash(address), or_dash(link));
        let heard = if *is_heard { "yes" } else { "no" };
        let cells = match cells_active.len() {
            0 => "none".to_owned(),
            _ => comma_list(cells_active),
        };
        format!("{node:17} {heard:5}  {version:8} {config:9} {address:22} {link:22} {cells}\n")
    }
}

impl ShownCell {
    /// `nodes`: how many there are.
    fn line(&self, nodes: usize) -> String {
        let active = self.active.as_deref().unwrap_or("none");
        let epoch = self.lease.as_ref().map_or(0, |lease| lease.epoch);
        let others = nodes - usize::from(self.active.is_some());
        let caught_up = format!("{} of {others}", self.standbys_caught_up.len());
        let Lag { messages, bytes, seconds } = self.lag;
        let (leader, current, replicas) = match self.streams.first() {
            Some(stream) => (&*stream.leader, stream.replicas_current, stream.replicas),
            None => ("unknown", 0, 0),
        };
        format!(
            "{:4}  {active:17} {epoch:5}  {caught_up:10} {messages:12} {bytes:10} {seconds:7.1}  \
             {leader:13}  {current} of {replicas} current\n",
            self.cell
        )
    }

    fn why_not_active(&self) -> Option<String> {
        if !self.detail.is_empty() {
            return Some(self.detail.clone());
        }
        if self.active.is_some() {
            return None;
        }
        let lease = match &self.lease {
            None => "no node has had the lease".to_owned(),
            Some(ShownLease { node, epoch, is_released }) => {
                let released = if *is_released { ", released" } else { "" };
                format!("lease: {node} with epoch {epoch}{released}")
            }
        };
        let suspended = self.nodes.iter().find(|node| node.status.role == "suspended");
        let suspended = suspended
            .map_or_else(String::new, |node| format!("; '{}' is suspended", node.status.node));
        Some(format!("no node is active; {lease}{suspended}"))
    }
}

/// Numbers of cells, for people.
pub(super) fn comma_list(cells: &[u16]) -> String {
    cells.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

const NODES_HEAD: &str = "node              heard  version  config    address                \
                          link                   active for cells\n";

const CELLS_HEAD: &str = "\ncell  active            epoch  caught up  lag messages  lag bytes   \
                          lag s  stream leader  replicas\n";

#[cfg(test)]
mod tests {
    use super::super::super::talk::ShardStatus;
    use super::super::status::{stream_of, with_lags};
    use super::*;

    fn status(node: &str, role: &str, last: u64) -> NodeStatus {
        let shard =
            ShardStatus { last, has_caught_up: role != "claiming", ..ShardStatus::default() };
        NodeStatus {
            node: node.to_owned(),
            role: role.to_owned(),
            version: "0.1.0".to_owned(),
            config: "89abcdef".to_owned(),
            address: format!("{node}.example:1883"),
            epoch: 4,
            shards: vec![shard],
            ..NodeStatus::default()
        }
    }

    fn found(nodes: Vec<NodeStatus>, holder: Option<&str>) -> Found {
        let lease = |node: &str| {
            let lease = serde_json::json!({
                "holder": { "node": node, "instance": 1, "address": "" }, "epoch": 4, "count": 9,
            });
            serde_json::from_value(lease).unwrap()
        };
        let info = serde_json::json!({ "cluster": {
            "leader": "nats1", "replicas": [{ "current": true }, { "current": false }],
        } });
        Found {
            lease: holder.map(lease),
            nodes: with_lags(nodes, 9),
            streams: vec![stream_of("s".to_owned(), &info)],
        }
    }

    fn member(node: &str) -> NodeMember {
        NodeMember { node: node.to_owned(), link: format!("{node}.example:7883") }
    }

    #[test]
    fn nodes_and_cells_have_a_table_each() {
        let nodes = [("a", "active", 9), ("b", "standby", 7)];
        let nodes = nodes.map(|(node, role, last)| status(node, role, last));
        let of_first = found(nodes.into(), Some("a"));
        let of_second =
            found(vec![status("a", "active", 9), status("b", "claiming", 2)], Some("a"));
        let members = [member("a"), member("b"), member("c")];
        let shown = Shown::new(&members, vec![Ok(of_first), Ok(of_second)]);
        let words = [
            "node heard version config address link active for cells",
            "a yes 0.1.0 89abcdef a.example:1883 a.example:7883 0, 1",
            "b yes 0.1.0 89abcdef b.example:1883 b.example:7883 none",
            "c no - - - c.example:7883 none",
            "",
            "cell active epoch caught up lag messages lag bytes lag s stream leader replicas",
            "0 a 4 1 of 2 2 0 0.0 nats1 2 of 3 current",
            "1 a 4 0 of 2 7 0 0.0 nats1 2 of 3 current",
        ];
        let text = shown.text();
        let in_words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.lines().map(in_words).collect::<Vec<_>>(), words);
        let lines: Vec<&str> = text.lines().collect();
        for (head, row, words) in [
            (0, 1, [("config", "89abcdef"), ("address", "a.example:1883"), ("active for", "0, 1")]),
            (5, 6, [("epoch", "    4"), ("stream", "nats1"), ("replicas", "2 of 3")]),
        ] {
            for (title, value) in words {
                assert_eq!(lines[head].find(title), lines[row].find(value), "below {title}");
            }
        }
    }

    #[test]
    fn a_cell_without_an_active_node_says_so() {
        let suspended = found(vec![status("a", "suspended", 9)], Some("a"));
        let new = found(vec![status("a", "standby", 0)], None);
        let lost = found(Vec::new(), Some("b"));
        let broken = Err(anyhow::anyhow!("stream not found (code 10059)"));
        let shown = Shown::new(&[member("a")], vec![Ok(suspended), Ok(new), Ok(lost), broken]);
        assert!(shown.cells.iter().all(|cell| cell.active.is_none()));
        let expected = "\
cell 0: no node is active; lease: a with epoch 4; 'a' is suspended
cell 1: no node is active; no node has had the lease
cell 2: no node is active; lease: b with epoch 4
cell 3: stream not found (code 10059)
";
        assert_eq!(shown.notes(), expected);
        let line = "   3  none                  0  0 of 1                0          0     0.0  \
                    unknown        0 of 0 current\n";
        assert_eq!(shown.cells[3].line(1), line);
    }

    #[test]
    fn a_fault_of_several_cells_is_one_note() {
        let faulty = |cell: u16| {
            let mut node = status("b", "standby", 9);
            node.detail = "cannot reach NATS".to_owned();
            node.config = if cell == 1 { "0".to_owned() } else { node.config };
            found(vec![status("a", "active", 9), node], Some("a"))
        };
        let shown = Shown::new(&[member("a")], vec![Ok(faulty(0)), Ok(faulty(1))]);
        let expected = "\
'b' is missing in the list of nodes
'b': cannot reach NATS (cells 0, 1)
settings of durability or namespaces differ: make them the same
";
        assert_eq!(shown.notes(), expected);
    }

    #[test]
    fn of_two_nodes_that_seem_active_the_newer_one_counts() {
        let mut newer = status("b", "active", 9);
        newer.epoch = 5;
        let found = found(vec![newer, status("c", "active", 9)], Some("b"));
        let shown = Shown::new(&[member("b"), member("c")], vec![Ok(found)]);
        assert_eq!(shown.cells[0].active.as_deref(), Some("b"));
        assert_eq!(shown.nodes[0].cells_active, [0]);
        assert!(shown.nodes[1].cells_active.is_empty());
    }

    #[test]
    fn programs_get_the_same_as_stable_fields() {
        let nodes = vec![status("a", "active", 9), status("b", "standby", 7)];
        let shown = Shown::new(&[member("a"), member("b")], vec![Ok(found(nodes, Some("a")))]);
        let shown = serde_json::to_value(&shown).unwrap();
        assert_eq!(
            shown["nodes"][0],
            serde_json::json!({
                "node": "a", "is_member": true, "link": "a.example:7883", "is_heard": true,
                "version": "0.1.0", "config": "89abcdef", "address": "a.example:1883",
                "cells_active": [0],
            })
        );
        let cell = &shown["cells"][0];
        assert_eq!(cell["cell"], 0);
        assert_eq!(cell["active"], "a");
        assert_eq!(cell["lease"]["epoch"], 4);
        assert_eq!(cell["standbys_caught_up"], serde_json::json!(["b"]));
        assert_eq!(cell["lag_messages"], 2);
        assert_eq!(cell["nodes"][1]["role"], "standby");
        assert_eq!(cell["streams"][0]["leader"], "nats1");
    }
}
