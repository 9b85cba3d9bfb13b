//! The relay of one bridge, from its CONNECT at the remote to the end of either connection.

mod keep_alive;
mod messages;
mod report;
mod side;
mod subscriptions;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use codec::{Connack, Packet, Properties, Publish, QoS, Reason, Sender, Version};

use crate::copies::Copies;
use crate::forward::Refusal;
use crate::oversize::{self, Front};
use crate::remote::{self, Login, PeerLimits};
use crate::settings::{Settings, Ways};
use crate::stale::Release;
use crate::suspects::Suspects;
use crate::unreleased::Unreleased;
use keep_alive::{Due, KeepAlive};
pub use report::{Action, Counts, Down, Refused};
use side::Peer;
pub use side::{Earlier, Side};

/// No more is read from one side while the other has so many bytes to write.
pub const OUT_BYTES_MAX: usize = 256 * 1024;

/// See the head of this crate.
#[derive(Debug)]
pub struct Relay {
    settings: Arc<Settings>,
    ways: Ways,
    state_topic: Option<String>,
    phase: Phase,
    /// There is no remote yet: the local session is opened, so that it queues.
    is_queueing: bool,
    is_local_new: bool,
    /// By side.
    limits: [PeerLimits; 2],
    copies: Copies,
    unreleased: Unreleased,
    /// Messages that are sent one at a time.
    suspects: Suspects,
    probe: Probe,
    now_ms: u64,
    /// While identifiers are released, packets of the remote are not read.
    releasing: Releasing,
    sides: [Peer; 2],
    actions: VecDeque<Action>,
    counts: Counts,
    /// Reasons of which a first message was reported, by sender.
    reported: [[bool; Refusal::ALL.len()]; 2],
    keep_alive: KeepAlive,
    /// Bytes to come of a message that is too large.
    skipped: usize,
}

/// What this broker has to release before the message at the front of the remote's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Releasing {
    #[default]
    Nothing,
    /// All identifiers: see [`Peer::release`].
    All,
    One(u16),
}

/// How far the sending of suspects is.
#[derive(Debug, Default)]
struct Probe {
    /// A PINGREQ is on its way to their side.
    is_asked: bool,
    /// It is answered, and nothing was sent behind it.
    is_proven: bool,
    /// The one that was sent, and is not answered.
    sent: Option<u16>,
    /// No more is taken from the sender of suspects.
    holds: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Phase {
    AwaitsRemote,
    AwaitsLocal,
    /// Identifiers are released, if one side has lost its session.
    Releases,
    Subscribes,
    Up,
}

impl Relay {
    /// The connection to the remote is open. The first bytes for it are the CONNECT.
    pub fn new(settings: Arc<Settings>, login: &Login, now_ms: u64) -> Self {
        let mut relay = Self::begin(settings, Phase::AwaitsRemote, now_ms);
        relay.state_topic.clone_from(&login.state_topic);
        let Self { settings, sides, .. } = &mut relay;
        remote::write_connect(settings, login, &mut sides[Side::Remote as usize].out);
        relay
    }

    /// Opens the local session with its subscriptions, without a remote: from then on it queues
    /// messages. Nothing is relayed.
    pub fn queueing(settings: Arc<Settings>, now_ms: u64) -> Self {
        let mut relay = Self::begin(settings, Phase::AwaitsLocal, now_ms);
        relay.is_queueing = true;
        // What is in flight stays so, and is sent again to the remote.
        relay.actions.push_back(Action::OpenLocal { receive_max: 1 });
        relay
    }

    fn begin(settings: Arc<Settings>, phase: Phase, now_ms: u64) -> Self {
        Self {
            ways: Ways::of(&settings.maps),
            state_topic: None,
            phase,
            is_queueing: false,
            is_local_new: false,
            limits: [
                PeerLimits::unknown(settings.packet_bytes_max, 0),
                PeerLimits::unknown(settings.remote_packet_bytes_max, settings.keep_alive_secs),
            ],
            suspects: Suspects::default(),
            probe: Probe::default(),
            now_ms,
            copies: Copies::default(),
            unreleased: Unreleased::default(),
            releasing: Releasing::Nothing,
            sides: [Peer::default(), Peer::default()],
            actions: VecDeque::new(),
            counts: Counts::default(),
            reported: Default::default(),
            keep_alive: KeepAlive::new(now_ms),
            skipped: 0,
            settings,
        }
    }

