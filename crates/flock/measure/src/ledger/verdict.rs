//! What was received, held against what was sent.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::repeats::Slot;
use super::sent::{Published, Sent, Unpromised};
use super::shared::SharedTrack;
use super::track::{Amiss, Track};
use crate::{IntegrityCount, LatencyHistogram};

/// When a subscriber listened, and how strictly it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// When the subscription was acknowledged.
    pub since_ns: u64,
    /// When the subscriber began to leave; `u64::MAX`: still there at the end.
    pub until_ns: u64,
    /// How often the client came back after a break in which it was owed nothing.
    pub generation: u16,
    /// Several filters of the client match, so that a broker may send several copies.
    pub copies_may_repeat: bool,
    /// It left and came back by its own doing: of all that is missing the windows decide.
    pub is_patchy: bool,
    /// So long after the acknowledgement of its subscription, or its return, it is owed all that is
    /// sent: see [`settled_ns`].
    pub settled_ns: u64,
    /// A message may be under way for so long: what was sent later ahead of the subscriber's
    /// leaving need not have come.
    pub patience_ns: u64,
}

/// A time in which a subscriber was there: from the acknowledgement of its subscription, or its
/// return, to the end of its connection or its leaving.
pub type Window = (u64, u64);

/// Numbers of a stream, from one to another.
type Range = (u32, u32);

/// The judgement on one subscriber (or shared group) and one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub count: IntegrityCount,
    /// The first missing ranges, inclusive.
    pub missing: Vec<(u32, u32)>,
    pub joined_late: bool,
    pub interrupted: bool,
    /// Numbers that nobody sent.
    pub invented: u64,
    /// A retained message came that was not the latest.
    pub is_stale: bool,
    /// How long those had waited that did not come and were never acknowledged: lower bounds of
    /// their latency.
    pub waited_ns: Vec<u64>,
}

impl Verdict {
    fn new(sent: &Sent, heard: Heard, qos: u8) -> Self {
        let count = IntegrityCount { qos, ..IntegrityCount::default() };
        Self { count, joined_late: heard.since_ns > sent.first_ns, ..Self::default() }
    }

    /// Books what is missing, but for what nobody promised. What is not judged may have come.
    fn settle(&mut self, missing: &[Range], unpromised: &[Unpromised], unjudged: &[Range]) {
        let forgiven = self.forgive(missing, unpromised);
        let of = |&(from, to): &Range| {
            let low = unpromised.partition_point(|excused| excused.sequence < from);
            let high = unpromised.partition_point(|excused| excused.sequence <= to);
            (high - low) as u64
        };
        let aside: u64 = unjudged.iter().map(of).sum();
        let count = &mut self.count;
        count.lost += length(missing) - forgiven;
        count.unacknowledged_received = (unpromised.len() as u64).saturating_sub(aside + forgiven);
        count.expected =
            (count.received + count.lost).saturating_sub(count.unacknowledged_received);
    }

    /// Counts the missing messages that nobody promised, and keeps a sample of the others.
    fn forgive(&mut self, missing: &[Range], unpromised: &[Unpromised]) -> u64 {
        let mut forgiven = 0;
        for &(from, to) in missing {
            let low = unpromised.partition_point(|excused| excused.sequence < from);
            let high = unpromised.partition_point(|excused| excused.sequence <= to);
            forgiven += (high - low) as u64;
            let mut start = from;
            for excused in &unpromised[low..high] {
                let sequence = excused.sequence;
                keep(&mut self.missing, start, sequence.wrapping_sub(1), sequence > start);
                start = sequence.saturating_add(1);
                if excused.waited_ns > 0 {
                    self.waited_ns.push(excused.waited_ns);
                }
            }
            keep(&mut self.missing, start, to, start <= to);
        }
        forgiven
    }
}

