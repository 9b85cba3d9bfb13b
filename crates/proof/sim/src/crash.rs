//! The ends of a broker, its starts, and what else befalls it in a durable world.

use broker::{Durability, HandoverFlaw, Replay, Shard, ShardId, settle};
use driver::Item;
use storage::testing::Crash;
use storage::{Command, Journal, JournalFlaw, Recovered, Status};

use crate::damage::Damage;
use crate::disks::{Disks, SYNC_INTERVAL_MS};
use crate::oracle::Terms;
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::world::{Options, World};

/// What may happen in a world, as its seed has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calamities {
    /// Of a hundred occasions for a crash.
    crash_percent: usize,
    fills: bool,
    fails: bool,
    /// The medium is damaged while the broker is down.
    flips: bool,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toll {
    pub kills: u64,
    pub power_cuts: u64,
    pub orderly_ends: u64,
    /// Ends before the start was complete.
    pub starts_cut: u64,
    pub journals_poisoned: u64,
    pub journals_full: u64,
    /// Kept sessions that were resumed though their journals had no room for that.
    pub resumed_unwritten: u64,
    pub flips_refused: u64,
    pub flips_harmless: u64,
    pub flips_in_tail: u64,
    /// Newest segments and manifests that were lost or put back in time.
    pub losses_refused: u64,
    pub losses_harmless: u64,
    pub losses_of_tail: u64,
    pub segments_reclaimed: u64,
    /// Publishes of hostile clients for which there was no room, not even in a journal.
    pub hostile_refused: u64,
}

/// How a broker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Orderly,
    Kill,
    Power,
}

impl Calamities {
    pub(crate) fn new(options: Options, random: &mut Random) -> Self {
        if options.calm || options.cells {
            return Self::default();
        }
        let sabotage = options.sabotage;
        let crash_percent = [5, 20, 100][random.below(3)];
        let is_calm = sabotage.is_some();
        Self {
            crash_percent,
            fills: random.chance(25) && !is_calm,
            fails: random.chance(20) && (!is_calm || sabotage == Some(Sabotage::FailNeighbour)),
            flips: random.chance(20) && (!is_calm || sabotage == Some(Sabotage::IgnoreManifests)),
        }
    }

    pub(crate) const fn put_into(&self, terms: &mut Terms) {
        terms.may_refuse |= self.may_refuse();
        terms.may_fail = self.fails;
    }

    /// May the broker say that it cannot keep something?
    pub(crate) const fn may_refuse(&self) -> bool {
        self.fills || self.fails
    }
}

impl Toll {
    /// The sum of both.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            kills: self.kills + other.kills,
            power_cuts: self.power_cuts + other.power_cuts,
            orderly_ends: self.orderly_ends + other.orderly_ends,
            starts_cut: self.starts_cut + other.starts_cut,
            journals_poisoned: self.journals_poisoned + other.journals_poisoned,
            journals_full: self.journals_full + other.journals_full,
            resumed_unwritten: self.resumed_unwritten + other.resumed_unwritten,
            flips_refused: self.flips_refused + other.flips_refused,
            flips_harmless: self.flips_harmless + other.flips_harmless,
            flips_in_tail: self.flips_in_tail + other.flips_in_tail,
            losses_refused: self.losses_refused + other.losses_refused,
            losses_harmless: self.losses_harmless + other.losses_harmless,
            losses_of_tail: self.losses_of_tail + other.losses_of_tail,
            segments_reclaimed: self.segments_reclaimed + other.segments_reclaimed,
            hostile_refused: self.hostile_refused + other.hostile_refused,
        }
    }
}

impl World {
    /// Something of what only worlds with disks have.
    pub(crate) fn step_durable(&mut self) -> Result<(), String> {
        if self.is_poisoned() && self.random.chance(3) {
            let end = if self.random.chance(70) { End::Power } else { End::Kill };
            return self.crash(end);
        }
        match self.random.below(100) {
            0..=19 => {
                let index = self.random.below(self.node.drivers.len());
                self.turn(index)?;
            }
            20..=69 => self.step_disks(),
            70..=97 => drop(self.complete_one()?),
            98 => {
                if let Some(set_by_ms) = self.wall.may_be_set(self.now_ms) {
                    self.note(|| format!("the wall clock is set by {set_by_ms} ms"));
                }
                self.change_weather();
            }
            _ if self.random.chance(self.calamities.crash_percent) => {
                let end = match self.random.below(100) {
                    0..=39 => End::Kill,
                    40..=84 => End::Power,
                    _ => End::Orderly,
                };
                return self.crash(end);
            }
            _ => {}
        }
        Ok(())
    }

