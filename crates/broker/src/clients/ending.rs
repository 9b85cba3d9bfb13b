//! How connections and sessions end: DISCONNECT, loss, violation, takeover, expiry; and the will.

use codec::{
    Auth, Connack, Disconnect, Packet, Properties, Property, PropertyBuf, Reason, Violation,
};
use session::{Link, Message, NEVER, Outbox, Wait};

use crate::clients::notices::Kind;
use crate::flow::work::AUTH_UNITS;
use crate::{
    Close, Ended, Event, NO_CONNECTION, Name, Quota, Reauthenticate, Reauthenticated, SessionKey,
    Shard,
};
use policy::{Action, Manner};

/// A session expiry interval that means never (section 3.1.2.11.2).
const NEVER_EXPIRES: u32 = u32::MAX;

/// Clients looked at in one turn because a time has come, up to a microsecond each; the rest
/// follows with the next. A keep-alive may thus act a little later than its tick.
const LOOKS_PER_TURN: usize = 1_024;

/// What the end of a connection or a session, or a will, counts for in that: they take some 10 us
/// with all that follows.
const LOOKS_PER_END: usize = 16;

impl Shard {
    /// DISCONNECT from the client. Always an end: `Err` carries it to the caller.
    pub(crate) fn on_disconnect(
        &mut self,
        slot: u32,
        disconnect: &Disconnect<'_>,
    ) -> Result<(), Ended> {
        if let Some(client) = self.clients.get_mut(slot) {
            let expiry = disconnect.properties.iter().find_map(|property| match property {
                Property::SessionExpirySecs(secs) => Some(secs),
                _ => None,
            });
            if let Some(secs) = expiry {
                let was_cut = client.limits.session_expiry_max_secs == 0;
                if client.session_expiry_secs == 0 && secs != 0 && !was_cut {
                    return Err(Ended::Violation(Violation {
                        reason: Reason::PROTOCOL_ERROR,
                        clause: "MQTT-3.14.2-2",
                        detail: "session expiry at DISCONNECT after none at CONNECT",
                    }));
                }
                client.session_expiry_secs = secs.min(client.limits.session_expiry_max_secs);
            }
        }
        Err(Ended::Client(disconnect.reason))
    }

    /// The network connection is gone.
    pub fn on_closed(&mut self, slot: u32, connection: u64, now_ms: u64) {
        if self.link(slot, connection).is_some() {
            self.end_lost(slot, connection, now_ms);
        }
        self.finish(now_ms);
    }

    /// What was put aside while the client had to wait came before the end, its DISCONNECT too. It
    /// may take some turns.
    pub(crate) fn end_lost(&mut self, slot: u32, connection: u64, now_ms: u64) {
        let has_no_more = self.work.has_no_more();
        let Some(link) = self.link(slot, connection) else { return };
        link.is_lost = true;
        link.gate.open(Wait::InLine);
        if has_no_more && link.asks_for_much && !link.inbox.is_empty() {
            return self.wait_for_turn(slot);
        }
        self.on_bytes(slot, connection, &[], now_ms);
        let Some(link) = self.link(slot, connection) else { return };
        if !link.gate.is_shut(Wait::InLine) || link.inbox.is_empty() {
            self.end(slot, Ended::Network, now_ms);
        }
    }

    /// An operator ends the connection of a client. False if there is none.
    pub fn on_kick(&mut self, client: Name<'_>, now_ms: u64) -> bool {
        let found = self.clients.find(client);
        let Some(slot) = found.filter(|s| self.clients.get(*s).is_some_and(|c| c.is_connected()))
        else {
            return false;
        };
        self.end(slot, Ended::Administrative, now_ms);
        self.finish(now_ms);
        true
    }

