//! A stream at a moment, for operators.

use broker::streams::StreamNumber;

use crate::hub::Hub;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamView {
    pub stream: StreamNumber,
    /// Records that were ever stored in it.
    pub stored: u64,
    /// Records and bytes in files.
    pub records: u64,
    pub bytes: u64,
    /// Records that are in no file yet, in the journals and in memory.
    pub unmoved: u64,
    pub consumers: u64,
    pub is_full: bool,
    /// Files cannot be written, for this reason.
    pub fault: Option<String>,
}

impl Hub {
    /// None: there is none of this number.
    pub fn stream_view(&self, number: StreamNumber) -> Option<StreamView> {
        let stream = self.streams.get(&number)?;
        let tails = || stream.shards.iter().map(|shard| &shard.tail);
        Some(StreamView {
            stream: number,
            stored: tails().map(|tail| tail.next()).sum(),
            records: stream.log.records(),
            bytes: stream.log.bytes(),
            unmoved: tails().map(|tail| tail.next() - tail.archived.min(tail.next())).sum(),
            consumers: stream.consumers.len() as u64,
            is_full: stream.is_full,
            fault: stream.log.fault().map(|fault| fault.detail.clone()),
        })
    }

    /// All outcomes are in the journals.
    pub fn is_committed(&self) -> bool {
        self.consumers.values().flat_map(|consumer| &consumer.shards).all(|progress| {
            progress.fact.is_none() && progress.uncommitted_ms.is_none() && progress.dead.is_empty()
        })
    }
}
