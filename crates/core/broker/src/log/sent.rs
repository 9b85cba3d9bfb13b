//! Messages assigned to kept sessions: written once, in flight to each or waiting for it.
//!
//! A session that can take a message gets it at once, like any other. One that cannot only counts
//! it: the message's serial goes into the backlog of its filter, which all sessions on the filter
//! share, and the session's cursor says where it goes on.
//!
//! A delivery that stands aside has no message in the journal, only its packet id: a retained
//! message on its way to a kept session. Writing it once more for each session that subscribes
//! would cost as much as all of them are large. But a packet id that a client has, and that the
//! broker forgets in a crash, would be given to another message, which the client takes for a
//! repetition. So it is written before the PUBLISH leaves, and a broker that starts ends the
//! exchange with a PUBREL. What has not come by then comes with the next SUBSCRIBE.

use std::sync::Arc;

use codec::QoS;
use session::{Account, Message, Origin, Overflow, QueueLimit, QueueLimits};
use storage::{AppendError, Position};
use topic::FilterId;

use crate::SessionKey;
use crate::log::facts::{self, Fact, Stage, StoredMessage};
use crate::log::kept::KeptSession;
use crate::log::late::Late;
use crate::log::store::Log;
use crate::log::store::{Loaded, Noted, Store};
use crate::log::track::Out;
use crate::log::waiting::Step;
use crate::words::expected::Expected;
use crate::words::record_location::RecordLocation;

/// What comes of a delivery that a session cannot take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits. Some: for that the oldest have to go.
    Behind(Option<QueueLimit>),
    /// It does not: there is no room, and nobody makes some.
    Refused(QueueLimit),
}

impl Log {
    /// Writes a message; it begins with one reference. `owner`: of its place in the journal.
    /// Returns its serial, and what its acknowledgement has to wait for.
    pub(crate) fn store_message(
        &mut self,
        message: &Message,
        owner: Option<&Arc<Account>>,
        origin: Option<facts::Origin>,
        author: u64,
    ) -> Result<(u64, Position), AppendError> {
        self.store.keep_message(message, owner, |it| {
            Fact::Message(StoredMessage { origin, author, ..it })
        })
    }

    /// Takes up a message that is not written: what a session has in memory waits behind what waits
    /// in the journal.
    pub(crate) fn add_unwritten(&mut self, message: &Message) -> u64 {
        self.store.add_unwritten(message)
    }

    /// Is this message lost with the process?
    pub(crate) fn is_unwritten(&self, serial: u64) -> bool {
        self.store.is_unwritten(serial)
    }

    /// Somebody needs the message.
    pub(crate) fn need(&mut self, serial: u64) {
        self.store.need_message(serial);
    }

    /// Somebody needs the message no more.
    pub(crate) fn release_message(&mut self, serial: u64) {
        self.store.release_message(serial);
    }

    /// The record at this place is needed no more.
    pub(crate) fn release(&mut self, place: RecordLocation) {
        self.store.release(place);
    }

    /// Is the message assigned to the session, by its serial? One that is not written is so only
    /// where older ones wait, and never at QoS 2, as no journal would know its packet id.
    pub(crate) fn is_assigned(&self, slot: u32, serial: u64, qos: QoS) -> bool {
        match qos {
            QoS::AtMostOnce => false,
            _ if !self.store.is_unwritten(serial) => true,
            QoS::AtLeastOnce => self.is_behind(slot),
            QoS::ExactlyOnce => false,
        }
    }

    /// Does anything wait for this session?
    #[inline]
    pub(crate) fn is_behind(&self, slot: u32) -> bool {
        self.kept.get(slot).is_some_and(|kept| kept.is_behind)
    }

    /// Deliveries that wait for this session.
    #[inline]
    pub(crate) fn queued(&self, slot: u32) -> usize {
        self.kept.get(slot).map_or(0, |kept| kept.queued as usize)
    }

    /// Would a message of so many bytes find the queue of the session full?
    pub(crate) fn is_full(&self, slot: u32, bytes: u64, limits: &QueueLimits) -> bool {
        self.kept.get(slot).is_some_and(|kept| kept.limit_reached(bytes, limits).is_some())
    }

    /// What has expired takes no room in the queue of the session (MQTT-3.3.2-5). Returns how many
    /// they were.
    pub(crate) fn drop_expired(&mut self, slot: u32, now_ms: u64) -> u32 {
        self.kept.get_mut(slot).map_or(0, |kept| kept.expire(now_ms))
    }