    /// Ends the connections of those whom `is_banned` means by client id, user name and address.
    pub fn on_bans(
        &mut self,
        is_banned: impl Fn(Name<'_>, Option<&str>, &str) -> bool,
        now_ms: u64,
    ) {
        for slot in self.clients.slots() {
            let Some(client) = self.clients.get(slot) else { continue };
            let Some(link) = client.session.link() else { continue };
            if is_banned(client.name(), client.username.as_deref(), &link.peer) {
                self.doomed.push((slot, Ended::Banned));
            }
        }
        self.finish(now_ms);
    }

    /// There is no room for what has come of a connection's packets, or others wait for the room of
    /// one that takes too long.
    pub fn on_crowded(&mut self, slot: u32, connection: u64, now_ms: u64) {
        if self.link(slot, connection).is_some() {
            self.end(slot, Ended::Crowded, now_ms);
            self.finish(now_ms);
        }
    }

    /// Ends a connection, and what ends with it.
    pub(crate) fn end(&mut self, slot: u32, ended: Ended, now_ms: u64) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let connection = std::mem::replace(&mut client.connection, NO_CONNECTION);
        let Some(mut link) = client.session.detach() else { return };
        client.session.incoming.note_orphans(connection, &link);
        let turn = link.take_turn();
        if let Some(extras) = &mut client.extras {
            extras.request = None;
        }
        if link.is_told_nothing {
            link.outbox = Outbox::default();
        }
        if tells_client(&ended) && !link.is_lost {
            write_farewell(&mut link, &ended);
        }
        let farewell = std::mem::take(&mut link.outbox);
        client.charged.set_unsent(0);
        client.publish_gauge();
        let event = Event::Disconnected {
            client_id: client.id.clone(),
            username: client.username.clone(),
            sequence: link.sequence,
            peer: link.peer,
            ended: ended.clone(),
            session_expiry_secs: client.session_expiry_secs,
        };
        self.effects.closes.push(Close { slot, connection, farewell });
        self.count_end(&ended);
        let scope = self.scope_of(slot);
        self.count_in_space(scope, Quota::Connections, -1);
        if let Some(turn) = turn {
            self.give_turn_back(scope, &turn);
        }
        self.tell(scope, event);
        self.after_end(slot, &ended, now_ms);
    }

