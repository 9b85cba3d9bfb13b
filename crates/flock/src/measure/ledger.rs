//! Integrity: who sent what, who received what, and what is missing.
//!
//! A **stream** is one publisher's messages on one topic; its messages are numbered 0, 1, 2, ... in
//! the payload. Each load thread keeps a [`Ledger`]: for its publishers what was sent on each
//! stream, for its subscribers a [`Track`] per stream. At the end all that was sent comes together
//! in a [`SentTable`], and every track is judged against it with [`judge`].
//!
//! A track is 56 bytes while nothing is amiss. Members of a shared group divide a stream among
//! them, so there the whole group has one bitmap per stream ([`SharedTrack`]), merged over threads
//! and agents. What is left of order there is that of each member's part of a stream.

use std::collections::BTreeMap;

use codec::AckKind;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::results::IntegrityCount;

/// Number of a stream, unique in a run: see [`crate::engine::plan`].
pub type StreamId = u32;

/// What was sent on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Messages so far, which is also the next sequence number.
    pub count: u32,
    pub qos: u8,
    /// When the first and the last message were handed to the kernel, nanoseconds of the run's
    /// clock.
    pub first_ns: u64,
    pub last_ns: u64,
}

/// Everything that was sent in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentTable {
    pub streams: BTreeMap<StreamId, Sent>,
    /// QoS 1 and 2 messages that were never acknowledged, or refused: nobody promised them.
    pub unpromised: BTreeMap<StreamId, Vec<Unpromised>>,
    /// Messages that were acknowledged with "no matching subscribers", by number.
    #[serde(default)]
    pub unheard: BTreeMap<StreamId, Vec<u32>>,
}

/// A message that its publisher has no promise for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unpromised {
    pub sequence: u32,
    /// How long it had waited, since it was due, when the run ended or it was refused; 0 where that
    /// is no latency of the measured stages.
    pub waited_ns: u64,
}

impl SentTable {
    pub fn merge(&mut self, other: Self) {
        // Each stream has one publisher, which runs in one place: keys never meet.
        self.streams.extend(other.streams);
        for (stream, sequences) in other.unpromised {
            self.unpromised.entry(stream).or_default().extend(sequences);
        }
        for (stream, sequences) in other.unheard {
            self.unheard.entry(stream).or_default().extend(sequences);
        }
    }

    pub fn sort(&mut self) {
        for sequences in self.unpromised.values_mut() {
            sequences.sort_unstable();
            sequences.dedup_by_key(|unpromised| unpromised.sequence);
        }
    }

    pub fn unpromised_of(&self, stream: StreamId) -> &[Unpromised] {
        self.unpromised.get(&stream).map_or(&[], Vec::as_slice)
    }

    pub fn unpromised_count(&self) -> u64 {
        self.unpromised.values().map(|sequences| sequences.len() as u64).sum()
    }
}

/// What one subscriber received of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The sequence number after the highest received.
    next: u32,
    /// The first one received, below which nothing is judged when the subscriber came late.
    first: u32,
    received: u32,
    duplicated: u32,
    duplicated_marked: u32,
    reordered: u32,
    /// Bumped by the client when messages may rightly have passed it by.
    generation: u16,
    /// Some messages were skipped over such a break.
    skipped: u32,
    missing: Option<Box<Ranges>>,
}

/// Missing sequence numbers, as inclusive ranges in rising order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges {
    ranges: Vec<(u32, u32)>,
    /// Missing numbers dropped from `ranges` for want of room: they count as lost even if they
    /// come.
    overflowed: u64,
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

/// What a shared group received of one stream: a bit per message, in pages, so that a number out of
/// all proportion costs one page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedTrack {
    /// By number of the page; [`PAGE_WORDS`] each.
    pages: BTreeMap<u32, Vec<u64>>,
    duplicated: u32,
    duplicated_marked: u32,
}

impl SharedTrack {
    pub fn receive(&mut self, sequence: u32, dup: bool) -> Receipt {
        let (page, word, bit) = place(sequence);
        let words = self.pages.entry(page).or_insert_with(|| vec![0; PAGE_WORDS]);
        if words[word] & bit != 0 {
            self.duplicated += 1;
            self.duplicated_marked += u32::from(dup);
            return Receipt::Duplicate;
        }
        words[word] |= bit;
        Receipt::InOrder
    }

