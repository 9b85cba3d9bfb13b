//! QoS 2 publishes of durable sessions, and wills: taken on in one record, then passed to the other
//! shards.
//!
//! The record of a publish holds the message and its packet id, so that both survive a crash or
//! neither. Only when it is committed is the message mailed, with its serial: a shard that has had
//! this serial knows it for a repetition. So it enters each journal once, however often it has to
//! be mailed. A will is mailed at once (`will.rs`): if its record is lost, it is published again.

use std::collections::HashMap;
use std::sync::Arc;

use codec::Reason;
use foldhash::fast::FixedState;
use session::{Account, Awaited, Message, Respondent};
use storage::{AppendError, Position, Status};

use crate::deliver::copies::Routed;
use crate::log::Durable;
use crate::log::facts::{Fact, Origin, Purpose};
use crate::log::promise::Promise;
use crate::log::store::{Class, Loaded, level_of};
use crate::log::streams::{ForStreams, Publisher};
use crate::log::track::Track;
use crate::parts::client::Client;
use crate::parts::groups::Groups;
use crate::parts::retained::Retained;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::words::ledger::NOBODY;
use crate::words::queue_number::{QueueId, QueueNumber};
use crate::words::record_location::RecordLocation;
use crate::words::stream_set::StreamFlaw;
use crate::{Confirm, Mail, Name, SessionKey, WhenFull};

/// A message that is not yet known to be stored by all shards that have to.
#[derive(Debug)]
pub(crate) struct Handover {
    /// The queue number of its session, if the journal has it.
    pub(crate) session: Option<QueueNumber>,
    /// It waits in the line of what is passed on.
    pub(super) is_in_line: bool,
    /// The acknowledgement that waits for it, if its connection still does.
    pub(crate) confirm: Option<Confirm>,
    /// None after a start, until the disk has given it.
    pub(crate) message: Option<Message>,
    /// Who has yet to answer.
    pub(crate) awaited: Awaited,
    pub(crate) is_will: bool,
}

impl Received {
    fn may_be_on(&self, topic_mark: Option<u64>) -> bool {
        self.topic_mark.is_none() || topic_mark.is_none() || self.topic_mark == topic_mark
    }
}

impl Durable {
    /// Has an older publish of the client perhaps replaced what this one has retained?
    pub(crate) fn has_undone(&self, client: &Client, packet_id: u16) -> bool {
        let durable = self.kept.get(client.key.slot());
        match durable.and_then(|durable| durable.received(packet_id)) {
            Some(received) => received.is_undone,
            None => client.session.incoming.is_behind(),
        }
    }
}

/// Kinds of serials that a shard gets from each other: of QoS 2 publishes, the same to be retained,
/// of wills, the same to be retained. Each kind comes in order.
pub(crate) const SOURCES: usize = 4;

/// All of them. Bounded by the receive maxima of the publishers, and for wills by what the journal
/// has room for.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    by_serial: HashMap<u64, Handover, FixedState>,
    pub(super) track: Track,
    /// After a start, until all that were under way are passed on again: new ones wait behind them.
    pub(super) is_resuming: bool,
}

/// A QoS 2 packet id between PUBLISH and PUBREL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) packet_id: u16,
    pub(crate) serial: u64,
    /// Where it stands by itself; else in the record of its message.
    pub(crate) place: RecordLocation,
    /// None: it is of an earlier life.
    pub(super) topic_mark: Option<u64>,
    /// An older retained publish of its client and topic has come again since: should it come
    /// again, too, it is retained anew.
    pub(crate) is_undone: bool,
    /// Its PUBREL is written down: a copy of this fact would outlive that.
    pub(super) is_released: bool,
}

impl Handovers {
    pub(crate) fn get(&self, serial: u64) -> Option<&Handover> {
        self.by_serial.get(&serial)
    }

    pub(crate) fn get_mut(&mut self, serial: u64) -> Option<&mut Handover> {
        self.by_serial.get_mut(&serial)
    }

