//! The control plane: signals, `$SYS`, memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use broker::sys::{self, Figures, SysTopics, Values};
use broker::{Memory, Shared};
use net::TlsContext;
use session::Message;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::Reread;
use super::certificates::Certificates;
use super::clock::ClockWatch;
use super::file_watch::{FileWatch, Part};
use super::journals::{FIGURES, JournalBoard};
use super::keeper::Keeper;
use super::limiter::ConnectionLimiter;
use super::live::LiveSettings;
use super::mailbox::{Item, Mailbox};
use super::memory_guard::{Bytes, MemoryGuard};
use super::own_files::OwnFiles;
use super::reloads::{Reloaded, Reloads};
use super::routing;
use super::service::ServiceManager;
use super::unwritten::Unwritten;
use crate::api::ApiAuthenticator;
use crate::cluster::{Member, RoleOf};
use crate::history::History;
use crate::life_cycle::LifeCycle;
use crate::life_cycle::line_pace::LinePace;
use crate::logging::Logging;
use base::Clock;
use base::shown;
use config::{self, Config, ConfigError, Loaded, Namespace, NamespaceState, Settings};
use identity::auth::Authenticator;
use identity::auth::rules::RuleFiles;
use identity::auth::rules::{self, BrokerRules};
use identity::namespaces::Namespaces;

/// How often the clock is looked at, and withheld lines of the log are counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(400);

/// How long what was cut has to show in the memory before more is.
const CUT_INTERVAL: Duration = Duration::from_millis(200);

/// Of those who hold most, so many are named when memory is short.
const LARGEST_MAX: usize = 5;

/// Changed keys that are named when the configuration is read again.
const KEYS_TOLD: usize = 20;

/// How often certificates that expire soon are logged.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// From now on SIGHUP, SIGUSR1 and SIGUSR2 wait for [`Watch::until_stopped`] instead of ending the
/// process. SIGTERM and SIGINT still end it, until [`catch_stops`]: a start that reads a long
/// journal can be given up. A node of a cluster catches these from the start ([`super::stops`]).
pub(super) fn catch_reloads() -> std::io::Result<Signals> {
    Signals::new([SIGHUP, SIGUSR1, SIGUSR2])
}

/// From now on the process ends in order only.
pub(super) fn catch_stops(signals: &Signals) -> std::io::Result<()> {
    signals.add_signal(SIGINT)?;
    signals.add_signal(SIGTERM)
}

/// What a running broker is asked to do.
pub(super) enum Ask {
    Reload,
    /// Files have changed.
    ReloadChanged,
    /// Files of access rules have changed. To a cell, whose node looks at files.
    ReloadRules,
    Stop,
}

/// The requests behind signals. Those that mean nothing are logged.
pub(super) fn asks(signals: &mut Signals) -> impl Iterator<Item = Ask> {
    signals.forever().filter_map(|signal| match signal {
        SIGHUP => Some(Ask::Reload),
        SIGUSR2 => Some(Ask::ReloadChanged),
        // By default it ends a process; scripts made for mosquitto send it.
        SIGUSR1 => {
            note_ignored("SIGUSR1");
            None
        }
        _ => Some(Ask::Stop),
    })
}

fn note_ignored(signal: &str) {
    tracing::info!(signal, "signal ignored: SIGHUP reloads, SIGTERM stops");
}

