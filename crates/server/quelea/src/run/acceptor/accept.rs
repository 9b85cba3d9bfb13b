//! Accepts connections, limited by rate and memory, and distributes them to the acceptors.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mio::{Interest, Token};
use net::Handshake;

use super::arrival::{Arrival, Stage, ip, origin_of};
use super::mailbox::AcceptorItem;
use super::{Acceptor, BANNED};
use crate::life_cycle::line_pace::About;
use crate::run::limiter::{Listener, TurnedAway};
use identity::auth::bans::Visitor;

/// Connections that are not admitted yet, per acceptor. At the limit the acceptor accepts no more
/// until some are admitted or closed; the others wait in the kernel's backlog.
const ARRIVALS_MAX: usize = 20_000;

/// Connections accepted in a row before the events of accepted ones are handled.
const ACCEPTS_PER_TURN: usize = 256;

/// How long accepting pauses when the process has no descriptor left.
const EXHAUSTED_MS: u64 = 100;

/// How long accepting pauses when the limits of connections that are not admitted are reached.
const CROWDED_MS: u64 = 20;

/// Memory of a connection before its first byte: itself, its socket, and with TLS the buffers of a
/// handshake.
const ARRIVAL_BYTES: u64 = 4 * 1024;

const LAYERED_ARRIVAL_BYTES: u64 = 40 * 1024;

impl Acceptor {
    /// Accepts waiting connections until a limit of rate or memory is reached.
    pub(super) fn accept(&mut self) {
        if self.now_ms < self.accepts_at_ms {
            return;
        }
        for number in std::mem::take(&mut self.ready.0) {
            for turn in 0.. {
                if self.arrivals.len() >= ARRIVALS_MAX || self.context.allowance.is_full() {
                    self.accepts_at_ms = self.now_ms + CROWDED_MS;
                    self.ready.insert(number);
                    break;
                }
                if turn == ACCEPTS_PER_TURN {
                    self.ready.insert(number);
                    break;
                }
                if !self.accept_one(number) {
                    break;
                }
            }
        }
    }

    /// False: no more from this listener for now.
    fn accept_one(&mut self, number: usize) -> bool {
        let Some((bound, bucket)) = self.listeners.get_mut(number) else { return false };
        let handshake = match bound.socket.accept() {
            Ok(Some(handshake)) => handshake,
            Ok(None) => return false,
            Err(error) => {
                if self.exhaustion.is_due(self.now_ms) {
                    tracing::warn!(
                        listener = bound.listener.name,
                        %error,
                        "cannot accept connections; raise the limit of open files (ulimit -n)"
                    );
                }
                self.accepts_at_ms = self.now_ms + EXHAUSTED_MS;
                self.ready.insert(number);
                return false;
            }
        };
        let listener = bound.listener.clone();
        listener.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let now_ms = self.now_ms;
        let own = bucket.as_mut().and_then(|bucket| bucket.take(1, now_ms));
        let all = self.bucket.as_mut().and_then(|bucket| bucket.take(1, now_ms));
        self.next_acceptor = (self.next_acceptor + 1) % self.acceptors.len();
        let mailbox = &self.acceptors[self.next_acceptor];
        if Arc::ptr_eq(mailbox, &self.mailbox) {
            self.welcome(handshake, listener);
        } else {
            mailbox.put(AcceptorItem::Accepted(handshake, listener));
        }
        if let Some(until_ms) = own.max(all) {
            self.accepts_at_ms = until_ms;
            self.ready.insert(number);
            return false;
        }
        true
    }

    pub(super) fn welcome(&mut self, handshake: Handshake, listener: Arc<Listener>) {
        if listener.counts.is_paused.load(Ordering::Relaxed) {
            return listener.counts.turn_away(TurnedAway::Paused);
        }
        let address = ip(&handshake.peer().address);
        let visitor = Visitor { address, ..Visitor::default() };
        if listener.limiter.bans.keeps_out(visitor, self.context.clock.wall_secs()) {
            listener.counts.turn_away(TurnedAway::Banned);
            if self.may_log(About::Refused, address, "-", BANNED) {
                let peer = handshake.peer().address;
                tracing::info!(address = %peer, listener = listener.name, "connection refused: the address \
                is banned");
            }
            return;
        }
        let entry = self.arrivals.vacant_entry();
        let key = entry.key();
        self.generation += 1;
        let deadline_ms = self.now_ms + self.context.connect_timeout_ms;
        self.deadlines.push_back((deadline_ms, key, self.generation));
        let permit = listener.acquire();
        let bytes = if listener.has_layers { LAYERED_ARRIVAL_BYTES } else { ARRIVAL_BYTES };
        let charge = self.context.allowance.begin(origin_of(&handshake.peer().address), bytes);
        entry.insert(Arrival {
            stage: Stage::Handshake(Box::new(handshake)),
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

    /// Watches a connection that has to wait. What came since it was last read makes an event.
    pub(super) fn watch(&mut self, key: usize) {
        // One that came back to the listeners meanwhile is watched already.
        let Some(arrival) = self.arrivals.get_mut(key).filter(|it| !it.is_watched) else { return };
        let Some(source) = arrival.stage.source() else { return };
        let interests = Interest::READABLE | Interest::WRITABLE;
        match self.poll.registry().register(source, Token(key), interests) {
            Ok(()) => arrival.is_watched = true,
            Err(error) => {
                tracing::warn!(%error, "connection closed: cannot register its socket");
                self.turn_away(key, TurnedAway::Resources);
            }
        }
    }
}
