//! Permits of connections, and which connection is closed when another one needs its permit.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use crate::Limits;

/// A new connection always gets a permit: an answer takes a millisecond, so the oldest connection
/// most likely asks nothing, or reads no answer.
pub(crate) struct ConnectionPermits {
    limits: Limits,
    state: Mutex<PermitState>,
}

#[derive(Default)]
struct PermitState {
    last: u64,
    /// Oldest first.
    connections: Vec<Connection>,
}

struct Connection {
    number: u64,
    address: IpAddr,
    /// The head of its request is there.
    is_asking: Arc<AtomicBool>,
    abort: AbortHandle,
}

impl ConnectionPermits {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    pub(crate) fn spawn(
        self: &Arc<Self>,
        address: IpAddr,
        is_asking: Arc<AtomicBool>,
        serve: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut state = self.lock();
        if state.count(address) >= self.limits.connections_per_address_max {
            state.close_one_of(address);
        } else if state.connections.len() >= self.limits.connections_max {
            state.close_greediest();
        }
        state.last += 1;
        let number = state.last;
        let permits = self.clone();
        let task = tokio::spawn(async move {
            serve.await;
            permits.lock().connections.retain(|connection| connection.number != number);
        });
        state.connections.push(Connection {
            number,
            address,
            is_asking,
            abort: task.abort_handle(),
        });
    }

    /// One connection less.
    pub(crate) fn close_one(&self) {
        self.lock().close_greediest();
    }

    fn lock(&self) -> MutexGuard<'_, PermitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PermitState {
    fn count(&self, address: IpAddr) -> usize {
        self.connections.iter().filter(|connection| connection.address == address).count()
    }

    /// One of the address with the most connections; of several such, the one that has been here
    /// longest without asking.
    fn close_greediest(&mut self) {
        let greed = |connection: &&Connection| {
            (self.count(connection.address), !connection.is_asking.load(Ordering::Relaxed))
        };
        // Of equals the last counts.
        if let Some(greediest) = self.connections.iter().rev().max_by_key(greed) {
            self.close_one_of(greediest.address);
        }
    }

    /// The oldest of those that ask, or of those that do not ask yet, whichever are more: neither
    /// can take all permits from the other.
    fn close_one_of(&mut self, address: IpAddr) {
        let of = |is_asking: bool| {
            self.connections.iter().enumerate().filter(move |(_, connection)| {
                connection.address == address
                    && connection.is_asking.load(Ordering::Relaxed) == is_asking
            })
        };
        let is_asking = of(true).count() > of(false).count();
        let oldest = of(is_asking).next().map(|(index, _)| index);
        if let Some(index) = oldest {
            self.connections.remove(index).abort.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Permits(Arc<ConnectionPermits>);

    impl Permits {
        fn spawn(&self, last: u8, is_asking: bool) {
            let is_asking = Arc::new(AtomicBool::new(is_asking));
            self.0.spawn(address(last), is_asking, std::future::pending());
        }

        /// The numbers of those of an address, oldest first.
        fn of(&self, last: u8) -> Vec<u64> {
            let state = self.0.lock();
            let connections =
                state.connections.iter().filter(|connection| connection.address == address(last));
            connections.map(|connection| connection.number).collect()
        }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[tokio::test(flavor = "current_thread")]
    async fn places_are_limited_in_all_and_for_each_address() {
        let limits =
            Limits { connections_max: 12, connections_per_address_max: 4, ..Limits::default() };
        let permits = Permits(Arc::new(ConnectionPermits::new(limits)));
        for _ in 0..10 {
            permits.spawn(1, false);
        }
        assert_eq!(permits.of(1), [7, 8, 9, 10]);
        for last in 2..13 {
            permits.spawn(last, false);
        }
        assert_eq!(permits.of(1), [10], "the greediest has made room");
        assert!((2..13).all(|last| permits.of(last).len() == 1));
        permits.spawn(13, false);
        assert_eq!((permits.of(1), permits.of(2).len()), (vec![], 1), "of equals the oldest goes");
        assert_eq!(permits.0.lock().connections.len(), 12);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn neither_who_asks_nor_who_is_silent_takes_all_places() {
        let limits = Limits { connections_per_address_max: 4, ..Limits::default() };
        let permits = Permits(Arc::new(ConnectionPermits::new(limits)));
        for is_asking in [true, true, false, false, false, false] {
            permits.spawn(1, is_asking);
        }
        assert_eq!(permits.of(1), [1, 2, 5, 6], "the silent push out the silent");
        for _ in 0..4 {
            permits.spawn(1, true);
        }
        assert_eq!(permits.of(1), [6, 8, 9, 10], "and who asks those that ask, but for equals");
    }
}
