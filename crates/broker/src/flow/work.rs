//! How much of a turn one client gets, so that nobody waits long for what another one asks for.
//!
//! What clients ask for is counted in units of some 0.1 us, as long as a delivery takes: only what
//! one packet can ask for many times over, and not a message for one subscriber. A client that has
//! had its part goes on in the next turn, behind those that have not. Those that ask for much have
//! one such part of a turn together, beside what each takes at first. Mail has a part of its own;
//! what is beyond it waits in its order.

use std::collections::VecDeque;

use codec::Packet;
use session::Wait;

use crate::flow::write_order::BROADCAST_MIN;
use crate::sure::Sure;
use crate::{Ended, Mail, Shard};

/// Who takes such a part of a turn in a go asks for much.
const HEAVY_PART: u32 = 8;

/// Who takes less asks for little, however many do.
const LIGHT_UNITS: u32 = 50;

/// Larger requests are handled in portions. Who brings more at a time waits once nothing is left of
/// a turn, also one of whom nothing is known: attackers may come with a new connection each time.
pub(crate) const REQUEST_BYTES_MAX: usize = 4 * 1024;

/// What a filter of a SUBSCRIBE or UNSUBSCRIBE takes, beside its length.
const FILTER_UNITS: usize = 20;
const FILTER_BYTES_PER_UNIT: usize = 16;

/// What an AUTH takes: some digests.
pub(crate) const AUTH_UNITS: usize = 100;

/// What a shared group takes that gets a message.
pub(crate) const GROUP_UNITS: usize = 10;

/// Groups whose members are gone, and that are passed over, for one unit.
pub(crate) const GROUPS_OVER_PER_UNIT: usize = 2;

/// What a shard takes that hears of a member that joins a group, or leaves it. Who asks for that
/// is charged for all shards.
pub(crate) const MEMBER_UNITS: usize = 20;

/// Members of a group that are asked whether they can take a message, for one unit.
pub(crate) const MEMBERS_PER_UNIT: usize = 16;

/// Steps of a long walk through the wildcard filters, for one unit.
pub(crate) const STEPS_PER_UNIT: usize = 4;

/// Messages that wait in the log for a session and are looked at, for one unit.
pub(crate) const PENDING_PER_UNIT: usize = 4;

/// An outbox with less is nobody's concern; no limit is below it.
pub(crate) const OUTBOX_BYTES_LEAST: usize = 1024;

#[derive(Debug)]
pub(crate) struct Work {
    /// What one client gets in a turn, and all that wait for more together; and what mail gets.
    /// One message may take it beyond that. See [`crate::Settings::turn_units`].
    units_max: u32,
    /// Nobody is left whom mail could keep waiting, and none may be left when the logs close.
    is_stopping: bool,
    /// Of the present go: of a client, or of mail.
    go: u32,
    /// In this turn, of the clients that ask for much.
    heavy: u32,
    /// Of the others. When they have had as much, who takes more than a little asks for much, too:
    /// what a thousand ask for is much, though each has sent one message only.
    light: u32,
    /// In this turn, of mail.
    mail: u32,
    /// In this turn, of mail that went before what was unread.
    passing: u32,
    /// In this turn, of messages that have not reached all their subscribers.
    broadcasts: u32,
    /// Slots and connections that have had their part, and those that found nothing left of the
    /// turn. One entry for each connection, and for some that have ended.
    line: VecDeque<(u32, u64)>,
}

impl Work {
    pub(crate) const fn new(units_max: u32) -> Self {
        let line = VecDeque::new();
        let is_stopping = false;
        let (go, heavy, light, mail, passing, broadcasts) = (0, 0, 0, 0, 0, 0);
        Self { units_max, is_stopping, go, heavy, light, mail, passing, broadcasts, line }
    }

    pub(crate) const fn begin(&mut self) {
        self.go = 0;
    }

    #[inline]
    pub(crate) const fn charge(&mut self, units: usize) {
        self.go = self.go.saturating_add(units as u32);
    }

    pub(crate) const fn charge_filter(&mut self, filter: &str) {
        self.charge(FILTER_UNITS + filter.len() / FILTER_BYTES_PER_UNIT);
    }

    pub(crate) const fn units_max(&self) -> usize {
        self.units_max as usize
    }

    /// Who takes as much in a go asks for much.
    const fn heavy_units(&self) -> usize {
        (self.units_max / HEAVY_PART) as usize
    }

    /// Is the go over?
    #[inline]
    pub(crate) const fn is_spent(&self) -> bool {
        self.go >= self.units_max
    }

    /// Have those that ask for much had their part of the turn?
    pub(crate) const fn has_no_more(&self) -> bool {
        self.heavy >= self.units_max
    }

