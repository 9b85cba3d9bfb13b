//! Which streams want a topic.

use std::sync::Arc;

use codec::QoS;
use session::Message;
use smallvec::SmallVec;
use topic::{Index, Matches, Subscription};

use crate::Name;
use crate::streams::{StreamSet, StreamSettings};

/// The filters of all streams, and which of them match.
#[derive(Debug)]
pub(crate) struct StreamIndex {
    set: Arc<StreamSet>,
    index: Index,
    seed: u64,
    /// Another number for each set; 0 is none's.
    version: u64,
    found: Matches,
}

/// Streams by their places in the set, growing. Few messages go to more than one.
pub(crate) type Places = SmallVec<[u32; 4]>;

/// The streams that match a topic, whatever else they ask of a message.
#[derive(Debug, Default)]
pub(crate) struct MatchedStreams {
    version: u64,
    places: Places,
}

impl StreamIndex {
    pub(crate) fn new(seed: u64) -> Self {
        let (set, index, found) = (Arc::default(), Index::new(seed), Matches::default());
        Self { set, index, seed, version: 1, found }
    }

    pub(crate) fn replace(&mut self, set: Arc<StreamSet>) {
        self.index = Index::new(self.seed);
        for (place, stream) in (0..).zip(&set.streams) {
            for filter in &stream.filters {
                let subscription = Subscription { subscriber: place, options: 0, identifier: 0 };
                self.index.subscribe(&Name::new(stream.scope, &**filter).key(), subscription);
            }
        }
        self.set = set;
        self.version += 1;
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.set.streams.is_empty()
    }

    /// Does so much wait for files that publishers have to wait?
    pub(crate) fn is_behind(&self) -> bool {
        self.set.is_behind.is_raised()
    }

    pub(crate) const fn set(&self) -> &Arc<StreamSet> {
        &self.set
    }

    /// Looks up who matches the topic, by its key, unless that is known.
    pub(crate) fn find(&mut self, topic: &[u8], matched: &mut MatchedStreams) {
        if matched.version == self.version {
            return;
        }
        matched.version = self.version;
        self.index.matches(topic, &mut self.found);
        matched.places = self.found.subscriptions.iter().map(|own| own.subscriber).collect();
        matched.places.sort_unstable();
        matched.places.dedup();
    }

    /// Those of the matching streams that take such a message.
    pub(crate) fn taking(&self, matched: &MatchedStreams, asked: Asking) -> Places {
        let takes = |place: &u32| {
            let stream = self.set.streams.get(*place as usize);
            stream.is_some_and(|stream| stream.takes(asked))
        };
        matched.places.iter().copied().filter(takes).collect()
    }
}

impl MatchedStreams {
    /// Another topic is looked at.
    pub(crate) const fn forget(&mut self) {
        self.version = 0;
    }
}

/// What streams look at besides the topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) payload_bytes: usize,
}

impl Asking {
    pub(crate) fn of(message: &Message) -> Self {
        let (qos, retain) = (message.qos(), message.retain());
        Self { qos, retain, payload_bytes: message.payload_len() }
    }
}

impl StreamSettings {
    fn takes(&self, asked: Asking) -> bool {
        asked.qos as u8 >= self.qos_min
            && self.retain.is_none_or(|retain| retain == asked.retain)
            && asked.payload_bytes <= self.payload_bytes_max
    }
}
