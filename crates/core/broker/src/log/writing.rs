//! The end of a turn: what has piled up is written as lists, space is reclaimed, the disk gets its
//! commands.

use storage::{AppendError, Chunk, Command, Level, Position, Record};

use crate::log::facts::{Fact, InFlightBuf, ProgressBuf, Purpose, Sent, Streamed};
use crate::log::kept::Kept;
use crate::log::queues::Queue;
use crate::log::store::Log;
use crate::log::store::{Class, Noted, Store};
use crate::log::track::Out;
use crate::words::expected::Expected;
use crate::words::queue_number::{QueueId, QueueNumber};
use crate::words::record_location::RecordLocation;
use crate::words::record_location::Shares;

/// Who knows where a fact stands that is in none of the log's tables.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A subscription of the session in this slot, with the filter as the client wrote it.
    Subscription { slot: u32, filter: Box<str> },
    /// What is retained on the topic with this key.
    Retained { topic: Box<str> },
}

impl Log {
    /// Writes what is still needed of the oldest segment to the end of the journal. Some: that
    /// one knows whether the next record is, and [`Log::copy`] goes on.
    pub(crate) fn reclaim(&mut self) -> Option<Owner> {
        let Self { store, kept } = self;
        if store.chunk.is_none() {
            store.chunk = store.journal.reclaim();
        }
        let mut chunk = store.chunk.take()?;
        let mut owner = None;
        while let Some(record) = chunk.next() {
            let Ok(fact) = Fact::decode(record.kind.get(), record.bytes) else { continue };
            owner = store.owner_of(kept, &fact);
            if owner.is_some() || store.copy_forward(kept, &record, &fact).is_err() {
                chunk.put_back();
                break;
            }
        }
        store.chunk = Some(chunk);
        owner
    }

    /// Writes the record again that [`Log::reclaim`] has asked about, if the fact stands there.
    /// Returns where it stands from now on.
    ///
    /// Err: there is no room, and it is asked about again.
    pub(crate) fn copy(
        &mut self,
        place: Option<RecordLocation>,
    ) -> Result<Option<RecordLocation>, AppendError> {
        let store = &mut self.store;
        let Some(mut chunk) = store.chunk.take().expected() else { return Ok(None) };
        let copied = match (chunk.next().expected(), place) {
            (Some(record), Some(place)) if place.is_at(record.position) => {
                store.append_raw(record.kind, record.bytes).map(Some)
            }
            // It was let go of, or has a newer record.
            _ => Ok(None),
        };
        if copied.is_err() {
            chunk.put_back();
        }
        store.chunk = Some(chunk);
        copied
    }

    /// Appends what has piled up, as lists.
    pub(crate) fn write_lists(&mut self) {
        let Self { store, kept } = self;
        let is_written = store.write_in_flight(kept).and_then(|()| store.write_progress(kept));
        if is_written.is_ok()
            && let Some(chunk) = store.chunk.take_if(chunk_is_done)
        {
            store.journal.reclaimed(chunk);
        }
    }

    /// Moves what the disk has to do to the end of `out`.
    pub(crate) fn take_commands(&mut self, out: &mut Vec<Command>, now_ms: u64) {
        self.store.journal.take_commands(out, now_ms);
    }

    /// Is there something that the journal did not take yet, and is to be given again?
    pub(crate) const fn has_unwritten(&self) -> bool {
        let store = &self.store;
        !store.noted.is_empty() || !store.moved.is_empty() || store.chunk.is_some()
    }
}

impl Store {
    /// Writes which deliveries have got packet ids. A list is lazy if none of them waits for it: a
    /// crash repeats them without DUP, or under other packet ids.
    fn write_in_flight(&mut self, kept: &mut Kept) -> Result<(), AppendError> {
        while !self.noted.is_empty() {
            let mut buffer = InFlightBuf::for_entries(self.noted.len(), self.list_bytes_max);
            let mut count = 0;
            for noted in &self.noted {
                buffer.push(noted.sent());
                count += 1;
                if buffer.len() >= self.list_bytes_max {
                    break;
                }
            }
            let awaited = self.noted[..count].iter().filter(|noted| noted.then.is_some());
            let level = awaited.map(|noted| noted.level).max().unwrap_or(Level::Lazy);
            let fact = Fact::InFlight(buffer.as_in_flight());
            let place = self.append_list(&fact, level)?;
            let rest = self.noted.split_off(count);
            let mut written = std::mem::replace(&mut self.noted, rest);
            let mut shares = Shares::new(place, count);
            for noted in written.drain(..) {
                let kept = kept.get_mut(noted.slot).filter(|kept| kept.queue == noted.queue);
                let out = kept.and_then(|kept| kept.track.get_mut(noted.serial));
                let share = shares.next();
                self.release(match out {
                    Some(out) => std::mem::replace(&mut out.place, share),
                    None => share,
                });
                if let (Some(promise), true) = (noted.then, place.is_some()) {
                    self.waiting.push(place.position(), level, promise);
                }
            }
            use_again(written, &mut self.noted);
        }
        Ok(())
    }

