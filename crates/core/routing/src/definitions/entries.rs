//! The entries of a file as they are written: for an API that changes one of them.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value, json};
use toml::de::{DeTable, DeValue};

use super::KEYS;

/// What an entry defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Stream,
    Target,
    Rule,
}

/// One stream, target or rule, with its keys as the file has them.
#[derive(Clone, PartialEq)]
pub struct Entry {
    pub kind: Kind,
    pub name: String,
    /// All keys, `name` included.
    keys: Map<String, Value>,
    /// None: an operator of the broker has defined it.
    pub tenant: Option<Tenant>,
}

/// The namespace whose users have defined something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    pub namespace: String,
    /// Given once: a later namespace of the same name has another number.
    pub number: u16,
}

/// Stored with an entry, and no key of one.
const TENANT_KEY: &str = "tenant";

/// Nested tables and lists of a value. TOML itself has such a limit.
const DEPTH_MAX: usize = 32;

/// In place of a value that is not shown. No key accepts it.
fn hidden() -> Value {
    json!({ "set": true })
}

impl Kind {
    /// In the order of a file: what is referred to comes first.
    pub const ALL: [Self; 3] = [Self::Stream, Self::Target, Self::Rule];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Target => "target",
            Self::Rule => "rule",
        }
    }

    /// The list of a file.
    pub const fn list(self) -> &'static str {
        KEYS[self as usize]
    }
}

impl Entry {
    /// From the keys of JSON, which are those of the file.
    ///
    /// # Errors
    ///
    /// The file cannot have one of the values, or the name is another one.
    pub fn new(kind: Kind, name: &str, mut keys: Map<String, Value>) -> Result<Self, String> {
        match keys.get("name") {
            None => drop(keys.insert("name".into(), name.into())),
            Some(own) if own == name => {}
            Some(own) => return Err(format!("name: must be \"{name}\" or left out, got {own}")),
        }
        for (key, value) in &keys {
            check(value, 1).map_err(|detail| format!("{key}: {detail}"))?;
        }
        Ok(Self { kind, name: name.into(), keys, tenant: None })
    }

    /// The same with another value of a key.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.keys.insert(key.into(), value.into());
        self
    }

    /// Its keys without secrets. The keys of those are there, with values that no key accepts.
    pub fn shown(&self) -> Self {
        let mut keys = self.keys.clone();
        if self.kind == Kind::Target {
            hide(&mut keys);
        }
        Self { keys, ..self.clone() }
    }

    /// Everything, secrets included.
    pub const fn keys(&self) -> &Map<String, Value> {
        &self.keys
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.keys.get(key).and_then(Value::as_str)
    }
}

/// A target has secrets: they are shown by no chance.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.word(), self.name)
    }
}

/// Keys of secrets, at a target and at its login.
const SECRET_KEYS: [&str; 4] = ["signing_secret", "password", "token", "client_secret"];

fn hide(keys: &mut Map<String, Value>) {
    for (key, value) in keys.iter_mut() {
        match (&**key, &mut *value) {
            (key, value) if SECRET_KEYS.contains(&key) => *value = hidden(),
            ("headers", Value::Object(headers)) => {
                headers.values_mut().filter(|it| it.is_string()).for_each(|it| *it = hidden());
            }
            ("sasl", Value::Object(login)) => hide(login),
            _ => {}
        }
    }
    // The query of an URL may have a key.
    let query = |text: &Value| {
        let text = text.as_str()?;
        Some(text.split_once('?')?.0.to_owned())
    };
    for key in ["url", "token_url"] {
        if let Some(front) = keys.get(key).and_then(query) {
            keys.insert(key.into(), front.into());
            keys.insert(format!("{key}_query"), hidden());
        }
    }
}

