//! The facts of a session in the journal: its existence, its subscriptions, its will, its end.

use codec::{SubscribeOptions, Version};
use session::Will;
use storage::{AppendError, Level, Position, Status};
use topic::FilterId;

use crate::log::ends::End;
use crate::log::facts::{Fact, SessionOpened, Subscribed};
use crate::log::kept::KeptSession;
use crate::log::late::{Late, Unwritten, passes};
use crate::log::lone_wills::LoneWill;
use crate::log::messages::level_of;
use crate::log::store::Class;
use crate::log::store::Log;
use crate::log::store::Store;
use crate::log::waiting::Step;
use crate::log::will::stored_will;
use crate::words::expected::Expected;
use crate::words::options;
use crate::words::queue_number::QueueNumber;
use crate::words::record_location::RecordLocation;
use crate::{Durability, SessionKey};

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
    pub(super) fn fact(
        &self,
        session: QueueNumber,
        version: Version,
        opened_at_ms: u64,
    ) -> Fact<'_> {
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
        self.store.late.push(Late::Subscribed { session, filter });
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
                let late = || Late::Unsubscribed { session, level, filter };
                store.late.put_off(error, late)?;
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
        let answer = Late::Answer { session, connection, packet, is_of_new };
        self.store.late.push_deletion(answer)
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
                    store.late.push(Late::Detached(session));
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
        let end = End { queue: kept.queue, level: kept.highest_level(), awaited_by: Some(client) };
        self.end_queue(end, has_due_will)
    }

    /// Writes down that a session has ended, behind its last will if that is due. Some: the client
    /// does not wait for it any longer.
    pub(super) fn end_queue(&mut self, end: End, has_due_will: bool) -> Option<u64> {
        let store = &mut self.store;
        // Behind its last will nobody waits where the journal has no room.
        let is_awaited = !has_due_will || store.is_ready();
        let awaited_by = end.awaited_by.filter(|_| is_awaited);
        awaited_by.into_iter().for_each(|client| store.ends.begin(client));
        let end = End { awaited_by, ..end };
        if has_due_will {
            store.late.push(Late::End(end));
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

impl Log {
    /// A filter of the session begins or ends to be one of what is kept. True: it ends, and older
    /// messages are due by it.
    pub(crate) fn change_filter(&mut self, slot: u32, filter: FilterId, is_kept: bool) -> bool {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot) else { return false };
        let Some(through) = store.due_through(kept) else { return false };
        if is_kept {
            kept.rare().since.begin(filter, through);
        }
        !is_kept
    }
}

impl Store {
    /// The newest serial, if any up to that waits for the session or is in flight to it.
    fn due_through(&self, kept: &mut KeptSession) -> Option<u64> {
        let last_serial = self.last_serial();
        if !kept.is_behind {
            kept.track.advance(last_serial);
        }
        (kept.track.floor() < last_serial).then_some(last_serial)
    }
}

impl Log {
    /// A connection has opened the session of a client. True: it gets its answer when the ends of
    /// those before it are committed.
    pub(crate) fn waits_for_ends(
        &mut self,
        client: u64,
        session: SessionKey,
        connection: u64,
    ) -> bool {
        !matches!(self.status(), Status::Full(_))
            && self.store.ends.wait(client, session, connection)
    }

    /// Writes down that a session has ended, now or when there is room for it. Returns the client
    /// that does not wait for it any longer.
    pub(crate) fn write_end(&mut self, end: End) -> Option<u64> {
        let ended = Fact::SessionEnded { session: end.queue };
        match (self.store.append_deletion(&ended, end.level), end.awaited_by) {
            (Ok(position), Some(client)) => {
                self.wait(position, end.level, Step::Ended { client });
                None
            }
            (Ok(_), None) => None,
            // The next file is being made: it is tried again as soon as that is there.
            (Err(AppendError::Backlog { .. }), _) => {
                self.store.late.push(Late::End(end));
                None
            }
            (Err(_), awaited_by) => {
                self.store.late.push(Late::End(End { awaited_by: None, ..end }));
                awaited_by
            }
        }
    }

    /// An end of a session of this client is written, or given up. Returns who has the client id
    /// now and waits no longer: session and connection.
    pub(crate) fn finish_end(&mut self, client: u64) -> Option<(SessionKey, u64)> {
        self.store.ends.finish(client)
    }

    /// The journal takes nothing any more for want of room: nobody waits for it. Returns those who
    /// did.
    pub(crate) fn wait_for_no_end(&mut self) -> Vec<(SessionKey, u64)> {
        let late: Vec<u64> =
            self.store.late.ends().filter_map(|end| end.awaited_by.take()).collect();
        let under_way = self.store.ends.under_way.values_mut();
        let waiting = under_way.filter_map(|it| it.waits.take()).collect();
        for client in late {
            self.store.ends.finish(client);
        }
        waiting
    }

    /// The journal is out of service: the ends are never committed. Returns who waits for them.
    pub(crate) fn break_ends(&mut self) -> Vec<(SessionKey, u64)> {
        let under_way = std::mem::take(&mut self.store.ends.under_way);
        under_way.into_values().filter_map(|it| it.waits).collect()
    }
}

/// Wills of sessions that end with their connections (`lone_wills.rs`).
impl Log {
    /// The will of a session that ends with its connection is written down. Its client, by the hash
    /// of its client ID, gets its CONNACK with the commit.
    ///
    /// # Errors
    ///
    /// It is not written down.
    pub(crate) fn begin_lone_will(
        &mut self,
        slot: u32,
        opening: &Opening<'_>,
        (level, client): (Durability, u64),
        now_ms: u64,
    ) -> Result<(), AppendError> {
        let Some(will) = opening.will else { return Ok(()) };
        let (store, level) = (&mut self.store, level_of(level as u8));
        let queue = store.new_queue();
        let fact = Fact::Will(stored_will(will, queue));
        let opened = Opening { expiry_secs: 0, ..*opening };
        let opened = opened.fact(queue, opening.version, now_ms);
        let opened = store.append(Class::Normal, &opened, level)?;
        let will = store.append(Class::Normal, &fact, level);
        let lone = |will| LoneWill { queue, opened, will, level, is_due: false };
        let Ok(place) = will else {
            store.lone_wills.insert(slot, lone(RecordLocation::NOWHERE));
            self.end_lone_will(slot, None);
            return will.map(drop);
        };
        store.lone_wills.insert(slot, lone(place));
        store.ends.begin(client);
        self.wait(place.position(), level, Step::Ended { client });
        Ok(())
    }

    /// The will is written down when there is room for it. Its client waits for that.
    pub(crate) fn put_off_lone_will(&mut self, session: SessionKey, client: u64) {
        self.store.ends.begin(client);
        self.store.late.push(Late::LoneWill { session, client });
    }

    /// The session is over, and its will is withdrawn or a message. `client`: whose next session
    /// waits for that. Some: it does not any longer.
    pub(crate) fn end_lone_will(&mut self, slot: u32, client: Option<u64>) -> Option<u64> {
        let LoneWill { queue, opened, will, level, is_due } = self.store.lone_wills.take(slot)?;
        self.store.release(opened);
        self.store.release(will);
        self.end_queue(End { queue, level, awaited_by: client }, is_due)
    }

    /// The broker stops: the will is for the next one.
    pub(crate) fn leave_lone_will(&mut self, slot: u32) -> bool {
        self.store.lone_wills.take(slot).is_some()
    }
}