/// Judges a track; `None` stands for "nothing was received".
///
/// A subscriber is owed all that was sent, but for what it may rightly have missed: what came
/// before it subscribed, after it left, or while it was away. It was owed for certain what was sent
/// a margin ([`settled_ns`]) after it came, and long enough before it left. Where that cannot be
/// told from the rest, it is counted as not judged. That it left when all was sent excuses nothing.
pub fn judge(
    Published { sent, unpromised, resent }: Published<'_>,
    track: Option<&Track>,
    (heard, windows): (Heard, &[Window]),
    qos: u8,
) -> Verdict {
    let mut verdict = Verdict::new(sent, heard, qos);
    if track.is_none() && heard.since_ns > sent.last_ns {
        // Who came when all was sent is owed nothing.
        return verdict;
    }
    let empty = Track { generation: heard.generation, ..Track::default() };
    let (seen, none) = (track.unwrap_or(&empty), Amiss::default());
    let amiss = seen.amiss.as_deref().unwrap_or(&none);
    let broken_tail = seen.generation != heard.generation;
    verdict.interrupted = broken_tail || seen.skipped > 0 || heard.is_patchy;
    verdict.interrupted |= track.is_none() && heard.generation > 0;
    verdict.invented = u64::from(seen.next > sent.count);
    let holes = Holes::of(sent, track, (heard, windows), broken_tail);
    let (missing, unjudged) = holes.settle(&owed(sent, windows, heard));
    let overflowed = amiss.missing.overflowed.min(u64::from(sent.count));
    let count = &mut verdict.count;
    (count.lost, count.unjudged) = if heard.is_patchy { (0, overflowed) } else { (overflowed, 0) };
    count.unjudged += length(&unjudged) + amiss.skipped.overflowed.min(u64::from(sent.count));
    count.received = u64::from(seen.received) - verdict.invented;
    count.reordered = u64::from(amiss.reordered);
    if !heard.copies_may_repeat {
        count.duplicated = u64::from(amiss.duplicated);
        count.duplicated_marked = u64::from(amiss.duplicated_marked);
        let without_cause = amiss.repeats.without_cause(resent);
        count.duplicated_explained = u64::from(amiss.duplicated.saturating_sub(without_cause));
    }
    verdict.settle(&missing, unpromised, &unjudged);
    verdict
}

/// Numbers of a stream that did not come, as inclusive ranges in rising order.
#[derive(Default)]
struct Holes {
    /// They are owed.
    certain: Vec<Range>,
    /// They are, if they were sent while the subscriber was there for certain.
    doubtful: Vec<Range>,
}

impl Holes {
    fn of(
        sent: &Sent,
        track: Option<&Track>,
        (heard, windows): (Heard, &[Window]),
        broken_tail: bool,
    ) -> Self {
        let mut holes = Self::default();
        let Some(track) = track else {
            let all = [(0, sent.count)];
            let is_sure = windows.len() == 1 && !heard.is_patchy;
            let is_whole = heard.since_ns <= sent.first_ns && heard.until_ns >= sent.last_ns;
            holes.add(is_sure && is_whole, &all);
            return holes;
        };
        // Beyond what was sent there is nothing to be missed.
        let (first, next) = (track.first.min(sent.count), track.next.min(sent.count));
        let within = |ranges: &[Range]| -> Vec<Range> {
            let open = |&(from, to): &Range| (from, to.saturating_add(1).min(sent.count));
            ranges.iter().map(open).collect()
        };
        holes.add(false, &[(0, first)]);
        if let Some(amiss) = &track.amiss {
            holes.add(!heard.is_patchy, &within(&amiss.missing.ranges));
            holes.add(false, &within(&amiss.skipped.ranges));
        }
        let is_there = !broken_tail && !heard.is_patchy && heard.until_ns >= sent.last_ns;
        holes.add(is_there, &[(next, sent.count)]);
        holes
    }

    /// Adds half-open ranges.
    fn add(&mut self, is_certain: bool, ranges: &[Range]) {
        let list = if is_certain { &mut self.certain } else { &mut self.doubtful };
        list.extend(ranges.iter().filter(|(from, to)| from < to).map(|&(from, to)| (from, to - 1)));
    }

