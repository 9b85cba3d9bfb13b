//! Wills: when they are due, and from there to their recipients.

use codec::QoS;
use policy::Manner;
use session::{Link, Message, Will};
use storage::AppendError;

use crate::log::late::DueWill;
use crate::log::late::passes;
use crate::log::store::{Class, Log};
use crate::parts::notices::NoticeKind;
use crate::parts::stream_index::Asking;
use crate::words::expected::Expected;
use crate::{Durability, Event, Name, SessionKey, Shard};

impl Shard {
    /// The service has decided about the will of a connection that is there.
    pub(crate) fn settle_will(&mut self, slot: u32, (will, allows): (Box<Will>, bool)) {
        let Some(client) = self.sessions.get_mut(slot) else { return };
        if !allows {
            let manner = Manner { qos: will.qos as u8, retain: will.retain };
            self.cx.metrics.publishes_denied.add(1);
            return client.note_as(&mut self.cx, NoticeKind::Denied("will"), &will.topic, manner);
        }
        client.will = Some(will);
        client.recharge();
        self.keep_later_will(slot);
    }

    /// The session has a will that it did not have when it was opened.
    fn keep_later_will(&mut self, slot: u32) {
        let Some(log) = &self.log else { return };
        match log.kept.get(slot) {
            None => self.keep_lone_will(slot),
            // With the session, which is written later.
            Some(kept) if kept.is_unwritten() => {}
            Some(_) => self.write_will(slot, Class::Normal),
        }
    }

    /// Writes down the will that a kept session has, now or when there is room for it.
    fn write_will(&mut self, slot: u32, class: Class) {
        let Self { sessions, log: Some(log), .. } = self else { return };
        let Some(client) = sessions.get(slot).expected() else { return };
        let Err(error) = log.write_will(slot, client.will.as_deref(), class) else { return };
        if passes(&error) {
            log.put_off_will(slot);
        }
        self.report_will_not_kept(slot, error);
    }

    /// A will that is to be written down is tried again.
    pub(crate) fn try_will(&mut self, slot: u32) {
        let Self { sessions, log: Some(log), .. } = self else { return };
        let Some(client) = sessions.get(slot).expected() else { return };
        if log.take_pending_will(slot)
            && let Err(error) = log.write_will(slot, client.will.as_deref(), Class::Essential)
            && passes(&error)
        {
            log.put_off_will(slot);
        }
    }

    /// The will lives as long as the process, like that of a clean session.
    pub(super) fn report_will_not_kept(&mut self, slot: u32, error: AppendError) {
        let Some(client) = self.sessions.get(slot).expected() else { return };
        let (scope, client_id) = (client.scope, client.id.clone());
        self.cx.report(scope, Event::WillNotKept { client_id, error });
    }

    /// The will is withdrawn, or published without a recipient.
    pub(crate) fn forget_will(&mut self, slot: u32) {
        let Self { sessions, log: Some(log), .. } = self else { return };
        if log.kept.get(slot).is_some() {
            return log.forget_will(slot);
        }
        let answered = log.end_lone_will(slot, Some(sessions.id_hash(slot)));
        answered.into_iter().for_each(|client| self.finish_end(client));
    }

    /// Writes the will down that a session has which ends with its connection.
    pub(super) fn keep_lone_will(&mut self, slot: u32) {
        let (session, id_hash) = (self.sessions.key(slot), self.sessions.id_hash(slot));
        let Self { cx, sessions, log: Some(log), .. } = self else { return };
        let Some(client) = sessions.get(slot).expected() else { return };
        let level = client.limits.durability;
        if client.will.is_none() || level == Durability::Memory {
            return;
        }
        let Some(version) = client.session.link().map(Link::version) else { return };
        let client_id = client.name().key();
        let opening = client.opening(&client_id, version);
        match log.begin_lone_will(slot, &opening, (level, id_hash), cx.now_ms) {
            Ok(()) => {}
            // The next segment is being made.
            Err(AppendError::Backlog { .. }) => log.put_off_lone_will(session, id_hash),
            Err(error) => self.report_will_not_kept(slot, error),
        }
    }

