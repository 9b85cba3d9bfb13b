//! Bridges to other brokers: a thread for each, which connects, relays, and connects again.
//!
//! A thread of its own, because resolving a name and reading certificates block.

mod board;
mod connection;
mod filters;
mod local;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use bridge::{Direction, Login, Refused, Settings, Suspects, TopicMap, Unreleased};
use codec::{QoS, Reason, Version};
use config::{BridgeConfig, BridgeDirection, BridgeProtocol, Config};
use mio::{Events, Poll, Waker};
use net::{Connect, ConnectOptions, Connector, TlsClientContext, TlsClientOptions};
use serde_json::json;
use topic::TopicLimits;

use super::mailbox::Mailbox;
use super::parts::Parts;
use crate::life_cycle::{EventKind, table};
use base::random;
pub use board::BridgeBoard;
use board::Figures;
pub(crate) use board::{BridgeFigures, BridgeState};
use connection::{Connection, Ended};
use filters::{FilterFile, Filters};
use local::LocalSession;

/// The threads of all bridges.
pub(super) struct Bridges {
    is_stopping: Arc<AtomicBool>,
    wakers: Vec<Arc<Waker>>,
    threads: Vec<JoinHandle<()>>,
}

impl Bridges {
    /// Starts all that are configured, and returns when they queue messages. `mailboxes`: of the
    /// workers.
    pub(super) fn start(parts: &Parts, mailboxes: &Arc<[Arc<Mailbox>]>) -> anyhow::Result<Self> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let mut bridges = Self { is_stopping, wakers: Vec::new(), threads: Vec::new() };
        let (opening, opened) = mpsc::channel();
        for (config, figures) in parts.config().bridges.iter().zip(parts.bridges.all()) {
            let poll = Poll::new()?;
            let waker = Arc::new(Waker::new(poll.registry(), connection::WAKER)?);
            let keeper = Keeper {
                local: LocalSession::new(config, parts, mailboxes),
                settings: Arc::new(settings_of(config, parts.config())),
                filters: FilterFile::of(config, parts.config()),
                config: config.clone(),
                figures: figures.clone(),
                poll,
                is_stopping: bridges.is_stopping.clone(),
                is_announced: config.is_announced,
                unreleased: None,
                suspects: Suspects::default(),
                backoff: BACKOFF_MIN,
                is_queueing: false,
            };
            let opening = opening.clone();
            bridges.wakers.push(waker);
            let run = move || keeper.run(opening);
            bridges.threads.push(super::spawn(format!("bridge-{}", config.name), None, run)?);
        }
        drop(opening);
        if opened.recv_timeout(OPENING_MAX) == Err(RecvTimeoutError::Timeout) {
            let secs = OPENING_MAX.as_secs();
            tracing::warn!(secs, "starting before all bridges queue messages");
        }
        Ok(bridges)
    }

    /// Disconnects all of them.
    pub(super) fn stop(self) {
        self.is_stopping.store(true, Ordering::Release);
        for waker in &self.wakers {
            if let Err(error) = waker.wake() {
                tracing::warn!(%error, "cannot wake a bridge");
            }
        }
        super::join(self.threads);
    }
}

/// Keeps one bridge connected.
struct Keeper {
    config: BridgeConfig,
    settings: Arc<Settings>,
    filters: FilterFile,
    local: LocalSession,
    figures: Arc<Figures>,
    poll: Poll,
    is_stopping: Arc<AtomicBool>,
    /// False once the remote has refused the announcement of a bridge.
    is_announced: bool,
    /// None: nothing was connected yet.
    unreleased: Option<Unreleased>,
    suspects: Suspects,
    backoff: Duration,
    /// The local session has the subscriptions of the configuration.
    is_queueing: bool,
}

