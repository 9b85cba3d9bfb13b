//! Which names of a pattern match a topic, without writing all of them: the pattern read backwards.

use super::{Part, Pattern, power};
use crate::model::matches;

impl Pattern {
    /// Calls `visit` with the position, from `offset` on, of each of `count` names that is a filter
    /// for the topic, and whether it is a shared one.
    pub fn each_match(
        &self,
        offset: u64,
        count: u64,
        topic: &str,
        visit: &mut dyn FnMut(u64, bool),
    ) {
        let mut name = String::new();
        let mut look_at = |position: u64| {
            name.clear();
            self.write(offset + position, &mut name);
            let (shared, plain) = unshared(&name);
            if matches(plain, topic) {
                visit(position, shared);
            }
        };
        match self.candidates(offset, count, topic) {
            Some(candidates) => candidates.into_iter().for_each(look_at),
            None => (0..count).for_each(&mut look_at),
        }
    }

    /// The positions that may match, in order; `None` if only a look at every name can tell.
    fn candidates(&self, offset: u64, count: u64, topic: &str) -> Option<Vec<u64>> {
        let repeats = self.capacity().is_some_and(|names| offset.saturating_add(count) > names);
        if count <= FEW || repeats || !self.parts.iter().all(Part::reads_backwards) {
            return None;
        }
        let (first, parts) = match self.parts.split_first() {
            Some((Part::Text(text), rest)) => (text.as_str(), rest),
            _ => ("", self.parts.as_slice()),
        };
        let first = match first.strip_prefix(SHARE) {
            Some(rest) => rest.split_once('/')?.1,
            None => first,
        };
        let mut found = Vec::new();
        walk(parts, first, topic, 0, &mut found);
        found.sort_unstable();
        found.dedup();
        let positions = found.into_iter().filter_map(|index| index.checked_sub(offset));
        Some(positions.filter(|position| *position < count).collect())
    }
}

/// Goes through pattern and topic side by side. `literal` is what is left of the text in front of
/// `parts`, `index` the number that the parts before have made.
fn walk(parts: &[Part], literal: &str, topic: &str, index: u64, found: &mut Vec<u64>) {
    let Some(topic) = skip(literal, topic) else { return };
    match (topic, parts.split_first()) {
        (Rest::Any, _) => found.push(index),
        (Rest::Of(""), None) => found.push(index),
        (Rest::Of(_), None) => {}
        (Rest::Of(topic), Some((Part::Text(text), rest))) => walk(rest, text, topic, index, found),
        (Rest::Of(topic), Some((part, rest))) => {
            for (digit, len) in part.beginnings_of(topic) {
                let index = part.capacity().map_or(0, |all| index.saturating_mul(all)) + digit;
                walk(rest, "", &topic[len..], index, found);
            }
        }
    }
}

/// What is left of a topic behind a text.
enum Rest<'a> {
    /// Whatever it is: the text ended in `#`.
    Any,
    Of(&'a str),
}

fn skip<'a>(mut literal: &str, mut topic: &'a str) -> Option<Rest<'a>> {
    while let Some(symbol) = literal.chars().next() {
        match symbol {
            '#' => return Some(Rest::Any),
            '/' if topic.is_empty() && literal == "/#" => return Some(Rest::Any),
            '+' => topic = &topic[topic.find('/').unwrap_or(topic.len())..],
            _ => topic = topic.strip_prefix(symbol)?,
        }
        literal = &literal[symbol.len_utf8()..];
    }
    Some(Rest::Of(topic))
}

impl Part {
    /// Whether each of its names says which one it is, and holds no wildcard.
    fn reads_backwards(&self) -> bool {
        let is_wild = |symbol: char| symbol == '+' || symbol == '#';
        match self {
            Self::Text(_) | Self::Counter { .. } => true,
            Self::Symbols { symbols, .. } => {
                let unique = symbols.iter().enumerate().all(|(at, s)| !symbols[..at].contains(s));
                unique && !symbols.iter().copied().any(is_wild)
            }
            Self::OneOf(names) => {
                let unique = names.iter().enumerate().all(|(at, n)| !names[..at].contains(n));
                unique && !names.iter().any(|name| name.contains(is_wild))
            }
        }
    }

