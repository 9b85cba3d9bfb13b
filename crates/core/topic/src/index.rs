//! One shard's subscriptions.

use crate::audience::Audience;
use crate::filter::has_wildcard;
use crate::hash::{IdTable, TextHasher};
use crate::routes::Routes;
use crate::slab::Slab;
use crate::trie::{TreePosition, Trie};

/// Which subscriptions and shared groups want a topic.
///
/// Exact filters are one look-up in a hash table. Wildcard filters hang in a tree of levels, behind
/// a bounded cache of the routes found last. The text of a filter is stored once; everything else
/// refers to it by [`FilterId`].
///
/// Bounds: the number of filters and subscriptions is the caller's to limit (per client); the route
/// cache has its own bound. Memory of the filter table goes down again when the last filter does.
#[derive(Debug)]
pub struct Index {
    hasher: TextHasher,
    filters: Slab<Entry>,
    /// Exact filters by their text.
    exact: IdTable,
    /// Wildcard filters.
    trie: Trie,
    routes: Routes,
    route: Vec<FilterId>,
    subscription_count: usize,
    /// Heap behind the entries: texts and audiences.
    entry_bytes: usize,
    /// Grows whenever an audience changes.
    version: u64,
}

/// One filter of an [`Index`], valid while somebody listens on it; later the number may stand for
/// another filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId(pub u32);

/// What a subscriber asked for. Everything but the subscriber, who has at most one subscription per
/// filter, and [`Subscription::PROMISES`] is opaque here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub subscriber: u32,
    pub options: u8,
    pub identifier: u32,
}

impl Subscription {
    /// The one bit of `options` that the index reads: a PUBACK must wait for what this subscriber
    /// is due. The MQTT subscription options leave it free (`MQTT-3.8.3-5`).
    pub const PROMISES: u8 = 0x80;

    /// Is [`Subscription::PROMISES`] set?
    pub const fn promises(self) -> bool {
        self.options & Self::PROMISES != 0
    }
}

/// The outcome of [`Index::subscribe`] and [`Index::add_group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    pub filter: FilterId,
    /// False: the subscriber (or group) was on this filter before; its subscription is replaced.
    pub is_new_subscription: bool,
    /// The subscription that was replaced.
    pub replaced: Option<Subscription>,
    /// Nobody, neither subscriber nor group, listened on this filter before: the moment to
    /// [claim](crate::Claim::Want) it.
    pub is_first: bool,
    /// The filter has its first subscription with [`Subscription::PROMISES`].
    pub is_first_promise: bool,
    /// The filter had such a subscription, which this call has replaced by one without.
    pub is_last_promise: bool,
}

/// The outcome of [`Index::unsubscribe`] and [`Index::remove_group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribed {
    /// The subscription that is gone; none for a group.
    pub removed: Option<Subscription>,
    /// Nobody listens on the filter any more, and its [`FilterId`] is free.
    pub is_last: bool,
    /// The last subscription with [`Subscription::PROMISES`] is gone from the filter.
    pub is_last_promise: bool,
}

/// Who wants a topic. Reuse one value: its buffers keep their size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// One per matching filter: a subscriber with overlapping filters stands here several times.
    pub subscriptions: Vec<Subscription>,
    /// One per matching filter and group.
    pub groups: Vec<u32>,
}

impl Matches {
    /// True when nobody wants the topic.
    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty() && self.groups.is_empty()
    }

    /// Empties both lists and keeps their memory.
    pub fn clear(&mut self) {
        self.subscriptions.clear();
        self.groups.clear();
    }
}

/// A filter that somebody listens on.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) text: Box<str>,
    audience: Audience,
    /// Where a wildcard filter hangs in the tree; an exact filter hangs nowhere.
    pub(crate) place: TreePosition,
}

