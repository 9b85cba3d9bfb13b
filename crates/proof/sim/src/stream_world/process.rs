//! The owner begins and ends with its process.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::Shard;
use broker::streams::{ConsumerNumber, StreamFound, StreamNumber, StreamSet, StreamsFound};
use storage::testing::Crash;
use streams::Hub;

use super::owner::{Owner, reach_of};
use super::{StreamPlan, StreamWorld, TargetModel};
use crate::sabotage::Sabotage;
use crate::world::World;

impl World {
    /// The process ends, or the power for all disks. What was sent may still arrive.
    pub(crate) fn crash_streams(&mut self, crash: Crash) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(streams) = &mut self.streams else { return Ok(()) };
        streams.owner = None;
        streams.disk.crash(crash);
        let random = &mut streams.random;
        let late: Vec<_> = (streams.targets.iter_mut())
            .flat_map(|(number, target)| {
                let taken = target.lose_sender(now_ms, random);
                taken.into_iter().map(|taken| (*number, taken))
            })
            .collect();
        late.into_iter().try_for_each(|(number, taken)| self.note_taken(number, taken))
    }

    /// Another owner, from what journals and files have. Its shards have no drivers yet.
    pub(crate) fn start_streams(&mut self) -> Result<(), String> {
        if self.streams.is_none() {
            return Ok(());
        }
        let shards = self.node.shard_count();
        if let Some(Sabotage::Streams(flaw)) = self.options.sabotage {
            (0..shards).for_each(|shard| self.node.shard(shard).plant_stream_flaw(flaw));
        }
        let found: Vec<StreamsFound> =
            (0..shards).map(|shard| self.node.shard(shard).streams_found()).collect();
        self.judge_found(&found)?;
        let reuses_life = self.options.sabotage == Some(Sabotage::ReuseLife);
        let now_ms = self.now_ms;
        let Some(streams) = &mut self.streams else { return Ok(()) };
        streams.settings.epoch += 1;
        let shares_numbers = self.options.sabotage == Some(Sabotage::SharedFileNumbers);
        if streams.disk.replica.is_some() && !shares_numbers {
            streams.settings.first_file = cluster::first_file_of(streams.settings.epoch.into());
        }
        streams.settings.life = if reuses_life { 7 } else { streams.random.next() };
        let settings = streams.plans.iter().map(StreamPlan::settings).collect();
        let life = streams.settings.life;
        let set = Arc::new(StreamSet { life, streams: settings, is_behind: Arc::default() });
        let mut hub = Hub::new(streams.settings.clone());
        hub.set_streams(Arc::clone(&set));
        let mut first = Vec::new();
        hub.work(now_ms, &streams.disk, &mut first);
        streams.add_all(&mut hub, &found, now_ms)?;
        streams.owner = Some(Owner::new(hub, set, shards));
        for effect in first {
            match effect {
                // Before the first publish.
                streams::Effect::Order { shard, order } => {
                    self.node.shard(shard).on_stream_order(order, now_ms);
                }
                other => self.on_effect(other)?,
            }
        }
        self.look_at_all()?;
        self.oracle.streams.end_start();
        Ok(())
    }

    /// All consumers are removed, and files have all records: the journals have nothing of streams.
    pub(crate) fn end_streams(&mut self) -> Result<(), String> {
        let Some(streams) = &self.streams else { return Ok(()) };
        let numbers: Vec<u32> = streams.consumers.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.remove_consumer(number));
        for _ in 0..END_ROUNDS_MAX {
            self.let_move()?;
            if !self.work_streams()? && self.streams.as_ref().is_none_or(StreamWorld::is_at_rest) {
                return self.forget_streams();
            }
            self.pass_ms(500)?;
        }
        let unrest = self.streams.as_ref().map(StreamWorld::unrest);
        Err(format!("streams do not come to rest: {unrest:?}"))
    }

    /// Streams are removed, too. The journals had no more of them than a fact for each file.
    fn forget_streams(&mut self) -> Result<(), String> {
        let before = self.live_bytes();
        let Some(StreamWorld { owner: Some(owner), disk, plans, .. }) = &mut self.streams else {
            return Ok(());
        };
        let files: usize = plans.iter().map(|plan| disk.numbers(plan.number).len() + 1).sum();
        owner.hub.set_streams(Arc::default());
        self.work_streams()?;
        self.let_move()?;
        let most = FACT_BYTES_MAX * files as u64;
        let freed = before.iter().zip(self.live_bytes()).map(|(was, is)| was.saturating_sub(is));
        match freed.max().filter(|freed| *freed > most) {
            Some(freed) => Err(format!("a journal had {freed} bytes of streams that are in files")),
            None => Ok(()),
        }
    }

    fn live_bytes(&self) -> Vec<u64> {
        let journals = self.node.shards().map(Shard::journal);
        journals.map(|journal| journal.map_or(0, storage::Journal::live_bytes)).collect()
    }

    fn judge_found(&mut self, found: &[StreamsFound]) -> Result<(), String> {
        let Some(streams) = &self.streams else { return Ok(()) };
        let none = StreamFound::default();
        for plan in &streams.plans {
            for (own, shard) in found.iter().zip(0..) {
                let own = own.streams.get(&StreamNumber(plan.number)).unwrap_or(&none);
                let name = (plan.number, shard);
                self.oracle.trace.note(|| format!("stream {name:?}: {own:?}"));
                self.oracle.streams.on_start(name, own)?;
                self.oracle.consumers.on_start(name, own.next);
            }
        }
        Ok(())
    }
}

