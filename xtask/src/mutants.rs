//! One-line changes to the broker's core, each of which a test has to notice.
//!
//! `xtask/mutants.toml` has the changes. They are made in a copy of the tracked files, one at a
//! time: the tests of the shard are run with each, or simulated worlds. A change that nothing
//! notices shows a rule that nothing checks.
//!
//! An entry names a line by its text, so that it stays right when files move. When the line itself
//! changes, the entry is mended by hand.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::source;

/// The crate that is changed, by the names of its package and of its folder.
const PACKAGE: &str = "quelea-broker";
const FOLDER: &str = "broker";

/// The crate with the tests of the shard, by the same names.
const PACKAGE_OF_TESTS: &str = "quelea-rig";
const FOLDER_OF_TESTS: &str = "rig";

/// How long the tests of the shard may take: half a minute is usual on two cores. A program that
/// takes longer hangs.
const TESTS_MAX: Duration = Duration::from_secs(240);

/// How long the worlds of one kind may take: a minute is usual.
const WORLDS_MAX: Duration = Duration::from_secs(600);

/// Address space of a test program, in KiB. A change that fills the memory without end is noticed,
/// and does not take the machine along.
const MEMORY_KIB_MAX: u64 = 8 * 1024 * 1024;

/// Packages that depend on the change. Compiled incrementally they take seconds, not a minute,
/// after a longer first time.
const COMPILED_ANEW: [&str; 5] =
    ["quelea-broker", "quelea-driver", "quelea-rig", "quelea-streams", "quelea-sim"];

/// Kinds of worlds, and how many of each: first the kind that sees most.
const WORLDS: [(&str, &str); 8] = [
    ("--durable", "2500"),
    ("", "500"),
    ("--hostile", "500"),
    ("--policy", "300"),
    ("--driven", "300"),
    ("--service", "300"),
    ("--streams", "300"),
    ("--spans", "200"),
];

/// `xtask/mutants.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutants: Vec<Mutant>,
}

/// One change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// What is wrong with it.
    name: String,
    /// A part of one line that the sources of the crate have exactly once.
    find: String,
    replace: String,
    /// The file of tests that it stands for.
    group: String,
    /// Tests and rows that notice it.
    #[serde(default)]
    caught_by: Vec<String>,
    /// The seed and the kind of a world that notices it. Empty: none does. Absent: not tried yet.
    worlds: Option<String>,
}

/// What notices a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum With {
    Tests,
    Worlds,
}

/// What became of a change.
enum Outcome {
    Red(String),
    Green,
    /// It says nothing: the entry of the list has to be mended.
    Useless(String),
}

/// Entries that do not fit the sources and tests any more.
///
/// # Errors
///
/// A file cannot be read.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let list = list()?;
    let folder = folder(root)?;
    let sources = sources(&folder)?;
    let tests = source::files(&folder_of_tests(root)?.join("tests"), &["rs"])?;
    let mut known = BTreeSet::new();
    let mut faults = Vec::new();
    for mutant in &list.mutants {
        let mut fault = |what: String| faults.push(format!("{}: {what}", mutant.name));
        if !known.insert(&mutant.name) {
            fault("another entry has this name: give it a name of its own".into());
        }
        if let Err(why) = mutant.place(&sources) {
            fault(why);
        }
        if mutant.caught_by.is_empty() && mutant.worlds.as_ref().is_none_or(String::is_empty) {
            fault("nothing notices it: name a test in caught_by, or a seed in worlds".into());
        }
        for test in &mutant.caught_by {
            if !tests.iter().any(|file| has_word(&file.text, test)) {
                fault(format!("no file of tests has {test}: name a test in caught_by"));
            }
        }
    }
    Ok(faults.into_iter().map(|fault| format!("xtask/mutants.toml: {fault}")).collect())
}

