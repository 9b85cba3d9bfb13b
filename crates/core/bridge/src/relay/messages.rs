//! Messages and their acknowledgements, on their way to the other side.

use codec::{Ack, AckKind, Packet, Publish, QoS, Reason, Sender, Version, Violation};

use super::side::Peer;
use super::{Action, Down, Phase, Probe, Relay, Releasing, Side};
use crate::forward::{Refusal, forward};
use crate::oversize;
use crate::suspects::{CLOSES_MAX, Suspects};
use crate::unanswered::is_for_now;

impl Relay {
    pub(super) fn on_publish(&mut self, from: Side, publish: &Publish<'_>) {
        if from == Side::Remote && self.copies.is_surplus(publish.topic, publish.properties) {
            return self.refuse(from, publish, Refusal::Copy);
        }
        let to = from.other();
        if self.suspects.are_of(to) && self.suspects.closes(publish) >= Some(CLOSES_MAX) {
            self.suspects.remove(publish.packet_id);
            return self.refuse(from, publish, Refusal::Closes);
        }
        // This broker releases first, see `must_release`.
        let is_reused = from == Side::Local
            && publish.qos == QoS::ExactlyOnce
            && self.has_qos_2(to)
            && self.unreleased.is_reused(to, publish);
        if is_reused {
            self.peer(to).released.insert(publish.packet_id);
            self.ack(to, AckKind::Pubrel, publish.packet_id, Reason::SUCCESS);
        }
        let Self { settings, ways, limits, sides, .. } = self;
        let peer = &mut sides[to as usize];
        let begin = peer.out.len();
        match forward(settings, ways, &limits[to as usize], from, publish, &mut peer.out) {
            Ok(qos) => self.note_relayed(from, publish, qos, begin),
            Err(refusal) => self.refuse(from, publish, refusal),
        }
    }

    /// `begin`: where its packet begins in the output. A QoS that the receiver does not have is
    /// answered in its place.
    fn note_relayed(&mut self, from: Side, publish: &Publish<'_>, qos: QoS, begin: usize) {
        let (to, packet_id) = (from.other(), publish.packet_id);
        match from {
            Side::Local => self.counts.sent += 1,
            Side::Remote => self.counts.received += 1,
        }
        if qos != QoS::AtMostOnce {
            let has_reasons = self.version_of(to) >= Version::V5;
            let Peer { out, unanswered, .. } = self.peer(to);
            unanswered.insert(publish, has_reasons.then_some(&out[begin..]));
            if self.suspects.are_of(to) {
                self.probe.sent = self.suspects.closes(publish).map(|_| packet_id);
            }
        }
        if self.suspects.are_of(to) {
            (self.probe.is_asked, self.probe.is_proven) = (false, false);
        }
        match (publish.qos, qos) {
            (QoS::ExactlyOnce, QoS::ExactlyOnce) => self.unreleased.insert(to, publish),
            (QoS::ExactlyOnce, QoS::AtLeastOnce) => {
                self.peer(to).lowered.insert(packet_id);
            }
            (QoS::ExactlyOnce, QoS::AtMostOnce) => {
                self.ack(from, AckKind::Pubrec, packet_id, Reason::SUCCESS);
            }
            (QoS::AtLeastOnce, QoS::AtMostOnce) => {
                self.ack(from, AckKind::Puback, packet_id, Reason::SUCCESS);
            }
            _ => {}
        }
    }

    /// Whether this message has to wait, because a suspect is sent alone.
    pub(super) fn must_hold(&mut self, from: Side, packet: &Packet<'_>) -> bool {
        let Packet::Publish(publish) = packet else { return false };
        let to = from.other();
        if to == Side::Remote && self.releasing != Releasing::Nothing {
            self.forget_suspects_behind();
        }
        if !self.suspects.are_of(to) {
            return false;
        }
        let closes = self.suspects.closes(publish).filter(|_| publish.qos != QoS::AtMostOnce);
        let is_probed = closes.is_some_and(|closes| closes < CLOSES_MAX);
        let must_wait = self.probe.sent.is_some() || is_probed && !self.probe.is_proven;
        if must_wait && self.probe.sent.is_none() && !self.probe.is_asked {
            self.probe.is_asked = true;
            let version = self.version_of(to);
            Packet::Pingreq.encode(version, &mut self.peer(to).out);
        }
        self.probe.holds = must_wait;
        must_wait
    }

