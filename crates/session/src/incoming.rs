//! Publishes from the client: which QoS 2 packet ids are between PUBLISH and PUBREL.

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
    /// A retained publish was sent again, and taken again, that may be older than these.
    is_behind: bool,
}

impl Incoming {
    /// Has this publish been accepted already (MQTT-4.3.3-10)? While an answer is missing it may
    /// yet be refused, so a repetition then counts as new.
    pub fn contains(&self, packet_id: u16) -> bool {
        self.ids.as_ref().is_some_and(|ids| {
            ids.unreleased.binary_search(&packet_id).is_ok()
                && !ids.unconfirmed.contains(&packet_id)
        })
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
            size_of::<PacketIds>() + (ids.unreleased.capacity() + ids.unconfirmed.capacity()) * 2
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
