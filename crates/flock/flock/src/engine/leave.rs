//! How one client's connection ends by its own doing: with a good-bye, without, or in silence.

use std::time::Duration;

use codec::{Properties, Reason};

use super::client::{CUT, Client, Link};
use super::context::Context;
use super::wills::Ending;

impl Client {
    /// Sends DISCONNECT with this reason and closes.
    pub(super) fn leave(&mut self, reason: Reason, ctx: &mut Context) {
        // Where the broker may still be sending, it may see a reset before the good-bye.
        let is_quiet = !self.is_subscribed() && self.machine.in_flight() == 0;
        self.end_hearing(ctx);
        ctx.lend(&mut self.outbox);
        self.machine.disconnect(reason, Properties::EMPTY, &mut self.outbox);
        self.flush(ctx);
        let mut is_said = is_quiet && self.outbox.is_empty();
        if let Some(wire) = &mut self.wire {
            is_said &= !wire.wants_write();
            // The broker may have closed before us.
            let _ = wire.shutdown();
        }
        self.end(
            match reason {
                Reason::DISCONNECT_WITH_WILL => Ending::Broken,
                _ if is_said => Ending::GoodBye,
                _ => Ending::Unknown,
            },
            ctx,
        );
    }

    /// Whoever has heard nothing for a while asks before it leaves: a broker that stands still has
    /// its connections open, too.
    pub(super) fn ask_whether_it_is_there(&mut self, ctx: &mut Context) {
        let now_ns = ctx.now_ns();
        if now_ns.saturating_sub(self.heard_ns) > SILENCE_NS_MAX {
            ctx.lend(&mut self.outbox);
            self.machine.ping(now_ns / 1_000_000, &mut self.outbox);
        }
    }

    /// The broker did not answer although it was asked and waited for.
    pub(super) fn lost_in_silence(&mut self, ctx: &mut Context) {
        ctx.tally.totals.connections_lost += 1;
        ctx.tally.error("connection", "no answer to PINGREQ", || self.id(&ctx.plan));
        self.end_hearing(ctx);
        self.end_will(Ending::Unknown, ctx);
        self.link_down(ctx);
    }

    /// Closes the socket as it is.
    pub(super) fn close(&mut self, ctx: &mut Context) {
        self.end(Ending::Broken, ctx);
    }

    fn end(&mut self, ending: Ending, ctx: &mut Context) {
        if matches!(self.link, Link::Up | Link::Silent) {
            self.end_hearing(ctx);
            self.end_will(ending, ctx);
            ctx.tally.totals.disconnects += 1;
            self.link_down(ctx);
        } else {
            self.drop_wire(ctx);
            self.end_attempt(ctx);
            self.link = Link::Down;
            self.machine.on_closed();
        }
    }

    /// Goes silent; [`Wait::Silence`] ends when the broker closes.
    pub(super) fn fall_silent(&mut self, ctx: &mut Context) {
        self.end_hearing(ctx);
        self.link = Link::Silent;
        self.link_at_ns = u64::MAX;
        ctx.again.push(self.at);
    }

    /// How long a broker may take to notice that a client is silent.
    pub(super) fn silence_max_ns(&self) -> u64 {
        match self.machine.keep_alive_secs() {
            0 => SILENCE_MAX.as_nanos() as u64,
            // One and a half times the keep-alive (MQTT-3.1.2-22).
            secs => u64::from(secs) * 1_500_000_000 + SILENCE_SLACK_NS,
        }
    }

    /// The time is over, and the broker has not closed.
    pub(super) fn not_missed(&self, ctx: &mut Context) {
        if self.machine.keep_alive_secs() > 0 {
            ctx.ledger.unnoticed += 1;
            let told = "the broker did not disconnect a silent client after its keep-alive \
                 (MQTT-3.1.2-22)";
            ctx.tally.error("connection", told, || self.id(&ctx.plan));
        }
    }

    /// A fault: the socket is closed under the client's feet.
    pub(super) fn cut(&mut self, ctx: &mut Context) {
        if self.link == Link::Up {
            self.link_lost(CUT, ctx);
        }
    }

    /// Subscriptions of a session that ends with the connection are over.
    pub(super) fn end_hearing(&mut self, ctx: &Context) {
        if !self.is_lasting(ctx) {
            let now = ctx.now_ns();
            for hearing in &mut self.hearing {
                hearing.until_ns = hearing.until_ns.min(now);
            }
        }
    }
}

/// What is silent for longer may stand still.
const SILENCE_NS_MAX: u64 = 1_000_000_000;
/// A silent client without a keep-alive waits so long for the broker to notice.
const SILENCE_MAX: Duration = Duration::from_secs(3_600);
/// A broker may look for silent clients so much later.
const SILENCE_SLACK_NS: u64 = 5_000_000_000;
