//! Retained messages of one shard, by topic.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

use crate::filter::has_wildcard;

/// What [`Retained`] keeps: it knows its own topic.
pub trait Retainable {
    /// The topic, which never changes. The caller has checked it.
    fn topic(&self) -> &[u8];
}

/// One message per topic, found by name or walked by filter in pages.
///
/// Messages stand in one ordered set, by their topics, with the separator below every other
/// character. So a topic is followed by all topics below it, and the order is that of a walk
/// through the tree of levels. A walk by filter jumps from candidate to candidate; its cursor is
/// the place in the order, so it does not care what is inserted or removed between two pages: a
/// topic that stays is reported once.
///
/// The topic is read where the message has it. A copy of it as a key would cost a million messages
/// 75 MB.
///
/// Bounds: the number and size of retained messages is the caller's to limit.
#[derive(Debug)]
pub struct Retained<M> {
    messages: BTreeSet<Stored<M>>,
}

/// Where a walk goes on: at this topic or, if it is gone, at the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Vec<u8>);

impl Cursor {
    /// Goes on at this topic, whatever it is.
    pub fn at(topic: &[u8]) -> Self {
        Self(topic.to_vec())
    }

    pub fn topic(&self) -> &[u8] {
        &self.0
    }
}

/// A level of the tree of topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its text, without the levels above it.
    pub level: Box<[u8]>,
    /// The topic that ends here has a message.
    pub has_message: bool,
    /// Topics below it with a message; at [`CHILD_COUNT_MAX`] there may be more.
    pub below: u32,
}

/// Topics below one level that are counted.
pub const CHILD_COUNT_MAX: u32 = 1_000;

/// After a look at so many topics a page of levels ends.
const CHILD_LOOKS_MAX: usize = 3_000;

impl<M: Retainable> Default for Retained<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Retainable> Retained<M> {
    pub const fn new() -> Self {
        Self { messages: BTreeSet::new() }
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Stores a message; returns the one that its topic had.
    pub fn insert(&mut self, message: M) -> Option<M> {
        self.messages.replace(Stored(message)).map(|old| old.0)
    }

    /// Takes the message of a topic away.
    pub fn remove(&mut self, topic: &str) -> Option<M> {
        self.messages.take(&topic.as_bytes() as &dyn Retainable).map(|stored| stored.0)
    }

    /// The message of a topic.
    pub fn get(&self, topic: &str) -> Option<&M> {
        self.messages.get(&topic.as_bytes() as &dyn Retainable).map(|stored| &stored.0)
    }

    /// Changes the message of a topic, but not its topic. Twice the work of [`Retained::get`].
    pub fn change(&mut self, topic: &str, change: impl FnOnce(&mut M)) {
        if let Some(mut message) = self.remove(topic) {
            change(&mut message);
            self.insert(message);
        }
    }

    /// Reports messages whose topics match `filter`, in order: at most `max` (one or more) of them,
    /// after a look at no more than `16 * max` topics, so that one call never takes long. Begins at
    /// `after`, or at the start. Returns where to go on, or none at the end; a page before the end
    /// may be empty. `filter` must have passed [`crate::check_filter`].
    ///
    /// Topics that begin with `$` are not reported for a filter that begins with a wildcard
    /// (`MQTT-4.7.2-1`).
    pub fn walk(
        &self,
        filter: &str,
        after: Option<Cursor>,
        max: usize,
        report: &mut dyn FnMut(&M),
    ) -> Option<Cursor> {
        if !has_wildcard(filter) {
            if let (None, Some(message)) = (&after, self.get(filter)) {
                report(message);
            }
            return None;
        }
        Walk::new(&self.messages, filter, max).run(after, report)
    }

    /// Reports the next `max` (one or more) of all messages, also those of topics that begin with
    /// `$`: for expiry, and for writing everything down.
    pub fn walk_all(
        &self,
        after: Option<Cursor>,
        max: usize,
        report: &mut dyn FnMut(&M),
    ) -> Option<Cursor> {
        let from = after.map_or_else(Vec::new, |cursor| cursor.0);
        for (count, Stored(message)) in starting(&self.messages, &from.as_slice()).enumerate() {
            if count == max.max(1) {
                return Some(Cursor(message.topic().to_vec()));
            }
            report(message);
        }
        None
    }

    /// The levels below a parent, in order: those of all topics that begin with `parent`, which is
    /// empty or ends with a separator. Begins behind the level `after`. Levels that begin with
    /// `hidden` are left out, unless it is empty. At most `max` (one or more), after a look at no
    /// more than some 4,000 topics. True: there are more.
    pub fn children(
        &self,
        parent: &[u8],
        after: Option<&[u8]>,
        hidden: &[u8],
        max: usize,
    ) -> (Vec<Child>, bool) {
        let mut from = parent.to_vec();
        if let Some(level) = after {
            from.extend_from_slice(level);
            from.extend_from_slice(AFTER_SEPARATOR);
        }
        let (mut children, mut looks_left) = (Vec::new(), CHILD_LOOKS_MAX);
        loop {
            let mut next = parent.to_vec();
            let start = from.as_slice();
            let first = starting(&self.messages, &start).next();
            let Some(rest) = first.and_then(|Stored(it)| it.topic().strip_prefix(parent)) else {
                return (children, false);
            };
            if !hidden.is_empty() && rest.starts_with(hidden) {
                next.extend_from_slice(hidden);
                next.push(u8::MAX);
                from = next;
                continue;
            }
            if children.len() >= max.max(1) || looks_left == 0 {
                return (children, true);
            }
            next.extend_from_slice(rest.split(is_separator).next().unwrap_or_default());
            let child = self.child(&next, parent.len());
            looks_left = looks_left.saturating_sub(1 + child.below as usize);
            children.push(child);
            next.extend_from_slice(AFTER_SEPARATOR);
            from = next;
        }
    }

    /// The level whose topic this is.
    fn child(&self, topic: &[u8], parent_bytes: usize) -> Child {
        let is_below = |other: &[u8]| {
            other.strip_prefix(topic).is_some_and(|rest| rest.first().is_none_or(is_separator))
        };
        let all = starting(&self.messages, &topic).map(|Stored(message)| message.topic());
        let (mut below, mut has_message) = (0, false);
        for other in all.take_while(|other| is_below(other)).take(CHILD_COUNT_MAX as usize + 1) {
            has_message |= other.len() == topic.len();
            below += u32::from(other.len() > topic.len());
        }
        Child { level: topic[parent_bytes..].into(), has_message, below }
    }

    /// An estimate of the heap held by the set, in bytes; what a message itself points to is not
    /// known here.
    pub fn heap_bytes(&self) -> usize {
        // A node of the standard set is full to two thirds on average, and has its own few words.
        self.messages.len() * (size_of::<M>() * 3 / 2 + 4)
    }
}

/// A message in the order of topics.
#[derive(Debug)]
struct Stored<M>(M);

/// Topics to look for.
impl Retainable for &[u8] {
    fn topic(&self) -> &[u8] {
        self
    }
}

impl<'a, M: Retainable + 'a> Borrow<dyn Retainable + 'a> for Stored<M> {
    fn borrow(&self) -> &(dyn Retainable + 'a) {
        &self.0
    }
}

