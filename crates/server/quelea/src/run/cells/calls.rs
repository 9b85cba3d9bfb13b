//! Calls of the API between the nodes of a cluster.
//!
//! Each call is a relay of its own on the [links](super::links): the caller's end is one end of a
//! socket pair, and so is that of the node that answers. So calls are authenticated and encrypted
//! as mail is, and end with the link: a node that is paused is found within its time. A part is its
//! length, then its bytes. The first part of each side is JSON. What an answer that goes on sends
//! follows in further parts.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream as Socket;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use broker::sys::{Figures, Values};
use broker::{Name, Scope, Shared};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use net::Stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use web::axum::body::Bytes;

use super::life::Requests;
use super::links::NodeLinks;
use super::table::Table;
use crate::api::{Api, Asked, Outcome, Problem, Reply, Silent, is_change};
use crate::cluster::{Member, MemberChange, Owner};
use crate::run::limiter::ConnectionLimiter;
use crate::run::mailbox::Item;
use crate::run::worker::Order;
use identity::auth::bans::Lists;

/// How long a cell may take for what changes nothing.
const READ_TIME_MAX: Duration = Duration::from_secs(3);

/// The same for a change: a shard waits up to 10 s for the disks.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(11);

/// How often a node reads what other nodes have.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// How often a node tries before a change of a ban is answered: it may have to find out which node
/// has cell 0.
const FOLLOW_TRIES: u32 = 20;
const FOLLOW_PAUSE: Duration = Duration::from_millis(100);

/// How long the figures of a node count that does not answer.
const FIGURES_KEPT_FOR: Duration = Duration::from_secs(10);

/// The longest part. A page has 1,000 rows at most.
const PART_BYTES_MAX: u32 = 64 << 20;

/// Calls of other nodes that are answered at a time; others wait.
const ANSWERS_MAX: usize = 64;

/// Parts of a stream that wait for its reader.
const PARTS_MAX: usize = 64;

/// The way to all cells of the cluster, and to all nodes.
pub(crate) struct Calls {
    node: String,
    /// All nodes of the cluster.
    members: Mutex<Vec<String>>,
    shared: Arc<Shared>,
    answers: Arc<Answers>,
    links: Arc<NodeLinks>,
    /// The list of bans that the cells know.
    told_bans: AtomicU64,
}

/// What answers calls on this node.
pub(super) struct Answers {
    table: Arc<Table>,
    limiter: Arc<ConnectionLimiter>,
    /// The cells, whatever they are doing here.
    cells: Vec<Arc<Requests>>,
    /// Of the node itself.
    own: OnceLock<Weak<Api>>,
    /// The figures of other nodes for `$SYS`, and when they came.
    figures: Mutex<HashMap<String, (Instant, Values)>>,
}

/// What a node sends first.
#[derive(Serialize, Deserialize)]
struct Question {
    /// None: it is about the node.
    cell: Option<u16>,
    asked: Asked,
}

impl Calls {
    pub(super) fn new(
        (node, members): (&str, Vec<String>),
        shared: &Arc<Shared>,
        answers: &Arc<Answers>,
        links: &Arc<NodeLinks>,
    ) -> Self {
        let (shared, answers, links) = (shared.clone(), answers.clone(), links.clone());
        let (node, told_bans) = (node.to_owned(), AtomicU64::new(0));
        Self { node, members: Mutex::new(members), shared, answers, links, told_bans }
    }

    /// From now on this node answers calls about itself.
    pub(super) fn open(&self, own: &Arc<Api>) {
        // It is set once, by the start.
        let _ = self.answers.own.set(Arc::downgrade(own));
    }

    pub(crate) fn cells(&self) -> u16 {
        self.shared.homes.cells()
    }

    pub(crate) fn shards_of_cell(&self) -> u16 {
        self.shared.homes.shards()
    }

