//! A socket with TLS, WebSocket or both above it.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::Shutdown;

use crate::error::HandshakeError;
use crate::foreign::Foreign;
use crate::peer::TlsInfo;
use crate::socket::Socket;
use crate::stream::Read;
use crate::tls::{INPUT_BYTES_MAX, Plaintext, Session};
use crate::ws::WebSocket;
use crate::ws::frame;

/// Bytes pass through buffers that belong to the thread; the connection itself owns bytes only
/// while they cannot go on: a record that is not whole, plaintext beyond the caller's buffer, and
/// what a congested socket did not take.
pub(crate) struct Layered {
    socket: Socket,
    tls: Option<Box<Session>>,
    websocket: Option<Box<WebSocket>>,
    /// For the socket, before anything else. Bounded by [`CHUNK_BYTES_MAX`] and the overhead of the
    /// layers, since nothing is taken from the caller while it holds anything.
    out: Vec<u8>,
    /// From below the WebSocket, if there is one, and not decoded yet. Bounded by
    /// [`INPUT_BYTES_MAX`].
    pending: Vec<u8>,
    /// The last read took all that the socket had.
    is_socket_drained: bool,
    is_socket_ended: bool,
    is_shut_down: bool,
}

impl Layered {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            tls: None,
            websocket: None,
            out: Vec::new(),
            pending: Vec::new(),
            is_socket_drained: false,
            is_socket_ended: false,
            is_shut_down: false,
        }
    }

    pub(crate) fn tls(&self) -> Option<(&'static str, &'static str)> {
        self.tls.as_ref().map(|session| session.agreed())
    }

    pub(crate) fn peer_certificates(&self) -> Vec<Vec<u8>> {
        self.tls.as_ref().map_or_else(Vec::new, |session| session.peer_certificates())
    }

    pub(crate) fn add_tls(&mut self, session: Box<Session>) {
        self.tls = Some(session);
    }

    pub(crate) fn add_websocket(&mut self, websocket: WebSocket) {
        self.websocket = Some(Box::new(websocket));
    }

    /// Takes back what was read too much of in an upgrade.
    pub(crate) fn add_early(&mut self, bytes: &[u8]) {
        self.pending.splice(..0, bytes.iter().copied());
    }

    /// The bare socket if there is nothing above it.
    pub(crate) fn into_socket(self: Box<Self>) -> Result<Socket, Box<Self>> {
        let is_bare = self.tls.is_none() && self.websocket.is_none();
        if is_bare && self.out.is_empty() && self.pending.is_empty() {
            Ok(self.socket)
        } else {
            Err(self)
        }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        if buffer.is_empty() {
            return Ok(Read::WouldBlock);
        }
        for _ in 0..FRUITLESS_READS_MAX {
            if self.websocket.as_ref().is_some_and(|websocket| websocket.is_close_received()) {
                return Ok(Read::Closed);
            }
            let Read::Bytes(n) = self.read_transport(buffer)? else {
                self.settle()?;
                return Ok(if self.is_ended() { Read::Closed } else { Read::WouldBlock });
            };
            let decoded = match &mut self.websocket {
                Some(websocket) => websocket.receive(&mut buffer[..n]),
                None => Ok(n),
            };
            self.settle()?;
            match decoded {
                Ok(0) => {}
                Ok(n) => return Ok(Read::Bytes(n)),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        let text = "the peer sends WebSocket control frames without end";
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    }

    pub(crate) fn is_drained(&self) -> bool {
        let is_closing = self.websocket.as_ref().is_some_and(|ws| ws.is_close_received());
        self.pending.is_empty() && self.is_socket_drained && !self.is_ended() && !is_closing
    }

    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush()? {
            return Ok(0);
        }
        let is_closing = self.websocket.as_ref().is_some_and(|websocket| websocket.is_closing());
        if self.is_shut_down || is_closing {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
        let mut source = Gather { slices, at: 0 };
        let len_total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut taken = 0;
        while taken < len_total && self.out.is_empty() {
            let left = len_total - taken;
            BUFFERS.with_borrow_mut(|buffers| {
                buffers.plaintext.clear();
                taken += match &mut self.websocket {
                    Some(websocket) => {
                        append_frames(websocket, &mut source, left, &mut buffers.plaintext)
                    }
                    None => {
                        let len = left.min(CHUNK_BYTES_MAX);
                        source.append_to(&mut buffers.plaintext, len);
                        len
                    }
                };
                self.send(buffers)
            })?;
        }
        Ok(taken)
    }

    pub(crate) fn wants_write(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends what waits, and control frames that waited behind it. `true`: nothing waits any more.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        loop {
            if !self.flush_out()? {
                return Ok(false);
            }
            if !self.websocket.as_ref().is_some_and(|websocket| websocket.has_answer()) {
                break;
            }
            self.send_answers()?;
        }
        if self.is_shut_down {
            self.socket.shutdown(Shutdown::Write)?;
        }
        Ok(true)
    }

    /// Says farewell layer by layer. What a congested socket does not take now goes at the next
    /// flush.
    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        if self.is_shut_down {
            return Ok(());
        }
        if let Some(websocket) = &mut self.websocket
            && !self.tls.as_ref().is_some_and(|tls| tls.is_failed())
        {
            websocket.close(frame::CLOSE_NORMAL);
            // Behind whatever waits: the order of frames is all that counts now.
            self.send_answers()?;
        }
        if let Some(tls) = &mut self.tls
            && !tls.is_failed()
        {
            tls.close_notify(&mut self.out).map_err(tls_error)?;
        }
        self.is_shut_down = true;
        self.flush().map(drop)
    }

    /// Drives the TLS handshake as far as it goes without waiting. `Some`: it is complete.
    pub(crate) fn handshake_tls(&mut self) -> Result<Option<TlsInfo>, HandshakeError> {
        // A client speaks first, before anything is there to read.
        if let Some(tls) = &mut self.tls {
            let (buffer, pending) = (&mut [][..], &mut self.pending);
            let mut plaintext = Plaintext { buffer, len: 0, pending };
            BUFFERS.with_borrow_mut(|buffers| {
                let carried = tls.load_carry(buffers.input());
                tls.receive(&mut buffers.input()[..carried], &mut plaintext, &mut self.out)
            })?;
        }
        loop {
            self.flush_out()?;
            match &self.tls {
                Some(tls) if tls.is_handshaking() => {}
                Some(tls) => return Ok(Some(tls.info())),
                None => return Err(HandshakeError::Closed),
            }
            // Plaintext that comes with the end of the handshake is held for the first read.
            match self.fill_tls(&mut []) {
                Ok(_) if self.is_ended() => return Err(HandshakeError::Closed),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(TlsReadError::Io(error)) => return Err(error.into()),
                Err(TlsReadError::Tls(error)) => return Err(error.into()),
                Err(TlsReadError::Foreign(foreign)) => return Err(foreign.into()),
            }
        }
    }

    /// Reads bytes from below the WebSocket.
    pub(crate) fn read_transport(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        loop {
            if !self.pending.is_empty() {
                let n = self.pending.len().min(buffer.len());
                buffer[..n].copy_from_slice(&self.pending[..n]);
                self.pending.drain(..n);
                if self.pending.is_empty() {
                    self.pending = Vec::new();
                }
                return Ok(Read::Bytes(n));
            }
            if self.is_ended() {
                return Ok(Read::Closed);
            }
            let filled = if self.tls.is_some() {
                self.fill_tls(buffer).map_err(TlsReadError::into_io)?
            } else {
                self.fill(buffer)?
            };
            match filled {
                None => return Ok(Read::WouldBlock),
                Some(0) => {}
                Some(n) => return Ok(Read::Bytes(n)),
            }
        }
    }

    /// Sends bytes in the layer below the WebSocket, as during its upgrade.
    pub(crate) fn send_transport(&mut self, bytes: &[u8]) -> io::Result<()> {
        BUFFERS.with_borrow_mut(|buffers| {
            buffers.plaintext.clear();
            buffers.plaintext.extend_from_slice(bytes);
            self.send(buffers)
        })
    }

    /// Ends a failed handshake so that the peer gets to read why: bytes it has already sent are
    /// taken off the socket, since closing over them would reset the connection and drop our
    /// answer.
    pub(crate) fn refuse(&mut self) {
        let _ = self.flush_out();
        let _ = self.socket.shutdown(Shutdown::Write);
        BUFFERS.with_borrow_mut(|buffers| {
            for _ in 0..FRUITLESS_READS_MAX {
                if !matches!(self.socket.read(buffers.input()), Ok(Some(n)) if n > 0) {
                    break;
                }
            }
        });
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let n = self.socket.read(buffer)?;
        self.is_socket_drained = n.is_none_or(|n| n < buffer.len());
        self.is_socket_ended |= n == Some(0) && !buffer.is_empty();
        Ok(n)
    }

    /// Reads ciphertext once and decrypts what is whole. `None`: the socket has nothing; `Some(0)`:
    /// no plaintext has come of it yet.
    fn fill_tls(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, TlsReadError> {
        let Some(tls) = &mut self.tls else {
            return Ok(None);
        };
        BUFFERS.with_borrow_mut(|buffers| {
            let input = buffers.input();
            let carried = tls.load_carry(input);
            // Plaintext is shorter than its ciphertext, so what is read fits into a buffer of a
            // record or more.
            let room = (buffer.len().max(carried + RECORD_BYTES_MAX)).min(input.len()) - carried;
            if room == 0 {
                return Err(TlsReadError::Tls(rustls::Error::General(
                    "endless message".to_owned(),
                )));
            }
            let Some(n) = self.socket.read(&mut input[carried..carried + room])? else {
                self.is_socket_drained = true;
                return Ok(None);
            };
            self.is_socket_drained = n < room;
            self.is_socket_ended |= n == 0;
            let mut plaintext = Plaintext { buffer, len: 0, pending: &mut self.pending };
            let foreign = Foreign::of(&input[..carried + n]).filter(|_| tls.is_handshaking());
            let received = tls.receive(&mut input[..carried + n], &mut plaintext, &mut self.out);
            received.map_err(|error| match foreign {
                Some(foreign) if foreign != Foreign::Tls => TlsReadError::Foreign(foreign),
                _ => TlsReadError::Tls(error),
            })?;
            Ok(Some(plaintext.len))
        })
    }

    /// Sends answers that the layers owe after a read, as far as the socket takes them.
    fn settle(&mut self) -> io::Result<()> {
        let has_answer = self.websocket.as_ref().is_some_and(|websocket| websocket.has_answer());
        if has_answer || !self.out.is_empty() {
            self.flush()?;
        }
        Ok(())
    }

    fn send_answers(&mut self) -> io::Result<()> {
        BUFFERS.with_borrow_mut(|buffers| {
            buffers.plaintext.clear();
            if let Some(websocket) = &mut self.websocket {
                websocket.answer(&mut buffers.plaintext);
            }
            self.send(buffers)
        })
    }

    /// Sends the buffered plaintext; what the socket does not take goes to `out`.
    fn send(&mut self, buffers: &mut Buffers) -> io::Result<()> {
        if buffers.plaintext.is_empty() {
            return Ok(());
        }
        let wire = match &mut self.tls {
            Some(tls) => {
                buffers.ciphertext.clear();
                tls.encrypt(&buffers.plaintext, &mut buffers.ciphertext).map_err(tls_error)?;
                &buffers.ciphertext
            }
            None => &buffers.plaintext,
        };
        let sent = if self.out.is_empty() { self.socket.write(&[IoSlice::new(wire)])? } else { 0 };
        self.out.extend_from_slice(&wire[sent..]);
        Ok(())
    }

    fn flush_out(&mut self) -> io::Result<bool> {
        if self.out.is_empty() {
            return Ok(true);
        }
        let sent = self.socket.write(&[IoSlice::new(&self.out)])?;
        if sent < self.out.len() {
            self.out.drain(..sent);
            return Ok(false);
        }
        self.out = Vec::new();
        Ok(true)
    }

    fn is_ended(&self) -> bool {
        let is_tls_closed = self.tls.as_ref().is_some_and(|tls| tls.is_peer_closed());
        self.pending.is_empty() && (self.is_socket_ended || is_tls_closed)
    }
}

/// The buffers of a thread, through which the bytes of all its layered connections pass.
#[derive(Default)]
struct Buffers {
    /// Ciphertext as it comes; allocated by the first TLS connection of the thread.
    input: Vec<u8>,
    plaintext: Vec<u8>,
    ciphertext: Vec<u8>,
}

impl Buffers {
    fn input(&mut self) -> &mut [u8] {
        if self.input.is_empty() {
            self.input = vec![0; INPUT_BYTES_MAX + RECORD_BYTES_MAX];
        }
        &mut self.input
    }
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers::default());
}

