//! One TLS connection as a transformer of bytes, server or client, above no particular socket.

use std::mem;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CommonState, Error, HandshakeKind, ProtocolVersion};

use super::registered::RegisteredVerifier;
use super::{certificate, server};
use crate::peer::{CertificateInfo, TlsInfo};

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
    /// Of a server that accepts certificates whose thumbprints are registered.
    registered: Option<Arc<RegisteredVerifier>>,
}

enum Connection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// Where decrypted bytes go: into the buffer as long as it has room, then into the other one.
pub(crate) struct Plaintext<'a> {
    pub(crate) buffer: &'a mut [u8],
    pub(crate) len: usize,
    pub(crate) pending: &'a mut Vec<u8>,
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
    pub(crate) fn server(
        connection: UnbufferedServerConnection,
        registered: Option<Arc<RegisteredVerifier>>,
    ) -> Self {
        Self { registered, ..Self::new(Connection::Server(connection)) }
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
            registered: None,
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

    /// Version and cipher suite.
    pub(crate) fn agreed(&self) -> (&'static str, &'static str) {
        let common = self.connection.common();
        let version = match common.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "unknown",
        };
        let suite = common.negotiated_cipher_suite();
        (version, suite.and_then(|suite| suite.suite().as_str()).unwrap_or("unknown"))
    }

    /// As DER.
    pub(crate) fn peer_certificates(&self) -> Vec<Vec<u8>> {
        let chain = self.connection.common().peer_certificates().unwrap_or_default();
        chain.iter().map(|certificate| certificate.as_ref().to_vec()).collect()
    }

    /// What the handshake established; call it when that is over.
    pub(crate) fn info(&self) -> TlsInfo {
        let common = self.connection.common();
        let peer = common.peer_certificates().filter(|chain| !chain.is_empty());
        let info_of = |chain: &[CertificateDer<'_>]| {
            let is_issued = self.registered.as_ref().is_none_or(|own| own.is_issued(chain));
            // One that cannot be read was shown all the same, and has no name.
            let info = certificate::parse(&chain[0]).unwrap_or_default();
            Box::new(CertificateInfo { is_unissued: !is_issued, ..info })
        };
        let (version, cipher) = self.agreed();
        TlsInfo {
            version,
            cipher,
            server_name: self.server_name.clone(),
            alpn: common
                .alpn_protocol()
                .map(|name| String::from_utf8_lossy(name).into_owned().into_boxed_str()),
            is_resumed: common.handshake_kind() == Some(HandshakeKind::Resumed),
            certificate: peer.map(info_of),
        }
    }

    fn send(&mut self, mut outgoing: Outgoing<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut carry = mem::take(&mut self.carry);
        let (buffer, mut pending) = (&mut [][..], Vec::new());
        let mut nothing = Plaintext { buffer, len: 0, pending: &mut pending };
        let taken = self.run(&mut carry, &mut nothing, out, &mut outgoing)?;
        if !matches!(outgoing, Outgoing::Nothing) {
            return Err(Error::HandshakeNotComplete);
        }
        debug_assert!(pending.is_empty(), "the carry holds no whole record");
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
        self.pending.extend_from_slice(later);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::Resumption;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

    use super::*;

    type Version = &'static SupportedProtocolVersion;

    struct Configs {
        server: Arc<ServerConfig>,
        client: Arc<ClientConfig>,
    }

    fn configs(version: Version) -> Configs {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("key");
        let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .expect("version")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .expect("certificate");
        let mut roots = RootCertStore::empty();
        roots.add(certificate).expect("root");
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .expect("version")
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Each conversation is as long as the one before.
        client.resumption = Resumption::disabled();
        Configs { server: Arc::new(server), client: Arc::new(client) }
    }

    fn sessions(configs: &Configs) -> (Session, Session) {
        let server = UnbufferedServerConnection::new(Arc::clone(&configs.server));
        let name = ServerName::try_from("localhost").expect("name");
        let client = UnbufferedClientConnection::new(Arc::clone(&configs.client), name);
        (Session::server(server.expect("server"), None), Session::client(client.expect("client")))
    }

    /// Hands `bytes` over in pieces, as a socket would, and collects plaintext and answers.
    fn feed(
        to: &mut Session,
        bytes: &[u8],
        cut: usize,
        out: &mut Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let mut pending = Vec::new();
        let mut input = vec![0; INPUT_BYTES_MAX];
        let none: &[u8] = &[];
        let pieces = if bytes.is_empty() { vec![none] } else { bytes.chunks(cut).collect() };
        for piece in pieces {
            let carried = to.load_carry(&mut input);
            input[carried..carried + piece.len()].copy_from_slice(piece);
            let mut plaintext = Plaintext { buffer: &mut [], len: 0, pending: &mut pending };
            to.receive(&mut input[..carried + piece.len()], &mut plaintext, out)?;
        }
        Ok(pending)
    }

    /// Shakes hands and says hello both ways, with one bit of the wire flipped, if asked to.
    /// Returns how many bytes went over the wire.
    fn converse(configs: &Configs, cut: usize, flip: Option<usize>) -> Result<usize, Error> {
        let (mut server, mut client) = sessions(configs);
        let (mut to_server, mut to_client, mut wire) = (Vec::new(), Vec::new(), 0);
        let damage = |bytes: &mut Vec<u8>, wire: &mut usize| {
            if let Some(at) = flip.and_then(|flip| flip.checked_sub(*wire))
                && at < bytes.len()
            {
                bytes[at] ^= 1 << (at % 8);
            }
            *wire += bytes.len();
            mem::take(bytes)
        };
        feed(&mut client, &[], cut, &mut to_server)?;
        while !(to_server.is_empty() && to_client.is_empty()) {
            let bytes = damage(&mut to_server, &mut wire);
            // What one end refuses, the other gets to know by an alert, and must also survive.
            let refusal = feed(&mut server, &bytes, cut, &mut to_client).err();
            let bytes = damage(&mut to_client, &mut wire);
            feed(&mut client, &bytes, cut, &mut to_server)?;
            if let Some(error) = refusal {
                return Err(error);
            }
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut server, &mut client];
            let mut bytes = Vec::new();
            ends.into_iter().nth(from).expect("two ends").encrypt(HELLO, &mut bytes)?;
            let bytes = damage(&mut bytes, &mut wire);
            let ends = [&mut server, &mut client];
            let end = ends.into_iter().nth(to).expect("two ends");
            let got = feed(end, &bytes, cut, &mut Vec::new())?;
            if got.is_empty() {
                return Err(Error::General("a damaged length leaves a record waiting".to_owned()));
            }
            assert_eq!(got, HELLO, "what is decrypted is what was sent");
        }
        Ok(wire)
    }

    const HELLO: &[u8] = b"hello";

    #[test]
    fn records_may_be_cut_anywhere() {
        for version in [&version::TLS12, &version::TLS13] {
            let configs = configs(version);
            for cut in [1, 2, 3, 5, 7, 100, 1000, usize::MAX] {
                converse(&configs, cut, None).expect("good");
            }
        }
    }

    /// rustls asserts how it is called, so a driver that gets errors wrong shows as a panic.
    #[test]
    fn any_damaged_byte_is_an_error_or_harmless_but_never_a_panic() {
        for version in [&version::TLS12, &version::TLS13] {
            let configs = configs(version);
            let total = converse(&configs, usize::MAX, None).expect("good");
            let mut errors = 0;
            for flip in (0..total).step_by(3) {
                let cut = [usize::MAX, 1, 64][flip % 3];
                errors += usize::from(converse(&configs, cut, Some(flip)).is_err());
            }
            assert!(errors * 3 > total * 9 / 10, "{errors} errors on {total} bytes");
        }
    }

    #[test]
    fn after_an_error_every_call_is_one() {
        let (mut server, _) = sessions(&configs(&version::TLS13));
        let mut out = Vec::new();
        assert!(feed(&mut server, b"\x10\x0cnot TLS", usize::MAX, &mut out).is_err());
        assert_eq!(out[0], 21, "an alert");
        assert!(server.is_failed());
        let len = out.len();
        assert!(feed(&mut server, b"more", usize::MAX, &mut out).is_err());
        assert!(server.encrypt(HELLO, &mut out).is_err());
        assert!(server.close_notify(&mut out).is_err());
        assert_eq!(out.len(), len);
    }
}
