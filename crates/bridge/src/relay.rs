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
use crate::remote::{self, Login, RemoteLimits};
use crate::settings::{Settings, Ways};
use crate::stale::Release;
use crate::unreleased::Unreleased;
use keep_alive::{Due, KeepAlive};
pub use report::{Action, Counts, Down, Refused};
use side::Peer;
pub use side::Side;

/// No more is read from one side while the other has so many bytes to write.
pub const OUT_BYTES_MAX: usize = 256 * 1024;

/// See the head of this crate.
#[derive(Debug)]
pub struct Relay {
    settings: Arc<Settings>,
    ways: Ways,
    state_topic: Option<String>,
    phase: Phase,
    remote: RemoteLimits,
    copies: Copies,
    unreleased: Unreleased,
    /// The identifier that this broker releases, before anything more is taken from the remote.
    releasing: Option<u16>,
    sides: [Peer; 2],
    actions: VecDeque<Action>,
    counts: Counts,
    /// Reasons of which a first message was reported, by sender.
    reported: [[bool; Refusal::ALL.len()]; 2],
    keep_alive: KeepAlive,
    /// Bytes to come of a message that is too large.
    skipped: usize,
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
        let mut sides = [Peer::default(), Peer::default()];
        remote::write_connect(&settings, login, &mut sides[Side::Remote as usize].out);
        Self {
            ways: Ways::of(&settings.maps),
            state_topic: login.state_topic.clone(),
            phase: Phase::AwaitsRemote,
            remote: RemoteLimits {
                session_present: false,
                receive_max: u16::MAX,
                packet_bytes_max: u32::MAX,
                qos_max: QoS::ExactlyOnce,
                retain_available: true,
                has_subscription_ids: false,
                keep_alive_secs: settings.keep_alive_secs,
            },
            copies: Copies::default(),
            unreleased: Unreleased::default(),
            releasing: None,
            sides,
            actions: VecDeque::new(),
            counts: Counts::default(),
            reported: Default::default(),
            keep_alive: KeepAlive::new(now_ms),
            skipped: 0,
            settings,
        }
    }

    /// Filters that an earlier configuration may have subscribed to. Those that are not subscribed
    /// to now are removed.
    pub fn set_earlier(&mut self, side: Side, filters: Vec<String>) {
        self.peer(side).earlier = filters;
    }

    /// What an earlier connection has left.
    pub fn set_unreleased(&mut self, unreleased: Unreleased) {
        self.unreleased = unreleased;
    }

    /// For the next connection.
    pub fn take_unreleased(&mut self) -> Unreleased {
        std::mem::take(&mut self.unreleased)
    }

    /// Takes whole packets of one side; says how many bytes. The others are to be given again,
    /// with what follows them, or when output was written.
    ///
    /// # Errors
    ///
    /// Why both connections are to be closed.
    pub fn on_bytes(&mut self, side: Side, bytes: &[u8], now_ms: u64) -> Result<usize, Down> {
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
            let decoded = codec::decode(&bytes[taken..], version, Sender::Server, bytes_max);
            let decoded = decoded.map_err(|violation| Down::Violation { side, violation })?;
            let Some((packet, len)) = decoded else { break };
            if self.must_release(side, &packet) {
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
            // The local session may know identifiers that the remote uses for other messages.
            Side::Remote => {
                self.phase == Phase::AwaitsRemote
                    || self.phase >= Phase::Releases
                        && self.sides[0].release.is_none()
                        && self.releasing.is_none()
            }
        };
        let own = self.unwritten(side).len();
        let other = self.unwritten(side.other()).len();
        // Refusals are short. A peer that sends and does not read has to stop some time.
        is_in_phase && other < OUT_BYTES_MAX && own < 2 * OUT_BYTES_MAX
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
            (Packet::Pingresp, ..) => Ok(()),
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
        self.remote = RemoteLimits::of(connack, &self.settings);
        self.phase = Phase::AwaitsLocal;
        let receive_max = self.remote.receive_max.min(self.settings.in_flight_max);
        self.actions.push_back(Action::OpenLocal { receive_max });
        Ok(())
    }

    fn on_local_connack(&mut self, connack: &Connack<'_>) -> Result<(), Down> {
        if connack.reason.is_error() {
            let (side, reason) = (Side::Local, connack.reason);
            return Err(Down::ConnectRefused { side, reason });
        }
        self.keep_alive.start(self.remote.keep_alive_secs);
        let local_present = connack.session_present;
        let remote_present = self.remote.session_present;
        self.actions.push_back(Action::Opened { local_present, remote_present });
        self.phase = Phase::Releases;
        if local_present && !remote_present && self.settings.has_in() {
            self.peer(Side::Local).release = Some(Release::new());
        }
        if remote_present && !local_present && self.settings.has_out() {
            self.peer(Side::Remote).release = Some(Release::new());
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
            let peer = self.peer(side);
            if let Some(release) = &mut peer.release {
                release.write(version, &mut peer.out, OUT_BYTES_MAX);
                if release.is_done() {
                    peer.release = None;
                }
            }
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
        let (version, retain) = (self.settings.version, self.remote.retain_available);
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

    fn peer(&mut self, side: Side) -> &mut Peer {
        &mut self.sides[side as usize]
    }
}
