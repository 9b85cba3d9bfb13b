//! The facts of a session in the journal: its existence, its subscriptions, its will, its end.

use std::collections::VecDeque;

use codec::{SubscribeOptions, Version};
use session::{Amount, Lifetimes, NEVER, QueueLimit, QueueLimits, Will};
use storage::{AppendError, Level, Position};
use topic::FilterId;

use crate::log::Log;
use crate::log::ends::End;
use crate::log::facts::{Fact, SessionOpened, Subscribed};
use crate::log::handovers::Received;
use crate::log::postponed::{Postponed, Unwritten, passes};
use crate::log::replay::ProgressFacts;
use crate::log::since::Since;
use crate::log::store::{Class, level_of};
use crate::log::track::Track;
use crate::words::expected::Expected;
use crate::words::options;
use crate::words::queue_number::QueueNumber;
use crate::words::record_location::RecordLocation;
use crate::{Durability, SessionKey};

/// What the journal knows of a session that outlives its connections.
#[derive(Debug)]
pub(crate) struct KeptSession {
    /// Its queue number.
    pub(crate) queue: QueueNumber,
    pub(super) track: Track,
    pub(crate) opened: RecordLocation,
    /// Present while it has no connection.
    pub(crate) detached: RecordLocation,
    pub(super) rare: Option<Box<Rare>>,
    /// Deliveries that wait in the journal, and their bytes, without those that have
    /// [expired](KeptSession::expire).
    pub(crate) queued: u32,
    pub(crate) queued_bytes: u64,
    /// The last that has to wait.
    pub(super) last_queued: u64,
    /// The time of the newest fact about its connection, in milliseconds: times grow, so that the
    /// order of the facts shows however they are copied.
    pub(crate) fact_ms: u64,
    pub(crate) level: Durability,
    /// It was kept at level `fsync`, on this connection or an earlier one, or may have been.
    was_synced: bool,
    pub(crate) is_behind: bool,
    /// Its progress goes into the next commit.
    pub(super) is_moved: bool,
}

/// What only few durable sessions have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    pub(crate) will: RecordLocation,
    /// Bounded by the receive maximum.
    pub(crate) received: Vec<Received>,
    pub(super) since: Since,
    /// A mark for the topic of each publish of the client that is in the [`super::line`], in order.
    /// Bounded as that is.
    pub(super) in_line: VecDeque<u64>,
    /// The serials whose turn comes next, looked up already.
    pub(super) upcoming: VecDeque<u64>,
    /// Of what is counted as waiting.
    pub(super) lifetimes: Lifetimes,
    /// A connection that is not in the journal yet (`postponed.rs`).
    pub(super) unwritten: Option<Unwritten>,
    /// UNSUBSCRIBEs that are not in the journal yet.
    pub(super) unwritten_unsubscribes: u32,
    /// Its will is not in the journal yet.
    pub(super) has_pending_will: bool,
    /// The end of its connection is not in the journal yet (`postponed.rs`).
    pub(super) has_late_end: bool,
    /// Its last will is due, and has yet to be taken.
    pub(super) has_due_will: bool,
}

impl KeptSession {
    pub(crate) fn new(queue: QueueNumber, level: Durability, cursor: u64) -> Self {
        Self {
            queue,
            track: Track::starting_at(cursor),
            opened: RecordLocation::default(),
            detached: RecordLocation::default(),
            rare: None,
            queued: 0,
            queued_bytes: 0,
            last_queued: 0,
            fact_ms: 0,
            level,
            was_synced: level >= Durability::Fsync,
            is_behind: false,
            is_moved: false,
        }
    }

    /// As it was found in the journal. At which level it was kept before, nobody knows.
    pub(crate) fn restored(
        queue: QueueNumber,
        level: Durability,
        progress: &ProgressFacts,
        will: Option<RecordLocation>,
    ) -> Self {
        let mut kept = Self { was_synced: true, ..Self::new(queue, level, progress.floor) };
        kept.track.place = progress.place;
        if let Some(place) = will {
            kept.rare().will = place;
        }
        kept
    }

    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// A delivery waits.
    pub(super) fn count_in(&mut self, serial: u64, bytes: u64, expires_at_ms: u64, now_ms: u64) {
        self.is_behind = true;
        self.last_queued = serial;
        self.queued += 1;
        self.queued_bytes += bytes;
        if expires_at_ms != NEVER {
            self.rare().lifetimes.add(expires_at_ms, bytes, now_ms);
        }
    }

