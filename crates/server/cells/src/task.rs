//! What the thread of the links does for cells: takes what happens, and lets time pass.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broker::{Mail, Place, ShardId};
use links::{Envelope, Sender, Violation};

use crate::figures::Figures;
use crate::handle::{Facts, Owner, lock};
use crate::own::Own;
use crate::queue::Queue;
use crate::way::{Link, Links, Ways};

pub(crate) enum Command {
    Open(Box<Own>),
    Close { cell: u16, epoch: u64 },
    OwnerChanged { cell: u16, owner: Option<Owner> },
    Post { cell: u16, epoch: u64, from: ShardId, to: Place, mails: Vec<Mail> },
    Lapse { cell: u16, epoch: u64 },
}

/// The gateways of a node. The handler of its links owns them, and passes on what happens.
pub struct Task {
    facts: Facts,
    queue: Arc<Queue>,
    /// Taken from the queue.
    commands: VecDeque<Command>,
    figures: Arc<Mutex<Vec<Figures>>>,
    /// By cell.
    owners: BTreeMap<u16, Owner>,
    own: BTreeMap<u16, Own>,
    links: Links,
    /// Packets between cells of this node. Bounded by their lanes.
    near: VecDeque<Envelope<'static>>,
    ticked: Instant,
    is_busy: bool,
    /// When frames that have arrived are acknowledged.
    acknowledges: Option<Instant>,
}

impl Task {
    pub(crate) fn new(facts: &Facts, queue: Arc<Queue>, figures: Arc<Mutex<Vec<Figures>>>) -> Self {
        Self {
            facts: facts.clone(),
            queue,
            commands: VecDeque::new(),
            figures,
            owners: BTreeMap::new(),
            own: BTreeMap::new(),
            links: Links::new(),
            near: VecDeque::new(),
            ticked: Instant::now(),
            is_busy: false,
            acknowledges: None,
        }
    }

    /// The same of [`links::Handler`]. A connection that the link had before was lost.
    pub fn on_connected(&mut self, node: &str, lane: u8, version: u8, sender: Sender) {
        let link = Link { version, sender };
        self.links.entry(node.to_owned()).or_default().insert(lane, link);
        self.own.values_mut().for_each(|own| own.on_connected(node, lane));
    }

    /// The same of [`links::Handler`], of a packet between cells.
    ///
    /// # Errors
    ///
    /// No owner of a cell sends it.
    pub fn on_envelope(
        &mut self,
        node: &str,
        lane: u8,
        envelope: Envelope<'_>,
    ) -> Result<(), Violation> {
        let (route, cells) = (envelope.route, self.facts.cells);
        let (from, to) = (route.from_cell, route.to_cell);
        if route.lane != lane || lane >= self.facts.lanes {
            let meant = route.lane;
            return Err(Violation(format!("packet for connection {meant} on connection {lane}")));
        }
        if from >= cells || to >= cells || from == to {
            return Err(Violation(format!("packet of cell {from} for cell {to} of {cells} cells")));
        }
        self.is_busy = true;
        let Some(own) = self.own.get_mut(&to) else { return Ok(()) };
        let result = own.on_envelope(node, envelope);
        result.map_err(|what| Violation(format!("packet of cell {from} for cell {to}: {what}")))
    }

    /// The same of [`links::Handler`].
    pub fn on_room(&mut self, node: &str, lane: u8) {
        self.own.values_mut().for_each(|own| own.on_room(node, lane));
    }

    /// The same of [`links::Handler`].
    pub fn on_lost(&mut self, node: &str, lane: u8) {
        if let Some(links) = self.links.get_mut(node) {
            links.remove(&lane);
        }
        self.own.values_mut().for_each(|own| own.on_lost(node, lane));
    }

    /// The same of [`links::Handler`]: delivers and sends what is due.
    pub fn on_turn(&mut self) {
        self.take_commands();
        for _ in 0..COMMANDS_PER_TURN {
            let Some(envelope) = self.near.pop_front() else { break };
            if let Some(own) = self.own.get_mut(&envelope.route.to_cell) {
                let result = own.on_envelope(&self.facts.node, envelope);
                debug_assert_eq!(result, Ok(()), "cells of one program understand each other");
            }
        }
        self.on_time(Instant::now());
        let mut ways = Ways { node: &self.facts.node, links: &self.links, near: &mut self.near };
        self.own.values_mut().for_each(|own| own.flush(&mut ways));
    }

