//! What moves in a cluster: requests, answers, messages of streams, commands of journals, time.

use cluster::{Effect, Role, ShardId};
use driver::Item;
use storage::{Command, Completion, Journal, Outcome, Status};

use super::Cluster;
use super::engine::{Question, Reply};
use crate::sabotage::Sabotage;
use crate::world::World;

impl World {
    /// One step between nodes and engine.
    pub(crate) fn step_cluster(&mut self) -> Result<(), String> {
        match self.random.below(100) {
            0..=29 => self.step_engine(),
            30..=49 => self.deliver_one(),
            50..=69 => self.turn_of_cluster()?,
            70..=95 => self.complete_one_of_cluster()?,
            96 => self.change_file(),
            _ => self.befall()?,
        }
        self.look_at_members()
    }

    /// Whose turn it is, for what no client asks for.
    pub(crate) fn choose_member(&mut self) -> bool {
        let Some(cluster) = &mut self.cluster else { return self.choose_cell() };
        let with_journals =
            |it: &usize| cluster.members[*it].is_running() && cluster.members[*it].has_journals;
        let members: Vec<usize> = (0..cluster.members.len()).filter(with_journals).collect();
        if members.is_empty() {
            return false;
        }
        let member = members[cluster.random.below(members.len())];
        self.switch_to(member);
        true
    }

