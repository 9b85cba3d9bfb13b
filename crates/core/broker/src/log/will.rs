//! Wills that are written down: with a kept session, or alone (`lone_wills.rs`). They are never
//! lost between there and those that have to store them.
//!
//! A will that is published becomes a message of its shard in one record, which also takes the will
//! away ([`Fact::WillTaken`]). The message goes on its way at once, so that nothing the client
//! publishes with its next connection overtakes it, and stays in the journal until every place that
//! has to store it has it in its own. What a crash finds between is passed on again after the
//! start.

use session::Will;
use storage::AppendError;

use crate::log::facts::{Fact, Purpose, StoredWill};
use crate::log::late::DueWill;
use crate::log::late::Late;
use crate::log::store::Class;
use crate::log::store::Log;
use crate::log::streams::ForStreams;
use crate::words::expected::Expected;
use crate::words::queue_number::QueueNumber;
use crate::words::stream_set::{StreamFlaw, StreamSet};

impl Log {
    /// Writes the will down that the session has, instead of the one it had.
    ///
    /// In one record, so that a crash finds one of the two.
    pub(crate) fn write_will(
        &mut self,
        slot: u32,
        will: Option<&Will>,
        class: Class,
    ) -> Result<(), AppendError> {
        let Some(will) = will else {
            self.forget_will(slot);
            return Ok(());
        };
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot).expected() else { return Ok(()) };
        // The one that is written down is still pending: what came later has to wait behind it, and
        // a crash may come first.
        if kept.has_due_will() {
            return Err(AppendError::Backlog { bytes: store.journal.stats().pending_bytes });
        }
        let fact = Fact::Will(stored_will(will, kept.queue));
        let place = store.append(class, &fact, kept.journal_level())?;
        let rare = kept.rare();
        rare.has_pending_will = false;
        let old = std::mem::replace(&mut rare.will, place);
        store.release(old);
        Ok(())
    }

    /// The will is withdrawn, or published without a recipient.
    pub(crate) fn forget_will(&mut self, slot: u32) {
        let Self { store, kept } = self;
        let Some(kept) = kept.get_mut(slot) else { return };
        let (session, level) = (kept.queue, kept.journal_level());
        let Some(rare) = &mut kept.rare else { return };
        if !rare.will.is_some() || rare.has_due_will {
            return;
        }
        store.release(std::mem::take(&mut rare.will));
        // Unless it finds room in the end, the will is published after the next start.
        if let Err(error) = store.append_deletion(&Fact::WillCleared { session }, level) {
            let _ = store.late.put_off(error, || Late::WillCleared(session));
        }
    }

    /// The session of which a will is written down that may be published. None: there is none, or
    /// its last one is still due.
    pub(crate) fn session_of_will(&self, slot: u32) -> Option<QueueNumber> {
        match self.kept.get(slot) {
            Some(kept) => (!kept.has_due_will()).then_some(kept.queue),
            None => {
                self.store.lone_wills.get(slot).filter(|lone| !lone.is_due).map(|lone| lone.queue)
            }
        }
    }

    /// The will of the session is due, and is a message as soon as there is room for one.
    pub(crate) fn put_off_due_will(&mut self, will: DueWill) {
        if let Some(kept) = self.kept.of_queue(will.session) {
            kept.rare().has_due_will = true;
        } else if let Some(lone) = self.store.lone_wills.of_queue(will.session) {
            lone.is_due = true;
        }
        self.store.late.push(Late::DueWill(will));
    }

    /// A will that was due is a message now. Returns the slot of its session, whose next will had
    /// to wait for it.
    pub(crate) fn end_due_will(&mut self, session: QueueNumber) -> Option<u32> {
        let slot = self.kept.find(session)?;
        if let Some(kept) = self.kept.get_mut(slot) {
            kept.rare().has_due_will = false;
        }
        Some(slot)
    }

    /// Makes a will a message of this shard, also for the streams at these places of the set.
    /// Returns its serial.
    pub(crate) fn take_will(
        &mut self,
        will: &DueWill,
        (set, places): (&StreamSet, &[u32]),
        now_ms: u64,
    ) -> Result<u64, AppendError> {
        let DueWill { session, ref message, ref publisher } = *will;
        let store = &mut self.store;
        // It may use the reserve: the will goes for it, and what it takes is given back soon.
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
            let own = ForStreams { message, publisher, owner, author, places };
            let purpose = Purpose::WillTaken { session: session_if_any };
            store.keep_for_streams(set, &own, purpose, now_ms)?.0
        };
        store.handovers.begin_will(serial, session, message);
        // From here on it is one of the messages that wait for others.
        if let Some(rare) = self.kept.of_queue(session).and_then(|kept| kept.rare.as_mut()) {
            store.release(std::mem::take(&mut rare.will));
        } else if let Some(lone) = store.lone_wills.of_queue(session) {
            let place = std::mem::take(&mut lone.will);
            store.release(place);
        }
        Ok(serial)
    }
}

pub(super) fn stored_will(will: &Will, session: QueueNumber) -> StoredWill<'_> {
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
