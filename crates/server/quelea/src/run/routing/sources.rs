//! Where definitions come from: the operator's file, and the management API, which adds to it.
//!
//! What the API has defined is a small file of the data directory, of the same form. The
//! operator's file stands by itself. The API's definitions may refer to those of the file, and have
//! other names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use config::{Namespace, NamespaceState, Network};
use data::{DEFINITIONS_FILE, Stamps};
use routing::Definitions;
use routing::definitions::{
    self, DEFAULT_NAMESPACE, Entry, Kind, PROBLEMS_MAX, Problem, StreamSpec, TargetSpec,
};

use super::targets::{self, Permits, Wrong};
use super::{DefinitionsError, LoadedDefinitions, TargetSettings, located};

/// The operator's file, which is sound by itself.
#[derive(Clone, Debug)]
pub(crate) struct OperatorFile {
    pub(super) path: PathBuf,
    pub(super) entries: Vec<Entry>,
    pub(crate) definitions: Definitions,
    /// By the names of its targets.
    targets: BTreeMap<String, TargetSettings>,
    /// Those in force.
    pub(super) namespaces: Vec<Namespace>,
    /// What targets may connect to, and what users of namespaces may define.
    pub(super) permits: Permits,
}

impl OperatorFile {
    /// Checks the text of a file, and the files of secrets that it names.
    ///
    /// # Errors
    ///
    /// All problems, with their lines.
    pub(super) fn check(
        path: &Path,
        text: &str,
        permitted: &[Network],
    ) -> Result<Self, DefinitionsError> {
        let refused = |problems| DefinitionsError::Problems { path: path.to_owned(), problems };
        let definitions = definitions::parse(text).map_err(refused)?;
        let base = path.parent().unwrap_or(Path::new(""));
        let permits = Permits { networks: permitted.to_vec(), ..Permits::default() };
        let targets = settings_of(&definitions.targets, base, &permits);
        let targets = targets.map_err(|wrong| refused(located(text, wrong)))?;
        // What it has was read before.
        let entries = definitions::entries(text).map_err(|detail| {
            refused(vec![Problem { line: 1, column: 1, key: String::new(), detail }])
        })?;
        let path = path.to_owned();
        Ok(Self { path, entries, definitions, targets, namespaces: Vec::new(), permits })
    }

    /// With the namespaces in force, which its streams must name.
    ///
    /// # Errors
    ///
    /// All streams that name another one, with their lines.
    pub(super) fn within(
        self,
        namespaces: &[Namespace],
        text: &str,
    ) -> Result<Self, DefinitionsError> {
        let wrong = unknown_namespaces(&self.definitions.streams, namespaces, |_| false);
        let problems = located(text, wrong);
        match problems.is_empty() {
            true => Ok(Self { namespaces: namespaces.to_vec(), ..self }.permitting(namespaces)),
            false => Err(DefinitionsError::Problems { path: self.path, problems }),
        }
    }

    /// The same with what users of these namespaces may define.
    pub(super) fn permitting(mut self, namespaces: &[Namespace]) -> Self {
        let tenants = namespaces.iter().map(|own| (own.name.clone(), own.api.clone()));
        self.permits.tenants = tenants.collect();
        self
    }

