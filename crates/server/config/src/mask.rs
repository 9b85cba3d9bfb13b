//! What of a configuration is shown to people: everything but secrets.
//!
//! Secrets are in requests to services (headers, fields), and in URLs: the user with its password,
//! and the query.

use super::schema::Value;

/// A value as it may be shown. `key`: its name in its section.
pub(super) fn value(key: &str, value: &Value) -> Value {
    let each = |text: &String| match key {
        "headers" => header(text),
        "body" => field(text),
        _ => urls(text),
    };
    match value {
        Value::List(texts) => Value::List(texts.iter().map(each).collect()),
        Value::Text(text) => Value::Text(each(text)),
        Value::Unset | Value::Number(_) | Value::Flag(_) => value.clone(),
    }
}

/// `NAME: VALUE` without the value.
pub(super) fn header(text: &str) -> String {
    text.split_once(':').map_or_else(|| HIDDEN.into(), |(name, _)| format!("{name}: {HIDDEN}"))
}

/// `NAME=VALUE` without the value, unless that is a placeholder alone.
pub(super) fn field(text: &str) -> String {
    let Some((name, value)) = text.split_once('=') else { return HIDDEN.into() };
    let inner = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    match inner.is_some_and(|inner| !inner.contains(['$', '{', '}'])) {
        true => text.to_owned(),
        false => format!("{name}={HIDDEN}"),
    }
}

/// A text in which URLs have neither users nor queries. One in quotes is a URL up to the second
/// quote, as in errors about URLs that are none.
pub(super) fn urls(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        let begin = before[..at].trim_end_matches(is_of_scheme).len();
        let quote = before[..begin].chars().next_back().filter(|c| matches!(c, '\'' | '"'));
        let is_whole = out.is_empty() && begin == 0;
        let end = match quote {
            Some(quote) => behind.rfind(quote),
            None if is_whole => None,
            None => behind.find(char::is_whitespace),
        };
        let (url, further) = behind.split_at(end.unwrap_or(behind.len()));
        out.extend([before, &without_secrets(url)]);
        rest = further;
    }
    out + rest
}

fn is_of_scheme(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

/// Of what is behind `://`.
fn without_secrets(url: &str) -> String {
    let (place, query) = match url.split_once(['?', '#']) {
        Some((place, _)) => (place, format!("?{HIDDEN}")),
        None => (url, String::new()),
    };
    // A password may have a slash, where it was not encoded.
    match place.rsplit_once('@') {
        Some((_, host)) => format!("{HIDDEN}@{host}{query}"),
        None => format!("{place}{query}"),
    }
}

const HIDDEN: &str = "(hidden)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_neither_users_nor_queries() {
        for (text, shown) in [
            ("http://a/b", "http://a/b"),
            ("http://u:hush@a:1/b?k=hush", "http://(hidden)@a:1/b?(hidden)"),
            ("nats://hush@a", "nats://(hidden)@a"),
            ("http://a?k=hush&b=hush hush", "http://a?(hidden)"),
            ("http://a/#hush", "http://a/?(hidden)"),
            ("http://u:hu@sh@a", "http://(hidden)@a"),
            ("http://u:hu/sh@a/x", "http://(hidden)@a/x"),
            (
                "see http://u:hush@a/b?hush and https://c/?hush now",
                "see http://(hidden)@a/b?(hidden) and https://c/?(hidden) now",
            ),
            (
                "'http://a?hush hu'sh' is none; write https://id.example/",
                "'http://a?(hidden)' is none; write https://id.example/",
            ),
            ("/path?x=y", "/path?x=y"),
            ("", ""),
        ] {
            assert_eq!(urls(text), shown, "{text}");
        }
    }

    #[test]
    fn headers_and_fields_have_names_only() {
        assert_eq!(header("Authorization: Bearer hush"), "Authorization: (hidden)");
        assert_eq!(header("hush"), "(hidden)");
        assert_eq!(field("key=hush"), "key=(hidden)");
        assert_eq!(field("topic=${topic}"), "topic=${topic}");
        assert_eq!(field("key=hush-${topic}"), "key=(hidden)");
        assert_eq!(field("key=${a}hush${b}"), "key=(hidden)");
        assert_eq!(field("hush"), "(hidden)");
        let list = Value::List(vec!["tls://u:hush@a".into(), "tls://b".into()]);
        let shown = Value::List(vec!["tls://(hidden)@a".into(), "tls://b".into()]);
        assert_eq!(value("addresses", &list), shown);
    }
}
