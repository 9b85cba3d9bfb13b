//! What commander and agent say to each other.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::judge::Part;
use crate::engine::pool::{PoolNews, PoolOrder};
use crate::engine::tally::Tick;
use flock_measure::MachineInfo;
use flock_measure::ledger::SentTable;
use flock_model::Scenario;

/// The version of all that follows. It rises with every change of a message, also of what is within
/// one: scenario, orders, ticks, judgement.
pub(super) const PROTOCOL: u32 = 13;

/// From the commander.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToAgent {
    /// Answered by `Clock` at once, also in the middle of a run.
    Ping {
        /// What the commander's monotonic clock shows.
        sent_ns: i64,
    },
    Offer(Box<Offer>),
    /// Start the threads of the package that was accepted.
    Start {
        /// The run's beginning on the agent's monotonic clock.
        epoch_ns: i64,
        /// The commander's wall clock then.
        wall_ns: u64,
    },
    Order(PoolOrder),
    Finish,
    Judge(SentTable),
}

/// A work package.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) scenario: Scenario,
    pub(super) tag: u16,
    pub(super) threads: Option<usize>,
}

/// From the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromAgent {
    Hello {
        version: String,
        machine: Box<MachineInfo>,
        boot_id: String,
    },
    /// What the agent's monotonic clock shows, and the ping that asked.
    Clock {
        monotonic_ns: i64,
        sent_ns: i64,
    },
    Accepted {
        clients: u64,
        threads: usize,
    },
    Refused {
        why: String,
    },
    Started,
    News(PoolNews),
    Sent {
        sent: SentTable,
        ticks: Vec<Tick>,
    },
    Part(Box<Part>),
}

/// Why the two do not understand each other.
#[derive(Debug, thiserror::Error)]
pub(super) enum Mismatch {
    #[error("it uses version {theirs} of the agent protocol, this program {PROTOCOL}")]
    Version { theirs: u32 },
    #[error("unexpected greeting: not a flock agent or commander, or one of an older version")]
    Stranger,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The first that each side says, before any message. Who does not know it, an older flock among
/// them, takes it for the length of a message that is far too long.
pub(super) fn greet(stream: &mut impl Write) -> io::Result<()> {
    let mut greeting = NAME.to_vec();
    greeting.extend_from_slice(&PROTOCOL.to_be_bytes());
    stream.write_all(&greeting)?;
    stream.flush()
}

/// What the other side says first.
pub(super) fn check_greeting(stream: &mut impl Read) -> Result<(), Mismatch> {
    let (mut name, mut version) = ([0; NAME.len()], [0; 4]);
    stream.read_exact(&mut name)?;
    if name != NAME {
        return Err(Mismatch::Stranger);
    }
    stream.read_exact(&mut version)?;
    match u32::from_be_bytes(version) {
        PROTOCOL => Ok(()),
        theirs => Err(Mismatch::Version { theirs }),
    }
}

/// Sends one message: four bytes of length, big endian, and JSON.
pub(super) fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let len = u32::try_from(body.len()).ok().filter(|&len| len <= FRAME_BYTES_MAX);
    let len =
        len.ok_or_else(|| io::Error::other("a message of the agent protocol is above 1 GiB"))?;
    let mut frame = len.to_be_bytes().to_vec();
    frame.extend_from_slice(&body);
    stream.write_all(&frame)?;
    stream.flush()
}

/// Receives one message; `None` when the other side has closed.
pub(super) fn receive<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let len = u32::from_be_bytes(len);
    if len > FRAME_BYTES_MAX {
        return Err(io::Error::other("the other side does not use the agent protocol"));
    }
    // Grown as it comes, so that a false length costs nothing.
    let mut body = Vec::new();
    stream.take(u64::from(len)).read_to_end(&mut body)?;
    if body.len() < len as usize {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&body)?))
}

/// Has the kernel break the connection when the other host is silently gone (a cable, a power cut):
/// reads and writes then fail within [`SILENCE_MAX`] or so.
pub(super) fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE_MAX / 2)?;
    sockopt::set_tcp_keepintvl(stream, SILENCE_MAX / 8)?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32)?;
    Ok(())
}

/// An agent whose load threads report every second, and that is not heard for so long, is lost.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(12);
const FRAME_BYTES_MAX: u32 = 1 << 30;
const NAME: [u8; 12] = *b"flock-agents";
/// A side that connects and says nothing is not waited for longer.
pub(super) const GREETING_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_differ_are_told_apart() {
        let mut greeting = Vec::new();
        greet(&mut greeting).unwrap();
        assert!(check_greeting(&mut greeting.as_slice()).is_ok());
        *greeting.last_mut().unwrap() = 77;
        let mismatch = check_greeting(&mut greeting.as_slice()).unwrap_err();
        assert!(mismatch.to_string().contains("version 77"), "{mismatch}");
        // What a flock without a version says first: the length of a message.
        let mut older = Vec::new();
        send(&mut older, &ToAgent::Finish).unwrap();
        let mismatch = check_greeting(&mut older.as_slice()).unwrap_err();
        assert!(matches!(mismatch, Mismatch::Stranger), "{mismatch}");
        // And what it makes of our greeting.
        assert!(receive::<ToAgent>(&mut greeting.as_slice()).is_err());
    }

    #[test]
    fn messages_survive_the_wire_and_garbage_does_not() {
        let mut bytes = Vec::new();
        send(&mut bytes, &ToAgent::Start { epoch_ns: -5, wall_ns: 7 }).unwrap();
        let back: ToAgent = receive(&mut bytes.as_slice()).unwrap().unwrap();
        assert!(matches!(back, ToAgent::Start { epoch_ns: -5, wall_ns: 7 }));
        assert!(receive::<ToAgent>(&mut &b""[..]).unwrap().is_none());
        assert!(receive::<ToAgent>(&mut &b"GET / HTTP/1.1"[..]).is_err());
        assert!(receive::<ToAgent>(&mut &b"\0\0\0\x02{}"[..]).is_err());
    }
}
