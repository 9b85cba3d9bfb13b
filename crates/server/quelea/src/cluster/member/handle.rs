//! How other threads reach the thread of a member, and what they hear of it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use broker::ShardId;
use session::Message;
use storage::{Command, Completion};
use tokio::sync::mpsc;

use crate::cluster::End;
use crate::cluster::acting::{Acting, boot_ms};
use crate::cluster::changes::Notifier;
use crate::cluster::copy::{PinnedCopy, TakenJournal};
use crate::cluster::figures::{ClusterFigures, Counts};
use crate::cluster::files::PutFile;
use crate::cluster::stream_files::ClusterStreamFiles;
use crate::cluster::talk::Status;
use crate::run::StreamsHandle;

/// What others ask of the member's thread.
pub(crate) enum Order {
    /// A command of a shard's journal, and how many of its bytes are live. Each journal bounds how
    /// many are under way.
    Submit(ShardId, Command, u64),
    /// From now on the inputs of the shard's journal go there.
    Attach(ShardId, Hear),
    /// The journals are closed: give the role back, to this node if one is named.
    Release(Option<String>),
    PutFile(PutFile),
    /// Keep the files of all copies as they are, and say which they are.
    Pin(Sender<io::Result<Vec<PinnedCopy>>>),
    /// The backup is done. False: the files did not stay as they were.
    Unpin(Sender<bool>),
    /// Clients are served, and signals end the broker in order.
    Serving,
}

/// An input of a journal from the cluster.
pub(crate) enum JournalInput {
    Done(Completion),
    /// It is to do without its segments up to this one.
    Renew(u32),
}

pub(crate) type Hear = Box<dyn Fn(JournalInput) + Send>;

/// What the start of the broker waits for.
pub(crate) enum Turn {
    /// This node is active: the journals as they are now.
    Active {
        epoch: u64,
        journals: Vec<TakenJournal>,
    },
    Released,
    /// The process is to end; or the cell, which another node is to have.
    Stop,
    /// Files are to be read again (SIGHUP).
    Reload,
    /// Files of access rules have changed. To a cell.
    ReloadRules,
    /// The role is lost, or cannot be filled: the thread of the member has ended.
    Ended(End),
}

/// How other threads reach the member's thread.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) acting: Acting,
    /// To whom a switchover goes.
    pub(crate) successor: Successor,
    /// Who hears what changes.
    pub(crate) notifier: Notifier,
    /// None: the cluster has no stream for the files of MQTT streams.
    pub(crate) stream_files: Option<ClusterStreamFiles>,
    /// The owner of streams, once this node serves and has some.
    pub(crate) streams: Arc<OnceLock<StreamsHandle>>,
    pub(super) counts: Arc<Counts>,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) view: Arc<Mutex<Status>>,
    pub(super) is_stopping: Arc<AtomicBool>,
    /// Who has the role, and who hears of it.
    pub(super) owners: OwnerWatch,
}

/// The node that has a role, and its epoch.
pub(crate) type Owner = (String, u64);

/// What becomes of a role.
pub(crate) enum RoleNews {
    /// Another owner has it, or nobody.
    Owner(Option<Owner>),
    /// It is this node's, with this epoch. Its lease had run out, and is back.
    LeaseBack(u64),
}

/// Hears what becomes of a role.
pub(crate) type HearOwner = Box<dyn Fn(RoleNews) + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct OwnerWatch(Arc<Mutex<Watched>>);

#[derive(Default)]
struct Watched {
    /// The lease has been read. Until then an earlier member of the process may know the owner.
    is_known: bool,
    owner: Option<Owner>,
    hear: Option<HearOwner>,
}

impl OwnerWatch {
    /// The present owner is reported at once, if it is known.
    pub(crate) fn hear(&self, hear: HearOwner) {
        let mut watch = self.lock();
        if watch.is_known {
            hear(RoleNews::Owner(watch.owner.clone()));
        }
        watch.hear = Some(hear);
    }

    pub(super) fn set(&self, owner: Option<Owner>) {
        let mut watch = self.lock();
        let was_known = std::mem::replace(&mut watch.is_known, true);
        if !was_known || watch.owner != owner {
            watch.owner.clone_from(&owner);
            watch.hear.iter().for_each(|hear| hear(RoleNews::Owner(owner.clone())));
        }
    }

    pub(super) fn note_lease_back(&self, epoch: u64) {
        self.lock().hear.iter().for_each(|hear| hear(RoleNews::LeaseBack(epoch)));
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node that a switchover goes to, once there is one.
#[derive(Clone, Default)]
pub(crate) struct Successor(Arc<Mutex<Option<String>>>);

impl Successor {
    pub(super) fn set(&self, node: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(node);
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}

impl Member {
    pub(crate) fn order(&self, order: Order) {
        // The thread ends with the process.
        let _ = self.orders.send(order);
    }

    /// The process was requested to stop. A switchover stops it, too, and then it begins again.
    pub(super) fn is_to_end(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst) && self.successor.get().is_none()
    }

    /// Who hears from now on which node has the role.
    pub(crate) fn hear_owner(&self, hear: HearOwner) {
        self.owners.hear(hear);
    }

    /// How this node is, and the others as they said last.
    pub(crate) fn status(&self) -> Status {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn figures(&self) -> ClusterFigures {
        ClusterFigures::of(&self.status(), &self.counts, self.acting.remaining_ms(), boot_ms())
    }

    /// For `$SYS/broker/cluster/`.
    pub(crate) fn sys_messages(&self) -> Vec<Message> {
        self.status().sys_messages(boot_ms())
    }

    /// Why an active node serves nobody now, if so.
    pub(crate) fn suspension(&self) -> Option<String> {
        if self.acting.is_held() {
            return None;
        }
        let detail = self.status().own.detail;
        let why =
            if detail.is_empty() { "the lease was not renewed in time".to_owned() } else { detail };
        Some(format!("lease expired: this node is suspended; {why}"))
    }
}

impl data::Replica for Member {
    /// Replicates a small file, and waits until a quorum has it.
    ///
    /// # Errors
    ///
    /// When the engine does not take it, or another node is active.
    fn put_file(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let (done, answer) = std::sync::mpsc::channel();
        let (name, content) = (name.to_owned(), content.to_vec());
        self.order(Order::PutFile(PutFile { name, content, done }));
        match answer.recv_timeout(PUT_FILE_TIMEOUT) {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the engine does not answer")),
        }
    }
}

const PUT_FILE_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_owner_is_not_reported_before_it_is_known() {
        let watch = OwnerWatch::default();
        let (sender, news) = channel();
        watch.hear(Box::new(move |news| {
            if let RoleNews::Owner(owner) = news {
                sender.send(owner).unwrap();
            }
        }));
        assert!(news.try_recv().is_err(), "an earlier member may know it");
        let owner = Some(("n2".to_owned(), 7));
        for set in [None, None, owner.clone(), owner.clone()] {
            watch.set(set);
        }
        assert_eq!(news.try_iter().collect::<Vec<_>>(), [None, owner.clone()]);
        let (sender, news) = channel();
        watch.hear(Box::new(move |news| {
            if let RoleNews::Owner(owner) = news {
                sender.send(owner).unwrap();
            }
        }));
        assert_eq!(news.try_recv(), Ok(owner));
    }
}
