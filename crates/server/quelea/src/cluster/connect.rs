//! The connection to NATS servers, and what `quelea cluster init` has put there.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use async_nats::{ConnectOptions, Event, ServerInfo};
use cluster::{Extent, Record};

use super::engine::{Engine, LEASE_KEY, Names};
use super::login;
use config::ClusterConfig;

/// A server that does not answer two of these is given up for another one.
const PING_INTERVAL: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RECONNECT_DELAY: Duration = Duration::from_millis(250);
/// How long a command line repeats a request that is not answered. NATS may elect meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two tries of a node that begins.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Why a node that starts has to wait: the reason in `/readyz`.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitReason(Arc<Mutex<String>>);

impl WaitReason {
    pub(crate) fn reason(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, reason: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Notes that a try failed, and waits for the next one.
    async fn pause(&self, reason: String) {
        tracing::warn!(detail = reason, "cannot connect to NATS, retrying");
        self.set(reason);
        tokio::time::sleep(RETRY_INTERVAL).await;
    }

    /// Asks the engine until it answers.
    pub(super) async fn answer_of<T, F>(&self, ask: impl Fn() -> F) -> T
    where
        F: Future<Output = io::Result<T>>,
    {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(error) => self.pause(format!("NATS does not answer: {error}")).await,
            }
        }
    }
}

/// Connects, waiting as long as it takes.
///
/// # Errors
///
/// When a file of the configuration cannot be used, or NATS refuses the log-in.
pub(super) async fn connect(
    config: &ClusterConfig,
    waiting: &WaitReason,
) -> anyhow::Result<Engine> {
    let urls: Vec<&str> = config.servers.iter().map(|server| server.url.as_str()).collect();
    let servers = urls.join(", ");
    waiting.set(format!("connecting to NATS at {servers}"));
    loop {
        match options(config)?.connect(&urls[..]).await {
            Ok(client) => return Ok(Engine::new(client, Names::new(&config.name))),
            Err(error) if is_refused(&error) => {
                let what = "NATS refuses the login of this node";
                bail!(
                    "{what} at {servers}: {error}; see username, password_file and credentials_file in [cluster]"
                );
            }
            Err(error) => {
                waiting.pause(format!("cannot reach NATS at {servers}: {error}")).await;
            }
        }
    }
}

/// A later try has no other end.
fn is_refused(error: &async_nats::ConnectError) -> bool {
    use async_nats::ConnectErrorKind::{Authentication, AuthorizationViolation};
    matches!(error.kind(), Authentication | AuthorizationViolation)
}

/// Connects for a command line: what cannot be reached is an error. A request that is not answered
/// is repeated for a while.
///
/// # Errors
///
/// When no server can be reached, or a file of the configuration cannot be used.
pub(super) async fn connect_once(config: &ClusterConfig) -> anyhow::Result<Engine> {
    let urls: Vec<&str> = config.servers.iter().map(|server| server.url.as_str()).collect();
    let connected = options(config)?.connect(&urls[..]).await;
    let client = connected.with_context(|| format!("cannot reach NATS at {}", urls.join(", ")))?;
    Ok(Engine::new(client, Names::new(&config.name)).patient(PATIENCE))
}

/// What one server says of itself.
///
/// # Errors
///
/// When it cannot be reached, or a file of the configuration cannot be used.
pub(super) async fn server_info(config: &ClusterConfig, url: &str) -> anyhow::Result<ServerInfo> {
    Ok(options(config)?.connect(url).await.context("cannot be reached")?.server_info())
}

/// Who has the lease.
///
/// # Errors
///
/// When the engine does not answer.
pub(super) async fn read_lease(engine: &Engine) -> anyhow::Result<Option<cluster::LeaseValue>> {
    let found = engine.get(LEASE_KEY).await?;
    Ok(found.and_then(|(_, value)| serde_json::from_slice(&value).ok()))
}

