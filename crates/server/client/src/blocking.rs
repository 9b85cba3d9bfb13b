//! [`Client`]: one connection, calls that wait.
//!
//! `tests/blocking.rs` has examples.
//!
//! A client has no thread: acknowledgements, keep-alive and received messages are handled whenever
//! one of its calls runs. Call [`Client::recv`] at least once per keep-alive interval.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use codec::{
    Auth, FilterBuf, Properties, Property, PropertyBuf, Publish, QoS, Reason, SubscribeOptions,
    TopicBuf, Violation,
};
use mio::{Events, Interest, Poll, Token};

use crate::wire::Read;
use crate::{Acks, ConnectOptions, Endpoint, Event, Machine, NotSent, Unacknowledged, Wire};

/// A connected client. Dropping it closes the socket without a DISCONNECT, so that the will is
/// sent.
pub struct Client {
    machine: Machine<Stored>,
    wire: Wire,
    poll: Poll,
    events: Events,
    scratch: Box<[u8]>,
    /// Received bytes that do not make a whole packet yet.
    partial: Vec<u8>,
    outbox: Vec<u8>,
    inbox: VecDeque<Message>,
    answers: VecDeque<Answer>,
    tickets: u64,
    started: Instant,
    timeout: Duration,
    ended: Option<Ended>,
}

/// What is kept of a message of ours until it is acknowledged.
#[derive(Debug)]
struct Stored {
    ticket: Ticket,
    message: Message,
}

/// Names a message given to [`Client::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A message to be published, or one that was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    /// Only of received messages: the server had sent it before.
    pub dup: bool,
    pub packet_id: u16,
    /// MQTT 5 only.
    pub properties: PropertyBuf,
}

impl Message {
    /// A QoS 0 message.
    pub fn new(topic: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            topic: topic.into(),
            payload: payload.into(),
            qos: QoS::AtMostOnce,
            retain: false,
            dup: false,
            packet_id: 0,
            properties: PropertyBuf::new(),
        }
    }

    #[must_use]
    pub fn qos(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    #[must_use]
    pub fn retain(mut self) -> Self {
        self.retain = true;
        self
    }

    fn received(publish: &Publish<'_>) -> Self {
        Self {
            topic: publish.topic.to_owned(),
            payload: publish.payload.to_vec(),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
            packet_id: publish.packet_id,
            properties: owned(publish.properties),
        }
    }

    fn as_publish(&self, dup: bool, packet_id: u16) -> Publish<'_> {
        Publish {
            dup,
            qos: self.qos,
            retain: self.retain,
            topic: &self.topic,
            packet_id,
            properties: self.properties.as_properties(),
            payload: &self.payload,
        }
    }
}

/// What the server said when it accepted the connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Connected {
    pub session_present: bool,
    pub properties: PropertyBuf,
}

/// How a message of ours ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Acknowledged {
    pub ticket: Ticket,
    pub reason: Reason,
    pub properties: PropertyBuf,
}

/// Answers an enhanced authentication challenge: method's data in, data out.
pub type Authenticate<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<u8>, String>;

#[derive(Debug)]
enum Answer {
    Connected(Connected),
    Subscribed { packet_id: u16, reasons: Vec<u8> },
    Unsubscribed { packet_id: u16, reasons: Vec<u8> },
    Published(Acknowledged),
    Auth { data: Vec<u8>, method: String },
}

