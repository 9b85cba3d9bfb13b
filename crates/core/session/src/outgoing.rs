//! Publishes to the client: the window of unacknowledged ones, and the queue behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use codec::{AckKind, QoS};

use crate::{
    Account, Amount, Dropped, Expires, ExpiringQueue, Lack, Link, MemoryKind, Message, NEVER,
    QueueLimit,
};

/// Subscription identifiers of the subscriptions that matched (MQTT-3.3.4-3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identifiers {
    #[default]
    None,
    One([u32; 1]),
    Many(Box<[u32]>),
}

impl Identifiers {
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::None => &[],
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

/// The serial of a delivery in the queue whose packet id the broker's journal has to know before it
/// leaves.
pub const UNLOGGED: u64 = u64::MAX;

/// One message on its way to one session.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub message: Message,
    pub terms: Terms,
}

impl Delivery {
    /// What it counts as once it is written.
    #[inline]
    pub fn as_sent(&self) -> Sent {
        Sent { qos: self.terms.qos, payload_bytes: self.message.payload_len() }
    }
}

/// A PUBLISH to a client, as counters see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub qos: QoS,
    pub payload_bytes: usize,
}

/// How one session gets a message.
#[derive(Clone, Debug)]
pub struct Terms {
    pub identifiers: Identifiers,
    /// The shared subscription that chose this session, as an opaque key. 0: none.
    pub group: u64,
    /// What the broker's journal knows the message by, in the group's queue or the session's own.
    /// 0: it is kept in memory only.
    pub serial: u64,
    /// The smaller of the publisher's and the granted QoS (MQTT-3.8.4-8).
    pub qos: QoS,
    /// The RETAIN flag to send.
    pub retain: bool,
}

impl Terms {
    /// Of a delivery that is none.
    const NONE: Self = Self {
        identifiers: Identifiers::None,
        group: 0,
        serial: 0,
        qos: QoS::AtMostOnce,
        retain: false,
    };
}

impl Delivery {
    /// Its entry in a queue, which is most of what a small message takes: its owner is charged for
    /// it.
    const ENTRY_BYTES: u64 = size_of::<Self>() as u64;
}

impl Expires for Delivery {
    fn expires_at_ms(&self) -> u64 {
        self.message.expires_at_ms()
    }

    /// The message, though others may share it, and identifiers, which can be thousands beside a
    /// few bytes of payload.
    fn bytes(&self) -> u64 {
        let identifiers = match &self.terms.identifiers {
            Identifiers::Many(many) => size_of_val::<[u32]>(many),
            Identifiers::None | Identifiers::One(_) => 0,
        };
        (self.message.heap_bytes() + identifiers) as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    /// That its packet id is kept on disk: only then may the publish leave.
    Commit,
    /// Its message, which is on disk.
    Load,
    Puback,
    Pubrec,
    Pubcomp,
    /// Acknowledged, but an older one is not: the slot keeps the ids contiguous.
    Nothing,
}

#[derive(Debug)]
struct InFlight {
    /// None once it is not needed any more for a resend.
    message: Option<Message>,
    terms: Terms,
    awaits: Awaits,
}

/// What a delivery was for, reported when it is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// [`Terms::group`].
    pub group: u64,
    /// [`Terms::serial`].
    pub serial: u64,
}

/// What an acknowledgement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// The delivery is complete.
    Complete(Origin),
    /// Go on with PUBREL.
    Release,
    /// No such packet id is in flight.
    Unknown,
    /// The id is in flight, but awaits another kind of packet.
    Mismatch,
}

