//! emqtt-bench's spellings of options that are written otherwise here, so that its command lines
//! can be pasted.
//!
//! Only for `conn`, `pub` and `sub`. Its switches take `true` or `false`, some of its long names
//! are other, and `-s` is one thing with `pub` and another with the rest.

use std::ffi::OsString;

/// The arguments as this program spells them.
pub(super) fn plain(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = all.collect();
    let command = all.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let is_pub = command == "pub";
    if !is_pub && !matches!(command, "conn" | "sub") {
        return all;
    }
    let asked = all.split_off(2);
    let mut words = asked.into_iter().peekable();
    while let Some(word) = words.next() {
        let Some(text) = word.to_str() else {
            all.push(word);
            continue;
        };
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value)),
            _ => (text, None),
        };
        if SWITCHES.contains(&name) {
            let is_next = words.peek().is_some_and(|next| next == "true" || next == "false");
            let value = match joined {
                Some(value) => Some(value.to_owned()),
                None if is_next => words.next().and_then(|next| next.into_string().ok()),
                None => None,
            };
            match value.as_deref() {
                None | Some("true") => all.push(name.into()),
                Some("false") => {}
                // For the parser to refuse.
                Some(_) => all.push(word),
            }
            continue;
        }
        let other = RENAMED.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
        let other = other.or((name == "-s" && !is_pub).then_some("--shortids"));
        match (other, joined) {
            (None, _) => all.push(word),
            (Some(ours), None) => all.push(ours.into()),
            (Some(ours), Some(value)) => all.push(format!("{ours}={value}").into()),
        }
    }
    all
}

/// Options without a value here, which have one there.
const SWITCHES: [&str; 9] =
    ["-S", "--ssl", "--tls", "--ws", "--quic", "-l", "--lowmem", "-d", "--dist"];
const RENAMED: [(&str, &str); 3] = [
    ("--interval", "--interval-ms"),
    ("--interval_of_msg", "--interval-of-msg"),
    ("--version", "--mqtt-version"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(line: &str) -> String {
        let words = plain(line.split(' ').map(OsString::from));
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_emqtt_bench_spells_otherwise_is_understood() {
        for (theirs, ours) in [
            (
                "flock pub --interval_of_msg 10 --interval 5",
                "flock pub --interval-of-msg 10 --interval-ms 5",
            ),
            ("flock sub --version=4 -t a", "flock sub --mqtt-version=4 -t a"),
            ("flock pub -S true --ws false -t a", "flock pub -S -t a"),
            ("flock pub --ssl=true --quic=false --ssl", "flock pub --ssl --ssl"),
            ("flock pub -s 16 -S", "flock pub -s 16 -S"),
            ("flock conn -s true -l", "flock conn --shortids true -l"),
            ("flock run x --interval 5 --ssl true", "flock run x --interval 5 --ssl true"),
        ] {
            assert_eq!(spelled(theirs), ours);
        }
    }
}
