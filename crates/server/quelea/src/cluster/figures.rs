//! A node in figures, for metrics, `$SYS` and the API.

use std::sync::atomic::{AtomicU64, Ordering};

use broker::sys;
use session::Message;

use super::lag::{Lag, writer_among};
use super::talk::{NodeStatus, Status};

/// What a node counts since it began.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    takeovers: AtomicU64,
    suspensions: AtomicU64,
    appends_unknown: AtomicU64,
}

impl Counts {
    pub(super) fn note_takeover(&self) {
        self.takeovers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_suspension(&self) {
        self.suspensions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_unknown_append(&self) {
        self.appends_unknown.fetch_add(1, Ordering::Relaxed);
    }
}

/// What metrics say of a node.
#[derive(Clone, Debug, Default)]
pub struct ClusterFigures {
    /// One of [`ROLES`].
    pub role: String,
    pub epoch: u64,
    /// How long this node may go on to act if the lease is not renewed; 0: it does not act.
    pub lease_remaining_secs: f64,
    pub is_engine_connected: bool,
    /// Of each shard, the last message that this node has read or written.
    pub last_messages: Vec<u64>,
    /// How far this node is behind, on its worst shard.
    pub lag: Lag,
    pub takeovers: u64,
    pub suspensions: u64,
    pub appends_unknown: u64,
    /// Messages with files of streams that this node has not copied.
    pub stream_files_lag: u64,
}

/// All roles, as they are called on every surface.
pub const ROLES: [&str; 6] = ["standby", "claiming", "active", "suspended", "released", "ended"];

/// The figures of `$SYS/broker/cluster/`, and what they are.
pub const SYS_CLUSTER: [(&str, &str); 6] = [
    ("node", "The name of the active node."),
    ("role", "`active`, the only role that publishes these topics."),
    ("epoch", "Epoch of the lease. Each takeover increases it."),
    ("standbys", "Standbys that reported their status in the last five seconds."),
    ("standbys_ready", "Standbys that have caught up and can take over."),
    ("lag_messages", "The lag of the slowest standby, in messages."),
];

impl ClusterFigures {
    pub(super) fn of(status: &Status, counts: &Counts, acting_ms: u64, now_ms: u64) -> Self {
        let own = &status.own;
        Self {
            role: own.role.clone(),
            epoch: own.epoch,
            lease_remaining_secs: acting_ms as f64 / 1000.0,
            is_engine_connected: status.is_engine_connected,
            last_messages: own.shards.iter().map(|shard| shard.last).collect(),
            lag: Lag::worst(&status.lags_of(own, now_ms)),
            takeovers: counts.takeovers.load(Ordering::Relaxed),
            suspensions: counts.suspensions.load(Ordering::Relaxed),
            appends_unknown: counts.appends_unknown.load(Ordering::Relaxed),
            stream_files_lag: own.stream_files.as_ref().map_or(0, |files| files.behind),
        }
    }
}

impl Status {
    /// This node and those that were heard lately, by name.
    pub(crate) fn nodes(&self, now_ms: u64) -> Vec<&NodeStatus> {
        let mut nodes: Vec<&NodeStatus> = self.live(now_ms).chain([&self.own]).collect();
        nodes.sort_by(|one, other| one.node.cmp(&other.node));
        nodes
    }

    /// How far a node is behind, by shard. The end of the stream is what the furthest node has.
    pub(crate) fn lags_of(&self, node: &NodeStatus, now_ms: u64) -> Vec<Lag> {
        let nodes = self.nodes(now_ms);
        let writer = writer_among(nodes.iter().copied());
        // What the others say may be newer than what it says itself.
        if writer.is_some_and(|writer| writer.node == node.node) {
            return vec![Lag::default(); node.shards.len()];
        }
        let lasts = nodes.iter().flat_map(|node| &node.shards).map(|shard| shard.last);
        Lag::of_shards(node, writer, lasts.fold(self.end, u64::max))
    }

    /// What the active node publishes below `$SYS/broker/cluster/`.
    pub(crate) fn sys_messages(&self, now_ms: u64) -> Vec<Message> {
        let standbys: Vec<&NodeStatus> =
            self.live(now_ms).filter(|node| node.role == "standby").collect();
        let has_caught_up = |node: &&&NodeStatus| node.has_caught_up();
        let lags = standbys.iter().map(|node| Lag::worst(&self.lags_of(node, now_ms)).messages);
        let values = [
            self.own.node.clone(),
            self.own.role.clone(),
            self.own.epoch.to_string(),
            standbys.len().to_string(),
            standbys.iter().filter(has_caught_up).count().to_string(),
            lags.max().unwrap_or_default().to_string(),
        ];
        let named = SYS_CLUSTER.iter().zip(values);
        named
            .map(|((name, _), value)| {
                sys::message(&format!("cluster/{name}"), value.as_bytes(), true)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::talk::{ShardStatus, word};
    use super::*;
    use cluster::Role;

    fn node(name: &str, role: &str, last: u64, has_caught_up: bool) -> NodeStatus {
        let shard = ShardStatus { last, has_caught_up, ..ShardStatus::default() };
        NodeStatus {
            node: name.into(),
            role: role.into(),
            shards: vec![shard],
            ..NodeStatus::default()
        }
    }

    fn value(messages: &[Message], name: &str) -> String {
        let topic = format!("$SYS/broker/cluster/{name}");
        let found = messages.iter().find(|message| message.topic() == topic).expect("published");
        String::from_utf8_lossy(found.payload()).into_owned()
    }

    #[test]
    fn the_active_node_publishes_how_its_standbys_are() {
        let mut status = Status { own: node("a", "active", 10, true), ..Status::default() };
        status.hear(node("b", "standby", 10, true), 1_000);
        status.hear(node("c", "standby", 3, false), 1_000);
        let messages = status.sys_messages(2_000);
        let read = |name| value(&messages, name);
        assert_eq!((read("node"), read("role")), ("a".into(), "active".into()));
        assert_eq!((read("standbys"), read("standbys_ready")), ("2".into(), "1".into()));
        assert_eq!(read("lag_messages"), "7");
        let later = status.sys_messages(60_000);
        assert_eq!(value(&later, "standbys"), "0", "both are silent");
        assert_eq!(value(&later, "lag_messages"), "0");
    }

    #[test]
    fn a_standby_is_behind_the_end_that_it_has_measured_where_nobody_is_heard() {
        let status = Status { own: node("b", "standby", 4, false), end: 9, ..Status::default() };
        let figures = ClusterFigures::of(&status, &Counts::default(), 0, 0);
        assert_eq!((figures.lag.messages, figures.last_messages), (5, vec![4]));
    }

    #[test]
    fn the_node_that_writes_is_never_behind() {
        let mut status = Status { own: node("a", "active", 10, true), ..Status::default() };
        status.hear(node("b", "standby", 12, true), 0);
        let figures = ClusterFigures::of(&status, &Counts::default(), 0, 0);
        assert_eq!(figures.lag, Lag::default());
    }

    #[test]
    fn every_role_has_its_word_among_those_of_the_metrics() {
        let epoch = 1;
        let all = [
            (Role::Standby, false),
            (Role::Claiming { epoch }, false),
            (Role::Active { epoch }, true),
            (Role::Active { epoch }, false),
            (Role::Released, false),
            (Role::Ended("why".into()), false),
        ];
        assert_eq!(all.map(|(role, is_acting)| word(&role, is_acting)), ROLES);
    }
}
