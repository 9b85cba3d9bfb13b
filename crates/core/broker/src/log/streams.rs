//! Streams in the journal: messages that they have, until files have them, and the cursors of
//! consumers.
//!
//! A message for streams is one record, whoever else wants it. Each stream that has it and is not
//! known to have it in a file holds a reference to its serial. Consumers read a record when it is
//! committed at the level of the stream, files get it when it is synced.

use std::sync::Arc;

use session::{Account, Message};
use storage::{AppendError, Level, Position};

use crate::log::facts::{Archived, Fact, Purpose, Stamps, StreamRecord, Streamed, put_attributes};
use crate::log::messages::CURSOR_SHARE;
use crate::log::messages::{level_of, noted};
use crate::log::own_streams::{Ordered, Uncommitted};
use crate::log::store::Log;
use crate::log::store::{Class, Store};
use crate::log::waiting::Step;
use crate::words::publisher::Publisher;
use crate::words::record_location::RecordLocation;
use crate::words::stream_set::{
    ConsumerNumber, OrderRefusal, StoredRecord, StreamChange, StreamFlaw, StreamNews, StreamNumber,
    StreamOrder, StreamSet, StreamsFound,
};
use crate::{Durability, Name};

/// A message on its way into streams.
pub(crate) struct ForStreams<'a> {
    pub(crate) message: &'a Message,
    pub(crate) publisher: Option<Publisher<'a>>,
    pub(crate) owner: Option<&'a Arc<Account>>,
    pub(crate) author: u64,
    /// By their places in the set.
    pub(crate) places: &'a [u32],
}

impl Store {
    /// Writes a message for streams as the next serial. Each stream holds a reference to it.
    pub(super) fn keep_for_streams(
        &mut self,
        set: &StreamSet,
        own: &ForStreams<'_>,
        purpose: Purpose<'_>,
        now_ms: u64,
    ) -> Result<(u64, Position, Level), AppendError> {
        let topic = Name::of(own.message).key();
        let record = record_of(own, &topic, set.life, now_ms);
        let wanted = own.places.iter().filter_map(|place| set.streams.get(*place as usize));
        let mut numbers: Vec<StreamNumber> = wanted.clone().map(|stream| stream.number).collect();
        numbers.sort_unstable();
        let of_streams = wanted.map(|stream| stream.level).max().unwrap_or(Durability::Disk);
        let level = level_of((of_streams as u8).max(own.message.level()));
        // A will may use the reserve: it goes for its message.
        let class = match purpose {
            Purpose::WillTaken { .. } => Class::Essential,
            _ => Class::Normal,
        };
        let expires_at_ms = own.message.expires_at_ms();
        let of =
            Kept { class, level, purpose, owner: own.owner, author: own.author, expires_at_ms };
        let record = StoredRecord { at_ms: now_ms, bytes: Arc::new(record) };
        let (serial, position) = self.keep_record(&numbers, &of, &record)?;
        Ok((serial, position, level))
    }

    fn keep_record(
        &mut self,
        streams: &[StreamNumber],
        of: &Kept<'_>,
        record: &StoredRecord,
    ) -> Result<(u64, Position), AppendError> {
        let serial = self.last_serial() + 1;
        let mut buffer = Vec::new();
        let ordinals = streams
            .iter()
            .filter_map(|number| self.streams.own.get(number).map(|own| (number.0, own.next)));
        let stamps = Stamps::write(ordinals, &mut buffer);
        let count = stamps.iter().count() as u32;
        let owner = noted(of.owner);
        let Kept { class, level, purpose, author, .. } = *of;
        let bytes = &record.bytes;
        let fact =
            Fact::Streamed(Streamed { serial, purpose, owner, author, stamps, record: bytes });
        let mut place = self.append(class, &fact, level)?;
        let position = place.position();
        if let Purpose::DeadLetter { consumer, .. } = purpose {
            let cursor = RecordLocation::new(position, CURSOR_SHARE);
            place.bytes -= CURSOR_SHARE;
            self.replace_cursor(ConsumerNumber(consumer), cursor);
        }
        self.add_streamed(place, count, of);
        for stream in streams {
            let record = record.clone();
            self.streams.push(*stream, serial, Uncommitted { position, level, record });
        }
        Ok((serial, position))
    }

    pub(super) const fn note_copied_for_streams(&mut self) {
        self.streams.needs_space = true;
    }

    fn replace_cursor(&mut self, consumer: ConsumerNumber, place: RecordLocation) {
        if let Some(old) = self.streams.cursors.insert(consumer, place) {
            self.release(old);
        }
    }

