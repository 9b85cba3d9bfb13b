//! The thread of the links: sockets, time, and what other threads ask for.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::boot_ms;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::connection::{Connection, Link, Stage, is_heartbeat};
use crate::hello::{Agreed, Greeting, Hello, HelloError};
use crate::life::Life;
use crate::links::{Connected, Current, Handler, Options, Origin, Reason, StartError};
use crate::outbox::{Doorbell, Outbox, Sender};
use crate::peers::{Attempt, LinkName, Member, Peers};
use crate::poller::{Bell, HANDLER_TOKENS, Poller, WAKER};
use crate::tls::{self, Tls};
use crate::transport::{Received, Transport};

/// From the first packet of TCP to the proof of the peer.
pub const HANDSHAKE_MS_MAX: u64 = 5000;

/// Accepted connections that are in their handshake. One that is a node's needs some
/// milliseconds, so at the limit the oldest one is closed.
pub const HANDSHAKES_MAX: usize = 128;

/// The same of one address. Policy: further ones are closed.
pub const HANDSHAKES_PER_ADDRESS_MAX: usize = 32;

pub(crate) enum Command {
    Add(Member),
    Remove(String),
    Resolved { attempt: Attempt, found: io::Result<Vec<SocketAddr>> },
    Stop,
}

/// What the thread shares with its handle, and the handler.
type Shared = (Arc<Tls>, Arc<Current>, Box<dyn Handler>);

pub(crate) struct Thread {
    options: Options,
    tls: Arc<Tls>,
    handler: Box<dyn Handler>,
    current: Arc<Current>,
    resolver: mpsc::Sender<Attempt>,
    doorbell: Arc<Doorbell>,
    bell: Arc<Bell>,
    poll: Poll,
    listener: TcpListener,
    /// When to accept again, if that was interrupted.
    accept_ms: Option<u64>,
    peers: Peers,
    connections: HashMap<Token, Box<Connection>>,
    next_token: usize,
    /// Connections that have more to read than their part of a turn.
    unread: Vec<Token>,
    buffers: Buffers,
}

#[derive(Default)]
struct Buffers {
    wire: Vec<u8>,
    plain: Vec<u8>,
}

impl Thread {
    pub(crate) fn new(
        Poller { poll, bell }: Poller,
        options: Options,
        (tls, current, handler): Shared,
    ) -> Result<Self, StartError> {
        let doorbell = Arc::new(Doorbell::new(Arc::clone(&bell)));
        let mut listener = TcpListener::bind(options.listen)
            .map_err(|error| StartError::Listen { address: options.listen, error })?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let resolver = start_resolver(Arc::clone(&doorbell))?;
        let peers = Peers::new(options.node.clone(), options.lanes, options.link_ms);
        let buffers = Buffers { wire: vec![0; READ_BYTES], plain: Vec::new() };
        Ok(Self {
            options,
            tls,
            handler,
            current,
            resolver,
            doorbell,
            bell,
            poll,
            listener,
            accept_ms: None,
            peers,
            connections: HashMap::new(),
            next_token: WAKER.0 + 1,
            unread: Vec::new(),
            buffers,
        })
    }

