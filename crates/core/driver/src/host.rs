//! What a driver stands on, beside its shards: a clock, sockets, disks, and the receivers of
//! what happens and asked what to do. The threads of the server are one host, the simulator is the
//! other.

use std::io;
use std::time::{Duration, Instant};

use broker::streams::StreamNews;
use broker::{
    AccessQuestion, Answer, Close, ConnectRequest, Event, Mail, Name, Place, Reauthenticate,
    Reauthenticated, Scope, Shard, ShardId, Span, Traced,
};
use codec::Reason;

use super::shards::Shards;
use super::socket::Socket;

/// Wakes who sleeps on a mailbox.
pub trait Waker {
    fn wake(&self);
}

pub trait Host {
    type Socket: Socket;
    /// Held as long as a connection is there: its place within the limits.
    type Permit;
    /// Held until a connection is opened: what it takes before.
    type Charge;
    type Waker: Waker;
    /// Who waits for the answer to a command.
    type Asker;
    /// What a mailbox brings of which the driver knows nothing.
    type Order;

    fn now(&self) -> Instant;

    /// Broker time.
    fn ms_at(&self, time: Instant) -> u64;

    /// A turn has taken so long.
    fn note_turn(&mut self, took: Duration);

    /// From now on edges of the socket are reported by this key.
    fn watch(&mut self, socket: &mut Self::Socket, key: usize) -> io::Result<()>;

    /// Why a client that was admitted is not let in after all, if it is not.
    fn refuses(&self, request: &ConnectRequest) -> Option<Reason>;

    /// A shard has let a client in, as its session is its own or nobody's. `username`: as proved.
    fn on_let_in(&mut self, client: Name<'_>, username: Option<&str>);

    /// A connection that was admitted cannot be taken over from who admitted it: it is closed.
    fn on_untaken(&mut self, client_id: &str, error: &io::Error);

    fn on_event(&mut self, shard: &mut Shard, scope: Scope, event: &Event, now_ms: u64);

    fn reauthenticate(&mut self, shard: ShardId, ask: &Reauthenticate) -> Reauthenticated;

    /// A client waits for the word of the authorization service: ask it, and give its answer to
    /// [`Shard::on_verdict`]. There is one, whatever happens, or the client waits for ever.
    fn authorize(&mut self, shard: ShardId, question: AccessQuestion);

    /// Packets that operators look at. A host may have nobody who does.
    fn on_traced(&mut self, traced: Vec<Traced>) {
        drop(traced);
    }

    /// Spans of messages, and the number of those that were left out. A host may have nobody who
    /// takes them.
    fn on_spans(&mut self, spans: Vec<Span>, lost: u64) {
        drop((spans, lost));
    }

    /// What a shard reports of streams, in its order. A host may have no streams.
    fn on_streams(&mut self, shard: ShardId, news: Vec<StreamNews>) {
        drop((shard, news));
    }

    /// What a shard mails to another cell, in its order. A host may know of no other cell.
    fn on_mail_for_cell(&mut self, from: ShardId, to: Place, mails: Vec<Mail>) {
        drop((from, to, mails));
    }

    /// A shard has ended a connection, and what went with it ends, too.
    fn on_close(&mut self, shard: ShardId, close: &Close);

    /// Called after all that led to bytes for a client, or to an answer, and before these leave.
    /// Where the right to act depends on a lease it returns when that is held, however long it
    /// takes. False: the right is lost, and nothing may leave any more.
    #[must_use]
    fn await_lease(&self) -> bool {
        true
    }

    /// Nobody waits for the answer any more.
    fn has_gone(&self, asker: &Self::Asker) -> bool;

    fn answer(&mut self, asker: Self::Asker, answer: Answer);

    fn on_order(&mut self, order: Self::Order, shards: &mut Shards, now_ms: u64);

    /// Hands over what the disks have to do, of the shards that are marked. At the end of a turn,
    /// and once before the first. True: the host has written something itself, so shards may have
    /// answers for clients.
    fn drive_journals(&mut self, shards: &mut Shards, now_ms: u64) -> bool;

    /// When it wants to be asked to do so, should nothing else happen.
    fn journals_deadline_ms(&self) -> Option<u64>;

    /// No connection is left after the order to stop. True: no journal has anything left to write.
    fn have_journals_ended(&mut self) -> bool;
}
