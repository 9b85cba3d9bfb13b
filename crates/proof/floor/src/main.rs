//! The floor: what the kernel costs when nearly nothing is done between its calls.
//!
//! A relay that makes the socket calls of a broker (receive, send on, acknowledge, fan out) and
//! speaks just enough MQTT, by fixed offsets, that `flock` can drive it: CONNECT, SUBSCRIBE,
//! PUBLISH of QoS 0 and 1, PUBACK, PINGREQ, DISCONNECT, of 3.1.1 and 5. It checks nothing, keeps no
//! session, resends nothing, has no limit but one, and trusts every length that it reads. All
//! clients of a run must speak one version and subscribe with the QoS that is published. `make
//! floor` tells each result of quelea as a multiple of what this costs.
//!
//! Start reading at [`worker::Worker::run`]. One thread per core, each with its own poll. A thread
//! writes to any socket itself, under a short lock, so no thread ever wakes another.

mod routes;
mod wire;
mod worker;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use mio::net::TcpListener;

use routes::Routes;
use worker::{Listening, Worker, place};

fn main() -> anyhow::Result<()> {
    let (address, workers) = arguments().context("usage: floor IP:PORT WORKERS")?;
    let listener = TcpListener::bind(address).with_context(|| format!("cannot bind {address}"))?;
    // With port 0 the kernel chooses, and who started this wants to know.
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let routes = Arc::new(Routes::default());
    let (places, polls): (Vec<_>, Vec<_>) = (0..workers)
        .map(|_| place())
        .collect::<Result<Vec<_>, _>>()
        .context("cannot make a poll")?
        .into_iter()
        .unzip();
    let places = Arc::new(places);
    let mut listening = Some(Listening::new(listener, Arc::clone(&places)));
    let mut threads = Vec::new();
    for (index, poll) in polls.into_iter().enumerate() {
        let worker = Worker::new(Arc::clone(&places[index]), Arc::clone(&routes));
        let listening = listening.take();
        threads.push(thread::spawn(move || worker.run(poll, listening)));
    }
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(())
}

fn arguments() -> Option<(SocketAddr, usize)> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next()?.parse().ok()?;
    let workers = arguments.next()?.parse().ok().filter(|workers| *workers > 0)?;
    Some((address, workers))
}
