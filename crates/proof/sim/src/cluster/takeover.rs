//! The lives of nodes: starts, takeovers, ends.

use broker::{Durability, Shard, ShardId};
use cluster::{Portion, Role};
use driver::Item;
use storage::testing::Crash;
use storage::{Journal, Status};

use super::Cluster;
use crate::node::Node;
use crate::sabotage::Sabotage;
use crate::world::World;

impl Cluster {
    /// A standby takes what a message of the stream holds of a shard.
    pub(crate) fn apply(&mut self, member: usize, portion: &Portion) {
        let shard = portion.shard;
        let (saves, sabotage) = (self.random.chance(20), self.sabotage);
        let Self { members, random, toll, .. } = self;
        let node = &mut members[member];
        let Some(agent) = &mut node.agent else { return };
        let is_claiming = matches!(agent.role(), Role::Claiming { .. });
        if sabotage == Some(Sabotage::MissTail) && is_claiming {
            return;
        }
        let mut is_replayed = || sabotage != Some(Sabotage::SkipRecord) || !random.chance(2);
        let place = usize::from(shard);
        match node.copies[place].apply(portion, &mut is_replayed) {
            Ok(oldest) => {
                if let Some(oldest) = oldest {
                    agent.forget_segments_below(shard, oldest);
                }
                if let Some(cursor) = agent.cursor(shard).filter(|_| saves) {
                    node.copies[place].note(cursor);
                }
            }
            // A copy that was there before may be at fault; a second time it is the stream.
            Err(_) if !node.has_started_over[place] => {
                node.has_started_over[place] = true;
                toll.copies_refused += 1;
                agent.start_over(shard);
            }
            Err(why) => agent.on_refused(shard, &why),
        }
    }
}

impl World {
    /// All nodes start, and one of them comes to serve.
    pub(crate) fn start_cluster(&mut self) -> Result<(), String> {
        let count = self.cluster.as_ref().map_or(0, |cluster| cluster.members.len());
        for member in 0..count {
            self.begin_process(member);
        }
        self.await_open()
    }

    /// Nothing is wrong any more: some node must come to serve, and not much later than one has
    /// read the stream.
    pub(crate) fn await_open(&mut self) -> Result<(), String> {
        let (mut read, mut rounds_without) = (0, 0);
        for _ in 0..READING_ROUNDS_MAX {
            let is_further = self.messages_read() > read;
            rounds_without = if is_further { 0 } else { rounds_without + 1 };
            read = read.max(self.messages_read());
            if rounds_without > OPEN_ROUNDS_MAX {
                break;
            }
            let now_ms = self.now_ms;
            if self.cluster.as_ref().is_none_or(|it| it.open(now_ms).is_some()) {
                return Ok(());
            }
            self.pass_cluster_time(100)?;
            self.work_cluster()?;
            self.look_at_members()?;
        }
        Err(format!("no node comes to serve: {}", self.standing()))
    }

    /// Of all shards, by the nodes as they are.
    fn messages_read(&self) -> u64 {
        let members = self.cluster.iter().flat_map(|cluster| &cluster.members);
        let streams =
            members.filter_map(|member| member.agent.as_ref()).flat_map(|it| it.streams());
        streams.map(|stream| stream.last).sum()
    }

    /// What each node is, for a failure.
    pub(crate) fn standing(&self) -> String {
        let Some(cluster) = &self.cluster else { return String::new() };
        let mut lines = Vec::new();
        for (number, member) in cluster.members.iter().enumerate() {
            let Some(agent) = &member.agent else {
                lines.push(format!("node {number} is down"));
                continue;
            };
            let (role, streams) = (agent.role(), agent.streams().collect::<Vec<_>>());
            let journals: Vec<Option<Status>> = match cluster.current == number {
                true => self.node.shards().map(Shard::journal_status).collect(),
                false => member.broker.shards().map(Shard::journal_status).collect(),
            };
            lines.push(format!("node {number}: {role:?}, {streams:?}, {journals:?}"));
        }
        lines.join("; ")
    }