    /// Nothing waits any more. Returns how many have expired.
    pub(super) fn catch_up(&mut self, last_serial: u64) -> u32 {
        self.is_behind = false;
        if let Some(rare) = &mut self.rare {
            rare.upcoming = VecDeque::new();
            rare.lifetimes = Lifetimes::default();
        }
        self.queued_bytes = 0;
        self.track.advance(last_serial);
        std::mem::take(&mut self.queued)
    }

    /// What the session listens to has changed: its next serials are looked up anew.
    pub(super) fn forget_upcoming(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.upcoming = VecDeque::new();
        }
    }

    /// A delivery waits no more. False: it has expired, and was counted as that.
    pub(super) fn count_out(&mut self, expires_at_ms: u64, bytes: u64) -> bool {
        let is_counted = expires_at_ms == NEVER
            || self.rare.as_mut().is_some_and(|rare| rare.lifetimes.remove(expires_at_ms, bytes));
        if is_counted {
            self.take_off(Amount::one(bytes));
        }
        is_counted
    }

    /// What has expired waits no more; returns how many they were.
    pub(super) fn expire(&mut self, now_ms: u64) -> u32 {
        let Some(rare) = &mut self.rare else { return 0 };
        let expired = rare.lifetimes.expire(now_ms);
        self.take_off(expired);
        expired.messages
    }

    /// When a delivery that waits expires next, or [`NEVER`].
    pub(crate) fn next_expiry_ms(&self) -> u64 {
        self.rare.as_ref().map_or(NEVER, |rare| rare.lifetimes.next_ms())
    }

    const fn take_off(&mut self, gone: Amount) {
        self.queued = self.queued.saturating_sub(gone.messages);
        self.queued_bytes = self.queued_bytes.saturating_sub(gone.bytes);
    }

    /// Why is there no room for one more delivery of so many bytes?
    pub(crate) fn limit_reached(&self, bytes: u64, limits: &QueueLimits) -> Option<QueueLimit> {
        let waiting = Amount { messages: self.queued, bytes: self.queued_bytes };
        QueueLimit::reached(waiting, bytes, limits)
    }

    /// Is a will of it written down?
    pub(super) fn has_will(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.will.is_some())
    }

    /// Has its last will yet to be taken?
    pub(crate) fn has_due_will(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.has_due_will)
    }

    /// Is its connection not in the journal yet?
    pub(crate) fn is_unwritten(&self) -> bool {
        self.unwritten().is_some()
    }

    /// The connection that is not in the journal yet.
    pub(super) fn unwritten(&self) -> Option<Unwritten> {
        self.rare.as_ref()?.unwritten
    }

    /// Does the journal lack a fact that an answer to this session would promise?
    fn is_ahead_of_journal(&self) -> bool {
        self.rare
            .as_ref()
            .is_some_and(|rare| rare.unwritten.is_some() || rare.unwritten_unsubscribes > 0)
    }

    /// The serial from which a filter of the session counts: what is done is done, however often
    /// the client subscribes again.
    fn begin_of(&self, filter: FilterId) -> u64 {
        self.since(filter).max(self.track.floor())
    }

    /// The position of the newest fact of its last CONNECT.
    pub(super) fn connect_facts_end(&self) -> Option<Position> {
        let will = self.rare.as_ref().map(|rare| rare.will);
        let places = [Some(self.opened), will].into_iter().flatten();
        places.filter(|place| place.is_some()).map(|place| place.position()).max()
    }

    pub(super) const fn journal_level(&self) -> Level {
        match self.level {
            Durability::Memory | Durability::Disk => Level::Disk,
            Durability::Fsync | Durability::Quorum => Level::Fsync,
        }
    }

    fn set_level(&mut self, level: Durability) {
        self.level = level;
        self.was_synced |= level >= Durability::Fsync;
    }

    /// How firmly its end has to be kept: as firmly as anything that it ends.
    const fn highest_level(&self) -> Level {
        if self.was_synced { Level::Fsync } else { self.journal_level() }
    }

    /// The QoS 2 publish of this packet id, if it was taken on.
    pub(crate) fn received(&self, packet_id: u16) -> Option<Received> {
        let received = &self.rare.as_ref()?.received;
        received.iter().find(|received| received.packet_id == packet_id).copied()
    }

    /// The same, if it is only in the record of its message.
    pub(super) fn received_with(&mut self, packet_id: u16, serial: u64) -> Option<&mut Received> {
        self.rare.as_mut()?.received.iter_mut().find(|received| {
            received.packet_id == packet_id
                && received.serial == serial
                && !received.place.is_some()
                && !received.is_released
        })
    }

    /// Gives back what is not needed any more.
    pub(crate) fn shrink(&mut self) {
        self.track.shrink();
        let floor = self.track.floor();
        if let Some(rare) = &mut self.rare {
            rare.since.forget_through(floor);
        }
        if self.rare.as_ref().is_some_and(|rare| rare.is_empty()) {
            self.rare = None;
        }
    }
}

