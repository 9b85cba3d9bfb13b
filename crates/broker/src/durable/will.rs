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

use super::postponed::Deletion;
use super::session_ends::End;
use super::store::{Class, Store};
use crate::clients::Sessions;
use crate::durable::Durable;
use crate::groups::table::Groups;
use crate::journal::{Fact, QueueNumber, StoredWill};
use crate::shard::context::Context;
use crate::sure::Sure;
use crate::{Event, Name};

/// A will that is due, and cannot be written down yet. Bounded: one for each session that is kept.
#[derive(Debug)]
pub(crate) struct LateWill {
    pub(crate) message: Message,
    /// The end of its session, which is written down when the will is.
    pub(crate) end: Option<End>,
}

impl Durable {
    /// Writes the will down that the session has, instead of the one it had.
    ///
    /// In one record, so that a crash finds one of the two.
    pub(crate) fn keep_will(
        &mut self,
        sessions: &mut Sessions,
        slot: u32,
        class: Class,
    ) -> Result<(), AppendError> {
        let Some(client) = sessions.get_mut(slot).sure() else { return Ok(()) };
        if client.will.is_none() {
            self.forget_will(sessions, slot);
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
    pub(crate) fn forget_will(&mut self, sessions: &mut Sessions, slot: u32) {
        let Some(store) = &mut self.store else { return };
        let Some(client) = sessions.get_mut(slot).sure() else { return };
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
}

impl Groups {
    /// Is somebody owed this will who would lose it with the process?
    pub(crate) fn is_owed_will(&self, sessions: &mut Sessions, message: &Message) -> bool {
        message.level() > 0
            && (message.retain()
                || message.qos() > QoS::AtMostOnce
                    && (!self.is_empty()
                        || sessions.router.interested(Name::topic_of(message)).promises != 0))
    }
}

impl Sessions {
    /// The will lives as long as the process, like that of a clean session.
    pub(crate) fn tell_will_not_kept(&self, cx: &mut Context, slot: u32, error: AppendError) {
        let Some(client) = self.get(slot).sure() else { return };
        let (scope, client_id) = (client.scope, client.id.clone());
        cx.tell(scope, Event::WillNotKept { client_id, error });
    }
}

impl Store {
    /// Writes a will as the next message, which takes it away from its session.
    ///
    /// It may use the reserve: the will goes for it, and what it takes is given back soon.
    pub(crate) fn take_will(
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
