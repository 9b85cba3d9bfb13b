//! The parts of a broker that a standby has as well: all but shards, workers and listeners.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use broker::{Homes, Shared};
use driver::Allowance;

use super::acceptor::AcceptorContext;
use super::bridges::BridgeBoard;
use super::cells::Entrance;
use super::certificates::Certificates;
use super::journals::JournalBoard;
use super::limiter::ConnectionLimiter;
use super::live::LiveSettings;
use super::mailbox::Mailbox;
use super::reloads::Reloads;
use super::routing::StreamsHandle;
use super::self_check::SelfChecks;
use super::servers::HttpServers;
use super::service::ServiceManager;
use super::standby::ClusterReferral;
use super::{Shards, Timing, limits};
use crate::api::{self, Api, Facts};
use crate::cluster::Member;
use crate::history::{self, History};
use crate::http::{self, Health, Metrics, State};
use crate::life_cycle::LifeCycle;
use crate::life_cycle::line_pace::LinePace;
use crate::metrics::{self, Sources};
use ::telemetry::SpanQueue;
use base::Clock;
use base::random;
use config::{Config, Loaded, Namespace};
use data::Stamps;
use identity::auth::Authenticator;
use identity::auth::authorizer::Authorizer;
use identity::auth::bans::Bans;
use identity::auth::rules::RuleFiles;
use identity::namespaces::{Namespaces, without_new_deletions};

/// Each is made once, in this order.
pub(super) struct Parts {
    pub(super) loaded: Arc<Loaded>,
    pub(super) live: Arc<LiveSettings>,
    pub(super) clock: Clock,
    pub(super) authenticator: Arc<Authenticator>,
    /// None: rules decide everything.
    pub(super) authorizer: Option<Arc<Authorizer>>,
    pub(super) rule_files: Arc<RuleFiles>,
    pub(super) shared: Arc<Shared>,
    pub(super) namespaces: Arc<Namespaces>,
    /// As the start has put them in force.
    pub(super) configured: Vec<Namespace>,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) health: Health,
    pub(super) board: Arc<JournalBoard>,
    /// Of each worker.
    pub(super) turns: Arc<[Timing]>,
    pub(super) certificates: Arc<Certificates>,
    pub(super) life_cycle: Arc<LifeCycle>,
    pub(super) reloads: Arc<Reloads>,
    pub(super) history: Arc<History>,
    pub(super) service: ServiceManager,
    pub(super) self_checks: Arc<SelfChecks>,
    pub(super) bridges: Arc<BridgeBoard>,
    /// Once streams are open.
    pub(super) streams: Arc<OnceLock<StreamsHandle>>,
    /// In a cluster.
    pub(super) member: Option<Member>,
}

/// What they are made on.
pub(super) struct Ground<'a> {
    /// `None`: nothing is kept, or this node only follows.
    pub(super) directory: Option<&'a Path>,
    pub(super) stamps: &'a Stamps,
    pub(super) homes: Homes,
    /// Of a cell beside others.
    pub(super) cell: Option<OfCell>,
    /// Those that this process writes.
    pub(super) journals: u16,
    pub(super) workers: u16,
    /// Of the directory, for password checks of users that do not exist.
    pub(super) decoy_secret: Option<[u8; 32]>,
    pub(super) member: Option<Member>,
    pub(super) service: ServiceManager,
}

/// What a cell has of its node, and what its shards are made with.
pub(super) struct OfCell {
    pub(super) epoch: u64,
    /// Of the hash of filters, in all cells.
    pub(super) seed: u64,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) authorizer: Option<Arc<Authorizer>>,
    /// Its node looks whether they change.
    pub(super) rule_files: Arc<RuleFiles>,
    /// A setting is that of the node and of all its cells.
    pub(super) live: Arc<LiveSettings>,
    /// Its node sends them.
    pub(super) spans: Arc<SpanQueue>,
}

/// Who is let in.
struct Gate {
    limiter: Arc<ConnectionLimiter>,
    authenticator: Arc<Authenticator>,
    authorizer: Option<Arc<Authorizer>>,
}