impl Keeper {
    fn run(mut self, opening: mpsc::Sender<()>) -> io::Result<()> {
        self.local.publish_state(false);
        self.open_queue()?;
        drop(opening);
        while !self.is_stopping() {
            self.open_queue()?;
            let was_up = self.try_all();
            if self.is_stopping() {
                break;
            }
            if was_up {
                self.backoff = BACKOFF_MIN;
            }
            self.figures.set_state(BridgeState::Waiting);
            self.wait(jittered(self.backoff))?;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        }
        self.figures.set_state(BridgeState::Stopped);
        Ok(())
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Opens the local session with its subscriptions, unless it ends with each connection. So it
    /// queues messages before the remote has ever been there.
    fn open_queue(&mut self) -> io::Result<()> {
        let has_out = self.settings.maps.iter().any(|map| map.direction.has_out());
        if self.is_queueing || self.settings.clean_session || !has_out {
            return Ok(());
        }
        let own = Filters::of(&self.settings.maps);
        let is_unknown = self.filters.is_empty().unwrap_or(false);
        // A full disk is no reason to lose messages: the file is written later, too.
        let earlier = self.filters.begin(&own).unwrap_or_else(|error| {
            tracing::warn!(bridge = self.config.name, %error, "{CANNOT_NOTE}");
            own.clone()
        });
        let mut connection =
            Connection::queueing(self.settings.clone(), &self.local, &self.figures);
        connection.set_earlier(&earlier);
        match connection.run(&mut self.poll, &self.is_stopping)? {
            Ended::Queueing { was_present } => {
                let noted = match (was_present, is_unknown) {
                    (false, _) => self.filters.renew(),
                    // It is from another node of a cluster, which does not share the file.
                    (true, true) => self.filters.settle(&own, &earlier.unreleased()),
                    (true, false) => Ok(()),
                };
                if let Err(error) = noted {
                    tracing::warn!(bridge = self.config.name, %error, "{CANNOT_NOTE}");
                }
                self.is_queueing = true;
            }
            Ended::Because { detail, .. } => {
                let bridge = &self.config.name;
                tracing::warn!(bridge, detail, "bridge cannot queue messages; trying again");
            }
            Ended::Stopped | Ended::Unannounced => {}
        }
        Ok(())
    }

    /// Tries all addresses in order, until a connection was up, or ended because of a message.
    /// Returns whether one was.
    fn try_all(&mut self) -> bool {
        for address in self.config.addresses.clone() {
            let connector = match self.connector(&address) {
                Ok(connector) => connector,
                Err(error) => {
                    self.note_failure(&address, &error);
                    continue;
                }
            };
            for address_index in 0..connector.address_count() {
                if self.is_stopping() {
                    return false;
                }
                match self.try_one(&connector, &address, address_index) {
                    Ok(true) => return true,
                    Ok(false) => {}
                    Err(error) => self.note_failure(&address, &error),
                }
            }
        }
        false
    }

    /// Returns whether the connection was up, or ended because of a message.
    fn try_one(
        &mut self,
        connector: &Connector,
        address: &net::Address,
        address_index: usize,
    ) -> io::Result<bool> {
        self.figures.begin(address.to_string());
        let login = self.login()?;
        let seed = u64::from_le_bytes(random());
        let handshake =
            connector.connect(&Connect { address_index, seed, ..Connect::default() })?;
        let mut settings = (*self.settings).clone();
        settings.is_announced = self.is_announced;
        let mut connection =
            Connection::new(Arc::new(settings), &login, handshake, &self.local, &self.figures);
        let own = Filters::of(&self.settings.maps);
        let earlier = self.filters.begin(&own)?;
        connection.set_earlier(&earlier);
        connection.set_filters(&self.filters, own);
        let unreleased = self.unreleased.take();
        connection.set_unreleased(unreleased.unwrap_or_else(|| earlier.unreleased()));
        connection.set_suspects(std::mem::take(&mut self.suspects));
        let ended = connection.run(&mut self.poll, &self.is_stopping);
        self.unreleased = Some(connection.take_unreleased());
        let ended = ended?;
        let is_blamed;
        (self.suspects, is_blamed) = connection.take_suspects(&ended);
        let was_up = connection.was_up();
        drop(connection);
        if was_up {
            self.local.publish_state(false);
        }
        match ended {
            Ended::Stopped if was_up => {
                let reason = Reason::SERVER_SHUTTING_DOWN.word();
                self.report(&table::BRIDGE_STOPPED, address, &reason, "this broker is stopping");
            }
            Ended::Stopped | Ended::Queueing { .. } => {}
            Ended::Unannounced => {
                tracing::info!(
                    bridge = self.config.name,
                    "the remote does not know the \
                announcement of bridges; connecting without it"
                );
                self.is_announced = false;
            }
            Ended::Because { reason, detail, .. } => {
                self.figures.set_error(&detail);
                let kind = if was_up {
                    &table::BRIDGE_DISCONNECTED
                } else {
                    &table::BRIDGE_CONNECT_FAILED
                };
                self.report(kind, address, &reason, &detail);
            }
        }
        Ok(was_up || is_blamed)
    }

    fn note_failure(&self, address: &net::Address, error: &io::Error) {
        let detail = error.to_string();
        self.figures.set_error(&detail);
        self.report(&table::BRIDGE_CONNECT_FAILED, address, connection::CONNECT_FAILED, &detail);
    }

    fn report(&self, kind: &'static EventKind, address: &net::Address, reason: &str, detail: &str) {
        let (bridge, address) = (&self.config.name, address.to_string());
        let data =
            json!({ "bridge": bridge, "address": address, "reason": reason, "detail": detail });
        self.local.report(kind, data);
    }

    /// Resolves the host, and reads the files of TLS.
    fn connector(&self, address: &net::Address) -> io::Result<Connector> {
        let own = &self.config.tls;
        let tls = address.is_tls().then(|| {
            let client = own.client.as_ref();
            TlsClientContext::load(&TlsClientOptions {
                ca: own.ca.clone(),
                certificate: client.map(|(certificate, _)| certificate.clone()),
                key: client.map(|(_, key)| key.clone()),
                ..TlsClientOptions::default()
            })
        });
        let tls = tls.transpose().map_err(io::Error::other)?;
        let server_name = own.server_name.clone();
        Connector::new(address, &ConnectOptions { tls, server_name, ..ConnectOptions::default() })
    }

    fn login(&self) -> io::Result<Login> {
        let config = &self.config;
        let password = config.password_file.as_ref().map(|path| {
            let text = std::fs::read_to_string(path).map_err(|error| {
                io::Error::new(error.kind(), format!("password_file {}: {error}", path.display()))
            })?;
            Ok::<_, io::Error>(text.lines().next().unwrap_or_default().as_bytes().to_vec())
        });
        Ok(Login {
            client_id: config.client_id.clone(),
            username: config.username.clone(),
            password: password.transpose()?,
            state_topic: config
                .has_notifications
                .then(|| format!("$SYS/broker/{}", state_topic(&config.client_id))),
        })
    }

    fn wait(&mut self, time: Duration) -> io::Result<()> {
        let mut events = Events::with_capacity(4);
        let mut left = time;
        while !left.is_zero() && !self.is_stopping() {
            let began = std::time::Instant::now();
            match self.poll.poll(&mut events, Some(left.min(connection::TICK))) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => left = left.saturating_sub(began.elapsed()),
            }
            self.local.look(&self.figures);
            if self.local.take_gone() {
                self.is_queueing = false;
                self.open_queue()?;
            }
        }
        Ok(())
    }
}

