//! How often somebody may guess: failed log-ins of an origin are paced, good ones are not. Failures
//! count for all providers together: what counts is how a log-in ends, whoever was asked about it.
//! Log-ins under way are limited at each provider, so that one that hangs holds up no other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Step, lock};

use driver::Origin;

/// Wrong log-ins of an origin that are checked at once. Also the most checks of one that are under
/// way at a provider, so not fewer than there may be threads.
const BURST: f64 = 64.0;

/// Origins with wrong log-ins that are remembered. At the limit the one nearest to being forgotten
/// anyway makes room.
const ORIGINS_MAX: usize = 10_000;

/// A token bucket for each origin that has lately had a failed log-in, or has a check under way.
#[derive(Debug)]
pub(super) struct Pace {
    /// 0: no limit.
    failures_per_second: f64,
    accounts: HashMap<Origin, Account>,
}

#[derive(Debug)]
struct Account {
    /// Below 0 after failures at several providers at a time: no more than [`BURST`] for each.
    tokens: f64,
    at: Instant,
    /// At each provider that has any.
    under_way: Vec<(Step, u32)>,
    /// Whose log-in was checked last.
    last_user: u64,
    /// A check could not begin, and may still wait for that.
    is_wanted: bool,
}

/// A log-in under way, from the first question about it to its verdict.
#[derive(Debug)]
pub(super) struct Attempt {
    pace: Arc<Mutex<Pace>>,
    pub(super) origin: Origin,
    /// A number for the user name that is stated.
    pub(super) user: u64,
    /// Its origin has room for it at this provider. Until then it is not tried there, not even
    /// against what is remembered: that would be a guess.
    begun_at: Mutex<Option<Step>>,
    /// It was tried: whoever leaves without waiting for the verdict has guessed.
    is_tried: AtomicBool,
    is_over: AtomicBool,
}

impl Attempt {
    pub(super) fn new(pace: &Arc<Mutex<Pace>>, origin: Origin, user: u64) -> Self {
        let (is_tried, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { pace: pace.clone(), origin, user, begun_at: Mutex::default(), is_tried, is_over }
    }

    /// This provider is asked now, and the one before has answered. It begins there, if its origin
    /// has room. True: another of its origin may begin where it was.
    pub(super) fn enter(&self, step: Step) -> bool {
        let (mut begun_at, now) = (lock(&self.begun_at), Instant::now());
        let mut pace = lock(&self.pace);
        let is_wanted = begun_at.take().is_some_and(|left| pace.leave(self.origin, left, now));
        *begun_at = pace.begin(self.origin, step, now).is_ok().then_some(step);
        is_wanted
    }

    pub(super) fn has_begun(&self) -> bool {
        lock(&self.begun_at).is_some()
    }

    /// Its credentials are tried now.
    pub(super) fn note_tried(&self) {
        self.is_tried.store(true, Ordering::Relaxed);
    }

    /// [`Pace::begin`] has made room for it at the provider that is asked.
    pub(super) fn has_room(&self, step: Step) {
        *lock(&self.begun_at) = Some(step);
    }

    /// The verdict, once; None: there is none, as its client has left. True: another of its origin
    /// may begin now.
    pub(super) fn end(&self, is_right: Option<bool>) -> bool {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return false;
        }
        let is_right = is_right.unwrap_or(!self.is_tried.load(Ordering::Relaxed));
        let now = Instant::now();
        let begun_at = lock(&self.begun_at).take();
        let mut pace = lock(&self.pace);
        match begun_at {
            Some(step) => pace.end(self.origin, step, is_right, now),
            // One that could be answered without a question.
            None => {
                if !is_right {
                    pace.count_failure(self.origin, now);
                }
                false
            }
        }
    }
}

/// When the next check may begin; None: when one that is under way has ended.
pub(super) type Due = Option<Instant>;

impl Pace {
    /// 0: no limit.
    pub(super) fn new(failures_per_second_max: u32) -> Self {
        Self { failures_per_second: failures_per_second_max.into(), accounts: HashMap::new() }
    }

    /// A check begins, unless too many of this origin were wrong, or might still turn out so at
    /// this provider.
    pub(super) fn begin(&mut self, origin: Origin, step: Step, now: Instant) -> Result<(), Due> {
        if self.failures_per_second == 0.0 {
            return Ok(());
        }
        let rate = self.failures_per_second;
        let account = self.account(origin, now);
        let under_way = account.under_way_at(step);
        if account.tokens - f64::from(under_way) >= 1.0 {
            account.set_under_way(step, under_way + 1);
            return Ok(());
        }
        account.is_wanted = true;
        if under_way > 0 {
            return Err(None);
        }
        let wait_secs = (1.0 - account.tokens).max(0.0) / rate;
        Err(Some(now + Duration::from_secs_f64(wait_secs)))
    }

