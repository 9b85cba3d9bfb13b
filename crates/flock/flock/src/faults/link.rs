//! A TCP connection's way that can be cut: a proxy on loopback between a node and an engine.
//!
//! A cut drops nothing that was sent, as a partition of a network does: bytes wait in the sockets,
//! new connections hang, and all goes on when the link is mended.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use flock_model::Directions;

/// Ends with its owner: connections are closed.
#[derive(Debug)]
pub struct Link {
    listen: SocketAddr,
    target: String,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    cut: Mutex<Cut>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Cut {
    /// From the node to the engine, and back.
    is_out: bool,
    is_in: bool,
    is_over: bool,
    /// Connections under way, both ends of each; at most [`CONNECTIONS_MAX`].
    open: Vec<TcpStream>,
}

impl State {
    fn cut(&self) -> MutexGuard<'_, Cut> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this direction is whole; `false` if the link is over.
    fn pass(&self, is_out: bool) -> bool {
        let mut cut = self.cut();
        while !cut.is_over && if is_out { cut.is_out } else { cut.is_in } {
            cut = self.changed.wait(cut).unwrap_or_else(PoisonError::into_inner);
        }
        !cut.is_over
    }
}

impl Link {
    /// Listens on loopback at once; `listen_port` 0 is any that is free.
    pub fn start(listen_port: u16, target: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", listen_port))?;
        let listen = listener.local_addr()?;
        let state = Arc::new(State::default());
        let link = Self { listen, target: target.to_owned(), state: Arc::clone(&state) };
        let target = target.to_owned();
        thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || accept(&listener, &target, &state))?;
        Ok(link)
    }

    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    pub fn target(&self) -> &str {
        &self.target
    }

    pub fn cut(&self, directions: Directions) {
        let mut cut = self.state.cut();
        cut.is_out |= directions != Directions::In;
        cut.is_in |= directions != Directions::Out;
    }

    pub fn mend(&self) {
        let mut cut = self.state.cut();
        (cut.is_out, cut.is_in) = (false, false);
        self.state.changed.notify_all();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut cut = self.state.cut();
        cut.is_over = true;
        for stream in cut.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.state.changed.notify_all();
        drop(cut);
        // The acceptor sees that it is over when somebody comes.
        let _ = TcpStream::connect_timeout(&self.listen, CONNECT_MAX);
    }
}

fn accept(listener: &TcpListener, target: &str, state: &Arc<State>) {
    for near in listener.incoming() {
        let Ok(near) = near else { continue };
        let is_full = {
            let mut cut = state.cut();
            if cut.is_over {
                return;
            }
            // Those that have ended have no peer.
            cut.open.retain(|stream| stream.peer_addr().is_ok());
            cut.open.len() >= CONNECTIONS_MAX
        };
        if is_full {
            continue;
        }
        let (target, state) = (target.to_owned(), Arc::clone(state));
        let _ = thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || serve(near, &target, &state));
    }
}

/// One connection, until either end closes it.
fn serve(near: TcpStream, target: &str, state: &Arc<State>) {
    // Not even a handshake reaches an engine that is cut off.
    if !state.pass(true) {
        return;
    }
    let Ok(far) = connect(target) else { return };
    let ends = [near.try_clone(), near.try_clone(), far.try_clone(), far.try_clone()];
    let [Ok(near_out), Ok(near_kept), Ok(far_in), Ok(far_kept)] = ends else { return };
    {
        let mut cut = state.cut();
        if cut.is_over {
            return;
        }
        cut.open.extend([near_kept, far_kept]);
    }
    let shared = Arc::clone(state);
    let back = thread::spawn(move || pass_on(far_in, near, &shared, false));
    pass_on(near_out, far, state, true);
    let _ = back.join();
}

fn connect(target: &str) -> io::Result<TcpStream> {
    let address = target.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let far = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
    far.set_nodelay(true)?;
    Ok(far)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, state: &State, is_out: bool) {
    let _ = to.set_nodelay(true);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let n = from.read(&mut buffer).unwrap_or(0);
        if !state.pass(is_out) || n == 0 || to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

const READ_BYTES: usize = 64 * 1024;
/// Ends of connections through one link, at most; further connections are closed at once.
const CONNECTIONS_MAX: usize = 256;
const CONNECT_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    struct Pair {
        link: Link,
        near: TcpStream,
        far: TcpStream,
    }

    fn pair() -> Pair {
        let engine = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::start(0, &engine.local_addr().unwrap().to_string()).unwrap();
        let near = TcpStream::connect(link.listen()).unwrap();
        let (far, _) = engine.accept().unwrap();
        Pair { link, near, far }
    }

    fn take(stream: &mut TcpStream) -> [u8; 1] {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        byte
    }

    /// Whether nothing can be read just now.
    fn is_silent(stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        let is_silent = stream.peek(&mut [0]).is_err();
        stream.set_nonblocking(false).unwrap();
        is_silent
    }

    #[test]
    fn one_direction_can_be_cut_and_nothing_sent_is_lost() {
        let mut pair = pair();
        pair.near.write_all(b"a").unwrap();
        assert_eq!(take(&mut pair.far), *b"a");
        pair.link.cut(Directions::Out);
        pair.near.write_all(b"b").unwrap();
        // What goes the other way passes, and is a sign that time has gone by.
        pair.far.write_all(b"c").unwrap();
        assert_eq!(take(&mut pair.near), *b"c");
        assert!(is_silent(&pair.far));
        pair.link.mend();
        assert_eq!(take(&mut pair.far), *b"b");
    }

    #[test]
    fn both_directions_are_closed_with_the_link() {
        let mut pair = pair();
        pair.link.cut(Directions::Both);
        drop(pair.link);
        assert_eq!(pair.near.read(&mut [0]).unwrap_or(0), 0);
        assert_eq!(pair.far.read(&mut [0]).unwrap_or(0), 0);
    }
}