/// Makes the changes of the list one by one, or `only` one of them. False: one was not noticed.
///
/// # Errors
///
/// The copy cannot be made, or its tests fail without any change.
pub fn run(root: &Path, with: With, only: Option<&str>) -> Result<bool> {
    let list = list()?;
    let chosen: Vec<&Mutant> =
        list.mutants.iter().filter(|own| only.is_none_or(|name| own.name == name)).collect();
    ensure!(!chosen.is_empty(), "xtask/mutants.toml has no entry {}", only.unwrap_or_default());
    let copy = Copy::of(root)?;
    let began = Instant::now();
    println!("without a change: {}", copy.check_unchanged(with)?);
    let (count, mut failed) = (chosen.len(), Vec::new());
    for (index, mutant) in chosen.into_iter().enumerate() {
        let outcome = copy.try_out(mutant, with)?;
        let (number, secs) = (index + 1, began.elapsed().as_secs());
        let (minutes, secs) = (secs / 60, secs % 60);
        let word = outcome.word();
        println!(
            "{number:2}/{count} {minutes:3}:{secs:02} {} ({}): {word}",
            mutant.name, mutant.group
        );
        if !matches!(outcome, Outcome::Red(_)) {
            failed.push(format!("{}: {word}", mutant.name));
        }
    }
    println!("{} of {count} are red", count - failed.len());
    failed.iter().for_each(|line| println!("{line}"));
    Ok(failed.is_empty())
}

fn list() -> Result<List> {
    toml::from_str(include_str!("../mutants.toml")).context("xtask/mutants.toml")
}

/// The folder of the crate that is changed.
fn folder(root: &Path) -> Result<PathBuf> {
    source::crate_folder(root, FOLDER).with_context(|| format!("no folder of {PACKAGE}"))
}

fn folder_of_tests(root: &Path) -> Result<PathBuf> {
    let folder = source::crate_folder(root, FOLDER_OF_TESTS);
    folder.with_context(|| format!("no folder of {PACKAGE_OF_TESTS}"))
}

fn sources(folder: &Path) -> Result<Vec<source::File>> {
    source::files(&folder.join("src"), &["rs"])
}

impl Mutant {
    /// The file and the place of what is replaced. Err: why there is none.
    fn place<'a>(&self, sources: &'a [source::File]) -> Result<(&'a source::File, usize), String> {
        if self.find.is_empty() || self.find.contains('\n') {
            return Err("find must be a part of one line".into());
        }
        let places: Vec<_> = sources
            .iter()
            .flat_map(|file| file.text.match_indices(&self.find).map(move |(at, _)| (file, at)))
            .collect();
        match places[..] {
            [place] => Ok(place),
            [] => Err(format!("no line of {PACKAGE} has `{}`: mend the entry", self.find)),
            _ => {
                let at = places.iter().map(|(file, at)| {
                    format!("{}:{}", file.path, file.text[..*at].matches('\n').count() + 1)
                });
                let at = at.collect::<Vec<_>>().join(", ");
                Err(format!("`{}` is not unique ({at}): mend the entry", self.find))
            }
        }
    }

    fn changed(&self, text: &str, at: usize) -> String {
        [&text[..at], &self.replace, &text[at + self.find.len()..]].concat()
    }
}

impl Outcome {
    fn word(&self) -> String {
        match self {
            Self::Red(by) => format!("red: {by}"),
            Self::Green => "GREEN".into(),
            Self::Useless(why) => format!("USELESS: {why}"),
        }
    }
}

