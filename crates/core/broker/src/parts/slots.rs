//! All clients of a shard: by place, by client id, and by queue number.

use std::sync::Arc;

use session::{Account, Link, Message};

use crate::parts::client::Client;
use crate::parts::router::Router;
use crate::parts::sessions::Sessions;
use crate::{Name, SessionKey};

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Makes room for sessions of the journal, so that the tables need not grow under them step by
    /// step.
    pub(crate) fn reserve(&mut self, count: usize) {
        let (clients, hasher) = (&self.clients, &self.hasher);
        self.by_id.reserve(count, |slot| name_at(clients, *slot).hash(hasher));
        self.clients.reserve(count);
        self.generations.reserve(count);
    }

    pub(crate) fn insert(&mut self, mut client: Client) -> u32 {
        let hash = client.name().hash(&self.hasher);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.clients.push(None);
            self.generations.push(0);
            self.clients.len() as u32 - 1
        });
        let generation = &mut self.generations[slot as usize];
        // Generation 0 is never used, so that no key is SessionKey::NOBODY.
        *generation += 1;
        client.key = SessionKey::new(self.shard, *generation, slot);
        self.clients[slot as usize] = Some(Box::new(client));
        let clients = &self.clients;
        let hasher = &self.hasher;
        self.by_id.insert_unique(hash, slot, |slot| name_at(clients, *slot).hash(hasher));
        slot
    }

    /// Takes a client out. Its slot is nobody's until [`Sessions::free`].
    pub(crate) fn take(&mut self, slot: u32) -> Option<Box<Client>> {
        let hash = self.id_hash(slot);
        if let Ok(entry) = self.by_id.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
        self.clients.get_mut(slot as usize)?.take()
    }

    /// From now on the slot may be another client's. One whose generations are used up is nobody's
    /// any more: a key is never given twice. That costs a place for 65,535 sessions.
    pub(crate) fn free(&mut self, slot: u32) {
        if self.generations.get(slot as usize).is_some_and(|generation| *generation < u16::MAX) {
            self.free.push(slot);
        }
    }

    pub(crate) fn find(&self, name: Name<'_>) -> Option<u32> {
        let hash = name.hash(&self.hasher);
        self.by_id.find(hash, |slot| name_at(&self.clients, *slot) == name).copied()
    }

    /// A hash of the client id, seeded.
    pub(crate) fn id_hash(&self, slot: u32) -> u64 {
        name_at(&self.clients, slot).hash(&self.hasher)
    }

    /// Does the log have it, from now on?
    pub(crate) fn set_kept(&mut self, slot: u32, is_kept: bool) {
        if let Some(client) = self.get_mut(slot) {
            client.is_kept = is_kept;
        }
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Client> {
        self.clients.get(slot as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Client> {
        self.clients.get_mut(slot as usize)?.as_deref_mut()
    }

    /// A client, and the index of all subscriptions.
    pub(crate) fn with_index(&mut self, slot: u32) -> Option<(&mut Client, &mut Router)> {
        let client = self.clients.get_mut(slot as usize)?.as_deref_mut()?;
        Some((client, &mut self.router))
    }

    pub(crate) fn key(&self, slot: u32) -> SessionKey {
        SessionKey::new(self.shard, self.generations[slot as usize], slot)
    }

    /// The place of a key of this shard, if its session still exists.
    pub(crate) fn slot_of(&self, key: SessionKey) -> Option<u32> {
        self.get(key.slot()).filter(|client| client.key == key).map(|_| key.slot())
    }

    /// The client of a key of this shard, if its session still exists.
    pub(crate) fn at(&mut self, key: SessionKey) -> Option<&mut Client> {
        self.get_mut(key.slot()).filter(|client| client.key == key)
    }

    /// A client, as long as it has this connection.
    pub(crate) fn connected(&mut self, slot: u32, connection: u64) -> Option<&mut Client> {
        self.get_mut(slot).filter(|client| client.connection == connection)
    }

    /// The account that is charged for a message of a client of this shard.
    pub(crate) fn owner_of(&self, message: &Message) -> Option<&Arc<Account>> {
        self.publisher_of(message)?.charged.account()
    }

    /// The client of this shard that has published the message, if its session still exists.
    pub(crate) fn publisher_of(&self, message: &Message) -> Option<&Client> {
        let publisher = SessionKey::from_u64(message.publisher());
        self.get(publisher.slot()).filter(|client| client.key == publisher)
    }

    /// All slots are below this number.
    pub(crate) fn slots_end(&self) -> u32 {
        self.clients.len() as u32
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        let taken: Vec<u32> = (0..self.clients.len() as u32)
            .filter(|slot| self.clients[*slot as usize].is_some())
            .collect();
        taken.into_iter()
    }
}

/// An empty one, which is no client's, if the place is free.
fn name_at(clients: &[Option<Box<Client>>], slot: u32) -> Name<'_> {
    let client = clients.get(slot as usize).and_then(Option::as_ref);
    client.map_or(Name::first(""), |client| client.name())
}

impl Sessions {
    pub(crate) fn link(&mut self, slot: u32, connection: u64) -> Option<&mut Link> {
        self.connected(slot, connection)?.session.link_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::rules::Rules;
    use crate::{Homes, Scope, Settings, Shared};

    fn sessions() -> Sessions {
        let shared = Shared::new(Settings::default(), Homes::of_one_cell(1), 0);
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
    fn a_session_without_a_connection_takes_little() {
        assert!(size_of::<Client>() <= 280, "{}", size_of::<Client>());
    }

    #[test]
    fn no_two_sessions_have_the_same_key() {
        let mut clients = sessions();
        let mut last = SessionKey::NOBODY;
        for _ in 0..=u32::from(u16::MAX) + 1 {
            let slot = clients.insert(Client::new(Name::first("one"), Default::default()));
            let key = clients.key(slot);
            // Keys grow: by slots, then by generations.
            assert!((key.slot(), key.as_u64()) > (last.slot(), last.as_u64()));
            assert_eq!((clients.slot_of(key), clients.slot_of(last)), (Some(slot), None));
            clients.take(slot);
            clients.free(slot);
            last = key;
        }
        assert_eq!((last.slot(), clients.len()), (1, 0));
    }
}
