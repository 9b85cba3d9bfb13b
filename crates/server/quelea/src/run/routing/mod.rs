//! Streams, targets and rules: from their definitions to what the broker runs.

mod apply;
pub(crate) mod board;
mod change;
mod figures;
mod in_cluster;
mod inbox;
mod operate;
mod owner;
mod report;
mod sending;
mod sources;
mod start;
mod targets;
mod tenants;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, Namespace, NamespaceState, Network};
use routing::definitions::{FILE_BYTES_MAX, PROBLEMS_MAX, RuleSpec};
use routing::{Definitions, Problem};

pub(crate) use board::Defined;
pub(crate) use change::{Change, ChangeError};
pub use figures::{RoutingFigures, RuleFacts, RuleFigures, StreamFigures};
pub(crate) use in_cluster::InCluster;
pub(crate) use inbox::Inbox;
pub(crate) use operate::{OperateError, RuleOrder};
pub(crate) use owner::Owner;
pub(crate) use sources::OperatorFile;
pub(crate) use start::{Ground, StreamsHandle};
pub(super) use start::{Prepared, Streams, note_unused, prepare};
pub(crate) use targets::TargetSettings;
use targets::Wrong;
pub(crate) use tenants::tenant_of;

/// Streams, targets and rules of all sources.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadedDefinitions {
    pub(crate) definitions: Definitions,
    /// What each rule sends to, in the order of the rules.
    pub(crate) targets: Vec<TargetSettings>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DefinitionsError {
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}", lines(path, problems))]
    Problems { path: PathBuf, problems: Vec<Problem> },
    /// Of what the API has defined.
    #[error("{}", .0.join("\n"))]
    Api(Vec<String>),
}

fn lines(path: &Path, problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| format!("{}:{problem}", path.display()));
    lines.collect::<Vec<_>>().join("\n")
}

/// Reads the file of a configuration, and the files of secrets that it names. None: there is none.
///
/// # Errors
///
/// All problems, with their lines.
pub(crate) fn load(
    config: &Config,
    namespaces: &[Namespace],
) -> Result<Option<OperatorFile>, DefinitionsError> {
    let Some(own) = &config.routing else { return Ok(None) };
    let text = read(&own.file)?;
    check(&own.file, &text, &own.target_networks)?.within(namespaces, &text).map(Some)
}

impl LoadedDefinitions {
    fn leave_out_deleted(&mut self, namespaces: &[Namespace]) {
        let is_deleted = |name: &str| {
            let mut deleted = namespaces.iter().filter(|own| own.state == NamespaceState::Deleted);
            deleted.any(|own| own.name == name)
        };
        let Definitions { streams, rules, .. } = &mut self.definitions;
        streams.retain(|stream| {
            let is_left_out = is_deleted(&stream.namespace);
            if is_left_out {
                let (stream, namespace) = (&*stream.name, &*stream.namespace);
                tracing::warn!(stream, namespace, "stream left out: its namespace is deleted");
            }
            !is_left_out
        });
        let has_stream = |rule: &RuleSpec| streams.iter().any(|own| own.name == rule.stream);
        let is_kept: Vec<bool> = rules.iter().map(has_stream).collect();
        let mut kept = is_kept.iter();
        self.targets.retain(|_| kept.next() == Some(&true));
        let mut kept = is_kept.iter();
        rules.retain(|_| kept.next() == Some(&true));
    }
}

/// What is allowed, and is hardly meant. What the API has defined in the data directory is checked
/// as well.
///
/// # Errors
///
/// All problems.
pub(crate) fn notes(config: &Config) -> anyhow::Result<Vec<String>> {
    let Some(file) = load(config, &config.namespaces)? else { return Ok(Vec::new()) };
    // A node of a cluster may have an old copy.
    let own = match config.cluster {
        None => sources::peek_own(&config.server.data_dir)?,
        Some(_) => Vec::new(),
    };
    let own = file.without_deleted(own);
    Ok(file.whole(&own)?.definitions.notes())
}

/// Takes what was loaded, with what the API has defined: all of it or nothing.
///
/// # Errors
///
/// What cannot be used. Then the definitions before stay in force.
pub(super) fn apply(running: &StreamsHandle, file: OperatorFile) -> anyhow::Result<()> {
    let Definitions { streams, targets, rules } = &file.definitions;
    let (streams, targets, rules) = (streams.len(), targets.len(), rules.len());
    running.change(APPLY_TIME_MAX, move |owner| owner.reload(file))??;
    tracing::info!(streams, targets, rules, "streams and rules reloaded");
    Ok(())
}

/// Rules of suspended namespaces send nothing from now on, and those of others do again. What users
/// of namespaces may define is as it is configured.
///
/// # Errors
///
/// The thread of streams does not answer, or the data directory cannot be written.
pub(super) fn follow_namespaces(
    running: &StreamsHandle,
    namespaces: &[Namespace],
) -> anyhow::Result<()> {
    let namespaces = namespaces.to_vec();
    Ok(running.ask(APPLY_TIME_MAX, move |owner| owner.permit(&namespaces))??)
}

/// Rules of a namespace that have messages to send, each with their number.
///
/// # Errors
///
/// The thread of streams does not answer.
pub(super) fn pending_in(running: &StreamsHandle, namespace: &str) -> anyhow::Result<Vec<String>> {
    let namespace = namespace.to_owned();
    Ok(running.ask(APPLY_TIME_MAX, move |owner| owner.pending_in(&namespace))?)
}

/// A file of a stream may have to be made meanwhile.
const APPLY_TIME_MAX: Duration = Duration::from_secs(10);

/// Checks the text of a file, and the files of secrets that it names.
///
/// # Errors
///
/// All problems, with their lines.
pub(crate) fn check(
    path: &Path,
    text: &str,
    permitted: &[Network],
) -> Result<OperatorFile, DefinitionsError> {
    OperatorFile::check(path, text, permitted)
}

/// The text of a file.
///
/// # Errors
///
/// It cannot be read, is too large, or is not text.
pub(crate) fn read(path: &Path) -> Result<String, DefinitionsError> {
    let fail = |source| DefinitionsError::Read { path: path.to_owned(), source };
    let bytes = read_at_most(path, FILE_BYTES_MAX).map_err(fail)?;
    String::from_utf8(bytes).map_err(|_| {
        fail(io::Error::new(io::ErrorKind::InvalidData, "the file must be text in UTF-8"))
    })
}

/// The bytes of a file.
pub(crate) fn read_at_most(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    match bytes.len() > bytes_max {
        true => {
            let detail = format!("the file must have at most {bytes_max} bytes");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, detail))
        }
        false => Ok(bytes),
    }
}

/// Problems with their lines, as many as are shown: to find a line reads the text.
fn located(text: &str, problems: impl IntoIterator<Item = Wrong>) -> Vec<Problem> {
    let shown = problems.into_iter().take(PROBLEMS_MAX);
    shown.map(|(key, detail)| Problem::at(text, &key, detail)).collect()
}
