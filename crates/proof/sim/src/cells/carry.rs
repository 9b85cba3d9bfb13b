//! Frames between cells, and what cells hear of each other's owners.

use broker::cells::frame::{Carried, Frame};
use broker::cells::gateway::{Gateway, Outgoing};
use broker::{Mail, Place, ShardId};

use super::links::{Arrived, Track, back};
use super::{Cells, News, Way};
use crate::node::Node;
use crate::oracle::Payload;
use crate::world::World;

impl World {
    /// Mail of the current cell for others.
    pub(crate) fn send_to_cells(&mut self, mails: Vec<(ShardId, Place, Vec<Mail>)>) {
        let now_ms = self.now_ms;
        let homes = self.node.shared.homes;
        let Some(current) = self.cells.as_ref().map(|cells| cells.current) else { return };
        for (from, place, mails) in mails {
            let Some(to) = homes.cell_at(place) else { continue };
            for mail in mails {
                self.with_gateway((current, to), |gateway, out| {
                    gateway.on_mail(from, mail, now_ms, out);
                });
            }
        }
    }

    /// What a gateway does goes on its way.
    pub(super) fn with_gateway(
        &mut self,
        way: Way,
        does: impl FnOnce(&mut Gateway, &mut Outgoing),
    ) {
        let now_ms = self.now_ms;
        let Some(cells) = &mut self.cells else { return };
        let own_epoch = cells.epoch(way.0);
        let Some(gateway) = cells.gateways.get_mut(&way) else { return };
        let (mut out, before) = (Outgoing::default(), gateway.epoch());
        does(gateway, &mut out);
        match gateway.epoch() {
            Some(epoch) if before != Some(epoch) => cells.links.open(way, own_epoch, epoch),
            None if before.is_some() => cells.links.disconnect(way),
            _ => {}
        }
        for (shard, frame) in out.frames {
            self.oracle.trace.note(|| format!("cell {} to {}: {}", way.0, way.1, shown(&frame)));
            cells.toll.frames += 1;
            cells.links.push(way, shard, &frame, now_ms);
        }
        let node = node_of(&mut self.node, cells, way.0);
        for (shard, mail) in out.mail {
            node.mail.entry((FOREIGN + usize::from(way.1), shard)).or_default().push_back(mail);
        }
    }

    /// Something arrives, a connection is cut or begins, or one cell hears of the owner of another.
    pub(crate) fn step_links(&mut self) -> Result<(), String> {
        let Some(cells) = &mut self.cells else { return Ok(()) };
        let with_news: Vec<Way> = cells.news.keys().copied().collect();
        if !with_news.is_empty() && cells.random.chance(10) {
            let way = with_news[cells.random.below(with_news.len())];
            return self.hear_news(way);
        }
        let connected = cells.links.connected();
        if !cells.is_calm
            && !connected.is_empty()
            && cells.random.below(1000) < cells.cuts_per_mille
        {
            let track = connected[cells.random.below(connected.len())];
            cells.toll.cuts += 1;
            cells.links.cut(track);
            return Ok(());
        }
        if cells.random.chance(10) {
            return self.connect_one();
        }
        let ready = cells.links.ready();
        if ready.is_empty() {
            return Ok(());
        }
        let track = ready[cells.random.below(ready.len())];
        self.carry_frame(track)
    }

    /// All that is under way arrives and all news is heard, for once. True: there was something.
    pub(crate) fn work_links(&mut self) -> Result<bool, String> {
        let now_ms = self.now_ms;
        let Some(cells) = &mut self.cells else { return Ok(false) };
        cells.links.release();
        let news: Vec<Way> = cells.news.keys().copied().collect();
        let has_news = !news.is_empty();
        for way in news {
            self.hear_news(way)?;
        }
        let ways = || self.cells.iter().flat_map(|cells| cells.gateways.keys().copied());
        for way in ways().collect::<Vec<_>>() {
            self.connect_cells(way)?;
        }
        let Some(cells) = &mut self.cells else { return Ok(false) };
        cells.links.tick(now_ms);
        let ready = cells.links.ready();
        let has_worked = has_news || !ready.is_empty();
        for track in ready {
            while self.cells.as_ref().is_some_and(|cells| cells.links.is_ready(track)) {
                self.carry_frame(track)?;
            }
        }
        Ok(has_worked)
    }

    fn connect_one(&mut self) -> Result<(), String> {
        let Some(cells) = &mut self.cells else { return Ok(()) };
        let ways: Vec<Way> = cells.gateways.keys().copied().collect();
        if ways.is_empty() {
            return Ok(());
        }
        let way = ways[cells.random.below(ways.len())];
        self.connect_cells(way)
    }

