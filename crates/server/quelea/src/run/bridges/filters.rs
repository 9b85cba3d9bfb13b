//! The filters that a bridge has subscribed to, in a file: after a change of the configuration the
//! subscriptions that are gone are removed from both sessions. And whose packet identifiers are
//! still to be released: a release that a crash ends begins anew.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bridge::{Earlier, Side, TopicMap, Unreleased};
use config::{BridgeConfig, Config};

/// The file of one bridge, `bridges/NAME` in the data directory.
pub(super) struct FilterFile {
    /// None: nothing is stored.
    path: Option<PathBuf>,
    /// Without a file: what one would have.
    known: RefCell<Filters>,
    /// False: both sessions end with their connections.
    is_kept: bool,
}

/// Filters, each with its side, and whether a connection was up that had subscribed to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filters {
    rows: BTreeMap<(&'static str, String), bool>,
    /// The session in this broker has only queued: it was never connected together with that of
    /// the remote.
    pub(super) is_local_new: bool,
    /// By side: all its packet identifiers are to be released.
    is_due: [bool; 2],
}

impl FilterFile {
    pub(super) fn of(bridge: &BridgeConfig, config: &Config) -> Self {
        let is_kept = !bridge.clean_session;
        let path = config.server.data_dir.join("bridges").join(&bridge.name);
        let path = Some(path).filter(|_| is_kept && config.durability.has_journal());
        Self { path, known: RefCell::default(), is_kept }
    }

    /// The bridge is about to subscribe to these. Returns those that it may have subscribed to
    /// before, and these.
    pub(super) fn begin(&self, own: &Filters) -> io::Result<Filters> {
        self.change(|all| {
            for name in own.rows.keys() {
                all.rows.entry(name.clone()).or_insert(false);
            }
        })
    }

    /// A connection was up with these. The others are removed.
    pub(super) fn settle(&self, own: &Filters, unreleased: &Unreleased) -> io::Result<()> {
        let rows = own.rows.keys().map(|name| (name.clone(), true)).collect();
        let is_due = due(unreleased);
        self.change(|all| *all = Filters { rows, is_local_new: false, is_due }).map(drop)
    }

    /// The session in this broker is new.
    pub(super) fn renew(&self) -> io::Result<()> {
        let renew = |all: &mut Filters| {
            all.is_local_new = true;
            let local = all.rows.iter_mut().filter(|((side, _), _)| *side == Side::Local.as_str());
            local.for_each(|(_, was_up)| *was_up = false);
        };
        self.change(renew).map(drop)
    }

    /// Both sessions are connected.
    pub(super) fn meet(&self, unreleased: &Unreleased) -> io::Result<()> {
        let meet = |all: &mut Filters| (all.is_local_new, all.is_due) = (false, due(unreleased));
        self.change(meet).map(drop)
    }

    /// Whether nothing was ever noted here.
    pub(super) fn is_empty(&self) -> io::Result<bool> {
        Ok(self.read()?.rows.is_empty())
    }

    /// Returns what is noted then.
    fn change(&self, change: impl FnOnce(&mut Filters)) -> io::Result<Filters> {
        let before = self.read()?;
        let mut after = before.clone();
        change(&mut after);
        if after != before {
            match &self.path {
                Some(path) => write(path, &after)?,
                None if self.is_kept => *self.known.borrow_mut() = after.clone(),
                None => {}
            }
        }
        Ok(after)
    }

    fn read(&self) -> io::Result<Filters> {
        match &self.path {
            Some(path) => read(path),
            None => Ok(self.known.borrow().clone()),
        }
    }
}

impl Filters {
    pub(super) fn of(maps: &[TopicMap]) -> Self {
        let out = maps.iter().filter(|map| map.direction.has_out());
        let into = maps.iter().filter(|map| map.direction.has_in());
        let out = out.map(|map| (Side::Local.as_str(), map.local_filter()));
        let into = into.map(|map| (Side::Remote.as_str(), map.remote_filter()));
        let rows = out.chain(into).map(|name| (name, false)).collect();
        Self { rows, ..Self::default() }
    }

    /// What is known when the process begins.
    pub(super) fn unreleased(&self) -> Unreleased {
        let mut unreleased = Unreleased::default();
        for side in Side::ALL.into_iter().filter(|side| self.is_due[*side as usize]) {
            unreleased.set_due(side);
        }
        unreleased
    }

