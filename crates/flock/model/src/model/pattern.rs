//! Names by number: a pattern that writes its `n`-th name without storing any.
//!
//! The syntax is the subset of regular expressions that can be enumerated in order, plus counters:
//!
//! - `c-[0-9]{9}`: classes with ranges, repeated so many times; `[ab]{1,2}` counts shorter ones
//!   first; `\d` is `[0-9]`, `\w` is `[0-9A-Za-z_]`;
//! - `(north|south)-[0-9]`: alternatives;
//! - `{i}`: the number itself, without end; `{1..20}` from 1 to 20, as in a shell; `{01..20}`
//!   with zeros;
//! - everything else stands for itself, `\` takes the meaning off the next character. A dot is a
//!   dot.
//!
//! The rightmost part counts fastest, as digits do.

mod find;

pub use find::unshared;

use std::fmt;

use serde::{Deserialize, Serialize};

/// See the module's text for the syntax.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    source: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Symbols {
        symbols: Vec<char>,
        min: u32,
        max: u32,
    },
    OneOf(Vec<String>),
    /// Numbers from `start`; `count` of them, or without end.
    Counter {
        start: u64,
        count: Option<u64>,
        width: usize,
    },
}

/// Why a pattern cannot be enumerated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pattern `{pattern}`, at character {at}: {detail}")]
pub struct PatternError {
    pub pattern: String,
    /// 1-based.
    pub at: usize,
    pub detail: &'static str,
}

impl Pattern {
    pub fn parse(source: &str) -> Result<Self, PatternError> {
        Parser::new(source).pattern()
    }

    /// A pattern with exactly one name; nothing in it has a meaning.
    pub fn literal(text: &str) -> Self {
        let mut source = String::with_capacity(text.len());
        for symbol in text.chars() {
            if "[]{}()|\\".contains(symbol) {
                source.push('\\');
            }
            source.push(symbol);
        }
        Self { source, parts: vec![Part::Text(text.to_owned())] }
    }

    /// A pattern with these names, in this order.
    pub fn list(names: Vec<String>) -> Self {
        let mut source = String::from("(");
        for (n, name) in names.iter().enumerate() {
            if n > 0 {
                source.push('|');
            }
            for symbol in name.chars() {
                if "[](){}|\\".contains(symbol) {
                    source.push('\\');
                }
                source.push(symbol);
            }
        }
        source.push(')');
        Self { source, parts: vec![Part::OneOf(names)] }
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// How many names there are; `None` is without end.
    pub fn capacity(&self) -> Option<u64> {
        self.parts.iter().try_fold(1_u64, |all, part| Some(all.saturating_mul(part.capacity()?)))
    }

    /// Appends name number `index`. Past the capacity it starts again from the first.
    pub fn write(&self, index: u64, out: &mut String) {
        let mut digits = [0_u64; PARTS_MAX];
        let mut rest = index;
        for (digit, part) in digits.iter_mut().zip(&self.parts).rev() {
            match part.capacity() {
                Some(capacity) => {
                    *digit = rest % capacity;
                    rest /= capacity;
                }
                None => *digit = std::mem::take(&mut rest),
            }
        }
        for (digit, part) in digits.iter().zip(&self.parts) {
            part.write(*digit, out);
        }
    }

    /// Name number `index` as a string of its own.
    pub fn name(&self, index: u64) -> String {
        let mut out = String::new();
        self.write(index, &mut out);
        out
    }

    /// The text in front of the first part that varies.
    pub fn literal_prefix(&self) -> &str {
        match self.parts.first() {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    /// The same names with `text` in front.
    pub fn prefixed(&self, text: &str) -> Self {
        let mut pattern = Self::literal(text);
        pattern.source.push_str(&self.source);
        let mut parts = self.parts.iter();
        if let (Some(Part::Text(own)), Some(Part::Text(first))) =
            (pattern.parts.first_mut(), self.parts.first())
        {
            own.push_str(first);
            parts.next();
        }
        pattern.parts.extend(parts.cloned());
        pattern
    }
}

impl Part {
    fn capacity(&self) -> Option<u64> {
        match self {
            Self::Text(_) => Some(1),
            Self::Symbols { symbols, min, max } => Some(
                (*min..=*max)
                    .fold(0, |all: u64, len| all.saturating_add(power(symbols.len(), len))),
            ),
            Self::OneOf(names) => Some(names.len() as u64),
            Self::Counter { count, .. } => *count,
        }
    }

    fn write(&self, digit: u64, out: &mut String) {
        use fmt::Write as _;
        match self {
            Self::Text(text) => out.push_str(text),
            Self::OneOf(names) => out.push_str(&names[digit as usize]),
            Self::Counter { start, width, .. } => {
                // Writing to a String cannot fail.
                let _ = write!(out, "{:01$}", start + digit, width);
            }
            Self::Symbols { symbols, min, max } => {
                let (mut len, mut rest) = (*min, digit);
                while len < *max && rest >= power(symbols.len(), len) {
                    rest -= power(symbols.len(), len);
                    len += 1;
                }
                for place in (0..len).rev() {
                    let symbol = rest / power(symbols.len(), place) % symbols.len() as u64;
                    out.push(symbols[symbol as usize]);
                }
            }
        }
    }
}

fn power(base: usize, exponent: u32) -> u64 {
    (base as u64).saturating_pow(exponent)
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.source)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(source: String) -> Result<Self, PatternError> {
        Self::parse(&source)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.source
    }
}

struct Parser<'a> {
    source: &'a str,
    symbols: Vec<char>,
    at: usize,
    parts: Vec<Part>,
}

impl<'a> Parser<'a> {
    fn new(source: &'a str) -> Self {
        Self { source, symbols: source.chars().collect(), at: 0, parts: Vec::new() }
    }

