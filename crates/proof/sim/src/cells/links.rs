//! Links between cells: lanes over connections that are cut, held up, and begun again.
//!
//! A lane lasts as long as both owners do. What is under way on a connection is lost with it. Bytes
//! of an earlier owner are of no lane of the next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broker::ShardId;
use broker::cells::frame::Frame;
use broker::cells::lane::{Fault, Full, Lane};
use broker::cells::wire::{self, Envelope, Envelopes, Route, VERSION};
use topic::interest::{Change, Snapshot};

use super::Way;
use crate::random::Random;
use crate::sabotage::Sabotage;

/// One direction of a lane.
pub(super) type Track = (Way, u8);

#[derive(Default)]
pub(super) struct Links {
    pub(super) lanes: u8,
    ends: BTreeMap<Track, End>,
    /// Bytes under way, by connections that are there.
    under_way: BTreeMap<Track, VecDeque<Vec<u8>>>,
    held: BTreeSet<Track>,
    /// Of lives that are over, while the connection between the nodes goes on.
    strays: BTreeMap<Track, VecDeque<Vec<u8>>>,
    sabotage: Option<Sabotage>,
}

/// What an owner has of a lane.
struct End {
    own_epoch: u64,
    peer_epoch: u64,
    lane: Lane,
    /// The lane is full.
    waiting: VecDeque<Vec<u8>>,
}

/// What has arrived.
pub(super) enum Arrived {
    Frame(Frame),
    /// Bytes of a life that is over.
    Late,
    Nothing,
}

impl Links {
    pub(super) fn new(lanes: u8, sabotage: Option<Sabotage>) -> Self {
        Self { lanes, sabotage, ..Self::default() }
    }

    /// The owner of a cell knows this owner of another. What there was with the one before is over.
    pub(super) fn open(&mut self, way: Way, own_epoch: u64, peer_epoch: u64) {
        for lane in 0..self.lanes {
            let track = (way, lane);
            let is_same = |end: &End| (end.own_epoch, end.peer_epoch) == (own_epoch, peer_epoch);
            if self.ends.get(&track).is_some_and(is_same) {
                continue;
            }
            self.leave(track);
            let end = End { own_epoch, peer_epoch, lane: Lane::new(), waiting: VecDeque::new() };
            self.ends.insert(track, end);
        }
    }

    /// The owner of a cell is gone, with all its ends.
    pub(super) fn close(&mut self, cell: u16) {
        for track in self.ends.keys().copied().collect::<Vec<_>>() {
            let (from, to) = track.0;
            if from == cell || to == cell {
                self.leave(track);
            }
        }
        self.ends.retain(|((own, _), _), _| *own != cell);
    }

    /// The connection of a lane is gone, with what was under way in both directions.
    pub(super) fn cut(&mut self, (way, lane): Track) {
        for track in [(way, lane), (back(way), lane)] {
            self.under_way.remove(&track);
            self.strays.remove(&track);
            if let Some(end) = self.ends.get_mut(&track) {
                end.lane.disconnect();
            }
        }
    }

    /// One of the two owners is gone. What was under way still comes, and is for nobody.
    fn leave(&mut self, (way, lane): Track) {
        for track in [(way, lane), (back(way), lane)] {
            let strays = self.under_way.remove(&track).unwrap_or_default();
            self.strays.entry(track).or_default().extend(strays);
            if let Some(end) = self.ends.get_mut(&track) {
                end.lane.disconnect();
            }
        }
        self.strays.retain(|_, strays| !strays.is_empty());
    }

    /// The owner of a cell takes nothing more from another for now.
    pub(super) fn disconnect(&mut self, way: Way) {
        (0..self.lanes).for_each(|lane| self.cut((way, lane)));
    }

    pub(super) fn is_ready(&self, track: Track) -> bool {
        let has_some = |queue: &VecDeque<Vec<u8>>| !queue.is_empty();
        self.strays.contains_key(&track) || self.under_way.get(&track).is_some_and(has_some)
    }

    /// A new connection, if both sides are of the same two lives. False: they are not.
    pub(super) fn connect(&mut self, (way, lane): Track) -> Result<bool, String> {
        let (one, other) = ((way, lane), (back(way), lane));
        if self.under_way.contains_key(&one) {
            return Ok(true);
        }
        let (Some(own), Some(peer)) = (self.ends.get(&one), self.ends.get(&other)) else {
            return Ok(false);
        };
        if (own.own_epoch, own.peer_epoch) != (peer.peer_epoch, peer.own_epoch) {
            return Ok(false);
        }
        let received = [peer.lane.received(), own.lane.received()];
        for (track, received) in [one, other].into_iter().zip(received) {
            let Some(end) = self.ends.get_mut(&track) else { continue };
            end.lane.reconnect(received).map_err(|fault| format!("{track:?}: {fault}"))?;
            self.under_way.insert(track, VecDeque::new());
        }
        Ok(true)
    }

    pub(super) fn push(&mut self, way: Way, shard: ShardId, frame: &Frame, now_ms: u64) {
        let mut lane = (shard % ShardId::from(self.lanes)) as u8;
        if self.sabotage == Some(Sabotage::SpreadChanges)
            && let Frame::Changes { through, .. } = frame
        {
            lane = (through % u64::from(self.lanes)) as u8;
        }
        let Some(end) = self.ends.get_mut(&(way, lane)) else { return };
        let mut bytes = Vec::new();
        match self.sabotage {
            Some(Sabotage::ForgetDepths) => {
                wire::encode(&without_depths(frame.clone()), now_ms, &mut bytes);
            }
            _ => wire::encode(frame, now_ms, &mut bytes),
        }
        end.waiting.push_back(bytes);
        self.pump((way, lane), now_ms);
    }