    /// Which of its names the text may begin with: their numbers and lengths.
    fn beginnings_of(&self, text: &str) -> Vec<(u64, usize)> {
        match self {
            Self::Text(_) => Vec::new(),
            Self::OneOf(names) => {
                let fits = names.iter().enumerate().filter(|(_, name)| text.starts_with(*name));
                fits.map(|(at, name)| (at as u64, name.len())).collect()
            }
            Self::Counter { start, count, .. } => {
                let digits = text.bytes().take_while(u8::is_ascii_digit).count();
                let numbers = (1..=digits).filter_map(|len| {
                    let digit = text[..len].parse::<u64>().ok()?.checked_sub(*start)?;
                    count.is_none_or(|count| digit < count).then_some((digit, len))
                });
                numbers.collect()
            }
            Self::Symbols { symbols, min, max } => {
                let (mut found, mut value, mut shorter, mut bytes) = (Vec::new(), 0_u64, 0_u64, 0);
                let base = symbols.len() as u64;
                let mut rest = text.chars();
                for len in 0..=*max {
                    if len >= *min {
                        found.push((shorter.saturating_add(value), bytes));
                        shorter = shorter.saturating_add(power(symbols.len(), len));
                    }
                    let Some(symbol) = rest.next() else { break };
                    let Some(at) = symbols.iter().position(|known| *known == symbol) else { break };
                    value = value.saturating_mul(base).saturating_add(at as u64);
                    bytes += symbol.len_utf8();
                }
                found
            }
        }
    }
}

/// Whether the filter is a shared one, and what it filters.
pub fn unshared(filter: &str) -> (bool, &str) {
    match filter.strip_prefix(SHARE).and_then(|rest| rest.split_once('/')) {
        Some((_, plain)) => (true, plain),
        None => (false, filter),
    }
}

const SHARE: &str = "$share/";
/// So many names are compared one by one.
const FEW: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &Pattern, offset: u64, count: u64, topic: &str) -> Vec<(u64, bool)> {
        let mut found = Vec::new();
        pattern.each_match(offset, count, topic, &mut |at, shared| found.push((at, shared)));
        found
    }

    #[test]
    fn what_is_read_backwards_is_what_a_look_at_every_name_finds() {
        let patterns = [
            "bench/{i}/#",
            "bench/{i}/+",
            "bench/{3..39}/x/+/#",
            "$share/five/xr3/g{0..19}/#",
            "$share/g{0..19}/a/{0..2}",
            "c-[0-9]{2}",
            "x[ab]{0,3}/{00..11}",
            "(north|south|no)/+/[0-9]{1,2}#",
            "(a|ab)(b|bb)[0-9]{2}",
            "(+|a)/{0..29}",
            "[aa]{3}",
            "{i}1",
            "{0..29}{0..29}",
            "plain/topic",
            "#",
            "+/{i}",
        ];
        let topics = [
            "bench/7/test",
            "bench/17",
            "bench/007/x",
            "bench/5/x/y/z",
            "xr3/g4/p77",
            "a/2",
            "c-42",
            "xab/07",
            "x/7",
            "north/q/12",
            "no/q/1",
            "abb07",
            "abbb13",
            "a/19",
            "aaa",
            "111",
            "1111",
            "plain/topic",
            "$SYS/x",
        ];
        let mut hits = 0;
        for source in patterns {
            let pattern = Pattern::parse(source).unwrap();
            for topic in topics {
                for (offset, count) in [(0, 200), (7, 100), (0, 1)] {
                    let mut expected = Vec::new();
                    for position in 0..count {
                        let name = pattern.name(offset + position);
                        let (shared, plain) = unshared(&name);
                        if matches(plain, topic) {
                            expected.push((position, shared));
                        }
                    }
                    hits += expected.len();
                    let found = found(&pattern, offset, count, topic);
                    assert_eq!(found, expected, "{source} {topic} from {offset}, {count}");
                }
            }
        }
        assert!(hits > 100, "{hits}");
    }

    #[test]
    fn filters_by_the_million_are_found_without_writing_them() {
        let pattern = Pattern::parse("bench/{i}/#").unwrap();
        let candidates = pattern.candidates(0, 50_000_000, "bench/49999999/test");
        assert_eq!(candidates, Some(vec![49_999_999]));
        assert_eq!(pattern.candidates(0, 50_000_000, "bench/50000000/test"), Some(Vec::new()));
    }
}
