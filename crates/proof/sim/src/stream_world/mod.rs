//! Streams and consumers in a durable world: their owner, the disk of its files, the targets, and
//! what operators do.
//!
//! The owner is the state machine of the server (`streams::Hub`). It hears of shards, gives them
//! orders, and writes files, each after any time. It ends with its process. The next one is made of
//! what journals and files have.

mod disk;
mod judge;
mod operators;
mod owner;
mod plan;
mod process;
mod replica;
mod target;

use std::collections::{BTreeMap, BTreeSet};

use broker::ShardId;
use broker::streams::{ConsumerNumber, StreamNews, StreamNumber};
use driver::Item;
use routing::Outcome;
use storage::stream::{Block, FILE_HEADER_BYTES, FileIdentity, StreamCommand};
use streams::{Effect, Full, Happening, HubSettings};

use crate::oracle::Oracle;
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::world::{Options, World};
use disk::StreamDisk;
use owner::Owner;
pub(crate) use plan::{ConsumerPlan, StreamPlan};
use replica::Replica;
use target::TargetModel;
pub(crate) use target::is_refused;

/// All that has to do with streams in a world.
pub(crate) struct StreamWorld {
    plans: Vec<StreamPlan>,
    /// As operators have defined them, and as the next process finds them.
    consumers: BTreeMap<u32, ConsumerPlan>,
    paused: BTreeSet<u32>,
    /// Removed, and not confirmed yet.
    ending: BTreeSet<u32>,
    next_consumer: u32,
    settings: HubSettings,
    disk: StreamDisk,
    targets: BTreeMap<u32, TargetModel>,
    owner: Option<Owner>,
    /// Disks fail, and operators act.
    has_weather: bool,
    toll: Toll,
    random: Random,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Toll {
    pub stored: u64,
    pub sent: u64,
    pub accepted: u64,
    pub dead_letters: u64,
    pub given_up: u64,
    pub dropped: u64,
    pub seeks: u64,
    pub removed: u64,
    pub full: u64,
    pub behind: u64,
    pub write_faults: u64,
    pub files: u64,
    pub files_deleted: u64,
}

impl Toll {
    /// The sum of both.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            stored: self.stored + other.stored,
            sent: self.sent + other.sent,
            accepted: self.accepted + other.accepted,
            dead_letters: self.dead_letters + other.dead_letters,
            given_up: self.given_up + other.given_up,
            dropped: self.dropped + other.dropped,
            seeks: self.seeks + other.seeks,
            removed: self.removed + other.removed,
            full: self.full + other.full,
            behind: self.behind + other.behind,
            write_faults: self.write_faults + other.write_faults,
            files: self.files + other.files,
            files_deleted: self.files_deleted + other.files_deleted,
        }
    }
}

impl StreamWorld {
    pub(crate) fn new(options: Options, shards: ShardId, seed: u64) -> Option<Self> {
        if !options.streams {
            return None;
        }
        let mut random = Random::new(seed ^ (1 << 57));
        let count = 1 + random.below(3) as u32;
        let mut plans: Vec<StreamPlan> =
            (1..=count).map(|number| StreamPlan::any(number, &mut random)).collect();
        plans.push(StreamPlan::of_dead_letters(&mut random));
        let mut settings = plan::hub_settings(shards, &mut random);
        if let Some(Sabotage::Hub(flaw)) = options.sabotage {
            settings.flaw = Some(flaw);
        }
        let mut disk = StreamDisk::new(random.next());
        disk.keeps_queue = options.sabotage == Some(Sabotage::LateBlock);
        let is_clustered = match options.sabotage {
            Some(Sabotage::LateBlock) => false,
            Some(Sabotage::SharedFileNumbers | Sabotage::CopyBehind) => true,
            _ => random.chance(33),
        };
        disk.stays_behind = options.sabotage == Some(Sabotage::CopyBehind);
        disk.replica = is_clustered.then(|| Replica::new(random.next()));
        let mut world = Self {
            plans,
            consumers: BTreeMap::new(),
            paused: BTreeSet::new(),
            ending: BTreeSet::new(),
            next_consumer: 1,
            settings,
            disk,
            targets: BTreeMap::new(),
            owner: None,
            has_weather: random.chance(50),
            toll: Toll::default(),
            random,
        };
        for _ in 0..1 + world.random.below(4) {
            world.add_plan();
        }
        Some(world)
    }

    /// Another consumer, of any of the streams.
    fn add_plan(&mut self) -> ConsumerPlan {
        let stream = &self.plans[self.random.below(self.plans.len())];
        let plan = ConsumerPlan::any(self.next_consumer, stream, &mut self.random);
        self.next_consumer += 1;
        self.targets.insert(plan.number, TargetModel::new(plan.refused_of));
        self.consumers.insert(plan.number, plan.clone());
        plan
    }

