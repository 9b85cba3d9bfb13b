//! Wills of kept sessions: written down with the session, and never lost between there and those
//! that have to store them.
//!
//! A will that is published becomes a message of its shard in one record, which also takes the will
//! away ([`Fact::WillTaken`]). The message goes on its way at once, so that nothing the client
//! publishes with its next connection overtakes it, and stays in the journal until every place that
//! has to store it has it in its own. What a crash finds between is passed on again after the
//! start.

use codec::QoS;
use session::{Message, Will};
use storage::AppendError;

use crate::log::Durable;
use crate::log::facts::{Fact, Purpose, StoredWill};
use crate::log::postponed;
use crate::log::postponed::Postponed;
use crate::log::store::Class;
use crate::log::streams::{ForStreams, KnownPublisher};
use crate::parts::groups::Groups;
use crate::parts::retained::Retained;
use crate::parts::sessions::Sessions;
use crate::parts::stream_index::Asking;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::queue_number::QueueNumber;
use crate::words::stream_set::StreamFlaw;
use crate::{Event, Name};

/// A will that is published, and not in the journal as a message yet.
#[derive(Debug)]
pub(super) struct DueWill {
    session: QueueNumber,
    message: Message,
    /// Kept here: the session may be over first, and its client may return as somebody else.
    publisher: KnownPublisher,
}

impl Durable {
    /// Writes the will down that the session has, instead of the one it had.
    ///
    /// In one record, so that a crash finds one of the two.
    pub(super) fn keep_will(
        &mut self,
        sessions: &mut Sessions,
        slot: u32,
        class: Class,
    ) -> Result<(), AppendError> {
        let Some(client) = sessions.get_mut(slot).expected() else { return Ok(()) };
        if client.will.is_none() {
            self.forget_will(sessions, slot);
            return Ok(());
        }
        let Some(store) = self.store.as_mut().expected() else { return Ok(()) };
        let (Some(will), Some(durable)) =
            (&client.will, self.kept.get_mut(client.key.slot()).expected())
        else {
            return Ok(());
        };
        // The one that is written down is still pending: what came later has to wait behind it, and
        // a crash may come first.
        if durable.has_due_will() {
            return Err(AppendError::Backlog { bytes: store.journal.stats().pending_bytes });
        }
        let fact = Fact::Will(stored_will(will, durable.queue));
        let place = store.append(class, &fact, durable.journal_level())?;
        let rare = durable.rare();
        rare.has_pending_will = false;
        let old = std::mem::replace(&mut rare.will, place);
        store.release(old);
        Ok(())
    }

    /// The session has a will that it did not have when it was opened.
    pub(crate) fn keep_later_will(&mut self, cx: &mut Context, sessions: &mut Sessions, slot: u32) {
        let Some(kept) = sessions.get(slot).and_then(|client| self.kept.get(client.key.slot()))
        else {
            return;
        };
        // With the session, which is written later.
        if kept.unwritten().is_some() {
            return;
        }
        if let Err(error) = self.keep_will(sessions, slot, Class::Normal) {
            if postponed::passes(&error) {
                self.put_off_will(slot);
            }
            sessions.report_will_not_kept(cx, slot, error);
        }
    }

    /// The will is withdrawn, or published without a recipient.
    pub(crate) fn forget_will(&mut self, sessions: &mut Sessions, slot: u32) {
        let Some(store) = &mut self.store else { return };
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        let Some(durable) = self.kept.get_mut(client.key.slot()) else { return };
        let (session, level) = (durable.queue, durable.journal_level());
        let Some(rare) = &mut durable.rare else { return };
        if !rare.will.is_some() || rare.has_due_will {
            return;
        }
        store.release(std::mem::take(&mut rare.will));
        // Unless it finds room in the end, the will is published after the next start.
        if let Err(error) = store.append_deletion(&Fact::WillCleared { session }, level) {
            let _ = store.postponed.put_off(error, || Postponed::WillCleared(session));
        }
    }

    /// Publishes the will of a kept session. False: it has no recipient, or no journal can store
    /// it.
    pub(crate) fn publish_kept_will(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
        slot: u32,
        message: &Message,
    ) -> bool {
        let Some(client) = sessions.get(slot) else { return false };
        let Some(durable) =
            self.kept.get(client.key.slot()).filter(|durable| !durable.has_due_will())
        else {
            return false;
        };
        let (session, publisher) = (durable.queue, KnownPublisher::from(client));
        let will = DueWill { session, message: message.clone(), publisher };
        if !groups.has_recipient_of_will(sessions, message) {
            return false;
        }
        let Some(store) = self.store.as_ref().expected() else { return false };
        if !store.handovers.is_resuming {
            match self.take_will(cx, sessions, groups, retained, &will) {
                Ok(()) => return true,
                Err(AppendError::Full(_) | AppendError::Backlog { .. }) => {}
                Err(_) => return false,
            }
        }
        if let Some(durable) = self.kept.get_mut(slot) {
            durable.rare().has_due_will = true;
        }
        self.put_off_due_will(will);
        true
    }

