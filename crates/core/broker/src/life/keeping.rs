//! Sessions that outlive their connections: what of them is written into the log, and when.

use codec::{Packet, Reason, Version};
use session::Control;
use storage::{AppendError, Position};
use topic::FilterId;

use crate::log::ends::End;
use crate::log::kept_sessions::{Leaves, Opening};
use crate::log::late::{Unwritten, passes};
use crate::log::store::Class;
use crate::log::waiting::Step;
use crate::parts::client::Client;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Listed;
use crate::words::expected::Expected;
use crate::words::options;
use crate::words::queue_number::QueueNumber;
use crate::words::reasons::reason_of;
use crate::{Durability, Ended, Name, SessionKey, Shard};

/// What a fact adds to its texts at the most, and some more.
const FACT_BYTES_MAX: usize = 128;

impl Shard {
    /// A connection has opened the session: it is written down if it outlives the connection.
    ///
    /// Err: it is new and there is no room for it, or the journal is out of service.
    pub(super) fn keep_session(&mut self, slot: u32, version: Version) -> Result<(), AppendError> {
        let Self { cx, sessions, log: Some(log), .. } = self else { return Ok(()) };
        let Some(client) = sessions.get_mut(slot).expected() else { return Ok(()) };
        let (level, client_id) = (client.limits.durability, client.name().key());
        let opening = client.opening(&client_id, version);
        if client.is_kept {
            let why_no_will = log.resume_session(slot, &opening, level, cx.now_ms)?;
            if let Some(error) = why_no_will {
                self.report_will_not_kept(slot, error);
            }
            return Ok(());
        }
        if !client.is_persistent() {
            self.keep_lone_will(slot);
            return Ok(());
        }
        if level == Durability::Memory {
            return Ok(());
        }
        // What it has asked for already, at level `memory`, does not wait.
        let may_wait = client.subscriptions.len() == 0;
        let begun = log.begin_session(slot, &opening, level, may_wait, cx.now_ms);
        client.is_kept = log.kept.get(slot).is_some();
        begun?;
        self.keep_subscriptions(slot);
        Ok(())
    }

    /// Subscriptions that the session had before it was kept.
    fn keep_subscriptions(&mut self, slot: u32) {
        let Some(client) = self.sessions.get(slot).expected() else { return };
        for listed in client.subscriptions.iter().collect::<Vec<_>>() {
            let text = self.filter_text(listed);
            let Some((bits, identifier)) = self.bits_of(slot, listed) else { continue };
            if self.keep_subscription(slot, listed, &text, (bits, identifier)).is_err() {
                continue;
            }
            let group = listed.group.checked_sub(1).and_then(|group| self.groups.name(group));
            match group.cloned() {
                None => self.sessions.set_durable_bit(slot, listed),
                // All shards hear that the group keeps messages for it from now on.
                Some(name) => {
                    let names = (&*name.share, &*name.filter);
                    self.join_group(slot, names, (bits, identifier));
                }
            }
        }
    }

    /// Option bits and identifier of a subscription, as those of a session that is kept.
    fn bits_of(&self, slot: u32, listed: Listed) -> Option<(u8, u32)> {
        let Some(group) = listed.group.checked_sub(1) else {
            let own = self.sessions.router.subscription(listed.filter, slot)?;
            return Some((own.options, own.identifier));
        };
        let (bits, identifier) = self.groups.member_bits(group, self.sessions.key(slot))?;
        Some((options::of_durable_member(bits), identifier))
    }

    /// The filter as the client wrote it.
    fn filter_text(&self, listed: Listed) -> String {
        let filter = self.sessions.router.text(listed.filter);
        match listed.group.checked_sub(1).and_then(|group| self.groups.name(group)) {
            Some(name) => format!("$share/{}/{}", name.share, name.filter),
            None => filter.to_owned(),
        }
    }

    /// Writes down what a session has been granted, instead of what it had. Returns what its SUBACK
    /// has to wait for.
    pub(super) fn keep_granted(
        &mut self,
        slot: u32,
        listed: Listed,
        text: &str,
        old: Option<(u8, u32)>,
        granted: (u8, u32),
    ) -> Result<Option<Position>, Reason> {
        let granted = self.replace_filter(slot, listed, old, granted);
        if old == Some(granted) && listed.place.is_some() {
            // It is written as it is; perhaps not committed yet.
            return Ok(Some(listed.place.position()));
        }
        let kept = self.keep_subscription(slot, listed, text, granted);
        kept.map_err(|error| reason_of(&error))
    }

    /// A filter is the session's from now on, or gets other options. Returns what it is granted,
    /// with the mark of one by which older messages are due.
    fn replace_filter(
        &mut self,
        slot: u32,
        listed: Listed,
        old: Option<(u8, u32)>,
        (bits, identifier): (u8, u32),
    ) -> (u8, u32) {
        let was_kept = old.is_some_and(|(old, _)| options::is_durable(old));
        let is_kept = options::is_durable(bits);
        // A group keeps its messages itself.
        if listed.is_shared() || was_kept == is_kept {
            return (bits, identifier);
        }
        let Self { sessions, log: Some(log), .. } = self else { return (bits, identifier) };
        if !log.change_filter(slot, listed.filter, is_kept) {
            return (bits, identifier);
        }
        sessions.set_owed(slot, listed);
        (bits | options::KEPT, identifier)
    }

