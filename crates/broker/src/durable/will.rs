//! Wills of kept sessions: written down with the session, and never lost between there and those
//! who are owed them.
//!
//! A will that is published becomes a message of its shard in one record, which also takes the will
//! away ([`Fact::WillTaken`]). The message goes on its way at once, so that nothing the client
//! publishes with its next connection overtakes it, and stays in the log until every place that
//! owes it has it in its own. What a crash finds between is passed on again after the start.

use std::sync::Arc;

use codec::QoS;
use session::{Account, Message, Will};
use storage::AppendError;

use super::ends::End;
use super::late::Deletion;
use super::store::{Class, Store};
use crate::journal::{Fact, QueueNumber, StoredWill};
use crate::sure::Sure;
use crate::{Event, Name, Shard};

/// A will that is due, and cannot be written down yet. Bounded: one for each session that is kept.
#[derive(Debug)]
pub(crate) struct LateWill {
    message: Message,
    /// The end of its session, which is written down when the will is.
    end: Option<End>,
}

impl Shard {
    /// Writes the will down that the session has, instead of the one it had.
    ///
    /// In one record, so that a crash finds one of the two.
    pub(crate) fn keep_will(&mut self, slot: u32, class: Class) -> Result<(), AppendError> {
        let Some(client) = self.clients.get_mut(slot).sure() else { return Ok(()) };
        if client.will.is_none() {
            self.forget_will(slot);
            return Ok(());
        }
        let Some(store) = self.store.as_mut().sure() else { return Ok(()) };
        let (Some(will), Some(durable)) = (&client.will, client.durable.as_mut().sure()) else {
            return Ok(());
        };
        // The one that is written down is still owed: what came later has to wait behind it, and a
        // crash may come first.
        if let Some(late) = store.late_wills.get(&durable.queue) {
            return Err(AppendError::Backlog { bytes: late.message.heap_bytes() });
        }
        let fact = Fact::Will(stored_will(will, durable.queue));
        let place = store.append(class, &fact, durable.log_level())?;
        store.late.forget_will(durable.queue);
        let old = std::mem::replace(&mut durable.rare().will, place);
        store.release(old);
        Ok(())
    }

    /// The will is withdrawn, or published where nobody is owed it.
    pub(crate) fn forget_will(&mut self, slot: u32) {
        let Some(store) = &mut self.store else { return };
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        let Some(durable) = &mut client.durable else { return };
        let (session, level) = (durable.queue, durable.log_level());
        let Some(rare) = &mut durable.rare else { return };
        if !rare.will.is_some() || store.late_wills.contains_key(&session) {
            return;
        }
        store.release(std::mem::take(&mut rare.will));
        // Unless it finds room in the end, the will is published after the next start.
        if let Err(error) = store.append_deletion(&Fact::WillCleared { session }, level) {
            let _ = store.late.put_off(error, || Deletion::WillCleared { session });
        }
    }

    /// Publishes the will of a kept session. False: nobody is owed it, or no log can keep it.
    pub(crate) fn publish_kept_will(&mut self, slot: u32, message: &Message, now_ms: u64) -> bool {
        let Some(client) = self.clients.get(slot).sure() else { return false };
        let Some(session) = client.durable.as_ref().map(|durable| durable.queue) else {
            return false;
        };
        if !self.is_owed_will(message) {
            return false;
        }
        let Some(store) = &mut self.store else { return false };
        if store.late_wills.contains_key(&session) {
            return false;
        }
        if !store.handovers.is_resuming {
            match self.take_will(session, message, now_ms) {
                Ok(()) => return true,
                Err(AppendError::Full(_) | AppendError::Backlog { .. }) => {}
                Err(_) => return false,
            }
        }
        if let Some(store) = &mut self.store {
            let late = LateWill { message: message.clone(), end: None };
            store.late_wills.insert(session, late);
        }
        true
    }

    /// Is somebody owed this will who would lose it with the process?
    fn is_owed_will(&mut self, message: &Message) -> bool {
        message.level() > 0
            && (message.retain()
                || message.qos() > QoS::AtMostOnce
                    && (!self.groups.is_empty()
                        || self.router.interested(Name::topic_of(message)).promises != 0))
    }

    /// Makes a will a message of this shard, and sends it on its way.
    fn take_will(
        &mut self,
        session: QueueNumber,
        message: &Message,
        now_ms: u64,
    ) -> Result<(), AppendError> {
        let slot = self.clients.find_queue(session);
        let payer = slot.and_then(|slot| self.clients.get(slot)?.charged.account());
        let Some(store) = &mut self.store else { return Err(AppendError::Closed) };
        let serial = store.take_will(session, message, payer)?;
        // From here on it is one of the messages that wait for others.
        if let Some(slot) = self.clients.find_queue(session)
            && let Some(durable) = self.clients.get_mut(slot).and_then(|c| c.durable.as_mut())
            && let Some(rare) = &mut durable.rare
            && let Some(store) = &mut self.store
        {
            store.release(std::mem::take(&mut rare.will));
        }
        let delivered = self.deliver_kept(message, serial, now_ms);
        self.deliver_own(message, delivered.own, now_ms);
        if !self.will_waits_in_line(session, serial, message) {
            self.pass_on_taken(serial, now_ms);
        }
        Ok(())
    }

    /// The will lives as long as the process, like that of a clean session.
    pub(crate) fn tell_will_not_kept(&mut self, slot: u32, error: AppendError) {
        let Some(client) = self.clients.get(slot).sure() else { return };
        let (scope, client_id) = (client.scope, client.id.clone());
        self.tell(scope, Event::WillNotKept { client_id, error });
    }

    /// Wills that could not be written down are tried again.
    pub(crate) fn try_late_wills(&mut self, now_ms: u64) {
        while let Some(store) = self.store.as_mut().filter(|store| !store.handovers.is_resuming)
            && let Some((session, late)) = store.late_wills.pop_first()
        {
            if self.take_will(session, &late.message, now_ms).is_err() {
                if let Some(store) = &mut self.store {
                    store.late_wills.insert(session, late);
                }
                return;
            }
            match self.clients.find_queue(session) {
                // The will of its next connection had to wait for this one.
                Some(slot) => {
                    if let Err(error) = self.keep_will(slot, Class::Essential) {
                        self.tell_will_not_kept(slot, error);
                    }
                }
                None => late.end.into_iter().for_each(|end| self.end_queue(end)),
            }
        }
    }
}

impl Store {
    /// Writes a will as the next message, which takes it away from its session.
    ///
    /// It may use the reserve: the will goes for it, and what it takes is given back soon.
    fn take_will(
        &mut self,
        session: QueueNumber,
        message: &Message,
        payer: Option<&Arc<Account>>,
    ) -> Result<u64, AppendError> {
        let (serial, _) = self.keep_message_as(Class::Essential, message, payer, |message| {
            Fact::WillTaken { session: Some(session), message }
        })?;
        self.handovers.begin_will(serial, session, message);
        Ok(serial)
    }

    /// The session is over. True: its end has to wait until its will is written down.
    pub(crate) fn end_waits_for_will(&mut self, end: End) -> bool {
        let late = self.late_wills.get_mut(&end.queue);
        late.map(|late| late.end = Some(end)).is_some()
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