    pub(crate) fn members(&self) -> Vec<String> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The list of nodes has changed.
    pub(super) fn change_member(&self, change: &MemberChange) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        match change {
            MemberChange::Set(member) if members.contains(&member.node) => {}
            MemberChange::Set(member) => members.push(member.node.clone()),
            MemberChange::Removed(node) => members.retain(|own| own != node),
        }
        members.sort_unstable();
    }

    pub(crate) fn own_node(&self) -> &str {
        &self.node
    }

    /// The node that is active for a cell.
    pub(crate) fn node_of(&self, cell: u16) -> Option<String> {
        self.answers.table.node_of(cell)
    }

    pub(crate) fn cell_of_client(&self, client_id: &str) -> u16 {
        self.shared.cell_of_client(client_id)
    }

    pub(crate) fn cell_of_topic(&self, topic: &str) -> u16 {
        let place = self.shared.place_of_topic(Name::new(Scope::FIRST, topic));
        // The homes of a node are those of its cell 0.
        self.shared.homes.cell_at(place).unwrap_or_default()
    }

    /// Each second this node reads what all nodes are to know, on a thread of its own.
    pub(super) fn start(calls: &Arc<Self>) -> io::Result<()> {
        let calls = Arc::downgrade(calls);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let follow = move || {
            runtime.block_on(async move {
                loop {
                    tokio::time::sleep(FOLLOW_EVERY).await;
                    let Some(calls) = calls.upgrade() else { return };
                    calls.read_figures().await;
                    if let Some(api) = calls.answers.api_of(None) {
                        // Nobody subscribes to events of a node without its cells.
                        drop(api.facts.life_cycle.tick(api.facts.clock.now_ms()));
                        // The owner may be about to change: the next second is soon.
                        let _ = api.answer(&Asked::follow_bans()).await;
                    }
                }
            });
        };
        std::thread::Builder::new().name("follow".into()).spawn(follow).map(drop)
    }

    /// Asks a cell, wherever it is active.
    pub(crate) async fn ask(&self, cell: u16, asked: &Asked) -> Result<Outcome, Silent> {
        let node = self.node_of(cell).ok_or(Silent::NoOwner(cell))?;
        self.ask_at(&node, Some(cell), asked).await
    }

    /// Asks a node about itself.
    pub(crate) async fn ask_node(&self, node: &str, asked: &Asked) -> Result<Outcome, Silent> {
        self.ask_at(node, None, asked).await
    }

    async fn ask_at(
        &self,
        node: &str,
        cell: Option<u16>,
        asked: &Asked,
    ) -> Result<Outcome, Silent> {
        let silent = || Silent::Node { node: node.to_owned(), cell };
        let time_max = if is_change(asked) { CHANGE_TIME_MAX } else { READ_TIME_MAX };
        let reply = async {
            if node == self.node {
                return Ok(self.answers.answer(cell, asked).await);
            }
            let question = Question { cell, asked: asked.clone() };
            self.exchange(node, &question).await.map(|(reply, _)| reply)
        };
        match tokio::time::timeout(time_max, reply).await {
            Ok(Ok(Reply::Done(value))) => Ok(Ok(value)),
            Ok(Ok(Reply::Refused(problem))) => Ok(Err(problem.into())),
            Ok(Ok(Reply::NotHere | Reply::Stream) | Err(_)) | Err(_) => Err(silent()),
        }
    }

    /// The same of an answer that goes on.
    pub(crate) async fn ask_stream(
        &self,
        cell: u16,
        asked: &Asked,
    ) -> Result<Result<mpsc::Receiver<Bytes>, Problem>, Silent> {
        let node = self.node_of(cell).ok_or(Silent::NoOwner(cell))?;
        let silent = || Silent::Node { node: node.clone(), cell: Some(cell) };
        let (parts, queue) = mpsc::channel(PARTS_MAX);
        if node == self.node {
            let begun = self.answers.stream(cell, asked).await.ok_or_else(silent)?;
            return Ok(begun.map(|mut body| {
                tokio::spawn(async move {
                    while let Some(Ok(part)) = body.next().await {
                        if parts.send(part).await.is_err() {
                            return;
                        }
                    }
                });
                queue
            }));
        }
        let question = Question { cell: Some(cell), asked: asked.clone() };
        let begun = tokio::time::timeout(READ_TIME_MAX, self.exchange(&node, &question)).await;
        match begun {
            Ok(Ok((Reply::Stream, mut stream))) => {
                tokio::spawn(async move {
                    while let Ok(part) = read_part(&mut stream).await {
                        if parts.send(part.into()).await.is_err() {
                            return;
                        }
                    }
                });
                Ok(Ok(queue))
            }
            Ok(Ok((Reply::Refused(problem), _))) => Ok(Err(problem.into())),
            _ => Err(silent()),
        }
    }

    async fn exchange(&self, node: &str, question: &Question) -> io::Result<(Reply, UnixStream)> {
        let (own, far) = Socket::pair()?;
        self.links.call(node, Stream::of_unix(far)?)?;
        own.set_nonblocking(true)?;
        let mut own = UnixStream::from_std(own)?;
        write_part(&mut own, &serde_json::to_vec(question)?).await?;
        let reply = serde_json::from_slice(&read_part(&mut own).await?)?;
        Ok((reply, own))
    }

    /// Tells the cells of this node who is banned. Connections of those end.
    pub(crate) fn put_bans(&self, listed: &Arc<Lists>) {
        if self.told_bans.swap(listed.serial, Ordering::AcqRel) != listed.serial {
            let bans = || Item::Order(Order::Bans { listed: listed.clone(), ends: true });
            self.answers.table.tell_workers(bans);
        }
    }

    /// Those that do not answer keep theirs for a while.
    async fn read_figures(&self) {
        let asked = &Asked::figures();
        let members = self.members();
        let others = members.iter().filter(|node| **node != self.node);
        join_all(others.map(|node| async move {
            if let Ok(Ok(Some(answer))) = self.ask_node(node, asked).await {
                self.answers.put_values(node, &answer);
            }
        }))
        .await;
    }

    /// The cells with what this node is for each of them, and with the node that has it.
    pub(crate) fn members_of_cells(&self) -> Vec<(Option<Owner>, Option<Member>)> {
        let of_cell = |(cell, requests): (u16, &Arc<Requests>)| {
            (self.answers.table.owner(cell), requests.member())
        };
        (0..).zip(&self.answers.cells).map(of_cell).collect()
    }

    /// All nodes read the bans of cell 0 now. One that does not answer, or does not find that cell
    /// for some seconds, reads them as soon as it does.
    pub(crate) async fn follow_bans(&self) {
        let asked = &Asked::follow_bans();
        let follow = |node| async move {
            for _ in 0..FOLLOW_TRIES {
                match self.ask_node(node, asked).await {
                    Ok(Err(_)) => tokio::time::sleep(FOLLOW_PAUSE).await,
                    Ok(Ok(_)) | Err(_) => return,
                }
            }
        };
        join_all(self.members().iter().map(|node| follow(node))).await;
    }
}