    fn step_engine(&mut self) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        let Some((asker, id, reply)) = cluster.engine.step(now_ms) else { return };
        if cluster.members[asker.member].asker() == asker {
            self.answer(asker.member, id, reply);
        }
    }

    /// A paused process finds its answers when it wakes up.
    pub(crate) fn answer(&mut self, member: usize, id: cluster::RequestId, reply: Reply) {
        let now_ms = self.now_ms;
        self.note_lease(member, &reply);
        let Some(cluster) = &mut self.cluster else { return };
        let (dialect, sabotage) = (cluster.dialect(member), cluster.sabotage);
        let node = &mut cluster.members[member];
        let now_ms = node.clock.read(now_ms);
        if node.is_paused {
            node.mail.push((id, reply));
            return;
        }
        let reply = dialect.read_reply(reply, sabotage);
        let Some(agent) = &mut node.agent else { return };
        match reply {
            Reply::Stream(answer) => agent.on_answer(id, answer, now_ms),
            Reply::Lease(answer) => agent.on_lease_answer(id, answer, now_ms),
            Reply::File(answer) => self.on_file_answer(member, id, answer),
        }
        self.carry_out(member);
    }

    /// Some follower is delivered the next message of the stream.
    fn deliver_one(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let member = cluster.random.below(cluster.members.len());
        self.deliver(member);
    }

    pub(crate) fn deliver(&mut self, member: usize) -> bool {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return false };
        let (dialect, sabotage) = (cluster.dialect(member), cluster.sabotage);
        let Cluster { engine, members, toll, .. } = cluster;
        let node = &mut members[member];
        if !node.is_running() {
            return false;
        }
        let asker = node.asker();
        let Some(from) = node.follows else { return false };
        let Some((sequence, body)) = engine.next_message(asker, from) else { return false };
        toll.purges_before_standby += u64::from(engine.has_overtaken(from) && from > 1);
        node.follows = Some(sequence + 1);
        let now_ms = node.clock.read(now_ms);
        if let Some(agent) = &mut node.agent {
            let body = dialect.read(body, sabotage);
            agent.on_message(sequence, &body, now_ms);
        }
        self.carry_out(member);
        true
    }

    /// A driver of any running broker takes a turn.
    fn turn_of_cluster(&mut self) -> Result<(), String> {
        if self.choose_member() {
            let index = self.random.below(self.node.drivers.len());
            self.turn(index)?;
        }
        Ok(())
    }

    /// What journals of the current broker have for the engine.
    pub(crate) fn submit_to_cluster(&mut self, commands: Vec<(ShardId, Command)>) {
        let now_ms = self.now_ms;
        let Some(cluster) = self.cluster.as_mut().filter(|_| !commands.is_empty()) else { return };
        let member = cluster.current;
        let node = &mut cluster.members[member];
        let wall_ms = now_ms.saturating_add_signed(node.wall_wrong_ms);
        let now_ms = node.clock.read(now_ms);
        for (shard, command) in commands {
            if let Command::Commit { id, steps, .. } = &command
                && cluster.sabotage == Some(Sabotage::CommitBeforeQuorum)
            {
                let outcome = Outcome::Committed { steps_done: steps.len(), fault: None };
                node.completions.push_back((shard, Completion { id: *id, outcome }));
                node.early.insert((shard, *id));
            }
            if let Some(skipped) = node.skip_of_neighbour(shard, &command) {
                node.completions.push_back((shard, skipped));
                continue;
            }
            node.commands += 1;
            let live_bytes = self.node.shard(shard).journal().map_or(0, Journal::live_bytes);
            let Some(agent) = &mut node.agent else { return };
            agent.submit(shard, command, live_bytes, now_ms);
        }
        if let Some(agent) = &mut node.agent {
            agent.on_tick(now_ms, wall_ms);
        }
        self.carry_out(member);
    }

    /// A shard hears what became of its commands.
    pub(crate) fn complete_one_of_cluster(&mut self) -> Result<(), String> {
        if !self.choose_member() {
            return Ok(());
        }
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let node = &mut cluster.members[cluster.current];
        if node.completions.is_empty() {
            return Ok(());
        }
        // In the order of each shard.
        let shards: Vec<ShardId> = node.completions.iter().map(|(shard, _)| *shard).collect();
        let shard = shards[cluster.random.below(shards.len())];
        let place = shards.iter().position(|it| *it == shard).unwrap_or(0);
        let Some((shard, completion)) = node.completions.remove(place) else { return Ok(()) };
        self.complete(shard, completion)
    }

    /// A shard of the current broker hears it.
    fn complete(&mut self, shard: ShardId, completion: Completion) -> Result<(), String> {
        self.node.put(shard, Item::Disk(shard, Box::new(completion)));
        self.turn_if_awake(self.node.driver_of(shard))
    }

    /// Carries out what a node wants done.
    pub(crate) fn carry_out(&mut self, member: usize) {
        loop {
            let mut effects = Vec::new();
            let Some(cluster) = &mut self.cluster else { return };
            let Some(agent) = &mut cluster.members[member].agent else { return };
            agent.take_effects(&mut effects);
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.carry_out_one(member, effect);
            }
        }
    }

    fn carry_out_one(&mut self, member: usize, effect: Effect) {
        self.watch_effect(member, &effect);
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        let dialect = cluster.dialect(member);
        let node = &mut cluster.members[member];
        let asker = node.asker();
        let is_written = matches!(effect, Effect::Apply(..) | Effect::Store(..));
        if is_written && std::mem::take(&mut node.is_disk_failing) {
            cluster.toll.local_faults += 1;
            node.agent.iter_mut().for_each(|agent| agent.on_local_fault("simulated fault"));
            return;
        }
        match effect {
            Effect::Ask(id, request) => {
                let question = dialect.write(Question::Stream(request));
                cluster.engine.ask(asker, id, question, now_ms);
            }
            Effect::AskLease(id, request) => {
                let question = dialect.write(Question::Lease(request));
                cluster.engine.ask(asker, id, question, now_ms);
            }
            Effect::Follow(from) => node.follows = Some(from),
            Effect::Unfollow => node.follows = None,
            Effect::StartOver(shard) => {
                node.copies[usize::from(shard)].start_over();
                cluster.toll.copies_started_over += 1;
            }
            Effect::NewWriter(shard, _) => node.copies[usize::from(shard)].on_new_writer(),
            Effect::Apply(_, portion) => cluster.apply(member, &portion),
            Effect::Store(_, portion) => {
                node.copies[usize::from(portion.shard)].store(&portion);
            }
            Effect::Background(shard, command) => {
                let done = node.copies[usize::from(shard)].housekeep(command);
                node.completions.extend(done.map(|completion| (shard, completion)));
                node.commands = node.commands.saturating_sub(1);
            }
            Effect::Done(shard, completion) => {
                node.commands = node.commands.saturating_sub(1);
                if cluster.sabotage == Some(Sabotage::SkipNeighbour) {
                    node.note_refusal(shard, &completion);
                }
                if !node.early.remove(&(shard, completion.id)) {
                    node.completions.push_back((shard, completion));
                }
            }
            Effect::Renew(shard, segment) => self.renew_log(member, shard, segment),
            Effect::Role(role) => self.take_role(member, role),
        }
    }

    /// A journal of the broker that writes is to do without its segments up to this one.
    fn renew_log(&mut self, member: usize, shard: ShardId, segment: u32) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.toll.renewals += 1;
        if cluster.sabotage == Some(Sabotage::KeepIdleSegments) {
            return;
        }
        let is_current = cluster.current == member;
        let broker = if is_current { &mut self.node } else { &mut cluster.members[member].broker };
        broker.put(shard, Item::RenewLog(shard, segment));
    }

    fn take_role(&mut self, member: usize, role: Role) {
        self.note(|| format!("node {member} is {role:?}"));
        let Some(cluster) = &mut self.cluster else { return };
        if matches!(role, Role::Ended(_)) {
            // The process replaces itself at once: its journals hear nothing any more.
            cluster.members[member].completions.clear();
        }
        cluster.members[member].new_role = Some(role);
    }

    /// Time passes, in steps so small that leases live.
    pub(crate) fn pass_cluster_time(&mut self, ms: u64) -> Result<(), String> {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.now_ms = end_ms.min(self.now_ms + TIME_STEP_MS);
            self.oracle.now_ms = self.now_ms;
            self.tick_members();
            for _ in 0..TIME_STEPS_OF_ENGINE {
                self.step_engine();
                self.deliver_one();
            }
            self.look_at_members()?;
        }
        self.tick()
    }

    /// Each running node does what is due.
    fn tick_members(&mut self) {
        let now_ms = self.now_ms;
        let count = self.cluster.as_ref().map_or(0, |cluster| cluster.members.len());
        for member in 0..count {
            let Some(cluster) = &mut self.cluster else { return };
            let Cluster { engine, members, .. } = cluster;
            let node = &mut members[member];
            let now_there_ms = node.clock.read(now_ms);
            if node.is_paused {
                continue;
            }
            let Some(agent) = &mut node.agent else { continue };
            agent.on_tick(now_there_ms, now_ms.saturating_add_signed(node.wall_wrong_ms));
            let given_up = engine.give_up(node.asker(), now_ms);
            self.carry_out(member);
            for (id, reply) in given_up {
                self.answer(member, id, reply);
            }
        }
    }

    /// The drivers of all running brokers take the turns for which it is time.
    pub(crate) fn tick_cluster(&mut self) -> Result<(), String> {
        let count = self.cluster.as_ref().map_or(0, |cluster| cluster.members.len());
        for member in 0..count {
            let has_journals =
                |it: &Cluster| it.members[member].is_running() && it.members[member].has_journals;
            if !self.cluster.as_ref().is_some_and(has_journals) {
                continue;
            }
            self.switch_to(member);
            self.turn_until_heard()?;
        }
        Ok(())
    }

    /// Until nothing is under way between journals and engine, but not for ever. True: something
    /// was.
    pub(crate) fn work_cluster(&mut self) -> Result<bool, String> {
        let mut has_worked = false;
        for _ in 0..WORK_ROUNDS_MAX {
            let Some(cluster) = &self.cluster else { return Ok(has_worked) };
            let Some(open) = cluster.serving.filter(|it| cluster.members[*it].has_journals) else {
                return Ok(has_worked);
            };
            self.switch_to(open);
            let is_busy = self.turn_all()?;
            for _ in 0..WORK_STEPS {
                self.step_engine();
                self.deliver_one();
            }
            while let Some((shard, completion)) =
                self.cluster.as_mut().and_then(|it| it.members[open].completions.pop_front())
            {
                self.complete(shard, completion)?;
            }
            let is_idle = self.cluster.as_ref().is_some_and(|it| {
                it.members[open].is_idle() && it.engine.is_idle() || it.delays_commits(open)
            });
            has_worked |= !is_idle;
            if !is_busy && is_idle {
                break;
            }
        }
        Ok(has_worked)
    }

    /// Whether a journal of the current broker is out of service.
    pub(crate) fn is_current_poisoned(&self) -> bool {
        let mut statuses = self.node.shards().map(broker::Shard::journal_status);
        statuses.any(|status| matches!(status, Some(Status::Poisoned(_))))
    }
}

/// Clocks are looked at as often.
const TIME_STEP_MS: u64 = 50;

/// What happens meanwhile.
const TIME_STEPS_OF_ENGINE: usize = 6;

const WORK_STEPS: usize = 4;
const WORK_ROUNDS_MAX: usize = 1000;
