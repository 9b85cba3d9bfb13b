//! The journal of a shard: an append-only sequence of records in segment files, with group commit,
//! recovery and reclaiming of space.
//!
//! # What it does not know
//!
//! MQTT: a record is a kind and some bytes. And the machine: no file, thread, clock or random
//! source is touched here. A [`Journal`] emits disk [`Command`]s and gets their
//! [`Completion`]; bytes of files are brought to [`Recovery`]; time and random identities are
//! arguments. So the same code runs on a disk thread and in a simulator that crashes it at every
//! step.
//!
//! # The use of it
//!
//! ```text
//! start   Recovery::new(shard, settings, files, manifest)
//!         wants() / on_bytes(bytes, sink) until nothing is wanted -> finish()
//!         Journal::open(recovered, settings)         then commands until status() is Ready
//! turn    append(kind, parts, level) -> Position (the ticket of the record)
//!         begin_write() / end_write()            what the user writes itself, at level `disk`
//!         take_commands(&mut out)                once per turn: its appends share a write
//! disk    on_completed(completion)               then look at written_upto() / synced_upto()
//! read    read(position), else request(position, bytes) -> ReadBack later
//! space   release(position, bytes)               when a record is no longer needed
//!         reclaim() -> Chunk                     append_copy() what is needed, reclaimed(chunk)
//! time    on_tick(now_ms), next_deadline()
//! end     close()                                then commands until status() is Closed
//! standby Follow::on_write(..)                for each write of another machine's journal,
//!         finish()                               then Journal::open
//! ```
//!
//! # Where to start reading
//!
//! [`Journal`] (`journal.rs`), then `commit.rs` for group commit, `rounds.rs` for the commits of
//! several journals, `recovery.rs` for how a torn tail
//! is distinguished from damage, `follow.rs` for a copy that grows, `manifest.rs` for how a missing
//! end is noticed, `space.rs` and `reclaim.rs` for the life of a segment, `format.rs` for the
//! bytes. The format is described field by field in `docs/develop/journal-format.md`.
//!
//! # Invariants
//!
//! - Positions grow with appends, and records come back in the order of their positions.
//! - A segment is synced before the next is begun: only the last one can have a torn tail.
//! - What recovery yields is a prefix of what was appended (records copied by reclaiming counted at
//!   their new place), and contains every record before the last `synced_upto` reported.
//! - A failed sync or write ends all promises; nothing after it is reported as committed.
//! - A journal that does not come as far as its manifest says is refused.
//! - A segment file goes only when it is durable on the medium that the journal begins behind it.

mod chunk;
mod command;
mod commit;
mod follow;
mod format;
mod inspect;
mod journal;
mod ledger;
mod manifest;
mod part;
mod position;
mod recent;
mod reclaim;
mod recovery;
mod refusal;
mod rounds;
mod scan;
mod settings;
mod space;
mod stamp;
pub mod stream;
#[cfg(feature = "testing")]
pub mod testing;

pub use chunk::{Chunk, ChunkEnd};
pub use command::{
    Command, CommandId, CommandQueue, CommitGuard, Completion, Fault, FaultKind, InPlace,
    InPlaceEnd, Outcome, Step,
};
#[cfg(feature = "testing")]
pub use commit::JournalFlaw;
pub use follow::Follow;
pub use format::crc32c as checksum;
pub use format::{
    BatchHeader, FLAG_MANIFEST, FLAG_MARK, FLAG_OPEN, FLAG_SEAL, FORMAT_VERSION, HeaderRead,
    Identity, Record, RecordKind, SegmentHeader,
};
pub use inspect::{Repair, Survey};
pub use journal::{AppendError, Journal, Level, ReadBack, Stats, Status};
pub use ledger::{Ledger, weight};
pub use manifest::{MANIFEST_BYTES, Manifest, manifest_file};
pub use position::Position;
pub use recovery::{Recovered, Recovery, Report, SegmentFile, Want};
pub use refusal::Refusal;
#[cfg(feature = "testing")]
pub use rounds::RoundsFlaw;
pub use rounds::{Answer, RoundRules, Rounds, Submission, WritePart};
pub use scan::{Scan, ScannedBatch};
pub use settings::{Settings, SettingsError};
pub use stamp::{Misfit, Stamp, Together};