impl<M: Retainable> Ord for Stored<M> {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.0.topic(), other.0.topic())
    }
}

impl<M: Retainable> PartialOrd for Stored<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<M: Retainable> PartialEq for Stored<M> {
    fn eq(&self, other: &Self) -> bool {
        self.0.topic() == other.0.topic()
    }
}

impl<M: Retainable> Eq for Stored<M> {}

impl Ord for dyn Retainable + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.topic(), other.topic())
    }
}

impl PartialOrd for dyn Retainable + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Retainable + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.topic() == other.topic()
    }
}

impl Eq for dyn Retainable + '_ {}

/// The order of topics: byte by byte, the separator first.
fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let at = common_len(one, other);
    let rank = |topic: &[u8]| match topic.get(at) {
        Some(&SEPARATOR) => Some(0),
        byte => byte.map(|&byte| u16::from(byte) + 1),
    };
    rank(one).cmp(&rank(other))
}

/// How long both are the same. Topics of neighbours often are for most of their length, so this
/// goes in steps of a word.
fn common_len(one: &[u8], other: &[u8]) -> usize {
    let (words, _) = one.as_chunks::<8>();
    let (other_words, _) = other.as_chunks::<8>();
    let same = words.iter().zip(other_words).take_while(|(one, other)| one == other).count() * 8;
    let rest = one[same..].iter().zip(&other[same..]);
    same + rest.take_while(|(one, other)| one == other).count()
}

/// The messages from this topic on.
fn starting<'a, M: Retainable>(
    messages: &'a BTreeSet<Stored<M>>,
    from: &'a &'a [u8],
) -> impl Iterator<Item = &'a Stored<M>> {
    let from: &dyn Retainable = from;
    messages.range::<dyn Retainable, _>((Bound::Included(from), Bound::Unbounded))
}

/// One page of a walk by filter.
struct Walk<'a, M> {
    messages: &'a BTreeSet<Stored<M>>,
    filter: Vec<&'a [u8]>,
    begins_with_wildcard: bool,
    matches_left: usize,
    visits_left: usize,
}

