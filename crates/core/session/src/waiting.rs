//! How much waits in a queue, without what has expired there (MQTT-3.3.2-5): known without a look
//! at all of it.

use std::collections::{BTreeMap, VecDeque};

use crate::NEVER;

/// Ends of lifetimes that are joined are as close together as this part of the time until them: so
/// much later than it expires a message may stop to count.
const LATE_PART: u64 = 16;

/// A queue is looked through for what has expired when that is this part of it, in messages or
/// bytes: for each message that expires this many are looked at.
const EXPIRED_PART: u64 = 16;

/// So many different ends are remembered one by one.
const SPANS_MIN: usize = 128;

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub messages: u32,
    pub bytes: u64,
}

impl Amount {
    pub const fn one(bytes: u64) -> Self {
        Self { messages: 1, bytes }
    }

    pub const fn add(&mut self, more: Self) {
        self.messages = self.messages.saturating_add(more.messages);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }

    pub const fn sub(&mut self, less: Self) {
        self.messages = self.messages.saturating_sub(less.messages);
        self.bytes = self.bytes.saturating_sub(less.bytes);
    }
}

/// When how much of a queue expires.
///
/// Bounded: of more than 128 ends neighbours are joined, and at most 32 are left for each doubling
/// of the lifetimes.
#[derive(Debug, Default)]
pub struct Lifetimes {
    /// By the last end in each.
    spans: BTreeMap<u64, Span>,
    /// Neighbours are joined when there are more.
    spans_max: usize,
}

/// What ends between two times.
#[derive(Debug)]
struct Span {
    first_ms: u64,
    amount: Amount,
}

impl Lifetimes {
    /// Something waits that expires then. What never does is not in it.
    pub fn add(&mut self, expires_at_ms: u64, bytes: u64, now_ms: u64) {
        if expires_at_ms == NEVER {
            return;
        }
        let amount = Amount::one(bytes);
        match self.span_of(expires_at_ms) {
            Some((_, span)) => span.amount.add(amount),
            None => {
                self.spans.insert(expires_at_ms, Span { first_ms: expires_at_ms, amount });
            }
        }
        if self.spans.len() > self.spans_max.max(SPANS_MIN) {
            self.join(now_ms);
        }
    }

    /// It waits no more. False: it [has expired](Lifetimes::expire) before.
    pub fn remove(&mut self, expires_at_ms: u64, bytes: u64) -> bool {
        if expires_at_ms == NEVER {
            return true;
        }
        let Some((last_ms, span)) = self.span_of(expires_at_ms) else { return false };
        span.amount.sub(Amount::one(bytes));
        if span.amount.messages == 0 {
            self.spans.remove(&last_ms);
        }
        true
    }

    /// Nothing has expired before then; [`NEVER`]: nothing does.
    #[inline]
    pub fn next_ms(&self) -> u64 {
        self.spans.first_key_value().map_or(NEVER, |(last_ms, _)| *last_ms)
    }

    /// What has expired waits no more; returns how much that was.
    pub fn expire(&mut self, now_ms: u64) -> Amount {
        let mut expired = Amount::default();
        while let Some(span) = self.spans.first_entry()
            && *span.key() <= now_ms
        {
            expired.add(span.remove().amount);
        }
        expired
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Does what expires then still wait, as far as that was looked for?
    fn contains(&self, end_ms: u64) -> bool {
        end_ms == NEVER
            || self.spans.range(end_ms..).next().is_some_and(|(_, span)| span.first_ms <= end_ms)
    }

    fn span_of(&mut self, end_ms: u64) -> Option<(u64, &mut Span)> {
        let (last_ms, span) = self.spans.range_mut(end_ms..).next()?;
        (span.first_ms <= end_ms).then_some((*last_ms, span))
    }

    #[cold]
    fn join(&mut self, now_ms: u64) {
        let mut joined: Vec<(u64, Span)> = Vec::with_capacity(self.spans.len());
        for (last_ms, span) in std::mem::take(&mut self.spans) {
            match joined.last_mut() {
                Some((end_ms, before))
                    if last_ms - before.first_ms
                        <= before.first_ms.saturating_sub(now_ms) / LATE_PART =>
                {
                    *end_ms = last_ms;
                    before.amount.add(span.amount);
                }
                _ => joined.push((last_ms, span)),
            }
        }
        self.spans_max = 2 * joined.len();
        self.spans = joined.into_iter().collect();
    }
}

/// What can wait in an [`ExpiringQueue`].
pub trait Expires {
    /// [`NEVER`]: it does not.
    fn expires_at_ms(&self) -> u64;