    /// Filters that an earlier connection may have subscribed to. Those that are not subscribed to
    /// now are removed.
    pub fn set_earlier(&mut self, side: Side, filters: Vec<Earlier>) {
        self.peer(side).earlier = filters;
    }

    /// The local session has only queued: it knows nothing of a remote.
    pub fn set_local_new(&mut self) {
        self.is_local_new = true;
    }

    /// What an earlier connection has left.
    pub fn set_unreleased(&mut self, unreleased: Unreleased) {
        self.unreleased = unreleased;
    }

    /// What each side may know now.
    pub const fn unreleased(&self) -> &Unreleased {
        &self.unreleased
    }

    /// For the next connection.
    pub fn take_unreleased(&mut self) -> Unreleased {
        std::mem::take(&mut self.unreleased)
    }

    /// What an earlier connection has left.
    pub fn set_suspects(&mut self, suspects: Suspects) {
        self.suspects = suspects;
    }

    /// For the next connection, and whether a message is to blame for the end of this one.
    /// `closed_by`: the side that has ended it, if that may be because of a message.
    pub fn take_suspects(&mut self, closed_by: Option<Side>) -> (Suspects, bool) {
        let mut suspects = std::mem::take(&mut self.suspects);
        let is_blamed = closed_by.is_some_and(|side| {
            let unanswered = &self.sides[side as usize].unanswered;
            suspects.on_close(side, unanswered, self.probe.sent)
        });
        (suspects, is_blamed)
    }

    /// Takes whole packets of one side; says how many bytes. The others are to be given again,
    /// with what follows them, or when output was written.
    ///
    /// # Errors
    ///
    /// Why both connections are to be closed.
    pub fn on_bytes(&mut self, side: Side, bytes: &[u8], now_ms: u64) -> Result<usize, Down> {
        self.now_ms = now_ms;
        if side == Side::Remote {
            self.keep_alive.on_heard(now_ms);
        }
        let (version, bytes_max) = match side {
            Side::Local => (Version::V5, u32::MAX),
            Side::Remote => (self.settings.version, self.settings.packet_bytes_max),
        };
        let mut taken = 0;
        while self.takes(side) {
            if side == Side::Remote {
                let skipped = self.skipped.min(bytes.len() - taken);
                self.skipped -= skipped;
                taken += skipped;
                match self.look(&bytes[taken..]) {
                    Front::Usual => {}
                    Front::Incomplete => break,
                    Front::Oversize(publish, len) => {
                        self.refuse(side, &publish, Refusal::Size);
                        self.skipped = len;
                        continue;
                    }
                }
            }
            let front = &bytes[taken..];
            let (packet, len) = match codec::decode(front, version, Sender::Server, bytes_max) {
                Ok(Some(decoded)) => decoded,
                Ok(None) => break,
                Err(violation) => {
                    taken += self.refuse_malformed(side, front, violation)?;
                    continue;
                }
            };
            if self.must_release(side, &packet) || self.must_hold(side, &packet) {
                break;
            }
            self.on_packet(side, &packet)?;
            taken += len;
        }
        Ok(taken)
    }

    /// Does it take packets of this side now?
    pub fn takes(&self, side: Side) -> bool {
        let is_in_phase = match side {
            Side::Local => self.phase >= Phase::AwaitsLocal,
            Side::Remote => {
                self.phase == Phase::AwaitsRemote
                    || self.phase >= Phase::Releases && self.releasing == Releasing::Nothing
            }
        };
        let is_held = self.probe.holds && self.suspects.are_of(side.other());
        let own = self.unwritten(side).len();
        let other = self.unwritten(side.other()).len();
        // Refusals are short. A peer that sends and does not read has to stop some time.
        is_in_phase && !is_held && other < OUT_BYTES_MAX && own < 2 * OUT_BYTES_MAX
    }