fn options(config: &ClusterConfig) -> anyhow::Result<ConnectOptions> {
    let mut options = login::options(&config.login)?
        .name(format!("quelea {}", config.node))
        // The nearest one is the first of them, and what they announce may be addresses that are
        // in no certificate.
        .retain_servers_order()
        .ignore_discovered_servers()
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIMEOUT)
        .reconnect_delay_callback(|_| RECONNECT_DELAY)
        .max_reconnects(None)
        .event_callback(note);
    if let Some(tls) = &config.tls {
        options = options.require_tls(true);
        if let Some(ca) = &tls.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((certificate, key)) = &tls.client {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
    }
    Ok(options)
}

async fn note(event: Event) {
    static IS_LOST: AtomicBool = AtomicBool::new(false);
    match event {
        Event::Connected => {
            if IS_LOST.swap(false, Ordering::Relaxed) {
                tracing::info!("reconnected to NATS");
            }
        }
        Event::Disconnected => {
            if !IS_LOST.swap(true, Ordering::Relaxed) {
                tracing::warn!("disconnected from NATS, reconnecting");
            }
        }
        event => tracing::debug!(%event, "NATS"),
    }
}

/// Reads what the cluster is, waiting for the engine as long as it takes.
///
/// # Errors
///
/// When it does not exist, or was created by another version.
pub(super) async fn wait_for_cluster(
    engine: &Engine,
    waiting: &WaitReason,
) -> anyhow::Result<Record> {
    let found = waiting.answer_of(|| find_record(engine)).await;
    Ok(Record::read(&existing(engine, found)?)?)
}

/// The same, for a command line.
///
/// # Errors
///
/// When it does not exist, or was created by another version, or the engine does not answer.
pub(super) async fn read_facts(engine: &Engine) -> anyhow::Result<Record> {
    Ok(Record::read(&read_record(engine).await?)?)
}

/// The same, for a command line that knows several cells, but is not for one of them alone.
///
/// # Errors
///
/// The same, and when the name is that of a cell.
pub(super) async fn read_whole(engine: &Engine) -> anyhow::Result<Record> {
    let record = read_facts(engine).await?;
    match record.extent {
        Extent::Cell { cell, .. } => Err(is_a_cell(engine.names().cluster(), cell)),
        Extent::One | Extent::Many { .. } => Ok(record),
    }
}

/// Refuses what is no cluster with one cell.
///
/// # Errors
///
/// Why it is none.
pub(super) fn refuse_cells(name: &str, record: &Record) -> anyhow::Result<()> {
    match record.extent {
        Extent::One => Ok(()),
        Extent::Many { cells, .. } => {
            bail!("cluster '{name}' has {cells} cells: this command does not know several yet")
        }
        Extent::Cell { cell, .. } => Err(is_a_cell(name, cell)),
    }
}

fn is_a_cell(name: &str, cell: u16) -> anyhow::Error {
    anyhow::anyhow!(
        "cluster.name: '{name}' is cell {cell} of another cluster; write the name of that"
    )
}

/// The value of the key that names the cluster.
///
/// # Errors
///
/// When the cluster does not exist, or the engine does not answer.
pub(super) async fn read_record(engine: &Engine) -> anyhow::Result<Vec<u8>> {
    existing(engine, find_record(engine).await?)
}

async fn find_record(engine: &Engine) -> io::Result<Option<(u64, Vec<u8>)>> {
    match engine.get(CLUSTER_KEY).await {
        Err(error) if error.to_string().contains("stream not found") => Ok(None),
        found => found,
    }
}

fn existing(engine: &Engine, found: Option<(u64, Vec<u8>)>) -> anyhow::Result<Vec<u8>> {
    let name = engine.names().cluster();
    let missing = || format!("cluster '{name}' does not exist: run `quelea cluster init`");
    Ok(found.with_context(missing)?.1)
}

/// The key that names the cluster.
pub(crate) const CLUSTER_KEY: &str = "cluster";
