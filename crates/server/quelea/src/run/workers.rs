//! The workers as a whole: started with their shards, opened, stopped in order.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use broker::{Rules, Shard, ShardId, Shared};
use driver::{DriverParts, IncomingRoom};

use super::cells::Post;
use super::journals::{JournalBackend, JournalBoard, JournalState, Journals, Phase};
use super::limiter::ConnectionLimiter;
use super::mailbox::{Item, Mailbox};
use super::routing::Inbox;
use super::store::Restoration;
use super::timing::Timing;
use super::worker::{self, EventWaker, Os, OsParts, Worker};
use super::worker_pool::WorkerPool;
use super::{join, spawn};
use crate::cluster::Acting;
use crate::life_cycle::LifeCycle;
use crate::life_cycle::line_pace::LinePace;
use base::Clock;
use config::Config;
use identity::auth::Authenticator;
use identity::auth::authorizer::Authorizer;

/// How often a start that waits for the disk says so.
const WAITING_INTERVAL: Duration = Duration::from_secs(2);

/// All workers.
pub(super) struct Workers {
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    /// Which thread drives which.
    pub(super) pool: Arc<WorkerPool>,
    /// Of the lines about clients, for all who write some.
    pub(super) line_pace: Arc<LinePace>,
    threads: Vec<JoinHandle<()>>,
    phases: Receiver<Phase>,
    has_journals: bool,
    shutdown_grace: Duration,
}

/// Where workers report what they do.
#[derive(Clone, Copy)]
pub(super) struct Observers<'a> {
    pub(super) board: &'a Arc<JournalBoard>,
    pub(super) turns: &'a Arc<[Timing]>,
    pub(super) life_cycle: &'a Arc<LifeCycle>,
    /// Of clients that were let in.
    pub(super) limiter: &'a Arc<ConnectionLimiter>,
    /// In a cluster.
    pub(super) acting: &'a Option<Acting>,
    /// The owner of streams, if there are any.
    pub(super) streams: Option<&'a Inbox>,
    /// The way to other cells, if there are any.
    pub(super) post: Option<&'a Post>,
}

/// Shards that begin with nothing.
pub(super) fn empty_shards(shared: &Arc<Shared>, rules: &Rules) -> Vec<Restoration> {
    let shard = |shard: ShardId| (Shard::new(shard, shared.clone(), rules.clone()), None);
    (0..shared.homes.shards()).map(shard).collect()
}

