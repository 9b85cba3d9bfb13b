//! Who wants a topic: the subscriptions of this shard, and what is known of those of others.
//!
//! Publishers send many messages on one topic, and those are handled in a row: who wants the latest
//! one is remembered for as long as nobody's subscriptions change.

use std::sync::Arc;

use topic::{
    Claim, FilterId, Index, InterestCounts, Interested, Matches, Subscribed, Subscription,
    Unsubscribed,
};

use crate::parts::stream_index::{Asking, Places, StreamIndex};
use crate::parts::work::{Task, Work};
use crate::words::name::is_of_broker;
use crate::words::stream_set::StreamSet;
use crate::{Name, ShardId, Shared};

/// The subscriptions of a shard, and its claims in the interest summary that all share.
#[derive(Debug)]
pub(crate) struct Router {
    shared: Arc<Shared>,
    /// The bit of this shard.
    own: u64,
    index: Index,
    claims: InterestCounts,
    /// Groups stand in the index of every shard, and claim nothing.
    group_count: usize,
    streams: StreamIndex,
    /// Of the latest topic. None while a message is on its way to them.
    latest: Option<Box<Audience>>,
    /// For look-ups; used again.
    filters: Vec<FilterId>,
}

/// Who wants a topic, as far as it was asked. Versions are 0 for what is not known.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    /// Its key.
    topic: Vec<u8>,
    /// For the keys of other scopes than the first; used again.
    buffer: Vec<u8>,
    interest_version: u64,
    interested: Interested,
    index_version: u64,
    matches: Matches,
    /// Known with `interested`: a stream may want it.
    may_be_streamed: bool,
    /// The streams that match it, once that was asked.
    streams: Option<Places>,
}

impl Audience {
    /// The shards that may want it.
    pub(crate) const fn interested(&self) -> Interested {
        self.interested
    }

    /// May a stream want it?
    pub(crate) const fn may_be_streamed(&self) -> bool {
        self.may_be_streamed
    }

    /// The subscriptions of this shard. They may be sorted.
    pub(crate) fn subscriptions(&mut self) -> &mut [Subscription] {
        &mut self.matches.subscriptions
    }

    /// The groups, by their numbers.
    pub(crate) fn groups(&self) -> &[u32] {
        &self.matches.groups
    }

    #[inline]
    fn look_at(&mut self, topic: Name<'_, [u8]>) {
        // No name of the first scope is a key of another.
        if !topic.scope().is_first() {
            self.look_at_scoped(topic);
        } else if self.topic != topic.text() {
            self.look_at_another(topic);
        }
    }

    #[inline(never)]
    fn look_at_scoped(&mut self, topic: Name<'_, [u8]>) {
        topic.write_key(&mut self.buffer);
        if self.topic != self.buffer {
            self.look_at_another(topic);
        }
    }

    #[inline]
    fn is_known(&self, topic: Name<'_, [u8]>, shared: &Shared) -> bool {
        topic.scope().is_first()
            && self.topic == topic.text()
            && self.interest_version == shared.interest.version()
    }

    fn look_at_another(&mut self, topic: Name<'_, [u8]>) {
        topic.write_key(&mut self.topic);
        self.interest_version = 0;
        self.index_version = 0;
        self.streams = None;
    }

    #[inline]
    fn ask(&mut self, shared: &Shared, streams: &StreamIndex) -> Interested {
        // Before the look-up: a change that comes in between is looked up the next time.
        let version = shared.interest.version();
        if self.interest_version != version {
            self.interested = shared.interest.shards(&self.topic);
            // What the broker says of itself stays in its cell.
            if shared.homes.has_other_cells() && is_of_broker(&self.topic) {
                let own = shared.homes.own_mask();
                self.interested.wants &= own;
                self.interested.promises &= own;
            }
            self.may_be_streamed = streams.may_match(&self.topic);
            self.interest_version = version;
        }
        self.interested
    }

    #[inline]
    fn find(&mut self, index: &mut Index, work: &mut Work) {
        if self.index_version != index.version() {
            index.matches(&self.topic, &mut self.matches);
            self.index_version = index.version();
            let steps = index.take_long_walks();
            if steps > 0 {
                work.charge_for(Task::Steps(steps));
            }
        }
    }

    fn find_nobody(&mut self) {
        self.matches.clear();
        self.index_version = 0;
    }
}

impl Router {
    pub(crate) fn new(id: ShardId, shared: &Arc<Shared>, seed: u64) -> Self {
        Self {
            shared: shared.clone(),
            own: 1 << id,
            index: Index::new(seed),
            claims: InterestCounts::new(id, &shared.interest),
            group_count: 0,
            streams: StreamIndex::new(seed),
            latest: None,
            filters: Vec::new(),
        }
    }

    /// Who is to get a message on the topic, everywhere. To be [given back](Router::keep).
    #[inline(always)]
    pub(crate) fn audience(&mut self, topic: Name<'_, [u8]>, work: &mut Work) -> Box<Audience> {
        let mut audience = self.latest.take().unwrap_or_default();
        audience.look_at(topic);
        let interested = audience.ask(&self.shared, &self.streams);
        if interested.wants & self.own != 0 || self.group_count > 0 {
            audience.find(&mut self.index, work);
        } else {
            audience.find_nobody();
        }
        audience
    }

