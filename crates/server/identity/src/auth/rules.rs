//! What is in force: the rules of the access file and of the policy file, together.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use broker::Rules;
use policy::Access;
use policy::{OrderedRule, Origin, Rule, RuleError, Source};

use super::acl_file::{self, AclFileError};
use super::lock;
use super::policy_file::{self, PolicyFileError};
use crate::namespaces::View;
use config::namespaces::DEFAULT;
use config::{Config, NamespaceState};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    #[error(transparent)]
    AccessFile(#[from] AclFileError),
    #[error(transparent)]
    PolicyFile(#[from] PolicyFileError),
    #[error(transparent)]
    Together(RuleError),
}

/// Reads and compiles the files that the configuration names. Without one everybody may do
/// everything.
///
/// # Errors
///
/// When a file cannot be read, or at the first thing in it that is not understood. And at the first
/// rule for user names where nothing proves them.
pub fn load(config: &Config) -> Result<BrokerRules, RulesError> {
    load_by(config, &|path| std::fs::read_to_string(path))
}

/// The same, with another way to read a file.
///
/// # Errors
///
/// As [`load`].
pub fn load_by(config: &Config, reader: Reader<'_>) -> Result<BrokerRules, RulesError> {
    let access = &config.access;
    let mut files = Vec::new();
    let paths = (&access.acl_file, &access.policy_file);
    let default = compile(config, reader, (DEFAULT, paths), &mut files)?;
    let mut others = BTreeMap::new();
    for own in &config.namespaces {
        let paths = (&own.acl_file, &own.policy_file);
        others.insert(own.name.clone(), compile(config, reader, (&own.name, paths), &mut files)?);
    }
    let (former, asks_service) = (BTreeMap::new(), config.authorization.is_some());
    Ok(BrokerRules { default, others, former, asks_service, files: files.into() })
}

/// Of the default namespace, and of those of the configuration by their names.
#[derive(Clone)]
pub struct BrokerRules {
    default: Access,
    others: BTreeMap<String, Access>,
    /// Of namespaces that the configuration had and has no more.
    former: BTreeMap<String, Access>,
    /// A service decides what they do not, in all namespaces.
    asks_service: bool,
    files: Arc<[RuleFile]>,
}

/// A file with rules, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFile {
    /// Whose rules they are.
    pub namespace: String,
    pub source: Source,
    pub path: PathBuf,
    pub text: String,
}

/// The files that hold now, for who looks at them.
#[derive(Debug, Default)]
pub struct RuleFiles(Mutex<Arc<[RuleFile]>>);

impl RuleFiles {
    pub fn set(&self, files: Arc<[RuleFile]>) {
        *lock(&self.0) = files;
    }

    pub fn get(&self) -> Arc<[RuleFile]> {
        lock(&self.0).clone()
    }
}

impl BrokerRules {
    /// The files that hold, each as it was read.
    pub fn files(&self) -> Arc<[RuleFile]> {
        self.files.clone()
    }

    /// Are there any?
    pub fn are_some(&self) -> bool {
        !self.default.is_open() || self.others.values().any(|access| !access.is_open())
    }

    /// With those that held until now in namespaces of which nothing is said any more: they are
    /// closed, and what they have is kept, wills among it.
    #[must_use]
    pub fn after(self, old: Self) -> Self {
        let former = old.former.into_iter().chain(old.others);
        let former = former.filter(|(name, _)| !self.others.contains_key(name)).collect();
        Self { former, ..self }
    }

    /// The same for shards, which know namespaces by number. In one without rules that takes
    /// clients, everybody may do everything; in one that is closed, nobody anything.
    pub fn of_scopes(&self, namespaces: &[View]) -> Rules {
        let others = namespaces.iter().filter_map(|view| {
            let own = self.others.get(&*view.name);
            let own = match view.state {
                NamespaceState::Open => own?.clone(),
                _ => own.or_else(|| self.former.get(&*view.name)).cloned().unwrap_or_default(),
            };
            Some((view.scope, own))
        });
        let rules = Rules::new(self.default.clone(), others.collect());
        match self.asks_service {
            true => rules.with_unlisted(Access::open().asking_service()),
            false => rules,
        }
    }
}