    fn pattern(mut self) -> Result<Pattern, PatternError> {
        while let Some(symbol) = self.next() {
            match symbol {
                '[' => self.class()?,
                '(' => self.alternatives()?,
                '{' => self.counter()?,
                '\\' => self.escape()?,
                ']' | ')' | '}' | '|' => {
                    return Err(self.error("use a backslash for the character itself"));
                }
                _ => self.text(symbol),
            }
            if self.parts.len() > PARTS_MAX {
                return Err(self.error("too many parts, at most 32"));
            }
        }
        self.check_endless()?;
        Ok(Pattern { source: self.source.to_owned(), parts: self.parts })
    }

    fn next(&mut self) -> Option<char> {
        let symbol = self.symbols.get(self.at).copied();
        self.at += usize::from(symbol.is_some());
        symbol
    }

    fn peek(&self) -> Option<char> {
        self.symbols.get(self.at).copied()
    }

    fn text(&mut self, symbol: char) {
        match self.parts.last_mut() {
            Some(Part::Text(text)) => text.push(symbol),
            _ => self.parts.push(Part::Text(symbol.to_string())),
        }
    }

    fn escape(&mut self) -> Result<(), PatternError> {
        match self.next() {
            Some('d') => self.repeated(('0'..='9').collect()),
            Some('w') => {
                self.repeated(('0'..='9').chain('A'..='Z').chain(['_']).chain('a'..='z').collect())
            }
            Some(symbol) => {
                self.text(symbol);
                Ok(())
            }
            None => Err(self.error("a backslash needs a character after it")),
        }
    }

    fn class(&mut self) -> Result<(), PatternError> {
        let mut symbols = Vec::new();
        loop {
            let first = match self.next() {
                Some(']') => break,
                Some('^') if symbols.is_empty() => {
                    return Err(self.error("excluding classes [^..] are not supported"));
                }
                Some('\\') => {
                    self.next().ok_or_else(|| self.error("the class has no closing ]"))?
                }
                Some(symbol) => symbol,
                None => return Err(self.error("the class has no closing ]")),
            };
            let is_range = self.peek() == Some('-') && self.symbols.get(self.at + 1) != Some(&']');
            if !is_range {
                symbols.push(first);
                continue;
            }
            self.at += 1;
            let last = self.next().ok_or_else(|| self.error("the class has no closing ]"))?;
            if last < first {
                return Err(self.error("the range of the class is reversed"));
            }
            symbols.extend(first..=last);
        }
        if symbols.is_empty() {
            return Err(self.error("the class is empty"));
        }
        self.repeated(symbols)
    }

