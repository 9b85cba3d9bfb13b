//! One definition that the management API puts or deletes.

use std::path::PathBuf;
use std::sync::Arc;

use broker::streams::StreamNumber;
use routing::definitions::{Entry, Kind, Tenant};

use super::DefinitionsError;
use super::apply::ApplyError;
use super::owner::Owner;
use super::tenants;

/// What is to become of a definition.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// It is there from now on, in place of the one with its name.
    Put(Entry),
    /// `is_forced`: a stream goes with its messages, and with the rules that read it.
    Delete { kind: Kind, name: String, is_forced: bool },
}

impl Change {
    fn about(&self) -> (Kind, &str) {
        match self {
            Self::Put(entry) => (entry.kind, &entry.name),
            Self::Delete { kind, name, .. } => (*kind, name),
        }
    }
}

/// Why nothing has changed.
#[derive(Debug)]
pub(crate) enum ChangeError {
    /// The API has not defined it, nor has the file.
    Unknown,
    /// The operator's file defines it.
    OfFile(PathBuf),
    /// Users of this namespace have defined it, or only they may define such a name.
    OfNamespace(String),
    /// The caller may not know who has defined it.
    Taken,
    /// It is not what its caller may define.
    Body(String),
    /// A quota of the caller's namespace is used up.
    Quota(String),
    /// Rules use it.
    Used(String),
    /// The stream has so many messages.
    Stored(u64),
    /// It is wrong.
    Definitions(DefinitionsError),
    /// It does not go with what runs.
    Refused(String),
    /// The data directory cannot be written.
    Unwritten(String),
    /// The broker is stopping.
    Stopping,
}

impl From<DefinitionsError> for ChangeError {
    fn from(error: DefinitionsError) -> Self {
        Self::Definitions(error)
    }
}

impl From<ApplyError> for ChangeError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Definitions(error) => Self::Definitions(error),
            ApplyError::Refused(error) => Self::Refused(format!("{error:#}")),
            ApplyError::Unwritten(error) => Self::Unwritten(format!("{error:#}")),
        }
    }
}

impl Owner {
    /// The definitions with this change are checked as a whole, stored, and in force. `namespace`:
    /// that of the caller, if it is not an operator.
    pub(crate) fn change(
        &mut self,
        change: Change,
        namespace: Option<&str>,
    ) -> Result<(), ChangeError> {
        if self.ends_at.is_some() {
            return Err(ChangeError::Stopping);
        }
        let Some(namespace) = namespace else { return self.make(change, None) };
        let (kind, name) = change.about();
        let name = name.to_owned();
        let made = self.tenant(namespace).and_then(|tenant| self.make(change, Some(&tenant)));
        made.map_err(|error| tenants::shown(error, kind, &name))
    }

    fn make(&mut self, change: Change, tenant: Option<&Tenant>) -> Result<(), ChangeError> {
        self.forget_stale()?;
        let change = self.admitted(change, tenant)?;
        let put = match &change {
            Change::Put(entry) => Some((entry.kind, entry.name.clone())),
            Change::Delete { .. } => None,
        };
        let own = self.changed(change)?;
        if let (Some(tenant), Some((kind, name))) = (tenant, &put) {
            self.check_quotas(tenant, (*kind, name), &own)?;
        }
        self.apply(Arc::clone(&self.in_force.file), own)?;
        self.look(self.clock.now_ms());
        Ok(())
    }

    /// What the API has defined then.
    fn changed(&self, change: Change) -> Result<Vec<Entry>, ChangeError> {
        let mut own = self.in_force.own.clone();
        let (kind, name) = change.about();
        if self.in_force.file.entry(kind, name).is_some() {
            return Err(ChangeError::OfFile(self.in_force.file.path.clone()));
        }
        let place = own.iter().position(|entry| (entry.kind, &*entry.name) == (kind, name));
        match (change, place) {
            (Change::Put(entry), Some(place)) => own[place] = entry,
            (Change::Put(entry), None) => own.push(entry),
            (Change::Delete { .. }, None) => return Err(ChangeError::Unknown),
            (Change::Delete { kind, name, is_forced }, Some(place)) => {
                own.remove(place);
                match kind {
                    Kind::Stream => self.delete_stream(&mut own, &name, is_forced)?,
                    Kind::Target => check_unused(&own, "target", &name)?,
                    Kind::Rule => {}
                }
            }
        }
        Ok(own)
    }

    /// Rules of the file cannot read it: these refer to streams of the file only.
    fn delete_stream(
        &self,
        own: &mut Vec<Entry>,
        name: &str,
        is_forced: bool,
    ) -> Result<(), ChangeError> {
        let reads = |entry: &Entry| entry.kind == Kind::Rule && entry.text("stream") == Some(name);
        if is_forced {
            own.retain(|entry| !reads(entry));
        }
        // A rule that reads another stream is not deleted with this one.
        check_unused(own, "dead_letter", name)?;
        check_unused(own, "stream", name)?;
        let stored = self.stored_messages(name);
        if stored > 0 && !is_forced {
            return Err(ChangeError::Stored(stored));
        }
        Ok(())
    }

    fn stored_messages(&self, name: &str) -> u64 {
        let numbered = self.in_force.numbers.stream(name);
        let view = numbered.and_then(|own| self.hub.stream_view(StreamNumber(own.number)));
        view.map_or(0, |view| view.records + view.unmoved)
    }
}

/// No rule has this name at this key.
fn check_unused(own: &[Entry], key: &str, name: &str) -> Result<(), ChangeError> {
    let uses = |entry: &&Entry| entry.kind == Kind::Rule && entry.text(key) == Some(name);
    let rules: Vec<&str> = own.iter().filter(uses).map(|entry| &*entry.name).collect();
    match (rules.as_slice(), key) {
        ([], _) => Ok(()),
        (rules, "stream") => {
            let rules = rules.join(", ");
            Err(ChangeError::Used(format!("rules read it: {rules}")))
        }
        (rules, key) => {
            let rules = rules.join(", ");
            Err(ChangeError::Used(format!("rules name it as {key}: {rules}")))
        }
    }
}