/// Deliveries of QoS 1 and 2: first those in flight, then those that wait for a place.
///
/// Packet ids are assigned in a ring and the in-flight deliveries lie in the order of their
/// ids, so that an acknowledgement finds its delivery by subtraction.
#[derive(Debug, Default)]
pub struct Outgoing {
    in_flight: VecDeque<InFlight>,
    /// The packet id of the front of `in_flight`, less one (0..=65534).
    base: u16,
    /// In-flight deliveries that await something.
    live: u16,
    /// Of those, the ones that the present link has not seen yet: they lie from `resend_next` on.
    unsent: u16,
    /// An index into `in_flight`, which has no more entries than there are packet ids.
    resend_next: u16,
    /// The last entries of `in_flight` that the present link has not been written: one that awaits
    /// its commit, and all behind it, so that none overtakes it.
    withheld: u16,
    /// The session had a connection before the present one. Here it costs no memory.
    pub(crate) is_resumed: bool,
    /// Absent while nothing waits, as in most sessions.
    waiting: Option<Box<ExpiringQueue<Delivery>>>,
    /// Pays for what waits.
    account: Option<Arc<Account>>,
}

/// Packet ids run from 1 to this (MQTT-2.2.1-3).
const PACKET_IDS: u32 = u16::MAX as u32;

/// A number of less than two rounds in the ring of packet ids. Every message asks: no division.
const fn around(number: u32) -> u16 {
    (if number < PACKET_IDS { number } else { number - PACKET_IDS }) as u16
}

/// Above this capacity the window's memory is given back when it empties.
const IDLE_CAPACITY_MAX: usize = 64;

impl InFlight {
    const fn nothing() -> Self {
        Self { message: None, terms: Terms::NONE, awaits: Awaits::Nothing }
    }

    const fn origin(&self) -> Origin {
        Origin { group: self.terms.group, serial: self.terms.serial }
    }
}

impl Outgoing {
    pub const fn in_flight(&self) -> u16 {
        self.live
    }

    pub fn queued(&self) -> usize {
        self.live().messages as usize
    }

    pub fn queued_bytes(&self) -> u64 {
        self.live().bytes
    }

    pub(crate) fn live(&self) -> Amount {
        self.waiting.as_ref().map_or_else(Amount::default, |waiting| waiting.live())
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0 && self.queued() == 0
    }

    /// How many more deliveries the window takes at once.
    pub fn room(&self, send_max: u16) -> u16 {
        if self.in_flight.len() >= u16::MAX as usize {
            return 0;
        }
        send_max.saturating_sub(self.live - self.unsent)
    }

    /// May a new delivery be sent now, without overtaking an older one?
    pub fn is_open(&self, send_max: u16) -> bool {
        self.unsent == 0 && self.queued() == 0 && self.room(send_max) > 0
    }

    /// The packet id of the delivery that [`Outgoing::start`] will put in flight next.
    pub fn next_packet_id(&self) -> u16 {
        self.packet_id(self.in_flight.len())
    }

    /// Puts a delivery in flight that was written with [`Outgoing::next_packet_id`], or that is
    /// withheld behind others.
    pub fn start(&mut self, delivery: Delivery) {
        let is_twice = delivery.terms.qos == QoS::ExactlyOnce;
        let awaits = if is_twice { Awaits::Pubrec } else { Awaits::Puback };
        self.push(delivery, awaits);
        self.withheld += u16::from(self.withheld > 0);
    }

    /// Does a delivery have to wait for the commit of one before it?
    pub const fn has_withheld(&self) -> bool {
        self.withheld > 0
    }

    /// Takes the next packet id for a QoS 2 delivery that must not leave before
    /// [`Session::commit`](crate::Session::commit): a resend under another id would be taken for
    /// news.
    pub fn start_uncommitted(&mut self, delivery: Delivery) -> u16 {
        let packet_id = self.next_packet_id();
        self.push(delivery, Awaits::Commit);
        self.withheld += 1;
        packet_id
    }

    fn push(&mut self, delivery: Delivery, awaits: Awaits) {
        let Delivery { message, terms } = delivery;
        self.in_flight.push_back(InFlight { message: Some(message), terms, awaits });
        self.live += 1;
        self.resend_next = self.in_flight.len() as u16;
    }

    /// The packet id of an uncommitted delivery is on disk. False: it belongs to an earlier link,
    /// and leaves with the resends.
    pub(crate) fn commit(&mut self, packet_id: u16) -> bool {
        let Some(index) = self.index(packet_id) else { return true };
        let entry = &mut self.in_flight[index];
        if entry.awaits == Awaits::Commit {
            entry.awaits = Awaits::Pubrec;
        }
        index < usize::from(self.resend_next)
    }

