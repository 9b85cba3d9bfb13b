//! What the journal has of streams: the records that are in no file yet, and the facts of files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use storage::{Journal, Level, Position};

use crate::log::facts::{Archived, Stamps};
use crate::words::record_location::RecordLocation;
use crate::words::stream_set::{
    ConsumerNumber, StoredRecord, StreamFlaw, StreamFound, StreamNews, StreamNumber, StreamsFound,
};

/// What the journal has of all streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) own: BTreeMap<StreamNumber, OwnStream>,
    pub(super) cursors: BTreeMap<ConsumerNumber, RecordLocation>,
    /// Streams with records that are not committed, or not synced.
    pub(super) waiting: BTreeSet<StreamNumber>,
    /// Reclaiming has copied a record that no file has.
    pub(super) needs_space: bool,
    /// As read at the start, until the owner has asked for it.
    pub(super) found: StreamsFound,
    /// Planted by a test.
    #[cfg(feature = "testing")]
    pub(super) flaw: Option<StreamFlaw>,
}

/// What the journal has of one stream. Bounded by the tail in memory, which its owner bounds.
#[derive(Debug, Default)]
pub(super) struct OwnStream {
    /// The ordinal of the next record.
    pub(super) next: u64,
    /// Those below are in files.
    pub(super) archived: u64,
    /// The newest fact of each file.
    pub(super) files: BTreeMap<u64, (Archived, RecordLocation)>,
    /// Of the records from `archived` on. 0: its record was lost.
    pub(super) serials: VecDeque<u64>,
    /// The last of them, which are not committed.
    pub(super) uncommitted: VecDeque<Uncommitted>,
    /// Those before, which are committed and not synced.
    pub(super) unsynced: VecDeque<Position>,
}

#[derive(Debug)]
pub(super) struct Uncommitted {
    pub(super) position: Position,
    pub(super) level: Level,
    pub(super) record: StoredRecord,
}

/// What a commit allows: the answer to an order, and what it releases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordered {
    pub(crate) id: u64,
    pub(super) archived: Option<Archived>,
}

/// The records of a stream as read from the journal, by their ordinals.
pub(super) type FoundTail = BTreeMap<u64, (u64, RecordLocation, StoredRecord)>;

impl OwnStream {
    pub(super) fn found(&self) -> StreamFound {
        let reach = self.files.values().filter(|(fact, _)| fact.file != 0);
        let reach = reach.map(|(fact, _)| (fact.file, fact.end)).collect();
        // What was dropped is kept as file 0.
        let first_file = self.files.get(&0).map_or(0, |(fact, _)| fact.end);
        StreamFound { archived: self.archived, next: self.next, reach, first_file }
    }

    /// `is_early`: planted. `synced`: the level that outlives a loss of power. True: nothing is
    /// left to be handed over.
    pub(super) fn hand_over(
        &mut self,
        stream: StreamNumber,
        journal: &Journal,
        (is_early, synced): (bool, Level),
        out: &mut Vec<StreamNews>,
    ) -> bool {
        let first = self.next - self.uncommitted.len() as u64;
        let mut records = Vec::new();
        let is_committed =
            |it: &mut Uncommitted| is_early || journal.is_committed(it.position, it.level);
        while let Some(it) = self.uncommitted.pop_front_if(is_committed) {
            records.push(it.record);
            self.unsynced.push_back(it.position);
        }
        let next = first + records.len() as u64;
        if !records.is_empty() {
            out.push(StreamNews::Stored { stream, first, records });
        }
        let before = self.unsynced.len();
        let is_synced = |position: &mut Position| journal.is_committed(*position, synced);
        while self.unsynced.pop_front_if(is_synced).is_some() {}
        if self.unsynced.len() < before {
            out.push(StreamNews::Synced { stream, next: next - self.unsynced.len() as u64 });
        }
        self.unsynced.is_empty() && self.uncommitted.is_empty()
    }

