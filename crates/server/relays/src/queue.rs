//! What other threads ask of the relays, in their order.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use links::Bell;

use crate::permits::Permit;
use crate::relays::Client;

/// A connection of a link. It is never used again for another one.
pub(crate) type LinkId = u64;

pub(crate) enum Item {
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

/// Clients in it have a permit each. All else comes from the host.
pub(crate) struct Queue {
    state: Mutex<State>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    /// The connections of each node.
    nodes: HashMap<String, Vec<LinkId>>,
    turn: usize,
    /// Nothing more is taken.
    is_stopped: bool,
}

impl Queue {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self { state: Mutex::default(), bell }
    }

    pub(crate) fn put(&self, item: Item) {
        self.put_into(self.state(), item);
    }

    /// The last item.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.nodes = HashMap::new();
        if !mem::replace(&mut state.is_stopped, true) {
            state.items.push(Item::Stop);
            drop(state);
            self.bell.ring();
        }
    }

    /// All that came.
    pub(crate) fn take(&self) -> Vec<Item> {
        mem::take(&mut self.state().items)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().items.is_empty()
    }

    /// The connections that the node has now.
    pub(crate) fn set_links(&self, node: &str, links: Vec<LinkId>) {
        let mut state = self.state();
        match links.is_empty() || state.is_stopped {
            true => state.nodes.remove(node),
            false => state.nodes.insert(node.to_owned(), links),
        };
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
        let Some(links) = state.nodes.get(node) else { return Some(client) };
        let id = links[turn % links.len()];
        self.put_into(state, Item::Begin(Begin { id, cell, epoch, client, permit }));
        None
    }

    fn put_into(&self, mut state: MutexGuard<'_, State>, item: Item) {
        if state.is_stopped {
            return;
        }
        state.items.push(item);
        drop(state);
        self.bell.ring();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
