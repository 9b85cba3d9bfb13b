//! What a stream costs above the system calls: 64 bytes written at one end of a loopback connection
//! and read at the other, on one thread.
//!
//! ```text
//! cargo bench -p net
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
    ConnectOptions, ListenOptions, Read, TlsClientContext, TlsClientOptions, TlsContext, TlsOptions,
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
    let authority = Authority::new();
    authority.issue("server", "localhost", 1);
    let tls = TlsOptions::new(authority.path("server.pem"), authority.path("server.key"));
    let tls = Some(Arc::new(TlsContext::load(tls).expect("context")));
    let options = ListenOptions { tls, ..ListenOptions::default() };
    let (mut listener, address) = listen(&format!("{scheme}://127.0.0.1:0"), &options);
    let ca = Some(authority.path("ca.pem"));
    let tls = TlsClientOptions { ca, ..TlsClientOptions::default() };
    let options = ConnectOptions {
        tls: Some(TlsClientContext::load(&tls).expect("context")),
        server_name: Some("localhost".to_owned()),
        ..ConnectOptions::default()
    };
    let connector = connector(&format!("{scheme}://{address}"), &options);
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

const SCRATCH_BYTES: usize = 64 * 1024;

criterion_group!(benches, streams);
criterion_main!(benches);