    fn put_off_due_will(&mut self, will: DueWill) {
        if let Some(store) = &mut self.store {
            store.postponed.push(Postponed::DueWill(will));
        }
    }

    /// A will that could not be written down is tried again.
    pub(super) fn try_due_will(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
        will: DueWill,
    ) {
        let Some(store) = self.store.as_ref().expected() else { return };
        if store.handovers.is_resuming
            || self.take_will(cx, sessions, groups, retained, &will).is_err()
        {
            return self.put_off_due_will(will);
        }
        // The will of its next connection had to wait for this one.
        let Some(slot) = self.kept.find(will.session) else { return };
        if let Some(durable) = self.kept.get_mut(slot) {
            durable.rare().has_due_will = false;
        }
        if let Err(error) = self.keep_will(sessions, slot, Class::Essential) {
            if postponed::passes(&error) {
                self.put_off_will(slot);
            }
            sessions.report_will_not_kept(cx, slot, error);
        }
    }

    /// Makes a will a message of this shard, and sends it on its way.
    fn take_will(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
        will: &DueWill,
    ) -> Result<(), AppendError> {
        let DueWill { session, ref message, ref publisher } = *will;
        let slot = self.kept.find(session);
        let Some(store) = &mut self.store else { return Err(AppendError::Closed) };
        // It may use the reserve: the will goes for it, and what it takes is given back soon.
        let places = sessions.router.streams_for(Name::topic_of(message), Asking::of(message));
        let is_lost = store.streams.has(StreamFlaw::WillLost);
        let owner = publisher.owner();
        let session_if_any = Some(session);
        let serial = if places.is_empty() || is_lost {
            let (serial, _) =
                store.keep_message_as(Class::Essential, message, owner, |message| {
                    Fact::WillTaken { session: session_if_any, message }
                })?;
            serial
        } else {
            let (publisher, author) = (Some(publisher.as_publisher()), message.author());
            let own = ForStreams { message, publisher, owner, author, places: &places };
            let purpose = Purpose::WillTaken { session: session_if_any };
            store.keep_for_streams(sessions.router.streams().set(), &own, purpose, cx.now_ms)?.0
        };
        store.handovers.begin_will(serial, session, message);
        // From here on it is one of the messages that wait for others.
        let client = slot.and_then(|slot| sessions.get_mut(slot));
        let durable = client.and_then(|client| self.kept.get_mut(client.key.slot()));
        if let Some(rare) = durable.and_then(|durable| durable.rare.as_mut()) {
            store.release(std::mem::take(&mut rare.will));
        }
        let delivered = sessions.deliver_kept(cx, self, message, serial);
        sessions.deliver_own(cx, self, message, delivered.own);
        if !self.will_waits_in_line(cx, session, serial, message) {
            self.pass_on_taken(cx, sessions, groups, retained, serial);
        }
        Ok(())
    }
}

impl Groups {
    /// Does the will have a recipient that would lose it with the process?
    pub(super) fn has_recipient_of_will(&self, sessions: &mut Sessions, message: &Message) -> bool {
        let topic = Name::topic_of(message);
        if !sessions.router.streams_for(topic, Asking::of(message)).is_empty() {
            return true;
        }
        message.level() > 0
            && (message.retain()
                || message.qos() > QoS::AtMostOnce
                    && (!self.is_empty() || sessions.router.interested(topic).promises != 0))
    }
}

impl Sessions {
    /// The will lives as long as the process, like that of a clean session.
    pub(super) fn report_will_not_kept(&self, cx: &mut Context, slot: u32, error: AppendError) {
        let Some(client) = self.get(slot).expected() else { return };
        let (scope, client_id) = (client.scope, client.id.clone());
        cx.report(scope, Event::WillNotKept { client_id, error });
    }
}

fn stored_will(will: &Will, session: QueueNumber) -> StoredWill<'_> {
    StoredWill {
        session,
        delay_secs: will.delay_secs,
        message_expiry_secs: will.message_expiry_secs,
        qos: will.qos,
        retain: will.retain,
        topic: &will.topic,
        properties: &will.properties,
        payload: &will.payload,
    }
}