fn check(value: &Value, depth: usize) -> Result<(), String> {
    match value {
        _ if depth > DEPTH_MAX => Err(format!("must have at most {DEPTH_MAX} nested tables")),
        Value::Null => Err("must not be null: leave the key out".into()),
        Value::Array(items) => items.iter().try_for_each(|item| check(item, depth + 1)),
        Value::Object(keys) => keys.values().try_for_each(|value| check(value, depth + 1)),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// The entries of the text of a file, in its order. It may have keys that no entry has:
/// [`super::parse`] reports these.
///
/// # Errors
///
/// It is not TOML, or an entry has no name.
pub fn entries(text: &str) -> Result<Vec<Entry>, String> {
    let document = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let list = document.get_ref().iter().find(|(key, _)| key.get_ref() == kind.list());
        let Some((_, list)) = list else { continue };
        let wrong = || format!("{}: must be a list of tables with names", kind.list());
        for item in list.get_ref().as_array().ok_or_else(wrong)?.iter() {
            let Value::Object(keys) = json_of(item.get_ref())? else { return Err(wrong()) };
            let name = keys.get("name").and_then(Value::as_str).ok_or_else(wrong)?.to_owned();
            all.push(Entry { kind, name, keys, tenant: None });
        }
    }
    Ok(all)
}

/// The entries of a text that [`stored_text`] has written.
///
/// # Errors
///
/// As [`entries`], or an entry names its tenant in another form.
pub fn stored(text: &str) -> Result<Vec<Entry>, String> {
    let mut all = entries(text)?;
    for entry in &mut all {
        let Some(found) = entry.keys.remove(TENANT_KEY) else { continue };
        let number = found["number"].as_u64().and_then(|number| u16::try_from(number).ok());
        let tenant = found["namespace"].as_str().zip(number);
        let (namespace, number) = tenant.ok_or_else(|| {
            format!("{entry:?}: {TENANT_KEY}: must have a namespace and its number")
        })?;
        entry.tenant = Some(Tenant { namespace: namespace.to_owned(), number });
    }
    Ok(all)
}

/// The entries with their tenants, for [`stored`].
pub fn stored_text(all: &[Entry]) -> String {
    let mut all = all.to_vec();
    for entry in &mut all {
        if let Some(Tenant { namespace, number }) = &entry.tenant {
            let tenant = json!({ "namespace": namespace, "number": number });
            entry.keys.insert(TENANT_KEY.into(), tenant);
        }
    }
    text(&all)
}

fn json_of(value: &DeValue<'_>) -> Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(is_set) => (*is_set).into(),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix()).ok();
            let exact = parsed.and_then(Number::from_i128).map(Value::from);
            exact.unwrap_or_else(|| rounded(number.as_str()))
        }
        DeValue::Float(number) => rounded(number.as_str()),
        DeValue::Datetime(time) => time.to_string().into(),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| json_of(item.get_ref()));
            items.collect::<Result<Vec<_>, _>>()?.into()
        }
        DeValue::Table(table) => {
            let pair = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
                let key: &std::borrow::Cow<'_, str> = key.get_ref();
                Ok((key.to_string(), json_of(value.get_ref())?))
            };
            let pairs = table.iter().map(pair).collect::<Result<Map<_, _>, String>>();
            Value::Object(pairs?)
        }
    })
}

/// What JSON has no exact number for, which only a file can have.
fn rounded(text: &str) -> Value {
    let number = text.replace('_', "").parse::<f64>().ok().and_then(Number::from_f64);
    number.map_or_else(|| text.into(), Value::from)
}

/// The entries as the text of a file, those of a kind together.
pub fn text(entries: &[Entry]) -> String {
    let mut out = String::new();
    for kind in Kind::ALL {
        for entry in entries.iter().filter(|entry| entry.kind == kind) {
            let _ = writeln!(out, "\n[[{}]]", kind.list());
            let name = Value::from(&*entry.name);
            let others = entry.keys.iter().filter(|(key, _)| *key != "name");
            let name = ("name", &name);
            for (key, value) in std::iter::once(name).chain(others.map(|(k, v)| (&**k, v))) {
                write_key(&mut out, key);
                out.push_str(" = ");
                write_value(&mut out, value);
                out.push('\n');
            }
        }
    }
    out
}

fn write_key(out: &mut String, key: &str) {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match !key.is_empty() && key.bytes().all(is_bare) {
        true => out.push_str(key),
        false => write_text(out, key),
    }
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => {}
        Value::Bool(is_set) => out.push_str(if *is_set { "true" } else { "false" }),
        Value::Number(number) => {
            let _ = write!(out, "{number}");
        }
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(keys) => {
            out.push_str("{ ");
            for (place, (key, value)) in keys.iter().enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                write_key(out, key);
                out.push_str(" = ");
                write_value(out, value);
            }
            out.push_str(" }");
        }
    }
}

