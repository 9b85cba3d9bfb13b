//! JSON of others: files, requests, tokens and answers of services.
//!
//! An object that has a member twice is refused (RFC 8259, section 4: readers differ in which one
//! counts). What was checked elsewhere may then not be what is used here.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Error as JsonError;

/// # Errors
///
/// It is no JSON, an object in it has a member twice, or it is not what is wanted.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    serde_json::from_slice::<Unique>(bytes)?;
    serde_json::from_slice(bytes)
}

/// Any value in which no object has a member twice.
struct Unique;

impl<'de> serde::Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unique, A::Error> {
        while items.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Unique, A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if names.contains(&name) {
                let name = base::shown(&name);
                return Err(A::Error::custom(format_args!("the member '{name}' is there twice")));
            }
            names.insert(name);
            members.next_value::<Unique>()?;
        }
        Ok(Unique)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_member_that_is_there_twice_is_refused_wherever_it_is() {
        for (text, name) in [
            (r#"{"a":1,"a":1}"#, "'a'"),
            (r#"{"a":1,"b":2,"\u0061":3}"#, "'a'"),
            (r#"[[{"x":{"y":[{"name":"","name":null}]}}]]"#, "'name'"),
            (r#"{"":0,"":0}"#, "''"),
        ] {
            let error = read::<Value>(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("line 1 column"), "{error}");
        }
    }

    #[test]
    fn all_else_is_read_as_ever() {
        let texts = [
            r#"{"a":{"a":{"a":1}},"A":[1,-2,3.5,true,null,"a",{"a":1},{"a":1}]}"#,
            "18446744073709551615",
            "null",
            r#""\u0061""#,
        ];
        for text in texts {
            let plain: Value = serde_json::from_str(text).unwrap();
            assert_eq!(read::<Value>(text.as_bytes()).unwrap(), plain);
        }
        for text in ["", "{", "{\"a\":}", "[1,]", "\"\u{0}\"", &"[".repeat(100_000)] {
            let plain = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            assert_eq!(read::<Value>(text.as_bytes()).unwrap_err().to_string(), plain, "{text:.9}");
        }
        assert!(read::<Value>(b"\"\xff\"").is_err());
    }
}
