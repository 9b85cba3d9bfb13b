//! The wildcard filters of a shard as a tree of levels.

use crate::hash::{IdTable, TextHasher, spread_u64};
use crate::index::{Entry, FilterId};
use crate::slab::{ID_LIMIT, Slab};

/// Wildcard filters by level, as deep as it takes to distinguish them.
///
/// A node stands for levels with which two filters or more begin. What a filter has beyond them,
/// its *tail*, is not spelt out in nodes: the filter hangs at the node, by the first level of its
/// tail, and the rest is compared in the filter's own text. So `site/7/device/1234/+` among a
/// million of its like takes one slot of one table. The shape of the tree follows from its filters
/// alone, not from the order in which they came.
///
/// The walk hashes each level of the topic once and goes level by level: no recursion, and no node
/// is seen twice.
#[derive(Debug)]
pub(crate) struct Trie {
    hasher: TextHasher,
    nodes: Slab<Node>,
    /// What hangs by a literal level, of all nodes: [`Link`]s by node and level.
    literals: IdTable,
    filter_count: usize,
    /// Heap behind the nodes: their levels.
    level_bytes: usize,
    /// The walk's own.
    reached: Vec<u32>,
    /// Steps of the walks that were long, until somebody asks.
    long_walks: usize,
}

/// A walk of fewer steps is short.
const LONG_WALK_STEPS: usize = 64;

/// Bytes of a tail that count as a step.
const TAIL_BYTES_PER_STEP: usize = 64;

/// Where a filter hangs in the tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TreePosition {
    node: u32,
    /// Where its tail begins in its text. One more than the text's length: it ends with the node.
    tail: u32,
}

#[derive(Debug, Default)]
struct Node {
    parent: u32,
    /// The level by which the node hangs at its parent.
    level: Box<str>,
    /// The filter that ends here.
    end: Link,
    /// The filter that ends with `#` in the next level.
    hash: Link,
    /// What goes on with `+`.
    plus: Link,
    /// How many go on with a literal level.
    literals: u32,
    /// All links of the node, literals too, joined by exclusive or: when one is left, this is it.
    sum: u32,
}

impl Trie {
    pub(crate) fn new(hasher: TextHasher) -> Self {
        Self {
            hasher,
            nodes: Slab::new(),
            literals: IdTable::default(),
            filter_count: 0,
            level_bytes: 0,
            reached: Vec::new(),
            long_walks: 0,
        }
    }

    /// True while there is no wildcard filter.
    pub(crate) fn is_empty(&self) -> bool {
        self.filter_count == 0
    }

    /// The filter with this text.
    pub(crate) fn find(&self, filters: &Slab<Entry>, text: &str) -> Option<FilterId> {
        if self.is_empty() {
            return None;
        }
        let mut place = TreePosition::default();
        loop {
            let step = Step::of(text, place);
            match self.link(filters, place.node, step).target() {
                Target::Nothing => return None,
                Target::Node(child) => place = place.below(child, step),
                Target::Filter(id) => {
                    return (*filters.at(id).text == *text).then_some(FilterId(id));
                }
            }
        }
    }

    /// Adds a filter that is not in the tree.
    pub(crate) fn insert(&mut self, filters: &mut Slab<Entry>, text: &str, filter: FilterId) {
        if self.is_empty() {
            self.nodes.insert(Node::default());
        }
        self.filter_count += 1;
        let mut place = TreePosition::default();
        loop {
            let step = Step::of(text, place);
            let child = match self.link(filters, place.node, step).target() {
                Target::Nothing => {
                    self.relink(place.node, step, Link::NOTHING, Link::of_filter(filter.0));
                    filters.at_mut(filter.0).place = place;
                    return;
                }
                Target::Node(child) => child,
                Target::Filter(other) => self.push_down(filters, other),
            };
            place = place.below(child, step);
        }
    }

    /// Takes a filter out, and every node that it alone kept from being one filter's tail.
    pub(crate) fn remove(&mut self, filters: &mut Slab<Entry>, filter: FilterId) {
        self.filter_count -= 1;
        let Entry { text, place, .. } = filters.at(filter.0);
        let mut node = place.node;
        self.relink(node, Step::of(text, *place), Link::of_filter(filter.0), Link::NOTHING);
        while node != ROOT
            && let Some(other) = self.nodes.at(node).only_filter()
        {
            node = self.pull_up(filters, other);
        }
        if self.nodes.len() == 1 {
            // An emptied slab gives back the memory of the nodes that are gone.
            let root = self.nodes.remove(ROOT);
            if !self.is_empty() {
                self.nodes.insert(root);
            }
        }
    }

