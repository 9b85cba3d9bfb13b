//! A CONNECT that an acceptor has admitted.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use codec::Version;
use policy::{ClientLocation, Grants, Identity, Principal};
use session::Will;

use crate::words::owners::{owner_name, user_account};
use crate::words::rules::Rules;
use crate::{Limits, Name, Scope};

/// A CONNECT that was checked and authenticated by an acceptor, owned.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    pub version: Version,
    /// It is a bridge of another broker, by the custom of mosquitto (a bit of the protocol level).
    pub is_bridge: bool,
    /// Of its namespace.
    pub scope: Scope,
    pub clean_start: bool,
    pub keep_alive_secs: u16,
    /// As sent, or as assigned.
    pub client_id: Box<str>,
    /// The client sent none, and gets the assigned one (MQTT-3.1.3-7).
    pub is_assigned: bool,
    /// The name that the access rules know the client by, and that its session belongs to.
    pub username: Option<Box<str>>,
    /// False: nobody has checked the user name, so that it is only for the log.
    pub is_proved: bool,
    /// What its credential says besides.
    pub principal: Option<Box<Principal>>,
    pub will: Option<Box<Will>>,
    pub session_expiry_secs: u32,
    pub receive_max: u16,
    pub packet_bytes_max: u32,
    pub alias_max: u16,
    pub problem_info: bool,
    pub response_info: bool,
    pub auth_method: Option<Box<str>>,
    /// What the authentication method says last, for the CONNACK.
    pub auth_data: Option<Box<[u8]>>,
    /// The limits of the listener.
    pub limits: Arc<Limits>,
    /// The client's address, for the log.
    pub peer: Box<str>,
    /// Who shares limits with it where it has no proved name: its address without the port. Empty:
    /// nobody is charged.
    pub origin: Box<str>,
}

impl ConnectRequest {
    /// What its session is found by.
    pub fn name(&self) -> Name<'_> {
        Name::new(self.scope, &self.client_id)
    }

    /// The user name, if it counts.
    pub fn proved_username(&self) -> Option<&str> {
        self.username.as_deref().filter(|_| self.is_proved)
    }

    pub(crate) fn grants_by(&self, rules: &Rules) -> Grants {
        let (client_id, username) = (&*self.client_id, self.proved_username());
        let identity = Identity { client_id, username, principal: self.principal.as_deref() };
        let listener = &self.limits.listener;
        let place = ClientLocation { address: address_of(&self.peer), listener };
        rules.of(self.scope).grants_of(identity, place)
    }

    /// The owner that is charged for its memory and journal: a user, or an address without a proved
    /// name.
    pub fn owner(&self) -> Option<String> {
        match self.proved_username() {
            Some(name) => Some(user_account(Name::new(self.scope, name))),
            None if self.origin.is_empty() => None,
            None => Some(owner_name("address", Name::new(self.scope, &self.origin))),
        }
    }
}

/// Where a client connects from, without its port. None: not from a network.
pub(crate) fn address_of(peer: &str) -> Option<IpAddr> {
    peer.parse().ok().map(|peer: SocketAddr| peer.ip().to_canonical())
}
