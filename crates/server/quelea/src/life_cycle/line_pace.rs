//! How many lines the log gets about clients. Somebody gets a line of a kind at once, and then the
//! sum of a minute; all of a kind together so many a second. What is withheld is counted, and the
//! count is logged.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tracing::Level;

use super::subject::Subject;

/// What is repeated is summed up for so long.
const SUM_EVERY_MS: u64 = 60_000;

/// Subjects of one kind that are remembered. Above it only the pace of all applies.
const SUBJECTS_MAX: usize = 4_096;

/// Sums of one kind that are logged at a time. The others follow with the next look.
const SUMS_MAX: usize = 20;

/// A client may connect so often before it is summed up: a few times is no flood, and each has an
/// end of its own.
const CONNECTIONS_AT_ONCE: u32 = 10;

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
    /// A bridge that does not come to its remote.
    Bridge,
    /// Messages that a rule did not deliver.
    Rule,
}

const KINDS: [(About, &str); 10] = [
    (About::Connected, "client connected"),
    (About::Disconnected, "client disconnected"),
    (About::CutOff, "connection closed"),
    (About::Refused, "connection refused"),
    (About::Handshake, "handshake failed"),
    (About::Denied, "access denied"),
    (About::Lost, "messages dropped or refused"),
    (About::Session, "session refused"),
    (About::Bridge, "bridge cannot connect"),
    (About::Rule, "messages not delivered by rules"),
];

/// Shared by acceptors, workers and the control plane.
#[derive(Debug, Default)]
pub(crate) struct LinePace {
    /// 0: no limit.
    per_second_max: AtomicU32,
    rates: [LineRate; KINDS.len()],
    /// Of each kind apart: one cannot use up the places of another.
    subjects: [Mutex<HashMap<Subject, Lines>>; KINDS.len()],
}

#[derive(Debug, Default)]
struct LineRate {
    /// The second, and in its low half how many lines it has had.
    now: AtomicU64,
    withheld: AtomicU64,
}

/// Of a subject, in the present minute.
#[derive(Debug)]
struct Lines {
    begun_ms: u64,
    written: u32,
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

    /// The same for one that says what `count` others of this subject would.
    pub(crate) fn allows_of(&self, subject: Subject, count: u64, now_ms: u64) -> bool {
        let about = subject.about;
        if self.per_second_max.load(Ordering::Relaxed) > 0 {
            let mut subjects = self.lock(about);
            if let Some(known) = subjects.get_mut(&subject) {
                if known.written >= about.lines_at_once() {
                    known.withheld += count;
                    return false;
                }
                known.written += 1;
            } else if subjects.len() < SUBJECTS_MAX {
                subjects.insert(subject, Lines { begun_ms: now_ms, written: 1, withheld: 0 });
            }
        }
        self.allows(about, now_ms)
    }

    /// Tells how much was withheld. To be called about twice a second.
    pub(crate) fn log_withheld(&self, now_ms: u64) {
        for (subject, count) in self.take_sums(now_ms) {
            log_sum(&subject, count);
        }
        for (about, count) in self.take_withheld() {
            tracing::info!(count, "suppressed similar lines: {}", about.text());
        }
    }

    /// The same for what is not due yet: there will be no other look.
    pub(crate) fn log_rest(&self, now_ms: u64) {
        self.log_withheld(now_ms.saturating_add(SUM_EVERY_MS));
    }

    fn take_sums(&self, now_ms: u64) -> Vec<(Subject, u64)> {
        let mut all = Vec::new();
        for (about, _) in KINDS {
            let mut left = SUMS_MAX;
            self.lock(about).retain(|subject, lines| {
                if lines.begun_ms + SUM_EVERY_MS > now_ms {
                    return true;
                }
                if lines.withheld > 0 && left == 0 {
                    return true;
                }
                let count = std::mem::take(&mut lines.withheld);
                // The sum is the line of the next minute: who goes on gets no other.
                (lines.begun_ms, lines.written) = (now_ms, about.lines_at_once());
                if count > 0 {
                    left -= 1;
                    all.push((subject.clone(), count));
                }
                count > 0
            });
        }
        all
    }

    fn lock(&self, about: About) -> std::sync::MutexGuard<'_, HashMap<Subject, Lines>> {
        self.subjects[about as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_withheld(&self) -> Vec<(About, u64)> {
        let counts = self.rates.iter().map(|rate| rate.withheld.swap(0, Ordering::Relaxed));
        let all = KINDS.into_iter().map(|(about, _)| about).zip(counts);
        all.filter(|(_, count)| *count > 0).collect()
    }
}

impl About {
    pub(super) fn text(self) -> &'static str {
        KINDS[self as usize].1
    }

