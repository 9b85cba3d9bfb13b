//! How a driver numbers its connections.
//!
//! What was asked for on a connection may be answered when it has gone: a disk has written it,
//! another shard has taken it. Such an answer names the connection that it is for, so a number is
//! never another connection's, however soon a client is back.

/// The number of no connection.
pub const NO_CONNECTION: u64 = u64::MAX;

/// Connections that a driver may have at a time. Policy: it takes no more.
pub const CONNECTIONS_MAX: usize = 1 << KEY_BITS;

/// Bits for the key. The others count to a million millions: ten thousand connections per second
/// for three years.
const KEY_BITS: u32 = 24;

/// The numbers that a driver has given. In each stands the key under which it finds the connection
/// in its table; keys are given again.
#[derive(Debug, Default)]
pub struct Numbers {
    given: u64,
}

impl Numbers {
    /// A number for the connection with this key. None: there are [`CONNECTIONS_MAX`] already.
    pub fn give(&mut self, key: usize) -> Option<u64> {
        if key >= CONNECTIONS_MAX {
            return None;
        }
        self.given += 1;
        Some(self.given << KEY_BITS | key as u64)
    }
}

/// The key of the connection with this number.
pub const fn key_of(connection: u64) -> usize {
    connection as usize & (CONNECTIONS_MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_once_however_often_its_key_is() {
        let mut numbers = Numbers::default();
        let given: Vec<u64> = [0, 7, 7, 0].map(|key| numbers.give(key).unwrap()).into();
        assert_eq!(given.iter().map(|number| key_of(*number)).collect::<Vec<_>>(), [0, 7, 7, 0]);
        let mut distinct = given.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), given.len());
    }

    #[test]
    fn a_driver_takes_no_more_connections_than_there_are_keys() {
        let mut numbers = Numbers::default();
        let last = numbers.give(CONNECTIONS_MAX - 1).unwrap();
        assert_eq!(key_of(last), CONNECTIONS_MAX - 1);
        assert_eq!(numbers.give(CONNECTIONS_MAX), None);
    }
}
