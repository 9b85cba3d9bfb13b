//! This process as a node of a cluster: from the wait for NATS over the standby to the active node,
//! and the end of each.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use broker::{Homes, Shared};
use tokio::sync::oneshot;

use super::control::{self, Control};
use super::journals::JournalBoard;
use super::limiter::ConnectionLimiter;
use super::routing::InCluster;
use super::servers::HttpServers;
use super::service::ServiceManager;
use super::stops::Stops;
use super::workers::Workers;
use super::{Shards, limits, open_control, standby};
use crate::api;
use crate::cluster::{
    self, Begun, ClusterFigures, ClusterPlan, Clustered, End, Member, Order, TakenJournal, Turn,
    WaitReason,
};
use crate::http::{self, Health, State};
use crate::life_cycle::LifeCycle;
use crate::metrics::{self, Sources};
use base::Clock;
use config::{ClusterConfig, Config, Loaded, RoutingConfig};

/// How long the engine has to take the lease back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a node waits before it begins again, after it could not become one or could not serve.
const BEGIN_AGAIN_DELAY: Duration = Duration::from_secs(1);

/// How the start of a broker goes on.
pub(super) enum Joined {
    /// No cluster is configured.
    Alone,
    /// This node is active, with the journals as they are now.
    Active(Box<Active>, Vec<TakenJournal>),
    /// It is a node of a cluster with several cells.
    Several(Box<Several>),
    /// It was requested to stop before it was active.
    Stopped,
}

/// A node of a cluster with several cells, before it has any.
pub(super) struct Several {
    pub(super) plan: ClusterPlan,
    pub(super) stops: Stops,
}

/// An active node.
pub(super) struct Active {
    pub(super) clustered: Clustered,
    pub(super) epoch: u64,
    /// Backups are taken from a node whatever its role.
    pub(super) control: Option<Control>,
    stops: Stops,
}

/// Becomes a node, where a cluster is configured, and returns when the node is active or is to end.
///
/// # Errors
///
/// When an address cannot be listened on, or the node cannot be one.
pub(super) fn join(
    loaded: &Arc<Loaded>,
    service: &ServiceManager,
    clock: Clock,
) -> anyhow::Result<Joined> {
    let config = &loaded.config;
    let Some(cluster) = &config.cluster else { return Ok(Joined::Alone) };
    let stops = Stops::catch().context("cannot catch signals")?;
    let begun = begin(config, cluster, (&stops, service), clock);
    let clustered = match begun.inspect_err(|error| wait_for_space(error, &stops))? {
        None => return Ok(Joined::Stopped),
        Some(Begun::Several(plan)) => {
            return Ok(Joined::Several(Box::new(Several { plan: *plan, stops })));
        }
        Some(Begun::One(clustered)) => *clustered,
    };
    let owner = control::Owner::Member(clustered.member.clone());
    let control = open_control(clustered.data.path(), owner);
    let Some((epoch, journals)) = standby::wait(loaded, &clustered, (&stops, service), clock)?
    else {
        leave(&clustered);
        return Ok(Joined::Stopped);
    };
    // From here to the first client it is not long, and then the node can end in order.
    let grace = Duration::from_secs(config.server.shutdown_grace_secs.into());
    let member = clustered.member.clone();
    stops.set(move || end_at_last(member, grace));
    Ok(Joined::Active(Box::new(Active { clustered, epoch, control, stops }), journals))
}

/// A node whose copies find no space begins again until they do. Returns for any other error, or
/// when the node is to end.
fn wait_for_space(error: &anyhow::Error, stops: &Stops) {
    if !data::lacks_space(error.as_ref()) {
        return;
    }
    std::thread::sleep(BEGIN_AGAIN_DELAY);
    if !stops.are_asked() {
        cluster::begin_again(&End::Failed(format!("{error:#}")));
    }
}

/// Waits for the engine, and answers probes meanwhile. `None`: the node is to end.
fn begin(
    config: &Config,
    cluster: &ClusterConfig,
    (stops, service): (&Stops, &ServiceManager),
    clock: Clock,
) -> anyhow::Result<Option<Begun>> {
    let waiting = WaitReason::default();
    let reason = waiting.clone();
    service.waiting(move || reason.reason());
    let _http = answer_while_waiting(config, &waiting, clock)?;
    let (stop, stopped) = oneshot::channel::<()>();
    stops.set(move || drop(stop));
    let ending = (stops.flag(), cluster::RoleOf::Process, None);
    let begun = Clustered::begin(config, cluster, &waiting, stopped, ending)?;
    if begun.is_none() {
        tracing::info!("stopping");
    }
    Ok(begun)
}