#[derive(Clone, Debug)]
enum Ended {
    Refused { reason: Reason, why: String },
    ByServer { reason: Reason, why: String },
    Closed,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to {url}: {source}")]
    Connect { url: String, source: io::Error },
    #[error("the server refused the connection: {reason} (0x{:02X}){}", reason.0, dashed(why))]
    Refused { reason: Reason, why: String },
    #[error("the server ended the connection: {reason} (0x{:02X}){}", reason.0, dashed(why))]
    EndedByServer { reason: Reason, why: String },
    #[error("the server closed the connection")]
    Closed,
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("the server broke the protocol: {0}")]
    Violation(#[from] Violation),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the message was not sent: {0}")]
    NotSent(#[from] NotSent),
    #[error("authentication failed: {0}")]
    Auth(String),
}

impl Client {
    /// Connects and waits for the CONNACK. `timeout` also bounds each later wait for an answer.
    pub fn connect(
        endpoint: &Endpoint,
        options: &ConnectOptions,
        timeout: Duration,
    ) -> Result<(Self, Connected), ClientError> {
        let mut refuse = |_: &[u8]| {
            Err("the server requested more authentication data than this client has".to_owned())
        };
        Self::connect_with(endpoint, options, timeout, &mut refuse)
    }

    /// As [`Client::connect`], answering the challenges of enhanced authentication.
    pub fn connect_with(
        endpoint: &Endpoint,
        options: &ConnectOptions,
        timeout: Duration,
        authenticate: Authenticate<'_>,
    ) -> Result<(Self, Connected), ClientError> {
        let machine = Machine::new(options.version, Acks::Automatic);
        let mut client = Self::open(endpoint, machine, timeout)?;
        let connected = client.log_in(options, authenticate)?;
        Ok((client, connected))
    }

    fn open(
        endpoint: &Endpoint,
        machine: Machine<Stored>,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect { url: endpoint.url.clone(), source };
        let poll = Poll::new()?;
        let wire = endpoint.prepare().and_then(|route| route.open(endpoint.source, seed()));
        let mut client = Self {
            machine,
            wire: wire.map_err(failed)?,
            poll,
            events: Events::with_capacity(4),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            partial: Vec::new(),
            outbox: Vec::new(),
            inbox: VecDeque::new(),
            answers: VecDeque::new(),
            tickets: 0,
            started: Instant::now(),
            timeout,
            ended: None,
        };
        client.attach(timeout).map_err(failed)?;
        Ok(client)
    }

    /// Registers the wire and drives its handshakes to the end.
    fn attach(&mut self, timeout: Duration) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut self.wire, TOKEN, interest)?;
        let deadline = Instant::now() + timeout;
        while !self.wire.advance(&mut self.scratch)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.wait(Some(left))?;
        }
        Ok(())
    }

    fn log_in(
        &mut self,
        options: &ConnectOptions,
        authenticate: Authenticate<'_>,
    ) -> Result<Connected, ClientError> {
        let now_ms = self.now_ms();
        self.machine.connect(options, now_ms, &mut self.outbox);
        loop {
            let answer = self.await_answer(|answer| {
                matches!(answer, Answer::Connected(_) | Answer::Auth { .. })
            })?;
            match answer {
                Answer::Connected(connected) => return Ok(connected),
                Answer::Auth { data, method } => {
                    let data = authenticate(&data).map_err(ClientError::Auth)?;
                    self.send_auth(Reason::CONTINUE_AUTHENTICATION, &method, &data);
                }
                _ => {}
            }
        }
    }

    fn send_auth(&mut self, reason: Reason, method: &str, data: &[u8]) {
        let mut properties = PropertyBuf::new();
        properties.push(Property::AuthMethod(method));
        properties.push(Property::AuthData(data));
        let auth = Auth { reason, properties: properties.as_properties() };
        auth.encode(self.machine.version(), &mut self.outbox);
    }

    /// Connects again with the same session state: repeats what was not acknowledged if the server
    /// still has the session, and sends it anew if not.
    pub fn reconnect(
        &mut self,
        endpoint: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Connected, ClientError> {
        self.machine.on_closed();
        let machine =
            std::mem::replace(&mut self.machine, Machine::new(options.version, Acks::Automatic));
        let mut next = Self::open(endpoint, machine, self.timeout)?;
        next.inbox = std::mem::take(&mut self.inbox);
        next.tickets = self.tickets;
        *self = next;
        let mut refuse = |_: &[u8]| {
            Err("the server requested more authentication data than this client has".to_owned())
        };
        let connected = self.log_in(options, &mut refuse)?;
        if connected.session_present {
            self.repeat_open();
        } else {
            for stored in self.machine.forget() {
                let publish = stored.message.as_publish(false, 0);
                let again = Stored { ticket: stored.ticket, message: stored.message.clone() };
                self.machine.publish(&publish, again, &mut self.outbox)?;
            }
        }
        self.flush()?;
        Ok(connected)
    }

    fn repeat_open(&mut self) {
        let version = self.machine.version();
        for open in self.machine.unacknowledged() {
            match open {
                Unacknowledged::Publish { packet_id, token, .. } => {
                    token.message.as_publish(true, packet_id).encode(version, &mut self.outbox);
                }
                Unacknowledged::Pubrel { packet_id, .. } => {
                    self.machine.repeat_pubrel(packet_id, &mut self.outbox);
                }
            }
        }
    }

    /// Publishes and, for QoS 1 and 2, waits until the server has taken the message over. The
    /// reason may be an error (MQTT 5), such as "quota exceeded".
    pub fn publish(&mut self, message: &Message) -> Result<Reason, ClientError> {
        match self.send(message)? {
            None => Ok(Reason::SUCCESS),
            Some(ticket) => {
                let answer = self.await_answer(
                    |answer| matches!(answer, Answer::Published(done) if done.ticket == ticket),
                )?;
                match answer {
                    Answer::Published(done) => Ok(done.reason),
                    _ => Ok(Reason::SUCCESS),
                }
            }
        }
    }

    /// Publishes without waiting for the acknowledgement, except for room in the window. QoS 0 has
    /// no ticket. Tickets come back from [`Client::acknowledged`].
    pub fn send(&mut self, message: &Message) -> Result<Option<Ticket>, ClientError> {
        self.check_ended()?;
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let deadline = Instant::now() + self.timeout;
        while message.qos != QoS::AtMostOnce && !self.machine.has_window(u16::MAX) {
            self.turn_until(deadline)?;
        }
        let stored = Stored { ticket, message: message.clone() };
        let publish = message.as_publish(false, 0);
        let packet_id = self.machine.publish(&publish, stored, &mut self.outbox)?;
        if self.outbox.len() >= OUTBOX_FLUSH_BYTES || message.qos == QoS::AtMostOnce {
            self.flush()?;
        }
        Ok(packet_id.map(|_| ticket))
    }

    /// The next acknowledgement of a sent message; `None` after `timeout`.
    pub fn acknowledged(&mut self, timeout: Duration) -> Result<Option<Acknowledged>, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            let found =
                self.answers.iter().position(|answer| matches!(answer, Answer::Published(_)));
            if let Some(Answer::Published(done)) = found.and_then(|at| self.answers.remove(at)) {
                return Ok(Some(done));
            }
            self.check_ended()?;
            if !self.turn(Some(deadline))? && Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Messages of ours without an acknowledgement.
    pub fn in_flight(&self) -> usize {
        self.machine.in_flight()
    }

    /// Subscribes and waits for the answer: one reason per filter.
    pub fn subscribe(
        &mut self,
        filters: &[(&str, SubscribeOptions)],
    ) -> Result<Vec<Reason>, ClientError> {
        self.subscribe_with(filters, Properties::EMPTY)
    }

    /// As [`Client::subscribe`], with MQTT 5 properties (a subscription identifier, say).
    pub fn subscribe_with(
        &mut self,
        filters: &[(&str, SubscribeOptions)],
        properties: Properties<'_>,
    ) -> Result<Vec<Reason>, ClientError> {
        self.check_ended()?;
        let mut list = FilterBuf::new();
        for (filter, options) in filters {
            list.push(filter, *options);
        }
        let wanted = self.machine.subscribe(list.as_filters(), properties, &mut self.outbox)?;
        let answer = self.await_answer(
            |answer| matches!(answer, Answer::Subscribed { packet_id, .. } if *packet_id == wanted),
        )?;
        match answer {
            Answer::Subscribed { reasons, .. } => Ok(reasons.into_iter().map(Reason).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// Unsubscribes and waits for the answer: one reason per filter (MQTT 5), or none.
    pub fn unsubscribe(&mut self, filters: &[&str]) -> Result<Vec<Reason>, ClientError> {
        self.check_ended()?;
        let mut list = TopicBuf::new();
        for filter in filters {
            list.push(filter);
        }
        let wanted =
            self.machine.unsubscribe(list.as_topics(), Properties::EMPTY, &mut self.outbox)?;
        let answer = self.await_answer(|answer| match answer {
            Answer::Unsubscribed { packet_id, .. } => *packet_id == wanted,
            _ => false,
        })?;
        match answer {
            Answer::Unsubscribed { reasons, .. } => Ok(reasons.into_iter().map(Reason).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// The next message; `None` after `timeout`. Without a timeout it waits for ever, keeping the
    /// connection alive.
    pub fn recv(&mut self, timeout: Option<Duration>) -> Result<Option<Message>, ClientError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(message) = self.inbox.pop_front() {
                return Ok(Some(message));
            }
            self.check_ended()?;
            let progressed = self.turn(deadline)?;
            if !progressed && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// Sends DISCONNECT and closes.
    pub fn disconnect(self) -> Result<(), ClientError> {
        self.disconnect_with(Reason::NORMAL_DISCONNECTION, Properties::EMPTY)
    }

    /// As [`Client::disconnect`], with a reason and properties (MQTT 5).
    pub fn disconnect_with(
        mut self,
        reason: Reason,
        properties: Properties<'_>,
    ) -> Result<(), ClientError> {
        self.machine.disconnect(reason, properties, &mut self.outbox);
        let deadline = Instant::now() + self.timeout;
        while !self.try_flush()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::TimedOut(self.timeout));
            }
            self.wait(Some(left))?;
        }
        // The server may have closed already, which is what was asked for.
        let _ = self.wire.shutdown();
        Ok(())
    }

    /// Runs until `wanted` accepts an answer, and takes it.
    fn await_answer(&mut self, wanted: impl Fn(&Answer) -> bool) -> Result<Answer, ClientError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let found = self.answers.iter().position(&wanted);
            if let Some(answer) = found.and_then(|at| self.answers.remove(at)) {
                return Ok(answer);
            }
            self.check_ended()?;
            self.turn_until(deadline)?;
        }
    }

    fn turn_until(&mut self, deadline: Instant) -> Result<(), ClientError> {
        self.check_ended()?;
        if !self.turn(Some(deadline))? && Instant::now() >= deadline {
            return Err(ClientError::TimedOut(self.timeout));
        }
        Ok(())
    }

    /// Sends what waits, takes what came, and waits for more if nothing did. `true`: something
    /// came.
    fn turn(&mut self, deadline: Option<Instant>) -> Result<bool, ClientError> {
        self.flush_ready()?;
        if self.take_ready()? || self.ended.is_some() {
            self.flush_ready()?;
            return Ok(true);
        }
        let now = Instant::now();
        let until = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let now_ms = self.now_ms();
        let tick = self
            .machine
            .next_tick_ms()
            .map(|at_ms| Duration::from_millis(at_ms.saturating_sub(now_ms)));
        let limit = match (until, tick) {
            (Some(until), Some(tick)) => Some(until.min(tick)),
            (until, tick) => until.or(tick),
        };
        self.wait(limit)?;
        let now_ms = self.now_ms();
        if !self.machine.on_tick(now_ms, &mut self.outbox) {
            self.ended = Some(Ended::Closed);
            return Ok(true);
        }
        let came = self.take_ready()?;
        self.flush_ready()?;
        Ok(came)
    }

    fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        // The kernel counts milliseconds; rounding up avoids a busy loop before the deadline.
        let limit = limit.map(|limit| limit + Duration::from_micros(999));
        match self.poll.poll(&mut self.events, limit) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            done => done,
        }
    }

    /// Reads until the wire is empty. `true`: something was read, or the connection ended.
    fn take_ready(&mut self) -> Result<bool, ClientError> {
        let mut came = false;
        while self.ended.is_none() {
            match self.wire.read(&mut self.scratch)? {
                Read::WouldBlock => break,
                Read::Closed => {
                    self.machine.on_closed();
                    self.ended = Some(Ended::Closed);
                    came = true;
                }
                Read::Bytes(n) => {
                    came = true;
                    self.partial.extend_from_slice(&self.scratch[..n]);
                    self.take_packets()?;
                    if self.inbox.len() >= INBOX_PAUSE {
                        break;
                    }
                }
            }
        }
        Ok(came)
    }

    fn take_packets(&mut self) -> Result<(), ClientError> {
        let bytes = std::mem::take(&mut self.partial);
        let mut rest: &[u8] = &bytes;
        while let Some((event, taken)) = self.machine.next(rest, &mut self.outbox)? {
            rest = &rest[taken..];
            note(event, &mut self.inbox, &mut self.answers, &mut self.ended);
            if self.ended.is_some() {
                break;
            }
        }
        let taken = bytes.len() - rest.len();
        self.partial = bytes;
        self.partial.drain(..taken);
        Ok(())
    }

    /// Sends all of the outbox, waiting for the socket as long as an answer may take.
    fn flush(&mut self) -> Result<(), ClientError> {
        let deadline = Instant::now() + self.timeout;
        while !self.try_flush()? {
            // Reading on avoids a deadlock with a server that waits for us to read.
            self.take_ready()?;
            self.check_ended()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::TimedOut(self.timeout));
            }
            if !self.try_flush()? {
                self.wait(Some(left))?;
            }
        }
        Ok(())
    }

    /// Sends what the socket takes now; a connection that the server ended is found out by reading.
    fn flush_ready(&mut self) -> Result<(), ClientError> {
        match self.try_flush() {
            Err(error) if is_lost(&error) => {
                self.outbox.clear();
                Ok(())
            }
            done => done.map(|_| ()).map_err(ClientError::from),
        }
    }

    fn try_flush(&mut self) -> io::Result<bool> {
        while !self.outbox.is_empty() {
            let taken = self.wire.write(&[IoSlice::new(&self.outbox)])?;
            if taken == 0 {
                return Ok(false);
            }
            self.outbox.drain(..taken);
            let now_ms = self.now_ms();
            self.machine.on_sent(now_ms);
        }
        if self.wire.wants_write() { self.wire.flush() } else { Ok(true) }
    }

    fn check_ended(&self) -> Result<(), ClientError> {
        Err(match &self.ended {
            None => return Ok(()),
            Some(Ended::Closed) => ClientError::Closed,
            Some(Ended::Refused { reason, why }) => {
                ClientError::Refused { reason: *reason, why: why.clone() }
            }
            Some(Ended::ByServer { reason, why }) => {
                ClientError::EndedByServer { reason: *reason, why: why.clone() }
            }
        })
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

fn note(
    event: Event<'_, Stored>,
    inbox: &mut VecDeque<Message>,
    answers: &mut VecDeque<Answer>,
    ended: &mut Option<Ended>,
) {
    match event {
        Event::Message(publish) => inbox.push_back(Message::received(&publish)),
        Event::Connected { session_present, properties } => {
            let connected = Connected { session_present, properties: owned(properties) };
            answers.push_back(Answer::Connected(connected));
        }
        Event::Published { token, reason, properties, .. } => {
            if answers.len() >= ANSWERS_MAX {
                answers.pop_front();
            }
            answers.push_back(Answer::Published(Acknowledged {
                ticket: token.ticket,
                reason,
                properties: owned(properties),
            }));
        }
        Event::Subscribed { packet_id, reasons } => {
            answers.push_back(Answer::Subscribed { packet_id, reasons: reasons.to_vec() });
        }
        Event::Unsubscribed { packet_id, reasons } => {
            answers.push_back(Answer::Unsubscribed { packet_id, reasons: reasons.to_vec() });
        }
        Event::Auth(auth) => answers.push_back(challenge(&auth)),
        Event::Refused { reason, properties } => {
            *ended = Some(Ended::Refused { reason, why: reason_text(properties) });
        }
        Event::Disconnected { reason, properties } => {
            *ended = Some(Ended::ByServer { reason, why: reason_text(properties) });
        }
        Event::Repeated { .. } | Event::AckedAgain { .. } | Event::Nothing => {}
    }
}

fn challenge(auth: &Auth<'_>) -> Answer {
    let (mut data, mut method) = (Vec::new(), String::new());
    for property in auth.properties.iter() {
        match property {
            Property::AuthData(bytes) => data = bytes.to_vec(),
            Property::AuthMethod(name) => method = name.to_owned(),
            _ => {}
        }
    }
    Answer::Auth { data, method }
}

fn owned(properties: Properties<'_>) -> PropertyBuf {
    let mut buf = PropertyBuf::new();
    buf.extend(properties);
    buf
}

fn reason_text(properties: Properties<'_>) -> String {
    properties.reason_string().unwrap_or_default().to_owned()
}

fn is_lost(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Differs from one connection to the next: WebSocket masks guard against proxies, not against
/// people.
fn seed() -> u64 {
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0)
}

fn dashed(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(", {text}") }
}

const TOKEN: Token = Token(0);
const READ_BYTES: usize = 64 * 1024;
/// `send` hands bytes to the socket when so many have gathered, or when anything waits.
const OUTBOX_FLUSH_BYTES: usize = 32 * 1024;
/// Received messages that nobody fetched stop the reading of more: the server is held back by TCP.
const INBOX_PAUSE: usize = 1_000;
/// Acknowledgements that nobody fetched; the oldest are forgotten.
const ANSWERS_MAX: usize = 65_536;
