//! The running broker: where all parts are made and joined, in the order of their making.
//!
//! Threads: workers (connections and shards), two for the disk of each log, doors (arrivals), the
//! HTTP server, one that answers backups, and the one that called [`serve`], which waits for
//! signals and does what is due each second.

mod accepting;
mod ask;
mod certificates;
mod clock;
pub(crate) mod control;
mod door;
mod drive;
mod gate;
mod identity;
mod keeper;
mod limits;
mod line_pace;
mod listen;
mod logs;
mod mailbox;
mod memory_guard;
mod reauthentication;
mod report;
mod standby;
mod store;
mod timing;
mod watch;
mod worker;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use broker::Shared;
use signal_hook::iterator::Signals;

use crate::api::{self, Api, Facts, Gatekeeper};
use crate::auth::bans::Bans;
use crate::auth::passwords::PasswordFile;
use crate::auth::rules::{self, BrokerRules};
use crate::auth::{Authenticator, random};
use crate::cluster::{Clustered, End, Member, Order, TakenLog, Turn};
use crate::config::{self, ApiAddress, Config, ConfigError, Loaded, Settings, print};
use crate::disk::Stamps;
use crate::http::{self, Health, Metrics, State};
use crate::life_cycle::LifeCycle;
use crate::logging::Logging;
use crate::memory;
use crate::metrics::Sources;
use crate::namespaces::Namespaces;
pub(crate) use ask::{NoAnswer, Shards};
pub use certificates::Certificates;
pub use clock::Clock;
use clock::ClockWatch;
pub use gate::{Counts, Gate, TurnedAway};
pub(crate) use limits::durability;
pub use logs::{FIGURES, Figure, LogBoard, LogState};
pub use report::SYS_EVENTS;
pub use timing::Timing;
pub use watch::resident_bytes;

use control::Control;
use door::{Bell, Door, DoorContext};
use driver::Allowance;
use keeper::Keeper;
use mailbox::Item;
use standby::ClusterDoor;
use store::{OTHER_DIRECTORY, Restoration, Store};
use workers::{Told as WorkersTold, Workers};

/// Reads the configuration again, from where it came.
pub type Reread<'a> = dyn Fn() -> Result<Loaded, ConfigError> + 'a;

/// Runs the broker until it is told to stop.
///
/// # Errors
///
/// What cannot be made at the start: files that cannot be used, addresses that cannot be bound.
pub fn serve(loaded: Loaded, reread: &Reread<'_>) -> anyhow::Result<()> {
    let Loaded { config, settings, derived } = loaded;
    let clock = Clock::start();
    let signals = watch::catch_reloads()?;
    raise_descriptor_limit(config.limits.connections_max);
    let rules = rules::load(&config)?;
    let Joined { clustered, control: node_control, logs } =
        join_cluster(&config, &settings, &derived, clock)?;
    let store = open_store(&config, clustered.as_ref())?;
    let directory = store.as_ref().map(|store| store.data().path());
    let stamps = stamps_of(store.as_ref());
    let clock_watch = clock.resume(directory, &stamps)?;
    let decoy_secret = kept_secret(store.as_ref())?;
    let authenticator =
        Arc::new(Authenticator::start(&config.auth, &config.authentication, decoy_secret, clock)?);
    authenticator.fit_into(config.limits.memory_bytes_max);
    let shards = store.as_ref().map_or(config.server.shards, Store::shards);
    let shared = Shared::new(limits::of_broker(&config), shards, u64::from_le_bytes(random()));
    let namespaces = Arc::new(Namespaces::open(directory, &stamps, &shared, &config.namespaces)?);
    let gate = Arc::new(open_gate(&config, &stamps)?);
    let health = Health::new();
    let board = Arc::new(LogBoard::new(store.as_ref().map_or(0, Store::shards), health.clone()));
    let turns: Arc<[Timing]> = (0..config.server.workers).map(|_| Timing::default()).collect();
    let certificates = Arc::new(Certificates::default());
    let shards_asked = Shards::new(&shared);
    let life_cycle = Arc::new(LifeCycle::new(&config.events, &shared, clock));
    let member = clustered.as_ref().map(|clustered| clustered.member.clone());
    if let Some(member) = &member {
        depend_on_cluster(&health, member, &board);
    }
    let http = {
        let facts = Facts {
            config: config.clone(),
            settings: print::rows(&settings, &derived),
            clock,
            health: health.clone(),
            gate: gate.clone(),
            board: board.clone(),
            certificates: certificates.clone(),
            life_cycle: life_cycle.clone(),
            namespaces: namespaces.clone(),
            member: member.clone(),
        };
        let metrics = metrics_of(&shared, &turns, &facts);
        start_http(&config, metrics, &shards_asked, facts)?
    };
    let taken = logs.zip(member.clone());
    let owners = (&namespaces, &gate);
    let restored = restore(store.as_ref(), &config, &shared, &rules, owners, clock, taken)?;
    let acting = &member.as_ref().map(|member| member.acting.clone());
    let told =
        WorkersTold { board: &board, turns: &turns, life_cycle: &life_cycle, gate: &gate, acting };
    let workers = Workers::start(&config, restored, told, &authenticator, clock)?;
    workers.wait_until_open(&board)?;
    shards_asked.open(&workers.mailboxes);
    if let Some(member) = &member {
        listen_to_cluster(member, &life_cycle, &shards_asked);
    }
    let control = node_control.or_else(|| open_broker_control(store.as_ref()?, &workers));
    let line_pace = workers.line_pace.clone();
    let running = Running {
        config,
        settings,
        clock,
        shared,
        gate,
        board,
        certificates,
        authenticator,
        namespaces,
        rules,
        http,
        health,
        life_cycle,
        member,
    };
    let served = running.serve(&workers, signals, clock_watch, reread);
    running.health.set(State::Stopping);
    drop(control);
    stop_workers(workers, clustered.as_ref());
    line_pace.tell_withheld(clock.now_ms());
    tracing::info!("stopped");
    served
}

