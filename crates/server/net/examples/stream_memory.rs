//! How many bytes of memory an idle connection of each kind holds.
//!
//! ```text
//! cargo run --release -p quelea-net --example stream_memory
//! ```
#![allow(unsafe_code, reason = "counting allocations takes a global allocator")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::Arc;

use common::certificates::Authority;
use common::{Ready, connector, listen, pair, read, write};
use net::{
    ClientAuth, ConnectOptions, Connector, ListenOptions, Listener, Stream, TlsClientContext,
    TlsClientOptions, TlsContext, TlsOptions,
};

const CONNECTIONS: usize = 400;

const KINDS: [(&str, &str, bool, ClientAuth, bool); 10] = [
    ("tcp", "tcp", false, ClientAuth::None, false),
    ("ws", "ws", false, ClientAuth::None, false),
    ("tls 1.2", "tls", true, ClientAuth::None, false),
    ("tls 1.2, resumed", "tls", true, ClientAuth::None, true),
    ("tls 1.3", "tls", false, ClientAuth::None, false),
    ("tls 1.3, resumed", "tls", false, ClientAuth::None, true),
    ("tls 1.3, client certificate", "tls", false, ClientAuth::Require, false),
    ("tls 1.3, client certificate, resumed", "tls", false, ClientAuth::Require, true),
    ("wss, tls 1.3", "wss", false, ClientAuth::None, false),
    ("wss, tls 1.3, resumed", "wss", false, ClientAuth::None, true),
];

/// Each kind is measured in a process of its own, so that none lives on memory that another has
/// left.
fn main() {
    if let Some(index) = std::env::args().nth(1) {
        return run(KINDS[index.parse::<usize>().expect("a number")]);
    }
    println!("Stream itself: {} bytes", size_of::<Stream>());
    println!("per idle connection, over {CONNECTIONS} connections:");
    println!("    heap   resident");
    for index in 0..KINDS.len() {
        let program = std::env::current_exe().expect("our own path");
        let status = Command::new(program).arg(index.to_string()).status().expect("a process");
        assert!(status.success());
    }
}

fn run(
    (name, scheme, is_version_12_only, client_auth, is_resuming): (
        &str,
        &str,
        bool,
        ClientAuth,
        bool,
    ),
) {
    let authority = Authority::new();
    authority.issue("server", "localhost", 1);
    authority.issue("client", "sensor-7", 7);
    let (mut listener, url) = listener(&authority, scheme, client_auth);
    let connector = client(&authority, &url, is_version_12_only, is_resuming);
    let (heap, resident) = measure(&mut listener, &connector);
    println!("{heap:>8} {resident:>10}  {name}");
}

/// Bytes of heap at the accepting end, and half of what the whole process grew by, which also
/// counts what the allocator wastes and what the C code of the TLS provider takes. The streams are
/// all that is kept of the connections.
fn measure(listener: &mut Listener, connector: &Connector) -> (i64, i64) {
    let mut servers: Vec<Stream> = Vec::with_capacity(CONNECTIONS);
    let mut clients: Vec<Stream> = Vec::with_capacity(CONNECTIONS);
    let (mut before, mut resident_before) = (0, 0);
    // The first few pay for what all share.
    for index in 0..CONNECTIONS + WARM_UP {
        if index == WARM_UP {
            servers.clear();
            clients.clear();
            before = LIVE.get();
            resident_before = resident_bytes();
        }
        let (server, client) = pair(listener, connector);
        let ((mut server, _), client) = (server.expect("server"), client.expect("client"));
        clients.push(talk(&mut server, client));
        servers.push(server);
    }
    let connections = CONNECTIONS as i64;
    let heap = (LIVE.get() - before) / connections;
    (heap, (resident_bytes() - resident_before) / 2 / connections)
}

/// Linux only; elsewhere 0.
fn resident_bytes() -> i64 {
    const PAGE_BYTES: i64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<i64>().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}

/// A CONNECT's worth of bytes each way, the client on a thread of its own so as not to be counted.
fn talk(server: &mut Stream, (mut client, _): Ready) -> Stream {
    let other = std::thread::spawn(move || {
        write(&mut client, &[1; 60]).expect("write");
        read(&mut client, 4).expect("read");
        client
    });
    read(server, 60).expect("read");
    write(server, &[2; 4]).expect("write");
    other.join().expect("client")
}

fn listener(authority: &Authority, scheme: &str, client_auth: ClientAuth) -> (Listener, String) {
    let mut tls = TlsOptions::new(authority.path("server.pem"), authority.path("server.key"));
    tls.client_auth = client_auth;
    tls.client_ca = Some(authority.path("ca.pem"));
    let tls = Some(Arc::new(TlsContext::load(tls).expect("context")));
    let options = ListenOptions { tls, ..ListenOptions::default() };
    let (listener, address) = listen(&format!("{scheme}://127.0.0.1:0"), &options);
    (listener, format!("{scheme}://{address}"))
}

fn client(
    authority: &Authority,
    url: &str,
    is_version_12_only: bool,
    is_resuming: bool,
) -> Connector {
    let tls = TlsClientOptions {
        ca: Some(authority.path("ca.pem")),
        certificate: Some(authority.path("client.pem")),
        key: Some(authority.path("client.key")),
        is_version_12_only,
        sessions_max: if is_resuming { 256 } else { 0 },
        ..TlsClientOptions::default()
    };
    let options = ConnectOptions {
        tls: Some(TlsClientContext::load(&tls).expect("context")),
        server_name: Some("localhost".to_owned()),
        ..ConnectOptions::default()
    };
    connector(url, &options)
}

const WARM_UP: usize = 8;

/// Counts what the current thread has allocated and not freed.
struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: everything is passed to the system's allocator unchanged; counting neither allocates nor
// panics, since the counter needs no initialisation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get() + layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