    /// Writes a subscription down. Returns where it stands; none if the session is not kept.
    fn keep_subscription(
        &mut self,
        slot: u32,
        listed: Listed,
        text: &str,
        granted: (u8, u32),
    ) -> Result<Option<Position>, AppendError> {
        let Self { sessions, log: Some(log), .. } = self else { return Ok(None) };
        let written = log.write_subscription(slot, (listed.filter, text), granted)?;
        let Some(place) = written else { return Ok(None) };
        let client = sessions.get_mut(slot).expected();
        if let Some(known) = client.and_then(|it| it.subscriptions.place_mut(&listed)) {
            log.release(std::mem::replace(known, place));
        }
        Ok(Some(place.position()))
    }

    /// Writes a subscription down again of which facts of earlier versions say more than its own.
    pub(crate) fn keep_again(&mut self, session: QueueNumber, filter: FilterId) {
        let Self { sessions, log: Some(log), .. } = self else { return };
        // The session has ended, or has given the filter up.
        let Some(slot) = log.kept.find(session) else { return };
        let Some(own) = sessions.router.subscription(filter, slot) else { return };
        let text = sessions.router.text(filter).to_owned();
        let (listed, granted) = (Listed::new(filter, 0), (own.options, own.identifier));
        let kept = self.keep_subscription(slot, listed, &text, granted);
        if let (Err(error), Some(log)) = (kept, &mut self.log)
            && passes(&error)
        {
            log.put_off_subscription(session, filter);
        }
    }

    /// Sends a packet once the fact behind it is committed, and the facts of the CONNECT about the
    /// session and its will: whoever has the answer has that, too. At once if there is nothing to
    /// wait for.
    pub(super) fn answer_when_kept(
        &mut self,
        slot: u32,
        position: Option<Position>,
        packet: &Packet<'_>,
    ) {
        let session = self.sessions.key(slot);
        let Self { cx, sessions, log, .. } = self;
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        let connection = client.connection;
        let Some(link) = client.session.link_mut().expected() else { return };
        let leaves = log.as_ref().map(|log| log.leaves(slot, position, is_refusal(packet)));
        let (Some(log), Some(leaves)) = (log, leaves.filter(|leaves| *leaves != Leaves::Now))
        else {
            link.write(packet);
            return client.mark_dirty(cx);
        };
        let mut bytes = Vec::new();
        packet.encode(link.version(), &mut bytes);
        let packet: Box<[u8]> = bytes.into();
        let is_over = match leaves {
            Leaves::With(position, level) => {
                log.wait(position, level, Step::Packet { session, connection, packet });
                false
            }
            Leaves::Late { is_of_new } => {
                !log.put_off_answer((session, connection), packet, is_of_new)
            }
            Leaves::Never | Leaves::Now => true,
        };
        if is_over {
            cx.doomed.push((slot, Ended::JournalFailed));
        }
    }

    /// What an answer waited for is committed.
    pub(crate) fn send_packet(&mut self, session: SessionKey, connection: u64, packet: &[u8]) {
        let Self { cx, sessions, .. } = self;
        let client = sessions.at(session).filter(|client| client.connection == connection);
        let Some(client) = client else { return };
        let Some(link) = client.session.link_mut() else { return };
        link.outbox.append(|out| out.extend_from_slice(packet));
        let first = packet.first().copied().unwrap_or_default();
        link.outbox.note_control(Control::of_first_byte(first));
        client.mark_dirty(cx);
    }

    /// The connection has ended: from now on the session's expiry runs.
    pub(crate) fn keep_detached(&mut self, slot: u32, now_ms: u64) {
        let Self { sessions, log: Some(log), .. } = self else { return };
        if let Some(client) = sessions.get(slot).expected() {
            log.detached(slot, client.session_expiry_secs, now_ms);
        }
    }

    /// A connection that the log does not know of is written down.
    pub(crate) fn try_connect(&mut self, slot: u32) {
        let Self { sessions, log: Some(log), .. } = self else { return };
        let Some(connect) = log.take_unwritten(slot) else { return };
        let Some(client) = sessions.get(slot).expected() else { return };
        let client_id = client.name().key();
        let opening = client.opening(&client_id, connect.version);
        let class = if connect.is_new { Class::Normal } else { Class::Essential };
        let written = match connect.is_new && !log.has_room_for(client.bytes_in_log()) {
            true => Err(AppendError::Backlog { bytes: 0 }),
            false => log.write_connect(slot, &opening, connect, class),
        };
        match written {
            Ok(why_no_will) => {
                if let Some(error) = why_no_will {
                    self.report_will_not_kept(slot, error);
                }
                let Unwritten { detached_ms, .. } = connect;
                detached_ms.into_iter().for_each(|at_ms| self.keep_detached(slot, at_ms));
            }
            Err(error) if passes(&error) => log.put_off_connect(slot, connect),
            // Nothing is promised any more.
            Err(_) => {}
        }
    }