    /// What journals have for their disks.
    pub(crate) fn submit(&mut self, commands: Vec<(ShardId, Command)>) {
        if self.cluster.is_some() {
            return self.submit_to_cluster(commands);
        }
        let Some(disks) = &mut self.disks else { return };
        for (shard, command) in commands {
            let journal = self.node.shard(shard).journal();
            disks.submit((shard, journal), command, self.now_ms);
        }
    }

    fn step_disks(&mut self) {
        if let Some(disks) = &mut self.disks {
            disks.step_any(self.now_ms);
        }
    }

    /// A shard hears what its disk has done. False: no disk has done anything.
    fn complete_one(&mut self) -> Result<bool, String> {
        let Some(disks) = &mut self.disks else { return Ok(false) };
        let Some((shard, completion)) = disks.next_completion() else { return Ok(false) };
        let was = self.node.shard(shard).journal_status();
        self.node.put(shard, Item::Disk(shard, Box::new(completion)));
        self.turn_if_awake(self.node.driver_of(shard))?;
        let is = self.node.shard(shard).journal_status();
        if was != is {
            self.toll.journals_poisoned += u64::from(matches!(is, Some(Status::Poisoned(_))));
            self.toll.journals_full += u64::from(matches!(is, Some(Status::Full(_))));
            self.note(|| format!("the log of shard {shard} is {is:?}"));
        }
        Ok(true)
    }

    /// Until no disk has anything to do, but not for ever.
    /// True: some had.
    pub(crate) fn work_disks(&mut self) -> Result<bool, String> {
        if self.cluster.is_some() {
            return self.work_cluster();
        }
        let mut has_worked = false;
        for _ in 0..WORK_ROUNDS_MAX {
            let Some(disks) = &mut self.disks else { break };
            let mut works = disks.work(self.now_ms);
            while self.complete_one()? {
                works = true;
            }
            if !works {
                break;
            }
            has_worked = true;
        }
        Ok(has_worked)
    }

    /// Records or commits wait for others, until time passes.
    fn delays_commit(&mut self) -> bool {
        let now_ms = self.now_ms;
        self.node.delays_commit()
            || self.disks.as_mut().is_some_and(|disks| disks.delays_commit(now_ms))
            || self.cluster.as_ref().is_some_and(|it| it.delays_commits(it.current))
    }

    fn is_poisoned(&self) -> bool {
        let mut statuses = self.node.shards().map(Shard::journal_status);
        statuses.any(|status| matches!(status, Some(Status::Poisoned(_))))
    }

    pub(crate) fn has_full_journal(&self) -> bool {
        let mut statuses = self.node.shards().map(Shard::journal_status);
        let fills = self.cluster.as_ref().map_or(self.calamities.fills, |it| it.plan.fills);
        fills && statuses.any(|status| matches!(status, Some(Status::Full(_))))
    }

    fn change_weather(&mut self) {
        let Some(disks) = &mut self.disks else { return };
        let line = match self.random.below(3) {
            0 if self.calamities.fills => {
                disks.fill_one();
                "a disk fills up"
            }
            1 if self.calamities.fails => {
                disks.fail_one();
                "a disk is about to fail"
            }
            2 if self.calamities.may_refuse() => {
                disks.heal();
                "the disks are well"
            }
            _ => return,
        };
        self.note(|| line.into());
    }

    /// From here on nothing more goes wrong by itself.
    pub(crate) fn end_calamities(&mut self) {
        self.calamities = Calamities::default();
        self.end_calamities_of_cluster();
        self.end_stream_calamities();
        if let Some(disks) = &mut self.disks {
            disks.heal();
        }
    }

    /// A journal that is out of service stays so until the next start.
    pub(crate) fn restart_poisoned(&mut self) -> Result<(), String> {
        let is_durable = self.disks.is_some();
        if is_durable && self.is_poisoned() { self.crash(End::Kill) } else { Ok(()) }
    }