    /// The go of a client is over. Does it ask for much?
    pub(crate) const fn end(&mut self) -> bool {
        if self.go < LIGHT_UNITS && self.go < self.units_max / HEAVY_PART {
            return false;
        }
        self.end_costly()
    }

    const fn end_costly(&mut self) -> bool {
        let is_heavy = self.go >= self.units_max / HEAVY_PART
            || self.light >= self.units_max && self.go >= LIGHT_UNITS;
        let sum = if is_heavy { &mut self.heavy } else { &mut self.light };
        *sum = sum.saturating_add(self.go);
        is_heavy
    }

    const fn begin_mail(&mut self) {
        self.go = self.mail;
    }

    const fn end_mail(&mut self) {
        self.mail = self.go;
    }

    const fn mail_is_spent(&self) -> bool {
        self.go >= self.units_max && !self.is_stopping
    }

    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// So far in this turn.
    const fn used(&self) -> u32 {
        let of_clients = self.heavy.saturating_add(self.light);
        let of_mail = self.mail.saturating_add(self.passing);
        of_clients.saturating_add(of_mail).saturating_add(self.broadcasts)
    }

    pub(crate) const fn end_turn(&mut self) {
        self.heavy = 0;
        self.light = 0;
        self.mail = 0;
        self.passing = 0;
        self.broadcasts = 0;
    }

    /// No turn comes any more.
    pub(crate) const fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// So many subscriptions of a shard get a message at once.
    #[inline]
    pub(crate) const fn broadcast_max(&self) -> usize {
        self.units_max as usize
    }

    /// A message for more clients than these is a broadcast.
    #[inline]
    pub(crate) const fn broadcast_min(&self) -> usize {
        if self.broadcast_max() < BROADCAST_MIN { self.broadcast_max() } else { BROADCAST_MIN }
    }

    /// What is left of this turn for messages that have not reached all their subscribers.
    pub(crate) const fn left_for_broadcasts(&self) -> usize {
        self.units_max.saturating_sub(self.broadcasts) as usize
    }

    pub(crate) const fn charge_broadcast(&mut self, units: usize) {
        self.broadcasts = self.broadcasts.saturating_add(units as u32);
    }

    /// Is something left for mail that goes before what is unread?
    const fn lets_pass(&self) -> bool {
        self.passing < self.units_max
    }
}

impl Shard {
    /// The units of work that those who ask for much, and mail, have used up in this turn.
    pub const fn turn_units_used(&self) -> u32 {
        self.work.used()
    }

    /// Have those that ask for much had their part of this turn? Then nobody who may be one of them
    /// is to be let in with it.
    pub const fn turn_is_spent(&self) -> bool {
        self.work.has_no_more()
    }

    /// The driver knows how long they take: from now on a turn has so many for each of them.
    pub const fn set_turn_units(&mut self, units: u32) {
        self.work.units_max = units;
    }

    /// Reads nothing more from a client before those that wait have had their part.
    pub(crate) fn wait_for_turn(&mut self, slot: u32) {
        if let Some(connection) = self.stand_in_line(slot) {
            self.work.line.push_back((slot, connection));
            self.metrics().work_waits.add(1);
        }
    }

    /// Goes on with messages that have not reached everybody, and with clients that wait for their
    /// part of a turn; false if there are none, or nothing is left of this one.
    pub fn read_line_on(&mut self, now_ms: u64) -> bool {
        let mut any = self.broadcast_on(now_ms);
        // Who has to wait on, for a broadcast that others are still to get, comes behind them.
        for _ in 0..self.work.line.len() {
            if self.work.has_no_more() {
                break;
            }
            if let Some((slot, connection)) = self.work.line.pop_front() {
                self.read_on(slot, connection, now_ms);
                any = true;
            }
        }
        any
    }