    /// The file, and what the API has defined, as one. Streams of deleted namespaces are left out,
    /// with their rules.
    ///
    /// # Errors
    ///
    /// All problems of the API's definitions.
    pub(super) fn whole(&self, own: &[Entry]) -> Result<LoadedDefinitions, DefinitionsError> {
        let text = definitions::text(own);
        let of_api = |problems: Vec<Wrong>| {
            let shown = problems.into_iter().take(PROBLEMS_MAX);
            DefinitionsError::Api(shown.map(|wrong| described(own, wrong)).collect())
        };
        let more = definitions::parse_more(&text, &self.definitions);
        let more = more
            .map_err(|found| of_api(found.into_iter().map(|it| (it.key, it.detail)).collect()))?;
        // A namespace that is not configured any more is suspended, with what its users have
        // defined.
        let tenants = own.iter().filter(|it| it.kind == Kind::Stream && it.tenant.is_some());
        let tenants: BTreeSet<&str> = tenants.map(|entry| &*entry.name).collect();
        let is_of_tenant = |stream: &StreamSpec| tenants.contains(&*stream.name);
        let wrong = unknown_namespaces(&more.streams, &self.namespaces, is_of_tenant);
        if !wrong.is_empty() {
            return Err(of_api(wrong));
        }
        // They name no files.
        let settings = settings_of(&more.targets, Path::new(""), &self.permits);
        let settings = settings.map_err(of_api)?;
        let mut definitions = self.definitions.clone();
        definitions.streams.extend(more.streams);
        definitions.targets.extend(more.targets);
        definitions.rules.extend(more.rules);
        let targets = definitions.rules.iter().filter_map(|spec| {
            let name = &spec.rule.target()?.name;
            let target = self.targets.get(name).or_else(|| settings.get(name))?;
            Some(target.of_form(spec.rule.form()))
        });
        let targets = targets.collect();
        let mut loaded = LoadedDefinitions { definitions, targets };
        loaded.leave_out_deleted(&self.namespaces);
        Ok(loaded)
    }

    pub(super) fn entry(&self, kind: Kind, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|own| (own.kind, &*own.name) == (kind, name))
    }

    /// What the API has defined, without streams of deleted namespaces and what reads them, and
    /// without what users of those have defined.
    pub(super) fn without_deleted(&self, mut own: Vec<Entry>) -> Vec<Entry> {
        let is_deleted = |name: &str| {
            let deleted = |own: &&Namespace| own.state == NamespaceState::Deleted;
            self.namespaces.iter().filter(deleted).any(|own| own.name == name)
        };
        let is_gone = |entry: &Entry| {
            let namespace = entry.text("namespace").unwrap_or(DEFAULT_NAMESPACE);
            entry.kind == Kind::Stream && is_deleted(namespace)
        };
        let of_file = self.entries.iter().filter(|entry| is_gone(entry));
        let gone = own.iter().filter(|entry| is_gone(entry)).chain(of_file);
        let gone: Vec<String> = gone.map(|entry| entry.name.clone()).collect();
        own.retain(|entry| {
            if entry.tenant.as_ref().is_some_and(|own| is_deleted(&own.namespace)) {
                return false;
            }
            let stream = match entry.kind {
                Kind::Stream => Some(&*entry.name),
                Kind::Rule => entry.text("stream"),
                Kind::Target => None,
            };
            stream.is_none_or(|name| !gone.iter().any(|gone| gone == name))
        });
        own
    }
}

/// What the API has defined, as the data directory has it. `is_expected`: there must be a file.
///
/// # Errors
///
/// The file is missing, damaged, or of another start.
pub(super) fn read_own(
    stamps: &Stamps,
    directory: &Path,
    is_expected: bool,
) -> anyhow::Result<Vec<Entry>> {
    let path = directory.join(DEFINITIONS_FILE);
    let Some(bytes) = stamps.read_if_there(&path)? else {
        let shown = path.display();
        anyhow::ensure!(
            !is_expected,
            "{shown} is missing, and the API has defined streams: put it back, or restore all files \
             of a backup"
        );
        return Ok(Vec::new());
    };
    let text = String::from_utf8(bytes).context("it must be text in UTF-8");
    let entries = text.and_then(|text| definitions::stored(&text).map_err(anyhow::Error::msg));
    entries.with_context(|| format!("{}: restore all files of a backup", path.display()))
}

/// The same ahead of a start, for which the stamp need not fit.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn peek_own(directory: &Path) -> anyhow::Result<Vec<Entry>> {
    let path = directory.join(DEFINITIONS_FILE);
    // The stamp is a comment.
    match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        read => {
            let entries = read.map_err(anyhow::Error::from);
            let entries =
                entries.and_then(|text| definitions::stored(&text).map_err(anyhow::Error::msg));
            entries.with_context(|| path.display().to_string())
        }
    }
}