impl Rare {
    fn is_empty(&self) -> bool {
        !self.will.is_some()
            && self.received.is_empty()
            && self.since.is_empty()
            && self.in_line.is_empty()
            && self.upcoming.is_empty()
            && self.lifetimes.is_empty()
            && self.unwritten.is_none()
            && self.unwritten_unsubscribes == 0
            && !(self.has_pending_will || self.has_due_will || self.has_late_end)
    }
}

/// How a connection has opened a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening<'a> {
    /// The key of its client id.
    pub(crate) client_id: &'a str,
    pub(crate) username: &'a str,
    pub(crate) version: Version,
    pub(crate) expiry_secs: u32,
    pub(crate) will: Option<&'a Will>,
}

impl Opening<'_> {
    fn fact(&self, session: QueueNumber, version: Version, opened_at_ms: u64) -> Fact<'_> {
        let Self { client_id, username, expiry_secs, .. } = *self;
        Fact::SessionOpened(SessionOpened {
            session,
            version,
            opened_at_ms,
            expiry_secs,
            client_id,
            username,
        })
    }
}

/// When an answer to a kept session may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    Now,
    /// With the commit of this position.
    With(Position, Level),
    /// When what is not in the journal yet is committed. `is_of_new`: the session is not, either.
    Late {
        is_of_new: bool,
    },
    /// The journal is out of service.
    Never,
}

impl Log {
    /// A session is kept from now on. `may_wait`: for the next segment; the CONNACK promises
    /// nothing.
    ///
    /// Err: there is no room for it, or the journal is out of service.
    pub(crate) fn begin_session(
        &mut self,
        slot: u32,
        opening: &Opening<'_>,
        level: Durability,
        may_wait: bool,
        now_ms: u64,
    ) -> Result<(), AppendError> {
        let store = &mut self.store;
        let may_wait = store.is_ready() && may_wait;
        let queue = store.new_queue();
        // It may not use up what acknowledgements and deletions need.
        let opened = opening.fact(queue, opening.version, now_ms);
        let written = store.append(Class::Normal, &opened, level_of(level as u8));
        let may_wait = |error: &AppendError| may_wait && passes(error);
        let place = match &written {
            Err(error) if may_wait(error) => RecordLocation::NOWHERE,
            _ => written.clone()?,
        };
        let mut kept = KeptSession::new(queue, level, store.last_serial());
        kept.opened = place;
        kept.fact_ms = now_ms;
        self.kept.insert(slot, kept);
        match written.and_then(|_| self.write_will(slot, opening.will, Class::Normal)) {
            // The next segment is being made, and all else waits.
            Err(error) if may_wait(&error) => {
                let (version, opened_at_ms) = (opening.version, now_ms);
                let (detached_ms, is_new) = (None, true);
                let unwritten = Unwritten { version, opened_at_ms, detached_ms, is_new };
                self.put_off_connect(slot, unwritten);
                Ok(())
            }
            other => other,
        }
    }

