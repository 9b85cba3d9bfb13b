//! What one subscriber received of one stream.

use super::repeats::Repeats;

/// What one subscriber received of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The sequence number after the highest received.
    pub(super) next: u32,
    /// The first one received, below which nothing is judged when the subscriber came late.
    pub(super) first: u32,
    pub(super) received: u32,
    /// So many were skipped over breaks in which they may rightly have passed it by.
    pub(super) skipped: u32,
    /// What came below this came before the session was last resumed on another connection.
    pub(super) resumed_at: u32,
    pub(super) generation: u16,
    pub(super) resumptions: u16,
    pub(super) amiss: Option<Box<Amiss>>,
}

/// What only few tracks have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Amiss {
    pub(super) missing: Ranges,
    /// Which ones were skipped.
    pub(super) skipped: Ranges,
    pub(super) duplicated: u32,
    pub(super) duplicated_marked: u32,
    pub(super) reordered: u32,
    /// Second copies that no resumption of the session explains.
    pub(super) repeats: Repeats,
    /// Numbers from before the session was last resumed that have come since, rising.
    again: Vec<u32>,
}

/// What has become of the receiver's session by the time that a message comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Breaks from which it came back, and in which messages may rightly have passed it by.
    pub generation: u16,
    /// How often it was resumed on another connection: what was under way then may come again.
    pub resumptions: u16,
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
    /// Takes note of one message.
    pub fn receive(&mut self, sequence: u32, dup: bool, session: Session) -> Receipt {
        if self.received == 0 {
            self.first = sequence;
            self.next = sequence;
            self.generation = session.generation;
            self.resumptions = session.resumptions;
            // What came before is judged at the end, when it is known who came first.
        }
        if self.resumptions != session.resumptions {
            self.resume(session.resumptions);
        }
        if sequence == self.next {
            self.next = self.next.saturating_add(1);
            self.received += 1;
            self.generation = session.generation;
            return Receipt::InOrder;
        }
        if sequence > self.next {
            let gap = sequence - self.next;
            if session.generation == self.generation {
                let from = self.next;
                self.amiss().missing.add(from, sequence - 1);
            } else {
                self.skipped += gap;
                let from = self.next;
                self.amiss().skipped.add(from, sequence - 1);
                self.generation = session.generation;
            }
            self.next = sequence.saturating_add(1);
            self.received += 1;
            return Receipt::Gap(gap);
        }
        self.receive_old(sequence, dup)
    }

    fn amiss(&mut self) -> &mut Amiss {
        self.amiss.get_or_insert_default()
    }

    /// The first message on a further connection of the session.
    fn resume(&mut self, resumptions: u16) {
        self.resumptions = resumptions;
        self.resumed_at = self.next;
        if let Some(amiss) = &mut self.amiss {
            amiss.again.clear();
        }
    }

    fn receive_old(&mut self, sequence: u32, dup: bool) -> Receipt {
        let is_from_before = sequence < self.resumed_at;
        let first = self.first;
        let amiss = self.amiss();
        let was_skipped = amiss.skipped.remove(sequence);
        let was_missing = was_skipped || amiss.missing.remove(sequence);
        let is_again = is_from_before && !amiss.comes_again(sequence);
        if was_missing || sequence < first {
            amiss.reordered += 1;
            self.skipped -= u32::from(was_skipped);
            self.first = first.min(sequence);
            if !was_missing {
                self.fill_before(sequence);
            }
            self.received += 1;
            return Receipt::Late;
        }
        amiss.duplicated += 1;
        amiss.duplicated_marked += u32::from(dup);
        if !is_again {
            amiss.repeats.add(sequence);
        }
        Receipt::Duplicate
    }

    /// A message from before the first one: what lies between becomes missing.
    fn fill_before(&mut self, sequence: u32) {
        // `first` is already lowered; the old first is the lowest number that was received or is
        // known to be missing, which is the start of the known region.
        let known_from = self.next - self.received - self.missing_count() - self.skipped;
        if sequence + 1 < known_from {
            self.amiss().missing.add(sequence + 1, known_from - 1);
        }
    }

    /// Distinct messages.
    pub fn received(&self) -> u32 {
        self.received
    }

    /// Whether this one came for certain.
    pub fn has(&self, sequence: u32) -> bool {
        let is_absent = |amiss: &Amiss| amiss.missing.has(sequence) || amiss.skipped.has(sequence);
        let is_within = (self.first..self.next).contains(&sequence);
        is_within && !self.amiss.as_deref().is_some_and(is_absent)
    }

    fn missing_count(&self) -> u32 {
        self.amiss.as_ref().map_or(0, |amiss| amiss.missing.count() as u32)
    }
}

impl Amiss {
    /// Notes a number from before the session was last resumed. Whether it has come since.
    fn comes_again(&mut self, sequence: u32) -> bool {
        match self.again.binary_search(&sequence) {
            Ok(_) => true,
            Err(at) => {
                // What does not fit any more is never held against a broker.
                if self.again.len() < AGAIN_MAX {
                    self.again.insert(at, sequence);
                }
                false
            }
        }
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
/// Messages that may be in flight to a client when its connection ends.
const AGAIN_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_known_by_its_number_and_what_is_not_known_did_not() {
        let mut track = Track::default();
        for sequence in [1, 2, 5] {
            track.receive(sequence, false, Session::default());
        }
        let came: Vec<u32> = (0..8).filter(|&sequence| track.has(sequence)).collect();
        assert_eq!(came, [1, 2, 5]);
        // Over a break as well.
        track.receive(9, false, Session { generation: 1, ..Session::default() });
        assert!(track.has(2) && !track.has(7) && track.has(9));
        assert_eq!(track.receive(7, false, Session::default()), Receipt::Late);
        assert_eq!((track.has(7), track.skipped), (true, 2));
    }

    fn receive_all(track: &mut Track, resumptions: u16, sequences: &[u32]) {
        for &sequence in sequences {
            track.receive(sequence, true, Session { resumptions, ..Session::default() });
        }
    }

    fn repeats(track: &Track) -> u32 {
        track.amiss.as_ref().map_or(0, |amiss| amiss.repeats.count())
    }

    #[test]
    fn a_second_copy_on_one_connection_is_explained_by_nothing() {
        let mut track = Track::default();
        receive_all(&mut track, 3, &[5, 6, 6, 4, 4, 7]);
        assert_eq!(repeats(&track), 2, "6 in order, 4 late");
    }

    #[test]
    fn a_session_that_is_resumed_explains_one_more_copy_of_what_came_before_it() {
        let mut track = Track::default();
        receive_all(&mut track, 0, &[0, 1, 2, 3]);
        receive_all(&mut track, 1, &[3, 2, 4]);
        assert_eq!(repeats(&track), 0, "whatever their order");
        receive_all(&mut track, 1, &[4, 3]);
        assert_eq!(repeats(&track), 2, "4 is younger than the connection, 3 had come again");
        receive_all(&mut track, 2, &[3, 4]);
        assert_eq!(repeats(&track), 2);
        assert_eq!(track.amiss.unwrap().duplicated, 6);
    }

    #[test]
    fn what_came_late_over_a_further_connection_came_once() {
        let mut track = Track::default();
        receive_all(&mut track, 0, &[0, 2]);
        receive_all(&mut track, 1, &[1, 3]);
        assert_eq!(repeats(&track), 0);
        receive_all(&mut track, 1, &[1]);
        assert_eq!(repeats(&track), 1);
    }
}