/// Stores it: the old content or the new one, whatever happens.
///
/// # Errors
///
/// When the file cannot be written. Then the old content is there.
pub(super) fn write_own(stamps: &Stamps, directory: &Path, own: &[Entry]) -> std::io::Result<()> {
    let text = format!("{HEAD}{}", definitions::stored_text(own));
    stamps.write(&directory.join(DEFINITIONS_FILE), text.as_bytes())
}

const HEAD: &str = "\
# Streams, targets and rules that the management API has defined. The broker writes this file: a
# change by hand is refused. Targets may have passwords.
";

/// The settings of targets, by name.
fn settings_of(
    specs: &[TargetSpec],
    base: &Path,
    permits: &Permits,
) -> Result<BTreeMap<String, TargetSettings>, Vec<Wrong>> {
    let (mut by_name, mut problems) = (BTreeMap::new(), Vec::new());
    for (index, spec) in specs.iter().enumerate() {
        match targets::settings(spec, base, permits) {
            Ok(settings) => {
                by_name.insert(spec.name.clone(), settings);
            }
            Err(wrong) => {
                let own = |(key, detail)| (format!("targets.{index}.{key}"), detail);
                problems.extend(wrong.into_iter().map(own));
            }
        }
    }
    if problems.is_empty() { Ok(by_name) } else { Err(problems) }
}

/// Streams of namespaces that are not configured, but those for which that does not matter.
fn unknown_namespaces(
    streams: &[StreamSpec],
    namespaces: &[Namespace],
    may_be: impl Fn(&StreamSpec) -> bool,
) -> Vec<Wrong> {
    let is_known =
        |name: &str| name == DEFAULT_NAMESPACE || namespaces.iter().any(|own| *own.name == *name);
    let is_unknown = |it: &StreamSpec| !is_known(&it.namespace) && !may_be(it);
    let unknown = streams.iter().enumerate().filter(|(_, it)| is_unknown(it));
    let problem = |(index, stream): (usize, &StreamSpec)| {
        let name = &stream.namespace;
        let detail = format!("no namespace is named '{name}': add it to [[namespaces]]");
        (format!("streams.{index}.namespace"), detail)
    };
    unknown.map(problem).collect()
}

/// A problem with the name of its entry in place of the number.
fn described(own: &[Entry], (key, detail): Wrong) -> String {
    let mut parts = key.splitn(3, '.');
    let kind = parts.next().and_then(|list| Kind::ALL.into_iter().find(|it| it.list() == list));
    let index = parts.next().and_then(|index| index.parse::<usize>().ok());
    let of_kind = |kind: Kind| own.iter().filter(move |entry| entry.kind == kind);
    let entry = kind.zip(index).and_then(|(kind, index)| of_kind(kind).nth(index));
    let Some(entry) = entry else { return format!("definitions of the API: {detail}") };
    let (kind, name) = (entry.kind.word(), &entry.name);
    match parts.next() {
        Some(key) => format!("{kind} '{name}' of the API: {key}: {detail}"),
        None => format!("{kind} '{name}' of the API: {detail}"),
    }
}

#[cfg(test)]
mod tests {
    use routing::definitions::Tenant;
    use serde_json::{Value, json};

    use super::*;

    const FILE: &str = r##"
[[streams]]
name = "plants"
filters = ["plants/#"]
[[streams]]
name = "red-plants"
namespace = "red"
filters = ["plants/#"]
[[targets]]
name = "hook"
type = "http"
url = "https://example.com/in"
[[rules]]
name = "alarms"
stream = "plants"
filter = "#"
target = "hook"
"##;

