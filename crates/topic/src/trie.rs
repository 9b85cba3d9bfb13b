//! The wildcard filters of a shard as a tree of levels.

use hashbrown::HashTable;

use crate::hash::{IdTable, TextHasher, shrink_sparse, spread_u64};
use crate::index::FilterId;
use crate::slab::{ID_LIMIT, Slab};

/// Wildcard filters by level.
///
/// Level texts are interned as symbols, so a walk hashes each level of the topic once, and an edge
/// is one integer key in one table for the whole tree. A topic level that no filter names has no
/// symbol, and with it no literal edge anywhere. The walk goes level by level over a frontier of
/// nodes: no recursion, and no node is seen twice.
#[derive(Debug)]
pub(crate) struct Trie {
    nodes: Slab<Node>,
    edges: HashTable<Edge>,
    symbols: Symbols,
    filter_count: usize,
    frontier: Vec<u32>,
    next: Vec<u32>,
}

#[derive(Debug, Default)]
struct Node {
    parent: u32,
    /// The level text that leads here; [`PLUS`] for `+`.
    symbol: u32,
    /// The child for `+`, or [`NONE`].
    plus: u32,
    /// The filter that ends with this level, or [`NONE`].
    here: u32,
    /// The filter that goes on with `#`, or [`NONE`].
    below: u32,
    /// Children other than `plus`.
    literals: u32,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    parent: u32,
    symbol: u32,
    child: u32,
}

impl Trie {
    pub(crate) fn new() -> Self {
        let mut nodes = Slab::new();
        let root = nodes.insert(Node::new(NONE, NONE));
        debug_assert_eq!(root, ROOT, "the first id of a slab is 0");
        Self {
            nodes,
            edges: HashTable::new(),
            symbols: Symbols::default(),
            filter_count: 0,
            frontier: Vec::new(),
            next: Vec::new(),
        }
    }

    /// True while there is no wildcard filter.
    pub(crate) fn is_empty(&self) -> bool {
        self.filter_count == 0
    }

    /// Adds a filter that is not in the tree. Returns the node at which it ends.
    pub(crate) fn insert(&mut self, hasher: &TextHasher, text: &str, filter: FilterId) -> u32 {
        let mut node = ROOT;
        self.filter_count += 1;
        for level in text.split('/') {
            match level {
                "#" => {
                    self.nodes.at_mut(node).below = filter.0;
                    return node;
                }
                "+" => node = self.plus_child(node),
                literal => {
                    let symbol = self.symbols.intern(hasher, literal);
                    node = self.literal_child(node, symbol);
                }
            }
        }
        self.nodes.at_mut(node).here = filter.0;
        node
    }

    /// Takes out the filter that ends at `node`, and every node that only it needed.
    pub(crate) fn remove(&mut self, hasher: &TextHasher, mut node: u32, filter: FilterId) {
        self.filter_count -= 1;
        let end = self.nodes.at_mut(node);
        if end.here == filter.0 {
            end.here = NONE;
        } else {
            debug_assert_eq!(end.below, filter.0, "the filter does not end here");
            end.below = NONE;
        }
        while node != ROOT && self.nodes.at(node).is_bare() {
            let Node { parent, symbol, .. } = self.nodes.remove(node);
            if symbol == PLUS {
                self.nodes.at_mut(parent).plus = NONE;
            } else {
                self.nodes.at_mut(parent).literals -= 1;
                self.cut(parent, symbol);
                self.symbols.release(hasher, symbol);
            }
            node = parent;
        }
        if self.nodes.len() == 1 {
            self.drop_spare_nodes();
        }
    }