    /// The power goes right behind an answer, if it likes.
    pub(crate) fn crash_at_once(&mut self) -> Result<(), String> {
        let has_power = self.disks.is_some() && self.cells.is_none();
        let may_crash = has_power && self.calamities.crash_percent > 0;
        if may_crash && self.crowd.chance(10) { self.crash(End::Power) } else { Ok(()) }
    }

    /// One last crash, when all is at rest.
    pub(crate) fn crash_at_the_end(&mut self) -> Result<(), String> {
        if self.cells.is_some() {
            return self.end_each_cell();
        }
        if self.cluster.is_some() {
            return self.kill_at_the_end();
        }
        let end = if self.random.chance(50) { End::Power } else { End::Kill };
        self.crash(end)
    }

    fn crash(&mut self, end: End) -> Result<(), String> {
        self.note(|| format!("the broker ends: {end:?}"));
        let took_less = self.calamities.may_refuse() || self.is_poisoned();
        let has_synced = match end {
            End::Orderly => self.shut_down()?,
            _ => self.random.chance(40) && self.let_sync()?,
        };
        self.end_by(end, has_synced, took_less)?;
        self.now_ms += DOWN_MS[self.random.below(DOWN_MS.len())];
        self.oracle.now_ms = self.now_ms;
        self.start()
    }

    /// The broker of the current cell ends, and its next owner has not begun.
    pub(crate) fn end_current_cell(&mut self) -> Result<(), String> {
        let end = if self.random.chance(50) { End::Power } else { End::Kill };
        self.end_by(end, false, false)
    }

    fn end_by(&mut self, end: End, has_synced: bool, took_less: bool) -> Result<(), String> {
        self.cut_all_connections()?;
        let crash = if end == End::Power { Crash::Power } else { Crash::Kill };
        self.crash_disks(crash, has_synced)?;
        if !has_synced || took_less {
            // Who came and went last may be unknown to the next process, and a journal that is full
            // or has failed may not have been told at all.
            for who in self.clients_of_current() {
                self.clients[who].fate.forget_connections(took_less);
            }
        }
        match end {
            End::Orderly => self.toll.orderly_ends += 1,
            End::Kill => self.toll.kills += 1,
            End::Power => self.toll.power_cuts += 1,
        }
        Ok(())
    }

    /// `has_synced`: what had been written is on the medium.
    fn crash_disks(&mut self, crash: Crash, has_synced: bool) -> Result<(), String> {
        self.crash_streams(crash)?;
        if let Some(disks) = &mut self.disks {
            disks.crash(crash);
        }
        let loses_written = crash == Crash::Power && !has_synced;
        let kept = if loses_written { Durability::Fsync } else { Durability::Disk };
        let hit: Vec<u32> =
            self.clients_of_current().into_iter().map(|who| self.clients[who].number).collect();
        self.oracle.on_crash(kept, has_synced, |client| hit.contains(&client));
        if self.oracle.terms.level < kept {
            // Nobody can tell what the broker still knows of the sessions.
            for client in self.clients.iter_mut().filter(|client| client.is_persistent()) {
                client.fate.begin_anew();
                self.oracle.on_session_start(client.number);
            }
        }
        Ok(())
    }

    /// What was on its way to the clients still comes, in part.
    fn cut_all_connections(&mut self) -> Result<(), String> {
        self.clients_of_current().into_iter().try_for_each(|who| self.lose_process(who))?;
        self.mob.lose_connections();
        Ok(())
    }

    /// In order: everybody is told, and the journals are closed. True: all that was kept is synced.
    fn shut_down(&mut self) -> Result<bool, String> {
        self.node.put_to_all(|| Item::Shutdown);
        self.let_move()?;
        self.node.put_to_all(|| Item::CloseJournals);
        for _ in 0..WORK_ROUNDS_MAX {
            self.let_move()?;
            let is_closed =
                |shard: &Shard| matches!(shard.journal_status(), None | Some(Status::Closed));
            if self.node.shards().all(is_closed) {
                return Ok(true);
            }
            if self.is_poisoned() {
                break;
            }
            self.pass_time(100)?;
        }
        match self.calamities.may_refuse() {
            true => Ok(false),
            false => Err("the logs do not close".into()),
        }
    }

