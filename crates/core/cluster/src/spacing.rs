//! When a message to the stream may begin that carries little.

/// The least time between the beginnings of two such messages. An append costs the engine the same
/// whatever it carries, so a commit waits for others.
///
/// A commit that is alone does not wait: none came while the last message was under way, and none
/// waits beside it. The publishers may all be waiting for their answers: when nothing has come for
/// [`PAUSE_MS`], the message begins.
#[derive(Debug)]
pub(crate) struct Spacing {
    interval_ms: u64,
    /// When the last message began.
    began_ms: u64,
    /// When the last commit came.
    came_ms: u64,
    /// Since the last message began, a commit came while another one waited or was under way.
    is_shared: bool,
}

/// A time in which nothing comes is between this and a millisecond less.
const PAUSE_MS: u64 = 2;

impl Spacing {
    pub(crate) const fn new(interval_ms: u64) -> Self {
        Self { interval_ms, began_ms: 0, came_ms: 0, is_shared: false }
    }

    /// A commit came, while others wait or not.
    pub(crate) const fn note_commit(&mut self, is_shared: bool, now_ms: u64) {
        self.came_ms = now_ms;
        self.is_shared |= is_shared;
    }

    /// A message begins, whatever it carries.
    pub(crate) const fn note_begin(&mut self, now_ms: u64) {
        self.began_ms = now_ms;
        self.is_shared = false;
    }

    /// Until when a message waits that carries little, if it does.
    pub(crate) fn waits_until_ms(&self, now_ms: u64) -> Option<u64> {
        let until_ms = (self.began_ms + self.interval_ms).min(self.came_ms + PAUSE_MS);
        (self.is_shared && until_ms > now_ms).then_some(until_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_does_not_wait() {
        let mut spacing = Spacing::new(5);
        for now_ms in [10, 11, 12] {
            spacing.note_commit(false, now_ms);
            assert_eq!(spacing.waits_until_ms(now_ms), None);
            spacing.note_begin(now_ms);
        }
    }

    #[test]
    fn commits_that_are_not_alone_wait_until_the_last_message_began_so_long_ago() {
        let mut spacing = Spacing::new(5);
        spacing.note_begin(10);
        spacing.note_commit(true, 11);
        for now_ms in [12, 13, 14] {
            spacing.note_commit(true, now_ms);
        }
        assert_eq!(spacing.waits_until_ms(14), Some(15));
        assert_eq!(spacing.waits_until_ms(15), None);
        spacing.note_begin(15);
        spacing.note_commit(false, 16);
        assert_eq!(spacing.waits_until_ms(16), None, "nothing else waits any more");
    }

    #[test]
    fn a_pause_ends_the_wait() {
        let mut spacing = Spacing::new(5);
        spacing.note_begin(10);
        spacing.note_commit(true, 11);
        assert_eq!(spacing.waits_until_ms(11), Some(13));
        assert_eq!(spacing.waits_until_ms(13), None);
    }

    #[test]
    fn without_an_interval_nothing_waits() {
        let mut spacing = Spacing::new(0);
        spacing.note_begin(10);
        spacing.note_commit(true, 10);
        assert_eq!(spacing.waits_until_ms(10), None);
    }
}