/// An active node is ready only while it has the lease, and all logs take what is written.
fn depend_on_cluster(health: &Health, member: &Member, board: &Arc<LogBoard>) {
    let (member, board) = (member.clone(), board.clone());
    health.depend_on(move || member.suspension().or_else(|| board.why_not_ready()));
}

/// What happens to the node is an event of the broker, and shown on `$SYS`.
fn listen_to_cluster(member: &Member, life_cycle: &Arc<LifeCycle>, shards: &Shards) {
    let (own, life_cycle, shards) = (member.clone(), life_cycle.clone(), shards.clone());
    member.teller.set(Box::new(move |happened| {
        life_cycle.on_other(happened).into_iter().for_each(|message| shards.publish(message));
        own.sys_messages().into_iter().for_each(|message| shards.publish(message));
    }));
}

/// Ends the workers in order, and in a cluster gives the role back. After a switchover the process
/// begins again as a standby.
fn stop_workers(workers: Workers, clustered: Option<&Clustered>) {
    let Some(clustered) = clustered else { return workers.stop() };
    if !clustered.member.acting.is_held() {
        // Workers wait for the lease, and nothing may leave. What was promised is in the streams.
        tracing::warn!("stopped without the lease: connections are closed without a word");
        Logging::flush_installed();
        std::process::exit(0);
    }
    end_at_last(workers.shutdown_grace() + RELEASE_TIMEOUT);
    workers.stop();
    let successor = clustered.member.successor.get();
    clustered.member.order(Order::Release(successor.clone()));
    let released = clustered.turns.recv_timeout(RELEASE_TIMEOUT);
    if !matches!(released, Ok(Turn::Released)) {
        tracing::warn!("the lease could not be given back: others take over when it has run out");
    }
    if let Some(to) = successor {
        crate::cluster::begin_again(&End::SwitchedOver { to });
    }
}

/// The lease may run out while the workers stop, and then they wait for it. What was promised is in
/// the streams, so the process may end at any time.
fn end_at_last(after: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        tracing::warn!("stopping took too long: connections are closed without a word");
        Logging::flush_installed();
        std::process::exit(0);
    });
}

/// How long the engine has to take the lease back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a node of a cluster has when it is active. All `None` for a single broker.
#[derive(Default)]
struct Joined {
    clustered: Option<Clustered>,
    /// Backups are taken from a node whatever its role.
    control: Option<Control>,
    logs: Option<Vec<TakenLog>>,
}

/// Becomes a node, where a cluster is configured, and returns when the node is active.
fn join_cluster(
    config: &Config,
    settings: &Settings,
    derived: &[config::Derived],
    clock: Clock,
) -> anyhow::Result<Joined> {
    let Some(cluster) = &config.cluster else { return Ok(Joined::default()) };
    let waiting = crate::cluster::Waiting::default();
    let begun = Clustered::begin(config, cluster, &waiting, std::future::pending::<()>())?;
    let Some(clustered) = begun else { return Ok(Joined::default()) };
    let owner = control::Owner::Member(clustered.member.clone());
    let control = open_control(clustered.data.path(), owner);
    let logs = Some(standby::wait(config, settings, derived, &clustered, clock)?);
    Ok(Joined { clustered: Some(clustered), control, logs })
}

