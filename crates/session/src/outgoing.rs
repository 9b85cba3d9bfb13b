//! Publishes to the client: the window of unacknowledged ones, and the queue behind it.

use std::collections::VecDeque;

use codec::{AckKind, QoS};

use crate::{Dropped, Link, Message};

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

/// One message on its way to one session.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub message: Message,
    pub identifiers: Identifiers,
    /// The shared subscription that chose this session, as an opaque key. 0: none.
    pub group: u64,
    /// The smaller of the publisher's and the granted QoS (MQTT-3.8.4-8).
    pub qos: QoS,
    /// The RETAIN flag to send.
    pub retain: bool,
}

impl Delivery {
    fn bytes(&self) -> u64 {
        self.message.heap_bytes() as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Puback,
    Pubrec,
    Pubcomp,
    /// Acknowledged, but an older one is not: the slot keeps the ids contiguous.
    Nothing,
}

#[derive(Debug)]
struct InFlight {
    /// None once it is not needed any more for a resend.
    delivery: Option<Delivery>,
    awaits: Awaits,
}

/// What an acknowledgement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acked {
    /// The delivery is complete; the group that chose the session, or 0.
    Complete(u64),
    /// Go on with PUBREL.
    Release,
    /// No such packet id is in flight.
    Unknown,
    /// The id is in flight, but awaits another kind of packet.
    Mismatch,
}

/// Deliveries of QoS 1 and 2: first those in flight, then those that wait for a place.
///
/// Packet ids are handed out in a ring and the in-flight deliveries lie in the order of their
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
    resend_next: usize,
    queue: VecDeque<Delivery>,
    queue_bytes: u64,
}

/// Packet ids run from 1 to this (MQTT-2.2.1-3).
const PACKET_IDS: u32 = u16::MAX as u32;

/// Above this capacity the window's memory is given back when it empties.
const IDLE_CAPACITY_MAX: usize = 64;

