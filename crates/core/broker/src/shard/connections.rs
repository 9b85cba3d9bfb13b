//! Connections come and end, and wills with them.

use codec::{Auth, Packet, Property, PropertyBuf, Reason};
use policy::{Action, Manner};
use session::{Link, Message, NEVER, Outbox, PauseReason};

use crate::life::connect::Who;
use crate::life::ending::{
    LOOKS_PER_END, NEVER_EXPIRES, QUEUED_PER_LOOK, notifies_client, write_farewell,
};
use crate::parts::client::Client;
use crate::parts::notices::NoticeKind;
use crate::words::connect_request::ConnectRequest;
use crate::words::rules::Rules;
use crate::{
    Close, Ended, Event, NO_CONNECTION, Name, Quota, Reauthenticated, ServiceAnswer, SessionKey,
    Shard, admission,
};

impl Shard {
    /// A connection has been admitted, which the driver has given a [number](crate::Numbers) of its
    /// own. Returns the client's slot, by which the driver names it from now on.
    ///
    /// Err: the session is another user's. The connection is nobody's: the driver writes these
    /// bytes and closes it.
    pub fn on_connect(
        &mut self,
        connection: u64,
        request: ConnectRequest,
        now_ms: u64,
    ) -> Result<u32, Vec<u8>> {
        self.cx.now_ms = now_ms;
        if let Some(reason) = self.bars(&request) {
            return Err(admission::refuse(&request, reason));
        }
        let existing = self.sessions.find(request.name());
        if let Some(slot) = existing {
            let client = self.sessions.get(slot);
            if client.is_some_and(|client| !client.is_owner(&self.cx, &request)) {
                if !client.is_some_and(|client| client.is_only_will) {
                    return Err(self.cx.refuse_stranger(request));
                }
                self.end_session(slot);
            }
            if self.sessions.get(slot).is_some_and(|client| client.session.is_online()) {
                self.cx.metrics.takeovers.add(1);
                self.end(slot, Ended::TakenOver);
            }
            // The connection may have ended the session already.
            match self.sessions.get(slot) {
                // The broker ended before its client did, which is back in time.
                Some(client) if client.is_only_will && client.expires_at_ms > now_ms => {
                    self.drop_only_will(slot);
                }
                // Its time may have come before anybody looked: right after a start, or between
                // two ticks.
                Some(client) if request.clean_start || client.expires_at_ms <= now_ms => {
                    self.end_session(slot);
                }
                Some(client) if client.will_due_ms() <= now_ms => self.publish_will(slot),
                _ => {}
            }
        }
        self.trace_connect(&request);
        let (slot, session_present) = match self.sessions.find(request.name()) {
            Some(slot) => (slot, true),
            None if self.cx.lacks_room_for(&request) => {
                return Err(self.cx.refuse_session_of(request));
            }
            None => {
                let client = Client::new(request.name(), request.limits.clone());
                let slot = self.sessions.insert(client);
                self.cx.metrics.sessions.add(1);
                self.cx.count_in_space(request.scope, Quota::Sessions, 1);
                (slot, false)
            }
        };
        self.open(slot, connection, request, session_present);
        if self.cx.doomed.is_empty() {
            self.wait_for_ends(slot);
            self.pump(slot);
        }
        if let Some(client) = self.sessions.get_mut(slot) {
            client.arm_timer(&mut self.cx);
        }
        self.finish();
        Ok(slot)
    }

    /// The network connection is gone.
    pub fn on_closed(&mut self, slot: u32, connection: u64, now_ms: u64) {
        self.cx.now_ms = now_ms;
        if self.sessions.link(slot, connection).is_some() {
            self.end_lost(slot, connection);
        }
        self.finish();
    }

    /// What was put aside while the client had to wait came before the end, its DISCONNECT too. It
    /// may take some turns.
    pub(crate) fn end_lost(&mut self, slot: u32, connection: u64) {
        let now_ms = self.cx.now_ms;
        let has_no_more = self.cx.flow.work.has_no_more();
        let Some(link) = self.sessions.link(slot, connection) else { return };
        link.is_lost = true;
        link.read_pauses.resume(PauseReason::Queued);
        if has_no_more && link.asks_for_much && !link.inbox.is_empty() {
            if let Some(client) = self.sessions.get_mut(slot) {
                client.wait_for_turn(&mut self.cx);
            }
            return;
        }
        self.on_bytes(slot, connection, &[], now_ms);
        let Some(link) = self.sessions.link(slot, connection) else { return };
        if !link.read_pauses.is_paused(PauseReason::Queued) || link.inbox.is_empty() {
            self.end(slot, Ended::Network);
        }
    }

