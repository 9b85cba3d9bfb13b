//! Empties namespaces that are closed: cuts off whoever is still connected, and deletes what a
//! deleted one has, a page of a shard at a time, so that nobody else notices.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use broker::command::Swept;
use broker::{Answer, Command, Scope, ShardId};
use tokio::sync::oneshot;

use super::mailbox::{Asked, Item, Mailbox};
use config::NamespaceState;
use identity::namespaces::Namespaces;

/// How long to wait for the next look at what could not be deleted: mail under way may bring
/// something, and a journal may have no room for the word that something is gone.
const AGAIN: Duration = Duration::from_millis(200);

/// Looks that have to find nothing before a namespace counts as empty.
const EMPTY_LOOKS: u32 = 2;

/// Wakes the thread. It ends when nobody can wake it any more.
#[derive(Clone, Debug)]
pub(crate) struct Keeper(Sender<()>);

struct Work {
    namespaces: Arc<Namespaces>,
    mailboxes: Arc<[Arc<Mailbox>]>,
    shards: ShardId,
    /// Namespaces to be deleted that were found empty, and how often.
    empty: Vec<(Scope, u32)>,
}

/// The broker stops.
struct Stopping;

impl Keeper {
    pub(super) fn start(
        namespaces: &Arc<Namespaces>,
        mailboxes: &Arc<[Arc<Mailbox>]>,
        shards: ShardId,
    ) -> anyhow::Result<Self> {
        let (waker, wakes) = channel();
        let (namespaces, mailboxes) = (namespaces.clone(), mailboxes.clone());
        let work = Work { namespaces, mailboxes, shards, empty: Vec::new() };
        let thread = std::thread::Builder::new().name("namespaces".into());
        // Not waited for at the end: what it has not done goes on after the next start.
        thread.spawn(move || work.run(&wakes))?;
        let keeper = Self(waker);
        keeper.look();
        Ok(keeper)
    }

    /// Something may have been closed or deleted.
    pub(crate) fn look(&self) {
        let _ = self.0.send(());
    }
}

impl Work {
    fn run(mut self, wakes: &Receiver<()>) {
        loop {
            let woken = match self.namespaces.deleted().is_empty() {
                true => wakes.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => wakes.recv_timeout(AGAIN),
            };
            if woken == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            if woken.is_ok() && self.cut_off_closed().is_err() || self.delete().is_err() {
                return;
            }
        }
    }

    fn cut_off_closed(&self) -> Result<(), Stopping> {
        let is_closed = |state| state != NamespaceState::Open;
        for view in self.namespaces.all().iter().filter(|view| is_closed(view.state)) {
            self.sweep(view.scope, |from| Command::CutOff { from })?;
        }
        Ok(())
    }

    fn delete(&mut self) -> Result<(), Stopping> {
        for scope in self.namespaces.deleted() {
            let found = self.sweep(scope, |from| Command::Empty { from })?;
            let known = self.empty.iter().find(|(own, _)| *own == scope).map_or(0, |(_, n)| *n);
            self.empty.retain(|(own, _)| *own != scope);
            let looks = if found > 0 { 0 } else { known + 1 };
            if looks < EMPTY_LOOKS {
                self.empty.push((scope, looks));
                continue;
            }
            let namespace = self.namespaces.name_of(scope);
            match self.namespaces.forget(scope) {
                Ok(()) => tracing::info!(
                    namespace = &*namespace,
                    number = scope.number(),
                    "namespace deleted"
                ),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(namespace = &*namespace, error, "namespace not deleted");
                }
            }
        }
        Ok(())
    }

    /// Returns what there was.
    fn sweep(&self, scope: Scope, command: impl Fn(u32) -> Command) -> Result<u64, Stopping> {
        let mut found = 0;
        for shard in 0..self.shards {
            let mut next = Some(0);
            while let Some(from) = next {
                let swept = self.ask(shard, scope, command(from))?;
                found += u64::from(swept.found);
                next = swept.next;
            }
        }
        Ok(found)
    }

    fn ask(&self, shard: ShardId, scope: Scope, command: Command) -> Result<Swept, Stopping> {
        let (answer, given) = oneshot::channel();
        let mailbox = &self.mailboxes[usize::from(shard) % self.mailboxes.len()];
        mailbox.put(Item::Command(Box::new(Asked { shard, scope, command, answer })));
        match given.blocking_recv() {
            Ok(Answer::Swept(swept)) => Ok(swept),
            _ => Err(Stopping),
        }
    }
}