/// Takes the bytes of several slices in order.
struct Gather<'a, 'b> {
    slices: &'a [IoSlice<'b>],
    /// Bytes already taken of the first slice.
    at: usize,
}

/// Appends frames of what the source has, `left` bytes, to `out`: as much as one call of the socket
/// takes. Says how much that is.
fn append_frames(
    websocket: &mut WebSocket,
    source: &mut Gather<'_, '_>,
    left: usize,
    out: &mut Vec<u8>,
) -> usize {
    let mut taken = 0;
    while taken < left {
        let len_max = (left - taken).min(CHUNK_BYTES_MAX);
        let len = websocket.next_frame_len(len_max, |head| source.peek(head));
        if taken > 0 && taken + len > CHUNK_BYTES_MAX {
            break;
        }
        websocket.frame(out, len, |out| source.append_to(out, len));
        taken += len;
    }
    taken
}

impl Gather<'_, '_> {
    /// Copies what comes next, as far as it fits, and says how much that is.
    fn peek(&self, head: &mut [u8]) -> usize {
        let (mut len, mut at) = (0, self.at);
        for slice in self.slices {
            let n = (slice.len() - at).min(head.len() - len);
            head[len..len + n].copy_from_slice(&slice[at..at + n]);
            len += n;
            at = 0;
        }
        len
    }

