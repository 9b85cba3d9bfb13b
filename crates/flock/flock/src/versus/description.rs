//! How to start a broker: a small TOML file per broker, under `brokers/`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::container::{self, Boxed, Container, Removal};
use crate::faults::{BrokerProcess, FaultError};
use flock_measure::BrokerInfo;
use flock_model::scenario::units;

/// A broker as a file of `brokers/` describes it.
///
/// In `command`, `version`, `prepare`, `env` and files these are filled in: `{program}` the program
/// that was found, `{port}`, `{dir}` a fresh empty directory, `{cores}` the number of cores it is
/// given, and the names in `params`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    pub name: String,
    pub title: String,
    /// One sentence on how to get it.
    pub install: String,
    /// This project has not run it with this description.
    #[serde(default)]
    pub untested: bool,
    /// Where the program may be; the first that exists is taken. A name without `/` is looked for
    /// in the folder of flock's own program and then in `PATH`, `~` is the home directory,
    /// `$NAME/...` starts with an environment variable.
    #[serde(default)]
    pub programs: Vec<String>,
    #[serde(default)]
    pub command: Vec<String>,
    /// Taken where no program is found.
    pub container: Option<Container>,
    /// Where it runs already: it is not started, and nothing is known of its CPU and memory.
    #[serde(skip)]
    pub remote: Option<String>,
    /// Prints the version somewhere in its output.
    #[serde(default)]
    pub version: Vec<String>,
    /// Commands to run before, in `{dir}`, each to its end.
    #[serde(default)]
    pub prepare: Vec<Vec<String>>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, rename = "file")]
    pub files: Vec<ConfigFile>,
    /// How long it has to be under load before it is at its best (a JVM that compiles, say), as
    /// `30s`; more than the scenario's own warm-up.
    #[serde(default)]
    pub warm_up: String,
    /// What a reader of the table should know.
    #[serde(default)]
    pub note: String,
    /// Further words to be filled in.
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    /// The same broker under other names, with other params.
    #[serde(default, rename = "variant")]
    pub variants: Vec<Variant>,
    /// How it listens over TLS; without it, it takes part in no scenario that connects so.
    pub tls: Option<TlsForm>,
}

/// What is otherwise when a broker listens over TLS. Its certificate is then in
/// `{dir}/certificate.pem`, the key in `{dir}/key.pem`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsForm {
    /// These instead of the params of the same names.
    pub params: BTreeMap<String, String>,
    /// Commands to run before, after those of every start.
    #[serde(default)]
    pub prepare: Vec<Vec<String>>,
}

/// The same broker, set up in another way.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    pub name: String,
    pub title: String,
    #[serde(default)]
    pub note: String,
    /// These instead of the params of the same names.
    pub params: BTreeMap<String, String>,
}

/// A file to be written into `{dir}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    pub path: String,
    pub text: String,
}

/// Why a broker cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("unknown broker `{name}`; valid: {known}, or a file")]
    Unknown { name: String, known: String },
    #[error("{path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path}: {detail}")]
    Format { path: String, detail: String },
    #[error("{path}: {part} sets `{param}`, which is not in `params`")]
    Param { path: String, part: String, param: String },
    #[error("the scenario uses TLS, but the description of {title} has no [tls]")]
    NoTls { title: String },
    #[error(
        "{title} is not installed: {install}; or start it elsewhere and use \
             --brokers {name}=HOST:PORT"
    )]
    NotInstalled { name: String, title: String, install: String },
    #[error("`{given}`: the address of a running broker must be NAME=HOST:PORT")]
    Remote { given: String },
    #[error("the scenario uses TLS, which is not possible with {title} at an address")]
    RemoteTls { title: String },
    #[error("cannot prepare {title}: {detail}")]
    Prepare { title: String, detail: String },
    #[error("{title}: {source}")]
    Start { title: String, source: FaultError },
}

impl Description {
    /// The brokers that come with the lab, without their variants.
    pub fn plain() -> Vec<Self> {
        let first = |(name, text): &(&str, &str)| Self::parse(name, text).ok()?.into_iter().next();
        BUILT_IN.iter().filter_map(first).collect()
    }

    /// The descriptions that come with the lab, each followed by its variants.
    pub fn built_in() -> Vec<Self> {
        BUILT_IN.iter().filter_map(|(name, text)| Self::parse(name, text).ok()).flatten().collect()
    }