    /// Joins what another thread saw of the same group and stream.
    pub fn merge(&mut self, other: &Self) {
        self.duplicated += other.duplicated;
        self.duplicated_marked += other.duplicated_marked;
        for (&page, theirs) in &other.pages {
            let words = self.pages.entry(page).or_insert_with(|| vec![0; PAGE_WORDS]);
            for (mine, theirs) in words.iter_mut().zip(theirs) {
                self.duplicated += (*mine & theirs).count_ones();
                *mine |= theirs;
            }
        }
    }

    pub fn has(&self, sequence: u32) -> bool {
        let (page, word, bit) = place(sequence);
        self.pages.get(&page).is_some_and(|words| words[word] & bit != 0)
    }

    fn first(&self) -> Option<u32> {
        self.numbers().next()
    }

    /// The last one below `end`.
    fn last_below(&self, end: u32) -> Option<u32> {
        (0..end).rev().find(|&sequence| self.has(sequence))
    }

    /// All numbers received, rising.
    fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.pages.iter().flat_map(|(&page, words)| {
            let bits = words.iter().enumerate().flat_map(|(at, &word)| {
                (0..64_u32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| (at, bit))
            });
            bits.map(move |(at, bit)| page * PAGE_NUMBERS + at as u32 * 64 + bit)
        })
    }
}

/// Page, word in it, bit in that.
fn place(sequence: u32) -> (u32, usize, u64) {
    let within = sequence % PAGE_NUMBERS;
    (sequence / PAGE_NUMBERS, within as usize / 64, 1 << (within % 64))
}

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
    sent: &Sent,
    unpromised: &[Unpromised],
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
    if let Some(ranges) = &seen.missing {
        let within = ranges.ranges.iter().filter(|range| range.0 < sent.count);
        missing.extend(within.map(|&(a, b)| (a, b.min(sent.count - 1))));
        verdict.count.lost += ranges.overflowed.min(u64::from(sent.count));
    }
    if next < to {
        missing.push((next, to - 1));
    }
    let count = &mut verdict.count;
    count.received = u64::from(seen.received) - verdict.invented;
    count.reordered = u64::from(seen.reordered);
    if !heard.copies_may_repeat {
        count.duplicated = u64::from(seen.duplicated);
        count.duplicated_marked = u64::from(seen.duplicated_marked);
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
    sent: &Sent,
    unpromised: &[Unpromised],
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
pub fn judge_shared(
    sent: &Sent,
    unpromised: &[Unpromised],
    track: Option<&SharedTrack>,
    heard: Heard,
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

/// Which shared group: the subscription and the position of its filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShareKey {
    pub subscription: u32,
    pub filter: u32,
}

/// How a client came to hear a stream, found out at the first message and remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Plain {
        routed: bool,
        qos: Agreed,
    },
    Shared {
        key: ShareKey,
        routed: bool,
        qos: Agreed,
    },
    /// No subscription of the client's matches.
    Misrouted,
}

/// The QoS that deliveries may have: that of the publish, or that of the subscription if it is
/// lower. Where several subscriptions of a client match, each may bring a copy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub low: u8,
    pub high: u8,
}

impl Path {
    /// The same, where the broker granted no more than this.
    pub fn granted(mut self, granted: u8) -> Self {
        if let Self::Plain { qos, .. } | Self::Shared { qos, .. } = &mut self {
            *qos = Agreed { low: qos.low.min(granted), high: qos.high.min(granted) };
        }
        self
    }

    /// What was agreed; nothing where nobody asked.
    pub fn agreed(self) -> Option<Agreed> {
        match self {
            Self::Plain { qos, .. } | Self::Shared { qos, .. } => Some(qos),
            Self::Misrouted => None,
        }
    }
}

