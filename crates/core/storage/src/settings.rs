//! The sizes and limits of a journal.

use crate::format::{BATCH_HEADER_BYTES, HEADER_BLOCK_BYTES, RECORD_FRAME_BYTES};

/// Sizes and limits of one journal. `Settings::default()` suits a server; a test makes them small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a new segment file. 64 KiB to 1 GiB, default 64 MiB.
    pub segment_bytes: u32,
    /// Largest record in bytes. At most half a segment; default 30 MiB.
    pub record_bytes_max: u32,
    /// A batch is closed when it reaches this many bytes. It bounds what one bad checksum costs and
    /// how large write buffers grow. Default 1 MiB.
    pub batch_bytes_max: u32,
    /// Bytes appended and not yet written. Policy: further appends are refused with
    /// [`AppendError::Backlog`](crate::AppendError::Backlog). Default 64 MiB.
    pub pending_bytes_max: usize,
    /// Bytes of all segment files of the journal. Policy: as if the disk were full. Default: no
    /// limit.
    pub log_bytes_max: u64,
    /// Bytes kept free for `append_essential` when the disk is full. Default 8 MiB.
    pub reserve_bytes: u32,
    /// Bytes of written batches kept in memory for readers that are near the tail. A sixteenth
    /// while nobody reads ([`Journal::fit_cache`](crate::Journal::fit_cache)). Default 8 MiB.
    pub cache_bytes_max: usize,
    /// Reclaiming begins when the journal uses more than this many per cent of its live bytes (and
    /// `slack_segments` on top). At least 110, default 200.
    pub space_percent: u32,
    /// Segments allowed beyond `space_percent`. Default 2.
    pub slack_segments: u32,
    /// Bytes that reclaiming may read for each 100 bytes appended. At least 150, so that it gains
    /// on the appends; default 200.
    pub reclaim_percent: u32,
    /// Bytes per second that reclaiming may read however little is appended. Default 8 MiB.
    pub reclaim_bytes_per_sec: u32,
    /// Bytes that reclaiming reads at once. Default 1 MiB.
    pub reclaim_chunk_bytes: u32,
    /// Milliseconds until a command that failed for lack of space is tried again. Default 1000.
    pub retry_ms: u32,
    /// Milliseconds that records of [`Level::Lazy`](crate::Level::Lazy) may wait for others to
    /// share their commit with. Default 50. They are lost if the process is killed.
    pub lazy_commit_ms: u32,
    /// Milliseconds after which records of level `disk` are synced too. Default 1000.
    pub sync_interval_ms: u32,
    /// Bytes that the manifest is ahead of what is written, at least. Default 64 KiB.
    pub manifest_ahead_bytes: u32,
    /// Milliseconds after which the manifest states how far the journal is durable, if it has
    /// grown. Default 60,000.
    pub manifest_interval_ms: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * MIB,
            record_bytes_max: 30 * MIB,
            batch_bytes_max: MIB,
            pending_bytes_max: 64 * MIB as usize,
            log_bytes_max: u64::MAX,
            reserve_bytes: 8 * MIB,
            cache_bytes_max: 8 * MIB as usize,
            space_percent: 200,
            slack_segments: 2,
            reclaim_percent: 200,
            reclaim_bytes_per_sec: 8 * MIB,
            reclaim_chunk_bytes: MIB,
            retry_ms: 1000,
            lazy_commit_ms: 50,
            sync_interval_ms: 1000,
            manifest_ahead_bytes: 64 * KIB,
            manifest_interval_ms: 60_000,
        }
    }
}

impl Settings {
    /// What may live in a journal that reclaiming lets grow to its limit: see `space_percent`. Of a
    /// journal of few segments so much that reclaiming in a hurry finds enough that is dead.
    pub(crate) fn live_bytes_max(&self) -> Option<u64> {
        let segment = u64::from(self.segment_bytes);
        let by_percent = self.log_bytes_max / u64::from(self.space_percent) * 100;
        // One is for copies, and the next one is made before the last is at its end.
        let usable = self.log_bytes_max.saturating_sub(2 * segment);
        let dead_min = (usable / DEAD_PART).max(segment + segment / 2);
        let is_limited = self.log_bytes_max != u64::MAX;
        is_limited.then_some(by_percent.min(usable.saturating_sub(dead_min)))
    }

