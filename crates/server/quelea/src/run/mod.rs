//! The running broker: where all parts are made and joined, in the order of their making.
//!
//! Threads: workers (connections and shards), one that commits for all journals, one for the files
//! of each journal, more while syncs are slow, acceptors (new connections), the HTTP server, two
//! that send to a collector, one that answers backups, and the one that called [`serve`], which
//! waits for signals and does what is due each second.

mod acceptor;
mod ask;
mod bridges;
mod cells;
mod certificates;
mod clock;
pub(crate) mod control;

mod file_watch;
mod identity;
mod journals;
mod keeper;
mod limiter;
mod limits;
mod listen;
mod live;
mod mailbox;
mod memory_guard;
mod node;
mod own_files;
mod parts;
mod reauthentication;
mod reloads;
pub(crate) mod routing;
mod self_check;
mod servers;
mod service;
mod standby;
mod stops;
mod store;
mod telemetry;
mod timing;
mod unwritten;
mod watch;
mod worker;
mod worker_pool;
mod workers;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use broker::Homes;
use net::TlsContext;
use signal_hook::iterator::Signals;

pub(crate) use self::routing::{
    Change, ChangeError, Defined, OperateError, Owner, RuleOrder, StreamsHandle, tenant_of,
};
pub use self::routing::{RoutingFigures, RuleFacts, RuleFigures, StreamFigures};
use crate::api;
use crate::cluster::{RoleOf, TakenJournal};
use crate::http::State;
use crate::logging::{Logging, LoggingError};
use ::identity::auth::authorizer::Authorizer;
use ::identity::auth::bans::Bans;
use ::identity::auth::passwords::PasswordFile;
use ::identity::auth::rules::{self, BrokerRules};
use ::identity::auth::secret::{self, Kept};
pub(crate) use ask::{NoAnswer, Shards};
use base::Clock;
use base::memory;
pub(crate) use cells::Calls;
pub use certificates::Certificates;
use config::{Config, ConfigError, Loaded};
use data::Stamps;
pub use journals::{FIGURES, Figure, JournalBoard, JournalState};
pub use limiter::{ConnectionLimiter, Counts, TurnedAway};
pub(crate) use limits::durability;
pub(crate) use live::{LiveSettings, SetError};
pub(crate) use reloads::{REGISTRIES, Reloaded, Reloads};
pub use timing::Timing;

pub use bridges::BridgeBoard;
pub(crate) use bridges::{BridgeFigures, BridgeState};

use acceptor::{Acceptor, AcceptorContext, AcceptorMailbox};
use bridges::Bridges;
use control::Control;
use file_watch::FileWatch;
use keeper::Keeper;
use mailbox::Item;
use node::{Active, Joined};
use parts::{Ground, Parts};
pub(crate) use self_check::NAMESPACE as SELF_CHECK_NAMESPACE;
pub use self_check::{Checked, SelfChecks};
use servers::HttpServers;
use service::{ServiceManager, Watched};
use store::{OTHER_DIRECTORY, Restoration, Store};
use unwritten::Unwritten;
use watch::Upkeep;
use workers::{Observers, Workers};

/// Reads the configuration again, from where it came.
pub type Reread<'a> = dyn Fn() -> Result<Loaded, ConfigError> + Sync + 'a;