fn compile(
    config: &Config,
    reader: Reader<'_>,
    (namespace, paths): (&str, Paths<'_>),
    files: &mut Vec<RuleFile>,
) -> Result<Access, RulesError> {
    let access = match rules_of(config, reader, (namespace, paths), files)? {
        Some((rules, ordered)) => {
            let access = Access::compile_from(&rules).map_err(RulesError::Together)?;
            access.in_order(&ordered).map_err(RulesError::Together)?
        }
        None => Access::open(),
    };
    let access = match config.authorization {
        Some(_) => access.asking_service(),
        None => access,
    };
    Ok(access
        .accepting_all_subscriptions(config.access.accept_all_subscriptions)
        .heeding_principals(!config.authentication.is_empty()))
}

/// Gives the text of a file.
pub type Reader<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// An access file and a policy file.
type Paths<'a> = (&'a Option<PathBuf>, &'a Option<PathBuf>);

/// Rules, and those that go by their order.
type Read = (Vec<(Origin, Rule)>, Vec<OrderedRule>);

/// None: there is no file.
fn rules_of(
    config: &Config,
    reader: Reader<'_>,
    (namespace, (listed, policy)): (&str, Paths<'_>),
    files: &mut Vec<RuleFile>,
) -> Result<Option<Read>, RulesError> {
    let mut note = |source, path: &Path, text| {
        let (namespace, path) = (namespace.to_owned(), path.to_owned());
        files.push(RuleFile { namespace, source, path, text });
    };
    let unproved = config.why_names_are_unproved();
    let unproved = unproved.as_deref();
    if listed.is_none() && policy.is_none() {
        return Ok(None);
    }
    let mut rules = match listed {
        Some(path) => {
            let shown = || path.display().to_string();
            let text = reader(path);
            let text = text.map_err(|cause| AclFileError::Read { path: shown(), cause })?;
            let rules = acl_file::rules_of(path, &text, unproved)?;
            note(Source::AccessFile, path, text);
            rules
        }
        None => Vec::new(),
    };
    let mut ordered = Vec::new();
    if let Some(path) = policy {
        let shown = || path.display().to_string();
        let text = reader(path);
        let text = text.map_err(|cause| PolicyFileError::Read { path: shown(), cause })?;
        let policy = policy_file::policy_of(path, &text, unproved)?;
        check_listeners(config, path, &policy.ordered)?;
        note(Source::PolicyFile, path, text);
        rules.extend(policy.rules());
        ordered = policy.ordered;
    }
    Ok(Some((rules, ordered)))
}

/// A rule for a listener that there is not would never hold.
fn check_listeners(config: &Config, path: &Path, rules: &[OrderedRule]) -> Result<(), RulesError> {
    let known: Vec<&str> = config.listeners.iter().map(|own| own.name.as_str()).collect();
    for rule in rules {
        if let Some(name) = rule.listeners.iter().find(|name| !known.contains(&name.as_str())) {
            let known = known.join(", ");
            let detail = format!("unknown listener '{name}'; valid: {known}");
            let (path, line) = (path.display().to_string(), rule.line);
            return Err(PolicyFileError::Line { path, line, detail }.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use broker::{Scope, Space};

    use super::*;

    fn rules(names: &[(&str, Access)]) -> BrokerRules {
        let others = names.iter().map(|(name, own)| ((*name).to_owned(), own.clone())).collect();
        BrokerRules {
            default: Access::open(),
            others,
            former: BTreeMap::new(),
            asks_service: false,
            files: Arc::default(),
        }
    }

    fn view(name: &str, number: u16, state: NamespaceState) -> View {
        let (scope, space) = (Scope::new(number), Arc::new(Space::default()));
        View { name: name.into(), scope, state, maker: "configuration", space }
    }

    #[test]
    fn what_nobody_says_more_of_keeps_its_rules_and_is_never_opened() {
        use NamespaceState::{Deleted, Open, Suspended};
        let first = rules(&[("red", Access::default()), ("blue", Access::open())]);
        let then = rules(&[("green", Access::open())]);
        let then = then.clone().after(then.after(first));
        let all = [
            view("red", 1, Suspended),
            view("blue", 2, Suspended),
            view("green", 3, Open),
            view("unheard", 4, Suspended),
            view("unheard-of", 5, Deleted),
            view("made", 6, Open),
        ];
        let shown = then.of_scopes(&all);
        let is_open: Vec<_> = all.iter().map(|view| shown.of(view.scope).is_open()).collect();
        assert_eq!(is_open, [false, true, true, false, false, true]);
    }
}
