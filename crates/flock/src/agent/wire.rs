//! What commander and agent say to each other.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::crew::{CrewNews, CrewOrder};
use crate::engine::judge::Part;
use crate::engine::tally::Tick;
use crate::measure::MachineInfo;
use crate::measure::ledger::SentTable;
use crate::model::Scenario;

/// From the commander.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToAgent {
    /// Answered by `Clock` at once.
    Ping,
    Offer(Box<Offer>),
    /// Start the threads of the package that was accepted.
    Start {
        /// The run's beginning on the agent's monotonic clock.
        epoch_ns: i64,
        /// The commander's wall clock then.
        wall_ns: u64,
    },
    Order(CrewOrder),
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
    Hello { version: String, machine: Box<MachineInfo>, boot_id: String },
    Clock { monotonic_ns: i64 },
    Accepted { clients: u64, threads: usize },
    Refused { why: String },
    Started,
    News(CrewNews),
    Sent { sent: SentTable, ticks: Vec<Tick> },
    Part(Box<Part>),
}

/// Sends one message: four bytes of length, big endian, and JSON.
pub(super) fn send<T: Serialize>(stream: &mut impl Write, message: &T) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let len = u32::try_from(body.len()).ok().filter(|&len| len <= FRAME_BYTES_MAX);
    let len = len.ok_or_else(|| io::Error::other("a message between agents is over 1 GiB"))?;
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
        return Err(io::Error::other("the other side does not speak the agents' protocol"));
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

#[cfg(test)]
mod tests {
    use super::*;

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
