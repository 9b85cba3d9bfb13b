//! What a door remembers of its listeners: those with more connections waiting, and when it last
//! said that it cannot take them.

/// How often it is told that the process is out of descriptors.
const EXHAUSTED_TOLD_MS: u64 = 10_000;

/// Listeners that have more connections waiting, each once: those that knock while accepting pauses
/// announce themselves one by one.
#[derive(Default)]
pub(super) struct Eager(pub(super) Vec<usize>);

impl Eager {
    pub(super) fn insert(&mut self, number: usize) {
        if !self.0.contains(&number) {
            self.0.push(number);
        }
    }
}

/// That the process is out of descriptors, told now and then only.
#[derive(Default)]
pub(super) struct Complaint {
    next_ms: u64,
}

impl Complaint {
    pub(super) fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = now_ms >= self.next_ms;
        if is_due {
            self.next_ms = now_ms + EXHAUSTED_TOLD_MS;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_knocks_again_and_again_is_eager_once() {
        let mut eager = Eager::default();
        for number in [1, 0, 1, 1, 0] {
            eager.insert(number);
        }
        assert_eq!(eager.0, [1, 0]);
    }

    #[test]
    fn exhaustion_is_told_at_once_and_then_at_its_pace() {
        let mut exhaustion = Complaint::default();
        let told = (0..2 * EXHAUSTED_TOLD_MS).step_by(100);
        assert_eq!(told.filter(|after_ms| exhaustion.is_due(5 + after_ms)).count(), 2);
    }
}