pub(super) struct Watch<'a> {
    pub(super) config: &'a Config,
    /// From which that was made.
    pub(super) settings: &'a Settings,
    pub(super) live: &'a Arc<LiveSettings>,
    pub(super) reread: &'a Reread<'a>,
    pub(super) keeper: Keeper,
    pub(super) shared: &'a Arc<Shared>,
    pub(super) limiter: &'a Arc<ConnectionLimiter>,
    pub(super) mailboxes: &'a Arc<[Arc<Mailbox>]>,
    pub(super) board: &'a Arc<JournalBoard>,
    pub(super) certificates: &'a Arc<Certificates>,
    pub(super) authenticator: &'a Arc<Authenticator>,
    pub(super) namespaces: &'a Arc<Namespaces>,
    pub(super) streams: &'a OnceLock<routing::StreamsHandle>,
    pub(super) rule_files: &'a Arc<RuleFiles>,
    pub(super) line_pace: &'a Arc<LinePace>,
    pub(super) life_cycle: &'a Arc<LifeCycle>,
    pub(super) history: &'a Arc<History>,
    pub(super) service: &'a ServiceManager,
    /// In a cluster.
    pub(super) member: Option<&'a Member>,
    pub(super) role_of: RoleOf,
    /// Of the API, if it is on.
    pub(super) api_authenticator: Option<&'a ApiAuthenticator>,
    pub(super) tls: &'a [(String, Arc<TlsContext>)],
    pub(super) clock: Clock,
    pub(super) in_force: Mutex<InForce>,
    pub(super) reloads: &'a Reloads,
    pub(super) files: Arc<FileWatch>,
    pub(super) largest_elsewhere: LargestElsewhere,
    pub(super) sys_totals: SysTotals,
    /// Has all threads give back what is free of their memory.
    pub(super) purge: Arc<dyn Fn() + Send + Sync>,
}

/// What the data directory needs now and then.
pub(super) struct Upkeep {
    pub(super) clock_watch: ClockWatch,
    pub(super) unwritten: Unwritten,
    pub(super) files: Arc<FileWatch>,
}

impl Upkeep {
    fn look(&mut self) {
        self.clock_watch.look();
        self.unwritten.look();
    }

    /// If another node may have the role, nothing of this one is stored any more.
    fn end(&mut self, member: Option<&Member>) {
        if member.is_none_or(|member| !member.acting.is_lost()) {
            self.clock_watch.note();
        }
    }
}

/// What of the configuration was taken last.
pub(super) struct InForce {
    pub(super) namespaces: Vec<Namespace>,
    pub(super) rules: BrokerRules,
}