    /// A PINGREQ was answered: what comes next is not to blame for what was sent before.
    pub(super) fn on_pong(&mut self, side: Side) {
        if self.suspects.are_of(side) && self.probe.is_asked {
            (self.probe.is_proven, self.probe.holds) = (true, false);
        }
    }

    /// A message of a remote that breaks the protocol would come again after each reconnect. Its
    /// frame is whole, so it is answered and skipped.
    pub(super) fn refuse_malformed(
        &mut self,
        from: Side,
        bytes: &[u8],
        violation: Violation,
    ) -> Result<usize, Down> {
        let framed = oversize::frame(bytes).filter(|_| self.phase >= Phase::Releases);
        match framed {
            Some((publish, len)) if from == Side::Remote && len <= bytes.len() => {
                self.refuse(from, &publish, Refusal::Malformed);
                Ok(len)
            }
            _ => Err(Down::Violation { side: from, violation }),
        }
    }

    /// If this broker may know the identifier of a message from another one, it is released first.
    /// The message is to be given again then.
    pub(super) fn must_release(&mut self, from: Side, packet: &Packet<'_>) -> bool {
        let Packet::Publish(publish) = packet else { return false };
        if from == Side::Local || publish.qos != QoS::ExactlyOnce {
            return false;
        }
        self.releasing = if self.sides[Side::Local as usize].release.is_some() {
            Releasing::All
        } else if self.unreleased.is_reused(Side::Local, publish) {
            self.ack(Side::Local, AckKind::Pubrel, publish.packet_id, Reason::SUCCESS);
            Releasing::One(publish.packet_id)
        } else {
            return false;
        };
        self.forget_suspects_behind();
        true
    }

    /// This side's answers come behind messages that wait for an answer of the remote, which comes
    /// behind a message that waits for this side. So the suspects are sent like other messages.
    fn forget_suspects_behind(&mut self) {
        if self.suspects.are_of(Side::Remote) {
            (self.suspects, self.probe) = (Suspects::default(), Probe::default());
        }
    }

    fn note_refused(&mut self, from: Side, publish: &Publish<'_>, refusal: Refusal) {
        self.counts.refused[from as usize][refusal as usize] += 1;
        let is_reported = &mut self.reported[from as usize][refusal as usize];
        // A surplus copy is nothing that an operator could mend. One that the receiver does not
        // accept took several attempts, so there are few of them.
        let is_new = match refusal {
            Refusal::Copy => false,
            Refusal::Closes | Refusal::Exhausted => true,
            _ => !std::mem::replace(is_reported, true),
        };
        if is_new {
            let (topic, bytes) = (publish.topic.to_owned(), publish.payload.len());
            self.actions.push_back(Action::Dropped { from, refusal, topic, bytes });
        }
    }

