//! One TLS connection as a transformer of bytes, server or client, above no particular socket.

use std::mem;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CommonState, Error, HandshakeKind, ProtocolVersion};

use super::{certificate, server};
use crate::peer::TlsInfo;

pub(crate) struct Session {
    connection: Connection,
    /// Ciphertext of a record, or of a handshake message, that is not whole yet. rustls may have
    /// decrypted a part of it in place, so it is given again unchanged, with what follows behind
    /// it.
    carry: Vec<u8>,
    is_peer_closed: bool,
    /// rustls reported an error: it must not be called any more.
    is_failed: bool,
    server_name: Option<Box<str>>,
}

enum Connection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// Where decrypted bytes go: into the buffer as long as it has room, then into the other one.
pub(crate) struct Plaintext<'a> {
    pub(crate) buffer: &'a mut [u8],
    pub(crate) len: usize,
    pub(crate) held: &'a mut Vec<u8>,
}

/// What to encrypt once rustls lets us.
enum Outgoing<'a> {
    Nothing,
    Data(&'a [u8]),
    CloseNotify,
}

enum Step {
    Again,
    PeerClosed,
    Blocked,
}

impl Session {
    pub(crate) fn server(connection: UnbufferedServerConnection) -> Self {
        Self::new(Connection::Server(connection))
    }

    pub(crate) fn client(connection: UnbufferedClientConnection) -> Self {
        Self::new(Connection::Client(connection))
    }

    fn new(connection: Connection) -> Self {
        Self {
            connection,
            carry: Vec::new(),
            is_peer_closed: false,
            is_failed: false,
            server_name: None,
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.common().is_handshaking()
    }

    /// The peer has said that it sends no more.
    pub(crate) fn is_peer_closed(&self) -> bool {
        self.is_peer_closed
    }

    /// After an error nothing can be received or sent any more.
    pub(crate) fn is_failed(&self) -> bool {
        self.is_failed
    }

    /// Puts the ciphertext left over from last time at the front of `input`, and says how much.
    /// What the socket gives goes behind it, and all of it to [`Session::receive`].
    pub(crate) fn load_carry(&self, input: &mut [u8]) -> usize {
        input[..self.carry.len()].copy_from_slice(&self.carry);
        self.carry.len()
    }

    /// Decrypts what is whole in `input` and appends to `out` what rustls wants to answer. After an
    /// error `out` ends in an alert for the peer.
    pub(crate) fn receive(
        &mut self,
        input: &mut [u8],
        plaintext: &mut Plaintext<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let taken = self.run(input, plaintext, out, &mut Outgoing::Nothing)?;
        self.carry.clear();
        if taken < input.len() {
            self.carry.extend_from_slice(&input[taken..]);
        } else {
            self.carry = Vec::new();
        }
        Ok(())
    }

    /// Appends `data` to `out` as records.
    pub(crate) fn encrypt(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        self.send(Outgoing::Data(data), out)
    }

    pub(crate) fn close_notify(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.send(Outgoing::CloseNotify, out)
    }

    /// What the handshake established; call it when that is over.
    pub(crate) fn info(&self) -> TlsInfo {
        let common = self.connection.common();
        let peer = common.peer_certificates().and_then(|chain| chain.first());
        TlsInfo {
            version: match common.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "unknown",
            },
            cipher: common
                .negotiated_cipher_suite()
                .and_then(|suite| suite.suite().as_str())
                .unwrap_or("unknown"),
            server_name: self.server_name.clone(),
            alpn: common
                .alpn_protocol()
                .map(|name| String::from_utf8_lossy(name).into_owned().into_boxed_str()),
            is_resumed: common.handshake_kind() == Some(HandshakeKind::Resumed),
            certificate: peer.and_then(|der| certificate::parse(der)).map(Box::new),
        }
    }

    fn send(&mut self, mut outgoing: Outgoing<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut carry = mem::take(&mut self.carry);
        let (buffer, mut held) = (&mut [][..], Vec::new());
        let mut nothing = Plaintext { buffer, len: 0, held: &mut held };
        let taken = self.run(&mut carry, &mut nothing, out, &mut outgoing)?;
        if !matches!(outgoing, Outgoing::Nothing) {
            return Err(Error::HandshakeNotComplete);
        }
        debug_assert!(held.is_empty(), "the carry holds no whole record");
        carry.drain(..taken);
        self.carry = carry;
        Ok(())
    }

    fn run(
        &mut self,
        input: &mut [u8],
        plaintext: &mut Plaintext<'_>,
        out: &mut Vec<u8>,
        outgoing: &mut Outgoing<'_>,
    ) -> Result<usize, Error> {
        if self.is_failed {
            return Err(Error::General("the connection has failed before".to_owned()));
        }
        let mut taken = 0;
        loop {
            let rest = &mut input[taken..];
            let (discard, step) = self.connection.step(rest, plaintext, out, outgoing);
            taken += discard;
            if let Some(name) = server::take_server_name() {
                self.server_name = Some(name);
            }
            match step {
                Ok(Step::Again) => {}
                Ok(Step::PeerClosed) => self.is_peer_closed = true,
                Ok(Step::Blocked) => return Ok(taken),
                Err(error) => {
                    self.is_failed = true;
                    self.append_alert(plaintext, out);
                    return Err(error);
                }
            }
        }
    }

