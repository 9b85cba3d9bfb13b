//! Enrichments: attributes that a rule adds to events, with Event Grid's grammar and limits.
//!
//! ```text
//! variable = "${client.authenticationName}"
//!          | "${client.attributes." NAME "}"
//!          | "${mqtt.message.userProperties." NAME "}"
//!          | "${mqtt.message.userProperties['" ESCAPED "']}"     \' and \\ are escapes
//!          | "${mqtt.message.topicName}" | "${mqtt.message.responseTopic}"
//!          | "${mqtt.message.correlationData}" | "${mqtt.message.pfi}"
//! NAME     = letters, digits and - _ . :
//! ```
//!
//! An attribute, user property, response topic or correlation data that a message lacks gives an
//! empty text. Repeated user properties and lists are joined with commas.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use policy::Attribute;
use thiserror::Error;

use crate::record::Record;

/// Enrichments of one rule.
pub const ENRICHMENTS_MAX: usize = 20;
/// Characters of the key of an enrichment.
pub const KEY_CHARS_MAX: usize = 20;
/// Characters of the value of an enrichment, as the rule has it.
pub const VALUE_CHARS_MAX: usize = 128;
/// Characters of a template.
pub const TEMPLATE_CHARS_MAX: usize = 512;

/// Keys of events that are no extension attributes.
pub const RESERVED_KEYS: [&str; 10] = [
    "specversion",
    "id",
    "time",
    "type",
    "source",
    "subject",
    "datacontenttype",
    "dataschema",
    "data",
    "data_base64",
];

/// Event Grid's own extension attributes begin so.
const RESERVED_PREFIX: &str = "azsp";

/// Where the value of an enrichment comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    AuthenticationName,
    Attribute(Box<str>),
    UserProperty(Box<str>),
    TopicName,
    ResponseTopic,
    CorrelationData,
    PayloadFormat,
}

/// The value of an enrichment for one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enriched<'a> {
    Text(Cow<'a, str>),
    /// An Integer of CloudEvents has 32 bits; greater numbers are texts.
    Integer(i32),
}

/// An attribute that a rule adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enrichment {
    key: Box<str>,
    value: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Static(Box<str>),
    Dynamic(Variable),
}

/// The enrichments of a rule, by unique keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enrichments(Box<[Enrichment]>);

/// A text with variables in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    parts: Box<[Source]>,
}

/// Why an enrichment or a template is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnrichmentError {
    #[error("key '{0}': must have 1 to {KEY_CHARS_MAX} characters a-z and 0-9")]
    Key(String),
    #[error("key '{0}' is reserved: use a key that differs from the attributes of CloudEvents")]
    ReservedKey(String),
    #[error("key '{0}' begins with 'azsp', which is reserved: use another key")]
    ReservedPrefix(String),
    #[error("key '{0}' is used twice: keys must be unique")]
    Repeated(String),
    #[error("a rule must have at most {ENRICHMENTS_MAX} enrichments, got {0}")]
    TooMany(usize),
    #[error("must have at most {max} characters, got {got}")]
    TooLong { max: usize, got: usize },
    #[error("'{0}': must be a text, or one variable alone such as ${{mqtt.message.topicName}}")]
    Mixed(String),
    #[error(
        "unknown variable '{0}': must be ${{client.authenticationName}}, \
         ${{client.attributes.NAME}}, ${{mqtt.message.userProperties.NAME}}, \
         ${{mqtt.message.userProperties['NAME']}}, ${{mqtt.message.topicName}}, \
         ${{mqtt.message.responseTopic}}, ${{mqtt.message.correlationData}} or ${{mqtt.message.pfi}}"
    )]
    Unknown(String),
    #[error("variable '{0}': the name must have letters, digits, '-', '_', '.' and ':' only")]
    Name(String),
    #[error("'{0}': must end with '}}'")]
    Open(String),
    #[error("'{0}': a quoted name must end with \"']}}\", with \\' and \\\\ as its only escapes")]
    Quotes(String),
}

