//! Conditions over events: Event Grid's operators with its treatment of missing keys.
//!
//! A key is an attribute of the event, an enrichment, `data`, or a path inside JSON data such as
//! `data.motor.speed`. Values of one condition are alternatives, and all conditions of a rule must
//! hold. Texts are compared without regard to case.
//!
//! - A key that is missing or null holds for `NumberNotIn`, `StringNotIn` and `IsNullOrUndefined`
//!   only. A value of another type than the operator's counts as missing.
//! - Of an array, a positive operator needs one element that fits, a negative one none. Elements
//!   that are objects or arrays never fit.

mod operator;
mod quantity;
mod text;

use policy::Number;
use serde_json::Value;
use thiserror::Error;

pub use operator::Operator;
use operator::Takes;
use quantity::Quantity;

use crate::enrich::{self, Enriched, Enrichments, RESERVED_KEYS};
use crate::event::{self, Event, Found, PayloadReading};

/// Conditions of one rule.
pub const CONDITIONS_MAX: usize = 25;
/// Values of all conditions of one rule together. A range is one value.
pub const VALUES_MAX: usize = 25;
/// Characters of a text that a condition compares with.
pub const TEXT_CHARS_MAX: usize = 512;
/// Characters of a key.
pub const KEY_CHARS_MAX: usize = 512;
/// Names of a path after `data`.
pub const PATH_NAMES_MAX: usize = 16;

/// A condition, ready to be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// As it was written.
    text: Box<str>,
    key: Key,
    operator: Operator,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Key {
    /// The number of an enrichment.
    Enrichment(usize),
    Attribute(Box<str>),
    /// The path after `data`.
    Data(Box<[Box<str>]>),
}

#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Nothing,
    Bool(bool),
    Numbers(Box<[Number]>),
    /// Both ends belong to a range.
    Ranges(Box<[(Number, Number)]>),
    /// In lower case.
    Texts(Box<[Box<str>]>),
}

/// A condition as a file has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawCondition {
    pub key: String,
    pub operator: String,
    pub value: Option<Given>,
    pub values: Option<Given>,
}

/// A value of a file, TOML or JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    Text(String),
    /// As it was written.
    Number(String),
    Bool(bool),
    List(Vec<Self>),
    /// A type that no operator takes, such as `table`.
    Other(&'static str),
}

/// The part of a condition that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Key,
    Operator,
    Value,
    Values,
}

/// Why a condition is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{detail}")]
pub struct ConditionError {
    pub part: Part,
    pub detail: String,
}

/// What a condition is asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'c, 'a> {
    pub(crate) event: &'c Event<'a>,
    pub(crate) enrichments: &'c Enrichments,
    pub(crate) reading: PayloadReading,
}

/// A value that is no array.
enum Element<'e> {
    Text(&'e str),
    Number(Quantity),
    Bool(bool),
    /// An object or an array inside an array.
    Other,
}

impl Condition {
    /// Compiles a condition of a rule with these enrichments.
    ///
    /// # Errors
    ///
    /// Key or operator are unknown, or a value has the wrong type or exceeds a limit.
    pub fn new(raw: &RawCondition, enrichments: &Enrichments) -> Result<Self, ConditionError> {
        let key = Key::parse(&raw.key, enrichments)?;
        let operator = Operator::parse(&raw.operator).ok_or_else(|| unknown(&raw.operator))?;
        let wanted = wanted_by(operator, raw)?;
        let text = shown(raw).into();
        Ok(Self { text, key, operator, wanted })
    }

    /// Is the type of an event one of these? Event Grid does not count them as values.
    pub(crate) fn of_types(types: &[&str]) -> Self {
        let lower = types.iter().map(|text| text::lower(text).into());
        let text = format!("type StringIn [{}]", types.join(", ")).into();
        let wanted = Wanted::Texts(lower.collect());
        Self { text, key: Key::Attribute("type".into()), operator: Operator::StringIn, wanted }
    }

    /// How many values it has.
    pub fn values(&self) -> usize {
        match &self.wanted {
            Wanted::Nothing => 0,
            Wanted::Bool(_) => 1,
            Wanted::Numbers(all) => all.len(),
            Wanted::Ranges(all) => all.len(),
            Wanted::Texts(all) => all.len(),
        }
    }

    /// Does it need the data of events?
    pub fn asks_data(&self) -> bool {
        matches!(self.key, Key::Data(_))
    }

    /// The attribute that it asks for, if only a message that is an event can have it.
    pub fn foreign_attribute(&self) -> Option<&str> {
        match &self.key {
            Key::Attribute(name) if !event::is_known_attribute(name) => Some(name),
            _ => None,
        }
    }