impl Entry {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl Index {
    /// An empty index. The seed should be one that clients cannot guess.
    pub fn new(seed: u64) -> Self {
        let hasher = TextHasher::new(seed);
        Self {
            filters: Slab::new(),
            exact: IdTable::default(),
            trie: Trie::new(hasher.clone()),
            hasher,
            routes: Routes::new(),
            route: Vec::new(),
            subscription_count: 0,
            entry_bytes: 0,
            version: 1,
        }
    }

    /// Another number after each change; never 0. While it is the same, [`Index::matches`] finds
    /// the same.
    #[inline]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Adds a subscription, or replaces the subscriber's earlier one on the same filter
    /// (`MQTT-3.8.4-3`). `filter` must have passed [`crate::check_filter`].
    pub fn subscribe(&mut self, filter: &str, subscription: Subscription) -> Subscribed {
        let (id, is_first) = self.open(filter);
        let (replaced, before, after) = self.change_audience(id, |audience| {
            let before = audience.promises();
            let replaced = audience.subscribe(subscription);
            (replaced, before, audience.promises())
        });
        self.subscription_count += usize::from(replaced.is_none());
        Subscribed {
            filter: id,
            is_new_subscription: replaced.is_none(),
            replaced,
            is_first,
            is_first_promise: before == 0 && after == 1,
            is_last_promise: before == 1 && after == 0,
        }
    }

    /// Takes a subscription away. None: the subscriber has none on this filter.
    pub fn unsubscribe(&mut self, filter: FilterId, subscriber: u32) -> Option<Unsubscribed> {
        self.filters.find(filter.0)?;
        let (removed, before, after) = self.change_audience(filter, |audience| {
            let before = audience.promises();
            let removed = audience.unsubscribe(subscriber);
            (removed, before, audience.promises())
        });
        let removed = removed?;
        self.subscription_count -= 1;
        Some(Unsubscribed {
            removed: Some(removed),
            is_last: self.close_if_empty(filter),
            is_last_promise: before == 1 && after == 0,
        })
    }

    /// Lets a shared group listen on a filter. Which clients are in the group is not known here.
    pub fn add_group(&mut self, filter: &str, group: u32) -> Subscribed {
        let (id, is_first) = self.open(filter);
        let is_new = self.change_audience(id, |audience| audience.add_group(group));
        Subscribed {
            filter: id,
            is_new_subscription: is_new,
            replaced: None,
            is_first,
            is_first_promise: false,
            is_last_promise: false,
        }
    }

    /// Ends a group's listening. None: the group does not listen on this filter.
    pub fn remove_group(&mut self, filter: FilterId, group: u32) -> Option<Unsubscribed> {
        self.filters.find(filter.0)?;
        let was_there = self.change_audience(filter, |audience| audience.remove_group(group));
        was_there.then(|| Unsubscribed {
            removed: None,
            is_last: self.close_if_empty(filter),
            is_last_promise: false,
        })
    }

    /// The id of a filter that somebody listens on.
    pub fn find(&self, filter: &str) -> Option<FilterId> {
        if has_wildcard(filter) {
            return self.trie.find(&self.filters, filter);
        }
        self.find_exact(self.hasher.hash(filter), filter.as_bytes())
    }

    /// The text of a filter; empty for an id that is not in use.
    pub fn text(&self, filter: FilterId) -> &str {
        self.filters.find(filter.0).map_or("", |entry| &entry.text)
    }

    /// The subscriptions on one filter, in no particular order.
    #[inline]
    pub fn subscriptions(&self, filter: FilterId) -> &[Subscription] {
        self.filters.find(filter.0).map_or(&[], |entry| entry.audience.subscriptions())
    }

    /// How many subscriptions on a filter carry [`Subscription::PROMISES`].
    #[inline]
    pub fn promises(&self, filter: FilterId) -> u32 {
        self.filters.find(filter.0).map_or(0, |entry| entry.audience.promises())
    }

    /// What one subscriber asked for on a filter. In constant time, however many listen there.
    pub fn subscription(&self, filter: FilterId, subscriber: u32) -> Option<Subscription> {
        self.filters.find(filter.0)?.audience.subscription(subscriber)
    }

