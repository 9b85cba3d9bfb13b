//! A cell on this node, from one life to the next: it follows the logs of the cell as a standby,
//! and serves its clients while this node is active for it.
//!
//! Nothing of a life outlasts it: a cell that loses its lease closes its sockets as they are, drops
//! its state, and begins again as a standby. The other cells of the node go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use broker::Homes;
use tokio::sync::oneshot;

use super::calls::Answers;
use super::links::{NodeLinks, Post};
use super::table::{Serving, Table};
use crate::api::{Api, ApiAuthenticator, CELL_OF_BANS};
use crate::cluster::{
    ActiveCells, Begun, ClusterFigures, Clustered, End, Member, Order, RoleNews, RoleOf,
    TakenJournal, Turn, WaitReason,
};
use crate::metrics;
use crate::run::file_watch::FileWatch;
use crate::run::parts::{Ground, OfCell, Parts};
use crate::run::servers::HttpServers;
use crate::run::service::ServiceManager;
use crate::run::store::Store;
use crate::run::unwritten::Unwritten;
use crate::run::watch::{Ask, Elsewhere, Upkeep, Watch};
use crate::run::workers::{self, Workers};
use crate::run::{Reread, Running, Shards, clock, node, restore, start_acceptors, start_workers};
use base::Clock;
use config::Loaded;
use identity::auth::rules;

/// From the begin of a life to the begin of the next.
const LIFE_MIN: Duration = Duration::from_secs(2);

/// What a cell has of its node.
pub(super) struct Life {
    pub(super) cell: u16,
    pub(super) homes: Homes,
    pub(super) seed: u64,
    pub(super) role_of: RoleOf,
    /// With the names and the directory of the cell.
    pub(super) loaded: Arc<Loaded>,
    /// Of the node.
    pub(super) gate: Arc<Parts>,
    /// None: the node has no API.
    pub(super) api_authenticator: Option<Arc<ApiAuthenticator>>,
    pub(super) table: Arc<Table>,
    /// Which cells this node has.
    pub(super) active: ActiveCells,
    pub(super) answers: Arc<Answers>,
    pub(super) links: Arc<NodeLinks>,
    pub(super) requests: Arc<Requests>,
    pub(super) service: ServiceManager,
}

/// What the node asks of a cell, whatever that does just now.
#[derive(Default)]
pub(super) struct Requests {
    is_stopping: Arc<AtomicBool>,
    /// Settings may be others than at the start of the node.
    has_reloaded: AtomicBool,
    present: Mutex<Present>,
}

/// What a cell does just now, as far as requests concern it.
#[derive(Default)]
enum Present {
    /// Between two lives.
    #[default]
    Nothing,
    /// It waits for NATS. Dropped: no more.
    Waiting(#[expect(dead_code, reason = "its end is what counts")] oneshot::Sender<()>),
    Living {
        turn: Sender<Turn>,
        member: Member,
    },
}

impl Requests {
    /// From now on it ends, and does not begin again.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        let mut present = self.lock();
        match std::mem::take(&mut *present) {
            Present::Living { turn, member } => {
                let _ = turn.send(Turn::Stop);
                *present = Present::Living { turn, member };
            }
            // Its end is heard.
            Present::Waiting(_) | Present::Nothing => {}
        }
    }

