//! The turns of the driver: deadlines, and what was left for later turns.

use session::NEVER;
use storage::Journal;

use crate::Shard;
use crate::life::ending::LOOKS_PER_TURN;
use crate::parts::client::Client;
use crate::parts::work::Work;
use crate::words::waits::Waits;

/// How often expired retained messages are looked for, and groups that nobody speaks of.
const SWEEP_EVERY_MS: u64 = 1000;

impl Shard {
    /// The turn is over, and what it led to is written: the driver says so before it carries out
    /// the last mail.
    pub fn end_turn(&mut self) {
        self.cx.flow.work.end_turn();
        self.retained.give_more_pages(&mut self.cx.effects);
        self.cx.effects.end_turn();
        self.cx.ask_barrier();
    }

    /// Has the end of a turn left something that the next has to look at, whatever happens?
    pub fn has_leftovers(&self) -> bool {
        !self.cx.effects.is_empty()
            || !self.cx.dirty.is_clean()
            || !self.cx.doomed.is_empty()
            || self.cx.effects.windows_read().has_requests()
            || self.cx.flow.barrier.has_question()
            || self.cx.flow.arrivals.as_ref().is_some_and(|own| own.has_question())
            || self.retained.has_pages_to_give()
            || self.log.as_ref().is_some_and(|log| log.has_unwritten())
            || self.journal().is_some_and(Journal::has_unplanned)
    }

    /// Publishers that stand in a line though nothing is in their way. None do when all mail is
    /// dealt with. For tests: looks at all that wait.
    pub fn overdue_waits(&self) -> usize {
        let is_there = |(slot, connection): &(u32, u64)| {
            self.sessions.get(*slot).is_some_and(|client| client.connection == *connection)
        };
        let overdue = self.cx.effects.windows_read().overdue().chain(self.cx.flow.pauses.overdue());
        overdue.filter(is_there).count()
    }

    /// The driver has looked at the memory, and much of it is used: counts what connections hold,
    /// and cuts those of the largest holders if that is to be ([`crate::Ledger::cut_largest`]).
    pub fn on_memory_look(&mut self, now_ms: u64) {
        self.cx.now_ms = now_ms;
        let is_tight = self.cx.shared.memory_is_tight();
        for slot in self.sessions.next_unsent(is_tight) {
            let Some(client) = self.sessions.get_mut(slot) else { continue };
            if let Some(ended) = client.is_to_be_cut(&mut self.cx) {
                self.end(slot, ended);
            }
        }
        self.finish();
    }

    /// What clients and mail have used up of this turn.
    pub const fn work(&self) -> &Work {
        &self.cx.flow.work
    }

    pub const fn work_mut(&mut self) -> &mut Work {
        &mut self.cx.flow.work
    }

    /// Goes on with messages that have not reached everybody, and with clients that wait for their
    /// part of a turn; false if there are none, or nothing is left of this one.
    pub fn read_line_on(&mut self, now_ms: u64) -> bool {
        self.cx.now_ms = now_ms;
        let mut any = self.broadcast_on();
        // Who has to wait on, for a broadcast that others are still to get, comes behind them.
        for _ in 0..self.cx.flow.work.line_len() {
            let Some((slot, connection)) = self.cx.flow.work.next_in_line() else { break };
            self.read_on(slot, connection);
            any = true;
        }
        any
    }

    /// The next connection that may have something in its outbox: slot and connection. In the order
    /// in which they got it: who waits longest is next, and a delivery is written before the
    /// acknowledgement that its publisher gets. Those of a broadcast come last.
    pub fn take_dirty(&mut self) -> Option<(u32, u64)> {
        loop {
            let (slot, connection) = self.cx.dirty.next()?;
            let client = self.sessions.connected(slot, connection);
            if client.is_some_and(Client::unmark) {
                return Some((slot, connection));
            }
        }
    }

