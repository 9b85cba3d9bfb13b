//! How many lines the log gets about clients: of each kind so many a second, and one about a client
//! before admission. What is withheld is counted, and the count is logged.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How often a client that is not admitted gets a line.
const VISITOR_EVERY_MS: u64 = 1000;

/// Clients before admission that are remembered. Above it only the pace of all clients applies.
const VISITORS_MAX: usize = 10_000;

/// What a line about a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum About {
    Connected,
    Disconnected,
    /// Ended by the broker: for what it did, or for want of room.
    CutOff,
    /// A CONNECT that was refused.
    Refused,
    /// It never came to a whole CONNECT.
    Handshake,
    Denied,
    /// Deliveries or publishes for which there was no room.
    Lost,
    Session,
}

const KINDS: [(About, &str); 8] = [
    (About::Connected, "client connected"),
    (About::Disconnected, "client disconnected"),
    (About::CutOff, "connection closed"),
    (About::Refused, "connection refused"),
    (About::Handshake, "handshake failed"),
    (About::Denied, "access denied"),
    (About::Lost, "messages dropped or refused"),
    (About::Session, "session refused"),
];

/// Shared by acceptors, workers and the control plane.
#[derive(Debug, Default)]
pub(crate) struct LinePace {
    /// 0: no limit.
    per_second_max: AtomicU32,
    rates: [LineRate; KINDS.len()],
    visitors: Mutex<HashMap<Visitor, VisitorLines>>,
}

/// Whom a line is about: a client before admission has not proved its name yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Visitor {
    pub(crate) about: About,
    pub(crate) peer: Option<IpAddr>,
    /// As it is shown in the log, or `-`.
    pub(crate) client: Box<str>,
    /// The clause or text that says what it did.
    pub(crate) what: &'static str,
}

#[derive(Debug, Default)]
struct LineRate {
    /// The second, and in its low half how many lines it has had.
    now: AtomicU64,
    withheld: AtomicU64,
}

#[derive(Debug)]
struct VisitorLines {
    at_ms: u64,
    withheld: u64,
}

impl LinePace {
    pub(crate) fn new(per_second_max: u32) -> Self {
        Self { per_second_max: per_second_max.into(), ..Self::default() }
    }

    pub(crate) fn set_per_second_max(&self, per_second_max: u32) {
        self.per_second_max.store(per_second_max, Ordering::Relaxed);
    }

    /// May a line of this kind be written? If not, it is counted.
    pub(crate) fn allows(&self, about: About, now_ms: u64) -> bool {
        let rate = &self.rates[about as usize];
        let second = (now_ms / 1000) << 32;
        let count = |now: u64| if now >> 32 == second >> 32 { now + 1 } else { second + 1 };
        let before =
            rate.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(count(now)));
        let lines = before.map_or(0, |now| count(now) & u64::from(u32::MAX));
        let most = self.per_second_max.load(Ordering::Relaxed);
        let is_allowed = most == 0 || lines <= u64::from(most);
        if !is_allowed {
            rate.withheld.fetch_add(1, Ordering::Relaxed);
        }
        is_allowed
    }

    /// The same for a client before admission, about whom one line of a kind is written per second.
    pub(crate) fn allows_visitor(&self, visitor: Visitor, now_ms: u64) -> bool {
        let about = visitor.about;
        if self.per_second_max.load(Ordering::Relaxed) > 0 {
            let mut visitors = self.visitors.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = visitors.get_mut(&visitor) {
                known.withheld += 1;
                return false;
            }
            if visitors.len() < VISITORS_MAX {
                visitors.insert(visitor, VisitorLines { at_ms: now_ms, withheld: 0 });
            }
        }
        self.allows(about, now_ms)
    }

    /// Tells how much was withheld. To be called about twice a second.
    pub(crate) fn log_withheld(&self, now_ms: u64) {
        for (Visitor { about, peer, client, what }, count) in self.take_visitors(now_ms) {
            let address = peer.map(|peer| peer.to_string());
            let client_id = Some(&*client).filter(|id| *id != "-");
            tracing::info!(client_id, address, detail = what, count, "repeated: {}", about.text());
        }
        for (about, count) in self.take_withheld() {
            tracing::info!(count, "suppressed similar lines: {}", about.text());
        }
    }

    fn take_visitors(&self, now_ms: u64) -> Vec<(Visitor, u64)> {
        let mut all = Vec::new();
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner).retain(|visitor, lines| {
            if lines.at_ms + VISITOR_EVERY_MS > now_ms {
                return true;
            }
            let count = std::mem::take(&mut lines.withheld);
            lines.at_ms = now_ms;
            if count > 0 && self.allows(visitor.about, now_ms) {
                all.push((visitor.clone(), count));
            }
            count > 0
        });
        all
    }

    fn take_withheld(&self) -> Vec<(About, u64)> {
        let counts = self.rates.iter().map(|rate| rate.withheld.swap(0, Ordering::Relaxed));
        let all = KINDS.into_iter().map(|(about, _)| about).zip(counts);
        all.filter(|(_, count)| *count > 0).collect()
    }
}

