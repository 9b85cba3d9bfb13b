//! Frames between cells, and what cells hear of each other's owners.

use broker::cells::frame::{Carried, Frame};
use broker::cells::gateway::{Gateway, Outgoing};
use broker::{Mail, Place, ShardId};

use super::{Cells, News, Sent, Way};
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
        let Some(cells) = &mut self.cells else { return };
        let Some(gateway) = cells.gateways.get_mut(&way) else { return };
        let mut out = Outgoing::default();
        does(gateway, &mut out);
        let (from_epoch, to_epoch) = (cells.epochs[usize::from(way.0)], gateway.epoch());
        for (_, frame) in out.frames {
            self.oracle.trace.note(|| format!("cell {} to {}: {}", way.0, way.1, shown(&frame)));
            let to_epoch = to_epoch.unwrap_or_default();
            cells.toll.frames += 1;
            cells.frames.entry(way).or_default().push_back(Sent { from_epoch, to_epoch, frame });
        }
        let node = node_of(&mut self.node, cells, way.0);
        for (shard, mail) in out.mail {
            node.mail.entry((FOREIGN + usize::from(way.1), shard)).or_default().push_back(mail);
        }
    }

    /// One frame arrives, or one cell hears of the owner of another.
    pub(crate) fn step_links(&mut self) -> Result<(), String> {
        let Some(cells) = &mut self.cells else { return Ok(()) };
        let with_news: Vec<Way> = cells.news.keys().copied().collect();
        if !with_news.is_empty() && cells.random.chance(10) {
            let way = with_news[cells.random.below(with_news.len())];
            return self.hear_news(way);
        }
        let is_free = |way: &&Way| !cells.held.contains(way);
        let ways: Vec<Way> = cells.frames.keys().filter(is_free).copied().collect();
        if ways.is_empty() {
            return Ok(());
        }
        let way = ways[cells.random.below(ways.len())];
        self.carry_frame(way)
    }

    /// All frames arrive and all news is heard, for once. True: there was something.
    pub(crate) fn work_links(&mut self) -> Result<bool, String> {
        let Some(cells) = &mut self.cells else { return Ok(false) };
        let news: Vec<Way> = cells.news.keys().copied().collect();
        let ways: Vec<Way> = cells.frames.keys().copied().collect();
        cells.held.clear();
        let has_worked = !news.is_empty() || !ways.is_empty();
        for way in news {
            self.hear_news(way)?;
        }
        for way in ways {
            while self.cells.as_ref().is_some_and(|cells| cells.frames.contains_key(&way)) {
                self.carry_frame(way)?;
            }
        }
        Ok(has_worked)
    }

    fn carry_frame(&mut self, way: Way) -> Result<(), String> {
        let Some(cells) = &mut self.cells else { return Ok(()) };
        let Some(queue) = cells.frames.get_mut(&way) else { return Ok(()) };
        let sent = queue.pop_front();
        if queue.is_empty() {
            cells.frames.remove(&way);
        }
        let Some(Sent { from_epoch, to_epoch, frame }) = sent else { return Ok(()) };
        let back = (way.1, way.0);
        let Some(gateway) = cells.gateways.get(&back) else {
            cells.toll.frames_late += 1;
            return Ok(());
        };
        let known = gateway.epoch();
        // An owner whose lease is over is no owner, whatever it sends.
        let is_over = known.is_none() && gateway.last_epoch() >= from_epoch;
        let is_late = is_over || gateway.last_epoch() > from_epoch;
        if is_late || to_epoch != cells.epoch(way.1) {
            cells.toll.frames_late += 1;
            return Ok(());
        }
        if known != Some(from_epoch) {
            cells.toll.found_by_frames += u64::from(known.is_some());
            self.with_gateway(back, |gateway, out| gateway.peer_changed(from_epoch, out));
        }
        let node = node_of(&mut self.node, self.cells.as_mut().expect("cells"), way.1);
        let place = node.shared.homes.place_of_cell(way.0);
        self.with_gateway(back, |gateway, out| gateway.on_frame(frame.arrived(place), out));
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
        let ways: Vec<Way> =
            self.cells.iter().flat_map(|cells| cells.gateways.keys().copied()).collect();
        for way in ways {
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