impl Outgoing {
    pub const fn in_flight(&self) -> u16 {
        self.live
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub const fn queued_bytes(&self) -> u64 {
        self.queue_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0 && self.queue.is_empty()
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
        self.unsent == 0 && self.queue.is_empty() && self.room(send_max) > 0
    }

    /// The packet id of the delivery that [`Outgoing::start`] will put in flight next.
    pub fn next_packet_id(&self) -> u16 {
        self.packet_id(self.in_flight.len())
    }

    /// Puts a delivery in flight that was written with [`Outgoing::next_packet_id`].
    pub fn start(&mut self, delivery: Delivery) {
        let awaits = if delivery.qos == QoS::ExactlyOnce { Awaits::Pubrec } else { Awaits::Puback };
        self.in_flight.push_back(InFlight { delivery: Some(delivery), awaits });
        self.live += 1;
        self.resend_next = self.in_flight.len();
    }

    /// Passes over the next packet id, for a delivery that is given up when its turn has come: so
    /// the ids a client sees tell of the gap, as with other brokers.
    pub fn skip_packet_id(&mut self) {
        self.in_flight.push_back(InFlight { delivery: None, awaits: Awaits::Nothing });
        self.resend_next = self.in_flight.len();
        self.drop_finished();
    }

    fn packet_id(&self, index: usize) -> u16 {
        ((u32::from(self.base) + index as u32) % PACKET_IDS) as u16 + 1
    }

    fn index(&self, packet_id: u16) -> Option<usize> {
        let zero_based = u32::from(packet_id.checked_sub(1)?);
        let index = (zero_based + PACKET_IDS - u32::from(self.base)) % PACKET_IDS;
        Some(index as usize).filter(|index| *index < self.in_flight.len())
    }

    /// An acknowledgement from the client; `failed` is a PUBREC with an error reason.
    pub fn on_ack(&mut self, kind: AckKind, packet_id: u16, failed: bool) -> Acked {
        let Some(index) = self.index(packet_id) else { return Acked::Unknown };
        let entry = &mut self.in_flight[index];
        match (kind, entry.awaits) {
            (_, Awaits::Nothing) => Acked::Unknown,
            (AckKind::Puback, Awaits::Puback) | (AckKind::Pubcomp, Awaits::Pubcomp) => {
                self.complete(index)
            }
            (AckKind::Pubrec, Awaits::Pubrec) if failed => self.complete(index),
            (AckKind::Pubrec, Awaits::Pubrec) => {
                entry.awaits = Awaits::Pubcomp;
                // The payload is not needed again; the group keeps its claim until PUBCOMP.
                entry.delivery = None;
                Acked::Release
            }
            (AckKind::Pubrec, Awaits::Pubcomp) => Acked::Release,
            _ => Acked::Mismatch,
        }
    }

    fn complete(&mut self, index: usize) -> Acked {
        let entry = &mut self.in_flight[index];
        let group = entry.delivery.take().map_or(0, |delivery| delivery.group);
        entry.awaits = Awaits::Nothing;
        self.live -= 1;
        if index >= self.resend_next {
            self.unsent = self.unsent.saturating_sub(1);
        }
        self.drop_finished();
        Acked::Complete(group)
    }

    fn drop_finished(&mut self) {
        while self.in_flight.front().is_some_and(|entry| entry.awaits == Awaits::Nothing) {
            self.in_flight.pop_front();
            self.base = ((u32::from(self.base) + 1) % PACKET_IDS) as u16;
            self.resend_next = self.resend_next.saturating_sub(1);
        }
        if self.in_flight.is_empty() && self.in_flight.capacity() > IDLE_CAPACITY_MAX {
            self.in_flight = VecDeque::new();
        }
    }

    /// A new connection: everything in flight has to be sent again, in order (MQTT-4.4.0-1).
    pub fn resume(&mut self) {
        self.unsent = self.live;
        self.resend_next = 0;
    }

    /// Is there something in flight that the present link has not seen?
    pub const fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// Sends again what the present link has not seen, as far as the window goes. True if all is.
    /// `dropped` hears of each delivery that is given up on the way.
    pub fn resend(
        &mut self,
        link: &mut Link,
        now_ms: u64,
        mut dropped: impl FnMut(Dropped),
    ) -> bool {
        while self.unsent > 0 && link.has_room() {
            if self.live - self.unsent >= link.settings().send_max {
                return false;
            }
            let packet_id = self.packet_id(self.resend_next);
            let entry = &mut self.in_flight[self.resend_next];
            self.resend_next += 1;
            match (entry.awaits, &entry.delivery) {
                (Awaits::Nothing, _) => continue,
                (Awaits::Puback | Awaits::Pubrec, Some(delivery)) => {
                    // Too large for this link (MQTT-3.1.2-25): it counts as delivered.
                    if !link.write_publish(delivery, packet_id, true, now_ms) {
                        let index = self.resend_next - 1;
                        self.unsent -= 1;
                        self.complete(index);
                        dropped(Dropped::TooLarge);
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
    pub fn enqueue(&mut self, delivery: Delivery) {
        self.queue_bytes += delivery.bytes();
        self.queue.push_back(delivery);
    }

    /// Takes the oldest waiting delivery.
    pub fn dequeue(&mut self) -> Option<Delivery> {
        let delivery = self.queue.pop_front()?;
        self.queue_bytes -= delivery.bytes();
        if self.queue.is_empty() && self.queue.capacity() > IDLE_CAPACITY_MAX {
            self.queue = VecDeque::new();
        }
        Some(delivery)
    }

    /// Takes out what belongs to shared subscriptions and may go to another member: everything
    /// queued, and QoS 1 in flight. A QoS 2 publish that was sent stays (MQTT-4.8.2-4).
    pub fn take_shared(&mut self) -> Vec<Delivery> {
        let mut taken = Vec::new();
        for (index, entry) in self.in_flight.iter_mut().enumerate() {
            let shared = entry.delivery.as_ref().is_some_and(|delivery| delivery.group != 0);
            if shared && entry.awaits == Awaits::Puback {
                entry.awaits = Awaits::Nothing;
                self.live -= 1;
                self.unsent -= u16::from(index >= self.resend_next);
                taken.extend(entry.delivery.take());
            }
        }
        self.drop_finished();
        let queue = std::mem::take(&mut self.queue);
        for delivery in queue {
            if delivery.group == 0 {
                self.queue.push_back(delivery);
            } else {
                self.queue_bytes -= delivery.bytes();
                taken.push(delivery);
            }
        }
        taken
    }

    /// Gives back memory that only traffic needs, if there is none to hold.
    pub(crate) fn shrink(&mut self) {
        if self.in_flight.is_empty() {
            self.in_flight = VecDeque::new();
        }
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.in_flight.capacity() * size_of::<InFlight>()
            + self.queue.capacity() * size_of::<Delivery>()
            + self.queue_bytes as usize
    }
}
