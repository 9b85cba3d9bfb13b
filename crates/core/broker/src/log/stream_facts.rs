//! What a replay has read of streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use storage::Ledger;

use crate::log::facts::{Archived, StreamRecord, Streamed};
use crate::log::own_streams::{FoundTail, Streams};
use crate::words::record_location::RecordLocation;
use crate::words::record_location::release;
use crate::words::stream_set::{ConsumerNumber, StoredRecord, StreamNumber};

/// It holds the records that are in no file yet, which their owner bounds, and one fact for each
/// file and each consumer.
#[derive(Debug, Default)]
pub(super) struct StreamFacts {
    streams: BTreeMap<u32, OneStream>,
    cursors: BTreeMap<u32, (Vec<u8>, RecordLocation)>,
}

#[derive(Debug, Default)]
struct OneStream {
    archived: u64,
    files: BTreeMap<u64, (Archived, RecordLocation)>,
    tail: FoundTail,
}

impl StreamFacts {
    pub(super) fn on_streamed(&mut self, streamed: &Streamed<'_>, place: RecordLocation) {
        let at_ms = StreamRecord::decode(streamed.record).map_or(0, |record| record.at_ms);
        let bytes = Arc::new(streamed.record.to_vec());
        for (stream, ordinal) in streamed.stamps.iter() {
            let own = self.streams.entry(stream).or_default();
            if ordinal >= own.archived {
                let record = StoredRecord { at_ms, bytes: Arc::clone(&bytes) };
                own.tail.insert(ordinal, (streamed.serial, place, record));
            }
        }
    }

    pub(super) fn on_archived(
        &mut self,
        fact: Archived,
        place: RecordLocation,
        ledger: &mut Ledger,
    ) {
        let own = self.streams.entry(fact.stream).or_default();
        let old = own.files.insert(fact.file, (fact, place));
        release(ledger, old.map(|(_, place)| place));
        if fact.file == 0 {
            own.files.retain(|file, (_, place)| {
                let is_gone = *file != 0 && *file < fact.end;
                release(ledger, is_gone.then_some(*place));
                !is_gone
            });
        }
        own.archived = own.archived.max(fact.next);
        own.tail = own.tail.split_off(&own.archived);
    }

    pub(super) fn on_cursor(
        &mut self,
        consumer: u32,
        cursor: &[u8],
        place: RecordLocation,
        ledger: &mut Ledger,
    ) {
        let old = self.cursors.insert(consumer, (cursor.to_vec(), place));
        release(ledger, old.map(|(_, place)| place));
    }

    /// Segments below `oldest` are given back.
    pub(super) fn forget_before(&mut self, oldest: u32) {
        for own in self.streams.values_mut() {
            own.files.retain(|_, (_, place)| !place.is_before(oldest));
            own.tail.retain(|_, (_, place, _)| !place.is_before(oldest));
        }
        self.cursors.retain(|_, (_, place)| !place.is_before(oldest));
    }

    /// Each stream that has a record in no file needs its message: references and pins.
    pub(super) fn add_needs(&self, needs: &mut HashMap<u64, (u32, u32), FixedState>) {
        for (serial, ..) in self.streams.values().flat_map(|own| own.tail.values()) {
            let need = needs.entry(*serial).or_default();
            *need = (need.0 + 1, need.1 + 1);
        }
    }

    pub(super) fn restore(self, into: &mut Streams) {
        for (stream, OneStream { archived, files, tail }) in self.streams {
            into.restore(StreamNumber(stream), archived, files, tail);
        }
        for (consumer, (cursor, place)) in self.cursors {
            into.restore_cursor(ConsumerNumber(consumer), cursor, place);
        }
    }
}
