//! What a configuration key is: its kind, its limits, its default, and how text becomes a value.
//!
//! Each section is declared once with `settings!`; from that one place come the typed struct, the
//! checks, `docs/use/configuration.md`, the reference file and `--print-config`.

use std::fmt;
use std::path::PathBuf;

use toml::de::DeValue;

/// One key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub doc: &'static str,
    pub kind: ValueKind,
    /// As a user would write it; empty: not set.
    pub default: &'static str,
}

/// The keys of one table.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Dotted, e.g. `listeners.tls`.
    pub name: &'static str,
    pub doc: &'static str,
    pub keys: &'static [Key],
}

/// What values a key takes.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    Number {
        unit: Unit,
        min: u64,
        max: u64,
        /// Words such as `never`, each with the number outside of the range that stands for it
        /// inside: no number that is written means a word.
        words: [Option<(&'static str, u64)>; 2],
    },
    Flag,
    /// Any text; the string says what it should be.
    Text(&'static str),
    /// A file or directory; relative ones in a file are relative to that file.
    Path,
    OneOf(&'static [&'static str]),
    /// A list of texts; the string says of what.
    List(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Secs,
}

impl Unit {
    /// As the API calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Bytes => "bytes",
            Self::Secs => "seconds",
        }
    }
}

/// A value that its kind has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Unset,
    Number(u64),
    Flag(bool),
    Text(String),
    List(Vec<String>),
}

/// A Rust type that a checked value turns into.
pub trait FromValue: Sized {
    /// `None` when the kind of the key does not fit the type: a mistake in the declaration, which
    /// the tests of this crate rule out.
    fn from_value(value: &Value) -> Option<Self>;
}

/// Declares a section: a struct with one typed field per key, and the table of its keys.
macro_rules! settings {
    (
        $(#[doc = $about:literal])+
        $section:literal => $name:ident {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty = $kind:expr, $default:literal; )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        impl $name {
            pub const SECTION: $crate::schema::Section = $crate::schema::Section {
                name: $section,
                doc: concat!($($about, "\n"),+),
                keys: &[ $( $crate::schema::Key {
                    name: stringify!($field),
                    doc: concat!($($doc, "\n"),+),
                    kind: $kind,
                    default: $default,
                }, )+ ],
            };

            /// Builds the struct from checked values, asked for by key name. `None` when a
            /// declaration pairs a type with a kind that does not fit it.
            pub fn lower(
                value: impl Fn(&str) -> $crate::schema::Value,
            ) -> Option<Self> {
                Some(Self {
                    $( $field: $crate::schema::FromValue::from_value(
                        &value(stringify!($field)),
                    )?, )+
                })
            }
        }
    };
}
pub(crate) use settings;

/// Declares an enum whose variants are words of the configuration.
macro_rules! words {
    ( $(#[doc = $about:literal])+ $name:ident {
        $( $(#[doc = $doc:literal])+ $variant:ident = $word:literal, )+
    } ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[doc = $doc])+ $variant, )+ }

        impl $name {
            pub const WORDS: &'static [&'static str] = &[ $($word),+ ];

            pub fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $word, )+ }
            }
        }

        impl $crate::schema::FromValue for $name {
            fn from_value(value: &$crate::schema::Value) -> Option<Self> {
                let $crate::schema::Value::Text(text) = value else { return None };
                match text.as_str() { $( $word => Some(Self::$variant), )+ _ => None }
            }
        }
    };
}
pub(crate) use words;

pub const fn count(min: u64, max: u64) -> ValueKind {
    ValueKind::Number { unit: Unit::Count, min, max, words: [None; 2] }
}

pub const fn bytes(min: u64, max: u64) -> ValueKind {
    ValueKind::Number { unit: Unit::Bytes, min, max, words: [None; 2] }
}

pub const fn secs(min: u64, max: u64) -> ValueKind {
    ValueKind::Number { unit: Unit::Secs, min, max, words: [None; 2] }
}

/// A count from 1, or `word`, which is 0 inside.
pub const fn count_or(word: &'static str, max: u64) -> ValueKind {
    count(1, max).or(word, 0)
}

/// A size from 1, or `word`, which is 0 inside.
pub const fn bytes_or(word: &'static str, max: u64) -> ValueKind {
    bytes(1, max).or(word, 0)
}

impl ValueKind {
    /// A word beside the numbers, with the number that stands for it inside.
    pub const fn or(self, word: &'static str, inside: u64) -> Self {
        let Self::Number { unit, min, max, words: [first, second] } = self else {
            panic!("only a number has words beside it");
        };
        assert!(inside < min || inside > max, "a number that can be written means a word");
        assert!(second.is_none(), "there is room for two words");
        let words = match first {
            None => [Some((word, inside)), None],
            first => [first, Some((word, inside))],
        };
        Self::Number { unit, min, max, words }
    }