    /// Bytes to be written to a side.
    pub fn unwritten(&self, side: Side) -> &[u8] {
        let peer = &self.sides[side as usize];
        &peer.out[peer.written..]
    }

    /// So many of them are written.
    pub fn on_written(&mut self, side: Side, bytes: usize, now_ms: u64) {
        if side == Side::Remote && bytes > 0 {
            self.keep_alive.on_sent(now_ms);
        }
        let peer = self.peer(side);
        peer.written += bytes;
        if peer.written == peer.out.len() {
            peer.out.clear();
            peer.written = 0;
        } else if peer.written >= OUT_BYTES_MAX {
            peer.out.drain(..peer.written);
            peer.written = 0;
        }
        self.advance();
    }

    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Those of this connection.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Looks after the keep-alive. `is_read`: bytes of the remote are read as they come.
    ///
    /// # Errors
    ///
    /// When the remote does not answer.
    pub fn on_tick(&mut self, now_ms: u64, is_read: bool) -> Result<(), Down> {
        self.now_ms = now_ms;
        for peer in &mut self.sides {
            peer.unanswered.write_due(now_ms, &mut peer.out);
        }
        match self.keep_alive.tick(now_ms, is_read) {
            Due::Nothing => {}
            Due::Ping => {
                Packet::Pingreq.encode(self.settings.version, &mut self.peer(Side::Remote).out);
            }
            Due::Silent => return Err(Down::Silent),
        }
        Ok(())
    }

    /// Appends the last packets of both connections.
    pub fn say_farewell(&mut self) {
        if self.phase >= Phase::Releases {
            self.publish_state(remote::DOWN);
        }
        let packet = Packet::Disconnect(codec::Disconnect {
            reason: Reason::NORMAL_DISCONNECTION,
            properties: Properties::EMPTY,
        });
        for side in Side::ALL {
            packet.encode(self.version_of(side), &mut self.peer(side).out);
        }
    }