    /// Does it hold for an event?
    pub(crate) fn holds(&self, context: Context<'_, '_>) -> bool {
        let Context { event, enrichments, reading } = context;
        let found = match &self.key {
            Key::Enrichment(index) => match enrichments.get(*index) {
                Some(enrichment) => match enrichment.value(event.record()) {
                    Enriched::Text(text) => Found::Text(text),
                    Enriched::Integer(integer) => {
                        let number = i64::from(integer).into();
                        return self.holds_for(&Element::Number(Quantity::Exact(number)));
                    }
                },
                None => Found::Missing,
            },
            Key::Attribute(name) => event.attribute(name, reading),
            Key::Data(path) => event.data_at(path, reading),
        };
        match found {
            Found::Missing => self.operator.holds_without_value(),
            Found::Text(text) => self.holds_for(&Element::Text(&text)),
            Found::Json(Value::Array(items)) => self.holds_for_array(items),
            Found::Json(value) => self.holds_for(&Element::of(value)),
        }
    }

    fn holds_for(&self, element: &Element<'_>) -> bool {
        match self.operator {
            Operator::IsNullOrUndefined => false,
            Operator::IsNotNull => true,
            operator => match self.fits(element) {
                Some(fits) => fits != operator.is_negative(),
                None => operator.holds_without_value(),
            },
        }
    }

    fn holds_for_array(&self, items: &[Value]) -> bool {
        match self.operator {
            Operator::IsNullOrUndefined => false,
            Operator::IsNotNull => true,
            operator => {
                let fits = |item: &Value| self.fits(&Element::of(item)) == Some(true);
                items.iter().any(fits) != operator.is_negative()
            }
        }
    }

    /// Does a value fit what the operator compares with, whether that is wanted or not? None: it is
    /// of another type.
    fn fits(&self, element: &Element<'_>) -> Option<bool> {
        match (&self.wanted, element) {
            (Wanted::Bool(wanted), Element::Bool(own)) => Some(wanted == own),
            (Wanted::Numbers(all), Element::Number(own)) => {
                Some(all.iter().any(|number| self.fits_number(own, number)))
            }
            (Wanted::Ranges(all), Element::Number(own)) => {
                let is_inside = |(low, high): &(Number, Number)| {
                    own.compare(low).is_some_and(std::cmp::Ordering::is_ge)
                        && own.compare(high).is_some_and(std::cmp::Ordering::is_le)
                };
                Some(all.iter().any(is_inside))
            }
            (Wanted::Texts(all), Element::Text(own)) => {
                let fits = match self.operator {
                    Operator::StringBeginsWith | Operator::StringNotBeginsWith => text::begins,
                    Operator::StringEndsWith | Operator::StringNotEndsWith => text::ends,
                    Operator::StringContains | Operator::StringNotContains => text::contains,
                    _ => text::equals,
                };
                Some(all.iter().any(|value| fits(own, value)))
            }
            _ => None,
        }
    }

    fn fits_number(&self, own: &Quantity, number: &Number) -> bool {
        own.compare(number).is_some_and(|order| match self.operator {
            Operator::NumberLessThan => order.is_lt(),
            Operator::NumberLessThanOrEquals => order.is_le(),
            Operator::NumberGreaterThan => order.is_gt(),
            Operator::NumberGreaterThanOrEquals => order.is_ge(),
            _ => order.is_eq(),
        })
    }
}

/// As it was written: key, operator and values.
impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'e> Element<'e> {
    fn of(value: &'e Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text),
            Value::Number(number) => Self::Number(Quantity::of(number)),
            Value::Bool(is_set) => Self::Bool(*is_set),
            Value::Null | Value::Array(_) | Value::Object(_) => Self::Other,
        }
    }
}

impl Key {
    pub(crate) fn parse(key: &str, enrichments: &Enrichments) -> Result<Self, ConditionError> {
        let refused = |detail: String| Err(ConditionError { part: Part::Key, detail });
        if key.chars().count() > KEY_CHARS_MAX {
            return refused(format!("must have at most {KEY_CHARS_MAX} characters"));
        }
        if let Some(index) = enrichments.index_of(key) {
            return Ok(Self::Enrichment(index));
        }
        if key == "data" {
            return Ok(Self::Data([].into()));
        }
        if let Some(path) = key.strip_prefix("data.") {
            let names: Box<[Box<str>]> = path.split('.').map(Into::into).collect();
            return match names.iter().all(|name| !name.is_empty()) {
                _ if names.len() > PATH_NAMES_MAX => {
                    refused(format!("must have at most {PATH_NAMES_MAX} names after `data`"))
                }
                true => Ok(Self::Data(names)),
                false => refused(format!("'{key}': a path must have a name after each dot")),
            };
        }
        let is_attribute = RESERVED_KEYS.contains(&key) || enrich::is_key(key);
        match is_attribute && key != "data_base64" {
            true => Ok(Self::Attribute(key.into())),
            false => refused(format!(
                "'{key}': must be an attribute of CloudEvents such as `subject`, an enrichment, \
                 `data`, or a path such as `data.speed`"
            )),
        }
    }
}

fn unknown(operator: &str) -> ConditionError {
    let names: Vec<&str> = Operator::ALL.iter().map(|known| known.name()).collect();
    let detail = format!("unknown operator '{operator}': must be one of {}", names.join(", "));
    ConditionError { part: Part::Operator, detail }
}