fn open_store(config: &Config, clustered: Option<&Clustered>) -> anyhow::Result<Option<Store>> {
    match clustered {
        Some(clustered) => Ok(Some(Store::of_cluster(clustered))),
        None => Store::open(config),
    }
}

fn open_broker_control(store: &Store, workers: &Workers) -> Option<Control> {
    let (shards, mailboxes) = (usize::from(store.shards()), workers.mailboxes.clone());
    open_control(store.data().path(), control::Owner::Workers { shards, mailboxes })
}

fn stamps_of(store: Option<&Store>) -> Stamps {
    store.map(|store| store.stamps().clone()).unwrap_or_default()
}

fn open_gate(config: &Config, stamps: &Stamps) -> anyhow::Result<Gate> {
    let bans =
        Bans::load(&config.auth, &config.server.data_dir, stamps).map_err(anyhow::Error::msg)?;
    Ok(Gate::with_bans(config.limits.connections_max, bans))
}

/// The shards as they were, or empty ones where nothing is kept. From here on the broker may serve.
fn restore(
    store: Option<&Store>,
    config: &Config,
    shared: &Arc<Shared>,
    rules: &BrokerRules,
    (namespaces, gate): (&Arc<Namespaces>, &Arc<Gate>),
    clock: Clock,
    taken: Option<(Vec<TakenLog>, Member)>,
) -> anyhow::Result<Vec<Restoration>> {
    let rules = rules.of_scopes(&namespaces.all());
    let Some(store) = store else { return Ok(workers::empty_shards(shared, &rules)) };
    let restored = store.restore(config, shared, &rules, namespaces, clock, taken)?;
    gate.bans.renew().context("cannot write the file of bans")?;
    store.finish_start(&restored)?;
    Ok(restored)
}

/// The parts behind the listeners.
struct Running {
    config: Config,
    /// From which that was made.
    settings: Settings,
    clock: Clock,
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    board: Arc<LogBoard>,
    certificates: Arc<Certificates>,
    authenticator: Arc<Authenticator>,
    namespaces: Arc<Namespaces>,
    /// Those of the start.
    rules: BrokerRules,
    http: HttpServers,
    health: Health,
    life_cycle: Arc<LifeCycle>,
    /// In a cluster.
    member: Option<Member>,
}