    /// Writes how far the queues are that have moved.
    fn write_progress(&mut self, kept: &mut Kept) -> Result<(), AppendError> {
        if self.moved.is_empty() {
            return Ok(());
        }
        let mut moved = std::mem::take(&mut self.moved);
        moved.sort_unstable();
        moved.dedup();
        let mut rest = moved.as_slice();
        while !rest.is_empty() {
            match self.write_progress_of(kept, rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => {
                    self.moved = rest.to_vec();
                    return Err(error);
                }
            }
        }
        moved.clear();
        use_again(moved, &mut self.moved);
        Ok(())
    }

    /// Writes one list of the first of these queues. Returns how many it has dealt with. If a
    /// crash loses a lazy list, QoS 1 messages are delivered again, and other shards are sent again
    /// what they had. With a group it is not lazy: its members forget on their own shards what they
    /// have acknowledged.
    pub(super) fn write_progress_of(
        &mut self,
        kept: &mut Kept,
        moved: &[QueueId],
    ) -> Result<usize, AppendError> {
        let mut buffer = ProgressBuf::default();
        let mut written = Vec::new();
        let mut count = 0;
        for queue in moved {
            count += 1;
            if self.push_progress(kept, *queue, &mut buffer) {
                written.push(*queue);
            }
            if buffer.len() >= self.list_bytes_max {
                break;
            }
        }
        if written.is_empty() {
            return Ok(count);
        }
        let has_group = written.iter().any(|id| {
            let queue = self.queue(kept, *id);
            matches!(queue, Some(Queue::Group(_)))
        });
        let level = if has_group { Level::Disk } else { Level::Lazy };
        let place = self.append_list(&Fact::Progress(buffer.as_progress()), level)?;
        let mut shares = Shares::new(place, written.len());
        for queue in written {
            let old = self.set_progress_place(kept, queue, shares.next());
            self.release(old);
        }
        Ok(count)
    }

    /// Who knows whether the fact is still needed, if not the log.
    fn owner_of(&self, kept: &Kept, fact: &Fact<'_>) -> Option<Owner> {
        match fact {
            Fact::Retained(message) => Some(Owner::Retained { topic: message.topic.into() }),
            Fact::Subscribed(own) => {
                // None: the session has ended.
                let slot = kept.find(own.session)?;
                Some(Owner::Subscription { slot, filter: own.filter.into() })
            }
            _ => None,
        }
    }

    /// Appends a record again if it still says something.
    fn copy_forward(
        &mut self,
        kept: &mut Kept,
        record: &Record<'_>,
        fact: &Fact<'_>,
    ) -> Result<(), AppendError> {
        match *fact {
            Fact::Message(message)
            | Fact::Taken { message, .. }
            | Fact::WillTaken { message, .. } => {
                self.copy_message(kept, record.position, fact, message.serial)
            }
            Fact::Streamed(streamed) => self.copy_streamed(kept, record.position, &streamed),
            Fact::Progress(progress) => {
                for entry in progress.iter() {
                    let place = self.progress_place(kept, entry.queue);
                    if place.is_some_and(|place| place.is_at(record.position)) {
                        self.note_moved(entry.queue);
                    }
                }
                Ok(())
            }
            Fact::InFlight(in_flight) => {
                for sent in in_flight.iter() {
                    self.rewrite_in_flight(kept, sent, record);
                }
                Ok(())
            }
            // They are needed no more as soon as they are written.
            Fact::SessionEnded { .. }
            | Fact::Unsubscribed { .. }
            | Fact::Released { .. }
            | Fact::RetainedCleared { .. }
            | Fact::WillCleared { .. }
            | Fact::GroupClosed { .. } => Ok(()),
            // Written again at the start, in another form.
            Fact::Formerly(_) => Ok(()),
            // Others know where they stand (`owner_of`), or nobody does any more.
            Fact::Subscribed(_) | Fact::Retained(_) => Ok(()),
            Fact::SessionOpened(_)
            | Fact::SessionDetached { .. }
            | Fact::Received { .. }
            | Fact::Undone { .. }
            | Fact::Will(_)
            | Fact::GroupOpened(_)
            | Fact::Archived(_)
            | Fact::Cursor { .. } => self.copy_placed(kept, record, fact),
        }
    }

