//! The file of names in a data directory, and its copy.
//!
//! ```text
//! quelea namespaces 1
//! last 3
//! 1 configuration open tenant-a
//! 3 client open tenant-c
//! ```
//!
//! `open+held` is one that an operator has suspended, whatever the configuration says of it.
//!
//! `last` is the highest number that was ever given: none is given again, whatever of the logs of a
//! deleted namespace a backup brings back.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use broker::Scope;

use config::{NamespaceState, namespaces::is_name};
use data::{DataDir, NAMES_FILE, Stamps};

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// Empty: nothing is kept.
    paths: Vec<PathBuf>,
    stamps: Stamps,
    last: u16,
    /// By their numbers.
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) scope: Scope,
    pub(super) maker: Maker,
    /// As its maker wants it.
    pub(super) state: NamespaceState,
    /// An operator has suspended it, whatever its maker wants.
    pub(super) is_held: bool,
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

/// Behind the state of one that an operator has suspended.
const HELD: &str = "+held";

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        (self.last, &self.entries) == (other.last, &other.entries)
    }
}

impl Names {
    /// The file in the first shard counts; the one in the directory is its copy, and is used where
    /// that one is not to be had.
    pub(super) fn open(directory: Option<&Path>, stamps: &Stamps) -> anyhow::Result<Self> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let copy = directory.join(NAMES_FILE);
        let paths = [DataDir::journal_path_in(directory, 0).join(NAMES_FILE), copy.clone()];
        let read = |path: &PathBuf| stamps.read_text(path);
        let [first, second] = [read(&paths[0]), read(&paths[1])];
        if let (Ok(Some(_)), Err(error)) = (&first, &second) {
            tracing::warn!(%error, "cannot read the file of namespace names; using its second copy");
        }
        let text = match first {
            Ok(Some(text)) => Some(text),
            Ok(None) | Err(_) => second?,
        };
        let mut names = match text.as_deref() {
            None | Some("") => Self::default(),
            Some(text) => Self::parse(text).with_context(|| {
                let shown = copy.display();
                format!("{shown} is damaged; restore all files of a backup")
            })?,
        };
        (names.paths, names.stamps) = (paths.into(), stamps.clone());
        Ok(names)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines();
        ensure!(lines.next() == Some(HEAD), "the first line must be '{HEAD}'");
        let last = lines.next().and_then(|line| line.strip_prefix("last "));
        let last: u16 = last.context("the second line must be 'last NUMBER'")?.parse()?;
        let mut names = Self { last, ..Self::default() };
        for line in lines {
            let entry = Entry::parse(line).with_context(|| format!("'{line}'"))?;
            ensure!(
                (1..=last).contains(&entry.scope.number()),
                "'{line}': the number must be from 1 to 'last'"
            );
            let before = names.entries.last();
            ensure!(
                before.is_none_or(|own| own.scope < entry.scope),
                "'{line}': the numbers must be in order"
            );
            ensure!(
                !names.iter().any(|own| own.name == entry.name),
                "'{line}': this name is listed twice"
            );
            names.entries.push(entry);
        }
        Ok(names)
    }

    /// The old files or the new ones, whatever happens. The one that counts goes first.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let mut text = format!("{HEAD}\nlast {}\n", self.last);
        for entry in &self.entries {
            let Entry { scope, maker, state, is_held, name } = entry;
            let (number, maker) = (scope.number(), maker.as_str());
            let held = if *is_held { HELD } else { "" };
            let line = format!("{number} {maker} {}{held} {name}\n", state.as_str());
            text.push_str(&line);
        }
        for path in &self.paths {
            let written = self.stamps.write(path, text.as_bytes());
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
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
        // The last number is for clients of the broker itself.
        let Some(number) = self.last.checked_add(1).filter(|number| *number < u16::MAX) else {
            bail!("{} namespaces were created in this data directory, the maximum", self.last);
        };
        self.last = number;
        let scope = Scope::new(number);
        self.entries.push(Entry { scope, maker, state, is_held: false, name: name.into() });
        Ok(scope)
    }

    pub(super) fn remove(&mut self, scope: Scope) {
        self.entries.retain(|entry| entry.scope != scope);
    }

    /// The numbers above were not given after all.
    pub(super) fn remove_above(&mut self, last: Scope) {
        self.entries.retain(|entry| entry.scope <= last);
        self.last = last.number();
    }
}

impl Entry {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [number, maker, state, name] = fields[..] else {
            bail!("a line must have four fields")
        };
        let (state, is_held) = match state.strip_suffix(HELD) {
            Some(state) => (state, true),
            None => (state, false),
        };
        let all = [NamespaceState::Open, NamespaceState::Suspended, NamespaceState::Deleted];
        let state = all.into_iter().find(|known| known.as_str() == state);
        ensure!(is_name(name), "the name is missing");
        Ok(Self {
            scope: Scope::new(number.parse()?),
            maker: Maker::parse(maker)
                .context("unknown origin, or name of a built-in namespace")?,
            state: state.context("unknown state")?,
            is_held,
            name: name.into(),
        })
    }

    /// The state in force.
    pub(super) const fn state(&self) -> NamespaceState {
        match self.state {
            NamespaceState::Open if self.is_held => NamespaceState::Suspended,
            state => state,
        }
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
        std::fs::create_dir(dir.path().join("shard-000")).unwrap();
        let open = || Names::open(Some(dir.path()), &Stamps::default()).unwrap();
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