    /// The oracle is told what there is.
    pub(crate) fn introduce(&self, oracle: &mut Oracle) {
        oracle.streams.plans.clone_from(&self.plans);
        for plan in &self.plans {
            oracle.trace.note(|| format!("{plan:?}"));
        }
        for plan in self.consumers.values() {
            oracle.trace.note(|| format!("{plan:?}"));
            oracle.consumers.on_defined(plan);
        }
    }

    /// What it waits for.
    pub(crate) fn unrest(&self) -> String {
        let Some(owner) = &self.owner else { return String::new() };
        let views = self.plans.iter().map(|it| owner.hub.stream_view(StreamNumber(it.number)));
        let (files, targets) =
            (self.disk.is_idle(), self.targets.values().map(TargetModel::is_idle));
        format!(
            "files idle: {files}, targets: {:?}, ending: {:?}, work: {}, committed: {}, {:?}",
            targets.collect::<Vec<_>>(),
            self.ending,
            owner.hub.has_work(),
            owner.hub.is_committed(),
            views.collect::<Vec<_>>()
        )
    }

    pub(crate) fn may_refuse(&self) -> bool {
        self.plans.iter().any(|plan| plan.full == Full::Reject)
    }

    pub(crate) const fn toll(&self) -> Toll {
        self.toll
    }

    /// Nothing is left to be done without that time passes.
    pub(crate) fn is_still(&self, now_ms: u64) -> bool {
        self.disk.is_still(now_ms)
            && self.targets.values().all(TargetModel::is_idle)
            && self.owner.as_ref().is_none_or(|owner| owner.is_idle() && !owner.hub.has_work())
    }

    /// All files have what they are to have, and all outcomes are committed.
    pub(crate) fn is_at_rest(&self) -> bool {
        let Some(owner) = &self.owner else { return true };
        let is_moved = |plan: &StreamPlan| {
            let view = owner.hub.stream_view(StreamNumber(plan.number));
            view.is_none_or(|view| view.unmoved == 0 && view.fault.is_none() && !view.is_full)
        };
        self.disk.is_idle()
            && self.is_still(u64::MAX)
            && self.ending.is_empty()
            && owner.hub.is_committed()
            && self.plans.iter().all(is_moved)
    }
}

impl World {
    /// What shards have reported of streams.
    pub(crate) fn hear_streams(
        &mut self,
        reports: Vec<(ShardId, Vec<StreamNews>)>,
    ) -> Result<(), String> {
        for (shard, news) in reports {
            for own in &news {
                self.oracle.streams.on_news(shard, own)?;
            }
            let owner = self.streams.as_mut().and_then(|streams| streams.owner.as_mut());
            owner.into_iter().for_each(|owner| owner.hear(shard, news.clone()));
        }
        Ok(())
    }

    /// Something of what only worlds with streams have.
    pub(crate) fn step_streams(&mut self) -> Result<(), String> {
        let Some(streams) = &mut self.streams else { return Ok(()) };
        match streams.random.below(100) {
            0..=24 => drop(self.take_news()?),
            25..=34 => self.work_hub()?,
            35..=54 => drop(streams.disk.step(self.now_ms)),
            55..=61 => drop(self.take_written()?),
            62..=71 => drop(self.carry_orders()?),
            72..=81 => drop(self.let_target_take()?),
            82..=91 => drop(self.take_answer()?),
            92..=93 => self.change_a_mood(),
            94 => self.change_stream_weather(),
            95 => self.operate_streams()?,
            _ => self.look_at_one()?,
        }
        Ok(())
    }

    /// The owner hears of a shard. False: there was nothing.
    fn take_news(&mut self) -> Result<bool, String> {
        let now_ms = self.now_ms;
        let Some(StreamWorld { owner: Some(owner), random, .. }) = &mut self.streams else {
            return Ok(false);
        };
        let Some((shard, news)) = owner.next_news(random) else { return Ok(false) };
        owner.hub.on_news(shard, news, now_ms);
        let works = random.chance(50);
        if works {
            self.work_hub()?;
        }
        Ok(true)
    }

    fn take_written(&mut self) -> Result<bool, String> {
        let now_ms = self.now_ms;
        let Some(StreamWorld { owner: Some(owner), disk, .. }) = &mut self.streams else {
            return Ok(false);
        };
        let Some((stream, id, result)) = disk.next_answer() else { return Ok(false) };
        owner.hub.on_file(stream, id, result, now_ms);
        self.work_hub()?;
        Ok(true)
    }