    /// A record of streams is appended again, in so far as it is still needed. `fact`: the same.
    pub(super) fn plain_or_streamed<'a>(&self, streamed: &Streamed<'a>) -> Option<Fact<'a>> {
        if self.streams.need_any(streamed.stamps) {
            return Some(Fact::Streamed(*streamed));
        }
        let message = streamed.message()?;
        match streamed.purpose {
            Purpose::Message => Some(Fact::Message(message)),
            Purpose::Taken { session, packet_id } => {
                Some(Fact::Taken { session, packet_id, message })
            }
            Purpose::WillTaken { session } => Some(Fact::WillTaken { session, message }),
            Purpose::Streams | Purpose::DeadLetter { .. } => None,
        }
    }

    /// Where the fact of a file or a cursor stands.
    pub(super) fn place_of_streams(&mut self, fact: &Fact<'_>) -> Option<&mut RecordLocation> {
        match *fact {
            Fact::Archived(Archived { stream, file, .. }) => {
                let own = self.streams.own.get_mut(&StreamNumber(stream))?;
                own.files.get_mut(&file).map(|(_, place)| place)
            }
            Fact::Cursor { consumer, .. } => {
                self.streams.cursors.get_mut(&ConsumerNumber(consumer))
            }
            _ => None,
        }
    }
}

/// How a record of streams is kept.
struct Kept<'a> {
    class: Class,
    level: Level,
    purpose: Purpose<'a>,
    owner: Option<&'a Arc<Account>>,
    author: u64,
    expires_at_ms: u64,
}

impl Kept<'_> {
    /// References besides those of the streams: of the handover of what was taken on.
    const fn further_refs(&self) -> u32 {
        match self.purpose {
            Purpose::Taken { .. } | Purpose::WillTaken { .. } => 1,
            _ => 0,
        }
    }
}

impl Store {
    fn add_streamed(&mut self, place: RecordLocation, streams: u32, of: &Kept<'_>) {
        let refs = streams + of.further_refs();
        self.add_message(place, (refs, streams), of.expires_at_ms, of.owner);
    }

    /// Does what the owner of streams orders. Some: it is done as soon as that is committed.
    fn carry_out(
        &mut self,
        set: &StreamSet,
        change: StreamChange,
    ) -> Result<Option<(Position, Level)>, AppendError> {
        match change {
            StreamChange::Set(set) => {
                self.set_streams(&set);
                Ok(None)
            }
            StreamChange::Archived { stream, next, file, end } => {
                let fact = Archived { stream: stream.0, next, file, end };
                self.write_archived(stream, fact).map(Some)
            }
            StreamChange::Dropped { stream, first_file } => {
                let Some(own) = self.streams.own.get(&stream) else { return Ok(None) };
                let (next, file, end) = (own.archived, 0, first_file);
                let fact = Archived { stream: stream.0, next, file, end };
                let written = self.write_archived(stream, fact)?;
                self.forget_files(stream, first_file);
                Ok(Some(written))
            }
            StreamChange::Cursor { consumer, cursor, level } => {
                let fact = Fact::Cursor { consumer: consumer.0, cursor: &cursor };
                let level = level_of(level as u8);
                let place = self.append(Class::Essential, &fact, level)?;
                self.replace_cursor(consumer, place);
                Ok(Some((place.position(), level)))
            }
            StreamChange::EndConsumer { consumer } => {
                if let Some(place) = self.streams.cursors.remove(&consumer) {
                    self.release(place);
                }
                Ok(None)
            }
            StreamChange::DeadLetter { consumer, cursor, stream, record } => {
                let purpose = Purpose::DeadLetter { consumer: consumer.0, cursor: &cursor };
                let settings = set.streams.iter().find(|own| own.number == stream);
                let level = settings.map_or(Durability::Fsync, |own| own.level);
                let level = level_of(level as u8);
                let at_ms = StreamRecord::decode(&record).map_or(0, |record| record.at_ms);
                let record = StoredRecord { at_ms, bytes: record };
                let of = Kept {
                    class: Class::Normal,
                    level,
                    purpose,
                    owner: None,
                    author: 0,
                    expires_at_ms: session::NEVER,
                };
                let (_, position) = self.keep_record(&[stream], &of, &record)?;
                Ok(Some((position, level)))
            }
        }
    }

    /// The fact has to outlive a loss of power before what it speaks of may be released or deleted.
    fn write_archived(
        &mut self,
        stream: StreamNumber,
        fact: Archived,
    ) -> Result<(Position, Level), AppendError> {
        let place = self.append(Class::Essential, &Fact::Archived(fact), Level::Fsync)?;
        let own = self.streams.own.entry(stream).or_default();
        if let Some((_, old)) = own.files.insert(fact.file, (fact, place)) {
            self.release(old);
        }
        Ok((place.position(), Level::Fsync))
    }

    /// The files below this one were deleted, or are about to be.
    fn forget_files(&mut self, stream: StreamNumber, first_file: u64) {
        let Some(own) = self.streams.own.get_mut(&stream) else { return };
        let kept = own.files.split_off(&first_file);
        let gone = std::mem::replace(&mut own.files, kept);
        for (file, (fact, place)) in gone {
            match file {
                0 => drop(own.files.insert(0, (fact, place))),
                _ => self.journal.release(place.position(), place.bytes.into()),
            }
        }
    }