    /// The session cannot take a message now that it needs. Call it when what has
    /// [expired](Log::drop_expired) is gone.
    pub(crate) fn fall_behind(
        &mut self,
        slot: u32,
        (serial, expires_at_ms): (u64, u64),
        limits: &QueueLimits,
        now_ms: u64,
    ) -> Option<Turn> {
        let Self { store, kept } = self;
        let kept = kept.get_mut(slot).expected()?;
        debug_assert!(
            kept.next_expiry_ms() > now_ms,
            "a copy that has expired takes room (MQTT-3.3.2-5)"
        );
        let bytes = store.bytes_of(serial).unwrap_or_default();
        let reached = kept.limit_reached(bytes, limits);
        let fits_at_all = limits.messages_max > 0 && bytes <= limits.bytes_max;
        if let Some(reached) = reached
            && (limits.overflow != Overflow::DropOldest || !fits_at_all)
        {
            store.skip(kept, serial);
            store.release_message(serial);
            return Some(Turn::Refused(reached));
        }
        kept.count_in(serial, bytes, expires_at_ms, now_ms);
        Some(Turn::Behind(reached))
    }

    /// Does more wait for the session than it may have?
    pub(crate) fn is_overfull(&self, slot: u32, limits: &QueueLimits) -> bool {
        self.kept.get(slot).is_some_and(|kept| {
            kept.queued > limits.messages_max || kept.queued_bytes > limits.bytes_max
        })
    }

