//! One connection of a bridge to its remote, with the connection to its session here.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bridge::{Action, Down, Login, Relay, Settings, Side, Suspects, Unreleased};
use codec::Reason;
use mio::{Events, Interest, Poll, Token};
use net::{Handshake, Progress, Read, Stream};
use serde_json::json;

use super::board::Figures;
use super::filters::{FilterFile, Filters};
use super::local::LocalSession;
use super::{Shown, refused_text};
use crate::life_cycle::table;

/// The token of the waker of a bridge; those of the sides are below.
pub(super) const WAKER: Token = Token(2);

/// How often a bridge looks at its keep-alive and its queue.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// The longest time from the first packet to the acknowledgement of both connections.
const OPENING_MAX: Duration = Duration::from_secs(30);

/// How long the last packets of a bridge may take.
const FAREWELL_MAX: Duration = Duration::from_millis(500);

/// No connection came about, or a connection has ended without a packet that says why.
pub(super) const CONNECT_FAILED: &str = "connect_failed";
const CONNECTION_LOST: &str = "connection_lost";

const SCRATCH_BYTES: usize = 64 * 1024;

/// Why a connection has ended.
pub(super) enum Ended {
    /// The broker stops.
    Stopped,
    /// The local session queues messages from now on.
    Queueing { was_present: bool },
    /// The remote does not know the announcement of bridges.
    Unannounced,
    Because {
        /// One word.
        reason: Cow<'static, str>,
        detail: String,
        /// The side that has ended it, if that may be because of a message.
        closed_by: Option<Side>,
    },
}

/// Both connections of a bridge.
pub(super) struct Connection<'a> {
    handshake: Option<Handshake>,
    relay: Relay,
    lines: [Option<Line>; 2],
    local: &'a LocalSession,
    figures: &'a Figures,
    filters: Option<(&'a FilterFile, Filters)>,
    began: Instant,
    is_opened: bool,
    was_up: bool,
    /// Without a remote: whether the local session was there before.
    queue_was_present: Option<bool>,
    scratch: Vec<u8>,
}

