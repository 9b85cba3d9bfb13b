//! An active cell of this node, and its pairs with all other cells.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use broker::cells::gateway::{Gateway, Outgoing};
use broker::cells::wire::{Route, encode};
use broker::{Mail, Place, ShardId};
use links::Envelope;

use crate::figures::Figures;
use crate::gate::Gate;
use crate::handle::{Facts, OwnCell, Owner};
use crate::track::Track;
use crate::way::Ways;

pub(crate) struct Own {
    cell: OwnCell,
    gate: Arc<Gate>,
    pairs: BTreeMap<u16, Pair>,
    /// For the shards, by their numbers.
    mail: Vec<Vec<Mail>>,
    /// Tracks that may have something to send.
    dirty: BTreeSet<Ends>,
    /// Tracks on which frames have arrived since the last acknowledgement by time.
    unacknowledged: BTreeSet<Ends>,
}

/// Another cell, and a lane.
type Ends = (u16, u8);

struct Pair {
    gateway: Gateway,
    owner: Option<Owner>,
    /// Of the other cell, for which the tracks are.
    epoch: u64,
    /// One for each lane.
    tracks: Vec<Track>,
}

impl Own {
    /// Makes the gateways at once: from now on the other cells are unknown.
    pub(crate) fn new(cell: OwnCell, gate: Arc<Gate>, facts: &Facts) -> Self {
        let homes = cell.shared.homes;
        let others = (0..facts.cells).filter(|other| *other != cell.cell);
        let pair = |other| {
            let gateway = Gateway::new(Arc::clone(&cell.shared), homes.place_of_cell(other));
            let pair = Pair { gateway, owner: None, epoch: 0, tracks: tracks(facts.lanes.into()) };
            (other, pair)
        };
        let pairs = others.map(pair).collect();
        let mail = (0..homes.shards()).map(|_| Vec::new()).collect();
        let (dirty, unacknowledged) = (BTreeSet::new(), BTreeSet::new());
        Self { cell, gate, pairs, mail, dirty, unacknowledged }
    }

    pub(crate) const fn number(&self) -> u16 {
        self.cell.cell
    }

    pub(crate) const fn epoch(&self) -> u64 {
        self.cell.epoch
    }

    /// `is_linked`: which lanes to the node of the owner have a connection.
    pub(crate) fn set_owner(
        &mut self,
        other: u16,
        owner: Option<&Owner>,
        is_linked: impl Fn(u8) -> bool,
    ) {
        let Some(pair) = self.pairs.get_mut(&other) else { return };
        let mut out = Outgoing::default();
        match owner {
            None => pair.lose(&mut out),
            Some(owner) if pair.owner.as_ref() == Some(owner) => return,
            Some(owner) if owner.epoch < pair.gateway.last_epoch() => return,
            Some(owner) => pair.meet(owner, &mut out),
        }
        self.absorb(other, out);
        if owner.is_some() {
            let lanes = self.pairs.get(&other).map_or(0, |pair| pair.tracks.len() as u8);
            let linked = (0..lanes).filter(|lane| is_linked(*lane));
            linked.for_each(|lane| self.begin((other, lane)));
        }
    }

    /// A link to a node begins.
    pub(crate) fn on_connected(&mut self, node: &str, lane: u8) {
        self.ends_at(node, lane).into_iter().for_each(|ends| self.begin(ends));
    }

    pub(crate) fn on_lost(&mut self, node: &str, lane: u8) {
        for (other, lane) in self.ends_at(node, lane) {
            if let Some(track) = self.track((other, lane)) {
                track.end();
            }
        }
    }

    pub(crate) fn on_room(&mut self, node: &str, lane: u8) {
        let ends = self.ends_at(node, lane);
        self.dirty.extend(ends);
    }

    pub(crate) fn on_mails(&mut self, from: ShardId, to: Place, mails: Vec<Mail>) {
        let now_ms = self.now_ms();
        let Some(other) = self.cell.shared.homes.cell_at(to) else { return };
        self.with_gateway(other, |gateway, out| {
            mails.into_iter().for_each(|mail| gateway.on_mail(from, mail, now_ms, out));
        });
    }

