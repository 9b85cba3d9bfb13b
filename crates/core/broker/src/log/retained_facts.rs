//! The facts of retained messages in the journal.

use std::sync::Arc;

use session::{Account, Message};
use storage::{AppendError, Level};

use crate::log::facts::{Fact, Origin, StoredMessage};
use crate::log::late::Late;
use crate::log::messages::{level_of, noted};
use crate::log::store::Class;
use crate::log::store::Log;
use crate::log::waiting::Step;
use crate::words::record_location::RecordLocation;
use crate::{Confirm, Name};

impl Log {
    /// Writes a retained message into the journal, if it is to be. `origin`: so that its repetition
    /// after a crash is known, and replaces nothing that came since.
    pub(crate) fn write_retained(
        &mut self,
        message: &Message,
        origin: Option<Origin>,
        confirm: Option<Confirm>,
        owner: Option<&Arc<Account>>,
    ) -> Result<RecordLocation, AppendError> {
        if message.level() == 0 {
            return Ok(RecordLocation::NOWHERE);
        }
        let store = &mut self.store;
        let level = level_of(message.level());
        let topic = Name::of(message).key();
        let fact = Fact::Retained(StoredMessage {
            serial: 0,
            origin,
            queue: None,
            qos: message.qos(),
            retain: true,
            expires_at_ms: message.expires_at_ms(),
            owner: noted(owner),
            author: message.author(),
            topic: &topic,
            properties: message.properties(),
            payload: message.payload(),
        });
        let place = store.append(Class::Normal, &fact, level)?;
        if let Some(confirm) = confirm {
            store.waiting.push(place.position(), level, Step::Answer(confirm));
        }
        Ok(place)
    }

    /// A topic is cleared. True: `confirm` is answered when that is written down.
    ///
    /// Where there is nothing to clear, the acknowledgement waits for the journal all the same:
    /// what is repeated here may not be committed yet.
    pub(crate) fn clear_retained(
        &mut self,
        message: &Message,
        is_written: bool,
        confirm: Option<Confirm>,
    ) -> Result<bool, AppendError> {
        let level = level_of(message.level());
        if !is_written && message.level() == 0 {
            return Ok(false);
        }
        let store = &mut self.store;
        let topic = &*Name::of(message).key();
        match (store.append_deletion(&Fact::RetainedCleared { topic }, Level::Fsync), confirm) {
            (Ok(position), Some(confirm)) => {
                store.waiting.push(position, level, Step::Answer(confirm));
            }
            (Ok(_), None) => {}
            // Mail with a serial waits as such, so that it is not known before it is written.
            (Err(error), Some(confirm)) if confirm.serial != 0 => return Err(error),
            (Err(error), confirm) => {
                let topic = topic.into();
                let late = || Late::RetainedCleared { topic, level, confirm };
                store.late.put_off(error, late)?;
            }
        }
        Ok(confirm.is_some())
    }

    /// What is written of the topic of this message is void, and the message is not written.
    pub(crate) fn unwrite_retained(&mut self, message: &Message, place: RecordLocation) {
        if !place.is_some() {
            return;
        }
        let store = &mut self.store;
        store.release(place);
        let topic = &*Name::of(message).key();
        // Unless it finds room in the end, the old one is back after a start.
        if let Err(error) = store.append_deletion(&Fact::RetainedCleared { topic }, Level::Fsync) {
            let (topic, level, confirm) = (topic.into(), Level::Fsync, None);
            let late = || Late::RetainedCleared { topic, level, confirm };
            let _ = store.late.put_off(error, late);
        }
    }
}