    /// A session that is kept goes on. If its journal has no room even for that, it goes on all the
    /// same: it is there already, and may be what fills the journal. Some: why its will is not
    /// written.
    pub(crate) fn resume_session(
        &mut self,
        slot: u32,
        opening: &Opening<'_>,
        level: Durability,
        now_ms: u64,
    ) -> Result<Option<AppendError>, AppendError> {
        let Some(kept) = self.kept.get_mut(slot).expected() else { return Ok(None) };
        kept.set_level(level.max(Durability::Disk));
        kept.fact_ms = now_ms.max(kept.fact_ms + 1);
        let (version, opened_at_ms, detached_ms) = (opening.version, kept.fact_ms, None);
        let is_new = kept.unwritten().is_some_and(|unwritten| unwritten.is_new);
        let connect = Unwritten { version, opened_at_ms, detached_ms, is_new };
        if is_new {
            self.put_off_connect(slot, connect);
            return Ok(None);
        }
        // What was to be said of the connection before is void.
        if let Some(rare) = &mut kept.rare {
            (rare.unwritten, rare.has_pending_will) = (None, false);
        }
        match self.write_connect(slot, opening, connect, Class::Essential) {
            Err(error) if passes(&error) => {
                self.put_off_connect(slot, connect);
                Ok(opening.will.map(|_| error))
            }
            other => other,
        }
    }