    /// As [`Shard::take_dirty`], but for those of a broadcast.
    pub fn take_urgent(&mut self) -> Option<(u32, u64)> {
        loop {
            let (slot, connection) = self.cx.dirty.next_urgent()?;
            let client = self.sessions.connected(slot, connection);
            if client.is_some_and(Client::unmark) {
                return Some((slot, connection));
            }
        }
    }

    /// Is a connection dirty that is not one of a broadcast? For tests.
    pub fn has_urgent(&self) -> bool {
        self.cx.dirty.has_urgent()
    }

    /// Has a broadcast left connections that are dirty?
    pub fn has_broadcast(&self) -> bool {
        self.cx.dirty.has_broadcast()
    }

    /// Time has passed, or a turn was not enough for what has ended. Once a second at least.
    pub fn on_tick(&mut self, now_ms: u64) {
        self.cx.now_ms = now_ms;
        // Of the clients whose time has come, as many as one turn may. The others are late.
        let mut left = LOOKS_PER_TURN;
        while left > 0
            && let Some((tick, key)) = self.cx.timers.take_due(now_ms)
        {
            left = left.saturating_sub(self.on_due(key, tick));
        }
        self.on_tick_unheard(now_ms);
    }

    /// The same while there is more that clients have said than was looked at: the timers of
    /// clients wait.
    pub fn on_tick_unheard(&mut self, now_ms: u64) {
        self.cx.now_ms = now_ms;
        self.clean_up();
        self.read_mail_on();
        self.read_line_on(now_ms);
        self.tick_journal();
        self.check_pauses();
        if self.sweeps_at_ms <= now_ms {
            self.sweeps_at_ms = now_ms + SWEEP_EVERY_MS;
            self.sweep_retained();
            if let Some(log) = &mut self.log {
                self.cx.metrics.log_cache_bytes.set(log.fit_caches());
            }
            self.offer_denied_again();
            self.drain_groups();
            self.cx.report_shard_notices();
            self.look_at_load();
        }
        self.finish();
    }

    /// When [`Shard::on_tick`] has something to do, in milliseconds, or [`NEVER`].
    pub fn next_deadline_ms(&self) -> u64 {
        let has_portions = self.sessions.has_cleanup() || !self.cx.flow.broadcasts.is_empty();
        if has_portions || !self.cx.flow.inbox.is_empty() || self.cx.flow.work.has_line() {
            return 0;
        }
        let journal = self.journal().and_then(Journal::next_deadline);
        let timers = self.cx.timers.next_ms().unwrap_or(NEVER);
        let sweeps = !self.cx.notices.is_empty()
            || self.log.as_ref().is_some_and(|log| log.has_caches_to_fit());
        let sweep_ms = if sweeps { self.sweeps_at_ms } else { NEVER };
        timers.min(journal.unwrap_or(NEVER)).min(self.cx.flow.pauses.look_ms()).min(sweep_ms)
    }

    /// The driver has no room for what comes of a connection, and wants to read nothing before
    /// then.
    pub fn pause_until(&mut self, slot: u32, connection: u64, until_ms: u64) {
        if let Some(client) = self.sessions.connected(slot, connection) {
            client.pause_until(&mut self.cx, until_ms);
        }
    }

    /// Walks over all sessions: for tests, and for who looks for what hangs.
    pub fn waits(&self) -> Waits {
        let mut waits = Waits {
            publications: self.cx.publications.len(),
            subacks: self.cx.flow.barrier.waiting_count(),
            windows: self.cx.effects.windows_read().waiting_count(),
            pauses: self.cx.flow.pauses.waiting_count(),
            ..self.log.as_ref().map(|log| log.waits()).unwrap_or_default()
        };
        for client in self.sessions.slots().filter_map(|slot| self.sessions.get(slot)) {
            let link = client.session.link();
            waits.acknowledgements += link.map_or(0, |link| link.acks_waiting());
            waits.orphans += client.session.incoming.orphans_len();
            waits.pages += client.extras.as_ref().map_or(0, |extras| extras.retained_asked.len());
        }
        waits
    }
}
