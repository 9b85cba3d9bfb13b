//! A thread of the relay: its poll, its connections, one read buffer.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token};

use crate::routes::{RouteCache, Routes};
use crate::wire::{self, Packet};

const LISTENER: Token = Token(usize::MAX);
const READ_BUFFER_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 1024;

/// A message for a subscriber that is further behind is dropped, which `flock` reports as lost.
const OUTBOX_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A socket, to which every thread may write.
pub(crate) struct Connection {
    stream: TcpStream,
    out: Mutex<Out>,
}

/// What has still to be written.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    packet_id: u16,
    /// A thread has it on its list for the end of its turn.
    is_dirty: bool,
}

impl Connection {
    /// Adds bytes; true if the caller has to write them.
    fn add(&self, bytes: &[u8]) -> bool {
        let mut out = self.out();
        out.bytes.extend_from_slice(bytes);
        !std::mem::replace(&mut out.is_dirty, true)
    }

    /// Adds a PUBLISH, of QoS 1 under a packet id of this connection.
    fn add_publish(&self, packet: &Packet<'_>) -> bool {
        let mut out = self.out();
        if out.bytes.len() + packet.bytes.len() > OUTBOX_BYTES_MAX {
            return false;
        }
        let start = out.bytes.len();
        out.bytes.extend_from_slice(packet.bytes);
        if packet.qos() > 0 {
            out.packet_id = out.packet_id % u16::MAX + 1;
            let packet_id = out.packet_id.to_be_bytes();
            let place = start + packet.packet_id_place();
            out.bytes[place..place + 2].copy_from_slice(&packet_id);
        }
        !std::mem::replace(&mut out.is_dirty, true)
    }