    fn file(states: &[(&str, NamespaceState)]) -> OperatorFile {
        let own = |(name, state): &(&str, NamespaceState)| Namespace {
            state: *state,
            ..Namespace::open(name)
        };
        let namespaces: Vec<Namespace> = states.iter().map(own).collect();
        let file = OperatorFile::check(Path::new("rules.toml"), FILE, &[]).expect("it is valid");
        file.within(&namespaces, FILE).expect("all are there")
    }

    fn entry(kind: Kind, name: &str, keys: Value) -> Entry {
        let Value::Object(keys) = keys else { panic!("it is an object") };
        Entry::new(kind, name, keys).expect("a file can have it")
    }

    fn own() -> Vec<Entry> {
        vec![
            entry(
                Kind::Rule,
                "archive",
                json!({ "stream": "cars", "filter": "#", "target": "lake", "form": "batch" }),
            ),
            entry(Kind::Stream, "cars", json!({ "filters": ["cars/#"], "namespace": "red" })),
            entry(
                Kind::Target,
                "lake",
                json!({
                    "type": "http", "url": "https://example.com/lake", "headers": { "authorization": "hunter2" },
                }),
            ),
            entry(
                Kind::Rule,
                "copies",
                json!({ "stream": "plants", "filter": "#", "target": "hook" }),
            ),
            entry(
                Kind::Rule,
                "red-copies",
                json!({ "stream": "red-plants", "filter": "#", "target": "lake" }),
            ),
        ]
    }

    #[test]
    fn both_sources_are_one_whole() {
        let file = file(&[("red", NamespaceState::Open)]);
        let whole = file.whole(&own()).expect("it is valid");
        let names: Vec<&str> = whole.definitions.rules.iter().map(|own| own.name()).collect();
        assert_eq!(names, ["alarms", "archive", "copies", "red-copies"]);
        let urls = whole.targets.iter().map(|target| match target {
            TargetSettings::Http(own) => (own.url.as_str(), own.is_batched),
            TargetSettings::Kafka(_) => panic!("there is none"),
        });
        let (hook, lake) = ("https://example.com/in", "https://example.com/lake");
        let expected = [(hook, false), (lake, true), (hook, false), (lake, false)];
        assert_eq!(urls.collect::<Vec<_>>(), expected);
        assert!(!format!("{whole:?}").contains("hunter2"));
    }

