//! Status reports of nodes, and requests of operators to them, over core NATS. Nothing of it is
//! stored, and no promise depends on it.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::{Message, Subscriber};
use cluster::{Facts, Role};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::engine::Engine;
use super::stream_files::StreamFilesStatus;

/// Nodes that are remembered. Beyond that the one that was silent longest is forgotten.
const NODES_MAX: usize = 64;

/// A node that was silent for longer is gone.
const SILENT_MS_MAX: u64 = 5000;

/// The status of a node, as it is published each second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) node: String,
    pub(crate) instance: u64,
    pub(crate) version: String,
    /// `standby`, `claiming`, `active`, `suspended`, `released`, `ended`.
    pub(crate) role: String,
    /// Why it is not what it could be. Empty: nothing to say.
    pub(crate) detail: String,
    pub(crate) epoch: u64,
    /// `cluster.advertise`.
    pub(crate) address: String,
    /// Checksum of the settings that must be the same on all nodes.
    pub(crate) config: String,
    pub(crate) wall_ms: u64,
    pub(crate) shards: Vec<ShardStatus>,
    /// None: the cluster has no stream for them, or the node's program knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stream_files: Option<StreamFilesStatus>,
}

impl NodeStatus {
    /// It has read what there was when it began, and has the files of streams.
    pub(super) fn has_caught_up(&self) -> bool {
        let has_files = self.stream_files.as_ref().is_none_or(|files| files.is_ready);
        has_files && self.shards.iter().all(|shard| shard.has_caught_up)
    }

    /// The active role can be moved to it.
    pub(super) fn can_take_over(&self) -> bool {
        self.role == "standby" && self.has_caught_up()
    }

    /// What should fit of all nodes.
    pub(super) fn to_compare(&self) -> Facts {
        let Self { node, version, config, .. } = self;
        let (node, version, config) = (node.clone(), version.clone(), config.clone());
        Facts { node, instance: self.instance, version, config }
    }
}

/// How one shard's copy is on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardStatus {
    /// Of the last message that the node has read or written.
    pub(crate) last: u64,
    /// Bytes of the journal up to there, since the journal began.
    pub(crate) bytes: u64,
    /// Wall clock of the writer of that message.
    pub(crate) sent_at_ms: u64,
    pub(crate) has_caught_up: bool,
    pub(crate) fault: String,
    /// The fault is that the engine takes nothing now.
    #[serde(default)]
    pub(crate) is_unavailable: bool,
}

/// What a node knows of the cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) own: NodeStatus,
    /// By name, with the time at which it was heard (`boot_ms` of this node).
    pub(crate) others: BTreeMap<String, (NodeStatus, u64)>,
    /// Who has the lease, as far as this node knows.
    pub(crate) holder: Option<String>,
    pub(crate) holder_address: Option<String>,
    /// The last message of the stream as this node has measured it.
    pub(crate) end: u64,
    pub(crate) is_engine_connected: bool,
    /// Messages of the stream that this node has taken in since it began, and their bytes.
    pub(crate) read_messages: u64,
    pub(crate) read_bytes: u64,
}

/// What operators ask, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Question {
    /// Each node answers.
    Status,
    /// The active node answers.
    Switchover { to: Option<String> },
}

/// What the active node says to a switchover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SwitchoverAnswer {
    pub(crate) is_accepted: bool,
    pub(crate) detail: String,
}

/// Hears what others say.
pub(crate) struct Talk {
    engine: Engine,
    heard: Subscriber,
    asked: Subscriber,
}

/// What was heard.
pub(crate) enum Said {
    Status(Box<NodeStatus>),
    Asked(Question, Message),
}

impl Talk {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// When there is no connection.
    pub(crate) async fn begin(engine: &Engine) -> std::io::Result<Self> {
        let heard = engine.listen(STATUS_TOPIC).await?;
        let asked = engine.listen(ASK_TOPIC).await?;
        Ok(Self { engine: engine.clone(), heard, asked })
    }

