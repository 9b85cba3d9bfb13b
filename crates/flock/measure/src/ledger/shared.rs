//! What a shared group received of one stream.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::repeats::{GroupRepeat, GroupRepeats, Slot};
use super::track::Receipt;

/// What a shared group received of one stream: a bit per message, in pages, so that a number out of
/// all proportion costs one page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedTrack {
    /// By number of the page; [`PAGE_WORDS`] each.
    pub(super) pages: BTreeMap<u32, Vec<u64>>,
    pub(super) duplicated: u32,
    pub(super) duplicated_marked: u32,
    pub(super) repeats: GroupRepeats,
    /// When the last one came.
    last: Slot,
}

impl SharedTrack {
    /// Takes note of a message that was due in one slot of the run and came in another.
    pub fn receive(&mut self, sequence: u32, dup: bool, (due, now): (Slot, Slot)) -> Receipt {
        self.last = self.last.max(now);
        if self.add(sequence) {
            return Receipt::InOrder;
        }
        self.duplicated += 1;
        self.duplicated_marked += u32::from(dup);
        self.repeats.add(GroupRepeat { sequence, from: due, to: now });
        Receipt::Duplicate
    }

    /// Sets the bit of a number; `false` if it was set.
    pub(super) fn add(&mut self, sequence: u32) -> bool {
        let (page, word, bit) = place(sequence);
        let words = self.pages.entry(page).or_insert_with(|| vec![0; PAGE_WORDS]);
        let is_new = words[word] & bit == 0;
        words[word] |= bit;
        is_new
    }

    /// Joins what another thread saw of the same group and stream.
    pub fn merge(&mut self, other: &Self) {
        self.duplicated += other.duplicated;
        self.duplicated_marked += other.duplicated_marked;
        self.repeats.merge(&other.repeats);
        self.last = self.last.max(other.last);
        for (&page, theirs) in &other.pages {
            let words = self.pages.entry(page).or_insert_with(|| vec![0; PAGE_WORDS]);
            for (at, (mine, theirs)) in words.iter_mut().zip(theirs).enumerate() {
                let both = *mine & theirs;
                *mine |= theirs;
                self.duplicated += both.count_ones();
                // When either came is not known; certainly by now.
                for bit in (0..64_u32).filter(|bit| both >> bit & 1 == 1) {
                    let sequence = page * PAGE_NUMBERS + at as u32 * 64 + bit;
                    self.repeats.add(GroupRepeat { sequence, from: 0, to: self.last });
                }
            }
        }
    }

    pub fn has(&self, sequence: u32) -> bool {
        let (page, word, bit) = place(sequence);
        self.pages.get(&page).is_some_and(|words| words[word] & bit != 0)
    }

    /// What has not come between two numbers, as inclusive ranges.
    pub(super) fn missing(&self, from: u32, to: u32) -> Vec<(u32, u32)> {
        let mut missing: Vec<(u32, u32)> = Vec::new();
        for sequence in (from..to).filter(|&sequence| !self.has(sequence)) {
            match missing.last_mut() {
                Some(range) if range.1 + 1 == sequence => range.1 = sequence,
                _ => missing.push((sequence, sequence)),
            }
        }
        missing
    }

    pub(super) fn first(&self) -> Option<u32> {
        self.numbers().next()
    }

    /// The last one below `end`.
    pub(super) fn last_below(&self, end: u32) -> Option<u32> {
        (0..end).rev().find(|&sequence| self.has(sequence))
    }

    /// All numbers received, rising.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
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

/// Which shared group: the subscription and the position of its filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShareKey {
    pub subscription: u32,
    pub filter: u32,
}

/// A page has so many words of 64 numbers.
const PAGE_WORDS: usize = 64;
const PAGE_NUMBERS: u32 = PAGE_WORDS as u32 * 64;