    /// Reads a value from text, as environment variables, flags and defaults give it.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse_text(&self, text: &str) -> Result<Value, String> {
        match self {
            Self::Number { unit, words, .. } => {
                if let Some((_, inside)) = words.iter().flatten().find(|(word, _)| *word == text) {
                    return Ok(Value::Number(*inside));
                }
                let number = parse_number(text, *unit).ok_or_else(|| format!("got '{text}'"))?;
                self.check_number(number)
            }
            Self::Flag => match text {
                "true" => Ok(Value::Flag(true)),
                "false" => Ok(Value::Flag(false)),
                _ => Err(format!("got '{text}'")),
            },
            Self::OneOf(words) if words.contains(&text) => Ok(Value::Text(text.into())),
            Self::OneOf(words) => Err(match super::source::nearest(text, words.iter().copied()) {
                Some(word) => format!("got '{text}'; did you mean '{word}'?"),
                None => format!("got '{text}'"),
            }),
            Self::Text(_) | Self::Path if text.is_empty() => Ok(Value::Unset),
            Self::Text(_) | Self::Path => Ok(Value::Text(text.into())),
            Self::List(_) => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(Value::List(items.map(Into::into).collect()))
            }
        }
    }

    /// Reads a value from TOML.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse_toml(&self, value: &DeValue<'_>) -> Result<Value, String> {
        match (self, value) {
            (Self::Number { .. }, DeValue::Integer(number)) => {
                let parsed = u64::from_str_radix(number.as_str(), number.radix());
                self.check_number(parsed.map_err(|_| format!("got {number}"))?)
            }
            (Self::Flag, DeValue::Boolean(flag)) => Ok(Value::Flag(*flag)),
            (
                Self::Number { .. } | Self::Text(_) | Self::Path | Self::OneOf(_),
                DeValue::String(text),
            ) => self.parse_text(text),
            (Self::List(_), DeValue::Array(items)) => {
                let item = |item: &toml::Spanned<DeValue<'_>>| {
                    item.get_ref()
                        .as_str()
                        .map(Into::into)
                        .ok_or("got an item of another type than string".to_owned())
                };
                Ok(Value::List(items.iter().map(item).collect::<Result<_, _>>()?))
            }
            (_, other) => Err(format!("got a value of type {}", other.type_str())),
        }
    }

    /// What is allowed, as a noun phrase.
    pub fn allowed(&self) -> String {
        match self {
            Self::Number { unit, min, max, words } => {
                let unit_words = match unit {
                    Unit::Count => "a number",
                    Unit::Bytes => "a size (bytes, or like \"64KiB\")",
                    Unit::Secs => "a time (seconds, or like \"5m\")",
                };
                let words = words.iter().flatten();
                let words: String = words.map(|(word, _)| format!(", or \"{word}\"")).collect();
                let (min, max) = (self.show_number(*min), self.show_number(*max));
                format!("{unit_words} between {min} and {max}{words}")
            }
            Self::Flag => "true or false".into(),
            Self::Text(what) => (*what).into(),
            Self::Path => "a path".into(),
            Self::OneOf(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Self::List(what) => format!("a list of {what}"),
        }
    }

    /// What is allowed, as a cell of a table. Bounds that nobody reaches are left out.
    pub fn allowed_in_short(&self) -> String {
        match self {
            Self::Number { unit, min, max, words } => {
                let unit_words = match unit {
                    Unit::Count => "",
                    Unit::Bytes => "size, ",
                    Unit::Secs => "time, ",
                };
                let (from, to) = (self.show_number(*min), self.show_number(*max));
                let range = if *max < u64::from(u32::MAX) {
                    format!("{from} to {to}")
                } else {
                    format!("from {from}")
                };
                let words = words.iter().flatten();
                let words: String = words.map(|(word, _)| format!(", or \"{word}\"")).collect();
                format!("{unit_words}{range}{words}")
            }
            Self::Flag => "boolean".into(),
            Self::Text(what) => what.strip_prefix("a ").unwrap_or(what).into(),
            Self::Path => "path".into(),
            Self::OneOf(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                quoted.join(", ")
            }
            Self::List(what) => format!("list of {what}"),
        }
    }

    /// The value as TOML that reads back as the same value.
    pub fn show(&self, value: &Value) -> String {
        match value {
            Value::Unset => "\"\"".into(),
            Value::Number(number) => self.show_number(*number),
            Value::Flag(flag) => flag.to_string(),
            Value::Text(text) => quoted(text),
            Value::List(items) => {
                let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
                format!("[{}]", items.join(", "))
            }
        }
    }

    fn check_number(&self, number: u64) -> Result<Value, String> {
        match self {
            Self::Number { min, max, .. } if (*min..=*max).contains(&number) => {
                Ok(Value::Number(number))
            }
            _ => Err(format!("got {number}")),
        }
    }

    fn show_number(&self, number: u64) -> String {
        let Self::Number { unit, words, .. } = self else { return number.to_string() };
        if let Some((word, _)) = words.iter().flatten().find(|(_, inside)| *inside == number) {
            return quoted(word);
        }
        let suffixes = if *unit == Unit::Bytes { &BYTE_SUFFIXES[..3] } else { &[] };
        let fits = |&&(_, size): &&(&str, u64)| number >= size && number.is_multiple_of(size);
        match suffixes.iter().find(fits) {
            Some((suffix, size)) => quoted(&format!("{}{suffix}", number / size)),
            None => number.to_string(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => Ok(()),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(text),
            Self::List(items) => f.write_str(&items.join(",")),
        }
    }
}

macro_rules! numbers {
    ($($type:ty),+) => { $(
        impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                match value { Value::Number(number) => Self::try_from(*number).ok(), _ => None }
            }
        }
    )+ };
}
numbers!(u8, u16, u32, u64, usize);

