//! Who may do what: access rules, what a credential says of its client, and queries over that.
//!
//! It knows neither sessions nor shards, no clock and no file. The server reads rules from files,
//! tokens and HTTP services, and compiles them ([`Access::compile`]). The broker asks the
//! [`Grants`] of a session for each message.

mod access;
mod number;
mod principal;
pub mod query;

pub use access::{
    Access, Action, ClientLocation, Decider, DecidingRule, Explanation, Grants, Identity, Manner,
    OrderedRule, Origin, OwnRules, Permission, Rule, RuleError, Source, Who,
};
pub use number::Number;
pub use principal::{Attribute, Attributes, NAMESPACE, Principal, Revocation};
