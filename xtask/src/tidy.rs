//! The rules of the house that no compiler and no lint checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::prose;
use crate::rust;
use crate::source::{self, File};

/// `xtask/tidy.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    sans_io: Vec<String>,
    rooms: BTreeMap<String, BTreeSet<String>>,
    edges: BTreeMap<String, BTreeSet<String>>,
    /// Of each exception the reason.
    long_files: BTreeMap<String, String>,
    long_functions: BTreeMap<String, String>,
    unsafe_files: BTreeMap<String, String>,
}

/// The parts of a `Cargo.toml` that have rules.
#[derive(Deserialize)]
struct Manifest {
    package: Package,
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
    #[serde(default, rename = "dev-dependencies")]
    dev_dependencies: BTreeMap<String, toml::Value>,
    lib: Option<Target>,
    #[serde(default)]
    bin: Vec<Target>,
}

/// A library or a program.
#[derive(Deserialize)]
struct Target {
    /// Whether it is compiled a second time, for the tests in it.
    #[serde(default = "yes")]
    test: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

impl Manifest {
    /// Code names a crate without the prefix that keeps its package apart on crates.io.
    fn name(&self) -> &str {
        let package = self.package.name.as_str();
        package.strip_prefix("quelea-").unwrap_or(package)
    }
}

/// Everything that breaks a rule, one line each: `path:line: what and what to do`.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let rules: Rules = toml::from_str(include_str!("../tidy.toml")).context("xtask/tidy.toml")?;
    let mut faults = Vec::new();
    for file in source::files(root, &["rs"])? {
        check_text(&file, LINE_CHARS_MAX, &mut faults);
        check_size(&file, &rules, &mut faults);
        check_examples(&file, &mut faults);
        check_unsafe(&file, &rules, &mut faults);
        check_sans_io(&file, &rules, &mut faults);
    }
    for file in source::files(root, &["py", "js", "toml", "sh"])? {
        check_text(&file, usize::MAX, &mut faults);
    }
    let documents = source::files(root, &["md"])?;
    for file in &documents {
        check_links(root, file, &mut faults);
        check_decision(file, &mut faults);
    }
    check_list_of_decisions(&documents, &mut faults);
    check_manifests(root, &rules, &documents, &mut faults)?;
    check_exceptions(root, &rules, &mut faults);
    Ok(faults)
}

