//! Pauses by filter: publishers of large messages are paused while the queue of a subscriber that
//! reads them is long, and all publishers while it is half full.
//!
//! A thousand publishers need not send more than a message each to fill a queue, before any of them
//! could be told that it is too fast. So it is not publishers that are told to wait, but shards: a
//! pause names a filter of the subscriber, and a publish of QoS 1 or 2 that it matches is not
//! taken if its payload is large, or, when the queue is half full, in any case. Its publisher is
//! not read on, and has no answer; what has one is delivered. The shard of the subscriber resumes
//! them when the queue is short again, or when the subscriber does not read.

use std::collections::VecDeque;
use std::sync::Arc;

use codec::{Publish, QoS};
use session::{LARGE_BYTES_MIN, Message, NEVER};

use crate::pace::capacity::topic_of;
use crate::parts::client::Client;
use crate::parts::flow::{RECHECK_MS, SCANNED_MAX};
use crate::parts::router::Router;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::{Mail, Name, SessionKey};

/// Whom this shard does not read, and why.
#[derive(Debug)]
pub(crate) struct FilterPauses {
    list: Vec<FilterPause>,
    /// When this shard looks at those of its own subscribers.
    look_ms: u64,
    /// Planted: see [`crate::Shard::couple_pauses`].
    #[cfg(feature = "testing")]
    pub(crate) is_coupled: bool,
}

#[derive(Debug)]
struct FilterPause {
    subscriber: SessionKey,
    /// What it subscribed to, as keys. Empty: the pause is over, and who waits is to be read on.
    filters: Vec<Arc<str>>,
    /// Payloads of fewer bytes do not wait.
    bytes_min: usize,
    /// Slots and connections. One entry for each connection, and for some that have ended.
    waiting: VecDeque<(u32, u64)>,
}

impl Default for FilterPauses {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            look_ms: NEVER,
            #[cfg(feature = "testing")]
            is_coupled: false,
        }
    }
}

impl FilterPause {
    fn is_for(&self, topic: &str, payload_bytes: usize) -> bool {
        payload_bytes >= self.bytes_min
            && self.filters.iter().any(|filter| topic::matches(filter, topic))
    }
}

impl FilterPauses {
    pub(crate) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) const fn look_ms(&self) -> u64 {
        self.look_ms
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.list.iter().map(|pause| pause.waiting.len()).sum()
    }

    fn filter_count(&self) -> usize {
        self.list.iter().map(|pause| pause.filters.len()).sum()
    }

    fn of(&mut self, subscriber: SessionKey) -> Option<&mut FilterPause> {
        self.list.iter_mut().find(|pause| pause.subscriber == subscriber)
    }

    fn are_for(&mut self, subscriber: SessionKey, topic: &str, payload_bytes: usize) -> bool {
        self.of(subscriber).is_some_and(|pause| pause.is_for(topic, payload_bytes))
    }

    /// The subscriber for which a message of this publisher has to wait. Nobody waits for itself.
    fn subscriber_of(
        &self,
        publisher: SessionKey,
        topic: &str,
        payload_bytes: usize,
    ) -> Option<SessionKey> {
        let is_it = |pause: &&FilterPause| {
            pause.subscriber != publisher && pause.is_for(topic, payload_bytes)
        };
        self.list.iter().find(is_it).map(|pause| pause.subscriber)
    }

    /// From now on also for this filter, and for payloads of so many bytes.
    fn begin(&mut self, subscriber: SessionKey, filter: Arc<str>, bytes_min: usize) {
        let Some(pause) = self.of(subscriber) else {
            let (filters, waiting) = (vec![filter], VecDeque::new());
            return self.list.push(FilterPause { subscriber, filters, bytes_min, waiting });
        };
        let stands = !pause.filters.is_empty();
        pause.bytes_min = if stands { pause.bytes_min.min(bytes_min) } else { bytes_min };
        if !pause.filters.contains(&filter) {
            pause.filters.push(filter);
        }
    }

    pub(crate) fn end(&mut self, subscriber: SessionKey) {
        if let Some(pause) = self.of(subscriber) {
            pause.filters.clear();
        }
    }

    /// Those for whom no pause stands any more.
    pub(crate) fn overdue(&self) -> impl Iterator<Item = (u32, u64)> {
        let over = self.list.iter().filter(|pause| pause.filters.is_empty());
        over.flat_map(|pause| pause.waiting.iter().copied())
    }

    fn next_resumed(&mut self) -> Option<(u32, u64)> {
        loop {
            let over = self.list.iter().position(|pause| pause.filters.is_empty())?;
            let next = self.list[over].waiting.pop_front();
            if next.is_some() {
                return next;
            }
            self.list.swap_remove(over);
        }
    }
}