    /// The shared groups on one filter, in no particular order.
    #[inline]
    pub fn groups(&self, filter: FilterId) -> &[u32] {
        self.filters.find(filter.0).map_or(&[], |entry| entry.audience.groups())
    }

    /// Everybody who wants `topic`, in place of what `found` held. `topic` must have passed
    /// [`crate::check_topic`].
    pub fn matches(&mut self, topic: &[u8], found: &mut Matches) {
        found.clear();
        let hash = self.hasher.hash_bytes(topic);
        if self.trie.is_empty() {
            if let Some(id) = self.find_exact(hash, topic) {
                self.expand(id, found);
            }
            return;
        }
        if let Some(filters) = self.routes.find(hash, topic) {
            filters.iter().for_each(|&id| self.expand(id, found));
            return;
        }
        self.find_route(hash, topic);
        self.route.iter().for_each(|&id| self.expand(id, found));
    }

    /// The filters that match `topic`, each once, in place of what `found` held. With
    /// [`Index::subscriptions`] this reads a very large audience without a copy of it.
    pub fn matching_filters(&mut self, topic: &[u8], found: &mut Vec<FilterId>) {
        found.clear();
        let hash = self.hasher.hash_bytes(topic);
        if self.trie.is_empty() {
            found.extend(self.find_exact(hash, topic));
            return;
        }
        if let Some(filters) = self.routes.find(hash, topic) {
            found.extend_from_slice(filters);
            return;
        }
        self.find_route(hash, topic);
        found.extend_from_slice(&self.route);
    }

    /// What it took to find out who wants topics that many wildcards may match: steps of some
    /// 20 ns, since this was asked last. Where few filters have to be looked at, nothing counts.
    #[inline]
    pub const fn take_long_walks(&mut self) -> usize {
        self.trie.take_long_walks()
    }

    /// Distinct filters, of subscriptions and groups together.
    pub fn filter_count(&self) -> usize {
        self.filters.len()
    }

    /// Subscriptions; groups do not count.
    pub fn subscription_count(&self) -> usize {
        self.subscription_count
    }

    /// An estimate of the heap this index holds, in bytes, without the allocator's own overhead.
    /// Takes time proportional to the route cache, not to the subscriptions.
    pub fn heap_bytes(&self) -> usize {
        self.filters.heap_bytes()
            + self.exact.heap_bytes()
            + self.trie.heap_bytes()
            + self.routes.heap_bytes()
            + self.route.capacity() * size_of::<FilterId>()
            + self.entry_bytes
    }

    /// The filter's entry, made if there is none. True: it was made.
    fn open(&mut self, text: &str) -> (FilterId, bool) {
        if let Some(id) = self.find(text) {
            return (id, false);
        }
        let id = FilterId(self.filters.insert(Entry::new(text)));
        self.entry_bytes += text.len();
        if has_wildcard(text) {
            self.trie.insert(&mut self.filters, text, id);
            self.routes.forget_all();
        } else {
            let hash = self.hasher.hash(text);
            self.exact.insert(hash, id.0);
            self.routes.forget(hash);
        }
        (id, true)
    }

    /// Frees the filter's entry if nobody listens on it any more.
    fn close_if_empty(&mut self, id: FilterId) -> bool {
        let entry = self.filters.at(id.0);
        if !entry.audience.is_empty() {
            return false;
        }
        self.entry_bytes -= entry.text.len();
        if has_wildcard(&entry.text) {
            self.trie.remove(&mut self.filters, id);
            self.routes.forget_all();
        } else {
            let hash = self.hasher.hash(&entry.text);
            self.exact.remove(hash, id.0);
            self.routes.forget(hash);
        }
        self.filters.remove(id.0);
        true
    }

    fn change_audience<R>(&mut self, id: FilterId, change: impl FnOnce(&mut Audience) -> R) -> R {
        self.version += 1;
        let audience = &mut self.filters.at_mut(id.0).audience;
        self.entry_bytes -= audience.heap_bytes();
        let outcome = change(audience);
        self.entry_bytes += audience.heap_bytes();
        outcome
    }