    /// Turns, mail and disks, until nothing moves. Only for commits that are delayed does time
    /// pass. True: something moved.
    pub(crate) fn let_move(&mut self) -> Result<bool, String> {
        let (mut has_moved, mut empty_rounds) = (false, 0);
        for _ in 0..WORK_ROUNDS_MAX {
            let takes_turns = self.turn_all()?;
            has_moved |= takes_turns;
            let mut moves = false;
            while !self.node.mail.is_empty() {
                self.carry_mail()?;
                moves = true;
            }
            moves |= self.work_disks()?;
            if !moves && self.delays_commit() {
                self.pass_ms(1)?;
                moves = true;
            }
            empty_rounds = if moves { 0 } else { empty_rounds + 1 };
            if !moves && (!takes_turns || empty_rounds == EMPTY_ROUNDS_MAX) {
                break;
            }
            has_moved |= moves;
        }
        Ok(has_moved)
    }

    /// Nobody does anything for longer than the interval of syncs. True: so all is synced, also
    /// what came of timers meanwhile.
    fn let_sync(&mut self) -> Result<bool, String> {
        let mut calm_rounds = 0;
        for _ in 0..SYNC_ROUNDS_MAX {
            calm_rounds = if self.let_move()? { 0 } else { calm_rounds + 1 };
            // A timer in the last of these times may have written something for streams.
            let is_whole = self.streams.is_none() || self.is_synced();
            if calm_rounds >= 2 && (is_whole || calm_rounds == CALM_ROUNDS_MAX) {
                break;
            }
            self.pass_ms(u64::from(SYNC_INTERVAL_MS))?;
        }
        let mut statuses = self.node.shards().map(Shard::journal_status);
        let is_ready = statuses.all(|status| matches!(status, None | Some(Status::Ready)));
        Ok(calm_rounds >= 2 && is_ready)
    }

    fn is_synced(&self) -> bool {
        let mut journals = self.node.shards().filter_map(Shard::journal);
        journals.all(|journal| journal.written_upto() == journal.synced_upto())
    }