/// What a look at one topic says about it and the topics after it.
enum Step {
    Match,
    /// No match, but the very next topic may be one.
    Next,
    /// No match before the topic now in the target buffer.
    Jump,
    /// No match any more.
    End,
}

/// How a run over neighbouring topics ended.
enum Scan {
    /// The walk is complete.
    End,
    /// The page is full; this topic has not been looked at.
    Full(Vec<u8>),
    /// The target is too far ahead to step there.
    Seek,
}

impl<'a, M: Retainable> Walk<'a, M> {
    fn new(messages: &'a BTreeSet<Stored<M>>, filter: &'a str, max: usize) -> Self {
        let max = max.max(1);
        Self {
            messages,
            filter: filter.as_bytes().split(is_separator).collect(),
            begins_with_wildcard: filter.starts_with(['+', '#']),
            matches_left: max,
            visits_left: max.saturating_mul(VISITS_PER_MATCH),
        }
    }

    fn run(mut self, after: Option<Cursor>, report: &mut dyn FnMut(&M)) -> Option<Cursor> {
        let mut from = after.map_or_else(|| self.first_topic(), |cursor| cursor.0);
        let mut target = Vec::new();
        loop {
            match self.scan(&from, &mut target, report) {
                Scan::End => return None,
                Scan::Full(topic) => return Some(Cursor(topic)),
                Scan::Seek => std::mem::swap(&mut from, &mut target),
            }
        }
    }

    /// Looks at the topics from `from` on, one after the other, until the next jump is a long one.
    fn scan(&mut self, from: &[u8], target: &mut Vec<u8>, report: &mut dyn FnMut(&M)) -> Scan {
        let mut stepped = 0;
        target.clear();
        for Stored(message) in starting(self.messages, &from) {
            let topic = message.topic();
            if self.matches_left == 0 || self.visits_left == 0 {
                return Scan::Full(topic.to_vec());
            }
            self.visits_left -= 1;
            if compare(topic, target) == Ordering::Less {
                stepped += 1;
                if stepped == STEPS_BEFORE_SEEK {
                    return Scan::Seek;
                }
                continue;
            }
            match self.step(topic, target) {
                Step::Match => {
                    self.matches_left -= 1;
                    report(message);
                }
                Step::Next => {}
                Step::Jump => stepped = 0,
                Step::End => return Scan::End,
            }
        }
        Scan::End
    }

    /// Compares a topic with the filter, level by level.
    fn step(&self, topic: &[u8], target: &mut Vec<u8>) -> Step {
        if self.begins_with_wildcard && topic.starts_with(b"$") {
            return jump(target, AFTER_DOLLAR, b"");
        }
        let mut levels = topic.split(is_separator);
        let mut start = 0;
        // Where the text of the last level ends that a `+` took: the walk can go on beside it.
        let mut plus_end = None;
        for &wanted in &self.filter {
            if wanted == b"#" {
                return Step::Match;
            }
            // The topic is a parent of what is wanted, and its children come next.
            let Some(level) = levels.next() else { return Step::Next };
            let end = start + level.len();
            if wanted == b"+" {
                plus_end = Some(end);
            } else {
                match level.cmp(wanted) {
                    Ordering::Less => return jump(target, &topic[..start], wanted),
                    Ordering::Equal => {}
                    Ordering::Greater => return leave(target, topic, plus_end),
                }
            }
            start = end + 1;
        }
        if levels.next().is_none() { Step::Match } else { leave(target, topic, plus_end) }
    }

    /// The literal levels before the first wildcard: no match sorts before them.
    fn first_topic(&self) -> Vec<u8> {
        let is_literal = |level: &&&[u8]| **level != b"+" && **level != b"#";
        let literals: Vec<&[u8]> = self.filter.iter().take_while(is_literal).copied().collect();
        literals.join(&SEPARATOR)
    }
}

fn jump(target: &mut Vec<u8>, parent: &[u8], level: &[u8]) -> Step {
    target.clear();
    target.extend_from_slice(parent);
    target.extend_from_slice(level);
    Step::Jump
}

/// Leaves everything below the level that the last `+` took. Without a `+` there is nothing beside
/// it that could match.
fn leave(target: &mut Vec<u8>, topic: &[u8], plus_end: Option<usize>) -> Step {
    match plus_end {
        None => Step::End,
        Some(end) => jump(target, &topic[..end], AFTER_SEPARATOR),
    }
}

fn is_separator(byte: &u8) -> bool {
    *byte == SEPARATOR
}

