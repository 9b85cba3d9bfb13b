//! What other threads ask of the thread of the relays, in their order.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use links::{Sender, Violation};
use mio::Waker;

use crate::permits::Permit;
use crate::relays::Client;
use crate::wire::{FRAME_COST, Frame};

/// A connection of a link. It is never used again for another one.
pub(crate) type LinkId = u64;

pub(crate) enum Item {
    Connected { id: LinkId, lane: u8, version: u8, sender: Sender },
    Packet { id: LinkId, number: u64, route: (u16, u64), frame: Frame },
    Room(LinkId),
    Lost(LinkId),
    Begin(Begin),
    Epoch { cell: u16, epoch: Option<u64> },
    Stop,
}

/// A client that is to be relayed.
pub(crate) struct Begin {
    pub(crate) id: LinkId,
    pub(crate) cell: u16,
    pub(crate) epoch: u64,
    pub(crate) client: Client,
    pub(crate) permit: Permit,
}

pub(crate) struct Inbox {
    state: Mutex<State>,
    waker: Waker,
    /// Of one connection. Policy: it is closed.
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    /// The connections of each node.
    nodes: HashMap<String, Vec<Lane>>,
    last_id: LinkId,
    turn: usize,
    /// The thread takes no more.
    is_stopped: bool,
}

struct Lane {
    lane: u8,
    id: LinkId,
    /// Of its packets among the items.
    bytes: usize,
}

impl Inbox {
    pub(crate) fn new(waker: Waker, bytes_max: usize) -> Self {
        Self { state: Mutex::default(), waker, bytes_max }
    }

    pub(crate) fn put(&self, item: Item) {
        self.put_into(&mut self.state(), item);
    }

    /// The last item.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        self.put_into(&mut state, Item::Stop);
        state.is_stopped = true;
        state.nodes = HashMap::new();
    }

    /// All that came. The connections may bring as much again.
    pub(crate) fn take(&self) -> Vec<Item> {
        let mut state = self.state();
        state.nodes.values_mut().flatten().for_each(|lane| lane.bytes = 0);
        mem::take(&mut state.items)
    }

    pub(crate) fn connect(&self, node: String, lane: u8, version: u8, sender: Sender) {
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        if state.is_stopped {
            return;
        }
        state.nodes.entry(node).or_default().push(Lane { lane, id, bytes: 0 });
        self.put_into(&mut state, Item::Connected { id, lane, version, sender });
    }

    pub(crate) fn disconnect(&self, node: &str, lane: u8) {
        let mut state = self.state();
        let Some(lanes) = state.nodes.get_mut(node) else { return };
        let Some(at) = lanes.iter().position(|it| it.lane == lane) else { return };
        let id = lanes.swap_remove(at).id;
        if lanes.is_empty() {
            state.nodes.remove(node);
        }
        self.put_into(&mut state, Item::Lost(id));
    }

    pub(crate) fn on_room(&self, node: &str, lane: u8) {
        let mut state = self.state();
        let Some(id) = state.lane(node, lane).map(|it| it.id) else { return };
        self.put_into(&mut state, Item::Room(id));
    }

    /// `bytes`: of the frame.
    pub(crate) fn put_packet(
        &self,
        (node, lane): (&str, u8),
        (number, route): (u64, (u16, u64)),
        (frame, bytes): (Frame, usize),
    ) -> Result<(), Violation> {
        let mut state = self.state();
        // It was reported before its first packet.
        let Some(of) = state.lane(node, lane) else { return Ok(()) };
        let (id, all) = (of.id, of.bytes + bytes + FRAME_COST as usize);
        if all > self.bytes_max {
            let bytes_max = self.bytes_max;
            return Err(Violation(format!("more than {bytes_max} bytes of relays wait")));
        }
        of.bytes = all;
        self.put_into(&mut state, Item::Packet { id, number, route, frame });
        Ok(())
    }

    /// Some: there is no connection with this node, or the relays have stopped.
    pub(crate) fn begin(
        &self,
        node: &str,
        (cell, epoch): (u16, u64),
        (client, permit): (Client, Permit),
    ) -> Option<Client> {
        let mut state = self.state();
        state.turn = state.turn.wrapping_add(1);
        let turn = state.turn;
        let Some(lanes) = state.nodes.get(node) else { return Some(client) };
        let id = lanes[turn % lanes.len()].id;
        self.put_into(&mut state, Item::Begin(Begin { id, cell, epoch, client, permit }));
        None
    }

    fn put_into(&self, state: &mut State, item: Item) {
        if state.is_stopped {
            return;
        }
        if state.items.is_empty() {
            // It fails only if the counter is full, and then the thread is about to wake.
            let _ = self.waker.wake();
        }
        state.items.push(item);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lane(&mut self, node: &str, lane: u8) -> Option<&mut Lane> {
        self.nodes.get_mut(node)?.iter_mut().find(|it| it.lane == lane)
    }
}