    fn set_streams(&mut self, set: &StreamSet) {
        for stream in &set.streams {
            self.streams.own.entry(stream.number).or_default();
        }
        let is_known = |number: &StreamNumber| set.streams.iter().any(|it| it.number == *number);
        let gone: Vec<StreamNumber> =
            self.streams.own.keys().filter(|number| !is_known(number)).copied().collect();
        for number in gone {
            let Some(own) = self.streams.own.remove(&number) else { continue };
            own.files.into_values().for_each(|(_, place)| self.release(place));
            own.serials.into_iter().filter(|serial| *serial != 0).for_each(|serial| {
                self.unpin_message(serial);
            });
            self.streams.waiting.remove(&number);
        }
    }
}

impl Log {
    /// Writes a message for streams, and for sessions if these share the record. Returns its
    /// serial, and what its acknowledgement has to wait for.
    pub(crate) fn store_for_streams(
        &mut self,
        set: &StreamSet,
        own: &ForStreams<'_>,
        is_shared: bool,
        now_ms: u64,
    ) -> Result<(u64, Position, Level), AppendError> {
        let purpose = if is_shared { Purpose::Message } else { Purpose::Streams };
        self.store.keep_for_streams(set, own, purpose, now_ms)
    }

    /// What the journal had of streams and consumers at the start. Call it once.
    pub(crate) fn streams_found(&mut self) -> StreamsFound {
        self.store.streams.found()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn plant_stream_flaw(&mut self, flaw: StreamFlaw) {
        self.store.streams.plant(flaw);
    }

    /// What is committed by now, for the owner of streams.
    pub(crate) fn hand_over_streams(&mut self, out: &mut Vec<StreamNews>) {
        let store = &mut self.store;
        if std::mem::take(&mut store.streams.needs_space) {
            out.push(StreamNews::NeedsSpace);
        }
        if !store.streams.waiting.is_empty() {
            store.streams.hand_over(&store.journal, out);
        }
    }

    /// Does what the owner of streams orders. None: it is done as soon as that is committed.
    pub(crate) fn on_stream_order(
        &mut self,
        set: &StreamSet,
        order: StreamOrder,
    ) -> Option<Result<(), OrderRefusal>> {
        let StreamOrder { id, change } = order;
        let store = &mut self.store;
        let is_there = match &change {
            StreamChange::Archived { stream, .. } | StreamChange::DeadLetter { stream, .. } => {
                store.streams.own.contains_key(stream)
            }
            _ => true,
        };
        if !is_there {
            return Some(Err(OrderRefusal::NoStream));
        }
        let archived = match change {
            StreamChange::Archived { stream, next, file, end } => {
                Some(Archived { stream: stream.0, next, file, end })
            }
            _ => None,
        };
        match store.carry_out(set, change) {
            Ok(Some((position, level))) => {
                store.waiting.push(position, level, Step::Order(Ordered { id, archived }));
                None
            }
            Ok(None) => Some(Ok(())),
            Err(error) => Some(Err(refusal_of(&error))),
        }
    }

    /// What an order has written is committed.
    pub(crate) fn on_ordered(&mut self, ordered: Ordered) {
        let Some(Archived { stream, next, .. }) = ordered.archived else { return };
        let store = &mut self.store;
        let is_pinned = store.streams.has(StreamFlaw::PinsJournal);
        let own = store.streams.own.get_mut(&StreamNumber(stream)).filter(|_| !is_pinned);
        let serials = own.map_or_else(Vec::new, |own| own.archive(next));
        serials.into_iter().for_each(|serial| store.unpin_message(serial));
    }
}

const fn refusal_of(error: &AppendError) -> OrderRefusal {
    match error {
        AppendError::TooLarge { .. } => OrderRefusal::TooLarge,
        AppendError::Backlog { .. } | AppendError::Full(_) => OrderRefusal::TryAgain,
        AppendError::Poisoned(_) | AppendError::Closed => OrderRefusal::Failed,
    }
}

/// The message as streams have it.
fn record_of(own: &ForStreams<'_>, topic: &str, life: u64, now_ms: u64) -> Vec<u8> {
    let ForStreams { message, publisher, .. } = own;
    let (_, properties, payload) = message.parts_on_wire();
    let mut attributes = Vec::new();
    if let Some(named) = publisher.and_then(|publisher| publisher.attributes) {
        put_attributes(&mut attributes, named);
    }
    let record = StreamRecord {
        at_ms: now_ms,
        life,
        qos: message.qos(),
        retain: message.retain(),
        expires_at_ms: message.expires_at_ms(),
        client_id: publisher.map_or("", |publisher| publisher.client_id),
        username: publisher.and_then(|publisher| publisher.username),
        attributes: &attributes,
        topic,
        properties,
        payload,
    };
    let mut bytes = Vec::with_capacity(topic.len() + properties.len() + payload.len() + 96);
    record.encode(&mut bytes);
    bytes
}