    /// One that was under way when the broker ended.
    pub(crate) fn restore(&mut self, serial: u64, session: Option<QueueNumber>, is_will: bool) {
        let is_in_line = true;
        let (confirm, message, awaited) = (None, None, Awaited::default());
        let handover = Handover { session, is_in_line, confirm, message, awaited, is_will };
        self.by_serial.insert(serial, handover);
        self.track.assign(serial, 0);
        self.is_resuming = true;
    }

    /// A will has become a message.
    pub(super) fn begin_will(&mut self, serial: u64, session: QueueNumber, message: &Message) {
        let handover = Handover {
            session: Some(session),
            is_in_line: false,
            confirm: None,
            message: Some(message.clone()),
            awaited: Awaited::default(),
            is_will: true,
        };
        self.by_serial.insert(serial, handover);
        self.track.assign(serial, 0);
    }

    /// It is passed on when its turn has come.
    pub(super) fn note_in_line(&mut self, serial: u64) {
        if let Some(handover) = self.by_serial.get_mut(&serial) {
            handover.is_in_line = true;
        }
    }

    /// Those that have yet to reach somebody.
    pub(crate) fn waiting_count(&self) -> usize {
        self.by_serial.len()
    }

    /// Has it yet to reach somebody?
    pub(super) fn is_under_way(&self, serial: u64) -> bool {
        self.by_serial.contains_key(&serial)
    }

    /// A repetition of the publish waits, instead of the connection that is gone.
    pub(super) fn await_again(&mut self, serial: u64, asked: &mut Asked) {
        if let Some(handover) = self.by_serial.get_mut(&serial) {
            handover.confirm = Some(asked.ask(Respondent::HANDOVER));
        }
    }

    pub(crate) fn serials(&self) -> Vec<u64> {
        let mut serials: Vec<u64> = self.by_serial.keys().copied().collect();
        serials.sort_unstable();
        serials
    }
}