    /// A check that began has ended. True: another may begin, and waits for that.
    pub(super) fn end(&mut self, origin: Origin, step: Step, is_right: bool, now: Instant) -> bool {
        if self.failures_per_second == 0.0 {
            return false;
        }
        let account = self.account(origin, now);
        account.set_under_way(step, account.under_way_at(step).saturating_sub(1));
        let is_wanted = account.is_wanted;
        if !is_right {
            account.tokens -= 1.0;
        }
        if account.is_clean() {
            self.accounts.remove(&origin);
        }
        is_wanted
    }

    /// A check that began goes on elsewhere, and may begin there. True: as [`Self::end`].
    fn leave(&mut self, origin: Origin, step: Step, now: Instant) -> bool {
        self.end(origin, step, true, now)
    }

    /// One that no check of it has begun for, or whose check has ended as a right one. Any number
    /// may come of those, so they leave nothing to make up for.
    pub(super) fn count_failure(&mut self, origin: Origin, now: Instant) {
        if self.failures_per_second > 0.0 {
            let account = self.account(origin, now);
            account.tokens = (account.tokens - 1.0).max(account.tokens.min(0.0));
        }
    }

    /// If it has had many wrong ones lately: the user of the last that was checked.
    pub(super) fn worn_by(&self, origin: Origin) -> Option<u64> {
        let account = self.accounts.get(&origin)?;
        (account.tokens < BURST / 2.0).then_some(account.last_user)
    }

    pub(super) fn note_user(&mut self, origin: Origin, user: u64) {
        if let Some(account) = self.accounts.get_mut(&origin) {
            account.last_user = user;
        }
    }

    fn account(&mut self, origin: Origin, now: Instant) -> &mut Account {
        let rate = self.failures_per_second;
        if self.accounts.len() >= ORIGINS_MAX && !self.accounts.contains_key(&origin) {
            self.make_room(now);
        }
        let account = self.accounts.entry(origin).or_insert_with(|| Account::new(now));
        account.refill(rate, now);
        account
    }

    fn make_room(&mut self, now: Instant) {
        let rate = self.failures_per_second;
        self.accounts.retain(|_, account| {
            account.refill(rate, now);
            !account.is_clean()
        });
        if self.accounts.len() >= ORIGINS_MAX {
            let idle = self.accounts.iter().filter(|(_, account)| account.under_way.is_empty());
            let nearest = idle.max_by(|(_, a), (_, b)| a.tokens.total_cmp(&b.tokens));
            if let Some(origin) = nearest.map(|(origin, _)| *origin) {
                self.accounts.remove(&origin);
            }
        }
    }
}

impl Account {
    fn new(now: Instant) -> Self {
        let under_way = Vec::new();
        Self { tokens: BURST, at: now, under_way, last_user: 0, is_wanted: false }
    }

    fn under_way_at(&self, step: Step) -> u32 {
        let own = self.under_way.iter().find(|(other, _)| *other == step);
        own.map_or(0, |(_, count)| *count)
    }

    fn set_under_way(&mut self, step: Step, count: u32) {
        match self.under_way.iter().position(|(other, _)| *other == step) {
            Some(place) if count == 0 => {
                self.under_way.swap_remove(place);
            }
            Some(place) => self.under_way[place].1 = count,
            None if count == 0 => {}
            None => self.under_way.push((step, count)),
        }
    }

