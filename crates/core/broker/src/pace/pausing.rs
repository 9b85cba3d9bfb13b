//! Publishers that wait until the queue of a subscriber is short.

use std::sync::Arc;

use codec::{Publish, QoS};
use session::{LARGE_BYTES_MIN, Message, NEVER};

use crate::Shard;
use crate::parts::client::{Client, topic_of};
use crate::parts::flow::{RECHECK_MS, SCANNED_MAX};
use crate::parts::router::Router;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::{Mail, Name, SessionKey};

impl Shard {
    /// Ends pauses that nobody needs any more: subscribers are gone, or do not read.
    pub(crate) fn check_pauses(&mut self) {
        let now_ms = self.cx.now_ms;
        if now_ms < self.cx.flow.pauses.look_ms {
            return;
        }
        let mut look_ms = NEVER;
        let pauses = self.cx.flow.pauses.list.iter().filter(|pause| !pause.filters.is_empty());
        let own = pauses.map(|pause| pause.subscriber).filter(|key| key.shard() == self.cx.id);
        for subscriber in own.collect::<Vec<_>>() {
            let client = self.sessions.at(subscriber);
            let is_worth_it = client.is_some_and(|client| {
                let backlog = client.backlog(self.log.as_deref());
                !client.has_short_queue(backlog) && client.shortens_queue(backlog, now_ms)
            });
            match is_worth_it {
                true => look_ms = now_ms + RECHECK_MS,
                false => self.cx.resume_publishers(subscriber),
            }
        }
        self.cx.flow.pauses.look_ms = look_ms;
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
        cx.send_to_shards(&Mail::Pause { subscriber, filter: filter.clone(), bytes_min });
        cx.flow.pauses.begin(subscriber, filter, bytes_min);
        cx.flow.pauses.look_ms = cx.flow.pauses.look_ms.min(now_ms + RECHECK_MS);
        true
    }

    /// Its queue may have become shorter.
    pub(crate) fn check_pause(&self, cx: &mut Context, backlog: usize) {
        let pause = cx.flow.pauses.of(self.key);
        if pause.is_some_and(|pause| !pause.filters.is_empty()) && self.has_short_queue(backlog) {
            cx.resume_publishers(self.key);
        }
    }
}

impl Context {
    pub(crate) fn on_pause(&mut self, subscriber: SessionKey, filter: Arc<str>, bytes_min: usize) {
        self.flow.pauses.begin(subscriber, filter, bytes_min);
    }

    pub(crate) fn resume_publishers(&mut self, subscriber: SessionKey) {
        self.flow.pauses.end(subscriber);
        self.send_to_shards(&Mail::Resume { subscriber });
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