    /// Appends every filter that matches `topic` to `found`, each once.
    pub(crate) fn walk(&mut self, filters: &Slab<Entry>, topic: &[u8], found: &mut Vec<FilterId>) {
        // The nodes that the topic's levels lead to; those of the level at hand begin at `first`.
        let mut reached = std::mem::take(&mut self.reached);
        reached.clear();
        reached.push(ROOT);
        let mut first = 0;
        let mut tails = 0;
        // MQTT-4.7.2-1: the wildcards of the first level do not see topics that begin with `$`.
        let mut hides_wildcards = topic.starts_with(b"$");
        let mut rest = topic;
        for level in topic.split(|&byte| byte == b'/') {
            let level_hash = self.hasher.hash_bytes(level);
            let end = reached.len();
            for at in first..end {
                let id = reached[at];
                let node = self.nodes.at(id);
                let mut follow = |link: Link| match link.target() {
                    Target::Nothing => {}
                    Target::Node(child) => reached.push(child),
                    Target::Filter(id) => {
                        let Entry { text, place, .. } = filters.at(id);
                        tails += 1;
                        if tail_matches(&text.as_bytes()[place.tail as usize..], rest) {
                            found.push(FilterId(id));
                        }
                    }
                };
                if !hides_wildcards {
                    follow(node.hash);
                    follow(node.plus);
                }
                if node.literals > 0 {
                    follow(self.literal(filters, id, level_hash, level));
                }
            }
            first = end;
            if first == reached.len() {
                break;
            }
            hides_wildcards = false;
            rest = rest.get(level.len() + 1..).unwrap_or_default();
        }
        for &id in &reached[first..] {
            let node = self.nodes.at(id);
            let ended = [node.end, node.hash].into_iter().filter_map(Link::filter);
            found.extend(ended.map(FilterId));
        }
        let steps = reached.len() + tails * (1 + topic.len() / TAIL_BYTES_PER_STEP);
        if steps > LONG_WALK_STEPS {
            self.long_walks += steps;
        }
        self.reached = reached;
    }

    /// Steps of the long walks since this was asked last.
    pub(crate) const fn take_long_walks(&mut self) -> usize {
        std::mem::replace(&mut self.long_walks, 0)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.nodes.heap_bytes()
            + self.literals.heap_bytes()
            + self.level_bytes
            + self.reached.capacity() * size_of::<u32>()
    }

    /// Puts a node in the place of a filter, which from then on hangs at that node.
    fn push_down(&mut self, filters: &mut Slab<Entry>, filter: u32) -> u32 {
        let Entry { text, place, .. } = filters.at_mut(filter);
        let step = Step::of(text, *place);
        let child = self.nodes.insert(Node {
            parent: place.node,
            level: step.level().into(),
            ..Node::default()
        });
        self.level_bytes += step.level().len();
        self.relink(place.node, step, Link::of_filter(filter), Link::of_node(child));
        *place = place.below(child, step);
        self.relink(child, Step::of(text, *place), Link::NOTHING, Link::of_filter(filter));
        child
    }

    /// Puts a filter in the place of the node at which nothing else hangs. Returns that node's
    /// parent.
    fn pull_up(&mut self, filters: &mut Slab<Entry>, filter: u32) -> u32 {
        let Entry { text, place, .. } = filters.at_mut(filter);
        self.relink(place.node, Step::of(text, *place), Link::of_filter(filter), Link::NOTHING);
        let Node { parent, level, .. } = self.nodes.remove(place.node);
        self.level_bytes -= level.len();
        let gone = Link::of_node(place.node);
        *place = TreePosition { node: parent, tail: place.tail - level.len() as u32 - 1 };
        self.relink(parent, Step::of(text, *place), gone, Link::of_filter(filter));
        parent
    }

    fn link(&self, filters: &Slab<Entry>, node: u32, step: Step<'_>) -> Link {
        match step {
            Step::End => self.nodes.at(node).end,
            Step::Hash => self.nodes.at(node).hash,
            Step::Plus => self.nodes.at(node).plus,
            Step::Literal(level) => {
                self.literal(filters, node, self.hasher.hash(level), level.as_bytes())
            }
        }
    }

    #[inline]
    fn literal(&self, filters: &Slab<Entry>, node: u32, level_hash: u64, level: &[u8]) -> Link {
        let is_same = |link| match Link(link).target() {
            Target::Nothing => false,
            Target::Node(child) => {
                let child = self.nodes.at(child);
                child.parent == node && child.level.as_bytes() == level
            }
            Target::Filter(id) => {
                let Entry { text, place, .. } = filters.at(id);
                let tail = &text.as_bytes()[place.tail as usize..];
                let rest = tail.strip_prefix(level);
                place.node == node && rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
            }
        };
        self.literals.find(slot_hash(node, level_hash), is_same).map_or(Link::NOTHING, Link)
    }

