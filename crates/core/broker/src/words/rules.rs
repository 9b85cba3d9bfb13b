//! The access rules of all scopes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Scope;
use policy::Access;

/// Rules for the first scope, and for those others that have some. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rules {
    first: Access,
    others: Arc<BTreeMap<Scope, Access>>,
    /// For scopes without rules: within one of its own, everybody may do everything, or what a
    /// service allows.
    open: Access,
}

impl Rules {
    pub fn new(first: Access, others: BTreeMap<Scope, Access>) -> Self {
        Self { first, others: Arc::new(others), open: Access::open() }
    }

    /// With what holds in scopes of which nothing is said.
    #[must_use]
    pub fn with_unlisted(self, open: Access) -> Self {
        Self { open, ..self }
    }

    pub fn of(&self, scope: Scope) -> &Access {
        match scope {
            Scope::FIRST => &self.first,
            scope => self.others.get(&scope).unwrap_or(&self.open),
        }
    }
}

/// There is one scope.
impl From<Access> for Rules {
    fn from(first: Access) -> Self {
        Self::new(first, BTreeMap::new())
    }
}
