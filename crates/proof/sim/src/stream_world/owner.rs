//! The owner of streams in one process: the state machine of the server, and what is on its way to
//! it and from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use broker::streams::{StreamNews, StreamOrder, StreamSet, StreamsFound};
use streams::Hub;

use crate::random::Random;

pub(super) struct Owner {
    pub(super) hub: Hub,
    pub(super) set: Arc<StreamSet>,
    /// What shards have reported, in the order of each.
    news: Vec<VecDeque<StreamNews>>,
    /// What shards are to do, in the order of each.
    orders: Vec<VecDeque<StreamOrder>>,
}

impl Owner {
    pub(super) fn new(hub: Hub, set: Arc<StreamSet>, shards: u16) -> Self {
        let shards = usize::from(shards);
        Self {
            hub,
            set,
            news: vec![VecDeque::new(); shards],
            orders: vec![VecDeque::new(); shards],
        }
    }

    pub(super) fn hear(&mut self, shard: u16, news: Vec<StreamNews>) {
        self.news[usize::from(shard)].extend(news);
    }

    pub(super) fn order(&mut self, shard: u16, order: StreamOrder) {
        self.orders[usize::from(shard)].push_back(order);
    }

    /// What one shard has reported next.
    pub(super) fn next_news(&mut self, random: &mut Random) -> Option<(u16, StreamNews)> {
        let shard = any_of(&self.news, random)?;
        Some((shard, self.news[usize::from(shard)].pop_front()?))
    }

    /// Some of what one shard is to do next.
    pub(super) fn next_orders(&mut self, random: &mut Random) -> Option<(u16, Vec<StreamOrder>)> {
        let shard = any_of(&self.orders, random)?;
        let own = &mut self.orders[usize::from(shard)];
        let count = 1 + random.below(own.len());
        Some((shard, own.drain(..count).collect()))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.news.iter().all(VecDeque::is_empty) && self.orders.iter().all(VecDeque::is_empty)
    }
}

fn any_of<T>(queues: &[VecDeque<T>], random: &mut Random) -> Option<u16> {
    let filled: Vec<usize> = (0..queues.len()).filter(|it| !queues[*it].is_empty()).collect();
    (!filled.is_empty()).then(|| filled[random.below(filled.len())] as u16)
}

/// How far the files of a stream must reach, as all journals say.
pub(super) fn reach_of(found: &[StreamsFound], stream: u32) -> BTreeMap<u64, u64> {
    let mut reach = BTreeMap::new();
    let number = broker::streams::StreamNumber(stream);
    for own in found.iter().filter_map(|found| found.streams.get(&number)) {
        for (file, end) in &own.reach {
            let known: &mut u64 = reach.entry(*file).or_default();
            *known = (*known).max(*end);
        }
    }
    reach
}
