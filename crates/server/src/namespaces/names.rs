//! The file of names in a data directory.
//!
//! ```text
//! quelea namespaces 1
//! last 3
//! 1 configuration open tenant-a
//! 3 client open tenant-c
//! ```
//!
//! `last` is the highest number that was ever given: none is given again, whatever of the logs of a
//! deleted namespace a backup brings back.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use broker::Scope;

use crate::config::{NamespaceState, namespaces::is_name};

/// Its name in the data directory.
pub(crate) const NAMES_FILE: &str = "namespaces";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// None: nothing is kept.
    path: Option<PathBuf>,
    last: u16,
    /// By their numbers.
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) scope: Scope,
    pub(super) maker: Maker,
    pub(super) state: NamespaceState,
    pub(super) name: Box<str>,
}

/// Who wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    Configuration,
    /// The first client who asked for it.
    Client,
    /// The management API.
    Operator,
}

impl Names {
    pub(super) fn open(directory: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = directory.map(|directory| directory.join(NAMES_FILE)) else {
            return Ok(Self::default());
        };
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| path.display().to_string())?,
        };
        let mut names = match text.as_str() {
            "" => Self::default(),
            text => Self::parse(text).with_context(|| {
                let shown = path.display();
                format!("{shown} is not what a broker writes there; restore it from a backup")
            })?,
        };
        names.path = Some(path);
        Ok(names)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines();
        ensure!(lines.next() == Some(HEAD), "the first line is not '{HEAD}'");
        let last = lines.next().and_then(|line| line.strip_prefix("last "));
        let last: u16 = last.context("the second line is not 'last NUMBER'")?.parse()?;
        let mut names = Self { path: None, last, entries: Vec::new() };
        for line in lines {
            let entry = Entry::parse(line).with_context(|| format!("'{line}'"))?;
            ensure!((1..=last).contains(&entry.scope.number()), "'{line}': above 'last', or 0");
            let before = names.entries.last();
            ensure!(before.is_none_or(|own| own.scope < entry.scope), "'{line}': not in order");
            ensure!(!names.iter().any(|own| own.name == entry.name), "'{line}': there twice");
            names.entries.push(entry);
        }
        Ok(names)
    }

    /// The old file or the new one, whatever happens.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut text = format!("{HEAD}\nlast {}\n", self.last);
        for entry in &self.entries {
            let Entry { scope, maker, state, name } = entry;
            let line = format!("{} {} {} {name}\n", scope.number(), maker.as_str(), state.as_str());
            text.push_str(&line);
        }
        crate::disk::write_whole(path, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The highest number that was ever given.
    pub(super) fn last(&self) -> Scope {
        Scope::new(self.last)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(super) fn get(&self, scope: Scope) -> Option<&Entry> {
        let place = self.entries.binary_search_by_key(&scope, |entry| entry.scope);
        self.entries.get(place.ok()?)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut()
    }

    /// The number of a name, which gets one if it has none.
    pub(super) fn put(
        &mut self,
        name: &str,
        maker: Maker,
        state: NamespaceState,
    ) -> anyhow::Result<Scope> {
        if let Some(entry) = self.entries.iter_mut().find(|entry| *entry.name == *name) {
            // What is being deleted is so to its end: its name is free then.
            if entry.state != NamespaceState::Deleted {
                (entry.maker, entry.state) = (maker, state);
            }
            return Ok(entry.scope);
        }
        let Some(number) = self.last.checked_add(1) else {
            bail!("{} namespaces were made in this data directory, which is all", self.last);
        };
        self.last = number;
        let scope = Scope::new(number);
        self.entries.push(Entry { scope, maker, state, name: name.into() });
        Ok(scope)
    }

    pub(super) fn remove(&mut self, scope: Scope) {
        self.entries.retain(|entry| entry.scope != scope);
    }
}

impl Entry {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [number, maker, state, name] = fields[..] else { bail!("it has not four fields") };
        let all = [NamespaceState::Open, NamespaceState::Suspended, NamespaceState::Deleted];
        let state = all.into_iter().find(|known| known.as_str() == state);
        ensure!(is_name(name), "it has no name");
        Ok(Self {
            scope: Scope::new(number.parse()?),
            maker: Maker::parse(maker).context("nobody makes namespaces of this name")?,
            state: state.context("there is no such state")?,
            name: name.into(),
        })
    }
}

impl Maker {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Client => "client",
            Self::Operator => "operator",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let all = [Self::Configuration, Self::Client, Self::Operator];
        all.into_iter().find(|maker| maker.as_str() == text)
    }
}

const HEAD: &str = "quelea namespaces 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_no_number_is_given_twice() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Names::open(Some(dir.path())).unwrap();
        let mut names = open();
        let (a, b) = ("a", "tenant-b.1");
        assert_eq!(names.put(a, Maker::Configuration, NamespaceState::Open).unwrap().number(), 1);
        assert_eq!(names.put(b, Maker::Client, NamespaceState::Suspended).unwrap().number(), 2);
        assert_eq!(names.put(a, Maker::Operator, NamespaceState::Open).unwrap().number(), 1);
        names.write().unwrap();
        assert_eq!(open(), names);
        names.remove(Scope::new(2));
        names.write().unwrap();
        let mut names = open();
        assert_eq!(names.put(b, Maker::Client, NamespaceState::Open).unwrap().number(), 3);
    }

    /// Data directories have it.
    #[test]
    fn the_file_is_what_it_always_was() {
        let text = "quelea namespaces 1\nlast 3\n1 configuration open a\n3 client deleted c\n";
        let names = Names::parse(text).unwrap();
        let read: Vec<_> = names.iter().map(|own| (own.scope.number(), &*own.name)).collect();
        assert_eq!((names.last, read), (3, vec![(1, "a"), (3, "c")]));
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let good = "quelea namespaces 1\nlast 3\n1 client open a\n3 client open c\n";
        assert!(Names::parse(good).is_ok());
        for (from, to) in [
            ("namespaces 1", "namespaces 2"),
            ("last 3", "last 2"),
            ("last 3\n", ""),
            ("1 client open a", "0 client open a"),
            ("1 client open a", "4 client open a"),
            ("1 client open a", "1 somebody open a"),
            ("1 client open a", "1 client shut a"),
            ("1 client open a", "1 client open a b"),
            ("1 client open a", "1 client open c"),
            ("1 client open a", "3 client open a"),
        ] {
            let damaged = good.replacen(from, to, 1);
            assert!(Names::parse(&damaged).is_err(), "{damaged}");
        }
    }
}
