//! When a client was there to hear what a subscription brings.

use super::worker::HeardEntry;
use flock_measure::ledger::Window;

/// How a client listened by one subscription.
pub(super) struct Stay {
    /// From the first time that it subscribed to the last that it left.
    pub(super) entry: HeardEntry,
    /// How often it subscribed.
    pub(super) times: u32,
    /// When it was there: for deliveries at QoS 0, and for others.
    windows: [Vec<Window>; 2],
}

/// A time in which a client that had subscribed was not connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Break {
    pub(super) from_ns: u64,
    /// When it was back with its subscriptions; `u64::MAX` until then.
    pub(super) to_ns: u64,
    /// The session was over, so that nothing that was published meanwhile is owed.
    pub(super) is_lossy: bool,
}

/// The breaks of one client.
#[derive(Debug, Default)]
pub(super) struct Breaks(Vec<Break>);

impl Breaks {
    pub(super) fn note(&mut self, latest: Break) {
        self.0.push(latest);
        if self.0.len() > BREAKS_MAX {
            // The time between the first two is given up.
            let first = self.0.remove(0);
            self.0[0].from_ns = first.from_ns;
            self.0[0].is_lossy |= first.is_lossy;
        }
    }

    pub(super) fn last(&mut self) -> Option<&mut Break> {
        self.0.last_mut()
    }
}

impl Stay {
    pub(super) fn new(entry: HeardEntry) -> Self {
        let window = (entry.since_ns, entry.until_ns);
        Self { entry, times: 1, windows: [vec![window], vec![window]] }
    }

    pub(super) fn add(&mut self, entry: &HeardEntry) {
        self.entry.until_ns = entry.until_ns;
        self.times += 1;
        for windows in &mut self.windows {
            windows.push((entry.since_ns, entry.until_ns));
        }
    }

    /// Leaves out the breaks of the client's connection over which messages may be missed.
    pub(super) fn leave_out(&mut self, breaks: &Breaks) {
        let [fleeting, kept] = &mut self.windows;
        for one in &breaks.0 {
            without(fleeting, (one.from_ns, one.to_ns));
            if one.is_lossy {
                without(kept, (one.from_ns, one.to_ns));
            }
        }
    }

    pub(super) fn into_windows(self) -> [Vec<Window>; 2] {
        self.windows
    }

    pub(super) fn windows(&self, qos: u8) -> &[Window] {
        &self.windows[usize::from(qos > 0)]
    }
}

fn without(windows: &mut Vec<Window>, (from_ns, to_ns): Window) {
    let parts = |&(since_ns, until_ns): &Window| {
        let before = (since_ns, until_ns.min(from_ns));
        let after = (since_ns.max(to_ns), until_ns);
        match from_ns < until_ns && to_ns > since_ns {
            true => [before, after],
            false => [(since_ns, until_ns), (0, 0)],
        }
    };
    *windows = windows.iter().flat_map(parts).filter(|(since, until)| since < until).collect();
}

/// Adds the times of another client.
pub(super) fn join(mine: &mut Vec<Window>, theirs: Vec<Window>) {
    mine.extend(theirs);
    mine.sort_unstable();
    mine.dedup_by(|later, earlier| {
        let meets = later.0 <= earlier.1;
        if meets {
            earlier.1 = earlier.1.max(later.1);
        }
        meets
    });
}

/// Breaks of one client that are told apart.
const BREAKS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_are_left_out_of_the_time_that_a_client_was_there() {
        let left_out = |breaks: &[Window]| {
            let mut windows = vec![(10, 20), (30, u64::MAX)];
            breaks.iter().for_each(|one| without(&mut windows, *one));
            windows
        };
        assert_eq!(left_out(&[(12, 14)]), [(10, 12), (14, 20), (30, u64::MAX)]);
        assert_eq!(left_out(&[(5, 12), (18, 40)]), [(12, 18), (40, u64::MAX)]);
        assert_eq!(left_out(&[(0, 50), (60, u64::MAX)]), [(50, 60)]);
        assert_eq!(left_out(&[(20, 30), (22, 25)]), [(10, 20), (30, u64::MAX)]);
    }

    #[test]
    fn a_group_is_there_as_long_as_one_of_its_members() {
        let mut all = vec![(10, 20), (40, 50)];
        join(&mut all, vec![(15, 30), (60, u64::MAX)]);
        assert_eq!(all, [(10, 30), (40, 50), (60, u64::MAX)]);
        join(&mut all, vec![(5, 70)]);
        assert_eq!(all, [(5, u64::MAX)]);
    }

    #[test]
    fn of_many_breaks_the_oldest_become_one() {
        let mut breaks = Breaks::default();
        for at in 0..BREAKS_MAX as u64 + 2 {
            breaks.note(Break { from_ns: at * 10, to_ns: at * 10 + 5, is_lossy: at == 0 });
        }
        let (first, second) = (breaks.0[0], breaks.0[1]);
        assert_eq!(breaks.0.len(), BREAKS_MAX);
        assert_eq!((first.from_ns, first.to_ns, first.is_lossy), (0, 25, true));
        assert_eq!((second.from_ns, second.is_lossy), (30, false));
    }
}