    fn relink(&mut self, node: u32, step: Step<'_>, old: Link, new: Link) {
        let place = self.nodes.at_mut(node);
        place.sum ^= old.summand() ^ new.summand();
        match step {
            Step::End => place.end = new,
            Step::Hash => place.hash = new,
            Step::Plus => place.plus = new,
            Step::Literal(level) => {
                let hash = slot_hash(node, self.hasher.hash(level));
                if old != Link::NOTHING {
                    place.literals -= 1;
                    self.literals.remove(hash, old.0);
                }
                if new != Link::NOTHING {
                    place.literals += 1;
                    self.literals.insert(hash, new.0);
                }
            }
        }
    }
}

impl TreePosition {
    /// The place one step further, at a child.
    fn below(self, child: u32, step: Step<'_>) -> Self {
        Self { node: child, tail: self.tail + step.level().len() as u32 + 1 }
    }
}

impl Node {
    /// The filter that hangs here, if nothing else does.
    fn only_filter(&self) -> Option<u32> {
        let others = [self.end, self.hash, self.plus];
        let count = others.iter().filter(|&&link| link != Link::NOTHING).count();
        if count + self.literals as usize == 1 { Link(self.sum).filter() } else { None }
    }
}

/// How the tail of a filter goes on.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    /// Not at all: the filter ends with the node.
    End,
    Hash,
    Plus,
    Literal(&'a str),
}

impl<'a> Step<'a> {
    fn of(text: &'a str, place: TreePosition) -> Self {
        let Some(tail) = text.get(place.tail as usize..) else { return Self::End };
        match tail.split_once('/').map_or(tail, |(level, _)| level) {
            "#" => Self::Hash,
            "+" => Self::Plus,
            level => Self::Literal(level),
        }
    }

    fn level(self) -> &'a str {
        match self {
            Self::End => "",
            Self::Hash => "#",
            Self::Plus => "+",
            Self::Literal(level) => level,
        }
    }
}

/// What hangs at a place of a node, in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link(u32);

#[derive(Clone, Copy, Debug)]
enum Target {
    Nothing,
    /// Two filters or more.
    Node(u32),
    Filter(u32),
}

impl Link {
    const NOTHING: Self = Self(u32::MAX);

    const fn of_node(node: u32) -> Self {
        Self(node)
    }

    const fn of_filter(filter: u32) -> Self {
        Self(filter | FILTER_BIT)
    }

    #[inline]
    const fn target(self) -> Target {
        match self {
            Self::NOTHING => Target::Nothing,
            Self(id) if id & FILTER_BIT != 0 => Target::Filter(id & !FILTER_BIT),
            Self(id) => Target::Node(id),
        }
    }

    const fn filter(self) -> Option<u32> {
        match self.target() {
            Target::Filter(id) => Some(id),
            Target::Nothing | Target::Node(_) => None,
        }
    }

    const fn summand(self) -> u32 {
        match self {
            Self::NOTHING => 0,
            Self(id) => id,
        }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::NOTHING
    }
}

/// Does the tail of a filter match what is left of a topic? Byte by byte: wildcards stand alone in
/// their levels, so neither needs to be cut into levels first.
#[inline]
fn tail_matches(tail: &[u8], topic: &[u8]) -> bool {
    let mut place = 0;
    for (at, &byte) in tail.iter().enumerate() {
        match byte {
            b'#' => return true,
            b'+' => {
                let level = topic[place..].iter().position(|&byte| byte == b'/');
                place = level.map_or(topic.len(), |length| place + length);
            }
            _ if topic.get(place) == Some(&byte) => place += 1,
            // `#` matches the level above it, too.
            _ => return place == topic.len() && &tail[at..] == b"/#",
        }
    }
    place == topic.len()
}

#[inline]
fn slot_hash(node: u32, level_hash: u64) -> u64 {
    spread_u64(level_hash.wrapping_add(u64::from(node)))
}

