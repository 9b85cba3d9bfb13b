//! Rules for those of whom a query holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pattern::Pattern;
use super::{Identity, Permission, RuleSet};
use crate::query::Query;

/// The rules of each query together. A client shares them with all others of whom it holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups(Arc<Vec<Group>>);

#[derive(Clone, Debug)]
struct Group {
    query: Arc<Query>,
    rules: Arc<RuleSet>,
    /// What they deny.
    denials: Arc<RuleSet>,
}

/// While they are read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    queries: Vec<(Arc<Query>, RuleSet)>,
    /// By the address of a query: rules of one share it.
    places: BTreeMap<*const Query, usize>,
}

impl Reading {
    pub(super) const fn is_empty(&self) -> bool {
        self.queries.is_empty()
    }

    pub(super) fn add(&mut self, query: &Arc<Query>, permission: Permission, pattern: Pattern) {
        let place = *self.places.entry(Arc::as_ptr(query)).or_insert_with(|| {
            self.queries.push((query.clone(), RuleSet::default()));
            self.queries.len() - 1
        });
        self.queries[place].1.add(permission, pattern);
    }

    pub(super) fn finish(self) -> Groups {
        let group = |(query, rules): (Arc<Query>, RuleSet)| Group {
            query,
            denials: RuleSet { denied: rules.denied.clone(), ..RuleSet::default() }.counted(),
            rules: rules.counted(),
        };
        Groups(Arc::new(self.queries.into_iter().map(group).collect()))
    }
}

impl Groups {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules of those that a client is in. If nobody knows its attributes: what one denies
    /// whose query asks for them is denied, and what one grants is not.
    pub(super) fn of(&self, who: Identity<'_>) -> impl Iterator<Item = Arc<RuleSet>> {
        self.0.iter().filter_map(move |group| {
            if who.is_unknown() && group.query.asks_attributes() {
                return (!group.denials.denied.is_empty()).then(|| group.denials.clone());
            }
            group.query.holds(who).then(|| group.rules.clone())
        })
    }
}