/// Runs the broker until it is requested to stop.
///
/// # Errors
///
/// What cannot be made at the start: files that cannot be used, addresses that cannot be bound.
pub fn serve(loaded: Loaded, reread: &Reread<'_>) -> anyhow::Result<()> {
    let clock = Clock::start();
    let loaded = Arc::new(loaded);
    let signals = watch::catch_reloads()?;
    let service = ServiceManager::start();
    raise_descriptor_limit(loaded.config.limits.connections_max);
    // A wrong file ends the start at once. A standby may wait long: it reads them again before it
    // serves.
    rules::load(&loaded.config)?;
    let (node, journals) = match node::join(&loaded, &service, clock)? {
        Joined::Alone => (None, None),
        Joined::Active(node, journals) => (Some(*node), Some(journals)),
        Joined::Several(several) => {
            cells::serve(&loaded, *several, (signals, &service), clock, reread)?;
            tracing::info!("stopped");
            return Ok(());
        }
        Joined::Stopped => {
            tracing::info!("stopped");
            return Ok(());
        }
    };
    let started = match start(&loaded, node.as_ref(), journals, (clock, &service)) {
        Ok(started) => started,
        Err(error) => return Err(give_up(node, error)),
    };
    // The lock of the directory goes with the store.
    let Started { _store, running, workers, streams, upkeep, control, exporter } = started;
    let served = running.serve(&workers, signals, node.as_ref(), upkeep, reread);
    if let Err(error) = served {
        return Err(give_up(node, error));
    }
    running.parts.health.set(State::Stopping);
    drop(control);
    let line_pace = workers.line_pace.clone();
    // What targets have answered is stored before the journals close.
    if let Some(streams) = streams {
        streams.stop();
    }
    match node {
        Some(node) => node.stop(workers),
        None => workers.stop(),
    }
    drop(exporter);
    line_pace.log_rest(clock.now_ms());
    tracing::info!("stopped");
    Ok(())
}

/// A broker that can serve.
struct Started {
    _store: Option<Store>,
    running: Running,
    workers: Workers,
    streams: Option<routing::Streams>,
    upkeep: Upkeep,
    /// None: a node of a cluster has it already.
    control: Option<Arc<Mutex<Option<Control>>>>,
    exporter: Option<::telemetry::Exporter>,
}

/// All but the listeners, from the files that there are.
fn start(
    loaded: &Arc<Loaded>,
    node: Option<&Active>,
    journals: Option<Vec<TakenJournal>>,
    (clock, service): (Clock, &ServiceManager),
) -> anyhow::Result<Started> {
    // Ahead of the reading: what changes from now on is found as a change.
    let files = Arc::new(FileWatch::new(&loaded.config));
    let rules = rules::load(&loaded.config)?;
    let opened = open_store(&loaded.config, node)?;
    let store = opened.as_ref();
    let stamps = store.map(|store| store.stamps().clone()).unwrap_or_default();
    let clock_watch = clock::resume(clock, store.map(|store| store.data().path()), &stamps)?;
    let mut unwritten = Unwritten::new();
    if Logging::lacks_file() {
        unwritten.write_later("the log file", || match Logging::reopen_installed() {
            Err(LoggingError::Open { cause, .. }) => Err(cause.into()),
            reopened => Ok(reopened?),
        });
    }
    let secret = kept_secret(store, &mut unwritten)?;
    let parts = parts_of(loaded.clone(), store, (&stamps, secret), node, (clock, service))?;
    let shards = Shards::new(&parts.shared);
    let http = parts.start_http(&shards, parts.metrics())?;
    http.write_token(&mut unwritten)?;
    let exporter = telemetry::start(&parts)?;
    let is_stamped = store.map_or(Ok(true), |store| stamp_files(store, &mut unwritten))?;
    let mut restored = restore(store, &parts, &rules, (journals, is_stamped), &mut unwritten)?;
    let streams = open_streams(store, &parts, node, &mut restored)?;
    let made = workers::make_mailboxes(workers::count(parts.config(), restored.len()))?;
    let workers = start_workers(&parts, restored, made, (streams.as_ref(), None))?;
    let streams = streams
        .map(|streams| streams.start(&workers.mailboxes, &parts.life_cycle, &workers.line_pace));
    let streams = streams.transpose()?;
    shards.open(&workers.mailboxes);
    if let Some(streams) = &streams {
        // Nobody else sets it.
        let _ = parts.streams.set(streams.handle.clone());
        if let Some(member) = &parts.member {
            let _ = member.streams.set(streams.handle.clone());
        }
        // The API may have suspended a namespace since the rules were read.
        streams.handle.inbox.call(|owner| owner.follow_namespaces());
    }
    if !is_stamped {
        let mailboxes = workers.mailboxes.clone();
        unwritten.write_later("the stamps of the logs", move || {
            let finish = || Item::Order(worker::Order::FinishStamps);
            mailboxes.iter().for_each(|mailbox| mailbox.put(finish()));
            Ok(())
        });
    }
    if let Some(member) = &parts.member {
        node::listen_to_cluster(member, &parts.life_cycle, &shards);
    }
    let control = match node {
        // It has one since it began to follow.
        Some(_) => None,
        None => {
            store.map(|store| open_broker_control(store, &workers, &parts.streams, &mut unwritten))
        }
    };
    let running = Running { parts, rules, http };
    let upkeep = Upkeep { clock_watch, unwritten, files };
    Ok(Started { _store: opened, running, workers, streams, upkeep, control, exporter })
}

