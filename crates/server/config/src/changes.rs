//! What a configuration has another value for than the one that runs, and what of that a running
//! broker takes over.

use std::collections::BTreeMap;

use super::keys::SECTIONS;
use super::machine::Machine;
use super::schema::{Key, Section};
use super::source::{Origin, Settings, is_list};
use super::{ConfigError, Loaded, lower_all};

/// A key that a running broker takes over. Who applies one matches on this, so that no key of
/// [`WHILE_RUNNING`] can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunningKey {
    ConnectionsMax,
    LogLevel,
    ClientLines,
    SysInterval,
}

/// All of them: a reload applies these keys, and the API sets them.
pub const WHILE_RUNNING: [(&str, RunningKey); 4] = [
    ("limits.connections_max", RunningKey::ConnectionsMax),
    ("log.level", RunningKey::LogLevel),
    ("log.client_lines_per_second_max", RunningKey::ClientLines),
    ("sys.interval_secs", RunningKey::SysInterval),
];

/// Whether a running broker takes over another value of this dotted key.
pub fn is_of_running(key: &str) -> bool {
    WHILE_RUNNING.iter().any(|(known, _)| *known == key)
}

/// Whether the two have the same value for a dotted key outside of lists.
pub fn is_same(key: &str, one: &Settings, other: &Settings) -> bool {
    let own = one.known(key).zip(other.known(key));
    own.is_some_and(|(one, other)| one.value == other.value)
}

impl Loaded {
    /// This configuration with what `fresh` has for the keys of [`WHILE_RUNNING`].
    ///
    /// # Errors
    ///
    /// The values contradict others.
    pub fn taking_over(&self, fresh: &Settings, machine: &Machine) -> Result<Self, ConfigError> {
        let mut settings = self.settings.clone();
        for (key, _) in WHILE_RUNNING {
            settings.copy(key, fresh);
        }
        lower_all(settings, None, machine, Vec::new())
    }

    /// This configuration with values that were set while the broker runs, by dotted key.
    ///
    /// # Errors
    ///
    /// A value is refused, for the reason for which a configuration with it is.
    pub fn with_changes(
        &self,
        changes: &BTreeMap<&'static str, String>,
        machine: &Machine,
    ) -> Result<Self, ConfigError> {
        let (mut settings, mut problems) = (self.settings.clone(), Vec::new());
        for (key, text) in changes {
            settings.set_text(key, text, Origin::Running, &mut problems);
        }
        lower_all(settings, None, machine, problems)
    }
}

/// Sections that a running broker takes over.
const TAKEN_OVER: [&str; 1] = ["namespaces"];

/// The dotted keys that differ and that only a restart takes over. Of an entry of a list that is
/// there in one of them only, the entry: `listeners.2`.
pub fn of_restart(running: &Settings, fresh: &Settings) -> Vec<String> {
    let mut changed = Vec::new();
    for section in SECTIONS.iter().filter(|section| !TAKEN_OVER.contains(&section.name)) {
        let (list, rest) = section.name.split_once('.').unwrap_or((section.name, ""));
        if !is_list(list) {
            changed.extend(changed_keys(section, section.name, running, fresh));
            continue;
        }
        let (few, many) = counts_of(list, running, fresh);
        for index in 0..few {
            let own = match rest {
                "" => format!("{list}.{index}"),
                rest => format!("{list}.{index}.{rest}"),
            };
            if rest.is_empty() || !is_list(section.name) {
                changed.extend(changed_keys(section, &own, running, fresh));
                continue;
            }
            let (few, many) = counts_of(&own, running, fresh);
            for inner in 0..few {
                let own = format!("{own}.{inner}");
                changed.extend(changed_keys(section, &own, running, fresh));
            }
            changed.extend((few..many).map(|inner| format!("{own}.{inner}")));
        }
        if rest.is_empty() {
            changed.extend((few..many).map(|index| format!("{list}.{index}")));
        }
    }
    changed
}

/// The smaller and the larger number of entries.
fn counts_of(list: &str, running: &Settings, fresh: &Settings) -> (usize, usize) {
    let (old, new) = (running.count_of(list), fresh.count_of(list));
    (old.min(new), old.max(new))
}

