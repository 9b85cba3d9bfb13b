//! The route cache: which filters matched a topic the last time it was published to.

use crate::index::FilterId;

/// Topics and the filters that match them, in a direct-mapped table of bounded size.
///
/// A route names filters, not subscribers: clients that join or leave an existing filter change
/// nothing here. A new or vanished wildcard filter turns all routes stale at once, by one number;
/// a new or vanished exact filter concerns one topic and clears one slot.
///
/// Bounds: [`ROUTES_MAX`] routes, each of at most [`TOPIC_BYTES_MAX`] bytes of topic and
/// [`FILTERS_MAX`] filters. Two topics of one slot displace each other; when that happens often the
/// table doubles, up to its bound. What does not fit is walked again, which costs time and no more.
#[derive(Debug)]
pub(crate) struct Routes {
    slots: Vec<Route>,
    generation: u64,
    displaced: usize,
}

#[derive(Debug, Default)]
struct Route {
    /// The generation in which the route was found; 0 for none.
    generation: u64,
    hash: u64,
    topic: Vec<u8>,
    filters: Vec<FilterId>,
}

impl Routes {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), generation: 1, displaced: 0 }
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, topic: &[u8]) -> Option<&[FilterId]> {
        let route = self.slots.get(self.place(hash))?;
        let is_hit =
            route.generation == self.generation && route.hash == hash && route.topic == topic;
        is_hit.then_some(route.filters.as_slice())
    }

    pub(crate) fn store(&mut self, hash: u64, topic: &[u8], filters: &[FilterId]) {
        if topic.len() > TOPIC_BYTES_MAX || filters.len() > FILTERS_MAX {
            return;
        }
        self.grow_if_crowded();
        let place = self.place(hash);
        let route = &mut self.slots[place];
        self.displaced += usize::from(route.generation == self.generation);
        route.generation = self.generation;
        route.hash = hash;
        route.topic.clear();
        route.topic.extend_from_slice(topic);
        route.filters.clear();
        route.filters.extend_from_slice(filters);
    }

    /// Forgets the route of the topic with this hash.
    pub(crate) fn forget(&mut self, hash: u64) {
        let place = self.place(hash);
        if let Some(route) = self.slots.get_mut(place) {
            route.generation = 0;
        }
    }

    /// Forgets all routes.
    pub(crate) fn forget_all(&mut self) {
        self.generation += 1;
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let contents = |route: &Route| {
            route.topic.capacity() + route.filters.capacity() * size_of::<FilterId>()
        };
        self.slots.capacity() * size_of::<Route>() + self.slots.iter().map(contents).sum::<usize>()
    }

    /// The slot of this hash; without slots one that does not exist.
    #[inline]
    fn place(&self, hash: u64) -> usize {
        hash as usize & self.slots.len().wrapping_sub(1)
    }

    fn grow_if_crowded(&mut self) {
        let len = match self.slots.len() {
            0 => ROUTES_MIN,
            len if self.displaced > len && len < ROUTES_MAX => len * 2,
            _ => return,
        };
        let routes = std::mem::take(&mut self.slots);
        self.slots.resize_with(len, Route::default);
        self.displaced = 0;
        for route in routes {
            if route.generation == self.generation {
                let place = self.place(route.hash);
                self.slots[place] = route;
            }
        }
    }
}

const ROUTES_MIN: usize = 256;
pub(crate) const ROUTES_MAX: usize = 32_768;
const TOPIC_BYTES_MAX: usize = 256;
const FILTERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::TextHasher;

    #[test]
    fn a_route_is_found_until_its_topic_or_all_are_forgotten() {
        let mut routes = Routes::new();
        routes.store(5, b"a", &[FilterId(1)]);
        routes.store(6, b"b", &[]);
        assert_eq!(routes.find(5, b"a"), Some(&[FilterId(1)][..]));
        assert_eq!(routes.find(6, b"b"), Some(&[][..]));
        assert_eq!(routes.find(5, b"c"), None);
        routes.forget(5);
        assert_eq!(routes.find(5, b"a"), None);
        assert_eq!(routes.find(6, b"b"), Some(&[][..]));
        routes.forget_all();
        assert_eq!(routes.find(6, b"b"), None);
    }

    #[test]
    fn the_cache_grows_to_its_bound_and_not_beyond() {
        let hasher = TextHasher::new(9);
        let mut routes = Routes::new();
        for number in 0..300_000 {
            let topic = format!("device/{number}");
            routes.store(hasher.hash(&topic), topic.as_bytes(), &[FilterId(number)]);
        }
        assert_eq!(routes.slots.len(), ROUTES_MAX);
        let last = "device/299999";
        assert_eq!(routes.find(hasher.hash(last), last.as_bytes()), Some(&[FilterId(299_999)][..]));
    }

    #[test]
    fn oversized_routes_are_not_kept() {
        let mut routes = Routes::new();
        let filters: Vec<_> = (0..=FILTERS_MAX as u32).map(FilterId).collect();
        routes.store(1, b"crowded", &filters);
        assert_eq!(routes.find(1, b"crowded"), None);
        routes.store(1, b"crowded", &filters[1..]);
        assert_eq!(routes.find(1, b"crowded"), Some(&filters[1..]));
        let long = "x".repeat(TOPIC_BYTES_MAX + 1);
        routes.store(2, long.as_bytes(), &[]);
        assert_eq!(routes.find(2, long.as_bytes()), None);
    }
}