    /// A connection of a kept session was opened. It gets its answer when the ends of the sessions
    /// of its client ID before it are committed.
    pub(crate) fn wait_for_ends(&mut self, slot: u32) {
        let (session, id_hash) = (self.sessions.key(slot), self.sessions.id_hash(slot));
        let Self { sessions, log: Some(log), .. } = self else { return };
        let Some(client) = sessions.get_mut(slot) else { return };
        let connection = client.connection;
        if let Some(link) = client.session.link_mut() {
            link.is_told_nothing = log.waits_for_ends(id_hash, session, connection);
        }
    }

    /// The session is over, with all that is written of it.
    pub(crate) fn forget_session(&mut self, slot: u32) {
        let pending = self.all_pending(slot);
        let Self { sessions, log: Some(log), .. } = self else { return };
        let id_hash = sessions.id_hash(slot);
        let answered = match log.kept.get(slot) {
            Some(_) => log.end_session(slot, pending, id_hash),
            None => log.end_lone_will(slot, Some(id_hash)),
        };
        sessions.set_kept(slot, false);
        answered.into_iter().for_each(|client| self.finish_end(client));
    }

    /// Writes down that a session has ended, now or when there is room for it.
    pub(crate) fn write_end(&mut self, end: End) {
        let answered = self.log.as_mut().and_then(|log| log.write_end(end));
        answered.into_iter().for_each(|client| self.finish_end(client));
    }

    /// The answer to the client may leave, once none of its ends is under way.
    pub(crate) fn finish_end(&mut self, client: u64) {
        let waiting = self.log.as_mut().and_then(|log| log.finish_end(client));
        waiting.into_iter().for_each(|(session, connection)| self.open_outbox(session, connection));
    }

    /// The log takes nothing any more for want of room: nobody waits for an end.
    pub(crate) fn wait_for_no_end(&mut self) {
        let Some(log) = &mut self.log else { return };
        for (session, connection) in log.wait_for_no_end() {
            self.open_outbox(session, connection);
        }
    }

    fn open_outbox(&mut self, session: SessionKey, connection: u64) {
        let Self { cx, sessions, .. } = self;
        let Some(slot) = sessions.slot_of(session) else { return };
        let Some(client) = sessions.connected(slot, connection) else { return };
        if let Some(link) = client.session.link_mut() {
            link.is_told_nothing = false;
            client.mark_dirty(cx);
        }
    }

    /// The connection waits for a log that is out of service.
    pub(crate) fn doom(&mut self, session: SessionKey, connection: u64) {
        if let Some(slot) = self.sessions.slot_of(session)
            && self.sessions.link(slot, connection).is_some()
        {
            self.cx.doomed.push((slot, Ended::JournalFailed));
        }
    }
}

impl Sessions {
    fn set_durable_bit(&mut self, slot: u32, listed: Listed) {
        let subscription = self.router.subscription(listed.filter, slot).expected();
        if subscription.is_some_and(|it| options::qos(it.options) != codec::QoS::AtMostOnce) {
            self.set_owed(slot, listed);
        }
    }

    /// What the log has for the subscription is due, also if its QoS is 0 by now.
    pub(crate) fn set_owed(&mut self, slot: u32, listed: Listed) {
        let Some(mut subscription) = self.router.subscription(listed.filter, slot).expected()
        else {
            return;
        };
        subscription.options |= options::KEPT;
        let key = self.router.key(listed.filter).to_owned();
        self.router.subscribe(Name::of_key(&key), subscription);
    }
}

impl Client {
    /// What is written of it as a session. `client_id`: the key of its name.
    pub(super) fn opening<'a>(&'a self, client_id: &'a str, version: Version) -> Opening<'a> {
        Opening {
            client_id,
            username: self.username.as_deref().unwrap_or_default(),
            version,
            expiry_secs: self.session_expiry_secs,
            will: self.will.as_deref(),
        }
    }

    /// What that and its will take in the log at the most.
    fn bytes_in_log(&self) -> usize {
        let username = self.username.as_ref().map_or(0, |name| name.len());
        let will = self.will.as_ref().map_or(0, |will| {
            will.topic.len() + will.properties.len() + will.payload.len() + FACT_BYTES_MAX
        });
        self.id.len() + username + will + FACT_BYTES_MAX
    }
}

/// Does it say that nothing was done? Then it promises nothing.
fn is_refusal(packet: &Packet<'_>) -> bool {
    let reasons = match packet {
        Packet::Suback(suback) => suback.reasons,
        Packet::Unsuback(unsuback) => unsuback.reasons,
        _ => return false,
    };
    !reasons.is_empty() && reasons.iter().all(|reason| Reason(*reason).is_error())
}
