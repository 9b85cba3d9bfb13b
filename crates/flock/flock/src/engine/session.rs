//! A client's session over its connections: what was agreed, and what its broker made of it.

use super::client::Client;
use super::context::Context;
use super::stay::Break;
use flock_model::Version;

impl Client {
    fn version(&self, ctx: &Context) -> Version {
        ctx.plan.scenario.group(self.group).version
    }

    /// Whether the session outlives its connection.
    pub(super) fn is_lasting(&self, ctx: &Context) -> bool {
        match self.version(ctx) {
            Version::V5 => self.machine.session_expiry_secs() > 0,
            Version::V31 | Version::V311 => {
                self.connect_command(ctx).is_some_and(|command| !command.clean_start)
            }
        }
    }

    /// When the session of a connection ends that ended now.
    pub(super) fn session_end_ns(&self, ctx: &Context) -> u64 {
        let secs = match self.version(ctx) {
            Version::V5 => self.machine.session_expiry_secs(),
            Version::V31 | Version::V311 if self.is_lasting(ctx) => NEVER,
            Version::V31 | Version::V311 => 0,
        };
        match secs {
            NEVER => u64::MAX,
            secs => self.down_ns.saturating_add(u64::from(secs) * 1_000_000_000),
        }
    }

    /// Whether the broker can have none: the client asks for a clean start, or its session ended
    /// long ago. Other clients under its name may have one, and so may another of several brokers.
    pub(super) fn has_no_session(&self, ctx: &Context) -> bool {
        let Some(command) = self.connect_command(ctx) else { return false };
        let is_alone =
            !command.fresh_id && !ctx.plan.is_taken_over(self.group) && !self.has_choice(ctx);
        let ended_ns = self.session_until_ns.saturating_add(SLACK_NS);
        let has_ended = self.session_until_ns > 0 && ctx.now_ns() > ended_ns;
        command.clean_start || (is_alone && has_ended)
    }

    /// What the CONNACK says of the session, in figures.
    pub(super) fn note_session(&self, session_present: bool, ctx: &mut Context) {
        let Some(command) = self.connect_command(ctx) else { return };
        let asked_secs = command.session_expiry_secs;
        let is_shortened =
            self.version(ctx) == Version::V5 && self.machine.session_expiry_secs() < asked_secs;
        let is_found =
            session_present && self.session_until_ns == 0 && !ctx.plan.is_taken_over(self.group);
        ctx.tally.totals.sessions_shortened += u64::from(is_shortened);
        ctx.tally.totals.sessions_found += u64::from(is_found);
    }

    /// A session that was meant to end with its connection excuses what was missed meanwhile. One
    /// that was meant to last does not: its broker forgot it, and what was missed is lost.
    pub(super) fn on_session_gone(&mut self, ctx: &mut Context) {
        // Whoever comes under a new name has no session to find.
        let is_new = self.connect_command(ctx).is_some_and(|command| command.fresh_id);
        let was_to_last = ctx.now_ns() < self.session_until_ns;
        if was_to_last && !is_new && !self.asks_for_a_clean_start(ctx) {
            // What MQTT 3.1 kept, its CONNACK does not tell.
            if self.version(ctx) != Version::V31 {
                ctx.ledger.forgotten += 1;
                let told = "the broker had no session, although it has not expired";
                ctx.tally.error("session", told, || self.id(&ctx.plan));
            }
        } else if self.is_subscribed() {
            self.generation = self.generation.wrapping_add(1);
            self.last_break(|last| last.is_lossy = true);
        }
    }

    pub(super) fn last_break(&mut self, change: impl FnOnce(&mut Break)) {
        if let Some(last) = self.extra.as_mut().and_then(|extra| extra.breaks.last()) {
            change(last);
        }
    }

    /// Whether a subscription of an earlier connection is still to be heard.
    pub(super) fn is_subscribed(&self) -> bool {
        self.hearing.iter().any(|hearing| hearing.until_ns == u64::MAX)
    }
}

/// A session expiry that is no time.
const NEVER: u32 = u32::MAX;
/// A broker may notice the end of a connection, and look for sessions that have expired, so much
/// later.
const SLACK_NS: u64 = 5_000_000_000;
