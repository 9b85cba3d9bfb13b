//! The facts of a session in the journal: its existence, its subscriptions, its will, its end.

use std::collections::VecDeque;

use codec::{Packet, Reason, SubscribeOptions, Version};
use session::{Amount, Lifetimes, NEVER, QueueLimit, QueueLimits};
use storage::{AppendError, Level, Position};

use crate::log::Durable;
use crate::log::ends::End;
use crate::log::facts::{Fact, SessionOpened, Subscribed};
use crate::log::handovers::Received;
use crate::log::postponed::{Postponed, Unwritten, passes};
use crate::log::promise::Promise;
use crate::log::since::Since;
use crate::log::store::{Class, level_of};
use crate::log::track::Track;
use crate::parts::client::{Client, KEPT_SESSION_BYTES};
use crate::parts::groups::Groups;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Listed;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::options;
use crate::words::queue_number::QueueNumber;
use crate::words::reasons::reason_of;
use crate::words::record_location::RecordLocation;
use crate::{Durability, Ended, Name};

/// What a durable session has more than others.
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

const _: () = assert!(size_of::<KeptSession>() == KEPT_SESSION_BYTES);

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
    pub(super) fn has_due_will(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.has_due_will)
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
    fn begin_of(&self, filter: topic::FilterId) -> u64 {
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

    /// At which level it was kept before a start, nobody knows.
    pub(super) const fn note_restored(&mut self) {
        self.was_synced = true;
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

impl Durable {
    /// A connection has opened the session: it is written down if it outlives the connection.
    ///
    /// Err: it is new and there is no room for it, or the journal is out of service.
    pub(crate) fn keep_session(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        slot: u32,
        version: Version,
    ) -> Result<(), AppendError> {
        let now_ms = cx.now_ms;
        let Some(client) = sessions.get(slot).expected() else { return Ok(()) };
        let level = client.limits.durability;
        if client.is_kept {
            return self.keep_resumed(cx, sessions, slot, version);
        }
        if !client.is_persistent() || level == Durability::Memory {
            return Ok(());
        }
        let Some(store) = &mut self.store else { return Ok(()) };
        // What it has asked for already, at level `memory`, does not wait.
        let may_wait = store.is_ready() && client.subscriptions.len() == 0;
        let client_key = client.name().key();
        let opened = session_opened(client, &client_key, store.new_queue(), version, now_ms);
        let queue = opened.session;
        // It may not use up what acknowledgements and deletions need.
        let written =
            store.append(Class::Normal, &Fact::SessionOpened(opened), level_of(level as u8));
        let may_wait = |error: &AppendError| may_wait && passes(error);
        let place = match &written {
            Err(error) if may_wait(error) => RecordLocation::NOWHERE,
            _ => written.clone()?,
        };
        let mut durable = KeptSession::new(queue, level, store.last_serial());
        durable.opened = place;
        durable.fact_ms = now_ms;
        self.kept.insert(slot, durable);
        sessions.set_kept(slot, true);
        match written.and_then(|_| self.keep_will(sessions, slot, Class::Normal)) {
            // The next segment is being made. The CONNACK promises nothing, and all else waits.
            Err(error) if may_wait(&error) => {
                let (opened_at_ms, detached_ms, is_new) = (now_ms, None, true);
                let unwritten = Unwritten { version, opened_at_ms, detached_ms, is_new };
                self.put_off_connect(slot, unwritten);
            }
            other => other?,
        }
        self.keep_subscriptions(cx, sessions, groups, slot);
        Ok(())
    }

    /// A session that is kept goes on. If its journal has no room even for that, it goes on all the
    /// same: it is there already, and may be what fills the journal.
    fn keep_resumed(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        version: Version,
    ) -> Result<(), AppendError> {
        let now_ms = cx.now_ms;
        let Some(client) = sessions.get_mut(slot).expected() else { return Ok(()) };
        let Some(durable) = self.kept.get_mut(client.key.slot()).expected() else { return Ok(()) };
        durable.set_level(client.limits.durability.max(Durability::Disk));
        durable.fact_ms = now_ms.max(durable.fact_ms + 1);
        let (opened_at_ms, detached_ms) = (durable.fact_ms, None);
        let is_new = durable.unwritten().is_some_and(|unwritten| unwritten.is_new);
        let connect = Unwritten { version, opened_at_ms, detached_ms, is_new };
        if is_new {
            self.put_off_connect(slot, connect);
            return Ok(());
        }
        // What was to be said of the connection before is void.
        if let Some(rare) = &mut durable.rare {
            (rare.unwritten, rare.has_pending_will) = (None, false);
        }
        match self.write_connect(cx, sessions, slot, connect, Class::Essential) {
            Err(error) if passes(&error) => {
                self.put_off_connect(slot, connect);
                if sessions.get(slot).is_some_and(|client| client.will.is_some()) {
                    sessions.report_will_not_kept(cx, slot, error);
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Writes that a connection has opened a session that is kept, and its will.
    pub(super) fn write_connect(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        connect: Unwritten,
        class: Class,
    ) -> Result<(), AppendError> {
        let Some(store) = self.store.as_mut().expected() else { return Ok(()) };
        let Some(client) = sessions.get_mut(slot).expected() else { return Ok(()) };
        let Some(durable) = self.kept.get(client.key.slot()).expected() else { return Ok(()) };
        let (queue, level) = (durable.queue, durable.journal_level());
        let client_key = client.name().key();
        let Unwritten { version, opened_at_ms, .. } = connect;
        let opened = session_opened(client, &client_key, queue, version, opened_at_ms);
        let place = store.append(class, &Fact::SessionOpened(opened), level)?;
        let Some(durable) = self.kept.get_mut(client.key.slot()).expected() else { return Ok(()) };
        store.release(std::mem::replace(&mut durable.opened, place));
        store.release(std::mem::take(&mut durable.detached));
        if let Err(error) = self.keep_will(sessions, slot, class) {
            if passes(&error) {
                self.put_off_will(slot);
            }
            sessions.report_will_not_kept(cx, slot, error);
        }
        Ok(())
    }

    /// Subscriptions that the session had before it became durable.
    fn keep_subscriptions(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        slot: u32,
    ) {
        let Some(client) = sessions.get(slot).expected() else { return };
        for listed in client.subscriptions.iter().collect::<Vec<_>>() {
            let text = groups.filter_text(sessions, listed);
            let bits = match listed.group {
                0 => {
                    let known = sessions.router.subscription(listed.filter, slot);
                    known.map(|s| (s.options, s.identifier))
                }
                group => {
                    let known = groups.member_bits(group - 1, sessions.key(slot));
                    known.map(|(bits, identifier)| (options::of_durable_member(bits), identifier))
                }
            };
            let Some((bits, identifier)) = bits else { continue };
            if self.keep_subscription(sessions, slot, listed, &text, (bits, identifier)).is_err() {
                continue;
            }
            match listed.group.checked_sub(1).and_then(|group| groups.name(group)).cloned() {
                None => sessions.set_durable_bit(slot, listed),
                // All shards hear that the group keeps messages for it from now on.
                Some(name) => {
                    groups.join_group(
                        cx,
                        sessions,
                        slot,
                        &name.share,
                        &name.filter,
                        bits,
                        identifier,
                    );
                }
            }
        }
    }
}

impl Sessions {
    fn set_durable_bit(&mut self, slot: u32, listed: Listed) {
        let subscription = self.router.subscription(listed.filter, slot).expected();
        if subscription.is_some_and(|it| options::qos(it.options) != codec::QoS::AtMostOnce) {
            self.set_owed(slot, listed);
        }
    }

    /// What the journal has for the subscription is due, also if its QoS is 0 by now.
    pub(super) fn set_owed(&mut self, slot: u32, listed: Listed) {
        let Some(mut subscription) = self.router.subscription(listed.filter, slot).expected()
        else {
            return;
        };
        subscription.options |= options::KEPT;
        let key = self.router.key(listed.filter).to_owned();
        self.router.subscribe(Name::of_key(&key), subscription);
    }
}

impl Groups {
    /// The filter as the client wrote it.
    pub(super) fn filter_text(&self, sessions: &Sessions, listed: Listed) -> String {
        let filter = sessions.router.text(listed.filter);
        match listed.group.checked_sub(1).and_then(|group| self.name(group)) {
            Some(name) => format!("$share/{}/{}", name.share, name.filter),
            None => filter.to_owned(),
        }
    }
}

impl Durable {
    /// Writes down what a session has been granted, instead of what it had. Returns what its SUBACK
    /// has to wait for.
    pub(crate) fn keep_granted(
        &mut self,
        sessions: &mut Sessions,
        slot: u32,
        listed: Listed,
        text: &str,
        old: Option<(u8, u32)>,
        granted: (u8, u32),
    ) -> Result<Option<Position>, Reason> {
        let granted = self.replace_filter(sessions, slot, listed, old, granted);
        if old == Some(granted) && listed.place.is_some() {
            // It is written as it is; perhaps not committed yet.
            return Ok(Some(listed.place.position()));
        }
        let kept = self.keep_subscription(sessions, slot, listed, text, granted);
        kept.map_err(|error| reason_of(&error))
    }

    /// Writes a subscription down. Returns where it stands; none if the session is not durable.
    pub(super) fn keep_subscription(
        &mut self,
        sessions: &mut Sessions,
        slot: u32,
        listed: Listed,
        filter: &str,
        (bits, identifier): (u8, u32),
    ) -> Result<Option<Position>, AppendError> {
        let Some(store) = &mut self.store else { return Ok(None) };
        let Some(client) = sessions.get_mut(slot).expected() else { return Ok(None) };
        let Some(durable) = self.kept.get_mut(client.key.slot()) else { return Ok(None) };
        let from_serial = durable.begin_of(listed.filter);
        let subscribed = Fact::Subscribed(Subscribed {
            session: durable.queue,
            options: options_byte(bits),
            identifier,
            serial: from_serial,
            filter,
        });
        let place = store.append(Class::Normal, &subscribed, durable.journal_level())?;
        if let Some(known) = client.subscriptions.place_mut(&listed) {
            store.release(std::mem::replace(known, place));
        }
        Ok(Some(place.position()))
    }

    /// Writes a subscription down again of which facts of earlier versions say more than its own.
    pub(super) fn keep_again(
        &mut self,
        sessions: &mut Sessions,
        session: QueueNumber,
        filter: topic::FilterId,
    ) {
        // The session has ended, or has given the filter up.
        let Some(slot) = self.kept.find(session) else { return };
        let Some(own) = sessions.router.subscription(filter, slot) else { return };
        let text = sessions.router.text(filter).to_owned();
        let (listed, granted) = (Listed::new(filter, 0), (own.options, own.identifier));
        let kept = self.keep_subscription(sessions, slot, listed, &text, granted);
        if let (Err(error), Some(store)) = (kept, &mut self.store)
            && passes(&error)
        {
            store.postponed.push(Postponed::Subscribed { session, filter });
        }
    }

    /// The session gives a subscription up. Returns what its acknowledgement has to wait for.
    ///
    /// Err: it cannot be written down and will not be, so it would come back with the next start.
    pub(crate) fn drop_subscription(
        &mut self,
        slot: u32,
        listed: Listed,
        filter: &str,
    ) -> Result<Option<Position>, AppendError> {
        let Some(store) = &mut self.store else { return Ok(None) };
        let Some(durable) = self.kept.get_mut(slot) else { return Ok(None) };
        let (session, level) = (durable.queue, durable.journal_level());
        let written = store.append_deletion(&Fact::Unsubscribed { session, filter }, level);
        let position = match written {
            Ok(position) => Some(position),
            Err(error) => {
                let filter = filter.into();
                let late = || Postponed::Unsubscribed { session, level, filter };
                store.postponed.put_off(error, late)?;
                durable.rare().unwritten_unsubscribes += 1;
                None
            }
        };
        store.release(listed.place);
        Ok(position)
    }

    /// Sends a packet once the fact behind it is committed, and the facts of the CONNECT about the
    /// session and its will: whoever has the answer has that, too. At once if there is nothing to
    /// wait for.
    pub(crate) fn answer_when_kept(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        position: Option<Position>,
        packet: &Packet<'_>,
    ) {
        let session = sessions.key(slot);
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        let connection = client.connection;
        let durable = self.kept.get(client.key.slot());
        let level = durable.map(|durable| durable.journal_level());
        let position = position.max(durable.and_then(|durable| durable.connect_facts_end()));
        let is_ahead = durable.is_some_and(|durable| durable.is_ahead_of_journal());
        let unwritten = durable.and_then(|durable| durable.unwritten());
        let is_of_new = unwritten.is_some_and(|unwritten| unwritten.is_new);
        let Some(link) = client.session.link_mut().expected() else { return };
        if let Some(store) = self.store.as_mut().filter(|_| is_ahead && !is_refusal(packet)) {
            let mut bytes = Vec::new();
            packet.encode(link.version(), &mut bytes);
            let packet = bytes.into();
            let answer = Postponed::Answer { session, connection, packet, is_of_new };
            if !store.postponed.push_deletion(answer) {
                cx.doomed.push((slot, Ended::JournalFailed));
            }
            return;
        }
        let journal = self.store.as_ref().map(|store| &store.journal);
        let waits = |position: &Position| {
            let (journal, level) = (journal?, level?);
            Some(!journal.is_committed(*position, level))
        };
        let position = position.filter(|position| waits(position).unwrap_or_default());
        let (Some(position), Some(level)) = (position, level) else {
            link.write(packet);
            sessions.mark_dirty(cx, slot);
            return;
        };
        let status = self.store.as_ref().map(|store| store.journal.status());
        if status.is_some_and(|status| status.is_out_of_service()) {
            // Those that waited when it failed have ended.
            cx.doomed.push((slot, Ended::JournalFailed));
            return;
        }
        let mut bytes = Vec::new();
        packet.encode(link.version(), &mut bytes);
        let promise = Promise::Packet { session, connection, packet: bytes.into() };
        self.promise(position, level, promise);
    }

    /// The connection has ended: from now on the session's expiry runs.
    pub(crate) fn keep_detached(&mut self, sessions: &mut Sessions, slot: u32, now_ms: u64) {
        let Some(store) = &mut self.store else { return };
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        let expiry_secs = client.session_expiry_secs;
        let Some(durable) = self.kept.get_mut(client.key.slot()) else { return };
        durable.shrink();
        let session = durable.queue;
        if let Some(unwritten) = durable.rare.as_mut().and_then(|rare| rare.unwritten.as_mut()) {
            unwritten.detached_ms = Some(now_ms);
            return;
        }
        durable.fact_ms = now_ms.max(durable.fact_ms + 1);
        let fact = Fact::SessionDetached { session, at_ms: durable.fact_ms, expiry_secs };
        match store.append(Class::Essential, &fact, durable.journal_level()) {
            Ok(place) => store.release(std::mem::replace(&mut durable.detached, place)),
            Err(error) if passes(&error) => {
                if !std::mem::replace(&mut durable.rare().has_late_end, true) {
                    store.postponed.push(Postponed::Detached(session));
                }
            }
            // Nothing is promised any more.
            Err(_) => {}
        }
    }

    /// The session is over, with all that is written of it.
    pub(crate) fn forget_session(&mut self, cx: &mut Context, sessions: &mut Sessions, slot: u32) {
        let Some((client, router)) = sessions.with_index(slot).expected() else { return };
        let pending = self.all_pending(client, router);
        let client = sessions.id_hash(slot);
        let Some(store) = &mut self.store else { return };
        let Some(mut durable) = self.kept.take(slot) else { return };
        sessions.set_kept(slot, false);
        for serial in pending {
            store.release_message(serial);
        }
        for out in durable.track.in_flight() {
            store.release(out.place);
            store.unpin_message(out.serial);
        }
        for place in [durable.opened, durable.detached, durable.track.place] {
            store.release(place);
        }
        let has_due_will = durable.has_due_will();
        if let Some(rare) = durable.rare.take() {
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
        let end = End { queue: durable.queue, level: durable.highest_level(), awaited_by };
        if is_awaited {
            store.ends.begin(client);
        }
        match has_due_will {
            true => store.postponed.push(Postponed::End(end)),
            false => self.end_queue(cx, sessions, end),
        }
    }
}

/// Does it say that nothing was done? Then it promises nothing.
fn is_refusal(packet: &Packet<'_>) -> bool {
    let reasons = match packet {
        Packet::Suback(suback) => suback.reasons,
        Packet::Unsuback(unsuback) => unsuback.reasons,
        _ => return false,
    };
    !reasons.is_empty() && reasons.iter().all(|reason| Reason(*reason).is_error())
}

fn session_opened<'a>(
    client: &'a Client,
    client_id: &'a str,
    session: QueueNumber,
    version: Version,
    opened_at_ms: u64,
) -> SessionOpened<'a> {
    SessionOpened {
        session,
        version,
        opened_at_ms,
        expiry_secs: client.session_expiry_secs,
        client_id,
        username: client.username.as_deref().unwrap_or_default(),
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
