//! How much of a turn one client gets, so that nobody waits long for what another one asks for.
//!
//! What clients ask for is counted in units of some 0.1 us, as long as a delivery takes: only what
//! one packet can ask for many times over, and not a message for one subscriber. A client that has
//! had its part goes on in the next turn, behind those that have not. Those that ask for much have
//! one such part of a turn together, beside what each takes at first. Mail has a part of its own;
//! what is beyond it waits in its order.

use std::collections::VecDeque;

use crate::parts::flow::{BROADCAST_MIN, LARGE_PART, LIGHT_UNITS};

/// What is charged, beside deliveries, with its number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// A filter of a SUBSCRIBE or UNSUBSCRIBE, of so many bytes.
    Filter(usize),
    /// An AUTH with so many bytes. Signatures take longer than digests, and come with more data.
    Auth(usize),
    /// A shared group that gets a message.
    Group,
    /// Groups whose members are gone, and that are skipped.
    EmptyGroups(usize),
    /// A member joins a group, or leaves it: so many shards are notified.
    Membership(u16),
    /// Members of a group that are asked whether they can take a message.
    Members(usize),
    /// Steps of a long walk through the wildcard filters.
    Steps(usize),
    /// Messages that wait in a queue and are looked at.
    Pending(usize),
}

impl Task {
    /// In units of work.
    const fn units(self) -> usize {
        match self {
            Self::Filter(bytes) => 20 + bytes / 16,
            Self::Auth(bytes) => 100 + bytes,
            Self::Group => 10,
            Self::EmptyGroups(count) => count / 2,
            Self::Membership(shards) => 20 * shards as usize,
            Self::Members(count) => count / 16,
            Self::Steps(count) | Self::Pending(count) => count / 4,
        }
    }
}

/// What was asked for in this turn, and who waits for the next.
#[derive(Debug)]
pub struct Work {
    /// What one client gets in a turn, and all that wait for more together; and what mail gets.
    /// One message may take it beyond that. See [`crate::Settings::turn_units`].
    units_max: u32,
    /// Nobody is left whom mail could keep waiting, and none may be left when the journals close.
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
    pub(crate) line: VecDeque<(u32, u64)>,
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

    #[inline]
    pub(crate) const fn charge_for(&mut self, task: Task) {
        self.charge(task.units());
    }

    pub(crate) const fn units_max(&self) -> usize {
        self.units_max as usize
    }

    /// Who takes as much in a go asks for much.
    pub(crate) const fn heavy_units(&self) -> usize {
        (self.units_max / LARGE_PART) as usize
    }

    /// Is the go over?
    #[inline]
    pub(crate) const fn is_spent(&self) -> bool {
        self.go >= self.units_max
    }

    /// Have those that ask for much had their part of the turn? Then nobody who may be one of them
    /// is to be let in with it.
    pub const fn has_no_more(&self) -> bool {
        self.heavy >= self.units_max
    }

    /// The go of a client is over. Does it ask for much?
    pub(crate) const fn end(&mut self) -> bool {
        if self.go < LIGHT_UNITS && self.go < self.units_max / LARGE_PART {
            return false;
        }
        self.end_costly()
    }

    const fn end_costly(&mut self) -> bool {
        let is_heavy = self.go >= self.units_max / LARGE_PART
            || self.light >= self.units_max && self.go >= LIGHT_UNITS;
        let sum = if is_heavy { &mut self.heavy } else { &mut self.light };
        *sum = sum.saturating_add(self.go);
        is_heavy
    }

    pub(crate) const fn begin_mail(&mut self) {
        self.go = self.mail;
    }

    pub(crate) const fn end_mail(&mut self) {
        self.mail = self.go;
    }

    pub(crate) const fn mail_is_spent(&self) -> bool {
        self.go >= self.units_max && !self.is_stopping
    }

    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// The units that those who ask for much, and mail, have used up so far in this turn.
    pub const fn used(&self) -> u32 {
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

    /// Mail goes before what is unread: what the rest of the mail has taken is returned.
    pub(crate) const fn begin_passing(&mut self) -> u32 {
        std::mem::replace(&mut self.go, self.passing)
    }

    pub(crate) const fn end_passing(&mut self, of_mail: u32) {
        let least = self.passing + 1;
        let go = std::mem::replace(&mut self.go, of_mail);
        self.passing = if go > least { go } else { least };
    }

    /// From now on nothing is put off.
    pub(crate) const fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// The driver knows how long they take: from now on a turn has so many for each of them.
    pub const fn set_units(&mut self, units: u32) {
        self.units_max = units;
    }

    pub(crate) fn line_len(&self) -> usize {
        self.line.len()
    }

    /// Who is next in the line, unless nothing is left of this turn.
    pub(crate) fn next_in_line(&mut self) -> Option<(u32, u64)> {
        if self.has_no_more() { None } else { self.line.pop_front() }
    }

    /// Is something left for mail that goes before what is unread?
    pub(crate) const fn lets_pass(&self) -> bool {
        self.passing < self.units_max
    }
}