    /// A new process, from what the disks hold. Without disks there is nothing to do.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        if self.cluster.is_some() {
            return self.start_cluster();
        }
        let Some(disks) = &self.disks else {
            self.begin_drivers()?;
            self.node.sabotage = self.options.sabotage;
            return Ok(());
        };
        self.toll.segments_reclaimed =
            self.toll.segments_reclaimed.max(u64::from(disks.reclaimed()));
        while !self.try_start()? {
            self.toll.starts_cut += 1;
            self.note(|| "the broker ends while it starts".into());
            let crash = if self.random.chance(50) { Crash::Power } else { Crash::Kill };
            self.crash_disks(crash, false)?;
        }
        for who in self.clients_of_current() {
            self.clients[who].fate.on_restart(self.now_ms);
        }
        self.oracle.on_will_start();
        self.start_steering();
        self.node.sabotage = self.options.sabotage;
        self.note(|| "the broker is up".into());
        Ok(())
    }

    /// False: it ended before it was ready.
    fn try_start(&mut self) -> Result<bool, String> {
        if self.calamities.flips {
            self.flip_a_bit()?;
            self.lose_the_end()?;
        }
        let forgets = self.options.sabotage == Some(Sabotage::ForgetClock);
        let begin_ms = self.wall.begin(self.now_ms, forgets);
        let shard_count = self.node.shard_count();
        self.new_node(shard_count);
        for shard in 0..shard_count {
            let Some(disks) = &mut self.disks else { return Ok(true) };
            let (recovered, replay) =
                disks.recover(shard).map_err(|refusal| format!("no start: {refusal}"))?;
            let settings = disks.settings.clone();
            self.open_journal(shard, recovered, settings, replay, begin_ms)?;
            match self.options.sabotage {
                Some(Sabotage::AnswerRepetitions) => {
                    self.node.shard(shard).plant_handover_flaw(HandoverFlaw::AnswersRepetitions);
                }
                Some(Sabotage::Retained(flaw)) => {
                    self.node.shard(shard).plant_retained_flaw(flaw);
                }
                Some(Sabotage::NoteKeptOnly) => {
                    self.node.shard(shard).plant_handover_flaw(HandoverFlaw::NotesKeptOnly);
                }
                _ => {}
            }
            let flaw = match self.options.sabotage {
                Some(Sabotage::SyncLaterWrites) => JournalFlaw::SyncsLaterWrites,
                Some(Sabotage::OvertakeThread) => JournalFlaw::OvertakesThread,
                Some(Sabotage::StarveSyncs) => JournalFlaw::StarvesSyncs,
                _ => continue,
            };
            if let Some(journal) = self.node.shard(shard).journal_mut() {
                journal.plant(flaw);
            }
        }
        if begin_ms != self.now_ms {
            let late_ms = begin_ms as i64 - self.now_ms as i64;
            return Err(format!("a clock that was set makes {late_ms} ms pass"));
        }
        self.node.in_place = self.disks.as_ref().map(Disks::in_place);
        self.start_streams()?;
        self.begin_drivers()?;
        self.make_ready()
    }

    /// What journals have said is settled, and the drivers begin.
    pub(crate) fn begin_drivers(&mut self) -> Result<(), String> {
        settle(&mut self.node.unborn, self.now_ms);
        self.clock.advance_to(self.now_ms);
        if self.options.sabotage == Some(Sabotage::CouplePauses) {
            self.node.unborn.iter_mut().for_each(Shard::couple_pauses);
        }
        self.node.begin(self.mob.random.next());
        (0..self.node.drivers.len()).try_for_each(|index| self.turn_for_mail(index))
    }

    pub(crate) fn open_journal(
        &mut self,
        shard: ShardId,
        recovered: Recovered,
        settings: storage::Settings,
        replay: Replay,
        begin_ms: u64,
    ) -> Result<(), String> {
        let core = self.node.shard(shard);
        let restored = core
            .open_journal(recovered, settings, replay, &self.limits, begin_ms)
            .map_err(|malformed| malformed.to_string())?;
        self.note(|| format!("shard {shard} has {restored:?}"));
        Ok(())
    }

    fn make_ready(&mut self) -> Result<bool, String> {
        let may_end = self.calamities.crash_percent > 0;
        for round in 0..READY_ROUNDS_MAX {
            if self.node.shards().all(|shard| shard.journal().is_none_or(Journal::is_ready)) {
                return Ok(true);
            }
            if self.is_poisoned() || (may_end && self.random.below(1000) == 0) {
                return Ok(false);
            }
            match self.random.below(4) {
                0 => {
                    let index = self.random.below(self.node.drivers.len());
                    self.turn(index)?;
                }
                1 => self.step_disks(),
                2 => drop(self.complete_one()?),
                _ => self.carry_mail()?,
            }
            if round % 100 == 99 {
                self.now_ms += 50;
                self.oracle.now_ms = self.now_ms;
            }
            if round == READY_ROUNDS_MAX / 2
                && let Some(disks) = &mut self.disks
            {
                // A full disk need not become ready.
                disks.heal();
            }
        }
        let statuses: Vec<_> = self.node.shards().map(Shard::journal_status).collect();
        Err(format!("the broker does not become ready: {statuses:?}"))
    }

    fn flip_a_bit(&mut self) -> Result<(), String> {
        let Some(disks) = &mut self.disks else { return Ok(()) };
        match disks.flip_a_bit()? {
            Damage::Refused => self.toll.flips_refused += 1,
            Damage::Harmless => self.toll.flips_harmless += 1,
            Damage::Tail => self.toll.flips_in_tail += 1,
        }
        Ok(())
    }

    fn lose_the_end(&mut self) -> Result<(), String> {
        let Some(disks) = &mut self.disks else { return Ok(()) };
        match disks.lose_the_end()? {
            Damage::Refused => self.toll.losses_refused += 1,
            Damage::Harmless => self.toll.losses_harmless += 1,
            Damage::Tail => self.toll.losses_of_tail += 1,
        }
        Ok(())
    }
}

/// How long a broker is down.
const DOWN_MS: [u64; 5] = [0, 100, 3000, 40_000, 400_000];

const WORK_ROUNDS_MAX: usize = 1000;

/// Rounds in which drivers only take turns: what is due in this millisecond is done by then.
const EMPTY_ROUNDS_MAX: usize = 40;

/// Rounds of [`SYNC_INTERVAL_MS`] in which all has to be synced.
const SYNC_ROUNDS_MAX: usize = 20;

/// Times without anything after which a journal that is not synced never will be.
const CALM_ROUNDS_MAX: usize = 6;

const READY_ROUNDS_MAX: usize = 20_000;
