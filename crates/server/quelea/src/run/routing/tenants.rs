//! What users of a namespace define by the API: names, references and quotas of theirs only.
//!
//! An entry that they have defined has its [`Tenant`]. Rules, streams and targets refer to each
//! other only if they have the same one, or none: so no change of a namespace concerns another.

use config::NamespaceApi;
use identity::namespaces::Namespaces;
use routing::definitions::{self, Entry, Kind, Tenant};

use super::change::{Change, ChangeError};
use super::owner::Owner;
use super::{DefinitionsError, LoadedDefinitions, targets};

/// Bytes of a definition, on average over all that a namespace may have. Policy: a further one is
/// refused. All definitions of the API are in one file with a limit of its own.
const DEFINITION_BYTES: usize = 4096;

/// In place of what concerns others.
const OTHERS: &str = "the broker cannot take this definition: its operator finds the cause in the \
                      log";

/// Without what users of a namespace have defined that is gone. Its name may be of another now.
pub(super) fn without_stale(mut own: Vec<Entry>, namespaces: &Namespaces) -> Vec<Entry> {
    own.retain(|entry| !is_stale(entry, namespaces));
    own
}

fn is_stale(entry: &Entry, namespaces: &Namespaces) -> bool {
    let Some(tenant) = &entry.tenant else { return false };
    tenant_of(&tenant.namespace, namespaces).as_ref() != Some(tenant)
}

/// None: there is no such namespace.
pub(crate) fn tenant_of(namespace: &str, namespaces: &Namespaces) -> Option<Tenant> {
    let number = namespaces.scope_of(namespace)?.number();
    Some(Tenant { namespace: namespace.to_owned(), number })
}

/// What a tenant learns of an error: nothing about the definitions of others.
pub(super) fn shown(error: ChangeError, kind: Kind, name: &str) -> ChangeError {
    let own = format!("{} '{name}'", kind.word());
    match error {
        ChangeError::Definitions(DefinitionsError::Api(lines)) => {
            let (own, others): (Vec<_>, Vec<_>) =
                lines.into_iter().partition(|line| line.starts_with(&own));
            match own.is_empty() {
                false => ChangeError::Definitions(DefinitionsError::Api(own)),
                true => hidden(&others.join("; ")),
            }
        }
        ChangeError::Definitions(error) => hidden(&error.to_string()),
        ChangeError::Refused(detail) if !detail.starts_with(&own) => hidden(&detail),
        ChangeError::Unwritten(detail) => {
            tracing::warn!(detail, "definition of a namespace not stored");
            ChangeError::Unwritten("the disk refuses it".into())
        }
        error => error,
    }
}

fn hidden(detail: &str) -> ChangeError {
    tracing::warn!(detail, "definition of a namespace refused");
    ChangeError::Refused(OTHERS.into())
}

impl Owner {
    /// Who users of this namespace are now.
    pub(super) fn tenant(&self, namespace: &str) -> Result<Tenant, ChangeError> {
        let tenant = tenant_of(namespace, &self.ground.namespaces);
        tenant.ok_or_else(|| ChangeError::Refused(OTHERS.into()))
    }

    /// Whether users of this namespace have defined it.
    pub(super) fn is_of(&self, kind: Kind, name: &str, namespace: &str) -> bool {
        let tenant = tenant_of(namespace, &self.ground.namespaces);
        tenant.is_some() && self.own_entry(kind, name).is_some_and(|own| own.tenant == tenant)
    }

    /// Nothing is defined in addition to what users of a namespace of the same name have left.
    pub(super) fn forget_stale(&mut self) -> Result<(), ChangeError> {
        let namespaces = &self.ground.namespaces;
        if !self.in_force.own.iter().any(|entry| is_stale(entry, namespaces)) {
            return Ok(());
        }
        let own = without_stale(self.in_force.own.clone(), namespaces);
        Ok(self.apply(self.in_force.file.clone(), own)?)
    }

    /// The change as it is made if its caller may make it. No tenant: the caller is an operator.
    pub(super) fn admitted(
        &self,
        change: Change,
        tenant: Option<&Tenant>,
    ) -> Result<Change, ChangeError> {
        match (change, tenant) {
            (Change::Put(entry), Some(tenant)) => Ok(Change::Put(self.of_tenant(entry, tenant)?)),
            (Change::Put(entry), None) => {
                self.check_of_operator(&entry)?;
                Ok(Change::Put(entry))
            }
            (Change::Delete { kind, name, .. }, Some(tenant))
                if !self.is_of(kind, &name, &tenant.namespace) =>
            {
                Err(ChangeError::Unknown)
            }
            (delete, _) => Ok(delete),
        }
    }

