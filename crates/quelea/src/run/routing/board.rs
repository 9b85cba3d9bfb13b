//! What operators and metrics read of streams and consumers, and the log lines about them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use broker::streams::{ConsumerNumber, StreamNumber};
use streams::{ConsumerView, Happening, State, StreamView};

/// As of the last look of the owner: once a second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reported {
    pub(crate) at_ms: u64,
    pub(crate) consumers: Vec<ConsumerView>,
    pub(crate) streams: Vec<StreamView>,
    /// Bytes of the records in memory.
    pub(crate) memory_bytes: u64,
}

/// Names for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) streams: BTreeMap<StreamNumber, Arc<str>>,
    pub(crate) consumers: BTreeMap<ConsumerNumber, Arc<str>>,
}

/// Shared by the owner, the API and metrics.
#[derive(Debug, Default)]
pub(crate) struct Board {
    reported: Mutex<Arc<Reported>>,
    names: Mutex<Arc<Names>>,
}

impl Board {
    pub(crate) fn reported(&self) -> Arc<Reported> {
        Arc::clone(&self.reported.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn names(&self) -> Arc<Names> {
        Arc::clone(&self.names.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn put(&self, reported: Reported) {
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(reported);
    }

    pub(super) fn put_names(&self, names: Names) {
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
    }

    /// Logs what happened. The reasons are those of targets, and name no secret.
    pub(super) fn report(&self, happening: &Happening) {
        let names = self.names();
        match happening {
            Happening::State { name, state, .. } => {
                let (rule, word, reason) = (&**name, state.name(), state.reason());
                match state {
                    State::Running | State::Idle | State::InFlightLimit => {
                        tracing::info!(rule, "rule delivers messages");
                    }
                    State::Starting | State::Paused | State::Ending => {
                        tracing::info!(rule, state = word, reason, "rule does not deliver");
                    }
                    _ => tracing::warn!(rule, state = word, reason, "rule waits"),
                }
            }
            Happening::Started { consumer, run } => {
                tracing::info!(rule = names.consumer(*consumer), run, "rule begins to read");
            }
            Happening::Ended { consumer } => {
                tracing::info!(rule = names.consumer(*consumer), "rule removed");
            }
            Happening::Dropped { consumer, shard, ordinals, count, outcome } => tracing::warn!(
                rule = names.consumer(*consumer),
                shard,
                first = ordinals.start,
                next = ordinals.end,
                count,
                reason = outcome.name(),
                "messages of a stream were dropped before the rule delivered them"
            ),
            Happening::Undelivered { consumer, stream, reason, attempts, answer, record } => {
                let target = stream.map(|stream| names.stream(stream).to_owned());
                tracing::warn!(
                    rule = names.consumer(*consumer),
                    shard = record.shard,
                    record = record.ordinal,
                    reason = ?reason,
                    attempts,
                    answer,
                    dead_letter = target.as_deref().unwrap_or("none: the message is discarded"),
                    "message not delivered"
                );
            }
            Happening::WriteFault { stream, fault } => tracing::error!(
                stream = names.stream(*stream),
                fault,
                "cannot write a file of the stream; it is tried again every second, and messages \
                stay in the log"
            ),
            Happening::WriteResumed { stream } => {
                tracing::info!(stream = names.stream(*stream), "files of the stream are written");
            }
            Happening::Broken { stream, shard, detail } => {
                tracing::error!(stream = names.stream(*stream), shard, detail, "stream stopped");
            }
            Happening::Full { stream, is_full: true } => {
                tracing::warn!(stream = names.stream(*stream), "stream full: messages are refused");
            }
            Happening::Full { stream, is_full: false } => {
                tracing::info!(stream = names.stream(*stream), "stream accepts messages again");
            }
            Happening::StreamsSet => tracing::info!("streams are in force"),
        }
    }
}

impl Names {
    pub(crate) fn stream(&self, number: StreamNumber) -> &str {
        self.streams.get(&number).map_or("", |name| name)
    }

    pub(crate) fn consumer(&self, number: ConsumerNumber) -> &str {
        self.consumers.get(&number).map_or("", |name| name)
    }
}
