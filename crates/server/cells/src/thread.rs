//! The thread of the cells: takes what happens, and lets time pass.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broker::{Mail, Place, ShardId};
use links::{Envelope, Sender, Violation};

use crate::figures::Figures;
use crate::handle::{Facts, Owner, lock};
use crate::inbox::Inbox;
use crate::own::Own;
use crate::way::{Link, Links, Ways};

pub(crate) enum Command {
    Open(Box<Own>),
    Close { cell: u16, epoch: u64 },
    OwnerChanged { cell: u16, owner: Option<Owner> },
    Post { cell: u16, epoch: u64, from: ShardId, to: Place, mails: Vec<Mail> },
    Lapse { cell: u16, epoch: u64 },
    Connected { inbox: Arc<Inbox>, version: u8, sender: Sender },
    Envelope { inbox: Arc<Inbox>, envelope: Envelope<'static> },
    Room { node: String, lane: u8 },
    Lost { inbox: Arc<Inbox> },
}

pub(crate) struct Thread {
    node: String,
    commands: Receiver<Command>,
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

impl Thread {
    pub(crate) fn new(
        facts: &Facts,
        commands: Receiver<Command>,
        figures: Arc<Mutex<Vec<Figures>>>,
    ) -> Self {
        Self {
            node: facts.node.clone(),
            commands,
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

    /// Until nobody can send it anything.
    pub(crate) fn run(mut self) {
        while self.take_commands() {
            for _ in 0..COMMANDS_PER_FLUSH {
                let Some(envelope) = self.near.pop_front() else { break };
                let result = self.on_envelope(None, envelope);
                debug_assert_eq!(result, Ok(()), "cells of one program understand each other");
            }
            self.on_time(Instant::now());
            self.flush();
        }
    }

    /// False: the end.
    fn take_commands(&mut self) -> bool {
        let mut next = match self.commands.recv_timeout(self.wait()) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        };
        let mut left = COMMANDS_PER_FLUSH;
        while let Some(command) = next {
            self.is_busy = true;
            self.on_command(command);
            left -= 1;
            next = if left > 0 { self.commands.try_recv().ok() } else { None };
        }
        true
    }

    /// Until something is due.
    fn wait(&self) -> Duration {
        if !self.near.is_empty() {
            return Duration::ZERO;
        }
        let due = [Some(self.tick_at()), self.acknowledges].into_iter().flatten().min();
        due.map_or(TICK_IDLE, |due| due.saturating_duration_since(Instant::now()))
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
            Command::Connected { inbox, version, sender } => {
                let (node, lane) = (Arc::clone(&inbox.node), inbox.lane);
                let link = Link { inbox, version, sender };
                self.links.entry(node.as_ref().to_owned()).or_default().insert(lane, link);
                self.own.values_mut().for_each(|own| own.on_connected(&node, lane));
            }
            Command::Envelope { inbox, envelope } => self.on_far_envelope(&inbox, envelope),
            Command::Room { node, lane } => {
                self.own.values_mut().for_each(|own| own.on_room(&node, lane));
            }
            Command::Lost { inbox } => drop(self.take_link(&inbox)),
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
        let is_near = owner.is_some_and(|owner| owner.node == self.node);
        let links = owner.and_then(|owner| self.links.get(&owner.node));
        let has_link = |lane| links.is_some_and(|links| links.contains_key(&lane));
        own.set_owner(other, owner, |lane| is_near || has_link(lane));
    }

    fn on_far_envelope(&mut self, inbox: &Arc<Inbox>, envelope: Envelope<'static>) {
        inbox.take(&envelope);
        // The connection may have been given up for an earlier packet.
        if !self.has_link(inbox) {
            return;
        }
        let (from, to) = (envelope.route.from_cell, envelope.route.to_cell);
        if let Err(what) = self.on_envelope(Some(&inbox.node), envelope)
            && let Some(link) = self.take_link(inbox)
        {
            link.sender.close(Violation(format!("packet of cell {from} for cell {to}: {what}")));
        }
    }

    /// `node`: None for this one.
    fn on_envelope(&mut self, node: Option<&str>, envelope: Envelope<'_>) -> Result<(), String> {
        match self.own.get_mut(&envelope.route.to_cell) {
            Some(own) => own.on_envelope(node.unwrap_or(&self.node), envelope),
            None => Ok(()),
        }
    }

    fn has_link(&self, inbox: &Arc<Inbox>) -> bool {
        let link = self.links.get(&*inbox.node).and_then(|links| links.get(&inbox.lane));
        link.is_some_and(|link| Arc::ptr_eq(&link.inbox, inbox))
    }

    /// The connection is gone, or to be closed. None: it was known.
    fn take_link(&mut self, inbox: &Arc<Inbox>) -> Option<Link> {
        if !self.has_link(inbox) {
            return None;
        }
        self.own.values_mut().for_each(|own| own.on_lost(&inbox.node, inbox.lane));
        self.links.get_mut(&*inbox.node)?.remove(&inbox.lane)
    }

    fn own_of(&mut self, cell: u16, epoch: u64) -> Option<&mut Own> {
        self.own.get_mut(&cell).filter(|own| own.epoch() == epoch)
    }

    fn flush(&mut self) {
        let mut ways = Ways { node: &self.node, links: &self.links, near: &mut self.near };
        self.own.values_mut().for_each(|own| own.flush(&mut ways));
    }
}

/// Commands that are taken before mail is delivered and packets are sent.
const COMMANDS_PER_FLUSH: usize = 256;

/// Between two ticks of the gateways.
const TICK: Duration = Duration::from_millis(100);

/// The same if nothing waits and nothing has happened since the last one.
const TICK_IDLE: Duration = Duration::from_millis(500);

/// A frame is acknowledged after this time, unless others or an own frame have acknowledged it.
const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(20);