    /// A class with the repetition behind it, if there is one.
    fn repeated(&mut self, symbols: Vec<char>) -> Result<(), PatternError> {
        let (mut min, mut max) = (1, 1);
        match self.peek() {
            Some('+' | '*') => {
                self.at += 1;
                return Err(self.error("repetitions need a limit: use {n}"));
            }
            Some('?') => {
                self.at += 1;
                min = 0;
            }
            Some('{') if self.symbols.get(self.at + 1).is_some_and(char::is_ascii_digit) => {
                let before = self.at;
                self.at += 1;
                let inner = self.braces()?;
                if inner.contains("..") {
                    self.at = before;
                } else {
                    let (low, high) = inner.split_once(',').unwrap_or((&inner, &inner));
                    min = self.number(low)?;
                    max = self.number(high)?;
                }
            }
            _ => {}
        }
        if max < min || max == 0 || max > REPEATS_MAX {
            return Err(
                self.error("repetitions must be {n} or {m,n} with m <= n, and n from 1 to 64")
            );
        }
        self.parts.push(Part::Symbols { symbols, min, max });
        Ok(())
    }

    fn alternatives(&mut self) -> Result<(), PatternError> {
        let mut names = vec![String::new()];
        let mut last = 0;
        loop {
            match self.next() {
                Some(')') => break,
                Some('|') => {
                    names.push(String::new());
                    last += 1;
                }
                Some('[' | '(' | '{') => {
                    return Err(self.error("alternatives must be plain text"));
                }
                Some('\\') => match self.next() {
                    Some(symbol) => names[last].push(symbol),
                    None => return Err(self.error("the alternatives have no closing )")),
                },
                Some(symbol) => names[last].push(symbol),
                None => return Err(self.error("the alternatives have no closing )")),
            }
        }
        if matches!(self.peek(), Some('+' | '*' | '?')) {
            self.at += 1;
            return Err(self.error("alternatives cannot be repeated"));
        }
        self.parts.push(Part::OneOf(names));
        Ok(())
    }

    fn counter(&mut self) -> Result<(), PatternError> {
        let inner = self.braces()?;
        if inner == "i" {
            self.parts.push(Part::Counter { start: 0, count: None, width: 0 });
            return Ok(());
        }
        let Some((start, end)) = inner.split_once("..") else {
            return Err(self.error("counters must be {i}, {from..to} or, with zeros, {01..20}"));
        };
        let width = if start.len() > 1 && start.starts_with('0') { start.len() } else { 0 };
        let start = self.number(start)?;
        let count = match end {
            "" => None,
            end => {
                let end: u64 = self.number(end)?;
                let count = end.checked_sub(start).and_then(|steps| steps.checked_add(1));
                let wrong = || self.error("the range must not end below its start");
                Some(count.ok_or_else(wrong)?)
            }
        };
        self.parts.push(Part::Counter { start, count, width });
        Ok(())
    }

    /// What stands up to the closing brace; the opening one is taken already.
    fn braces(&mut self) -> Result<String, PatternError> {
        let mut inner = String::new();
        loop {
            match self.next() {
                Some('}') => return Ok(inner),
                Some(symbol) => inner.push(symbol),
                None => return Err(self.error("the brace has no closing }")),
            }
        }
    }

    fn number<N: std::str::FromStr>(&self, text: &str) -> Result<N, PatternError> {
        text.parse().map_err(|_| self.error("expected a whole number"))
    }

    /// What stands left of an endless counter would never change.
    fn check_endless(&self) -> Result<(), PatternError> {
        let endless = self.parts.iter().rposition(|part| part.capacity().is_none());
        let varies = |part: &Part| part.capacity() != Some(1);
        match endless {
            Some(at) if self.parts[..at].iter().any(varies) => {
                Err(self.error("parts left of an endless counter would never change"))
            }
            _ => Ok(()),
        }
    }

