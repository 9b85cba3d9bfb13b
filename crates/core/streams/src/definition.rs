//! What operators define: streams and consumers.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::streams::{ConsumerNumber, StreamNumber};
use routing::{DispatchRules, Rule};
use storage::stream::{STREAM_SHARDS_MAX, StreamLimits};

/// A stream.
#[derive(Clone, Debug)]
pub struct StreamDefinition {
    pub number: StreamNumber,
    pub name: Arc<str>,
    pub limits: StreamLimits,
    pub full: Full,
    /// Random, chosen when the stream is made. It names its files.
    pub identity: [u8; 16],
}

/// What happens at the limits of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Full {
    /// The oldest files are deleted, whether consumers have passed them or not.
    #[default]
    DropOldest,
    /// Only files that all consumers have passed are deleted. Publishers are refused meanwhile.
    Reject,
}

/// A consumer.
#[derive(Clone, Debug)]
pub struct ConsumerDefinition {
    pub number: ConsumerNumber,
    pub name: Arc<str>,
    pub stream: StreamNumber,
    /// The name of the namespace, which is the `source` of events.
    pub namespace: Arc<str>,
    pub rule: Arc<Rule>,
    pub dispatch: DispatchRules,
    pub order: Order,
    /// Where it begins, on shards that have no cursor of it.
    pub start: Start,
    /// Where records go that could not be delivered. None: they are discarded.
    pub dead_letter: Option<StreamNumber>,
    /// Messages that have expired before they are read are skipped.
    pub skip_expired: bool,
    /// Bytes of records that were read and have no outcome. Policy: no more are read.
    pub in_flight_bytes_max: usize,
}

/// Which records stay in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Those of a publisher and topic.
    #[default]
    Lanes,
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// At the end of the stream.
    #[default]
    New,
    /// At the oldest record.
    Beginning,
}

/// Where a consumer goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seek {
    Beginning,
    End,
    /// At the first record of this broker time or later, in milliseconds.
    Time(u64),
    Position(Position),
}

/// A location in a stream: an ordinal for each shard. Operators get it as text and do not look into
/// it. A shard that it does not name begins at its oldest record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Position(pub BTreeMap<u16, u64>);

impl Position {
    /// None: it is not what [`Position::text`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let parts = text.split('-').take(usize::from(STREAM_SHARDS_MAX) + 1);
        let parts = parts.map(|part| {
            let (shard, ordinal) = part.split_once('.')?;
            Some((shard.parse().ok()?, ordinal.parse().ok()?))
        });
        let ordinals = parts.collect::<Option<BTreeMap<u16, u64>>>()?;
        (ordinals.len() <= usize::from(STREAM_SHARDS_MAX)).then_some(Self(ordinals))
    }

    pub fn text(&self) -> String {
        let parts = self.0.iter().map(|(shard, ordinal)| format!("{shard}.{ordinal}"));
        parts.collect::<Vec<_>>().join("-")
    }
}

/// Why a definition, or a change of one, is refused. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DefinitionError {
    #[error("stream {0}: the number is in use")]
    StreamInUse(u32),
    #[error("consumer {0}: the number is in use")]
    ConsumerInUse(u32),
    #[error("stream {0} does not exist")]
    NoStream(u32),
    #[error("consumer {0} does not exist")]
    NoConsumer(u32),
    #[error("dead_letter: stream {0} leads back to the consumer: use another stream")]
    DeadLetterLoop(u32),
    #[error("stream {0} has consumers, or gets dead letters of some: remove these first")]
    StreamUsed(u32),
    #[error("consumer {0}: a consumer keeps its stream: make another consumer")]
    OtherStream(u32),
    #[error("consumer {0}: the cursor of shard {1} is damaged: restore a backup")]
    Cursor(u32, u16),
}

/// Does a dead letter that goes into `to` come back to a consumer of `from`? `next`: streams that
/// consumers of a stream write dead letters into.
pub(crate) fn leads_back(
    from: StreamNumber,
    to: StreamNumber,
    next: impl Fn(StreamNumber) -> Vec<StreamNumber>,
) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    let mut open = vec![to];
    while let Some(stream) = open.pop() {
        if stream == from {
            return true;
        }
        if seen.insert(stream) {
            open.extend(next(stream));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back_from_its_text() {
        let position = Position(BTreeMap::from([(0, 17), (3, u64::MAX)]));
        assert_eq!(Position::parse(&position.text()), Some(position));
        for text in ["", "0", "0.x", "0.1-", "99999.1", "0.-1"] {
            assert_eq!(Position::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_loop_of_dead_letters_is_found() {
        let stream = StreamNumber;
        let next = |at: StreamNumber| match at.0 {
            1 => vec![stream(2)],
            2 => vec![stream(3), stream(4)],
            4 => vec![stream(2)],
            _ => Vec::new(),
        };
        assert!(leads_back(stream(1), stream(1), next));
        assert!(leads_back(stream(4), stream(1), next));
        assert!(!leads_back(stream(9), stream(1), next), "a loop of others ends");
    }
}
