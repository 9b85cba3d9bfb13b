//! Somebody who knows the client ids of others and is another user.

use broker::admission::{Admission, admit};
use broker::{ConnectRequest, Name};
use codec::{Connect, Packet, Properties, Reason, Sender, Version};

use crate::sabotage::Sabotage;
use crate::world::World;

/// Of a hundred steps of the world, those in which it tries.
const TRIES_PERCENT: usize = 3;

/// The number of its connection, which no driver gives.
const STRANGER: u64 = u64::MAX - 1;

impl World {
    /// The stranger connects with the client id of one of the clients: as long as that has a
    /// session it is refused, the connection of the client stays, and whatever it is told, it never
    /// gets a message.
    pub(crate) fn intrude(&mut self) -> Result<(), String> {
        if !self.strangers.chance(TRIES_PERCENT) || self.node.drivers.is_empty() {
            return Ok(());
        }
        let who = self.strangers.below(self.clients.len());
        self.switch_to_cell(self.cell_of(who));
        if !self.is_cell_up() {
            return Ok(());
        }
        let client_id = self.clients[who].id.clone();
        let request = self.claim(who)?;
        let now_ms = self.now_ms;
        let shard = self.node.shared.place_of_client(request.name());
        let connection = STRANGER;
        let core = self.node.shard(shard);
        let before = core.connection_of(Name::first(&client_id));
        let version = request.version;
        let sent = match core.on_connect(connection, request, now_ms) {
            Err(answer) => {
                if core.connection_of(Name::first(&client_id)) != before {
                    return Err(format!("{client_id}: lost its connection to a stranger"));
                }
                self.oracle.trace.note(|| format!("a stranger is kept from {client_id}"));
                answer
            }
            Ok(_) if before.is_some() => {
                return Err(format!("{client_id}: a stranger took its connection over"));
            }
            Ok(slot) => {
                let outbox = core.outbox(slot, connection);
                let sent = outbox.map(|out| out.slices().flatten().copied().collect());
                core.on_closed(slot, connection, now_ms);
                self.oracle.trace.note(|| format!("a stranger was {client_id} for a moment"));
                self.oracle.on_stranger(self.clients[who].number);
                sent.unwrap_or_default()
            }
        };
        judge(&sent, version).map_err(|rule| format!("{client_id}: {rule}"))?;
        self.turn_for(shard)
    }

    /// A CONNECT with the client id of another, for a session that ends with its connection.
    fn claim(&mut self, who: usize) -> Result<ConnectRequest, String> {
        let named = self.strangers.chance(50) || self.clients[who].username.is_none();
        let connect = Connect {
            version: Version::V5,
            clean_start: self.strangers.chance(50),
            keep_alive_secs: 0,
            client_id: &self.clients[who].id,
            properties: Properties::EMPTY,
            will: None,
            username: named.then_some("stranger"),
            password: None,
            bridge: false,
        };
        let mut bytes = Vec::new();
        Packet::Connect(connect).encode(Version::V5, &mut bytes);
        let Admission::Connect(credentials, _) =
            admit(&bytes, &self.limits, "stranger", || "assigned".into())
        else {
            return Err("a sound CONNECT is not admitted".into());
        };
        let mut request = credentials.request;
        if self.node.sabotage == Some(Sabotage::IgnoreOwner) {
            request.username = self.clients[who].username.as_deref().map(Into::into);
        }
        Ok(request)
    }
}

/// What the stranger was told must be a refusal, or the beginning of a session of its own.
fn judge(mut sent: &[u8], version: Version) -> Result<(), String> {
    while let Ok(Some((packet, len))) = codec::decode(sent, version, Sender::Server, u32::MAX) {
        match packet {
            Packet::Connack(connack) if connack.session_present => {
                return Err("a stranger got the session".into());
            }
            Packet::Connack(connack)
                if [Reason::SUCCESS, Reason::NOT_AUTHORIZED].contains(&connack.reason) => {}
            other => return Err(format!("a stranger got {other:?}")),
        }
        sent = &sent[len..];
    }
    if sent.is_empty() { Ok(()) } else { Err("a stranger got bytes that are no packet".into()) }
}
