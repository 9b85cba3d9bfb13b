//! Messages and their acknowledgements, on their way to the other side.

use codec::{Ack, AckKind, Packet, Publish, QoS, Reason};

use super::{Action, Relay, Side};
use crate::forward::{Refusal, forward};

impl Relay {
    pub(super) fn on_publish(&mut self, from: Side, publish: &Publish<'_>) {
        if from == Side::Remote && self.copies.is_surplus(publish.topic, publish.properties) {
            return self.refuse(from, publish, Refusal::Copy);
        }
        let Self { settings, ways, remote, sides, .. } = self;
        let out = &mut sides[from.other() as usize].out;
        match (forward(settings, ways, remote, from, publish, out), from) {
            (Ok(()), Side::Local) => self.counts.sent += 1,
            (Ok(()), Side::Remote) => {
                self.counts.received += 1;
                if publish.qos == QoS::ExactlyOnce {
                    self.unreleased.insert(publish);
                }
            }
            (Err(refusal), _) => self.refuse(from, publish, refusal),
        }
    }

    /// If this broker may know the identifier of a message from another one, it is released first.
    /// The message is to be given again then.
    pub(super) fn must_release(&mut self, from: Side, packet: &Packet<'_>) -> bool {
        let Packet::Publish(publish) = packet else { return false };
        let is_exactly_once = from == Side::Remote && publish.qos == QoS::ExactlyOnce;
        if !is_exactly_once || !self.unreleased.is_reused(publish) {
            return false;
        }
        self.releasing = Some(publish.packet_id);
        self.ack(Side::Local, AckKind::Pubrel, publish.packet_id, Reason::SUCCESS);
        true
    }

    pub(super) fn refuse(&mut self, from: Side, publish: &Publish<'_>, refusal: Refusal) {
        self.counts.refused[from as usize][refusal as usize] += 1;
        let is_reported = &mut self.reported[from as usize][refusal as usize];
        // A surplus copy is nothing that an operator could mend.
        if refusal != Refusal::Copy && !std::mem::replace(is_reported, true) {
            let topic = publish.topic.to_owned();
            self.actions.push_back(Action::Dropped { from, refusal, topic });
        }
        let packet_id = publish.packet_id;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.ack(from, AckKind::Puback, packet_id, NOT_RELAYED),
            // The receiver may have accepted it under an earlier configuration, and would take the
            // next message with this identifier for a repetition.
            QoS::ExactlyOnce if publish.dup => {
                self.peer(from.other()).refusing.insert(packet_id);
                self.ack(from.other(), AckKind::Pubrel, packet_id, Reason::SUCCESS);
            }
            QoS::ExactlyOnce => self.ack(from, AckKind::Pubrec, packet_id, NOT_RELAYED),
        }
    }

    pub(super) fn on_ack(&mut self, from: Side, ack: &Ack<'_>) {
        if ack.kind == AckKind::Pubcomp {
            if let Some(release) = &mut self.peer(from).release {
                release.on_pubcomp();
                return self.advance();
            }
            if from == Side::Local && self.releasing == Some(ack.packet_id) {
                self.releasing = None;
                return self.unreleased.remove(ack.packet_id);
            }
            if self.peer(from).refusing.remove(&ack.packet_id) {
                return self.ack(from.other(), AckKind::Pubrec, ack.packet_id, NOT_RELAYED);
            }
        }
        let is_refused = ack.kind == AckKind::Pubrec && ack.reason.is_error();
        if from == Side::Local && (is_refused || ack.kind == AckKind::Pubcomp) {
            self.unreleased.remove(ack.packet_id);
        }
        if matches!(ack.kind, AckKind::Puback | AckKind::Pubrec) && ack.reason.is_error() {
            self.counts.rejected[from.other() as usize] += 1;
        }
        self.ack(from.other(), ack.kind, ack.packet_id, ack.reason);
    }

    fn ack(&mut self, to: Side, kind: AckKind, packet_id: u16, reason: Reason) {
        let version = self.version_of(to);
        let packet = Packet::Ack(Ack::new(kind, packet_id, reason));
        packet.encode(version, &mut self.peer(to).out);
    }
}

/// The answer to a message that is not relayed.
pub(super) const NOT_RELAYED: Reason = Reason::IMPLEMENTATION_SPECIFIC_ERROR;
