//! Messages that wait in the journal for a session that is behind.

use std::collections::VecDeque;

use session::{Delivery, Dropped, Lifetimes, Offered, Overflow, QueueLimit};
use topic::FilterId;

use crate::Name;
use crate::log::Durable;
use crate::log::store::Loaded;
use crate::parts::client::Client;
use crate::parts::router::Router;
use crate::parts::work::Task;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::options;

/// Serials that a session takes from its backlogs at once.
const BATCH_SERIALS: usize = 64;

impl Durable {
    /// The session cannot take the delivery now: it waits in the backlogs of its filters. False:
    /// they are full, and it does not.
    pub(super) fn fall_behind(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        router: &Router,
        delivery: &Delivery,
    ) -> bool {
        let now_ms = cx.now_ms;
        let (sent, serial) = (delivery.as_sent(), delivery.terms.serial);
        let bytes = self.store.as_ref().and_then(|store| store.bytes_of(serial));
        let bytes = bytes.unwrap_or_default();
        self.drop_expired(cx, client);
        let kept = self.kept.get(client.key.slot());
        let reached = kept.and_then(|it| it.limit_reached(bytes, &client.limits.queue));
        debug_assert!(
            self.kept
                .get(client.key.slot())
                .is_none_or(|durable| durable.next_expiry_ms() > now_ms),
            "a copy that has expired takes room (MQTT-3.3.2-5)"
        );
        let limits = client.limits.queue;
        let (Some(durable), Some(store)) =
            (self.kept.get_mut(client.key.slot()).expected(), self.store.as_mut().expected())
        else {
            return false;
        };
        let fits_at_all = limits.messages_max > 0 && bytes <= limits.bytes_max;
        if let Some(reached) = reached
            && (limits.overflow != Overflow::DropOldest || !fits_at_all)
        {
            store.skip(durable, serial);
            store.release_message(serial);
            let offered = match limits.overflow {
                Overflow::Disconnect => Offered::Disconnect(reached),
                Overflow::Reject => Offered::Refused(reached),
                _ => Offered::Dropped(Dropped::QueueFull(reached)),
            };
            client.after_offer(cx, sent, offered);
            return false;
        }
        durable.count_in(serial, bytes, delivery.message.expires_at_ms(), now_ms);
        client.after_offer(cx, sent, Offered::Queued);
        if let Some(reached) = reached {
            self.drop_oldest(cx, client, router, reached);
        }
        true
    }

    /// Makes room in a full backlog.
    fn drop_oldest(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        router: &Router,
        reached: QueueLimit,
    ) {
        loop {
            let limits = client.limits.queue;
            let Some(durable) = self.kept.get(client.key.slot()).expected() else { return };
            let is_full =
                durable.queued > limits.messages_max || durable.queued_bytes > limits.bytes_max;
            if !is_full {
                return;
            }
            let Some(serial) = self.take_pending(client, router) else { return };
            let (Some(durable), Some(store)) =
                (self.kept.get_mut(client.key.slot()), &mut self.store)
            else {
                return;
            };
            let was_live = store.leave_queue(durable, serial);
            store.release_message(serial);
            if was_live {
                client.note_dropped(cx, Dropped::QueueFull(reached));
            }
        }
    }

    /// Puts a serial into the backlogs of the filters that match the topic.
    pub(super) fn leave_behind(&mut self, router: &mut Router, topic: Name<'_, [u8]>, serial: u64) {
        let Some(store) = self.store.as_mut().expected() else { return };
        let (index, filters) = router.filters_of(topic);
        for filter in filters {
            if index.promises(*filter) > 0 {
                store.push_backlog(*filter, serial);
            }
        }
    }

    /// What the session's turn comes for next: at most `count` serials, growing.
    fn pending(&self, client: &Client, router: &Router, count: usize) -> Vec<u64> {
        let mut serials = Vec::new();
        let Some(store) = &self.store else { return serials };
        let Some(durable) = self.kept.get(client.key.slot()).filter(|durable| durable.is_behind)
        else {
            return serials;
        };
        for listed in client.subscriptions.plain() {
            let Some(backlog) = store.backlogs.get(&listed.filter) else { continue };
            let list = &backlog.serials;
            let subscription = router.subscription(listed.filter, client.key.slot());
            if !subscription.is_some_and(|own| options::is_durable(own.options)) {
                continue;
            }
            let from = durable.track.cursor().max(durable.since(listed.filter));
            let begin = list.partition_point(|serial| *serial <= from);
            let fresh = list.iter().skip(begin);
            let fresh = fresh.filter(|serial| !durable.track.contains(**serial));
            serials.extend(fresh.take(count).copied());
        }
        serials.sort_unstable();
        serials.dedup();
        serials.truncate(count);
        serials
    }

    /// All that waits for the session.
    pub(crate) fn all_pending(&self, client: &Client, router: &Router) -> Vec<u64> {
        self.pending(client, router, usize::MAX)
    }