    /// Writes that a connection has opened a session that is kept, and its will. Some: why that is
    /// not written.
    pub(crate) fn write_connect(
        &mut self,
        slot: u32,
        opening: &Opening<'_>,
        connect: Unwritten,
        class: Class,
    ) -> Result<Option<AppendError>, AppendError> {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return Ok(None) };
        let (queue, level) = (kept.queue, kept.journal_level());
        let Unwritten { version, opened_at_ms, .. } = connect;
        let place = store.append(class, &opening.fact(queue, version, opened_at_ms), level)?;
        store.release(std::mem::replace(&mut kept.opened, place));
        store.release(std::mem::take(&mut kept.detached));
        let Err(error) = self.write_will(slot, opening.will, class) else { return Ok(None) };
        if passes(&error) {
            self.put_off_will(slot);
        }
        Ok(Some(error))
    }

    /// Writes a subscription down, by its filter as the client wrote it. Returns where it stands;
    /// none if the session is not kept.
    pub(crate) fn write_subscription(
        &mut self,
        slot: u32,
        (filter, text): (FilterId, &str),
        (bits, identifier): (u8, u32),
    ) -> Result<Option<RecordLocation>, AppendError> {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot) else { return Ok(None) };
        let subscribed = Fact::Subscribed(Subscribed {
            session: kept.queue,
            options: options_byte(bits),
            identifier,
            serial: kept.begin_of(filter),
            filter: text,
        });
        store.append(Class::Normal, &subscribed, kept.journal_level()).map(Some)
    }

    /// A subscription of which facts of earlier versions say more than its own is written again
    /// when there is room for it.
    pub(crate) fn put_off_subscription(&mut self, session: QueueNumber, filter: FilterId) {
        self.store.postponed.push(Postponed::Subscribed { session, filter });
    }

    /// The session gives a subscription up, that is written at this place. Returns what its
    /// acknowledgement has to wait for.
    ///
    /// Err: it cannot be written down and will not be, so it would come back with the next start.
    pub(crate) fn drop_subscription(
        &mut self,
        slot: u32,
        place: RecordLocation,
        filter: &str,
    ) -> Result<Option<Position>, AppendError> {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot) else { return Ok(None) };
        let (session, level) = (kept.queue, kept.journal_level());
        let written = store.append_deletion(&Fact::Unsubscribed { session, filter }, level);
        let position = match written {
            Ok(position) => Some(position),
            Err(error) => {
                let filter = filter.into();
                let late = || Postponed::Unsubscribed { session, level, filter };
                store.postponed.put_off(error, late)?;
                kept.rare().unwritten_unsubscribes += 1;
                None
            }
        };
        store.release(place);
        Ok(position)
    }

    /// When an answer may leave that waits for the fact at this position, and for the facts of the
    /// CONNECT about the session and its will: whoever has the answer has that, too. One that says
    /// that nothing was done promises nothing of what is not written yet.
    pub(crate) fn leaves(&self, slot: u32, position: Option<Position>, is_refusal: bool) -> Leaves {
        let Some(kept) = self.kept.get(slot) else { return Leaves::Now };
        let level = kept.journal_level();
        if kept.is_ahead_of_journal() && !is_refusal {
            let is_of_new = kept.unwritten().is_some_and(|unwritten| unwritten.is_new);
            return Leaves::Late { is_of_new };
        }
        let position = position.max(kept.connect_facts_end());
        let position = position.filter(|it| !self.store.journal.is_committed(*it, level));
        let Some(position) = position else { return Leaves::Now };
        // Those that waited when it failed have ended.
        let is_out_of_service = self.status().is_out_of_service();
        if is_out_of_service { Leaves::Never } else { Leaves::With(position, level) }
    }

    /// An answer leaves when what is not in the journal yet is committed. False: too many do.
    pub(crate) fn put_off_answer(
        &mut self,
        (session, connection): (SessionKey, u64),
        packet: Box<[u8]>,
        is_of_new: bool,
    ) -> bool {
        let answer = Postponed::Answer { session, connection, packet, is_of_new };
        self.store.postponed.push_deletion(answer)
    }

    /// The connection has ended: from now on the session's expiry runs.
    pub(crate) fn detached(&mut self, slot: u32, expiry_secs: u32, now_ms: u64) {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot) else { return };
        kept.shrink();
        let session = kept.queue;
        if let Some(unwritten) = kept.rare.as_mut().and_then(|rare| rare.unwritten.as_mut()) {
            unwritten.detached_ms = Some(now_ms);
            return;
        }
        kept.fact_ms = now_ms.max(kept.fact_ms + 1);
        let fact = Fact::SessionDetached { session, at_ms: kept.fact_ms, expiry_secs };
        match store.append(Class::Essential, &fact, kept.journal_level()) {
            Ok(place) => store.release(std::mem::replace(&mut kept.detached, place)),
            Err(error) if passes(&error) => {
                if !std::mem::replace(&mut kept.rare().has_late_end, true) {
                    store.postponed.push(Postponed::Detached(session));
                }
            }
            // Nothing is promised any more.
            Err(_) => {}
        }
    }

    /// The session is over, with all that is written of it and with what is `pending`. `client`:
    /// the hash of its client id, whose next session waits for that. Some: it does not any longer.
    pub(crate) fn end_session(&mut self, slot: u32, pending: Vec<u64>, client: u64) -> Option<u64> {
        let Self { store, kept } = self;
        let mut kept = kept.take(slot)?;
        for serial in pending {
            store.release_message(serial);
        }
        for out in kept.track.in_flight() {
            store.release(out.place);
            store.unpin_message(out.serial);
        }
        for place in [kept.opened, kept.detached, kept.track.place] {
            store.release(place);
        }
        let has_due_will = kept.has_due_will();
        if let Some(rare) = kept.rare.take() {
            store.release(rare.will);
            for received in rare.received {
                if received.place.is_some() {
                    store.release(received.place);
                } else {
                    store.unpin_message(received.serial);
                }
            }
        }
        // Behind its last will nobody waits where the journal has no room.
        let is_awaited = !has_due_will || store.is_ready();
        let awaited_by = is_awaited.then_some(client);
        let end = End { queue: kept.queue, level: kept.highest_level(), awaited_by };
        if is_awaited {
            store.ends.begin(client);
        }
        if has_due_will {
            store.postponed.push(Postponed::End(end));
            return None;
        }
        self.write_end(end)
    }
}

/// The options byte of [`Subscribed`] from the bits of the index.
fn options_byte(bits: u8) -> u8 {
    let asked = SubscribeOptions {
        qos: options::qos(bits),
        no_local: bits & options::NO_LOCAL != 0,
        retain_as_published: bits & options::RETAIN_AS_PUBLISHED != 0,
        retain_handling: codec::RetainHandling::Always,
    };
    let owed = if options::is_owed(bits) { Subscribed::OWED } else { 0 };
    asked.to_byte() | owed
}
