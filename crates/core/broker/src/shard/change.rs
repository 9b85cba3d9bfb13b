//! Commands that change something, and how one is given to a shard.

use codec::Reason;
use session::{Message, MessageParts, NEVER};

use crate::Shard;
use crate::deliver::copies::Routed;
use crate::parts::client::Client;
use crate::words::asked::Asked;
use crate::words::command::{Publication, Whom};
use crate::words::connect_request::address_of;
use crate::{Scope, SessionKey};

impl Shard {
    /// Clears what an older version retained on a topic that no client may publish to. Nobody hears
    /// of it: some clients end their connection over such a name.
    pub(crate) fn clear_unheard(&mut self, message: &Message, asked: &mut Asked) -> Routed {
        let mut routed = Routed::default();
        if message.retain() && message.payload().is_empty() {
            self.retain(message, Some(asked), &mut routed);
        } else {
            routed.refused = Some(Reason::TOPIC_NAME_INVALID);
        }
        routed
    }
}

impl Whom {
    /// Only connected ones.
    pub(crate) fn means(&self, client: &Client) -> bool {
        let Some(link) = client.session.link() else { return false };
        match self {
            Self::Client(client_id) => *client_id == client.id,
            Self::User(name) => client.username.as_deref() == Some(name),
            Self::Addresses(addresses) => {
                address_of(&link.peer).is_some_and(|address| addresses.contains(&address))
            }
        }
    }
}

impl Publication {
    pub(crate) fn message(&self, level: u8, scope: Scope, now_ms: u64) -> Message {
        let Self { topic, properties, payload, qos, retain, expiry_secs, .. } = self;
        Message::new(&MessageParts {
            topic,
            properties,
            payload,
            qos: *qos,
            retain: *retain,
            expires_at_ms: expiry_secs.map_or(NEVER, |secs| now_ms + u64::from(secs) * 1000),
            publisher: SessionKey::NOBODY.as_u64(),
            author: 0,
            level,
            scope: scope.number(),
        })
    }
}
