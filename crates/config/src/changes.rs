//! What a configuration has another value for than the one that runs.

use super::keys::SECTIONS;
use super::schema::{Key, Section};
use super::source::{Settings, is_list};

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
    section.keys.iter().filter(differs).map(|key| format!("{own}.{}", key.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{SourceFile, Sources};

    fn settings(text: &str) -> Settings {
        let file = SourceFile { path: "quelea.toml".into(), text: text.into() };
        let mut problems = Vec::new();
        let settings =
            Settings::read(&Sources { file: Some(file), ..Sources::default() }, &mut problems);
        assert_eq!(problems, []);
        settings
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