    /// After an error rustls may have an alert to send. It must not be asked for anything else: to
    /// look at input once more, whatever that is, breaks assertions of its own.
    fn append_alert(&mut self, plaintext: &mut Plaintext<'_>, out: &mut Vec<u8>) {
        while self.connection.common().wants_write() {
            let (_, step) = self.connection.step(&mut [], plaintext, out, &mut Outgoing::Nothing);
            if step.is_err() {
                return;
            }
        }
    }
}

impl Connection {
    fn common(&self) -> &CommonState {
        match self {
            Self::Server(connection) => connection,
            Self::Client(connection) => connection,
        }
    }

    fn step(
        &mut self,
        input: &mut [u8],
        plaintext: &mut Plaintext<'_>,
        out: &mut Vec<u8>,
        outgoing: &mut Outgoing<'_>,
    ) -> (usize, Result<Step, Error>) {
        match self {
            Self::Server(connection) => {
                step(connection.process_tls_records(input), plaintext, out, outgoing)
            }
            Self::Client(connection) => {
                step(connection.process_tls_records(input), plaintext, out, outgoing)
            }
        }
    }
}

/// Does what rustls asks for in one of its states. Generic because its servers and clients differ
/// in type.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plaintext: &mut Plaintext<'_>,
    out: &mut Vec<u8>,
    outgoing: &mut Outgoing<'_>,
) -> (usize, Result<Step, Error>) {
    let mut discard = status.discard;
    let step = match status.state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    plaintext.push(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Step::Again),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            append(out, HANDSHAKE_RECORD_BYTES, |room| match data.encode(room) {
                Err(EncodeError::InsufficientSize(size)) => Err(Some(size.required_size)),
                Err(EncodeError::AlreadyEncoded) => Err(None),
                Ok(n) => Ok(n),
            })
            .map(|()| Step::Again)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // What was encoded is in `out` and goes to the socket before anything else does.
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            let sealed = match mem::replace(outgoing, Outgoing::Nothing) {
                Outgoing::Nothing => return (discard, Ok(Step::Blocked)),
                Outgoing::Data(data) => {
                    let records = data.len().div_ceil(FRAGMENT_BYTES_MAX);
                    let estimate = data.len() + records * RECORD_OVERHEAD_BYTES;
                    append(out, estimate, |room| fit(traffic.encrypt(data, room)))
                }
                Outgoing::CloseNotify => {
                    append(out, ALERT_BYTES, |room| fit(traffic.queue_close_notify(room)))
                }
            };
            sealed.map(|()| Step::Again)
        }
        Ok(ConnectionState::PeerClosed) => Ok(Step::PeerClosed),
        // `BlockedHandshake`, `Closed`, and early data, which we never offer to take.
        Ok(_) => Ok(Step::Blocked),
    };
    (discard, step)
}

/// Lets `write` append to `out`, first with room for `estimate` bytes, then for what it asks for.
fn append(
    out: &mut Vec<u8>,
    estimate: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
) -> Result<(), Error> {
    let at = out.len();
    let mut room = estimate;
    loop {
        out.resize(at + room, 0);
        match write(&mut out[at..]) {
            Ok(n) => {
                out.truncate(at + n);
                return Ok(());
            }
            Err(Some(required)) if required > room => room = required,
            Err(_) => {
                out.truncate(at);
                return Err(Error::EncryptError);
            }
        }
    }
}

fn fit(result: Result<usize, EncryptError>) -> Result<usize, Option<usize>> {
    result.map_err(|error| match error {
        EncryptError::InsufficientSize(size) => Some(size.required_size),
        EncryptError::EncryptExhausted => None,
    })
}

impl Plaintext<'_> {
    fn push(&mut self, bytes: &[u8]) {
        let (now, later) = bytes.split_at(bytes.len().min(self.buffer.len() - self.len));
        self.buffer[self.len..self.len + now.len()].copy_from_slice(now);
        self.len += now.len();
        self.held.extend_from_slice(later);
    }
}

/// Room for the longest handshake message that rustls takes (64 KiB) with its record headers, and
/// so the most that a connection can make us keep.
pub(crate) const INPUT_BYTES_MAX: usize = 80 * 1024;
const FRAGMENT_BYTES_MAX: usize = 16 * 1024;
/// Header, explicit nonce, content type and tag, at most.
const RECORD_OVERHEAD_BYTES: usize = 5 + 8 + 1 + 16;
const HANDSHAKE_RECORD_BYTES: usize = 4 * 1024;
const ALERT_BYTES: usize = 64;
