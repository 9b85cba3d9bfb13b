//! How far a node's local copies are behind the journals.

use serde::Serialize;

use super::talk::{NodeStatus, ShardStatus};

/// How far behind: of one shard, or of the shard that is furthest behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lag {
    #[serde(rename = "lag_messages")]
    pub messages: u64,
    #[serde(rename = "lag_bytes")]
    pub bytes: u64,
    /// Age of the last message that was read; 0 if none is missing.
    #[serde(rename = "lag_seconds")]
    pub seconds: f64,
}

impl Lag {
    /// Of one shard. `end`: the last message of the stream; `active`: the same shard of the node
    /// that writes it, if that is known.
    fn of_shard(shard: &ShardStatus, end: u64, active: Option<&ShardStatus>, wall_ms: u64) -> Self {
        let messages = end.saturating_sub(shard.last);
        let is_behind = messages > 0 && shard.sent_at_ms > 0;
        let behind_ms = if is_behind { wall_ms.saturating_sub(shard.sent_at_ms) } else { 0 };
        Self {
            messages,
            bytes: active.map_or(0, |active| active.bytes.saturating_sub(shard.bytes)),
            seconds: behind_ms as f64 / 1000.0,
        }
    }

    /// Of each shard of a node. `end`: the last message of the stream.
    pub(super) fn of_shards(node: &NodeStatus, active: Option<&NodeStatus>, end: u64) -> Vec<Self> {
        let of_shard = |(number, shard): (usize, &ShardStatus)| {
            let of_active = active.and_then(|active| active.shards.get(number));
            Self::of_shard(shard, end, of_active, node.wall_ms)
        };
        node.shards.iter().enumerate().map(of_shard).collect()
    }

    /// Of the worst shard, each figure by itself.
    pub(crate) fn worst(shards: &[Self]) -> Self {
        shards.iter().fold(Self::default(), |worst, shard| Self {
            messages: worst.messages.max(shard.messages),
            bytes: worst.bytes.max(shard.bytes),
            seconds: worst.seconds.max(shard.seconds),
        })
    }
}

/// The node that writes the journals, among these.
pub(super) fn writer_among<'a>(
    nodes: impl IntoIterator<Item = &'a NodeStatus>,
) -> Option<&'a NodeStatus> {
    nodes.into_iter().find(|node| matches!(node.role.as_str(), "active" | "suspended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(role: &str, shards: &[(u64, u64, u64)]) -> NodeStatus {
        let shard = |&(last, bytes, sent_at_ms): &(u64, u64, u64)| ShardStatus {
            last,
            bytes,
            sent_at_ms,
            ..ShardStatus::default()
        };
        NodeStatus {
            role: role.to_owned(),
            wall_ms: 10_000,
            shards: shards.iter().map(shard).collect(),
            ..NodeStatus::default()
        }
    }

    #[test]
    fn a_standby_is_as_far_behind_as_its_worst_shard() {
        let active = node("active", &[(10, 900, 9_000), (10, 500, 9_000)]);
        let standby = node("standby", &[(7, 880, 8_500), (10, 400, 1_000)]);
        let shards = Lag::of_shards(&standby, Some(&active), 10);
        assert_eq!(shards[0], Lag { messages: 3, bytes: 20, seconds: 1.5 });
        assert_eq!(
            shards[1],
            Lag { messages: 0, bytes: 100, seconds: 0.0 },
            "a copy that has it all"
        );
        assert_eq!(Lag::worst(&shards), Lag { messages: 3, bytes: 100, seconds: 1.5 });
    }

    #[test]
    fn without_an_active_node_the_end_of_the_stream_counts() {
        let ahead = node("standby", &[(10, 900, 9_000)]);
        let behind = node("standby", &[(4, 300, 8_000)]);
        assert!(writer_among([&ahead, &behind]).is_none());
        let lag = Lag::worst(&Lag::of_shards(&behind, None, 10));
        assert_eq!(lag, Lag { messages: 6, bytes: 0, seconds: 2.0 });
        let unknown = Lag::worst(&Lag::of_shards(&behind, None, 0));
        assert_eq!(unknown, Lag::default());
    }

    #[test]
    fn a_node_whose_lease_ran_out_is_still_the_one_that_writes() {
        let (suspended, standby) = (node("suspended", &[]), node("standby", &[]));
        assert_eq!(writer_among([&standby, &suspended]), Some(&suspended));
    }
}
