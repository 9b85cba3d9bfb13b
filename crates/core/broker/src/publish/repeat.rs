//! A PUBLISH that comes again.

use codec::Publish;
use session::{Message, Respondent};
use storage::{AppendError, Position};

use crate::deliver::copies::Routed;
use crate::log::messages::level_of;
use crate::log::waiting::Step;
use crate::parts::sessions::Sessions;
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::{Ended, Name, Shard};

impl Shard {
    /// A publish that was accepted comes again. Some: it is retained, too, as that may be undone.
    pub(super) fn on_repeat(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        retained: Option<&Message>,
    ) {
        let mut asked = self.sessions.ask_for(slot, publish);
        if let Some(asked) = &mut asked {
            self.await_handover(slot, publish, asked);
            self.sessions.inherit(slot, publish, asked);
            asked.ask_again();
        }
        if let Some(message) = retained {
            let asked = asked.as_mut().filter(|_| self.is_awaited(message));
            self.retain_again(slot, publish, message, asked);
        }
        self.queue_stored_answer(slot, publish, asked.as_mut());
    }

    /// A retained publish of QoS 2 is repeated behind one of QoS 1 that may be older than it, and
    /// has replaced it: it is retained anew, and nobody gets it twice.
    fn retain_again(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        mut asked: Option<&mut Asked>,
    ) {
        // Now it stands in the place of those behind it, until they come again.
        let log = self.log.as_ref();
        let own = log.and_then(|log| log.kept.serial_of(slot, publish.packet_id));
        match self.note_sent_again(slot, message, own.unwrap_or_default()) {
            Ok(undone) => self.await_undone(undone, message, asked.as_deref_mut()),
            // It comes again with the next connection.
            Err(_) => self.cx.doomed.push((slot, Ended::JournalFailed)),
        }
        if self.would_overtake(slot, message) {
            return self.wait_in_line(slot, message, asked, true);
        }
        self.retain_or_wait(message, asked, &mut Routed::default());
    }

    /// A retained publish comes again, and stands in the place of what its client has retained on
    /// the topic since, above the serial `above`. Returns what its acknowledgement has to wait for.
    #[cold]
    pub(super) fn note_sent_again(
        &mut self,
        slot: u32,
        message: &Message,
        above: u64,
    ) -> Result<Option<Position>, AppendError> {
        let own = (slot, self.cx.topic_mark(Name::of(message)));
        let Some(client) = self.sessions.get_mut(slot).expected() else { return Ok(None) };
        client.session.incoming.note_sent_again();
        let Some(log) = &mut self.log else { return Ok(None) };
        log.note_sent_again(own, message.level(), above)
    }

    /// The acknowledgement waits for the facts about those that the message has replaced.
    pub(super) fn await_undone(
        &mut self,
        undone: Option<Position>,
        message: &Message,
        asked: Option<&mut Asked>,
    ) {
        if let (Some(position), Some(asked), Some(log)) = (undone, asked, &mut self.log) {
            let confirm = asked.ask(Respondent::UNDONE);
            log.wait(position, level_of(message.level()), Step::Answer(confirm));
        }
    }

    /// A QoS 2 publish comes again while the first has not reached everybody: this connection
    /// waits for it, too.
    fn await_handover(&mut self, slot: u32, publish: &Publish<'_>, asked: &mut Asked) {
        if let Some(log) = &mut self.log
            && let Some(serial) = log.kept.serial_of(slot, publish.packet_id)
            && log.is_under_way(serial)
        {
            log.await_handover(serial, asked.ask(Respondent::HANDOVER));
        }
    }
}

impl Sessions {
    /// A QoS 2 publish comes again for which other places have yet to answer: this connection waits
    /// for them, too.
    fn inherit(&mut self, slot: u32, publish: &Publish<'_>, asked: &mut Asked) {
        let Some(client) = self.get_mut(slot).expected() else { return };
        let number = asked.confirm().ack_number;
        if client.session.incoming.inherit(publish.packet_id, number) {
            asked.ask(Respondent::FIRST);
        }
    }
}
