//! Admitted connections that wait to be opened: those of who brings many wait behind the others.

use std::collections::{HashMap, VecDeque};

use crate::host::Host;
use crate::mailbox::Handover;

/// So many of one owner (a user, or an address where nothing proves a name) are nobody's storm.
/// Policy: what comes beyond them waits in a second line.
const FEW: usize = 8;

/// Their number is limited where they were admitted.
pub(super) struct Arrivals<H: Host> {
    few: VecDeque<Handover<H>>,
    many: VecDeque<Handover<H>>,
    /// Of each owner, how many wait in which line.
    waiting: HashMap<String, PendingCounts>,
}

#[derive(Default)]
struct PendingCounts {
    few: usize,
    many: usize,
}

impl<H: Host> Default for Arrivals<H> {
    fn default() -> Self {
        Self { few: VecDeque::new(), many: VecDeque::new(), waiting: HashMap::new() }
    }
}

impl<H: Host> Arrivals<H> {
    pub(super) fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty()
    }

    /// Those of one owner keep their order: who connects twice is taken over by the second.
    pub(super) fn push(&mut self, handover: Handover<H>) {
        let waiting = self.waiting.entry(owner_of(&handover)).or_default();
        if waiting.many == 0 && waiting.few < FEW {
            waiting.few += 1;
            self.few.push_back(handover);
        } else {
            waiting.many += 1;
            self.many.push_back(handover);
        }
    }

    /// The next one. `is_last` of its turn: it is one of those who bring many, who have a part of
    /// each turn, too.
    pub(super) fn pop(&mut self, is_last: bool) -> Option<Handover<H>> {
        let takes_many = is_last || self.few.is_empty();
        match takes_many.then(|| self.many.pop_front()).flatten() {
            Some(handover) => {
                self.forget(&handover, |waiting| waiting.many -= 1);
                Some(handover)
            }
            None => {
                let handover = self.few.pop_front()?;
                self.forget(&handover, |waiting| waiting.few -= 1);
                Some(handover)
            }
        }
    }

    fn forget(&mut self, handover: &Handover<H>, take: impl FnOnce(&mut PendingCounts)) {
        let owner = owner_of(handover);
        if let Some(waiting) = self.waiting.get_mut(&owner) {
            take(waiting);
            if waiting.few + waiting.many == 0 {
                self.waiting.remove(&owner);
            }
        }
    }
}

fn owner_of<H: Host>(handover: &Handover<H>) -> String {
    handover.request.owner().unwrap_or_default()
}