/// The first id of a slab. There is a root while there is a filter.
const ROOT: u32 = 0;
/// Tells filters from nodes: no id of a slab has it.
const FILTER_BIT: u32 = 1 << 31;
const _: () = assert!(ID_LIMIT < FILTER_BIT);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matches;

    struct Planted {
        trie: Trie,
        filters: Slab<Entry>,
    }

    impl Planted {
        fn new(texts: &[&str]) -> Self {
            let mut planted = Self { trie: Trie::new(TextHasher::new(1)), filters: Slab::new() };
            texts.iter().for_each(|text| planted.add(text));
            planted
        }

        fn add(&mut self, text: &str) {
            let id = FilterId(self.filters.insert(Entry::new(text)));
            self.trie.insert(&mut self.filters, text, id);
        }

        fn take(&mut self, text: &str) {
            let id = self.trie.find(&self.filters, text).expect("the filter is there");
            self.trie.remove(&mut self.filters, id);
            self.filters.remove(id.0);
        }

        fn matching(&mut self, topic: &str) -> Vec<&str> {
            let mut found = Vec::new();
            self.trie.walk(&self.filters, topic.as_bytes(), &mut found);
            let mut texts: Vec<&str> =
                found.into_iter().map(|id| &*self.filters.at(id.0).text).collect();
            texts.sort_unstable();
            texts
        }

        /// Nodes beside the root, slots of the table, bytes of levels.
        fn size(&self) -> (usize, usize, usize) {
            (
                self.trie.nodes.len().saturating_sub(1),
                self.trie.literals.len(),
                self.trie.level_bytes,
            )
        }
    }

    const TEXTS: [&str; 12] = [
        "#", "+", "a/#", "a/+", "a/+/c", "a/b/+/#", "+/b/+", "/+", "+//", "$x/#", "a/b/+/d", "+/#",
    ];

    #[test]
    fn filters_that_differ_in_one_level_take_a_slot_each_and_no_node() {
        let mut planted = Planted::new(&[]);
        for number in 0..100 {
            planted.add(&format!("site/7/device/{number}/+/state/#"));
        }
        // The three levels that they share.
        assert_eq!(planted.size(), (3, 3 + 100, "site7device".len()));
        assert_eq!(planted.matching("site/7/device/42/x/state"), ["site/7/device/42/+/state/#"]);
        assert!(planted.matching("site/7/device/42/x").is_empty());
        assert!(planted.matching("site/7/device/420/x/state").is_empty());
    }

    #[test]
    fn a_filter_goes_down_as_far_as_another_goes_with_it_and_up_again() {
        let mut planted = Planted::new(&["a/b/c/+"]);
        assert_eq!(planted.size(), (0, 1, 0));
        planted.add("a/b/c/+/d");
        assert_eq!(planted.size(), (4, 4, "abc+".len()));
        planted.add("a/x/+");
        assert_eq!(planted.size(), (4, 5, "abc+".len()));
        planted.take("a/b/c/+");
        assert_eq!(planted.size(), (1, 3, "a".len()));
        assert_eq!(planted.matching("a/b/c/x/d"), ["a/b/c/+/d"]);
        planted.take("a/x/+");
        assert_eq!(planted.size(), (0, 1, 0));
        assert_eq!(planted.matching("a/b/c/x/d"), ["a/b/c/+/d"]);
        planted.take("a/b/c/+/d");
        assert_eq!(planted.size(), (0, 0, 0));
        assert_eq!(planted.trie.nodes.heap_bytes(), 0);
        assert!(planted.trie.is_empty());
    }

    #[test]
    fn the_shape_does_not_depend_on_the_order_in_which_filters_came_and_went() {
        let whole = Planted::new(&TEXTS).size();
        for first in 0..TEXTS.len() {
            let mut turned = TEXTS;
            turned.rotate_left(first);
            let mut planted = Planted::new(&turned);
            assert_eq!(planted.size(), whole, "from {first}");
            for gone in 0..TEXTS.len() {
                planted.take(TEXTS[gone]);
                assert_eq!(planted.size(), Planted::new(&TEXTS[gone + 1..]).size());
            }
            assert_eq!(planted.size(), (0, 0, 0));
        }
    }

    #[test]
    fn a_tail_is_matched_as_a_filter_is() {
        let filters = [
            "a", "+", "#", "a/#", "a/+", "+/+", "+/#", "a/b", "/", "/+", "/#", "+/", "a/+/b", "a/",
            "+/+/#", "ab", "a//#",
        ];
        let topics = ["a", "a/", "/", "//", "a/b", "a//b", "a/x/b", "ab", "b", "/b", "a/b/"];
        for filter in filters {
            for topic in topics {
                let is_match = tail_matches(filter.as_bytes(), topic.as_bytes());
                assert_eq!(is_match, matches(filter, topic), "{filter} and {topic}");
            }
        }
        assert!(tail_matches(b"+", b"") && tail_matches(b"#", b"") && tail_matches(b"", b""));
        assert!(!tail_matches(b"", b"a") && !tail_matches(b"a", b"") && !tail_matches(b"+/+", b""));
    }

    #[test]
    fn a_deep_topic_is_walked_without_recursion() {
        let deep = "+/".repeat(32_000);
        let (all, end) = (deep.clone() + "#", deep.clone() + "x");
        let mut planted = Planted::new(&[&all]);
        let topic = "/".repeat(32_000);
        assert_eq!(planted.matching(&topic), [&all]);
        planted.add(&end);
        assert_eq!(planted.size().0, 32_000);
        assert_eq!(planted.matching(&topic), [&all]);
        assert_eq!(planted.matching(&(topic + "x")), [&all, &end]);
        planted.take(&all);
        assert_eq!(planted.size(), (0, 0, 0));
    }
}