    /// An operator ends the connection of a client. False if there is none.
    pub fn on_kick(&mut self, client: Name<'_>, now_ms: u64) -> bool {
        self.cx.now_ms = now_ms;
        let found = self.sessions.find(client);
        let Some(slot) = found.filter(|s| self.sessions.get(*s).is_some_and(|c| c.is_connected()))
        else {
            return false;
        };
        self.end(slot, Ended::Administrative);
        self.finish();
        true
    }

    /// Ends the connections of those whom `is_banned` means by client id, user name and address.
    pub fn on_bans(
        &mut self,
        is_banned: impl Fn(Name<'_>, Option<&str>, &str) -> bool,
        now_ms: u64,
    ) {
        self.cx.now_ms = now_ms;
        for slot in self.sessions.slots() {
            let Some(client) = self.sessions.get(slot) else { continue };
            let Some(link) = client.session.link() else { continue };
            if is_banned(client.name(), client.username.as_deref(), &link.peer) {
                self.cx.doomed.push((slot, Ended::Banned));
            }
        }
        self.finish();
    }

    /// Ends the connections of those whose credential was revoked. Who connects from now on is the
    /// driver's to keep out.
    pub fn on_revoked(&mut self, now_ms: u64) {
        self.cx.now_ms = now_ms;
        for slot in self.sessions.slots() {
            let Some(client) = self.sessions.get(slot).filter(|client| client.is_connected())
            else {
                continue;
            };
            if client.principal.as_ref().is_some_and(|principal| principal.is_revoked()) {
                self.cx.doomed.push((slot, Ended::CredentialRevoked));
            }
        }
        self.finish();
    }

    /// There is no room for what has come of a connection's packets, or others wait for the room of
    /// one that takes too long.
    pub fn on_crowded(&mut self, slot: u32, connection: u64, now_ms: u64) {
        self.cx.now_ms = now_ms;
        if self.sessions.link(slot, connection).is_some() {
            self.end(slot, Ended::Crowded);
            self.finish();
        }
    }

    /// Ends a connection, and what ends with it.
    pub(crate) fn end(&mut self, slot: u32, ended: Ended) {
        let Some(client) = self.sessions.get_mut(slot) else { return };
        let connection = std::mem::replace(&mut client.connection, NO_CONNECTION);
        let Some(mut link) = client.session.detach() else { return };
        client.session.incoming.note_orphans(connection, &link);
        let turn = link.take_turn();
        if let Some(extras) = &mut client.extras {
            extras.request = None;
            extras.verdicts = None;
        }
        if link.is_told_nothing {
            link.outbox = Outbox::default();
        }
        if notifies_client(&ended) && !link.is_lost {
            write_farewell(&mut link, &ended);
        }
        if self.cx.tracing.is_some() {
            self.cx.trace_end(client.name(), &link, connection, &ended);
        }
        let farewell = std::mem::take(&mut link.outbox);
        client.charged.set_unsent(0);
        client.publish_load();
        let event = Event::Disconnected {
            client_id: client.id.clone(),
            username: client.username.clone(),
            sequence: link.sequence,
            peer: link.peer,
            ended: ended.clone(),
            session_expiry_secs: client.session_expiry_secs,
        };
        let scope = client.scope;
        self.cx.effects.closes.push(Close { slot, connection, farewell });
        self.cx.count_end(&ended);
        self.cx.count_in_space(scope, Quota::Connections, -1);
        if let Some(turn) = turn {
            self.cx.give_turn_back(scope, &turn);
        }
        self.cx.report(scope, event);
        // The fate of will and session (MQTT-3.1.2-8, MQTT-3.1.2-10, section 4.1).
        let now_ms = self.cx.now_ms;
        self.give_back(slot);
        let Some(client) = self.sessions.get_mut(slot) else { return };
        if ended == Ended::Client(Reason::NORMAL_DISCONNECTION) {
            client.will = None;
            client.recharge();
            self.forget_will(slot);
        }
        let Some(client) = self.sessions.get_mut(slot) else { return };
        if client.session_expiry_secs == 0 {
            return self.end_with_connection(slot, &ended);
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
            self.publish_will(slot);
        }
        self.keep_detached(slot, now_ms);
        if let Some(client) = self.sessions.get_mut(slot) {
            client.arm_timer(&mut self.cx);
        }
    }

    /// The next broker publishes what will it left, if this one stops.
    fn end_with_connection(&mut self, slot: u32, ended: &Ended) {
        if *ended == Ended::Shutdown {
            self.leave_will(slot);
        }
        self.end_session(slot);
    }

    /// The session is over: its subscriptions go, its will is due at the latest now
    /// (MQTT-3.1.3.2-2).
    pub(crate) fn end_session(&mut self, slot: u32) {
        self.publish_will(slot);
        self.give_back(slot);
        self.forget_session(slot);
        let Some(client) = self.sessions.get_mut(slot) else { return };
        client.report_notices(&mut self.cx);
        for origin in client.session.outgoing.shared_in_flight() {
            self.cx.notify_home(origin.group, origin.serial, true);
        }
        self.bury(slot);
    }

    pub(crate) fn publish_will(&mut self, slot: u32) {
        let now_ms = self.cx.now_ms;
        let Some(client) = self.sessions.get_mut(slot) else { return };
        let key = client.key;
        let Some(will) = client.will.take() else { return };
        client.recharge();
        let manner = Manner { qos: will.qos as u8, retain: will.retain };
        // A service has allowed it when the client connected.
        let is_denied =
            !client.grants.allows_as(client.identity(), Action::Publish, &will.topic, manner)
                && !client.is_will_undecided(&will);
        if is_denied {
            self.cx.metrics.publishes_denied.add(1);
            client.note_as(&mut self.cx, NoticeKind::Denied("will"), &will.topic, manner);
            self.forget_will(slot);
            return;
        }
        let (publisher, scope) = ((key.as_u64(), client.name().author()), client.scope);
        let durability = client.limits.durability;
        let level = self.level_of(&will.topic, durability);
        let parts = will.parts(publisher, scope.number(), level, now_ms);
        let mut message = Message::new(&parts);
        self.cx.metrics.wills.add(1);
        // Who is there gets it.
        let is_unkept = self.lacks_share_for(&message);
        if is_unkept {
            if let Some(client) = self.sessions.get_mut(slot) {
                client.note(&mut self.cx, NoticeKind::Refused, message.topic());
            }
            message = Message::new(&session::MessageParts { level: 0, ..parts });
        }
        if is_unkept || !self.publish_kept_will(slot, &message) {
            let routed = self.route_in_turn(slot, &message, None);
            self.deliver_own(&message, routed.own);
            self.forget_will(slot);
        }
    }

    /// A tick of the wheel has come that a client asked for. Returns what that took, in looks.
    pub(crate) fn on_due(&mut self, key: u64, tick: u64) -> usize {
        let now_ms = self.cx.now_ms;
        let Some(slot) = self.sessions.slot_of(SessionKey::from_u64(key)) else { return 1 };
        let Some(client) = self.sessions.get_mut(slot).filter(|c| c.timer_at == tick) else {
            return 1;
        };
        client.timer_at = u64::MAX;
        let mut looks = 1;
        if let Some(link) =
            client.session.link_mut().filter(|l| l.read_pauses.is_paused(PauseReason::Queued))
        {
            // It is not silent: we do not listen.
            link.last_packet_ms = now_ms;
        }
        let keep_alive = client.session.link().and_then(Link::keep_alive_deadline_ms);
        if keep_alive.is_some_and(|deadline_ms| deadline_ms <= now_ms) {
            looks += LOOKS_PER_END;
            self.end(slot, Ended::KeepAlive);
        }
        if let Some(client) = self.sessions.get_mut(slot) {
            client.ask_again_if_due(&mut self.cx);
            looks += client.drop_expired(&mut self.cx) / QUEUED_PER_LOOK;
        }
        let Some(client) = self.sessions.get(slot) else { return looks };
        if client.credential_due_ms() <= now_ms {
            looks += LOOKS_PER_END;
            self.end(slot, Ended::CredentialExpired);
        }
        let Some(client) = self.sessions.get(slot) else { return looks };
        if client.will_due_ms() <= now_ms {
            looks += LOOKS_PER_END;
            self.publish_will(slot);
        }
        let Some(client) = self.sessions.get(slot) else { return looks };
        if client.expires_at_ms <= now_ms {
            looks += LOOKS_PER_END;
            self.cx.metrics.sessions_expired.add(1);
            let (client_id, username) = (client.id.clone(), client.username.clone());
            let (scope, is_only_will) = (client.scope, client.is_only_will);
            if !is_only_will {
                self.cx.report(scope, Event::SessionExpired { client_id, username });
            }
            self.end_session(slot);
            return looks;
        }
        if let Some(client) = self.sessions.get_mut(slot) {
            client.session.shrink();
            if let Some(kept) = self.log.as_mut().and_then(|log| log.kept.get_mut(slot)) {
                kept.shrink();
            }
            client.report_notices(&mut self.cx);
            client.arm_timer(&mut self.cx);
        }
        looks
    }

    /// The back-end has answered `Reauthenticate`.
    pub fn on_reauthenticated(
        &mut self,
        slot: u32,
        connection: u64,
        answer: &Reauthenticated,
        now_ms: u64,
    ) {
        self.cx.now_ms = now_ms;
        let Some(client) = self.sessions.get_mut(slot).filter(|c| c.connection == connection)
        else {
            return;
        };
        let agreed = client.session.link().and_then(|link| link.auth_method());
        let method: Box<str> = agreed.unwrap_or_default().into();
        let (reason, data): (_, &[u8]) = match answer {
            Reauthenticated::Continue(data) => (Reason::CONTINUE_AUTHENTICATION, data),
            Reauthenticated::Success(data) => (Reason::SUCCESS, data),
            Reauthenticated::Renewed(principal) => {
                if !client.principal.get_or_insert_default().renew(*principal.clone()) {
                    self.end(slot, Ended::NotAuthorized);
                    self.finish();
                    return;
                }
                self.renew_grants(slot);
                self.look_at_will_again(slot);
                (Reason::SUCCESS, &[])
            }
            Reauthenticated::Failure(_) => {
                self.end(slot, Ended::NotAuthorized);
                self.finish();
                return;
            }
        };
        let mut properties = PropertyBuf::new();
        properties.push(Property::AuthMethod(&method));
        if !data.is_empty() {
            properties.push(Property::AuthData(data));
        }
        let Some(client) = self.sessions.get_mut(slot) else { return };
        let Some(link) = client.session.link_mut() else { return };
        let unread = link.outbox.len();
        link.write(&Packet::Auth(Auth { reason, properties: properties.as_properties() }));
        client.mark_dirty(&mut self.cx);
        client.arm_timer(&mut self.cx);
        // The answer comes after the packets of its turn, and who takes none can ask on and on.
        client.check_reading(&mut self.cx, unread);
    }

    /// Who has a connection, as long as it is one.
    pub fn who(&self, slot: u32, connection: u64) -> Option<Who<'_>> {
        let client = self.sessions.get(slot).filter(|client| client.connection == connection)?;
        let peer = &client.session.link()?.peer;
        Some(Who { client: client.name(), username: client.username.as_deref(), peer })
    }

