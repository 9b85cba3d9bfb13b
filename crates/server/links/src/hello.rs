//! The handshake of two nodes, within TLS and before the first packet. It has no input and output.
//!
//! ```text
//! connector -> acceptor   hello
//! acceptor  -> connector  hello
//! connector -> acceptor   proof
//! acceptor  -> connector  proof
//! ```
//!
//! The acceptor is silent until it has a valid hello, and proves nothing to a peer that has proved
//! nothing. A hello:
//!
//! ```text
//! magic    "quelinks"
//! length   u16  of what follows, little-endian
//! lowest   u8   the lowest and the highest version of packets that the sender speaks
//! highest  u8
//! cluster  16 bytes
//! lane     u8   that of the acceptor is the connector's
//! session  u64  little-endian
//! name     length u8, then the sender's name as a node
//! ...           ignored: later versions may add to it
//! ```
//!
//! A proof is the HMAC-SHA256 by the cluster's secret of a label, the role of the prover, a value
//! that TLS exports, and both hellos. The exported value differs on each TLS connection. So a
//! proof is worth nothing on another one, and a node in the middle cannot pass it on.
//!
//! Both sides use the lower of the two highest versions. The last byte of a proof is followed by
//! packets.

use std::fmt;
use std::ops::RangeInclusive;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use thiserror::Error;

/// The longest node name, as in the configuration.
pub const NAME_BYTES_MAX: usize = 64;

/// What follows the length of a hello. Policy: the connection is closed.
pub const HELLO_BYTES_MAX: usize = 512;

/// The label for the value that TLS exports.
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-quelea-link";

pub type ClusterId = [u8; 16];

/// What a node says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    pub versions: RangeInclusive<u8>,
    pub cluster: ClusterId,
    pub lane: u8,
    /// Random. The same as on an earlier connection: the sender still has what it had then.
    pub session: u64,
    pub name: String,
}

/// The secret of a cluster. It is never shown.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Connector,
    Acceptor,
}

/// Why a peer is refused. The peer gets no reason.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum HelloError {
    #[error("the peer does not speak the protocol of cluster links")]
    Magic,
    #[error("invalid hello: {0}")]
    Malformed(&'static str),
    #[error(
        "the peer speaks versions {} to {}, this node {} to {}: upgrade the older node",
        peer.start(), peer.end(), own.start(), own.end()
    )]
    Versions { own: RangeInclusive<u8>, peer: RangeInclusive<u8> },
    #[error("node {name} is of another cluster")]
    Cluster { name: String },
    #[error("node {name} answers for connection {got}, asked for connection {asked}")]
    OtherLane { name: String, got: u8, asked: u8 },
    #[error(
        "node {name} asks for connection {lane} of {lanes}, counted from 0: set the same number on all nodes"
    )]
    NoLane { name: String, lane: u8, lanes: u8 },
    #[error("the certificate of the peer is not issued for node {name}")]
    Name { name: String },
    #[error("unknown node {name}: only members of the cluster may connect")]
    NoMember { name: String },
    #[error("node {name} has to wait: the node with the smaller name connects")]
    Direction { name: String },
    #[error("node {name} has another secret: it must be the same on all nodes")]
    Proof { name: String },
}

/// A handshake that succeeded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    pub peer: Hello,
    /// The session number that this node has sent.
    pub session: u64,
    pub version: u8,
}

/// One side of a handshake.
#[derive(Debug)]
pub struct Greeting {
    role: Role,
    secret: Secret,
    exported: [u8; EXPORTED_BYTES],
    own: Hello,
    /// Bytes of the part of the peer's that is not complete.
    input: Vec<u8>,
    output: Vec<u8>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Waits for the peer's hello.
    Hello,
    /// Waits for the peer's proof.
    Proof {
        peer: Hello,
        peer_bytes: Vec<u8>,
    },
    Done,
}

