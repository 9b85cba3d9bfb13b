//! All clients of a shard: by place, by client id, and by queue number.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use session::{Account, Message};

use crate::clients::client::Client;
use crate::clients::{Place, Sessions};
use crate::durable::KeptSession;
use crate::journal::QueueNumber;
use crate::sure::Sure;
use crate::{Name, SessionKey};

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Makes room for sessions of the log, so that the tables need not grow under them step by
    /// step.
    pub(crate) fn reserve(&mut self, count: usize) {
        let (places, hasher) = (&self.places, &self.hasher);
        self.by_id.reserve(count, |slot| name_at(places, *slot).hash(hasher));
        self.by_queue.reserve(count, |slot| queue_hash(hasher, places, *slot));
        self.places.reserve(count);
    }

    pub(crate) fn insert(&mut self, mut client: Client) -> u32 {
        let hash = client.name().hash(&self.hasher);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[slot as usize];
        // Generation 0 is never handed out, so that no key is SessionKey::NOBODY.
        place.generation += 1;
        client.key = SessionKey::new(self.shard, place.generation, slot);
        place.client = Some(Box::new(client));
        let places = &self.places;
        let hasher = &self.hasher;
        self.by_id.insert_unique(hash, slot, |slot| name_at(places, *slot).hash(hasher));
        slot
    }

    /// Takes a client out. Its slot is nobody's until [`Sessions::free`].
    pub(super) fn take(&mut self, slot: u32) -> Option<Box<Client>> {
        self.take_durable(slot);
        let hash = self.id_hash(slot);
        if let Ok(entry) = self.by_id.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
        self.places.get_mut(slot as usize)?.client.take()
    }

    /// From now on the slot may be another client's. One whose generations are used up is nobody's
    /// any more: a key is never given twice. That costs a place for 65,535 sessions.
    pub(super) fn free(&mut self, slot: u32) {
        if self.places.get(slot as usize).is_some_and(|place| place.generation < u16::MAX) {
            self.free.push(slot);
        }
    }

    pub(crate) fn find(&self, name: Name<'_>) -> Option<u32> {
        let hash = name.hash(&self.hasher);
        self.by_id.find(hash, |slot| name_at(&self.places, *slot) == name).copied()
    }

    /// A hash of the client id, seeded.
    pub(crate) fn id_hash(&self, slot: u32) -> u64 {
        name_at(&self.places, slot).hash(&self.hasher)
    }

    /// From now on the session is in the log.
    pub(crate) fn set_durable(&mut self, slot: u32, durable: KeptSession) {
        self.take_durable(slot);
        let queue = durable.queue;
        let Some(client) = self.get_mut(slot).sure() else { return };
        client.durable = Some(Box::new(durable));
        let (places, hasher) = (&self.places, &self.hasher);
        let hash = |slot: &u32| queue_hash(hasher, places, *slot);
        self.by_queue.insert_unique(hasher.hash_one(queue), slot, hash);
    }

    /// From now on the session is no more in the log. Returns what it had there.
    pub(crate) fn take_durable(&mut self, slot: u32) -> Option<Box<KeptSession>> {
        let durable = self.get_mut(slot)?.durable.take()?;
        let hash = self.hasher.hash_one(durable.queue);
        if let Ok(entry) = self.by_queue.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
        Some(durable)
    }

    /// The session with this queue number.
    pub(crate) fn find_queue(&self, queue: QueueNumber) -> Option<u32> {
        let hash = self.hasher.hash_one(queue);
        self.by_queue.find(hash, |slot| queue_at(&self.places, *slot) == Some(queue)).copied()
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Client> {
        self.places.get(slot as usize)?.client.as_deref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Client> {
        self.places.get_mut(slot as usize)?.client.as_deref_mut()
    }

    pub(crate) fn key(&self, slot: u32) -> SessionKey {
        SessionKey::new(self.shard, self.places[slot as usize].generation, slot)
    }

    /// The place of a key of this shard, if its session still exists.
    pub(crate) fn slot_of(&self, key: SessionKey) -> Option<u32> {
        let place = self.places.get(key.slot() as usize)?;
        let is_same = key.shard() == self.shard && place.generation == key.generation();
        (is_same && place.client.is_some()).then(|| key.slot())
    }

    /// The client of a key of this shard, if its session still exists.
    pub(crate) fn at(&mut self, key: SessionKey) -> Option<&mut Client> {
        let slot = self.slot_of(key)?;
        self.get_mut(slot)
    }

    /// A client, as long as it has this connection.
    pub(crate) fn connected(&mut self, slot: u32, connection: u64) -> Option<&mut Client> {
        self.get_mut(slot).filter(|client| client.connection == connection)
    }

    /// Who pays for a message of a client of this shard.
    pub(crate) fn payer_of(&self, message: &Message) -> Option<&Arc<Account>> {
        let publisher = self.slot_of(SessionKey::from_u64(message.publisher()))?;
        self.get(publisher)?.charged.account()
    }

    /// All slots are below this number.
    pub(crate) fn slots_end(&self) -> u32 {
        self.places.len() as u32
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        let taken: Vec<u32> = (0..self.places.len() as u32)
            .filter(|slot| self.places[*slot as usize].client.is_some())
            .collect();
        taken.into_iter()
    }
}

/// 0 if it has none.
fn queue_hash(hasher: &FixedState, places: &[Place], slot: u32) -> u64 {
    queue_at(places, slot).map_or(0, |queue| hasher.hash_one(queue))
}

fn queue_at(places: &[Place], slot: u32) -> Option<QueueNumber> {
    let client = places.get(slot as usize)?.client.as_ref()?;
    Some(client.durable.as_ref()?.queue)
}

/// An empty one, which is no client's, if the place is free.
fn name_at(places: &[Place], slot: u32) -> Name<'_> {
    let client = places.get(slot as usize).and_then(|place| place.client.as_ref());
    client.map_or(Name::first(""), |client| client.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::rules::Rules;
    use crate::{Scope, Settings, Shared};

    fn sessions() -> Sessions {
        let shared = Shared::new(Settings::default(), 1, 0);
        Sessions::new(0, &shared, Rules::from(policy::Access::default()), 0)
    }

    #[test]
    fn a_client_id_of_another_scope_is_another_client() {
        let mut clients = sessions();
        let slot = clients.insert(Client::new(Name::first("one"), Default::default()));
        assert_eq!(clients.find(Name::first("one")), Some(slot));
        assert_eq!(clients.find(Name::new(Scope::SECOND, "one")), None);
    }

    #[test]
    fn no_two_sessions_have_the_same_key() {
        let mut clients = sessions();
        let mut last = SessionKey::NOBODY;
        for _ in 0..=u32::from(u16::MAX) + 1 {
            let slot = clients.insert(Client::new(Name::first("one"), Default::default()));
            let key = clients.key(slot);
            // Keys grow: by generations, then by places.
            assert!((key.slot(), key.generation()) > (last.slot(), last.generation()));
            assert_eq!((clients.slot_of(key), clients.slot_of(last)), (Some(slot), None));
            clients.take(slot);
            clients.free(slot);
            last = key;
        }
        assert_eq!((last.slot(), clients.len()), (1, 0));
    }
}
