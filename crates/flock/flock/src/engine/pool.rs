//! Who carries out a run: the load threads of this process, or agents elsewhere. The conductor
//! sees no difference.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use client::{Endpoint, Route, TlsOptions};
use mio::Waker;
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::context::Setting;
use super::host;
use super::judge::{self, Part};
use super::plan::Plan;
use super::tally::Tick;
use super::worker::{Harvest, News, Order, Standing, Worker};
use flock_measure::AgentInfo;
use flock_measure::ledger::SentTable;
use flock_model::{Broker, GroupId, Rate, TlsVersion, Transport};

/// Those who carry out a run.
pub trait Pool {
    /// Tells everybody.
    fn order(&mut self, order: &PoolOrder);
    /// What happened next, if anything does within `timeout`.
    fn next(&mut self, timeout: Duration) -> Option<PoolNews>;
    /// Load threads at work, over all processes.
    fn threads(&self) -> usize;
    /// Stops the load and gathers what was sent. Ticks still under way come back with it.
    fn finish(&mut self) -> (SentTable, Vec<Tick>);
    /// Judges everybody's receipts against what everybody sent.
    fn judge(&mut self, sent: &SentTable) -> Part;
    /// For the report; empty for a pool of this process.
    fn agents(&self) -> Vec<AgentInfo> {
        Vec::new()
    }
}

/// What the conductor wants done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PoolOrder {
    /// Start stage `stage` at `at_ns` of the run's clock, with publishers at this pace.
    Begin {
        stage: usize,
        at_ns: u64,
        /// When it is to end, if it has a length.
        end_ns: Option<u64>,
        pace: StagePace,
    },
    End,
    Cut {
        group: GroupId,
        share: f64,
    },
    Measure(Counting),
    /// Answered by one [`PoolNews::Standing`] per thread.
    Probe,
}

/// Whether latencies count for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Counting {
    #[default]
    No,
    /// They do not, and what is due meanwhile never will, whenever it arrives.
    Warming,
    Yes,
}

/// How fast publishers are to be in a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum StagePace {
    /// As the scenario says.
    #[default]
    Own,
    /// So many times as fast as it says.
    Times(f64),
    /// Each at this rate.
    Each(Rate),
}

impl StagePace {
    /// The rate of a publish command in the stage, given its own.
    pub fn of(self, own: Option<Rate>) -> Option<Rate> {
        match self {
            Self::Own => own,
            Self::Times(factor) => own.map(|rate| rate.times(factor)),
            Self::Each(rate) => Some(rate),
        }
    }
}

/// What the conductor is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum PoolNews {
    /// One more thread is through with the stage.
    StageDone {
        stage: usize,
    },
    Tick(Box<Tick>),
    Standing(Standing),
    /// So many threads are gone, and with them their part of the result.
    Lost {
        threads: usize,
        why: String,
    },
}

/// The load threads of this process.
pub struct LocalPool {
    plan: Arc<Plan>,
    threads: Vec<Thread>,
    news: Receiver<News>,
    harvests: Vec<Harvest>,
}

struct Thread {
    orders: Sender<Order>,
    waker: Arc<Waker>,
    handle: Option<JoinHandle<Harvest>>,
}

impl LocalPool {
    /// Starts `threads` load threads, which wait for orders.
    pub fn start(
        plan: &Arc<Plan>,
        clock: Clock,
        tag: u16,
        sources: &[IpAddr],
        threads: usize,
    ) -> io::Result<Self> {
        let clients: u64 = plan.scenario.groups.iter().map(|group| group.here.count).sum();
        // Beyond the limit there is no room to be had; the preflight has judged that.
        let _ = host::reserve_descriptors(clients + DESCRIPTORS_OWN);
        let routes = Arc::new(routes(plan)?);
        let sources = Arc::new(sources.to_vec());
        let (news_out, news) = channel();
        let mut started = Vec::new();
        for n in 0..threads {
            let (orders, orders_in) = channel();
            let setting = Setting {
                plan: Arc::clone(plan),
                clock,
                tag,
                routes: Arc::clone(&routes),
                sources: Arc::clone(&sources),
            };
            let share = (n as u64, threads as u64);
            let (worker, waker) = Worker::new(setting, share, orders_in, news_out.clone())?;
            let handle = std::thread::Builder::new()
                .name(format!("load-{n}"))
                .spawn(move || worker.run())?;
            started.push(Thread { orders, waker, handle: Some(handle) });
        }
        Ok(Self { plan: Arc::clone(plan), threads: started, news, harvests: Vec::new() })
    }

