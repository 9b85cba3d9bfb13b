//! QoS 2 deliveries of which the journal knows the packet id only: retained messages on their way
//! to a kept session.
//!
//! A retained message stands in the journal of its home. Writing it once more for each session that
//! subscribes would cost as much as all of them are large. But a packet id that a client has, and
//! that the broker forgets in a crash, would be given to another message, which the client takes
//! for a repetition. So the packet id is written before the PUBLISH leaves, and a broker that
//! starts ends the exchange with a PUBREL. What has not come by then comes with the next SUBSCRIBE.

use codec::QoS;
use session::{Delivery, Dropped, Offered, Terms, UNLOGGED};
use storage::Status;

use crate::log::Durable;
use crate::log::facts::Stage;
use crate::log::promise::Promise;
use crate::log::store::Noted;
use crate::log::track::Out;
use crate::parts::client::Client;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::record_location::RecordLocation;

impl Client {
    /// Is the packet id of such a delivery written down before it leaves?
    pub(crate) fn journals_packet_id(&self, qos: QoS) -> bool {
        qos == QoS::ExactlyOnce && self.is_kept
    }
}

impl Durable {
    /// The next delivery in the queue of a session, if it is one whose packet id has to be written
    /// first. False: it is not, or the window is closed.
    pub(crate) fn dispatch_unlogged(&mut self, cx: &mut Context, client: &mut Client) -> bool {
        let Some(delivery) = client.session.take_unlogged() else { return false };
        self.dispatch_aside(cx, client, delivery);
        true
    }

    /// Puts a delivery in flight that is in no queue of the journal; the window is open.
    pub(crate) fn dispatch_aside(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        delivery: Delivery,
    ) {
        let now_ms = cx.now_ms;
        let sent = delivery.as_sent();
        let Delivery { message, terms } = delivery;
        let dropped = self.why_not_aside(client, &message, now_ms);
        let session = client.key;
        let Some(store) = self.store.as_mut().expected() else { return };
        let offered = match (dropped, self.kept.get_mut(client.key.slot())) {
            (None, Some(durable)) => {
                let serial = store.new_serial();
                let terms = Terms { serial, ..terms };
                let packet_id = client.session.start_uncommitted(Delivery { message, terms });
                durable.track.assign_aside(Out::aside(serial, packet_id, RecordLocation::NOWHERE));
                let (stage, is_aside) = (Stage::AwaitsPubrec, true);
                let (queue, level) = (durable.queue, durable.journal_level());
                let then = Some(Promise::Send { session, packet_id });
                store.noted.push(Noted {
                    slot: session.slot(),
                    queue,
                    serial,
                    packet_id,
                    stage,
                    is_aside,
                    level,
                    then,
                });
                Offered::Queued
            }
            (dropped, _) => Offered::Dropped(dropped.unwrap_or(Dropped::Unlogged)),
        };
        client.after_offer(cx, sent, offered);
    }

    fn why_not_aside(
        &self,
        client: &Client,
        message: &session::Message,
        now_ms: u64,
    ) -> Option<Dropped> {
        let may_have = !client.rechecks || crate::deliver::copies::may_receive(client, message);
        match self.status_of_journal() {
            _ if message.is_expired(now_ms) => Some(Dropped::Expired),
            _ if !may_have => Some(Dropped::Denied),
            None | Some(Status::Closed) => Some(Dropped::Unlogged),
            Some(status) if status.is_out_of_service() => Some(Dropped::Unlogged),
            _ => None,
        }
    }
}

/// The terms of a delivery that waits for its turn in the queue of a session.
pub(crate) fn unlogged(terms: Terms) -> Terms {
    Terms { serial: UNLOGGED, ..terms }
}