    /// Appends a message again, unless it was let go of or has a newer record.
    fn copy_message(
        &mut self,
        kept: &mut Kept,
        position: Position,
        fact: &Fact<'_>,
        serial: u64,
    ) -> Result<(), AppendError> {
        let Some(stored) = self.stored(serial).filter(|s| s.place.is_at(position)) else {
            return Ok(());
        };
        let place = match *fact {
            Fact::Taken { session, packet_id, message } => {
                let kept = kept.of_queue(session);
                match kept.and_then(|kept| kept.received_with(packet_id, serial)) {
                    // A packet id that alone needs the record is written without the message.
                    Some(received) if stored.refs == 1 => {
                        let fact = Fact::Received { session, packet_id, serial };
                        received.place = self.append(Class::Copy, &fact, Level::Disk)?;
                        self.unpin_message(serial);
                        return Ok(());
                    }
                    Some(_) => self.append(Class::Copy, fact, Level::Disk)?,
                    // The packet id is released, or stands by itself: it is a message like others.
                    None => self.append(Class::Copy, &Fact::Message(message), Level::Disk)?,
                }
            }
            // A will that all recipients have is a message like others. The session may have
            // another one by now.
            Fact::WillTaken { message, .. } => {
                let fact = match self.handovers.is_under_way(serial) {
                    true => Fact::WillTaken { session: None, message },
                    false => Fact::Message(message),
                };
                self.append(Class::Copy, &fact, Level::Disk)?
            }
            _ => self.append(Class::Copy, fact, Level::Disk)?,
        };
        self.move_message(serial, place);
        Ok(())
    }

    /// A record that a stream needs is appended again with its ordinals. One that files have is a
    /// message like others.
    fn copy_streamed(
        &mut self,
        kept: &mut Kept,
        position: Position,
        streamed: &Streamed<'_>,
    ) -> Result<(), AppendError> {
        self.copy_cursor_of(position, streamed)?;
        let serial = streamed.serial;
        if !self.stored(serial).is_some_and(|stored| stored.place.is_at(position)) {
            return Ok(());
        }
        match self.plain_or_streamed(streamed) {
            Some(Fact::Streamed(streamed)) => {
                let purpose = self.purpose_by_now(kept, &streamed);
                let fact = Fact::Streamed(Streamed { purpose, ..streamed });
                let place = self.append(Class::Copy, &fact, Level::Disk)?;
                self.move_message(serial, place);
                self.note_copied_for_streams();
                Ok(())
            }
            Some(fact) => self.copy_message(kept, position, &fact, serial),
            None => Ok(()),
        }
    }

    /// A dead letter whose cursor is the newest: the cursor gets a record of its own.
    fn copy_cursor_of(
        &mut self,
        position: Position,
        streamed: &Streamed<'_>,
    ) -> Result<(), AppendError> {
        let Purpose::DeadLetter { consumer, cursor } = streamed.purpose else { return Ok(()) };
        let fact = Fact::Cursor { consumer, cursor };
        let place = self.place_of_streams(&fact).copied();
        if place.is_some_and(|place| place.is_at(position)) {
            let copied = self.append(Class::Copy, &fact, Level::Disk)?;
            if let Some(place) = self.place_of_streams(&fact) {
                *place = copied;
            }
        }
        Ok(())
    }

