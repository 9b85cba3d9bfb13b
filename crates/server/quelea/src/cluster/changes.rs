//! What changes in a cluster, as operators hear of it: log lines and events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::talk::{NodeStatus, Status};
use crate::life_cycle::{Happened, table};

/// How often a standby that reads old messages says how far it is.
const PROGRESS_INTERVAL_MS: u64 = 2_000;

/// The least time between two lines about logs without a quorum. A leader that changes again and
/// again would fill the log.
const QUORUM_INTERVAL_MS: u64 = 5_000;

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// This node has another role. `secs`: since the last change.
    Role {
        before: String,
        role: String,
        epoch: u64,
        active: Option<String>,
        secs: f64,
    },
    /// The lease of the active node ran out, and nobody has taken it yet.
    Suspended {
        epoch: u64,
        reason: String,
    },
    Resumed {
        epoch: u64,
        secs: f64,
    },
    /// A standby still reads what was there when it started.
    Reading {
        messages: u64,
        bytes: u64,
        left: u64,
        secs: f64,
    },
    CaughtUp {
        messages: u64,
        bytes: u64,
        secs: f64,
    },
    /// The engine takes nothing for these shards.
    JournalsUnavailable {
        shards: Vec<u16>,
        reason: String,
    },
    JournalsAvailable {
        secs: f64,
    },
    /// A standby cannot read the stream.
    Unreadable {
        reason: String,
    },
    NodeAppeared {
        name: String,
        version: String,
        address: String,
    },
    /// It has not been heard for some seconds.
    NodeSilent {
        name: String,
    },
}

impl Change {
    /// What is reported of it.
    fn happened(&self, node: &str) -> Happened<'static> {
        let (kind, data) = match self {
            Self::Role { before, role, epoch, active, secs } => {
                let kind = match role.as_str() {
                    "claiming" => &table::CLAIMING,
                    "active" => &table::ACTIVE,
                    _ => &table::ROLE_CHANGED,
                };
                let data = json!({
                    "node": node, "role": role, "before": before, "epoch": epoch, "active": active,
                    "secs": secs,
                });
                (kind, data)
            }
            Self::Suspended { epoch, reason } => {
                let data = json!({ "node": node, "epoch": epoch, "detail": reason });
                (&table::SUSPENDED, data)
            }
            Self::Resumed { epoch, secs } => {
                let data = json!({ "node": node, "epoch": epoch, "suspended_secs": secs });
                (&table::RESUMED, data)
            }
            Self::Reading { messages, bytes, left, secs } => {
                let data = json!({
                    "node": node, "messages": messages, "bytes": bytes, "left": left, "secs": secs,
                });
                (&table::READING, data)
            }
            Self::CaughtUp { messages, bytes, secs } => {
                let data =
                    json!({ "node": node, "messages": messages, "bytes": bytes, "secs": secs });
                (&table::CAUGHT_UP, data)
            }
            Self::JournalsUnavailable { shards, reason } => {
                let data = json!({ "node": node, "shards": shards, "detail": reason });
                (&table::LOG_UNAVAILABLE, data)
            }
            Self::JournalsAvailable { secs } => {
                (&table::LOG_AVAILABLE, json!({ "node": node, "unavailable_secs": secs }))
            }
            Self::Unreadable { reason } => {
                (&table::CLUSTER_LOG_UNREADABLE, json!({ "node": node, "detail": reason }))
            }
            Self::NodeAppeared { name, version, address } => {
                let data =
                    json!({ "node": name, "by": node, "version": version, "address": address });
                (&table::NODE_APPEARED, data)
            }
            Self::NodeSilent { name } => (&table::NODE_SILENT, json!({ "node": name, "by": node })),
        };
        Happened::of_broker(kind, data)
    }
}

