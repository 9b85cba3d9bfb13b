//! Into a worker: from other workers, the doors and the control plane.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use broker::{Answer, Command, ConnectRequest, Mail, Rules, Scope, ShardId};
use net::Stream;
use session::Message;
use storage::Completion;
use tokio::sync::oneshot;

use super::allowance::Charge;
use super::gate::Seat;
use crate::auth::bans::Lists;
use crate::origin::Origin;

/// A connection that the door has admitted.
pub(super) struct Handover {
    pub(super) stream: Stream,
    pub(super) shard: ShardId,
    pub(super) request: ConnectRequest,
    /// Bytes that came after the CONNECT.
    pub(super) rest: Vec<u8>,
    pub(super) seat: Seat,
    /// What it takes until it is opened.
    pub(super) charge: Charge<Origin>,
}

/// What an operator asks of a shard.
pub(crate) struct Asked {
    pub(crate) shard: ShardId,
    /// What it is about.
    pub(crate) scope: Scope,
    pub(crate) command: Command,
    /// Dropped: there will be none.
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// The log of a shard as it is pinned for a backup: segments, and bytes of each that belong to it;
/// and the manifest.
pub(super) struct Pinned {
    pub(super) shard: ShardId,
    pub(super) segments: Vec<(u32, u64)>,
    pub(super) manifest: Option<Vec<u8>>,
}

/// One thing for a worker to do.
pub(super) enum Item {
    /// Mail for one of its shards, in order.
    Mail(ShardId, Vec<Mail>),
    Connection(Box<Handover>),
    Command(Box<Asked>),
    /// Publish a message of the broker's own through this shard.
    Publish(ShardId, Message),
    Access(Rules),
    /// Keeps out who comes from a door that has not seen these bans. `ends`: the connections of
    /// those whom they mean end, too.
    Bans {
        listed: Arc<Lists>,
        ends: bool,
    },
    /// The disk of this shard's log has carried out a command.
    Disk(ShardId, Box<Completion>),
    /// Keep the files of all logs as they are until `Unpin`, and say which they are.
    Pin(Sender<Pinned>),
    Unpin,
    /// Give back what is free in the heap of the thread that drives it.
    Purge,
    /// There is not enough memory: look who holds it.
    MemoryLook,
    /// Close everything; then end, or wait for `CloseLogs` where there are logs.
    Shutdown,
    /// Nobody sends mail any more: write what is left, then end.
    CloseLogs,
}

/// A worker's mailbox. Putting costs a short lock, and a system call only if the worker sleeps.
///
/// Its length is bounded by its senders: shards mail messages of publishers only as far as the
/// other shard has dealt with what it got (`broker`, lanes), and all else in answer to something.
pub(super) struct Mailbox {
    items: Mutex<Vec<Item>>,
    has_items: AtomicBool,
    is_asleep: AtomicBool,
    waker: mio::Waker,
}

impl Mailbox {
    pub(super) fn new(waker: mio::Waker) -> Self {
        Self {
            items: Mutex::default(),
            has_items: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            waker,
        }
    }

    pub(super) fn put(&self, item: Item) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).push(item);
        self.has_items.store(true, Ordering::SeqCst);
        self.nudge();
    }

    /// Wakes whoever sleeps on it.
    pub(super) fn nudge(&self) {
        if self.is_asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake a worker");
        }
    }

    /// Is there something to take? A plain load: cheap enough to ask before each connection.
    pub(super) fn has_items(&self) -> bool {
        self.has_items.load(Ordering::Acquire)
    }

    pub(super) fn take(&self) -> Vec<Item> {
        self.has_items.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Announces sleep. False if there is something to take, so do not sleep.
    pub(super) fn fall_asleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        !self.has_items.load(Ordering::SeqCst)
    }

    pub(super) fn wake_up(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}
