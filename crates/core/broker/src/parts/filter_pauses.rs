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

use session::NEVER;

use crate::SessionKey;

/// Whom this shard does not read, and why.
#[derive(Debug)]
pub(crate) struct FilterPauses {
    pub(crate) list: Vec<FilterPause>,
    /// When this shard looks at those of its own subscribers.
    pub(crate) look_ms: u64,
    /// Planted: see [`crate::Shard::couple_pauses`].
    #[cfg(feature = "testing")]
    pub(crate) is_coupled: bool,
}

#[derive(Debug)]
pub(crate) struct FilterPause {
    pub(crate) subscriber: SessionKey,
    /// What it subscribed to, as keys. Empty: the pause is over, and who waits is to be read on.
    pub(crate) filters: Vec<Arc<str>>,
    /// Payloads of fewer bytes do not wait.
    pub(crate) bytes_min: usize,
    /// Slots and connections. One entry for each connection, and for some that have ended.
    pub(crate) waiting: VecDeque<(u32, u64)>,
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

    pub(crate) fn filter_count(&self) -> usize {
        self.list.iter().map(|pause| pause.filters.len()).sum()
    }

    pub(crate) fn of(&mut self, subscriber: SessionKey) -> Option<&mut FilterPause> {
        self.list.iter_mut().find(|pause| pause.subscriber == subscriber)
    }

    pub(crate) fn are_for(
        &mut self,
        subscriber: SessionKey,
        topic: &str,
        payload_bytes: usize,
    ) -> bool {
        self.of(subscriber).is_some_and(|pause| pause.is_for(topic, payload_bytes))
    }

    /// The subscriber for which a message of this publisher has to wait. Nobody waits for itself.
    pub(crate) fn subscriber_of(
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
    pub(crate) fn begin(&mut self, subscriber: SessionKey, filter: Arc<str>, bytes_min: usize) {
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

    pub(crate) fn next_resumed(&mut self) -> Option<(u32, u64)> {
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
