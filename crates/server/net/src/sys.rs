//! The two socket options that neither std, mio nor socket2 offers. The only `unsafe` of this
//! crate.
#![allow(unsafe_code, reason = "setsockopt and getsockopt take raw pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Who sits at the other end of a unix socket, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixCredentials {
    pub process_id: i32,
    pub user_id: u32,
    pub group_id: u32,
}

/// Lets `connect` choose the local port instead of `bind`, so that one source address can reach
/// all ports of *each* destination (ip(7), `IP_BIND_ADDRESS_NO_PORT`). Also valid for IPv6.
#[cfg(target_os = "linux")]
pub(crate) fn bind_address_no_port(socket: &impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open for as long as it is borrowed, and the kernel reads
    // `size_of::<c_int>()` bytes from `on`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn bind_address_no_port(_socket: &impl AsFd) -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
pub(crate) fn unix_credentials(socket: &impl AsFd) -> Option<UnixCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as it is borrowed; the kernel writes at most
    // `length` bytes into `found`, a plain struct of integers that is valid for every bit pattern.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(UnixCredentials {
        process_id: found.pid,
        user_id: found.uid,
        group_id: found.gid,
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn unix_credentials(_socket: &impl AsFd) -> Option<UnixCredentials> {
    None
}