    fn append_to(&mut self, out: &mut Vec<u8>, len: usize) {
        let mut left = len;
        while let [first, rest @ ..] = self.slices
            && left > 0
        {
            let n = left.min(first.len() - self.at);
            out.extend_from_slice(&first[self.at..self.at + n]);
            left -= n;
            self.at += n;
            if self.at == first.len() {
                (self.slices, self.at) = (rest, 0);
            }
        }
    }
}

enum TlsReadError {
    Io(io::Error),
    Tls(rustls::Error),
    /// Within the handshake.
    Foreign(Foreign),
}

impl TlsReadError {
    fn into_io(self) -> io::Error {
        match self {
            Self::Io(error) => error,
            Self::Tls(error) => tls_error(error),
            Self::Foreign(foreign) => io::Error::new(io::ErrorKind::InvalidData, foreign),
        }
    }
}

impl From<io::Error> for TlsReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn tls_error(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Most application bytes in one WebSocket frame and in one call of the socket; and most that a
/// congested connection holds back.
const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Header, payload and the most that any cipher adds (RFC 5246, section 6.2.3).
const RECORD_BYTES_MAX: usize = 5 + 16 * 1024 + 2048;
/// Reads in a row, within one call, that may bring no application byte.
const FRUITLESS_READS_MAX: usize = 64;