    /// What is lost, and what is not judged, by the half-open ranges that are owed for certain.
    fn settle(self, owed: &[Range]) -> (Vec<Range>, Vec<Range>) {
        let (mut missing, mut unjudged) = (self.certain, Vec::new());
        for (mut from, to) in self.doubtful {
            let low = from;
            for &(start, end) in owed.iter().filter(|range| range.1 > low && range.0 <= to) {
                if start > from {
                    unjudged.push((from, start - 1));
                }
                missing.push((start.max(from), to.min(end - 1)));
                from = end;
            }
            if from <= to {
                unjudged.push((from, to));
            }
        }
        missing.sort_unstable();
        unjudged.sort_unstable();
        (missing, unjudged)
    }
}

/// What was sent while the subscriber was there for certain: half-open ranges, rising and apart.
fn owed(sent: &Sent, windows: &[Window], heard: Heard) -> Vec<Range> {
    let mut all: Vec<Range> = Vec::new();
    for &(since_ns, until_ns) in windows {
        // What comes to an end after the last message ends for none of them.
        let until_ns = if until_ns < sent.last_ns { until_ns } else { u64::MAX };
        let since_ns = if since_ns > sent.first_ns { since_ns } else { 0 };
        let settled_ns = if since_ns > 0 { since_ns.saturating_add(heard.settled_ns) } else { 0 };
        let leaving_ns = match until_ns {
            u64::MAX => u64::MAX,
            _ => until_ns.saturating_sub(heard.patience_ns),
        };
        let (from, to) = sent.between(settled_ns, leaving_ns);
        let from = from.max(all.last().map_or(0, |last| last.1));
        if from < to {
            all.push((from, to));
        }
    }
    all
}

/// Of inclusive ranges.
fn length(ranges: &[Range]) -> u64 {
    ranges.iter().map(|&(from, to)| u64::from(to - from) + 1).sum()
}

/// So long after the acknowledgement of a subscription its broker delivers all that is published:
/// one of several nodes may not have told the others before. How long that may take is measured by
/// how long the broker took to answer at all. A fixed time would be one in which it may lose
/// everything.
pub fn settled_ns(subscribes: &LatencyHistogram) -> u64 {
    if subscribes.is_empty() {
        return SETTLED_NS_MAX;
    }
    let slow_us = subscribes.micros_at(SETTLED_PERCENTILE);
    slow_us.saturating_mul(SETTLED_TIMES * 1_000).clamp(SETTLED_NS_MIN, SETTLED_NS_MAX)
}

/// Of the times from a SUBSCRIBE to its SUBACK, and how many of them.
const SETTLED_PERCENTILE: f64 = 99.0;
const SETTLED_TIMES: u64 = 4;
/// The clocks of two agents agree less closely than a near broker answers.
const SETTLED_NS_MIN: u64 = 50_000_000;
const SETTLED_NS_MAX: u64 = 1_000_000_000;

/// Judges a subscriber that came when all was sent, and is owed the one message that the broker
/// retained: the latest that was promised, or a later one. `stored` is the number of what came.
/// Whoever did not stay for long enough (`has_stayed`) may have left before it.
pub fn judge_stored(
    Published { sent, unpromised, .. }: Published<'_>,
    stored: Option<u32>,
    has_stayed: bool,
    qos: u8,
) -> Verdict {
    let mut verdict = Verdict { joined_late: true, ..Verdict::default() };
    let count = &mut verdict.count;
    count.qos = qos;
    let is_promised = (unpromised.len() as u64) < u64::from(sent.count);
    match stored {
        Some(number) => {
            (count.expected, count.received) = (1, 1);
            let later = unpromised.iter().filter(|excused| excused.sequence > number).count();
            verdict.invented = u64::from(number >= sent.count);
            verdict.is_stale = (later as u64) + u64::from(number) + 1 < u64::from(sent.count);
        }
        None if has_stayed && is_promised => {
            (count.expected, count.lost) = (1, 1);
            verdict.missing = vec![(sent.count - 1, sent.count - 1)];
        }
        None => count.unjudged = 1,
    }
    verdict
}