impl Answers {
    pub(super) fn new(
        table: &Arc<Table>,
        limiter: &Arc<ConnectionLimiter>,
        cells: &[Arc<Requests>],
    ) -> Arc<Self> {
        let (table, limiter, cells) = (table.clone(), limiter.clone(), cells.to_vec());
        Arc::new(Self { table, limiter, cells, own: OnceLock::new(), figures: Mutex::default() })
    }

    /// The figures of `$SYS` of the whole cluster. Those of other nodes are about a second old.
    pub(super) fn totals(&self) -> Values {
        let mut sum = self.own_values();
        let others = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = others.values().filter(|(at, _)| at.elapsed() < FIGURES_KEPT_FOR);
        fresh.for_each(|(_, values)| sum.add(values));
        sum
    }

    /// Of this node.
    fn own_values(&self) -> Values {
        let mut sum = Values::named(|_| None);
        // Listeners are of the node, whatever cells it has.
        let mut sockets_opened = self.limiter.accepted();
        for (_, serving) in self.table.all_serving() {
            sum.add(&Values::of(&Figures { shared: &serving.shared, sockets_opened }));
            sockets_opened = 0;
        }
        sum
    }

    fn put_values(&self, node: &str, answer: &Value) {
        let values = Values::named(|name| answer[name].as_u64());
        let mut all = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(node.to_owned(), (Instant::now(), values));
    }

