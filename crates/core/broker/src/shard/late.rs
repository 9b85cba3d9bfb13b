//! What found no room in the log is tried again.

use codec::Reason;

use crate::life::ending::NEVER_EXPIRES;
use crate::log::late::Late;
use crate::words::queue_number::QueueNumber;
use crate::{Mail, Shard};

impl Shard {
    /// Tries to write what found no room before, in its order, until there is none again.
    pub(super) fn write_late(&mut self) {
        let Some(mut rest) = self.log.as_mut().and_then(|log| log.take_late()) else { return };
        while let Some(fact) = self.log.as_mut().and_then(|log| log.next_late(&mut rest)) {
            self.try_again(fact);
        }
        if let Some(log) = &mut self.log {
            log.put_back_late(rest);
        }
    }

    fn try_again(&mut self, fact: Late) {
        match fact {
            Late::Connect(queue) | Late::NewSession(queue) => {
                self.kept_slot(queue).into_iter().for_each(|slot| self.try_connect(slot));
            }
            Late::Will(queue) => {
                self.kept_slot(queue).into_iter().for_each(|slot| self.try_will(slot));
            }
            Late::Detached(queue) => {
                self.kept_slot(queue).into_iter().for_each(|slot| self.try_detached(slot));
            }
            Late::LoneWill { session, client } => self.try_lone_will(session, client),
            Late::DueWill(will) => self.try_due_will(will),
            Late::End(end) => self.write_end(end),
            Late::Pubrel { session, connection, packet_id } => {
                if let Some(slot) = self.sessions.slot_of(session)
                    && self.sessions.link(slot, connection).is_some()
                {
                    self.on_pubrel(slot, packet_id);
                }
            }
            Late::Mail(Mail::Publish { message, confirm, owner }) => {
                self.on_publish_mail(message, confirm, owner);
            }
            Late::Mail(Mail::Retain { message, confirm, owner }) => {
                self.on_retain_mail(message, confirm, owner);
            }
            Late::Mail(Mail::Park { group, message, number, confirm }) => {
                self.on_park(&group, (number, message), confirm);
            }
            Late::Mail(_) => {}
            Late::Subscribed { session, filter } => self.keep_again(session, filter),
            Late::Answer { session, connection, packet, .. } => {
                if let (Some(_), Some(log)) = (self.sessions.slot_of(session), &mut self.log) {
                    log.promise_answer((session, connection), packet);
                }
            }
            deletion => {
                if let Some(log) = &mut self.log {
                    log.write_deletion(deletion);
                }
            }
        }
    }

    /// The slot of the session with this queue, if it is still there.
    fn kept_slot(&self, queue: QueueNumber) -> Option<u32> {
        self.log.as_ref()?.kept.find(queue)
    }

    fn try_detached(&mut self, slot: u32) {
        if let Some(log) = &mut self.log {
            log.take_late_end(slot);
        }
        let client = self.sessions.get(slot).filter(|client| !client.is_connected());
        let Some(client) = client else { return };
        let detached_ms = match client.session_expiry_secs {
            NEVER_EXPIRES => self.cx.now_ms,
            secs => client.expires_at_ms.saturating_sub(u64::from(secs) * 1000),
        };
        self.keep_detached(slot, detached_ms);
    }

    /// The log is out of service: what waits for it never gets a success.
    pub(super) fn break_late(&mut self) {
        let broken = self.log.as_mut().map_or_else(Vec::new, |log| log.break_late());
        for fact in broken {
            match fact {
                Late::RetainedCleared { confirm: Some(confirm), .. } => {
                    self.confirm(confirm, Reason::IMPLEMENTATION_SPECIFIC_ERROR);
                }
                Late::Answer { session, connection, .. } => self.doom(session, connection),
                _ => {}
            }
        }
    }
}
