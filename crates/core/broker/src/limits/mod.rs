//! What an operator may limit, and who is charged.

pub(crate) mod ledger;
pub(crate) mod namespace;
pub(crate) mod rules;
pub(crate) mod settings;