    /// The first withheld delivery whose reason is gone.
    pub(crate) fn next_released(&mut self) -> Option<(u16, &Message, &Terms)> {
        loop {
            let index = self.in_flight.len() - usize::from(self.withheld);
            if self.in_flight.get(index)?.awaits == Awaits::Commit {
                return None;
            }
            self.withheld -= 1;
            if self.in_flight[index].message.is_some() {
                let packet_id = self.packet_id(index);
                let InFlight { message, terms, .. } = &self.in_flight[index];
                return message.as_ref().map(|message| (packet_id, message, terms));
            }
        }
    }

    /// Gives up what is in flight under this packet id.
    pub(crate) fn give_up(&mut self, packet_id: u16) -> Option<Origin> {
        let index = self.index(packet_id)?;
        match self.in_flight[index].awaits {
            Awaits::Nothing => None,
            _ => match self.complete(index) {
                Acked::Complete(origin) => Some(origin),
                _ => None,
            },
        }
    }

    /// Puts a delivery back in flight as it was before the broker ended: in the order of their
    /// packet ids, into a session without any other. One that is released awaits PUBCOMP, others
    /// their [`Outgoing::supply`].
    pub fn restore(&mut self, packet_id: u16, origin: Origin, is_released: bool) {
        if self.in_flight.is_empty() {
            self.base = packet_id.saturating_sub(1);
        }
        while self.next_packet_id() != packet_id {
            self.in_flight.push_back(InFlight::nothing());
        }
        let awaits = if is_released { Awaits::Pubcomp } else { Awaits::Load };
        let Origin { group, serial } = origin;
        let terms = Terms { group, serial, ..Terms::NONE };
        self.in_flight.push_back(InFlight { message: None, terms, awaits });
        self.live += 1;
        self.unsent += 1;
        self.resend_next = 0;
    }

    /// The restored delivery that the resends wait for.
    pub fn unsupplied(&self) -> Option<(u16, Origin)> {
        let index = usize::from(self.resend_next);
        let entry = self.in_flight.get(index)?;
        (entry.awaits == Awaits::Load).then(|| (self.packet_id(index), entry.origin()))
    }

    /// Gives a restored delivery what is to be sent; nothing: it is given up.
    pub fn supply(&mut self, packet_id: u16, delivery: Option<Delivery>) {
        let Some(index) = self.index(packet_id) else { return };
        if self.in_flight[index].awaits != Awaits::Load {
            return;
        }
        let Some(Delivery { message, terms }) = delivery else {
            self.complete(index);
            return;
        };
        let is_twice = terms.qos == QoS::ExactlyOnce;
        let awaits = if is_twice { Awaits::Pubrec } else { Awaits::Puback };
        self.in_flight[index] = InFlight { message: Some(message), terms, awaits };
    }

    /// What is in flight under this packet id.
    pub fn origin(&self, packet_id: u16) -> Option<Origin> {
        let entry = &self.in_flight[self.index(packet_id)?];
        let is_live = entry.awaits != Awaits::Nothing;
        is_live.then_some(entry.origin())
    }

    /// Skips the next packet id, for a delivery that is given up when its turn has come: so
    /// the ids a client sees have the gap, as with other brokers.
    pub fn skip_packet_id(&mut self) {
        self.in_flight.push_back(InFlight::nothing());
        self.resend_next = self.in_flight.len() as u16;
        self.withheld += u16::from(self.withheld > 0);
        self.drop_finished();
    }

    fn packet_id(&self, index: usize) -> u16 {
        around(u32::from(self.base) + index as u32) + 1
    }

    fn index(&self, packet_id: u16) -> Option<usize> {
        let zero_based = u32::from(packet_id.checked_sub(1)?);
        let index = around(zero_based + PACKET_IDS - u32::from(self.base));
        Some(usize::from(index)).filter(|index| *index < self.in_flight.len())
    }