    /// By name, or from a file if `name` looks like one; `file.toml:variant` is a variant in it.
    ///
    /// `NAME=HOST:PORT` is one that runs there.
    pub fn find(name: &str) -> Result<Self, BrokerError> {
        if let Some((name, address)) = name.split_once('=') {
            return Self::at(name, address);
        }
        let (path, variant) = match name.split_once(".toml:") {
            Some((stem, variant)) => (format!("{stem}.toml"), Some(variant)),
            None => (name.to_owned(), None),
        };
        let is_file = path.contains('/') || path.ends_with(".toml");
        let all = if is_file {
            let text = std::fs::read_to_string(&path)
                .map_err(|source| BrokerError::Read { path: path.clone(), source })?;
            Self::parse(&path, &text)?
        } else {
            Self::built_in()
        };
        let known = all.iter().map(|known| known.name.clone()).collect::<Vec<_>>().join(", ");
        let mut all = all.into_iter();
        let wanted = if is_file { variant } else { Some(name) };
        let found = match wanted {
            Some(wanted) => all.find(|known| known.name == wanted),
            None => all.next(),
        };
        found.ok_or(BrokerError::Unknown { name: name.to_owned(), known })
    }

    fn at(name: &str, address: &str) -> Result<Self, BrokerError> {
        let wrong = || BrokerError::Remote { given: format!("{name}={address}") };
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        if name.is_empty() || host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(wrong());
        }
        let known = Self::built_in().into_iter().find(|known| known.name == name);
        let title = known.map_or_else(|| name.to_owned(), |known| known.title);
        let text = format!("name = {name:?}\ntitle = {title:?}\ninstall = \"\"\n");
        let mut one = Self::parse(name, &text)?.swap_remove(0);
        one.remote = Some(address.to_owned());
        one.note = "not started by flock; it keeps its state from round to round; CPU and memory \
                    are known only of a broker of this machine"
            .to_owned();
        Ok(one)
    }

    /// What a file describes: a broker, then its variants.
    fn parse(path: &str, text: &str) -> Result<Vec<Self>, BrokerError> {
        let mut plain: Self = toml::from_str(text).map_err(|error| BrokerError::Format {
            path: path.to_owned(),
            detail: error.to_string(),
        })?;
        let variants = std::mem::take(&mut plain.variants);
        if let Err(detail) = plain.warm_up_us() {
            return Err(BrokerError::Format { path: path.to_owned(), detail });
        }
        let check = |part: String, params: &BTreeMap<String, String>| {
            let strange = params.keys().find(|name| !plain.params.contains_key(*name));
            strange.map_or(Ok(()), |param| {
                Err(BrokerError::Param { path: path.to_owned(), part, param: param.clone() })
            })
        };
        if let Some(tls) = &plain.tls {
            check("[tls]".to_owned(), &tls.params)?;
        }
        let mut all = vec![plain.clone()];
        for variant in variants {
            check(format!("variant `{}`", variant.name), &variant.params)?;
            let mut params = plain.params.clone();
            params.extend(variant.params);
            let Variant { name, title, note, .. } = variant;
            all.push(Self { name, title, note, params, ..plain.clone() });
        }
        Ok(all)
    }

    /// The same broker, listening over TLS.
    pub fn over_tls(&self) -> Result<Self, BrokerError> {
        if self.remote.is_some() {
            return Err(BrokerError::RemoteTls { title: self.title.clone() });
        }
        let Some(tls) = &self.tls else {
            return Err(BrokerError::NoTls { title: self.title.clone() });
        };
        let mut other = self.clone();
        other.params.extend(tls.params.clone());
        other.prepare.extend(tls.prepare.clone());
        Ok(other)
    }

    /// Its warm-up; 0 where it needs no longer one than others.
    pub fn warm_up_us(&self) -> Result<u64, String> {
        if self.warm_up.is_empty() { Ok(0) } else { units::time(&self.warm_up) }
    }

    /// The program, if it is installed.
    pub fn program(&self) -> Option<PathBuf> {
        let found = self.programs.iter().find_map(|program| locate(program))?;
        // Commands may run in another directory than ours.
        Some(std::path::absolute(&found).unwrap_or(found))
    }

    /// Whether it can take part.
    pub fn is_there(&self) -> bool {
        let boxed = || self.container.is_some() && container::runtime().is_some();
        self.remote.is_some() || self.program().is_some() || boxed()
    }

    pub fn not_installed(&self) -> BrokerError {
        let Self { name, title, install, .. } = self;
        let install = match &self.container {
            None => install.clone(),
            Some(container) => {
                format!("{install}, or install docker or podman for {}", container.image)
            }
        };
        BrokerError::NotInstalled { name: name.clone(), title: title.clone(), install }
    }

    /// What a reader of the table should know.
    pub fn notes(&self) -> String {
        let untested = self.untested.then_some(UNTESTED);
        let words = [Some(self.note.as_str()).filter(|note| !note.is_empty()), untested];
        words.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn boxed(&self, port: u16) -> Option<Boxed<'_>> {
        if self.program().is_some() {
            return None;
        }
        let container = self.container.as_ref()?;
        let runtime = container::runtime()?;
        Some(Boxed { container, runtime, name: format!("flock-{}-{port}", self.name) })
    }

    /// Removes its container in the end, where it has one.
    pub(super) fn removal(&self, port: u16) -> Option<Removal> {
        self.boxed(port).map(|Boxed { runtime, name, .. }| Removal { runtime, name })
    }

    /// `quelea 0.1.0: /usr/bin/quelea`, if it is installed.
    pub fn program_words(&self) -> Option<String> {
        if let Some(address) = &self.remote {
            return Some(format!("{}: at {address}", self.name));
        }
        if let Some(Boxed { container, runtime, .. }) = self.boxed(0) {
            let runtime = runtime.display();
            return Some(format!("{}: {} with {runtime}", self.name, container.image));
        }
        let program = self.program()?;
        let path = program.display().to_string();
        let params = &self.params;
        let dir = PathBuf::new();
        let version = self.find_version(&Filling { program, port: 0, dir, cores: 1, params });
        Some(format!("{} {version}: {path}", self.name))
    }

    /// Starts it on `port`, confined to `cpus` if given, with its files in `dir`.
    pub fn start(
        &self,
        port: u16,
        cpus: Option<&str>,
        dir: &Path,
    ) -> Result<(BrokerProcess, BrokerInfo), BrokerError> {
        let boxed = self.boxed(port);
        let program = match &boxed {
            Some(boxed) => boxed.runtime.clone(),
            None => self.program().ok_or_else(|| self.not_installed())?,
        };
        let filling = Filling {
            program,
            port,
            dir: dir.to_path_buf(),
            cores: count_cpus(cpus),
            params: &self.params,
        };
        let config = self.prepare(&filling)?;
        let (version, command, inspect) = match &boxed {
            Some(boxed) => {
                let failed = |detail| BrokerError::Prepare { title: self.title.clone(), detail };
                boxed.fetch().map_err(failed)?;
                let fill = |word: &str| filling.fill(word);
                let command = boxed.command((cpus, dir), &self.env, &fill);
                (boxed.container.version().to_owned(), command, boxed.inspect())
            }
            None => (self.find_version(&filling), self.words(cpus, &filling), Vec::new()),
        };
        let address = format!("127.0.0.1:{port}");
        let process = BrokerProcess::start_inside(command.clone(), &address, inspect)
            .map_err(|source| BrokerError::Start { title: self.title.clone(), source })?;
        let info = BrokerInfo {
            name: self.name.clone(),
            version,
            addresses: vec![address],
            pid: process.pid(),
            command,
            config,
            cpus: cpus.map(str::to_owned),
            ..BrokerInfo::default()
        };
        Ok((process, info))
    }

    /// The command of its program.
    fn words(&self, cpus: Option<&str>, filling: &Filling<'_>) -> Vec<String> {
        let mut command = Vec::new();
        if let Some(cpus) = cpus {
            command.extend(["taskset", "-c", cpus].map(str::to_owned));
        }
        // `env` replaces itself by the program, as `taskset` does: the pid stays the broker's.
        if !self.env.is_empty() {
            command.push("env".to_owned());
            let pairs =
                self.env.iter().map(|(name, value)| format!("{name}={}", filling.fill(value)));
            command.extend(pairs);
        }
        command.extend(self.command.iter().map(|word| filling.fill(word)));
        command
    }

    fn prepare(&self, filling: &Filling<'_>) -> Result<String, BrokerError> {
        let failed = |detail: String| BrokerError::Prepare { title: self.title.clone(), detail };
        let mut config = String::new();
        for file in &self.files {
            let path = filling.dir.join(&file.path);
            let text = filling.fill(&file.text);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(|error| failed(error.to_string()))?;
            }
            std::fs::write(&path, &text).map_err(|error| failed(error.to_string()))?;
            config.push_str(&text);
        }
        for command in &self.prepare {
            let words: Vec<String> = command.iter().map(|word| filling.fill(word)).collect();
            let Some((program, arguments)) = words.split_first() else { continue };
            let done = Command::new(program)
                .args(arguments)
                .current_dir(&filling.dir)
                .envs(self.env.iter().map(|(name, value)| (name, filling.fill(value))))
                .stdin(Stdio::null())
                .output()
                .map_err(|error| failed(format!("`{}`: {error}", words.join(" "))))?;
            if !done.status.success() {
                let output = String::from_utf8_lossy(&done.stderr).into_owned();
                return Err(failed(format!("`{}` failed: {}", words.join(" "), output.trim())));
            }
        }
        Ok(config)
    }

    fn find_version(&self, filling: &Filling<'_>) -> String {
        let words: Vec<String> = self.version.iter().map(|word| filling.fill(word)).collect();
        let Some((program, arguments)) = words.split_first() else { return String::new() };
        let Ok(done) = Command::new(program).args(arguments).stdin(Stdio::null()).output() else {
            return String::new();
        };
        let mut text = String::from_utf8_lossy(&done.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&done.stderr));
        version_in(&text).unwrap_or_default().to_owned()
    }
}

