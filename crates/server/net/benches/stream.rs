//! What a stream costs above the system calls: 64 bytes written at one end of a loopback connection
//! and read at the other, on one thread.
//!
//! ```text
//! cargo bench -p quelea-net
//! ```

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::io::{IoSlice, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use common::certificates::Authority;
use common::{connector, good_pair, listen};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use net::{
    Connect, ConnectOptions, Connector, ListenOptions, Listener, Progress, Read, TlsClientContext,
    TlsClientOptions, TlsContext, TlsOptions,
};

fn streams(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("write and read 64 bytes");
    raw(&mut group);
    for scheme in ["tcp", "ws", "tls", "wss"] {
        stream(&mut group, scheme);
    }
    group.finish();
}

fn raw(group: &mut BenchmarkGroup<'_, WallTime>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let mut left = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (mut right, _) = listener.accept().expect("accept");
    left.set_nodelay(true).expect("nodelay");
    let mut scratch = vec![0; SCRATCH_BYTES];
    group.bench_function("std", |bencher| {
        bencher.iter(|| {
            left.write_all(black_box(&[7; 64])).expect("write");
            let n = right.read(&mut scratch).expect("read");
            assert_eq!(n, 64);
        });
    });
}

fn stream(group: &mut BenchmarkGroup<'_, WallTime>, scheme: &str) {
    let (mut listener, connector) = ends(scheme, false);
    let ((mut server, _), (mut client, _)) = good_pair(&mut listener, &connector);
    let mut scratch = vec![0; SCRATCH_BYTES];
    group.bench_function(scheme, |bencher| {
        bencher.iter(|| {
            let taken = client.write(&[IoSlice::new(black_box(&[7; 64]))]).expect("write");
            assert_eq!(taken, 64);
            let mut got = 0;
            while got < 64 {
                match server.read(&mut scratch).expect("read") {
                    Read::Bytes(n) => got += n,
                    Read::WouldBlock => {}
                    Read::Closed => panic!("closed"),
                }
            }
        });
    });
}

/// Both ends of a handshake on one thread, from connect to done.
fn handshakes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handshake, both ends");
    for (name, scheme, is_resuming) in
        [("tcp", "tcp", false), ("tls", "tls", false), ("tls resumed", "tls", true)]
    {
        let (listener, connector) = ends(scheme, is_resuming);
        let mut scratch = vec![0; SCRATCH_BYTES];
        group.bench_function(name, |bencher| {
            bencher.iter(|| shake(&listener, &connector, &mut scratch))
        });
    }
    group.finish();
}

fn shake(listener: &Listener, connector: &Connector, scratch: &mut [u8]) {
    let mut client = connector.connect(&Connect::default()).expect("connect");
    let mut server = loop {
        if let Some(handshake) = listener.accept().expect("accept") {
            break handshake;
        }
    };
    let (mut client_done, mut server_done) = (None, None);
    while client_done.is_none() || server_done.is_none() {
        for (handshake, done) in [(&mut client, &mut client_done), (&mut server, &mut server_done)]
        {
            if done.is_none()
                && let Progress::Done(stream, _) = handshake.advance(scratch).expect("handshake")
            {
                *done = Some(stream);
            }
        }
    }
    // Takes the ticket, so that the next handshake can resume.
    let _ = client_done.expect("the client's end").read(scratch).expect("read");
}

fn ends(scheme: &str, is_resuming: bool) -> (Listener, Connector) {
    let authority = Authority::new();
    authority.issue("server", "localhost", 1);
    let tls = TlsOptions::new(authority.path("server.pem"), authority.path("server.key"));
    let tls = Some(Arc::new(TlsContext::load(tls).expect("context")));
    let options = ListenOptions { tls, ..ListenOptions::default() };
    let (listener, address) = listen(&format!("{scheme}://127.0.0.1:0"), &options);
    let ca = Some(authority.path("ca.pem"));
    let sessions_max = if is_resuming { 256 } else { 0 };
    let tls = TlsClientOptions { ca, sessions_max, ..TlsClientOptions::default() };
    let options = ConnectOptions {
        tls: Some(TlsClientContext::load(&tls).expect("context")),
        server_name: Some("localhost".to_owned()),
        ..ConnectOptions::default()
    };
    (listener, connector(&format!("{scheme}://{address}"), &options))
}

const SCRATCH_BYTES: usize = 64 * 1024;

criterion_group!(benches, streams, handshakes);
criterion_main!(benches);