/// A node with the lease that cannot serve begins again as a standby: what it lacks may come, and
/// another node may have it. A process without a cluster ends.
fn give_up(node: Option<Active>, error: anyhow::Error) -> anyhow::Error {
    match node {
        Some(node) => node.begin_again(&error),
        None => error,
    }
}

/// False: some of them have to wait for space.
fn stamp_files(store: &Store, unwritten: &mut Unwritten) -> anyhow::Result<bool> {
    let (stamps, directory) = (store.stamps().clone(), store.data().path().to_owned());
    let renew = move || stamps.renew(&directory).context("cannot write the small files");
    unwritten.write("the stamps of the small files", renew)
}

fn open_store(config: &Config, node: Option<&Active>) -> anyhow::Result<Option<Store>> {
    match node {
        Some(node) => Ok(Some(Store::of_cluster(&node.clustered))),
        None => Store::open(config),
    }
}

/// The parts of a broker that serves.
fn parts_of(
    loaded: Arc<Loaded>,
    store: Option<&Store>,
    (stamps, decoy_secret): (&Stamps, Option<[u8; 32]>),
    node: Option<&Active>,
    (clock, service): (Clock, &ServiceManager),
) -> anyhow::Result<Parts> {
    let server = &loaded.config.server;
    let ground = Ground {
        directory: store.map(|store| store.data().path()),
        stamps,
        homes: Homes::of_one_cell(store.map_or(server.shards, Store::shards)),
        cell: None,
        journals: store.map_or(0, Store::shards),
        workers: server.workers,
        decoy_secret,
        member: node.map(|node| node.clustered.member.clone()),
        service: service.clone(),
    };
    let parts = Parts::make(loaded, ground, clock)?;
    if let Some(member) = &parts.member {
        node::depend_on_cluster(&parts.health, member, &parts.board);
    }
    Ok(parts)
}

/// The shards as they were, or empty ones where nothing is kept. From here on the broker may serve.
fn restore(
    store: Option<&Store>,
    parts: &Parts,
    rules: &BrokerRules,
    (journals, is_stamped): (Option<Vec<TakenJournal>>, bool),
    unwritten: &mut Unwritten,
) -> anyhow::Result<Vec<Restoration>> {
    parts.rule_files.set(rules.files());
    let rules = rules.of_scopes(&parts.namespaces.all());
    let Some(store) = store else { return Ok(workers::empty_shards(&parts.shared, &rules)) };
    let restored = store.restore(parts, &rules, journals, is_stamped)?;
    if parts.namespaces.is_unsettled() {
        let (namespaces, reloads) = (parts.namespaces.clone(), parts.reloads.clone());
        unwritten.write_later("the names of new namespaces", move || {
            namespaces.try_space()?;
            // With the names come their rules, as with any change of the configuration.
            reloads.ask().context("cannot reload").map(drop)
        });
    }
    store.finish_start(&restored)?;
    Ok(restored)
}

/// Streams and rules, as far as the configuration has some.
fn open_streams(
    store: Option<&Store>,
    parts: &Parts,
    node: Option<&Active>,
    restored: &mut [Restoration],
) -> anyhow::Result<Option<routing::Prepared>> {
    let config = parts.config();
    let mut shards: Vec<_> = restored.iter_mut().map(|(shard, _)| shard).collect();
    let (Some(own), Some(store)) = (&config.routing, store) else {
        routing::note_unused(&mut shards);
        return Ok(None);
    };
    let Some(loaded) = routing::load(config, &parts.configured)? else { return Ok(None) };
    let ground = routing::Ground {
        directory: store.data().path().to_owned(),
        stamps: store.stamps().clone(),
        namespaces: parts.namespaces.clone(),
        memory_bytes_max: own.memory_bytes_max,
        free_disk_bytes_min: own.free_disk_bytes_min,
        clock: parts.clock,
        cluster: node.map(|node| node.in_cluster(own)).transpose()?,
    };
    routing::prepare(loaded, ground, &mut shards).map(Some)
}