    fn api_of(&self, cell: Option<u16>) -> Option<Arc<Api>> {
        match cell {
            None => self.own.get()?.upgrade(),
            Some(cell) => {
                let serving = self.table.any_serving(cell)?;
                serving.api.filter(|_| serving.acting.is_held())
            }
        }
    }

    async fn answer(&self, cell: Option<u16>, asked: &Asked) -> Reply {
        if asked.is_for_figures() {
            let values: serde_json::Map<String, Value> =
                self.own_values().all().map(|(name, value)| (name.into(), value.into())).collect();
            return Reply::Done(Some(values.into()));
        }
        match self.api_of(cell) {
            Some(api) => api.answer(asked).await.into(),
            None => Reply::NotHere,
        }
    }

    /// None: the cell is not here, or it is no stream.
    async fn stream(
        &self,
        cell: u16,
        asked: &Asked,
    ) -> Option<Result<web::axum::body::BodyDataStream, Problem>> {
        let api = self.api_of(Some(cell))?;
        let response = api.answer_stream(asked).await.transpose()?;
        Some(response.map(|response| response.into_body().into_data_stream()))
    }

    /// Answers calls of other nodes, on a thread of its own, until there can be no more.
    pub(super) fn start(
        self: &Arc<Self>,
        mut arrivals: mpsc::UnboundedReceiver<Stream>,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (answers, places) = (self.clone(), Arc::new(Semaphore::new(ANSWERS_MAX)));
        let serve = move || {
            runtime.block_on(async move {
                while let Some(stream) = arrivals.recv().await {
                    let (answers, places) = (answers.clone(), places.clone());
                    tokio::spawn(async move {
                        let Ok(_place) = places.acquire_owned().await else { return };
                        if let Err(error) = answers.answer_to(stream).await {
                            tracing::debug!(%error, "a call of another node was not answered");
                        }
                    });
                }
            });
        };
        std::thread::Builder::new().name("calls".into()).spawn(serve).map(drop)
    }

    async fn answer_to(&self, stream: Stream) -> io::Result<()> {
        let socket = stream.into_unix().ok_or_else(|| io::Error::other("not a relay"))?;
        let mut stream = UnixStream::from_std(socket)?;
        let question = tokio::time::timeout(READ_TIME_MAX, read_part(&mut stream)).await??;
        let Question { cell, asked } = serde_json::from_slice(&question)?;
        let Some(mut body) = self.stream_of(cell, &asked).await else {
            let reply = self.answer(cell, &asked).await;
            return write_part(&mut stream, &serde_json::to_vec(&reply)?).await;
        };
        let reply = match &mut body {
            Ok(_) => Reply::Stream,
            Err(problem) => Reply::Refused(problem.clone().into()),
        };
        write_part(&mut stream, &serde_json::to_vec(&reply)?).await?;
        let Ok(mut body) = body else { return Ok(()) };
        while let Some(Ok(part)) = body.next().await {
            write_part(&mut stream, &part).await?;
        }
        Ok(())
    }

    async fn stream_of(
        &self,
        cell: Option<u16>,
        asked: &Asked,
    ) -> Option<Result<web::axum::body::BodyDataStream, Problem>> {
        if !asked.is_stream() {
            return None;
        }
        self.stream(cell?, asked).await
    }
}

async fn write_part(stream: &mut UnixStream, part: &[u8]) -> io::Result<()> {
    let length = u32::try_from(part.len()).ok().filter(|length| *length <= PART_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("an answer is too long"))?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(part).await
}

async fn read_part(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u32().await?;
    if length > PART_BYTES_MAX {
        return Err(io::Error::other("an answer is too long"));
    }
    let mut part = Vec::new();
    let read = stream.take(length.into()).read_to_end(&mut part).await?;
    if read < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(part)
}
