//! Nodes on loopback with links and relays, and plain TCP clients.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[path = "../../../links/tests/common/certificates.rs"]
pub(crate) mod certificates;
#[path = "../../../links/tests/common/proxy.rs"]
pub(crate) mod proxy;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broker::cells::wire::FRONT;
use certificates::Authority;
use links::hello::Secret;
use links::{Connected, Envelope, Handler, Links, Member, Poller, Reason, Violation};
use mio::event::Source;
use mio::{Events, Interest, Poll, Token};
use net::{ListenOptions, Listener, PeerInfo, Progress, Read, Stream};
use relays::{Client, Host, Options, RELAY_BYTES_MAX, Refused, RelayFigures, Relays, Task};

/// What happens to the links of a node.
#[derive(Debug)]
pub(crate) enum Event {
    Connected(Connected),
    Lost { node: String, why: String },
}

/// A client that has arrived at its home: cell, epoch, client.
type Arrived = (u16, u64, Client);

pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) links: Links,
    pub(crate) relays: Relays,
    pub(crate) host: Arc<TestHost>,
    events: Receiver<Event>,
    arrived: Receiver<Arrived>,
    refused: Receiver<(Client, Refused)>,
    listener: RefCell<Listener>,
    /// Pauses the thread of the links after the next packet.
    pub(crate) pause: Arc<Mutex<()>>,
}

/// A node that owns these epochs of cells.
pub(crate) struct TestHost {
    pub(crate) owned: Mutex<HashMap<u16, u64>>,
    arrived: Sender<Arrived>,
    refused: Sender<(Client, Refused)>,
}

struct Joint {
    relays: Task,
    events: Sender<Event>,
    pause: Arc<Mutex<()>>,
}

impl Host for TestHost {
    fn arrive(&self, cell: u16, epoch: u64, client: Client) -> Result<(), Refused> {
        if self.owned.lock().expect("owned").get(&cell) != Some(&epoch) {
            return Err(Refused::NotOwner);
        }
        let _ = self.arrived.send((cell, epoch, client));
        Ok(())
    }

    fn refused(&self, _cell: u16, _epoch: u64, client: Client, why: Refused) {
        let _ = self.refused.send((client, why));
    }
}

impl Handler for Joint {
    fn on_connected(&mut self, connected: Connected) {
        self.relays.on_connected(&connected);
        let _ = self.events.send(Event::Connected(connected));
    }

    fn on_envelope(
        &mut self,
        node: &str,
        lane: u8,
        envelope: Envelope<'_>,
    ) -> Result<(), Violation> {
        assert_eq!(envelope.route.from_cell, FRONT, "there are no others");
        self.relays.on_envelope(node, lane, &envelope)?;
        drop(self.pause.lock().expect("pause"));
        Ok(())
    }

    fn on_room(&mut self, node: &str, lane: u8) {
        self.relays.on_room(node, lane);
    }

    fn on_lost(&mut self, node: &str, lane: u8, why: &Reason) {
        self.relays.on_lost(node, lane);
        let _ = self.events.send(Event::Lost { node: node.to_owned(), why: why.to_string() });
    }

    fn on_event(&mut self, event: &mio::event::Event) {
        self.relays.on_event(event);
    }

    fn on_turn(&mut self) {
        self.relays.on_turn();
    }

    fn wait(&self) -> Option<Duration> {
        self.relays.wait()
    }
}

impl Node {
    pub(crate) fn start(name: &str, authority: &Authority) -> Self {
        Self::start_with(name, authority, &OPTIONS)
    }

    pub(crate) fn start_with(name: &str, authority: &Authority, options: &Options) -> Self {
        Self::start_at(link_options(name, authority), options)
    }

