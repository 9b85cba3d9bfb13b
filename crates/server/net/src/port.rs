//! A port for a server that cannot choose one itself.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use socket2::{Domain, Socket, Type};

/// A port of this machine at which nobody listens, and another one with every call of a process.
/// It lies below those that the kernel gives out (`net.ipv4.ip_local_port_range`): neither a server
/// that asks for any port nor a client's end of a connection takes it before the server has
/// started, or while it starts again. Where that range leaves no room, it is one of the kernel's,
/// which this process then holds for servers with `SO_REUSEADDR` until it ends.
/// Errors: as of a bind, where there is none at all.
pub fn free_port() -> io::Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let ports = FIRST..first_of_kernel().max(FIRST);
    let count = ports.len() as u32;
    // Processes that search at the same time begin at different places.
    let begin = std::process::id().wrapping_mul(PORTS_PER_PROCESS);
    for _ in 0..count {
        let place = begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % count;
        let port = FIRST + place as u16;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    reserved_port()
}

/// A socket that is bound and does not listen keeps the kernel from giving its port to another, but
/// not a server from listening there by name, if both have said that they share it.
fn reserved_port() -> io::Result<u16> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into())?;
    let address = socket.local_addr()?.as_socket_ipv4();
    std::mem::forget(socket);
    address.map(|address| address.port()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Where the ports begin that the kernel gives out.
fn first_of_kernel() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
    first.unwrap_or(FIRST_OF_KERNEL_DEFAULT)
}

/// Above the ports that services are known by.
const FIRST: u16 = 10_000;
const PORTS_PER_PROCESS: u32 = 97;
/// Linux's own default.
const FIRST_OF_KERNEL_DEFAULT: u16 = 32_768;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_port_is_given_once_and_can_be_listened_at() {
        let ports: Vec<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 50, "{ports:?}");
        for port in ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn a_reserved_port_can_be_listened_at_and_is_given_to_nobody_else() {
        let port = reserved_port().unwrap();
        for _ in 0..3 {
            let server = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
            TcpStream::connect(server.local_addr().unwrap()).unwrap();
        }
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let reserved = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        assert!(socket.bind(&reserved.into()).is_err(), "nobody who does not share it");
    }

    #[test]
    fn a_port_is_not_one_that_the_kernel_gives_out() {
        let first = first_of_kernel();
        if first > FIRST {
            assert!(free_port().unwrap() < first);
        }
    }
}
