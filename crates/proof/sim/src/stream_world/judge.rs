//! What has to hold of orders, blocks, files and sums.

use std::collections::{BTreeMap, BTreeSet};

use broker::ShardId;
use broker::streams::{ConsumerNumber, StreamChange, StreamNumber, StreamOrder};
use storage::stream::{FILE_HEADER_BYTES, FileIdentity, StreamCommand};

use super::{StreamPlan, StreamWorld, blocks_of, read_blocks};
use crate::world::World;

impl World {
    /// A journal releases only what the medium has.
    pub(super) fn judge_order(&self, order: &StreamOrder) -> Result<(), String> {
        let StreamChange::Archived { stream, file, end, .. } = &order.change else { return Ok(()) };
        let Some(streams) = &self.streams else { return Ok(()) };
        let bytes = streams.disk.durable_bytes((stream.0, *file));
        match bytes >= *end {
            true => Ok(()),
            false => Err(format!(
                "a journal is to release what file {file} of stream {} has below {end}, and the \
                 medium has {bytes} bytes of it",
                stream.0
            )),
        }
    }

    /// Files are made of records that outlive a loss of power.
    pub(super) fn judge_command(
        &self,
        stream: StreamNumber,
        command: &StreamCommand,
    ) -> Result<(), String> {
        let Some(plan) = self.stream_plan(stream.0) else { return Ok(()) };
        for block in blocks_of(command, plan.identity()) {
            let name = (stream.0, block.header.shard);
            for record in block.records() {
                self.oracle.streams.judge_archived(name, record.ordinal, record.bytes)?;
            }
        }
        Ok(())
    }

    fn stream_plan(&self, number: u32) -> Option<&StreamPlan> {
        let streams = self.streams.as_ref()?;
        streams.plans.iter().find(|plan| plan.number == number)
    }

    /// A consumer shows its sums. Returns the run of each shard.
    pub(super) fn look_at(&mut self, number: u32) -> Result<Vec<u64>, String> {
        let now_ms = self.now_ms;
        let Some(StreamWorld { owner: Some(owner), .. }) = &mut self.streams else {
            return Ok(Vec::new());
        };
        let Some(view) = owner.hub.view(ConsumerNumber(number), now_ms) else {
            return Ok(Vec::new());
        };
        let logs = &self.oracle.streams;
        self.oracle.consumers.on_view(&view, logs)?;
        Ok(view.shards.iter().map(|shard| shard.run).collect())
    }

    pub(super) fn look_at_one(&mut self) -> Result<(), String> {
        let Some(streams) = &mut self.streams else { return Ok(()) };
        let numbers: Vec<u32> = streams.consumers.keys().copied().collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let number = numbers[streams.random.below(numbers.len())];
        self.look_at(number).map(drop)
    }

    pub(super) fn look_at_all(&mut self) -> Result<(), String> {
        let numbers = self.streams.as_ref().map(|streams| streams.consumers.keys().copied());
        let numbers: Vec<u32> = numbers.into_iter().flatten().collect();
        numbers.into_iter().try_for_each(|number| self.look_at(number).map(drop))
    }

    /// All is at rest: files have all records, and consumers an outcome for each.
    pub(crate) fn judge_streams(&mut self) -> Result<(), String> {
        self.look_at_all()?;
        let now_ms = self.now_ms;
        let (logs, consumers) = (&self.oracle.streams, &self.oracle.consumers);
        let Some(StreamWorld { owner: Some(owner), disk, plans, toll, .. }) = &mut self.streams
        else {
            return Ok(());
        };
        let numbers: Vec<u32> =
            self.oracle.consumers.numbers().filter(|_| !plans.is_empty()).collect();
        let mut floors: BTreeMap<(u32, ShardId), u64> = BTreeMap::new();
        for number in numbers {
            let Some(view) = owner.hub.view(ConsumerNumber(number), now_ms) else { continue };
            let plan = plans.iter().find(|plan| plan.number == view.stream.0);
            plan.map_or(Ok(()), |plan| consumers.judge(&view, plan, logs))?;
            for shard in &view.shards {
                let floor = floors.entry((view.stream.0, shard.shard)).or_insert(u64::MAX);
                *floor = (*floor).min(shard.floor);
            }
        }
        toll.stored = logs.stored();
        for plan in plans.iter() {
            let mut found: BTreeMap<ShardId, BTreeSet<u64>> = BTreeMap::new();
            for number in disk.numbers(plan.number) {
                let content = disk.content((plan.number, number)).unwrap_or_default();
                let identity = FileIdentity { stream: plan.identity(), number };
                let content = content.get(FILE_HEADER_BYTES..).unwrap_or_default();
                for block in read_blocks(content, &identity) {
                    let own = found.entry(block.header.shard).or_default();
                    for record in block.records() {
                        let name = (plan.number, block.header.shard);
                        logs.judge_archived(name, record.ordinal, record.bytes)?;
                        own.insert(record.ordinal);
                    }
                }
            }
            for shard in 0..self.node.shared.homes.shards() {
                let (own, name) = (found.remove(&shard).unwrap_or_default(), (plan.number, shard));
                let next = logs.log(name).len() as u64;
                let floor = floors.get(&name).copied().unwrap_or(u64::MAX);
                judge_files(plan, &own, next, floor)
                    .map_err(|rule| format!("stream {}, shard {shard}: {rule}", plan.number))?;
            }
        }
        Ok(())
    }
}

/// `own`: ordinals in files.
fn judge_files(
    plan: &StreamPlan,
    own: &BTreeSet<u64>,
    next: u64,
    floor: u64,
) -> Result<(), String> {
    let oldest = own.first().copied().unwrap_or(next);
    if let Some(missing) = (oldest..next).find(|ordinal| !own.contains(ordinal)) {
        return Err(format!("record {missing} is in no file, and {oldest} is"));
    }
    if oldest > 0 && !plan.may_drop() {
        return Err(format!("records below {oldest} are in no file, and it has no limits"));
    }
    match oldest > floor && !plan.may_drop_unread() {
        true => Err(format!("records below {oldest} are in no file, a consumer is at {floor}")),
        false => Ok(()),
    }
}