impl Watch<'_> {
    /// Waits for the request to stop, and meanwhile does what is due.
    pub(super) fn until_stopped(&self, asks: impl Iterator<Item = Ask>, upkeep: Upkeep) {
        self.note_certificates();
        self.delete_namespaces(&self.config.namespaces);
        let is_over = Arc::new(AtomicBool::new(false));
        let ticker = Ticker::start(self, upkeep, is_over.clone());
        let files = self.files.start(self.rule_files.clone(), || {
            // Without it the files are reloaded with the next signal.
            let _ = signal_hook::low_level::raise(SIGUSR2);
        });
        if let Err(error) = &files {
            tracing::error!(%error, "changed files are not reloaded by themselves: send SIGHUP");
        }
        for ask in asks {
            match ask {
                Ask::Reload => {
                    self.files.note_reload();
                    let waiting = self.reloads.begin();
                    let reloaded = self.service.reload(|| self.reload());
                    for answer in waiting {
                        // It may have gone away.
                        let _ = answer.send(reloaded.clone());
                    }
                }
                Ask::ReloadChanged if self.reload_changed() => {}
                Ask::ReloadChanged => note_ignored("SIGUSR2"),
                Ask::ReloadRules => self.reload_noted(&Part::Rules, &mut Reloaded::default()),
                Ask::Stop => break,
            }
        }
        let grace = Duration::from_secs(self.config.server.shutdown_grace_secs.into());
        match self.member {
            _ if self.role_of.is_cell() => {}
            Some(member) => super::node::end_at_last(member.clone(), grace),
            None => end_in_time(grace),
        }
        drop(files);
        is_over.store(true, Ordering::Release);
        ticker.stop();
    }

    /// Reads passwords, access rules and certificates again, and opens the log file anew. What
    /// cannot be used stays as it was.
    fn reload(&self) -> Reloaded {
        let mut reloaded = Reloaded::default();
        // The rest is its node's.
        if !self.role_of.is_cell() {
            let reopened = Logging::reopen_installed();
            reloaded.note("log file", &reopened);
            if let Err(error) = reopened {
                tracing::error!(%error, "the log file was not reopened; the old one stays in use");
            }
            for part in [Part::Passwords, Part::Registries, Part::Bans, Part::ApiUsers] {
                self.reload_noted(&part, &mut reloaded);
            }
        }
        let read = (self.reread)();
        let wanted = read.as_ref().map_or_else(|_| Vec::new(), |it| it.config.namespaces.clone());
        if let Ok(fresh) = &read {
            log_needs_restart(&config::changes::of_restart(self.settings, &fresh.settings));
        }
        self.reload_settings(&read, &mut reloaded);
        self.reload_namespaces(read.map(|fresh| self.namespaces_of(fresh)), &mut reloaded);
        // Behind the namespaces, which streams name.
        if self.config.routing.is_some() {
            self.reload_noted(&Part::Routing, &mut reloaded);
            self.delete_namespaces(&wanted);
        }
        for (listener, _) in self.tls {
            self.reload_noted(&Part::Tls(listener.clone()), &mut reloaded);
        }
        self.note_certificates();
        reloaded
    }

    fn reload_noted(&self, part: &Part, reloaded: &mut Reloaded) {
        if *part == Part::Registries && !self.authenticator.has_registry() {
            return;
        }
        let done = self.reload_part(part);
        reloaded.note(&part.name(), &done);
        if let Err(error) = done {
            let (error, listener) = (format!("{error:#}"), part.listener());
            let what = part.what();
            tracing::error!(listener, error, "{what} not reloaded; the old ones stay in force");
        }
    }

    /// Reloads what the files of have changed. False: nothing has.
    fn reload_changed(&self) -> bool {
        let changed = self.files.take_changed();
        for part in &changed {
            let done = self.reload_part(part);
            let is_news = self.files.note_outcome(part, done.is_err());
            if let Err(error) = done
                && is_news
            {
                let (error, listener) = (format!("{error:#}"), part.listener());
                let what = part.what();
                tracing::warn!(
                    listener,
                    error,
                    "{what} have changed and cannot be used; the old ones stay in force, retrying"
                );
            }
        }
        if changed.iter().any(|part| matches!(part, Part::Tls(_))) {
            self.note_certificates();
        }
        !changed.is_empty()
    }

    /// Reads the files of a part again: all of it, or nothing.
    fn reload_part(&self, part: &Part) -> anyhow::Result<()> {
        match part {
            Part::Rules => {
                let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
                self.take(in_force.namespaces.clone(), &mut in_force)?;
            }
            Part::Routing => {
                let in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
                let namespaces = in_force.namespaces.clone();
                drop(in_force);
                let loaded = routing::load(self.config, &namespaces)?;
                if let Some((loaded, running)) = loaded.zip(self.streams.get()) {
                    routing::apply(running, loaded)?;
                }
            }
            own => self.reload_own(own)?,
        }
        Ok(())
    }

    fn reload_own(&self, part: &Part) -> anyhow::Result<()> {
        let tell_workers = |item: &dyn Fn() -> Item| {
            self.mailboxes.iter().for_each(|mailbox| mailbox.put(item()));
        };
        let own = OwnFiles {
            config: self.config,
            authenticator: self.authenticator,
            limiter: self.limiter,
            api_authenticator: self.api_authenticator,
            tls: self.tls,
            tell_workers: &tell_workers,
        };
        own.reload(part)
    }

    fn reload_settings(&self, read: &Result<Loaded, ConfigError>, reloaded: &mut Reloaded) {
        let taken = match read {
            Ok(fresh) => self.live.reload(&fresh.settings),
            Err(error) => Err(error.clone()),
        };
        reloaded.note("settings", &taken);
        match taken {
            Ok(taken_back) => {
                for key in &taken_back {
                    tracing::warn!(key, "the configuration changed: a set value is taken back");
                }
                reloaded.taken_back = taken_back;
            }
            Err(error) => tracing::error!(%error, "settings not reloaded; the old ones stay"),
        }
    }

    /// Takes namespaces as the configuration has them now, and the rules in all of them. Where
    /// that cannot be done, the rules of those in force are read again all the same.
    fn reload_namespaces(
        &self,
        read: Result<Vec<Namespace>, ConfigError>,
        reloaded: &mut Reloaded,
    ) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let read = read.map(|fresh| self.without_new_deletions(fresh));
        let taken = match read.map_err(anyhow::Error::from) {
            Ok(fresh) if fresh == in_force.namespaces => Ok(false),
            read => read.and_then(|fresh| self.take(fresh, &mut in_force)).map(|()| true),
        };
        reloaded.note("namespaces", &taken);
        match taken {
            Ok(true) => {
                reloaded.note("access rules", &taken);
                tracing::info!(namespaces = in_force.namespaces.len(), "namespaces applied");
                return;
            }
            Ok(false) => {}
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "namespaces not reloaded; the old ones stay in force");
            }
        }
        let same = in_force.namespaces.clone();
        let rules = self.take(same, &mut in_force);
        reloaded.note("access rules", &rules);
        if let Err(error) = rules {
            let error = format!("{error:#}");
            tracing::error!(error, "access rules not reloaded; the old ones stay in force");
        }
    }

    /// Namespaces and their rules hold together or not at all, and the rules first: nobody comes to
    /// a namespace whose rules a shard does not know.
    fn take(&self, namespaces: Vec<Namespace>, in_force: &mut InForce) -> anyhow::Result<()> {
        // Without a change a user may be gone meanwhile, who has no access without a password.
        if let Some(own) = self.api_authenticator.filter(|_| namespaces != in_force.namespaces) {
            own.check_tenants(&namespaces)?;
        }
        let read = rules::load(&Config { namespaces: namespaces.clone(), ..self.config.clone() })?;
        let rules = read.after(in_force.rules.clone());
        self.namespaces.configure(&namespaces, |all| {
            let rules = rules.of_scopes(all);
            for mailbox in self.mailboxes.iter() {
                mailbox.put(Item::Access(rules.clone()));
            }
        })?;
        if rules.are_some() {
            tracing::info!("access rules reloaded");
        }
        if let Some(own) = self.api_authenticator {
            own.set_tenants(&namespaces);
        }
        self.rule_files.set(rules.files());
        *in_force = InForce { namespaces, rules };
        self.keeper.look();
        match self.streams.get() {
            Some(running) => routing::follow_namespaces(running, &in_force.namespaces),
            None => Ok(()),
        }
    }

    /// A cell has no other namespaces than those of its start: each cell would number them in its
    /// own order.
    fn namespaces_of(&self, fresh: Loaded) -> Vec<Namespace> {
        let fresh = fresh.config.namespaces;
        if !self.role_of.is_cell() {
            return fresh;
        }
        if fresh != self.config.namespaces {
            tracing::error!(
                "[[namespaces]] cannot be used in a cluster with several cells: ignored; remove it"
            );
        }
        self.config.namespaces.clone()
    }

    /// What is to be deleted is suspended first: rules may have messages to send from it.
    fn without_new_deletions(&self, mut wanted: Vec<Namespace>) -> Vec<Namespace> {
        if self.streams.get().is_some() {
            for own in wanted.iter_mut().filter(|own| own.state == NamespaceState::Deleted) {
                let known = self.namespaces.get(&own.name).map(|view| view.state);
                if known.is_some_and(|state| state != NamespaceState::Deleted) {
                    own.state = NamespaceState::Suspended;
                }
            }
        }
        wanted
    }

    /// Deletes namespaces that were suspended for that, and their streams, unless rules have
    /// messages to send from them.
    fn delete_namespaces(&self, wanted: &[Namespace]) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = in_force.namespaces.clone();
        for own in wanted.iter().filter(|own| own.state == NamespaceState::Deleted) {
            let known = next.iter_mut().find(|known| known.name == own.name);
            let Some(known) = known.filter(|known| known.state != own.state) else { continue };
            if own.discard_pending || self.is_sent(&own.name) {
                known.state = own.state;
            }
        }
        if next == in_force.namespaces {
            return;
        }
        let taken = self.take(next, &mut in_force);
        drop(in_force);
        if let Err(error) = taken.and_then(|()| self.reload_part(&Part::Routing)) {
            let error = format!("{error:#}");
            tracing::error!(error, "namespaces not deleted; reload the configuration");
        }
    }

    /// Whether rules have no message to send from a namespace. Otherwise it is logged.
    fn is_sent(&self, namespace: &str) -> bool {
        let Some(running) = self.streams.get() else { return true };
        let detail = match routing::pending_in(running, namespace) {
            Ok(rules) if rules.is_empty() => return true,
            Ok(rules) => rules.join(", "),
            Err(error) => format!("{error:#}"),
        };
        tracing::error!(
            namespace,
            detail,
            "namespace not deleted, and suspended: rules have messages to send; remove its \
             streams, or set discard_pending = true"
        );
        false
    }

    /// Only the API shows it.
    fn shown_history(&self) -> Option<Arc<History>> {
        self.api_authenticator.map(|_| self.history.clone())
    }

    fn note_certificates(&self) {
        for (listener, tls) in self.tls {
            self.certificates.set(listener, tls.certificate());
        }
        warn_of_certificates(self.certificates, self.life_cycle, self.mailboxes, self.clock);
    }
}