/// The first word that looks like a version: digits and dots, perhaps after a `v`.
fn version_in(text: &str) -> Option<&str> {
    text.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '/' | '(' | ')' | '"'))
        .find_map(|word| {
            let word = word.strip_prefix('v').unwrap_or(word);
            let starts = word.starts_with(|c: char| c.is_ascii_digit());
            (starts && word.contains('.')).then(|| word.trim_end_matches('.'))
        })
}

struct Filling<'a> {
    program: PathBuf,
    port: u16,
    dir: PathBuf,
    cores: usize,
    params: &'a BTreeMap<String, String>,
}

impl Filling<'_> {
    fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in self.params {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text.replace("{program}", &self.program.display().to_string())
            .replace("{port}", &self.port.to_string())
            .replace("{dir}", &self.dir.display().to_string())
            .replace("{cores}", &self.cores.to_string())
    }
}

pub(super) fn locate(program: &str) -> Option<PathBuf> {
    let home = std::env::var("HOME").unwrap_or_default();
    let path = if let Some(rest) = program.strip_prefix("~/") {
        PathBuf::from(home).join(rest)
    } else if let Some(rest) = program.strip_prefix('$') {
        let (name, rest) = rest.split_once('/')?;
        PathBuf::from(std::env::var_os(name)?).join(rest)
    } else if program.contains('/') {
        PathBuf::from(program)
    } else {
        let own = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
        let path = std::env::var_os("PATH").unwrap_or_default();
        return first_in(own.into_iter().chain(std::env::split_paths(&path)), program);
    };
    path.exists().then_some(path)
}