    #[test]
    fn a_problem_names_the_definition() {
        let file = file(&[("red", NamespaceState::Open)]);
        for (place, wrong, expected) in [
            (
                0,
                json!({ "stream": "x", "filter": "#", "target": "lake" }),
                "rule 'archive' of the API: stream: no stream is",
            ),
            (
                1,
                json!({ "namespace": "blue" }),
                "stream 'cars' of the API: namespace: no namespace is named 'blue'",
            ),
            (
                2,
                json!({ "type": "http", "url": "https://a.b", "headers": { "host": "x" } }),
                "target 'lake' of the API: headers: ",
            ),
            (
                3,
                json!({ "stream": "plants", "filter": "#", "target": "hook", "lanes": 0 }),
                "rule 'copies' of the API: lanes: ",
            ),
        ] {
            let mut own = own();
            own[place] = entry(own[place].kind, &own[place].name, wrong);
            let error = file.whole(&own).expect_err(expected).to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        // The file has defined the same name since.
        let mut own = own();
        own.push(entry(
            Kind::Rule,
            "alarms",
            json!({ "stream": "plants", "filter": "#", "target": "hook" }),
        ));
        let error = file.whole(&own).expect_err("it is twice").to_string();
        assert!(
            error.contains("rule 'alarms' of the API: name: 'alarms' is defined in the file"),
            "{error}"
        );
    }

    #[test]
    fn what_belongs_to_a_deleted_namespace_is_gone() {
        let file = file(&[("red", NamespaceState::Deleted)]);
        let left = file.without_deleted(own());
        assert_eq!(format!("{left:?}"), "[target lake, rule copies]");
        let whole = file.whole(&left).expect("it is valid");
        let streams: Vec<&str> = whole.definitions.streams.iter().map(|own| &*own.name).collect();
        let rules: Vec<&str> = whole.definitions.rules.iter().map(|own| own.name()).collect();
        assert_eq!((streams, rules), (vec!["plants"], vec!["alarms", "copies"]));
        assert_eq!(whole.targets.len(), 2);
        let file = self::file(&[("red", NamespaceState::Suspended)]);
        assert!(file.without_deleted(own()) == own());
    }

    fn of_acme() -> Vec<Entry> {
        let rule = json!({ "stream": "acme.s", "filter": "#", "target": "acme.t" });
        let target = json!({
            "type": "http", "url": "https://hooks.example/in", "namespace": "acme",
        });
        let mut all = vec![
            entry(Kind::Stream, "acme.s", json!({ "namespace": "acme" })),
            entry(Kind::Target, "acme.t", target),
            entry(Kind::Rule, "acme.r", rule),
        ];
        for own in &mut all {
            own.tenant = Some(Tenant { namespace: "acme".into(), number: 3 });
        }
        all
    }

    #[test]
    fn what_a_tenant_has_defined_stays_until_its_namespace_is_deleted() {
        let own = of_acme();
        for states in [&[][..], &[("acme", NamespaceState::Suspended)]] {
            let file = file(&[&[("red", NamespaceState::Open)], states].concat());
            assert!(file.without_deleted(own.clone()) == own);
            let whole = file.whole(&own).expect("a namespace may be configured later");
            assert_eq!(whole.definitions.rules.len(), 2);
        }
        let deleted = [("red", NamespaceState::Open), ("acme", NamespaceState::Deleted)];
        assert!(file(&deleted).without_deleted(own).is_empty());
        let operators = entry(Kind::Stream, "x", json!({ "namespace": "acme" }));
        let file = file(&[("red", NamespaceState::Open)]);
        assert!(file.whole(&[operators]).is_err(), "only what a tenant has defined waits");
    }

    #[test]
    fn targets_of_a_tenant_have_the_permissions_of_its_namespace() {
        let networks = |hosts: &[&str]| {
            let mut acme = Namespace::open("acme");
            acme.api.target_hosts = hosts.iter().map(|&host| host.to_owned()).collect();
            let file = file(&[("red", NamespaceState::Open)]).permitting(&[acme]);
            let whole = file.whole(&of_acme()).expect("it is valid");
            let TargetSettings::Http(own) = whole.targets[1].clone() else { panic!("it is HTTP") };
            assert_eq!(whole.targets[1].namespace(), Some("acme"));
            assert_eq!(whole.targets[0].namespace(), None);
            own.networks
        };
        assert!(networks(&["*.example"]).check_host("hooks.example").is_ok());
        assert!(networks(&[]).check_host("hooks.example").is_err());
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let (dir, stamps) = (tempfile::tempdir().expect("a directory"), Stamps::default());
        let found = |dir: &Path| read_own(&stamps, dir, false);
        assert!(found(dir.path()).expect("there is none").is_empty());
        let error = read_own(&stamps, dir.path(), true).expect_err("it must be there");
        assert!(error.to_string().contains("stream-definitions is missing"), "{error}");
        let own = || [own(), of_acme()].concat();
        write_own(&stamps, dir.path(), &own()).expect("it can be written");
        let mut expected = own();
        expected.sort_by_key(|entry| entry.kind);
        assert!(found(dir.path()).expect("it is sound") == expected);
        let path = dir.path().join(DEFINITIONS_FILE);
        let text = std::fs::read_to_string(&path).expect("it is text");
        assert!(peek_own(dir.path()).expect("it is TOML with its stamp") == expected);
        std::fs::write(&path, text.replace("cars/#", "cars/+")).expect("it can be written");
        let error = found(dir.path()).expect_err("it was changed").to_string();
        assert!(error.contains("it is damaged"), "{error}");
        write_own(&stamps, dir.path(), &[]).expect("it can be written");
        assert!(found(dir.path()).expect("it is sound").is_empty());
    }
}
