//! Publishes from the client: which QoS 2 packet ids are between PUBLISH and PUBREL.

use crate::{Awaited, Link, Respondent};

/// Packet ids of QoS 2 publishes that were accepted and not yet released.
///
/// Bounded by the receive maximum (checked by the link) and by 65,535 ids.
#[derive(Debug, Default)]
pub struct Incoming {
    /// Absent in a session that publishes nothing of QoS 2, as most do.
    ids: Option<Box<PacketIds>>,
}

#[derive(Debug, Default)]
struct PacketIds {
    /// Sorted.
    unreleased: Vec<u16>,
    /// Of those, the ones for which some place has yet to answer. Usually empty.
    unconfirmed: Vec<u16>,
    /// Of those, the ones whose connection has ended. At most one for each packet id.
    orphans: Vec<Orphan>,
    /// A retained publish was sent again, and taken again, that may be older than these.
    is_behind: bool,
}

/// A publish whose connection has ended before all places have answered for it.
#[derive(Debug)]
struct Orphan {
    packet_id: u16,
    /// By which its answers name it: connection and number of the acknowledgement.
    awaited_as: (u64, u32),
    /// Places that have yet to answer.
    awaited: Awaited,
    /// The acknowledgement of the present connection that waits for the same, because the publish
    /// came again.
    heir: Option<u32>,
}

impl Incoming {
    /// Has this publish been accepted already (MQTT-4.3.3-10)? While an answer is missing it may
    /// yet be refused, so a repetition on the same connection then counts as new. On the next one
    /// it shares the fate of the first.
    pub fn contains(&self, packet_id: u16) -> bool {
        self.ids.as_ref().is_some_and(|ids| {
            let is_orphan = || ids.orphans.iter().any(|orphan| orphan.packet_id == packet_id);
            ids.unreleased.binary_search(&packet_id).is_ok()
                && (!ids.unconfirmed.contains(&packet_id) || is_orphan())
        })
    }

    /// A connection has ended: what it waited for still comes, and is to be known.
    pub fn note_orphans(&mut self, connection: u64, link: &Link) {
        let Some(ids) = &mut self.ids else { return };
        ids.orphans.iter_mut().for_each(|orphan| orphan.heir = None);
        for (number, ack) in link.unanswered() {
            let (packet_id, awaited) = (ack.answer.packet_id, &ack.awaited);
            let is_known = ids.orphans.iter().any(|orphan| orphan.packet_id == packet_id);
            if ids.unconfirmed.contains(&packet_id) && !is_known {
                let (awaited_as, awaited) = ((connection, number), awaited.clone());
                ids.orphans.push(Orphan { packet_id, awaited_as, awaited, heir: None });
            }
        }
    }

    /// Publishes of ended connections for which some place has yet to answer.
    pub fn orphans_len(&self) -> usize {
        self.ids.as_ref().map_or(0, |ids| ids.orphans.len())
    }

    /// A publish comes again whose first connection has ended. True: the acknowledgement `heir`
    /// has to wait for the answers to the first.
    pub fn inherit(&mut self, packet_id: u16, heir: u32) -> bool {
        let mut orphans = self.ids.iter_mut().flat_map(|ids| &mut ids.orphans);
        let orphan = orphans.find(|orphan| orphan.packet_id == packet_id);
        orphan.map(|orphan| orphan.heir = Some(heir)).is_some()
    }

    /// A publish whose connection has ended waits for these, too.
    pub fn await_more(&mut self, awaited_as: (u64, u32), others: &Awaited) {
        let mut orphans = self.ids.iter_mut().flat_map(|ids| &mut ids.orphans);
        if let Some(orphan) = orphans.find(|orphan| orphan.awaited_as == awaited_as) {
            orphan.awaited.extend(others);
        }
    }

