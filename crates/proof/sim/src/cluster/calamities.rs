//! What befalls the nodes of a cluster and the engine between them.

use storage::testing::Crash;

use super::engine::Unwilling;
use super::programs::{LeaseFormat, any_lease};
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::world::World;

/// What may happen in a world, as its seed has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    /// Of a hundred occasions.
    percent: usize,
    kills: bool,
    pauses: bool,
    cuts: bool,
    elections: bool,
    switches: bool,
    /// Data and streams of other clusters.
    mix_ups: bool,
    /// Other configurations.
    setups: bool,
    /// Other versions of the program.
    programs: bool,
    pub(crate) lease: LeaseFormat,
    /// The stream gets full.
    pub(crate) fills: bool,
    /// The engine falls silent in the midst of takeovers.
    pub(crate) silences: bool,
}

impl Plan {
    pub(crate) fn new(sabotage: Option<Sabotage>, random: &mut Random) -> Self {
        let all = sabotage.is_some() || random.chance(40);
        let mut any = || all || random.chance(40);
        let (kills, pauses, cuts, elections) = (any(), any(), any(), any());
        let (switches, mix_ups, setups) = (any(), any(), any());
        // Where only some nodes can serve, less comes about.
        let programs = random.chance(25) || sabotage == Some(Sabotage::SkipLater);
        let lease = any_lease(random);
        // Who may be refused is owed less: most worlds, and all with a planted bug, have space.
        let fills = random.chance(35) && sabotage.is_none();
        let percent = [5, 20, 100][random.below(3)];
        Self {
            percent,
            kills,
            pauses,
            cuts,
            elections,
            switches,
            mix_ups,
            setups,
            programs,
            lease,
            fills,
            silences: cuts,
        }
    }

    pub(crate) const fn is_calm(&self) -> bool {
        self.percent == 0
    }
}

impl World {
    /// Something happens, or nothing.
    pub(crate) fn befall(&mut self) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let plan = cluster.plan;
        if !cluster.random.chance(plan.percent) {
            return Ok(());
        }
        let count = cluster.members.len();
        let any = cluster.random.below(count);
        let active = cluster.serving.filter(|it| cluster.members[*it].is_ready);
        let member = if cluster.random.chance(50) { active.unwrap_or(any) } else { any };
        if cluster.members[member].until_ms.is_some() {
            return Ok(());
        }
        match cluster.random.below(18) {
            0..=1 if plan.kills => return self.kill_some(member),
            2..=3 if plan.pauses => self.pause(member),
            4..=5 if plan.cuts => self.cut(member),
            6 if plan.elections => self.elect(now_ms),
            7 if plan.switches => self.switch_over(member),
            9 => self.set_wall(member),
            10 if plan.fills => self.refuse_appends(now_ms, true),
            12 if plan.kills => cluster.members[member].is_disk_failing = true,
            11 if plan.elections => self.refuse_appends(now_ms, false),
            13 if plan.mix_ups => return self.bring_foreign_data(member),
            14 if plan.mix_ups && cluster.random.chance(50) => return self.replace_record(member),
            15 if plan.setups => return self.reconfigure(member),
            16..=17 if plan.programs => return self.change_program(member),
            8 if plan.kills => {
                let opening = cluster.members.iter().position(|it| it.has_journals && !it.is_ready);
                if let Some(member) = opening {
                    cluster.toll.kills_of_opening += 1;
                    return self.kill(member);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn kill_some(&mut self, member: usize) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let count = cluster.members.len();
        if cluster.random.chance(15) {
            cluster.toll.kills_of_all += 1;
            return (0..count).try_for_each(|member| self.kill(member));
        }
        let is_active = cluster.serving == Some(member);
        let node = &cluster.members[member];
        let is_late = node
            .agent
            .as_ref()
            .is_some_and(|agent| agent.streams().any(|stream| !stream.has_caught_up));
        cluster.toll.kills_of_active += u64::from(is_active);
        cluster.toll.kills_of_standby += u64::from(!is_active);
        cluster.toll.kills_of_late_standby += u64::from(!is_active && is_late);
        if is_active && cluster.plan.elections && cluster.random.chance(20) {
            cluster.toll.kills_with_leader += 1;
            self.elect(now_ms);
        }
        self.kill(member)
    }

    /// The process, or the machine.
    pub(crate) fn kill(&mut self, member: usize) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        if cluster.members[member].agent.is_none() {
            return Ok(());
        }
        let loses_power = cluster.random.chance(50);
        let down_ms = DOWN_MS[cluster.random.below(DOWN_MS.len())];
        self.note(|| format!("node {member} is killed, loses power: {loses_power}"));
        let crash = if loses_power { Crash::Power } else { Crash::Kill };
        self.end_process(member, Some(crash))?;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let node = &mut cluster.members[member];
        node.until_ms = Some(now_ms + down_ms);
        let kind = cluster.random.below(4);
        for copy in &mut node.copies {
            match kind {
                0 => copy.clear(),
                1 => copy.tear(cluster.random.below(1 << 20), 1 + cluster.random.below(2000)),
                _ => {}
            }
        }
        match (kind, loses_power) {
            (0, _) => cluster.toll.restarts_with_empty_copy += 1,
            (1, _) | (_, true) => cluster.toll.restarts_with_torn_copy += 1,
            _ => cluster.toll.restarts_with_old_copy += 1,
        }
        Ok(())
    }

    /// A machine is lost, and comes back with the disk of a node of another cluster.
    fn bring_foreign_data(&mut self, member: usize) -> Result<(), String> {
        self.kill(member)?;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let end = cluster.engine.end();
        cluster.members[member].get_foreign_data(end);
        self.note(|| format!("node {member} has the data of another cluster"));
        Ok(())
    }

    fn pause(&mut self, member: usize) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        let node = &mut cluster.members[member];
        if node.agent.is_none() {
            return;
        }
        let paused_ms = PAUSED_MS[cluster.random.below(PAUSED_MS.len())];
        (node.is_paused, node.until_ms) = (true, Some(now_ms + paused_ms));
        match cluster.serving == Some(member) {
            true => cluster.toll.pauses_of_active += 1,
            false => cluster.toll.pauses_of_standby += 1,
        }
        self.note(|| format!("node {member} is paused for {paused_ms} ms"));
    }