impl About {
    fn text(self) -> &'static str {
        KINDS[self as usize].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_the_order_of_their_numbers() {
        for (place, (about, _)) in KINDS.into_iter().enumerate() {
            assert_eq!(about as usize, place);
        }
    }

    #[test]
    fn a_storm_writes_so_many_lines_a_second_and_then_a_count() {
        let pace = LinePace::new(3);
        let allowed = |about, now_ms| (0..10).filter(|_| pace.allows(about, now_ms)).count();
        assert_eq!(allowed(About::Connected, 5_000), 3);
        assert_eq!(allowed(About::Connected, 5_999), 0);
        assert_eq!(allowed(About::Disconnected, 5_999), 3);
        assert_eq!(allowed(About::Connected, 6_000), 3);
        assert_eq!(pace.take_withheld(), [(About::Connected, 24), (About::Disconnected, 7)]);
        assert_eq!(pace.take_withheld(), []);
        let unlimited = LinePace::new(0);
        assert!((0..1000).all(|_| unlimited.allows_visitor(visitor(1, "c"), 1)));
    }

    fn visitor(peer: u32, client: &str) -> Visitor {
        let peer = Some(IpAddr::from(peer.to_be_bytes()));
        Visitor { about: About::Refused, peer, client: client.into(), what: "" }
    }

    #[test]
    fn a_client_before_admission_gets_a_line_a_second_and_then_a_count() {
        let pace = LinePace::new(100);
        let allowed = |visitor: Visitor, now_ms| {
            (0..10).filter(|_| pace.allows_visitor(visitor.clone(), now_ms)).count()
        };
        let (loud, late) = (visitor(1, "loud"), visitor(1, "late"));
        assert_eq!((allowed(loud.clone(), 1_000), allowed(late.clone(), 1_500)), (1, 1));
        assert_eq!(pace.take_visitors(1_999), []);
        assert_eq!(pace.take_visitors(2_000), [(loud.clone(), 9)]);
        // Still known, as it may go on.
        assert_eq!(allowed(loud.clone(), 2_500), 0);
        assert_eq!(pace.take_visitors(3_000).len(), 2);
        assert_eq!(pace.take_visitors(4_000), []);
        assert_eq!(allowed(loud, 4_001), 1);
    }

    #[test]
    fn clients_without_a_place_are_held_to_the_pace_of_all() {
        let pace = LinePace::new(1);
        let many = 0..VISITORS_MAX as u32 + 100;
        let allowed = many.filter(|number| pace.allows_visitor(visitor(*number, "c"), 1)).count();
        assert_eq!(allowed, 1);
        assert_eq!(pace.visitors.lock().unwrap().len(), VISITORS_MAX);
    }
}
