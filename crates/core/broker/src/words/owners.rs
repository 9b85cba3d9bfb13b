//! The names of accounts: who is charged for memory and journal.

use crate::{Name, Scope};

/// The account of a user, whatever address it comes from.
pub(crate) fn user_account(name: Name<'_>) -> String {
    owner_name("user", name)
}

/// No name of the default namespace begins like one of another.
pub(crate) fn owner_name(kind: &str, name: Name<'_>) -> String {
    match name.scope() {
        Scope::FIRST => format!("{kind} {}", name.text()),
        scope => format!("{OF_NAMESPACE}{} {kind} {}", scope.number(), name.text()),
    }
}

/// The namespace of the owner with that name.
pub(crate) fn scope_of_owner(owner: &str) -> Scope {
    let number = owner.strip_prefix(OF_NAMESPACE).and_then(|rest| rest.split_once(' '));
    number.and_then(|(number, _)| number.parse().ok()).map_or(Scope::FIRST, Scope::new)
}

pub(crate) const OF_NAMESPACE: &str = "namespace ";