    /// Appends every filter that matches `topic` to `found`, each once.
    pub(crate) fn walk(&mut self, hasher: &TextHasher, topic: &[u8], found: &mut Vec<FilterId>) {
        let mut frontier = std::mem::take(&mut self.frontier);
        let mut next = std::mem::take(&mut self.next);
        frontier.clear();
        frontier.push(ROOT);
        // MQTT-4.7.2-1: the wildcards of the first level do not see topics that begin with `$`.
        let mut hides_wildcards = topic.starts_with(b"$");
        for level in topic.split(|&byte| byte == b'/') {
            let symbol = self.symbols.find(hasher, level);
            next.clear();
            for &id in &frontier {
                let node = self.nodes.at(id);
                if !hides_wildcards {
                    push_filter(found, node.below);
                    if node.plus != NONE {
                        next.push(node.plus);
                    }
                }
                if let Some(symbol) = symbol
                    && node.literals > 0
                    && let Some(child) = self.child(id, symbol)
                {
                    next.push(child);
                }
            }
            std::mem::swap(&mut frontier, &mut next);
            hides_wildcards = false;
            if frontier.is_empty() {
                break;
            }
        }
        for &id in &frontier {
            let node = self.nodes.at(id);
            push_filter(found, node.here);
            push_filter(found, node.below);
        }
        self.frontier = frontier;
        self.next = next;
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.nodes.heap_bytes()
            + self.edges.allocation_size()
            + self.symbols.heap_bytes()
            + (self.frontier.capacity() + self.next.capacity()) * size_of::<u32>()
    }

    #[inline]
    fn child(&self, parent: u32, symbol: u32) -> Option<u32> {
        let edge = self.edges.find(edge_hash(parent, symbol), |edge| edge.is(parent, symbol));
        edge.map(|edge| edge.child)
    }

    fn plus_child(&mut self, parent: u32) -> u32 {
        if self.nodes.at(parent).plus == NONE {
            let child = self.nodes.insert(Node::new(parent, PLUS));
            self.nodes.at_mut(parent).plus = child;
        }
        self.nodes.at(parent).plus
    }

    /// The child for a symbol that the caller has interned once for this step.
    fn literal_child(&mut self, parent: u32, symbol: u32) -> u32 {
        if let Some(child) = self.child(parent, symbol) {
            self.symbols.unshare(symbol);
            return child;
        }
        let child = self.nodes.insert(Node::new(parent, symbol));
        self.nodes.at_mut(parent).literals += 1;
        let edge = Edge { parent, symbol, child };
        self.edges.insert_unique(edge_hash(parent, symbol), edge, Edge::hash);
        child
    }

    /// Gives back the memory of nodes that are gone, when only the root is left.
    fn drop_spare_nodes(&mut self) {
        let root = self.nodes.remove(ROOT);
        let again = self.nodes.insert(root);
        debug_assert_eq!(again, ROOT, "an emptied slab begins anew");
    }

    fn cut(&mut self, parent: u32, symbol: u32) {
        let hash = edge_hash(parent, symbol);
        if let Ok(edge) = self.edges.find_entry(hash, |edge| edge.is(parent, symbol)) {
            edge.remove();
        }
        shrink_sparse(&mut self.edges, Edge::hash);
    }
}

impl Node {
    fn new(parent: u32, symbol: u32) -> Self {
        Self { parent, symbol, plus: NONE, here: NONE, below: NONE, literals: 0 }
    }

    /// True when nothing ends here and nothing goes on from here.
    fn is_bare(&self) -> bool {
        self.here == NONE && self.below == NONE && self.plus == NONE && self.literals == 0
    }
}

impl Edge {
    fn is(&self, parent: u32, symbol: u32) -> bool {
        self.parent == parent && self.symbol == symbol
    }

    fn hash(&self) -> u64 {
        edge_hash(self.parent, self.symbol)
    }
}

/// Level texts, each stored once and counted by the nodes that use it.
#[derive(Debug)]
struct Symbols {
    symbols: Slab<Symbol>,
    ids: IdTable,
    text_bytes: usize,
}

#[derive(Debug, Default)]
struct Symbol {
    text: Box<str>,
    uses: u32,
}