/// Returns when all journals take what is written.
fn start_workers(
    parts: &Parts,
    restored: Vec<Restoration>,
    mailboxes: workers::Mailboxes,
    (streams, post): (Option<&routing::Prepared>, Option<&cells::Post>),
) -> anyhow::Result<Workers> {
    let Parts { board, turns, life_cycle, limiter, authenticator, authorizer, clock, .. } = parts;
    let acting = &parts.member.as_ref().map(|member| member.acting.clone());
    let inbox = streams.map(|streams| streams.handle().inbox);
    let streams = inbox.as_ref();
    let observers = Observers { board, turns, life_cycle, limiter, acting, streams, post };
    let gate = (authenticator, authorizer.as_ref());
    let workers = Workers::start(parts.config(), (restored, mailboxes), observers, gate, *clock)?;
    match workers.wait_until_open(board, acting.as_ref()) {
        Ok(()) => Ok(workers),
        Err(error) => {
            // A cell begins again in this process: none of its threads may stay.
            if acting.is_some() {
                workers.abandon();
            }
            Err(error)
        }
    }
}

fn open_broker_control(
    store: &Store,
    workers: &Workers,
    streams: &Arc<OnceLock<StreamsHandle>>,
    unwritten: &mut Unwritten,
) -> Arc<Mutex<Option<Control>>> {
    let streams = streams.clone();
    let (shards, mailboxes) = (usize::from(store.shards()), workers.mailboxes.clone());
    let (directory, opened) = (store.data().path().to_owned(), Arc::default());
    let of_later: Arc<Mutex<Option<Control>>> = Arc::clone(&opened);
    let open = move || {
        let (mailboxes, streams) = (mailboxes.clone(), streams.clone());
        let owner = control::Owner::Workers { shards, mailboxes, streams };
        let control = Control::open(&directory, owner)?;
        *of_later.lock().unwrap_or_else(PoisonError::into_inner) = Some(control);
        Ok(())
    };
    if let Err(error) = unwritten.write("the socket for backups", open) {
        warn_of_no_control(&error);
    }
    opened
}

/// The parts behind the listeners.
struct Running {
    parts: Parts,
    /// Those of the start.
    rules: BrokerRules,
    http: HttpServers,
}