/// A basic string.
fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn keys(value: Value) -> Map<String, Value> {
        let Value::Object(keys) = value else { panic!("it is an object") };
        keys
    }

    fn values() -> impl Strategy<Value = Value> {
        let text = any::<String>().prop_map(Value::from);
        let number = prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_filter_map("finite", |it| Number::from_f64(it).map(Value::from)),
        ];
        let leaf = prop_oneof![text, number, any::<bool>().prop_map(Value::from)];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn tables() -> impl Strategy<Value = BTreeMap<String, Value>> {
        prop::collection::btree_map(any::<String>(), values(), 0..6)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            all in prop::collection::vec(
                (0..3_usize, any::<String>(), tables()),
                0..6,
            ),
        ) {
            let entry = |(kind, name, mut keys): (usize, String, BTreeMap<_, _>)| {
                keys.remove("name");
                let keys = keys.into_iter().collect();
                Entry::new(Kind::ALL[kind], &name, keys).expect("it has all that TOML has")
            };
            let mut all: Vec<Entry> = all.into_iter().map(entry).collect();
            let read = entries(&text(&all)).expect("it is TOML");
            all.sort_by_key(|entry| entry.kind);
            prop_assert!(read == all, "{}", text(&all));
        }
    }

    #[test]
    fn a_tenant_is_stored_with_its_entry_and_is_no_key() {
        let own = Entry::new(Kind::Rule, "acme.r", keys(json!({ "filter": "#" }))).unwrap();
        let tenant = Tenant { namespace: "acme".into(), number: 3 };
        let own = [Entry { tenant: Some(tenant), ..own.clone() }, own];
        assert!(stored(&stored_text(&own)).unwrap() == own);
        assert!(!text(&own).contains("tenant"));
        for wrong in ["3", "{ namespace = \"a\" }", "{ namespace = \"a\", number = 65536 }"] {
            assert!(stored(&format!("[[rules]]\nname = \"r\"\ntenant = {wrong}")).is_err());
        }
        let forged = json!({ "tenant": { "namespace": "acme", "number": 3 } });
        let forged = Entry::new(Kind::Rule, "r", keys(forged)).unwrap();
        assert!(forged.tenant.is_none() && text(&[forged]).contains("tenant"), "it is refused");
    }

    #[test]
    fn what_a_file_cannot_have_is_refused() {
        let new = |value: Value| Entry::new(Kind::Rule, "a", keys(value));
        assert_eq!(
            new(json!({ "filter": null })).unwrap_err(),
            "filter: must not be null: leave the key out"
        );
        assert!(
            new(json!({ "values": [1, [null]] })).unwrap_err().starts_with("values: must not be")
        );
        assert_eq!(
            new(json!({ "name": "b" })).unwrap_err(),
            "name: must be \"a\" or left out, got \"b\""
        );
        let mut deep = json!(1);
        for _ in 0..DEPTH_MAX {
            deep = json!([deep]);
        }
        assert!(new(json!({ "values": deep })).unwrap_err().contains("nested"));
        assert_eq!(new(json!({ "name": "a", "lanes": 3 })).unwrap().text("name"), Some("a"));
    }

    #[test]
    fn a_file_without_names_has_no_entries() {
        for wrong in ["rules = 1", "[[rules]]\nlanes = 3", "rules = [1]", "[[rules]\n"] {
            assert!(entries(wrong).is_err(), "{wrong}");
        }
        let found = entries(
            "[[rules]]\nname = \"r\"\n[[streams]]\nname = \"s\"\nage = 0x10\n\
                     large = 123456789012345678901234567890\nodd = inf\n",
        )
        .unwrap();
        assert_eq!(format!("{found:?}"), "[stream s, rule r]");
        let found = found[0].keys();
        assert_eq!((&found["age"], &found["odd"]), (&json!(16), &json!("inf")));
        assert_eq!(found["large"], 123456789012345678901234567890_f64);
    }

    #[test]
    fn no_secret_is_shown() {
        let target = json!({
            "url": "https://example.com/in?code=hunter2", "signing_secret": "hunter2", "type": "http",
            "headers": { "authorization": "hunter2", "x-n": { "path": "data.n" }, "x-f": { "file": "f" } },
            "sasl": {
                "password": "hunter2", "token": "hunter2", "client_secret": "hunter2", "username": "u",
                "token_url": "https://id.example/?code=hunter2",
            },
        });
        let entry = Entry::new(Kind::Target, "t", keys(target)).unwrap();
        let shown = Value::Object(entry.shown().keys().clone());
        let expected = json!({
            "name": "t", "type": "http", "url": "https://example.com/in", "url_query": { "set": true },
            "signing_secret": { "set": true },
            "headers": {
                "authorization": { "set": true }, "x-n": { "path": "data.n" }, "x-f": { "file": "f" },
            },
            "sasl": {
                "password": { "set": true }, "token": { "set": true }, "client_secret": { "set": true },
                "username": "u", "token_url": "https://id.example/", "token_url_query": { "set": true },
            },
        });
        assert_eq!(shown, expected);
        assert!(!format!("{entry:?}").contains("hunter2"));
        let rule = Entry::new(Kind::Rule, "r", keys(json!({ "key": "a?b" }))).unwrap();
        assert!(rule.shown() == rule, "a rule has no secrets");
    }
}