    /// What may go on a connection is under way.
    pub(super) fn pump(&mut self, track: Track, now_ms: u64) {
        let Some(end) = self.ends.get_mut(&track) else { return };
        while let Some(bytes) = end.waiting.pop_front() {
            if let Err(Full(bytes)) = end.lane.push(bytes, now_ms) {
                end.waiting.push_front(bytes);
                break;
            }
        }
        let Some(queue) = self.under_way.get_mut(&track) else { return };
        let (from_cell, to_cell) = track.0;
        let (from_epoch, to_epoch) = (end.own_epoch, end.peer_epoch);
        let route = Route { from_cell, to_cell, from_epoch, to_epoch, lane: track.1 };
        while let Some(packet) = end.lane.next_packet(now_ms) {
            let mut bytes = Vec::new();
            Envelope::new(VERSION, route, packet).encode(&mut bytes);
            queue.push_back(bytes);
        }
    }

    /// Acknowledgements are due, and what waits goes on.
    pub(super) fn tick(&mut self, now_ms: u64) {
        for track in self.ends.keys().copied().collect::<Vec<_>>() {
            if let Some(end) = self.ends.get_mut(&track) {
                end.lane.ask_ack();
            }
            self.pump(track, now_ms);
        }
    }

    /// Tracks on which something may arrive.
    pub(super) fn ready(&self) -> Vec<Track> {
        let tracks: BTreeSet<Track> =
            self.under_way.keys().chain(self.strays.keys()).copied().collect();
        let is_ready = |track: &Track| self.is_ready(*track) && !self.held.contains(track);
        tracks.into_iter().filter(is_ready).collect()
    }

    pub(super) fn connected(&self) -> Vec<Track> {
        self.under_way.keys().copied().collect()
    }

    pub(super) fn hold(&mut self, track: Track) {
        self.held.insert(track);
    }

    pub(super) fn release(&mut self) {
        self.held.clear();
    }

    /// The next bytes of a track arrive.
    pub(super) fn carry(
        &mut self,
        track: Track,
        place: broker::Place,
        now_ms: u64,
        random: &mut Random,
    ) -> Result<Arrived, String> {
        let Some(bytes) = self.next_bytes(track) else { return Ok(Arrived::Nothing) };
        let doubles = self.sabotage == Some(Sabotage::DoubleFrames) && random.chance(5);
        if self.sabotage == Some(Sabotage::LoseFrames) && random.chance(5) {
            return self.take(track, &bytes, place, now_ms).map(|_| Arrived::Nothing);
        }
        if doubles && let Some(queue) = self.under_way.get_mut(&track) {
            queue.push_front(bytes.clone());
        }
        self.take(track, &bytes, place, now_ms)
    }

    fn next_bytes(&mut self, track: Track) -> Option<Vec<u8>> {
        if let Some(strays) = self.strays.get_mut(&track) {
            let bytes = strays.pop_front();
            if strays.is_empty() {
                self.strays.remove(&track);
            }
            return bytes;
        }
        self.under_way.get_mut(&track)?.pop_front()
    }

    fn take(
        &mut self,
        (way, lane): Track,
        bytes: &[u8],
        place: broker::Place,
        now_ms: u64,
    ) -> Result<Arrived, String> {
        let fault = |what: &dyn std::fmt::Display| format!("lane {lane} of {way:?}: {what}");
        let (mut envelopes, mut input) = (Envelopes::default(), bytes);
        let envelope = envelopes.next(&mut input).map_err(|error| fault(&error))?;
        let Some(envelope) = envelope else { return Err(fault(&"a part of a packet")) };
        let Some(end) = self.ends.get_mut(&(back(way), lane)) else { return Ok(Arrived::Late) };
        let Route { from_epoch, to_epoch, .. } = envelope.route;
        let is_blind =
            matches!(self.sabotage, Some(Sabotage::KeepOldFrames | Sabotage::DoubleFrames));
        if !is_blind && (from_epoch, to_epoch) != (end.peer_epoch, end.own_epoch) {
            return Ok(Arrived::Late);
        }
        match end.lane.on_packet(envelope.packet()) {
            Ok(Some(_)) => {}
            _ if is_blind && envelope.number > 0 => {}
            Ok(None) => {
                self.pump((back(way), lane), now_ms);
                return Ok(Arrived::Nothing);
            }
            // The other owner is gone, or the lane begins again later.
            Err(Fault::NotConnected) => return Ok(Arrived::Late),
            Err(error) => return Err(fault(&error)),
        }
        self.pump((back(way), lane), now_ms);
        let frame = envelope.into_frame(place, now_ms).map_err(|error| fault(&error))?;
        Ok(Arrived::Frame(frame))
    }

    /// Nothing waits for a connection or an acknowledgement.
    pub(super) fn is_idle(&self) -> bool {
        self.ends.values().all(|end| end.waiting.is_empty() && end.lane.kept().0 == 0)
            && self.under_way.values().all(VecDeque::is_empty)
            && self.strays.is_empty()
    }
}

pub(super) const fn back((from, to): Way) -> Way {
    (to, from)
}

/// By a planted bug.
fn without_depths(frame: Frame) -> Frame {
    match frame {
        Frame::Changes { through, mut changes } => {
            changes.retain(|change| !matches!(change, Change::Depth(_)));
            Frame::Changes { through, changes }
        }
        Frame::Summary { ask, snapshot } => {
            let bare = Snapshot::new(snapshot.number(), 0, snapshot.form().clone());
            Frame::Summary { ask, snapshot: bare.map_or(snapshot, Box::new) }
        }
        other => other,
    }
}