/// No tabs, trailing spaces, long lines, or reminders.
fn check_text(file: &File, chars_max: usize, faults: &mut Vec<String>) {
    let is_self = file.path == "xtask/src/tidy.rs";
    let mut text_end = None;
    for (number, line) in numbered(&file.text) {
        let mut fault = |what: &str| faults.push(format!("{}:{number}: {what}", file.path));
        let chars = chars_without_texts(line, &mut text_end);
        if line.contains('\t') {
            fault("a tab: use spaces");
        }
        if line.ends_with(' ') {
            fault("a space at the end of the line");
        }
        if chars > chars_max && !line.contains("https://") {
            fault("more than 100 characters in the line");
        }
        if !is_self && REMINDERS.iter().any(|word| line.contains(word)) {
            fault("a reminder: do it, or write down why not");
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        faults.push(format!("{}: no newline at the end", file.path));
    }
}

/// The characters of a line without what stands in quotes: a text is found by searching for it, so
/// it need not be broken. `end`: how the raw string ends in which the line begins, if it does.
fn chars_without_texts(line: &str, end: &mut Option<&'static str>) -> usize {
    let mut rest = line;
    let mut chars = 0;
    loop {
        if let Some(mark) = *end {
            let Some((_, after)) = rest.split_once(mark) else { return chars };
            rest = after;
            *end = None;
        }
        let opening =
            RAW_STRINGS.iter().find_map(|(mark, end)| Some((rest.find(mark)?, mark, end)));
        let code = opening.map_or(rest, |(at, ..)| &rest[..at]);
        chars += code.split('"').step_by(2).flat_map(str::chars).count();
        let Some((at, mark, its_end)) = opening else { return chars };
        rest = &rest[at + mark.len()..];
        *end = Some(its_end);
    }
}

/// No code in documentation that would have to be run: `make test` runs test programs only.
fn check_examples(file: &File, faults: &mut Vec<String>) {
    let mut is_open = false;
    for (number, line) in numbered(&file.text) {
        let line = line.trim_start();
        let comment = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        let Some(kind) = comment.and_then(|text| text.trim().strip_prefix("```")) else { continue };
        is_open = !is_open;
        if is_open && !TEXT_KINDS.contains(&kind) {
            faults.push(format!("{}:{number}: code that no test runs: write a test", file.path));
        }
    }
}

/// Files and functions that can be read in one go.
fn check_size(file: &File, rules: &Rules, faults: &mut Vec<String>) {
    if file.path.contains("/tests/") || file.path.contains("/benches/") {
        return;
    }
    let lines = rust::without_tests(&file.text);
    if lines.len() > FILE_LINES_MAX && !rules.long_files.contains_key(&file.path) {
        let count = lines.len();
        faults
            .push(format!("{}: {count} lines without tests, at most {FILE_LINES_MAX}", file.path));
    }
    for function in rust::functions(&lines) {
        let key = format!("{}::{}", file.path, function.name);
        if function.lines > FUNCTION_LINES_MAX && !rules.long_functions.contains_key(&key) {
            let (line, count) = (function.line, function.lines);
            let name = function.name;
            faults.push(format!(
                "{}:{line}: {name} has {count} lines, at most {FUNCTION_LINES_MAX}",
                file.path
            ));
        }
    }
}

/// `unsafe` only in listed files, and each with a reason beside it.
fn check_unsafe(file: &File, rules: &Rules, faults: &mut Vec<String>) {
    let lines: Vec<&str> = file.text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let opens = ["{", "fn", "impl", "extern"];
        if !opens.iter().any(|next| code.contains(&["unsafe", next].join(" "))) {
            continue;
        }
        let at = format!("{}:{}", file.path, index + 1);
        if !rules.unsafe_files.contains_key(&file.path) {
            faults.push(format!("{at}: unsafe in a file that xtask/tidy.toml does not list"));
        }
        let before = &lines[index.saturating_sub(SAFETY_LINES_MAX)..index];
        if !before.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety")) {
            faults.push(format!("{at}: unsafe without a SAFETY comment just before it"));
        }
    }
}

/// State machines know no socket, file, clock, thread, random source or printing.
fn check_sans_io(file: &File, rules: &Rules, faults: &mut Vec<String>) {
    let is_checked = source::crate_of(&file.path).is_some_and(|(_, name, rest)| {
        rest.starts_with("src/") && rules.sans_io.iter().any(|listed| listed == name)
    });
    if !is_checked {
        return;
    }
    let lines = rust::without_tests(&file.text);
    for (index, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for outside in OUTSIDE.iter().filter(|outside| code.contains(**outside)) {
            let at = format!("{}:{}", file.path, index + 1);
            faults.push(format!("{at}: `{outside}` in a crate without input and output"));
        }
        if ["HashMap", "HashSet"].iter().any(|table| hashes_at_random(code, table)) {
            let at = format!("{}:{}", file.path, index + 1);
            faults.push(format!("{at}: a table that names no hasher takes a random one"));
        }
    }
}

/// Is the table named without its hasher, or made by a function that only the random one has?
fn hashes_at_random(code: &str, table: &str) -> bool {
    let mut uses = code.split(table).skip(1);
    let is_bare = |rest: &str| rest.starts_with('<') && !rest.contains("State");
    uses.any(|rest| is_bare(rest) || rest.starts_with("::new") || rest.starts_with("::with_cap"))
}

/// Files and headings that a document links to, and files that it names by their path, exist.
fn check_links(root: &Path, file: &File, faults: &mut Vec<String>) {
    let directory = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    for (number, line) in numbered(&file.text) {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let elsewhere = target.is_empty() || target.contains("://") || target.contains(':');
            let path = root.join(directory).join(target);
            if !elsewhere && !path.exists() {
                faults.push(format!("{}:{number}: no file {target}", file.path));
            }
            let own = link.starts_with('#').then(|| file.text.clone());
            let text = own.or_else(|| fs::read_to_string(path).ok().filter(|_| !elsewhere));
            if let (Some(text), Some((_, anchor))) = (text, link.split_once('#'))
                && !has_anchor(&text, anchor)
            {
                faults.push(format!("{}:{number}: no heading #{anchor}", file.path));
            }
        }
        for name in line.split('`').skip(1).step_by(2) {
            if names_a_file(name) && !root.join(name).exists() {
                faults.push(format!("{}:{number}: no file {name}", file.path));
            }
            if names_a_function(name) && !has_function(root, name) {
                faults.push(format!("{}:{number}: no function {name}", file.path));
            }
        }
    }
}

