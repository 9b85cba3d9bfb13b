//! Into a driver: from other drivers, from those who admit connections, and from those who steer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use broker::{Command, ConnectRequest, Mail, Rules, Scope, ShardId};
use session::Message;
use storage::Completion;

use super::host::{Host, Waker};

/// A connection that was admitted.
pub struct Handover<H: Host> {
    pub socket: H::Socket,
    pub shard: ShardId,
    pub request: ConnectRequest,
    /// Bytes that came after the CONNECT.
    pub rest: Vec<u8>,
    pub permit: H::Permit,
    /// What it takes until it is opened.
    pub charge: H::Charge,
}

/// What an operator asks of a shard.
pub struct Asked<A> {
    pub shard: ShardId,
    /// What it is about.
    pub scope: Scope,
    pub command: Command,
    /// Dropped: there will be none.
    pub answer: A,
}

/// One thing for a driver to do.
pub enum Item<H: Host> {
    /// Mail for one of its shards, in order.
    Mail(ShardId, Vec<Mail>),
    Connection(Box<Handover<H>>),
    Command(Box<Asked<H::Asker>>),
    /// Publish a message of the broker's own through this shard.
    Publish(ShardId, Message),
    Access(Rules),
    /// The disk of this shard's journal has carried out a command.
    Disk(ShardId, Box<Completion>),
    /// The journal of this shard is to do without its segments up to this one.
    RenewLog(ShardId, u32),
    /// There is not enough memory: look who holds it.
    MemoryLook,
    /// Close everything; then end, or wait for `CloseJournals` where there are journals.
    Shutdown,
    /// Nobody sends mail any more: write what is left, then end.
    CloseJournals,
    /// The right to act is lost: end at once, without a byte to anybody.
    Abandon,
    /// For the host.
    Order(H::Order),
}

/// A driver's mailbox. Putting costs a short lock, and wakes the driver only if it sleeps.
///
/// Its length is bounded by its senders: shards mail messages of publishers only as far as the
/// other shard has dealt with what it got (`broker`, credit windows), and all else in answer to
/// something.
pub struct Mailbox<H: Host> {
    items: Mutex<Vec<Item<H>>>,
    has_items: AtomicBool,
    is_asleep: AtomicBool,
    waker: H::Waker,
}

impl<H: Host> Mailbox<H> {
    pub fn new(waker: H::Waker) -> Self {
        Self {
            items: Mutex::default(),
            has_items: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            waker,
        }
    }

    pub fn put(&self, item: Item<H>) {
        self.put_all([item]);
    }

    /// Puts several at once: they wake the driver once.
    pub fn put_all(&self, items: impl IntoIterator<Item = Item<H>>) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).extend(items);
        self.has_items.store(true, Ordering::SeqCst);
        self.nudge();
    }

    /// Wakes whoever sleeps on it.
    pub fn nudge(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Is there something to take? A plain load: cheap enough to ask before each connection.
    pub fn has_items(&self) -> bool {
        self.has_items.load(Ordering::Acquire)
    }

    pub fn take(&self) -> Vec<Item<H>> {
        self.has_items.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Announces sleep. False if there is something to take, so do not sleep.
    pub fn fall_asleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        !self.has_items.load(Ordering::SeqCst)
    }

    pub fn wake_up(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}