    /// The connection that a client has now.
    pub fn connection_of(&self, client: Name<'_>) -> Option<u64> {
        let client = self.sessions.get(self.sessions.find(client)?)?;
        Some(client.connection).filter(|connection| *connection != NO_CONNECTION)
    }

    /// Rules of a client have changed.
    fn look_at_will_again(&mut self, slot: u32) {
        let Some(client) = self.sessions.get_mut(slot) else { return };
        if client.will.is_some() && client.ask_about_known_will(&mut self.cx) {
            self.forget_will(slot);
        }
    }

    /// The service has answered [`crate::AccessQuestion`] `number` of a connection.
    pub fn on_verdict(
        &mut self,
        (slot, connection): (u32, u64),
        number: u32,
        answer: ServiceAnswer,
        now_ms: u64,
    ) {
        self.cx.now_ms = now_ms;
        // It may be another connection by now, or none.
        let Some(client) = self.sessions.connected(slot, connection) else { return };
        let Some(will) = client.take_verdict(&mut self.cx, number, answer) else { return };
        if let Some(will) = will {
            self.settle_will(slot, will);
        }
        self.read_on(slot, connection);
        self.finish();
    }

    /// Closes all connections, with a reason for those that can get one. Wills with a delay wait,
    /// others are published.
    pub fn on_shutdown(&mut self, now_ms: u64) {
        self.cx.now_ms = now_ms;
        // From now on mail is dealt with as it comes, and first what has waited.
        self.cx.flow.work.stop();
        self.finish_broadcasts();
        self.read_mail_on();
        for slot in self.sessions.slots() {
            if self.sessions.get(slot).is_some_and(|client| client.session.is_online()) {
                self.end(slot, Ended::Shutdown);
            }
        }
        self.finish();
    }

    /// New rules; they hold for what comes from now on, also on sessions that are open.
    pub fn set_access(&mut self, rules: impl Into<Rules>) {
        self.set_rules(rules.into());
        for slot in self.sessions.slots() {
            self.look_at_will_again(slot);
        }
    }
}