    /// An acknowledgement from the client; `failed` is a PUBREC with an error reason.
    pub fn on_ack(&mut self, kind: AckKind, packet_id: u16, failed: bool) -> Acked {
        let Some(index) = self.index(packet_id) else { return Acked::Unknown };
        let entry = &mut self.in_flight[index];
        match (kind, entry.awaits) {
            (_, Awaits::Nothing) => Acked::Unknown,
            (AckKind::Puback, Awaits::Puback | Awaits::Load)
            | (AckKind::Pubcomp, Awaits::Pubcomp) => self.complete(index),
            (AckKind::Pubrec, Awaits::Pubrec | Awaits::Load) if failed => self.complete(index),
            (AckKind::Pubrec, Awaits::Pubrec | Awaits::Load) => {
                entry.awaits = Awaits::Pubcomp;
                // The payload is not needed again; the group keeps its claim until PUBCOMP.
                entry.message = None;
                Acked::Release
            }
            (AckKind::Pubrec, Awaits::Pubcomp) => Acked::Release,
            _ => Acked::Mismatch,
        }
    }

    fn complete(&mut self, index: usize) -> Acked {
        let entry = &mut self.in_flight[index];
        entry.message = None;
        let origin = entry.origin();
        entry.awaits = Awaits::Nothing;
        self.live -= 1;
        if index >= usize::from(self.resend_next) {
            self.unsent = self.unsent.saturating_sub(1);
        }
        self.drop_finished();
        Acked::Complete(origin)
    }

    fn drop_finished(&mut self) {
        while self.in_flight.front().is_some_and(|entry| entry.awaits == Awaits::Nothing) {
            self.in_flight.pop_front();
            self.base = around(u32::from(self.base) + 1);
            self.resend_next = self.resend_next.saturating_sub(1);
        }
        self.withheld = self.withheld.min(self.in_flight.len() as u16);
        if self.in_flight.is_empty() && self.in_flight.capacity() > IDLE_CAPACITY_MAX {
            self.in_flight = VecDeque::new();
        }
    }

    /// A new connection: everything in flight has to be sent again, in order (MQTT-4.4.0-1).
    pub fn resume(&mut self) {
        self.unsent = self.live;
        self.resend_next = 0;
        // From now on it is the resends that stop at what is not committed.
        self.withheld = 0;
    }

    /// Is there something in flight that the present link has not seen?
    pub const fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// Sends again what the present link has not seen, as far as the window goes. True if all is.
    /// `may_have` is asked about each message; `dropped` hears of each delivery that is given up on
    /// the way. One of QoS 2 that has a serial stays in flight, without its message: it is to be
    /// treated as if its PUBREC had come.
    pub fn resend(
        &mut self,
        link: &mut Link,
        now_ms: u64,
        may_have: impl Fn(&Message) -> bool,
        mut dropped: impl FnMut(Dropped, Origin),
    ) -> bool {
        while self.unsent > 0 && link.has_room() {
            if self.live - self.unsent >= link.settings().send_max {
                return false;
            }
            let index = usize::from(self.resend_next);
            let packet_id = self.packet_id(index);
            let entry = &mut self.in_flight[index];
            self.resend_next += 1;
            match (entry.awaits, &entry.message) {
                (Awaits::Nothing, _) => continue,
                (Awaits::Commit | Awaits::Load, _) => {
                    self.resend_next -= 1;
                    return false;
                }
                (Awaits::Puback, Some(message)) if !may_have(message) => {
                    self.unsent -= 1;
                    let origin = entry.origin();
                    self.complete(index);
                    dropped(Dropped::Denied, origin);
                    continue;
                }
                // The journal has to know first that it is released.
                (Awaits::Pubrec, Some(message)) if is_logged(entry) && !may_have(message) => {
                    entry.message = None;
                    dropped(Dropped::Denied, entry.origin());
                }
                // It is about to.
                (Awaits::Pubrec, None) => {}
                (Awaits::Pubrec, Some(message)) if !may_have(message) => {
                    // Its packet id may be known to the client, so it is done with as if the
                    // PUBREC had come: the next message under it is no repetition then.
                    (entry.awaits, entry.message) = (Awaits::Pubcomp, None);
                    link.write_ack(AckKind::Pubrel, packet_id, codec::Reason::SUCCESS);
                    dropped(Dropped::Denied, Origin::default());
                }
                (Awaits::Puback | Awaits::Pubrec, Some(message)) => {
                    // Too large for this link (MQTT-3.1.2-25): it counts as delivered.
                    if !link.write_publish(message, &entry.terms, (packet_id, true), now_ms) {
                        self.unsent -= 1;
                        let origin = entry.origin();
                        self.complete(index);
                        dropped(Dropped::TooLarge, origin);
                        continue;
                    }
                }
                _ => link.write_ack(AckKind::Pubrel, packet_id, codec::Reason::SUCCESS),
            }
            self.unsent -= 1;
        }
        self.unsent == 0
    }