    pub(crate) fn start_at(of_links: links::Options, options: &Options) -> Self {
        let name = of_links.node.clone();
        let ((arrived_to, arrived), (refused_to, refused)) = (mpsc::channel(), mpsc::channel());
        let owned = Mutex::new(HashMap::from([(CELL, EPOCH)]));
        let host = Arc::new(TestHost { owned, arrived: arrived_to, refused: refused_to });
        let poller = Poller::new().expect("files");
        let made = Relays::new(options, Arc::clone(&host) as Arc<dyn Host>, &poller);
        let (relays, task) = made.expect("files");
        let (events_to, events) = mpsc::channel();
        let pause = Arc::<Mutex<()>>::default();
        let joint = Joint { relays: task, events: events_to, pause: Arc::clone(&pause) };
        let links = Links::start_on(poller, of_links, &[], Box::new(joint));
        let url = "tcp://127.0.0.1:0".parse().expect("url");
        let listener = Listener::bind(&url, &ListenOptions::default()).expect("bind");
        Self {
            name,
            links: links.expect("links"),
            relays,
            host,
            events,
            arrived,
            refused,
            listener: RefCell::new(listener),
            pause,
        }
    }

    /// A TCP client, and this node's end of its connection.
    pub(crate) fn client(&self) -> (TcpStream, Stream, PeerInfo) {
        let mut listener = self.listener.borrow_mut();
        let client = TcpStream::connect(listener.local_address().expect("address"));
        let client = client.expect("connect");
        client.set_read_timeout(Some(PATIENCE)).expect("timeout");
        client.set_write_timeout(Some(PATIENCE)).expect("timeout");
        let mut waiter = Waiter::new(&mut *listener);
        let mut handshake = loop {
            match listener.accept().expect("accept") {
                Some(handshake) => break handshake,
                None => waiter.wait(),
            }
        };
        waiter.release(&mut *listener);
        let mut waiter = Waiter::new(&mut handshake);
        loop {
            match handshake.advance(&mut [0; 1024]).expect("it is plain TCP") {
                Progress::Pending => waiter.wait(),
                Progress::Done(mut stream, peer) => {
                    waiter.release(&mut stream);
                    return (client, stream, *peer);
                }
            }
        }
    }

    pub(crate) fn begin(&self, home: &Self, epoch: u64, bytes: &[u8]) -> TcpStream {
        let (client, stream, peer) = self.client();
        let relayed =
            Client::new(stream, Box::new(()), peer, ("listener".to_owned(), bytes.to_vec()));
        let begun = self.relays.begin(&home.name, CELL, epoch, relayed);
        assert!(begun.is_ok(), "there is a link and room");
        client
    }

    /// A client that has arrived at its home.
    pub(crate) fn relay(&self, home: &Self) -> (TcpStream, Far) {
        let client = self.begin(home, EPOCH, b"CONNECT");
        let (_, _, arrived) = home.arrived();
        assert_eq!(arrived.arrival.bytes, b"CONNECT");
        (client, Far::new(arrived.stream))
    }

    pub(crate) fn arrived(&self) -> Arrived {
        self.arrived.recv_timeout(PATIENCE).expect("it arrives")
    }

    pub(crate) fn refused(&self) -> (Client, Refused) {
        self.refused.recv_timeout(PATIENCE).expect("it is refused")
    }

    pub(crate) fn until_connected(&self) -> Connected {
        loop {
            if let Event::Connected(connected) = self.event() {
                return connected;
            }
        }
    }

    /// Why the next link is lost, and with whom it was.
    pub(crate) fn until_lost(&self) -> (String, String) {
        loop {
            if let Event::Lost { node, why } = self.event() {
                return (node, why);
            }
        }
    }

    fn event(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("it happens")
    }

    /// Waits until nothing is left.
    pub(crate) fn until_idle(&self) {
        let refused = self.relays.figures().refused;
        let nothing = RelayFigures { refused, ..RelayFigures::default() };
        until(|| self.relays.figures() == nothing);
    }
}

/// The cell's end of a relayed client.
pub(crate) struct Far {
    stream: Stream,
    waiter: Waiter,
}

