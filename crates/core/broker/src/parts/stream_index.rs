//! Which streams want a topic.

use std::sync::Arc;

use codec::QoS;
use session::Message;
use smallvec::SmallVec;
use topic::{Index, Matches, Subscription};

use crate::Name;
use crate::words::stream_set::{StreamSet, StreamSettings};

/// The filters of all streams, and which of them match.
#[derive(Debug)]
pub(crate) struct StreamIndex {
    set: Arc<StreamSet>,
    index: Index,
    seed: u64,
    /// How the filters begin, in their order. None begins with another one, so at most one of them
    /// begins a topic: the last that is not behind it.
    beginnings: Vec<Box<[u8]>>,
    found: Matches,
}

/// Streams by their places in the set, growing. Few messages go to more than one.
pub(crate) type Places = SmallVec<[u32; 4]>;

impl StreamIndex {
    pub(crate) fn new(seed: u64) -> Self {
        let (set, index, found) = (Arc::default(), Index::new(seed), Matches::default());
        Self { set, index, seed, beginnings: Vec::new(), found }
    }

    pub(crate) fn replace(&mut self, set: Arc<StreamSet>) {
        self.index = Index::new(self.seed);
        self.beginnings.clear();
        for (place, stream) in (0..).zip(&set.streams) {
            for filter in &stream.filters {
                let key = Name::new(stream.scope, &**filter).key();
                let subscription = Subscription { subscriber: place, options: 0, identifier: 0 };
                self.index.subscribe(&key, subscription);
                self.beginnings.push(beginning(&key).into());
            }
        }
        self.beginnings.sort_unstable();
        self.beginnings.dedup_by(|next, kept| next.starts_with(kept));
        self.set = set;
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

    /// May a stream want the topic, by its key? Most that none wants are known at once.
    #[inline]
    pub(crate) fn may_match(&self, topic: &[u8]) -> bool {
        let next = self.beginnings.partition_point(|own| **own <= *topic);
        next > 0 && topic.starts_with(&self.beginnings[next - 1])
    }

    /// Looks up who matches the topic, by its key, whatever else they ask of a message.
    pub(crate) fn find(&mut self, topic: &[u8]) -> Places {
        self.index.matches(topic, &mut self.found);
        let mut places: Places =
            self.found.subscriptions.iter().map(|own| own.subscriber).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Those of the matching streams that take such a message.
    pub(crate) fn taking(&self, matched: &[u32], asked: Asking) -> Places {
        let takes = |place: &u32| {
            let stream = self.set.streams.get(*place as usize);
            stream.is_some_and(|stream| stream.takes(asked))
        };
        matched.iter().copied().filter(takes).collect()
    }
}

/// What all topics begin with that the filter matches: `a` for `a/#`, which matches `a`, too.
fn beginning(filter: &str) -> &[u8] {
    let literal = filter.split(['+', '#']).next().unwrap_or_default();
    let is_parent = filter[literal.len()..].starts_with('#');
    let parent = literal.strip_suffix('/').filter(|_| is_parent);
    parent.unwrap_or(literal).as_bytes()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::stream_set::StreamNumber;
    use crate::{Durability, Scope};

    fn index(filters: &[&str]) -> StreamIndex {
        let stream = StreamSettings {
            number: StreamNumber(1),
            scope: Scope::FIRST,
            filters: filters.iter().map(|filter| (*filter).into()).collect(),
            qos_min: 0,
            retain: None,
            payload_bytes_max: usize::MAX,
            level: Durability::Disk,
            is_full: Arc::default(),
        };
        let mut index = StreamIndex::new(1);
        index.replace(Arc::new(StreamSet { streams: vec![stream], ..StreamSet::default() }));
        index
    }

    /// Up to three of these levels.
    fn texts(levels: &[&str]) -> Vec<String> {
        let mut texts: Vec<String> = levels.iter().map(|level| (*level).to_owned()).collect();
        for first in 0..levels.len() * (levels.len() + 1) {
            let Some(upper) = texts.get(first).cloned() else { break };
            texts.extend(levels.iter().map(|level| format!("{upper}/{level}")));
        }
        texts.retain(|text| !text.is_empty());
        texts
    }

    #[test]
    fn no_topic_is_missed_that_a_filter_matches() {
        let topics = texts(&["a", "ab", "b", "$", ""]);
        let filters = texts(&["a", "ab", "b", "+", ""]);
        let below = filters.iter().map(|filter| format!("{filter}/#"));
        let filters: Vec<String> =
            filters.iter().cloned().chain(below).chain(["#".to_owned()]).collect();
        for (first, second) in filters.iter().zip(filters.iter().cycle().skip(7)) {
            let mut index = index(&[first, second]);
            for topic in &topics {
                let is_found = !index.find(topic.as_bytes()).is_empty();
                assert!(
                    !is_found || index.may_match(topic.as_bytes()),
                    "{topic} of {first} and {second}"
                );
            }
        }
    }

    #[test]
    fn a_topic_that_begins_otherwise_is_not_looked_up() {
        let index = index(&["cars/#", "cars/1/speed", "trucks/+/speed", "a", "zebra"]);
        for topic in ["car", "c", "truck", "trucks", "trains/1", "zebr", "b", "$cars/1"] {
            assert!(!index.may_match(topic.as_bytes()), "{topic}");
        }
        for topic in ["cars", "cars/2", "trucks/1/speed", "a", "zebra"] {
            assert!(index.may_match(topic.as_bytes()), "{topic}");
        }
        assert!(!self::index(&[]).may_match(b"a"));
        assert!(self::index(&["a/b", "#"]).may_match(b"c"));
    }
}