    pub(crate) fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.doorbell)
    }

    pub(crate) fn local_address(&self) -> SocketAddr {
        // It is bound.
        self.listener.local_addr().unwrap_or(self.options.listen)
    }

    pub(crate) fn add(&mut self, members: &[Member]) {
        members.iter().for_each(|member| self.peers.add(member, boot_ms()));
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            let wait = self.wait();
            #[expect(clippy::panic, reason = "without events there are no links")]
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                panic!("the links cannot wait for events: {error}");
            }
            self.bell.get_up();
            // Before anything is read: links may have died while this process was paused.
            self.on_time(boot_ms());
            let mut ready = std::mem::take(&mut self.unread);
            for event in &events {
                match event.token() {
                    token if token.0 >= HANDLER_TOKENS => self.handler.on_event(event),
                    token => ready.push(token),
                }
            }
            ready.sort_unstable();
            ready.dedup();
            for token in ready {
                match token {
                    LISTENER => self.accept(),
                    WAKER => {}
                    token => self.drive(token, READS_PER_TURN),
                }
            }
            if self.take_commands() {
                return self.stop();
            }
            self.handler.on_turn();
            for token in self.doorbell.take() {
                self.drive(token, 0);
            }
        }
    }

    /// Until something is due.
    fn wait(&self) -> Duration {
        self.bell.lie_down();
        if !self.unread.is_empty() || !self.doorbell.is_empty() {
            return Duration::ZERO;
        }
        let due = self.connections.values().map(|connection| due_ms(connection));
        let due = due.chain(self.peers.next_ms()).chain(self.accept_ms).min();
        let wait_ms = due.map_or(WAIT_MS_MAX, |at_ms| at_ms.saturating_sub(boot_ms()));
        let wait = Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
        self.handler.wait().map_or(wait, |own| own.min(wait))
    }

    fn on_time(&mut self, now_ms: u64) {
        let all = self.connections.iter();
        let due = all.filter(|(_, connection)| due_ms(connection) <= now_ms);
        let due: Vec<Token> = due.map(|(token, _)| *token).collect();
        for token in due {
            self.with(token, |own, connection| match &mut connection.stage {
                Stage::Up(link) if link.life.is_dead(now_ms) => {
                    Err(Reason::Silent(own.options.link_ms))
                }
                Stage::Up(link) => Ok(link.beat(&mut connection.transport, now_ms)?),
                _ => Err(Reason::Late(HANDSHAKE_MS_MAX)),
            });
        }
        while let Some(attempt) = self.peers.next_attempt(now_ms) {
            self.resolve(attempt);
        }
        if self.accept_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.accept();
        }
    }

    /// True: stop.
    fn take_commands(&mut self) -> bool {
        for command in self.doorbell.take_commands() {
            match command {
                Command::Add(member) => self.add(&[member]),
                Command::Remove(node) => self.remove(&node),
                Command::Resolved { attempt, found } => self.connect(&attempt, found),
                Command::Stop => return true,
            }
        }
        false
    }

    fn remove(&mut self, node: &str) {
        let is_its = |connection: &Connection| match (&connection.stage, &connection.origin) {
            (Stage::Up(link), _) => *link.name.node == *node,
            (_, Origin::Link { node: dialed, .. }) => dialed == node,
            // Refused at the end of its handshake.
            (_, Origin::Address(_)) => false,
        };
        let all = self.connections.iter().filter(|(_, connection)| is_its(connection));
        let tokens: Vec<Token> = all.map(|(token, _)| *token).collect();
        tokens.iter().for_each(|token| self.close(*token, &Reason::Removed));
        self.peers.remove(node);
    }

    fn stop(mut self) {
        let tokens: Vec<Token> = self.connections.keys().copied().collect();
        tokens.iter().for_each(|token| self.close(*token, &Reason::Stopped));
    }
}

