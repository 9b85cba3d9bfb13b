//! Messages that are taken on, passed to others, and known for what they are when they come again.

use std::sync::Arc;

use session::{Account, Awaited, Message, Respondent};
use storage::{AppendError, Position};

use crate::Confirm;
use crate::log::facts::{Fact, Purpose};
use crate::log::handovers::{Handover, HandoverFlaw, Received};
use crate::log::messages::level_of;
use crate::log::store::{Class, Loaded, Log};
use crate::log::streams::ForStreams;
use crate::words::expected::Expected;
use crate::words::ledger::NOBODY;
use crate::words::publisher::Publisher;
use crate::words::queue_number::QueueId;
use crate::words::record_location::RecordLocation;
use crate::words::stream_set::{StreamFlaw, StreamSet};

/// A QoS 2 publish of a kept session that is to be taken on.
pub(crate) struct ToTakeOn<'a> {
    pub(crate) message: &'a Message,
    pub(crate) packet_id: u16,
    /// Stands for its topic.
    pub(crate) mark: u64,
    pub(crate) publisher: Publisher<'a>,
    pub(crate) owner: Option<&'a Arc<Account>>,
    /// The streams that want it, by their places in the set.
    pub(crate) streams: (&'a StreamSet, &'a [u32]),
    /// The acknowledgement that waits for it.
    pub(crate) confirm: Option<Confirm>,
}

/// A message on its way to those that have yet to store it.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    pub(crate) message: Message,
    pub(crate) is_will: bool,
    /// Of its place in the journal, by the number of the account.
    pub(crate) owner: u32,
    /// Its session is still there.
    pub(crate) has_session: bool,
}

impl Log {
    /// Takes a QoS 2 publish on. Returns its serial.
    pub(crate) fn take_on(
        &mut self,
        slot: u32,
        own: &ToTakeOn<'_>,
        now_ms: u64,
    ) -> Result<u64, AppendError> {
        let ToTakeOn { message, packet_id, mark, publisher, owner, confirm, .. } = *own;
        let Self { store, kept: all } = self;
        let Some(kept) = all.get_mut(slot).expected() else { return Err(AppendError::Closed) };
        let session = kept.queue;
        let (set, places) = own.streams;
        let (serial, position, level) =
            if places.is_empty() {
                let (serial, position) = store.keep_message(message, owner, |message| {
                    Fact::Taken { session, packet_id, message }
                })?;
                (serial, position, level_of(message.level()))
            } else {
                let (publisher, author) = (Some(publisher), message.author());
                let own = ForStreams { message, publisher, owner, author, places };
                store.keep_for_streams(set, &own, Purpose::Taken { session, packet_id }, now_ms)?
            };
        // One reference for the handover, which keep_message has counted, one for the packet id.
        store.pin_message(serial);
        let handover = Handover {
            session: Some(session),
            is_in_line: true,
            confirm,
            message: Some(message.clone()),
            awaited: Awaited::default(),
            is_will: false,
        };
        store.handovers.by_serial.insert(serial, handover);
        store.handovers.track.assign(serial, 0);
        store.waiting.push_taken(serial, position, level);
        let (place, is_undone, is_released) = (RecordLocation::default(), false, false);
        let topic_mark = Some(mark);
        let received = Received { packet_id, serial, place, topic_mark, is_undone, is_released };
        kept.rare().received.push(received);
        all.enter_line(slot, mark);
        Ok(serial)
    }

    /// After a start: what may not have been passed on is to be passed on again.
    pub(crate) const fn is_resuming(&self) -> bool {
        self.store.handovers.is_resuming
    }

    /// All that was under way when the broker ended is passed on again.
    pub(crate) const fn end_resuming(&mut self) {
        self.store.handovers.is_resuming = false;
    }

    /// The serials of what has yet to reach somebody, growing.
    pub(crate) fn handovers(&self) -> Vec<u64> {
        self.store.handovers.serials()
    }

    /// Reads the message back of what was under way when the broker ended. None: it is known.
    pub(crate) fn load_handover(&mut self, serial: u64) -> Option<Loaded> {
        let handover = self.store.handovers.get(serial)?;
        if handover.message.is_some() || !handover.awaited.is_empty() {
            return None;
        }
        let loaded = self.store.load(serial, QueueId::Handover);
        if let (Loaded::Ready(message), Some(handover)) =
            (&loaded, self.store.handovers.get_mut(serial))
        {
            handover.message = Some(message.clone());
        }
        Some(loaded)
    }

    /// The message that was under way is gone. Returns as [`Log::handed_over`].
    pub(crate) fn forget_handover(&mut self, serial: u64) -> Option<Confirm> {
        if let Some(handover) = self.store.handovers.get_mut(serial) {
            handover.awaited.insert(Respondent::ASKING);
            let session = handover.session;
            self.kept.leave_line(session);
        }
        self.handed_over(serial, Respondent::ASKING)
    }

    /// Planted: what was taken on is stored again. Returns the slot of its session.
    pub(crate) fn stores_again(&self, serial: u64) -> Option<Option<u32>> {
        if !self.store.streams.has(StreamFlaw::HandoverStoredAgain) {
            return None;
        }
        let session = self.store.handovers.get(serial).and_then(|handover| handover.session);
        Some(session.and_then(|session| self.kept.find(session)))
    }

    /// A message goes on its way, its record is committed. It [ends](Log::end_passing) with the
    /// names of those who have to answer.
    pub(crate) fn begin_passing(&mut self, serial: u64) -> Option<OnItsWay> {
        let Self { store, kept } = self;
        let owner = store.stored(serial).map_or(NOBODY, |stored| stored.owner);
        let handover = store.handovers.get_mut(serial).expected()?;
        let message = handover.message.take().expected()?;
        let (session, is_will) = (handover.session, handover.is_will);
        handover.awaited.insert(Respondent::ASKING);
        if std::mem::take(&mut handover.is_in_line) {
            kept.leave_line(session);
        }
        let has_session = session.and_then(|session| kept.find(session)).is_some();
        Some(OnItsWay { message, is_will, owner, has_session })
    }