impl Running {
    /// Opens the listeners, and closes them when the broker is requested to stop.
    fn serve(
        &self,
        workers: &Workers,
        mut signals: Signals,
        node: Option<&Active>,
        upkeep: Upkeep,
        reread: &Reread<'_>,
    ) -> anyhow::Result<()> {
        let (parts, config) = (&self.parts, self.parts.config());
        watch::catch_stops(&signals)?;
        node.map_or(Ok(()), Active::hand_over_signals)?;
        let listeners = listen::bind_all(config, &parts.limiter, &parts.authenticator)?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let context =
            parts.acceptor_context(&workers.mailboxes, &workers.line_pace, &is_stopping, None)?;
        // Bridges queue what the first client publishes.
        let bridges = Bridges::start(parts, &workers.mailboxes)?;
        let acceptors = start_acceptors(config, listeners.bound, &context)?;
        for url in listeners.urls.iter().cloned().chain(self.http.urls()) {
            tracing::info!(url, "listening");
        }
        parts.health.set_ready();
        parts.service.watch(Watched {
            mailboxes: workers.mailboxes.clone(),
            turns: parts.turns.clone(),
            acting: parts.member.as_ref().map(|member| member.acting.clone()),
        });
        parts.service.ready(parts.describe());
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            commit = env!("BUILD_COMMIT"),
            workers = workers.count(),
            shards = parts.shared.homes.shards(),
            durability = config.durability.level.as_str(),
            "ready"
        );
        self.http.print_link();
        if let Some(node) = node {
            node.note_serving();
        }
        let counts = parts.limiter.listeners();
        let checker = parts.self_checks.start(config, &parts.shared, &listeners.urls, &counts);
        let checker = checker.context("cannot start a thread")?;
        let tls = [listeners.tls, self.http.tls.clone()].concat();
        let files = upkeep.files.clone();
        let alone = (RoleOf::Process, watch::Elsewhere::nowhere());
        let watch = self.watch(workers, &acceptors, &tls, (reread, files), alone)?;
        watch.until_stopped(watch::asks(&mut signals), upkeep);
        if let Some(checker) = &checker {
            checker.stop();
        }
        parts.health.set(State::Stopping);
        parts.service.stopping(Duration::from_secs(config.server.shutdown_grace_secs.into()));
        tracing::info!(grace_secs = config.server.shutdown_grace_secs, "stopping");
        is_stopping.store(true, Ordering::Release);
        bridges.stop();
        acceptors.stop();
        Ok(())
    }

    fn watch<'a>(
        &'a self,
        workers: &'a Workers,
        acceptors: &Acceptors,
        tls: &'a [(String, Arc<TlsContext>)],
        (reread, files): (&'a Reread<'a>, Arc<FileWatch>),
        (role_of, elsewhere): (RoleOf, watch::Elsewhere),
    ) -> anyhow::Result<watch::Watch<'a>> {
        let parts = &self.parts;
        let (namespaces, mailboxes) = (&parts.namespaces, &workers.mailboxes);
        parts.live.add_line_pace(&workers.line_pace);
        Ok(watch::Watch {
            config: parts.config(),
            settings: &parts.loaded.settings,
            live: &parts.live,
            reread,
            keeper: Keeper::start(namespaces, mailboxes, parts.shared.homes.shards())?,
            shared: &parts.shared,
            limiter: &parts.limiter,
            mailboxes,
            board: &parts.board,
            certificates: &parts.certificates,
            authenticator: &parts.authenticator,
            namespaces,
            streams: &parts.streams,
            rule_files: &parts.rule_files,
            in_force: Mutex::new(watch::InForce {
                namespaces: parts.configured.clone(),
                rules: self.rules.clone(),
            }),
            reloads: &parts.reloads,
            files,
            line_pace: &workers.line_pace,
            life_cycle: &parts.life_cycle,
            history: &parts.history,
            service: &parts.service,
            member: parts.member.as_ref(),
            role_of,
            api_authenticator: self.http.api_authenticator.as_deref(),
            tls,
            clock: parts.clock,
            largest_elsewhere: elsewhere.largest,
            sys_totals: elsewhere.totals,
            purge: self.purge(workers, acceptors),
        })
    }

    /// Has all threads that allocate much give back what is free.
    fn purge(&self, workers: &Workers, acceptors: &Acceptors) -> Arc<dyn Fn() + Send + Sync> {
        let (mailboxes, pool) = (workers.mailboxes.clone(), workers.pool.clone());
        let (acceptors, authenticator) =
            (acceptors.mailboxes.clone(), self.parts.authenticator.clone());
        Arc::new(move || {
            memory::ask_to_purge();
            mailboxes.iter().for_each(|mailbox| mailbox.put(Item::Order(worker::Order::Purge)));
            pool.wake_idle();
            acceptors.iter().for_each(|mailbox| mailbox.wake());
            authenticator.wake();
            memory::purge_if_asked();
        })
    }
}

/// Reads the files that the configuration names: passwords, access rules, certificates. Looks
/// whether the log file can be written. Returns what can be used and yet should be known.
///
/// # Errors
///
/// What [`serve`] would say of the first that cannot be used.
pub fn check_files(config: &Config) -> anyhow::Result<Vec<String>> {
    Logging::check(&config.log)?;
    let data_dir = &config.server.data_dir;
    if config.durability.has_journal() || config.api.is_some() {
        check_directory(data_dir)?;
    }
    config
        .api
        .as_ref()
        .map(|own| api::check_files(own, &config.namespaces, data_dir))
        .transpose()?;
    rules::load(config)?;
    if let Some(path) = &config.auth.password_file {
        PasswordFile::load(path)?;
    }
    ::identity::auth::check_files(&config.authentication)?;
    config.authorization.as_ref().map(Authorizer::check).transpose()?;
    Bans::check_file(&config.auth).map_err(anyhow::Error::msg)?;
    config.cluster.as_ref().map(crate::cluster::check_files).transpose()?;
    let mut notes = config::notes(config);
    notes.extend(routing::notes(config)?);
    for listener in &config.listeners {
        notes.extend(listen::load_tls(listener)?.and_then(|tls| tls.chain_note()));
    }
    for (name, tls) in config.http_tls_by_key() {
        notes.extend(servers::load_tls(name, tls)?.chain_note());
    }
    Ok(notes)
}

