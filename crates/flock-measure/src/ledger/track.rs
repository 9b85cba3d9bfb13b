//! What one subscriber received of one stream.

/// What one subscriber received of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The sequence number after the highest received.
    pub(super) next: u32,
    /// The first one received, below which nothing is judged when the subscriber came late.
    pub(super) first: u32,
    pub(super) received: u32,
    pub(super) duplicated: u32,
    pub(super) duplicated_marked: u32,
    pub(super) reordered: u32,
    /// Bumped by the client when messages may rightly have passed it by.
    pub(super) generation: u16,
    /// Some messages were skipped over such a break.
    pub(super) skipped: u32,
    pub(super) missing: Option<Box<Ranges>>,
}

/// Missing sequence numbers, as inclusive ranges in rising order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    pub(super) ranges: Vec<(u32, u32)>,
    /// Missing numbers dropped from `ranges` for want of room: they count as lost even if they
    /// come.
    pub(super) overflowed: u64,
}

/// What a receipt meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    InOrder,
    /// Some are missing before it.
    Gap(u32),
    Late,
    Duplicate,
}

impl Track {
    /// Takes note of one message. `generation` is the client's count of breaks.
    pub fn receive(&mut self, sequence: u32, dup: bool, generation: u16) -> Receipt {
        if self.received == 0 {
            self.first = sequence;
            self.next = sequence;
            self.generation = generation;
            // What came before is judged at the end, when it is known who came first.
        }
        if sequence == self.next {
            self.next = self.next.saturating_add(1);
            self.received += 1;
            self.generation = generation;
            return Receipt::InOrder;
        }
        if sequence > self.next {
            let gap = sequence - self.next;
            if generation == self.generation {
                self.missing.get_or_insert_default().add(self.next, sequence - 1);
            } else {
                self.skipped += gap;
                self.generation = generation;
            }
            self.next = sequence.saturating_add(1);
            self.received += 1;
            return Receipt::Gap(gap);
        }
        self.receive_old(sequence, dup)
    }

    fn receive_old(&mut self, sequence: u32, dup: bool) -> Receipt {
        let was_missing = self.missing.as_mut().is_some_and(|missing| missing.remove(sequence));
        if was_missing || sequence < self.first {
            self.first = self.first.min(sequence);
            if !was_missing {
                self.fill_before(sequence);
            }
            self.received += 1;
            self.reordered += 1;
            return Receipt::Late;
        }
        self.duplicated += 1;
        self.duplicated_marked += u32::from(dup);
        Receipt::Duplicate
    }

    /// A message from before the first one: what lies between becomes missing.
    fn fill_before(&mut self, sequence: u32) {
        // `first` is already lowered; the old first is the lowest number that was received or is
        // known to be missing, which is the start of the known region.
        let known_from = self.next - self.received - self.missing_count() - self.skipped;
        if sequence + 1 < known_from {
            self.missing.get_or_insert_default().add(sequence + 1, known_from - 1);
        }
    }

    /// Distinct messages.
    pub fn received(&self) -> u32 {
        self.received
    }

    /// Whether this one came for certain.
    pub fn has(&self, sequence: u32) -> bool {
        let is_missing = self.missing.as_ref().is_some_and(|missing| missing.has(sequence));
        self.skipped == 0 && (self.first..self.next).contains(&sequence) && !is_missing
    }

    fn missing_count(&self) -> u32 {
        self.missing.as_ref().map_or(0, |missing| missing.count() as u32)
    }
}

impl Ranges {
    fn count(&self) -> u64 {
        let listed: u64 = self.ranges.iter().map(|&(from, to)| u64::from(to - from) + 1).sum();
        listed + self.overflowed
    }

    /// Whether the number is among them, or may be.
    fn has(&self, sequence: u32) -> bool {
        let at = self.ranges.partition_point(|range| range.1 < sequence);
        let is_listed = self.ranges.get(at).is_some_and(|range| range.0 <= sequence);
        is_listed || (self.overflowed > 0 && at == 0)
    }

    fn add(&mut self, from: u32, to: u32) {
        if self.ranges.len() >= RANGES_MAX {
            let (first, last) = self.ranges.remove(0);
            self.overflowed += u64::from(last - first) + 1;
        }
        let at = self.ranges.partition_point(|range| range.0 < from);
        self.ranges.insert(at, (from, to));
    }

    fn remove(&mut self, sequence: u32) -> bool {
        let at = self.ranges.partition_point(|range| range.1 < sequence);
        let Some(&(from, to)) = self.ranges.get(at) else { return false };
        if sequence < from {
            return false;
        }
        match (from == sequence, to == sequence) {
            (true, true) => {
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at].0 += 1,
            (false, true) => self.ranges[at].1 -= 1,
            (false, false) => {
                self.ranges[at].1 = sequence - 1;
                self.ranges.insert(at + 1, (sequence + 1, to));
            }
        }
        true
    }
}

/// Ranges of missing messages that one track keeps; a subscriber with more holes than that has lost
/// its claim to a precise account, not to the count.
pub(super) const RANGES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_known_by_its_number_and_what_is_not_known_did_not() {
        let mut track = Track::default();
        for sequence in [1, 2, 5] {
            track.receive(sequence, false, 0);
        }
        let came: Vec<u32> = (0..8).filter(|&sequence| track.has(sequence)).collect();
        assert_eq!(came, [1, 2, 5]);
        // Over a break it is not known which were skipped.
        track.receive(9, false, 1);
        assert!(!track.has(2) && !track.has(7));
    }
}