    fn of_tenant(&self, mut entry: Entry, tenant: &Tenant) -> Result<Entry, ChangeError> {
        let Tenant { namespace, .. } = tenant;
        if !is_within(&entry.name, namespace) {
            let detail = format!("name: must begin with '{namespace}.'");
            return Err(ChangeError::Body(detail));
        }
        if entry.kind != Kind::Rule {
            if entry.keys().get("namespace").is_some_and(|own| *own != **namespace) {
                let detail = format!("namespace: must be '{namespace}' or left out");
                return Err(ChangeError::Body(detail));
            }
            entry = entry.with("namespace", namespace);
        }
        let known = self.own_entry(entry.kind, &entry.name);
        let is_of_operator = known.is_some_and(|known| known.tenant.as_ref() != Some(tenant));
        if is_of_operator || self.in_force.file.entry(entry.kind, &entry.name).is_some() {
            return Err(ChangeError::Taken);
        }
        for (key, kind, name) in references(&entry) {
            if !self.is_of(kind, name, namespace) {
                let (own, kind) = (&entry.name, kind.word());
                return Err(ChangeError::Body(format!(
                    "rule '{own}' of the API: {key}: no {kind} is named '{name}'"
                )));
            }
        }
        entry.tenant = Some(tenant.clone());
        Ok(entry)
    }

    fn check_of_operator(&self, entry: &Entry) -> Result<(), ChangeError> {
        let known = self.own_entry(entry.kind, &entry.name);
        if let Some(tenant) = known.and_then(|known| known.tenant.as_ref()) {
            return Err(ChangeError::OfNamespace(tenant.namespace.clone()));
        }
        let tenants = self.in_force.file.permits.tenants.iter();
        let mut tenants = tenants.filter(|(_, own)| !own.users.is_empty());
        if let Some((namespace, _)) = tenants.find(|(name, _)| is_within(&entry.name, name))
            && known.is_none()
        {
            return Err(ChangeError::OfNamespace(namespace.clone()));
        }
        if entry.kind == Kind::Target && entry.keys().contains_key("namespace") {
            let detail = "namespace: targets have this key only if users of a namespace define \
                          them: remove it";
            return Err(ChangeError::Body(detail.into()));
        }
        for (key, kind, name) in references(entry) {
            let found = self.own_entry(kind, name).and_then(|own| own.tenant.as_ref());
            if let Some(Tenant { namespace, .. }) = found {
                return Err(ChangeError::Body(format!(
                    "{key}: users of namespace '{namespace}' have defined '{name}': only their \
                     rules may use it"
                )));
            }
        }
        Ok(())
    }

    /// `own`: all definitions of the API as they would be, `kind` and `name` the one that is put.
    pub(super) fn check_quotas(
        &self,
        tenant: &Tenant,
        (kind, name): (Kind, &str),
        own: &[Entry],
    ) -> Result<(), ChangeError> {
        let loaded = self.in_force.file.whole(own)?;
        let namespace = &tenant.namespace;
        let permits = &self.in_force.file.permits;
        let quota = permits.tenants.get(namespace).cloned().unwrap_or_default();
        let before = Used::of(tenant, kind, &self.in_force.own, &self.in_force.loaded);
        let after = Used::of(tenant, kind, own, &loaded);
        after.check(&before, kind, &quota).map_err(ChangeError::Quota)?;
        let wrong = |key: &str, detail: &str| {
            let kind = kind.word();
            Err(ChangeError::Body(format!("{kind} '{name}' of the API: {key}: {detail}")))
        };
        let definitions = &loaded.definitions;
        if kind == Kind::Stream && definitions.stream(name).is_some_and(|it| it.bytes_max.is_none())
        {
            return wrong("bytes_max", "missing: a stream of a namespace must have a limit");
        }
        let target = definitions.target(name).filter(|_| kind == Kind::Target);
        let permitted = permits.of_namespace(namespace);
        match target.and_then(|spec| targets::check_permitted(spec, &permitted)) {
            Some((key, detail)) => wrong(&key, &detail),
            None => Ok(()),
        }
    }

    /// What the API has defined of this name.
    pub(super) fn own_entry(&self, kind: Kind, name: &str) -> Option<&Entry> {
        self.in_force.own.iter().find(|own| (own.kind, &*own.name) == (kind, name))
    }
}

/// What a namespace uses of its quotas.
struct Used {
    /// Definitions of the kind.
    count: u64,
    /// Limits of its streams.
    stream_bytes: u64,
    /// Of all its definitions.
    text_bytes: usize,
}