/// A copy of the tracked files, and a target directory of its own.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Copies what differs only, so that little is compiled again.
    fn of(root: &Path) -> Result<Self> {
        let home = root.join("target/mutants");
        let copy = Self { tree: home.join("tree"), target: home.join("target") };
        let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
        let listed = String::from_utf8(listed.context("cannot start git")?.stdout)?;
        let tracked = listed.split('\0').filter(|path| !path.is_empty());
        let tracked: BTreeSet<&str> = tracked.filter(|path| root.join(path).is_file()).collect();
        ensure!(!tracked.is_empty(), "git tracks no file in {}", root.display());
        for path in &tracked {
            write_if_other(&copy.tree.join(path), &fs::read(root.join(path))?)?;
        }
        for file in source::files(&copy.tree, &["rs", "toml"])? {
            if !tracked.contains(&*file.path) {
                fs::remove_file(copy.tree.join(file.path))?;
            }
        }
        Ok(copy)
    }

    /// What the tests or worlds say without a change.
    fn check_unchanged(&self, with: With) -> Result<&'static str> {
        match self.look(with)? {
            Outcome::Green => Ok("green"),
            other => bail!("not green without a change: {}", other.word()),
        }
    }

    fn try_out(&self, mutant: &Mutant, with: With) -> Result<Outcome> {
        let folder = folder(&self.tree)?;
        let sources = sources(&folder)?;
        let (file, at) = match mutant.place(&sources) {
            Ok(place) => place,
            Err(why) => return Ok(Outcome::Useless(why)),
        };
        let path = folder.join("src").join(&file.path);
        fs::write(&path, mutant.changed(&file.text, at))?;
        let outcome = self.look(with);
        fs::write(&path, &file.text)?;
        outcome
    }

    fn look(&self, with: With) -> Result<Outcome> {
        match with {
            With::Tests => self.look_with_tests(),
            With::Worlds => self.look_with_worlds(),
        }
    }

    fn look_with_tests(&self) -> Result<Outcome> {
        let arguments = ["test", "-p", PACKAGE_OF_TESTS, "--test", "shard", "--no-run"];
        let program = match self.build(&arguments)? {
            Ok(said) => program_in(&said).context("cargo does not say where the tests are")?,
            Err(why) => return Ok(Outcome::Useless(why)),
        };
        let ended = end_of(&program, &[], &folder_of_tests(&self.tree)?, TESTS_MAX)?;
        let red = red_tests(&ended.output);
        Ok(match ended.status {
            Some(status) if status.success() => Outcome::Green,
            _ if !red.is_empty() => Outcome::Red(format!("by {}", shortened(&red))),
            Some(status) => Outcome::Red(format!("the tests end with {status}")),
            None => Outcome::Red(format!("hangs, {} seconds", TESTS_MAX.as_secs())),
        })
    }

    fn look_with_worlds(&self) -> Result<Outcome> {
        if let Err(why) = self.build(&["build", "-p", "quelea-sim"])? {
            return Ok(Outcome::Useless(why));
        }
        let program = self.target.join("debug/sim");
        for (kind, count) in WORLDS {
            let arguments: Vec<&str> =
                ["0", count, kind].into_iter().filter(|word| !word.is_empty()).collect();
            let ended = end_of(&program, &arguments, &self.tree, WORLDS_MAX)?;
            let shown = if kind.is_empty() { "plain" } else { kind };
            match ended.status {
                Some(status) if status.success() => {}
                None => return Ok(Outcome::Red(format!("by worlds ({shown}): hangs"))),
                Some(status) => {
                    let seed = seed_in(&ended.output);
                    let seed =
                        seed.map_or_else(|| status.to_string(), |seed| format!("seed {seed}"));
                    return Ok(Outcome::Red(format!("by worlds ({shown}, {seed})")));
                }
            }
        }
        Ok(Outcome::Green)
    }

    /// What cargo says, or why it does not compile.
    fn build(&self, arguments: &[&str]) -> Result<Result<String, String>> {
        let incremental = COMPILED_ANEW
            .map(|package| format!("--config=profile.dev.package.{package}.incremental=true"));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let done = Command::new(cargo)
            .args(arguments)
            .args(incremental)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_TERM_COLOR", "never")
            .output()
            .context("cannot start cargo")?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() {
            return Ok(Ok(said));
        }
        let first = said.lines().find(|line| line.starts_with("error")).unwrap_or(&said);
        Ok(Err(format!("it does not compile: {first}")))
    }
}

