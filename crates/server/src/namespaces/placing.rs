//! To which namespace a client belongs.

use broker::{Attribute, ConnectRequest, NAMESPACE, Scope};
use codec::Reason;

use super::Namespaces;
use crate::config::{NamespaceSource, Placing, namespaces::is_name};

/// What a listener knows of that.
#[derive(Debug, Default)]
pub(crate) struct Belonging {
    pub(crate) placing: Placing,
    /// A listener of this broker goes by user names: what stands before a colon is a namespace.
    pub(crate) has_prefixes: bool,
}

/// A client that belongs nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misplaced {
    pub(crate) reason: Reason,
    /// For the log.
    pub(crate) detail: &'static str,
}

impl Belonging {
    /// Puts a client whose identity is known into its namespace, by what it has proved to be and by
    /// the host name that it asked for. From then on its user name is that within the namespace.
    pub(crate) fn place(
        &self,
        namespaces: &Namespaces,
        request: &mut ConnectRequest,
        host: Option<&str>,
    ) -> Result<(), Misplaced> {
        if !self.placing.is_used() {
            return self.check_prefixes(namespaces, request, Scope::FIRST, false);
        }
        let by_host = self.goes_by(NamespaceSource::Host).then_some(host).flatten();
        let by_host = by_host.and_then(|host| namespaces.led_to_by(host));
        let by_attribute = match self.goes_by(NamespaceSource::Attribute) {
            true => attribute_of(request)?,
            false => None,
        };
        let by_attribute = by_attribute.map(|name| self.find(namespaces, &name)).transpose()?;
        let by_username = self.goes_by(NamespaceSource::Username);
        let named = by_username.then(|| split(request.username.as_deref())).flatten();
        let by_username =
            named.as_ref().map(|(name, _)| self.find(namespaces, name)).transpose()?;
        let mut said = [by_host, by_attribute, by_username].into_iter().flatten();
        let scope = match said.next() {
            Some(first) if said.any(|other| other != first) => return Err(CONTRADICTION),
            Some(first) => first,
            None => match &self.placing.own {
                Some(own) => self.find(namespaces, own)?,
                // The default one has what no namespace has, so nobody gets there unnamed.
                None => return Err(UNNAMED),
            },
        };
        self.check_prefixes(namespaces, request, scope, named.is_some())?;
        if namespaces.is_closed(scope) {
            return Err(CLOSED);
        }
        request.scope = scope;
        if let Some(principal) = &mut request.principal {
            principal.is_placed = by_attribute.is_some();
        }
        if let Some((_, user)) = named {
            let login = std::mem::replace(&mut request.username, user);
            request.principal.get_or_insert_default().login = login;
        }
        Ok(())
    }

    /// A name that begins with another namespace is one of there.
    fn check_prefixes(
        &self,
        namespaces: &Namespaces,
        request: &ConnectRequest,
        scope: Scope,
        is_split: bool,
    ) -> Result<(), Misplaced> {
        if !self.has_prefixes && self.placing.from.is_empty() {
            return Ok(());
        }
        let username = request.username.as_deref().filter(|_| !is_split);
        let names = username.into_iter().chain([request.client_id.as_ref()]);
        let prefixes = names.filter_map(|name| Some(name.split_once(':')?.0));
        let mut led_to = prefixes.filter_map(|prefix| namespaces.scope_of(prefix));
        if led_to.any(|other| other != scope) { Err(FOREIGN) } else { Ok(()) }
    }

    fn goes_by(&self, source: NamespaceSource) -> bool {
        self.placing.from.contains(&source)
    }

    fn find(&self, namespaces: &Namespaces, name: &str) -> Result<Scope, Misplaced> {
        match namespaces.scope_of(name) {
            Some(scope) => Ok(scope),
            None if self.placing.creates && is_name(name) => {
                namespaces.make_for_client(name).map_err(|error| {
                    tracing::warn!(namespace = name, error = format!("{error:#}"), "not made");
                    NOT_MADE
                })
            }
            None => Err(UNKNOWN),
        }
    }
}

impl Namespaces {
    fn led_to_by(&self, host: &str) -> Option<Scope> {
        self.read().hosts.get(&host.to_ascii_lowercase()).copied()
    }

    fn is_closed(&self, scope: Scope) -> bool {
        !scope.is_first() && self.shared.spaces.get(scope).is_none_or(|space| space.is_closed())
    }
}

/// A list or a number is no name, and a credential that says something odd says no.
fn attribute_of(request: &ConnectRequest) -> Result<Option<Box<str>>, Misplaced> {
    let Some(principal) = &request.principal else { return Ok(None) };
    match principal.attributes.get(NAMESPACE) {
        None => Ok(None),
        Some(Attribute::Text(name)) => Ok(Some(name.clone())),
        Some(_) => Err(UNKNOWN),
    }
}

/// The namespace that a user name begins with, and the user name in it.
fn split(username: Option<&str>) -> Option<(Box<str>, Option<Box<str>>)> {
    let (name, user) = username?.split_once(':')?;
    Some((name.into(), Some(user).filter(|user| !user.is_empty()).map(Into::into)))
}

const UNKNOWN: Misplaced =
    Misplaced { reason: Reason::NOT_AUTHORIZED, detail: "there is no such namespace" };
const UNNAMED: Misplaced = Misplaced {
    reason: Reason::NOT_AUTHORIZED,
    detail: "nothing in namespace_from says its namespace, and the listener names none",
};
const FOREIGN: Misplaced = Misplaced {
    reason: Reason::NOT_AUTHORIZED,
    detail: "its user name or client id has the prefix of another namespace",
};
const CONTRADICTION: Misplaced = Misplaced {
    reason: Reason::NOT_AUTHORIZED,
    detail: "host name, user name and credential say different namespaces",
};
const CLOSED: Misplaced = Misplaced { reason: Reason::BANNED, detail: "its namespace is closed" };
const NOT_MADE: Misplaced =
    Misplaced { reason: Reason::SERVER_UNAVAILABLE, detail: "its namespace cannot be made" };
