//! JSON of clients, within limits.

use serde_json::Value;

/// The largest payload that is read as JSON, in bytes. The parsed value may take some tens of times
/// its size.
pub const JSON_BYTES_MAX: usize = 512 * 1024;

/// How deep arrays and objects of a payload may be nested. It is the limit of the parser.
pub const JSON_DEPTH_MAX: usize = 127;

/// The value of a JSON text within the limits; None: it is none.
pub(crate) fn parse(bytes: &[u8]) -> Option<Value> {
    if bytes.len() > JSON_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}

/// The value at a path of member names. None: there is none, or it is null.
pub(crate) fn at<'a>(value: &'a Value, path: &[Box<str>]) -> Option<&'a Value> {
    let found = path.iter().try_fold(value, |inside, name| inside.as_object()?.get(&**name))?;
    (!found.is_null()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_size_are_limited() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(JSON_DEPTH_MAX).as_bytes()).is_some());
        assert!(parse(nested(JSON_DEPTH_MAX + 1).as_bytes()).is_none());
        let sized = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
        assert!(parse(sized(JSON_BYTES_MAX).as_bytes()).is_some());
        assert!(parse(sized(JSON_BYTES_MAX + 1).as_bytes()).is_none());
    }

    #[test]
    fn a_path_leads_through_objects() {
        let value = parse(br#"{"a": {"b": [1, {"c": 2}], "n": null}, "": 3}"#).expect("it is JSON");
        let path = |text: &str| -> Vec<Box<str>> { text.split('.').map(Into::into).collect() };
        assert_eq!(at(&value, &[]), Some(&value));
        assert_eq!(at(&value, &path("a.b")), Some(&value["a"]["b"]));
        for missing in ["a.b.c", "a.b.1", "a.n", "a.x", "x", "a.b.c.d"] {
            assert_eq!(at(&value, &path(missing)), None, "{missing}");
        }
    }
}