/// Says which changes of the configuration wait for a restart.
fn log_needs_restart(changed: &[String]) {
    if changed.is_empty() {
        return;
    }
    let named = &changed[..changed.len().min(KEYS_TOLD)];
    let more = if named.len() < changed.len() { ", …" } else { "" };
    let keys = format!("{}{more}", named.join(", "));
    let count = changed.len();
    tracing::warn!(count, keys, "changed keys need a restart to take effect");
}

fn warn_of_certificates(
    certificates: &Certificates,
    life_cycle: &LifeCycle,
    mailboxes: &[Arc<Mailbox>],
    clock: Clock,
) {
    for warning in certificates.warn(clock.wall_secs()) {
        publish(mailboxes, life_cycle.on_other(&warning));
    }
}

/// Messages of the broker itself.
fn publish(mailboxes: &[Arc<Mailbox>], messages: impl IntoIterator<Item = Message>) {
    for message in messages {
        mailboxes[0].put(Item::Publish(0, message));
    }
}

/// Names those who hold most, when memory is short.
fn log_largest(shared: &Shared) {
    for consumer in shared.ledger.largest(LARGEST_MAX) {
        let [queued, sessions, retained, unsent, _] = consumer.bytes;
        tracing::warn!(
            owner = &*shown(&consumer.name),
            queued,
            sessions,
            retained,
            unsent,
            "one of the largest memory consumers"
        );
    }
}