impl Far {
    pub(crate) fn new(mut stream: Stream) -> Self {
        let waiter = Waiter::new(&mut stream);
        Self { stream, waiter }
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(&[IoSlice::new(bytes)]).expect("it is open") {
                0 => self.waiter.wait(),
                taken => bytes = &bytes[taken..],
            }
        }
    }

    pub(crate) fn read(&mut self, count: usize) -> Vec<u8> {
        let bytes = self.read_up_to(count);
        assert_eq!(bytes.len(), count, "it is closed early");
        bytes
    }

    /// All that comes before the end.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        self.read_up_to(usize::MAX)
    }

    fn read_up_to(&mut self, count: usize) -> Vec<u8> {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 32 * 1024]);
        while bytes.len() < count {
            let room = buffer.len().min(count - bytes.len());
            match self.stream.read(&mut buffer[..room]) {
                Ok(Read::Bytes(read)) => bytes.extend_from_slice(&buffer[..read]),
                Ok(Read::WouldBlock) => self.waiter.wait(),
                Ok(Read::Closed) | Err(_) => break,
            }
        }
        bytes
    }
}

/// Both ways.
pub(crate) fn works(client: &mut TcpStream, far: &mut Far) {
    client.write_all(b"ping").expect("it is open");
    assert_eq!(far.read(4), b"ping");
    far.write(b"pong");
    let mut answer = [0; 4];
    client.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"pong");
}

/// All that the client gets before the end. Also a reset is one.
pub(crate) fn rest(mut client: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let result = client.read_to_end(&mut bytes);
    let is_timeout = result.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!is_timeout, "it is closed in time");
    bytes
}

/// Two nodes with a link: the front, and the home.
pub(crate) fn two_nodes() -> (Node, Node) {
    let authority = Authority::new();
    let (front, home) = (Node::start("n1", &authority), Node::start("n2", &authority));
    join(&front, &home);
    (front, home)
}

/// What the first one reports.
pub(crate) fn join(one: &Node, other: &Node) -> Connected {
    join_at(one, other, one.links.local_address(), other.links.local_address())
}

/// At these addresses.
pub(crate) fn join_at(
    one: &Node,
    other: &Node,
    one_at: SocketAddr,
    other_at: SocketAddr,
) -> Connected {
    one.links.add(Member { name: other.name.clone(), address: other_at.to_string() });
    other.links.add(Member { name: one.name.clone(), address: one_at.to_string() });
    other.until_connected();
    one.until_connected()
}

/// A link lives longer than a busy machine pauses.
pub(crate) fn link_options(name: &str, authority: &Authority) -> links::Options {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let identity = (*b"0123456789abcdef", Secret::new(*b"secret of the cluster"));
    let options = links::Options::new(name, identity, listen, authority.issue(name));
    links::Options { link_ms: 30_000, ..options }
}

/// Bytes of which each says where it is.
pub(crate) fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (at >> 16) as u8).collect()
}

/// Something that other threads are about to do.
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "it never happens");
        std::thread::yield_now();
    }
}

pub(crate) struct Waiter {
    poll: Poll,
    events: Events,
}

impl Waiter {
    fn new(source: &mut impl Source) -> Self {
        let poll = Poll::new().expect("poll");
        let both = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(source, Token(0), both).expect("register");
        Self { poll, events: Events::with_capacity(4) }
    }

    fn wait(&mut self) {
        self.poll.poll(&mut self.events, Some(PATIENCE)).expect("poll");
        assert!(!self.events.is_empty(), "nothing happened for {PATIENCE:?}");
    }

    fn release(&self, source: &mut impl Source) {
        self.poll.registry().deregister(source).expect("deregister");
    }
}

pub(crate) const CELL: u16 = 3;
pub(crate) const EPOCH: u64 = 7;
pub(crate) const OPTIONS: Options = Options { relays_max: 2000, relay_bytes_max: RELAY_BYTES_MAX };

/// How long a test waits for what has to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
