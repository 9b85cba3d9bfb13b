//! A node whose clients are for cells: from its listeners to the acceptors of a cell, here or on
//! another node.

use std::time::Duration;

use broker::admission::Credentials;
use codec::Reason;
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

const NO_OWNER: &str = "no node has the cell of this client at present; try again";

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
        let Some(arrival) = self.arrivals.get(key) else { return };
        if arrival.permit.is_none() {
            let refusal = refusal(credentials, Reason::SERVER_BUSY, "", "connection limit reached");
            return self.refuse_connect(key, stream, credentials, &refusal);
        }
        let request = &credentials.request;
        let client_id = (!request.is_assigned).then_some(&*request.client_id);
        let Some(way) = entrance.way(client_id) else {
            return self.wait_for_owner(key, (stream, peer, bytes), credentials);
        };
        let Some(mut arrival) = self.arrivals.try_remove(key) else { return };
        let mut stream = stream;
        if arrival.is_watched && self.poll.registry().deregister(&mut stream).is_err() {
            return arrival.listener.counts.turn_away(TurnedAway::Resources);
        }
        let (listener, permit) = (arrival.listener.clone(), arrival.permit.take());
        let entered = Entered { stream, peer, bytes, listener, permit };
        match way {
            Way::Here(acceptor) => acceptor.put(AcceptorItem::Entered(Box::new(entered))),
            Way::There(relay) => {
                if let Err(Homeless(Entered { stream, peer, bytes, permit, .. })) =
                    relay.begin(entered)
                {
                    arrival.permit = permit;
                    self.put_back(arrival, (stream, peer, bytes), credentials);
                }
            }
        }
    }

    /// The link to the node of its cell ended just now.
    fn put_back(
        &mut self,
        mut arrival: Arrival,
        (stream, peer, bytes): (Stream, Box<PeerInfo>, Vec<u8>),
        credentials: &Credentials,
    ) {
        self.generation += 1;
        arrival.generation = self.generation;
        arrival.is_watched = false;
        let deadline_ms = self.now_ms + self.context.connect_timeout_ms;
        let key = self.arrivals.insert(arrival);
        self.deadlines.push_back((deadline_ms, key, self.generation));
        self.wait_for_owner(key, (stream, peer, bytes), credentials);
        self.watch(key);
    }

    fn wait_for_owner(
        &mut self,
        key: usize,
        (stream, peer, bytes): (Stream, Box<PeerInfo>, Vec<u8>),
        credentials: &Credentials,
    ) {
        let now_ms = self.now_ms;
        let Some(arrival) = self.arrivals.get_mut(key) else { return };
        let since_ms = *arrival.homeless_since_ms.get_or_insert(now_ms);
        if now_ms >= since_ms + HOMELESS_MS_MAX {
            let refusal = refusal(credentials, Reason::SERVER_UNAVAILABLE, "", NO_OWNER);
            return self.refuse_connect(key, stream, credentials, &refusal);
        }
        arrival.stage = Stage::Connect { stream, peer, bytes };
        let generation = arrival.generation;
        self.homeless.insert((key, generation));
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

    /// An acceptor of a cell goes on where a listener of this node or of another one stopped.
    pub(super) fn welcome_entered(&mut self, entered: Entered) {
        let Entered { stream, peer, bytes, listener, permit } = entered;
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
            homeless_since_ms: None,
        });
        self.advance(key);
        self.watch(key);
    }
}