    /// Lines about one subject in a minute, before the others are summed up.
    const fn lines_at_once(self) -> u32 {
        match self {
            Self::Connected | Self::Disconnected => CONNECTIONS_AT_ONCE,
            _ => 1,
        }
    }
}

/// The sum has the level of the lines that it stands for.
fn log_sum(subject: &Subject, count: u64) {
    let Subject { about, level, text, namespace, client, name, peer, what } = subject;
    fn some(text: &str) -> Option<&str> {
        Some(text).filter(|it| !it.is_empty())
    }
    let (namespace, client_id, name) = (some(namespace), some(client), some(name));
    let (bridge, group) = if *about == About::Bridge { (name, None) } else { (None, name) };
    let address = peer.map(|peer| peer.to_string());
    let action = some(what).filter(|_| *about == About::Denied);
    let detail = some(what).filter(|_| address.is_some());
    let reason = some(what).filter(|_| action.is_none() && detail.is_none());
    macro_rules! sum {
        ($write:ident) => {
            tracing::$write!(
                namespace,
                bridge,
                client_id,
                group,
                address,
                action,
                reason,
                detail,
                count,
                "repeated within a minute: {text}"
            )
        };
    }
    if *level == Level::ERROR {
        sum!(error);
    } else if *level == Level::WARN {
        sum!(warn);
    } else {
        sum!(info);
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
        assert!((0..1000).all(|_| unlimited.allows_of(visitor(1, "c"), 1, 1)));
    }

    fn visitor(peer: u32, client: &str) -> Subject {
        Subject::of_visitor(About::Refused, Some(peer.to_be_bytes().into()), client, "")
    }

    fn of(about: About, client: &str) -> Subject {
        Subject { about, client: client.into(), ..visitor(1, "") }
    }

    fn allowed(pace: &LinePace, subject: &Subject, now_ms: u64) -> usize {
        (0..100).filter(|_| pace.allows_of(subject.clone(), 3, now_ms)).count()
    }

    #[test]
    fn a_client_gets_a_line_at_once_and_then_the_sum_of_a_minute() {
        let pace = LinePace::new(100);
        let (loud, late) = (of(About::Lost, "loud"), of(About::Lost, "late"));
        assert_eq!((allowed(&pace, &loud, 1_000), allowed(&pace, &late, 1_500)), (1, 1));
        assert_eq!(allowed(&pace, &of(About::Denied, "loud"), 1_500), 1, "another kind");
        assert_eq!(pace.take_sums(60_999), []);
        assert_eq!(pace.take_sums(61_000), [(loud.clone(), 3 * 99)]);
        // Still known, as it may go on.
        assert_eq!(allowed(&pace, &loud, 90_000), 0);
        assert_eq!(pace.take_sums(121_000).len(), 3);
        assert_eq!(pace.take_sums(181_000), []);
        assert_eq!(allowed(&pace, &loud, 181_001), 1);
    }

    #[test]
    fn a_few_connections_are_written_one_by_one() {
        let pace = LinePace::new(0);
        pace.set_per_second_max(1000);
        let client = of(About::Connected, "c");
        assert_eq!(allowed(&pace, &client, 1_000), CONNECTIONS_AT_ONCE as usize);
        assert_eq!(pace.take_sums(61_000), [(client, 3 * 90)]);
    }

    #[test]
    fn subjects_without_a_place_are_held_to_the_pace_of_all() {
        let pace = LinePace::new(1);
        let many = 0..SUBJECTS_MAX as u32 + 100;
        let allowed = many.filter(|number| pace.allows_of(visitor(*number, "c"), 1, 1)).count();
        assert_eq!(allowed, 1);
        assert_eq!(pace.lock(About::Refused).len(), SUBJECTS_MAX);
        assert!(pace.allows_of(of(About::Lost, "c"), 1, 1), "another kind has places of its own");
    }

    #[test]
    fn sums_of_many_are_spread_over_several_looks() {
        let pace = LinePace::new(1000);
        let count = 2 * SUMS_MAX + 1;
        for number in 0..count {
            allowed(&pace, &of(About::Lost, &number.to_string()), 0);
        }
        let sums = |now_ms| pace.take_sums(now_ms).len();
        assert_eq!([sums(60_000), sums(60_400), sums(60_800)], [SUMS_MAX, SUMS_MAX, 1]);
        assert_eq!(sums(61_200), 0);
    }
}