    /// Moves on what waits in the journal for a session, as far as its window goes.
    pub(crate) fn pump_backlog(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        router: &mut Router,
    ) {
        while self.has_backlog(client) && client.session.has_window() {
            let Some(serial) = self.take_pending(client, router) else {
                self.catch_up(cx, client);
                return;
            };
            if !self.dispatch_stored(cx, client, router, serial) {
                if let Some(durable) = self.kept.get_mut(client.key.slot()) {
                    durable.rare().upcoming.push_front(serial);
                }
                return;
            }
        }
    }

    /// The serial whose turn comes next. They are looked up a batch at a time: what comes meanwhile
    /// is behind them all.
    fn take_pending(&mut self, client: &mut Client, router: &Router) -> Option<u64> {
        let durable = self.kept.get_mut(client.key.slot())?;
        let next = durable.rare.as_mut().and_then(|rare| rare.upcoming.pop_front());
        if next.is_some() || !durable.is_behind {
            return next;
        }
        let serials = self.pending(client, router, BATCH_SERIALS);
        let upcoming = &mut self.kept.get_mut(client.key.slot())?.rare().upcoming;
        upcoming.extend(serials);
        upcoming.pop_front()
    }

    /// False: the disk has to be waited for.
    fn dispatch_stored(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        router: &mut Router,
        serial: u64,
    ) -> bool {
        let (Some(store), Some(durable)) =
            (self.store.as_mut().expected(), self.kept.get_mut(client.key.slot()).expected())
        else {
            return false;
        };
        let message = match store.load(serial, durable.queue.into()) {
            Loaded::Pending => return false,
            Loaded::Gone => {
                store.leave_queue(durable, serial);
                return true;
            }
            Loaded::Ready(message) => message,
        };
        let was_live = store.count_out(durable, serial);
        if message.is_expired(cx.now_ms) {
            store.pass_now(durable, serial);
            store.release_message(serial);
            client.note_expired(cx, was_live.into());
            return true;
        }
        if let Some(delivery) = self.delivery_of(client, router, serial, &message) {
            self.dispatch(cx, client, delivery);
            return true;
        }
        if client.has_lost_right(router, &message) {
            client.note_dropped(cx, Dropped::Denied);
        }
        if let (Some(store), Some(durable)) =
            (&mut self.store, self.kept.get_mut(client.key.slot()))
        {
            store.pass_now(durable, serial);
            store.release_message(serial);
        }
        true
    }

    /// Nothing waits for the session any more.
    fn catch_up(&mut self, cx: &mut Context, client: &mut Client) {
        let Some(store) = self.store.as_mut().expected() else { return };
        let Some(durable) = self.kept.get_mut(client.key.slot()).expected() else { return };
        durable.is_behind = false;
        if let Some(rare) = &mut durable.rare {
            rare.upcoming = VecDeque::new();
            rare.lifetimes = Lifetimes::default();
        }
        durable.queued_bytes = 0;
        let expired = std::mem::take(&mut durable.queued);
        durable.track.advance(store.last_serial());
        for listed in client.subscriptions.plain() {
            store.prune_backlog(listed.filter);
        }
        if let Some(link) = client.session.link_mut().filter(|link| link.outbox.is_empty()) {
            link.has_caught_up();
        }
        client.note_expired(cx, expired);
    }

    /// The session gives a filter up: what waits for it by this filter alone is not delivered any
    /// more. Called before and after the subscription goes; the difference is released.
    pub(crate) fn release_pending(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        router: &Router,
        before: Vec<u64>,
    ) {
        // What the session listens to has changed: its next serials are looked up anew.
        if let Some(durable) = self.kept.get_mut(client.key.slot()) {
            durable.forget_upcoming();
        }
        if before.is_empty() {
            return;
        }
        cx.flow.work.charge_for(Task::Pending(before.len()));
        let after = self.all_pending(client, router);
        let (Some(store), Some(durable)) = (&mut self.store, self.kept.get_mut(client.key.slot()))
        else {
            return;
        };
        for serial in before {
            if after.binary_search(&serial).is_err() {
                store.count_out(durable, serial);
                store.release_message(serial);
            }
        }
    }

    /// A filter that is free for others.
    pub(crate) fn close_backlog(&mut self, filter: FilterId) {
        if let Some(store) = &mut self.store {
            store.backlogs.remove(&filter);
        }
    }

    /// What has expired in the journal takes no room in the queue of the session (MQTT-3.3.2-5).
    pub(crate) fn drop_expired(&mut self, cx: &mut Context, client: &mut Client) {
        let kept = self.kept.get_mut(client.key.slot());
        let expired = kept.map_or(0, |durable| durable.expire(cx.now_ms));
        client.note_expired(cx, expired);
    }

    /// Deliveries that wait in the journal.
    #[inline]
    pub(crate) fn backlog(&self, client: &Client) -> usize {
        let kept = if client.is_kept { self.kept.get(client.key.slot()) } else { None };
        kept.map_or(0, |durable| durable.queued as usize)
    }

    /// Does anything wait for this session in the journal?
    #[inline]
    pub(crate) fn has_backlog(&self, client: &Client) -> bool {
        client.is_kept && self.kept.get(client.key.slot()).is_some_and(|durable| durable.is_behind)
    }
}