/// One thread's receipts.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By local client and stream.
    tracks: HashMap<(u32, StreamId), Entry>,
    pub shared: HashMap<(ShareKey, StreamId), SharedTrack>,
    /// By local client: the streams of which it got what the broker had retained, a bit each.
    stored: HashMap<u32, SharedTrack>,
    /// Their numbers, where they are not the first of their stream.
    stored_numbers: HashMap<(u32, StreamId), u32>,
    /// Retained messages that came again to who had asked once.
    pub repeated_stored: u64,
    pub lost_so_far: i64,
    pub duplicated_so_far: u64,
    pub misrouted: u64,
    /// Came with another QoS than was agreed.
    pub wrong_qos: u64,
    pub wrong_topic: u64,
    pub wrong_retain: u64,
    /// Marked DUP, and never sent before.
    pub wrong_dup: u64,
    pub repeated_pubacks: u64,
    pub repeated_pubrecs: u64,
    pub repeated_pubcomps: u64,
    pub repeated_pubrels: u64,
    /// Other properties than were published.
    pub wrong_properties: u64,
    /// Identifiers of subscriptions that do not match, or none.
    pub wrong_identifiers: u64,
    /// QoS 2 messages that came and were not released when their receiver left.
    pub unreleased: u64,
    /// Silent clients whose connection the broker kept.
    pub unnoticed: u64,
    /// Packets that no broker may send, or not then.
    pub breaches: u64,
    /// Sessions that the broker was to keep for a client, and had not when it came back.
    pub forgotten: u64,
    /// QoS 2 messages that were sent again on the connection on which they had come.
    pub repeated: u64,
    /// QoS 2 messages of ours that the broker took, and whose exchange it did not end.
    pub uncompleted: u64,
    /// Not what was sent.
    pub damaged: u64,
    /// Came to a member of a shared group after a later message of the same stream.
    pub reordered_in_groups: u64,
}

#[derive(Debug)]
struct Entry {
    path: Path,
    /// Of a member of a shared group only `next` is kept.
    track: Track,
}

/// A received message, as far as integrity goes.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub client: u32,
    pub stream: StreamId,
    pub sequence: u32,
    pub dup: bool,
    /// An earlier connection of the session may have had it.
    pub may_be_dup: bool,
    pub qos: u8,
    /// The client's count of breaks over which QoS 0 may be missed, and of those over which
    /// everything may.
    pub generations: (u16, u16),
}

impl Ledger {
    /// Notes a receipt and tells by which path it came. `find` is asked once per client and stream.
    #[inline]
    pub fn receive(&mut self, message: Received, find: impl FnOnce() -> Path) -> Path {
        let entry = self
            .tracks
            .entry((message.client, message.stream))
            .or_insert_with(|| Entry { path: find(), track: Track::default() });
        if let Some(agreed) = entry.path.agreed() {
            self.wrong_qos += u64::from(!(agreed.low..=agreed.high).contains(&message.qos));
        }
        let receipt = match entry.path {
            Path::Plain { qos, .. } => {
                let (fleeting, kept) = message.generations;
                let generation = if qos.high == 0 { fleeting } else { kept };
                let receipt = entry.track.receive(message.sequence, message.dup, generation);
                let is_first = !message.may_be_dup && receipt != Receipt::Duplicate;
                self.wrong_dup += u64::from(message.dup && is_first);
                receipt
            }
            Path::Shared { key, .. } => {
                let track = self.shared.entry((key, message.stream)).or_default();
                let receipt = track.receive(message.sequence, message.dup);
                // A repeat, and what another member gave back, come when they may.
                let is_new = receipt != Receipt::Duplicate && !message.dup;
                let is_late = message.sequence < entry.track.next;
                self.reordered_in_groups += u64::from(is_new && is_late);
                entry.track.next = entry.track.next.max(message.sequence.saturating_add(1));
                receipt
            }
            Path::Misrouted => {
                self.misrouted += 1;
                Receipt::InOrder
            }
        };
        match receipt {
            Receipt::InOrder => {}
            Receipt::Gap(missing) => self.lost_so_far += i64::from(missing),
            Receipt::Late => self.lost_so_far -= 1,
            Receipt::Duplicate => self.duplicated_so_far += 1,
        }
        entry.path
    }

