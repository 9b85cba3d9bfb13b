//! The topic of the latest message: publishers send many on one, and those are handled in a row.

use topic::Interested;

use crate::Shard;
use crate::work::STEPS_PER_UNIT;

/// A topic, and as of when is known who wants it. Versions are 0 for what is not known.
#[derive(Debug, Default)]
pub(crate) struct LastTopic {
    name: Vec<u8>,
    interest_version: u64,
    interested: Interested,
    /// `Shard::matches` holds who matches in this version of the index.
    index_version: u64,
}

impl Shard {
    /// The topic that [`Shard::interested`] and [`Shard::find_matches`] are asked about next.
    #[inline]
    pub(crate) fn look_at(&mut self, topic: &[u8]) {
        if self.last_topic.name != topic {
            self.look_at_another(topic);
        }
    }

    fn look_at_another(&mut self, topic: &[u8]) {
        let last = &mut self.last_topic;
        last.name.clear();
        last.name.extend_from_slice(topic);
        last.interest_version = 0;
        last.index_version = 0;
    }

    /// The shards that may want the topic.
    #[inline]
    pub(crate) fn interested(&mut self) -> Interested {
        // Before the look-up: a change that comes in between is looked up the next time.
        let version = self.shared.interest.version();
        let last = &mut self.last_topic;
        if last.interest_version != version {
            last.interested = self.shared.interest.shards(&last.name);
            last.interest_version = version;
        }
        last.interested
    }

    /// Leaves in `self.matches` who wants the topic in this shard.
    #[inline]
    pub(crate) fn find_matches(&mut self) {
        let last = &mut self.last_topic;
        if last.index_version != self.index.version() {
            self.index.matches(&last.name, &mut self.matches);
            last.index_version = self.index.version();
            let steps = self.index.take_long_walks();
            if steps > 0 {
                self.work.charge(steps / STEPS_PER_UNIT);
            }
        }
    }

    /// Leaves nobody in `self.matches`.
    pub(crate) fn find_nobody(&mut self) {
        self.matches.clear();
        self.last_topic.index_version = 0;
    }
}