impl Workers {
    /// Starts the threads. `shards` in the order of their numbers; as many mailboxes as [`count`]
    /// says.
    ///
    /// # Errors
    ///
    /// When the system gives no thread or event queue.
    pub(super) fn start(
        config: &Config,
        (shards, (polls, mailboxes)): (Vec<Restoration>, Mailboxes),
        observers: Observers<'_>,
        (authenticator, authorizer): (&Arc<Authenticator>, Option<&Arc<Authorizer>>),
        clock: Clock,
    ) -> anyhow::Result<Self> {
        let Observers { board, turns, life_cycle, limiter, .. } = observers;
        let count = mailboxes.len();
        let shutdown_grace = Duration::from_secs(config.server.shutdown_grace_secs.into());
        let line_pace = Arc::new(LinePace::new(config.log.client_lines_per_second_max));
        let incoming_room = incoming_room(config);
        let has_journals = shards.iter().any(|(_, files)| files.is_some());
        let (phase_sender, phases) = channel();
        let mut workers = Vec::new();
        let (shards, files): (Vec<_>, Vec<_>) = distribute(shards, count).into_iter().unzip();
        let delay = config.durability.commit_delay();
        let journals = Journals::start_all(files, &mailboxes, board, &phase_sender, delay)
            .context("cannot start the threads of the logs")?;
        let parts = polls.into_iter().zip(shards.into_iter().zip(journals)).enumerate();
        for (index, (poll, (shards, journals))) in parts {
            let host = Os::new(OsParts {
                poll,
                index,
                clock,
                authenticator: authenticator.clone(),
                authorizer: authorizer.cloned(),
                mailbox: mailboxes[index].clone(),
                limiter: limiter.clone(),
                journals,
                turns: turns.clone(),
                line_pace: line_pace.clone(),
                life_cycle: life_cycle.clone(),
                acting: observers.acting.clone(),
                streams: observers.streams.cloned(),
                post: observers.post.cloned(),
            });
            workers.push(Worker::new(DriverParts {
                host,
                mailboxes: mailboxes.clone(),
                index,
                shards,
                shutdown_grace_ms: (shutdown_grace - REST_OF_GRACE.min(shutdown_grace / 8))
                    .as_millis() as u64,
                incoming_room: incoming_room.clone(),
            }));
        }
        let pool = Arc::new(WorkerPool::new(&mailboxes));
        let threads = start_threads(config, workers, &pool)?;
        Ok(Self { mailboxes, pool, line_pace, threads, phases, has_journals, shutdown_grace })
    }

    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Waits until what recovery found is durable, and the journals take more. `acting`: the right
    /// to act, in a cluster.
    ///
    /// # Errors
    ///
    /// When a journal cannot be written to, or the right to act is lost: no journal opens then.
    pub(super) fn wait_until_open(
        &self,
        board: &JournalBoard,
        acting: Option<&Acting>,
    ) -> anyhow::Result<()> {
        let mut missing = if self.has_journals { self.threads.len() } else { 0 };
        while missing > 0 {
            match self.phases.recv_timeout(WAITING_INTERVAL) {
                Ok(Phase::Open(opened)) => {
                    opened.context("a log cannot be written to")?;
                    missing -= 1;
                }
                Ok(Phase::Quiet) => {}
                Err(RecvTimeoutError::Timeout) => {
                    ensure!(
                        !acting.is_some_and(Acting::is_lost),
                        "another node took over before the logs were open"
                    );
                    let full = board.states().filter(|state| *state == JournalState::Full).count();
                    tracing::warn!(
                        workers = missing,
                        full,
                        "waiting for the disk to open the logs"
                    );
                }
                // The end of a worker ends the process.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(())
    }

    /// Clients are notified, what is queued in the sockets leaves, journals are closed: all within
    /// the grace.
    pub(super) fn stop(self) {
        let ends_at = Instant::now() + self.shutdown_grace;
        self.put_all(|| Item::Shutdown);
        if self.has_journals {
            // The last connection of one worker may have mail for another, whose journal must not
            // be closed before. Where a connection does not end, the journals get their half of the
            // time.
            self.wait_until_quiet(ends_at - self.shutdown_grace / 2);
            self.put_all(|| Item::CloseJournals);
        }
        join(self.threads);
    }

    /// The right to act is lost: they end at once, without a byte to anybody.
    pub(super) fn abandon(self) {
        self.put_all(|| Item::Abandon);
        join(self.threads);
    }

    fn wait_until_quiet(&self, give_up_at: Instant) {
        let mut missing = self.threads.len();
        while missing > 0 {
            let left = give_up_at.saturating_duration_since(Instant::now());
            match self.phases.recv_timeout(left) {
                Ok(Phase::Quiet) => missing -= 1,
                Ok(Phase::Open(_)) => {}
                Err(_) => return,
            }
        }
    }

    fn put_all(&self, item: impl Fn() -> Item) {
        for mailbox in self.mailboxes.iter() {
            mailbox.put(item());
        }
    }
}

/// What is left of the grace for all that ends behind the workers.
const REST_OF_GRACE: Duration = Duration::from_millis(250);

/// Half of a share takes the largest packet, and half of all the largest of two.
fn incoming_room(config: &Config) -> IncomingRoom {
    let packets = config.listeners.iter().map(|listener| listener.limits.packet_bytes_max);
    let packet_bytes_max = packets.max().unwrap_or(config.limits.packet_bytes_max);
    let share = config.limits.incoming_bytes_per_user_max.max(2 * u64::from(packet_bytes_max));
    IncomingRoom::new(config.limits.incoming_bytes_max.max(2 * share), share)
}

fn start_threads(
    config: &Config,
    workers: Vec<Worker>,
    pool: &Arc<WorkerPool>,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    let mut workers = Some(workers);
    for index in 0..workers.as_ref().map_or(0, Vec::len) {
        let pool = pool.clone();
        let all = workers.take();
        let run = move || all.map_or_else(|| pool.run_worker(index), |all| pool.run_main(all));
        let core = config.server.pin_workers.then_some(index);
        threads.push(spawn(format!("worker-{index}"), core, run)?);
    }
    Ok(threads)
}

/// Of workers, and what they wait on.
pub(super) type Mailboxes = (Vec<mio::Poll>, Arc<[Arc<Mailbox>]>);

/// Workers for so many shards.
pub(super) fn count(config: &Config, shards: usize) -> usize {
    usize::from(config.server.workers).min(shards)
}

pub(super) fn make_mailboxes(count: usize) -> anyhow::Result<Mailboxes> {
    let mut polls = Vec::new();
    let mut mailboxes = Vec::new();
    for _ in 0..count {
        let poll = mio::Poll::new().context("cannot create an event queue")?;
        let waker = mio::Waker::new(poll.registry(), worker::WAKER)?;
        mailboxes.push(Arc::new(Mailbox::new(EventWaker(waker))));
        polls.push(poll);
    }
    Ok((polls, mailboxes.into()))
}

/// A worker's shards, and the files of their journals.
type Share = (Vec<Shard>, Vec<(ShardId, JournalBackend)>);

/// Shard `n` goes to worker `n % workers`.
fn distribute(shards: Vec<Restoration>, workers: usize) -> Vec<Share> {
    let mut distributed: Vec<Share> = (0..workers).map(|_| Default::default()).collect();
    for (number, (shard, files)) in shards.into_iter().enumerate() {
        let (own_shards, own_files) = &mut distributed[number % workers];
        own_files.extend(files.map(|stored| (shard.id(), stored.place)));
        own_shards.push(shard);
    }
    distributed
}

#[cfg(test)]
pub(super) mod tests {
    use broker::{Homes, Settings};

    use super::*;
    use config::Machine;

    #[test]
    fn logs_are_not_waited_for_once_the_right_to_act_is_lost() {
        let (workers, mailboxes) = idle_workers(1);
        drop(workers);
        let (_phase_sender, phases) = channel();
        let workers = Workers {
            pool: Arc::new(WorkerPool::new(&mailboxes)),
            mailboxes,
            line_pace: Arc::default(),
            threads: vec![std::thread::spawn(|| {})],
            phases,
            has_journals: true,
            shutdown_grace: Duration::ZERO,
        };
        let acting = Acting::default();
        acting.lose();
        let board = JournalBoard::new(1, crate::http::Health::new());
        let error = workers.wait_until_open(&board, Some(&acting)).unwrap_err();
        assert!(error.to_string().contains("another node took over"), "{error}");
        workers.abandon();
    }

    /// So many workers with a shard each, which no thread drives.
    pub(crate) fn idle_workers(count: u16) -> (Vec<Worker>, Arc<[Arc<Mailbox>]>) {
        idle_workers_with(count, Settings::default())
    }

    pub(crate) fn idle_workers_with(
        count: u16,
        settings: Settings,
    ) -> (Vec<Worker>, Arc<[Arc<Mailbox>]>) {
        let shared = Shared::new(settings, Homes::of_one_cell(count), 1);
        let config = Config::defaults(&Machine::here());
        let authenticator =
            Arc::new(Authenticator::start(&config.auth, &[], None, Clock::start()).unwrap());
        let (polls, mailboxes) = make_mailboxes(usize::from(count)).unwrap();
        let shares = distribute(
            empty_shards(&shared, &Rules::from(policy::Access::open())),
            usize::from(count),
        );
        let turns: Arc<[Timing]> = (0..count).map(|_| Timing::default()).collect();
        let parts = polls.into_iter().zip(shares).enumerate();
        let worker = |(index, (poll, (shards, _)))| {
            let host = Os::new(OsParts {
                poll,
                index,
                clock: Clock::start(),
                authenticator: authenticator.clone(),
                authorizer: None,
                mailbox: mailboxes[index].clone(),
                limiter: Arc::default(),
                journals: None,
                turns: turns.clone(),
                line_pace: Arc::default(),
                life_cycle: Arc::new(LifeCycle::new(&config.events, &shared, Clock::start())),
                acting: None,
                streams: None,
                post: None,
            });
            Worker::new(DriverParts {
                host,
                mailboxes: mailboxes.clone(),
                index,
                shards,
                shutdown_grace_ms: 0,
                incoming_room: IncomingRoom::new(1 << 30, 1 << 28),
            })
        };
        (parts.map(worker).collect(), mailboxes.clone())
    }
}