fn write_if_other(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::File::create(path)?
        .write_all(bytes)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// How a program ended, and what it wrote. No status: it did not end in time.
struct End {
    status: Option<ExitStatus>,
    output: String,
}

fn end_of(program: &Path, arguments: &[&str], folder: &Path, time_max: Duration) -> Result<End> {
    let limited = format!("ulimit -v {MEMORY_KIB_MAX}; exec \"$0\" \"$@\" 2>&1");
    let mut child = Command::new("sh")
        .args(["-c", &limited])
        .arg(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let mut stdout = child.stdout.take().context("its output is a pipe")?;
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.read_to_end(&mut bytes);
        // Nobody listens any more if it took too long.
        let _ = sender.send(());
        read.map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let is_over = receiver.recv_timeout(time_max).is_ok();
    if !is_over {
        child.kill()?;
    }
    let status = child.wait()?;
    let output = reader.join().unwrap_or_else(|_| Ok(String::new()))?;
    Ok(End { status: is_over.then_some(status), output })
}

/// The program of `Executable tests/shard/main.rs (/path)`.
fn program_in(said: &str) -> Option<PathBuf> {
    let line = said.lines().find(|line| line.trim_start().starts_with("Executable"))?;
    let (_, path) = line.rsplit_once('(')?;
    Some(PathBuf::from(path.trim_end().trim_end_matches(')')))
}

/// Tests and rows that failed, by name.
fn red_tests(output: &str) -> Vec<&str> {
    let names = output.lines().filter_map(|line| match line.strip_prefix("test ") {
        Some(test) => test.strip_suffix(" ... FAILED").map(str::trim),
        None => line.strip_suffix(": FAILED").filter(|row| row.starts_with("row ")),
    });
    let names: BTreeSet<&str> = names.collect();
    names.into_iter().collect()
}

/// The seed of the first world that failed.
fn seed_in(output: &str) -> Option<u64> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("seed "));
    lines.filter_map(|line| line.split(':').next()?.parse().ok()).next()
}

/// The first of some names by group, and how many there are.
fn shortened(names: &[&str]) -> String {
    let shown = names.iter().take(NAMES_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMES_SHOWN_MAX) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    }
}

const NAMES_SHOWN_MAX: usize = 6;

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(find: &str) -> Mutant {
        Mutant {
            name: "off-by-one".to_owned(),
            find: find.to_owned(),
            replace: "a > b".to_owned(),
            group: "limits".to_owned(),
            caught_by: Vec::new(),
            worlds: None,
        }
    }

    fn file(path: &str, text: &str) -> source::File {
        source::File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_change_has_one_place_or_says_why_not() {
        let sources = [file("a.rs", "fn f() {\n    a >= b\n}\n"), file("b.rs", "b >= c\nb >= c\n")];
        let found = mutant("a >= b").place(&sources).map(|(file, at)| (&*file.path, at));
        assert_eq!(found, Ok(("a.rs", 13)));
        assert_eq!(mutant("a >= b").changed(&sources[0].text, 13), "fn f() {\n    a > b\n}\n");
        let why = |find: &str| mutant(find).place(&sources).map(drop).unwrap_err();
        assert!(why("c >= a").contains("no line of quelea-broker has `c >= a`"));
        assert!(why("b >= c").contains("not unique (b.rs:1, b.rs:2)"), "{}", why("b >= c"));
        assert!(why("b\n}").contains("one line"));
    }

    #[test]
    fn what_failed_is_read_from_the_output() {
        let output = "test a::one ... ok\ntest b::two ... FAILED\ntest b::two ... FAILED\n\
                      test c::three - should panic ... FAILED\nrow it waits (MQTT-4.6.0-2): FAILED\n";
        let red = ["b::two", "c::three - should panic", "row it waits (MQTT-4.6.0-2)"];
        assert_eq!(red_tests(output), red);
        assert_eq!(shortened(&["a"; 8]), "a, a, a, a, a, a and 2 more");
        assert_eq!(seed_in("12 worlds\nseed 41: order\n  seed 3: no\n"), Some(41));
        assert_eq!(seed_in("worlds kept their promises"), None);
        let said = "   Compiling x\n  Executable tests/shard/main.rs (/a b/deps/shard-1)\n";
        assert_eq!(program_in(said), Some(PathBuf::from("/a b/deps/shard-1")));
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let here = Path::new("/");
        let end = |script, time_max| end_of(Path::new("sh"), &["-c", script], here, time_max);
        let over = end("echo red; exit 3", Duration::from_secs(60)).expect("it starts");
        assert_eq!((over.status.and_then(|it| it.code()), &*over.output), (Some(3), "red\n"));
        let hanging = end("exec cat /dev/zero", Duration::from_millis(10)).expect("it starts");
        assert!(hanging.status.is_none());
    }

    #[test]
    fn names_of_tests_are_whole_words() {
        assert!(has_word("fn a_will() {}", "a_will") && has_word("(\"a_will\", 1)", "a_will"));
        assert!(!has_word("fn a_will_waits() {}", "a_will") && !has_word("of_a_will", "a_will"));
    }
}