/// What a fact of a file takes.
const FACT_BYTES_MAX: u64 = 60;

/// Rounds in which consumers that were removed have to be gone.
const END_ROUNDS_MAX: usize = 300;

impl StreamWorld {
    fn add_all(
        &mut self,
        hub: &mut Hub,
        found: &[StreamsFound],
        now_ms: u64,
    ) -> Result<(), String> {
        self.disk.open_directories();
        for plan in &self.plans {
            let reach = reach_of(found, plan.number);
            let files = self.disk.recover(plan.number, plan.identity(), &reach);
            let files = files.map_err(|why| format!("no start: stream {}: {why}", plan.number))?;
            let own = found.iter().zip(0..).filter_map(|(found, shard)| {
                Some((shard, found.streams.get(&StreamNumber(plan.number))?.clone()))
            });
            let own: BTreeMap<u16, StreamFound> = own.collect();
            hub.add_stream(plan.definition(), files, &own).map_err(|error| error.to_string())?;
        }
        if let Some(replica) = &mut self.disk.replica {
            let names = self.plans.iter().flat_map(|plan| {
                let reach = reach_of(found, plan.number);
                reach.into_keys().map(|file| (plan.number, file))
            });
            replica.begin(self.settings.epoch, names);
        }
        for plan in self.consumers.values() {
            let number = ConsumerNumber(plan.number);
            let cursors = found
                .iter()
                .zip(0..)
                .filter_map(|(found, shard)| Some((shard, found.cursors.get(&number)?.clone())));
            let cursors: BTreeMap<u16, Vec<u8>> = cursors.collect();
            hub.add_consumer(plan.definition(), &cursors).map_err(|error| error.to_string())?;
            if self.paused.contains(&plan.number) {
                hub.pause(number, now_ms);
            }
        }
        for (found, shard) in found.iter().zip(0..) {
            let unknown = found.cursors.keys().filter(|it| !self.consumers.contains_key(&it.0));
            unknown.for_each(|number| hub.forget_consumer(shard, *number));
        }
        // What was removed is forgotten without a word.
        for number in std::mem::take(&mut self.ending) {
            self.targets.remove(&number);
        }
        let known = &self.consumers;
        self.targets.retain(|number, _| known.contains_key(number));
        for (number, plan) in known {
            let target = || TargetModel::new(plan.refused_of);
            self.targets.entry(*number).or_insert_with(target);
        }
        Ok(())
    }
}
