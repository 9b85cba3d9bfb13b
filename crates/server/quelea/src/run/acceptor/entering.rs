//! A node whose clients are for cells: from its listeners to the acceptors of a cell, here or on
//! another node.

use std::time::Duration;

use broker::ConnectRequest;
use broker::admission::{self, Credentials, Refusal};
use codec::{Reason, Version};
use net::{PeerInfo, Stream};

use super::arrival::{Arrival, Stage, origin_of, refusal};
use super::mailbox::{AcceptorItem, Entered};
use super::{Acceptor, ENTERED_BYTES};
use crate::run::cells::{Homeless, Way};
use crate::run::limiter::TurnedAway;

/// How often it is looked whether cells of clients that wait have an owner.
pub(super) const ENTER_INTERVAL: Duration = Duration::from_millis(100);

/// The same if no cell has another owner than before.
const AGAIN_MS: u64 = 500;

/// How long it does. A planned move of a cell is shorter.
const HOMELESS_MS_MAX: u64 = 5000;

const OTHER_NODE: &str = "another node has the cell of this client";

const NO_OWNER: &str = "no node has the cell of this client at present; try again";

/// MQTT 5, section 4.11: the client shall use the node that has its cell.
fn redirection(request: &ConnectRequest, address: &str) -> Refusal {
    let reason = Reason::USE_ANOTHER_SERVER;
    let answer = admission::refer(request, reason, Some(address), OTHER_NODE);
    Refusal { reason, answer, clause: "", detail: OTHER_NODE }
}

impl Acceptor {
    /// The client goes on where the home of its session is. Whatever decides about it is asked
    /// there.
    pub(super) fn enter(
        &mut self,
        key: usize,
        (stream, peer, bytes): (Stream, Box<PeerInfo>, Vec<u8>),
        credentials: &Credentials,
    ) {
        let Some(entrance) = self.context.entrance.clone() else { return };
        let now_ms = self.now_ms;
        let Some(arrival) = self.arrivals.get(key) else { return };
        let is_over = |since_ms| now_ms >= since_ms + HOMELESS_MS_MAX;
        let refused = if arrival.permit.is_none() {
            Some((Reason::SERVER_BUSY, "connection limit reached"))
        } else {
            let is_over = arrival.homeless_since_ms.is_some_and(is_over);
            is_over.then_some((Reason::SERVER_UNAVAILABLE, NO_OWNER))
        };
        if let Some((reason, detail)) = refused {
            let refusal = refusal(credentials, reason, "", detail);
            return self.refuse_connect(key, stream, credentials, &refusal);
        }
        let request = &credentials.request;
        let client_id = (!request.is_assigned).then_some(&*request.client_id);
        let may_redirect = client_id.filter(|_| request.version == Version::V5);
        if let Some(address) = may_redirect.and_then(|client_id| entrance.redirect(client_id)) {
            let refusal = redirection(request, &address);
            return self.refuse_connect(key, stream, credentials, &refusal);
        }
        match entrance.way(client_id) {
            Some(way) => self.go(key, (stream, peer, bytes), &way),
            None => self.wait_for_owner(key, Stage::Connect { stream, peer, bytes }),
        }
    }

    fn go(
        &mut self,
        key: usize,
        (mut stream, peer, bytes): (Stream, Box<PeerInfo>, Vec<u8>),
        way: &Way,
    ) {
        let Some(mut arrival) = self.arrivals.try_remove(key) else { return };
        if arrival.is_watched && self.poll.registry().deregister(&mut stream).is_err() {
            return arrival.listener.counts.turn_away(TurnedAway::Resources);
        }
        let (listener, permit) = (arrival.listener.clone(), arrival.permit.take());
        let homeless_since_ms = arrival.homeless_since_ms;
        let entered = Entered { stream, peer, bytes, listener, permit, homeless_since_ms };
        match way {
            Way::Here(acceptor) => {
                let entered = Entered { homeless_since_ms: None, ..entered };
                acceptor.put(AcceptorItem::Entered(Box::new(entered)));
            }
            Way::There(relay) => {
                // The link to the node has ended just now.
                if let Err(Homeless(entered)) = relay.begin(entered) {
                    self.come_back(entered);
                }
            }
        }
    }

    /// A client that could not go on waits at the listeners.
    fn come_back(&mut self, entered: Entered) {
        let since_ms = entered.homeless_since_ms;
        let key = self.insert_entered(entered);
        let now_ms = self.now_ms;
        if let Some(arrival) = self.arrivals.get_mut(key) {
            arrival.homeless_since_ms = Some(since_ms.unwrap_or(now_ms));
            self.homeless.insert((key, arrival.generation));
        }
        self.watch(key);
    }

    fn wait_for_owner(&mut self, key: usize, stage: Stage) {
        let now_ms = self.now_ms;
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        arrival.homeless_since_ms.get_or_insert(now_ms);
        arrival.stage = stage;
        self.homeless.insert((key, arrival.generation));
    }

    /// Those whose cell no node had try again, once something has changed, and to be refused.
    pub(super) fn enter_again(&mut self) {
        let Some(entrance) = &self.context.entrance else { return };
        let version = entrance.version();
        let is_due = self.now_ms >= self.entered_again.1 + AGAIN_MS;
        if self.homeless.is_empty() || version == self.entered_again.0 && !is_due {
            return;
        }
        self.entered_again = (version, self.now_ms);
        for (key, generation) in std::mem::take(&mut self.homeless) {
            let is_same = |arrival: &&Arrival| arrival.generation == generation;
            if self.arrivals.get(key).filter(is_same).is_some() {
                self.advance(key);
            }
        }
    }

    /// A client of a cell, or one that comes back to the listeners.
    pub(super) fn welcome_entered(&mut self, entered: Entered) {
        if self.context.entrance.is_some() {
            return self.come_back(entered);
        }
        let key = self.insert_entered(entered);
        self.advance(key);
        self.watch(key);
    }

    fn insert_entered(&mut self, entered: Entered) -> usize {
        let Entered { stream, peer, bytes, listener, permit, homeless_since_ms } = entered;
        let entry = self.arrivals.vacant_entry();
        let key = entry.key();
        self.generation += 1;
        let deadline_ms = self.now_ms + self.context.connect_timeout_ms;
        self.deadlines.push_back((deadline_ms, key, self.generation));
        let charged = ENTERED_BYTES + bytes.len() as u64;
        let charge = self.context.allowance.begin(origin_of(&peer.address), charged);
        entry.insert(Arrival {
            stage: Stage::Connect { stream, peer, bytes },
            listener,
            permit,
            generation: self.generation,
            is_watched: false,
            charge,
            host: None,
            homeless_since_ms,
        });
        key
    }
}
