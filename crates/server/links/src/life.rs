//! When a link is dead, and when it needs a heartbeat. It has no clock of its own.

/// Times of one link, in milliseconds of the same clock.
#[derive(Debug)]
pub(crate) struct Life {
    link_ms: u64,
    heard_ms: u64,
    sent_ms: u64,
}

impl Life {
    pub(crate) const fn new(link_ms: u64, now_ms: u64) -> Self {
        Self { link_ms, heard_ms: now_ms, sent_ms: now_ms }
    }

    /// Bytes have arrived. A part of a packet counts: a large one takes longer than a link lives.
    pub(crate) const fn on_received(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    pub(crate) const fn on_sent(&mut self, now_ms: u64) {
        self.sent_ms = now_ms;
    }

    pub(crate) const fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// Ask before bytes are read: those that arrived while this process was paused are of a link
    /// that the peer has given up.
    pub(crate) const fn is_dead(&self, now_ms: u64) -> bool {
        now_ms >= self.dead_ms()
    }

    pub(crate) const fn dead_ms(&self) -> u64 {
        self.heard_ms.saturating_add(self.link_ms)
    }

    /// When the link is dead or needs a heartbeat.
    pub(crate) fn next_ms(&self) -> u64 {
        self.dead_ms().min(self.sent_ms.saturating_add(self.heartbeat_ms()))
    }

    const fn heartbeat_ms(&self) -> u64 {
        self.link_ms / HEARTBEATS_PER_LIFE
    }
}

/// A link that has nothing to send sends this number of heartbeats in `link_ms`.
pub const HEARTBEATS_PER_LIFE: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_link_beats_and_one_that_hears_nothing_dies() {
        let mut life = Life::new(2000, 10_000);
        assert_eq!(life.next_ms(), 10_500);
        life.on_sent(10_500);
        assert_eq!(life.next_ms(), 11_000);
        assert!(!life.is_dead(11_999) && life.is_dead(12_000));
        life.on_received(11_999);
        assert!(!life.is_dead(13_998) && life.is_dead(13_999));
        life.on_sent(13_800);
        assert_eq!(life.next_ms(), 13_999);
    }

    /// The clock has run on. Bytes that wait in the socket do not revive the link.
    #[test]
    fn a_process_that_was_paused_finds_its_links_dead() {
        let life = Life::new(2000, 10_000);
        assert!(life.is_dead(10_000 + 60_000));
        assert_eq!(life.heard_ms(), 10_000);
    }
}
