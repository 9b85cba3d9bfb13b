//! The clients of a shard that lose messages: who, how many, and why.
//!
//! A row is written when a client's drops are reported, at most once a second, so a dropped message
//! costs nothing here, and a connection no byte. Drops of QoS 0 for a client that is away are
//! normal, and are not among them.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use session::Dropped;

use crate::Scope;
use crate::words::command::DropsView;

/// Clients that are remembered. Another one takes the row of the client with the fewest drops. A
/// row has 144 bytes and the client ID: with IDs of 256 bytes, the default of
/// `limits.client_id_bytes_max`, all of them have 25 KiB a shard.
const DROPPERS_MAX: usize = 64;

/// A client without a drop for so long is forgotten.
const FORGOTTEN_MS: u64 = 3_600_000;

#[derive(Debug, Default)]
pub(crate) struct Droppers {
    rows: Vec<Dropper>,
}

#[derive(Debug)]
struct Dropper {
    /// Of the client ID: many have the same length and begin.
    hash: u64,
    scope: Scope,
    client_id: Box<str>,
    total: u64,
    /// By reason, in the order of [`Dropped::ALL`].
    messages: [u64; Dropped::ALL.len()],
    first_ms: u64,
    last_ms: u64,
}

impl Droppers {
    pub(crate) fn count(
        &mut self,
        (scope, client_id): (Scope, &str),
        reason: Dropped,
        count: u64,
        now_ms: u64,
    ) {
        let hash = FixedState::default().hash_one(client_id);
        let known =
            |row: &Dropper| row.hash == hash && row.scope == scope && *row.client_id == *client_id;
        let place = match self.rows.iter().position(known) {
            Some(place) => place,
            None => {
                let row = Dropper {
                    hash,
                    scope,
                    client_id: client_id.into(),
                    total: 0,
                    messages: [0; Dropped::ALL.len()],
                    first_ms: now_ms,
                    last_ms: now_ms,
                };
                self.insert(row, now_ms)
            }
        };
        let row = &mut self.rows[place];
        row.last_ms = now_ms;
        row.messages[reason.place()] += count;
        row.total += count;
    }

    fn insert(&mut self, row: Dropper, now_ms: u64) -> usize {
        if self.rows.len() >= DROPPERS_MAX {
            self.rows.retain(|row| row.is_remembered(now_ms));
        }
        let fewest = self.rows.iter().enumerate().min_by_key(|(_, row)| row.total);
        match fewest.filter(|_| self.rows.len() >= DROPPERS_MAX) {
            Some((place, _)) => {
                self.rows[place] = row;
                place
            }
            None => {
                self.rows.push(row);
                self.rows.len() - 1
            }
        }
    }

    /// Those of one scope, or of all.
    pub(crate) fn look(&self, within: Option<Scope>, now_ms: u64) -> Vec<DropsView> {
        let wanted = self.rows.iter().filter(|row| row.is_remembered(now_ms));
        let wanted = wanted.filter(|row| within.is_none_or(|scope| row.scope == scope));
        let view = |row: &Dropper| DropsView {
            scope: row.scope,
            client_id: row.client_id.clone(),
            messages: Dropped::ALL.into_iter().zip(row.messages).collect(),
            first_ms: row.first_ms,
            last_ms: row.last_ms,
        };
        wanted.map(view).collect()
    }

    /// What one client has lost.
    pub(crate) fn of(&self, (scope, client_id): (Scope, &str), now_ms: u64) -> Vec<(Dropped, u64)> {
        let is_it = |row: &&Dropper| row.scope == scope && *row.client_id == *client_id;
        let row = self.rows.iter().find(is_it).filter(|row| row.is_remembered(now_ms));
        row.map_or_else(Vec::new, |row| Dropped::ALL.into_iter().zip(row.messages).collect())
    }

    /// A namespace is emptied.
    pub(crate) fn forget(&mut self, scope: Scope) {
        self.rows.retain(|row| row.scope != scope);
    }
}

impl Dropper {
    const fn is_remembered(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.last_ms) < FORGOTTEN_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Scope = Scope::FIRST;
    const FULL: Dropped = Dropped::QueueFull(session::QueueLimit::Share);

    fn totals(droppers: &Droppers, now_ms: u64) -> Vec<(String, u64)> {
        let rows = droppers.look(None, now_ms).into_iter();
        let total = |row: &DropsView| row.messages.iter().map(|(_, count)| count).sum();
        rows.map(|row| (row.client_id.to_string(), total(&row))).collect()
    }

    #[test]
    fn a_client_of_many_drops_keeps_its_row_while_others_come_and_go() {
        let mut droppers = Droppers::default();
        droppers.count((FIRST, "heavy"), Dropped::SlowSubscriber, 10, 0);
        for number in 0..10 * DROPPERS_MAX as u64 {
            let name = format!("c{number}");
            droppers.count((FIRST, &name), Dropped::Expired, 1, number);
            droppers.count((FIRST, "heavy"), FULL, 1, number);
        }
        let rows = droppers.look(None, 1000);
        assert_eq!(rows.len(), DROPPERS_MAX);
        let heavy = rows.iter().find(|row| &*row.client_id == "heavy").unwrap();
        let of = |reason| heavy.messages.iter().find(|(it, _)| *it == reason).unwrap().1;
        assert_eq!((of(Dropped::SlowSubscriber), of(FULL)), (10, 640));
        assert_eq!((of(Dropped::Expired), heavy.first_ms, heavy.last_ms), (0, 0, 639));
        let newest = format!("c{}", 10 * DROPPERS_MAX - 1);
        assert!(rows.iter().any(|row| *row.client_id == *newest), "a new one always gets a row");
    }

    #[test]
    fn a_client_is_forgotten_after_an_hour_or_with_its_namespace() {
        let (mut droppers, other) = (Droppers::default(), Scope::new(3));
        droppers.count((FIRST, "a"), Dropped::Denied, 5, 0);
        droppers.count((other, "a"), Dropped::Denied, 2, 10);
        assert_eq!(totals(&droppers, 20), [("a".into(), 5), ("a".into(), 2)]);
        assert_eq!(droppers.look(Some(other), 20).len(), 1);
        assert_eq!(totals(&droppers, FORGOTTEN_MS + 9), [("a".into(), 2)]);
        droppers.forget(other);
        assert_eq!(totals(&droppers, 20), [("a".into(), 5)]);
        // Old rows make way before any other.
        for number in 0..DROPPERS_MAX {
            let name = format!("c{number}");
            droppers.count((FIRST, &name), Dropped::Denied, 1, FORGOTTEN_MS);
        }
        assert_eq!(droppers.look(None, FORGOTTEN_MS).len(), DROPPERS_MAX);
    }
}