/// It is there, or can be made.
fn check_directory(data_dir: &Path) -> anyhow::Result<()> {
    match data_dir.ancestors().find(|path| path.exists()) {
        Some(found) if !found.is_dir() => {
            let shown = found.display();
            anyhow::bail!("server.data_dir: {shown} is not a directory; {OTHER_DIRECTORY}")
        }
        _ => Ok(()),
    }
}

/// Certificate, key and authorities of each listener and HTTP server that has TLS, read from their
/// files, with its name. Those that cannot be read are an error.
pub fn tls_of_all(config: &Config) -> Vec<(String, anyhow::Result<Arc<TlsContext>>)> {
    let of_listener = |listener: &config::Listener| {
        let loaded = listen::load_tls(listener).transpose()?;
        Some((format!("listener '{}'", listener.name), loaded))
    };
    let listeners = config.listeners.iter().filter_map(of_listener);
    let http = config.http_tls_by_key().into_iter();
    let http = http.map(|(name, tls)| (name.to_owned(), servers::load_tls(name, tls)));
    listeners.chain(http).collect()
}

/// Whether the addresses of the configuration can be listened on.
#[derive(Debug)]
pub enum Addresses {
    Free,
    /// One is taken, and a broker runs on the data directory: its own, in all likelihood.
    TakenByOurs(anyhow::Error),
    /// One cannot be had, and will not be by itself.
    Unusable(anyhow::Error),
    /// One that this machine does not have, or not yet.
    Missing(anyhow::Error),
}

/// Tries all addresses, and leaves them free.
pub fn check_addresses(config: &Config) -> Addresses {
    let Err(error) = listen::try_all(config) else { return Addresses::Free };
    let kind = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::AddrNotAvailable) => Addresses::Missing(error),
        Some(io::ErrorKind::AddrInUse) if data::control::is_served(&config.server.data_dir) => {
            Addresses::TakenByOurs(error)
        }
        _ => Addresses::Unusable(error),
    }
}

/// Without it the broker runs all the same, and what clients see of users that do not exist stays
/// the same as long as the password file does.
/// One that is damaged is refused; without a place for one the broker runs all the same.
fn kept_secret(store: Option<&Store>, unwritten: &mut Unwritten) -> io::Result<Option<[u8; 32]>> {
    let Some(store) = store else { return Ok(None) };
    let (directory, stamps) = (store.data().path().to_owned(), store.stamps().clone());
    match secret::kept(&directory, &stamps) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData || store.is_of_cluster() => {
            Err(error)
        }
        Err(error) => {
            tracing::warn!(
                %error,
                "cannot store a secret in the data directory; see docs/use/authentication.md"
            );
            Ok(None)
        }
        Ok(Kept { secret, is_stored }) => {
            if !is_stored {
                unwritten.write_later("the secret of SCRAM", move || {
                    match secret::kept(&directory, &stamps)?.is_stored {
                        true => Ok(()),
                        false => Err(io::Error::from(io::ErrorKind::StorageFull).into()),
                    }
                });
            }
            Ok(Some(secret))
        }
    }
}

/// Without it the broker runs all the same, and backups need it to be stopped.
fn open_control(directory: &Path, owner: control::Owner) -> Option<Control> {
    Control::open(directory, owner).inspect_err(|error| warn_of_no_control(error)).ok()
}

fn warn_of_no_control(error: &dyn std::fmt::Display) {
    tracing::warn!(%error, "backups of the running broker are disabled: cannot open a socket in \
    the data directory");
}

struct Acceptors {
    mailboxes: Vec<Arc<AcceptorMailbox>>,
    threads: Vec<JoinHandle<()>>,
}

