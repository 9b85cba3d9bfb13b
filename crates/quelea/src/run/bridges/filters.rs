//! The filters that a bridge has subscribed to, in a file: after a change of the configuration the
//! subscriptions that are gone are removed from both sessions.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use bridge::{Side, TopicMap};
use config::{BridgeConfig, Config};

/// The file of one bridge, `bridges/NAME` in the data directory.
pub(super) struct FilterFile {
    /// None: both sessions end with their connections, or nothing is stored.
    path: Option<PathBuf>,
}

/// Filters, each with its side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filters(BTreeSet<(&'static str, String)>);

impl FilterFile {
    pub(super) fn of(bridge: &BridgeConfig, config: &Config) -> Self {
        let is_kept = config.durability.has_journal() && !bridge.clean_session;
        let path = config.server.data_dir.join("bridges").join(&bridge.name);
        Self { path: is_kept.then_some(path) }
    }

    /// The bridge is about to subscribe to these. Returns those that it may have subscribed to
    /// before.
    pub(super) fn begin(&self, own: &Filters) -> io::Result<Filters> {
        let Some(path) = &self.path else { return Ok(Filters::default()) };
        let earlier = read(path)?;
        if !own.0.is_subset(&earlier.0) {
            write(path, &Filters(own.0.union(&earlier.0).cloned().collect()))?;
        }
        Ok(earlier)
    }

    /// The others are removed.
    pub(super) fn settle(&self, own: &Filters) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if read(path)? != *own {
            write(path, own)?;
        }
        Ok(())
    }
}

impl Filters {
    pub(super) fn of(maps: &[TopicMap]) -> Self {
        let out = maps.iter().filter(|map| map.direction.has_out());
        let into = maps.iter().filter(|map| map.direction.has_in());
        let out = out.map(|map| (Side::Local.as_str(), map.local_filter()));
        Self(out.chain(into.map(|map| (Side::Remote.as_str(), map.remote_filter()))).collect())
    }

    pub(super) fn of_side(&self, side: Side) -> Vec<String> {
        let own = self.0.iter().filter(|(name, _)| *name == side.as_str());
        own.map(|(_, filter)| filter.clone()).collect()
    }
}

/// A line has the side and the filter. Others are from a hand that knows what it does, and ignored:
/// at worst a subscription stays, whose messages are refused as unmapped.
fn read(path: &Path) -> io::Result<Filters> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let lines = text.lines().filter_map(|line| {
        let (name, filter) = line.split_once(' ')?;
        let side = Side::ALL.into_iter().find(|side| side.as_str() == name)?;
        Some((side.as_str(), filter.to_owned()))
    });
    Ok(Filters(lines.collect()))
}

fn write(path: &Path, filters: &Filters) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        data::make_private(directory)?;
    }
    let lines = filters.0.iter().map(|(side, filter)| format!("{side} {filter}\n"));
    data::write_whole(path, lines.collect::<String>().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_known_until_they_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = FilterFile { path: Some(directory.path().join("bridges/b")) };
        let of = |rows: &[(&'static str, &str)]| {
            Filters(rows.iter().map(|(side, filter)| (*side, (*filter).to_owned())).collect())
        };
        let old = of(&[("local", "a/ b"), ("remote", "c")]);
        let new = of(&[("remote", "c"), ("remote", "d")]);
        assert_eq!(file.begin(&old).unwrap(), Filters::default());
        assert_eq!(file.begin(&new).unwrap(), old);
        // It was not up: those of both are known.
        let both = of(&[("local", "a/ b"), ("remote", "c"), ("remote", "d")]);
        assert_eq!(file.begin(&new).unwrap(), both);
        assert_eq!(both.of_side(Side::Local), ["a/ b"]);
        file.settle(&new).unwrap();
        assert_eq!(file.begin(&old).unwrap(), new);
    }
}