impl Durable {
    /// Takes a QoS 2 publish of a durable session on, also for the streams at these places. Returns
    /// its serial.
    pub(crate) fn take_on(
        &mut self,
        cx: &Context,
        sessions: &mut Sessions,
        slot: u32,
        packet_id: u16,
        (message, places): (&Message, &[u32]),
        confirm: Option<Confirm>,
    ) -> Result<u64, AppendError> {
        let level = level_of(message.level());
        let session = self.kept.get(slot).map(|d| d.queue);
        let (Some(session), Some(store)) = (session.expected(), self.store.as_mut().expected())
        else {
            return Err(AppendError::Closed);
        };
        let owner = sessions.get(slot).and_then(|client| client.charged.account());
        let (serial, position, level) = if places.is_empty() {
            let (serial, position) = store.keep_message(message, owner, |message| Fact::Taken {
                session,
                packet_id,
                message,
            })?;
            (serial, position, level)
        } else {
            let publisher = sessions.get(slot).map(Publisher::from);
            let own = ForStreams { message, publisher, owner, author: message.author(), places };
            let (set, purpose) =
                (sessions.router.streams().set(), Purpose::Taken { session, packet_id });
            store.keep_for_streams(set, &own, purpose, cx.now_ms)?
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
        store.line.push_taken(serial, position, level);
        self.kept.enter_line(cx, slot, Name::of(message));
        let topic_mark = Some(cx.topic_mark(Name::of(message)));
        if let Some(durable) = self.kept.get_mut(slot) {
            let (place, is_undone, is_released) = (RecordLocation::default(), false, false);
            let received =
                Received { packet_id, serial, place, topic_mark, is_undone, is_released };
            durable.rare().received.push(received);
        }
        Ok(serial)
    }

    /// After a start: what may not have been passed on is passed on again. True:
    /// that is done.
    pub(crate) fn resume_handovers(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
    ) -> bool {
        let Some(store) = self.store.as_mut().filter(|store| store.handovers.is_resuming) else {
            return false;
        };
        for serial in store.handovers.serials() {
            let Some(store) = self.store.as_mut().expected() else { return false };
            let Some(handover) = store.handovers.get(serial) else { continue };
            if handover.message.is_some() || !handover.awaited.is_empty() {
                continue;
            }
            match store.load(serial, QueueId::Handover) {
                Loaded::Ready(message) => {
                    if store.streams.has(StreamFlaw::HandoverStoredAgain) {
                        let session = store.handovers.get(serial).and_then(|it| it.session);
                        let slot = session.and_then(|session| self.kept.find(session));
                        store.store_again(sessions, slot, &message, cx.now_ms);
                    }
                    if let Some(handover) = store.handovers.get_mut(serial) {
                        handover.message = Some(message);
                    }
                    self.pass_on_taken(cx, sessions, groups, retained, serial);
                }
                // Serials are passed on in their order: none overtakes one that is still read.
                Loaded::Pending => return false,
                Loaded::Gone => {
                    if let Some(handover) = store.handovers.get_mut(serial) {
                        handover.awaited.insert(Respondent::ASKING);
                        let session = handover.session;
                        self.kept.leave_line(session);
                    }
                    self.on_handed_over(cx, sessions, serial, Respondent::ASKING);
                }
            }
        }
        if let Some(store) = &mut self.store {
            store.handovers.is_resuming = false;
        }
        true
    }

    /// The retained store, the groups and the other shards get it. The record of a QoS 2 publish is
    /// committed.
    ///
    /// What is retained is what was acknowledged last: if its session was given up, no client is
    /// notified any more that such a publish is kept, so it must not replace what was said since.
    pub(super) fn pass_on_taken(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
        serial: u64,
    ) {
        let Some(store) = self.store.as_mut().expected() else { return };
        let owner = store.stored(serial).map_or(NOBODY, |stored| stored.owner);
        let Some(handover) = store.handovers.get_mut(serial).expected() else { return };
        let Some(message) = handover.message.take().expected() else { return };
        let (session, is_will) = (handover.session, handover.is_will);
        let was_in_line = std::mem::take(&mut handover.is_in_line);
        let mut asked = Asked::new(Confirm {
            publisher: SessionKey::new(cx.id, 0, 0),
            connection: crate::NO_CONNECTION,
            ack_number: 0,
            packet_id: 0,
            respondent: Respondent::ASKING,
            serial,
            is_will,
            owner,
            is_again: false,
        });
        handover.awaited.insert(Respondent::ASKING);
        if was_in_line {
            self.kept.leave_line(session);
        }
        let mut routed = Routed::default();
        let slot = session.and_then(|session| self.kept.find(session));
        if message.retain() && (is_will || slot.is_some()) {
            retained.retain(cx, sessions, self, &message, Some(&mut asked), &mut routed);
        }
        sessions.route_onward(cx, self, groups, &message, Some(&mut asked), &mut routed);
        if let Some(store) = &mut self.store
            && let Some(handover) = store.handovers.get_mut(serial)
        {
            handover.awaited.extend(&asked.take_awaited().unwrap_or_default());
        }
        self.on_handed_over(cx, sessions, serial, Respondent::ASKING);
    }

    /// One more shard has stored the message. After the last of them this may be said again.
    pub(crate) fn on_handed_over(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        serial: u64,
        respondent: Respondent,
    ) {
        let Some(store) = self.store.as_mut().expected() else { return };
        let Some(handover) = store.handovers.by_serial.get_mut(&serial) else { return };
        if !handover.awaited.remove(respondent) || !handover.awaited.is_empty() {
            return;
        }
        let handover = store.handovers.by_serial.remove(&serial);
        store.handovers.track.finish(serial);
        store.note_moved(QueueId::Handover);
        store.release_message(serial);
        if let Some(confirm) = handover.and_then(|handover| handover.confirm) {
            sessions.on_confirmed(cx, self, confirm, Reason::SUCCESS, None);
        }
    }

    /// The record of a publish that was taken on never gets to the disk: its publisher is notified.
    pub(super) fn refuse_taken(&mut self, cx: &mut Context, sessions: &mut Sessions, serial: u64) {
        let Some(store) = self.store.as_mut().expected() else { return };
        let Some(handover) = store.handovers.by_serial.remove(&serial).expected() else { return };
        store.handovers.track.finish(serial);
        store.release_message(serial);
        self.kept.leave_line(handover.session);
        let Some(confirm) = handover.confirm else { return };
        if let Some(slot) = sessions.slot_of(confirm.publisher) {
            self.forget_received(sessions, slot, confirm.packet_id, serial);
            // Also on the next connection it is no repetition when it comes again.
            if let Some(client) = sessions.get_mut(slot) {
                client.session.incoming.release(confirm.packet_id);
            }
        }
        sessions.on_confirmed(cx, self, confirm, Reason::IMPLEMENTATION_SPECIFIC_ERROR, None);
    }

    /// A retained publish comes again, and stands in the place of what its client has retained on
    /// the topic since. Of the QoS 2 publishes among those, above the serial `above` and not
    /// released, a fact is appended. Returns what the acknowledgement has to wait for.
    #[cold]
    pub(crate) fn note_sent_again(
        &mut self,
        cx: &Context,
        sessions: &mut Sessions,
        slot: u32,
        message: &Message,
        above: u64,
    ) -> Result<Option<Position>, AppendError> {
        let mark = Some(cx.topic_mark(Name::of(message)));
        let Some(client) = sessions.get_mut(slot).expected() else { return Ok(None) };
        client.session.incoming.note_sent_again();
        let (Some(durable), Some(store)) = (self.kept.get_mut(client.key.slot()), &mut self.store)
        else {
            return Ok(None);
        };
        let (session, level) = (durable.queue, level_of(message.level()));
        let Some(rare) = &mut durable.rare else { return Ok(None) };
        let mut newest = None;
        for received in &mut rare.received {
            let is_later = received.serial > above && !received.is_released;
            if !is_later || !received.may_be_on(mark) {
                continue;
            }
            if !received.is_undone && message.level() > 0 {
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

    /// The acknowledgement waits for the facts about those that the message has
    /// replaced.
    pub(crate) fn await_undone(
        &mut self,
        undone: Option<Position>,
        message: &Message,
        asked: Option<&mut Asked>,
    ) {
        if let (Some(position), Some(asked)) = (undone, asked) {
            let confirm = asked.ask(Respondent::UNDONE);
            self.promise(position, level_of(message.level()), Promise::Confirm(confirm));
        }
    }

    /// A QoS 2 publish comes again while the first has not reached everybody: this connection waits
    /// for it, too.
    pub(crate) fn await_handover(&mut self, serial: u64, asked: &mut Asked) {
        if let Some(store) = &mut self.store {
            store.handovers.await_again(serial, asked);
        }
    }

    /// A PUBREL is committed: the packet id means nothing any more.
    pub(super) fn forget_received(
        &mut self,
        sessions: &mut Sessions,
        slot: u32,
        packet_id: u16,
        serial: u64,
    ) {
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        let Some(durable) = self.kept.get_mut(client.key.slot()).expected() else { return };
        let received = &mut durable.rare().received;
        // A repeated PUBREL, whose first has been dealt with.
        let Some(index) =
            received.iter().position(|r| r.packet_id == packet_id && r.serial == serial)
        else {
            return;
        };
        let Received { place, .. } = received.swap_remove(index);
        let Some(store) = self.store.as_mut().expected() else { return };
        if place.is_some() {
            store.release(place);
        } else {
            store.unpin_message(serial);
        }
    }

    /// Is mail that found no room in the journal kept until there is?
    pub(crate) fn waits_for_disk(&self, cx: &Context, confirm: Option<Confirm>) -> bool {
        let Some(confirm) = confirm else { return false };
        let status = self.status_of_journal();
        let is_poisoned = status.as_ref().is_some_and(Status::is_out_of_service);
        let is_full = matches!(status, Some(Status::Full(_)));
        let waits = !is_full || cx.shared.settings.when_full == WhenFull::Wait;
        confirm.serial != 0 || !is_poisoned && (waits || confirm.is_again)
    }

    /// Mail of a serial that this shard has had: nothing is to be done for it again.
    pub(crate) fn is_repetition(&self, cx: &Context, confirm: Option<Confirm>) -> bool {
        confirm.is_some_and(|confirm| self.has_seen(cx.source_of(confirm, 0), confirm.serial))
    }

    /// Remembers the serial of mail that was accepted.
    pub(crate) fn note_seen(&mut self, cx: &Context, confirm: Option<Confirm>) {
        if let Some(confirm) = confirm {
            self.note_seen_at(cx.source_of(confirm, 0), confirm.serial);
        }
    }
}

impl Context {
    /// What is written with a message that has a serial where it comes from.
    pub(crate) fn origin_of(&self, confirm: Confirm) -> Option<Origin> {
        let Confirm { serial, .. } = confirm;
        (serial != 0).then(|| Origin { source: self.source_of(confirm, 0), serial })
    }

    /// The number of one of the [`SOURCES`]. `step` 1: of what is to be retained.
    pub(super) fn source_of(&self, confirm: Confirm, step: u16) -> u16 {
        let kind = 2 * u16::from(confirm.is_will) + step;
        kind * self.shared.shard_count + confirm.publisher.shard()
    }
}

impl Durable {
    /// A message to be retained. One that is mailed again must not replace what came after it.
    pub(crate) fn on_retain_mail(
        &mut self,
        cx: &mut Context,
        retained: &mut Retained,
        message: Message,
        confirm: Option<Confirm>,
        owner: Option<Arc<Account>>,
    ) {
        if confirm.is_some() && self.has_late_mail() {
            self.put_off_mail(Mail::Retain { message, confirm, owner });
            return;
        }
        let serial = confirm.map_or(0, |confirm| confirm.serial);
        let source = confirm.map_or(0, |confirm| cx.source_of(confirm, 1));
        if self.has_seen(source, serial) {
            cx.answer(confirm, Reason::SUCCESS, message);
            return;
        }
        let has_room = retained.has_room_for(&message, owner.as_ref(), &cx.effects);
        let is_clear = message.payload().is_empty();
        match retained.keep_retained(cx, self, &message, confirm, owner.as_ref()) {
            // One that was taken on, and one that only has to wait for the next segment.
            Err(_) if has_room && confirm.is_some() && self.waits_for_disk(cx, confirm) => {
                self.put_off_mail(Mail::Retain { message, confirm, owner });
                return;
            }
            Err(reason) => cx.answer(confirm, reason, message),
            Ok(false) => cx.answer(confirm, Reason::SUCCESS, message),
            Ok(true) => {}
        }
        self.note_seen_at(source, serial);
        if serial != 0 && is_clear {
            // The fact of a clearing does not say where it comes from, and must not undo what comes
            // next. Should there be no room, that finds none either.
            if let Some(store) = &mut self.store {
                let _ = store.write_progress_of(&mut self.kept, &[QueueId::Seen(source)]);
            }
        }
    }

    fn has_seen(&self, source: u16, serial: u64) -> bool {
        let seen = self.store.as_ref().and_then(|store| store.seen.get(usize::from(source)));
        serial != 0 && seen.is_some_and(|seen| serial <= seen.serial)
    }

    fn note_seen_at(&mut self, source: u16, serial: u64) {
        let Some(store) = self.store.as_mut().filter(|_| serial != 0) else { return };
        if let Some(seen) = store.seen.get_mut(usize::from(source)) {
            seen.serial = seen.serial.max(serial);
            store.note_moved(QueueId::Seen(source));
        }
    }
}
