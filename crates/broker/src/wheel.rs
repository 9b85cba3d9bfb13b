//! When to look at which client again.

use std::collections::BTreeMap;

/// Deadlines rounded up to whole seconds.
///
/// Entries are hints: the owner looks at the client and decides what is due. So moving a deadline
/// to later costs nothing, the entry fires early and is armed anew. A client has at most one
/// entry that counts (see `Client::timer_at`), so the size is bounded by clients and re-armings.
#[derive(Debug, Default)]
pub(crate) struct Wheel {
    slots: BTreeMap<u64, Vec<u64>>,
}

impl Wheel {
    /// The second in which a deadline has passed.
    pub(crate) const fn second_of(deadline_ms: u64) -> u64 {
        deadline_ms.div_ceil(1000)
    }

    pub(crate) fn arm(&mut self, second: u64, key: u64) {
        self.slots.entry(second).or_default().push(key);
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.slots.first_key_value().map(|(second, _)| second * 1000)
    }

    /// All keys of the earliest second, if it has passed.
    pub(crate) fn take_due(&mut self, now_ms: u64) -> Option<(u64, Vec<u64>)> {
        let entry = self.slots.first_entry()?;
        let second = *entry.key();
        (second * 1000 <= now_ms).then(|| (second, entry.remove()))
    }
}