/// What was built together with this program is measured, rather than an installed release.
fn first_in(folders: impl Iterator<Item = PathBuf>, program: &str) -> Option<PathBuf> {
    folders.map(|folder| folder.join(program)).find(|found| found.is_file())
}

/// How many cores a list such as `0-1,3` names; all of them for `None`.
pub(super) fn count_cpus(cpus: Option<&str>) -> usize {
    let Some(cpus) = cpus else { return crate::engine::host::cores() };
    parse_cpus(cpus).len().max(1)
}

/// The cores of a list such as `0-1,3`.
pub(super) fn parse_cpus(cpus: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for part in cpus.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.trim().parse::<usize>(), to.trim().parse::<usize>()) {
            found.extend(from..=to.min(from + CPUS_MAX));
        }
    }
    found
}

const CPUS_MAX: usize = 1_023;

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../brokers/", $name, ".toml")))),*]
    };
}

const UNTESTED: &str = "this project has not run it with this description";

const BUILT_IN: [(&str, &str); 15] = built_in![
    "quelea",
    "mosquitto",
    "rumqttd",
    "rmqttd",
    "nats",
    "hivemq",
    "rabbitmq",
    "mochi",
    "aedes",
    "emqx",
    "vernemq",
    "nanomq",
    "flashmq",
    "bifromq",
    "tbmq"
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_description_can_be_read() {
        let mut names = Vec::new();
        for (name, text) in BUILT_IN {
            let all = Description::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(all[0].name, name);
            assert_eq!(all[0].command.is_empty(), all[0].programs.is_empty(), "{name}");
            assert!(!all[0].install.is_empty(), "{name}");
            assert!(all[1..].iter().all(|variant| variant.name.starts_with(name)), "{name}");
            names.extend(all.into_iter().map(|description| description.name));
        }
        let built_in = Description::built_in();
        assert!(built_in.iter().map(|description| &description.name).eq(&names));
        let plain: Vec<String> = Description::plain().into_iter().map(|one| one.name).collect();
        assert_eq!(plain, BUILT_IN.map(|(name, _)| name));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), built_in.len(), "names are unique");
    }

    const TWO_FORMS: &str = r#"