const SEPARATOR: u8 = b'/';
/// The lowest text that sorts behind everything below a level.
const AFTER_SEPARATOR: &[u8] = b"\0";
/// The lowest text that sorts behind everything that begins with `$`.
const AFTER_DOLLAR: &[u8] = b"%";
/// Topics looked at per match that a page may report.
const VISITS_PER_MATCH: usize = 16;
/// Stepping over this many topics costs about as much as finding a far one from the root.
const STEPS_BEFORE_SEEK: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Named(String, usize);

    impl Retainable for Named {
        fn topic(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }

    fn named(topic: &str, number: usize) -> Named {
        Named(topic.to_owned(), number)
    }

    fn stored(topics: &[&str]) -> Retained<Named> {
        let mut retained = Retained::new();
        for (number, topic) in topics.iter().enumerate() {
            retained.insert(named(topic, number));
        }
        retained
    }

    fn walk(retained: &Retained<Named>, filter: &str, max: usize) -> Vec<String> {
        let mut topics = Vec::new();
        let mut after = None;
        loop {
            let before = topics.len();
            let report = &mut |message: &Named| topics.push(message.0.clone());
            after = retained.walk(filter, after, max, report);
            assert!(topics.len() - before <= max);
            if after.is_none() {
                return topics;
            }
        }
    }

    fn levels(retained: &Retained<Named>, parent: &str, max: usize) -> Vec<(String, bool, u32)> {
        let (mut rows, mut after) = (Vec::new(), None::<Box<[u8]>>);
        loop {
            let (page, has_more) =
                retained.children(parent.as_bytes(), after.as_deref(), b"$\0", max);
            assert!(page.len() <= max);
            after = page.last().map(|child| child.level.clone());
            rows.extend(page.into_iter().map(|child| {
                (String::from_utf8(child.level.into()).unwrap(), child.has_message, child.below)
            }));
            if !has_more {
                return rows;
            }
        }
    }

    #[test]
    fn levels_are_listed_once_with_what_is_below_them() {
        let topics =
            ["a", "a/b", "a/b/c", "a!/x", "ab", "/x", "$SYS/y", "$\u{0}1/red", "a//", "b/c/d"];
        let retained = stored(&topics);
        for max in [1, 2, 100] {
            let row = |level: &str, has, below| (level.to_owned(), has, below);
            let root = [
                row("", false, 1),
                row("$SYS", false, 1),
                row("a", true, 3),
                row("a!", false, 1),
                row("ab", true, 0),
                row("b", false, 1),
            ];
            assert_eq!(levels(&retained, "", max), root, "{max}");
            let below_a = [row("", false, 1), row("b", true, 1)];
            assert_eq!(levels(&retained, "a/", max), below_a, "{max}");
            assert_eq!(levels(&retained, "a//", max), [row("", true, 0)], "{max}");
            assert_eq!(levels(&retained, "c/", max), [], "{max}");
        }
        let hidden = retained.children(b"", None, b"", 100).0;
        assert_eq!(hidden.len(), 7, "nothing is hidden unless it is asked for");
    }

    #[test]
    fn a_level_with_many_topics_is_counted_up_to_a_limit() {
        let names: Vec<String> = (0..8 * CHILD_COUNT_MAX)
            .map(|number| format!("{}/{number}", number / (2 * CHILD_COUNT_MAX)))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let retained = stored(&names);
        let (page, has_more) = retained.children(b"", None, b"", 100);
        assert!(has_more && page.len() == 3, "a look at some thousand topics: {}", page.len());
        let rows = levels(&retained, "", 100);
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|(_, has, below)| !has && *below >= CHILD_COUNT_MAX));
        assert_eq!(levels(&retained, "3/", 100).len(), 2 * CHILD_COUNT_MAX as usize);
    }

    #[test]
    fn messages_are_stored_replaced_and_removed_by_topic() {
        let mut retained = Retained::new();
        assert_eq!(retained.insert(named("a/b", 1)), None);
        assert_eq!(retained.insert(named("a/b", 2)), Some(named("a/b", 1)));
        assert_eq!(retained.insert(named("a", 3)), None);
        assert_eq!(retained.get("a/b"), Some(&named("a/b", 2)));
        assert_eq!((retained.get("a/"), retained.len()), (None, 2));
        retained.change("a", |message| message.1 = 4);
        retained.change("b", |_| panic!("there is no such topic"));
        assert_eq!(retained.remove("a"), Some(named("a", 4)));
        assert_eq!(retained.remove("a"), None);
        assert_eq!(retained.remove("a/b"), Some(named("a/b", 2)));
        assert!(retained.is_empty());
        assert_eq!(retained.heap_bytes(), 0);
    }

    #[test]
    fn a_walk_goes_in_order_of_levels_whatever_the_page_size() {
        let retained = stored(&[
            "a", "a/b", "a-b", "a/b/c", "a/", "/a", "$SYS/a", "b", "a/b/d", "a\u{1}", "é/b",
        ]);
        for max in 1..12 {
            assert_eq!(walk(&retained, "a/#", max), ["a", "a/", "a/b", "a/b/c", "a/b/d"]);
            assert_eq!(walk(&retained, "a/+", max), ["a/", "a/b"]);
            assert_eq!(walk(&retained, "+/b", max), ["a/b", "é/b"]);
            assert_eq!(walk(&retained, "+/b/+", max), ["a/b/c", "a/b/d"]);
            assert_eq!(walk(&retained, "+", max), ["a", "a\u{1}", "a-b", "b"]);
            assert_eq!(walk(&retained, "$SYS/#", max), ["$SYS/a"]);
            assert_eq!(walk(&retained, "a/b", max), ["a/b"]);
            assert_eq!(walk(&retained, "#", max).len(), 10);
        }
    }

    #[test]
    fn a_page_ends_after_a_bounded_number_of_visits() {
        let mut retained = Retained::new();
        for number in 0..10_000 {
            retained.insert(named(&format!("d/{number}/a"), number));
            retained.insert(named(&format!("d/{number}/b"), number));
        }
        retained.insert(named("d/9999/z", 0));
        let mut pages = 0;
        let mut after = None;
        let mut found = Vec::new();
        loop {
            after = retained.walk("d/+/z", after, 10, &mut |message| found.push(message.0.clone()));
            pages += 1;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, ["d/9999/z"]);
        assert!(pages >= 20_000 / (10 * VISITS_PER_MATCH), "{pages} pages");
    }

    #[test]
    fn far_candidates_are_reached_by_a_jump() {
        let mut retained = Retained::new();
        for number in 0..10_000 {
            retained.insert(named(&format!("a/x/{number}"), number));
        }
        retained.insert(named("a/y", 1));
        retained.insert(named("b/y", 2));
        let mut found = Vec::new();
        let after = retained.walk("+/y", None, 3, &mut |message| found.push(message.0.clone()));
        // Stepping over the ten thousand would have used up the visits of the page.
        assert_eq!((found.as_slice(), after), (&["a/y".to_string(), "b/y".to_string()][..], None));
    }

    #[test]
    fn a_cursor_survives_the_removal_of_its_topic() {
        let mut retained = stored(&["a/1", "a/2", "a/3", "a/4"]);
        let mut found = Vec::new();
        let after = retained.walk("a/+", None, 2, &mut |message| found.push(message.0.clone()));
        retained.remove("a/2");
        retained.remove("a/3");
        retained.insert(named("a/0", 9));
        let after = retained.walk("a/+", after, 2, &mut |message| found.push(message.0.clone()));
        assert_eq!(after, None);
        assert_eq!(found, ["a/1", "a/2", "a/4"]);
    }

    #[test]
    fn a_walk_over_everything_includes_dollar_topics() {
        let retained = stored(&["a", "$SYS/x", "b/c"]);
        let mut topics = Vec::new();
        let mut after = None;
        for _ in 0..3 {
            after = retained.walk_all(after, 1, &mut |message| topics.push(message.0.clone()));
        }
        assert_eq!(after, None);
        assert_eq!(topics, ["$SYS/x", "a", "b/c"]);
    }

    #[test]
    fn the_order_is_that_of_texts_with_the_separator_below_all() {
        let topics = [
            "",
            "/",
            "//",
            "a",
            "a/",
            "a/b",
            "a/b/c",
            "a\u{1}",
            "a-",
            "ab",
            "abcdefgh",
            "abcdefgh/",
            "abcdefgh/i",
            "abcdefgh\u{1f}",
            "abcdefgh-",
            "abcdefghi",
            "$a",
            "$",
            "$/a",
            "$\0",
            "$\u{0}1/a",
            "$\u{0}1$/a",
            "é",
            "é/b",
            "éa",
        ];
        for one in topics {
            for other in topics {
                let ranks = |text: &str| -> Vec<u16> {
                    let rank = |byte| if byte == b'/' { 0 } else { u16::from(byte) + 1 };
                    text.bytes().map(rank).collect()
                };
                let expected = ranks(one).cmp(&ranks(other));
                let found = compare(one.as_bytes(), other.as_bytes());
                assert_eq!(found, expected, "{one:?} and {other:?}");
            }
        }
    }
}