    /// What it counts for.
    fn bytes(&self) -> u64;
}

/// A queue in which what has expired takes no room, though it may stand there for a while.
#[derive(Debug)]
pub struct ExpiringQueue<T> {
    items: VecDeque<T>,
    live: Amount,
    lifetimes: Lifetimes,
    /// What has expired and still stands there.
    expired: Amount,
}

impl<T> Default for ExpiringQueue<T> {
    fn default() -> Self {
        let (live, expired) = Default::default();
        Self { items: VecDeque::new(), live, lifetimes: Lifetimes::default(), expired }
    }
}

impl<T: Expires> ExpiringQueue<T> {
    /// What had not expired when that was looked for last.
    pub const fn live(&self) -> Amount {
        self.live
    }

    /// Does nothing stand there, expired or not?
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// What stands there, expired or not.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn capacity(&self) -> usize {
        self.items.capacity()
    }

    /// Bytes of what stands there, expired or not.
    pub const fn bytes(&self) -> u64 {
        self.live.bytes + self.expired.bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }

    pub fn front(&self) -> Option<&T> {
        self.items.front()
    }

    pub fn back(&self) -> Option<&T> {
        self.items.back()
    }

    pub fn push(&mut self, item: T, now_ms: u64) {
        self.count_in(&item, now_ms);
        self.items.push_back(item);
    }

    /// The same, behind those that go before it, in a queue where these are all in front.
    pub fn insert(&mut self, item: T, now_ms: u64, goes_before: impl Fn(&T) -> bool) {
        self.count_in(&item, now_ms);
        let place = match self.items.back() {
            Some(last) if !goes_before(last) => self.items.partition_point(goes_before),
            _ => self.items.len(),
        };
        self.items.insert(place, item);
    }

    fn count_in(&mut self, item: &T, now_ms: u64) {
        let (expires_at_ms, bytes) = (item.expires_at_ms(), item.bytes());
        self.live.add(Amount::one(bytes));
        self.lifetimes.add(expires_at_ms, bytes, now_ms);
    }

    /// The oldest. False: it has expired, and counts no more.
    pub fn pop_front(&mut self) -> Option<(T, bool)> {
        let item = self.items.pop_front()?;
        let is_live = self.take_off(&item);
        Some((item, is_live))
    }

    /// The newest, likewise.
    pub fn pop_back(&mut self) -> Option<(T, bool)> {
        let item = self.items.pop_back()?;
        let is_live = self.take_off(&item);
        Some((item, is_live))
    }

    fn take_off(&mut self, item: &T) -> bool {
        let amount = Amount::one(item.bytes());
        let is_live = self.lifetimes.remove(item.expires_at_ms(), amount.bytes);
        let counted = if is_live { &mut self.live } else { &mut self.expired };
        counted.sub(amount);
        is_live
    }

    /// Those that are no longer wanted leave the queue. They get the same as from
    /// [`ExpiringQueue::pop_front`].
    pub fn take_if(&mut self, is_taken: impl Fn(&T) -> bool, mut taken: impl FnMut(T, bool)) {
        for item in std::mem::take(&mut self.items) {
            if is_taken(&item) {
                let is_live = self.take_off(&item);
                taken(item, is_live);
            } else {
                self.items.push_back(item);
            }
        }
    }

    /// Takes what has expired off the front.
    pub fn clear_front(&mut self) {
        while let Some(first) = self.items.front()
            && !self.lifetimes.contains(first.expires_at_ms())
        {
            self.pop_front();
        }
    }

    /// Nothing has expired before then; [`NEVER`]: nothing does.
    #[inline]
    pub fn next_expiry_ms(&self) -> u64 {
        self.lifetimes.next_ms()
    }

