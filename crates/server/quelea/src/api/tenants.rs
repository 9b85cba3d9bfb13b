//! Callers that belong to a namespace, and what they see: what users of it have defined.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use routing::definitions::{Entry, Kind, Tenant};
use web::axum::http::StatusCode;

use super::Api;
use super::authentication::{Identity, Reach};
use super::call::Call;
use super::problem::Problem;
use super::route::{Method, Route};
use crate::run::{Defined, tenant_of};

/// Calls of users of namespaces that are dealt with at a time, out of [`super::CALLS_MAX`]; others
/// wait.
pub(super) const CALLS_MAX: usize = 4;

/// Changes that users of a namespace ask for in [`WINDOW`], whatever comes of them: each is checked
/// with all other definitions, on the thread that sends messages of rules. Policy: a further one is
/// refused.
const CHANGES_MAX: u32 = 120;
const WINDOW: Duration = Duration::from_secs(60);

/// Changes since the window of each namespace began.
#[derive(Debug, Default)]
pub(super) struct Changes(Mutex<BTreeMap<String, (Instant, u32)>>);

impl Changes {
    /// False: there are too many.
    fn take(&self, namespace: &str, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (began, _)| now.duration_since(*began) < WINDOW);
        let (_, count) = all.entry(namespace.to_owned()).or_insert((now, 0));
        *count = count.saturating_add(1);
        *count <= CHANGES_MAX
    }
}

/// What is visible to a caller.
pub(super) enum Visible {
    All,
    /// None: the namespace is gone.
    Of(Option<Tenant>),
}

impl Visible {
    pub(super) fn to(api: &Api, call: &Call) -> Self {
        match call.tenant() {
            None => Self::All,
            Some(namespace) => Self::Of(tenant_of(namespace, &api.facts.namespaces)),
        }
    }

    pub(super) fn has(&self, entry: &Entry) -> bool {
        match self {
            Self::All => true,
            Self::Of(tenant) => tenant.is_some() && entry.tenant == *tenant,
        }
    }

    /// The names that are. None: all of them.
    pub(super) fn names<'d>(&self, defined: &'d Defined) -> Option<BTreeSet<(Kind, &'d str)>> {
        let own = defined.own.iter().filter(|entry| self.has(entry));
        let names = || own.map(|entry| (entry.kind, &*entry.name)).collect();
        (!matches!(self, Self::All)).then(names)
    }
}

/// The namespace of a caller who may make this call. None: the caller belongs to none.
///
/// # Errors
///
/// It belongs to one, and the call is not for it, or not now.
pub(super) fn namespace_of(
    api: &Api,
    route: &Route,
    identity: &Identity,
) -> Result<Option<String>, Problem> {
    let forbidden = |detail: String| Problem::new(StatusCode::FORBIDDEN, detail);
    let user = base::shown(&identity.name);
    let namespace = match &identity.reach {
        Reach::All => return Ok(None),
        Reach::Nothing => {
            let detail = format!("the user '{user}' has no rights");
            let fix = "add it to viewers, operators or admins of [api], or to api_users of a \
                       namespace";
            return Err(forbidden(detail).fix(fix));
        }
        Reach::Namespace(namespace) => namespace,
    };
    if !route.takes_tenants {
        let detail = format!(
            "the user '{user}' belongs to namespace '{namespace}' and may only see and define its \
             streams, targets and rules"
        );
        let fix = "use quelea ctl streams, targets and rules with --user; the dashboard and its \
                   log-in are for operators of the broker";
        return Err(forbidden(detail).fix(fix));
    }
    if !api.facts.namespaces.is_open(namespace) {
        let detail = format!("the namespace '{namespace}' is suspended or deleted");
        return Err(forbidden(detail).fix("ask the operator of the broker"));
    }
    if route.method != Method::Get && !api.changes.take(namespace, Instant::now()) {
        let detail = format!(
            "users of namespace '{namespace}' have asked for {CHANGES_MAX} changes in {} s",
            WINDOW.as_secs()
        );
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).fix("wait a minute"));
    }
    Ok(Some(namespace.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_namespace_are_limited_and_those_of_others_are_not() {
        let (changes, start) = (Changes::default(), Instant::now());
        assert!((0..CHANGES_MAX).all(|_| changes.take("acme", start)));
        assert!(!changes.take("acme", start + WINDOW / 2));
        assert!(changes.take("zeta", start + WINDOW / 2));
        assert!(changes.take("acme", start + WINDOW));
    }
}