    pub(crate) fn begin_process(&mut self, member: usize) {
        let now_ms = self.now_ms;
        self.note(|| format!("node {member} starts"));
        let Some(cluster) = &mut self.cluster else { return };
        let (record, sabotage) = (cluster.record(), cluster.sabotage);
        match cluster.members[member].begin(now_ms, &record, sabotage) {
            Ok(()) => self.carry_out(member),
            Err(why) => self.on_refused_start(member, why),
        }
    }

    /// A process is gone, and its connections. `crash`: what becomes of its files.
    pub(crate) fn end_process(
        &mut self,
        member: usize,
        crash: Option<Crash>,
    ) -> Result<(), String> {
        self.cut_connections_of(member)?;
        let (shards, seed) = (self.node.shard_count(), self.random.next());
        let idle = Node::new(&self.settings, shards, seed, &self.access(), &self.clock);
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        cluster.engine.forget(member);
        cluster.members[member].end(idle);
        if cluster.current == member {
            std::mem::swap(&mut self.node, &mut cluster.members[member].broker);
        }
        if let Some(crash) = crash {
            cluster.members[member].copies.iter_mut().for_each(|copy| copy.crash(crash));
        }
        Ok(())
    }

    /// What was on its way to the clients still comes, in part.
    fn cut_connections_of(&mut self, member: usize) -> Result<(), String> {
        for who in 0..self.clients.len() {
            if self.clients[who].wire.as_ref().is_some_and(|wire| wire.member == member) {
                self.lose_process(who)?;
            }
        }
        Ok(())
    }

    /// Roles that changed, journals that are ready, what is over.
    pub(crate) fn look_at_members(&mut self) -> Result<(), String> {
        self.look_at_oddities()?;
        self.compare_members()?;
        self.look_at_programs()?;
        let count = self.cluster.as_ref().map_or(0, |cluster| cluster.members.len());
        for number in 0..count {
            let Some(cluster) = &mut self.cluster else { return Ok(()) };
            let role = cluster.members[number].new_role.take();
            match role {
                Some(Role::Active { epoch }) => self.take_file_over(number, epoch),
                Some(Role::Ended(_)) => self.lose_role(number)?,
                Some(Role::Released) => {
                    if let Some(cluster) = &mut self.cluster
                        && cluster.members[number].has_journals
                    {
                        cluster.has_closed = cluster.serving == Some(number);
                    }
                    self.end_process(number, None)?;
                    self.begin_process(number);
                }
                Some(Role::Standby | Role::Claiming { .. }) | None => {}
            }
            if self.look_at_file(number) {
                self.open_journals(number)?;
            }
            self.look_at_journal(number)?;
            self.look_at_exit(number)?;
            self.fall_silent(number);
            self.leave(number)?;
            self.end_of_calamity(number)?;
        }
        Ok(())
    }

    fn lose_role(&mut self, member: usize) -> Result<(), String> {
        if let Some(cluster) = &mut self.cluster {
            cluster.toll.roles_lost += 1;
        }
        self.end_process(member, None)?;
        self.begin_process(member);
        Ok(())
    }

    /// A node has the stream to itself: it reads its copies, and a broker begins.
    fn open_journals(&mut self, member: usize) -> Result<(), String> {
        self.switch_to(member);
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let before = cluster.serving.replace(member);
        match before {
            Some(before) if before != member => cluster.toll.takeovers += 1,
            Some(_) => cluster.toll.returns += 1,
            None => {}
        }
        let has_closed = std::mem::take(&mut cluster.has_closed);
        let took_less = std::mem::replace(&mut cluster.may_have_refused, cluster.plan.fills);
        self.note(|| format!("node {member} opens the logs"));
        self.forget_node_before(member, has_closed, took_less);
        let shards = self.node.shard_count();
        self.new_node(shards);
        for shard in 0..shards {
            self.open_journal_of_copy(member, shard)?;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.members[member].has_journals = true;
        }
        self.begin_drivers()
    }