    /// Does this request take more than one go? Then so much of it was done as one may take, and
    /// the packet stays where it is. True also if that has ended the connection.
    pub(crate) fn goes_on_later(
        &mut self,
        slot: u32,
        (packet, packet_len): (&Packet<'_>, usize),
        now_ms: u64,
    ) -> bool {
        let is_large = packet_len > REQUEST_BYTES_MAX || self.checks_much(slot, packet);
        let outcome = match packet {
            Packet::Subscribe(_) if self.waits_for_heard(slot, now_ms) => return true,
            Packet::Subscribe(subscribe) if is_large => {
                self.subscribe_some(slot, subscribe, now_ms)
            }
            Packet::Subscribe(subscribe) => return self.subscribes_later(slot, subscribe, now_ms),
            Packet::Unsubscribe(unsubscribe) if is_large => {
                self.unsubscribe_some(slot, unsubscribe, now_ms)
            }
            _ => return false,
        };
        match outcome {
            Ok(is_whole) => !is_whole,
            Err(ended) => {
                self.end(slot, ended, now_ms);
                true
            }
        }
    }

    /// Do the access rules of the client make a short request a costly one?
    fn checks_much(&self, slot: u32, packet: &Packet<'_>) -> bool {
        let Packet::Subscribe(subscribe) = packet else { return false };
        let units = self.clients.get(slot).map_or(0, |client| client.grants.filter_units());
        units > 0 && units * subscribe.filters.iter().count() >= self.work.heavy_units()
    }

    /// A packet is under way of which no more than `bytes` have come: it may be too long for what
    /// it is.
    #[cold]
    pub(crate) fn end_if_too_long(&mut self, slot: u32, bytes: &[u8], now_ms: u64) {
        let Some(client) = self.clients.get(slot).sure() else { return };
        if let Some(violation) = client.limits.too_long_request(bytes) {
            self.end(slot, Ended::Violation(violation), now_ms);
        }
    }

    /// A client was told more while it had not taken what it was sent before: it is not read until
    /// it has. `owed` are the bytes that waited for it before it asked.
    #[cold]
    pub(crate) fn look_whether_it_reads(&mut self, slot: u32, connection: u64, owed: usize) {
        // Its packets have ended the connection.
        let Some(link) = self.link(slot, connection) else { return };
        if link.note_answers(owed) && self.change_gate(slot, |gate| gate.shut(Wait::ToBeRead)) {
            self.metrics().unread_waits.add(1);
        }
    }

    /// A client that was not read because it did not read has taken something.
    #[cold]
    pub(crate) fn read_on_if_it_reads(&mut self, slot: u32, connection: u64, now_ms: u64) {
        let Some(link) = self.link(slot, connection) else { return };
        link.last_packet_ms = now_ms;
        if link.outbox.len() <= link.settings().outbox_bytes_max as usize / 2 {
            self.change_gate(slot, |gate| gate.open(Wait::ToBeRead));
        }
    }

    /// From now on mail is dealt with as it comes, and first what has waited.
    pub(crate) fn put_off_no_mail(&mut self, now_ms: u64) {
        self.work.is_stopping = true;
        self.finish_broadcasts(now_ms);
        self.read_mail_on(now_ms);
    }

    /// A batch of mail from a shard. It is kept, emptied, for mail that goes out.
    pub fn on_batch(&mut self, mut mails: Vec<Mail>, now_ms: u64) {
        self.work.begin_mail();
        for mail in mails.drain(..) {
            let is_held_up = self.is_held_up(&mail);
            let is_late = self.work.mail_is_spent() || self.inbox.has_unread() || is_held_up;
            if !is_late || !mail.keeps_order() {
                self.on_mail(mail, now_ms);
            } else if !is_held_up && self.lets_pass(&mail) {
                self.let_pass(mail, now_ms);
            } else {
                self.inbox.push_unread(mail);
            }
        }
        self.work.end_mail();
        self.effects.keep_batch(mails);
    }

    /// Has it to wait until a broadcast has reached everybody, or behind mail that has?
    fn is_held_up(&self, mail: &Mail) -> bool {
        self.broadcasts.hold_up_mail(mail) || self.inbox.is_behind_held(mail)
    }

    fn lets_pass(&self, mail: &Mail) -> bool {
        self.inbox.has_unread() && self.work.lets_pass() && self.inbox.may_pass(mail)
    }

    /// A message of somebody who has none among what is unread does not wait for those who have
    /// many there, or costly ones.
    #[cold]
    fn let_pass(&mut self, mail: Mail, now_ms: u64) {
        let of_mail = std::mem::replace(&mut self.work.go, self.work.passing);
        self.on_mail(mail, now_ms);
        self.work.passing =
            std::mem::replace(&mut self.work.go, of_mail).max(self.work.passing + 1);
    }

    /// Goes on with mail for which a turn was not enough, or that waited for a broadcast.
    pub(crate) fn read_mail_on(&mut self, now_ms: u64) {
        if self.inbox.is_empty() {
            return;
        }
        self.work.begin_mail();
        while !self.work.mail_is_spent()
            && let Some(mail) = self.inbox.next_held(|mail| self.broadcasts.hold_up_mail(mail))
        {
            self.on_mail(mail, now_ms);
        }
        while !self.work.mail_is_spent()
            && let Some(mail) = self.inbox.next_unread()
        {
            // It makes way for others.
            match self.is_held_up(&mail) {
                true => self.inbox.hold(mail),
                false => self.on_mail(mail, now_ms),
            }
        }
        self.work.end_mail();
    }
}