    /// Takes a packet of a node. One that is not of the present owners is dropped.
    ///
    /// # Errors
    ///
    /// No owner of a cell sends it.
    pub(crate) fn on_envelope(&mut self, node: &str, envelope: Envelope<'_>) -> Result<(), String> {
        let Route { from_cell, to_epoch, from_epoch, lane, .. } = envelope.route;
        let place = self.cell.shared.homes.place_of_cell(from_cell);
        let (now_ms, own_epoch) = (self.now_ms(), self.epoch());
        let Some(pair) = self.pairs.get_mut(&from_cell) else { return Ok(()) };
        let Some(owner) = &pair.owner else { return Ok(()) };
        if (from_epoch, to_epoch) != (owner.epoch, own_epoch) {
            return Ok(());
        }
        if owner.node != node {
            return Err(format!("its owner is node {}", owner.node));
        }
        let Some(track) = pair.tracks.get_mut(usize::from(lane)) else { return Ok(()) };
        self.dirty.insert((from_cell, lane));
        if let Some(hello) = envelope.lane_hello().map_err(|error| error.to_string())? {
            let begun = track.on_hello(hello, envelope.received);
            return begun.map_err(|fault| fault.to_string());
        }
        if !track.on_packet(envelope.packet()).map_err(|fault| fault.to_string())? {
            return Ok(());
        }
        self.unacknowledged.insert((from_cell, lane));
        let frame = envelope.into_frame(place, now_ms).map_err(|error| error.to_string())?;
        let mut out = Outgoing::default();
        let result = pair.gateway.on_frame(frame, &mut out);
        self.absorb(from_cell, out);
        result.map_err(|misfit| misfit.to_string())
    }

    pub(crate) fn on_lapse(&mut self) {
        self.with_gateways(|gateway, out| gateway.on_lapse(out));
    }

    pub(crate) fn on_tick(&mut self) {
        let now_ms = self.now_ms();
        self.with_gateways(|gateway, out| gateway.on_tick(now_ms, out));
    }