impl Default for Symbols {
    fn default() -> Self {
        Self { symbols: Slab::new(), ids: IdTable::default(), text_bytes: 0 }
    }
}

impl Symbols {
    #[inline]
    fn find(&self, hasher: &TextHasher, level: &[u8]) -> Option<u32> {
        let is_same = |id| self.symbols.at(id).text.as_bytes() == level;
        self.ids.find(hasher.hash_bytes(level), is_same)
    }

    /// The symbol of `level`, with one more use counted.
    fn intern(&mut self, hasher: &TextHasher, level: &str) -> u32 {
        if let Some(id) = self.find(hasher, level.as_bytes()) {
            self.symbols.at_mut(id).uses += 1;
            return id;
        }
        let id = self.symbols.insert(Symbol { text: level.into(), uses: 1 });
        self.ids.insert(hasher.hash(level), id);
        self.text_bytes += level.len();
        id
    }

    /// Takes one of several uses back.
    fn unshare(&mut self, id: u32) {
        let symbol = self.symbols.at_mut(id);
        symbol.uses -= 1;
        debug_assert!(symbol.uses > 0, "an existing edge uses the symbol");
    }

    /// Takes one use back, and forgets the text with the last one.
    fn release(&mut self, hasher: &TextHasher, id: u32) {
        let symbol = self.symbols.at_mut(id);
        symbol.uses -= 1;
        if symbol.uses == 0 {
            let text = self.symbols.remove(id).text;
            self.ids.remove(hasher.hash(&text), id);
            self.text_bytes -= text.len();
        }
    }

    fn heap_bytes(&self) -> usize {
        self.symbols.heap_bytes() + self.ids.heap_bytes() + self.text_bytes
    }
}

#[inline]
fn push_filter(found: &mut Vec<FilterId>, filter: u32) {
    if filter != NONE {
        found.push(FilterId(filter));
    }
}

#[inline]
fn edge_hash(parent: u32, symbol: u32) -> u64 {
    spread_u64(u64::from(parent) << 32 | u64::from(symbol))
}

const ROOT: u32 = 0;
/// No node, no filter.
pub(crate) const NONE: u32 = ID_LIMIT;
/// Stands in the place of a symbol for the level `+`, which is never interned.
const PLUS: u32 = ID_LIMIT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_every_filter_frees_every_node_edge_and_symbol() {
        let hasher = TextHasher::new(1);
        let mut trie = Trie::new();
        let texts = ["#", "+", "a/#", "a/+", "a/+/c", "a/b/+/#", "+/b/+", "/+", "+//", "$x/#"];
        let mut ends = Vec::new();
        for (id, text) in (0..).map(FilterId).zip(texts) {
            ends.push((id, trie.insert(&hasher, text, id)));
        }
        assert!(!trie.is_empty());
        for (id, end) in ends {
            trie.remove(&hasher, end, id);
        }
        assert!(trie.is_empty());
        assert_eq!(trie.nodes.len(), 1);
        assert_eq!(trie.edges.len(), 0);
        assert_eq!(trie.symbols.symbols.len(), 0);
        assert_eq!(trie.symbols.text_bytes, 0);
    }

    #[test]
    fn a_level_text_is_stored_once_however_many_filters_use_it() {
        let hasher = TextHasher::new(1);
        let mut trie = Trie::new();
        for (number, id) in (0..100).map(FilterId).enumerate() {
            trie.insert(&hasher, &format!("site{number}/temperature/+"), id);
        }
        assert_eq!(trie.symbols.symbols.len(), 101);
    }

    #[test]
    fn a_deep_topic_is_walked_without_recursion() {
        let hasher = TextHasher::new(1);
        let mut trie = Trie::new();
        let deep = "+/".repeat(32_000) + "#";
        trie.insert(&hasher, &deep, FilterId(0));
        let mut found = Vec::new();
        trie.walk(&hasher, "/".repeat(32_000).as_bytes(), &mut found);
        assert_eq!(found, [FilterId(0)]);
    }
}