    fn refill(&mut self, rate: f64, now: Instant) {
        let elapsed_secs = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + elapsed_secs * rate).min(BURST);
        self.at = now;
    }

    fn is_clean(&self) -> bool {
        self.under_way.is_empty() && self.tokens >= BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);
    const OTHER: Origin = Origin::V4([192, 0, 2, 2]);

    const HTTP: Step = Step::Provider(0);

    fn guess(pace: &mut Pace, origin: Origin, now: Instant) -> Result<(), Due> {
        guess_at(pace, Step::File, origin, now)
    }

    fn guess_at(pace: &mut Pace, step: Step, origin: Origin, now: Instant) -> Result<(), Due> {
        pace.begin(origin, step, now)?;
        pace.end(origin, step, false, now);
        Ok(())
    }

    #[test]
    fn wrong_ones_are_paced_and_right_ones_are_not() {
        let mut pace = Pace::new(5);
        let start = Instant::now();
        for _ in 0..10 * BURST as u32 {
            assert_eq!(pace.begin(OTHER, Step::File, start), Ok(()));
            pace.end(OTHER, Step::File, true, start);
        }
        assert!(pace.accounts.is_empty(), "nothing is kept of those who are right");
        let guessed = (0..1000).take_while(|_| guess(&mut pace, ONE, start).is_ok()).count();
        assert_eq!(guessed, BURST as usize);
        assert_eq!((pace.worn_by(ONE), pace.worn_by(OTHER)), (Some(0), None));
        assert_eq!(guess(&mut pace, OTHER, start), Ok(()), "the pace of one is not another's");
        let due = guess(&mut pace, ONE, start).unwrap_err().unwrap();
        assert_eq!(due.duration_since(start).as_millis(), 200);
        let mut guessed = 0;
        for ms in 0..10_000 {
            guessed += u32::from(guess(&mut pace, ONE, start + Duration::from_millis(ms)).is_ok());
        }
        assert!((49..=50).contains(&guessed), "5 a second: {guessed}");
    }

    #[test]
    fn a_worn_origin_has_one_check_under_way() {
        let mut pace = Pace::new(1);
        let start = Instant::now();
        while guess(&mut pace, ONE, start).is_ok() {}
        let later = start + Duration::from_secs(1);
        assert_eq!(pace.begin(ONE, Step::File, later), Ok(()));
        assert_eq!(pace.begin(ONE, Step::File, later), Err(None), "the first may be wrong");
        pace.end(ONE, Step::File, true, later);
        assert_eq!(pace.begin(ONE, Step::File, later), Ok(()), "it was not");
    }

    #[test]
    fn what_hangs_at_one_provider_holds_up_no_other() {
        let mut pace = Pace::new(1);
        let now = Instant::now();
        while pace.begin(ONE, HTTP, now).is_ok() {}
        assert_eq!(pace.begin(ONE, HTTP, now), Err(None), "too many may be wrong there");
        for _ in 0..10 * BURST as u32 {
            assert_eq!(pace.begin(ONE, Step::File, now), Ok(()));
            pace.end(ONE, Step::File, true, now);
        }
        for _ in 0..BURST as u32 {
            pace.end(ONE, HTTP, true, now);
        }
        assert!(pace.accounts.is_empty());
    }

    #[test]
    fn failures_count_for_all_providers_together() {
        let mut pace = Pace::new(1);
        let start = Instant::now();
        while guess_at(&mut pace, HTTP, ONE, start).is_ok() {}
        assert!(pace.begin(ONE, Step::File, start).unwrap_err().is_some(), "when the next is due");
        assert!(pace.begin(ONE, Step::Provider(1), start).is_err());
        let later = start + Duration::from_secs(1);
        assert_eq!(guess(&mut pace, ONE, later), Ok(()));
        assert!(guess_at(&mut pace, HTTP, ONE, later).is_err(), "one a second of both");
    }

    #[test]
    fn failures_at_several_providers_at_a_time_are_made_up_for() {
        let mut pace = Pace::new(1);
        let start = Instant::now();
        for step in [HTTP, Step::File] {
            assert_eq!((0..).take_while(|_| pace.begin(ONE, step, start).is_ok()).count(), 64);
        }
        for step in [HTTP, Step::File] {
            for _ in 0..64 {
                pace.end(ONE, step, false, start);
            }
        }
        for _ in 0..1_000 {
            pace.count_failure(ONE, start);
        }
        let due = guess(&mut pace, ONE, start).unwrap_err().unwrap();
        assert_eq!(due.duration_since(start).as_secs(), 65, "64 of them were one too many each");
        assert_eq!(guess(&mut pace, ONE, due), Ok(()));
    }

    #[test]
    fn an_attempt_is_under_way_where_it_is_asked_about() {
        let pace = Arc::new(Mutex::new(Pace::new(1)));
        let at = |step| lock(&pace).accounts.get(&ONE).map_or(0, |own| own.under_way_at(step));
        let attempts: Vec<_> = (0..65).map(|_| Attempt::new(&pace, ONE, 1)).collect();
        assert_eq!((at(HTTP), at(Step::File)), (0, 0), "nobody is asked yet");
        for attempt in &attempts {
            assert!(!attempt.enter(HTTP));
        }
        assert!(attempts[63].has_begun() && !attempts[64].has_begun());
        assert!(attempts[0].enter(Step::File), "the last one waits where it was");
        assert!(attempts[0].has_begun());
        assert_eq!((at(HTTP), at(Step::File)), (63, 1));
        attempts[64].enter(Step::File);
        assert!(attempts[64].has_begun());
        for attempt in &attempts {
            attempt.end(Some(true));
        }
        assert!(lock(&pace).accounts.is_empty());
    }

    #[test]
    fn origins_are_limited_and_forgotten() {
        let mut pace = Pace::new(1);
        let start = Instant::now();
        for number in 0..2 * ORIGINS_MAX as u32 {
            assert_eq!(guess(&mut pace, Origin::V4(number.to_be_bytes()), start), Ok(()));
            assert!(pace.accounts.len() <= ORIGINS_MAX);
        }
        assert_eq!(guess(&mut pace, ONE, start + Duration::from_secs(60)), Ok(()));
        assert_eq!(pace.accounts.len(), 1, "all others are clean again");
    }

    #[test]
    fn without_a_limit_nothing_is_kept() {
        let mut pace = Pace::new(0);
        let now = Instant::now();
        assert!((0..1000).all(|_| guess(&mut pace, ONE, now).is_ok()));
        assert!(pace.accounts.is_empty());
    }
}
