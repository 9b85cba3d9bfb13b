//! How often somebody may guess: failed log-ins of an origin are paced, good ones are not. One pace
//! is for all providers: what counts is how a log-in ends, whoever was asked about it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::lock;

use driver::Origin;

/// Wrong log-ins of an origin that are checked at once. Also the most checks of one that are under
/// way, so not fewer than there may be threads.
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
    tokens: f64,
    at: Instant,
    under_way: u32,
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
    /// Its origin has room for it. Until then it is not tried anywhere, not even against what is
    /// remembered: that would be a guess.
    has_begun: AtomicBool,
    /// It was tried: whoever leaves without waiting for the verdict has guessed.
    is_tried: AtomicBool,
    is_over: AtomicBool,
}

impl Attempt {
    pub(super) fn new(pace: &Arc<Mutex<Pace>>, origin: Origin, user: u64) -> Self {
        let has_begun = AtomicBool::new(lock(pace).begin(origin, Instant::now()).is_ok());
        let (is_tried, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { pace: pace.clone(), origin, user, has_begun, is_tried, is_over }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Its credentials are tried now.
    pub(super) fn note_tried(&self) {
        self.is_tried.store(true, Ordering::Relaxed);
    }

    /// [`Pace::begin`] has made room for it.
    pub(super) fn has_room(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// The verdict, once; None: there is none, as its client has left. True: another of its origin
    /// may begin now.
    pub(super) fn end(&self, is_right: Option<bool>) -> bool {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return false;
        }
        let is_right = is_right.unwrap_or(!self.is_tried.load(Ordering::Relaxed));
        let now = Instant::now();
        let mut pace = lock(&self.pace);
        match self.has_begun.swap(false, Ordering::Relaxed) {
            true => pace.end(self.origin, is_right, now),
            // One that could be answered without a question.
            false => {
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

    /// A check begins, unless too many of this origin were wrong, or might still turn out so.
    pub(super) fn begin(&mut self, origin: Origin, now: Instant) -> Result<(), Due> {
        if self.failures_per_second == 0.0 {
            return Ok(());
        }
        let rate = self.failures_per_second;
        let account = self.account(origin, now);
        if account.tokens - f64::from(account.under_way) >= 1.0 {
            account.under_way += 1;
            return Ok(());
        }
        account.is_wanted = true;
        if account.under_way > 0 {
            return Err(None);
        }
        let wait_secs = (1.0 - account.tokens).max(0.0) / rate;
        Err(Some(now + Duration::from_secs_f64(wait_secs)))
    }

    /// A check that began has ended. True: another may begin, and waits for that.
    pub(super) fn end(&mut self, origin: Origin, is_right: bool, now: Instant) -> bool {
        if self.failures_per_second == 0.0 {
            return false;
        }
        let account = self.account(origin, now);
        account.under_way = account.under_way.saturating_sub(1);
        let is_wanted = account.is_wanted;
        if !is_right {
            account.tokens = (account.tokens - 1.0).max(0.0);
        }
        if account.is_clean() {
            self.accounts.remove(&origin);
        }
        is_wanted
    }

    /// One that no check of it has begun for, or whose check has ended as a right one.
    pub(super) fn count_failure(&mut self, origin: Origin, now: Instant) {
        if self.failures_per_second > 0.0 {
            let account = self.account(origin, now);
            account.tokens = (account.tokens - 1.0).max(0.0);
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
        let new = Account { tokens: BURST, at: now, under_way: 0, last_user: 0, is_wanted: false };
        let account = self.accounts.entry(origin).or_insert(new);
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
            let idle = self.accounts.iter().filter(|(_, account)| account.under_way == 0);
            let nearest = idle.max_by(|(_, a), (_, b)| a.tokens.total_cmp(&b.tokens));
            if let Some(origin) = nearest.map(|(origin, _)| *origin) {
                self.accounts.remove(&origin);
            }
        }
    }
}

impl Account {
    fn refill(&mut self, rate: f64, now: Instant) {
        let elapsed_secs = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + elapsed_secs * rate).min(BURST);
        self.at = now;
    }

    fn is_clean(&self) -> bool {
        self.under_way == 0 && self.tokens >= BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);
    const OTHER: Origin = Origin::V4([192, 0, 2, 2]);

    fn guess(pace: &mut Pace, origin: Origin, now: Instant) -> Result<(), Due> {
        pace.begin(origin, now)?;
        pace.end(origin, false, now);
        Ok(())
    }

    #[test]
    fn wrong_ones_are_paced_and_right_ones_are_not() {
        let mut pace = Pace::new(5);
        let start = Instant::now();
        for _ in 0..10 * BURST as u32 {
            assert_eq!(pace.begin(OTHER, start), Ok(()));
            pace.end(OTHER, true, start);
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
        assert_eq!(pace.begin(ONE, later), Ok(()));
        assert_eq!(pace.begin(ONE, later), Err(None), "the first may be wrong");
        pace.end(ONE, true, later);
        assert_eq!(pace.begin(ONE, later), Ok(()), "it was not");
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