impl Gate {
    fn make(
        config: &Config,
        (stamps, decoy_secret): (&Stamps, Option<[u8; 32]>),
        clock: Clock,
    ) -> anyhow::Result<Self> {
        let authenticator =
            Authenticator::start(&config.auth, &config.authentication, decoy_secret, clock)?;
        authenticator.fit_into(config.limits.memory_bytes_max);
        let service = config.authorization.as_ref();
        Ok(Self {
            authenticator: Arc::new(authenticator),
            authorizer: service.map(Authorizer::start).transpose()?.map(Arc::new),
            limiter: Arc::new(open_limiter(config, stamps)?),
        })
    }
}

impl Parts {
    /// # Errors
    ///
    /// When a file cannot be used, or the system gives no thread.
    pub(super) fn make(
        loaded: Arc<Loaded>,
        ground: Ground<'_>,
        clock: Clock,
    ) -> anyhow::Result<Self> {
        let Ground { directory, stamps, homes, journals, workers, decoy_secret, .. } = ground;
        let config = &loaded.config;
        let settings = limits::of_broker(config);
        let (shared, gate, (rule_files, live, spans)) = match ground.cell {
            None => {
                let gate = Gate::make(config, (stamps, decoy_secret), clock)?;
                let live = Arc::new(LiveSettings::new(loaded.clone(), gate.limiter.clone()));
                let shared = Shared::new(settings, homes, u64::from_le_bytes(random()));
                (shared, gate, (Arc::default(), live, Arc::default()))
            }
            Some(own) => {
                let OfCell { limiter, authenticator, authorizer, rule_files, live, spans, .. } =
                    own;
                let gate = Gate { limiter, authenticator, authorizer };
                let shared = Shared::of_cell(settings, homes, own.epoch, own.seed);
                (shared, gate, (rule_files, live, spans))
            }
        };
        let Gate { limiter, authenticator, authorizer } = gate;
        let configured = match config.routing {
            Some(_) => without_new_deletions(directory, stamps, &config.namespaces)?,
            None => config.namespaces.clone(),
        };
        let namespaces = Namespaces::open(directory, stamps, &shared, &configured)?;
        let health = Health::new();
        let self_checks = Arc::new(SelfChecks::new(&config.self_check));
        let checks = self_checks.clone();
        health.depend_on(move || checks.why_not_ready());
        let board = Arc::new(JournalBoard::new(journals, health.clone()));
        let turns: Arc<[Timing]> = (0..workers).map(|_| Timing::default()).collect();
        let sources =
            history::Sources { shared: shared.clone(), board: board.clone(), turns: turns.clone() };
        Ok(Self {
            clock,
            authenticator,
            authorizer,
            rule_files,
            namespaces: Arc::new(namespaces),
            configured,
            limiter,
            live,
            board,
            health,
            turns,
            history: Arc::new(History::new(sources)),
            certificates: Arc::default(),
            life_cycle: Arc::new(LifeCycle::new(&config.events, &shared, clock).with_spans(spans)),
            reloads: Arc::default(),
            bridges: Arc::new(BridgeBoard::new(config.bridges.iter().map(|own| &*own.name))),
            streams: Arc::default(),
            shared,
            service: ground.service,
            self_checks,
            member: ground.member,
            loaded,
        })
    }

    pub(super) fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// A line about the broker, for the service manager.
    pub(super) fn describe(&self) -> impl Fn() -> String + Send + Sync + use<> {
        let (health, limiter) = (self.health.clone(), self.limiter.clone());
        move || {
            let (state, reason) = health.readiness();
            let connections = limiter.connections();
            let is_ready = state == State::Ready && reason.is_none();
            let state = reason.as_deref().unwrap_or(state.word());
            let word = if is_ready { "" } else { "not ready: " };
            format!("{word}{state}; connections: {connections}")
        }
    }

    /// Starts metrics, probes and the API.
    ///
    /// # Errors
    ///
    /// When an address cannot be listened on, or a file of the API cannot be used.
    pub(super) fn start_http(
        &self,
        shards: &Shards,
        metrics: Metrics,
    ) -> anyhow::Result<HttpServers> {
        self.start_http_of(shards, metrics, |api| api)
    }