impl Secret {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    fn mac(&self) -> Hmac<Sha256> {
        #[expect(clippy::expect_used, reason = "it has no condition")]
        Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Role {
    const fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(self.name.len() <= NAME_BYTES_MAX, "{} bytes", self.name.len());
        let mut bytes = MAGIC.to_vec();
        let length = FIXED_BYTES + self.name.len();
        bytes.extend_from_slice(&(length as u16).to_le_bytes());
        bytes.extend_from_slice(&[*self.versions.start(), *self.versions.end()]);
        bytes.extend_from_slice(&self.cluster);
        bytes.push(self.lane);
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.push(self.name.len() as u8);
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    /// Decodes what follows the length.
    ///
    /// # Errors
    ///
    /// It ends early, or a field is invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
            return Err(HelloError::Malformed("it ends early"));
        };
        let [lowest, highest, ..] = *fixed;
        let mut cluster = [0; 16];
        cluster.copy_from_slice(&fixed[2..18]);
        let mut session = [0; 8];
        session.copy_from_slice(&fixed[19..27]);
        let name_bytes = usize::from(fixed[27]);
        if lowest > highest {
            return Err(HelloError::Malformed("the lowest version is above the highest"));
        }
        let name = rest.get(..name_bytes).and_then(|name| str::from_utf8(name).ok());
        let Some(name) = name.filter(|name| is_name(name)) else {
            return Err(HelloError::Malformed("the name must be 1 to 64 of A-Z a-z 0-9 . - _"));
        };
        Ok(Self {
            versions: lowest..=highest,
            cluster,
            lane: fixed[18],
            session: u64::from_le_bytes(session),
            name: name.to_owned(),
        })
    }
}

impl Greeting {
    /// The side that connects, for this lane and session.
    pub fn connect(own: Hello, secret: Secret, exported: [u8; EXPORTED_BYTES]) -> Self {
        let output = own.encode();
        Self { output, ..Self::new(Role::Connector, own, secret, exported) }
    }

    /// The side that is connected to. Lane and session of its hello are set later.
    pub fn accept(own: Hello, secret: Secret, exported: [u8; EXPORTED_BYTES]) -> Self {
        Self::new(Role::Acceptor, own, secret, exported)
    }