    /// Two owners connect if both are there, and tell each other which they are. One whose lease is
    /// over is no owner, whatever it says.
    fn connect_cells(&mut self, way: Way) -> Result<(), String> {
        for (own, peer) in [way, back(way)] {
            let Some(cells) = &self.cells else { return Ok(()) };
            let Some(gateway) = cells.gateways.get(&(own, peer)) else { return Ok(()) };
            let (known, epoch) = (gateway.epoch(), cells.epoch(peer));
            if !cells.is_up(peer) || known.is_none() && gateway.last_epoch() >= epoch {
                return Ok(());
            }
        }
        for (own, peer) in [way, back(way)] {
            let Some(cells) = &mut self.cells else { return Ok(()) };
            let epoch = cells.epoch(peer);
            let known = cells.gateways.get(&(own, peer)).and_then(Gateway::epoch);
            cells.toll.found_by_links += u64::from(known.is_some_and(|known| known != epoch));
            self.with_gateway((own, peer), |gateway, out| gateway.peer_changed(epoch, out));
        }
        let now_ms = self.now_ms;
        let Some(cells) = &mut self.cells else { return Ok(()) };
        for lane in 0..cells.links.lanes {
            if cells.links.connect((way, lane))? {
                cells.links.pump((way, lane), now_ms);
                cells.links.pump((back(way), lane), now_ms);
            }
        }
        Ok(())
    }

    fn carry_frame(&mut self, (way, lane): Track) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cells) = &mut self.cells else { return Ok(()) };
        let place = node_of(&mut self.node, cells, way.1).shared.homes.place_of_cell(way.0);
        let arrived = cells.links.carry((way, lane), place, now_ms, &mut cells.random)?;
        match arrived {
            Arrived::Nothing => {}
            Arrived::Late => cells.toll.frames_late += 1,
            Arrived::Frame(frame) => {
                let mut misfit = None;
                self.with_gateway(back(way), |gateway, out| {
                    misfit = gateway.on_frame(frame, out).err();
                });
                return misfit.map_or(Ok(()), |misfit| Err(format!("{way:?}: {misfit}")));
            }
        }
        Ok(())
    }

    fn hear_news(&mut self, way: Way) -> Result<(), String> {
        let Some(cells) = &mut self.cells else { return Ok(()) };
        let Some(queue) = cells.news.get_mut(&way) else { return Ok(()) };
        let news = queue.pop_front();
        if queue.is_empty() {
            cells.news.remove(&way);
        }
        let known = cells.last_known(way);
        match news {
            Some(News::Lost(epoch)) => {
                cells.toll.absences += 1;
                self.with_gateway(way, |gateway, out| gateway.peer_lost(epoch, out));
            }
            Some(News::Owner(epoch)) if epoch >= known => {
                self.with_gateway(way, |gateway, out| gateway.peer_changed(epoch, out));
            }
            _ => {}
        }
        Ok(())
    }

    /// Time has passed for the gateways.
    pub(crate) fn tick_gateways(&mut self) {
        let now_ms = self.now_ms;
        let Some(cells) = &mut self.cells else { return };
        cells.links.tick(now_ms);
        for way in cells.gateways.keys().copied().collect::<Vec<_>>() {
            self.with_gateway(way, |gateway, out| gateway.on_tick(now_ms, out));
        }
    }
}

fn shown(frame: &Frame) -> String {
    match frame {
        Frame::Publish(own) | Frame::Retain(own) => {
            let Carried { number, serial, message, .. } = &**own;
            let payload = Payload::from_bytes(message.payload());
            let is_retain = matches!(frame, Frame::Retain(_));
            format!("{number}, serial {serial:x}, {} {payload:?}, {is_retain}", message.topic())
        }
        Frame::Page { number, messages, next } => {
            format!("page {number}, {} messages, {next:?}", messages.len())
        }
        Frame::Summary { ask, snapshot } => format!("summary {ask}, {}", snapshot.number()),
        other => format!("{other:?}"),
    }
}

/// The node of a cell, current or not.
pub(super) fn node_of<'a>(current: &'a mut Node, cells: &'a mut Cells, cell: u16) -> &'a mut Node {
    match &mut cells.others[usize::from(cell)] {
        Some((node, _)) => node,
        None => current,
    }
}

/// Mail from a gateway has numbers of drivers that there are not.
const FOREIGN: usize = 1000;
