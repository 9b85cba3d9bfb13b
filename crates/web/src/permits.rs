//! The places that connections take, and who has to go when another comes.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use crate::Limits;

/// A newcomer always gets a place: an answer takes a millisecond, so who has been here longest is
/// most likely one who asks nothing, or takes no answer.
pub(crate) struct ConnectionPermits {
    limits: Limits,
    taken: Mutex<PermitState>,
}

#[derive(Default)]
struct PermitState {
    last: u64,
    /// Oldest first.
    guests: Vec<Guest>,
}

struct Guest {
    number: u64,
    address: IpAddr,
    /// The head of its request is there.
    is_asking: Arc<AtomicBool>,
    abort: AbortHandle,
}

impl ConnectionPermits {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, taken: Mutex::default() }
    }

    pub(crate) fn seat(
        self: &Arc<Self>,
        address: IpAddr,
        is_asking: Arc<AtomicBool>,
        serve: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut taken = self.lock();
        if taken.count(address) >= self.limits.connections_per_address_max {
            taken.dismiss_one_of(address);
        } else if taken.guests.len() >= self.limits.connections_max {
            taken.dismiss_greedy();
        }
        taken.last += 1;
        let number = taken.last;
        let places = self.clone();
        let task = tokio::spawn(async move {
            serve.await;
            places.lock().guests.retain(|guest| guest.number != number);
        });
        taken.guests.push(Guest { number, address, is_asking, abort: task.abort_handle() });
    }

    /// One connection less.
    pub(crate) fn make_room(&self) {
        self.lock().dismiss_greedy();
    }

    fn lock(&self) -> MutexGuard<'_, PermitState> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PermitState {
    fn count(&self, address: IpAddr) -> usize {
        self.guests.iter().filter(|guest| guest.address == address).count()
    }

    /// One of the address with the most connections; of several such, the one that has been here
    /// longest without asking.
    fn dismiss_greedy(&mut self) {
        let greed =
            |guest: &&Guest| (self.count(guest.address), !guest.is_asking.load(Ordering::Relaxed));
        // Of equals the last counts.
        if let Some(greediest) = self.guests.iter().rev().max_by_key(greed) {
            self.dismiss_one_of(greediest.address);
        }
    }

    /// The oldest of those that ask, or of those that do not ask yet, whichever are more: neither
    /// can take all places from the other.
    fn dismiss_one_of(&mut self, address: IpAddr) {
        let of = |is_asking: bool| {
            self.guests.iter().enumerate().filter(move |(_, guest)| {
                guest.address == address && guest.is_asking.load(Ordering::Relaxed) == is_asking
            })
        };
        let is_asking = of(true).count() > of(false).count();
        let oldest = of(is_asking).next().map(|(place, _)| place);
        if let Some(place) = oldest {
            self.guests.remove(place).abort.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Room(Arc<ConnectionPermits>);

    impl Room {
        fn seat(&self, last: u8, is_asking: bool) {
            let is_asking = Arc::new(AtomicBool::new(is_asking));
            self.0.seat(address(last), is_asking, std::future::pending());
        }

        /// The numbers of those of an address, oldest first.
        fn of(&self, last: u8) -> Vec<u64> {
            let taken = self.0.lock();
            let guests = taken.guests.iter().filter(|guest| guest.address == address(last));
            guests.map(|guest| guest.number).collect()
        }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[tokio::test(flavor = "current_thread")]
    async fn places_are_limited_in_all_and_for_each_address() {
        let limits =
            Limits { connections_max: 12, connections_per_address_max: 4, ..Limits::default() };
        let room = Room(Arc::new(ConnectionPermits::new(limits)));
        for _ in 0..10 {
            room.seat(1, false);
        }
        assert_eq!(room.of(1), [7, 8, 9, 10]);
        for last in 2..13 {
            room.seat(last, false);
        }
        assert_eq!(room.of(1), [10], "the greediest has made room");
        assert!((2..13).all(|last| room.of(last).len() == 1));
        room.seat(13, false);
        assert_eq!((room.of(1), room.of(2).len()), (vec![], 1), "of equals the oldest goes");
        assert_eq!(room.0.lock().guests.len(), 12);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn neither_who_asks_nor_who_is_silent_takes_all_places() {
        let limits = Limits { connections_per_address_max: 4, ..Limits::default() };
        let room = Room(Arc::new(ConnectionPermits::new(limits)));
        for is_asking in [true, true, false, false, false, false] {
            room.seat(1, is_asking);
        }
        assert_eq!(room.of(1), [1, 2, 5, 6], "the silent push out the silent");
        for _ in 0..4 {
            room.seat(1, true);
        }
        assert_eq!(room.of(1), [6, 8, 9, 10], "and who asks those that ask, but for equals");
    }
}