fn start_acceptors(
    config: &Config,
    listeners: Vec<acceptor::BoundListener>,
    context: &Arc<AcceptorContext>,
) -> anyhow::Result<Acceptors> {
    let mut made = Vec::new();
    for _ in 0..config.server.acceptor_threads {
        made.push(acceptor::poll_and_mailbox().context("cannot create an event queue")?);
    }
    let mailboxes: Vec<Arc<AcceptorMailbox>> =
        made.iter().map(|(_, mailbox)| mailbox.clone()).collect();
    let mut listeners = Some(listeners);
    let mut threads = Vec::new();
    for (index, made) in made.into_iter().enumerate() {
        let acceptor = Acceptor::new(
            made,
            mailboxes.clone(),
            listeners.take().unwrap_or_default(),
            context.clone(),
        );
        let run = move || {
            if let Err(error) = rustix::process::nice(ACCEPTOR_NICENESS) {
                tracing::warn!(%error, "cannot lower the priority of a listener thread");
            }
            acceptor.run()
        };
        threads.push(spawn(format!("acceptor-{index}"), None, run)?);
    }
    Ok(Acceptors { mailboxes, threads })
}

/// How much nicer an acceptor is than a worker. When there are more threads than cores, a worker
/// that wakes up waits less for a core. The acceptor still gets a tenth of the time of a busy
/// worker.
const ACCEPTOR_NICENESS: i32 = 10;

impl Acceptors {
    /// Closes the listeners, and what is not admitted yet.
    fn stop(self) {
        for mailbox in &self.mailboxes {
            mailbox.wake();
        }
        join(self.threads);
    }
}

/// Starts a thread. If it ends by an error or a panic the process ends, too: a broker with a part
/// of its shards dead would keep promises of which nobody knows.
fn spawn(
    name: String,
    core: Option<usize>,
    run: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> anyhow::Result<JoinHandle<()>> {
    let body = move || {
        let work = || {
            if let Some(core) = core {
                pin_to(core);
            }
            run()
        };
        if let Err(error) = base::ending_the_process(work) {
            tracing::error!(%error, "a thread of the broker failed; the process exits");
            Logging::flush_installed();
            std::process::abort();
        }
    };
    std::thread::Builder::new()
        .name(name.clone())
        .spawn(body)
        .with_context(|| format!("cannot start thread {name}"))
}

fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // A thread that panicked has ended the process already.
        let _ = thread.join();
    }
}

/// Binds the thread to a core; of those that the process may use, the one with this index.
fn pin_to(index: usize) {
    let allowed = rustix::thread::sched_getaffinity(None);
    let pinned = allowed.and_then(|allowed| {
        let cores: Vec<usize> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        let mut own = rustix::thread::CpuSet::new();
        own.set(cores[index % cores.len()]);
        rustix::thread::sched_setaffinity(None, &own)
    });
    if let Err(error) = pinned {
        tracing::warn!(%error, "cannot pin a worker to a core");
    }
}

/// Each connection is a file descriptor: take as many as the system gives.
fn raise_descriptor_limit(connections_max: u32) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!(limit = ?limit.current, "cannot raise the limit of open files");
    }
    if let Some(open_files) = limit.maximum.filter(|files| *files < FEW_DESCRIPTORS) {
        let text = "the limit of open files is low and few clients can connect: raise it \
        (LimitNOFILE, ulimit -n)";
        tracing::warn!(open_files, connections_max, "{text}");
    }
    reserve_descriptors(limit.maximum.unwrap_or(u64::MAX).min(DESCRIPTORS_RESERVED));
}

/// The kernel doubles a full table of open files and lets all threads wait meanwhile, 10 to 20 ms
/// each time: a storm of connections would meet that eight times before it is 64 Ki strong. Asking
/// once for a high number, while there is one thread, makes the table as large; it never shrinks.
fn reserve_descriptors(count: u64) {
    let highest = i32::try_from(count.saturating_sub(1)).unwrap_or(i32::MAX);
    let reserved = std::fs::File::open("/dev/null")
        .and_then(|any| Ok(rustix::io::fcntl_dupfd_cloexec(&any, highest)?));
    if let Err(error) = reserved {
        tracing::debug!(%error, "cannot reserve file descriptors");
    }
}

/// What most systems allow a service without being asked. Less is worth a warning.
const FEW_DESCRIPTORS: u64 = 4096;

/// Half a megabyte of the kernel's memory.
const DESCRIPTORS_RESERVED: u64 = 64 * 1024;