fn changed_keys(section: &Section, own: &str, running: &Settings, fresh: &Settings) -> Vec<String> {
    let differs = |key: &&Key| running.setting(own, key).value != fresh.setting(own, key).value;
    let named = section.keys.iter().filter(differs).map(|key| format!("{own}.{}", key.name));
    named.filter(|key| !is_of_running(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{SourceFile, Sources};
    use crate::{Config, load};

    fn settings(text: &str) -> Settings {
        let file = SourceFile { path: "quelea.toml".into(), text: text.into() };
        let mut problems = Vec::new();
        let settings =
            Settings::read(&Sources { file: Some(file), ..Sources::default() }, &mut problems);
        assert_eq!(problems, []);
        settings
    }

    #[test]
    fn keys_of_the_running_broker_are_checked_as_in_a_file() {
        let machine = Machine::UNKNOWN;
        let of = |text: &str| {
            let file = SourceFile { path: "quelea.toml".into(), text: text.into() };
            load(&Sources { file: Some(file), ..Sources::default() }, &machine).unwrap()
        };
        let running = of("[limits]\nconnections_max = 7\nqos_max = 1\n");
        let max = |config: &Config| (config.limits.connections_max, config.limits.qos_max);
        let set = |text: &str| {
            let changes = BTreeMap::from([("limits.connections_max", text.to_owned())]);
            running.with_changes(&changes, &machine)
        };
        assert_eq!(max(&set("9").unwrap().config), (9, 1));
        assert_eq!(set("9").unwrap().settings.place("limits.connections_max"), "set while running");
        let refused = set("many").unwrap_err().to_string();
        assert!(refused.contains("limits.connections_max: must be"), "{refused}");
        let fresh = of("[limits]\nconnections_max = 8\nqos_max = 2\n");
        let taken = running.taking_over(&fresh.settings, &machine).unwrap();
        assert_eq!(max(&taken.config), (8, 1));
        assert_eq!(of_restart(&running.settings, &fresh.settings), ["limits.qos_max"]);
        assert!(!is_same("limits.connections_max", &running.settings, &fresh.settings));
        // One that is left out again is one with its default.
        let bare = of("");
        let taken = fresh.taking_over(&bare.settings, &machine).unwrap();
        assert_eq!(max(&taken.config), (bare.config.limits.connections_max, 2));
    }

    #[test]
    fn every_key_of_the_running_broker_is_known() {
        let none = settings("");
        assert!(WHILE_RUNNING.iter().all(|(key, _)| none.known(key).is_some()));
    }

    #[test]
    fn keys_that_differ_are_named_and_namespaces_are_taken_over() {
        let old = "[limits]\nqos_max = 1\n[[listeners]]\nurl = \"tcp://*:1\"\n[listeners.tls]\n\
                   certificate = \"a\"\n[[namespaces]]\nname = \"red\"\n";
        let of = |old: &str, new: &str| of_restart(&settings(old), &settings(new));
        assert_eq!(of(old, old), Vec::<String>::new());
        let new = old.replace("qos_max = 1", "qos_max = 2").replace("\"a\"", "\"b\"");
        assert_eq!(of(old, &new), ["listeners.0.tls.certificate", "limits.qos_max"]);
        assert_eq!(of(old, &old.replace("red", "blue")), Vec::<String>::new());
        let more = format!("{old}[[listeners]]\nurl = \"tcp://*:2\"\n");
        assert_eq!(of(old, &more), ["listeners.1"]);
        assert_eq!(of(&more, old), ["listeners.1"]);
        let bridge = format!("{old}[[bridges]]\nname = \"b\"\n[[bridges.topics]]\nqos = 1\n");
        let other = bridge.replace("qos = 1", "qos = 2");
        assert_eq!(of(&bridge, &other), ["bridges.0.topics.0.qos"]);
        let longer = format!("{bridge}[[bridges.topics]]\n");
        assert_eq!(of(&bridge, &longer), ["bridges.0.topics.1"]);
        // A default that is written is no change, one that is left out again is one.
        let port = "[http]\nlisten = \"127.0.0.1:7\"\n";
        assert_eq!(of(old, &format!("{old}{port}")), ["http.listen"]);
        assert_eq!(of(&format!("{old}{port}"), old), ["http.listen"]);
    }
}
