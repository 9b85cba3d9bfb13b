//! The session of a bridge in this broker.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use broker::admission::BRIDGE_ID_PREFIX;
use broker::sys;
use broker::{Answer, Command, ConnectRequest, Limits, Name, Scope, Shared};
use codec::Version;
use config::BridgeConfig;
use driver::{Allowance, Origin};
use net::Stream;
use policy::Principal;
use tokio::sync::oneshot;

use super::board::Figures;
use super::connection::TICK;
use crate::life_cycle::line_pace::LinePace;
use crate::life_cycle::{EventKind, Happened, LifeCycle, Subject};
use crate::run::limiter::Listener;
use crate::run::limits;
use crate::run::mailbox::{Asked, Handover, Item, Mailbox};
use crate::run::parts::Parts;
use crate::run::worker::Line;
use base::Clock;
use identity::namespaces::Namespaces;

/// How a bridge gets to its session, and what is known of it.
pub(super) struct LocalSession {
    client_id: Box<str>,
    namespace: Option<String>,
    clean_session: bool,
    /// Below `$SYS/broker/`.
    state_topic: Option<String>,
    listener: Arc<Listener>,
    limits: Arc<Limits>,
    shared: Arc<Shared>,
    namespaces: Arc<Namespaces>,
    mailboxes: Arc<[Arc<Mailbox>]>,
    allowance: Arc<Allowance<Origin>>,
    life_cycle: Arc<LifeCycle>,
    asked: Mutex<Asking>,
    /// A remote that is down for long is no reason for a line at each try.
    lines: LinePace,
    clock: Clock,
}

/// The question how long the queue is.
#[derive(Default)]
struct Asking {
    at: Option<Instant>,
    answer: Option<oneshot::Receiver<Answer>>,
    is_gone: bool,
}

impl LocalSession {
    pub(super) fn new(
        config: &BridgeConfig,
        parts: &Parts,
        mailboxes: &Arc<[Arc<Mailbox>]>,
    ) -> Self {
        let limits = Arc::new(limits::of_bridges(parts.config()));
        Self {
            client_id: format!("{}{}", BRIDGE_ID_PREFIX, config.name).into(),
            namespace: config.namespace.clone(),
            clean_session: config.clean_session,
            state_topic: config.has_notifications.then(|| super::state_topic(&config.client_id)),
            listener: Listener::of_bridges(&limits, &parts.limiter),
            limits,
            shared: parts.shared.clone(),
            namespaces: parts.namespaces.clone(),
            mailboxes: mailboxes.clone(),
            allowance: Arc::new(Allowance::new(u64::MAX, u64::MAX)),
            life_cycle: parts.life_cycle.clone(),
            asked: Mutex::default(),
            lines: LinePace::new(parts.config().log.client_lines_per_second_max),
            clock: parts.clock,
        }
    }

    /// Connects to the session. Its CONNACK comes first.
    pub(super) fn connect(&self, receive_max: u16) -> io::Result<Stream> {
        let permit = self.listener.acquire().ok_or_else(|| {
            io::Error::other("this broker has no connection left (limits.connections_max)")
        })?;
        let [own, other] = Stream::pair()?;
        let scope = self.scope()?;
        let request = ConnectRequest {
            version: Version::V5,
            is_bridge: false,
            scope,
            clean_start: self.clean_session,
            keep_alive_secs: 0,
            client_id: self.client_id.clone(),
            is_assigned: false,
            username: None,
            is_proved: true,
            principal: Some(Box::new(Principal { is_superuser: true, ..Principal::default() })),
            will: None,
            session_expiry_secs: if self.clean_session { 0 } else { u32::MAX },
            receive_max,
            packet_bytes_max: u32::MAX,
            alias_max: 0,
            problem_info: true,
            response_info: false,
            auth_method: None,
            auth_data: None,
            limits: self.limits.clone(),
            peer: "bridge".into(),
            origin: Box::default(),
        };
        let shard = self.shared.place_of_client(request.name());
        let charge = self.allowance.begin(Origin::Local, 0);
        let (socket, rest) = (Line(other), Vec::new());
        let handover = Handover { socket, shard, request, rest, permit, charge };
        self.mailbox(shard).put(Item::Connection(Box::new(handover)));
        Ok(own)
    }

    /// Publishes the retained state of the bridge in this broker.
    pub(super) fn publish_state(&self, is_up: bool) {
        if let Some(topic) = &self.state_topic {
            let payload: &[u8] = if is_up { b"1" } else { b"0" };
            let message = sys::message(topic, payload, true);
            self.mailbox(0).put(Item::Publish(0, message));
        }
    }

    /// Something has happened to the bridge: logged, and reported as an event.
    pub(super) fn report(&self, kind: &'static EventKind, data: serde_json::Value) {
        let text = |name: &str| data.get(name).and_then(serde_json::Value::as_str).unwrap_or("");
        let subject = Subject::of_bridge(kind, text("bridge"), text("reason"));
        let now_ms = self.clock.now_ms();
        let is_logged = subject.is_none_or(|it| self.lines.allows_of(it, 1, now_ms));
        let happened = Happened::of_broker(kind, data);
        if is_logged {
            happened.log();
        }
        if let Some(message) = self.life_cycle.on_other(&happened) {
            self.mailbox(0).put(Item::Publish(0, message));
        }
    }

    /// Asks how much waits for the bridge, and notes the last answer.
    pub(super) fn look(&self, figures: &Figures) {
        self.lines.log_withheld(self.clock.now_ms());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.at.is_some_and(|at| at.elapsed() < TICK / 2) {
            return;
        }
        match asked.answer.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Err(oneshot::error::TryRecvError::Empty)) => return,
            Some(Ok(Answer::Session(Some(view)))) => {
                figures.set_lag(view.queued + view.in_flight, view.queued_bytes);
            }
            Some(Ok(Answer::Session(None))) => {
                figures.set_lag(0, 0);
                asked.is_gone = true;
            }
            Some(_) | None => {}
        }
        let Ok(scope) = self.scope() else { return };
        let shard = self.shared.place_of_client(Name::new(scope, &self.client_id));
        let (answer, given) = oneshot::channel();
        let command = Command::Session(self.client_id.clone());
        self.mailbox(shard).put(Item::Command(Box::new(Asked { shard, scope, command, answer })));
        (asked.at, asked.answer) = (Some(Instant::now()), Some(given));
    }

    /// Whether the session was gone when it was looked for: an operator has removed it.
    pub(super) fn take_gone(&self) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut asked.is_gone)
    }

    fn mailbox(&self, shard: u16) -> &Mailbox {
        &self.mailboxes[usize::from(shard) % self.mailboxes.len()]
    }

    fn scope(&self) -> io::Result<Scope> {
        let Some(name) = &self.namespace else { return Ok(Scope::FIRST) };
        self.namespaces.scope_of(name).ok_or_else(|| {
            io::Error::other(format!("namespace '{name}' is not open (bridges.namespace)"))
        })
    }
}