    fn count_end(&self, ended: &Ended) {
        let metrics = self.metrics();
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

    /// The fate of will and session (MQTT-3.1.2-8, MQTT-3.1.2-10, section 4.1).
    fn after_end(&mut self, slot: u32, ended: &Ended, now_ms: u64) {
        self.give_back(slot, now_ms);
        let Some(client) = self.clients.get_mut(slot) else { return };
        if *ended == Ended::Client(Reason::NORMAL_DISCONNECTION) {
            client.will = None;
            client.recharge();
            self.forget_will(slot);
        }
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.session_expiry_secs == 0 {
            self.end_session(slot, now_ms);
            return;
        }
        if client.session_expiry_secs != NEVER_EXPIRES {
            client.expires_at_ms = now_ms + u64::from(client.session_expiry_secs) * 1000;
        }
        let delay_max_secs = client.limits.will_delay_max_secs;
        // One whose delay runs already is that of an earlier connection: this one was refused.
        if let Some(will) = client.will.as_mut().filter(|will| will.due_ms == NEVER) {
            will.due_ms = now_ms + u64::from(will.delay_secs.min(delay_max_secs)) * 1000;
        }
        if client.will_due_ms() <= now_ms {
            self.publish_will(slot, now_ms);
        }
        self.keep_detached(slot, now_ms);
        self.arm_timer(slot);
    }

    /// The session is over: its subscriptions go, its will is due at the latest now
    /// (MQTT-3.1.3.2-2).
    pub(crate) fn end_session(&mut self, slot: u32, now_ms: u64) {
        self.publish_will(slot, now_ms);
        self.give_back(slot, now_ms);
        self.forget_session(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        for origin in client.session.outgoing.shared_in_flight() {
            self.tell_home(origin.group, origin.serial, true);
        }
        self.tell_news(slot, now_ms);
        self.bury(slot);
    }

    pub(crate) fn publish_will(&mut self, slot: u32, now_ms: u64) {
        let key = self.key(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(will) = client.will.take() else { return };
        client.recharge();
        let manner = Manner { qos: will.qos as u8, retain: will.retain };
        if !client.grants.allows_as(client.identity(), Action::Publish, &will.topic, manner) {
            self.metrics().publishes_denied.add(1);
            self.note_as(slot, Kind::Denied("will"), &will.topic, manner, now_ms);
            self.forget_will(slot);
            return;
        }
        let level = match self.store {
            Some(_) => self.shared.settings.level_of(&will.topic, client.limits.durability),
            None => 0,
        };
        let parts = will.parts(key.as_u64(), client.scope.number(), level, now_ms);
        let mut message = Message::new(&parts);
        self.metrics().wills.add(1);
        // Who is there gets it.
        let is_unkept = self.lacks_share_for(&message);
        if is_unkept {
            self.note(slot, Kind::Refused, message.topic(), now_ms);
            message = Message::new(&session::MessageParts { level: 0, ..parts });
        }
        if is_unkept || !self.publish_kept_will(slot, &message, now_ms) {
            self.route_will(slot, &message, now_ms);
            self.forget_will(slot);
        }
    }

    /// Looks at clients whose time has come, as many as one turn may. The others are late.
    pub(crate) fn fire_timers(&mut self, now_ms: u64) {
        let mut left = LOOKS_PER_TURN;
        while left > 0
            && let Some((tick, key)) = self.wheel.take_due(now_ms)
        {
            left = left.saturating_sub(self.on_due(key, tick, now_ms));
        }
    }

    /// A tick of the wheel has come that a client asked for. Returns what that took, in looks.
    fn on_due(&mut self, key: u64, tick: u64, now_ms: u64) -> usize {
        let Some(slot) = self.clients.slot_of(SessionKey::from_u64(key)) else { return 1 };
        let Some(client) = self.clients.get_mut(slot).filter(|c| c.timer_at == tick) else {
            return 1;
        };
        client.timer_at = u64::MAX;
        let mut looks = 1;
        if let Some(link) = client.session.link_mut().filter(|l| l.gate.is_shut(Wait::InLine)) {
            // It is not silent: we do not listen.
            link.last_packet_ms = now_ms;
        }
        let keep_alive = client.session.link().and_then(Link::keep_alive_deadline_ms);
        if keep_alive.is_some_and(|deadline_ms| deadline_ms <= now_ms) {
            looks += LOOKS_PER_END;
            self.end(slot, Ended::KeepAlive, now_ms);
        }
        let Some(client) = self.clients.get(slot) else { return looks };
        if client.credential_due_ms() <= now_ms {
            looks += LOOKS_PER_END;
            self.end(slot, Ended::CredentialExpired, now_ms);
        }
        let Some(client) = self.clients.get(slot) else { return looks };
        if client.will_due_ms() <= now_ms {
            looks += LOOKS_PER_END;
            self.publish_will(slot, now_ms);
        }
        let Some(client) = self.clients.get(slot) else { return looks };
        if client.expires_at_ms <= now_ms {
            looks += LOOKS_PER_END;
            self.metrics().sessions_expired.add(1);
            let (client_id, username) = (client.id.clone(), client.username.clone());
            let scope = client.scope;
            self.tell(scope, Event::SessionExpired { client_id, username });
            self.end_session(slot, now_ms);
            return looks;
        }
        self.forget_old_eras(slot);
        if let Some(client) = self.clients.get_mut(slot) {
            client.session.shrink();
            if let Some(durable) = &mut client.durable {
                durable.shrink();
            }
        }
        self.tell_news(slot, now_ms);
        self.arm_timer(slot);
        looks
    }

    /// AUTH after the CONNECT: re-authentication (section 4.12.1).
    pub(crate) fn on_auth(&mut self, slot: u32, auth: &Auth<'_>) -> Result<(), Ended> {
        // Signatures take longer than digests, and come with more data.
        self.work.charge(AUTH_UNITS + auth.properties.raw().len());
        let Some(client) = self.clients.get(slot) else { return Ok(()) };
        let method = auth.properties.iter().find_map(|property| match property {
            Property::AuthMethod(method) => Some(method),
            _ => None,
        });
        let agreed = client.session.link().and_then(|link| link.auth_method());
        if agreed.is_none() || method != agreed {
            return Err(Ended::Violation(Violation {
                reason: Reason::PROTOCOL_ERROR,
                clause: "MQTT-4.12.1-1",
                detail: "AUTH with another method than the one of the CONNECT",
            }));
        }
        let data = auth.properties.iter().find_map(|property| match property {
            Property::AuthData(data) => Some(data),
            _ => None,
        });
        let ask = Reauthenticate {
            slot,
            connection: client.connection,
            is_start: auth.reason == Reason::RE_AUTHENTICATE,
            client_id: client.id.clone(),
            username: client.login().map(Into::into),
            provider: client.principal.as_ref().and_then(|principal| principal.provider),
            method: method.unwrap_or_default().into(),
            data: data.unwrap_or_default().into(),
        };
        self.effects.reauthentications.push(ask);
        Ok(())
    }

    /// The back-end has answered [`Reauthenticate`].
    pub fn on_reauthenticated(
        &mut self,
        slot: u32,
        connection: u64,
        answer: &Reauthenticated,
        now_ms: u64,
    ) {
        let Some(client) = self.clients.get_mut(slot).filter(|c| c.connection == connection) else {
            return;
        };
        let agreed = client.session.link().and_then(|link| link.auth_method());
        let method: Box<str> = agreed.unwrap_or_default().into();
        let (reason, data): (_, &[u8]) = match answer {
            Reauthenticated::Continue(data) => (Reason::CONTINUE_AUTHENTICATION, data),
            Reauthenticated::Success(data) => (Reason::SUCCESS, data),
            Reauthenticated::Renewed(principal) => {
                if !client.principal.get_or_insert_default().renew(*principal.clone()) {
                    self.end(slot, Ended::NotAuthorized, now_ms);
                    self.finish(now_ms);
                    return;
                }
                client.grants = client.grants_by(&self.rules);
                client.rechecks |= !client.grants.is_open();
                client.recharge();
                (Reason::SUCCESS, &[])
            }
            Reauthenticated::Failure(_) => {
                self.end(slot, Ended::NotAuthorized, now_ms);
                self.finish(now_ms);
                return;
            }
        };
        let mut properties = PropertyBuf::new();
        properties.push(Property::AuthMethod(&method));
        if !data.is_empty() {
            properties.push(Property::AuthData(data));
        }
        let Some(link) = client.session.link_mut() else { return };
        let owed = link.outbox.len();
        link.write(&Packet::Auth(Auth { reason, properties: properties.as_properties() }));
        self.mark_dirty(slot);
        if matches!(answer, Reauthenticated::Renewed(_)) {
            self.recheck_receiving(slot);
            self.arm_timer(slot);
        }
        // The answer comes after the packets of its turn, and who takes none can ask on and on.
        self.look_whether_it_reads(slot, connection, owed);
    }
}

/// A second CONNECT, and an acknowledgement that does not fit its publish: the client has lost its
/// place in the protocol and would not expect a DISCONNECT either.
const SILENT_CLAUSES: [&str; 2] = ["MQTT-3.1.0-2", "MQTT-4.3.3-4"];

/// The last packet of a connection. No reason string: the public suites compare the whole packet.
/// The log has the detail.
fn write_farewell(link: &mut Link, ended: &Ended) {
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

/// Is the client told why? Not when it said goodbye itself, or can no longer be reached.
fn tells_client(ended: &Ended) -> bool {
    match ended {
        Ended::Client(_) | Ended::Network | Ended::PacketLimitTooLow | Ended::NotKept => false,
        Ended::Violation(violation) => {
            violation.is_answered() && !SILENT_CLAUSES.contains(&violation.clause)
        }
        _ => true,
    }
}
