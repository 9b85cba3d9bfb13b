//! What a client may expect of its session: is it there when it comes back?

use crate::oracle::TIMER_SLACK_MS;

/// What the client knows of its session at the broker.
#[derive(Debug, Default)]
pub struct Fate {
    /// A CONNACK said that there is a session that outlives its connections.
    has_session: bool,
    /// A SUBACK has come since: the broker has written the session down.
    is_promised: bool,
    /// A CONNACK has said of an earlier one that it is gone.
    had_session: bool,
    /// The last answer said that there was none, of a connection whose own is not kept.
    has_none: bool,
    /// It has given up its session, and asks for a new one until it has it.
    pub begins_anew: bool,
    /// An answer that would have told whether the session was still there was lost.
    is_unsure: bool,
    expected: Presence,
    /// When the session of the connection that was admitted last may have expired.
    expired_ms: Option<u64>,
    /// The last admitted arrival, when the client lost it, and when the broker knew.
    arrival: u32,
    left_ms: Option<u64>,
    /// A SUBACK has come on it: the journal has its CONNECT.
    is_told: bool,
    /// When it lost the last one of which the journal has the CONNECT.
    left_told_ms: Option<u64>,
    gone_ms: Option<u64>,
    /// Since when the node of its connection serves nobody any more.
    orphaned_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    #[default]
    Unknown,
    Present,
    Absent,
}

impl Fate {
    /// The broker takes a connection on.
    pub(crate) fn on_admitted(
        &mut self,
        arrival: u32,
        is_clean: bool,
        expiry_secs: u32,
        now_ms: u64,
    ) {
        self.expected = self.expectation(is_clean, expiry_secs, now_ms);
        self.expired_ms = self.left_ms.map(|left_ms| left_ms + u64::from(expiry_secs) * 1000);
        self.arrival = arrival;
        if std::mem::take(&mut self.is_told) {
            self.left_told_ms = self.left_ms;
        }
        self.gone_ms = None;
        self.orphaned_ms = None;
    }

    /// Another node took over: for that one the connection has ended; and if the journal need not
    /// have its CONNECT, there was none since the last that it has.
    pub(crate) fn on_orphaned(&mut self, is_written: bool, now_ms: u64) {
        let is_known = is_written || self.is_told;
        let left_ms = self.left_told_ms.filter(|_| !is_known).unwrap_or(now_ms);
        self.orphaned_ms.get_or_insert(left_ms);
    }

    fn expectation(&self, is_clean: bool, expiry_secs: u32, now_ms: u64) -> Presence {
        if is_clean {
            return Presence::Absent;
        }
        if self.has_none {
            return Presence::Absent;
        }
        if !self.has_session || self.is_unsure {
            return Presence::Unknown;
        }
        let promised = if self.is_promised { Presence::Present } else { Presence::Unknown };
        if expiry_secs == super::NEVER_SECS {
            return promised;
        }
        let expiry_ms = u64::from(expiry_secs) * 1000;
        if self.left_ms.is_none_or(|left_ms| now_ms < left_ms + expiry_ms) {
            return promised;
        }
        match self.gone_ms {
            Some(gone_ms) if now_ms > gone_ms + expiry_ms + TIMER_SLACK_MS => Presence::Absent,
            _ => Presence::Unknown,
        }
    }

    /// Is its session surely kept, for the connection that was admitted last?
    pub(crate) fn expects_session(&self) -> bool {
        self.expected == Presence::Present
    }

    /// Since when the session may have been over, if it is there all the same: an end that was not
    /// on the medium is forgotten with its owner.
    pub(crate) fn may_be_over_since_ms(&self) -> Option<u64> {
        self.expired_ms.filter(|_| self.expected == Presence::Unknown)
    }

    /// A SUBACK has come.
    pub(crate) const fn on_promise(&mut self) {
        self.is_promised = self.has_session;
        self.is_told = true;
    }

    /// The client has lost an admitted connection.
    pub(crate) fn on_lost(&mut self, is_acknowledged: bool, now_ms: u64) {
        // The broker may have ended it before another one took over.
        self.left_ms = Some(self.orphaned_ms.take().map_or(now_ms, |ms| ms.min(now_ms)));
        self.has_none &= is_acknowledged;
        if !is_acknowledged && self.has_session && self.expected != Presence::Present {
            self.is_unsure = true;
        }
    }

    /// The broker has ended a connection.
    pub(crate) fn on_closed(&mut self, arrival: u32, now_ms: u64) {
        if arrival == self.arrival {
            self.gone_ms.get_or_insert(now_ms);
        }
    }

    /// The broker may have forgotten the connections since the last that it has told the journal
    /// of, and that they have ended. `took_less`: it may have had no room for the end of a session,
    /// or have failed.
    pub(crate) fn forget_connections(&mut self, took_less: bool) {
        if !self.is_told {
            self.left_ms = self.left_told_ms.or(self.left_ms);
        }
        self.gone_ms = None;
        // An earlier session may be back, if its end was not written down. It need not have been
        // promised: what it had of exchanges is in the journal with the first of them.
        self.is_unsure |= took_less && self.had_session && !self.is_promised;
        self.has_none &= !took_less;
    }

    /// A new broker process has no connections.
    pub(crate) fn on_restart(&mut self, now_ms: u64) {
        self.gone_ms.get_or_insert(now_ms);
    }

    /// An operator has ended its session, which may be back if the broker ends now.
    pub(crate) fn on_purged(&mut self) {
        self.is_unsure = true;
        self.is_promised = false;
    }

    /// The end of its session, as the client wants it or has to.
    pub(crate) fn begin_anew(&mut self) {
        self.begins_anew = true;
    }

    /// `keeps`: the session of this connection outlives it.
    pub(crate) fn on_connack(
        &mut self,
        session_present: bool,
        is_clean: bool,
        keeps: bool,
    ) -> Result<(), &'static str> {
        match (self.expected, session_present) {
            (Presence::Absent, true) if is_clean => {
                return Err("session present after a clean start");
            }
            (Presence::Absent, true) if self.has_none => {
                return Err("session present that was ended");
            }
            (Presence::Absent, true) => return Err("session present after it expired"),
            (Presence::Present, false) => return Err("the broker lost a persistent session"),
            // It may be another one than the client knows.
            (_, true) if self.is_unsure => self.begins_anew = true,
            _ => self.begins_anew &= !is_clean,
        }
        self.is_unsure = false;
        self.had_session |= self.has_session && !session_present;
        self.has_none = !session_present && !keeps;
        self.has_session = keeps;
        self.is_promised &= session_present;
        Ok(())
    }
}