/// A decision can be read in a minute. The list of decisions is no decision.
fn check_decision(file: &File, faults: &mut Vec<String>) {
    let count = prose::count_words(&file.text);
    if is_decision(file) && count > DECISION_WORDS_MAX {
        faults.push(format!("{}: {count} words, at most {DECISION_WORDS_MAX}", file.path));
    }
}

/// Each decision has a row in the list, and a row is short enough to be skimmed.
fn check_list_of_decisions(documents: &[File], faults: &mut Vec<String>) {
    let Some(list) = documents.iter().find(|file| file.path == LIST_OF_DECISIONS) else { return };
    for file in documents.iter().filter(|file| is_decision(file)) {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        if !list.text.contains(&format!("]({name}) |")) {
            faults.push(format!("{LIST_OF_DECISIONS}: no row for {name}"));
        }
    }
    for (number, line) in numbered(&list.text).filter(|(_, line)| line.starts_with("| [")) {
        // Without the number of the decision.
        let count = prose::count_words(line) - 1;
        if count > LISTED_WORDS_MAX {
            faults.push(format!(
                "{LIST_OF_DECISIONS}:{number}: {count} words in a row, at most {LISTED_WORDS_MAX}"
            ));
        }
    }
}

fn is_decision(file: &File) -> bool {
    file.path.starts_with("docs/decisions/") && file.path != LIST_OF_DECISIONS
}

/// A heading by its link, or an `<a id="...">`; none other counts.
fn has_anchor(document: &str, anchor: &str) -> bool {
    let outside_code = document.split("```").step_by(2);
    let headings = outside_code.flat_map(str::lines).filter(|line| line.starts_with('#'));
    headings.map(slug).any(|slug| slug == anchor)
        || document.contains(&format!("<a id=\"{anchor}\">"))
}

/// A heading as links name it: small letters, hyphens for spaces, no other signs.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn names_a_file(name: &str) -> bool {
    let inside = ["docs/", "crates/", "lab/", "tests/", "xtask/", "fuzz/"];
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    plain && inside.iter().any(|start| name.starts_with(start))
}

/// `topic/index.rs::matches`: the function `matches` in `src/index.rs` of the crate `topic`.
fn names_a_function(name: &str) -> bool {
    name.contains(".rs::") && name.split('/').count() > 1
}

fn has_function(root: &Path, name: &str) -> bool {
    let Some((path, function)) = name.split_once("::") else { return false };
    let Some((folder, file)) = path.split_once('/') else { return false };
    let Some(folder) = source::crate_folder(root, folder) else { return false };
    let text = fs::read_to_string(folder.join("src").join(file));
    let opening = [format!("fn {function}("), format!("fn {function}<")];
    text.is_ok_and(|text| opening.iter().any(|opening| text.contains(opening)))
}

/// Every crate uses only what it may, is described, and has its dependencies accounted for.
fn check_manifests(
    root: &Path,
    rules: &Rules,
    documents: &[File],
    faults: &mut Vec<String>,
) -> Result<()> {
    let text_of = |path: &str| {
        documents.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str())
    };
    let (architecture, accounted) =
        (text_of("ARCHITECTURE.md"), text_of("docs/develop/dependencies.md"));
    let sources = source::files(root, &["rs"])?;
    let manifests = source::files(root, &["toml"])?;
    let manifests = manifests
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml") && !file.path.starts_with("fuzz/"));
    let manifests: Vec<(&str, Manifest)> = manifests
        .map(|file| Ok((&*file.path, toml::from_str(&file.text).context(file.path.clone())?)))
        .collect::<Result<_>>()?;
    let room_of: BTreeMap<&str, &str> = manifests
        .iter()
        .filter_map(|(path, manifest)| Some((manifest.name(), source::crate_of(path)?.0)))
        .collect();
    for (path, manifest) in &manifests {
        let (path, name) = (*path, manifest.name());
        let Some(allowed) = rules.edges.get(name) else {
            faults.push(format!("{}: crate {name} is not in xtask/tidy.toml", path));
            continue;
        };
        let is_ours = |dependency: &String| rules.edges.contains_key(dependency);
        let ours = manifest.dependencies.keys().filter(|dependency| is_ours(dependency));
        for other in ours.filter(|other| !allowed.contains(*other)) {
            faults.push(format!("{}: {name} may not use {other}", path));
        }
        check_room(path, manifest, rules, &room_of, faults);
        check_untested(path, manifest, &sources, faults);
        check_readme(path, documents, faults);
        let row = format!("| `{name}` |");
        if !architecture.lines().any(|line| line.starts_with(&row)) {
            faults.push(format!("ARCHITECTURE.md: no row for crate `{name}`"));
        }
        let all = manifest.dependencies.keys().chain(manifest.dev_dependencies.keys());
        for dependency in all.filter(|dependency| !is_ours(dependency)) {
            if !accounted.contains(&format!("`{dependency}`")) {
                faults.push(format!(
                    "docs/develop/dependencies.md: no line for `{dependency}` of {name}"
                ));
            }
        }
        if rules.sans_io.iter().any(|crate_| crate_ == name) {
            let asynchronous = ["tokio", "mio", "rand", "socket2", "libc"];
            for dependency in
                asynchronous.iter().filter(|d| manifest.dependencies.contains_key(**d))
            {
                faults.push(format!("{}: {name} may not depend on {dependency}", path));
            }
        }
    }
    Ok(())
}