impl Variable {
    /// The variable at the beginning of a text, and what follows it.
    ///
    /// # Errors
    ///
    /// The text does not begin with a variable of this module's grammar.
    pub fn parse(text: &str) -> Result<(Self, &str), EnrichmentError> {
        if let Some(quoted) = text.strip_prefix("${mqtt.message.userProperties['") {
            let (name, rest) =
                unquote(quoted).ok_or_else(|| EnrichmentError::Quotes(text.into()))?;
            return Ok((Self::UserProperty(name.into()), rest));
        }
        let open = || EnrichmentError::Open(text.into());
        let end = text.find('}').ok_or_else(open)?;
        let (whole, rest) = text.split_at(end + 1);
        let inside = text[..end].strip_prefix("${").unwrap_or_default();
        let named = |name: &str| match is_plain_name(name) {
            true => Ok(name.into()),
            false => Err(EnrichmentError::Name(whole.into())),
        };
        let variable = match inside {
            "client.authenticationName" => Self::AuthenticationName,
            "mqtt.message.topicName" => Self::TopicName,
            "mqtt.message.responseTopic" => Self::ResponseTopic,
            "mqtt.message.correlationData" => Self::CorrelationData,
            "mqtt.message.pfi" => Self::PayloadFormat,
            _ => {
                if let Some(name) = inside.strip_prefix("client.attributes.") {
                    Self::Attribute(named(name)?)
                } else if let Some(name) = inside.strip_prefix("mqtt.message.userProperties.") {
                    Self::UserProperty(named(name)?)
                } else {
                    return Err(EnrichmentError::Unknown(whole.into()));
                }
            }
        };
        Ok((variable, rest))
    }

    /// Its value for a message.
    pub fn value<'a>(&self, record: &Record<'a>) -> Enriched<'a> {
        let text = |text: Option<&'a str>| Enriched::Text(Cow::Borrowed(text.unwrap_or_default()));
        match self {
            Self::AuthenticationName => text(record.username),
            Self::Attribute(name) => match record.attributes.get(name) {
                Some(attribute) => of_attribute(attribute),
                None => text(None),
            },
            Self::UserProperty(name) => {
                let mut all = record.user_properties.iter().filter(|(own, _)| *own == &**name);
                let first = all.next().map(|(_, value)| *value);
                match all.next() {
                    None => text(first),
                    Some(_) => Enriched::Text(joined(record, name).into()),
                }
            }
            Self::TopicName => text(Some(record.topic)),
            Self::ResponseTopic => text(record.response_topic),
            Self::CorrelationData => {
                let bytes = record.correlation_data.unwrap_or_default();
                Enriched::Text(STANDARD.encode(bytes).into())
            }
            Self::PayloadFormat => Enriched::Integer(record.payload_format.into()),
        }
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AuthenticationName => f.write_str("${client.authenticationName}"),
            Self::Attribute(name) => write!(f, "${{client.attributes.{name}}}"),
            Self::UserProperty(name) => {
                let escaped = name.replace('\\', "\\\\").replace('\'', "\\'");
                write!(f, "${{mqtt.message.userProperties['{escaped}']}}")
            }
            Self::TopicName => f.write_str("${mqtt.message.topicName}"),
            Self::ResponseTopic => f.write_str("${mqtt.message.responseTopic}"),
            Self::CorrelationData => f.write_str("${mqtt.message.correlationData}"),
            Self::PayloadFormat => f.write_str("${mqtt.message.pfi}"),
        }
    }
}

fn joined(record: &Record<'_>, name: &str) -> String {
    let own = record.user_properties.iter().filter(|(own, _)| *own == name);
    own.map(|(_, value)| *value).collect::<Vec<_>>().join(",")
}

fn of_attribute(attribute: &Attribute) -> Enriched<'_> {
    match attribute {
        Attribute::Text(text) => Enriched::Text(Cow::Borrowed(text)),
        Attribute::Number(number) => {
            let text = number.to_string();
            match text.parse() {
                Ok(integer) => Enriched::Integer(integer),
                Err(_) => Enriched::Text(text.into()),
            }
        }
        Attribute::List(_) => Enriched::Text(attribute.texts().join(",").into()),
    }
}

/// The name before `']}`, and what follows that.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '\'' => {
                let rest = text[at..].strip_prefix("']}")?;
                return (!name.is_empty()).then_some((name, rest));
            }
            '\\' => match signs.next()?.1 {
                escaped @ ('\'' | '\\') => name.push(escaped),
                _ => return None,
            },
            _ => name.push(sign),
        }
    }
    None
}

fn is_plain_name(name: &str) -> bool {
    let is_of_name = |sign: char| sign.is_alphanumeric() || "-_.:".contains(sign);
    !name.is_empty() && name.chars().all(is_of_name)
}

impl Enriched<'_> {
    /// As text: the canonical form of CloudEvents.
    pub fn as_text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Integer(integer) => integer.to_string().into(),
        }
    }
}

impl Enrichment {
    /// An attribute whose value is always the same text.
    ///
    /// # Errors
    ///
    /// The key is not allowed, or the value too long.
    pub fn fixed(key: &str, value: &str) -> Result<Self, EnrichmentError> {
        check_key(key)?;
        check_length(value, VALUE_CHARS_MAX)?;
        Ok(Self { key: key.into(), value: Source::Static(value.into()) })
    }