    fn cut(&mut self, member: usize) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        let cut_ms = CUT_MS[cluster.random.below(CUT_MS.len())];
        cluster.members[member].until_ms = Some(now_ms + cut_ms);
        let link = &mut cluster.engine.links[member];
        let kind = cluster.random.below(5);
        match kind {
            0 => {
                (link.is_cut_to, link.is_cut_from) = (true, true);
                cluster.toll.partitions_both += 1;
            }
            1 => {
                link.is_cut_to = true;
                cluster.toll.partitions_to += 1;
            }
            2 => {
                link.is_cut_from = true;
                cluster.toll.partitions_from += 1;
            }
            3 => {
                link.is_late = true;
                cluster.toll.deliveries_delayed += 1;
            }
            _ => {
                cluster.engine.isolate(member);
                cluster.toll.isolations += 1;
            }
        }
        self.note(|| format!("node {member} is cut off for {cut_ms} ms, kind {kind}"));
    }

    fn elect(&mut self, now_ms: u64) {
        let Some(cluster) = &mut self.cluster else { return };
        let is_majority = cluster.random.chance(30);
        let out_ms = match is_majority {
            true => 5_000 + cluster.random.below(20_000) as u64,
            false => 100 + cluster.random.below(7_000) as u64,
        };
        cluster.engine.says_unavailable = cluster.random.chance(50);
        cluster.engine.elect(now_ms, now_ms + out_ms);
        match is_majority {
            true => cluster.toll.majorities_lost += 1,
            false => cluster.toll.elections += 1,
        }
        self.note(|| format!("the engine has no leader for {out_ms} ms"));
    }

    /// The engine has no space for a while, or its leaders come and go.
    fn refuse_appends(&mut self, now_ms: u64, is_full: bool) {
        let Some(cluster) = &mut self.cluster else { return };
        let refused_ms = REFUSED_MS[cluster.random.below(REFUSED_MS.len())];
        // Where little space is left, smaller appends still find some.
        let percent = if is_full && cluster.random.chance(50) { 100 } else { 50 };
        let until_ms = now_ms + refused_ms;
        cluster.engine.refuse(Unwilling { until_ms, percent, is_full });
        match is_full {
            true => cluster.toll.fills += 1,
            false => cluster.toll.flaps += 1,
        }
        self.note(|| format!("appends are refused for {refused_ms} ms, for space: {is_full}"));
    }

    /// An operator wants another node to serve, and maybe a second one, too.
    fn switch_over(&mut self, member: usize) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(active) = cluster.serving.filter(|it| cluster.members[*it].is_ready) else {
            return;
        };
        let chosen = Some(member).filter(|it| *it != active);
        let successor = chosen.map(|it| cluster.members[it].setup.name.clone());
        let node = &mut cluster.members[active];
        let is_second = node.leaving.is_some();
        cluster.toll.switchovers += u64::from(!is_second);
        cluster.toll.switchovers_doubled += u64::from(is_second);
        cluster.toll.switchovers_to_successor += u64::from(successor.is_some());
        node.leaving = Some(successor);
    }

    /// Somebody sets the clock on the wall of a node.
    fn set_wall(&mut self, member: usize) {
        let Some(cluster) = &mut self.cluster else { return };
        let set_to = SET_TO_MS[cluster.random.below(SET_TO_MS.len())];
        cluster.members[member].wall_wrong_ms = set_to;
        cluster.toll.wall_jumps += 1;
        self.note(|| format!("the wall clock of node {member} is wrong by {set_to} ms"));
    }

    /// A node wakes up, starts again, or is reached again, when its time has come.
    pub(crate) fn end_of_calamity(&mut self, number: usize) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        if cluster.members[number].until_ms.is_none_or(|until_ms| until_ms > now_ms) {
            return Ok(());
        }
        self.end_calamity_of(number);
        Ok(())
    }

    fn end_calamity_of(&mut self, number: usize) {
        let Some(cluster) = &mut self.cluster else { return };
        let is_stale = cluster.serving != Some(number);
        let node = &mut cluster.members[number];
        node.until_ms = None;
        if std::mem::take(&mut node.is_paused) {
            cluster.toll.stale_wakes += u64::from(node.has_journals && is_stale);
            let mail = std::mem::take(&mut node.mail);
            self.note(|| format!("node {number} wakes up"));
            for (id, reply) in mail {
                self.answer(number, id, reply);
            }
            return;
        }
        cluster.engine.reach(number);
        let is_down = node.agent.is_none();
        self.note(|| format!("node {number} is reached again"));
        if is_down {
            self.put_right(number);
            self.begin_process(number);
        }
    }

    /// When all is at rest: who serves, or everybody.
    pub(crate) fn kill_at_the_end(&mut self) -> Result<(), String> {
        if self.cluster.is_none() {
            return Ok(());
        }
        self.await_all_caught_up()?;
        self.await_short_stream()?;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        // Nothing was refused since all came to rest.
        cluster.may_have_refused = false;
        let all = 0..cluster.members.len();
        match cluster.serving.filter(|_| cluster.random.chance(70)) {
            Some(active) => self.kill(active),
            None => all.into_iter().try_for_each(|member| self.kill(member)),
        }
    }

    /// From here on nothing more goes wrong by itself.
    pub(crate) fn end_calamities_of_cluster(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.plan = Plan { lease: cluster.plan.lease, ..Plan::default() };
        cluster.engine.heal();
        cluster.other_record_until_ms = cluster.other_record_until_ms.map(|_| 0);
        for number in 0..cluster.members.len() {
            if self.cluster.as_ref().is_some_and(|it| it.members[number].until_ms.is_some()) {
                self.end_calamity_of(number);
            }
        }
    }
}

/// By how much a wall clock is wrong: 1970, an hour behind, a typo.
const SET_TO_MS: [i64; 4] = [-1_600_000_000_000, -3_600_000, 0, 300_000_000_000];

/// How long appends are refused.
const REFUSED_MS: [u64; 4] = [200, 2_000, 10_000, 30_000];

/// How long a node is down.
const DOWN_MS: [u64; 5] = [0, 100, 1000, 8_000, 30_000];

/// How long one is paused: less and more than a lease.
const PAUSED_MS: [u64; 5] = [200, 1000, 2700, 6_000, 20_000];

/// How long one is cut off.
const CUT_MS: [u64; 4] = [200, 1500, 5_000, 20_000];
