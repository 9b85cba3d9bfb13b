//! A port for a server that cannot choose one itself.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// A port of this machine at which nobody listens, and another one with every call of a process.
/// It lies below those that the kernel gives out (`net.ipv4.ip_local_port_range`): neither a server
/// that asks for any port nor a client's end of a connection takes it before the server has
/// started, or while it starts again. Where that range leaves no room, it is one of the kernel's.
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
    Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()?.port())
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

    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_port_is_given_once_and_can_be_listened_at() {
        let ports: Vec<u16> = (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 50, "{ports:?}");
        for port in ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn a_port_is_not_one_that_the_kernel_gives_out() {
        let first = first_of_kernel();
        if first > FIRST {
            assert!(free_port().unwrap() < first);
        }
    }
}