fn wanted_by(operator: Operator, raw: &RawCondition) -> Result<Wanted, ConditionError> {
    let (given, other, part, other_part) = match operator.takes() {
        Takes::Nothing => return nothing(operator, raw),
        Takes::Number | Takes::Bool => (&raw.value, &raw.values, Part::Value, Part::Values),
        Takes::Numbers | Takes::Ranges | Takes::Texts => {
            (&raw.values, &raw.value, Part::Values, Part::Value)
        }
    };
    let name = operator.name();
    let allowed = match operator.takes() {
        Takes::Number => "`value`, a number",
        Takes::Bool => "`value`, true or false",
        Takes::Numbers => "`values`, a list of numbers",
        Takes::Ranges => "`values`, a list of ranges such as [[1, 5], [7, 9]]",
        Takes::Texts => "`values`, a list of texts",
        Takes::Nothing => "no value",
    };
    if other.is_some() {
        let detail = format!("{name} must have {allowed}");
        return Err(ConditionError { part: other_part, detail });
    }
    let Some(given) = given else {
        return Err(ConditionError {
            part,
            detail: format!("missing: {name} must have {allowed}"),
        });
    };
    let wanted = match operator.takes() {
        Takes::Number => number_of(given).map(|number| Wanted::Numbers([number].into())),
        Takes::Bool => match given {
            Given::Bool(is_set) => Ok(Wanted::Bool(*is_set)),
            other => Err(format!("got {}", other.kind())),
        },
        Takes::Numbers => items_of(given, number_of).map(Wanted::Numbers),
        Takes::Ranges => items_of(given, range_of).map(Wanted::Ranges),
        Takes::Texts => items_of(given, text_of).map(Wanted::Texts),
        Takes::Nothing => Ok(Wanted::Nothing),
    };
    wanted.map_err(|detail| ConditionError {
        part,
        detail: format!("{name} must have {allowed}: {detail}"),
    })
}

fn nothing(operator: Operator, raw: &RawCondition) -> Result<Wanted, ConditionError> {
    let part = match (&raw.value, &raw.values) {
        (None, None) => return Ok(Wanted::Nothing),
        (Some(_), _) => Part::Value,
        (None, Some(_)) => Part::Values,
    };
    let detail = format!("{} must have no value: remove it", operator.name());
    Err(ConditionError { part, detail })
}

fn items_of<T>(
    given: &Given,
    read: impl Fn(&Given) -> Result<T, String>,
) -> Result<Box<[T]>, String> {
    match given {
        Given::List(items) if items.is_empty() => Err("got an empty list".into()),
        Given::List(items) if items.len() > VALUES_MAX => {
            Err(format!("got {} items, at most {VALUES_MAX} are allowed", items.len()))
        }
        Given::List(items) => items.iter().map(read).collect(),
        other => Err(format!("got {}", other.kind())),
    }
}

fn number_of(given: &Given) -> Result<Number, String> {
    match given {
        Given::Number(text) => Number::parse(text).ok_or_else(|| {
            format!("got '{text}', a number must have at most 38 digits, such as 7, -2.5 or 1e3")
        }),
        other => Err(format!("got {}", other.kind())),
    }
}

fn range_of(given: &Given) -> Result<(Number, Number), String> {
    let Given::List(ends) = given else { return Err(format!("got {}", given.kind())) };
    let [low, high] = ends.as_slice() else {
        return Err(format!("got {} numbers, a range must have 2", ends.len()));
    };
    let (low, high) = (number_of(low)?, number_of(high)?);
    match low <= high {
        true => Ok((low, high)),
        false => Err(format!("got [{low}, {high}], the first number must not be the greater one")),
    }
}

fn text_of(given: &Given) -> Result<Box<str>, String> {
    let Given::Text(text) = given else { return Err(format!("got {}", given.kind())) };
    match text.chars().count() {
        chars if chars > TEXT_CHARS_MAX => {
            Err(format!("got {chars} characters, at most {TEXT_CHARS_MAX} are allowed"))
        }
        _ => Ok(text::lower(text).into()),
    }
}

impl Given {
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Number(_) => "a number",
            Self::Bool(_) => "true or false",
            Self::List(_) => "a list",
            Self::Other(kind) => kind,
        }
    }
}

impl From<&Value> for Given {
    fn from(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Number(number) => Self::Number(number.to_string()),
            Value::Bool(is_set) => Self::Bool(*is_set),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Null => Self::Other("null"),
            Value::Object(_) => Self::Other("an object"),
        }
    }
}

/// As files write it: texts in quotes, lists in brackets.
impl std::fmt::Display for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{}", Value::from(&**text)),
            Self::Number(text) => f.write_str(text),
            Self::Bool(is_set) => write!(f, "{is_set}"),
            Self::Other(kind) => f.write_str(kind),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
        }
    }
}

fn shown(raw: &RawCondition) -> String {
    let RawCondition { key, operator, value, values } = raw;
    match value.as_ref().or(values.as_ref()) {
        Some(given) => format!("{key} {operator} {given}"),
        None => format!("{key} {operator}"),
    }
}

#[cfg(test)]
mod tests;
