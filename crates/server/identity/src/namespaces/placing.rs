//! To which namespace a client belongs.

use broker::{ConnectRequest, Scope};
use codec::Reason;
use policy::{Attribute, NAMESPACE};

use super::Namespaces;
use super::maker::NoWait;
use config::{
    NamespaceSource, Placing,
    namespaces::{DEFAULT, is_name},
};

/// What a listener knows of that.
#[derive(Debug, Default)]
pub struct Belonging {
    pub placing: Placing,
    /// A listener of this broker goes by user names: what stands before a colon is a namespace.
    pub has_prefixes: bool,
}

/// The namespace of a client that is authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It is in its namespace.
    Placed,
    /// A namespace of this name has to be made first. Nothing of the client has changed.
    NamespaceMissing(Box<str>),
}

/// A client that belongs nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misplaced {
    pub reason: Reason,
    /// For the log.
    pub detail: &'static str,
}

impl Belonging {
    /// The namespace of all clients of the listener, if nothing that they show can change it.
    pub fn only(&self) -> Option<&str> {
        let own = self.placing.own.as_deref().unwrap_or(DEFAULT);
        self.placing.from.is_empty().then_some(own)
    }

    /// Puts a client whose identity is known into its namespace, by what it has proved to be and by
    /// the host name that it asked for. From then on its user name is that within the namespace.
    pub fn place(
        &self,
        namespaces: &Namespaces,
        request: &mut ConnectRequest,
        host: Option<&str>,
    ) -> Result<Placement, Misplaced> {
        if !self.placing.is_used() {
            self.check_prefixes(namespaces, request, Some(Scope::FIRST), false)?;
            return Ok(Placement::Placed);
        }
        let by_attribute = match self.goes_by(NamespaceSource::Attribute) {
            true => attribute_of(request)?,
            false => None,
        };
        let by_username = self.goes_by(NamespaceSource::Username);
        let split = by_username.then(|| split(request.username.as_deref())).flatten();
        let by_username = split.as_ref().map(|(name, _)| &**name);
        let found = self.found(namespaces, [by_attribute.as_deref(), by_username], host)?;
        let scope = match &found {
            Found::Known(scope) => Some(*scope),
            Found::NamespaceMissing(_) => None,
        };
        self.check_prefixes(namespaces, request, scope, split.is_some())?;
        let scope = match found {
            Found::Known(scope) if namespaces.is_closed(scope) => return Err(CLOSED),
            Found::Known(scope) => scope,
            Found::NamespaceMissing(name) => return Ok(Placement::NamespaceMissing(name.into())),
        };
        request.scope = scope;
        if let Some(principal) = &mut request.principal {
            principal.is_placed = by_attribute.is_some();
        }
        if let Some((_, user)) = split {
            let login = std::mem::replace(&mut request.username, user);
            request.principal.get_or_insert_default().login = login;
        }
        Ok(Placement::Placed)
    }

    /// All that says a namespace has to say the same one; only then it may be made.
    fn found<'a>(
        &'a self,
        namespaces: &Namespaces,
        said: [Option<&'a str>; 2],
        host: Option<&str>,
    ) -> Result<Found<'a>, Misplaced> {
        let by_host = self.goes_by(NamespaceSource::Host).then_some(host).flatten();
        let by_host = by_host.and_then(|host| namespaces.led_to_by(host));
        let mut said = said.into_iter().flatten();
        let named = said.next();
        if named.is_some_and(|first| said.any(|other| other != first)) {
            return Err(CONTRADICTION);
        }
        match (by_host, named) {
            (Some(scope), None) => Ok(Found::Known(scope)),
            (Some(scope), Some(name)) => match namespaces.scope_of(name) {
                Some(other) if other == scope => Ok(Found::Known(scope)),
                Some(_) => Err(CONTRADICTION),
                None => Err(UNKNOWN),
            },
            (None, Some(name)) => self.find(namespaces, name),
            (None, None) => match &self.placing.own {
                Some(own) => self.find(namespaces, own),
                // The default one has what no namespace has, so nobody gets there unnamed.
                None => Err(UNNAMED),
            },
        }
    }

    /// A name that begins with another namespace is one of there.
    fn check_prefixes(
        &self,
        namespaces: &Namespaces,
        request: &ConnectRequest,
        scope: Option<Scope>,
        is_split: bool,
    ) -> Result<(), Misplaced> {
        if !self.has_prefixes && self.placing.from.is_empty() {
            return Ok(());
        }
        let username = request.username.as_deref().filter(|_| !is_split);
        let names = username.into_iter().chain([request.client_id.as_ref()]);
        let prefixes = names.filter_map(|name| Some(name.split_once(':')?.0));
        let mut led_to = prefixes.filter_map(|prefix| namespaces.scope_of(prefix));
        if led_to.any(|other| Some(other) != scope) { Err(FOREIGN) } else { Ok(()) }
    }

    fn goes_by(&self, source: NamespaceSource) -> bool {
        self.placing.from.contains(&source)
    }

    fn find<'a>(&self, namespaces: &Namespaces, name: &'a str) -> Result<Found<'a>, Misplaced> {
        // The broker's own has what no namespace has: only the listener leads there.
        if name == DEFAULT && self.placing.own.as_deref() != Some(DEFAULT) {
            return Err(UNKNOWN);
        }
        match namespaces.scope_of(name) {
            Some(scope) => Ok(Found::Known(scope)),
            None if self.placing.creates && is_name(name) => Ok(Found::NamespaceMissing(name)),
            None => Err(UNKNOWN),
        }
    }
}

enum Found<'a> {
    Known(Scope),
    /// There is none of that name, and one may be made.
    NamespaceMissing(&'a str),
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
    Misplaced { reason: Reason::NOT_AUTHORIZED, detail: "unknown namespace" };
const UNNAMED: Misplaced = Misplaced {
    reason: Reason::NOT_AUTHORIZED,
    detail: "no source in namespace_from names a namespace, and the listener has none",
};
const FOREIGN: Misplaced = Misplaced {
    reason: Reason::NOT_AUTHORIZED,
    detail: "the username or client ID has the prefix of another namespace",
};
const CONTRADICTION: Misplaced = Misplaced {
    reason: Reason::NOT_AUTHORIZED,
    detail: "host name, username and credential name different namespaces",
};
const CLOSED: Misplaced =
    Misplaced { reason: Reason::BANNED, detail: "the namespace is suspended or deleted" };
pub const NOT_MADE: Misplaced =
    Misplaced { reason: Reason::SERVER_UNAVAILABLE, detail: "the namespace cannot be created" };

impl From<NoWait> for Misplaced {
    fn from(why: NoWait) -> Self {
        match why {
            NoWait::Full => Self {
                reason: Reason::SERVER_BUSY,
                detail: "too many clients wait for new namespaces",
            },
            NoWait::TooFast => Self {
                reason: Reason::CONNECTION_RATE_EXCEEDED,
                detail: "the address requests too many new namespaces",
            },
        }
    }
}