/// Compares what is known of the cluster with what was known before.
#[derive(Debug)]
pub(super) struct Watcher {
    role: String,
    role_since_ms: u64,
    /// What was read when reading began, and since when.
    reading: Option<Reading>,
    unavailable: Option<Unavailable>,
    quorum_told_at_ms: Option<u64>,
    /// Shards that cannot be read, and why.
    unreadable: Option<String>,
    /// Other nodes that were heard lately: name to instance.
    heard: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    since_ms: u64,
    logged_at_ms: u64,
    messages: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Unavailable {
    since_ms: u64,
    shards: Vec<u16>,
}

impl Watcher {
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            role: "standby".to_owned(),
            role_since_ms: now_ms,
            reading: None,
            unavailable: None,
            quorum_told_at_ms: None,
            unreadable: None,
            heard: BTreeMap::new(),
        }
    }

    /// What has changed since the last call.
    pub(super) fn look(&mut self, status: &Status, now_ms: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        self.look_at_role(status, now_ms, &mut changes);
        self.look_at_reading(status, now_ms, &mut changes);
        self.look_at_quorum(&status.own, now_ms, &mut changes);
        self.look_at_faults(&status.own, &mut changes);
        self.look_at_others(status, now_ms, &mut changes);
        changes
    }

    fn look_at_role(&mut self, status: &Status, now_ms: u64, changes: &mut Vec<Change>) {
        let NodeStatus { role, epoch, detail, .. } = &status.own;
        if *role == self.role {
            return;
        }
        let before = std::mem::replace(&mut self.role, role.clone());
        let since_ms = std::mem::replace(&mut self.role_since_ms, now_ms);
        let secs = secs(now_ms.saturating_sub(since_ms));
        let epoch = *epoch;
        changes.push(match (before.as_str(), role.as_str()) {
            (_, "suspended") => {
                let reason = Some(detail).filter(|text| !text.is_empty());
                let reason =
                    reason.map_or("the lease was not renewed in time", |text| text).to_owned();
                Change::Suspended { epoch, reason }
            }
            ("suspended", "active") => Change::Resumed { epoch, secs },
            (_, role) => {
                let (active, role) = (status.holder.clone(), role.to_owned());
                Change::Role { before, role, epoch, active, secs }
            }
        });
    }

    fn look_at_reading(&mut self, status: &Status, now_ms: u64, changes: &mut Vec<Change>) {
        let is_whole = status.own.has_caught_up();
        let follows = status.own.role == "standby";
        let (messages, bytes) = (status.read_messages, status.read_bytes);
        match &mut self.reading {
            None if follows && !is_whole => {
                let logged_at_ms = now_ms;
                self.reading = Some(Reading { since_ms: now_ms, logged_at_ms, messages, bytes });
            }
            Some(reading) if is_whole => {
                changes.push(Change::CaughtUp {
                    messages: messages - reading.messages,
                    bytes: bytes - reading.bytes,
                    secs: secs(now_ms - reading.since_ms),
                });
                self.reading = None;
            }
            Some(reading) if now_ms >= reading.logged_at_ms + PROGRESS_INTERVAL_MS => {
                reading.logged_at_ms = now_ms;
                let first = status.own.shards.iter().map(|shard| shard.last).min();
                changes.push(Change::Reading {
                    messages: messages - reading.messages,
                    bytes: bytes - reading.bytes,
                    left: status.end.saturating_sub(first.unwrap_or_default()),
                    secs: secs(now_ms - reading.since_ms),
                });
            }
            _ => {}
        }
    }

    fn look_at_quorum(&mut self, own: &NodeStatus, now_ms: u64, changes: &mut Vec<Change>) {
        let waits = |logged_at_ms: u64| now_ms < logged_at_ms + QUORUM_INTERVAL_MS;
        if self.quorum_told_at_ms.is_some_and(waits) {
            return;
        }
        let without = own.shards.iter().enumerate().filter(|(_, shard)| shard.is_unavailable);
        let shards: Vec<u16> = without.clone().map(|(number, _)| number as u16).collect();
        let reason = without.map(|(_, shard)| shard.fault.clone()).next();
        let change = match (&mut self.unavailable, reason) {
            (None, Some(reason)) => {
                self.unavailable = Some(Unavailable { since_ms: now_ms, shards: shards.clone() });
                Change::JournalsUnavailable { shards, reason }
            }
            (Some(known), Some(reason)) if known.shards != shards => {
                known.shards.clone_from(&shards);
                Change::JournalsUnavailable { shards, reason }
            }
            (Some(known), None) => {
                let secs = secs(now_ms - known.since_ms);
                self.unavailable = None;
                Change::JournalsAvailable { secs }
            }
            _ => return,
        };
        self.quorum_told_at_ms = Some(now_ms);
        changes.push(change);
    }

    fn look_at_faults(&mut self, own: &NodeStatus, changes: &mut Vec<Change>) {
        // All shards are in one stream.
        let mut faults = own.shards.iter().filter(|it| !it.fault.is_empty() && !it.is_unavailable);
        let found = faults.next().map(|shard| shard.fault.clone());
        if found != self.unreadable {
            self.unreadable.clone_from(&found);
            changes.extend(found.map(|reason| Change::Unreadable { reason }));
        }
    }

    fn look_at_others(&mut self, status: &Status, now_ms: u64, changes: &mut Vec<Change>) {
        let live: BTreeMap<String, u64> =
            status.live(now_ms).map(|node| (node.node.clone(), node.instance)).collect();
        for node in status.live(now_ms) {
            if self.heard.get(&node.node) != Some(&node.instance) {
                changes.push(Change::NodeAppeared {
                    name: node.node.clone(),
                    version: node.version.clone(),
                    address: node.address.clone(),
                });
            }
        }
        let silent = self.heard.keys().filter(|name| !live.contains_key(*name));
        changes.extend(silent.map(|name| Change::NodeSilent { name: name.clone() }));
        self.heard = live;
    }
}

