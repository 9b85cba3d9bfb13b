//! Messages that wait in the log for a session that is behind.

use session::{Dropped, QueueLimit};

use crate::log::store::{Loaded, Log};
use crate::parts::client::Client;
use crate::parts::router::Router;
use crate::parts::work::Task;
use crate::words::expected::Expected;
use crate::words::options;
use crate::{Name, Shard};

/// Serials that a session takes from its backlogs at once.
const BATCH_SERIALS: usize = 64;

impl Shard {
    /// Makes room in a full backlog.
    pub(super) fn drop_oldest(&mut self, slot: u32, reached: QueueLimit) {
        loop {
            let Self { sessions, log: Some(log), .. } = self else { return };
            let Some(client) = sessions.get(slot).expected() else { return };
            if !log.is_overfull(slot, &client.limits.queue) {
                return;
            }
            let Some(serial) = self.take_pending(slot) else { return };
            let Self { cx, sessions, log: Some(log), .. } = self else { return };
            let was_live = log.drop_pending(slot, serial);
            if let Some(client) = sessions.get_mut(slot).filter(|_| was_live) {
                client.note_dropped(cx, Dropped::QueueFull(reached));
            }
        }
    }

    /// Puts a message into the backlogs of the filters that match its topic.
    pub(super) fn leave_behind(&mut self, message: &session::Message, serial: u64) {
        let Self { sessions, log: Some(log), .. } = self else { return };
        let (index, filters) = sessions.router.filters_of(Name::topic_of(message));
        for filter in filters {
            if index.promises(*filter) > 0 {
                log.push_backlog(*filter, serial);
            }
        }
    }

    /// All that waits for the session.
    pub(crate) fn all_pending(&self, slot: u32) -> Vec<u64> {
        let (Some(log), Some(client)) = (&self.log, self.sessions.get(slot)) else {
            return Vec::new();
        };
        pending(log, client, &self.sessions.router, usize::MAX)
    }

    /// Moves on what waits in the log for a session, as far as its window goes.
    pub(super) fn pump_backlog(&mut self, slot: u32) {
        while let Self { sessions, log: Some(log), .. } = &*self
            && log.is_behind(slot)
            && sessions.get(slot).is_some_and(|client| client.session.has_window())
        {
            let Some(serial) = self.take_pending(slot) else { return self.catch_up(slot) };
            if !self.dispatch_stored(slot, serial) {
                if let Some(log) = &mut self.log {
                    log.put_back_upcoming(slot, serial);
                }
                return;
            }
        }
    }

    /// The serial whose turn comes next. They are looked up a batch at a time: what comes meanwhile
    /// is behind them all.
    fn take_pending(&mut self, slot: u32) -> Option<u64> {
        let Self { sessions, log: Some(log), .. } = self else { return None };
        let next = log.next_upcoming(slot);
        if next.is_some() || !log.is_behind(slot) {
            return next;
        }
        let serials = pending(log, sessions.get(slot)?, &sessions.router, BATCH_SERIALS);
        log.set_upcoming(slot, serials)
    }

    /// False: the disk has to be waited for.
    fn dispatch_stored(&mut self, slot: u32, serial: u64) -> bool {
        let Self { cx, sessions, log: Some(log), .. } = self else { return false };
        let Some((client, router)) = sessions.with_index(slot).expected() else { return false };
        let message = match log.load_for(slot, serial) {
            Loaded::Pending => return false,
            Loaded::Gone => {
                log.pass_gone(slot, serial);
                return true;
            }
            Loaded::Ready(message) => message,
        };
        let was_live = log.count_out(slot, serial);
        if message.is_expired(cx.now_ms) {
            log.passed(slot, serial);
            client.note_expired(cx, was_live.into());
            return true;
        }
        let is_unwritten = log.is_unwritten(serial);
        if let Some(delivery) = client.delivery_of(router, &message, serial, is_unwritten) {
            self.dispatch(slot, delivery);
            return true;
        }
        if client.has_lost_right(router, &message) {
            client.note_dropped(cx, Dropped::Denied);
        }
        log.passed(slot, serial);
        true
    }

    /// Nothing waits for the session any more.
    fn catch_up(&mut self, slot: u32) {
        let Self { cx, sessions, log: Some(log), .. } = self else { return };
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        let filters = client.subscriptions.plain().map(|listed| listed.filter);
        let expired = log.catch_up(slot, filters);
        if let Some(link) = client.session.link_mut().filter(|link| link.outbox.is_empty()) {
            link.has_caught_up();
        }
        client.note_expired(cx, expired);
    }

    /// The session gives a filter up: what waits for it by this filter alone is not delivered any
    /// more. `before`: all that waited when it had the filter.
    pub(crate) fn release_pending(&mut self, slot: u32, before: Vec<u64>) {
        // What the session listens to has changed: its next serials are looked up anew.
        if let Some(log) = &mut self.log {
            log.forget_upcoming(slot);
        }
        if before.is_empty() {
            return;
        }
        self.cx.flow.work.charge_for(Task::Pending(before.len()));
        let after = self.all_pending(slot);
        let Some(log) = &mut self.log else { return };
        for serial in before {
            if after.binary_search(&serial).is_err() {
                log.give_up_pending(slot, serial);
            }
        }
    }
}

/// What the session's turn comes for next: at most `count` serials, growing.
fn pending(log: &Log, client: &Client, router: &Router, count: usize) -> Vec<u64> {
    let slot = client.key.slot();
    let filters = client.subscriptions.plain().map(|listed| listed.filter);
    let counts = |filter| {
        let own = router.subscription(filter, slot);
        own.is_some_and(|own| options::is_durable(own.options))
    };
    log.pending(slot, filters, counts, count)
}
