//! Publishes from the client: which QoS 2 packet ids are between PUBLISH and PUBREL.

/// Packet ids of QoS 2 publishes that were accepted and not yet released.
///
/// Bounded by the receive maximum (checked by the link) and by 65,535 ids.
#[derive(Debug, Default)]
pub struct Incoming {
    /// Sorted.
    unreleased: Vec<u16>,
    /// Of those, the ones for which some place has yet to answer. Usually empty.
    unconfirmed: Vec<u16>,
}

impl Incoming {
    /// Has this publish been accepted already (MQTT-4.3.3-10)? While an answer is missing it may
    /// yet be refused, so a repetition then counts as new.
    pub fn contains(&self, packet_id: u16) -> bool {
        self.unreleased.binary_search(&packet_id).is_ok() && !self.unconfirmed.contains(&packet_id)
    }

    /// Some places have yet to answer for this publish.
    pub fn await_answers(&mut self, packet_id: u16) {
        if !self.unconfirmed.contains(&packet_id) {
            self.unconfirmed.push(packet_id);
        }
    }

    /// All have accepted it.
    pub fn confirm(&mut self, packet_id: u16) {
        self.unconfirmed.retain(|other| *other != packet_id);
    }

    /// Remembers an accepted publish.
    pub fn insert(&mut self, packet_id: u16) {
        if let Err(place) = self.unreleased.binary_search(&packet_id) {
            self.unreleased.insert(place, packet_id);
        }
    }

    /// PUBREL: true if the id was known (MQTT-4.3.3-11).
    pub fn release(&mut self, packet_id: u16) -> bool {
        self.confirm(packet_id);
        match self.unreleased.binary_search(&packet_id) {
            Ok(place) => {
                self.unreleased.remove(place);
                if self.unreleased.is_empty() {
                    self.unreleased = Vec::new();
                }
                true
            }
            Err(_) => false,
        }
    }

    pub fn len(&self) -> usize {
        self.unreleased.len()
    }

    pub fn is_empty(&self) -> bool {
        self.unreleased.is_empty()
    }

    pub fn heap_bytes(&self) -> usize {
        self.unreleased.capacity() * 2
    }
}