    /// A shard gets some of its orders.
    fn carry_orders(&mut self) -> Result<bool, String> {
        let Some(StreamWorld { owner: Some(owner), random, .. }) = &mut self.streams else {
            return Ok(false);
        };
        let Some((shard, orders)) = owner.next_orders(random) else { return Ok(false) };
        for order in &orders {
            self.judge_order(order)?;
        }
        self.oracle.trace.note(|| format!("shard {shard} gets {orders:?}"));
        self.node.put(shard, Item::Order((shard, orders)));
        self.turn_if_awake(self.node.driver_of(shard))?;
        Ok(true)
    }

    /// A batch reaches a target.
    fn let_target_take(&mut self) -> Result<bool, String> {
        let now_ms = self.now_ms;
        let Some(streams) = &mut self.streams else { return Ok(false) };
        let Some(number) = streams.any_target() else { return Ok(false) };
        let random = &mut streams.random;
        let target = streams.targets.get_mut(&number);
        let Some(taken) = target.and_then(|target| target.take_one(now_ms, random)) else {
            return Ok(false);
        };
        self.note_taken(number, taken)?;
        Ok(true)
    }

    fn note_taken(&mut self, number: u32, taken: target::Taken) -> Result<(), String> {
        let target::Taken { accepted, unknown, runs } = taken;
        for record in unknown {
            self.oracle.consumers.on_unknown(number, record);
        }
        for record in accepted {
            let run = runs.get(usize::from(record.shard)).copied().unwrap_or_default();
            if let Some(streams) = &mut self.streams {
                streams.toll.accepted += 1;
            }
            self.note(|| format!("target {number} accepts {record:?} in run {run}"));
            self.oracle.consumers.on_accepted(number, record, run, &self.oracle.streams)?;
        }
        Ok(())
    }

    fn take_answer(&mut self) -> Result<bool, String> {
        let now_ms = self.now_ms;
        let Some(streams) = &mut self.streams else { return Ok(false) };
        let Some(number) = streams.any_target() else { return Ok(false) };
        let random = &mut streams.random;
        let target = streams.targets.get_mut(&number);
        let Some((batch, answer)) = target.and_then(|target| target.answer_one(random)) else {
            return Ok(false);
        };
        if let Some(owner) = &mut streams.owner {
            owner.hub.on_answer(ConsumerNumber(number), batch, answer, now_ms);
        }
        self.work_hub()?;
        Ok(true)
    }

    /// The owner does what it has to do now, or a part of it.
    fn work_hub(&mut self) -> Result<(), String> {
        let now_ms = self.now_ms;
        let mut out = Vec::new();
        let Some(StreamWorld { owner: Some(owner), disk, plans, toll, .. }) = &mut self.streams
        else {
            return Ok(());
        };
        owner.hub.work(now_ms, disk, &mut out);
        let is_behind = owner.hub.is_memory_full();
        toll.behind += u64::from(is_behind && !owner.set.is_behind.is_raised());
        owner.set.is_behind.set(is_behind);
        for (plan, settings) in plans.iter().zip(&owner.set.streams) {
            settings.is_full.set(owner.hub.is_full(StreamNumber(plan.number)));
        }
        out.into_iter().try_for_each(|effect| self.on_effect(effect))
    }