    fn send(&self, order: &Order) {
        for thread in &self.threads {
            // A thread that is gone has said so, or will be found out when it is joined.
            let _ = thread.orders.send(order.clone());
            let _ = thread.waker.wake();
        }
    }
}

impl Pool for LocalPool {
    fn order(&mut self, order: &PoolOrder) {
        self.send(&match order.clone() {
            PoolOrder::Begin { stage, at_ns, end_ns, pace } => {
                Order::Begin { stage, at_ns, end_ns, pace }
            }
            PoolOrder::End => Order::End,
            PoolOrder::Cut { group, share } => Order::Cut { group, share },
            PoolOrder::Measure(counting) => Order::Measure(counting),
            PoolOrder::Probe => Order::Probe,
        });
    }

    fn next(&mut self, timeout: Duration) -> Option<PoolNews> {
        match self.news.recv_timeout(timeout) {
            Ok(news) => Some(as_crew_news(news)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn finish(&mut self) -> (SentTable, Vec<Tick>) {
        self.send(&Order::Finish);
        let mut sent = SentTable::default();
        for thread in &mut self.threads {
            if let Some(Ok(mut harvest)) = thread.handle.take().map(JoinHandle::join) {
                sent.merge(std::mem::take(&mut harvest.sent));
                self.harvests.push(harvest);
            }
        }
        sent.sort();
        let ticks = self.news.try_iter().filter_map(|news| match news {
            News::Tick(tick) => Some(*tick),
            _ => None,
        });
        (sent, ticks.collect())
    }

    fn judge(&mut self, sent: &SentTable) -> Part {
        judge::judge_part(&self.plan, &self.harvests, sent)
    }
}

fn as_crew_news(news: News) -> PoolNews {
    match news {
        News::StageDone(stage) => PoolNews::StageDone { stage },
        News::Tick(tick) => PoolNews::Tick(tick),
        News::Standing(standing) => PoolNews::Standing(standing),
        News::Died(why) => PoolNews::Lost { threads: 1, why },
    }
}

/// Every broker's addresses made ready: names resolved, certificates loaded.
fn routes(plan: &Plan) -> io::Result<Vec<Vec<Route>>> {
    let mut routes = Vec::new();
    let mut known: BTreeMap<String, Route> = BTreeMap::new();
    for broker in &plan.scenario.brokers {
        let mut of_broker = Vec::new();
        for address in &broker.addresses {
            let endpoint = endpoint(broker, address);
            let key = format!("{endpoint:?}");
            let route = match known.get(&key) {
                Some(route) => route.clone(),
                None => endpoint.prepare().map_err(|error| {
                    io::Error::new(error.kind(), format!("broker `{address}`: {error}"))
                })?,
            };
            known.insert(key, route.clone());
            of_broker.push(route);
        }
        routes.push(of_broker);
    }
    Ok(routes)
}

/// A broker's address as the client crate wants it.
pub fn endpoint(broker: &Broker, address: &str) -> Endpoint {
    let url = match &broker.transport {
        Transport::Tcp => format!("tcp://{address}"),
        Transport::Tls => format!("tls://{address}"),
        Transport::Ws { path } => format!("ws://{address}{path}"),
        Transport::Wss { path } => format!("wss://{address}{path}"),
        Transport::Unix => format!("unix://{address}"),
    };
    let tls = TlsOptions {
        ca_file: broker.tls.ca_file.clone(),
        insecure: broker.tls.insecure,
        cert_file: broker.tls.cert_file.clone(),
        key_file: broker.tls.key_file.clone(),
        server_name: broker.tls.server_name.clone(),
        resume: broker.tls.resume,
        version: broker.tls.version.map(|version| match version {
            TlsVersion::V12 => client::TlsVersion::V12,
            TlsVersion::V13 => client::TlsVersion::V13,
        }),
        ciphers: broker.tls.ciphers.clone(),
    };
    Endpoint { url, tls, source: None }
}

/// Open files that are no connections, roughly: polls, timers, libraries.
const DESCRIPTORS_OWN: u64 = 100;