    pub(super) fn put(&self, turn: Turn) {
        if matches!(turn, Turn::Reload) {
            self.has_reloaded.store(true, Ordering::SeqCst);
        }
        if let Present::Living { turn: to, .. } = &*self.lock() {
            let _ = to.send(turn);
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Of its member, if it has one now.
    pub(super) fn figures(&self) -> Option<ClusterFigures> {
        self.member().map(|member| member.figures())
    }

    pub(super) fn member(&self) -> Option<Member> {
        match &*self.lock() {
            Present::Living { member, .. } => Some(member.clone()),
            Present::Waiting(_) | Present::Nothing => None,
        }
    }

    /// False: it is to end.
    fn set(&self, present: Present) -> bool {
        let mut own = self.lock();
        if !self.is_stopping() {
            *own = present;
        }
        !self.is_stopping()
    }

    fn clear(&self) {
        *self.lock() = Present::Nothing;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cell that serves.
struct Started {
    running: Running,
    workers: Workers,
    upkeep: Upkeep,
    epoch: u64,
    api: Option<Arc<Api>>,
    /// With its lock of the directory.
    _store: Store,
}

impl Life {
    /// One life after the other, until the node stops.
    pub(super) fn run(&self, reread: &Reread<'_>) {
        while !self.requests.is_stopping() {
            let began = Instant::now();
            let lived = self.live(reread);
            self.requests.clear();
            self.table.set_serving(self.cell, None);
            if self.cell == CELL_OF_BANS {
                self.gate.limiter.bans.give_up();
            }
            self.report(lived);
            // What ends each life at once is not to keep a core busy.
            while began.elapsed() < LIFE_MIN && !self.requests.is_stopping() {
                std::thread::park_timeout(LIFE_MIN.saturating_sub(began.elapsed()));
            }
        }
    }

    fn report(&self, lived: anyhow::Result<Option<End>>) {
        let cell = self.cell;
        match lived {
            Ok(None) => {}
            Ok(Some(End::SwitchedOver { to })) => {
                tracing::info!(cell, to, "switched over: this node is a standby for the cell");
            }
            Ok(Some(End::Lost(why))) => tracing::error!(
                cell,
                detail = why,
                "this node lost the cell: closing its connections, and following as a standby"
            ),
            Ok(Some(End::Failed(why))) => {
                tracing::error!(cell, detail = why, "a cell begins again as a standby");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(cell, error, "a cell begins again as a standby");
            }
        }
    }

    /// Returns at its end. `None`: the node stops.
    fn live(&self, reread: &Reread<'_>) -> anyhow::Result<Option<End>> {
        let clock = Clock::start();
        let Some(clustered) = self.begin()? else { return Ok(None) };
        let (turn, member) = (clustered.turn.clone(), clustered.member.clone());
        if !self.requests.set(Present::Living { turn, member }) {
            self.release(&clustered.member, &clustered);
            return Ok(None);
        }
        self.follow_owner(&clustered.member);
        let (epoch, journals) = match self.wait(&clustered) {
            Some(Ok(taken)) => taken,
            Some(Err(end)) => {
                if let End::Failed(_) = &end {
                    self.active.note_failed(self.cell);
                }
                return Ok(Some(end));
            }
            None => {
                self.release(&clustered.member, &clustered);
                return Ok(None);
            }
        };
        let started = match self.start(&clustered, (epoch, journals), clock) {
            Ok(started) => started,
            // Another node may be able to.
            Err(error) => {
                self.active.note_failed(self.cell);
                self.links.close_cell(self.cell, epoch);
                self.release(&clustered.member, &clustered);
                return Err(error);
            }
        };
        self.serve(&clustered, started, reread)
    }

    /// `None`: the node stops.
    fn begin(&self) -> anyhow::Result<Option<Clustered>> {
        let config = &self.loaded.config;
        let cluster = config.cluster.as_ref().context("a cell is of a cluster")?;
        let (stop, stopped) = oneshot::channel::<()>();
        if !self.requests.set(Present::Waiting(stop)) {
            return Ok(None);
        }
        let claim = self.active.of(self.cell);
        let ending = (self.requests.is_stopping.clone(), self.role_of, Some(claim));
        let waiting = WaitReason::default();
        match Clustered::begin(config, cluster, &waiting, stopped, ending)? {
            Some(Begun::One(clustered)) => Ok(Some(*clustered)),
            Some(Begun::Several(_)) => {
                anyhow::bail!("the bucket of cell {} is that of a cluster", self.cell)
            }
            None => Ok(None),
        }
    }

    /// All that look for a cell learn who has it.
    fn follow_owner(&self, member: &Member) {
        let (cell, table, links) = (self.cell, self.table.clone(), self.links.clone());
        member.hear_owner(Box::new(move |news| match news {
            RoleNews::Owner(owner) => {
                table.set_owner(cell, owner.clone());
                links.owner_changed(cell, owner);
            }
            RoleNews::LeaseBack(epoch) => links.on_lapse(cell, epoch),
        }));
    }

    /// As a standby. `None`: the node stops.
    fn wait(&self, clustered: &Clustered) -> Option<Result<(u64, Vec<TakenJournal>), End>> {
        loop {
            match clustered.turns.recv() {
                Ok(Turn::Active { epoch, journals }) => return Some(Ok((epoch, journals))),
                Ok(Turn::Ended(end)) => return Some(Err(end)),
                Ok(Turn::Stop) if self.requests.is_stopping() => return None,
                // Files are read when it becomes active.
                Ok(Turn::Stop | Turn::Reload | Turn::ReloadRules | Turn::Released) => {}
                Err(_) => {
                    let why = "the thread of the cell's member has ended".to_owned();
                    return Some(Err(End::Failed(why)));
                }
            }
        }
    }

    /// Gives the role back, if it has it.
    fn release(&self, member: &Member, clustered: &Clustered) {
        member.order(Order::Release(member.successor.get()));
        if !node::is_released(clustered) {
            let cell = self.cell;
            tracing::warn!(cell, "lease not released: another node takes over when it expires");
        }
    }

    fn start(
        &self,
        clustered: &Clustered,
        (epoch, journals): (u64, Vec<TakenJournal>),
        clock: Clock,
    ) -> anyhow::Result<Started> {
        let config = &self.loaded.config;
        let rules = rules::load(config)?;
        let store = Store::of_cluster(clustered);
        let stamps = store.stamps().clone();
        let clock_watch = clock::resume(clock, Some(store.data().path()), &stamps)?;
        let mut unwritten = Unwritten::new();
        if self.cell == CELL_OF_BANS {
            let taken = self.gate.limiter.bans.take_over(store.data().path(), &stamps);
            taken.map_err(anyhow::Error::msg).context("the bans of the cluster")?;
        }
        let parts = self.parts(clustered, epoch, &store, clock)?;
        let shards = Shards::new(&parts.shared);
        let is_stamped = crate::run::stamp_files(&store, &mut unwritten)?;
        let restored =
            restore(Some(&store), &parts, &rules, (Some(journals), is_stamped), &mut unwritten)?;
        let made = workers::make_mailboxes(workers::count(config, restored.len()))?;
        let acting = clustered.member.acting.clone();
        self.links.open_cell((self.cell, epoch), &parts, made.1.clone(), acting);
        let post = Post::new(&self.links, self.cell, epoch);
        let workers = start_workers(&parts, restored, made, (None, Some(&post)))?;
        shards.open(&workers.mailboxes);
        node::listen_to_cluster(&clustered.member, &parts.life_cycle, &shards);
        let running = Running { parts, rules, http: HttpServers::default() };
        let upkeep = Upkeep { clock_watch, unwritten, files: Arc::new(FileWatch::of_none()) };
        let api = |of_node: &Arc<ApiAuthenticator>| {
            Arc::new(Api::of_cell(of_node.clone(), shards.clone(), running.parts.facts()))
        };
        let api = self.api_authenticator.as_ref().map(api);
        Ok(Started { running, workers, upkeep, epoch, api, _store: store })
    }

    fn parts(
        &self,
        clustered: &Clustered,
        epoch: u64,
        store: &Store,
        clock: Clock,
    ) -> anyhow::Result<Parts> {
        let gate = &self.gate;
        let of_cell = OfCell {
            epoch,
            seed: self.seed,
            limiter: gate.limiter.clone(),
            authenticator: gate.authenticator.clone(),
            authorizer: gate.authorizer.clone(),
            rule_files: gate.rule_files.clone(),
            live: gate.live.clone(),
            spans: gate.life_cycle.spans.clone(),
        };
        let ground = Ground {
            directory: Some(store.data().path()),
            stamps: store.stamps(),
            homes: self.homes,
            cell: Some(of_cell),
            journals: store.shards(),
            workers: self.loaded.config.server.workers,
            decoy_secret: None,
            member: Some(clustered.member.clone()),
            service: self.service.clone(),
        };
        let parts = Parts::make(self.loaded.clone(), ground, clock)?;
        node::depend_on_cluster(&parts.health, &clustered.member, &parts.board);
        Ok(parts)
    }

    /// Until the node stops, or another node has the cell.
    fn serve(
        &self,
        clustered: &Clustered,
        started: Started,
        reread: &Reread<'_>,
    ) -> anyhow::Result<Option<End>> {
        let Started { running, workers, upkeep, epoch, api, _store } = started;
        match self.serve_clients(clustered, (&running, epoch, api), (&workers, upkeep), reread) {
            Ok(None) => self.stop(clustered, workers, epoch),
            // Its disk may be at fault: then other nodes go first.
            Ok(Some(end)) => {
                self.active.note_failed(self.cell);
                self.links.close_cell(self.cell, epoch);
                workers.abandon();
                Ok(Some(end))
            }
            // Another node may be able to.
            Err(error) => {
                self.active.note_failed(self.cell);
                self.stop(clustered, workers, epoch)?;
                Err(error)
            }
        }
    }

    /// Returns what has ended the role; `None`: it is to be given back. From then on no client is
    /// let in.
    fn serve_clients(
        &self,
        clustered: &Clustered,
        (running, epoch, api): (&Running, u64, Option<Arc<Api>>),
        (workers, upkeep): (&Workers, Upkeep),
        reread: &Reread<'_>,
    ) -> anyhow::Result<Option<End>> {
        let parts = &running.parts;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (mailboxes, lines) = (&workers.mailboxes, &workers.line_pace);
        let context = parts.acceptor_context(mailboxes, lines, &is_stopping, None)?;
        let acceptors = start_acceptors(parts.config(), Vec::new(), &context)?;
        let files = (reread, upkeep.files.clone());
        let (table, cell, answers) = (self.table.clone(), self.cell, self.answers.clone());
        let elsewhere = Elsewhere {
            largest: Arc::new(move || table.largest_beside(cell)),
            totals: Arc::new(move |_| answers.totals()),
        };
        let watch = running.watch(workers, &acceptors, &[], files, (self.role_of, elsewhere));
        let serving = Serving {
            epoch,
            acting: clustered.member.acting.clone(),
            shared: parts.shared.clone(),
            mailboxes: mailboxes.clone(),
            acceptors: acceptors.mailboxes.clone(),
            metrics: parts.metrics_by(metrics::of_cell),
            api,
        };
        let end = watch.map(|watch| {
            parts.health.set_ready();
            self.until_stopped(clustered, (&watch, upkeep), serving)
        });
        is_stopping.store(true, Ordering::Release);
        acceptors.stop();
        end
    }

    fn until_stopped(
        &self,
        clustered: &Clustered,
        (watch, upkeep): (&Watch<'_>, Upkeep),
        serving: Serving,
    ) -> Option<End> {
        let epoch = serving.epoch;
        self.table.set_serving(self.cell, Some(serving));
        clustered.member.order(Order::Serving);
        tracing::info!(cell = self.cell, epoch, "this node serves a cell");
        let mut end = None;
        // It has begun with the settings of the start of the node.
        let first = self.requests.has_reloaded.load(Ordering::SeqCst).then_some(Ask::Reload);
        let asks = first.into_iter().chain(asks(&clustered.turns, &mut end));
        watch.until_stopped(asks, upkeep);
        self.table.set_serving(self.cell, None);
        end
    }

    /// Ends in order, and gives the role back. If the lease is lost meanwhile, workers find out
    /// before they send anything.
    fn stop(
        &self,
        clustered: &Clustered,
        workers: Workers,
        epoch: u64,
    ) -> anyhow::Result<Option<End>> {
        workers.stop();
        self.links.close_cell(self.cell, epoch);
        let successor = clustered.member.successor.get();
        self.release(&clustered.member, clustered);
        Ok(successor.map(|to| End::SwitchedOver { to }))
    }
}

/// What a cell is asked to do. `end`: is set if another node has the role.
fn asks<'a>(turns: &'a Receiver<Turn>, end: &'a mut Option<End>) -> impl Iterator<Item = Ask> + 'a {
    std::iter::from_fn(move || {
        loop {
            match turns.recv() {
                Ok(Turn::Reload) => return Some(Ask::Reload),
                Ok(Turn::ReloadRules) => return Some(Ask::ReloadRules),
                Ok(Turn::Stop) => return Some(Ask::Stop),
                Ok(Turn::Ended(why)) => {
                    *end = Some(why);
                    return Some(Ask::Stop);
                }
                Ok(Turn::Active { .. } | Turn::Released) => {}
                Err(_) => {
                    let why = "the thread of the cell's member has ended".to_owned();
                    *end = Some(End::Failed(why));
                    return Some(Ask::Stop);
                }
            }
        }
    })
}