    /// A place has answered for a publish whose connection has ended. Some: the acknowledgement
    /// of the present connection that this settles.
    pub fn settle_orphan(
        &mut self,
        awaited_as: (u64, u32),
        respondent: Respondent,
        is_refused: bool,
    ) -> Option<u32> {
        let ids = self.ids.as_mut()?;
        let index = ids.orphans.iter().position(|orphan| orphan.awaited_as == awaited_as)?;
        let orphan = &mut ids.orphans[index];
        if !orphan.awaited.remove(respondent) || !orphan.awaited.is_empty() && !is_refused {
            return None;
        }
        let Orphan { packet_id, heir, .. } = ids.orphans.swap_remove(index);
        match is_refused {
            // When it comes once more it is no repetition (MQTT-4.3.3-9).
            true => drop(self.release(packet_id)),
            false => self.confirm(packet_id),
        }
        heir
    }

    /// Some places have yet to answer for this publish.
    pub fn await_answers(&mut self, packet_id: u16) {
        let ids = self.ids.get_or_insert_default();
        if !ids.unconfirmed.contains(&packet_id) {
            ids.unconfirmed.push(packet_id);
        }
    }

    /// A retained publish was sent again, and has replaced what is retained: it may be older than a
    /// publish that is not released.
    pub fn note_sent_again(&mut self) {
        if let Some(ids) = &mut self.ids {
            ids.is_behind = !ids.unreleased.is_empty();
        }
    }

    /// May something older have been retained since these publishes?
    pub fn is_behind(&self) -> bool {
        self.ids.as_ref().is_some_and(|ids| ids.is_behind)
    }

    /// All have accepted it.
    pub fn confirm(&mut self, packet_id: u16) {
        if let Some(ids) = &mut self.ids {
            ids.unconfirmed.retain(|other| *other != packet_id);
        }
    }

    /// Remembers an accepted publish.
    pub fn insert(&mut self, packet_id: u16) {
        let ids = self.ids.get_or_insert_default();
        if let Err(place) = ids.unreleased.binary_search(&packet_id) {
            ids.unreleased.insert(place, packet_id);
        }
    }

    /// PUBREL: true if the id was known (MQTT-4.3.3-11).
    pub fn release(&mut self, packet_id: u16) -> bool {
        self.confirm(packet_id);
        let Some(ids) = &mut self.ids else { return false };
        ids.orphans.retain(|orphan| orphan.packet_id != packet_id);
        let Ok(place) = ids.unreleased.binary_search(&packet_id) else { return false };
        ids.unreleased.remove(place);
        ids.is_behind &= !ids.unreleased.is_empty();
        if ids.unreleased.capacity() > IDLE_CAPACITY_MAX {
            self.shrink();
        }
        true
    }

    pub fn len(&self) -> usize {
        self.ids.as_ref().map_or(0, |ids| ids.unreleased.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives back memory that only traffic needs, if there is none to hold.
    pub(crate) fn shrink(&mut self) {
        if self.ids.as_ref().is_some_and(|ids| ids.is_empty()) {
            self.ids = None;
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.ids.as_ref().map_or(0, |ids| {
            size_of::<PacketIds>()
                + (ids.unreleased.capacity() + ids.unconfirmed.capacity()) * 2
                + ids.orphans.capacity() * size_of::<Orphan>()
        })
    }
}

impl PacketIds {
    fn is_empty(&self) -> bool {
        self.unreleased.is_empty() && self.unconfirmed.is_empty()
    }
}

/// Above this capacity the memory is given back when the last id is released.
const IDLE_CAPACITY_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_ids_there_is_no_memory() {
        let mut incoming = Incoming::default();
        assert!(!incoming.contains(1) && !incoming.release(1) && incoming.heap_bytes() == 0);
        for packet_id in 1..=1000 {
            incoming.insert(packet_id);
        }
        for packet_id in 1..=1000 {
            assert!(incoming.release(packet_id));
        }
        assert_eq!((incoming.len(), incoming.heap_bytes()), (0, 0));
        incoming.insert(7);
        incoming.await_answers(7);
        assert!(!incoming.contains(7));
        incoming.shrink();
        incoming.confirm(7);
        assert!(incoming.contains(7) && incoming.release(7));
        incoming.shrink();
        assert_eq!(incoming.heap_bytes(), 0);
    }
}