/// Connections begin.
impl Thread {
    fn accept(&mut self) {
        let now_ms = boot_ms();
        self.accept_ms = None;
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok((socket, address)) => self.on_accepted(socket, address, now_ms),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // Too many open files: the connection waits.
                    self.accept_ms = Some(now_ms + ACCEPT_PAUSE_MS);
                    return;
                }
            }
        }
        self.accept_ms = Some(now_ms);
    }

    fn on_accepted(&mut self, socket: TcpStream, address: SocketAddr, now_ms: u64) {
        let origin = Origin::Address(address);
        let handshakes = self.handshakes();
        let of_address = handshakes.iter().filter(|(ip, ..)| *ip == address.ip()).count();
        if of_address >= HANDSHAKES_PER_ADDRESS_MAX {
            let why = Reason::AddressCrowded(HANDSHAKES_PER_ADDRESS_MAX);
            return self.handler.on_failed(&origin, &why);
        }
        if handshakes.len() >= HANDSHAKES_MAX
            && let Some((_, _, oldest)) = handshakes.iter().min_by_key(|(_, at, token)| (at, token))
        {
            self.close(*oldest, &Reason::Crowded(HANDSHAKES_MAX));
        }
        match self.tls.accept() {
            Ok(tls) => self.begin(Transport::new(socket, tls), origin, now_ms),
            Err(error) => self.handler.on_failed(&origin, &error.into()),
        }
    }

    /// Accepted connections in their handshake: address, begin, token.
    fn handshakes(&self) -> Vec<(IpAddr, u64, Token)> {
        let all = self.connections.iter().filter_map(|(token, connection)| {
            match (&connection.stage, &connection.origin) {
                (Stage::Up(_), _) | (_, Origin::Link { .. }) => None,
                (_, Origin::Address(address)) => Some((address.ip(), connection.begun_ms, *token)),
            }
        });
        all.collect()
    }

    fn resolve(&mut self, attempt: Attempt) {
        if let Ok(address) = attempt.address.parse() {
            return self.connect(&attempt, Ok(vec![address]));
        }
        // The resolver runs as long as this thread.
        let _ = self.resolver.send(attempt);
    }

    fn connect(&mut self, attempt: &Attempt, found: io::Result<Vec<SocketAddr>>) {
        let LinkName { node, lane } = &attempt.link;
        let origin = Origin::Link { node: node.as_ref().to_owned(), lane: *lane };
        let begun = self.open(attempt, found);
        match begun {
            _ if !self.peers.has(&attempt.link) => {}
            Ok(transport) => self.begin(transport, origin, boot_ms()),
            Err(why) => self.fail(&origin, &why),
        }
    }

    fn open(
        &self,
        attempt: &Attempt,
        found: io::Result<Vec<SocketAddr>>,
    ) -> Result<Transport, Reason> {
        let found = found.and_then(|found| match found.is_empty() {
            true => Err(io::Error::other("it has no address")),
            false => Ok(found[attempt.index as usize % found.len()]),
        });
        let address = attempt.address.as_ref().to_owned();
        let found = found.map_err(|error| Reason::Unresolved { address, error })?;
        let tls = self.tls.connect(&attempt.link.node)?;
        Ok(Transport::new(TcpStream::connect(found)?, tls))
    }

    fn begin(&mut self, mut transport: Transport, origin: Origin, now_ms: u64) {
        let token = Token(self.next_token);
        self.next_token += 1;
        let socket = transport.socket_mut();
        let both = Interest::READABLE | Interest::WRITABLE;
        let registered = socket
            .set_nodelay(true)
            .and_then(|()| self.poll.registry().register(socket, token, both));
        if let Err(error) = registered {
            return self.fail(&origin, &error.into());
        }
        let connection = Connection { transport, origin, begun_ms: now_ms, stage: Stage::Tls };
        self.connections.insert(token, Box::new(connection));
    }

    fn fail(&mut self, origin: &Origin, why: &Reason) {
        if let Origin::Link { node, lane } = origin {
            let link = LinkName { node: node.as_str().into(), lane: *lane };
            self.peers.on_failed(&link, boot_ms(), random());
        }
        self.handler.on_failed(origin, why);
    }
}

/// Connections live, and end.
impl Thread {
    /// Does something with a connection, and closes it on an error.
    fn with(
        &mut self,
        token: Token,
        work: impl FnOnce(&mut Self, &mut Connection) -> Result<(), Reason>,
    ) {
        // One that was closed in this turn can have an event.
        let Some(mut connection) = self.connections.remove(&token) else { return };
        let result = work(self, &mut connection);
        self.connections.insert(token, connection);
        if let Err(why) = result {
            self.close(token, &why);
        }
    }

