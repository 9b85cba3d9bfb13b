//! Retained messages of one shard, by topic.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::filter::has_wildcard;

/// One value (a message) per topic, found by name or walked by filter in pages.
///
/// Topics stand in one ordered map, with the separator written as U+0000. As no topic holds that
/// character and none sorts below it, a topic is followed by all topics below it, and the ordinary
/// order of texts is the order of a walk through the tree of levels. A walk by filter jumps from
/// candidate to candidate; its cursor is the place in the order, so it does not care what is
/// inserted or removed between two pages: a topic that stays is reported once.
///
/// Bounds: the number and size of retained messages is the caller's to limit.
#[derive(Debug)]
pub struct Retained<M> {
    messages: BTreeMap<Box<str>, M>,
    /// A key under construction; kept for its memory.
    key: String,
    topic_bytes: usize,
}

/// Where a walk goes on: at this key or, if it is gone, at the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(String);

impl<M> Default for Retained<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> Retained<M> {
    pub const fn new() -> Self {
        Self { messages: BTreeMap::new(), key: String::new(), topic_bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Stores the message of a topic; returns the one it replaces. Here and below, `topic` must
    /// have passed [`crate::check_topic`].
    pub fn insert(&mut self, topic: &str, message: M) -> Option<M> {
        write_key(&mut self.key, topic);
        if let Some(stored) = self.messages.get_mut(self.key.as_str()) {
            return Some(std::mem::replace(stored, message));
        }
        self.topic_bytes += topic.len();
        self.messages.insert(self.key.as_str().into(), message)
    }

    /// Takes the message of a topic away.
    pub fn remove(&mut self, topic: &str) -> Option<M> {
        write_key(&mut self.key, topic);
        let removed = self.messages.remove(self.key.as_str())?;
        self.topic_bytes -= topic.len();
        Some(removed)
    }

    /// The message of a topic.
    pub fn get(&self, topic: &str) -> Option<&M> {
        let mut key = String::with_capacity(topic.len());
        write_key(&mut key, topic);
        self.messages.get(key.as_str())
    }

    /// The message of a topic, to be changed in place.
    pub fn get_mut(&mut self, topic: &str) -> Option<&mut M> {
        write_key(&mut self.key, topic);
        self.messages.get_mut(self.key.as_str())
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
        report: &mut dyn FnMut(&str, &M),
    ) -> Option<Cursor> {
        if !has_wildcard(filter) {
            if let (None, Some(message)) = (&after, self.get(filter)) {
                report(filter, message);
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
        report: &mut dyn FnMut(&str, &M),
    ) -> Option<Cursor> {
        let from = after.map_or_else(String::new, |cursor| cursor.0);
        let mut topic = String::new();
        for (count, (key, message)) in self.messages.range::<str, _>(starting(&from)).enumerate() {
            if count == max.max(1) {
                return Some(Cursor(key.to_string()));
            }
            write_topic(&mut topic, key);
            report(&topic, message);
        }
        None
    }

    /// An estimate of the heap held for topics and the map, in bytes; what a message itself points
    /// to is not known here.
    pub fn heap_bytes(&self) -> usize {
        // A node of the standard map is full to two thirds on average, and has its own few words.
        let entry = size_of::<Box<str>>() + size_of::<M>();
        self.topic_bytes + self.messages.len() * (entry * 3 / 2 + 8)
    }
}

/// One page of a walk by filter.
struct Walk<'a, M> {
    messages: &'a BTreeMap<Box<str>, M>,
    filter: Vec<&'a str>,
    begins_with_wildcard: bool,
    matches_left: usize,
    visits_left: usize,
    topic: String,
}

/// What a look at one key says about it and the keys after it.
enum Step {
    Match,
    /// No match, but the very next key may be one.
    Next,
    /// No match before the key now in the target buffer.
    Jump,
    /// No match any more.
    End,
}

/// How a run over neighbouring keys ended.
enum Scan<'a> {
    /// The walk is complete.
    End,
    /// The page is full; this key has not been looked at.
    Full(&'a str),
    /// The target is too far ahead to step there.
    Seek,
}

impl<'a, M> Walk<'a, M> {
    fn new(messages: &'a BTreeMap<Box<str>, M>, filter: &'a str, max: usize) -> Self {
        let max = max.max(1);
        Self {
            messages,
            filter: filter.split('/').collect(),
            begins_with_wildcard: filter.starts_with(['+', '#']),
            matches_left: max,
            visits_left: max.saturating_mul(VISITS_PER_MATCH),
            topic: String::new(),
        }
    }

    fn run(mut self, after: Option<Cursor>, report: &mut dyn FnMut(&str, &M)) -> Option<Cursor> {
        let mut from = after.map_or_else(|| self.first_key(), |cursor| cursor.0);
        let mut target = String::new();
        loop {
            match self.scan(&from, &mut target, report) {
                Scan::End => return None,
                Scan::Full(key) => return Some(Cursor(key.to_string())),
                Scan::Seek => std::mem::swap(&mut from, &mut target),
            }
        }
    }

    /// Looks at the keys from `from` on, one after the other, until the next jump is a long one.
    fn scan(
        &mut self,
        from: &str,
        target: &mut String,
        report: &mut dyn FnMut(&str, &M),
    ) -> Scan<'a> {
        let mut stepped = 0;
        target.clear();
        for (key, message) in self.messages.range::<str, _>(starting(from)) {
            if self.matches_left == 0 || self.visits_left == 0 {
                return Scan::Full(key);
            }
            self.visits_left -= 1;
            if **key < **target {
                stepped += 1;
                if stepped == STEPS_BEFORE_SEEK {
                    return Scan::Seek;
                }
                continue;
            }
            match self.step(key, target) {
                Step::Match => {
                    self.matches_left -= 1;
                    write_topic(&mut self.topic, key);
                    report(&self.topic, message);
                }
                Step::Next => {}
                Step::Jump => stepped = 0,
                Step::End => return Scan::End,
            }
        }
        Scan::End
    }

    /// Compares a key with the filter, level by level.
    fn step(&self, key: &str, target: &mut String) -> Step {
        if self.begins_with_wildcard && key.starts_with('$') {
            return jump(target, AFTER_DOLLAR, "");
        }
        let mut levels = key.split(SEPARATOR);
        let mut start = 0;
        // Where the text of the last level ends that a `+` took: the walk can go on beside it.
        let mut plus_end = None;
        for &wanted in &self.filter {
            if wanted == "#" {
                return Step::Match;
            }
            // The key is a parent of what is wanted, and its children come next.
            let Some(level) = levels.next() else { return Step::Next };
            let end = start + level.len();
            if wanted == "+" {
                plus_end = Some(end);
            } else {
                match level.cmp(wanted) {
                    Ordering::Less => return jump(target, &key[..start], wanted),
                    Ordering::Equal => {}
                    Ordering::Greater => return leave(target, key, plus_end),
                }
            }
            start = end + SEPARATOR.len_utf8();
        }
        if levels.next().is_none() { Step::Match } else { leave(target, key, plus_end) }
    }

    /// The literal levels before the first wildcard: no match sorts before them.
    fn first_key(&self) -> String {
        let is_literal = |level: &&&str| **level != "+" && **level != "#";
        let mut key = String::new();
        for (depth, level) in self.filter.iter().take_while(is_literal).enumerate() {
            if depth > 0 {
                key.push(SEPARATOR);
            }
            key.push_str(level);
        }
        key
    }
}

fn jump(target: &mut String, parent: &str, level: &str) -> Step {
    target.clear();
    target.push_str(parent);
    target.push_str(level);
    Step::Jump
}

/// Leaves everything below the level that the last `+` took. Without a `+` there is nothing beside
/// it that could match.
fn leave(target: &mut String, key: &str, plus_end: Option<usize>) -> Step {
    match plus_end {
        None => Step::End,
        Some(end) => jump(target, &key[..end], AFTER_SEPARATOR),
    }
}

fn starting(from: &str) -> (Bound<&str>, Bound<&str>) {
    (Bound::Included(from), Bound::Unbounded)
}

fn write_key(key: &mut String, topic: &str) {
    debug_assert!(!topic.contains(SEPARATOR), "the topic was not checked");
    key.clear();
    for (depth, level) in topic.split('/').enumerate() {
        if depth > 0 {
            key.push(SEPARATOR);
        }
        key.push_str(level);
    }
}

fn write_topic(topic: &mut String, key: &str) {
    topic.clear();
    for (depth, level) in key.split(SEPARATOR).enumerate() {
        if depth > 0 {
            topic.push('/');
        }
        topic.push_str(level);
    }
}

/// Stands for `/` in keys; the lowest character, which no topic holds (`MQTT-4.7.3-2`).
const SEPARATOR: char = '\0';
/// The lowest text that sorts behind everything below a level.
const AFTER_SEPARATOR: &str = "\u{1}";
/// The lowest text that sorts behind everything that begins with `$`.
const AFTER_DOLLAR: &str = "%";
/// Topics looked at per match that a page may report.
const VISITS_PER_MATCH: usize = 16;
/// Stepping over this many keys costs about as much as finding a far one from the root.
const STEPS_BEFORE_SEEK: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(topics: &[&str]) -> Retained<usize> {
        let mut retained = Retained::new();
        for (number, topic) in topics.iter().enumerate() {
            retained.insert(topic, number);
        }
        retained
    }

    fn walk(retained: &Retained<usize>, filter: &str, max: usize) -> Vec<String> {
        let mut topics = Vec::new();
        let mut after = None;
        loop {
            let before = topics.len();
            let report = &mut |topic: &str, _: &usize| topics.push(topic.to_string());
            after = retained.walk(filter, after, max, report);
            assert!(topics.len() - before <= max);
            if after.is_none() {
                return topics;
            }
        }
    }

    #[test]
    fn messages_are_stored_replaced_and_removed_by_topic() {
        let mut retained = Retained::new();
        assert_eq!(retained.insert("a/b", 1), None);
        assert_eq!(retained.insert("a/b", 2), Some(1));
        assert_eq!(retained.insert("a", 3), None);
        assert_eq!((retained.get("a/b"), retained.get("a/"), retained.len()), (Some(&2), None, 2));
        if let Some(message) = retained.get_mut("a") {
            *message = 4;
        }
        assert_eq!(retained.remove("a"), Some(4));
        assert_eq!(retained.remove("a"), None);
        assert_eq!(retained.remove("a/b"), Some(2));
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
            retained.insert(&format!("d/{number}/a"), number);
            retained.insert(&format!("d/{number}/b"), number);
        }
        retained.insert("d/9999/z", 0);
        let mut pages = 0;
        let mut after = None;
        let mut found = Vec::new();
        loop {
            after =
                retained.walk("d/+/z", after, 10, &mut |topic, _| found.push(topic.to_string()));
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
            retained.insert(&format!("a/x/{number}"), number);
        }
        retained.insert("a/y", 1);
        retained.insert("b/y", 2);
        let mut found = Vec::new();
        let after = retained.walk("+/y", None, 3, &mut |topic, _| found.push(topic.to_string()));
        // Stepping over the ten thousand would have used up the visits of the page.
        assert_eq!((found.as_slice(), after), (&["a/y".to_string(), "b/y".to_string()][..], None));
    }

    #[test]
    fn a_cursor_survives_the_removal_of_its_topic() {
        let mut retained = stored(&["a/1", "a/2", "a/3", "a/4"]);
        let mut found = Vec::new();
        let after = retained.walk("a/+", None, 2, &mut |topic, _| found.push(topic.to_string()));
        retained.remove("a/2");
        retained.remove("a/3");
        retained.insert("a/0", 9);
        let after = retained.walk("a/+", after, 2, &mut |topic, _| found.push(topic.to_string()));
        assert_eq!(after, None);
        assert_eq!(found, ["a/1", "a/2", "a/4"]);
    }

    #[test]
    fn a_walk_over_everything_includes_dollar_topics() {
        let retained = stored(&["a", "$SYS/x", "b/c"]);
        let mut topics = Vec::new();
        let mut after = None;
        for _ in 0..3 {
            after = retained.walk_all(after, 1, &mut |topic, _| topics.push(topic.to_string()));
        }
        assert_eq!(after, None);
        assert_eq!(topics, ["$SYS/x", "a", "b/c"]);
    }
}