    /// The same with an API that `finish` has completed.
    ///
    /// # Errors
    ///
    /// The same.
    pub(super) fn start_http_of(
        &self,
        shards: &Shards,
        metrics: Metrics,
        finish: impl FnOnce(Api) -> Api,
    ) -> anyhow::Result<HttpServers> {
        let config = self.config();
        let api = config.api.as_ref().map(|own| Api::new(own, shards.clone(), self.facts()));
        let api = api.transpose().context("the management API")?.map(finish).map(Arc::new);
        let pages = http::router(self.health.clone(), metrics);
        let mut servers = HttpServers::start(config, pages, api.clone().map(api::router))?;
        servers.api_authenticator = api.as_ref().map(|api| api.authenticator.clone());
        servers.api_of_node = api;
        if let Some(own) = &config.api
            && let Some(url) = servers.api_url()
        {
            servers.token_file = Some((own.token_file.clone(), url));
        }
        Ok(servers)
    }

    pub(super) fn facts(&self) -> Facts {
        Facts {
            config: self.config().clone(),
            live: self.live.clone(),
            clock: self.clock,
            health: self.health.clone(),
            limiter: self.limiter.clone(),
            board: self.board.clone(),
            certificates: self.certificates.clone(),
            life_cycle: self.life_cycle.clone(),
            reloads: self.reloads.clone(),
            history: self.history.clone(),
            bridges: self.bridges.clone(),
            streams: self.streams.clone(),
            namespaces: self.namespaces.clone(),
            rule_files: self.rule_files.clone(),
            authenticator: self.authenticator.clone(),
            authorizer: self.authorizer.clone(),
            member: self.member.clone(),
        }
    }

    pub(super) fn metrics(&self) -> Metrics {
        self.metrics_by(metrics::exposition)
    }

    /// `write`: which of them.
    pub(super) fn metrics_by(&self, write: fn(&Sources<'_>) -> String) -> Metrics {
        let (shared, turns, clock) = (self.shared.clone(), self.turns.clone(), self.clock);
        let (limiter, board) = (self.limiter.clone(), self.board.clone());
        let (certificates, life_cycle) = (self.certificates.clone(), self.life_cycle.clone());
        let (member, self_checks) = (self.member.clone(), self.self_checks.clone());
        let (bridges, streams) = (self.bridges.clone(), self.streams.clone());
        let memory_bytes_max = self.config().limits.memory_bytes_max;
        Arc::new(move || {
            let cluster = member.as_ref().map(Member::figures);
            let routing = streams.get().map(|streams| streams.board.figures());
            write(&Sources {
                shared: &shared,
                limiter: &limiter,
                board: &board,
                turns: &turns,
                certificates: &certificates,
                life_cycle: &life_cycle,
                self_checks: &self_checks,
                bridges: &bridges,
                routing: routing.as_ref(),
                cluster: cluster.as_ref(),
                clock,
                memory_bytes_max,
            })
        })
    }

    /// What all acceptors know. `mailboxes`: of the workers; a standby has none. `entrance`: of the
    /// listeners of a node whose clients are for cells.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub(super) fn acceptor_context(
        &self,
        mailboxes: &Arc<[Arc<Mailbox>]>,
        line_pace: &Arc<LinePace>,
        is_stopping: &Arc<AtomicBool>,
        entrance: Option<Arc<Entrance>>,
    ) -> anyhow::Result<Arc<AcceptorContext>> {
        let limits = &self.config().limits;
        let is_standby = mailboxes.is_empty();
        let acceptor =
            |member: &Member| ClusterReferral::new(member.clone(), self.config(), is_standby);
        Ok(Arc::new(AcceptorContext {
            shared: self.shared.clone(),
            mailboxes: mailboxes.clone(),
            authenticator: self.authenticator.clone(),
            namespaces: self.namespaces.clone(),
            life_cycle: self.life_cycle.clone(),
            self_checks: self.self_checks.clone(),
            name_maker: self.namespaces.start_maker().context("cannot start a thread")?,
            clock: self.clock,
            connect_timeout_ms: u64::from(limits.connect_timeout_secs) * 1000,
            connections_per_second_max: limits.connections_per_second_max,
            line_pace: line_pace.clone(),
            allowance: Arc::new(Allowance::new(
                limits.arrivals_bytes_max,
                limits.arrivals_bytes_per_address_max,
            )),
            is_stopping: is_stopping.clone(),
            cluster: self.member.as_ref().map(acceptor),
            entrance,
        }))
    }
}

fn open_limiter(config: &Config, stamps: &Stamps) -> anyhow::Result<ConnectionLimiter> {
    let bans =
        Bans::load(&config.auth, &config.server.data_dir, stamps).map_err(anyhow::Error::msg)?;
    Ok(ConnectionLimiter::with_bans(config.limits.connections_max, bans))
}
