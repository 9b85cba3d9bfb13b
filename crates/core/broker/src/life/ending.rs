//! How connections and sessions end: DISCONNECT, loss, violation, takeover, expiry; and the will.

use codec::{Auth, Connack, Disconnect, Packet, Properties, Property, Reason, Violation};
use session::Link;

use crate::parts::client::Client;
use crate::parts::work::Task;
use crate::state::Context;
use crate::{Ended, Reauthenticate};

/// A session expiry interval that means never (section 3.1.2.11.2).
pub(crate) const NEVER_EXPIRES: u32 = u32::MAX;

/// Clients looked at in one turn because a time has come, up to a microsecond each; the rest
/// follows with the next. A keep-alive may thus act a little later than its tick.
pub(crate) const LOOKS_PER_TURN: usize = 1_024;

/// What the end of a connection or a session, or a will, counts for in that: they take some 10 us
/// with all that follows.
pub(crate) const LOOKS_PER_END: usize = 16;

/// Messages of a queue that are looked at for what has expired count together as a look.
pub(crate) const QUEUED_PER_LOOK: usize = 64;

impl Client {
    /// DISCONNECT from the client. Always an end: `Err` carries it to the caller.
    pub(crate) fn on_disconnect(&mut self, disconnect: &Disconnect<'_>) -> Result<(), Ended> {
        let expiry = disconnect.properties.iter().find_map(|property| match property {
            Property::SessionExpirySecs(secs) => Some(secs),
            _ => None,
        });
        if let Some(secs) = expiry {
            let was_cut = self.limits.session_expiry_max_secs == 0;
            if self.session_expiry_secs == 0 && secs != 0 && !was_cut {
                return Err(Ended::Violation(Violation {
                    reason: Reason::PROTOCOL_ERROR,
                    clause: "MQTT-3.14.2-2",
                    detail: "session expiry in DISCONNECT, but 0 in CONNECT",
                }));
            }
            self.session_expiry_secs = secs.min(self.limits.session_expiry_max_secs);
        }
        Err(Ended::Client(disconnect.reason))
    }

    /// AUTH after the CONNECT: re-authentication (section 4.12.1).
    pub(crate) fn on_auth(&self, cx: &mut Context, auth: &Auth<'_>) -> Result<(), Ended> {
        cx.flow.work.charge_for(Task::Auth(auth.properties.raw().len()));
        let method = auth.properties.iter().find_map(|property| match property {
            Property::AuthMethod(method) => Some(method),
            _ => None,
        });
        let agreed = self.session.link().and_then(|link| link.auth_method());
        if agreed.is_none() || method != agreed {
            return Err(Ended::Violation(Violation {
                reason: Reason::PROTOCOL_ERROR,
                clause: "MQTT-4.12.1-1",
                detail: "AUTH with another method than the CONNECT",
            }));
        }
        let data = auth.properties.iter().find_map(|property| match property {
            Property::AuthData(data) => Some(data),
            _ => None,
        });
        let ask = Reauthenticate {
            slot: self.key.slot(),
            connection: self.connection,
            is_start: auth.reason == Reason::RE_AUTHENTICATE,
            client_id: self.id.clone(),
            username: self.login().map(Into::into),
            provider: self.principal.as_ref().and_then(|principal| principal.provider),
            method: method.unwrap_or_default().into(),
            data: data.unwrap_or_default().into(),
        };
        cx.effects.reauthentications.push(ask);
        Ok(())
    }
}

impl Context {
    pub(crate) fn count_end(&self, ended: &Ended) {
        let metrics = &self.metrics;
        metrics.connections.sub(1);
        metrics.connections_closed.add(1);
        match ended {
            Ended::Violation(_) => metrics.violations.add(1),
            Ended::KeepAlive => metrics.keep_alive_timeouts.add(1),
            Ended::CredentialExpired => metrics.credentials_expired.add(1),
            Ended::Banned => metrics.banned_cut.add(1),
            _ => {}
        }
    }
}

/// The last packet of a connection. No reason string: the public suites compare the whole packet.
/// The journal has the detail.
pub(crate) fn write_farewell(link: &mut Link, ended: &Ended) {
    if link.is_told_nothing {
        // MQTT-3.14.0-1: no DISCONNECT before the CONNACK.
        link.write(&Packet::Connack(Connack {
            session_present: false,
            reason: Reason::SERVER_UNAVAILABLE,
            properties: Properties::EMPTY,
        }));
    } else if link.is_v5() {
        link.write(&Packet::Disconnect(Disconnect::new(ended.reason().disconnect())));
    }
}

/// Is the client sent the reason? Not when it said goodbye itself, or can no longer be reached.
pub(crate) fn notifies_client(ended: &Ended) -> bool {
    match ended {
        Ended::Client(_) | Ended::Network | Ended::PacketLimitTooLow | Ended::NotKept => false,
        Ended::Violation(violation) => violation.is_answered(),
        _ => true,
    }
}