    /// An attribute whose value is that of one variable.
    ///
    /// # Errors
    ///
    /// The key is not allowed, or the value is not one variable alone.
    pub fn dynamic(key: &str, value: &str) -> Result<Self, EnrichmentError> {
        check_key(key)?;
        check_length(value, VALUE_CHARS_MAX)?;
        if !value.starts_with("${") {
            return Err(EnrichmentError::Mixed(value.into()));
        }
        match Variable::parse(value)? {
            (variable, "") => Ok(Self { key: key.into(), value: Source::Dynamic(variable) }),
            _ => Err(EnrichmentError::Mixed(value.into())),
        }
    }

    /// By its value: a variable, or a text without one.
    ///
    /// # Errors
    ///
    /// As of the other two, or a variable is only a part of the text.
    pub fn parse(key: &str, value: &str) -> Result<Self, EnrichmentError> {
        match value.contains("${") {
            true => Self::dynamic(key, value),
            false => Self::fixed(key, value),
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its value for a message.
    pub fn value<'a>(&'a self, record: &Record<'a>) -> Enriched<'a> {
        self.value.value(record)
    }
}

impl Source {
    fn value<'a>(&'a self, record: &Record<'a>) -> Enriched<'a> {
        match self {
            Self::Static(text) => Enriched::Text(Cow::Borrowed(text)),
            Self::Dynamic(variable) => variable.value(record),
        }
    }
}

fn check_key(key: &str) -> Result<(), EnrichmentError> {
    if RESERVED_KEYS.contains(&key) {
        return Err(EnrichmentError::ReservedKey(key.into()));
    }
    if !is_key(key) {
        return Err(EnrichmentError::Key(key.into()));
    }
    if key.starts_with(RESERVED_PREFIX) {
        return Err(EnrichmentError::ReservedPrefix(key.into()));
    }
    Ok(())
}

/// Can it be the name of an attribute that a rule adds or asks for?
pub(crate) fn is_key(key: &str) -> bool {
    let is_of_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=KEY_CHARS_MAX).contains(&key.len()) && key.bytes().all(is_of_key)
}

fn check_length(text: &str, max: usize) -> Result<(), EnrichmentError> {
    match text.chars().count() {
        got if got > max => Err(EnrichmentError::TooLong { max, got }),
        _ => Ok(()),
    }
}

impl Enrichments {
    /// # Errors
    ///
    /// There are too many, or two have the same key.
    pub fn new(all: Vec<Enrichment>) -> Result<Self, EnrichmentError> {
        if all.len() > ENRICHMENTS_MAX {
            return Err(EnrichmentError::TooMany(all.len()));
        }
        for (index, one) in all.iter().enumerate() {
            if all[..index].iter().any(|other| other.key == one.key) {
                return Err(EnrichmentError::Repeated(one.key.to_string()));
            }
        }
        Ok(Self(all.into()))
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Enrichment> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of the enrichment with this key.
    pub(crate) fn index_of(&self, key: &str) -> Option<usize> {
        self.0.iter().position(|one| *one.key == *key)
    }

    /// By the number of [`Enrichments::index_of`].
    pub(crate) fn get(&self, index: usize) -> Option<&Enrichment> {
        self.0.get(index)
    }
}

impl Template {
    /// # Errors
    ///
    /// It is too long, or has a variable that does not exist.
    pub fn parse(text: &str) -> Result<Self, EnrichmentError> {
        check_length(text, TEMPLATE_CHARS_MAX)?;
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            if start > 0 {
                parts.push(Source::Static(rest[..start].into()));
            }
            let (variable, after) = Variable::parse(&rest[start..])?;
            parts.push(Source::Dynamic(variable));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Source::Static(rest.into()));
        }
        Ok(Self { text: text.into(), parts: parts.into() })
    }