/// What is not compiled for tests has none. The file of such a program has no modules either.
fn check_untested(path: &str, manifest: &Manifest, sources: &[File], faults: &mut Vec<String>) {
    let folder = path.trim_end_matches("Cargo.toml");
    let is_bare = |target: &Target| !target.test;
    let library = format!("{folder}src/");
    let program = format!("{folder}src/main.rs");
    for file in sources.iter().filter(|file| file.path.starts_with(&library)) {
        let is_program = file.path == program && manifest.bin.iter().any(is_bare);
        let has_tests = file.text.contains("#[test]") || is_program && file.text.contains("\nmod ");
        if has_tests && (is_program || manifest.lib.as_ref().is_some_and(is_bare)) {
            faults.push(format!("{}: its tests do not run: {path} has `test = false`", file.path));
        }
    }
}

/// A crate uses crates of its own room, and of those that the room may know.
fn check_room(
    path: &str,
    manifest: &Manifest,
    rules: &Rules,
    room_of: &BTreeMap<&str, &str>,
    faults: &mut Vec<String>,
) {
    let Some((room, ..)) = source::crate_of(path) else { return };
    let Some(known) = rules.rooms.get(room) else {
        faults.push(format!("{path}: room {room} is not in xtask/tidy.toml"));
        return;
    };
    for dependency in manifest.dependencies.keys() {
        let other = room_of.get(dependency.as_str()).copied();
        if let Some(other) = other.filter(|other| *other != room && !known.contains(*other)) {
            faults.push(format!("{path}: room {room} may not use {dependency} of room {other}"));
        }
    }
}

/// Every crate says what it is for, what it must not know, where to begin and how to test it.
fn check_readme(manifest: &str, documents: &[File], faults: &mut Vec<String>) {
    let Some(folder) = manifest.strip_suffix("Cargo.toml").filter(|f| f.starts_with("crates/"))
    else {
        return;
    };
    let path = format!("{folder}README.md");
    if documents.iter().all(|document| document.path != path) {
        faults.push(format!(
            "{path}: missing: name, purpose, what the crate must not know, where to begin, its test"
        ));
    }
}