    /// Takes out of the queue of the session what makes room in it. False: it had expired.
    pub(crate) fn drop_pending(&mut self, slot: u32, serial: u64) -> bool {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return false };
        let was_live = store.leave_queue(kept, serial);
        store.release_message(serial);
        was_live
    }

    /// The session gives up what waits for it. Returns nothing: it is not counted as dropped.
    pub(crate) fn give_up_pending(&mut self, slot: u32, serial: u64) {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot) else { return };
        store.count_out(kept, serial);
        store.release_message(serial);
    }

    /// What the session's turn comes for next by these filters: at most `count` serials, growing.
    /// `counts`: is the filter one by which it gets what is kept?
    pub(crate) fn pending(
        &self,
        slot: u32,
        filters: impl Iterator<Item = FilterId>,
        counts: impl Fn(FilterId) -> bool,
        count: usize,
    ) -> Vec<u64> {
        let mut serials = Vec::new();
        let Some(kept) = self.kept.get(slot).filter(|kept| kept.is_behind) else { return serials };
        for filter in filters {
            let Some(backlog) = self.store.backlogs.get(&filter) else { continue };
            if !counts(filter) {
                continue;
            }
            let list = &backlog.serials;
            let from = kept.track.cursor().max(kept.since(filter));
            let begin = list.partition_point(|serial| *serial <= from);
            let fresh = list.iter().skip(begin).filter(|serial| !kept.track.contains(**serial));
            serials.extend(fresh.take(count).copied());
        }
        serials.sort_unstable();
        serials.dedup();
        serials.truncate(count);
        serials
    }

    /// The serial that was looked up already as the next of the session.
    pub(crate) fn next_upcoming(&mut self, slot: u32) -> Option<u64> {
        let rare = self.kept.get_mut(slot)?.rare.as_mut()?;
        rare.upcoming.pop_front()
    }

    /// These come next: what comes meanwhile is behind them all. Returns the first.
    pub(crate) fn set_upcoming(&mut self, slot: u32, serials: Vec<u64>) -> Option<u64> {
        let upcoming = &mut self.kept.get_mut(slot)?.rare().upcoming;
        upcoming.extend(serials);
        upcoming.pop_front()
    }

    /// The disk has to be waited for.
    pub(crate) fn put_back_upcoming(&mut self, slot: u32, serial: u64) {
        if let Some(kept) = self.kept.get_mut(slot) {
            kept.rare().upcoming.push_front(serial);
        }
    }

    /// What the session listens to has changed: its next serials are looked up anew.
    pub(crate) fn forget_upcoming(&mut self, slot: u32) {
        if let Some(kept) = self.kept.get_mut(slot) {
            kept.forget_upcoming();
        }
    }

    /// The message, for the session whose turn has come. It is told when the disk has brought it.
    pub(crate) fn load_for(&mut self, slot: u32, serial: u64) -> Loaded {
        let Self { store, kept } = self;
        let Some(kept) = kept.get(slot) else { return Loaded::Pending };
        store.load(serial, kept.queue.into())
    }

    /// What waited is gone: it has expired, and was counted as that.
    pub(crate) fn pass_gone(&mut self, slot: u32, serial: u64) {
        let Self { store, kept } = self;
        if let Some(kept) = kept.get_mut(slot).expected() {
            store.leave_queue(kept, serial);
        }
    }

    /// A delivery waits no more. False: it has expired, and was counted as that.
    pub(crate) fn count_out(&mut self, slot: u32, serial: u64) -> bool {
        let Self { store, kept } = self;
        kept.get_mut(slot).expected().is_some_and(|kept| store.count_out(kept, serial))
    }

    /// The session's turn has come for a message that it does not get.
    pub(crate) fn passed(&mut self, slot: u32, serial: u64) {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return };
        store.pass_now(kept, serial);
        store.release_message(serial);
    }

    /// Skips a message for the session, which others on its filter get.
    pub(crate) fn skip(&mut self, slot: u32, serial: u64) {
        let Self { store, kept } = self;
        if let Some(kept) = kept.get_mut(slot).expected() {
            store.skip(kept, serial);
        }
    }

    /// A session that can take no more gets the message later, by this filter.
    pub(crate) fn push_backlog(&mut self, filter: FilterId, serial: u64) {
        self.store.push_backlog(filter, serial);
    }

    /// A filter that is free for others.
    pub(crate) fn close_backlog(&mut self, filter: FilterId) {
        self.store.backlogs.remove(&filter);
    }

    /// Nothing waits for the session any more, by any of its filters. Returns how many have
    /// expired.
    pub(crate) fn catch_up(&mut self, slot: u32, filters: impl Iterator<Item = FilterId>) -> u32 {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return 0 };
        let expired = kept.catch_up(store.last_serial());
        filters.for_each(|filter| store.prune_backlog(filter));
        expired
    }

    /// A delivery is in flight. At QoS 2 its PUBLISH leaves when the packet id is on the disk.
    pub(crate) fn sent(&mut self, session: SessionKey, serial: u64, packet_id: u16, qos: QoS) {
        let slot = session.slot();
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return };
        let is_uncommitted = qos == QoS::ExactlyOnce;
        let stage = if is_uncommitted { Stage::AwaitsPubrec } else { Stage::AwaitsPuback };
        kept.track.assign_at(serial, packet_id, stage);
        store.pin_in_flight(serial);
        // A packet id whose message goes with the process means nothing without it.
        if !store.is_unwritten(serial) {
            let then = is_uncommitted.then_some(Step::Send { session, packet_id });
            store.note(slot, kept, (serial, packet_id, stage), then);
        }
    }

    /// A delivery of which the journal gets to know the packet id only has a serial of its own.
    pub(crate) fn new_serial(&mut self) -> u64 {
        self.store.new_serial()
    }

    /// Such a delivery is in flight.
    pub(crate) fn sent_aside(&mut self, session: SessionKey, serial: u64, packet_id: u16) {
        let slot = session.slot();
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return };
        kept.track.assign_aside(Out::aside(serial, packet_id, RecordLocation::NOWHERE));
        let then = Some(Step::Send { session, packet_id });
        store.note_aside(slot, kept, (serial, packet_id, Stage::AwaitsPubrec), then);
    }

    /// A PUBREC for a delivery of the journal: its PUBREL leaves when that is written down. False:
    /// it is like any other.
    pub(crate) fn note_released(
        &mut self,
        session: SessionKey,
        origin: Origin,
        packet_id: u16,
    ) -> bool {
        let slot = session.slot();
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).filter(|_| is_logged(origin)) else { return false };
        // What stands aside is completed after a crash anyway, and never sent again.
        let out = kept.track.get_mut(origin.serial).filter(|out| !out.is_aside);
        let Some(out) = out else { return false };
        out.stage = Stage::AwaitsPubcomp;
        let then = Some(Step::Release { session, packet_id });
        store.note(slot, kept, (origin.serial, packet_id, Stage::AwaitsPubcomp), then);
        true
    }

    /// The packet id of a delivery that is in flight.
    pub(crate) fn packet_id_of(&mut self, slot: u32, serial: u64) -> Option<u16> {
        self.kept.get_mut(slot)?.track.get_mut(serial).map(|out| out.packet_id)
    }

    /// A delivery is complete.
    pub(crate) fn finished(&mut self, slot: u32, serial: u64) {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return };
        let Some(out) = kept.track.finish(serial) else { return };
        store.release(out.place);
        if out.is_aside {
            // Its packet id means nothing any more.
            store.note_aside(slot, kept, (out.serial, out.packet_id, Stage::Over), None);
        } else {
            store.note_session_moved(kept);
            store.unpin_message(serial);
        }
    }

    /// The QoS at which the client has seen the delivery, or may have.
    pub(crate) fn begun_qos(&mut self, slot: u32, serial: u64) -> QoS {
        let out = self.kept.get_mut(slot).and_then(|kept| kept.track.get_mut(serial));
        match out.map(|out| out.stage) {
            Some(Stage::AwaitsPubrec | Stage::AwaitsPubcomp) => QoS::ExactlyOnce,
            Some(Stage::AwaitsPuback | Stage::Over) | None => QoS::AtLeastOnce,
        }
    }

    /// A PUBREL for a packet id of the journal: its PUBCOMP leaves when that is written down.
    /// False: it is like any other.
    pub(crate) fn note_pubrel(
        &mut self,
        session: SessionKey,
        connection: u64,
        packet_id: u16,
    ) -> bool {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(session.slot()) else { return false };
        let (queue, level) = (kept.queue, kept.journal_level());
        let Some(rare) = &mut kept.rare else { return false };
        let received = rare.received.iter_mut().find(|received| received.packet_id == packet_id);
        let Some(received) = received else { return false };
        let fact = Fact::Released { session: queue, packet_id };
        match store.append_deletion(&fact, level) {
            Ok(position) => {
                received.is_released = true;
                let serial = received.serial;
                let promise = Step::Complete { session, connection, packet_id, serial };
                store.waiting.push(position, level, promise);
            }
            Err(_) => {
                store.late.push(Late::Pubrel { session, connection, packet_id });
            }
        }
        true
    }
}

