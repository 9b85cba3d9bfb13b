//! `[routing]`: the file of streams, targets and rules.

use std::path::PathBuf;

use super::derived::Deriving;
use super::keys::Limits;
use super::schema::{ValueKind, bytes, settings};
use super::source::{Problem, Settings, default_of};
use super::{Network, cluster, values};

/// Streams, targets and rules, and what they may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingConfig {
    pub file: PathBuf,
    /// Resolved: never 0.
    pub memory_bytes_max: u64,
    pub free_disk_bytes_min: u64,
    /// Not public, and permitted to all targets.
    pub target_networks: Vec<Network>,
    pub remove_undefined: bool,
}

settings! {
    /// Streams, targets and rules: see `docs/use/rules.md`. The broker stores
    /// messages in streams, and sends them to Kafka and HTTP endpoints.
    "routing" => RawRouting {
        /// File with streams, targets and rules, TOML. SIGHUP reloads it. It is checked with
        /// `quelea rules check`. Not set: there are none. With it the broker uses the data
        /// directory, also at `durability.level = "memory"`.
        file: Option<PathBuf> = ValueKind::Path, "";
        /// Memory for messages that wait to be written to streams, or that rules read. `auto`: an
        /// eighth of `limits.memory_bytes_max`.
        memory_bytes_max: u64 = bytes(16 << 20, u64::MAX - 1).or("auto", 0), "auto";
        /// With less free disk space, each stream does what its key `full` says: it drops its
        /// oldest messages, or publishes are refused.
        free_disk_bytes_min: u64 = bytes(0, u64::MAX - 1), "1GiB";
        /// Networks that are not public and that all targets may use, such as `10.0.0.0/8`. Public
        /// addresses are permitted in any case. A target may name further networks.
        target_networks: Vec<String> = ValueKind::List("networks such as 10.0.0.0/8"), "";
        /// In a cluster, when this node becomes active: remove streams with their messages, and
        /// rules, that `file` does not define. `false`: the node does not become active, since its
        /// file may be an old one. A reload removes them in any case.
        remove_undefined: bool = ValueKind::Flag, "false";
    }
}

/// Whether there are streams.
pub(super) fn is_configured(settings: &Settings) -> bool {
    let file = RawRouting::SECTION.keys.iter().find(|key| key.name == "file");
    file.is_some_and(|key| settings.setting(SECTION, key).value != default_of(key))
}

/// None inside: there are no streams.
pub(super) fn lower(
    limits: &Limits,
    settings: &Settings,
    deriving: &mut Deriving,
    problems: &mut Vec<Problem>,
) -> Option<Option<RoutingConfig>> {
    let raw = RawRouting::lower(values(settings, RawRouting::SECTION, SECTION))?;
    let mut problem = |key: &str, detail: String| {
        let key = format!("{SECTION}.{key}");
        problems.push(Problem { place: settings.place(&key), key, detail });
    };
    let Some(file) = raw.file else {
        for key in RawRouting::SECTION.keys {
            if settings.setting(SECTION, key).value != default_of(key) {
                problem(key.name, "has no effect without `file`".into());
            }
        }
        return Some(None);
    };
    if raw.remove_undefined && !cluster::is_configured(settings) {
        problem("remove_undefined", "has no effect without [cluster]".into());
    }
    let mut target_networks = Vec::new();
    for text in &raw.target_networks {
        match text.parse() {
            Ok(network) => target_networks.push(network),
            Err(error) => problem("target_networks", format!("{error}")),
        }
    }
    Some(Some(RoutingConfig {
        file,
        memory_bytes_max: deriving.routing(raw.memory_bytes_max, limits),
        free_disk_bytes_min: raw.free_disk_bytes_min,
        target_networks,
        remove_undefined: raw.remove_undefined,
    }))
}

const SECTION: &str = "routing";
