//! What operators do with consumers, and what befalls disks and targets.

use broker::streams::ConsumerNumber;
use streams::{Position, Seek};

use super::StreamWorld;
use super::disk::Faults;
use super::target::Mood;
use crate::world::World;

/// As many consumers as a world has at most.
const CONSUMERS_MAX: usize = 6;

impl World {
    pub(super) fn change_a_mood(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        let numbers: Vec<u32> = streams.targets.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        let number = numbers[streams.random.below(numbers.len())];
        if let Some(target) = streams.targets.get_mut(&number) {
            target.change(&mut streams.random);
            let mood = target.mood;
            self.note(|| format!("target {number} is {mood:?}"));
        }
    }

    pub(super) fn change_stream_weather(&mut self) {
        let Some(streams) = self.streams.as_mut().filter(|streams| streams.has_weather) else {
            return;
        };
        let faults = &mut streams.disk.faults;
        match streams.random.below(6) {
            0 => faults.no_space_percent = 50,
            1 => faults.fail_next_write = true,
            2 => faults.fail_next_sync = true,
            3 => faults.fail_reads = true,
            _ => *faults = Faults::default(),
        }
        let faults = *faults;
        self.note(|| format!("the disk of streams: {faults:?}"));
    }

    /// From here on nothing more goes wrong by itself.
    pub(crate) fn end_stream_calamities(&mut self) {
        let now_ms = self.now_ms;
        let Some(streams) = &mut self.streams else { return };
        streams.disk.faults = Faults::default();
        streams.targets.values_mut().for_each(|target| target.mood = Mood::Well);
        for number in std::mem::take(&mut streams.paused) {
            if let Some(owner) = &mut streams.owner {
                owner.hub.resume(ConsumerNumber(number), now_ms);
            }
        }
    }

    pub(super) fn operate_streams(&mut self) -> Result<(), String> {
        let Some(streams) = &mut self.streams else { return Ok(()) };
        if streams.random.chance(50) {
            return Ok(());
        }
        let numbers: Vec<u32> = streams.consumers.keys().copied().collect();
        let what = streams.random.below(10);
        if numbers.is_empty() || what == 0 {
            return self.add_consumer();
        }
        let number = numbers[streams.random.below(numbers.len())];
        match what {
            1 => self.remove_consumer(number),
            2..=4 => self.pause_consumer(number),
            5..=7 => self.resume_consumer(number),
            _ => self.seek_consumer(number)?,
        }
        Ok(())
    }

    fn add_consumer(&mut self) -> Result<(), String> {
        let Some(streams) = &mut self.streams else { return Ok(()) };
        if streams.consumers.len() >= CONSUMERS_MAX {
            return Ok(());
        }
        let plan = streams.add_plan();
        let Some(owner) = &mut streams.owner else { return Ok(()) };
        let added = owner.hub.add_consumer(plan.definition(), &std::collections::BTreeMap::new());
        added.map_err(|error| error.to_string())?;
        self.oracle.consumers.on_defined(&plan);
        self.note(|| format!("added: {plan:?}"));
        self.look_at(plan.number).map(drop)
    }

    pub(super) fn remove_consumer(&mut self, number: u32) {
        let now_ms = self.now_ms;
        let Some(StreamWorld { owner: Some(owner), consumers, paused, ending, toll, .. }) =
            &mut self.streams
        else {
            return;
        };
        owner.hub.remove_consumer(ConsumerNumber(number), now_ms);
        consumers.remove(&number);
        paused.remove(&number);
        ending.insert(number);
        toll.removed += 1;
        self.note(|| format!("removed: consumer {number}"));
    }

    fn pause_consumer(&mut self, number: u32) {
        let now_ms = self.now_ms;
        let Some(StreamWorld { owner: Some(owner), paused, .. }) = &mut self.streams else {
            return;
        };
        owner.hub.pause(ConsumerNumber(number), now_ms);
        paused.insert(number);
        self.note(|| format!("paused: consumer {number}"));
    }

    fn resume_consumer(&mut self, number: u32) {
        let now_ms = self.now_ms;
        let Some(StreamWorld { owner: Some(owner), paused, .. }) = &mut self.streams else {
            return;
        };
        owner.hub.resume(ConsumerNumber(number), now_ms);
        paused.remove(&number);
        self.note(|| format!("resumed: consumer {number}"));
    }

    fn seek_consumer(&mut self, number: u32) -> Result<(), String> {
        let now_ms = self.now_ms;
        let shards = self.node.shard_count();
        let Some(StreamWorld { owner: Some(owner), random, toll, .. }) = &mut self.streams else {
            return Ok(());
        };
        let to = match random.below(4) {
            0 => Seek::Beginning,
            1 => Seek::End,
            2 => Seek::Time(now_ms.saturating_sub(random.below(60_000) as u64)),
            _ => {
                let ordinals = (0..shards).map(|shard| (shard, random.below(100) as u64));
                Seek::Position(Position(ordinals.collect()))
            }
        };
        owner.hub.seek(ConsumerNumber(number), &to, now_ms);
        toll.seeks += 1;
        self.note(|| format!("consumer {number} seeks {to:?}"));
        self.look_at(number).map(drop)
    }
}