    /// Frames have arrived that no acknowledgement by their number or size has covered.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    pub(crate) fn acknowledge(&mut self) {
        for ends in mem::take(&mut self.unacknowledged) {
            if let Some(track) = self.track(ends) {
                track.ask_ack();
            }
            self.dirty.insert(ends);
        }
    }

    /// Delivers and sends what is due, unless the cell has ended. Packets wait while the lease is
    /// not held.
    pub(crate) fn flush(&mut self, ways: &mut Ways<'_>) {
        if self.dirty.is_empty() && self.mail.iter().all(Vec::is_empty) {
            return;
        }
        let gate = Arc::clone(&self.gate);
        let Some(_passed) = gate.pass() else { return self.forget() };
        for (shard, mails) in self.mail.iter_mut().enumerate().filter(|(_, it)| !it.is_empty()) {
            (self.cell.deliver)(shard as ShardId, mem::take(mails));
        }
        if self.dirty.is_empty() || !(self.cell.is_held)() {
            return;
        }
        let now_ms = self.now_ms();
        for ends in mem::take(&mut self.dirty) {
            self.pump(ends, now_ms, ways);
        }
    }

    /// Ticks come soon while it does something.
    pub(crate) fn is_busy(&self) -> bool {
        let is_busy = |pair: &Pair| {
            pair.gateway.waiting() > 0 || pair.tracks.iter().any(|track| track.kept().0 > 0)
        };
        !self.dirty.is_empty() || self.pairs.values().any(is_busy)
    }

    pub(crate) fn figures(&self) -> impl Iterator<Item = Figures> {
        self.pairs.iter().map(|(other, pair)| pair.figures(self.cell.cell, *other))
    }

    fn begin(&mut self, ends: Ends) {
        if let Some(track) = self.track(ends) {
            track.begin();
            self.dirty.insert(ends);
        }
    }

    /// The gate is passed.
    fn pump(&mut self, (other, lane): Ends, now_ms: u64, ways: &mut Ways<'_>) {
        let (from_cell, from_epoch) = (self.cell.cell, self.cell.epoch);
        let Some(pair) = self.pairs.get_mut(&other) else { return };
        let Some(owner) = &pair.owner else { return };
        let route = Route { from_cell, to_cell: other, from_epoch, to_epoch: owner.epoch, lane };
        let Some(way) = ways.to(&owner.node, lane) else { return };
        if let Some(track) = pair.tracks.get_mut(usize::from(lane)) {
            track.pump(way, route, now_ms);
        }
    }

    fn with_gateways(&mut self, does: impl Fn(&mut Gateway, &mut Outgoing)) {
        for other in self.pairs.keys().copied().collect::<Vec<_>>() {
            self.with_gateway(other, &does);
        }
    }

    fn with_gateway(&mut self, other: u16, does: impl FnOnce(&mut Gateway, &mut Outgoing)) {
        let Some(pair) = self.pairs.get_mut(&other) else { return };
        let mut out = Outgoing::default();
        does(&mut pair.gateway, &mut out);
        self.absorb(other, out);
    }

    /// What a gateway does goes on its way.
    fn absorb(&mut self, other: u16, out: Outgoing) {
        let now_ms = self.now_ms();
        for (shard, mail) in out.mail {
            self.mail[usize::from(shard)].push(mail);
        }
        let Some(pair) = self.pairs.get_mut(&other) else { return };
        let lanes = pair.tracks.len();
        for (shard, frame) in out.frames {
            let lane = usize::from(shard) % lanes;
            let mut bytes = Vec::new();
            encode(&frame, now_ms, &mut bytes);
            pair.tracks[lane].push(bytes, now_ms);
            self.dirty.insert((other, lane as u8));
        }
    }

    /// Tracks on a lane to a node.
    fn ends_at(&self, node: &str, lane: u8) -> Vec<Ends> {
        let is_there =
            |(_, pair): &(&u16, &Pair)| pair.owner.as_ref().is_some_and(|it| it.node == node);
        self.pairs.iter().filter(is_there).map(|(other, _)| (*other, lane)).collect()
    }

    fn track(&mut self, (other, lane): Ends) -> Option<&mut Track> {
        self.pairs.get_mut(&other)?.tracks.get_mut(usize::from(lane))
    }

    /// The cell has ended.
    fn forget(&mut self) {
        self.mail.iter_mut().for_each(Vec::clear);
        self.dirty.clear();
    }

    fn now_ms(&self) -> u64 {
        self.cell.clock.now_ms()
    }
}

impl Pair {
    /// The tracks stay: the same owner may come back.
    fn lose(&mut self, out: &mut Outgoing) {
        self.owner = None;
        self.tracks.iter_mut().for_each(Track::end);
        if let Some(epoch) = self.gateway.epoch() {
            self.gateway.peer_lost(epoch, out);
        }
    }

    fn meet(&mut self, owner: &Owner, out: &mut Outgoing) {
        if self.epoch != owner.epoch {
            self.tracks = tracks(self.tracks.len());
            self.epoch = owner.epoch;
        }
        self.tracks.iter_mut().for_each(Track::end);
        self.owner = Some(owner.clone());
        self.gateway.peer_changed(owner.epoch, out);
    }

    fn figures(&self, cell: u16, other: u16) -> Figures {
        let kept = self.tracks.iter().map(Track::kept);
        let (kept_frames, kept_bytes) =
            kept.fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
        Figures {
            cell,
            other,
            owner: self.owner.clone(),
            is_connected: self.tracks.iter().all(Track::is_connected),
            waiting: self.gateway.waiting(),
            kept_frames,
            kept_bytes,
            overflow_frames: self.tracks.iter().map(Track::overflow_frames).sum(),
        }
    }
}

fn tracks(lanes: usize) -> Vec<Track> {
    (0..lanes).map(|_| Track::default()).collect()
}