    /// Files have the records below `next`. Returns the serials of those that they did not have.
    pub(super) fn archive(&mut self, next: u64) -> Vec<u64> {
        let count = next.min(self.next).saturating_sub(self.archived) as usize;
        self.archived += count as u64;
        self.serials.drain(..count.min(self.serials.len())).filter(|serial| *serial != 0).collect()
    }
}

impl Streams {
    /// Is this fault planted?
    #[cfg(feature = "testing")]
    pub(super) fn has(&self, flaw: StreamFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(feature = "testing"))]
    #[expect(clippy::unused_self, reason = "with the feature it has them")]
    pub(super) const fn has(&self, _: StreamFlaw) -> bool {
        false
    }

    #[cfg(feature = "testing")]
    pub(super) fn plant(&mut self, flaw: StreamFlaw) {
        self.flaw = Some(flaw);
        if flaw == StreamFlaw::OrdinalReused {
            for own in self.own.values_mut() {
                if own.uncommitted.pop_back().is_some() {
                    own.serials.pop_back();
                    own.next -= 1;
                }
            }
        }
    }

    /// Does a stream need the record that has this ordinal in it?
    pub(super) fn needs(&self, stream: u32, ordinal: u64) -> bool {
        let own = self.own.get(&StreamNumber(stream));
        own.is_some_and(|own| (own.archived..own.next).contains(&ordinal))
    }

    pub(super) fn need_any(&self, stamps: Stamps<'_>) -> bool {
        stamps.iter().any(|(stream, ordinal)| self.needs(stream, ordinal))
    }

    pub(super) fn push(&mut self, stream: StreamNumber, serial: u64, uncommitted: Uncommitted) {
        let Some(own) = self.own.get_mut(&stream) else { return };
        own.next += 1;
        own.serials.push_back(serial);
        own.uncommitted.push_back(uncommitted);
        self.waiting.insert(stream);
    }

    /// What is committed and synced by now, for the owner of streams.
    pub(super) fn hand_over(&mut self, journal: &Journal, out: &mut Vec<StreamNews>) {
        let is_early = self.has(StreamFlaw::UncommittedRead);
        let synced = match self.has(StreamFlaw::SyncedEarly) {
            true => Level::Disk,
            false => Level::Fsync,
        };
        let rules = (is_early, synced);
        let own = &mut self.own;
        self.waiting.retain(|stream| {
            own.get_mut(stream).is_some_and(|own| !own.hand_over(*stream, journal, rules, out))
        });
    }

    /// As the journal has had it. Call it once.
    pub(super) fn found(&mut self) -> StreamsFound {
        let streams = self.own.iter().map(|(number, own)| (*number, own.found())).collect();
        StreamsFound { streams, ..std::mem::take(&mut self.found) }
    }

    /// A stream as the journal has it.
    pub(super) fn restore(
        &mut self,
        stream: StreamNumber,
        archived: u64,
        files: BTreeMap<u64, (Archived, RecordLocation)>,
        tail: FoundTail,
    ) {
        let mut own = OwnStream { next: archived, archived, files, ..OwnStream::default() };
        for (ordinal, (serial, place, record)) in tail {
            // A record between them was damaged: its ordinal stays its own.
            while own.next < ordinal {
                own.serials.push_back(0);
                own.next += 1;
            }
            own.serials.push_back(serial);
            own.next += 1;
            let (position, level) = (place.position(), Level::Fsync);
            own.uncommitted.push_back(Uncommitted { position, level, record });
        }
        self.own.insert(stream, own);
        self.waiting.insert(stream);
    }

    pub(super) fn restore_cursor(
        &mut self,
        consumer: ConsumerNumber,
        cursor: Vec<u8>,
        place: RecordLocation,
    ) {
        self.cursors.insert(consumer, place);
        self.found.cursors.insert(consumer, cursor);
    }
}