impl Context {
    /// The next publisher for whom no pause stands any more.
    pub(crate) fn next_resumed(&mut self) -> Option<(u32, u64)> {
        #[cfg(feature = "testing")]
        if self.flow.pauses.is_coupled && self.effects.windows_read().is_any_full() {
            return None;
        }
        self.flow.pauses.next_resumed()
    }
}

impl Client {
    /// A message was offered to a subscriber that reads, and whose queue is long: others like it
    /// are paused, if they are large, or `all` of them. False: that cannot be said of them.
    #[cold]
    pub(crate) fn pause_publishers(
        &self,
        cx: &mut Context,
        router: &mut Router,
        message: &Message,
        all: bool,
    ) -> bool {
        let now_ms = cx.now_ms;
        let subscriber = self.key;
        let name = Name::topic_of(message);
        let topic = &*Name::of(message).key();
        let bytes_min = if all { 0 } else { LARGE_BYTES_MIN };
        if cx.flow.pauses.are_for(subscriber, topic, bytes_min) {
            return true;
        }
        if cx.flow.pauses.filter_count() >= SCANNED_MAX {
            return false;
        }
        let (index, filters) = router.filters_of(name);
        let own =
            filters.iter().find(|filter| index.subscription(**filter, subscriber.slot()).is_some());
        let filter = own.map(|filter| Arc::<str>::from(index.text(*filter)));
        let Some(filter) = filter.expected() else { return false };
        cx.send_to_others(&Mail::Pause { subscriber, filter: filter.clone(), bytes_min });
        cx.flow.pauses.begin(subscriber, filter, bytes_min);
        cx.flow.pauses.look_ms = cx.flow.pauses.look_ms.min(now_ms + RECHECK_MS);
        true
    }

    /// Its queue may have become shorter.
    pub(crate) fn check_pause(&self, cx: &mut Context) {
        let pause = cx.flow.pauses.of(self.key);
        if pause.is_some_and(|pause| !pause.filters.is_empty()) && self.has_short_queue() {
            cx.resume_publishers(self.key);
        }
    }
}

impl Context {
    pub(crate) fn on_pause(&mut self, subscriber: SessionKey, filter: Arc<str>, bytes_min: usize) {
        self.flow.pauses.begin(subscriber, filter, bytes_min);
    }
}

impl Sessions {
    /// Ends pauses that nobody needs any more: subscribers are gone, or do not read.
    pub(crate) fn check_pauses(&mut self, cx: &mut Context) {
        let now_ms = cx.now_ms;
        if now_ms < cx.flow.pauses.look_ms {
            return;
        }
        let mut look_ms = NEVER;
        let pauses = cx.flow.pauses.list.iter().filter(|pause| !pause.filters.is_empty());
        let own = pauses.map(|pause| pause.subscriber).filter(|key| key.shard() == cx.id);
        for subscriber in own.collect::<Vec<_>>() {
            let client = self.at(subscriber);
            let is_worth_it =
                client.is_some_and(|c| !c.has_short_queue() && c.shortens_queue(now_ms));
            match is_worth_it {
                true => look_ms = now_ms + RECHECK_MS,
                false => cx.resume_publishers(subscriber),
            }
        }
        cx.flow.pauses.look_ms = look_ms;
    }
}

impl Context {
    fn resume_publishers(&mut self, subscriber: SessionKey) {
        self.flow.pauses.end(subscriber);
        self.send_to_others(&Mail::Resume { subscriber });
        // Those of this shard go on when this event is done, as those of others do.
        self.send(self.id, Mail::Resume { subscriber });
    }
}

impl Client {
    /// The subscriber with a long queue that this publish has to wait for.
    pub(crate) fn pausing_subscriber(
        &self,
        cx: &Context,
        publish: &Publish<'_>,
    ) -> Option<SessionKey> {
        if publish.qos == QoS::AtMostOnce {
            return None;
        }
        let topic = Name::new(self.scope, topic_of(self, publish)).key();
        cx.flow.pauses.subscriber_of(self.key, &topic, publish.payload.len())
    }

    /// Reads nothing from a publisher before the subscriber's queue is short.
    pub(crate) fn wait_for_subscriber(&mut self, cx: &mut Context, subscriber: SessionKey) {
        if self.stand_in_line(cx)
            && let Some(pause) = cx.flow.pauses.of(subscriber)
        {
            pause.waiting.push_back((self.key.slot(), self.connection));
            cx.metrics.holds.add(1);
        }
    }
}
