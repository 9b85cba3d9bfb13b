//! A proxy between two nodes, which does to each connection what its plan says.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// What happens to a connection after so many bytes in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Pass,
    /// It is closed towards both nodes.
    CutAfter(usize),
    /// It is closed towards the connector only.
    CutConnectorAfter(usize),
    /// What the connector sends does not arrive any more.
    StallAfter(usize),
    /// Each piece is small and late.
    Slow {
        cut_after: usize,
    },
}

pub(crate) struct Proxy {
    address: SocketAddr,
}

impl Proxy {
    /// The connection after the last plan, and all later ones, pass.
    pub(crate) fn start(to: SocketAddr, plans: Vec<Plan>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        thread::spawn(move || {
            for (number, from) in listener.incoming().enumerate() {
                let (Ok(connector), Ok(acceptor)) = (from, TcpStream::connect(to)) else { return };
                let plan = plans.get(number).copied().unwrap_or(Plan::Pass);
                let is_over = AtomicBool::new(false);
                let up = Arc::new(Relay { connector, acceptor, plan, is_over });
                let down = Arc::clone(&up);
                thread::spawn(move || up.copy(&up.connector, &up.acceptor, up.limits()[0]));
                thread::spawn(move || down.copy(&down.acceptor, &down.connector, down.limits()[1]));
            }
        });
        Self { address }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Relay {
    connector: TcpStream,
    acceptor: TcpStream,
    plan: Plan,
    /// A limit was reached.
    is_over: AtomicBool,
}

impl Relay {
    /// Of what the connector sends, and of what it gets.
    const fn limits(&self) -> [usize; 2] {
        match self.plan {
            Plan::Pass => [usize::MAX; 2],
            Plan::CutAfter(bytes) | Plan::CutConnectorAfter(bytes) => [bytes; 2],
            Plan::StallAfter(bytes) => [bytes, usize::MAX],
            Plan::Slow { cut_after } => [cut_after; 2],
        }
    }

    /// Until the limit, or until one end closes, which closes the other one.
    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream, limit: usize) {
        let is_slow = matches!(self.plan, Plan::Slow { .. });
        let mut buffer = vec![0; if is_slow { 1000 } else { 64 * 1024 }];
        let mut left = limit;
        while left > 0 {
            let room = buffer.len().min(left);
            let read = from.read(&mut buffer[..room]).unwrap_or(0);
            if read == 0 || to.write_all(&buffer[..read]).is_err() {
                if !self.is_over.load(Ordering::SeqCst) {
                    let _ = to.shutdown(Shutdown::Both);
                }
                return;
            }
            if is_slow {
                thread::sleep(Duration::from_micros(500));
            }
            left -= read;
        }
        self.is_over.store(true, Ordering::SeqCst);
        match self.plan {
            Plan::Pass | Plan::StallAfter(_) => {}
            Plan::CutConnectorAfter(_) => drop(self.connector.shutdown(Shutdown::Both)),
            Plan::CutAfter(_) | Plan::Slow { .. } => {
                drop(self.connector.shutdown(Shutdown::Both));
                drop(self.acceptor.shutdown(Shutdown::Both));
            }
        }
    }
}