/// An exception that is no longer needed, or that has no reason, goes.
fn check_exceptions(root: &Path, rules: &Rules, faults: &mut Vec<String>) {
    let files = rules.long_files.iter().chain(&rules.unsafe_files);
    let functions = rules.long_functions.iter();
    for (key, reason) in files.chain(functions) {
        let path = key.split("::").next().unwrap_or_default();
        if !root.join(path).exists() {
            faults.push(format!("xtask/tidy.toml: {path} does not exist"));
        }
        if reason.is_empty() {
            faults.push(format!("xtask/tidy.toml: {key} has no reason"));
        }
    }
    for path in rules.unsafe_files.keys() {
        let text = fs::read_to_string(root.join(path)).unwrap_or_default();
        if !text.contains("unsafe") {
            faults.push(format!("xtask/tidy.toml: {path} has no unsafe any more"));
        }
    }
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// How raw strings begin and end.
const RAW_STRINGS: [(&str, &str); 2] = [("r##\"", "\"##"), ("r#\"", "\"#")];

const LINE_CHARS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const SAFETY_LINES_MAX: usize = 6;
const LIST_OF_DECISIONS: &str = "docs/decisions/README.md";
const DECISION_WORDS_MAX: usize = 250;
const LISTED_WORDS_MAX: usize = 12;

/// Blocks of documentation that `cargo test --doc` would not run either.
const TEXT_KINDS: [&str; 3] = ["json", "text", "toml"];

const REMINDERS: [&str; 5] = ["TODO", "FIXME", "XXX", "dbg!(", "HACK:"];

/// What a state machine must not touch.
const OUTSIDE: [&str; 15] = [
    "std::net",
    "std::fs",
    "std::thread",
    "std::process",
    "std::env",
    "std::io::std",
    "Instant::now",
    "SystemTime",
    "tokio",
    "mio::",
    "rand::",
    "getrandom",
    "RandomState",
    "println!",
    "async fn",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        toml::from_str(include_str!("../tidy.toml")).expect("good rules")
    }

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_room_knows_only_the_rooms_below_it() {
        let manifest: Manifest = toml::from_str(
            "package.name = 'quelea-topic'\n[dependencies]\ncodec = {}\nnet = {}\nsim = {}",
        )
        .expect("a manifest");
        let room_of = [("codec", "core"), ("net", "server"), ("sim", "proof")].into();
        let faults_in = |room: &str| {
            let mut faults = Vec::new();
            let path = format!("crates/{room}/topic/Cargo.toml");
            check_room(&path, &manifest, &rules(), &room_of, &mut faults);
            faults.len()
        };
        assert_eq!(["core", "server", "proof", "cellar"].map(faults_in), [2, 1, 0, 1]);
    }

    #[test]
    fn tests_that_do_not_run_are_found() {
        let sources =
            [file("a/src/lib.rs", "#[test]\nfn a() {}\n"), file("a/src/main.rs", "x;\nmod b;\n")];
        let faults_with = |targets: &str| {
            let manifest = format!("package.name = 'a'\n{targets}");
            let manifest = toml::from_str(&manifest).expect("a manifest");
            let mut faults = Vec::new();
            check_untested("a/Cargo.toml", &manifest, &sources, &mut faults);
            faults.iter().map(|fault| fault[6..8].to_owned()).collect::<Vec<_>>()
        };
        assert!(faults_with("[lib]\nname = 'a'\n[[bin]]\nname = 'a'").is_empty());
        assert_eq!(faults_with("[lib]\ntest = false"), ["li"]);
        assert_eq!(faults_with("[[bin]]\ntest = false"), ["ma"]);
    }

    #[test]
    fn text_faults_are_found() {
        let mut faults = Vec::new();
        let long = "x".repeat(101);
        let text = format!("good\n\tx\nend \n{long}\n// TODO later\nlast");
        check_text(&file("a.rs", &text), LINE_CHARS_MAX, &mut faults);
        let lines: Vec<_> = faults.iter().map(|fault| &fault[..6]).collect();
        assert_eq!(lines, ["a.rs:2", "a.rs:3", "a.rs:4", "a.rs:5", "a.rs: "]);
        let mut faults = Vec::new();
        let text = format!("a(\"{long}\");\nb(r#\"\n{long}\n\"#);\n");
        check_text(&file("a.rs", &text), LINE_CHARS_MAX, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
    }

    #[test]
    fn code_in_documentation_is_found() {
        let text = "//! ```text\n//! a\n//! ```\n\n    /// ```\n    /// b();\n    /// ```\n";
        let mut faults = Vec::new();
        check_examples(&file("a.rs", text), &mut faults);
        assert_eq!(faults, ["a.rs:5: code that no test runs: write a test"]);
    }

    #[test]
    fn long_files_and_functions_are_found() {
        let body = "    x();\n".repeat(FUNCTION_LINES_MAX);
        let text = format!("fn long() {{\n{body}}}\n{}", "\n".repeat(FILE_LINES_MAX));
        let mut faults = Vec::new();
        check_size(&file("crates/a/src/a.rs", &text), &rules(), &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
        let mut faults = Vec::new();
        check_size(&file("crates/a/tests/a.rs", &text), &rules(), &mut faults);
        assert!(faults.is_empty());
    }

    #[test]
    fn long_decisions_are_found() {
        let mut faults = Vec::new();
        let mut check = |path: &str, count: usize| {
            check_decision(&file(path, &"word | ".repeat(count)), &mut faults);
        };
        check("docs/decisions/0001-a.md", DECISION_WORDS_MAX);
        check("docs/decisions/README.md", DECISION_WORDS_MAX + 1);
        check("docs/use/a.md", DECISION_WORDS_MAX + 1);
        check("docs/decisions/0002-b.md", DECISION_WORDS_MAX + 1);
        assert_eq!(faults, ["docs/decisions/0002-b.md: 251 words, at most 250"]);
    }

    #[test]
    fn decisions_that_are_not_listed_and_long_rows_are_found() {
        let row = "word ".repeat(LISTED_WORDS_MAX);
        let list = format!("| [1](0001-a.md) | {row}|\n| [2](0002-b.md) | and {row}|\n");
        let decision = |name: &str| file(&format!("docs/decisions/{name}"), "");
        let names = ["0001-a.md", "0002-b.md", "0003-c.md"];
        let mut documents: Vec<File> = names.into_iter().map(decision).collect();
        documents.push(file(LIST_OF_DECISIONS, &list));
        let mut faults = Vec::new();
        check_list_of_decisions(&documents, &mut faults);
        let wanted = [
            "docs/decisions/README.md: no row for 0003-c.md",
            "docs/decisions/README.md:2: 13 words in a row, at most 12",
        ];
        assert_eq!(faults, wanted);
    }

    #[test]
    fn crates_without_a_readme_are_found() {
        let documents = [file("crates/a/README.md", ""), file("README.md", "")];
        let mut faults = Vec::new();
        for manifest in ["crates/a/Cargo.toml", "crates/b/Cargo.toml", "xtask/Cargo.toml"] {
            check_readme(manifest, &documents, &mut faults);
        }
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("crates/b/README.md: missing"), "{faults:?}");
    }

    #[test]
    fn unlisted_and_unexplained_unsafe_is_found() {
        let mut faults = Vec::new();
        let text = "fn a() {\n    KEYWORD { b() }\n}\n// KEYWORD { c() }\n";
        let text = text.replace("KEYWORD", "unsafe");
        check_unsafe(&file("crates/a/src/a.rs", &text), &rules(), &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn input_and_output_of_a_state_machine_is_found() {
        let text =
            "use std::net::TcpStream;\n// std::fs is only mentioned\nlet now = Instant::now();\n";
        let mut faults = Vec::new();
        check_sans_io(&file("crates/core/codec/src/a.rs", text), &rules(), &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
        let mut faults = Vec::new();
        check_sans_io(&file("crates/server/quelea/src/a.rs", text), &rules(), &mut faults);
        assert!(faults.is_empty());
        let tables = "use std::collections::HashMap;\na: HashMap<u64, u64, FixedState>,\n\
                      HashMap::with_hasher(state)\nb: HashMap<u64, u64>,\nHashSet::new()\n\
                      foldhash::fast::RandomState\n";
        check_sans_io(&file("crates/core/topic/src/a.rs", tables), &rules(), &mut faults);
        assert_eq!(faults.len(), 3, "{faults:?}");
    }

    #[test]
    fn dead_links_are_found() {
        let text = "[a](no/such.md) [b](https://example.org) `docs/no-such.md` `docs/*.md`\n";
        let mut faults = Vec::new();
        check_links(&source::root(), &file("README.md", text), &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn links_to_headings_that_are_gone_are_found() {
        let text = "# A `b`: c, d\n[a](#a-b-c-d) [a](#a) [a](CONTRIBUTING.md#a-metric) \
                    [a](CONTRIBUTING.md#no-such) <a id=\"e\"></a>[a](#e)\n```\n# f\n```\n[a](#f)\n";
        let mut faults = Vec::new();
        check_links(&source::root(), &file("README.md", text), &mut faults);
        assert_eq!(faults.len(), 3, "{faults:?}");
    }

    #[test]
    fn functions_that_are_gone_are_found() {
        let text = "`codec/packet.rs::decode` `codec/packet.rs::gone` `codec/gone.rs::decode`\n";
        let mut faults = Vec::new();
        check_links(&source::root(), &file("ARCHITECTURE.md", text), &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
