//! The configuration of each node, and what nodes find when they compare theirs.

use std::collections::BTreeSet;

use broker::ShardId;
use cluster::{Facts, Misfit, Peers, Record};

use super::Cluster;
use super::member::Member;
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::world::World;

/// What an operator has written for one node.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Its name, which another node may have too.
    pub(crate) name: String,
    /// The number of shards that it asks for. The cluster's record decides.
    shards: ShardId,
    /// Of its journals. The size of segments is the record's.
    journal: storage::Settings,
    /// It was changed, and the node has not served since.
    pub(crate) is_new: bool,
}

/// What one process knows of the others.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) own: Facts,
    peers: Peers,
    /// Processes that were heard: node and life.
    heard: BTreeSet<(usize, u64)>,
}

impl Setup {
    pub(crate) fn new(number: usize, shards: ShardId, journal: &storage::Settings) -> Self {
        Self { name: name_of(number), shards, journal: journal.clone(), is_new: false }
    }

    /// Another one, maybe with the name of another node.
    fn change(&mut self, number: usize, count: usize, shards: ShardId, random: &mut Random) {
        self.name = name_of(if random.chance(50) { random.below(count) } else { number });
        self.shards = 1 + random.below(usize::from(shards) + 2) as ShardId;
        self.journal.segment_bytes = SEGMENT_BYTES[random.below(SEGMENT_BYTES.len())];
        self.journal.slack_segments = random.below(4) as u32;
        self.journal.retry_ms = RETRY_MS[random.below(RETRY_MS.len())];
        self.journal.batch_bytes_max = BATCH_BYTES_MAX[random.below(BATCH_BYTES_MAX.len())];
        self.is_new = true;
    }

    /// Checksum of what should be the same on all nodes.
    pub(crate) fn checksum(&self) -> String {
        format!(
            "{:08x}",
            storage::checksum(format!("{} {:?}", self.shards, self.journal).as_bytes())
        )
    }

    /// How many shards it has in this cluster. A planted bug goes by the configuration.
    pub(crate) fn shards(&self, record: &Record, sabotage: Option<Sabotage>) -> ShardId {
        match sabotage {
            Some(Sabotage::OwnShards) => self.shards,
            _ => record.shards,
        }
    }

    /// Its journals in this cluster.
    pub(crate) fn journal(&self, segment_bytes: u32) -> storage::Settings {
        storage::Settings { segment_bytes, ..self.journal.clone() }
    }

    /// The number of a process: a planted bug gives the same one to all of the same name.
    pub(crate) fn instance(&self, seed: u64, sabotage: Option<Sabotage>) -> u64 {
        match sabotage {
            Some(Sabotage::SameInstance) => {
                Random::new(storage::checksum(self.name.as_bytes()).into()).next()
            }
            _ => Random::new(seed).next(),
        }
    }
}

impl Comparison {
    pub(crate) fn new(own: Facts) -> Self {
        Self { peers: Peers::new(own.clone()), own, heard: BTreeSet::new() }
    }

    /// What it finds when it hears of another process for the first time. `None`: it was heard.
    fn hear(&mut self, other: (usize, u64), facts: &Facts) -> Option<Vec<Misfit>> {
        let found = self.peers.hear(facts);
        let is_first = self.heard.insert(other);
        (is_first || !found.is_empty()).then_some(found)
    }

    /// What it has to find.
    fn differences(&self, other: &Facts) -> Vec<Misfit> {
        let mut differences = Vec::new();
        differences.extend((self.own.node == other.node).then_some(Misfit::Name));
        differences.extend((self.own.version != other.version).then_some(Misfit::Version));
        differences.extend((self.own.config != other.config).then_some(Misfit::Config));
        differences
    }
}

impl Cluster {
    /// Nodes that reach each other say what they are.
    fn compare(&mut self, listener: usize, speaker: usize) -> Result<(), String> {
        let is_heard = |it: &Member| it.is_running() && it.comparison.is_some();
        let is_cut = |it: &usize| self.engine.links[*it].is_cut();
        if listener == speaker || [listener, speaker].iter().any(is_cut) {
            return Ok(());
        }
        let other = &self.members[speaker];
        let Some(facts) = other.comparison.as_ref().filter(|_| is_heard(other)) else {
            return Ok(());
        };
        let (facts, life) = (facts.own.clone(), other.life);
        let own = &mut self.members[listener];
        if !own.is_running() {
            return Ok(());
        }
        let Some(comparison) = &mut own.comparison else { return Ok(()) };
        let Some(found) = comparison.hear((speaker, life), &facts) else { return Ok(()) };
        if found != comparison.differences(&facts) {
            return Err(format!("node {listener} finds {found:?} at node {speaker}: {facts:?}"));
        }
        for misfit in found {
            match misfit {
                Misfit::Name => self.toll.names_told += 1,
                Misfit::Version => self.toll.versions_told += 1,
                Misfit::Config => self.toll.configurations_told += 1,
            }
        }
        Ok(())
    }
}

impl World {
    /// A node is started with another configuration.
    pub(crate) fn reconfigure(&mut self, number: usize) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        let Cluster { members, random, toll, .. } = cluster;
        let (count, shards) = (members.len(), members[number].copies.len() as ShardId);
        members[number].setup.change(number, count, shards, random);
        toll.reconfigured += 1;
        let setup = members[number].setup.clone();
        self.note(|| format!("node {number} is configured anew: {setup:?}"));
        self.kill(number)
    }

    /// Once in a second each node says what it is.
    pub(crate) fn compare_members(&mut self) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        if now_ms < cluster.compared_ms + COMPARE_MS {
            return Ok(());
        }
        cluster.compared_ms = now_ms;
        let count = cluster.members.len();
        for pair in 0..count * count {
            cluster.compare(pair / count, pair % count)?;
        }
        Ok(())
    }
}

fn name_of(number: usize) -> String {
    format!("n{number}")
}

/// How often nodes say what they are.
const COMPARE_MS: u64 = 1000;

/// What is configured, and does not count.
const SEGMENT_BYTES: [u32; 3] = [64 << 10, 128 << 10, 1 << 20];

const RETRY_MS: [u32; 3] = [50, 200, 1000];

const BATCH_BYTES_MAX: [u32; 2] = [4 << 10, 1 << 20];