/// Judges a shared group, by its bitmap. As long as one member is there, the group is owed all
/// (`windows`). `ends`: when connections of its members ended.
pub fn judge_shared(
    Published { sent, unpromised, resent }: Published<'_>,
    track: Option<&SharedTrack>,
    (heard, windows, ends): (Heard, &[Window], &BTreeSet<Slot>),
    qos: u8,
) -> Verdict {
    let mut verdict = Verdict::new(sent, heard, qos);
    verdict.interrupted = heard.generation > 0;
    let empty = SharedTrack::default();
    let seen = track.unwrap_or(&empty);
    let owed = owed(sent, windows, heard);
    let lowest = owed.first().map_or(sent.count, |range| range.0);
    let highest = owed.last().map_or(0, |range| range.1);
    let from = match verdict.joined_late {
        true => seen.first().unwrap_or(sent.count).min(lowest),
        false => 0,
    };
    let to = match heard.until_ns < sent.last_ns {
        true => seen.last_below(sent.count).map_or(from, |last| last + 1).max(highest),
        false => sent.count,
    };
    let all = seen.numbers().count() as u64;
    verdict.invented = seen.numbers().filter(|&number| number >= sent.count).count() as u64;
    let mut unjudged: Vec<Range> = [(0, from), (to, sent.count)]
        .into_iter()
        .filter(|(from, to)| from < to)
        .map(|(from, to)| (from, to - 1))
        .collect();
    let mut missing = seen.missing(from, to);
    if windows.len() > 1 {
        // At times there was no member.
        let holes = Holes { certain: Vec::new(), doubtful: missing };
        let (lost, aside) = holes.settle(&owed);
        missing = lost;
        unjudged.extend(aside);
    }
    let count = &mut verdict.count;
    count.received = all - verdict.invented;
    count.unjudged = length(&unjudged);
    count.duplicated = u64::from(seen.duplicated);
    count.duplicated_marked = u64::from(seen.duplicated_marked);
    // Whatever may take a message back: at QoS 0 nothing is under way when a connection ends.
    let nobody = BTreeSet::new();
    let ends = if qos == 0 { &nobody } else { ends };
    let without_cause =
        seen.repeats.without_cause(|sequence| sent.not_before(sequence), ends, resent);
    count.duplicated_explained = u64::from(seen.duplicated.saturating_sub(without_cause));
    verdict.settle(&missing, unpromised, &unjudged);
    verdict
}

fn keep(sample: &mut Vec<Range>, from: u32, to: u32, some: bool) {
    if some && sample.len() < MISSING_SAMPLE_MAX {
        sample.push((from, to));
    }
}