/// Has it come from the journal of its own shard?
pub(crate) const fn is_logged(origin: Origin) -> bool {
    origin.serial != 0 && origin.group == 0
}

impl Store {
    /// Which deliveries have got packet ids is written at the end of the turn.
    fn note(
        &mut self,
        slot: u32,
        kept: &KeptSession,
        (serial, packet_id, stage): (u64, u16, Stage),
        then: Option<Step>,
    ) {
        let (queue, level, is_aside) = (kept.queue, kept.journal_level(), false);
        self.noted.push(Noted { slot, queue, serial, packet_id, stage, is_aside, level, then });
    }

    fn note_aside(
        &mut self,
        slot: u32,
        kept: &KeptSession,
        (serial, packet_id, stage): (u64, u16, Stage),
        then: Option<Step>,
    ) {
        let (queue, level, is_aside) = (kept.queue, kept.journal_level(), true);
        self.noted.push(Noted { slot, queue, serial, packet_id, stage, is_aside, level, then });
    }

    /// Skips a message for the session, in its order behind those before it.
    fn skip(&mut self, kept: &mut KeptSession, serial: u64) {
        if kept.is_behind {
            kept.track.skip(serial, kept.last_queued);
        } else {
            kept.track.pass(serial);
        }
        self.note_session_moved(kept);
    }

    /// The session's turn has come for a serial of which nothing is assigned to it any more. False:
    /// its message has expired.
    fn leave_queue(&mut self, kept: &mut KeptSession, serial: u64) -> bool {
        let was_live = self.count_out(kept, serial);
        self.pass_now(kept, serial);
        was_live
    }

    /// Counts a serial out of the queue of a session. False: its message has expired, and is
    /// [counted](KeptSession::expire) as that.
    fn count_out(&self, kept: &mut KeptSession, serial: u64) -> bool {
        let stored = self.stored(serial).zip(self.bytes_of(serial));
        stored.is_some_and(|(stored, bytes)| kept.count_out(stored.expires_at_ms, bytes))
    }

    fn pass_now(&mut self, kept: &mut KeptSession, serial: u64) {
        kept.track.pass(serial);
        self.note_session_moved(kept);
    }

    /// The progress of the session goes into the next commit.
    fn note_session_moved(&mut self, kept: &mut KeptSession) {
        if !std::mem::replace(&mut kept.is_moved, true) {
            self.note_moved(kept.queue.into());
        }
    }
}
