//! Why a journal is not opened.

use crate::position::Position;

/// Why a journal is not opened. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error(
        "segment {0} has a damaged header: run `quelea log check` on the data directory, \
         then restore a backup or `quelea log repair`"
    )]
    Header(u32),
    #[error(
        "segment {0} has format version {1}, this program reads version {version}: \
         use the program version that wrote it",
        version = crate::format::FORMAT_VERSION
    )]
    Version(u32, u16),
    #[error(
        "the log is damaged at {0}, in data that had been durable: run `quelea log check` on the \
         data directory, then restore a backup or `quelea log repair`"
    )]
    Damaged(Position),
    #[error(
        "the file of segment {0} is missing: put it back, or restore a backup, or run \
         `quelea log repair`"
    )]
    Missing(u32),
    #[error(
        "the file of segment {segment} has {bytes} bytes, and had {expected}: put the whole one \
         back, or restore a backup, or run `quelea log repair`"
    )]
    Short { segment: u32, bytes: u64, expected: u32 },
    #[error(
        "the log ends at {found}, and was durable up to {durable}: the file of the segment is an older copy, or damaged. Put the right one back, or restore a backup, or run `quelea log repair`"
    )]
    Lost { found: Position, durable: Position },
    #[error(
        "segment {0} is not the one that this log was written to last: put the right file back, or \
         restore a backup, or run `quelea log repair`"
    )]
    Replaced(u32),
    #[error(
        "the file `manifest` of the log is missing: put it back, or restore a backup, or run \
         `quelea log repair`"
    )]
    NoManifest,
    #[error(
        "the file `manifest` of the log is damaged: put it back, or restore a backup, or run \
         `quelea log repair`"
    )]
    Manifest,
    #[error(
        "the file `manifest` of the log has format version {0}, which this program does not read: \
         use the program version that wrote it"
    )]
    ManifestVersion(u16),
    #[error(
        "the file `manifest` belongs to another log: keep the files of different logs apart, or \
         run `quelea log repair`"
    )]
    ForeignManifest,
    #[error(
        "segment {segment} belongs to shard {shard} of {shards}, not to shard {expected} of {expected_shards}: put the right file back, or restore a backup"
    )]
    Shard { segment: u32, shard: u16, shards: u16, expected: u16, expected_shards: u16 },
    #[error("segment {0} belongs to another log: keep the files of different logs apart")]
    Foreign(u32),
    #[error(
        "expected a write at {expected}, got {found}: a part of the log was skipped or repeated; \
        remove the copy, so that it is created again"
    )]
    NotNext { expected: Position, found: Position },
    #[error(
        "the first write of the log, at {0}, does not begin a segment: remove the copy, so that it is created again"
    )]
    NoBeginning(Position),
    #[error(
        "the bytes written at {0} do not continue the log; remove the copy, so that it is created again"
    )]
    Changed(Position),
    #[error(
        "manifest {number} came after manifest {last}: a part of the log came twice; remove the copy, so that it is created again"
    )]
    ManifestOrder { number: u64, last: u64 },
    #[error("segment {0} has an impossible number or size: remove the file")]
    Impossible(u32),
}

impl Refusal {
    /// Whether giving up a part of the journal helps.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Header(_)
            | Self::Damaged(_)
            | Self::Missing(_)
            | Self::Short { .. }
            | Self::Lost { .. }
            | Self::Replaced(_)
            | Self::NoManifest
            | Self::Manifest
            | Self::ForeignManifest => true,
            Self::Version(..)
            | Self::ManifestVersion(_)
            | Self::Shard { .. }
            | Self::Foreign(_)
            | Self::NotNext { .. }
            | Self::NoBeginning(_)
            | Self::Changed(_)
            | Self::ManifestOrder { .. }
            | Self::Impossible(_) => false,
        }
    }
}