    pub(super) fn refuse(&mut self, from: Side, publish: &Publish<'_>, refusal: Refusal) {
        self.note_refused(from, publish, refusal);
        let packet_id = publish.packet_id;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.ack(from, AckKind::Puback, packet_id, NOT_RELAYED),
            // The receiver may have accepted it under an earlier configuration, and would take the
            // next message with this identifier for a repetition.
            QoS::ExactlyOnce if publish.dup && self.has_qos_2(from.other()) => {
                self.peer(from.other()).refusing.insert(packet_id);
                self.ack(from.other(), AckKind::Pubrel, packet_id, Reason::SUCCESS);
            }
            QoS::ExactlyOnce => self.ack(from, AckKind::Pubrec, packet_id, NOT_RELAYED),
        }
    }

    fn has_qos_2(&self, side: Side) -> bool {
        self.limits_of(side).qos_max == QoS::ExactlyOnce
    }

    pub(super) fn on_ack(&mut self, from: Side, ack: &Ack<'_>) {
        let mut ack = *ack;
        match ack.kind {
            AckKind::Puback | AckKind::Pubrec => {
                if !self.take_answer(from, &ack) {
                    return;
                }
                if self.peer(from).lowered.remove(&ack.packet_id) {
                    ack.kind = AckKind::Pubrec;
                }
            }
            // The receiver got it with a lower QoS, and does not know it.
            AckKind::Pubrel if !self.has_qos_2(from.other()) => {
                return self.ack(from, AckKind::Pubcomp, ack.packet_id, Reason::SUCCESS);
            }
            AckKind::Pubrel | AckKind::Pubcomp => {}
        }
        if ack.kind == AckKind::Pubcomp {
            if let Some(release) = &mut self.peer(from).release
                && release.on_pubcomp(ack.packet_id)
            {
                return self.advance();
            }
            if from == Side::Local && self.releasing == Releasing::One(ack.packet_id) {
                self.releasing = Releasing::Nothing;
                return self.unreleased.remove(from, ack.packet_id);
            }
            if self.peer(from).released.remove(&ack.packet_id) {
                return;
            }
            if self.peer(from).refusing.remove(&ack.packet_id) {
                return self.ack(from.other(), AckKind::Pubrec, ack.packet_id, NOT_RELAYED);
            }
        }
        let is_refused = ack.kind == AckKind::Pubrec && ack.reason.is_error();
        if is_refused || ack.kind == AckKind::Pubcomp {
            self.unreleased.remove(from, ack.packet_id);
        }
        self.ack(from.other(), ack.kind, ack.packet_id, ack.reason);
    }

    /// The first answer to a message. False: the message is sent again later.
    fn take_answer(&mut self, from: Side, ack: &Ack<'_>) -> bool {
        let (packet_id, now_ms) = (ack.packet_id, self.now_ms);
        // Half of the window stays free for messages that are accepted.
        let waiting_max = usize::from(self.settings.in_flight_max / 2).max(1);
        let peer = &mut self.sides[from as usize];
        let is_for_now = is_for_now(ack.reason);
        if is_for_now && peer.unanswered.retry(packet_id, now_ms, waiting_max) {
            return false;
        }
        let given_up = peer.unanswered.given_up(packet_id).filter(|_| is_for_now);
        let given_up = given_up.map(<[u8]>::to_vec);
        let packet = given_up.as_deref().unwrap_or_default();
        match codec::decode(packet, Version::V5, Sender::Client, u32::MAX) {
            Ok(Some((Packet::Publish(publish), _))) => {
                self.note_refused(from.other(), &publish, Refusal::Exhausted);
            }
            _ if ack.reason.is_error() => self.counts.rejected[from.other() as usize] += 1,
            _ => {}
        }
        self.peer(from).unanswered.remove(packet_id);
        if self.suspects.are_of(from) {
            self.suspects.remove(packet_id);
            if self.probe.sent == Some(packet_id) {
                // What it was sent alone for is answered; the connection is proven again.
                self.probe = Probe { is_asked: true, is_proven: true, ..Probe::default() };
            }
        }
        true
    }

    fn ack(&mut self, to: Side, kind: AckKind, packet_id: u16, reason: Reason) {
        let version = self.version_of(to);
        let packet = Packet::Ack(Ack::new(kind, packet_id, reason));
        packet.encode(version, &mut self.peer(to).out);
    }
}

/// The answer to a message that is not relayed.
pub(super) const NOT_RELAYED: Reason = Reason::IMPLEMENTATION_SPECIFIC_ERROR;