    /// These have to answer. Returns as [`Log::handed_over`].
    pub(crate) fn end_passing(&mut self, serial: u64, awaited: &Awaited) -> Option<Confirm> {
        if let Some(handover) = self.store.handovers.get_mut(serial) {
            handover.awaited.extend(awaited);
        }
        self.handed_over(serial, Respondent::ASKING)
    }

    /// One more place has stored the message. Some: it was the last of them, and that may be said.
    pub(crate) fn handed_over(&mut self, serial: u64, respondent: Respondent) -> Option<Confirm> {
        let store = &mut self.store;
        let handover = store.handovers.by_serial.get_mut(&serial)?;
        if !handover.awaited.remove(respondent) || !handover.awaited.is_empty() {
            return None;
        }
        let handover = store.handovers.by_serial.remove(&serial);
        store.handovers.track.finish(serial);
        store.note_moved(QueueId::Handover);
        store.release_message(serial);
        handover?.confirm
    }

    /// The record of a publish that was taken on never gets to the disk. Some: its publisher is to
    /// be told.
    pub(crate) fn refuse_handover(&mut self, serial: u64) -> Option<Confirm> {
        let Self { store, kept } = self;
        let handover = store.handovers.by_serial.remove(&serial).expected()?;
        store.handovers.track.finish(serial);
        store.release_message(serial);
        kept.leave_line(handover.session);
        handover.confirm
    }

    /// A retained publish comes again, and stands in the place of what its client has retained on
    /// the topic since. Of the QoS 2 publishes among those, above the serial `above` and not
    /// released, a fact is appended. Returns what the acknowledgement has to wait for.
    #[cold]
    pub(crate) fn note_sent_again(
        &mut self,
        (slot, mark): (u32, u64),
        level: u8,
        above: u64,
    ) -> Result<Option<Position>, AppendError> {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot) else { return Ok(None) };
        let (session, is_kept, level) = (kept.queue, level > 0, level_of(level));
        let Some(rare) = &mut kept.rare else { return Ok(None) };
        let mut newest = None;
        for received in &mut rare.received {
            let is_later = received.serial > above && !received.is_released;
            if !is_later || !received.may_be_on(Some(mark)) {
                continue;
            }
            if !received.is_undone && is_kept {
                let Received { packet_id, serial, .. } = *received;
                let fact = Fact::Undone { session, packet_id, serial };
                let place = store.append(Class::Essential, &fact, level)?;
                match std::mem::replace(&mut received.place, place) {
                    RecordLocation::NOWHERE => store.unpin_message(serial),
                    old => store.release(old),
                }
            }
            received.is_undone = true;
            if received.place.is_some() {
                newest = newest.max(Some(received.place.position()));
            }
        }
        Ok(newest.filter(|position| !store.journal.is_committed(*position, level)))
    }

    /// Has it yet to reach somebody?
    pub(crate) fn is_under_way(&self, serial: u64) -> bool {
        self.store.handovers.is_under_way(serial)
    }

    /// A QoS 2 publish comes again while the first has not reached everybody: this connection waits
    /// for it, too.
    pub(crate) fn await_handover(&mut self, serial: u64, confirm: Confirm) {
        self.store.handovers.await_again(serial, confirm);
    }

    /// A PUBREL is committed: the packet id means nothing any more.
    pub(crate) fn forget_received(&mut self, slot: u32, packet_id: u16, serial: u64) {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return };
        let received = &mut kept.rare().received;
        // A repeated PUBREL, whose first has been dealt with.
        let Some(index) =
            received.iter().position(|r| r.packet_id == packet_id && r.serial == serial)
        else {
            return;
        };
        let Received { place, .. } = received.swap_remove(index);
        if place.is_some() {
            store.release(place);
        } else {
            store.unpin_message(serial);
        }
    }

    /// Another shard has had serials up to this one from here.
    pub(crate) fn skip_serials(&mut self, serial: u64) {
        self.store.skip_serials(serial);
    }

    /// Has mail of this serial, from this [source](crate::Homes), been accepted before?
    pub(crate) fn has_seen(&self, source: u16, serial: u64) -> bool {
        let seen = self.store.seen.get(usize::from(source));
        serial != 0 && seen.is_some_and(|seen| serial <= seen.serial)
    }

    pub(crate) fn has_handover_flaw(&self, flaw: HandoverFlaw) -> bool {
        self.store.handovers.flaw == Some(flaw)
    }

    #[cfg(feature = "testing")]
    pub(crate) const fn plant_handover_flaw(&mut self, flaw: HandoverFlaw) {
        self.store.handovers.flaw = Some(flaw);
    }

    /// Remembers the serial of mail that was accepted.
    pub(crate) fn note_seen(&mut self, source: u16, serial: u64) {
        let store = &mut self.store;
        if let Some(seen) = store.seen.get_mut(usize::from(source)).filter(|_| serial != 0) {
            seen.serial = seen.serial.max(serial);
            store.note_moved(QueueId::Seen(source));
        }
    }

    /// Writes at once what was seen: the fact of a clearing does not say where it comes from, and
    /// must not undo what comes next. Should there be no room, that finds none either.
    pub(crate) fn write_seen(&mut self, source: u16) {
        let Self { store, kept } = self;
        let _ = store.write_progress_of(kept, &[QueueId::Seen(source)]);
    }
}