    fn error(&self, detail: &'static str) -> PatternError {
        PatternError { pattern: self.source.to_owned(), at: self.at.max(1), detail }
    }
}

const PARTS_MAX: usize = 32;
const REPEATS_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pattern: &str, count: u64) -> Vec<String> {
        let pattern = Pattern::parse(pattern).unwrap();
        (0..count).map(|index| pattern.name(index)).collect()
    }

    #[test]
    fn classes_count_like_digits() {
        assert_eq!(names("c-[0-9]{3}", 12)[9..], ["c-009", "c-010", "c-011"]);
        assert_eq!(names("[a-c][01]", 6), ["a0", "a1", "b0", "b1", "c0", "c1"]);
        assert_eq!(names(r"n\d", 3), ["n0", "n1", "n2"]);
        assert_eq!(names("[x-]{2}", 4), ["xx", "x-", "-x", "--"]);
    }

    #[test]
    fn shorter_repetitions_come_first() {
        assert_eq!(names("[ab]{1,2}", 6), ["a", "b", "aa", "ab", "ba", "bb"]);
        assert_eq!(names("x[y]?", 2), ["x", "xy"]);
    }

    #[test]
    fn counters_and_alternatives() {
        assert_eq!(names("g{0..1}/p{0..2}", 6).join(" "), "g0/p0 g0/p1 g0/p2 g1/p0 g1/p1 g1/p2");
        assert_eq!(names("{08..10}", 3), ["08", "09", "10"]);
        assert_eq!(names("t/{i}", 11)[10], "t/10");
        assert_eq!(names("t/{5..}", 2), ["t/5", "t/6"]);
        assert_eq!(names("(north|south)-[0-1]", 3), ["north-0", "north-1", "south-0"]);
    }

    #[test]
    fn wildcards_and_dots_stand_for_themselves() {
        assert_eq!(names("$share/g/a/+/b.c/#", 1), ["$share/g/a/+/b.c/#"]);
        assert_eq!(names(r"a\[0\]", 1), ["a[0]"]);
    }

    #[test]
    fn past_the_capacity_it_wraps() {
        assert_eq!(names("[0-1]", 3), ["0", "1", "0"]);
    }

    #[test]
    fn capacities() {
        let capacity = |source| Pattern::parse(source).unwrap().capacity();
        assert_eq!(capacity("c-[0-9]{9}"), Some(1_000_000_000));
        assert_eq!(capacity("[ab]{1,2}"), Some(6));
        assert_eq!(capacity("x"), Some(1));
        assert_eq!(capacity("x{i}"), None);
        assert_eq!(capacity("[0-9]{64}"), Some(u64::MAX));
    }

    #[test]
    fn errors_say_where_and_why() {
        let cases = [
            ("c-[0-9", "no closing ]"),
            ("[]", "empty"),
            ("[9-0]", "reversed"),
            ("[^a]", "excluding"),
            ("[0-9]+", "need a limit"),
            ("(a|b)*", "repeated"),
            ("(a[0-9])", "must be plain text"),
            ("[0-9]{0}", "from 1 to 64"),
            ("[0-9]{3,2}", "m <= n"),
            ("{j}", "counters must be"),
            ("{5..4}", "below its start"),
            ("[0-9]x{i}", "never change"),
            ("a]", "backslash"),
            ("a\\", "backslash"),
        ];
        for (pattern, detail) in cases {
            let error = Pattern::parse(pattern).unwrap_err().to_string();
            assert!(error.contains(detail) && error.contains(pattern), "{pattern}: {error}");
        }
    }

    #[test]
    fn a_literal_survives_being_written_and_read() {
        let literal = Pattern::literal("a{i}[0-9](x|y)\\z");
        assert_eq!(literal.name(7), "a{i}[0-9](x|y)\\z");
        let again = Pattern::parse(literal.source()).unwrap();
        assert_eq!(again.name(0), literal.name(0));
        let prefixed = Pattern::parse("t/{i}").unwrap().prefixed("$share/{g}/");
        assert_eq!(Pattern::parse(prefixed.source()).unwrap().name(3), "$share/{g}/t/3");
    }
}
