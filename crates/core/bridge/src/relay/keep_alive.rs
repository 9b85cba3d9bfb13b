//! When a remote is asked whether it is there, and when it is given up.

/// Times in milliseconds.
#[derive(Debug)]
pub(super) struct KeepAlive {
    /// 0: none.
    interval_ms: u64,
    sent_ms: u64,
    heard_ms: u64,
    /// When the PINGREQ without an answer was sent.
    pinged_ms: Option<u64>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Ping,
    /// The remote has not answered.
    Silent,
}

impl KeepAlive {
    pub(super) const fn new(now_ms: u64) -> Self {
        Self { interval_ms: 0, sent_ms: now_ms, heard_ms: now_ms, pinged_ms: None }
    }

    /// The interval that the remote expects.
    pub(super) fn start(&mut self, secs: u16) {
        self.interval_ms = u64::from(secs) * 1000;
    }

    pub(super) const fn on_sent(&mut self, now_ms: u64) {
        self.sent_ms = now_ms;
    }

    pub(super) const fn on_heard(&mut self, now_ms: u64) {
        (self.heard_ms, self.pinged_ms) = (now_ms, None);
    }

    /// `is_read`: bytes of the remote are read as they come. Otherwise an answer may be among them.
    pub(super) fn tick(&mut self, now_ms: u64, is_read: bool) -> Due {
        if self.interval_ms == 0 {
            return Due::Nothing;
        }
        match self.pinged_ms {
            Some(since_ms) if is_read && now_ms >= since_ms + self.interval_ms => Due::Silent,
            Some(_) => Due::Nothing,
            // A remote may be gone though the bridge sends.
            None if now_ms >= self.sent_ms.min(self.heard_ms) + self.interval_ms * 3 / 4 => {
                self.pinged_ms = Some(now_ms);
                Due::Ping
            }
            None => Due::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_that_does_not_answer_a_ping_is_silent() {
        let mut own = KeepAlive::new(0);
        assert_eq!(own.tick(1_000_000, true), Due::Nothing);
        own.start(60);
        own.on_heard(1_000);
        own.on_sent(9_000);
        assert_eq!(own.tick(45_999, true), Due::Nothing);
        assert_eq!(own.tick(46_000, true), Due::Ping);
        assert_eq!(own.tick(105_999, true), Due::Nothing);
        assert_eq!(own.tick(106_000, false), Due::Nothing);
        assert_eq!(own.tick(106_000, true), Due::Silent);
        own.on_heard(106_000);
        own.on_sent(106_000);
        assert_eq!(own.tick(150_999, true), Due::Nothing);
    }
}
