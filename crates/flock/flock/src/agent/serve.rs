//! The agent's side: waits for a commander, carries out what it says.

use std::io::{self, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::wire::{
    FromAgent, GREETING_MAX, Offer, ToAgent, check_greeting, greet, notice_silence, receive, send,
};
use crate::engine::clock::{Clock, monotonic_ns};
use crate::engine::contention::Watch;
use crate::engine::host;
use crate::engine::judge::Part;
use crate::engine::plan::Plan;
use crate::engine::pool::{LocalPool, Pool, PoolOrder};
use crate::engine::preflight;
use flock_measure::Contention;

/// Listens on `address` (`host:port`, port 0 for any) and serves commanders one after another; with
/// `once`, only the first. Prints `listening HOST:PORT` when ready.
pub fn serve(address: &str, once: bool) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let mut out = io::stdout();
    writeln!(out, "listening {}", listener.local_addr()?)?;
    out.flush()?;
    loop {
        let (stream, _) = listener.accept()?;
        if let Err(error) = attend(&stream) {
            crate::cli::say::note!("flock agent: connection to the commander lost: {error}");
        }
        if once {
            return Ok(());
        }
    }
}

/// One commander's visit.
fn attend(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    notice_silence(stream)?;
    let out = Out(Arc::new(Mutex::new(stream.try_clone()?)));
    stream.set_read_timeout(Some(GREETING_MAX))?;
    greet(&mut stream.try_clone()?)?;
    check_greeting(&mut stream.try_clone()?).map_err(io::Error::other)?;
    stream.set_read_timeout(None)?;
    let boot_id = host::sysctl("kernel.random.boot_id").unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let machine = Box::new(host::machine());
    out.send(&FromAgent::Hello { version, machine, boot_id })?;
    let orders = read_in_background(stream.try_clone()?, out.clone());
    let mut offer = None;
    // Before the run: one question at a time.
    while let Ok(message) = orders.recv() {
        match message? {
            ToAgent::Offer(package) => {
                let answer = consider(&package);
                offer = matches!(answer, FromAgent::Accepted { .. }).then_some(package);
                out.send(&answer)?;
            }
            ToAgent::Start { epoch_ns, wall_ns } => {
                let Some(package) = offer.take() else {
                    return Err(io::Error::other("start without a work package"));
                };
                let pool = start(&package, Clock::from_epoch(epoch_ns, wall_ns))?;
                let brokers = package.scenario.brokers.iter().flat_map(|one| &one.addresses);
                let machine = Watch::new(&brokers.cloned().collect::<Vec<_>>());
                out.send(&FromAgent::Started)?;
                return carry_out(pool, machine, &orders, &out);
            }
            ToAgent::Ping { .. } | ToAgent::Order(_) | ToAgent::Finish | ToAgent::Judge(_) => {
                return Err(io::Error::other("command ahead of the start"));
            }
        }
    }
    Ok(())
}

fn consider(package: &Offer) -> FromAgent {
    match preflight::check(&package.scenario) {
        Err(refusal) => FromAgent::Refused { why: refusal.to_string() },
        Ok(found) if found.processes > 1 => FromAgent::Refused {
            why: format!(
                "the limit of open files is too low: {} processes are needed (use more agents)",
                found.processes
            ),
        },
        Ok(_) => FromAgent::Accepted {
            clients: package.scenario.groups.iter().map(|group| group.here.count).sum(),
            threads: package.threads.unwrap_or_else(host::cores).max(1),
        },
    }
}

fn start(package: &Offer, clock: Clock) -> io::Result<LocalPool> {
    let found = preflight::check(&package.scenario).map_err(io::Error::other)?;
    let plan = Plan::new(package.scenario.clone()).map_err(io::Error::other)?;
    let threads = package.threads.unwrap_or_else(host::cores).max(1);
    LocalPool::start(&Arc::clone(&plan), clock, package.tag, &found.sources, threads)
}

type Orders = Receiver<io::Result<ToAgent>>;

/// The way to the commander, one message at a time.
#[derive(Clone)]
struct Out(Arc<Mutex<TcpStream>>);

impl Out {
    fn send(&self, message: &FromAgent) -> io::Result<()> {
        send(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), message)
    }
}

/// Orders are for the run; pings are answered where they come in, so that what they measure is the
/// way and not the work.
fn read_in_background(stream: TcpStream, out: Out) -> Orders {
    let (to, from) = channel();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        loop {
            let message = receive(&mut stream).transpose();
            let Some(message) = message else { return };
            if let Ok(ToAgent::Ping { sent_ns }) = message {
                // A broken connection shows at the next read.
                let _ = out.send(&FromAgent::Clock { monotonic_ns: monotonic_ns(), sent_ns });
                continue;
            }
            let failed = message.is_err();
            if to.send(message).is_err() || failed {
                return;
            }
        }
    });
    from
}

/// The run itself: orders in, news out, until the judgement is delivered.
fn carry_out(
    mut pool: LocalPool,
    mut machine: Watch,
    orders: &Orders,
    out: &Out,
) -> io::Result<()> {
    loop {
        match orders.try_recv() {
            Ok(message) => match message? {
                ToAgent::Order(order) => {
                    if let PoolOrder::Measure(counting) = order {
                        machine.on(counting);
                    }
                    pool.order(&order);
                }
                ToAgent::Finish => {
                    let (sent, ticks) = pool.finish();
                    out.send(&FromAgent::Sent { sent, ticks })?;
                    return judge_when_told(pool, machine.found(), orders, out);
                }
                ToAgent::Ping { .. }
                | ToAgent::Judge(_)
                | ToAgent::Offer(_)
                | ToAgent::Start { .. } => {}
            },
            Err(TryRecvError::Disconnected) => {
                // The commander died: no load without a master.
                pool.order(&PoolOrder::End);
                return Err(io::Error::other("the connection was closed during a run"));
            }
            Err(TryRecvError::Empty) => {}
        }
        if let Some(news) = pool.next(ORDER_PAUSE) {
            out.send(&FromAgent::News(news))?;
        }
    }
}

/// After the load: waits for what all have sent, and judges what this agent's clients received.
fn judge_when_told(
    mut pool: LocalPool,
    contention: Contention,
    orders: &Orders,
    out: &Out,
) -> io::Result<()> {
    while let Ok(message) = orders.recv() {
        if let ToAgent::Judge(sent) = message? {
            let part = Part { contention, ..pool.judge(&sent) };
            return out.send(&FromAgent::Part(Box::new(part)));
        }
    }
    Err(io::Error::other("the connection was closed ahead of the evaluation"))
}

/// How late an order may be noticed while nothing happens.
const ORDER_PAUSE: Duration = Duration::from_millis(2);
