//! What ties the parts of a data directory together: the journals of its shards, and small files
//! beside them.
//!
//! Each part carries a *stamp*: the identity of the directory and the start that wrote it last. A
//! start first writes an unfinished stamp to all journals, then its stamp to all small files, then
//! the finished one to all journals, and serves only after that. So a part may be one start behind
//! the others exactly as long as no journal has the finished stamp: whatever else differs was
//! replaced.

/// Which directory a part belongs to, and which start of a broker wrote it last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Random, chosen when the directory is first used.
    pub directory: [u8; 16],
    /// Starts of a broker on the directory, from 1.
    pub start: u64,
    /// Random, chosen by each start: two copies of a directory that both went on differ by it.
    pub token: u64,
    /// All parts have it. Means something in journals only.
    pub is_finished: bool,
}

/// Why a part is not what belongs into the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misfit {
    #[error(
        "it belongs to another data directory: put the right file back, restore all files of a backup, or run `quelea log repair`"
    )]
    Foreign,
    #[error(
        "it is a copy of another time: it was written by start {found} of the broker, the other logs by start {latest}. Put the right file back, restore all files of a backup, or run `quelea log repair`"
    )]
    OtherStart { found: u64, latest: u64 },
    #[error(
        "it is of start {latest} of a copy of this data directory. Put the right file back, restore all files of a backup, or run `quelea log repair`"
    )]
    OtherCopy { latest: u64 },
    #[error(
        "it is missing or does not name its data directory: put the right file back, restore all files of a backup, or run `quelea log repair`"
    )]
    Missing,
}

/// What the journals of a directory say together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Together {
    latest: Option<Stamp>,
}

impl Together {
    /// From the stamps of all journals, then of the other parts, where they have any. The directory
    /// is the one that most parts belong to; with a tie, that of the part that comes first.
    pub fn of(journals: &[Option<Stamp>], others: &[Option<Stamp>]) -> Self {
        let votes = |directory: [u8; 16]| {
            let all = journals.iter().chain(others).flatten();
            all.filter(|stamp| stamp.directory == directory).count()
        };
        let mut best: Option<([u8; 16], usize)> = None;
        for stamp in journals.iter().flatten() {
            let count = votes(stamp.directory);
            if best.is_none_or(|(_, most)| count > most) {
                best = Some((stamp.directory, count));
            }
        }
        let own =
            journals.iter().flatten().filter(|stamp| Some(stamp.directory) == best.map(|it| it.0));
        let mut latest: Option<Stamp> = None;
        for stamp in own {
            let rank = |stamp: &Stamp| (stamp.start, stamp.is_finished);
            if latest.is_none_or(|known| rank(stamp) > rank(&known)) {
                latest = Some(*stamp);
            }
        }
        Self { latest }
    }

    /// The newest stamp of the journals. `None`: no program that knows stamps has used the
    /// directory.
    pub fn latest(&self) -> Option<Stamp> {
        self.latest
    }

    /// Whether a broker may have served since all parts got stamps: none is without one then.
    pub fn has_served(&self) -> bool {
        self.latest.is_some_and(|latest| latest.is_finished || latest.start > 1)
    }

    /// What is wrong with a part that has this stamp.
    ///
    /// # Errors
    ///
    /// The part does not belong to the others.
    pub fn check(&self, part: Option<Stamp>) -> Result<(), Misfit> {
        let Some(latest) = self.latest else { return Ok(()) };
        let Some(part) = part else {
            return if self.has_served() { Err(Misfit::Missing) } else { Ok(()) };
        };
        // A start that did not get as far as serving has left some parts as they were before.
        let is_behind = !latest.is_finished && part.start + 1 == latest.start;
        match part.start == latest.start {
            _ if part.directory != latest.directory => Err(Misfit::Foreign),
            true if part.token != latest.token => Err(Misfit::OtherCopy { latest: latest.start }),
            false if !is_behind => {
                Err(Misfit::OtherStart { found: part.start, latest: latest.start })
            }
            _ => Ok(()),
        }
    }

    /// The unfinished stamp of a start. One that did not get as far as serving is begun again.
    pub fn next(&self, directory: [u8; 16], token: u64) -> Stamp {
        match self.latest {
            None => Stamp { directory, start: 1, token, is_finished: false },
            Some(latest) if latest.is_finished => {
                Stamp { start: latest.start + 1, token, is_finished: false, ..latest }
            }
            Some(latest) => latest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: usize = 5;
    const LOGS: usize = 3;

    fn judged(parts: &[Option<Stamp>]) -> Together {
        Together::of(&parts[..LOGS], &parts[LOGS..])
    }

    fn accepts(parts: &[Option<Stamp>]) -> bool {
        let together = judged(parts);
        parts.iter().all(|part| together.check(*part).is_ok())
    }

    /// A start that ends after so many writes: true, it came as far as serving.
    fn start(parts: &mut [Option<Stamp>], writes: usize, token: u64) -> bool {
        let next = judged(parts).next([7; 16], token);
        let finished = Stamp { is_finished: true, ..next };
        let journals = (0..LOGS).map(|journal| (journal, next));
        let others = (LOGS..PARTS).map(|file| (file, finished));
        let again = (0..LOGS).map(|journal| (journal, finished));
        let all: Vec<_> = journals.chain(others).chain(again).collect();
        for (part, stamp) in all.iter().take(writes) {
            parts[*part] = Some(*stamp);
        }
        writes >= all.len()
    }

    #[test]
    fn starts_that_end_anywhere_are_never_refused_afterwards() {
        let writes_max = 2 * LOGS + PARTS - LOGS;
        for first in 0..=writes_max {
            for second in 0..=writes_max {
                for third in 0..=writes_max {
                    let mut parts = [None; PARTS];
                    for (token, writes) in [first, second, third].into_iter().enumerate() {
                        start(&mut parts, writes, token as u64);
                        assert!(accepts(&parts), "{first} {second} {third}: {parts:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_part_of_a_time_before_the_latest_service_is_refused() {
        for unfinished in 0..LOGS {
            let mut parts = [None; PARTS];
            let mut before = Vec::new();
            for token in 0..3 {
                assert!(start(&mut parts, usize::MAX, token));
                before.push(parts);
            }
            start(&mut parts, unfinished, 9);
            for part in 0..PARTS {
                for old in [None, before[0][part], before[1][part]] {
                    let mut mixed = parts;
                    mixed[part] = old;
                    // The one journal that had the latest stamp may be the one that is replaced.
                    assert!(!accepts(&mixed), "{unfinished} {part}: {mixed:?}");
                }
            }
        }
    }

    #[test]
    fn a_part_of_another_directory_or_another_copy_is_refused() {
        let (mut own, mut other) = ([None; PARTS], [None; PARTS]);
        start(&mut own, usize::MAX, 1);
        other.clone_from(&own);
        start(&mut own, usize::MAX, 2);
        start(&mut other, usize::MAX, 3);
        let stranger = Stamp { directory: [8; 16], start: 2, token: 2, is_finished: true };
        for part in 0..PARTS {
            for wrong in [other[part], Some(stranger)] {
                let mut mixed = own;
                mixed[part] = wrong;
                assert!(!accepts(&mixed), "{part}");
            }
        }
        let mut mixed = own;
        mixed[0] = Some(stranger);
        assert_eq!(judged(&mixed).check(Some(stranger)), Err(Misfit::Foreign), "most decide");
    }
}
