//! What was received, held against what was sent.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::repeats::{Slot, slot};
use super::sent::{Published, Sent, Unpromised};
use super::shared::SharedTrack;
use super::track::{Amiss, Track};
use crate::IntegrityCount;

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
}

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

    /// Books what is missing in the part of the stream that is owed. `here` is how many of the
    /// unpromised it holds.
    fn settle(&mut self, missing: &[(u32, u32)], unpromised: &[Unpromised], here: u64) {
        let all_missing: u64 = missing.iter().map(|&(a, b)| u64::from(b - a) + 1).sum();
        let forgiven = self.forgive(missing, unpromised);
        let count = &mut self.count;
        count.lost += all_missing - forgiven;
        count.unacknowledged_received = here.saturating_sub(forgiven);
        count.expected =
            (count.received + count.lost).saturating_sub(count.unacknowledged_received);
    }

    /// Counts the missing messages that nobody promised, and keeps a sample of the others.
    fn forgive(&mut self, missing: &[(u32, u32)], unpromised: &[Unpromised]) -> u64 {
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
/// before it subscribed, after it left, or while it was away. Where that cannot be told from loss,
/// it is counted as not judged. That it left when all was sent excuses nothing.
pub fn judge(
    Published { sent, unpromised, resent }: Published<'_>,
    track: Option<&Track>,
    heard: Heard,
    qos: u8,
) -> Verdict {
    let mut verdict = Verdict::new(sent, heard, qos);
    let left_early = heard.until_ns < sent.last_ns;
    let empty = Track { generation: heard.generation, ..Track::default() };
    let seen = track.unwrap_or(&empty);
    let broken_tail = seen.generation != heard.generation;
    verdict.interrupted = broken_tail || seen.skipped > 0;
    if track.is_none() && (verdict.joined_late || left_early || heard.generation > 0) {
        verdict.interrupted |= heard.generation > 0;
        // Who came when all was sent is owed nothing.
        let came_after = heard.since_ns > sent.last_ns;
        verdict.count.unjudged = if came_after { 0 } else { u64::from(sent.count) };
        return verdict;
    }
    // Beyond what was sent there is nothing to be missed.
    let next = seen.next.min(sent.count);
    let first = seen.first.min(sent.count);
    verdict.invented = u64::from(seen.next > sent.count);
    let from = if verdict.joined_late { first } else { 0 };
    let to = if left_early || broken_tail { next } else { sent.count };
    verdict.count.unjudged =
        u64::from(from) + u64::from(sent.count - to) + u64::from(seen.skipped.min(sent.count));
    let mut missing = Vec::new();
    if track.is_some() && first > from {
        missing.push((from, first - 1));
    }
    let none = Amiss::default();
    let amiss = seen.amiss.as_deref().unwrap_or(&none);
    let ranges = &amiss.missing;
    let within = ranges.ranges.iter().filter(|range| range.0 < sent.count);
    missing.extend(within.map(|&(a, b)| (a, b.min(sent.count - 1))));
    verdict.count.lost += ranges.overflowed.min(u64::from(sent.count));
    if next < to {
        missing.push((next, to - 1));
    }
    let count = &mut verdict.count;
    count.received = u64::from(seen.received) - verdict.invented;
    count.reordered = u64::from(amiss.reordered);
    if !heard.copies_may_repeat {
        count.duplicated = u64::from(amiss.duplicated);
        count.duplicated_marked = u64::from(amiss.duplicated_marked);
        let without_cause = amiss.repeats.without_cause(resent);
        count.duplicated_explained = u64::from(amiss.duplicated.saturating_sub(without_cause));
    }
    let here = from..to;
    let came = unpromised.iter().filter(|excused| here.contains(&excused.sequence)).count();
    verdict.settle(&missing, unpromised, came as u64);
    verdict
}

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

/// Judges a shared group, by its bitmap. As long as one member is there, the group is owed all.
/// `ends`: when connections of its members ended.
pub fn judge_shared(
    Published { sent, unpromised, resent }: Published<'_>,
    track: Option<&SharedTrack>,
    (heard, ends): (Heard, &BTreeSet<Slot>),
    qos: u8,
) -> Verdict {
    let mut verdict = Verdict::new(sent, heard, qos);
    verdict.interrupted = heard.generation > 0;
    let left_early = heard.until_ns < sent.last_ns;
    let empty = SharedTrack::default();
    let seen = track.unwrap_or(&empty);
    let from = match verdict.joined_late {
        true => seen.first().unwrap_or(sent.count).min(sent.count),
        false => 0,
    };
    let to = match left_early {
        true => seen.last_below(sent.count).map_or(from, |last| last + 1),
        false => sent.count,
    };
    let all = seen.numbers().count() as u64;
    verdict.invented = seen.numbers().filter(|&number| number >= sent.count).count() as u64;
    let count = &mut verdict.count;
    count.received = all - verdict.invented;
    count.unjudged = u64::from(from) + u64::from(sent.count - to);
    count.duplicated = u64::from(seen.duplicated);
    count.duplicated_marked = u64::from(seen.duplicated_marked);
    // Whatever may take a message back: at QoS 0 nothing is under way when a connection ends.
    let nobody = BTreeSet::new();
    let ends = if qos == 0 { &nobody } else { ends };
    let sent_from = |_| slot(sent.first_ns);
    let without_cause = seen.repeats.without_cause(sent_from, ends, resent);
    count.duplicated_explained = u64::from(seen.duplicated.saturating_sub(without_cause));
    let mut missing: Vec<(u32, u32)> = Vec::new();
    for sequence in (from..to).filter(|&sequence| !seen.has(sequence)) {
        match missing.last_mut() {
            Some(range) if range.1 + 1 == sequence => range.1 = sequence,
            _ => missing.push((sequence, sequence)),
        }
    }
    let here = from..to;
    let came = unpromised.iter().filter(|excused| here.contains(&excused.sequence)).count();
    verdict.settle(&missing, unpromised, came as u64);
    verdict
}

fn keep(sample: &mut Vec<(u32, u32)>, from: u32, to: u32, some: bool) {
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
        super::judge(Published { sent, unpromised, resent: &[] }, track, heard, qos)
    }

    fn judge_shared(
        sent: &Sent,
        unpromised: &[Unpromised],
        track: Option<&SharedTrack>,
        heard: Heard,
        qos: u8,
    ) -> Verdict {
        let published = Published { sent, unpromised, resent: &[] };
        super::judge_shared(published, track, (heard, &BTreeSet::new()), qos)
    }

    const THERE: Heard =
        Heard { since_ns: 0, until_ns: u64::MAX, generation: 0, copies_may_repeat: false };

    fn sent(count: u32) -> Sent {
        Sent { count, qos: 1, first_ns: 10, last_ns: 100 }
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
        let count = super::judge(published, Some(&track), THERE, 1).count;
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
        assert_eq!((verdict.count.lost, verdict.missing), (2, vec![(1, 1), (8, 8)]));
    }

    #[test]
    fn a_retained_message_is_owed_if_any_was_promised_and_is_the_latest_of_those() {
        let sent = Sent { count: 5, qos: 1, first_ns: 1, last_ns: 2 };
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
