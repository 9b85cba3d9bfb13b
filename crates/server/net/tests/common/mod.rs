//! One connection's worth of event loop, for tests: waits for readiness, never sleeps.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod certificates;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::{Events, Interest, Poll, Token};
use net::{
    Connect, ConnectOptions, Connector, Handshake, HandshakeError, ListenOptions, Listener,
    PeerInfo, Progress, Read, Stream,
};

/// Only a hang can reach it.
const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn listen(url: &str, options: &ListenOptions) -> (Listener, SocketAddr) {
    let listener = Listener::bind(&url.parse().expect("url"), options).expect("bind");
    let address = listener.local_address().expect("an address");
    (listener, address)
}

pub(crate) fn accept(listener: &mut Listener) -> Handshake {
    let mut waiter = Waiter::new(listener);
    loop {
        if let Some(handshake) = listener.accept().expect("accept") {
            waiter.release(listener);
            return handshake;
        }
        waiter.wait();
    }
}

pub(crate) fn complete(
    mut handshake: Handshake,
) -> Result<(Stream, Box<PeerInfo>), HandshakeError> {
    let mut waiter = Waiter::new(&mut handshake);
    let mut scratch = vec![0; 16 * 1024];
    loop {
        match handshake.advance(&mut scratch)? {
            Progress::Pending => waiter.wait(),
            Progress::Done(mut stream, peer) => {
                waiter.release(&mut stream);
                return Ok((stream, peer));
            }
        }
    }
}

pub(crate) fn serve(listener: &mut Listener) -> Result<(Stream, Box<PeerInfo>), HandshakeError> {
    complete(accept(listener))
}

/// Both ends of a new connection, the accepting one first.
pub(crate) fn pair(
    listener: &mut Listener,
    connector: &Connector,
) -> (Result<Ready, HandshakeError>, Result<Ready, HandshakeError>) {
    // Nothing of the client's is allocated on this thread, which a measurement relies on.
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let connecting = connector.connect(&Connect { seed: 7, ..Connect::default() });
            complete(connecting.expect("connect"))
        });
        let server = serve(listener);
        (server, client.join().expect("client"))
    })
}

/// As [`pair`], when nothing can go wrong.
pub(crate) fn good_pair(listener: &mut Listener, connector: &Connector) -> (Ready, Ready) {
    let (server, client) = pair(listener, connector);
    (server.expect("the server's end"), client.expect("the client's end"))
}

pub(crate) type Ready = (Stream, Box<PeerInfo>);

/// A connector to where the listener of `url`, with its port filled in, listens.
pub(crate) fn connector(url: &str, options: &ConnectOptions) -> Connector {
    Connector::new(&url.parse().expect("url"), options).expect("connector")
}

/// Sends much in both directions at once, in pieces of all sizes, and checks each byte.
pub(crate) fn exchange(left: Stream, right: Stream) -> (Stream, Stream) {
    const BYTES: usize = 3_000_000;
    fn work(mut stream: Stream, seed: u8) -> Stream {
        let pattern = |seed: u8, at: usize| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed;
        let sent: Vec<u8> = (0..BYTES).map(|at| pattern(seed, at)).collect();
        let mut waiter = Waiter::new(&mut stream);
        let mut scratch = vec![0; 20_000];
        let (mut written, mut received, mut step) = (0, 0, 1);
        while written < BYTES || received < BYTES || stream.wants_write() {
            let mut is_idle = true;
            if written < BYTES {
                step = step * 7 % 100_003;
                let piece = &sent[written..BYTES.min(written + step)];
                let (front, back) = piece.split_at(piece.len() / 2);
                let taken = stream.write(&[IoSlice::new(front), IoSlice::new(back)]);
                let taken = taken.expect("write");
                written += taken;
                is_idle &= taken == 0;
            } else {
                stream.flush().expect("flush");
            }
            let room = (step % scratch.len()).max(1);
            match stream.read(&mut scratch[..room]).expect("read") {
                Read::Bytes(n) => {
                    for byte in &scratch[..n] {
                        assert_eq!(*byte, pattern(!seed, received), "at {received}");
                        received += 1;
                    }
                    is_idle = false;
                }
                Read::Closed => panic!("closed after {received} bytes"),
                Read::WouldBlock => {}
            }
            if is_idle {
                waiter.wait();
            }
        }
        waiter.release(&mut stream);
        stream
    }
    let other = thread::spawn(move || work(right, 0xff));
    let left = work(left, 0);
    (left, other.join().expect("the other end"))
}

/// Reads until `len` bytes are there, or fewer if the peer closes before.
pub(crate) fn read(stream: &mut Stream, len: usize) -> io::Result<Vec<u8>> {
    let mut waiter = Waiter::new(stream);
    let mut scratch = vec![0; 8 * 1024];
    let mut bytes = Vec::new();
    while bytes.len() < len {
        match stream.read(&mut scratch)? {
            Read::Bytes(n) => bytes.extend_from_slice(&scratch[..n]),
            Read::Closed => break,
            Read::WouldBlock => {
                stream.flush()?;
                waiter.wait();
            }
        }
    }
    waiter.release(stream);
    Ok(bytes)
}

pub(crate) fn read_to_end(stream: &mut Stream) -> io::Result<Vec<u8>> {
    read(stream, usize::MAX)
}

pub(crate) fn write(stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
    let mut waiter = Waiter::new(stream);
    let mut rest = bytes;
    while !rest.is_empty() {
        // Two slices, so that gathering is exercised everywhere.
        let (front, back) = rest.split_at(rest.len() / 3);
        let taken = stream.write(&[IoSlice::new(front), IoSlice::new(back)])?;
        rest = &rest[taken..];
        if taken == 0 {
            waiter.wait();
        }
    }
    while !stream.flush()? {
        waiter.wait();
    }
    waiter.release(stream);
    Ok(())
}

pub(crate) struct Waiter {
    poll: Poll,
    events: Events,
    started: Instant,
}

impl Waiter {
    pub(crate) fn new(source: &mut impl Source) -> Self {
        let poll = Poll::new().expect("poll");
        let interests = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(source, Token(0), interests).expect("register");
        Self { poll, events: Events::with_capacity(4), started: Instant::now() }
    }

    pub(crate) fn wait(&mut self) {
        match self.poll.poll(&mut self.events, Some(DEADLINE)) {
            // The process was stopped and goes on.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            polled => polled.expect("poll"),
        }
        assert!(self.started.elapsed() < DEADLINE, "nothing happened for {DEADLINE:?}");
    }

    pub(crate) fn release(&mut self, source: &mut impl Source) {
        self.poll.registry().deregister(source).expect("deregister");
    }
}