    pub(super) fn of_side(&self, side: Side) -> Vec<Earlier> {
        let own = self.rows.iter().filter(|((name, _), _)| *name == side.as_str());
        own.map(|((_, filter), was_up)| Earlier { filter: filter.clone(), was_up: *was_up })
            .collect()
    }
}

fn due(unreleased: &Unreleased) -> [bool; 2] {
    Side::ALL.map(|side| unreleased.is_due(side))
}

/// A line has the side and the filter. Others are from a hand that knows what it does, and ignored:
/// at worst a subscription stays, whose messages are refused as unmapped.
fn read(path: &Path) -> io::Result<Filters> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let rows = text.lines().filter_map(|line| {
        let (name, filter) = line.split_once(' ')?;
        let (name, was_up) = match name.strip_prefix(NEW) {
            Some(name) => (name, false),
            None => (name, true),
        };
        let side = Side::ALL.into_iter().find(|side| side.as_str() == name)?;
        Some(((side.as_str(), filter.to_owned()), was_up))
    });
    let is_local_new = text.lines().any(|line| line == NEW_SESSION);
    let is_due = Side::ALL.map(|side| text.lines().any(|line| line == release_line(side)));
    Ok(Filters { rows: rows.collect(), is_local_new, is_due })
}

fn write(path: &Path, filters: &Filters) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        data::make_private(directory)?;
    }
    let mut text = if filters.is_local_new { format!("{NEW_SESSION}\n") } else { String::new() };
    for side in Side::ALL.into_iter().filter(|side| filters.is_due[*side as usize]) {
        text.push_str(&format!("{}\n", release_line(side)));
    }
    for ((side, filter), was_up) in &filters.rows {
        let new = if *was_up { "" } else { NEW };
        text.push_str(&format!("{new}{side} {filter}\n"));
    }
    data::write_whole(path, text.as_bytes())
}

/// The line that says that the session in this broker is new.
const NEW_SESSION: &str = "session new";

/// The line that says that all packet identifiers of this side are to be released.
fn release_line(side: Side) -> String {
    format!("release {}", side.as_str())
}

/// Before the side of a filter that no connection was up with.
const NEW: &str = "new-";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[(&'static str, &str, bool)]) -> Filters {
        let row = |(side, filter, was_up): &(&'static str, &str, bool)| {
            ((*side, (*filter).to_owned()), *was_up)
        };
        Filters { rows: rows.iter().map(row).collect(), ..Filters::default() }
    }

    #[test]
    fn filters_are_known_until_they_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        for path in [Some(directory.path().join("bridges/b")), None] {
            let file = FilterFile { path, known: RefCell::default(), is_kept: true };
            let old = of(&[("local", "a/ b", false), ("remote", "c", false)]);
            let new = of(&[("remote", "c", false), ("remote", "d", false)]);
            assert!(file.is_empty().unwrap());
            assert_eq!(file.begin(&old).unwrap(), old);
            // It was not up: those of both are known.
            let both =
                of(&[("local", "a/ b", false), ("remote", "c", false), ("remote", "d", false)]);
            assert_eq!(file.begin(&new).unwrap(), both);
            assert!(!file.is_empty().unwrap());
            let earlier = Earlier { filter: "a/ b".into(), was_up: false };
            assert_eq!(both.of_side(Side::Local), [earlier]);
            file.settle(&new, &Unreleased::default()).unwrap();
            let settled =
                of(&[("local", "a/ b", false), ("remote", "c", true), ("remote", "d", true)]);
            assert_eq!(file.begin(&old).unwrap(), settled);
            file.settle(&old, &Unreleased::default()).unwrap();
            file.renew().unwrap();
            let renewed = of(&[("local", "a/ b", false), ("remote", "c", true)]);
            let renewed = Filters { is_local_new: true, ..renewed };
            assert_eq!(file.begin(&old).unwrap(), renewed);
            let mut unreleased = Unreleased::default();
            unreleased.set_due(Side::Remote);
            file.meet(&unreleased).unwrap();
            let met = file.begin(&old).unwrap();
            assert!(!met.is_local_new);
            assert_eq!(due(&met.unreleased()), [false, true]);
            file.settle(&old, &Unreleased::default()).unwrap();
            assert_eq!(due(&file.begin(&old).unwrap().unreleased()), [false, false]);
        }
    }
}
