//! The TOML document that is written: tables in a fixed order, each value with its origin.

use toml::Value;

use crate::report::Place;

/// A configuration in the making.
#[derive(Debug, Default)]
pub(crate) struct Document {
    tables: Vec<Table>,
    /// `[[listeners]]` and others of which there may be many, in their order.
    items: Vec<Table>,
}

/// `[name]` or `[[name]]`.
#[derive(Debug)]
pub(crate) struct Table {
    header: String,
    entries: Vec<Entry>,
    /// Its own tables, such as `[listeners.tls]`.
    inner: Vec<Self>,
}

#[derive(Debug)]
struct Entry {
    key: String,
    value: Value,
    origin: String,
}

impl Document {
    /// Sets a key of a section; a later value replaces an earlier one.
    pub(crate) fn set(&mut self, section: &str, key: &str, value: impl Into<Value>, at: &Place) {
        let header = format!("[{section}]");
        if !self.tables.iter().any(|table| table.header == header) {
            self.tables.push(Table::new(header.clone()));
        }
        if let Some(table) = self.tables.iter_mut().find(|table| table.header == header) {
            table.set(key, value, at);
        }
    }

    /// Adds an item of a list.
    pub(crate) fn push(&mut self, item: Table) {
        self.items.push(item);
    }

    /// The text, below a comment.
    pub(crate) fn render(mut self, comment: &str) -> String {
        let rank = |table: &Table| ORDER.iter().position(|name| table.header == *name);
        self.tables.sort_by_key(|table| rank(table).unwrap_or(ORDER.len()));
        let mut text = comment.lines().map(|line| format!("# {line}\n")).collect::<String>();
        for table in self.tables.iter().chain(&self.items) {
            text.push('\n');
            table.render(&mut text);
        }
        text
    }
}

impl Table {
    /// With its brackets.
    pub(crate) fn new(header: impl Into<String>) -> Self {
        Self { header: header.into(), entries: Vec::new(), inner: Vec::new() }
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>, at: &Place) {
        let origin = if at.line == 0 { String::new() } else { at.to_string() };
        self.entries.retain(|entry| entry.key != key);
        self.entries.push(Entry { key: key.into(), value: value.into(), origin });
    }

    /// Adds a table below it.
    pub(crate) fn push(&mut self, inner: Self) {
        self.inner.push(inner);
    }

    fn render(&self, text: &mut String) {
        text.push_str(&format!("{}\n", self.header));
        for Entry { key, value, origin } in &self.entries {
            // A line break in a value would end the comment behind it.
            let origin = origin.replace(char::is_control, " ");
            match origin.is_empty() {
                true => text.push_str(&format!("{key} = {value}\n")),
                false => text.push_str(&format!("{key} = {value} # {origin}\n")),
            }
        }
        self.inner.iter().for_each(|table| table.render(text));
    }
}

/// The order of the sections.
const ORDER: [&str; 9] = [
    "[server]",
    "[limits]",
    "[durability]",
    "[auth]",
    "[access]",
    "[shared]",
    "[http]",
    "[log]",
    "[sys]",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_come_in_order_and_values_are_escaped() {
        let mut document = Document::default();
        let at = Place { file: "a\nb".into(), line: 3 };
        document.set("log", "target", "a \"b\"\n", &at);
        document.set("server", "data_dir", "x", &Place::default());
        document.set("server", "data_dir", "y", &Place::default());
        let mut listener = Table::new("[[listeners]]");
        listener.set("connections_max", 7, &at);
        document.push(listener);
        let text = document.render("head");
        let expected = "# head\n\n[server]\ndata_dir = \"y\"\n\n[log]\n";
        assert!(text.starts_with(expected), "{text}");
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["log"]["target"].as_str(), Some("a \"b\"\n"));
        assert_eq!(table["listeners"][0]["connections_max"].as_integer(), Some(7));
    }
}