    /// The same of [`links::Handler`].
    pub fn wait(&self) -> Duration {
        if !self.near.is_empty() || !self.commands.is_empty() || !self.queue.is_empty() {
            return Duration::ZERO;
        }
        let due = [Some(self.tick_at()), self.acknowledges].into_iter().flatten().min();
        due.map_or(TICK_IDLE, |due| due.saturating_duration_since(Instant::now()))
    }

    fn take_commands(&mut self) {
        if self.commands.is_empty() {
            self.commands = self.queue.take();
        }
        for _ in 0..COMMANDS_PER_TURN {
            let Some(command) = self.commands.pop_front() else { break };
            self.is_busy = true;
            self.on_command(command);
        }
    }

    fn tick_at(&self) -> Instant {
        self.ticked + if self.is_busy { TICK } else { TICK_IDLE }
    }

    fn on_time(&mut self, now: Instant) {
        if self.acknowledges.is_some_and(|at| at <= now) {
            self.acknowledges = None;
            self.own.values_mut().for_each(Own::acknowledge);
        } else if self.acknowledges.is_none() && self.own.values().any(Own::has_unacknowledged) {
            self.acknowledges = Some(now + ACKNOWLEDGE_AFTER);
        }
        if self.tick_at() <= now {
            self.ticked = now;
            self.own.values_mut().for_each(Own::on_tick);
            self.is_busy = self.own.values().any(Own::is_busy);
            *lock(&self.figures) = self.own.values().flat_map(Own::figures).collect();
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Open(own) => self.on_open(*own),
            Command::Close { cell, epoch } => {
                if self.own.get(&cell).is_some_and(|own| own.epoch() == epoch) {
                    self.own.remove(&cell);
                }
            }
            Command::OwnerChanged { cell, owner } => self.on_owner(cell, owner),
            Command::Post { cell, epoch, from, to, mails } => {
                if let Some(own) = self.own_of(cell, epoch) {
                    own.on_mails(from, to, mails);
                }
            }
            Command::Lapse { cell, epoch } => {
                if let Some(own) = self.own_of(cell, epoch) {
                    own.on_lapse();
                }
            }
        }
    }

    fn on_open(&mut self, own: Own) {
        let cell = own.number();
        self.own.insert(cell, own);
        for other in self.owners.keys().copied().collect::<Vec<_>>() {
            self.tell_owner(cell, other);
        }
    }

    fn on_owner(&mut self, cell: u16, owner: Option<Owner>) {
        match owner {
            Some(owner) => self.owners.insert(cell, owner),
            None => self.owners.remove(&cell),
        };
        for own in self.own.keys().copied().collect::<Vec<_>>() {
            self.tell_owner(own, cell);
        }
    }

    /// An own cell hears who has another one.
    fn tell_owner(&mut self, own: u16, other: u16) {
        let Some(own) = self.own.get_mut(&own) else { return };
        let owner = self.owners.get(&other);
        let is_near = owner.is_some_and(|owner| owner.node == self.facts.node);
        let links = owner.and_then(|owner| self.links.get(&owner.node));
        let has_link = |lane| links.is_some_and(|links| links.contains_key(&lane));
        own.set_owner(other, owner, |lane| is_near || has_link(lane));
    }

    fn own_of(&mut self, cell: u16, epoch: u64) -> Option<&mut Own> {
        self.own.get_mut(&cell).filter(|own| own.epoch() == epoch)
    }
}

/// Commands, and packets between cells of this node, that are taken before mail is delivered and
/// packets are sent.
const COMMANDS_PER_TURN: usize = 256;

/// Between two ticks of the gateways.
const TICK: Duration = Duration::from_millis(100);

/// The same if nothing waits and nothing has happened since the last one.
const TICK_IDLE: Duration = Duration::from_millis(500);

/// A frame is acknowledged after this time, unless others or an own frame have acknowledged it.
const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(20);