    fn look<'a>(&self, bytes: &'a [u8]) -> Front<'a> {
        match self.phase >= Phase::Releases && self.settings.version < Version::V5 {
            true => oversize::look(bytes, self.settings.packet_bytes_max),
            false => Front::Usual,
        }
    }

    fn on_packet(&mut self, side: Side, packet: &Packet<'_>) -> Result<(), Down> {
        match (packet, side, self.phase) {
            (Packet::Connack(connack), Side::Remote, Phase::AwaitsRemote) => {
                self.on_remote_connack(connack)
            }
            (Packet::Connack(connack), Side::Local, Phase::AwaitsLocal) => {
                self.on_local_connack(connack)
            }
            (Packet::Disconnect(disconnect), ..) => {
                Err(Down::Disconnected { side, reason: disconnect.reason })
            }
            (_, _, phase) if phase < Phase::Releases => {
                Err(Down::Unexpected { side, packet: packet.name() })
            }
            // They are sent again to the remote.
            (Packet::Publish(_) | Packet::Ack(_), ..) if self.is_queueing => Ok(()),
            (Packet::Publish(publish), ..) => {
                self.on_publish(side, publish);
                Ok(())
            }
            (Packet::Ack(ack), ..) => {
                self.on_ack(side, ack);
                Ok(())
            }
            (Packet::Suback(suback), ..) => {
                self.on_suback(side, suback);
                Ok(())
            }
            (Packet::Unsuback(unsuback), ..) => {
                self.peer(side).asked.remove(&unsuback.packet_id);
                self.rise_if_answered();
                Ok(())
            }
            (Packet::Pingresp, ..) => {
                self.on_pong(side);
                Ok(())
            }
            _ => Err(Down::Unexpected { side, packet: packet.name() }),
        }
    }

    fn on_remote_connack(&mut self, connack: &Connack<'_>) -> Result<(), Down> {
        if remote::refuses_announcement(connack, &self.settings) {
            return Err(Down::Unannounced);
        }
        if connack.reason.is_error() {
            let (side, reason) = (Side::Remote, connack.reason);
            return Err(Down::ConnectRefused { side, reason });
        }
        let remote = &mut self.limits[Side::Remote as usize];
        remote.learn(connack, self.settings.version);
        self.phase = Phase::AwaitsLocal;
        let receive_max = remote.receive_max.min(self.settings.in_flight_max);
        self.actions.push_back(Action::OpenLocal { receive_max });
        Ok(())
    }

    fn on_local_connack(&mut self, connack: &Connack<'_>) -> Result<(), Down> {
        if connack.reason.is_error() {
            let (side, reason) = (Side::Local, connack.reason);
            return Err(Down::ConnectRefused { side, reason });
        }
        self.limits[Side::Local as usize].learn(connack, Version::V5);
        if self.is_queueing {
            self.phase = Phase::Subscribes;
            self.actions.push_back(Action::QueueOpened { was_present: connack.session_present });
            self.subscribe_here();
            self.rise_if_answered();
            return Ok(());
        }
        let remote = self.limits_of(Side::Remote);
        let remote_present = remote.session_present;
        self.keep_alive.start(remote.keep_alive_secs);
        let local_present = connack.session_present && !self.is_local_new;
        self.actions.push_back(Action::Opened { local_present, remote_present });
        self.phase = Phase::Releases;
        for (side, is_new) in Side::ALL.into_iter().zip([!local_present, !remote_present]) {
            if is_new {
                self.unreleased.set_due(side.other());
            }
        }
        for (side, is_new) in Side::ALL.into_iter().zip([!local_present, !remote_present]) {
            let is_used = match side {
                Side::Local => self.settings.has_in(),
                Side::Remote => self.settings.has_out(),
            };
            if is_new {
                self.unreleased.clear(side);
            } else if self.unreleased.is_due(side) && is_used {
                self.peer(side).release = Some(Release::new());
            }
        }
        self.advance();
        Ok(())
    }

    /// Goes on with what waits for output or an answer.
    fn advance(&mut self) {
        if self.phase != Phase::Releases {
            return;
        }
        for side in Side::ALL {
            let version = self.version_of(side);
            let peer = &mut self.sides[side as usize];
            if let Some(release) = &mut peer.release {
                release.write(version, &mut peer.out, OUT_BYTES_MAX);
                if release.is_done() {
                    peer.release = None;
                    self.unreleased.set_released(side);
                }
            }
        }
        let is_released = self.sides[Side::Local as usize].release.is_none();
        if self.releasing == Releasing::All && is_released {
            self.releasing = Releasing::Nothing;
        }
        if self.sides.iter().all(|peer| peer.release.is_none()) {
            self.phase = Phase::Subscribes;
            self.subscribe();
        }
    }

    fn rise_if_answered(&mut self) {
        let is_answered = self.sides.iter().all(|peer| peer.asked.is_empty());
        if self.phase != Phase::Subscribes || !is_answered {
            return;
        }
        self.phase = Phase::Up;
        self.publish_state(remote::UP);
        self.actions.push_back(Action::Up);
    }

    fn publish_state(&mut self, payload: &[u8]) {
        let Some(topic) = self.state_topic.clone() else { return };
        let (version, retain) =
            (self.settings.version, self.limits_of(Side::Remote).retain_available);
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain,
            topic: &topic,
            packet_id: 0,
            properties: Properties::EMPTY,
            payload,
        };
        publish.encode(version, &mut self.peer(Side::Remote).out);
    }

    fn version_of(&self, side: Side) -> Version {
        match side {
            Side::Local => Version::V5,
            Side::Remote => self.settings.version,
        }
    }

    const fn limits_of(&self, side: Side) -> PeerLimits {
        self.limits[side as usize]
    }

    fn peer(&mut self, side: Side) -> &mut Peer {
        &mut self.sides[side as usize]
    }
}