    fn new(role: Role, own: Hello, secret: Secret, exported: [u8; EXPORTED_BYTES]) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        Self { role, secret, exported, own, input, output, stage: Stage::Hello }
    }

    /// What has to be sent now.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Takes bytes of the handshake off the front of `input`, and no others. Some: it has
    /// succeeded. `admit` decides on the peer, and returns the own session number for it.
    ///
    /// # Errors
    ///
    /// The peer is refused. Close the connection.
    pub fn on_bytes(
        &mut self,
        input: &mut &[u8],
        admit: &mut dyn FnMut(&Hello) -> Result<u64, HelloError>,
    ) -> Result<Option<Agreed>, HelloError> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Done) {
                Stage::Hello => {
                    let Some(peer_bytes) = self.gather_hello(input)? else {
                        self.stage = Stage::Hello;
                        return Ok(None);
                    };
                    let peer = self.on_hello(&peer_bytes, admit)?;
                    self.stage = Stage::Proof { peer, peer_bytes };
                }
                Stage::Proof { peer, peer_bytes } => {
                    if !self.gather(PROOF_BYTES, input) {
                        self.stage = Stage::Proof { peer, peer_bytes };
                        return Ok(None);
                    }
                    return self.on_proof(peer, &peer_bytes).map(Some);
                }
                Stage::Done => return Ok(None),
            }
        }
    }

    /// Refuses a wrong beginning at its first byte and a wrong length before anything of it is
    /// stored.
    fn gather_hello(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, HelloError> {
        let has_magic = self.gather(MAGIC.len(), input);
        if !MAGIC.starts_with(&self.input[..self.input.len().min(MAGIC.len())]) {
            return Err(HelloError::Magic);
        }
        if !has_magic || !self.gather(HEAD_BYTES, input) {
            return Ok(None);
        }
        let length = [self.input[MAGIC.len()], self.input[MAGIC.len() + 1]];
        let length = usize::from(u16::from_le_bytes(length));
        if length > HELLO_BYTES_MAX {
            return Err(HelloError::Malformed("it is longer than 512 bytes"));
        }
        let is_whole = self.gather(HEAD_BYTES + length, input);
        Ok(is_whole.then(|| std::mem::take(&mut self.input)))
    }

    /// Are so many bytes there?
    fn gather(&mut self, bytes: usize, input: &mut &[u8]) -> bool {
        let count = bytes.saturating_sub(self.input.len()).min(input.len());
        let (taken, left) = input.split_at(count);
        self.input.extend_from_slice(taken);
        *input = left;
        self.input.len() >= bytes
    }

    fn on_hello(
        &mut self,
        bytes: &[u8],
        admit: &mut dyn FnMut(&Hello) -> Result<u64, HelloError>,
    ) -> Result<Hello, HelloError> {
        let peer = Hello::decode(&bytes[HEAD_BYTES..])?;
        let name = || peer.name.clone();
        if self.version_with(&peer) < *self.own.versions.start().max(peer.versions.start()) {
            let (own, peer) = (self.own.versions.clone(), peer.versions);
            return Err(HelloError::Versions { own, peer });
        }
        if peer.cluster != self.own.cluster {
            return Err(HelloError::Cluster { name: name() });
        }
        let session = admit(&peer)?;
        match self.role {
            Role::Acceptor => {
                self.own = Hello { lane: peer.lane, session, ..self.own.clone() };
                self.output = self.own.encode();
            }
            Role::Connector if peer.lane != self.own.lane => {
                let (got, asked) = (peer.lane, self.own.lane);
                return Err(HelloError::OtherLane { name: name(), got, asked });
            }
            Role::Connector => {
                self.output = self.proof(self.role, bytes).finalize().into_bytes().to_vec();
            }
        }
        Ok(peer)
    }

    fn on_proof(&mut self, peer: Hello, peer_bytes: &[u8]) -> Result<Agreed, HelloError> {
        let proof = std::mem::take(&mut self.input);
        // Compares in constant time.
        if self.proof(self.role.other(), peer_bytes).verify_slice(&proof).is_err() {
            return Err(HelloError::Proof { name: peer.name });
        }
        if self.role == Role::Acceptor {
            self.output = self.proof(self.role, peer_bytes).finalize().into_bytes().to_vec();
        }
        Ok(Agreed { version: self.version_with(&peer), session: self.own.session, peer })
    }

    fn version_with(&self, peer: &Hello) -> u8 {
        *self.own.versions.end().min(peer.versions.end())
    }

    fn proof(&self, prover: Role, peer_bytes: &[u8]) -> Hmac<Sha256> {
        let own_bytes = self.own.encode();
        let (connector, acceptor) = match self.role {
            Role::Connector => (&own_bytes[..], peer_bytes),
            Role::Acceptor => (peer_bytes, &own_bytes[..]),
        };
        let role: &[u8] = match prover {
            Role::Connector => b"connector",
            Role::Acceptor => b"acceptor.",
        };
        let parts = [PROOF_LABEL, role, &self.exported, connector, acceptor];
        let mut mac = self.secret.mac();
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

/// As the configuration checks it.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Of the value that TLS exports.
pub const EXPORTED_BYTES: usize = 32;

const MAGIC: &[u8] = b"quelinks";
const HEAD_BYTES: usize = MAGIC.len() + 2;
/// From the versions to the length of the name.
const FIXED_BYTES: usize = 2 + 16 + 1 + 8 + 1;
const PROOF_BYTES: usize = 32;
const PROOF_LABEL: &[u8] = b"quelea link 1";

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(name: &str, session: u64) -> Hello {
        let cluster = *b"0123456789abcdef";
        Hello { versions: 1..=3, cluster, lane: 2, session, name: name.to_owned() }
    }

    fn pair(connector: Hello, acceptor: Hello) -> [Greeting; 2] {
        let secret = || Secret::new(*b"secret");
        [
            Greeting::connect(connector, secret(), [7; 32]),
            Greeting::accept(acceptor, secret(), [7; 32]),
        ]
    }

    type Ended = Result<Option<Agreed>, HelloError>;

    /// Passes bytes on, one at a time, until both are done or one refuses.
    fn converse(greetings: &mut [Greeting; 2]) -> [Ended; 2] {
        let mut ended = [Ok(None), Ok(None)];
        let mut at = 0;
        loop {
            let output = greetings[at].take_output();
            if output.is_empty() {
                return ended;
            }
            at = 1 - at;
            for byte in output {
                let result = greetings[at].on_bytes(&mut &[byte][..], &mut |_| Ok(5));
                if !matches!(result, Ok(None)) {
                    ended[at] = result;
                }
            }
            if ended[at].is_err() {
                return ended;
            }
        }
    }

    /// Another version reads and writes the same.
    #[test]
    fn the_handshake_has_its_bytes() {
        let [mut connector, mut acceptor] = pair(hello("n1", 0x0102_0304), hello("n2", 0));
        let first = connector.take_output();
        let expected = b"quelinks\x1e\0\x01\x030123456789abcdef\x02\x04\x03\x02\x01\0\0\0\0\x02n1";
        assert_eq!(first, expected);
        let mut admit = |peer: &Hello| {
            assert_eq!(*peer, hello("n1", 0x0102_0304));
            Ok(5)
        };
        assert_eq!(acceptor.on_bytes(&mut &first[..], &mut admit), Ok(None));
        let second = acceptor.take_output();
        let expected = b"quelinks\x1e\0\x01\x030123456789abcdef\x02\x05\0\0\0\0\0\0\0\x02n2";
        assert_eq!(second, expected);
        assert_eq!(connector.on_bytes(&mut &second[..], &mut |_| Ok(0)), Ok(None));
        let proof = connector.take_output();
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(&proof), GOLDEN_PROOFS[0]);
        let mut input = [&proof[..], &[1, 2]].concat();
        let mut input = &mut input[..] as &[u8];
        let agreed = acceptor.on_bytes(&mut input, &mut admit).expect("it is right");
        let peer = hello("n1", 0x0102_0304);
        assert_eq!(agreed, Some(Agreed { peer, session: 5, version: 3 }));
        assert_eq!(input, [1, 2], "packets follow");
        assert_eq!(hex(&acceptor.take_output()), GOLDEN_PROOFS[1]);
    }

    #[test]
    fn both_use_the_lower_of_the_highest_versions() {
        let older = Hello { versions: 1..=2, ..hello("n1", 1) };
        let newer = Hello { versions: 2..=9, ..hello("n2", 2) };
        let ended = converse(&mut pair(older, newer)).map(|ended| ended.expect("they agree"));
        assert_eq!(ended.map(|agreed| agreed.map(|agreed| agreed.version)), [Some(2), Some(2)]);
    }

    #[test]
    fn without_a_common_version_there_is_no_link() {
        let [own, peer] = [3..=4, 1..=2];
        let older = Hello { versions: peer.clone(), ..hello("n1", 1) };
        let newer = Hello { versions: own.clone(), ..hello("n2", 2) };
        let refused = Err(HelloError::Versions { own: own.clone(), peer: peer.clone() });
        assert_eq!(converse(&mut pair(older.clone(), newer.clone())), [Ok(None), refused]);
        let refused = Err(HelloError::Versions { own: peer, peer: own });
        assert_eq!(converse(&mut pair(newer, older)), [Ok(None), refused]);
    }

    #[test]
    fn another_cluster_gets_no_answer() {
        let other = Hello { cluster: [0; 16], ..hello("n1", 1) };
        let mut both = pair(other, hello("n2", 2));
        let refused = Err(HelloError::Cluster { name: "n1".to_owned() });
        assert_eq!(converse(&mut both), [Ok(None), refused]);
        assert!(both[1].take_output().is_empty());
    }

    #[test]
    fn a_wrong_secret_or_another_tls_connection_is_refused_before_the_acceptor_proves() {
        for (secret, exported) in [(&b"other"[..], [7; 32]), (b"secret", [8; 32])] {
            let mut both = pair(hello("n1", 1), hello("n2", 2));
            both[0] = Greeting::connect(hello("n1", 1), Secret::new(secret), exported);
            let refused = Err(HelloError::Proof { name: "n1".to_owned() });
            assert_eq!(converse(&mut both), [Ok(None), refused]);
            assert!(both[1].take_output().is_empty());
        }
    }

    #[test]
    fn a_proof_that_is_sent_back_proves_nothing() {
        let [mut connector, mut acceptor] = pair(hello("n1", 1), hello("n2", 2));
        let first = connector.take_output();
        acceptor.on_bytes(&mut &first[..], &mut |_| Ok(5)).expect("it is right");
        let second = acceptor.take_output();
        connector.on_bytes(&mut &second[..], &mut |_| Ok(0)).expect("it is right");
        let proof = connector.take_output();
        let refused = connector.on_bytes(&mut &proof[..], &mut |_| Ok(0));
        assert_eq!(refused, Err(HelloError::Proof { name: "n2".to_owned() }));
    }

    #[test]
    fn garbage_is_refused_at_its_first_byte_and_a_length_at_its_last() {
        let accept = || Greeting::accept(hello("n2", 2), Secret::new(*b"secret"), [7; 32]);
        let on = |bytes: &[u8]| accept().on_bytes(&mut &*bytes, &mut |_| panic!("none is whole"));
        assert_eq!(on(b"\x10"), Err(HelloError::Magic));
        assert_eq!(on(b"quelinkS"), Err(HelloError::Magic));
        assert_eq!(on(b"quelinks\x00"), Ok(None));
        let too_long = HelloError::Malformed("it is longer than 512 bytes");
        assert_eq!(on(b"quelinks\x01\x02"), Err(too_long.clone()));
        assert_eq!(on(b"quelinks\xff\xff"), Err(too_long));
        assert_eq!(on(b"quelinks\0\0"), Err(HelloError::Malformed("it ends early")));
    }

    #[test]
    fn fields_are_checked_and_what_follows_them_is_ignored() {
        let sound = hello("n1", 9);
        let body = sound.encode()[HEAD_BYTES..].to_vec();
        assert_eq!(Hello::decode(&[&body[..], b"later"].concat()), Ok(sound));
        for length in 0..body.len() {
            assert!(Hello::decode(&body[..length]).is_err());
        }
        let with = |at: usize, byte| {
            let mut body = body.clone();
            body[at] = byte;
            Hello::decode(&body).expect_err("it is wrong").to_string()
        };
        assert_eq!(with(0, 4), "invalid hello: the lowest version is above the highest");
        for (at, byte) in [(27, 0), (27, 3), (28, b' '), (29, 0xff)] {
            assert!(with(at, byte).contains("1 to 64"), "{at}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new(*b"secret")), "Secret");
    }

    /// Of connector and acceptor, computed by Python's `hmac`.
    const GOLDEN_PROOFS: [&str; 2] = [
        "b66db6a59aa7873f43beb4a6979613831f078543acebd9f4873416865fbc3aeb",
        "2a1c5aaafe2558deb048ccc45dc6cc236b2c9e3055c852499caa9e2d1bc4a133",
    ];
}