/// One of them, once it is open.
struct Line {
    stream: Stream,
    /// Bytes that the relay has not taken yet: less than a packet, unless it takes none.
    input: Vec<u8>,
    is_readable: bool,
    is_writable: bool,
    is_closed: bool,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        settings: Arc<Settings>,
        login: &Login,
        handshake: Handshake,
        local: &'a LocalSession,
        figures: &'a Figures,
    ) -> Self {
        let relay = Relay::new(settings, login, 0);
        Self { handshake: Some(handshake), ..Self::begin(relay, local, figures) }
    }

    /// To the local session alone, so that it queues.
    pub(super) fn queueing(
        settings: Arc<Settings>,
        local: &'a LocalSession,
        figures: &'a Figures,
    ) -> Self {
        Self::begin(Relay::queueing(settings, 0), local, figures)
    }

    fn begin(relay: Relay, local: &'a LocalSession, figures: &'a Figures) -> Self {
        Self {
            handshake: None,
            relay,
            lines: [None, None],
            local,
            figures,
            filters: None,
            began: Instant::now(),
            is_opened: false,
            was_up: false,
            queue_was_present: None,
            scratch: vec![0; SCRATCH_BYTES],
        }
    }

    /// Filters that an earlier configuration may have subscribed to.
    pub(super) fn set_earlier(&mut self, earlier: &Filters) {
        for side in Side::ALL {
            self.relay.set_earlier(side, earlier.of_side(side));
        }
        if earlier.is_local_new {
            self.relay.set_local_new();
        }
    }

    /// Where the filters of this connection are noted once it is up.
    pub(super) fn set_filters(&mut self, file: &'a FilterFile, own: Filters) {
        self.filters = Some((file, own));
    }

    /// What an earlier connection has left.
    pub(super) fn set_unreleased(&mut self, unreleased: Unreleased) {
        self.relay.set_unreleased(unreleased);
    }

    /// What an earlier connection has left.
    pub(super) fn set_suspects(&mut self, suspects: Suspects) {
        self.relay.set_suspects(suspects);
    }

    /// For the next connection, and whether a message is to blame for the end of this one.
    pub(super) fn take_suspects(&mut self, ended: &Ended) -> (Suspects, bool) {
        self.relay.take_suspects(match ended {
            Ended::Because { closed_by, .. } => *closed_by,
            _ => None,
        })
    }

    /// For the next connection.
    pub(super) fn take_unreleased(&mut self) -> Unreleased {
        self.relay.take_unreleased()
    }

    /// Whether all subscriptions were answered.
    pub(super) const fn was_up(&self) -> bool {
        self.was_up
    }

    /// Relays until either connection ends.
    ///
    /// # Errors
    ///
    /// When the system gives no events.
    pub(super) fn run(&mut self, poll: &mut Poll, is_stopping: &AtomicBool) -> io::Result<Ended> {
        let mut events = Events::with_capacity(16);
        if let Some(handshake) = &mut self.handshake {
            let interests = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(handshake, Token(Side::Remote as usize), interests)?;
        }
        let ended = loop {
            if is_stopping.load(Ordering::Acquire) {
                self.say_farewell();
                break Ended::Stopped;
            }
            match (self.go_on(poll), self.queue_was_present) {
                (Ok(()), Some(was_present)) if self.was_up => {
                    self.say_farewell();
                    break Ended::Queueing { was_present };
                }
                (Ok(()), _) => {}
                (Err(Fault::Relay(Down::Unannounced)), _) => break Ended::Unannounced,
                (Err(fault), _) => {
                    break Ended::Because {
                        reason: fault.reason(),
                        detail: fault.to_string(),
                        closed_by: fault.closed_by(),
                    };
                }
            }
            match poll.poll(&mut events, Some(TICK)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                let Some(line) = self.lines.get_mut(event.token().0).and_then(Option::as_mut)
                else {
                    continue;
                };
                line.is_readable |= event.is_readable() || event.is_read_closed();
                line.is_writable |= event.is_writable();
            }
            self.local.look(self.figures);
        };
        self.deregister(poll);
        self.figures.set_counts(self.relay.counts());
        self.figures.settle_counts();
        Ok(ended)
    }

    /// Does all that can be done without waiting.
    fn go_on(&mut self, poll: &mut Poll) -> Result<(), Fault> {
        self.check_time()?;
        if let Some(mut handshake) = self.handshake.take() {
            match handshake.advance(&mut self.scratch) {
                Ok(Progress::Pending) => {
                    self.handshake = Some(handshake);
                    return Ok(());
                }
                Ok(Progress::Done(stream, _)) => {
                    self.lines[Side::Remote as usize] = Some(Line::new(stream));
                }
                Err(error) => {
                    let hint = error.client_hint();
                    return Err(Fault::Io(CONNECT_FAILED, format!("{error}{hint}")));
                }
            }
        }
        loop {
            let mut has_moved = false;
            for side in Side::ALL {
                match self.write(side) {
                    Ok(is_written) => has_moved |= is_written,
                    Err(fault) => {
                        // Acknowledgements that came before the end. It ends anyway.
                        let _ = self.read(side);
                        return Err(fault);
                    }
                }
                has_moved |= self.read(side)?;
                has_moved |= self.carry_out(poll)?;
            }
            if !has_moved {
                break;
            }
        }
        self.figures.set_counts(self.relay.counts());
        Ok(())
    }

    /// Both connections are opened in time, and the remote answers.
    fn check_time(&mut self) -> Result<(), Fault> {
        if !self.is_opened && self.began.elapsed() > OPENING_MAX {
            let waited = OPENING_MAX.as_secs();
            let detail = format!("not confirmed by both brokers within {waited} s");
            return Err(Fault::Io("timeout", detail));
        }
        let is_read = self.relay.takes(Side::Remote);
        let now_ms = self.now_ms();
        self.relay.on_tick(now_ms, is_read).map_err(Fault::Relay)
    }

    fn write(&mut self, side: Side) -> Result<bool, Fault> {
        let now_ms = self.now_ms();
        let Some(line) = &mut self.lines[side as usize] else { return Ok(false) };
        let mut has_moved = false;
        while line.is_writable && !self.relay.unwritten(side).is_empty() {
            let bytes = self.relay.unwritten(side);
            let count = line.stream.write(&[IoSlice::new(bytes)]).map_err(|e| lost(side, &e))?;
            line.is_writable = count == bytes.len();
            has_moved |= count > 0;
            self.relay.on_written(side, count, now_ms);
        }
        if line.is_writable && line.stream.wants_write() {
            line.is_writable = line.stream.flush().map_err(|error| lost(side, &error))?;
        }
        Ok(has_moved)
    }

    /// Reads while the relay takes what comes: so a side that cannot write stops the other one.
    fn read(&mut self, side: Side) -> Result<bool, Fault> {
        let now_ms = self.now_ms();
        let Some(line) = &mut self.lines[side as usize] else { return Ok(false) };
        let mut has_moved = false;
        loop {
            if !line.input.is_empty() {
                let taken = self.relay.on_bytes(side, &line.input, now_ms).map_err(Fault::Relay)?;
                line.input.drain(..taken);
                has_moved |= taken > 0;
            }
            if !self.relay.takes(side) {
                return Ok(has_moved);
            }
            if !line.is_readable {
                if line.is_closed {
                    let closed = format!("the {} broker closed the connection", side.as_str());
                    return Err(Fault::Lost(side, closed));
                }
                return Ok(has_moved);
            }
            match line.stream.read(&mut self.scratch).map_err(|error| lost(side, &error))? {
                Read::Bytes(count) => line.input.extend_from_slice(&self.scratch[..count]),
                Read::WouldBlock => line.is_readable = false,
                Read::Closed => (line.is_readable, line.is_closed) = (false, true),
            }
        }
    }

    fn carry_out(&mut self, poll: &Poll) -> Result<bool, Fault> {
        let mut has_moved = false;
        let name = self.figures.name();
        while let Some(action) = self.relay.next_action() {
            has_moved = true;
            match action {
                Action::OpenLocal { receive_max } => {
                    let stream = self.local.connect(receive_max);
                    let mut stream =
                        stream.map_err(|error| Fault::Io(CONNECT_FAILED, error.to_string()))?;
                    let interests = Interest::READABLE | Interest::WRITABLE;
                    let token = Token(Side::Local as usize);
                    let registered = poll.registry().register(&mut stream, token, interests);
                    registered.map_err(|error| lost(Side::Local, &error))?;
                    self.lines[Side::Local as usize] = Some(Line::new(stream));
                }
                Action::QueueOpened { was_present } => self.queue_was_present = Some(was_present),
                Action::Opened { local_present, remote_present } => {
                    self.is_opened = true;
                    self.note_filters(|(file, _)| file.meet(self.relay.unreleased()));
                    log_sessions(name, local_present, remote_present);
                }
                Action::Refused(refused) => {
                    let text = refused_text(&refused);
                    tracing::warn!(bridge = name, detail = text, "subscription refused");
                    self.figures.add_refused(text);
                }
                Action::Dropped { from, refusal, topic, bytes } => {
                    let direction = if from == Side::Local { "out" } else { "in" };
                    let data = json!({
                        "bridge": name, "direction": direction, "topic": topic, "bytes": bytes,
                        "reason": refusal.as_str(),
                    });
                    self.local.report(&table::BRIDGE_MESSAGE_DROPPED, data);
                }
                Action::Up if self.queue_was_present.is_some() => self.was_up = true,
                Action::Up => {
                    self.was_up = true;
                    self.note_filters(|(file, own)| file.settle(own, self.relay.unreleased()));
                    self.figures.set_connected();
                    self.local.publish_state(true);
                    let data = json!({ "bridge": name, "address": self.figures.address() });
                    self.local.report(&table::BRIDGE_CONNECTED, data);
                }
            }
        }
        Ok(has_moved)
    }

    fn note_filters(&self, note: impl Fn(&(&FilterFile, Filters)) -> io::Result<()>) {
        if let Some(Err(error)) = self.filters.as_ref().map(note) {
            tracing::warn!(bridge = self.figures.name(), %error, "{}", super::CANNOT_NOTE);
        }
    }

    /// Writes the last packets, as far as the peers take them soon.
    fn say_farewell(&mut self) {
        self.relay.say_farewell();
        let until = Instant::now() + FAREWELL_MAX;
        for side in Side::ALL {
            while !self.relay.unwritten(side).is_empty() && Instant::now() < until {
                if let Some(line) = &mut self.lines[side as usize] {
                    line.is_writable = true;
                }
                match self.write(side) {
                    Ok(true) => {}
                    Ok(false) if self.lines[side as usize].is_some() => std::thread::yield_now(),
                    Ok(false) | Err(_) => break,
                }
            }
            if let Some(line) = &mut self.lines[side as usize] {
                // The connection ends anyway.
                let _ = line.stream.shutdown();
            }
        }
    }

    fn deregister(&mut self, poll: &Poll) {
        // Closing a socket does the same; a stream that was never registered is no fault.
        for line in self.lines.iter_mut().flatten() {
            let _ = poll.registry().deregister(&mut line.stream);
        }
        if let Some(handshake) = &mut self.handshake {
            let _ = poll.registry().deregister(handshake);
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Line {
    fn new(stream: Stream) -> Self {
        // What came before it was registered makes no event.
        let (is_readable, is_writable, is_closed) = (true, true, false);
        Self { stream, input: Vec::new(), is_readable, is_writable, is_closed }
    }
}

/// Why the work of a connection stops.
enum Fault {
    /// With its reason in one word.
    Io(&'static str, String),
    /// A side has closed the connection.
    Lost(Side, String),
    Relay(Down),
}

impl Fault {
    /// In one word, as events of clients have it.
    fn reason(&self) -> Cow<'static, str> {
        let down = match self {
            Self::Io(reason, _) => return (*reason).into(),
            Self::Lost(..) => return CONNECTION_LOST.into(),
            Self::Relay(down) => down,
        };
        let reason = match down {
            Down::ConnectRefused { reason, .. } | Down::Disconnected { reason, .. } => *reason,
            Down::Unannounced => Reason::UNSUPPORTED_PROTOCOL_VERSION,
            Down::Violation { violation, .. } => violation.reason,
            Down::Unexpected { .. } => Reason::PROTOCOL_ERROR,
            Down::Silent => Reason::KEEP_ALIVE_TIMEOUT,
        };
        reason.word().into()
    }

    /// The side that may not accept a message.
    const fn closed_by(&self) -> Option<Side> {
        match self {
            Self::Lost(side, _) => Some(*side),
            Self::Relay(down) => down.closed_by(),
            Self::Io(..) => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let down = match self {
            Self::Io(_, detail) | Self::Lost(_, detail) => return f.write_str(detail),
            Self::Relay(down) => down,
        };
        match down {
            Down::ConnectRefused { side, reason } => {
                write!(f, "the {} broker refused the connection: {}", side.as_str(), Shown(*reason))
            }
            Down::Unannounced => f.write_str("the remote does not know bridges"),
            Down::Disconnected { side, reason } => {
                write!(f, "the {} broker disconnected: {}", side.as_str(), Shown(*reason))
            }
            Down::Violation { side, violation } => {
                let (detail, clause) = (violation.detail, violation.clause);
                write!(f, "the {} broker sent a wrong packet: {detail} ({clause})", side.as_str())
            }
            Down::Unexpected { side, packet } => {
                write!(f, "the {} broker sent a {packet} at the wrong time", side.as_str())
            }
            Down::Silent => f.write_str("the remote has not answered within keep_alive_secs"),
        }
    }
}

fn lost(side: Side, error: &io::Error) -> Fault {
    Fault::Lost(side, format!("connection to the {} broker: {error}", side.as_str()))
}

/// A session that one side has lost, and what follows from that.
fn log_sessions(bridge: &str, local_present: bool, remote_present: bool) {
    match (local_present, remote_present) {
        (true, false) => tracing::warn!(
            bridge,
            "the remote has no session of the bridge: messages that it had queued are lost, and \
            those in flight may arrive twice there"
        ),
        (false, true) => tracing::warn!(
            bridge,
            "this broker has no session of the bridge: messages that were queued are lost, and \
            those in flight may arrive twice here"
        ),
        _ => {}
    }
}
