//! When a publisher has to wait, and for how long it is not read.

use codec::Publish;
use session::Link;

use crate::{SessionKey, Shard};

/// How long a publisher waits for a slow subscriber before it is read on.
pub(crate) const CONGESTION_PAUSE_MS: u32 = 2;

/// The longest such wait, while the queue of the subscriber is not on the way to its limit.
const CONGESTION_PAUSE_MS_MAX: u32 = 64;

/// How long publishers wait at first, and at most, for one whose queue is.
pub(crate) const OVERRUN_MS_MIN: u32 = 8;
pub(crate) const OVERRUN_MS_MAX: u32 = 512;

/// A publisher that sends so many messages, or bytes, in one go sends all it can: it waits for
/// subscribers that are behind.
const BURST_MESSAGES: u64 = 8;
const BURST_BYTES: usize = 16 * 1024;

/// How long a publisher waits for space on the disk before it is looked at again.
pub(crate) const FULL_PAUSE_MS: u64 = 100;

/// What was taken from a connection in one go.
pub(crate) struct Taken {
    pub(crate) packets: u64,
    pub(crate) publishes: u64,
    pub(crate) bytes: u64,
    pub(crate) is_burst: bool,
    /// As much as its allowance.
    pub(crate) is_used_up: bool,
}

impl Shard {
    /// Can this publish not be taken now, because the disk is behind, or because much mail lies
    /// before a shard that may want it? Then its publisher waits.
    pub(crate) fn has_to_come_later(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        now_ms: u64,
    ) -> bool {
        if let Some(pause_ms) = self.wait_for_disk_ms(slot, publish) {
            self.pause(slot, pause_ms, now_ms);
            return true;
        }
        match self.full_lane_of(publish) {
            Some(shard) => {
                self.wait_for_mail(slot, shard);
                true
            }
            None => false,
        }
    }

    /// Counts what was taken from a connection.
    pub(crate) fn note_taken(&mut self, slot: u32, connection: u32, taken: &Taken, now_ms: u64) {
        self.metrics().packets_received.add(taken.packets);
        self.metrics().bytes_received.add(taken.bytes);
        let Some(link) = self.link(slot, connection) else { return };
        if taken.is_burst {
            link.note_burst(now_ms);
        }
        if taken.is_used_up {
            link.widen_allowance();
        }
        if let Some(until) = link.charge(taken.publishes, taken.bytes, now_ms) {
            link.pause_until(until);
            self.effects.pauses.push((connection, until));
        }
    }

    /// A subscriber is behind: does this publisher wait for it? One that sends a message now and
    /// then is not what it cannot keep up with, and is not held up, unless the queue is about to be
    /// full.
    pub(crate) fn has_to_wait(&mut self, slot: u32, is_burst: bool, now_ms: u64) -> bool {
        let link = self.clients.get_mut(slot).and_then(|client| client.session.link_mut());
        let Some(link) = link else { return false };
        if !is_burst && !link.sends_bursts(now_ms) {
            return self.overrun_ms > 0;
        }
        // While it waits it cannot send as much as it would.
        link.note_burst(now_ms);
        true
    }

    /// A subscriber on another shard is slow. What a publisher sends in one go is many messages, so
    /// it waits longer if a short pause does not help.
    pub(crate) fn slow_publisher(&mut self, publisher: SessionKey, overrun_ms: u32, now_ms: u64) {
        let Some(slot) = self.clients.slot_of(publisher) else { return };
        self.overrun_ms = overrun_ms;
        if self.has_to_wait(slot, false, now_ms) {
            self.hold_up(slot, CONGESTION_PAUSE_MS_MAX, now_ms);
        }
    }

    /// Reads nothing from a publisher for a moment, up to `most_ms`: longer if that did not help,
    /// or if the queue of the subscriber is on the way to its limit. Then it is let go in small
    /// steps, too: a thousand publishers that each send a whole window would fill it at once.
    pub(crate) fn hold_up(&mut self, slot: u32, most_ms: u32, now_ms: u64) {
        let overrun_ms = std::mem::take(&mut self.overrun_ms);
        let link = self.clients.get_mut(slot).and_then(|client| client.session.link_mut());
        let Some(link) = link else { return };
        if overrun_ms >= OVERRUN_MS_MIN {
            link.narrow_allowance();
        }
        let pause_ms = if overrun_ms > 0 {
            link.next_pause_ms(overrun_ms, OVERRUN_MS_MAX, now_ms)
        } else {
            link.next_pause_ms(CONGESTION_PAUSE_MS, most_ms, now_ms)
        };
        self.pause(slot, pause_ms, now_ms);
    }

    /// How many bytes are taken from a publisher in one go. A large packet is more than any step:
    /// the short wait between two steps would only hide the long one that it leads to.
    pub(crate) fn allowance_bytes(&self, slot: u32) -> usize {
        let link = self.clients.get(slot).and_then(|client| client.session.link());
        let has_steps = self.may_pause && self.packet.is_none();
        link.filter(|_| has_steps).map_or(usize::MAX, Link::allowance_bytes)
    }

    /// Reads nothing from a publisher for a moment, because a subscriber or the disk is slow.
    pub(crate) fn pause(&mut self, slot: u32, pause_ms: u64, now_ms: u64) {
        if let Some(client) = self.clients.get(slot)
            && client.is_connected()
        {
            self.effects.pauses.push((client.connection, now_ms + pause_ms));
        }
    }
}

/// Does a publisher that sends so much in one go send all it can?
pub(crate) const fn is_burst(publishes: u64, bytes: &[u8]) -> bool {
    publishes >= BURST_MESSAGES || bytes.len() >= BURST_BYTES
}