/// Ranges that a sample in the report shows.
const MISSING_SAMPLE_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::track::{RANGES_MAX, Session};
    use super::*;

    fn judge(
        sent: &Sent,
        unpromised: &[Unpromised],
        track: Option<&Track>,
        heard: Heard,
        qos: u8,
    ) -> Verdict {
        let windows = [(heard.since_ns, heard.until_ns)];
        super::judge(Published { sent, unpromised, resent: &[] }, track, (heard, &windows), qos)
    }

    fn judge_shared(
        sent: &Sent,
        unpromised: &[Unpromised],
        track: Option<&SharedTrack>,
        heard: Heard,
        qos: u8,
    ) -> Verdict {
        let published = Published { sent, unpromised, resent: &[] };
        let windows = [(heard.since_ns, heard.until_ns)];
        super::judge_shared(published, track, (heard, &windows, &BTreeSet::new()), qos)
    }

    const THERE: Heard = Heard {
        since_ns: 0,
        until_ns: u64::MAX,
        generation: 0,
        copies_may_repeat: false,
        is_patchy: false,
        settled_ns: SECOND_NS,
        patience_ns: SECOND_NS,
    };
    const SECOND_NS: u64 = 1_000_000_000;

    fn sent(count: u32) -> Sent {
        Sent::new(count, 1, 10, 100)
    }

    fn track_of(sequences: &[u32]) -> Track {
        let mut track = Track::default();
        for &sequence in sequences {
            track.receive(sequence, false, Session::default());
        }
        track
    }

    fn verdict(count: u32, unpromised: &[u32], sequences: &[u32]) -> IntegrityCount {
        judge(&sent(count), &excused(unpromised), Some(&track_of(sequences)), THERE, 1).count
    }

    fn excused(sequences: &[u32]) -> Vec<Unpromised> {
        sequences.iter().map(|&sequence| Unpromised { sequence, waited_ns: 0 }).collect()
    }

    #[test]
    fn all_in_order_is_clean() {
        let count = verdict(3, &[], &[0, 1, 2]);
        assert_eq!((count.expected, count.received, count.lost), (3, 3, 0));
        assert_eq!((count.duplicated, count.reordered), (0, 0));
    }

    #[test]
    fn a_hole_is_lost_wherever_it_is() {
        assert_eq!(verdict(4, &[], &[1, 2, 3]).lost, 1);
        assert_eq!(verdict(4, &[], &[0, 2, 3]).lost, 1);
        assert_eq!(verdict(4, &[], &[0, 1, 2]).lost, 1);
        assert_eq!(verdict(4, &[], &[0, 3]).expected, 4);
        let nothing = judge(&sent(4), &[], None, THERE, 1);
        assert_eq!((nothing.count.lost, nothing.missing), (4, vec![(0, 3)]));
    }

    #[test]
    fn a_late_message_is_reordered_and_not_lost() {
        let count = verdict(4, &[], &[0, 2, 1, 3]);
        assert_eq!((count.lost, count.reordered, count.duplicated), (0, 1, 0));
        let count = verdict(4, &[], &[3, 0, 1, 2]);
        assert_eq!((count.lost, count.reordered, count.duplicated), (0, 3, 0));
        let count = verdict(4, &[], &[2, 0, 3]);
        assert_eq!((count.lost, count.reordered, count.duplicated), (1, 1, 0));
    }

    #[test]
    fn a_second_copy_is_a_duplicate() {
        let count = verdict(3, &[], &[0, 1, 1, 2, 0]);
        assert_eq!((count.lost, count.duplicated, count.received), (0, 2, 3));
        assert_eq!(count.duplicated_without_cause(), 2);
        let (sent, track) = (sent(3), track_of(&[0, 1, 1, 2, 0]));
        let published = Published { sent: &sent, unpromised: &[], resent: &[1, 2] };
        let count = super::judge(published, Some(&track), (THERE, &[(0, u64::MAX)]), 1).count;
        assert_eq!((count.duplicated, count.duplicated_without_cause()), (2, 1));
    }

    #[test]
    fn what_nobody_promised_is_not_missed() {
        let count = verdict(5, &[1, 4], &[0, 2]);
        assert_eq!((count.lost, count.expected, count.received), (1, 3, 2));
        let count = verdict(5, &[1, 4], &[0, 1, 2, 3]);
        assert_eq!((count.lost, count.expected), (0, 3));
        assert_eq!(count.unacknowledged_received, 1);
    }

    #[test]
    fn a_late_subscriber_is_owed_nothing_from_before() {
        let late = Heard { since_ns: 50, ..THERE };
        let verdict = judge(&sent(5), &[], Some(&track_of(&[2, 4])), late, 1);
        assert!(verdict.joined_late);
        assert_eq!((verdict.count.lost, verdict.count.expected), (1, 3));
        let nothing = judge(&sent(5), &[], None, late, 1).count;
        assert_eq!((nothing.lost, nothing.unjudged), (0, 5));
        let after = Heard { since_ns: 101, ..THERE };
        assert_eq!(judge(&sent(5), &[], None, after, 1).count.unjudged, 0);
    }

    #[test]
    fn a_subscriber_that_left_is_owed_nothing_after() {
        let left = Heard { until_ns: 60, ..THERE };
        let verdict = judge(&sent(9), &[], Some(&track_of(&[0, 2])), left, 1);
        // Of the six behind the last it is not known how many were sent before it left.
        assert_eq!((verdict.count.lost, verdict.count.unjudged), (1, 6));
    }

    #[test]
    fn a_planned_end_excuses_nothing() {
        let left = Heard { until_ns: 101, ..THERE };
        for qos in 0..3 {
            let verdict = judge(&sent(9), &[], Some(&track_of(&[0, 2])), left, qos);
            assert_eq!((verdict.count.lost, verdict.count.unjudged), (7, 0));
            assert_eq!(judge(&sent(9), &[], None, left, qos).count.lost, 9);
            let mut track = SharedTrack::default();
            track.receive(0, false, (0, 0));
            let left = Heard { generation: 3, ..left };
            let shared = judge_shared(&sent(9), &[], Some(&track), left, qos);
            assert_eq!((shared.count.lost, shared.count.unjudged), (8, 0));
        }
    }

    #[test]
    fn a_number_that_nobody_sent_costs_a_page_and_makes_no_losses() {
        let mut track = track_of(&[0, 1]);
        track.receive(u32::MAX - 5, false, Session::default());
        track.receive(2, false, Session::default());
        let verdict = judge(&sent(3), &[], Some(&track), THERE, 0);
        assert_eq!((verdict.count.lost, verdict.invented), (0, 1));
        assert_eq!((verdict.count.received, verdict.count.expected), (3, 3));
        let mut shared = SharedTrack::default();
        for sequence in [0, u32::MAX, 1, 2] {
            shared.receive(sequence, false, (0, 0));
        }
        assert_eq!(shared.pages.len(), 2);
        let verdict = judge_shared(&sent(3), &[], Some(&shared), THERE, 0);
        assert_eq!((verdict.count.lost, verdict.invented, verdict.count.received), (0, 1, 3));
    }

    #[test]
    fn what_was_never_acknowledged_and_did_not_come_has_waited() {
        let waiting = [Unpromised { sequence: 1, waited_ns: 70 }];
        let verdict = judge(&sent(2), &waiting, Some(&track_of(&[0])), THERE, 1);
        assert_eq!((verdict.count.lost, verdict.waited_ns), (0, vec![70]));
        let verdict = judge(&sent(2), &waiting, Some(&track_of(&[0, 1])), THERE, 1);
        assert!(verdict.waited_ns.is_empty());
    }

    #[test]
    fn a_break_excuses_the_messages_of_the_break_only() {
        let mut track = track_of(&[0, 2]);
        for sequence in [7, 9] {
            track.receive(sequence, false, Session { generation: 1, ..Session::default() });
        }
        let heard = Heard { generation: 1, ..THERE };
        let verdict = judge(&sent(10), &[], Some(&track), heard, 0);
        assert!(verdict.interrupted);
        // One window is none with a break: all is owed.
        assert_eq!(verdict.count.lost, 6);
        let windows = [(0, 20), (50, u64::MAX)];
        let sent = sent(10);
        let published = Published { sent: &sent, unpromised: &[], resent: &[] };
        let verdict = super::judge(published, Some(&track), (heard, &windows), 0);
        assert_eq!((verdict.count.lost, verdict.missing), (2, vec![(1, 1), (8, 8)]));
        assert_eq!((verdict.count.expected, verdict.count.unjudged), (6, 4));
    }

    /// A message each second from the first on.
    fn slow(count: u32) -> Sent {
        let mut sent = Sent::default();
        (1..=u64::from(count)).for_each(|at| sent.note(1, at * SECOND_NS, 64));
        sent
    }

    fn lost(sent: &Sent, track: Option<&Track>, heard: Heard, windows: &[Window]) -> (u64, u64) {
        let published = Published { sent, unpromised: &[], resent: &[] };
        let count = super::judge(published, track, (heard, windows), 1).count;
        assert_eq!(count.expected, count.received + count.lost);
        (count.lost, count.unjudged)
    }

    #[test]
    fn what_is_sent_a_second_after_a_subscriber_came_is_owed() {
        let sent = slow(20);
        let since_ns = 5 * SECOND_NS + 1;
        let late = Heard { since_ns, ..THERE };
        let all = [(since_ns, u64::MAX)];
        // Those of the 7th second on, the first ones of which came a moment too early.
        assert_eq!(lost(&sent, None, late, &all), (14, 6));
        assert_eq!(lost(&sent, Some(&track_of(&[9])), late, &all), (13, 6));
        // What comes earlier shows that it was there.
        assert_eq!(lost(&sent, Some(&track_of(&[5, 9])), late, &all), (13, 5));
    }

    /// A message every 20 ms from the first second on.
    fn steady(count: u32) -> Sent {
        let mut sent = Sent::default();
        (0..u64::from(count)).for_each(|n| sent.note(1, SECOND_NS + n * 20_000_000, 1_024));
        sent
    }

    #[test]
    fn the_margin_is_what_the_broker_needs_to_answer() {
        let of = |micros: &[u64]| {
            let mut histogram = LatencyHistogram::new();
            micros.iter().for_each(|us| histogram.record_micros_n(*us, 1));
            settled_ns(&histogram) / 1_000_000
        };
        assert_eq!(of(&[]), 1_000, "nothing is known");
        assert_eq!(of(&[200; 100]), 50);
        assert!((78..=82).contains(&of(&[20_000; 100])));
        assert_eq!(of(&[&[100; 999][..], &[20_000]].concat()), 50, "one slow answer is none");
        assert_eq!(of(&[700_000; 10]), 1_000);
    }

    #[test]
    fn a_broker_that_swallows_what_comes_behind_a_suback_loses_it() {
        // A subscriber comes after half a second, and gets what is sent 0.9 s later.
        let since_ns = SECOND_NS + 500_000_000;
        let late = Heard { since_ns, settled_ns: 50_000_000, ..THERE };
        let all = [(since_ns, u64::MAX)];
        let came: Vec<u32> = (70..200).collect();
        // 25 were sent before it came, and times are known every 100 ms.
        assert_eq!(lost(&steady(200), Some(&track_of(&came)), late, &all), (40, 30));
        assert_eq!(lost(&steady(200), None, late, &all), (170, 30));
        // All within that time.
        assert_eq!(lost(&steady(60), None, late, &all), (30, 30));
        let patient = Heard { settled_ns: SECOND_NS, ..late };
        assert_eq!(lost(&steady(60), None, patient, &all).0, 0);
    }

    #[test]
    fn what_is_sent_long_before_a_subscriber_left_is_owed() {
        let sent = slow(20);
        let left = Heard { until_ns: 10 * SECOND_NS, patience_ns: 3 * SECOND_NS, ..THERE };
        let windows = [(0, left.until_ns)];
        assert_eq!(lost(&sent, None, left, &windows), (6, 14));
        assert_eq!(lost(&sent, Some(&track_of(&[0, 3])), left, &windows), (4, 14));
        assert_eq!(lost(&sent, Some(&track_of(&[0, 8])), left, &windows), (7, 11));
    }

    #[test]
    fn a_break_excuses_what_was_sent_around_it() {
        let sent = slow(30);
        let heard = Heard { generation: 1, patience_ns: 2 * SECOND_NS, ..THERE };
        let windows = [(0, 10 * SECOND_NS), (15 * SECOND_NS + 1, u64::MAX)];
        // Up to the 7th second, and from the 17th on.
        assert_eq!(lost(&sent, None, heard, &windows), (7 + 14, 9));
        assert_eq!(lost(&sent, Some(&track_of(&[0, 1])), heard, &windows), (5 + 14, 9));
        let patchy = Heard { is_patchy: true, generation: 0, ..heard };
        assert_eq!(lost(&sent, Some(&track_of(&[1, 29])), patchy, &windows), (6 + 13, 9));
    }

    #[test]
    fn a_group_is_owed_nothing_while_none_of_its_members_is_there() {
        let sent = slow(30);
        let heard = Heard { patience_ns: 2 * SECOND_NS, ..THERE };
        let mut track = SharedTrack::default();
        for sequence in (0..5).chain([9, 20]) {
            track.receive(sequence, false, (0, 0));
        }
        let lost = |windows: &[Window]| {
            let published = Published { sent: &sent, unpromised: &[], resent: &[] };
            let heard = (heard, windows, &BTreeSet::new());
            let count = super::judge_shared(published, Some(&track), heard, 1).count;
            assert_eq!(count.expected, count.received + count.lost);
            (count.lost, count.unjudged)
        };
        assert_eq!(lost(&[(0, u64::MAX)]), (23, 0));
        // As `a_break_excuses_what_was_sent_around_it`.
        assert_eq!(lost(&[(0, 10 * SECOND_NS), (15 * SECOND_NS + 1, u64::MAX)]), (2 + 13, 8));
    }

    #[test]
    fn a_group_is_owed_what_is_sent_while_a_member_is_there_for_certain() {
        let sent = slow(20);
        let heard = Heard {
            since_ns: 5 * SECOND_NS + 1,
            until_ns: 15 * SECOND_NS,
            patience_ns: 2 * SECOND_NS,
            ..THERE
        };
        let count = judge_shared(&sent, &[], None, heard, 1).count;
        assert_eq!((count.lost, count.unjudged), (6, 14));
        let mut track = SharedTrack::default();
        track.receive(5, false, (0, 0));
        track.receive(14, false, (0, 0));
        let count = judge_shared(&sent, &[], Some(&track), heard, 1).count;
        assert_eq!((count.lost, count.unjudged), (8, 10));
    }

    #[test]
    fn a_retained_message_is_owed_if_any_was_promised_and_is_the_latest_of_those() {
        let sent = Sent::new(5, 1, 1, 2);
        let open = |sequence| Unpromised { sequence, waited_ns: 0 };
        let judge = |unpromised: &[Unpromised], stored, has_stayed| {
            let verdict = judge_stored(
                Published { sent: &sent, unpromised, resent: &[] },
                stored,
                has_stayed,
                1,
            );
            let IntegrityCount { expected, received, lost, unjudged, .. } = verdict.count;
            (expected, received, lost, unjudged, verdict.is_stale, verdict.invented)
        };
        assert_eq!(judge(&[], Some(4), true), (1, 1, 0, 0, false, 0));
        assert_eq!(judge(&[], Some(3), true), (1, 1, 0, 0, true, 0));
        assert_eq!(judge(&[open(4)], Some(3), true), (1, 1, 0, 0, false, 0), "nobody promised it");
        assert_eq!(judge(&[], Some(5), true), (1, 1, 0, 0, false, 1), "nobody sent it");
        assert_eq!(judge(&[], None, true), (1, 0, 1, 0, false, 0));
        assert_eq!(judge(&[], None, false), (0, 0, 0, 1, false, 0), "it left early");
        let none: Vec<Unpromised> = (0..5).map(open).collect();
        assert_eq!(judge(&none, None, true), (0, 0, 0, 1, false, 0));
    }

    #[test]
    fn a_shared_group_is_judged_as_a_whole() {
        let (mut left, mut right) = (SharedTrack::default(), SharedTrack::default());
        for sequence in 0..200 {
            if sequence == 77 {
                continue;
            }
            if sequence % 2 == 0 { &mut left } else { &mut right }.receive(sequence, false, (0, 0));
        }
        right.receive(100, true, (0, 0));
        left.merge(&right);
        let verdict = judge_shared(&sent(200), &[], Some(&left), THERE, 1);
        assert_eq!((verdict.count.lost, verdict.count.duplicated), (1, 1));
        assert_eq!(verdict.missing, [(77, 77)]);
        assert_eq!(judge_shared(&sent(200), &excused(&[77]), Some(&left), THERE, 1).count.lost, 0);
        assert_eq!(judge_shared(&sent(5), &[], None, THERE, 1).count.lost, 5);
    }

    #[test]
    fn holes_beyond_the_limit_still_count() {
        let mut track = Track::default();
        let holes = RANGES_MAX as u32 + 10;
        for sequence in 0..=holes {
            track.receive(sequence * 2, false, Session::default());
        }
        let verdict = judge(&sent(holes * 2 + 1), &[], Some(&track), THERE, 1);
        assert_eq!(verdict.count.lost, u64::from(holes));
        assert_eq!(verdict.missing.len(), MISSING_SAMPLE_MAX);
    }
}