/// The memory is that of the process, so those are cut who hold most in any of its cells.
fn cut_most(shared: &Shared, to_free: u64, largest_elsewhere: &LargestElsewhere) {
    match shared.ledger.largest_unsent() >= largest_elsewhere() {
        true => shared.ledger.cut_largest(to_free),
        false => shared.ledger.cut_nobody(),
    }
}

fn values_of(shared: &Shared, limiter: &ConnectionLimiter) -> Values {
    Values::of(&Figures { shared, sockets_opened: limiter.accepted() })
}

/// From the figures of the own shards, those that `$SYS` shows.
pub(super) type SysTotals = Arc<dyn Fn(Values) -> Values + Send + Sync>;

/// What a broker is to know of cells other than its own.
pub(super) struct Elsewhere {
    pub(super) largest: LargestElsewhere,
    pub(super) totals: SysTotals,
}

impl Elsewhere {
    /// There are none.
    pub(super) fn nowhere() -> Self {
        Self { largest: Arc::new(|| 0), totals: Arc::new(|own| own) }
    }
}

/// Bytes in the connections of who holds most in other cells of the process.
pub(super) type LargestElsewhere = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The thread for what is due at intervals.
struct Ticker {
    thread: std::thread::JoinHandle<()>,
}

impl Ticker {
    fn start(watch: &Watch<'_>, mut upkeep: Upkeep, is_over: Arc<AtomicBool>) -> Self {
        let shared = watch.shared.clone();
        let (mailboxes, limiter) = (watch.mailboxes.clone(), watch.limiter.clone());
        let (board, certificates) = (watch.board.clone(), watch.certificates.clone());
        let (clock, line_pace, member) =
            (watch.clock, watch.line_pace.clone(), watch.member.cloned());
        let (life_cycle, authenticator) = (watch.life_cycle.clone(), watch.authenticator.clone());
        let history = watch.shown_history();
        let mut guard = MemoryGuard::new(watch.config.limits.memory_bytes_max);
        let (purge, live) = (watch.purge.clone(), watch.live.clone());
        let (elsewhere, totals) = (watch.largest_elsewhere.clone(), watch.sys_totals.clone());
        let thread = std::thread::spawn(move || {
            let mut sys = SysTopics::new(env!("CARGO_PKG_VERSION"));
            let mut sys_at: Option<Instant> = None;
            let mut warned_at = Instant::now();
            let mut memory = Memory::Enough;
            let mut cut_at = Instant::now();
            let mut looked_at: Option<Instant> = None;
            while !is_over.load(Ordering::Acquire) {
                // Remembered answers can be asked for again.
                let change = guard.look(|| authenticator.free_memory());
                if let Some(left) = change.left {
                    if left == Memory::Short {
                        log_largest(&shared);
                    }
                    memory = left;
                }
                let bytes = change.bytes.unwrap_or(Bytes { left: u64::MAX, to_free: 0 });
                shared.set_memory_left(memory, bytes.left);
                let is_due = bytes.to_free > 0 && cut_at.elapsed() >= CUT_INTERVAL;
                if memory != Memory::Enough && is_due {
                    cut_at = Instant::now();
                    cut_most(&shared, bytes.to_free, &elsewhere);
                }
                if change.counts {
                    mailboxes.iter().for_each(|mailbox| mailbox.put(Item::MemoryLook));
                }
                if change.purges {
                    purge();
                }
                if looked_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
                    std::thread::park_timeout(guard.interval());
                    continue;
                }
                looked_at = Some(Instant::now());
                upkeep.look();
                Logging::end_level(clock.wall_secs());
                let sys_secs = live.get(|config| config.sys.interval_secs);
                line_pace.log_withheld(clock.now_ms());
                history.iter().for_each(|history| history.look(clock.now_ms()));
                publish(&mailboxes, life_cycle.tick(clock.now_ms()));
                if warned_at.elapsed() >= CERTIFICATES_INTERVAL {
                    warned_at = Instant::now();
                    warn_of_certificates(&certificates, &life_cycle, &mailboxes, clock);
                }
                let elapsed = sys_at.map_or(f64::MAX, |at| at.elapsed().as_secs_f64());
                if sys_secs > 0 && elapsed >= f64::from(sys_secs) {
                    sys_at = Some(Instant::now());
                    let elapsed = elapsed.min(f64::from(sys_secs));
                    let values = totals(values_of(&shared, &limiter));
                    let messages = sys.messages(&values, clock.uptime_secs(), elapsed);
                    let states = state_messages(&board, member.as_ref());
                    publish(&mailboxes, messages.into_iter().chain(states));
                }
                std::thread::park_timeout(guard.interval());
            }
            upkeep.end(member.as_ref());
        });
        Self { thread }
    }

    fn stop(self) {
        self.thread.thread().unpark();
        // A panic there has been reported on standard error.
        let _ = self.thread.join();
    }
}

