//! Topic names and filters: an input is a list of lines, each a letter and a text, that changes
//! or asks the subscription index, the interest table and the retained messages.

use std::collections::{BTreeMap, BTreeSet};

use topic::{
    Claim, Index, Interest, InterestCounts, Retainable, Retained, Subscription, TopicLimits,
    canonical, check_filter, check_topic, matches, parse_filter, without_share,
};

const LIMITS: TopicLimits = TopicLimits { levels_max: 64, bytes_max: 1024 };

/// The structures under test, each beside a plain list of the same contents.
struct World {
    index: Index,
    interest: Interest,
    counts: InterestCounts,
    cells: Cells,
    filters: BTreeSet<String>,
    retained: Retained<Kept>,
    stored: BTreeMap<String, usize>,
}

/// The same claims in a cell, and another cell that enters what has changed.
struct Cells {
    cell: Interest,
    counts: InterestCounts,
    reader: Interest,
    entered: u64,
    now_ms: u64,
}

struct Kept {
    topic: String,
    number: usize,
}

impl Retainable for Kept {
    fn topic(&self) -> &[u8] {
        self.topic.as_bytes()
    }
}

pub fn filters(input: &[u8]) {
    let interest = Interest::new(8, 8, 1);
    let counts = InterestCounts::new(5, &interest);
    let mut world = World {
        index: Index::new(1),
        interest,
        counts,
        cells: Cells::new(),
        filters: BTreeSet::new(),
        retained: Retained::new(),
        stored: BTreeMap::new(),
    };
    for (number, line) in input.split(|&byte| byte == b'\n').enumerate().take(200) {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let Some((first, text)) = line.split_at_checked(1) else { continue };
        judge(text);
        match first {
            "s" if check_filter(text, &LIMITS).is_ok() => world.subscribe(text),
            "u" => world.unsubscribe(text),
            "p" if check_topic(text, &LIMITS).is_ok() => world.publish(text),
            "r" if check_topic(text, &LIMITS).is_ok() => world.retain(text, number),
            "c" if check_topic(text, &LIMITS).is_ok() => world.clear(text),
            "w" if check_filter(text, &LIMITS).is_ok() => world.walk(text, 1 + number % 5),
            _ => {}
        }
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "s#\npa\np$SYS/x\nu#\npa",
        "sa/+\nsa/#\nsa/b\ns+/b\npa/b\npa/b\nua/+\npa/b\npa",
        "s/+\ns+/+\ns//#\np/finance\np//\np/",
        "ra/b\nra/c\nra\nr$SYS/a\nrb/c/d\nw#\nw+/c\nwa/#\nca/b\nw+/+\nw$SYS/#",
        "s$share/g/a\ns$share//a\ns$share/g\np$share/g/a",
        "sa/+\nua/+\nsa/+\nua/+\npa/b\nsa/+\npa/b\nua/+\nsa/+\npa/b",
        "sa/b/c/+/d/e\npa/b/c/x/d/e\nu sa\nsa#\ns+a\ns#/a\np+\np#",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

impl World {
    fn subscribe(&mut self, filter: &str) {
        let one = Subscription { subscriber: 1, options: 0, identifier: 0 };
        let outcome = self.index.subscribe(filter, one);
        assert_eq!(outcome.is_first, self.filters.insert(filter.to_string()), "{filter}");
        if outcome.is_first {
            self.counts.add(&self.interest, filter, Claim::Want);
            self.cells.counts.add(&self.cells.cell, filter, Claim::Want);
        }
    }

    fn unsubscribe(&mut self, filter: &str) {
        let outcome = self.index.find(filter).and_then(|id| self.index.unsubscribe(id, 1));
        assert_eq!(outcome.is_some(), self.filters.remove(filter), "{filter}");
        if outcome.is_some() {
            self.counts.remove(&self.interest, filter, Claim::Want);
            self.cells.counts.remove(&self.cells.cell, filter, Claim::Want);
        }
        assert_eq!(self.index.filter_count(), self.filters.len());
    }

    fn publish(&mut self, topic: &str) {
        let is_wanted = |filter: &&String| matches(filter, topic);
        let expected: Vec<&str> = self.filters.iter().filter(is_wanted).map(|f| &**f).collect();
        let mut found = Vec::new();
        // Twice: the second answer comes from the route cache.
        for _ in 0..2 {
            self.index.matching_filters(topic.as_bytes(), &mut found);
            let mut names: Vec<&str> = found.iter().map(|&id| self.index.text(id)).collect();
            names.sort_unstable();
            assert_eq!(names, expected, "{topic}");
        }
        let wants = self.interest.shards(topic.as_bytes()).wants;
        assert!(expected.is_empty() || wants == 1 << 5, "{topic} is missed");
        assert!(!self.filters.is_empty() || wants == 0, "{topic} is wanted by nobody");
        let is_sent = self.cells.wants(topic);
        assert!(expected.is_empty() || is_sent, "{topic} is missed in another cell");
        assert!(!self.filters.is_empty() || !is_sent, "{topic} is wanted by no other cell");
    }

    fn retain(&mut self, topic: &str, number: usize) {
        let old = self.retained.insert(Kept { topic: topic.into(), number });
        assert_eq!(old.map(|kept| kept.number), self.stored.insert(topic.into(), number));
    }

    fn clear(&mut self, topic: &str) {
        let old = self.retained.remove(topic);
        assert_eq!(old.map(|kept| kept.number), self.stored.remove(topic), "{topic}");
    }

    fn walk(&mut self, filter: &str, max: usize) {
        let mut found = BTreeMap::new();
        let mut after = None;
        loop {
            after = self.retained.walk(filter, after, max, &mut |kept| {
                let again = found.insert(kept.topic.clone(), kept.number);
                assert_eq!(again, None, "{} twice", kept.topic);
            });
            if after.is_none() {
                break;
            }
        }
        let mut expected = self.stored.clone();
        expected.retain(|topic, _| matches(filter, topic));
        assert_eq!(found, expected, "{filter}");
    }
}

impl Cells {
    fn new() -> Self {
        let [cell, reader] = [(); 2].map(|()| Interest::of_cell(1, 2, 8, 1));
        reader.replace(1, &cell.snapshot()).expect("of the same table");
        Self { counts: InterestCounts::new(0, &cell), cell, reader, entered: 0, now_ms: 0 }
    }

    /// Does the other cell send a message of this topic? All clears are known there.
    fn wants(&mut self, topic: &str) -> bool {
        // One that was set and cleared again is held back once more.
        for _ in 0..3 {
            self.now_ms += 10_000;
            self.cell.release_clears(self.now_ms);
        }
        let found = self.cell.changes_since(self.entered, usize::MAX).expect("few changes");
        self.reader.apply(1, &found.changes).expect("of the same table");
        self.entered = found.through;
        self.reader.shards(topic.as_bytes()).wants != 0
    }
}

/// The checks against the rule as one would say it.
fn judge(text: &str) {
    let levels: Vec<&str> = text.split('/').collect();
    let is_sized = !text.is_empty() && text.len() <= 1024 && levels.len() <= 64;
    let is_sound = is_sized && !text.contains('\0');
    let is_name = is_sound && !text.contains(['+', '#']);
    assert_eq!(check_topic(text, &LIMITS).is_ok(), is_name, "{text}");

    let (last, others) = levels.split_last().expect("a split yields at least one part");
    let is_level = |level: &str| level == "+" || !level.contains(['+', '#']);
    let is_filter =
        is_sound && others.iter().all(|level| is_level(level)) && (*last == "#" || is_level(last));
    assert_eq!(check_filter(text, &LIMITS).is_ok(), is_filter, "{text}");
    if is_name {
        assert!(matches(text, text));
    }

    if let Ok(parsed) = parse_filter(text, &LIMITS) {
        assert_eq!(check_filter(parsed.filter, &LIMITS), Ok(()));
        let again = match parsed.group {
            Some(group) => format!("$share/{group}/{}", parsed.filter),
            None => parsed.filter.to_string(),
        };
        assert_eq!(again, canonical(text));
        assert_eq!(parsed.filter, without_share(text));
    }
}
