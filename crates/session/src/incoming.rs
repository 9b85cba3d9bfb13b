//! Publishes from the client: which QoS 2 packet ids are between PUBLISH and PUBREL.

/// Packet ids of QoS 2 publishes that were accepted and not yet released.
///
/// Bounded by the receive maximum (checked by the link) and by 65,535 ids.
#[derive(Debug, Default)]
pub struct Incoming {
    /// Sorted.
    unreleased: Vec<u16>,
}

impl Incoming {
    /// Has this publish been accepted already (MQTT-4.3.3-10)?
    pub fn contains(&self, packet_id: u16) -> bool {
        self.unreleased.binary_search(&packet_id).is_ok()
    }

    /// Remembers an accepted publish.
    pub fn insert(&mut self, packet_id: u16) {
        if let Err(place) = self.unreleased.binary_search(&packet_id) {
            self.unreleased.insert(place, packet_id);
        }
    }

    /// PUBREL: true if the id was known (MQTT-4.3.3-11).
    pub fn release(&mut self, packet_id: u16) -> bool {
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