    fn on_effect(&mut self, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Order { shard, order } => {
                let owner = self.streams.as_mut().and_then(|it| it.owner.as_mut());
                owner.into_iter().for_each(|owner| owner.order(shard, order.clone()));
            }
            Effect::File { stream, command } => {
                self.judge_command(stream, &command)?;
                self.note_command(stream, &command);
                let Some(streams) = &mut self.streams else { return Ok(()) };
                match &command {
                    StreamCommand::Write { offset: 0, .. } => streams.toll.files += 1,
                    StreamCommand::Delete { .. } => streams.toll.files_deleted += 1,
                    _ => {}
                }
                streams.disk.submit(stream, command);
            }
            Effect::Send { consumer, batch, is_alone, records } => {
                let runs = self.look_at(consumer.0)?;
                let ids: Vec<_> = records.iter().map(|record| record.id).collect();
                self.note(|| format!("{consumer:?} sends {batch:?}: {ids:?}"));
                let logs = &self.oracle.streams;
                self.oracle.consumers.on_sent(consumer.0, &records, &runs, logs)?;
                let Some(streams) = &mut self.streams else { return Ok(()) };
                streams.toll.sent += records.len() as u64;
                if let Some(target) = streams.targets.get_mut(&consumer.0) {
                    target.send((batch, is_alone), records, runs);
                }
            }
            Effect::Happened(happening) => self.on_happening(&happening)?,
        }
        Ok(())
    }

    fn note_command(&mut self, stream: StreamNumber, command: &StreamCommand) {
        let plan =
            self.streams.as_ref().and_then(|it| it.plans.iter().find(|p| p.number == stream.0));
        let Some(identity) = plan.map(StreamPlan::identity) else { return };
        self.oracle.trace.note(|| match command {
            StreamCommand::Write { file, offset, .. } => {
                let blocks = blocks_of(command, identity);
                let headers =
                    blocks.iter().map(|it| (it.header.shard, it.header.first, it.header.next()));
                let headers: Vec<_> = headers.collect();
                format!("stream {}: write file {file} at {offset}: {headers:?}", stream.0)
            }
            StreamCommand::Close { file, offset, .. } => {
                format!("stream {}: close file {file} at {offset}", stream.0)
            }
            StreamCommand::Delete { file } => format!("stream {}: delete file {file}", stream.0),
        });
    }

    fn on_happening(&mut self, happening: &Happening) -> Result<(), String> {
        self.note(|| format!("streams: {happening:?}"));
        let Some(streams) = &mut self.streams else { return Ok(()) };
        match happening {
            Happening::Started { consumer, run } => {
                let (number, run) = (consumer.0, *run);
                self.look_at(number)?;
                self.oracle.consumers.on_started(number, run);
            }
            Happening::Ended { consumer } => {
                streams.ending.remove(&consumer.0);
                streams.targets.remove(&consumer.0);
                self.oracle.consumers.on_ended(consumer.0);
            }
            Happening::Dropped { count, outcome, .. } => {
                if *outcome == Outcome::DroppedDamaged {
                    return Err(format!("records are lost: {happening:?}"));
                }
                streams.toll.dropped += count;
            }
            Happening::Undelivered { consumer, record, stream: None, .. } => {
                streams.toll.given_up += 1;
                self.oracle.consumers.on_given_up(consumer.0, *record);
            }
            Happening::Undelivered { .. } => streams.toll.dead_letters += 1,
            Happening::WriteFault { .. } => streams.toll.write_faults += 1,
            Happening::Full { is_full, .. } => streams.toll.full += u64::from(*is_full),
            Happening::Broken { .. } => return Err(format!("streams are broken: {happening:?}")),
            Happening::State { .. } | Happening::WriteResumed { .. } | Happening::StreamsSet => {}
        }
        Ok(())
    }

    /// Does all that can be done without that time passes. True: there was something.
    pub(crate) fn work_streams(&mut self) -> Result<bool, String> {
        let mut has_worked = false;
        for _ in 0..WORK_ROUNDS_MAX {
            let mut works = false;
            while self.take_news()? {
                works = true;
            }
            let now_ms = self.now_ms;
            while self.streams.as_mut().is_some_and(|streams| streams.disk.step(now_ms)) {
                works = true;
            }
            while self.take_written()? || self.carry_orders()? {
                works = true;
            }
            while self.let_target_take()? || self.take_answer()? {
                works = true;
            }
            let is_due = |streams: &StreamWorld| {
                let hub = streams.owner.as_ref().map(|owner| &owner.hub);
                let at_ms = hub.and_then(streams::Hub::next_deadline);
                hub.is_some_and(streams::Hub::has_work) || at_ms.is_some_and(|it| it <= self.now_ms)
            };
            if self.streams.as_ref().is_some_and(is_due) {
                self.work_hub()?;
                works = true;
            }
            if !works {
                break;
            }
            has_worked = true;
        }
        Ok(has_worked)
    }
}

impl StreamWorld {
    fn any_target(&mut self) -> Option<u32> {
        let busy = self.targets.iter().filter(|(_, target)| !target.is_idle());
        let busy: Vec<u32> = busy.map(|(number, _)| *number).collect();
        (!busy.is_empty()).then(|| busy[self.random.below(busy.len())])
    }
}

/// Steps of all who have something to do, until that is given up.
const WORK_ROUNDS_MAX: usize = 200;

/// Records of a block are those that may be in it.
fn blocks_of(command: &StreamCommand, identity: [u8; 16]) -> Vec<Block> {
    let StreamCommand::Write { file, offset, bytes, .. } = command else { return Vec::new() };
    let begin = if *offset == 0 { FILE_HEADER_BYTES } else { 0 };
    let identity = FileIdentity { stream: identity, number: *file };
    read_blocks(&bytes[begin..], &identity)
}

/// All whole blocks, one behind the other.
fn read_blocks(mut bytes: &[u8], identity: &FileIdentity) -> Vec<Block> {
    let mut blocks = Vec::new();
    while let Ok(block) = Block::read(bytes, identity) {
        bytes = &bytes[block.header.block_bytes() as usize..];
        blocks.push(block);
    }
    blocks
}