    /// Whoever served before does so no longer: what it had not committed may be gone.
    /// `took_less`: its journals may have refused something.
    fn forget_node_before(&mut self, member: usize, has_closed: bool, took_less: bool) {
        let kept = if has_closed { Durability::Disk } else { Durability::Fsync };
        self.oracle.on_crash(kept, has_closed, |_| true);
        let now_ms = self.now_ms;
        let is_written = has_closed && !took_less;
        for client in &mut self.clients {
            if !is_written {
                client.fate.forget_connections(took_less);
            }
            if client.wire.as_ref().is_some_and(|wire| wire.member != member) {
                client.fate.on_orphaned(is_written, now_ms);
            }
        }
    }

    fn open_journal_of_copy(&mut self, member: usize, shard: ShardId) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let taken = cluster.members[member].copies[usize::from(shard)].take();
        let (recovered, replay) =
            taken.map_err(|why| format!("node {member}, shard {shard}: {why}"))?;
        let settings = cluster.members[member].setup.journal(cluster.settings.segment_bytes);
        self.open_journal(shard, recovered, settings, replay, self.now_ms)
    }

    /// Are the journals of a node that opened them ready to be written?
    fn look_at_journal(&mut self, number: usize) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let is_acting = cluster.is_acting(number, now_ms);
        let is_serving = cluster.serving == Some(number);
        let node = &mut cluster.members[number];
        if !node.is_running() || !node.has_journals {
            return Ok(());
        }
        if node.is_ready && is_serving && is_acting != node.was_acting {
            cluster.toll.suspensions += u64::from(is_acting);
            node.was_acting = is_acting;
        }
        self.switch_to(number);
        if self.is_current_poisoned() {
            return Err(format!("a log is out of service: {}", self.standing()));
        }
        let is_ready =
            self.node.shards().all(|shard| shard.journal().is_none_or(Journal::is_ready));
        let is_full = self.has_full_journal();
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        cluster.toll.full_journals += u64::from(is_full);
        let node = &mut cluster.members[number];
        if node.is_ready || !is_ready || !is_acting || !is_serving {
            return Ok(());
        }
        (node.is_ready, node.was_acting) = (true, true);
        for client in &mut self.clients {
            client.fate.on_restart(now_ms);
        }
        self.oracle.on_will_start();
        self.node.sabotage = self.options.sabotage;
        self.note(|| format!("node {number} serves"));
        self.note_served(number);
        Ok(())
    }

    /// Who was asked to give its role back closes its journals, and then does.
    fn leave(&mut self, number: usize) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let node = &cluster.members[number];
        let Some(successor) = node.leaving.clone() else { return Ok(()) };
        if !node.is_running() || !node.is_ready {
            return Ok(());
        }
        let has_shut_down = node.has_shut_down;
        self.switch_to(number);
        if !has_shut_down {
            self.note(|| format!("node {number} is leaving, to {successor:?}"));
            self.node.put_to_all(|| Item::Shutdown);
            self.turn_all()?;
        }
        if self.node.mail.is_empty() {
            self.node.put_to_all(|| Item::CloseJournals);
            self.turn_all()?;
        }
        let closed = Some(Status::Closed);
        let is_closed = self.node.shards().all(|shard| shard.journal_status() == closed);
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let node = &mut cluster.members[number];
        node.has_shut_down = true;
        if is_closed && let Some(agent) = &mut node.agent {
            agent.release(successor);
            self.carry_out(number);
        }
        Ok(())
    }
}

/// Tenths of a second in which the streams have to be read.
const READING_ROUNDS_MAX: usize = 30_000;

/// Tenths of a second without a message read within which somebody has to serve when nothing is
/// wrong.
const OPEN_ROUNDS_MAX: usize = 300;