    /// What a record of streams still is to sessions.
    fn purpose_by_now<'a>(&self, kept: &mut Kept, streamed: &Streamed<'a>) -> Purpose<'a> {
        match streamed.purpose {
            Purpose::Taken { session, packet_id } => {
                let kept = kept.of_queue(session);
                match kept.and_then(|kept| kept.received_with(packet_id, streamed.serial)) {
                    Some(_) => streamed.purpose,
                    None => Purpose::Message,
                }
            }
            Purpose::WillTaken { .. } if self.handovers.is_under_way(streamed.serial) => {
                Purpose::WillTaken { session: None }
            }
            Purpose::WillTaken { .. } => Purpose::Message,
            Purpose::DeadLetter { .. } => Purpose::Streams,
            other => other,
        }
    }

    fn rewrite_in_flight(&mut self, kept: &mut Kept, sent: Sent, record: &Record<'_>) {
        // The session has ended.
        let Some(Queue::Session(slot)) = self.queue_of(kept, sent.session) else { return };
        let Some(session) = kept.get_mut(slot).expected() else { return };
        // The delivery is complete.
        let Some(out) = session.track.get_mut(sent.serial) else { return };
        if !out.place.is_at(record.position) {
            return;
        }
        let (queue, serial) = (sent.session, sent.serial);
        let Out { packet_id, stage, is_aside, .. } = *out;
        let (level, then) = (Level::Disk, None);
        self.noted.push(Noted { slot, queue, serial, packet_id, stage, is_aside, level, then });
    }

    /// Facts that stand by themselves, each remembered with its place.
    fn copy_placed(
        &mut self,
        kept: &mut Kept,
        record: &Record<'_>,
        fact: &Fact<'_>,
    ) -> Result<(), AppendError> {
        let known = self.place_of(kept, fact).copied();
        // It was let go of, or has a newer record.
        let Some(place) = known.filter(|place| place.is_at(record.position)) else {
            return Ok(());
        };
        let copied = self.append_raw(record.kind, record.bytes)?;
        debug_assert_eq!(copied.bytes, place.bytes, "a copy weighs what its original did");
        if let Some(place) = self.place_of(kept, fact) {
            *place = copied;
        }
        Ok(())
    }

    fn place_of<'a>(
        &'a mut self,
        kept: &'a mut Kept,
        fact: &Fact<'_>,
    ) -> Option<&'a mut RecordLocation> {
        let queue = match *fact {
            Fact::Archived(_) | Fact::Cursor { .. } => return self.place_of_streams(fact),
            Fact::SessionOpened(opened) => opened.session,
            Fact::SessionDetached { session, .. }
            | Fact::Received { session, .. }
            | Fact::Undone { session, .. } => session,
            Fact::Will(will) => will.session,
            Fact::GroupOpened(group) => group.queue,
            _ => return None,
        };
        if self.lone_wills.of_queue(queue).is_some() {
            return self.lone_wills.place_of(queue, fact);
        }
        let slot = match self.queue_of(kept, queue)? {
            Queue::Group(id) => {
                let kept = self.groups.get_mut(id);
                return kept.map(|kept| &mut kept.place);
            }
            Queue::Session(slot) => slot,
            Queue::Handover | Queue::Seen(_) => return None,
        };
        let kept = kept.get_mut(slot)?;
        match *fact {
            Fact::SessionOpened(_) => Some(&mut kept.opened),
            Fact::SessionDetached { .. } => Some(&mut kept.detached),
            Fact::Will(_) => kept.rare.as_mut().map(|rare| &mut rare.will),
            Fact::Received { packet_id, serial, .. } | Fact::Undone { packet_id, serial, .. } => {
                let received = &mut kept.rare.as_mut()?.received;
                let found = received
                    .iter_mut()
                    .find(|r| r.packet_id == packet_id && r.serial == serial && !r.is_released)?;
                Some(&mut found.place)
            }
            _ => None,
        }
    }

    /// Writes a list. While a segment is emptied, lists may use what is kept free for that. A
    /// journal out of service swallows them: what waits for them waits for ever.
    fn append_list(
        &mut self,
        fact: &Fact<'_>,
        level: Level,
    ) -> Result<RecordLocation, AppendError> {
        let class = if self.chunk.is_some() { Class::Copy } else { Class::Essential };
        match self.append(class, fact, level) {
            Err(AppendError::Poisoned(_)) => Ok(RecordLocation::default()),
            other => other,
        }
    }
}

impl Noted {
    const fn sent(&self) -> Sent {
        let Self { queue, serial, packet_id, stage, .. } = *self;
        Sent { session: queue, packet_id, stage, queue: self.queue_of_origin(), serial }
    }

    const fn queue_of_origin(&self) -> Option<QueueNumber> {
        if self.is_aside { None } else { Some(self.queue) }
    }
}

/// Has every record of the chunk been dealt with?
fn chunk_is_done(chunk: &mut Chunk) -> bool {
    if chunk.next().is_some() {
        // It was put back before, and is so again.
        chunk.put_back();
        return false;
    }
    true
}

/// Lists of a turn with more entries give their memory back.
const SPARE_ENTRIES_MAX: usize = 1024;

/// Gives the memory of a list of this turn, emptied, to that of the next.
fn use_again<T>(emptied: Vec<T>, list: &mut Vec<T>) {
    if list.capacity() == 0 && emptied.capacity() <= SPARE_ENTRIES_MAX {
        *list = emptied;
    }
}