    /// It is tried again. Who waits for it waits for another try, or no longer.
    pub(crate) fn try_lone_will(&mut self, session: SessionKey, client: u64) {
        let slot = self.sessions.slot_of(session);
        let is_there = |slot: &u32| {
            self.sessions.get(*slot).is_some_and(|client| client.is_connected() && !client.is_kept)
        };
        if let Some(slot) = slot.filter(is_there) {
            self.keep_lone_will(slot);
        }
        self.finish_end(client);
    }

    /// The session of which a broker that has ended left the will only: its client is back, so the
    /// will is void.
    pub(crate) fn drop_only_will(&mut self, slot: u32) {
        if let Some(client) = self.sessions.get_mut(slot) {
            client.will = None;
            client.recharge();
        }
        self.forget_will(slot);
        self.end_session(slot);
    }

    /// The broker stops: the next one publishes the will, if the client does not come back. False:
    /// it is not written down.
    pub(crate) fn leave_will(&mut self, slot: u32) -> bool {
        let Self { sessions, log: Some(log), .. } = self else { return false };
        let Some(client) = sessions.get_mut(slot) else { return false };
        if client.will.is_none() || !log.leave_lone_will(slot) {
            return false;
        }
        client.will = None;
        client.recharge();
        true
    }

    /// Publishes a will that is written down. False: it has no recipient, or no journal can store
    /// it.
    pub(crate) fn publish_kept_will(&mut self, slot: u32, message: &Message) -> bool {
        let Self { sessions, log: Some(log), .. } = self else { return false };
        let (Some(client), Some(session)) = (sessions.get(slot), log.session_of_will(slot)) else {
            return false;
        };
        let publisher = client.known_publisher();
        let will = DueWill { session, message: message.clone(), publisher };
        if !self.has_recipient_of_will(message) {
            return false;
        }
        match self.take_will(&will) {
            Ok(()) => return true,
            Err(AppendError::Full(_) | AppendError::Backlog { .. }) => {}
            Err(_) => return false,
        }
        if let Some(log) = &mut self.log {
            log.put_off_due_will(will);
        }
        true
    }

    /// A will that could not be written down is tried again.
    pub(crate) fn try_due_will(&mut self, will: DueWill) {
        let is_taken = self.take_will(&will).is_ok();
        let Some(log) = &mut self.log else { return };
        if !is_taken {
            return log.put_off_due_will(will);
        }
        // The will of its next connection had to wait for this one.
        if let Some(slot) = log.end_due_will(will.session) {
            self.write_will(slot, Class::Essential);
        }
    }

    /// Makes a will a message of this shard, and sends it on its way. Err: it waits, for room or
    /// until all is passed on that was under way when the broker ended.
    fn take_will(&mut self, will: &DueWill) -> Result<(), AppendError> {
        let message = &will.message;
        let places = self.sessions.streams_for(message);
        let Self { cx, sessions, log: Some(log), .. } = self else {
            return Err(AppendError::Closed);
        };
        if log.is_resuming() {
            return Err(AppendError::Backlog { bytes: 0 });
        }
        let set = sessions.router.streams().set();
        let serial = log.take_will(will, (set, &places), cx.now_ms)?;
        let slot = log.kept.find(will.session);
        let delivered = self.deliver_kept(message, serial);
        self.deliver_own(message, delivered.own);
        let own = slot.map(|slot| (slot, self.cx.topic_mark(Name::of(message))));
        let waits = |log: &mut Box<Log>| log.will_waits_in_line(own, serial);
        if !self.log.as_mut().is_some_and(waits) {
            self.pass_on_taken(serial);
        }
        Ok(())
    }

    /// Does the will have a recipient that would lose it with the process?
    fn has_recipient_of_will(&mut self, message: &Message) -> bool {
        let Self { sessions, groups, .. } = self;
        let topic = Name::topic_of(message);
        if !sessions.router.streams_for(topic, Asking::of(message)).is_empty() {
            return true;
        }
        message.level() > 0
            && (message.retain()
                || message.qos() > QoS::AtMostOnce
                    && (!groups.is_empty() || sessions.router.interested(topic).promises != 0))
    }
}