    /// Small sizes that keep the proportions of the default: for tests and tiny devices.
    pub fn with_segment_bytes(segment_bytes: u32) -> Self {
        Self {
            segment_bytes,
            record_bytes_max: segment_bytes / 4,
            batch_bytes_max: (segment_bytes / 16).min(MIB),
            pending_bytes_max: segment_bytes as usize * 2,
            reserve_bytes: segment_bytes / 8,
            cache_bytes_max: segment_bytes as usize / 8,
            reclaim_chunk_bytes: (segment_bytes / 16).min(MIB),
            manifest_ahead_bytes: (segment_bytes / 16).min(64 * KIB),
            ..Self::default()
        }
    }

    /// Checks the sizes against each other.
    pub fn check(&self) -> Result<(), SettingsError> {
        use SettingsError as E;
        if !(64 * KIB..=1024 * MIB).contains(&self.segment_bytes) {
            return Err(E::SegmentBytes(self.segment_bytes));
        }
        if self.record_bytes_max > self.segment_bytes / 2 - OVERHEAD_BYTES {
            return Err(E::RecordBytes(self.record_bytes_max, self.segment_bytes));
        }
        if self.batch_bytes_max > self.segment_bytes / 2 {
            return Err(E::BatchBytes(self.batch_bytes_max, self.segment_bytes));
        }
        if self.reserve_bytes > self.segment_bytes / 4 {
            return Err(E::ReserveBytes(self.reserve_bytes, self.segment_bytes));
        }
        if self.log_bytes_max < u64::from(self.segment_bytes) * u64::from(SEGMENTS_MIN) {
            return Err(E::JournalBytes(self.log_bytes_max, self.segment_bytes));
        }
        if self.space_percent < 110 || self.reclaim_percent < 150 {
            return Err(E::Percent(self.space_percent, self.reclaim_percent));
        }
        Ok(())
    }
}

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("segment_bytes is {0}: use 64 KiB to 1 GiB")]
    SegmentBytes(u32),
    #[error("record_bytes_max is {0}: it must be below half of segment_bytes ({1})")]
    RecordBytes(u32, u32),
    #[error("batch_bytes_max is {0}: it must be at most half of segment_bytes ({1})")]
    BatchBytes(u32, u32),
    #[error("reserve_bytes is {0}: it must be at most a quarter of segment_bytes ({1})")]
    ReserveBytes(u32, u32),
    #[error("log_bytes_max is {0}: a log needs at least {SEGMENTS_MIN} segments of {1} bytes")]
    JournalBytes(u64, u32),
    #[error("space_percent is {0} and reclaim_percent {1}: use at least 110 and 150")]
    Percent(u32, u32),
}

/// When a journal is full, so much of it is dead at least: reclaiming then copies two bytes for
/// each that it frees.
const DEAD_PART: u64 = 3;

/// Fewer segments than this leave reclaiming no room to move.
const SEGMENTS_MIN: u32 = 4;
const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;
const OVERHEAD_BYTES: u32 = HEADER_BLOCK_BYTES + BATCH_HEADER_BYTES + RECORD_FRAME_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_small_settings_agree_with_themselves() {
        Settings::default().check().unwrap();
        Settings::with_segment_bytes(64 * KIB).check().unwrap();
        Settings::with_segment_bytes(1024 * MIB).check().unwrap();
    }

    #[test]
    fn half_of_a_journal_may_live_however_few_segments_it_has() {
        let live_of = |log_mib: u64, segment_mib: u32| {
            let log_bytes_max = log_mib << 20;
            let segment_bytes = segment_mib * MIB;
            let settings = Settings { log_bytes_max, segment_bytes, ..Settings::default() };
            settings.live_bytes_max().map(|bytes| bytes >> 20)
        };
        assert_eq!(live_of(10_240, 33), Some(5_119));
        assert_eq!(live_of(512, 33), Some(255));
        assert_eq!(live_of(256, 33), Some(126), "each of four shards of 1 GiB");
        assert_eq!(live_of(132, 33), Some(16), "the least there may be");
        assert_eq!(Settings::default().live_bytes_max(), None);
    }

    #[test]
    fn contradictions_are_refused() {
        let broken = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().unwrap_err()
        };
        assert_eq!(broken(|s| s.segment_bytes = 1), SettingsError::SegmentBytes(1));
        assert!(matches!(
            broken(|s| s.record_bytes_max = 32 * MIB),
            SettingsError::RecordBytes(..)
        ));
        assert!(matches!(broken(|s| s.batch_bytes_max = 64 * MIB), SettingsError::BatchBytes(..)));
        assert!(matches!(broken(|s| s.reserve_bytes = 64 * MIB), SettingsError::ReserveBytes(..)));
        assert!(matches!(broken(|s| s.log_bytes_max = 1), SettingsError::JournalBytes(..)));
        assert!(matches!(broken(|s| s.space_percent = 100), SettingsError::Percent(..)));
    }
}