    fn close(&mut self, token: Token, why: &Reason) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let Stage::Up(link) = connection.stage else {
            return self.fail(&connection.origin, why);
        };
        let LinkName { node, lane } = &link.name;
        link.outbox.close();
        let times = (link.life.heard_ms(), boot_ms());
        if self.peers.on_lost(&link.name, token, times, random()) {
            self.current.set(node, *lane, None);
        }
        self.handler.on_lost(node, *lane, why);
    }

    /// Reads a connection some times, and writes what waits.
    fn drive(&mut self, token: Token, reads: usize) {
        self.with(token, |own, connection| {
            let mut buffers = std::mem::take(&mut own.buffers);
            let result = own.read(token, connection, reads, &mut buffers);
            own.buffers = buffers;
            result?;
            own.write(connection)
        });
    }

    fn read(
        &mut self,
        token: Token,
        connection: &mut Connection,
        reads: usize,
        Buffers { wire, plain }: &mut Buffers,
    ) -> Result<(), Reason> {
        for _ in 0..reads {
            let now_ms = boot_ms();
            if let Stage::Up(link) = &connection.stage
                && link.life.is_dead(now_ms)
            {
                return Err(Reason::Silent(self.options.link_ms));
            }
            plain.clear();
            let received = connection.transport.receive(wire, plain)?;
            if let Stage::Up(link) = &mut connection.stage
                && received == Received::Bytes
            {
                link.life.on_received(now_ms);
                link.outbox.live_until(link.life.dead_ms());
            }
            self.on_plain(token, connection, plain)?;
            match received {
                Received::Bytes => {}
                Received::WouldBlock => return Ok(()),
                Received::Closed => return Err(Reason::Closed),
            }
        }
        if reads > 0 {
            self.unread.push(token);
        }
        Ok(())
    }

    fn write(&mut self, connection: &mut Connection) -> Result<(), Reason> {
        let Connection { transport, stage, .. } = connection;
        let Stage::Up(link) = stage else {
            return Ok(transport.flush().map(drop)?);
        };
        if let Some(violation) = link.outbox.take_violation() {
            return Err(violation.into());
        }
        if link.send(transport, boot_ms())? {
            self.handler.on_room(&link.name.node, link.name.lane);
        }
        Ok(())
    }

    fn on_plain(
        &mut self,
        token: Token,
        connection: &mut Connection,
        plain: &[u8],
    ) -> Result<(), Reason> {
        let mut input = plain;
        loop {
            match &mut connection.stage {
                Stage::Tls if connection.transport.is_handshaking() => return Ok(()),
                Stage::Tls => {
                    let greeting = self.greeting(&connection.transport, &connection.origin)?;
                    connection.stage = Stage::Greeting(Box::new(greeting));
                }
                Stage::Greeting(_) => {
                    let Some(agreed) = self.greet(connection, &mut input)? else { return Ok(()) };
                    self.on_agreed(token, connection, agreed)?;
                }
                Stage::Up(link) => {
                    let LinkName { node, lane } = &link.name;
                    while let Some(envelope) = link.envelopes.next(&mut input)? {
                        // The process may have been paused since it was read.
                        if link.life.is_dead(boot_ms()) {
                            return Err(Reason::Silent(self.options.link_ms));
                        }
                        if !is_heartbeat(&envelope) {
                            self.handler.on_envelope(node, *lane, envelope)?;
                        }
                    }
                    return Ok(());
                }
            }
        }
    }

    fn greeting(&mut self, transport: &Transport, origin: &Origin) -> Result<Greeting, Reason> {
        let exported = transport.exported()?;
        let Options { node, cluster, secret, versions, .. } = &self.options;
        let (name, versions, secret) = (node.clone(), versions.clone(), secret.clone());
        let own = Hello { versions, cluster: *cluster, lane: 0, session: 0, name };
        Ok(match origin {
            Origin::Address(_) => Greeting::accept(own, secret, exported),
            Origin::Link { node, lane } => {
                let link = LinkName { node: node.as_str().into(), lane: *lane };
                let session = self.peers.session(&link, boot_ms(), random());
                Greeting::connect(Hello { lane: *lane, session, ..own }, secret, exported)
            }
        })
    }

    fn greet(
        &mut self,
        connection: &mut Connection,
        input: &mut &[u8],
    ) -> Result<Option<Agreed>, Reason> {
        let Connection { transport, origin, stage, .. } = connection;
        let Stage::Greeting(greeting) = stage else { return Ok(None) };
        let certificate = transport.certificate().and_then(|der| net::certificate_info(der));
        let certificate = certificate.unwrap_or_default();
        let peers = &mut self.peers;
        let mut admit = |hello: &Hello| {
            let name = || hello.name.clone();
            if !tls::is_issued_for(&certificate, &hello.name) {
                return Err(HelloError::Name { name: name() });
            }
            match origin {
                Origin::Address(_) => {
                    let link = peers.admit(hello)?;
                    Ok(peers.session(&link, boot_ms(), random()))
                }
                Origin::Link { node, .. } if *node == hello.name => Ok(0),
                Origin::Link { .. } => Err(HelloError::NoMember { name: name() }),
            }
        };
        let agreed = greeting.on_bytes(input, &mut admit)?;
        let output = greeting.take_output();
        if !output.is_empty() && transport.send(&[io::IoSlice::new(&output)])? < output.len() {
            // It is the first that is sent, and short.
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        Ok(agreed)
    }

    fn on_agreed(
        &mut self,
        token: Token,
        connection: &mut Connection,
        Agreed { peer, session, version }: Agreed,
    ) -> Result<(), Reason> {
        let (node, lane) = (peer.name, peer.lane);
        let link = LinkName { node: node.as_str().into(), lane };
        if let Some(older) = self.peers.on_connected(&link, token)? {
            self.close(older, &Reason::Replaced);
        }
        let life = Life::new(self.options.link_ms, boot_ms());
        let outbox = Arc::new(Outbox::new(token, life.dead_ms()));
        let sender = Sender::new(Arc::clone(&outbox), Arc::clone(&self.doorbell));
        connection.stage = Stage::Up(Box::new(Link::new(link, version, life, outbox)));
        self.current.set(&node, lane, Some(sender.clone()));
        let (own_session, peer_session) = (session, peer.session);
        let connected = Connected { node, lane, version, own_session, peer_session, sender };
        self.handler.on_connected(connected);
        Ok(())
    }
}

