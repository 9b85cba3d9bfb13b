//! A node that does not serve: it answers probes, metrics, the API as far as it is read, and tells
//! MQTT clients where to go. It ends when the node is to be active, or to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use broker::admission::{self, Refusal};
use broker::{ConnectRequest, Homes};
use codec::{Reason, Version};
use net::TlsContext;

use super::file_watch::FileWatch;
use super::parts::{Ground, Parts};
use super::servers::HttpServers;
use super::service::ServiceManager;
use super::stops::Stops;
use super::unwritten::Unwritten;
use super::{Shards, listen, start_acceptors};
use crate::cluster::{Clustered, Member, TakenJournal, Turn};
use crate::http::State;
use crate::life_cycle::line_pace::LinePace;
use base::Clock;
use config::{Config, Loaded};
use data::Stamps;

/// The answer of an acceptor to clients while the node does not serve.
pub(super) struct ClusterReferral {
    member: Member,
    /// `cluster.redirect`.
    redirects: bool,
    /// Nobody is let in, whatever the lease says: there are no workers.
    is_standby: bool,
}

impl ClusterReferral {
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
        Refusal {
            reason,
            answer,
            clause: "",
            detail: "this node is a standby and does not serve clients",
        }
    }
}

/// Serves as a standby until the node is active, and returns its epoch and the journals. `None`:
/// the node is to end.
///
/// # Errors
///
/// When an address cannot be listened on, or a file of the configuration cannot be used.
pub(super) fn wait(
    loaded: &Arc<Loaded>,
    clustered: &Clustered,
    (stops, service): (&Stops, &ServiceManager),
    clock: Clock,
) -> anyhow::Result<Option<(u64, Vec<TakenJournal>)>> {
    let turn = clustered.turn.clone();
    stops.set(move || drop(turn.send(Turn::Stop)));
    let turn = clustered.turn.clone();
    stops.set_reload(move || drop(turn.send(Turn::Reload)));
    let watched = Arc::new(FileWatch::of_standby(&loaded.config));
    let parts = parts_of(loaded, clustered, service, clock)?;
    let config = parts.config();
    let http = parts.start_http(&Shards::new(&parts.shared), parts.metrics())?;
    // What finds no space is written when this node is active.
    http.write_token(&mut Unwritten::new())?;
    let is_stopping = Arc::new(AtomicBool::new(false));
    let listeners = listen::bind_all(config, &parts.limiter, &parts.authenticator)?;
    let line_pace = Arc::new(LinePace::new(config.log.client_lines_per_second_max));
    let context = parts.acceptor_context(&Arc::default(), &line_pace, &is_stopping, None)?;
    let acceptors = start_acceptors(config, listeners.bound, &context)?;
    for url in listeners.urls.iter().cloned().chain(http.urls()) {
        tracing::info!(url, "listening as a standby");
    }
    service.ready(parts.describe());
    let turn = clustered.turn.clone();
    let reload = move || drop(turn.send(Turn::Reload));
    let files = watched.start(parts.rule_files.clone(), {
        let watched = watched.clone();
        move || {
            watched.take_changed();
            reload();
        }
    });
    let files = files.context("cannot start a thread")?;
    let turn = loop {
        match clustered.turns.recv() {
            Ok(Turn::Reload) => service.reload(|| reload_own(&http, &listeners.tls)),
            turn => break turn,
        }
    };
    if matches!(turn, Ok(Turn::Stop)) {
        parts.health.set(State::Stopping);
        service.stopping(Duration::ZERO);
        tracing::info!("stopping");
    }
    drop(files);
    is_stopping.store(true, Ordering::Release);
    acceptors.stop();
    drop(http);
    match turn {
        Ok(Turn::Active { epoch, journals }) => Ok(Some((epoch, journals))),
        Ok(Turn::Stop) => Ok(None),
        _ => anyhow::bail!("the thread of the cluster has ended"),
    }
}

/// What a standby uses itself. All else is read when it becomes active.
fn reload_own(http: &HttpServers, tls: &[(String, Arc<TlsContext>)]) {
    if let Some(Err(error)) = http.api_authenticator.as_ref().map(|own| own.reload()) {
        tracing::error!(%error, "users of the API not reloaded; the old ones stay in force");
    }
    for (listener, tls) in tls.iter().chain(&http.tls) {
        if let Err(error) = tls.reload() {
            tracing::error!(listener, %error, "certificates not reloaded; the old ones stay in \
            force");
        }
    }
    tracing::info!(
        "certificates and users of the API reloaded; passwords, keys, bans and access rules are \
         read when this node becomes active"
    );
}

/// A standby has no directory of its own: its files are copies, and only read in a takeover.
fn parts_of(
    loaded: &Arc<Loaded>,
    clustered: &Clustered,
    service: &ServiceManager,
    clock: Clock,
) -> anyhow::Result<Parts> {
    let ground = Ground {
        directory: None,
        stamps: &Stamps::default(),
        homes: Homes::of_one_cell(clustered.shards),
        cell: None,
        journals: 0,
        workers: 0,
        decoy_secret: None,
        member: Some(clustered.member.clone()),
        service: service.clone(),
    };
    let parts = Parts::make(loaded.clone(), ground, clock)?;
    let member = clustered.member.clone();
    parts.health.set(State::Standby);
    parts.health.depend_on(move || Some(member.status().where_to_go()));
    // Only those who read the API's stream are there to hear of events.
    let heard = parts.life_cycle.clone();
    clustered.member.notifier.set(Box::new(move |happened| drop(heard.on_other(happened))));
    Ok(parts)
}