    /// Puts a delivery at the end of the queue. The caller has checked the limits.
    pub fn enqueue(&mut self, delivery: Delivery, now_ms: u64) {
        if let Some(account) = &self.account {
            account.add(MemoryKind::Queued, delivery.bytes() + Delivery::ENTRY_BYTES);
        }
        self.waiting.get_or_insert_default().push(delivery, now_ms);
    }

    /// Charges another account for what is queued from now on.
    pub fn charge_to(&mut self, account: Arc<Account>) {
        let bytes = self.charged_bytes();
        account.add(MemoryKind::Queued, bytes);
        if let Some(before) = self.account.replace(account) {
            before.sub(MemoryKind::Queued, bytes);
        }
    }

    fn charged_bytes(&self) -> u64 {
        self.queued_bytes() + self.queued() as u64 * Delivery::ENTRY_BYTES
    }

    /// So many bytes have been refused.
    pub(crate) fn count_refusal(&self, bytes: u64) {
        if let Some(account) = &self.account {
            account.count_refusal(MemoryKind::Queued, bytes + Delivery::ENTRY_BYTES);
        }
    }

    /// Why would so many bytes more in the queue be too many for its owner, or its namespace?
    pub(crate) fn shared_limit_reached(&self, bytes: u64) -> Option<QueueLimit> {
        let account = self.account.as_ref()?;
        let lack = account.lack(MemoryKind::Queued, bytes + Delivery::ENTRY_BYTES)?;
        Some(match lack {
            Lack::Limit => QueueLimit::Namespace,
            Lack::Share => QueueLimit::Share,
            Lack::Memory => QueueLimit::Memory,
        })
    }

    /// Is the oldest waiting delivery one whose packet id has to be in the journal first?
    pub fn waits_for_journal(&self) -> bool {
        let oldest = self.waiting.as_ref().and_then(|waiting| waiting.front());
        oldest.is_some_and(|delivery| delivery.terms.serial == UNLOGGED)
    }

