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
    origin: Place,
}

/// A text, with the origin of each of its lines.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) origins: Vec<Place>,
}

impl Rendered {
    fn push(&mut self, lines: &str, origin: &Place) {
        self.text.push_str(lines);
        self.origins.resize(self.origins.len() + lines.matches('\n').count(), origin.clone());
    }
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
    pub(crate) fn render(mut self, comment: &str) -> Rendered {
        let rank = |table: &Table| ORDER.iter().position(|name| table.header == *name);
        self.tables.sort_by_key(|table| rank(table).unwrap_or(ORDER.len()));
        let mut rendered = Rendered::default();
        for line in comment.lines() {
            rendered.push(&format!("# {line}\n"), &Place::default());
        }
        for table in self.tables.iter().chain(&self.items) {
            rendered.push("\n", &Place::default());
            table.render(&mut rendered);
        }
        rendered
    }
}

impl Table {
    /// With its brackets.
    pub(crate) fn new(header: impl Into<String>) -> Self {
        Self { header: header.into(), entries: Vec::new(), inner: Vec::new() }
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>, at: &Place) {
        self.entries.retain(|entry| entry.key != key);
        self.entries.push(Entry { key: key.into(), value: value.into(), origin: at.clone() });
    }

    /// Adds a table below it.
    pub(crate) fn push(&mut self, inner: Self) {
        self.inner.push(inner);
    }

    /// Where most of it comes from, for lines without an origin.
    fn origin(&self) -> Place {
        let mut known = self.entries.iter().map(|entry| &entry.origin).filter(|at| at.line > 0);
        let inner = || self.inner.iter().map(Self::origin).find(|at| at.line > 0);
        known.next().cloned().or_else(inner).unwrap_or_default()
    }

    fn render(&self, to: &mut Rendered) {
        let whole = self.origin();
        to.push(&format!("{}\n", self.header), &whole);
        for Entry { key, value, origin } in &self.entries {
            if origin.line == 0 {
                to.push(&format!("{key} = {value}\n"), &whole);
                continue;
            }
            // A line break in a value would end the comment behind it.
            let shown = origin.to_string().replace(char::is_control, " ");
            to.push(&format!("{key} = {value} # {shown}\n"), origin);
        }
        self.inner.iter().for_each(|table| table.render(to));
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
        let Rendered { text, origins } = document.render("head");
        assert_eq!(origins.len(), text.lines().count());
        let of = |word: &str| text.lines().position(|line| line.starts_with(word)).unwrap();
        assert_eq!((&origins[of("target")], &origins[of("[[listeners]]")]), (&at, &at));
        assert_eq!(origins[of("data_dir")], Place::default());
        let expected = "# head\n\n[server]\ndata_dir = \"y\"\n\n[log]\n";
        assert!(text.starts_with(expected), "{text}");
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["log"]["target"].as_str(), Some("a \"b\"\n"));
        assert_eq!(table["listeners"][0]["connections_max"].as_integer(), Some(7));
    }
}
