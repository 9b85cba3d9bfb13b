//! When which message of a stream was sent, now and then: enough to tell what was sent while a
//! subscriber was there for certain.

use serde::{Deserialize, Serialize};

use super::repeats::{Slot, slot};

/// Messages of a stream and when they were handed to the kernel, rising. A stream of few messages
/// has them all; one of many has some, ever fewer the longer it lasts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marks {
    all: Vec<(u32, Slot)>,
    /// The least time from one to the next.
    step: Slot,
}

impl Marks {
    /// Notes a message; there are at most `max` marks.
    pub(super) fn note(&mut self, sequence: u32, now_ns: u64, max: usize) {
        let now = slot(now_ns);
        let is_soon = self.all.last().is_some_and(|last| now < last.1.saturating_add(self.step));
        if is_soon {
            return;
        }
        if self.all.len() >= max.max(2) {
            let mut at = 0;
            self.all.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.step = self.step.max(STEP_MIN).saturating_mul(2);
            return self.note(sequence, now_ns, max);
        }
        self.step = self.step.max(STEP_MIN);
        self.all.push((sequence, now));
    }

    /// The first message that is known to have been sent after this.
    pub(super) fn after(&self, at_ns: u64) -> Option<u32> {
        let at = slot(at_ns);
        self.all.get(self.all.partition_point(|mark| mark.1 <= at)).map(|mark| mark.0)
    }

    /// The last message that is known to have been sent before this.
    pub(super) fn before(&self, at_ns: u64) -> Option<u32> {
        let at = slot(at_ns);
        let before = self.all.partition_point(|mark| mark.1 < at);
        before.checked_sub(1).map(|last| self.all[last].0)
    }

    /// A time before which the message was not sent.
    pub(super) fn not_before(&self, sequence: u32) -> Slot {
        let upto = self.all.partition_point(|mark| mark.0 <= sequence);
        upto.checked_sub(1).map_or(0, |last| self.all[last].1)
    }
}

/// 100 ms.
const STEP_MIN: Slot = 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// A message every 10 ms from 1 s on.
    fn marks(count: u32, max: usize) -> Marks {
        let mut marks = Marks::default();
        for sequence in 0..count {
            marks.note(sequence, at_ns(sequence), max);
        }
        marks
    }

    fn at_ns(sequence: u32) -> u64 {
        1_000_000_000 + u64::from(sequence) * 10_000_000
    }

    #[test]
    fn what_is_marked_was_sent_on_its_side_of_the_time() {
        for max in [4, 7, 64] {
            let marks = marks(1_000, max);
            assert!(marks.all.len() <= max && marks.all.len() >= max / 2);
            for sequence in 0..1_000 {
                let at = at_ns(sequence);
                assert!(marks.after(at).is_none_or(|after| after > sequence));
                assert!(marks.before(at).is_none_or(|before| before < sequence));
                assert!(marks.not_before(sequence) <= slot(at));
            }
            assert_eq!(marks.after(0), Some(0));
            let (after, before) = (marks.after(at_ns(400)), marks.before(at_ns(600)));
            assert!(after.is_some() && before.is_some(), "{max}: {after:?} {before:?}");
        }
    }

    #[test]
    fn a_slow_stream_has_every_message() {
        let mut marks = Marks::default();
        for sequence in 0..9 {
            marks.note(sequence, u64::from(sequence) * 1_000_000_000, 64);
        }
        assert_eq!((marks.after(3_500_000_000), marks.before(3_500_000_000)), (Some(4), Some(3)));
        assert_eq!((marks.after(8_000_000_000), marks.before(0)), (None, None));
    }
}
