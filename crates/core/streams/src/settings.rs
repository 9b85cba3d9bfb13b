//! Limits of the owner of streams.

/// What all streams and consumers share.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Shards of the broker.
    pub shards: u16,
    /// Random, of this process, as in [`broker::streams::StreamSet::life`].
    pub life: u64,
    /// Of the owner, in the blocks that it writes. Grows with each one.
    pub epoch: u32,
    /// Files that this owner makes have at least this number. In a cluster it is above those of
    /// all owners before, whose writes may still arrive. Default 0.
    pub first_file: u64,
    /// How far the wall clock is ahead of broker time. Events have times of the wall clock.
    pub wall_ahead_ms: i64,
    /// Bytes of records in memory, of all streams. Above a half all that may go into files does,
    /// and what is in files is read from there. Policy: above it publishers are to be paused
    /// ([`crate::Hub::is_memory_full`]). Default 256 MiB.
    pub memory_max: usize,
    /// A record is moved into a file after so many milliseconds. Default 30 s.
    pub block_age_ms: u64,
    /// Or once so many bytes of its stream wait. Default 4 MiB.
    pub block_bytes_wait: usize,
    /// Bytes of a stream at the disk. Policy: the next block waits. Default 8 MiB.
    pub writing_bytes_max: usize,
    /// Bytes of blocks that consumers have read and not finished. Policy: above it a consumer
    /// reads its block again. Default 64 MiB.
    pub read_bytes_max: usize,
    /// Milliseconds until outcomes are ordered to be committed. Default 1 s.
    pub cursor_ms: u64,
    /// The same, if the only outcomes are that filters do not match: after a crash these are found
    /// again, and nothing is sent twice. Default 10 s.
    pub idle_cursor_ms: u64,
    /// Milliseconds until a fault of a disk or a journal is tried again. Default 1 s.
    pub retry_ms: u64,
    /// Milliseconds that a removed consumer waits for answers. Default 30 s.
    pub ending_ms: u64,
    /// Records of a shard that are looked at for a consumer, or for those at the front, until
    /// another has its turn. Default 500.
    pub turn_records: usize,
    /// Consumers that have a turn in one call of [`crate::Hub::work`]. Default 64.
    pub turns: usize,
    /// A fault that a test plants.
    #[cfg(feature = "testing")]
    pub flaw: Option<Flaw>,
}

impl HubSettings {
    pub const fn new(shards: u16) -> Self {
        Self {
            shards,
            life: 0,
            epoch: 1,
            first_file: 0,
            wall_ahead_ms: 0,
            memory_max: 256 << 20,
            block_age_ms: 30_000,
            block_bytes_wait: 4 << 20,
            writing_bytes_max: 8 << 20,
            read_bytes_max: 64 << 20,
            cursor_ms: 1_000,
            idle_cursor_ms: 10_000,
            retry_ms: 1_000,
            ending_ms: 30_000,
            turn_records: 500,
            turns: 64,
            #[cfg(feature = "testing")]
            flaw: None,
        }
    }

    /// Is this fault planted?
    #[cfg(feature = "testing")]
    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(feature = "testing"))]
    #[expect(clippy::unused_self, reason = "with the feature it has them")]
    pub(crate) const fn has(&self, _: Flaw) -> bool {
        false
    }
}

/// Faults that tests plant, to see that they are found.
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "tests use it"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// A cursor counts what was sent and not answered.
    CommittedBeforeAnswer,
    /// A cursor counts all records below its last outcome.
    FloorOverHole,
    /// The outcome of a dead letter is committed, and its record is not.
    DeadLetterLost,
    /// A delivered record counts twice in the sum.
    SumOffByOne,
    UnsyncedInBlock,
    ReleasedBeforeSync,
    /// Batches of each run have the same numbers.
    EarlierRunTaken,
    /// Records of a publisher and topic are in different lanes.
    LaneOvertaken,
    /// A file is deleted while journals name it.
    DeletedEarly,
    /// A record that retention has deleted is skipped without an outcome.
    DropUncounted,
    /// A run counts before its first cursors outlive a loss of power.
    RunUnsynced,
}