    /// Has something in the queue expired that still counts there?
    #[inline]
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.waiting.is_some() && self.next_expiry_ms() <= now_ms
    }

    /// When something in the queue has expired; [`NEVER`]: nothing does.
    pub fn next_expiry_ms(&self) -> u64 {
        self.waiting.as_ref().map_or(NEVER, |waiting| waiting.next_expiry_ms())
    }

    /// What has expired in the queue takes no room any more (MQTT-3.3.2-5). Returns how many they
    /// were, and how many of the queue were looked at.
    pub fn drop_expired(&mut self, now_ms: u64) -> (u32, usize) {
        let Some(waiting) = &mut self.waiting else { return (0, 0) };
        let (expired, looked_at) = waiting.expire(now_ms, drop);
        // The oldest is asked whether it has to wait for the journal.
        waiting.clear_front();
        self.uncharge(expired);
        (expired.messages, looked_at)
    }

    /// So much waits no more.
    fn uncharge(&self, gone: Amount) {
        if let Some(account) = &self.account {
            let entries = u64::from(gone.messages) * Delivery::ENTRY_BYTES;
            account.sub(MemoryKind::Queued, gone.bytes + entries);
        }
    }

    /// Takes the oldest waiting delivery.
    pub fn dequeue(&mut self) -> Option<Delivery> {
        let waiting = self.waiting.as_mut()?;
        let (delivery, _) = waiting.pop_front()?;
        waiting.clear_front();
        if waiting.is_empty() && waiting.capacity() > IDLE_CAPACITY_MAX {
            self.waiting = None;
        }
        self.uncharge(Amount::one(delivery.bytes()));
        Some(delivery)
    }

    /// Frees up to so many deliveries of a session that is over, in any state; returns how many.
    /// Fewer than asked for: that were all. Nothing else may be asked of it any more.
    pub fn discard(&mut self, count: usize) -> usize {
        let mut freed = count.min(self.in_flight.len());
        drop(self.in_flight.drain(..freed));
        let Some(waiting) = &mut self.waiting else { return freed };
        let mut gone = Amount::default();
        while freed < count
            && let Some((delivery, is_live)) = waiting.pop_front()
        {
            freed += 1;
            if is_live {
                gone.add(Amount::one(delivery.bytes()));
            }
        }
        self.uncharge(gone);
        freed
    }

    /// Takes out what belongs to shared subscriptions and may go to another member: everything
    /// queued, and QoS 1 in flight. A QoS 2 publish that was sent stays (MQTT-4.8.2-4).
    pub fn take_shared(&mut self) -> Vec<Delivery> {
        let mut taken = Vec::new();
        for (index, entry) in self.in_flight.iter_mut().enumerate() {
            if entry.terms.group == 0 || entry.awaits != Awaits::Puback {
                continue;
            }
            if let Some(message) = entry.message.take() {
                entry.awaits = Awaits::Nothing;
                self.live -= 1;
                self.unsent -= u16::from(index >= usize::from(self.resend_next));
                taken.push(Delivery { message, terms: entry.terms.clone() });
            }
        }
        self.drop_finished();
        let Some(waiting) = &mut self.waiting else { return taken };
        let mut gone = Amount::default();
        let is_shared = |delivery: &Delivery| delivery.terms.group != 0;
        waiting.take_if(is_shared, |delivery, is_live| {
            if is_live {
                gone.add(Amount::one(delivery.bytes()));
                taken.push(delivery);
            }
        });
        waiting.clear_front();
        self.uncharge(gone);
        taken
    }

    /// What is in flight under this packet id, if it may be answered by a PUBREC.
    pub fn origin_of_qos_2(&self, packet_id: u16) -> Option<Origin> {
        let entry = &self.in_flight[self.index(packet_id)?];
        matches!(entry.awaits, Awaits::Pubrec | Awaits::Pubcomp | Awaits::Load)
            .then_some(entry.origin())
    }

    /// The client has sent its PUBREC, and the broker's journal is about to have it: the PUBREL
    /// leaves then, and the publish never again (MQTT-4.4.0-1).
    pub fn await_release(&mut self, packet_id: u16) {
        let Some(index) = self.index(packet_id) else { return };
        let entry = &mut self.in_flight[index];
        if matches!(entry.awaits, Awaits::Pubrec | Awaits::Load) {
            (entry.awaits, entry.message) = (Awaits::Pubrec, None);
        }
    }

    /// What is in flight for shared subscriptions.
    pub fn shared_in_flight(&self) -> Vec<Origin> {
        let live = self.in_flight.iter().filter(|entry| entry.awaits != Awaits::Nothing);
        live.filter(|entry| entry.terms.group != 0).map(InFlight::origin).collect()
    }

    /// Gives back memory that only traffic needs, if there is none to hold.
    pub(crate) fn shrink(&mut self) {
        if self.in_flight.is_empty() {
            self.in_flight = VecDeque::new();
        }
        if self.queued() == 0 {
            self.waiting = None;
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.in_flight.capacity() * size_of::<InFlight>()
            + self.waiting.as_ref().map_or(0, |waiting| {
                size_of::<ExpiringQueue<Delivery>>()
                    + waiting.capacity() * size_of::<Delivery>()
                    + waiting.bytes() as usize
            })
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.sub(MemoryKind::Queued, self.charged_bytes());
        }
    }
}

/// Is this in the queue of a session in the journal?
const fn is_logged(entry: &InFlight) -> bool {
    entry.terms.serial != 0 && entry.terms.group == 0
}