    /// The next thing that is heard.
    pub(crate) async fn next(&mut self) -> Option<Said> {
        loop {
            tokio::select! {
                message = self.heard.next() => {
                    if let Ok(status) = serde_json::from_slice(&message?.payload) {
                        return Some(Said::Status(Box::new(status)));
                    }
                }
                message = self.asked.next() => {
                    let message = message?;
                    match serde_json::from_slice(&message.payload) {
                        Ok(question) => return Some(Said::Asked(question, message)),
                        Err(error) => self.answer(&message, &SwitchoverAnswer {
                            is_accepted: false,
                            detail: format!("unknown request: {error}"),
                        }).await,
                    }
                }
            }
        }
    }

    pub(crate) async fn publish_status(&self, status: &NodeStatus) {
        let payload = serde_json::to_vec(status).unwrap_or_default();
        let _ = timeout(SAY_TIMEOUT, self.engine.publish(STATUS_TOPIC, payload)).await;
    }

    pub(crate) async fn answer(&self, question: &Message, answer: &impl Serialize) {
        let Some(reply) = question.reply.clone() else { return };
        let payload = serde_json::to_vec(answer).unwrap_or_default();
        // Who asked may be gone.
        let _ = timeout(SAY_TIMEOUT, self.engine.client().publish(reply, payload.into())).await;
    }
}

impl Status {
    /// Takes in what another node says.
    pub(crate) fn hear(&mut self, status: NodeStatus, now_ms: u64) {
        if status.node == self.own.node {
            return;
        }
        self.others.insert(status.node.clone(), (status, now_ms));
        if self.others.len() > NODES_MAX {
            let oldest = self.others.iter().min_by_key(|(_, (_, at_ms))| *at_ms);
            if let Some(node) = oldest.map(|(node, _)| node.clone()) {
                self.others.remove(&node);
            }
        }
    }

    /// What a standby says to whoever wants to be served.
    pub(crate) fn where_to_go(&self) -> String {
        match &self.holder {
            Some(node) if *node != self.own.node => {
                let address = self.holder_address.as_deref().filter(|text| !text.is_empty());
                let address = address.map_or_else(String::new, |text| format!(" at {text}"));
                format!("this node is a standby; node '{node}'{address} is active")
            }
            _ => format!("this node is {}; no node is active now", self.own.role),
        }
    }

    /// The other nodes that were heard lately.
    pub(crate) fn live(&self, now_ms: u64) -> impl Iterator<Item = &NodeStatus> {
        self.others
            .values()
            .filter(move |(_, at_ms)| now_ms.saturating_sub(*at_ms) <= SILENT_MS_MAX)
            .map(|(status, _)| status)
    }
}

/// The word for a role.
pub(crate) fn word(role: &Role, is_acting: bool) -> &'static str {
    match role {
        Role::Standby => "standby",
        Role::Claiming { .. } => "claiming",
        Role::Active { .. } if is_acting => "active",
        Role::Active { .. } => "suspended",
        Role::Released => "released",
        Role::Ended(_) => "ended",
    }
}

const STATUS_TOPIC: &str = "status";
/// Without a connection the library's queue fills up: what does not fit is not said. The thread
/// of the lease must not wait for it.
const SAY_TIMEOUT: Duration = Duration::from_millis(20);
/// Where operators ask.
pub(crate) const ASK_TOPIC: &str = "ask";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_are_not_understood_are_no_questions() {
        let read = |text: &str| serde_json::from_str::<Question>(text);
        assert_eq!(read(r#"{"ask":"status"}"#).unwrap(), Question::Status);
        let to = Some("b".to_owned());
        assert_eq!(read(r#"{"ask":"switchover","to":"b"}"#).unwrap(), Question::Switchover { to });
        assert!(read(r#"{"ask":"switchover","to":"b","force":true}"#).is_err());
        assert!(read(r#"{"ask":"dance"}"#).is_err());
    }

    #[test]
    fn no_more_nodes_are_remembered_than_there_is_room_for() {
        let mut status = Status::default();
        for number in 0..NODES_MAX as u64 + 5 {
            let node = NodeStatus { node: format!("n{number}"), ..NodeStatus::default() };
            status.hear(node, number);
        }
        assert_eq!(status.others.len(), NODES_MAX);
        assert!(!status.others.contains_key("n0"));
        assert_eq!(status.live(NODES_MAX as u64 + 4 + SILENT_MS_MAX).count(), 1);
    }
}