    /// The value of an enrichment alone.
    pub(crate) fn of(enrichment: &Enrichment) -> Self {
        let text = match &enrichment.value {
            Source::Static(text) => text.clone(),
            Source::Dynamic(variable) => variable.to_string().into(),
        };
        Self { text, parts: [enrichment.value.clone()].into() }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its text for a message.
    pub fn expand(&self, record: &Record<'_>) -> String {
        self.parts.iter().map(|part| part.value(record).as_text().into_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record;

    fn value(text: &str, record: &Record<'_>) -> String {
        let (variable, rest) = Variable::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(rest, "", "{text}");
        variable.value(record).as_text().into_owned()
    }

    #[test]
    fn each_variable_has_its_value() {
        let full = Record {
            payload_format: 1,
            response_topic: Some("answers"),
            correlation_data: Some(&[0xFF, 0x00]),
            user_properties: &[("unit", "C"), ("it's", "x"), ("unit", "F"), ("a\\b", "y")],
            ..record("plants/7", b"")
        };
        for (variable, expected, without) in [
            ("${client.authenticationName}", "Anna", "Anna"),
            ("${client.attributes.site}", "berlin", "berlin"),
            ("${client.attributes.floor}", "3", "3"),
            ("${client.attributes.serial}", "5000000000", "5000000000"),
            ("${client.attributes.roles}", "a,b", "a,b"),
            ("${client.attributes.none}", "", ""),
            ("${mqtt.message.userProperties.unit}", "C,F", ""),
            ("${mqtt.message.userProperties['unit']}", "C,F", ""),
            (r"${mqtt.message.userProperties['it\'s']}", "x", ""),
            (r"${mqtt.message.userProperties['a\\b']}", "y", ""),
            ("${mqtt.message.topicName}", "plants/7", "plants/7"),
            ("${mqtt.message.responseTopic}", "answers", ""),
            ("${mqtt.message.correlationData}", "/wA=", ""),
            ("${mqtt.message.pfi}", "1", "0"),
        ] {
            assert_eq!(value(variable, &full), expected, "{variable}");
            assert_eq!(value(variable, &record("plants/7", b"")), without, "{variable}");
            // As it is shown, it is read again.
            let (read, _) = Variable::parse(variable).expect("a variable");
            assert_eq!(Variable::parse(&read.to_string()), Ok((read, "")));
        }
        let nameless = Record { username: None, ..full };
        assert_eq!(value("${client.authenticationName}", &nameless), "");
    }

    #[test]
    fn integers_stay_integers_if_they_have_32_bits() {
        let of = |text: &str| Variable::parse(text).expect("a variable").0.value(&record("t", b""));
        assert_eq!(of("${client.attributes.floor}"), Enriched::Integer(3));
        assert_eq!(of("${client.attributes.serial}"), Enriched::Text("5000000000".into()));
        assert_eq!(of("${mqtt.message.pfi}"), Enriched::Integer(0));
    }

    #[test]
    fn what_is_no_variable_is_refused() {
        for text in [
            "",
            "$",
            "${",
            "${}",
            "${client}",
            "${client.attributes.}",
            "${client.attributes.a b}",
            "${client.clientId}",
            "${mqtt.message.userProperties}",
            "${mqtt.message.userProperties.}",
            "${mqtt.message.userProperties['']}",
            "${mqtt.message.userProperties['a'}",
            "${mqtt.message.userProperties['a]}",
            r"${mqtt.message.userProperties['a\n']}",
            "${mqtt.message.payload}",
            "${CLIENT.authenticationName}",
        ] {
            assert!(Variable::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_and_values_have_limits() {
        assert!(
            Enrichment::fixed(&"k".repeat(KEY_CHARS_MAX), &"v".repeat(VALUE_CHARS_MAX)).is_ok()
        );
        let long = "v".repeat(VALUE_CHARS_MAX + 1);
        for (key, value) in [
            ("", "x"),
            (&*"k".repeat(KEY_CHARS_MAX + 1), "x"),
            ("Key", "x"),
            ("a-b", "x"),
            ("ä", "x"),
            ("azspx", "x"),
            ("k", &*long),
            ("k", "a ${mqtt.message.pfi}"),
            ("k", "${mqtt.message.pfi} b"),
        ] {
            let error = Enrichment::parse(key, value).expect_err(key).to_string();
            assert!(error.contains("must") || error.contains("use another"), "{error}");
        }
        for key in RESERVED_KEYS {
            assert!(Enrichment::fixed(key, "x").is_err(), "{key}");
        }
        assert!(Enrichment::dynamic("k", "x").is_err());
        let one = |key: &str| Enrichment::fixed(key, "x").expect("it is allowed");
        let many = |count: usize| (0..count).map(|it| one(&format!("k{it}"))).collect::<Vec<_>>();
        assert!(Enrichments::new(many(ENRICHMENTS_MAX)).is_ok());
        assert!(Enrichments::new(many(ENRICHMENTS_MAX + 1)).is_err());
        assert!(Enrichments::new(vec![one("a"), one("a")]).is_err());
    }

    #[test]
    fn templates_have_variables_within_text() {
        let expand = |text: &str| {
            let template = Template::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(template.text(), text);
            template.expand(&record("plants/7", b""))
        };
        assert_eq!(expand(""), "");
        assert_eq!(expand("fixed $ {x}"), "fixed $ {x}");
        assert_eq!(expand("${mqtt.message.topicName}"), "plants/7");
        assert_eq!(expand("a-${client.attributes.floor}${mqtt.message.pfi}-b"), "a-30-b");
        assert!(Template::parse("a ${b} c").is_err());
        assert!(Template::parse(&"x".repeat(TEMPLATE_CHARS_MAX + 1)).is_err());
    }
}
