//! What connections that are not admitted yet may take: bytes in all, and of one address. They are
//! asked for before a buffer grows, so that strangers cannot make it grow at all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::origin::Origin;

/// Those that have not sent their CONNECT yet may take this part of each limit only: who waits for
/// the check of a password finds room whoever dawdles.
const UNFINISHED_PART: u64 = 2;

/// Shared by all doors.
#[derive(Debug)]
pub(super) struct Allowance {
    bytes_max: u64,
    origin_bytes_max: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    bytes: u64,
    /// Those that have something: as many as there are connections at most.
    origins: HashMap<Origin, u64>,
}

/// What one connection has; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Charge {
    allowance: Arc<Allowance>,
    origin: Origin,
    bytes: u64,
}

/// Which limit has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    Origin,
    All,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To wait for the rest of a packet.
    Unfinished,
    /// To wait for the check of a password.
    Check,
}

impl Allowance {
    pub(super) fn new(bytes_max: u64, origin_bytes_max: u64) -> Self {
        Self { bytes_max, origin_bytes_max, used: Mutex::default() }
    }

    /// What a connection takes by being there is not refused: the door accepts no more instead,
    /// see [`Allowance::is_full`].
    pub(super) fn begin(self: &Arc<Self>, origin: Origin, bytes: u64) -> Charge {
        let mut charge = Charge { allowance: self.clone(), origin, bytes: 0 };
        charge.add(&mut self.used(), bytes);
        charge
    }

    /// Is half of it used, so that those who dawdle should go?
    pub(super) fn is_short(&self) -> bool {
        self.used().bytes > self.bytes_max / UNFINISHED_PART
    }

    /// Is all of it used, so that nobody more should come in?
    pub(super) fn is_full(&self) -> bool {
        self.used().bytes >= self.bytes_max
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Charge {
    /// Takes `bytes` more, or nothing.
    pub(super) fn raise(&mut self, bytes: u64, purpose: Purpose) -> Result<(), Short> {
        let allowance = self.allowance.clone();
        let mut used = allowance.used();
        let part = match purpose {
            Purpose::Unfinished => UNFINISHED_PART,
            Purpose::Check => 1,
        };
        let of_origin = used.origins.get(&self.origin).copied().unwrap_or_default();
        if of_origin + bytes > allowance.origin_bytes_max / part {
            return Err(Short::Origin);
        }
        if used.bytes + bytes > allowance.bytes_max / part {
            return Err(Short::All);
        }
        self.add(&mut used, bytes);
        Ok(())
    }

    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    /// The client turns out to be behind a proxy.
    pub(super) fn move_to(&mut self, origin: Origin) {
        if origin != self.origin {
            let allowance = self.allowance.clone();
            let mut used = allowance.used();
            let bytes = self.bytes;
            self.give_back(&mut used);
            self.origin = origin;
            self.add(&mut used, bytes);
        }
    }

    fn add(&mut self, used: &mut Used, bytes: u64) {
        self.bytes += bytes;
        used.bytes += bytes;
        *used.origins.entry(self.origin).or_default() += bytes;
    }

    fn give_back(&mut self, used: &mut Used) {
        used.bytes -= self.bytes;
        if let Some(of_origin) = used.origins.get_mut(&self.origin) {
            *of_origin -= self.bytes;
            if *of_origin == 0 {
                used.origins.remove(&self.origin);
            }
        }
        self.bytes = 0;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let allowance = self.allowance.clone();
        self.give_back(&mut allowance.used());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);
    const OTHER: Origin = Origin::V4([192, 0, 2, 2]);

    #[test]
    fn bytes_are_limited_in_all_and_for_each_origin_and_given_back() {
        let allowance = Arc::new(Allowance::new(1000, 400));
        let mut first = allowance.begin(ONE, 0);
        assert_eq!(first.raise(201, Purpose::Unfinished), Err(Short::Origin), "half of its share");
        assert_eq!(first.raise(200, Purpose::Unfinished), Ok(()));
        let mut second = allowance.begin(ONE, 0);
        assert_eq!(second.raise(1, Purpose::Unfinished), Err(Short::Origin));
        assert_eq!(second.raise(200, Purpose::Check), Ok(()), "the other half");
        let mut others: Vec<Charge> =
            (0..3).map(|last| allowance.begin(Origin::V4([198, 51, 100, last]), 0)).collect();
        assert_eq!(others[0].raise(200, Purpose::Check), Ok(()));
        assert!(allowance.is_short());
        assert_eq!(others[1].raise(10, Purpose::Unfinished), Err(Short::All), "600 of 1000");
        assert_eq!(others[1].raise(400, Purpose::Check), Ok(()));
        assert_eq!(others[2].raise(1, Purpose::Check), Err(Short::All));
        drop(second);
        assert_eq!(others[2].raise(200, Purpose::Check), Ok(()));
        others.clear();
        drop(first);
        let used = allowance.used();
        assert_eq!((used.bytes, used.origins.len()), (0, 0));
    }

    #[test]
    fn who_comes_through_a_proxy_takes_from_its_own_share() {
        let allowance = Arc::new(Allowance::new(1000, 100));
        let mut charge = allowance.begin(ONE, 60);
        charge.move_to(OTHER);
        let mut proxy = allowance.begin(ONE, 0);
        assert_eq!(proxy.raise(100, Purpose::Check), Ok(()));
        assert_eq!(charge.raise(60, Purpose::Check), Err(Short::Origin));
        drop((charge, proxy));
        assert_eq!(allowance.used().bytes, 0);
    }
}
