//! A node that does not serve: it answers probes, metrics, the API as far as it is read, and tells
//! MQTT clients where to go. It ends when the node is to be active.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::admission::{self, Refusal};
use broker::{ConnectRequest, Shared};
use codec::{Reason, Version};
use driver::Allowance;

use super::clock::Clock;
use super::door::DoorContext;
use super::gate::Gate;
use super::line_pace::LinePace;
use super::logs::LogBoard;
use super::{HttpServers, Shards, Timing, limits, listen, metrics_of, start_doors, start_http};
use crate::api::Facts;
use crate::auth::{Authenticator, random};
use crate::cluster::{Clustered, Member, TakenLog, Turn};
use crate::config::{Config, Derived, Settings, print};
use crate::disk::Stamps;
use crate::http::{Health, State};
use crate::life_cycle::LifeCycle;
use crate::namespaces::Namespaces;

/// What the acceptor of a node tells clients while the node does not serve.
pub(super) struct ClusterDoor {
    member: Member,
    /// `cluster.redirect`.
    redirects: bool,
    /// Nobody is let in, whatever the lease says: there are no workers.
    is_standby: bool,
}

impl ClusterDoor {
    pub(super) fn new(member: Member, config: &Config, is_standby: bool) -> Self {
        let redirects = config.cluster.as_ref().is_some_and(|cluster| cluster.redirect);
        Self { member, redirects, is_standby }
    }

    /// Why a client is not let in now. `None`: this node has the lease.
    pub(super) fn refusal(&self, request: &ConnectRequest) -> Option<Refusal> {
        let is_refused = self.is_standby || !self.member.acting.is_held();
        is_refused.then(|| self.referral(request))
    }

    /// MQTT 5: another server, if one is known and may be named; else, and for older versions, that
    /// this one is not available.
    fn referral(&self, request: &ConnectRequest) -> Refusal {
        let status = self.member.status();
        let is_other = status.holder.as_ref().is_some_and(|node| *node != status.own.node);
        let text = status.where_to_go();
        let address = status.holder_address.filter(|address| is_other && !address.is_empty());
        let reference = address.filter(|_| self.redirects && request.version == Version::V5);
        let reason = match reference {
            Some(_) => Reason::USE_ANOTHER_SERVER,
            None => Reason::SERVER_UNAVAILABLE,
        };
        let answer = admission::refer(request, reason, reference.as_deref(), &text);
        Refusal { reason, answer, clause: "", detail: "this node does not serve" }
    }
}

/// Serves as a standby until the node is active, and returns the logs as they are then.
///
/// # Errors
///
/// When an address cannot be listened on, or a file of the configuration cannot be used.
pub(super) fn wait(
    config: &Config,
    settings: &Settings,
    derived: &[Derived],
    clustered: &Clustered,
    clock: Clock,
) -> anyhow::Result<Vec<TakenLog>> {
    let shared =
        Shared::new(limits::of_broker(config), clustered.shards, u64::from_le_bytes(random()));
    let stamps = Stamps::default();
    let namespaces = Arc::new(Namespaces::open(None, &stamps, &shared, &config.namespaces)?);
    let gate = Arc::new(super::open_gate(config, &stamps)?);
    let authenticator =
        Arc::new(Authenticator::start(&config.auth, &config.authentication, None, clock)?);
    let life_cycle = Arc::new(LifeCycle::new(&config.events, &shared, clock));
    let health = Health::new();
    let member = clustered.member.clone();
    health.set(State::Standby);
    health.depend_on(move || Some(member.status().where_to_go()));
    let parts =
        Parts { config, shared, namespaces, gate, authenticator, life_cycle, health, clock };
    // Only those who read the API's stream are there to hear of events.
    let heard = parts.life_cycle.clone();
    clustered.member.teller.set(Box::new(move |happened| drop(heard.on_other(happened))));
    let http = parts.start_http(settings, derived, &clustered.member)?;
    let is_stopping = Arc::new(AtomicBool::new(false));
    let listeners = listen::bind_all(config, &parts.gate, &parts.authenticator)?;
    let context = parts.door_context(&clustered.member, &is_stopping)?;
    let doors = start_doors(config, listeners.portals, &context)?;
    for url in listeners.urls.into_iter().chain(http.urls()) {
        tracing::info!(url, "listening as a standby");
    }
    let turn = clustered.turns.recv();
    is_stopping.store(true, Ordering::Release);
    doors.stop();
    drop(http);
    match turn {
        Ok(Turn::Active { logs }) => Ok(logs),
        _ => anyhow::bail!("the thread of the cluster has ended"),
    }
}

/// What a standby is made of.
struct Parts<'a> {
    config: &'a Config,
    shared: Arc<Shared>,
    namespaces: Arc<Namespaces>,
    gate: Arc<Gate>,
    authenticator: Arc<Authenticator>,
    life_cycle: Arc<LifeCycle>,
    health: Health,
    clock: Clock,
}

impl Parts<'_> {
    fn start_http(
        &self,
        settings: &Settings,
        derived: &[Derived],
        member: &Member,
    ) -> anyhow::Result<HttpServers> {
        let board = Arc::new(LogBoard::new(0, self.health.clone()));
        let facts = Facts {
            config: self.config.clone(),
            settings: print::rows(settings, derived),
            clock: self.clock,
            health: self.health.clone(),
            gate: self.gate.clone(),
            board,
            certificates: Arc::default(),
            life_cycle: self.life_cycle.clone(),
            namespaces: self.namespaces.clone(),
            member: Some(member.clone()),
        };
        let turns: Arc<[Timing]> = Arc::default();
        let metrics = metrics_of(&self.shared, &turns, &facts);
        start_http(self.config, metrics, &Shards::new(&self.shared), facts)
    }

    fn door_context(
        &self,
        member: &Member,
        is_stopping: &Arc<AtomicBool>,
    ) -> anyhow::Result<Arc<DoorContext>> {
        let limits = &self.config.limits;
        Ok(Arc::new(DoorContext {
            shared: self.shared.clone(),
            mailboxes: Arc::default(),
            authenticator: self.authenticator.clone(),
            namespaces: self.namespaces.clone(),
            life_cycle: self.life_cycle.clone(),
            name_maker: self.namespaces.start_maker()?,
            clock: self.clock,
            connect_timeout_ms: u64::from(limits.connect_timeout_secs) * 1000,
            connections_per_second_max: limits.connections_per_second_max,
            line_pace: Arc::new(LinePace::new(self.config.log.client_lines_per_second_max)),
            allowance: Arc::new(Allowance::new(
                limits.arrivals_bytes_max,
                limits.arrivals_bytes_per_address_max,
            )),
            is_stopping: is_stopping.clone(),
            cluster: Some(ClusterDoor::new(member.clone(), self.config, true)),
        }))
    }
}
