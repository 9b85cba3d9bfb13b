//! Listeners with waiting connections, and the pace of the warning that none can be accepted.

/// How often it is logged that the process is out of descriptors.
const EXHAUSTED_LOG_MS: u64 = 10_000;

/// Listeners that have more connections waiting, each once: connections that arrive while accepting
/// pauses make an event each.
#[derive(Default)]
pub(super) struct ReadyListeners(pub(super) Vec<usize>);

impl ReadyListeners {
    pub(super) fn insert(&mut self, number: usize) {
        if !self.0.contains(&number) {
            self.0.push(number);
        }
    }
}

/// A warning that is logged at most once in [`EXHAUSTED_LOG_MS`].
#[derive(Default)]
pub(super) struct RepeatedWarning {
    next_ms: u64,
}

impl RepeatedWarning {
    pub(super) fn is_due(&mut self, now_ms: u64) -> bool {
        let is_due = now_ms >= self.next_ms;
        if is_due {
            self.next_ms = now_ms + EXHAUSTED_LOG_MS;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_with_several_events_is_listed_once() {
        let mut ready = ReadyListeners::default();
        for number in [1, 0, 1, 1, 0] {
            ready.insert(number);
        }
        assert_eq!(ready.0, [1, 0]);
    }

    #[test]
    fn exhaustion_is_logged_at_once_and_then_at_its_pace() {
        let mut exhaustion = RepeatedWarning::default();
        let times = (0..2 * EXHAUSTED_LOG_MS).step_by(100);
        assert_eq!(times.filter(|after_ms| exhaustion.is_due(5 + after_ms)).count(), 2);
    }
}