/// Ends the process when the grace of a stop is over, whatever any thread waits for: a disk that
/// stands still holds all that have something to sync. What is not synced then was not
/// acknowledged, and is not any more.
pub(super) fn end_in_time(grace: Duration) {
    // Without this thread a stop takes as long as the disk does.
    let _ = std::thread::Builder::new().name("grace".into()).spawn(move || {
        std::thread::sleep(grace);
        tracing::warn!(
            grace_secs = grace.as_secs(),
            "stopped after shutdown_grace_secs: the disk was too slow to close the logs; \
            messages that were not synced have not been acknowledged"
        );
        Logging::flush_installed();
        std::process::exit(0);
    });
}

/// What there is to say of journals and of the cluster.
fn state_messages(board: &JournalBoard, member: Option<&Member>) -> Vec<Message> {
    let of_cluster = member.map(Member::sys_messages).unwrap_or_default();
    journal_messages(board).into_iter().chain(of_cluster).collect()
}

/// `$SYS/broker/log/...`: the state of the worst journal, and the sums of the figures of all.
fn journal_messages(board: &JournalBoard) -> Vec<Message> {
    let Some(worst) = board.states().max() else { return Vec::new() };
    let state = worst.name();
    let figures = FIGURES.iter().enumerate().map(|(place, figure)| {
        let name = figure.name.trim_end_matches("_total").to_owned();
        (name, board.figures(place).sum::<u64>().to_string())
    });
    let all = figures.chain([("state".to_owned(), state.to_owned())]);
    all.map(|(name, value)| sys::message(&format!("log/{name}"), value.as_bytes(), true)).collect()
}