/// The topic of the retained state of a bridge below `$SYS/broker/`, as mosquitto names it.
fn state_topic(client_id: &str) -> String {
    format!("connection/{client_id}/state")
}

/// Half of the time to all of it, so that bridges that failed together do not return together.
fn jittered(time: Duration) -> Duration {
    let part = u32::from(u8::from_le_bytes(random()));
    time / 2 + time / 2 * part / 255
}

fn settings_of(config: &BridgeConfig, all: &Config) -> Settings {
    let map = |own: &config::BridgeTopic| TopicMap {
        filter: own.filter.clone(),
        direction: match own.direction {
            BridgeDirection::In => Direction::In,
            BridgeDirection::Out => Direction::Out,
            BridgeDirection::Both => Direction::Both,
        },
        qos: QoS::try_from(own.qos).unwrap_or(QoS::ExactlyOnce),
        local_prefix: own.local_prefix.clone(),
        remote_prefix: own.remote_prefix.clone(),
    };
    Settings {
        version: match config.protocol {
            BridgeProtocol::V311 => Version::V311,
            BridgeProtocol::V5 => Version::V5,
        },
        clean_session: config.clean_session,
        keep_alive_secs: config.keep_alive_secs,
        is_announced: config.is_announced,
        maps: config.topics.iter().map(map).collect(),
        in_flight_max: config.in_flight_max,
        hops_max: config.hops_max,
        packet_bytes_max: all.listener_defaults.packet_bytes_max,
        remote_packet_bytes_max: match config.packet_bytes_max {
            0 => u32::MAX,
            bytes_max => bytes_max,
        },
        topic: TopicLimits {
            levels_max: all.limits.topic_levels_max,
            bytes_max: all.limits.topic_bytes_max,
        },
    }
}

/// A reason code for logs.
struct Shown(Reason);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.name() {
            Some(name) => write!(f, "{name} (0x{:02X})", self.0.0),
            None => write!(f, "0x{:02X}", self.0.0),
        }
    }
}

fn refused_text(refused: &Refused) -> String {
    let side = refused.side.as_str();
    format!("{side} subscription '{}': {}", refused.filter, Shown(refused.reason))
}

const CANNOT_NOTE: &str = "cannot write the file with the filters of a bridge";

/// How long the start waits for the sessions of bridges. A log that takes nothing does not prevent
/// the start.
const OPENING_MAX: Duration = Duration::from_secs(10);

/// The pause after all addresses have failed, doubled each time.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