impl FromValue for bool {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Flag(flag) = value { Some(*flag) } else { None }
    }
}

impl FromValue for String {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text.clone()) } else { None }
    }
}

impl FromValue for PathBuf {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text.into()) } else { None }
    }
}

impl FromValue for Vec<String> {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::List(items) = value { Some(items.clone()) } else { None }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<Self> {
        if *value == Value::Unset { Some(None) } else { T::from_value(value).map(Some) }
    }
}

fn parse_number(text: &str, unit: Unit) -> Option<u64> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits_end);
    let number: u64 = digits.replace('_', "").parse().ok()?;
    let suffixes: &[(&str, u64)] = match unit {
        Unit::Count => &[],
        Unit::Bytes => &BYTE_SUFFIXES,
        Unit::Secs => &SECS_SUFFIXES,
    };
    match suffix.trim_start() {
        "" => Some(number),
        suffix => {
            let (_, size) = suffixes.iter().find(|(known, _)| *known == suffix)?;
            number.checked_mul(*size)
        }
    }
}

/// A time such as 90, 5m or 7d, in seconds, as the configuration has it.
///
/// # Errors
///
/// It is none.
pub fn secs_of_text(text: &str) -> Result<u64, String> {
    let secs = parse_number(text, Unit::Secs).filter(|secs| *secs > 0);
    secs.ok_or_else(|| format!("must be a time such as 90, 5m, 12h or 7d, got '{text}'"))
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

const BYTE_SUFFIXES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];
const SECS_SUFFIXES: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        let size = bytes(0, 1 << 40);
        for (text, number) in
            [("0", 0), ("64KiB", 65_536), ("1_000", 1_000), ("2 GB", 2_000_000_000)]
        {
            assert_eq!(size.parse_text(text), Ok(Value::Number(number)), "{text}");
        }
        let time = secs(0, 86_400).or("never", u32::MAX.into());
        for (text, number) in [("90", 90), ("5m", 300), ("1d", 86_400), ("never", u32::MAX.into())]
        {
            assert_eq!(time.parse_text(text), Ok(Value::Number(number)), "{text}");
        }
        for text in ["", "s", "5x", "-1", "2d", "1.5h", "99999999999999999999"] {
            assert!(time.parse_text(text).is_err(), "{text}");
        }
        assert!(count(0, 9).parse_text("1KiB").is_err());
        assert_eq!(secs_of_text("2h"), Ok(7_200));
        assert!(secs_of_text("0").is_err() && secs_of_text("soon").is_err());
    }

    #[test]
    fn a_shown_value_reads_back() {
        let kinds = [
            (bytes(0, 1 << 40), Value::Number(16 << 20)),
            (bytes(0, 1 << 40), Value::Number(12_345)),
            (secs(0, 9).or("never", u32::MAX.into()), Value::Number(u32::MAX.into())),
            (ValueKind::Flag, Value::Flag(true)),
            (ValueKind::Text("text"), Value::Text("say \"hi\"\\".into())),
            (ValueKind::Text("text"), Value::Unset),
            (ValueKind::List("names"), Value::List(vec!["a".into(), "b c".into()])),
        ];
        for (kind, value) in kinds {
            let document = format!("key = {}", kind.show(&value));
            let table = toml::de::DeTable::parse(&document).unwrap();
            let read = kind.parse_toml(table.get_ref().values().next().unwrap().get_ref());
            assert_eq!(read, Ok(value), "{document}");
        }
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_right_one() {
        let kind = ValueKind::OneOf(&["drop_oldest", "reject"]);
        assert!(kind.parse_text("drop_odlest").unwrap_err().contains("drop_oldest"));
        assert!(kind.allowed().contains("\"reject\""));
    }

    #[test]
    fn a_range_is_of_numbers_and_its_words_stand_behind_it() {
        let time = "a time (seconds, or like \"5m\")";
        let size = "a size (bytes, or like \"64KiB\")";
        for (kind, allowed) in [
            (count_or("unlimited", 9), "a number between 1 and 9, or \"unlimited\"".into()),
            (secs(0, 9).or("never", 10), format!("{time} between 0 and 9, or \"never\"")),
            (bytes(20, 1 << 20), format!("{size} between 20 and \"1MiB\"")),
            (
                bytes_or("unlimited", 9).or("auto", u64::MAX),
                format!("{size} between 1 and 9, or \"unlimited\", or \"auto\""),
            ),
        ] {
            assert_eq!(kind.allowed(), allowed);
        }
    }

    #[test]
    #[should_panic(expected = "means a word")]
    fn a_number_that_can_be_written_means_no_word() {
        let _ = count(0, 9).or("unlimited", 0);
    }
}
