//! The thread that makes this process a node: it carries out what [`cluster::Node`] wants done,
//! with the engine and the local copies.
//!
//! One loop on one thread with a runtime of its own. Workers wait only for [`Acting::wait`].

mod handle;

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use broker::ShardId;
use cluster::{
    Answer, Cursor, Effect, LeaseAnswer, Misfit, Node, Peers, Portion, Request, RequestId, Role,
    Sequence,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::acting::{Acting, boot_ms};
use super::changes::{Notifier, Watcher};
use super::claims::{self, CellClaim};
use super::copy::{CopyContext, CopyFault, LocalCopy, PinnedCopy, TakenJournal};
use super::engine::{Engine, Followed, FollowedBy};
use super::files::{Files, NotTaken};
use super::placement::place_leaders;
use super::stream_files::ClusterStreamFiles;
use super::talk::{self, NodeStatus, Question, Said, ShardStatus, SwitchoverAnswer, Talk};
use super::{AbortOnPanic, End, RoleOf};
use data::DataDir;
pub(crate) use handle::{Hear, JournalInput, Member, Order, Owner, RoleNews, Turn};
use handle::{OwnerWatch, Successor};

/// How often it is noted how far the local copies are.
const MARK_INTERVAL: Duration = Duration::from_secs(5);

/// How often a node publishes its status.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Messages of the stream that wait for this thread; the engine is read no faster.
const FOLLOWED_MAX: usize = 256;

/// What the thread is made of.
pub(crate) struct MemberParts {
    pub(crate) settings: cluster::Settings,
    pub(crate) context: CopyContext,
    pub(crate) data: Arc<DataDir>,
    pub(crate) engine: Engine,
    pub(crate) talk: Talk,
    pub(crate) stream_files: Option<ClusterStreamFiles>,
    /// Name, instance, version, address and checksum of the settings.
    pub(crate) facts: NodeStatus,
    pub(crate) is_stopping: Arc<AtomicBool>,
    pub(crate) role_of: RoleOf,
    /// Of a cell of several.
    pub(crate) claim: Option<CellClaim>,
}

/// Starts the thread. `runtime` is the one that the engine was connected on.
///
/// # Errors
///
/// When a local copy cannot be used, or there is no thread.
pub(crate) fn start(
    runtime: tokio::runtime::Runtime,
    parts: MemberParts,
) -> anyhow::Result<(Member, Sender<Turn>, Receiver<Turn>)> {
    let (orders, ordered) = mpsc::unbounded_channel();
    let (turns, turned) = std::sync::mpsc::channel();
    let member = Member {
        acting: Acting::default(),
        successor: Successor::default(),
        notifier: Notifier::default(),
        stream_files: parts.stream_files.clone(),
        streams: Arc::default(),
        counts: Arc::default(),
        orders,
        view: Arc::default(),
        is_stopping: parts.is_stopping.clone(),
        owners: OwnerWatch::default(),
    };
    let mut copies = Vec::new();
    let mut cursors = Vec::new();
    for shard in 0..parts.context.shards {
        let (copy, cursor) = LocalCopy::open(&parts.data, shard, &parts.context)?;
        copies.push(copy);
        cursors.push(cursor);
    }
    let looped = Loop::new(parts, copies, cursors, member.clone(), ordered, turns.clone());
    std::thread::Builder::new().name("cluster".into()).spawn(move || {
        let _guard = AbortOnPanic;
        runtime.block_on(looped.run());
    })?;
    Ok((member, turns, turned))
}

/// A role that was taken over, without the small files yet.
struct Taken {
    epoch: u64,
    journals: Vec<TakenJournal>,
    tries_until: Instant,
    next_try: Instant,
}

impl Taken {
    fn new(epoch: u64, journals: Vec<TakenJournal>) -> Self {
        let now = Instant::now();
        Self { epoch, journals, tries_until: now + TAKE_OVER_MAX, next_try: now }
    }
}

/// An answer of the engine.
enum Heard {
    Stream(RequestId, Answer),
    Lease(RequestId, LeaseAnswer),
}

struct Loop {
    node: Node,
    copies: Vec<LocalCopy>,
    journals: Vec<Option<Hear>>,
    engine: Engine,
    files: Files,
    talk: Talk,
    member: Member,
    data: Arc<DataDir>,
    turns: Sender<Turn>,
    orders: mpsc::UnboundedReceiver<Order>,
    heard: mpsc::UnboundedReceiver<Heard>,
    hear: mpsc::UnboundedSender<Heard>,
    followed: mpsc::Receiver<Followed>,
    follow: mpsc::Sender<Followed>,
    follower: Option<oneshot::Sender<()>>,
    /// How often the stream was followed from somewhere.
    round: u64,
    /// The copy was given up once for what the stream says.
    has_started_over: Vec<bool>,
    /// This node is active, and the start of the broker does not know yet.
    taken: Option<Taken>,
    /// The start of the broker has the journals, and the small files are this node's.
    is_served: bool,
    /// Why this node gives back the role that it cannot fill.
    given_up: Option<String>,
    /// The broker serves clients.
    serves: bool,
    switchover: Option<String>,
    /// What does not change of the status.
    facts: NodeStatus,
    /// Other nodes, as compared with this one.
    peers: Peers,
    started: Instant,
    /// `None`: the role is released, and the process ends without another word of this thread.
    watcher: Option<Watcher>,
    /// Messages that were taken in, and their bytes.
    read: (u64, u64),
    /// The role may have changed since it was looked at.
    is_stale: bool,
    was_acting: bool,
    role_of: RoleOf,
    claim: Option<CellClaim>,
    /// The role was given back or lost, and there is nothing left to do.
    is_over: bool,
    effects: Vec<Effect>,
}

impl Loop {
    fn new(
        parts: MemberParts,
        copies: Vec<LocalCopy>,
        cursors: Vec<Cursor>,
        member: Member,
        orders: mpsc::UnboundedReceiver<Order>,
        turns: Sender<Turn>,
    ) -> Self {
        let MemberParts { settings, data, engine, talk, facts, role_of, claim, .. } = parts;
        let (hear, heard) = mpsc::unbounded_channel();
        let (follow, followed) = mpsc::channel(FOLLOWED_MAX);
        Self {
            node: Node::new(settings, cursors, boot_ms()),
            journals: copies.iter().map(|_| None).collect(),
            follower: None,
            round: 0,
            has_started_over: vec![false; copies.len()],
            taken: None,
            is_served: false,
            given_up: None,
            serves: false,
            switchover: None,
            peers: Peers::new(facts.to_compare()),
            facts,
            started: Instant::now(),
            watcher: Some(Watcher::new(boot_ms())),
            read: (0, 0),
            is_stale: false,
            was_acting: false,
            role_of,
            claim,
            is_over: false,
            copies,
            files: Files::new(engine.clone()),
            engine,
            talk,
            member,
            data,
            turns,
            orders,
            heard,
            hear,
            followed,
            follow,
            effects: Vec::new(),
        }
    }

    async fn run(mut self) {
        let mut mark_at = Instant::now() + MARK_INTERVAL;
        let mut status_at = Instant::now();
        let mut place_at = None;
        loop {
            let files = self.member.stream_files.as_ref();
            let is_waiting = files.is_some_and(|files| !files.is_ready());
            claims::tick(&mut self.node, self.claim.as_ref(), is_waiting);
            self.carry_out().await;
            if self.is_over {
                return;
            }
            if mark_at <= Instant::now() {
                mark_at = Instant::now() + MARK_INTERVAL;
                self.mark();
            }
            if status_at <= Instant::now() {
                status_at = Instant::now() + STATUS_INTERVAL;
                self.publish_status().await;
            }
            place_leaders(self.member.acting.is_held(), &self.engine, &mut place_at);
            let due = self.node.next_deadline().map_or(u64::MAX, |at| at.saturating_sub(boot_ms()));
            // The end of the lease is reported at once.
            let acting_ms = self.member.acting.remaining_ms();
            let due = if acting_ms > 0 { due.min(acting_ms) } else { due };
            let due = Instant::now() + Duration::from_millis(due.min(1000));
            let due = due.min(mark_at).min(status_at);
            let due = self.taken.as_ref().map_or(due, |taken| due.min(taken.next_try));
            tokio::select! {
                biased;
                Some(heard) = self.heard.recv() => self.on_heard(heard),
                Some(order) = self.orders.recv() => self.on_order(order).await,
                Some(followed) = self.followed.recv() => self.on_followed(followed),
                Some(said) = self.talk.next() => self.on_said(said).await,
                () = tokio::time::sleep_until(due) => {}
            }
            // What else is there shares the effects, and the commits a message.
            for _ in 0..EVENTS_PER_TURN {
                if let Ok(order) = self.orders.try_recv() {
                    // Another order may take so long that the lease has to be looked at behind it.
                    let is_last = !matches!(order, Order::Submit(..));
                    self.on_order(order).await;
                    if is_last {
                        break;
                    }
                } else if let Ok(heard) = self.heard.try_recv() {
                    self.on_heard(heard);
                } else if let Ok(followed) = self.followed.try_recv() {
                    self.on_followed(followed);
                } else {
                    break;
                }
            }
        }
    }

    fn on_heard(&mut self, heard: Heard) {
        let now_ms = boot_ms();
        match heard {
            Heard::Stream(id, answer) => self.node.on_answer(id, answer, now_ms),
            Heard::Lease(id, answer) => self.node.on_lease_answer(id, answer, now_ms),
        }
    }

    fn on_followed(&mut self, followed: Followed) {
        let Followed { round, sequence, body } = followed;
        // After a start over, messages of before may still be queued.
        if round == self.round {
            self.read = (self.read.0 + 1, self.read.1 + body.len() as u64);
            self.node.on_message(sequence, &body, boot_ms());
            self.apply_effects();
        }
    }

    async fn on_order(&mut self, order: Order) {
        match order {
            Order::Submit(shard, command, live_bytes) => {
                self.node.submit(shard, command, live_bytes, boot_ms());
            }
            Order::Attach(shard, hear) => self.journals[usize::from(shard)] = Some(hear),
            Order::Release(successor) => self.node.release(successor),
            Order::PutFile(put) => self.files.put(put).await,
            // Who asked may have given up; then the unpinning follows.
            Order::Pin(answer) => drop(answer.send(self.pin().await)),
            Order::Unpin(answer) => drop(answer.send(self.unpin())),
            Order::Serving => self.serves = true,
        }
    }

    async fn pin(&mut self) -> io::Result<Vec<PinnedCopy>> {
        // No cursor may be ahead of its files.
        self.apply_effects();
        let mut pinned = Vec::new();
        for (shard, copy) in self.copies.iter_mut().enumerate() {
            pinned.push(copy.pin(self.node.cursor(shard as ShardId))?);
        }
        // Behind the journals: none speaks of a namespace that has no name yet. A node that serves
        // has written its own.
        if !self.is_served {
            self.files.refresh(self.data.path()).await?;
        }
        Ok(pinned)
    }

    fn unpin(&mut self) -> bool {
        let mut stayed = true;
        for copy in &mut self.copies {
            match copy.unpin() {
                Ok(copy_stayed) => stayed &= copy_stayed,
                Err(error) => tracing::warn!(%error, "cannot remove an old segment"),
            }
        }
        stayed
    }

    async fn carry_out(&mut self) {
        self.apply_effects();
        self.member.acting.set(self.node.acting_until_ms());
        self.note_changes();
        if let Some(taken) = self.taken.take_if(|taken| taken.next_try <= Instant::now()) {
            self.take_over_files(taken).await;
        }
    }

    /// A role that cannot be filled is not kept: another node may be able to.
    async fn take_over_files(&mut self, mut taken: Taken) {
        match self.files.take_over(taken.epoch, self.data.path()).await {
            Ok(()) => {
                self.is_served = true;
                let Taken { epoch, journals, .. } = taken;
                let _ = self.turns.send(Turn::Active { epoch, journals });
            }
            Err(NotTaken::Engine(error)) if Instant::now() < taken.tries_until => {
                tracing::warn!(%error, "cannot read the shared files of the cluster, retrying");
                taken.next_try = Instant::now() + TAKE_OVER_INTERVAL;
                self.taken = Some(taken);
            }
            Err(NotTaken::Engine(error)) => {
                self.give_up(format!("cannot read the files from the engine: {error}"));
            }
            Err(NotTaken::Here(why)) => self.give_up(why),
        }
    }

    /// Others need not wait until the lease runs out. Without the engine it does.
    fn give_up(&mut self, why: String) {
        self.given_up = Some(why);
        self.node.release(None);
    }

    fn apply_effects(&mut self) {
        loop {
            let mut effects = std::mem::take(&mut self.effects);
            self.node.take_effects(&mut effects);
            if effects.is_empty() {
                self.effects = effects;
                return;
            }
            for effect in effects.drain(..) {
                self.apply(effect);
            }
            self.effects = effects;
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Ask(id, request) => {
                let (engine, hear) = (self.engine.clone(), self.hear.clone());
                let counts = self.member.counts.clone();
                tokio::spawn(async move {
                    let is_append = matches!(request, Request::Append { .. });
                    let answer = engine.ask(request).await;
                    if is_append && matches!(answer, Answer::Unknown(_)) {
                        counts.note_unknown_append();
                    }
                    let _ = hear.send(Heard::Stream(id, answer));
                });
            }
            Effect::AskLease(id, request) => {
                let (engine, hear) = (self.engine.clone(), self.hear.clone());
                tokio::spawn(async move {
                    let answer = engine.ask_lease(request).await;
                    let _ = hear.send(Heard::Lease(id, answer));
                });
            }
            Effect::Follow(from) => self.follow(from),
            Effect::Unfollow => self.follower = None,
            Effect::StartOver(shard) => {
                tracing::warn!(
                    shard,
                    "the stream begins after the end of the local copy: rebuilding the copy from the stream"
                );
                let started = self.copies[usize::from(shard)].start_over();
                self.note_local(started);
            }
            Effect::NewWriter(shard, _) => self.copies[usize::from(shard)].on_new_writer(),
            Effect::Apply(_, portion) => self.apply_portion(&portion),
            Effect::Store(_, portion) => {
                let stored = self.copies[usize::from(portion.shard)].store(&portion);
                self.note_local(stored);
            }
            Effect::Background(shard, command) => {
                let completion = self.copies[usize::from(shard)].carry_out(command);
                self.hand_over(shard, JournalInput::Done(completion));
            }
            Effect::Done(shard, done) => self.hand_over(shard, JournalInput::Done(done)),
            Effect::Renew(shard, segment) => self.hand_over(shard, JournalInput::Renew(segment)),
            Effect::Role(role) => self.on_role(role),
        }
    }

    fn follow(&mut self, from: Sequence) {
        let (stop, stopped) = oneshot::channel();
        self.follower = Some(stop);
        self.round += 1;
        let (engine, round, to) = (self.engine.clone(), self.round, self.follow.clone());
        let stream = engine.names().stream();
        tokio::spawn(async move {
            tokio::select! {
                () = engine.follow(from, FollowedBy { stream, over_gaps: None, round, to }) => {}
                _ = stopped => {}
            }
        });
    }

    fn apply_portion(&mut self, portion: &Portion) {
        let shard = portion.shard;
        match self.copies[usize::from(shard)].apply(portion) {
            Ok(None) => {}
            Ok(Some(oldest)) => self.node.forget_segments_below(shard, oldest),
            Err(CopyFault::Files(error)) => self.note_local(Err(error)),
            // A copy that was there before may be at fault; a second time it is the stream.
            Err(fault) if !self.has_started_over[usize::from(shard)] => {
                self.has_started_over[usize::from(shard)] = true;
                tracing::warn!(shard, %fault, "rebuilding the local copy from the stream");
                self.node.start_over(shard);
            }
            Err(fault) => self.node.on_refused(shard, &fault.to_string()),
        }
    }

    fn note_local(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.node.on_local_fault(&error.to_string());
        }
    }

    fn hand_over(&self, shard: ShardId, input: JournalInput) {
        if let Some(hear) = &self.journals[usize::from(shard)] {
            hear(input);
        }
    }

    fn on_role(&mut self, role: Role) {
        self.is_stale = true;
        match role {
            Role::Standby | Role::Claiming { .. } => {}
            Role::Active { epoch } => {
                self.member.counts.note_takeover();
                let journals: Result<_, _> = self.copies.iter_mut().map(LocalCopy::take).collect();
                match journals {
                    Ok(journals) => self.taken = Some(Taken::new(epoch, journals)),
                    Err(error) => self.give_up(format!("{error:#}")),
                }
            }
            Role::Released => {
                self.mark();
                if let Some(why) = self.given_up.take() {
                    return self.on_role(Role::Ended(why));
                }
                self.note_changes();
                self.watcher = None;
                self.is_over = self.role_of.is_cell();
                let _ = self.turns.send(Turn::Released);
            }
            Role::Ended(why) if self.role_of.is_cell() => {
                self.member.acting.lose();
                self.is_over = true;
                let end = if self.is_served { End::Lost(why) } else { End::Failed(why) };
                let _ = self.turns.send(Turn::Ended(end));
            }
            Role::Ended(why) => {
                self.member.acting.set(0);
                // What ends each start at once is not to keep a core busy.
                std::thread::sleep(LIFE_MIN.saturating_sub(self.started.elapsed()));
                if self.member.is_to_end() {
                    tracing::warn!(
                        detail = why,
                        "stopped without the lease: connections closed without DISCONNECT"
                    );
                    super::end(&self.member);
                }
                let end = if self.is_served { End::Lost(why) } else { End::Failed(why) };
                super::begin_again(&end);
            }
        }
    }

    async fn on_said(&mut self, said: Said) {
        match said {
            Said::Status(status) => {
                self.compare(&status);
                let mut view = self.member.view.lock().unwrap_or_else(PoisonError::into_inner);
                view.hear(*status, boot_ms());
            }
            Said::Asked(Question::Status, message) => {
                self.look();
                let status = self.member.status().own;
                self.talk.answer(&message, &status).await;
            }
            Said::Asked(Question::Switchover { to }, message) => {
                if let Some(answer) = self.on_switchover(to) {
                    self.talk.answer(&message, &answer).await;
                }
            }
        }
    }

    /// Tells once of each start of another node what does not fit.
    fn compare(&mut self, status: &NodeStatus) {
        let NodeStatus { node, version, .. } = status;
        for misfit in self.peers.hear(&status.to_compare()) {
            match misfit {
                Misfit::Name => tracing::error!(
                    node,
                    "another node has the same name: change `cluster.node` on one of them"
                ),
                Misfit::Version => {
                    let own = &*self.facts.version;
                    tracing::warn!(node, version, own, "another node has another version");
                }
                Misfit::Config => tracing::warn!(
                    node,
                    "another node has other settings of durability or namespaces: use the same \
                    on all nodes"
                ),
            }
        }
    }

    /// `None`: another node has to answer.
    fn on_switchover(&mut self, to: Option<String>) -> Option<SwitchoverAnswer> {
        let Role::Active { .. } = self.node.role() else { return None };
        let refuse = |detail: String| Some(SwitchoverAnswer { is_accepted: false, detail });
        if let Some(under_way) = &self.switchover {
            return refuse(format!("a switchover to {under_way} is under way"));
        }
        if !self.serves {
            return refuse("this node has just become active; try again".to_owned());
        }
        if !self.member.acting.is_held() {
            return refuse("this node is suspended: its lease was not renewed".to_owned());
        }
        let status = self.member.status();
        let live: Vec<&NodeStatus> = status.live(boot_ms()).collect();
        let chosen = match &to {
            Some(name) if *name == status.own.node => {
                return refuse(format!("'{name}' is active already"));
            }
            Some(name) => live.iter().find(|node| node.node == *name),
            None => live.iter().find(|node| node.can_take_over()),
        };
        let Some(chosen) = chosen else {
            let known: Vec<&str> = live.iter().map(|node| node.node.as_str()).collect();
            return refuse(match to {
                Some(name) => format!("unknown node '{name}'; known nodes: {}", known.join(", ")),
                None => "no standby has caught up; see `quelea cluster status`".to_owned(),
            });
        };
        if !chosen.can_take_over() {
            return refuse(format!("'{}' has not caught up or cannot follow", chosen.node));
        }
        let name = chosen.node.clone();
        tracing::info!(to = name, "switchover: this node stops and the other node takes over");
        self.switchover = Some(name.clone());
        self.member.successor.set(name.clone());
        // The broker stops in order, as on SIGTERM, and then gives the role back.
        if self.role_of.is_cell() {
            let _ = self.turns.send(Turn::Stop);
        } else if let Err(error) = signal_hook::low_level::raise(signal_hook::consts::SIGTERM) {
            return refuse(format!("cannot stop this node: {error}"));
        }
        Some(SwitchoverAnswer { is_accepted: true, detail: name })
    }

    /// How this node is, for all who ask.
    fn look(&self) {
        let role = self.node.role();
        let is_acting = self.node.acting_until_ms() > boot_ms();
        let epoch = match role {
            Role::Active { epoch } | Role::Claiming { epoch } => *epoch,
            _ => self.node.holder().map_or(0, |holder| holder.epoch),
        };
        let shards = self.node.streams().zip(&self.copies).map(|(stream, copy)| ShardStatus {
            last: stream.last,
            bytes: copy.bytes(),
            sent_at_ms: stream.last_sent_at_ms,
            has_caught_up: stream.has_caught_up,
            is_unavailable: stream.fault.is_none() && stream.unavailable.is_some(),
            fault: stream.fault.or(stream.unavailable).unwrap_or_default(),
        });
        let mut view = self.member.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.own = NodeStatus {
            role: talk::word(role, is_acting).to_owned(),
            detail: self.node.unreachable().unwrap_or_default().to_owned(),
            epoch,
            wall_ms: wall_ms(),
            shards: shards.collect(),
            stream_files: self.member.stream_files.as_ref().map(ClusterStreamFiles::status),
            ..self.facts.clone()
        };
        let holder = self.node.holder().filter(|holder| !holder.is_released);
        view.holder = holder.map(|holder| holder.holder.node.clone());
        view.holder_address = holder.map(|holder| holder.holder.address.clone());
        view.end = self.node.streams().find_map(|stream| stream.end).unwrap_or_default();
        (view.read_messages, view.read_bytes) = self.read;
        view.is_engine_connected = self.engine.is_connected();
    }

    /// Whether the lease is held, and the role, are looked at in each turn: what has changed is
    /// reported at once. The rest is reported with the next status.
    fn note_changes(&mut self) {
        if self.role_of.is_cell() && self.node.knows_lease() {
            let owner = self.node.owner(boot_ms());
            self.member.owners.set(owner.map(|owner| (owner.holder.node.clone(), owner.epoch)));
        }
        let is_acting = self.member.acting.is_held();
        let has_turned = std::mem::replace(&mut self.was_acting, is_acting) != is_acting;
        if has_turned && !is_acting && matches!(self.node.role(), Role::Active { .. }) {
            self.member.counts.note_suspension();
        }
        if let Role::Active { epoch } = self.node.role()
            && has_turned
            && is_acting
        {
            self.member.owners.note_lease_back(*epoch);
        }
        if has_turned || std::mem::take(&mut self.is_stale) {
            self.look();
            self.notify_changes();
        }
    }

    fn notify_changes(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let status = self.member.status();
        for change in watcher.look(&status, boot_ms()) {
            self.member.notifier.notify(&change, &status.own.node);
        }
    }

    async fn publish_status(&mut self) {
        self.look();
        self.notify_changes();
        let own = self.member.status().own;
        self.talk.publish_status(&own).await;
    }

    fn mark(&mut self) {
        for (shard, copy) in self.copies.iter_mut().enumerate() {
            copy.mark(self.node.cursor(shard as ShardId));
        }
    }
}

pub(super) fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// A process is not replaced earlier than so long after its start.
const LIFE_MIN: Duration = Duration::from_secs(2);

/// Tries to take over the small files: how often, and until the role is given up.
const TAKE_OVER_INTERVAL: Duration = Duration::from_millis(500);
const TAKE_OVER_MAX: Duration = Duration::from_secs(5);

/// Answers and messages that are taken in before their effects are carried out.
const EVENTS_PER_TURN: usize = 64;