    /// Counts what has expired no more, and takes it out if it is a sixteenth of the queue.
    /// Returns how much has expired, and how many were looked at for that.
    pub fn expire(&mut self, now_ms: u64, mut taken: impl FnMut(T)) -> (Amount, usize) {
        let mut expired = self.lifetimes.expire(now_ms);
        self.live.sub(expired);
        self.expired.add(expired);
        let looked_at = self.items.len();
        let is_worth_while = u64::from(self.expired.messages) * EXPIRED_PART >= looked_at as u64
            || self.expired.bytes.saturating_mul(EXPIRED_PART) >= self.live.bytes;
        if self.expired.messages == 0 || !is_worth_while {
            return (expired, 0);
        }
        let is_over = |item: &T| item.expires_at_ms() <= now_ms;
        self.take_if(is_over, |item, is_live| {
            if is_live {
                expired.add(Amount::one(item.bytes()));
            }
            taken(item);
        });
        (expired, looked_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When it expires, and its bytes.
    impl Expires for (u64, u64) {
        fn expires_at_ms(&self) -> u64 {
            self.0
        }

        fn bytes(&self) -> u64 {
            self.1
        }
    }

    fn amount(messages: u32, bytes: u64) -> Amount {
        Amount { messages, bytes }
    }

    #[test]
    fn what_has_expired_counts_no_more_and_is_taken_out_once_it_is_worth_while() {
        let mut queue = ExpiringQueue::default();
        (0..100).for_each(|number| queue.push((NEVER, 1_000 + number), 0));
        for item in [(1_000, 10), (1_000, 20), (1_001, 40)] {
            queue.push(item, 0);
        }
        assert_eq!(queue.live().messages, 103);
        assert_eq!((queue.next_expiry_ms(), queue.expire(999, drop).0), (1_000, amount(0, 0)));
        assert_eq!(queue.expire(1_000, drop), (amount(2, 30), 0), "too few to look at all");
        assert_eq!((queue.live().messages, queue.len()), (101, 103));
        assert_eq!(queue.pop_back(), Some(((1_001, 40), true)));
        assert_eq!(queue.pop_back(), Some(((1_000, 20), false)), "it was counted as expired");
        assert_eq!(queue.live().messages, 100);
        (0..20).for_each(|_| queue.push((3_000, 5), 2_000));
        let mut taken = 0;
        assert_eq!(queue.expire(3_000, |_| taken += 1), (amount(20, 100), 121));
        assert_eq!((taken, queue.len(), queue.live().messages), (21, 100, 100));
        assert_eq!((queue.expired, queue.next_expiry_ms()), (amount(0, 0), NEVER));
    }

    #[test]
    fn what_comes_back_goes_to_its_place() {
        let mut queue = ExpiringQueue::default();
        for number in [3, 1, 2, 5, 4] {
            queue.insert((NEVER, number), 0, |(_, other)| *other < number);
        }
        let numbers: Vec<u64> = queue.iter().map(|(_, number)| *number).collect();
        assert_eq!((numbers, queue.live()), (vec![1, 2, 3, 4, 5], amount(5, 15)));
    }

    #[test]
    fn what_has_expired_is_cleared_off_the_front() {
        let mut queue = ExpiringQueue::default();
        queue.push((1_000, 1), 0);
        (0..50).for_each(|_| queue.push((NEVER, 100), 0));
        assert_eq!(queue.expire(2_000, drop), (amount(1, 1), 0));
        queue.clear_front();
        assert_eq!((queue.front(), queue.len()), (Some(&(NEVER, 100)), 50));
        assert_eq!(queue.expired, amount(0, 0));
    }

    #[test]
    fn however_many_wait_there_are_few_spans_and_none_ends_early_or_much_too_late() {
        const MESSAGES: u64 = 20_000;
        let mut lifetimes = Lifetimes::default();
        // From a millisecond to two days, each to the millisecond, in no order.
        let ends = |number: u64| 1 + (number * 7_919 % MESSAGES).pow(2) * 2 / 5;
        for number in 0..MESSAGES {
            lifetimes.add(ends(number), 3, 0);
        }
        let spans = lifetimes.spans.len();
        assert!(spans <= 2 * 2 * LATE_PART as usize * 28, "{spans}");
        let mut expired = 0;
        for now_ms in (0..=28).map(|power| 1 << power) {
            expired += lifetimes.expire(now_ms).messages;
            let over = |at_ms| (0..MESSAGES).filter(|number| ends(*number) <= at_ms).count() as u32;
            let earliest = now_ms - now_ms / (LATE_PART + 1);
            assert!(
                (over(earliest.saturating_sub(1))..=over(now_ms)).contains(&expired),
                "{now_ms}"
            );
        }
        assert_eq!(expired, MESSAGES as u32);
        assert!(lifetimes.is_empty());
    }

    #[test]
    fn what_was_joined_is_taken_out_one_by_one() {
        let mut lifetimes = Lifetimes::default();
        let ends = |number: u64| 1_000_000 + number * 10;
        (0..1_000).for_each(|number| lifetimes.add(ends(number), 5, 0));
        assert!(lifetimes.spans.len() < 1_000);
        for number in (0..1_000).rev() {
            assert!(lifetimes.remove(ends(number), 5), "{number}");
            assert!(!lifetimes.is_empty() || number == 0, "{number}");
        }
        assert!(lifetimes.is_empty());
        assert!(!lifetimes.remove(ends(0), 5));
    }
}
