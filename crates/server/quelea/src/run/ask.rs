//! How the API reaches the shards: a command goes into the mailbox of a worker, and its answer
//! comes back through a channel. Nobody of the workers waits for who asked.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use broker::{Answer, Command, Scope, ShardId, Shared, TraceFilter};
use session::Message;
use tokio::sync::oneshot;

use super::mailbox::{Asked, Item, Mailbox};
use super::worker::Order;
use identity::auth::bans::Lists;

/// How long a shard may take for an answer. A publish waits for the disks in it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The shards, for who asks them something.
#[derive(Clone)]
pub(crate) struct Shards {
    pub(crate) shared: Arc<Shared>,
    mailboxes: Arc<OnceLock<Arc<[Arc<Mailbox>]>>>,
}

/// Why a shard has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The broker starts or stops.
    Absent,
    /// What was asked may be done later, or never.
    Late,
}

impl Shards {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), mailboxes: Arc::default() }
    }

    /// From now on they answer.
    pub(super) fn open(&self, mailboxes: &Arc<[Arc<Mailbox>]>) {
        let _ = self.mailboxes.set(mailboxes.clone());
    }

    pub(crate) fn count(&self) -> ShardId {
        self.shared.homes.shards()
    }

    /// Tells all workers who is banned: who is in already stays.
    pub(crate) fn put_bans(&self, listed: &Arc<Lists>) {
        for mailbox in self.mailboxes.get().into_iter().flat_map(|all| all.iter()) {
            mailbox.put(Item::Order(Order::Bans { listed: listed.clone(), ends: false }));
        }
    }

    /// Tells all workers what is traced from now on.
    pub(crate) fn put_traces(&self, filters: &Arc<[TraceFilter]>) {
        for mailbox in self.mailboxes.get().into_iter().flat_map(|all| all.iter()) {
            mailbox.put(Item::Order(Order::Traces(filters.clone())));
        }
    }

    /// Publishes a message of the broker's own.
    pub(crate) fn publish(&self, message: Message) {
        if let Some(mailboxes) = self.mailboxes.get() {
            mailboxes[0].put(Item::Publish(0, message));
        }
    }

    /// Asks one of them, about one scope.
    pub(crate) async fn ask(
        &self,
        shard: ShardId,
        scope: Scope,
        command: Command,
    ) -> Result<Answer, NoAnswer> {
        self.ask_within(shard, scope, command, ANSWER_TIMEOUT).await
    }

    async fn ask_within(
        &self,
        shard: ShardId,
        scope: Scope,
        command: Command,
        timeout: Duration,
    ) -> Result<Answer, NoAnswer> {
        let mailboxes = self.mailboxes.get().ok_or(NoAnswer::Absent)?;
        let (answer, given) = oneshot::channel();
        let mailbox = &mailboxes[usize::from(shard) % mailboxes.len()];
        mailbox.put(Item::Command(Box::new(Asked { shard, scope, command, answer })));
        match tokio::time::timeout(timeout, given).await {
            Ok(given) => given.map_err(|_| NoAnswer::Absent),
            Err(_) => Err(NoAnswer::Late),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::run::worker::events;
    use crate::run::workers::tests::idle_workers;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn session(client_id: &str) -> Command {
        Command::Session(client_id.into())
    }

    #[test]
    fn who_asks_before_there_are_workers_is_reported_so() {
        let shards = Shards::new(&Shared::new(
            broker::Settings::default(),
            broker::Homes::of_one_cell(1),
            1,
        ));
        let answer = block_on(shards.ask(0, Scope::FIRST, session("a")));
        assert_eq!(answer.unwrap_err(), NoAnswer::Absent);
    }

    #[test]
    fn a_worker_that_does_nothing_is_not_waited_for() {
        let (_workers, mailboxes) = idle_workers(1);
        let shards = Shards::new(&Shared::new(
            broker::Settings::default(),
            broker::Homes::of_one_cell(1),
            1,
        ));
        shards.open(&mailboxes);
        let answer = block_on(shards.ask_within(0, Scope::FIRST, session("a"), Duration::ZERO));
        assert_eq!(answer.unwrap_err(), NoAnswer::Late);
    }

    #[test]
    fn one_command_is_carried_out_in_a_turn_and_none_once_the_broker_stops() {
        let (mut workers, mailboxes) = idle_workers(1);
        let ask = || {
            let (answer, given) = oneshot::channel();
            let (scope, command) = (Scope::FIRST, session("nobody"));
            let asked = Asked { shard: 0, scope, command, answer };
            mailboxes[0].put(Item::Command(Box::new(asked)));
            given
        };
        let (mut first, mut second) = (ask(), ask());
        workers[0].turn(Instant::now(), &events());
        assert!(matches!(first.try_recv(), Ok(Answer::Session(None))));
        assert!(matches!(second.try_recv(), Err(oneshot::error::TryRecvError::Empty)));
        assert!(workers[0].has_work(Instant::now()), "it does not sleep over the second");
        mailboxes[0].put(Item::Shutdown);
        workers[0].turn(Instant::now(), &events());
        assert!(matches!(second.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        let mut third = ask();
        workers[0].turn(Instant::now(), &events());
        assert!(matches!(third.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }
}