/// Resolves host names on a thread of its own, one after the other: it can take seconds. The
/// thread ends when nobody can ask it any more.
fn start_resolver(doorbell: Arc<Doorbell>) -> io::Result<mpsc::Sender<Attempt>> {
    let (sender, receiver) = mpsc::channel::<Attempt>();
    let run = move || {
        for attempt in receiver {
            let found = attempt.address.to_socket_addrs().map(Iterator::collect);
            doorbell.command(Command::Resolved { attempt, found });
        }
    };
    std::thread::Builder::new().name("links-resolver".to_owned()).spawn(run)?;
    Ok(sender)
}

/// When something has to be done about a connection.
fn due_ms(connection: &Connection) -> u64 {
    match &connection.stage {
        Stage::Up(link) => link.life.next_ms(),
        Stage::Tls | Stage::Greeting(_) => connection.begun_ms + HANDSHAKE_MS_MAX,
    }
}

fn random() -> u64 {
    u64::from_le_bytes(base::random())
}

const LISTENER: Token = Token(0);
const EVENTS_MAX: usize = 256;
/// Bytes that one read of a socket takes.
const READ_BYTES: usize = 64 * 1024;
/// Reads of one connection before it is the turn of others.
const READS_PER_TURN: usize = 16;
/// Connections that are accepted before it is the turn of links.
const ACCEPTS_PER_TURN: usize = 16;
const ACCEPT_PAUSE_MS: u64 = 100;
/// Bounds a wait if nothing is due, and if the clock jumps.
const WAIT_MS_MAX: u64 = 1000;
