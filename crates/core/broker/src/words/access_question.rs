//! What an authorization service is asked, and what it says.

use policy::Attributes;

use crate::Scope;

/// What a service is asked. Its answer goes to [`crate::Shard::on_verdict`].
#[derive(Clone, Debug)]
pub struct AccessQuestion {
    pub slot: u32,
    pub connection: u64,
    /// Which of the questions of this connection it is.
    pub number: u32,
    /// Else it wants to subscribe.
    pub publishes: bool,
    /// A topic, or a filter without its share name.
    pub topic: Box<str>,
    pub qos: u8,
    pub retain: bool,
    pub scope: Scope,
    pub client_id: Box<str>,
    pub username: Option<Box<str>>,
    /// With the port.
    pub peer: Box<str>,
    pub version: codec::Version,
    pub attributes: Attributes,
}

/// What a service says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceAnswer {
    Allow,
    Deny,
    /// It does not know: `no_match` decides.
    Ignore,
    /// It could not be asked, or gave no clear answer. That is not remembered. A publish is
    /// refused, so that its client sends it again, and a subscription is denied.
    Failed,
}