fn secs(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// Takes what happened to the node, as long as this phase of the process lasts.
pub(crate) type Listener = Box<dyn Fn(&Happened<'_>) + Send>;

/// Notifies of changes. The last change of role is reported to each new listener: the broker
/// of an active node starts after the change.
#[derive(Clone, Default)]
pub(crate) struct Notifier(Arc<Mutex<NotifierState>>);

#[derive(Default)]
struct NotifierState {
    listener: Option<Listener>,
    role: Option<Happened<'static>>,
}

impl Notifier {
    pub(crate) fn set(&self, listener: Listener) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(role) = &state.role {
            listener(role);
        }
        state.listener = Some(listener);
    }

    /// Logs a change and gives it to the listener.
    pub(super) fn notify(&self, change: &Change, node: &str) {
        let happened = change.happened(node);
        happened.log();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = &state.listener {
            listener(&happened);
        }
        if matches!(change, Change::Role { .. }) {
            state.role = Some(happened);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::talk::ShardStatus;
    use super::*;

    fn status(role: &str, shards: &[(u64, bool)]) -> Status {
        let shard =
            |&(last, has_caught_up)| ShardStatus { last, has_caught_up, ..ShardStatus::default() };
        let shards = shards.iter().map(shard).collect();
        let own =
            NodeStatus { node: "a".into(), role: role.into(), shards, ..NodeStatus::default() };
        Status { own, ..Status::default() }
    }

    #[test]
    fn a_suspension_is_reported_once_and_so_is_its_end() {
        let mut watcher = Watcher::new(0);
        let active = status("active", &[(1, true)]);
        let mut suspended = status("suspended", &[(1, true)]);
        suspended.own.detail = "no answer".into();
        let first = watcher.look(&active, 1_000);
        assert!(matches!(&first[..], [Change::Role { role, .. }] if role == "active"), "{first:?}");
        let changes = watcher.look(&suspended, 2_000);
        assert_eq!(changes, [Change::Suspended { epoch: 0, reason: "no answer".into() }]);
        assert_eq!(watcher.look(&suspended, 3_000), []);
        assert_eq!(watcher.look(&active, 4_500), [Change::Resumed { epoch: 0, secs: 2.5 }]);
    }

    #[test]
    fn a_standby_reports_its_progress_and_when_it_has_caught_up() {
        let mut watcher = Watcher::new(0);
        let mut reading = status("standby", &[(5, false), (9, true)]);
        reading.end = 50;
        (reading.read_messages, reading.read_bytes) = (3, 300);
        assert_eq!(watcher.look(&reading, 1_000), []);
        assert_eq!(watcher.look(&reading, 2_000), []);
        (reading.read_messages, reading.read_bytes) = (13, 1_300);
        let (messages, bytes) = (10, 1_000);
        let changes = watcher.look(&reading, 3_000);
        assert_eq!(changes, [Change::Reading { messages, bytes, left: 45, secs: 2.0 }]);
        reading.own.shards[0].has_caught_up = true;
        let changes = watcher.look(&reading, 3_500);
        assert_eq!(changes, [Change::CaughtUp { messages, bytes, secs: 2.5 }]);
        assert_eq!(watcher.look(&reading, 9_000), []);
    }

    #[test]
    fn a_quorum_that_comes_and_goes_is_reported_now_and_then() {
        let mut watcher = Watcher::new(0);
        let mut lines = Vec::new();
        let whole = status("standby", &[(1, true), (1, true)]);
        let mut lame = whole.clone();
        lame.own.shards[1].is_unavailable = true;
        lame.own.shards[1].fault = "no leader".into();
        for tick in 0..120 {
            let seen = if tick % 2 == 0 { &lame } else { &whole };
            lines.extend(watcher.look(seen, 100_000 + tick * 100));
        }
        let reason = "no leader".to_owned();
        let gone = Change::JournalsUnavailable { shards: vec![1], reason };
        assert_eq!(lines, [gone.clone(), Change::JournalsAvailable { secs: 5.1 }, gone]);
    }

    #[test]
    fn a_stream_that_cannot_be_read_is_reported_once() {
        let mut watcher = Watcher::new(0);
        let mut seen = status("standby", &[(1, true), (1, true)]);
        let say = |seen: &mut Status, fault: &str| {
            seen.own.shards.iter_mut().for_each(|shard| shard.fault = fault.into());
        };
        let reason = "message 7: its version is 3";
        say(&mut seen, reason);
        let unreadable = Change::Unreadable { reason: reason.into() };
        assert_eq!(watcher.look(&seen, 1_000), std::slice::from_ref(&unreadable));
        assert_eq!(watcher.look(&seen, 2_000), []);
        say(&mut seen, "");
        assert_eq!(watcher.look(&seen, 3_000), []);
        say(&mut seen, reason);
        assert_eq!(watcher.look(&seen, 4_000), [unreadable]);
    }

    #[test]
    fn a_node_that_falls_silent_and_comes_back_is_reported() {
        let mut watcher = Watcher::new(0);
        let mut seen = status("standby", &[]);
        let other = |instance| NodeStatus { node: "b".into(), instance, ..NodeStatus::default() };
        let name = || "b".to_owned();
        let appeared = || Change::NodeAppeared {
            name: name(),
            version: String::new(),
            address: String::new(),
        };
        seen.hear(other(1), 1_000);
        assert_eq!(watcher.look(&seen, 1_000), [appeared()]);
        assert_eq!(watcher.look(&seen, 6_000), []);
        assert_eq!(watcher.look(&seen, 6_001), [Change::NodeSilent { name: name() }]);
        seen.hear(other(1), 7_000);
        assert_eq!(watcher.look(&seen, 7_000), [appeared()]);
        seen.hear(other(2), 8_000);
        assert_eq!(watcher.look(&seen, 8_000), [appeared()], "started again");
    }

    #[test]
    fn a_listener_hears_of_the_role_that_there_is_already() {
        let notifier = Notifier::default();
        let role = |role: &str| Change::Role {
            before: "standby".into(),
            role: role.into(),
            epoch: 3,
            active: None,
            secs: 0.0,
        };
        notifier.notify(&role("claiming"), "a");
        notifier.notify(&role("active"), "a");
        let (heard, hears) = std::sync::mpsc::channel();
        notifier.set(Box::new(move |happened| {
            let _ = heard.send((happened.kind.name, happened.data["role"].clone()));
        }));
        notifier.notify(&Change::Resumed { epoch: 3, secs: 1.0 }, "a");
        let events: Vec<_> = hears.try_iter().collect();
        assert_eq!(events[0], ("cluster.role_changed", "active".into()));
        assert_eq!((events[1].0, events.len()), ("cluster.resumed", 2));
    }

    #[test]
    fn every_event_is_documented_with_its_fields() {
        let text = String::new;
        let changes = [
            Change::Role { before: text(), role: text(), epoch: 0, active: None, secs: 0.0 },
            Change::Suspended { epoch: 0, reason: text() },
            Change::Resumed { epoch: 0, secs: 0.0 },
            Change::CaughtUp { messages: 0, bytes: 0, secs: 0.0 },
            Change::JournalsUnavailable { shards: Vec::new(), reason: text() },
            Change::JournalsAvailable { secs: 0.0 },
            Change::NodeAppeared { name: text(), version: text(), address: text() },
            Change::NodeSilent { name: text() },
            Change::Reading { messages: 0, bytes: 0, left: 0, secs: 0.0 },
            Change::Unreadable { reason: text() },
        ];
        for change in changes {
            let happened = change.happened("a");
            let mut fields: Vec<&str> = happened.kind.fields.split(", ").collect();
            fields.sort_unstable();
            let data = happened.data.as_object().expect("an object");
            let mut found: Vec<&str> = data.keys().map(String::as_str).collect();
            found.sort_unstable();
            assert_eq!(found, fields, "{}", happened.kind.name);
        }
    }
}