impl Used {
    fn of(tenant: &Tenant, kind: Kind, own: &[Entry], loaded: &LoadedDefinitions) -> Self {
        let own = own.iter().filter(|entry| entry.tenant.as_ref() == Some(tenant));
        let own: Vec<Entry> = own.cloned().collect();
        let streams = own.iter().filter(|entry| entry.kind == Kind::Stream);
        let limits = streams.filter_map(|it| loaded.definitions.stream(&it.name)?.bytes_max);
        Self {
            count: own.iter().filter(|entry| entry.kind == kind).count() as u64,
            stream_bytes: limits.fold(0, u64::saturating_add),
            text_bytes: definitions::text(&own).len(),
        }
    }

    /// What is above a limit that was lowered may stay, and not grow.
    fn check(&self, before: &Self, kind: Kind, quota: &NamespaceApi) -> Result<(), String> {
        let (key, max) = match kind {
            Kind::Stream => ("streams_max", quota.streams_max),
            Kind::Target => ("targets_max", quota.targets_max),
            Kind::Rule => ("rules_max", quota.rules_max),
        };
        if self.count > before.count.max(max) {
            return Err(format!("{key}: the namespace may have {max}, and has {}", before.count));
        }
        let (bytes, max) = (self.stream_bytes, quota.stream_bytes_max);
        if bytes > before.stream_bytes.max(max) {
            return Err(format!(
                "stream_bytes_max: the sum of bytes_max of the namespace's streams must be at \
                 most {max} bytes, got {bytes}"
            ));
        }
        let count = quota.streams_max + quota.targets_max + quota.rules_max;
        let (bytes, max) = (self.text_bytes, DEFINITION_BYTES * count as usize);
        if bytes > before.text_bytes.max(max) {
            return Err(format!(
                "all definitions of the namespace must have at most {max} bytes, got {bytes}"
            ));
        }
        Ok(())
    }
}

/// Is it a name that definitions of this namespace have?
fn is_within(name: &str, namespace: &str) -> bool {
    let rest = name.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('.'));
    rest.is_some_and(|rest| !rest.is_empty())
}

/// What a rule names, with the keys.
fn references(entry: &Entry) -> impl Iterator<Item = (&'static str, Kind, &str)> {
    let keys = [("stream", Kind::Stream), ("target", Kind::Target), ("dead_letter", Kind::Stream)];
    let named = move |(key, kind)| Some((key, kind, entry.text(key)?));
    keys.into_iter().filter(|_| entry.kind == Kind::Rule).filter_map(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_the_namespace_that_they_begin_with() {
        assert!(["acme.a", "acme.a.b", "acme.."].iter().all(|name| is_within(name, "acme")));
        let others = ["acme", "acme.", "acmes.a", "zeta.a", "ACME.a", ".acme.a", ""];
        assert!(others.iter().all(|name| !is_within(name, "acme")));
    }

    #[test]
    fn a_tenant_learns_of_its_own_definition_only() {
        let api = |lines: &[&str]| {
            let lines = lines.iter().map(|&line| line.to_owned()).collect();
            ChangeError::Definitions(DefinitionsError::Api(lines))
        };
        let (own, other) = ("rule 'acme.r' of the API: lanes: 0", "rule 'zeta.r' of the API: x: 1");
        let text = |error| match shown(error, Kind::Rule, "acme.r") {
            ChangeError::Definitions(error) => error.to_string(),
            ChangeError::Refused(detail) | ChangeError::Unwritten(detail) => detail,
            error => format!("{error:?}"),
        };
        assert_eq!(text(api(&[other, own])), own);
        assert_eq!(text(api(&[other])), OTHERS);
        assert_eq!(text(ChangeError::Refused(other.into())), OTHERS);
        assert_eq!(
            text(ChangeError::Refused("rule 'acme.r': stream: x".into())),
            "rule 'acme.r': stream: x"
        );
        assert_eq!(text(ChangeError::Unwritten("/var/lib: full".into())), "the disk refuses it");
        let prefix = ChangeError::Refused("rule 'acme.r2': stream: x".into());
        assert_eq!(text(prefix), OTHERS);
    }

    #[test]
    fn what_is_above_a_quota_may_stay_and_not_grow() {
        let used = |count, stream_bytes| Used { count, stream_bytes, text_bytes: 10 };
        let quota =
            NamespaceApi { streams_max: 2, stream_bytes_max: 100, ..NamespaceApi::default() };
        let check = |before: (u64, u64), after: (u64, u64)| {
            used(after.0, after.1).check(&used(before.0, before.1), Kind::Stream, &quota).is_ok()
        };
        assert!(check((1, 50), (2, 100)));
        assert!(!check((2, 50), (3, 60)) && !check((1, 50), (2, 101)));
        assert!(check((5, 500), (5, 500)) && check((5, 500), (4, 400)));
        assert!(!check((5, 500), (5, 501)) && !check((5, 500), (6, 500)));
    }
}