    /// An answer came for which there was nothing left to answer.
    pub fn count_repeated_ack(&mut self, kind: AckKind) {
        match kind {
            AckKind::Puback => self.repeated_pubacks += 1,
            AckKind::Pubrec => self.repeated_pubrecs += 1,
            AckKind::Pubcomp => self.repeated_pubcomps += 1,
            AckKind::Pubrel => self.repeated_pubrels += 1,
        }
    }

    /// A retained message came because the client subscribed. `may_repeat`: it did more than once.
    pub fn receive_stored(
        &mut self,
        client: u32,
        stream: StreamId,
        sequence: u32,
        may_repeat: bool,
    ) {
        let receipt = self.stored.entry(client).or_default().receive(stream, false);
        self.repeated_stored += u64::from(receipt == Receipt::Duplicate && !may_repeat);
        if sequence > 0 {
            let latest = self.stored_numbers.entry((client, stream)).or_default();
            *latest = sequence.max(*latest);
        }
    }

    /// The number of the retained message that came of a stream.
    pub fn stored(&self, client: u32, stream: StreamId) -> Option<u32> {
        let has_come = self.stored.get(&client).is_some_and(|streams| streams.has(stream));
        let number = || self.stored_numbers.get(&(client, stream)).copied().unwrap_or(0);
        has_come.then(number)
    }

    pub fn track(&self, client: u32, stream: StreamId) -> Option<&Track> {
        self.tracks.get(&(client, stream)).map(|entry| &entry.track)
    }

    /// Pairs known, for the estimate of memory.
    pub fn len(&self) -> usize {
        self.tracks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tracks.is_empty()
    }
}

/// A page has so many words of 64 numbers.
const PAGE_WORDS: usize = 64;
const PAGE_NUMBERS: u32 = PAGE_WORDS as u32 * 64;
/// Ranges of missing messages that one track keeps; a subscriber with more holes than that has lost
/// its claim to a precise account, not to the count.
const RANGES_MAX: usize = 4_096;
/// Ranges that a sample in the report shows.
const MISSING_SAMPLE_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Heard =
        Heard { since_ns: 0, until_ns: u64::MAX, generation: 0, copies_may_repeat: false };

    fn sent(count: u32) -> Sent {
        Sent { count, qos: 1, first_ns: 10, last_ns: 100 }
    }

    fn track_of(sequences: &[u32]) -> Track {
        let mut track = Track::default();
        for &sequence in sequences {
            track.receive(sequence, false, 0);
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
            track.receive(0, false);
            let left = Heard { generation: 3, ..left };
            let shared = judge_shared(&sent(9), &[], Some(&track), left, qos);
            assert_eq!((shared.count.lost, shared.count.unjudged), (8, 0));
        }
    }

    #[test]
    fn a_number_that_nobody_sent_costs_a_page_and_makes_no_losses() {
        let mut track = track_of(&[0, 1]);
        track.receive(u32::MAX - 5, false, 0);
        track.receive(2, false, 0);
        let verdict = judge(&sent(3), &[], Some(&track), THERE, 0);
        assert_eq!((verdict.count.lost, verdict.invented), (0, 1));
        assert_eq!((verdict.count.received, verdict.count.expected), (3, 3));
        let mut shared = SharedTrack::default();
        for sequence in [0, u32::MAX, 1, 2] {
            shared.receive(sequence, false);
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
        track.receive(7, false, 1);
        track.receive(9, false, 1);
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
            let verdict = judge_stored(&sent, unpromised, stored, has_stayed, 1);
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

    #[test]
    fn a_shared_group_is_judged_as_a_whole() {
        let (mut left, mut right) = (SharedTrack::default(), SharedTrack::default());
        for sequence in 0..200 {
            if sequence == 77 {
                continue;
            }
            if sequence % 2 == 0 { &mut left } else { &mut right }.receive(sequence, false);
        }
        right.receive(100, true);
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
            track.receive(sequence * 2, false, 0);
        }
        let verdict = judge(&sent(holes * 2 + 1), &[], Some(&track), THERE, 1);
        assert_eq!(verdict.count.lost, u64::from(holes));
        assert_eq!(verdict.missing.len(), MISSING_SAMPLE_MAX);
    }
}