    /// Who in this shard is. To be [given back](Router::keep).
    pub(crate) fn audience_here(
        &mut self,
        topic: Name<'_, [u8]>,
        work: &mut Work,
    ) -> Box<Audience> {
        let mut audience = self.latest.take().unwrap_or_default();
        audience.look_at(topic);
        audience.find(&mut self.index, work);
        audience
    }

    /// Remembers who wants the latest topic.
    #[inline]
    pub(crate) fn keep(&mut self, audience: Box<Audience>) {
        self.latest = Some(audience);
    }

    /// The shards that may want the topic.
    pub(crate) fn interested(&mut self, topic: Name<'_, [u8]>) -> Interested {
        let audience = self.latest.get_or_insert_default();
        audience.look_at(topic);
        audience.ask(&self.shared, &self.streams)
    }

    pub(crate) const fn streams(&self) -> &StreamIndex {
        &self.streams
    }

    pub(crate) fn set_streams(&mut self, set: Arc<StreamSet>) {
        self.streams.replace(set);
        // What is known of the latest topic is of the set before.
        self.latest = None;
    }

    /// May a stream want the topic? A quick answer, which may be yes for too many.
    #[inline]
    pub(crate) fn may_be_streamed(&self, topic: Name<'_, [u8]>) -> bool {
        if self.streams.is_empty() {
            return false;
        }
        // Most publishes are on the topic of the one before.
        match &self.latest {
            Some(latest) if latest.is_known(topic, &self.shared) => latest.may_be_streamed,
            _ => !topic.scope().is_first() || self.streams.may_match(topic.text()),
        }
    }

    /// The streams that take such a message on this topic.
    #[inline]
    pub(crate) fn streams_for(&mut self, topic: Name<'_, [u8]>, asked: Asking) -> Places {
        match self.streams.is_empty() {
            true => Places::new(),
            false => self.find_streams(topic, asked),
        }
    }

    #[inline(never)]
    fn find_streams(&mut self, topic: Name<'_, [u8]>, asked: Asking) -> Places {
        let audience = self.latest.get_or_insert_default();
        audience.look_at(topic);
        audience.ask(&self.shared, &self.streams);
        if !audience.may_be_streamed {
            return Places::new();
        }
        let matched = audience.streams.get_or_insert_with(|| self.streams.find(&audience.topic));
        self.streams.taking(matched, asked)
    }

    /// The filters that match the topic, and the index in which they stand.
    pub(crate) fn filters_of(&mut self, topic: Name<'_, [u8]>) -> (&Index, &[FilterId]) {
        self.index.matching_filters(&topic.key(), &mut self.filters);
        (&self.index, &self.filters)
    }

    pub(crate) fn find(&self, filter: Name<'_>) -> Option<FilterId> {
        self.index.find(&filter.key())
    }

    /// What a filter is called, and where.
    pub(crate) fn name(&self, filter: FilterId) -> Name<'_> {
        Name::of_key(self.index.text(filter))
    }

    /// The same as one text.
    pub(crate) fn key(&self, filter: FilterId) -> &str {
        self.index.text(filter)
    }

    /// What a filter is called in its scope.
    pub(crate) fn text(&self, filter: FilterId) -> &str {
        self.name(filter).text()
    }

    pub(crate) fn subscription(&self, filter: FilterId, slot: u32) -> Option<Subscription> {
        self.index.subscription(filter, slot)
    }

    /// The filters that somebody has subscribed to.
    pub(crate) fn filter_count(&self) -> usize {
        self.index.filter_count()
    }

    /// Puts a subscription into the index, and claims what follows from it.
    pub(crate) fn subscribe(&mut self, filter: Name<'_>, subscription: Subscription) -> Subscribed {
        let filter = &*filter.key();
        let subscribed = self.index.subscribe(filter, subscription);
        // Groups stand on the filter on every shard and need no claim, so only subscribers count.
        let is_first = subscribed.is_new_subscription
            && self.index.subscriptions(subscribed.filter).len() == 1;
        let interest = &self.shared.interest;
        if is_first {
            self.claims.add(interest, filter, Claim::Want);
        }
        if subscribed.is_first_promise {
            self.claims.add(interest, filter, Claim::Promise);
        }
        if subscribed.is_last_promise {
            self.claims.remove(interest, filter, Claim::Promise);
        }
        subscribed
    }

    /// Takes a subscription out of the index, with its claims.
    pub(crate) fn unsubscribe(&mut self, filter: FilterId, slot: u32) -> Option<Unsubscribed> {
        let text = self.index.text(filter).to_owned();
        let gone = self.index.unsubscribe(filter, slot)?;
        let interest = &self.shared.interest;
        if gone.is_last || self.index.subscriptions(filter).is_empty() {
            self.claims.remove(interest, &text, Claim::Want);
        }
        if gone.is_last_promise {
            self.claims.remove(interest, &text, Claim::Promise);
        }
        Some(gone)
    }

    pub(crate) fn add_group(&mut self, filter: Name<'_>, number: u32) -> FilterId {
        self.group_count += 1;
        self.index.add_group(&filter.key(), number).filter
    }

    pub(crate) fn remove_group(&mut self, filter: FilterId, number: u32) {
        self.group_count -= 1;
        self.index.remove_group(filter, number);
    }
}