/// Metrics and probes, and an API that says why it has nothing to say.
fn answer_while_waiting(
    config: &Config,
    waiting: &WaitReason,
    clock: Clock,
) -> anyhow::Result<HttpServers> {
    let (health, reason) = (Health::new(), waiting.clone());
    health.set(State::Standby);
    health.depend_on(move || Some(reason.reason()));
    let shared =
        Shared::new(limits::of_broker(config), Homes::of_one_cell(config.server.shards), 0);
    let limiter = ConnectionLimiter::new(config.limits.connections_max);
    let board = JournalBoard::new(0, health.clone());
    let life_cycle = LifeCycle::new(&config.events, &shared, clock);
    let memory_bytes_max = config.limits.memory_bytes_max;
    let figures = ClusterFigures { role: "standby".to_owned(), ..ClusterFigures::default() };
    let pages = http::router(
        health,
        Arc::new(move || {
            metrics::exposition(&Sources {
                shared: &shared,
                limiter: &limiter,
                board: &board,
                turns: &[],
                certificates: &super::Certificates::default(),
                life_cycle: &life_cycle,
                self_checks: &super::SelfChecks::default(),
                bridges: &super::BridgeBoard::default(),
                routing: None,
                cluster: Some(&figures),
                clock,
                memory_bytes_max,
            })
        }),
    );
    let reason = waiting.clone();
    let routes = config.api.as_ref().map(|_| api::unavailable(move || reason.reason()));
    HttpServers::start(config, pages, routes)
}

/// A standby ends: it notes how far its local copies are.
fn leave(clustered: &Clustered) {
    clustered.member.order(Order::Release(None));
    if !is_released(clustered) {
        tracing::warn!("stopped while taking the lease: another node takes over when it expires");
    }
}

pub(super) fn is_released(clustered: &Clustered) -> bool {
    loop {
        match clustered.turns.recv_timeout(RELEASE_TIMEOUT) {
            Ok(Turn::Released) => return true,
            // It came too late for this node.
            Ok(Turn::Active { .. } | Turn::Stop | Turn::Reload | Turn::ReloadRules) => {}
            Ok(Turn::Ended(_)) => return false,
            Err(_) => return false,
        }
    }
}

/// An active node is ready only while it has the lease, and all journals take what is written.
pub(super) fn depend_on_cluster(health: &Health, member: &Member, board: &Arc<JournalBoard>) {
    let (member, board) = (member.clone(), board.clone());
    health.depend_on(move || member.suspension().or_else(|| board.why_not_ready()));
}

/// What happens to the node is an event of the broker, and shown on `$SYS`.
pub(super) fn listen_to_cluster(member: &Member, life_cycle: &Arc<LifeCycle>, shards: &Shards) {
    let (own, life_cycle, shards) = (member.clone(), life_cycle.clone(), shards.clone());
    member.notifier.set(Box::new(move |happened| {
        life_cycle.on_other(happened).into_iter().for_each(|message| shards.publish(message));
        own.sys_messages().into_iter().for_each(|message| shards.publish(message));
    }));
}

impl Active {
    /// For the owner of streams.
    ///
    /// # Errors
    ///
    /// The cluster has no stream for their files.
    pub(super) fn in_cluster(&self, config: &RoutingConfig) -> anyhow::Result<InCluster> {
        let member = &self.clustered.member;
        let files = member.stream_files.clone();
        let files = files.context("the cluster has no stream for files of streams")?;
        let (acting, removes_undefined) = (member.acting.clone(), config.remove_undefined);
        Ok(InCluster { files, acting, epoch: self.epoch, removes_undefined })
    }

    /// Clients are served from now on.
    pub(super) fn note_serving(&self) {
        self.clustered.member.order(Order::Serving);
    }

    /// As [`Stops::hand_over`].
    ///
    /// # Errors
    ///
    /// As [`Stops::hand_over`].
    pub(super) fn hand_over_signals(&self) -> std::io::Result<()> {
        self.stops.hand_over()
    }

    /// The role cannot be filled: another node may take it, and this process begins again as a
    /// standby. Nothing was served yet.
    pub(super) fn begin_again(self, error: &anyhow::Error) -> ! {
        let member = &self.clustered.member;
        let why = format!("{error:#}");
        member.order(Order::Release(None));
        if !is_released(&self.clustered) {
            tracing::warn!("could not release the lease: another node takes over when it expires");
        }
        if self.stops.are_asked() {
            tracing::error!(detail = why, "this node could not become active");
            cluster::end(member);
        }
        // What ends each takeover at once is not to keep a core busy.
        std::thread::sleep(BEGIN_AGAIN_DELAY);
        cluster::begin_again(&End::Failed(why))
    }

    /// Ends the workers in order, and gives the role back. After a switchover the process begins
    /// again as a standby.
    pub(super) fn stop(self, workers: Workers) {
        let Self { clustered, control, .. } = self;
        drop(control);
        let member = &clustered.member;
        if !member.acting.is_held() {
            // Workers wait for the lease, and nothing may leave. What was promised is in the
            // stream.
            tracing::warn!("stopped without the lease: connections closed without DISCONNECT");
            cluster::end(member);
        }
        workers.stop();
        let successor = member.successor.get();
        member.order(Order::Release(successor.clone()));
        if !is_released(&clustered) {
            tracing::warn!("could not release the lease: another node takes over when it expires");
        }
        if let Some(to) = successor {
            cluster::begin_again(&End::SwitchedOver { to });
        }
    }
}

/// The lease may run out while the workers stop, and then they wait for it. What was promised is in
/// the stream, so the process may end at any time: at the end of the grace, and of the time that
/// the engine has to take the lease back.
pub(super) fn end_at_last(member: Member, grace: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(grace + RELEASE_TIMEOUT);
        tracing::warn!("stopping took too long: connections closed without DISCONNECT");
        cluster::end(&member);
    });
}