name = "mine"
title = "Mine"
install = "write it"
programs = ["/bin/sh"]
command = ["{program}", "--keep={keep}", "{dir}"]
params = { keep = "nothing" }
[[variant]]
name = "mine-durable"
title = "Mine, durable"
params = { keep = "all" }
"#;

    #[test]
    fn a_variant_is_the_broker_with_other_params() {
        let all = Description::parse("mine.toml", TWO_FORMS).unwrap();
        let words: Vec<String> = all
            .iter()
            .map(|description| {
                let (program, dir) = (PathBuf::from("/p"), PathBuf::from("/d"));
                let params = &description.params;
                let filling = Filling { program, port: 1, dir, cores: 2, params };
                let words = description.command.iter().map(|word| filling.fill(word));
                words.collect::<Vec<_>>().join(" ")
            })
            .collect();
        assert_eq!(words, ["/p --keep=nothing /d", "/p --keep=all /d"]);
        assert_eq!(all[1].name, "mine-durable");
    }

    #[test]
    fn a_variant_cannot_set_what_is_not_a_param() {
        let text = TWO_FORMS.replace("{ keep = \"all\" }", "{ kept = \"all\" }");
        let error = Description::parse("mine.toml", &text).unwrap_err().to_string();
        assert!(error.contains("mine-durable") && error.contains("`kept`"), "{error}");
    }

    #[test]
    fn over_tls_it_has_other_params_and_more_to_prepare() {
        let tls = "[tls]\nparams = { keep = \"{dir}/key.pem\" }\nprepare = [[\"pack\"]]\n";
        let all = Description::parse("mine.toml", &format!("{TWO_FORMS}{tls}")).unwrap();
        for description in &all {
            let form = description.over_tls().unwrap();
            assert_eq!(form.params["keep"], "{dir}/key.pem");
            assert_eq!(form.prepare, [["pack"]]);
            assert_eq!(form.name, description.name);
        }
        let wrong = format!("{TWO_FORMS}{}", tls.replace("keep", "kept"));
        let error = Description::parse("mine.toml", &wrong).unwrap_err().to_string();
        assert!(error.contains("[tls] sets `kept`"), "{error}");
    }

    #[test]
    fn a_broker_that_is_not_described_over_tls_says_so() {
        let plain = Description::parse("mine.toml", TWO_FORMS).unwrap().remove(0);
        let error = plain.over_tls().unwrap_err().to_string();
        assert!(error.contains("Mine") && error.contains("[tls]"), "{error}");
    }

    #[test]
    fn a_file_gives_its_broker_or_the_variant_named_behind_it() {
        let path = std::env::temp_dir().join(format!("flock-{}-mine.toml", std::process::id()));
        std::fs::write(&path, TWO_FORMS).unwrap();
        let find = |name: String| Description::find(&name).map(|found| found.name);
        let file = path.display().to_string();
        let found = [find(file.clone()), find(format!("{file}:mine-durable"))];
        let missing = find(format!("{file}:other"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.map(Result::unwrap), ["mine", "mine-durable"]);
        assert!(missing.unwrap_err().to_string().contains("mine, mine-durable"));
    }

    #[test]
    fn versions_are_found_in_what_programs_say() {
        assert_eq!(version_in("mosquitto version 2.0.11\n\nmosquitto is"), Some("2.0.11"));
        assert_eq!(version_in("nats-server: v2.15.2"), Some("2.15.2"));
        assert_eq!(version_in("rmqtt/0.24.0-2026 rustc/1.95.0"), Some("0.24.0-2026"));
        assert_eq!(version_in("no version here"), None);
    }

    #[test]
    fn the_program_of_the_first_folder_is_taken() {
        let base = std::env::temp_dir().join(format!("flock-{}-folders", std::process::id()));
        let folders = ["own", "path"].map(|name| base.join(name));
        for folder in &folders {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(folders[1].join("quelea"), "").unwrap();
        let installed = first_in(folders.clone().into_iter(), "quelea");
        std::fs::write(folders[0].join("quelea"), "").unwrap();
        let built = first_in(folders.clone().into_iter(), "quelea");
        std::fs::remove_dir_all(&base).unwrap();
        assert_eq!(installed, Some(folders[1].join("quelea")));
        assert_eq!(built, Some(folders[0].join("quelea")));
    }

    #[test]
    fn core_lists_are_read_as_taskset_does() {
        assert_eq!(parse_cpus("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(count_cpus(Some("1,3")), 2);
    }

    #[test]
    fn a_broker_says_when_it_needs_a_longer_warm_up() {
        for broker in Description::built_in() {
            let is_jvm = broker.name.starts_with("hivemq") || broker.name == "bifromq";
            let warm_up_us = broker.warm_up_us().unwrap();
            assert_eq!(warm_up_us >= 30_000_000, is_jvm, "{}: {warm_up_us} us", broker.name);
        }
        let wrong = format!("warm_up = \"a while\"\n{TWO_FORMS}");
        let error = Description::parse("mine.toml", &wrong).unwrap_err().to_string();
        assert!(error.starts_with("mine.toml: "), "{error}");
    }

    #[test]
    fn an_unknown_broker_names_the_known_ones() {
        let error = Description::find("moskito").unwrap_err().to_string();
        assert!(error.contains("mosquitto") && error.contains("quelea"), "{error}");
    }

    #[test]
    fn a_broker_that_is_not_installed_says_how_to_get_it() {
        let mut description = Description::find("mosquitto").unwrap();
        description.programs = vec!["no-such-program".into()];
        let error = description.start(1, None, Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("apt-get install"), "{error}");
        assert!(error.contains("--brokers mosquitto=HOST:PORT"), "{error}");
    }

    #[test]
    fn a_broker_that_runs_elsewhere_is_given_by_its_address() {
        let found = Description::find("emqx=10.0.0.5:1883").unwrap();
        assert_eq!((found.name.as_str(), found.title.as_str()), ("emqx", "EMQX"));
        assert!(found.is_there() && found.notes().contains("not started by flock"));
        assert!(found.over_tls().unwrap_err().to_string().contains("EMQX at an address"));
        assert!(Description::find("mine=[::1]:1883").is_ok(), "it need not be a known one");
        for wrong in ["emqx=", "emqx=host", "emqx=host:x", "emqx=host:0", "=host:1", "emqx=:1883"] {
            let error = Description::find(wrong).unwrap_err().to_string();
            assert!(error.contains("NAME=HOST:PORT") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn what_was_never_run_says_so_and_every_word_is_filled_in() {
        for broker in Description::built_in().iter().filter(|broker| broker.untested) {
            assert!(broker.notes().contains(UNTESTED), "{}", broker.name);
            let filling = Filling {
                program: PathBuf::from("/opt/program"),
                port: 4_321,
                dir: PathBuf::from("/work"),
                cores: 2,
                params: &broker.params,
            };
            let fill = |word: &str| filling.fill(word);
            let mut texts: Vec<String> = broker.words(Some("0-1"), &filling);
            texts.extend(broker.files.iter().map(|file| fill(&file.text)));
            if let Some(container) = &broker.container {
                let (runtime, name) = (PathBuf::from("docker"), "flock-x-4321".to_owned());
                let boxed = Boxed { container, runtime, name };
                let at = (Some("0-1"), Path::new("/work"));
                texts.extend(boxed.command(at, &broker.env, &fill));
                assert!(!container.version().is_empty(), "{}: a fixed tag", broker.name);
            }
            let all = texts.join("\n");
            for word in ["{port}", "{dir}", "{cores}", "{program}"] {
                assert!(!all.contains(word), "{}: {word}: {all}", broker.name);
            }
            let is_started = !broker.programs.is_empty() || broker.container.is_some();
            assert_eq!(all.contains("4321"), is_started, "{}: {all}", broker.name);
        }
    }
}
