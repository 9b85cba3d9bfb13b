//! The files of a stream: blocks of records of all shards, in files that are deleted as a whole.
//!
//! Like a journal it knows neither MQTT nor the machine. [`StreamLog`] emits [`StreamCommand`]s
//! and gets their answers; `docs/develop/stream-format.md` describes the bytes.
//!
//! ```text
//! move    BlockWriter::push(..) until it is full, StreamLog::append(block)
//!         take_commands(&mut out)
//! disk    on_written(id, result) -> Archived: the journal may release the records
//! read    locate(shard, ordinal) -> file and offset; Block::read(..) and its records
//! space   retain(now_ms, passed) -> Dropped, one for each shard of a file that goes
//!         delete_below(file), once the journals have forgotten the dropped files
//! start   FileIdentity::read, FileIndex::read_footer or scan, StreamLog::open
//! ```
//!
//! # Invariants
//!
//! - What [`StreamLog::on_written`] has reported is durable, and is found after a start.
//! - The ordinals of a shard grow from block to block and from file to file.
//! - The time of a shard's records never goes back within a block.
//! - Memory follows the bytes of the files: one index entry for each 64 KiB, none for a record.

mod block;
mod file;
mod log;
mod wire;

pub use block::{
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, Block, BlockFault, BlockHeader, BlockWriter, Packing,
    RECORD_BYTES_MAX, Records, StreamRecord,
};
pub use file::{
    Extent, FILE_HEADER_BYTES, FILE_TAIL_BYTES, FileFault, FileIdentity, FileIndex, INDEX_BYTES,
    IndexEntry, STREAM_FORMAT_VERSION, STREAM_SHARDS_MAX, StreamRefusal, check_reach,
};
pub use log::{
    Archived, Dropped, FoundFile, Location, StreamCommand, StreamCommandId, StreamLimits, StreamLog,
};