    #[inline]
    fn find_exact(&self, hash: u64, text: &[u8]) -> Option<FilterId> {
        self.exact.find(hash, |id| self.filters.at(id).text.as_bytes() == text).map(FilterId)
    }

    /// Walks the trie, leaves the matching filters in `self.route` and in the cache.
    fn find_route(&mut self, hash: u64, topic: &[u8]) {
        self.route.clear();
        self.route.extend(self.find_exact(hash, topic));
        self.trie.walk(&self.filters, topic, &mut self.route);
        self.routes.store(hash, topic, &self.route);
    }

    #[inline]
    fn expand(&self, id: FilterId, found: &mut Matches) {
        match &self.filters.at(id.0).audience {
            Audience::One(only) => found.subscriptions.push(*only),
            audience => {
                found.subscriptions.extend_from_slice(audience.subscriptions());
                found.groups.extend_from_slice(audience.groups());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(subscriber: u32) -> Subscription {
        Subscription { subscriber, options: 1, identifier: 7 }
    }

    fn subscribers(index: &mut Index, topic: &str) -> Vec<u32> {
        let mut found = Matches::default();
        index.matches(topic.as_bytes(), &mut found);
        let mut subscribers: Vec<u32> =
            found.subscriptions.iter().map(|subscription| subscription.subscriber).collect();
        subscribers.sort_unstable();
        subscribers
    }

    #[test]
    fn the_first_and_the_last_on_a_filter_are_reported() {
        let mut index = Index::new(1);
        let first = index.subscribe("a/+", subscription(1));
        assert!(first.is_first && first.is_new_subscription);
        let second = index.subscribe("a/+", subscription(2));
        assert!(!second.is_first && second.is_new_subscription);
        assert_eq!(first.filter, second.filter);
        let filter = first.filter;
        assert_eq!(index.unsubscribe(filter, 3), None);
        assert_eq!(index.unsubscribe(filter, 1).map(|gone| gone.is_last), Some(false));
        assert_eq!(index.unsubscribe(filter, 2).map(|gone| gone.is_last), Some(true));
        assert_eq!(index.unsubscribe(filter, 2), None);
        assert_eq!(index.find("a/+"), None);
        assert_eq!(index.text(filter), "");
        assert_eq!((index.filter_count(), index.subscription_count()), (0, 0));
    }

    #[test]
    fn a_group_and_a_subscriber_share_one_filter_id() {
        let mut index = Index::new(1);
        let group = index.add_group("jobs", 40);
        assert!(group.is_first);
        let plain = index.subscribe("jobs", subscription(1));
        assert!(!plain.is_first);
        assert_eq!(group.filter, plain.filter);
        let mut found = Matches::default();
        index.matches(b"jobs", &mut found);
        assert_eq!((found.subscriptions.len(), found.groups.as_slice()), (1, &[40][..]));
        assert_eq!(index.unsubscribe(plain.filter, 1).map(|gone| gone.is_last), Some(false));
        assert_eq!(index.remove_group(plain.filter, 40).map(|gone| gone.is_last), Some(true));
        assert_eq!(index.remove_group(plain.filter, 40), None);
    }

    #[test]
    fn the_version_is_another_after_each_change() {
        let mut index = Index::new(1);
        let mut versions = vec![0, index.version()];
        for filter in ["a/b", "a/+"] {
            let id = index.subscribe(filter, subscription(1)).filter;
            versions.push(index.version());
            index.subscribe(filter, Subscription { options: 0, ..subscription(1) });
            versions.push(index.version());
            index.add_group(filter, 7);
            versions.push(index.version());
            index.remove_group(id, 7);
            versions.push(index.version());
            index.unsubscribe(id, 1);
            versions.push(index.version());
        }
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    }

    #[test]
    fn promises_are_reported_when_they_begin_and_end() {
        let mut index = Index::new(1);
        let mut promising = subscription(1);
        promising.options |= Subscription::PROMISES;
        assert!(index.subscribe("a", promising).is_first_promise);
        assert!(!index.subscribe("a", promising).is_first_promise);
        let downgraded = index.subscribe("a", subscription(1));
        assert!(downgraded.is_last_promise && !downgraded.is_first_promise);
        assert_eq!(downgraded.replaced, Some(promising));
        assert!(index.subscribe("a", promising).is_first_promise);
        let gone = index.unsubscribe(downgraded.filter, 1);
        assert!(gone.is_some_and(|gone| gone.is_last_promise && gone.is_last));
    }

    #[test]
    fn cached_routes_follow_every_change_of_filters() {
        let mut index = Index::new(1);
        let all = index.subscribe("#", subscription(1)).filter;
        assert_eq!(subscribers(&mut index, "a/b"), [1]);
        let exact = index.subscribe("a/b", subscription(2)).filter;
        assert_eq!(subscribers(&mut index, "a/b"), [1, 2]);
        let plus = index.subscribe("a/+", subscription(3)).filter;
        assert_eq!(subscribers(&mut index, "a/b"), [1, 2, 3]);
        index.subscribe("a/+", subscription(4));
        assert_eq!(subscribers(&mut index, "a/b"), [1, 2, 3, 4]);
        index.unsubscribe(exact, 2);
        assert_eq!(subscribers(&mut index, "a/b"), [1, 3, 4]);
        index.unsubscribe(plus, 3);
        index.unsubscribe(plus, 4);
        assert_eq!(subscribers(&mut index, "a/b"), [1]);
        index.unsubscribe(all, 1);
        assert!(subscribers(&mut index, "a/b").is_empty());
    }

    #[test]
    fn a_reused_filter_id_does_not_show_in_the_routes_of_its_predecessor() {
        for (gone, come) in [("a/b", "x"), ("a/+", "x/+"), ("a/b", "x/+"), ("a/+", "x")] {
            let mut index = Index::new(1);
            index.subscribe("other/#", subscription(1));
            let old = index.subscribe(gone, subscription(2)).filter;
            assert_eq!(subscribers(&mut index, "a/b"), [2]);
            index.unsubscribe(old, 2);
            let new = index.subscribe(come, subscription(3)).filter;
            assert_eq!(old, new);
            assert!(subscribers(&mut index, "a/b").is_empty(), "{gone} then {come}");
        }
    }

    #[test]
    fn matching_filters_name_each_filter_once() {
        let mut index = Index::new(1);
        let texts = ["a/b", "a/+", "#", "+/b", "a/b/#", "+/#", "a/c"];
        for text in texts {
            index.subscribe(text, subscription(1));
        }
        let mut found = Vec::new();
        for _ in 0..2 {
            index.matching_filters(b"a/b", &mut found);
            let mut names: Vec<&str> = found.iter().map(|&id| index.text(id)).collect();
            names.sort_unstable();
            assert_eq!(names, ["#", "+/#", "+/b", "a/+", "a/b", "a/b/#"]);
        }
    }

    #[test]
    fn an_entry_stays_within_its_budget() {
        // Forty bytes beside text and table slot keep a lone subscription below 100.
        assert_eq!(size_of::<Entry>(), 40);
    }

    #[test]
    fn heap_bytes_return_to_those_of_an_empty_index() {
        let mut index = Index::new(1);
        let mut ids = Vec::new();
        for number in 0..1000 {
            let filter = index.subscribe(&format!("a/{number}"), subscription(number)).filter;
            index.subscribe(&format!("a/{number}"), subscription(number + 1));
            ids.push((filter, number));
        }
        assert!(index.heap_bytes() > 100_000);
        for (filter, number) in ids {
            index.unsubscribe(filter, number);
            index.unsubscribe(filter, number + 1);
        }
        assert!(index.heap_bytes() < 10_000, "{} bytes", index.heap_bytes());
    }
}