    /// Writes once; what the socket does not take follows when it is writable again.
    fn write(&self) {
        let mut out = self.out();
        out.is_dirty = false;
        if out.bytes.is_empty() {
            return;
        }
        if let Ok(count) = (&self.stream).write(&out.bytes) {
            out.bytes.drain(..count);
        }
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the connections of a thread stand, for it and for the thread that accepts them.
pub(crate) struct ThreadState {
    registry: Registry,
    connections: Mutex<Vec<Option<Arc<Connection>>>>,
}

/// A place and the poll that belongs to it.
pub(crate) fn place() -> io::Result<(Arc<ThreadState>, Poll)> {
    let poll = Poll::new()?;
    let registry = poll.registry().try_clone()?;
    Ok((Arc::new(ThreadState { registry, connections: Mutex::default() }), poll))
}

impl ThreadState {
    fn add(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut connections = self.lock();
        let token = Token(connections.len());
        self.registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        connections.push(Some(Arc::new(Connection { stream, out: Mutex::default() })));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<Connection>>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listener, which one of the threads has.
pub(crate) struct Listening {
    listener: TcpListener,
    places: Arc<Vec<Arc<ThreadState>>>,
    next: usize,
}

impl Listening {
    pub(crate) fn new(listener: TcpListener, places: Arc<Vec<Arc<ThreadState>>>) -> Self {
        Self { listener, places, next: 0 }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.places[self.next].add(stream)?;
                    self.next = (self.next + 1) % self.places.len();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

pub(crate) struct Worker {
    place: Arc<ThreadState>,
    routes: RouteCache,
    buffer: Box<[u8]>,
    /// By token: the beginning of a packet whose end has not come.
    partial: HashMap<usize, Vec<u8>>,
    /// By token: connections that speak MQTT 5.
    is_5: HashMap<usize, bool>,
    dirty: Vec<Arc<Connection>>,
}

impl Worker {
    pub(crate) fn new(place: Arc<ThreadState>, routes: Arc<Routes>) -> Self {
        Self {
            place,
            routes: RouteCache::new(routes),
            buffer: vec![0; READ_BUFFER_BYTES].into(),
            partial: HashMap::new(),
            is_5: HashMap::new(),
            dirty: Vec::new(),
        }
    }

    /// Runs until the process is ended.
    pub(crate) fn run(
        mut self,
        mut poll: Poll,
        mut listening: Option<Listening>,
    ) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        if let Some(listening) = &mut listening {
            poll.registry().register(&mut listening.listener, LISTENER, Interest::READABLE)?;
        }
        loop {
            match poll.poll(&mut events, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                match (&mut listening, event.token()) {
                    (Some(listening), LISTENER) => listening.accept()?,
                    (_, Token(token)) => {
                        self.on_event(token, event.is_readable(), event.is_writable());
                    }
                }
            }
            for connection in self.dirty.drain(..) {
                connection.write();
            }
        }
    }

    fn on_event(&mut self, token: usize, is_readable: bool, is_writable: bool) {
        let Some(connection) = self.place.lock().get(token).cloned().flatten() else { return };
        if is_writable {
            connection.write();
        }
        if is_readable {
            self.read(token, &connection);
        }
    }

    fn read(&mut self, token: usize, connection: &Arc<Connection>) {
        loop {
            let count = match (&connection.stream).read(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => return self.close(token, connection),
                Ok(count) => count,
            };
            let buffer = std::mem::take(&mut self.buffer);
            self.take(token, connection, &buffer[..count]);
            self.buffer = buffer;
            if count < READ_BUFFER_BYTES {
                return;
            }
        }
    }

    fn take(&mut self, token: usize, connection: &Arc<Connection>, bytes: &[u8]) {
        let joined = self.partial.remove(&token).map(|mut partial| {
            partial.extend_from_slice(bytes);
            partial
        });
        let mut rest = joined.as_deref().unwrap_or(bytes);
        while let Some(packet) = Packet::split(rest) {
            self.on_packet(token, connection, &packet);
            rest = &rest[packet.bytes.len()..];
        }
        if !rest.is_empty() {
            self.partial.insert(token, rest.to_vec());
        }
    }

    fn on_packet(&mut self, token: usize, connection: &Arc<Connection>, packet: &Packet<'_>) {
        match packet.kind() {
            wire::PUBLISH => self.on_publish(connection, packet),
            wire::PUBACK => {}
            wire::PINGREQ => self.answer(connection, wire::PINGRESP),
            wire::CONNECT => {
                let is_5 = packet.is_5();
                self.is_5.insert(token, is_5);
                let connack = if is_5 { wire::CONNACK_5 } else { wire::CONNACK_311 };
                self.answer(connection, connack);
            }
            wire::SUBSCRIBE => {
                let is_5 = self.is_5.get(&token).copied().unwrap_or(false);
                let (packet_id, filters) = packet.filters(is_5);
                for filter in &filters {
                    self.routes.routes().subscribe(filter, connection);
                }
                self.answer(connection, &wire::suback(packet_id, filters.len(), is_5));
            }
            // DISCONNECT, and what the floor does not have (UNSUBSCRIBE, AUTH).
            _ => self.close(token, connection),
        }
    }

    fn on_publish(&mut self, connection: &Arc<Connection>, packet: &Packet<'_>) {
        let dirty = &mut self.dirty;
        self.routes.for_each(packet.topic(), |subscriber| {
            if subscriber.add_publish(packet) {
                dirty.push(Arc::clone(subscriber));
            }
        });
        if packet.qos() > 0 {
            let place = packet.packet_id_place();
            let puback = [0x40, 2, packet.bytes[place], packet.bytes[place + 1]];
            self.answer(connection, &puback);
        }
    }

    fn answer(&mut self, connection: &Arc<Connection>, bytes: &[u8]) {
        if connection.add(bytes) {
            self.dirty.push(Arc::clone(connection));
        }
    }

    fn close(&mut self, token: usize, connection: &Arc<Connection>) {
        // Routes of other threads may still know it for a while, so its end is told here.
        let _ = connection.stream.shutdown(Shutdown::Both);
        self.routes.routes().forget(connection);
        self.partial.remove(&token);
        self.is_5.remove(&token);
        if let Some(slot) = self.place.lock().get_mut(token) {
            *slot = None;
        }
    }
}