impl Running {
    /// Opens the listeners, and closes them when the broker is told to stop.
    fn serve(
        &self,
        workers: &Workers,
        signals: Signals,
        clock_watch: ClockWatch,
        reread: &Reread<'_>,
    ) -> anyhow::Result<()> {
        let config = &self.config;
        watch::catch_stops(&signals)?;
        let listeners = listen::bind_all(config, &self.gate, &self.authenticator)?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let context = self.door_context(workers, &is_stopping)?;
        let tls = listeners.tls.clone();
        let urls = listeners.urls.clone();
        let doors = start_doors(config, listeners.portals, &context)?;
        for url in urls {
            tracing::info!(url, "listening");
        }
        for url in self.http.urls() {
            tracing::info!(url, "listening");
        }
        self.health.set_ready();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            workers = workers.count(),
            shards = self.shared.shard_count,
            durability = config.durability.level.as_str(),
            "ready"
        );
        let (namespaces, mailboxes) = (&self.namespaces, &workers.mailboxes);
        let keeper = Keeper::start(namespaces, mailboxes, self.shared.shard_count)?;
        let watch = watch::Watch {
            config,
            settings: &self.settings,
            reread,
            keeper,
            shared: &self.shared,
            gate: &self.gate,
            mailboxes: &workers.mailboxes,
            board: &self.board,
            certificates: &self.certificates,
            authenticator: &self.authenticator,
            namespaces: &self.namespaces,
            in_force: Mutex::new(watch::InForce {
                namespaces: config.namespaces.clone(),
                rules: self.rules.clone(),
            }),
            line_pace: &workers.line_pace,
            life_cycle: &self.life_cycle,
            member: self.member.as_ref(),
            gatekeeper: self.http.gatekeeper.as_deref(),
            tls: &tls,
            clock: self.clock,
            purge: self.purge(workers, &doors),
        };
        watch.until_stopped(signals, clock_watch);
        self.health.set(State::Stopping);
        tracing::info!(grace_secs = config.server.shutdown_grace_secs, "stopping");
        is_stopping.store(true, Ordering::Release);
        doors.stop();
        Ok(())
    }

    /// What all doors know.
    fn door_context(
        &self,
        workers: &Workers,
        is_stopping: &Arc<AtomicBool>,
    ) -> anyhow::Result<Arc<DoorContext>> {
        let limits = &self.config.limits;
        let name_maker = self.namespaces.start_maker().context("cannot start a thread")?;
        Ok(Arc::new(DoorContext {
            shared: self.shared.clone(),
            mailboxes: workers.mailboxes.clone(),
            authenticator: self.authenticator.clone(),
            namespaces: self.namespaces.clone(),
            life_cycle: self.life_cycle.clone(),
            name_maker,
            clock: self.clock,
            connect_timeout_ms: u64::from(limits.connect_timeout_secs) * 1000,
            connections_per_second_max: limits.connections_per_second_max,
            line_pace: workers.line_pace.clone(),
            allowance: Arc::new(Allowance::new(
                limits.arrivals_bytes_max,
                limits.arrivals_bytes_per_address_max,
            )),
            is_stopping: is_stopping.clone(),
            cluster: self.cluster_door(),
        }))
    }

    fn cluster_door(&self) -> Option<ClusterDoor> {
        let member = self.member.clone()?;
        Some(ClusterDoor::new(member, &self.config, false))
    }

    /// Has all threads that allocate much give back what is free.
    fn purge(&self, workers: &Workers, doors: &Doors) -> Arc<dyn Fn() + Send + Sync> {
        let (mailboxes, crew) = (workers.mailboxes.clone(), workers.crew.clone());
        let (bells, authenticator) = (doors.bells.clone(), self.authenticator.clone());
        Arc::new(move || {
            memory::ask_to_purge();
            mailboxes.iter().for_each(|mailbox| mailbox.put(Item::Order(worker::Order::Purge)));
            crew.wake_idle();
            bells.iter().for_each(|bell| bell.wake());
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
    if config.durability.has_log() || config.api.is_some() {
        check_directory(data_dir)?;
    }
    config.api.as_ref().map(|own| api::check_files(own, data_dir)).transpose()?;
    rules::load(config)?;
    if let Some(path) = &config.auth.password_file {
        PasswordFile::load(path)?;
    }
    crate::auth::check_files(&config.authentication)?;
    Bans::check_file(&config.auth).map_err(anyhow::Error::msg)?;
    config.cluster.as_ref().map(crate::cluster::check_files).transpose()?;
    let mut notes = config::notes(config);
    for listener in &config.listeners {
        notes.extend(listen::load_tls(listener)?.and_then(|tls| tls.chain_note()));
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
        Some(io::ErrorKind::AddrInUse) if control::is_served(&config.server.data_dir) => {
            Addresses::TakenByOurs(error)
        }
        _ => Addresses::Unusable(error),
    }
}

/// For metrics and probes, and for the API if it has an address of its own.
#[derive(Default)]
struct HttpServers {
    pages: Option<web::Server>,
    api: Option<web::Server>,
    gatekeeper: Option<Arc<Gatekeeper>>,
}

impl HttpServers {
    fn urls(&self) -> impl Iterator<Item = String> {
        let own_path = self.api.as_ref().map(|server| (server, api::PREFIX));
        let all = self.pages.as_ref().map(|server| (server, "")).into_iter().chain(own_path);
        all.map(|(server, path)| format!("http://{}{path}", server.address()))
    }
}

fn metrics_of(shared: &Arc<Shared>, turns: &Arc<[Timing]>, facts: &Facts) -> Metrics {
    let (shared, turns, clock) = (shared.clone(), turns.clone(), facts.clock);
    let (gate, board) = (facts.gate.clone(), facts.board.clone());
    let (certificates, life_cycle) = (facts.certificates.clone(), facts.life_cycle.clone());
    let member = facts.member.clone();
    Arc::new(move || {
        let cluster = member.as_ref().map(Member::figures);
        crate::metrics::exposition(&Sources {
            shared: &shared,
            gate: &gate,
            board: &board,
            turns: &turns,
            certificates: &certificates,
            life_cycle: &life_cycle,
            cluster: cluster.as_ref(),
            clock,
        })
    })
}

fn start_http(
    config: &Config,
    metrics: Metrics,
    shards: &Shards,
    facts: Facts,
) -> anyhow::Result<HttpServers> {
    let mut servers = HttpServers::default();
    let health = facts.health.clone();
    let made = config.api.as_ref().map(|own| Api::new(own, shards.clone(), facts)).transpose();
    let made = made.context("the management API")?;
    servers.gatekeeper = made.as_ref().map(|api| api.gatekeeper.clone());
    let mut routes = made.map(api::router);
    let limits = web::Limits::default();
    let guard = |address: SocketAddr, routes| match address.ip().is_loopback() {
        true => http::guarded(routes, &config.http_hosts),
        false => routes,
    };
    if let Some(ApiAddress::Own(address)) = config.api.as_ref().map(|own| own.listen)
        && let Some(routes) = routes.take()
    {
        let server = web::Server::start(address, limits, guard(address, routes));
        let fault = || format!("cannot listen on http://{address}; choose another api.listen");
        servers.api = Some(server.with_context(fault)?);
    }
    if let Some(address) = config.http {
        let pages = http::router(health, metrics);
        let router = match routes {
            Some(routes) => pages.merge(routes),
            None => pages,
        };
        let server = web::Server::start(address, limits, guard(address, router));
        servers.pages = Some(server.with_context(|| listen::http_fault(address))?);
    }
    if let Some(own) = &config.api
        && let Some(server) = servers.api.as_ref().or(servers.pages.as_ref())
    {
        let url = format!("http://{}", server.address());
        api::token::note_url(&own.token_file, &url)
            .context("cannot write the token file of the API")?;
    }
    Ok(servers)
}

/// Without it the broker runs all the same, and what clients see of users that do not exist stays
/// the same as long as the password file does.
/// One that is damaged is refused; without a place for one the broker runs all the same.
fn kept_secret(store: Option<&Store>) -> io::Result<Option<[u8; 32]>> {
    let Some(store) = store else { return Ok(None) };
    match crate::auth::secret::kept(store.data().path(), store.stamps()) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
        Err(error) => {
            tracing::warn!(%error, "cannot store a secret in the data directory; see docs/security.md");
            Ok(None)
        }
        Ok(secret) => Ok(Some(secret)),
    }
}

/// Without it the broker runs all the same, and backups need it to be stopped.
fn open_control(directory: &Path, owner: control::Owner) -> Option<Control> {
    let opened = Control::open(directory, owner);
    let warn = |error: &io::Error| {
        tracing::warn!(%error, "no backups while running: cannot open a socket in the data directory");
    };
    opened.inspect_err(warn).ok()
}

struct Doors {
    bells: Vec<Arc<Bell>>,
    threads: Vec<JoinHandle<()>>,
}

fn start_doors(
    config: &Config,
    portals: Vec<door::Portal>,
    context: &Arc<DoorContext>,
) -> anyhow::Result<Doors> {
    let mut made = Vec::new();
    for _ in 0..config.server.door_threads {
        made.push(door::poll_and_bell().context("cannot make an event queue")?);
    }
    let bells: Vec<Arc<Bell>> = made.iter().map(|(_, bell)| bell.clone()).collect();
    let mut portals = Some(portals);
    let mut threads = Vec::new();
    for (index, made) in made.into_iter().enumerate() {
        let door =
            Door::new(made, bells.clone(), portals.take().unwrap_or_default(), context.clone());
        let run = move || {
            if let Err(error) = rustix::process::nice(DOOR_NICENESS) {
                tracing::warn!(%error, "cannot lower the priority of a listener thread");
            }
            door.run()
        };
        threads.push(spawn(format!("door-{index}"), None, run)?);
    }
    Ok(Doors { bells, threads })
}

/// How much nicer a door is than a worker. When there are more threads than cores, a worker that
/// wakes up waits less for a core; and the door still gets a tenth of what a worker gets that is
/// never idle.
const DOOR_NICENESS: i32 = 10;

impl Doors {
    /// Closes the listeners, and what is not admitted yet.
    fn stop(self) {
        for bell in &self.bells {
            bell.wake();
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
        let abort = AbortOnUnwind;
        if let Some(core) = core {
            pin_to(core);
        }
        if let Err(error) = run() {
            tracing::error!(%error, "a thread of the broker failed; the process ends");
            Logging::flush_installed();
            std::process::abort();
        }
        std::mem::forget(abort);
    };
    std::thread::Builder::new()
        .name(name.clone())
        .spawn(body)
        .with_context(|| format!("cannot start thread {name}"))
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
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
        let text = "few clients can connect: raise the limit of open files (LimitNOFILE, ulimit)";
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
        tracing::debug!(%error, "cannot reserve descriptors");
    }
}

/// What most systems allow a service without being asked. Less is worth a warning.
const FEW_DESCRIPTORS: u64 = 4096;

/// Half a megabyte of the kernel's memory.
const DESCRIPTORS_RESERVED: u64 = 64 * 1024;
