//! Nodes that do not fit their cluster: with the data of another one, or with streams that belong
//! to another one.
//!
//! Such a node ends at its start or stays a standby. It says why, writes nothing to the engine and
//! leaves foreign data as it is. When it is put right, it catches up as any other node.

use cluster::{ClusterId, Effect, LeaseRequest, Record, Request};

use super::Cluster;
use super::member::Member;
use crate::world::World;

/// What a node does not have in common with its cluster, and what becomes of that.
#[derive(Debug)]
pub(crate) struct Oddity {
    /// The cluster that its process takes part in.
    cluster: ClusterId,
    /// Why the process ended at its start.
    refusal: Option<String>,
    /// It has said that its streams cannot be read.
    has_told: bool,
    /// Its data was replaced, and it has not served since.
    is_replaced: bool,
}

impl Default for Oddity {
    fn default() -> Self {
        Self { cluster: CLUSTER, refusal: None, has_told: false, is_replaced: false }
    }
}

impl Oddity {
    /// A process starts.
    pub(crate) fn begin(&mut self, cluster: ClusterId) {
        (self.cluster, self.refusal, self.has_told) = (cluster, None, false);
    }

    pub(crate) fn is_of_other_cluster(&self) -> bool {
        self.cluster != CLUSTER
    }
}

impl Cluster {
    /// What names the cluster at present.
    pub(crate) fn record(&self) -> Vec<u8> {
        if self.other_record_until_ms.is_some() && self.is_record_later {
            return LATER_RECORD.to_vec();
        }
        let id = if self.other_record_until_ms.is_some() { OTHER } else { CLUSTER };
        let shards = self.members[0].copies.len() as u16;
        Record {
            id,
            shards,
            segment_bytes: self.settings.segment_bytes,
            extent: cluster::Extent::One,
        }
        .to_bytes()
    }
}

impl Member {
    /// The machine comes back with the disk of another cluster's node. `end`: of the stream.
    pub(crate) fn get_foreign_data(&mut self, end: cluster::Sequence) {
        self.copies.iter_mut().for_each(|copy| copy.become_foreign(FOREIGN, end));
    }

    fn has_foreign_data(&self) -> bool {
        self.copies.iter().any(|copy| copy.is_foreign)
    }

    /// Does it want what a node must not that is of another cluster?
    fn oversteps(&self, effect: &Effect) -> bool {
        let is_write = matches!(
            effect,
            Effect::Ask(_, Request::Append { .. } | Request::Purge { .. })
                | Effect::AskLease(_, LeaseRequest::Write { .. })
                | Effect::Role(cluster::Role::Claiming { .. } | cluster::Role::Active { .. })
        );
        let removes = matches!(effect, Effect::StartOver(_) | Effect::Apply(..));
        (is_write && self.is_barred()) || (removes && self.has_foreign_data())
    }
}

impl World {
    /// A process did not start.
    pub(crate) fn on_refused_start(&mut self, number: usize, why: String) {
        let now_ms = self.now_ms;
        self.note(|| format!("node {number} does not start: {why}"));
        let Some(cluster) = &mut self.cluster else { return };
        let member = &mut cluster.members[number];
        let is_other = why.contains("is the local copy of another cluster");
        let is_later = why.contains("the cluster has format 4") && why.contains("use a newer one");
        let is_right = is_later || (is_other && member.is_barred());
        match (is_later, member.has_foreign_data()) {
            (true, _) => cluster.toll.later_records_refused += 1,
            (_, true) => cluster.toll.foreign_copies_refused += 1,
            (_, false) => cluster.toll.other_records_refused += 1,
        }
        member.oddity.refusal = Some(why);
        member.until_ms = Some(now_ms + RESTART_MS);
        if !is_right {
            self.break_rule(number, "does not start, and nothing is wrong");
        }
    }

    /// Before an effect is carried out.
    pub(crate) fn watch_effect(&mut self, number: usize, effect: &Effect) {
        let Some(cluster) = &self.cluster else { return };
        if cluster.members[number].oversteps(effect) {
            self.break_rule(number, "writes, though its data or its streams are another cluster's");
        }
        if let Err(rule) = self.watch_version(number, effect) {
            self.broken_rule.get_or_insert(rule);
        }
    }

    fn break_rule(&mut self, number: usize, what: &str) {
        let rule = format!("node {number} {what}");
        self.broken_rule.get_or_insert(rule);
    }

    /// For a while the bucket names another cluster, or has the format of a later program; the
    /// streams are what they were.
    pub(crate) fn replace_record(&mut self, number: usize) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        if cluster.other_record_until_ms.is_some() {
            return Ok(());
        }
        let other_ms = OTHER_RECORD_MS[cluster.random.below(OTHER_RECORD_MS.len())];
        cluster.other_record_until_ms = Some(now_ms + other_ms);
        cluster.is_record_later = cluster.random.chance(30);
        cluster.toll.records_replaced += 1;
        self.note(|| format!("the bucket says something else for {other_ms} ms"));
        self.kill(number)
    }

    /// What no clock ends by itself: an operator sees it.
    pub(crate) fn look_at_oddities(&mut self) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        for member in &mut cluster.members {
            if !member.oddity.is_of_other_cluster() || member.oddity.has_told {
                continue;
            }
            let mut streams = member.agent.iter().flat_map(|agent| agent.streams());
            let tells =
                streams.any(|it| it.fault.is_some_and(|it| it.contains("is of another cluster")));
            member.oddity.has_told = tells;
            cluster.toll.foreign_streams_refused += u64::from(tells);
        }
        if cluster.other_record_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.restore_record()?;
        }
        Ok(())
    }

    /// The streams are this cluster's again. Nodes that took part in the other one start again.
    fn restore_record(&mut self) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        cluster.other_record_until_ms = None;
        let is_odd = |it: &usize| cluster.members[*it].oddity.is_of_other_cluster();
        let odd: Vec<usize> = (0..cluster.members.len()).filter(is_odd).collect();
        self.note(|| format!("the streams are this cluster's again, {odd:?} start again"));
        for number in odd {
            let Some(cluster) = &mut self.cluster else { return Ok(()) };
            if cluster.members[number].agent.is_some() {
                self.end_process(number, None)?;
                self.begin_process(number);
            }
        }
        Ok(())
    }

    /// A node that was refused is to start again: an operator has looked at it, or not yet.
    pub(crate) fn put_right(&mut self, number: usize) {
        let Some(cluster) = &mut self.cluster else { return };
        let is_seen = cluster.is_calm() || cluster.random.chance(50);
        let member = &mut cluster.members[number];
        if member.oddity.refusal.is_none() || !member.has_foreign_data() || !is_seen {
            return;
        }
        member.copies.iter_mut().for_each(super::copy::Copy::clear);
        member.oddity.is_replaced = true;
        self.note(|| format!("node {number} gets an empty data directory"));
    }

    /// A node serves. It must not have been put right for nothing.
    pub(crate) fn note_served(&mut self, number: usize) {
        let Some(cluster) = &mut self.cluster else { return };
        let member = &mut cluster.members[number];
        let is_replaced = std::mem::take(&mut member.oddity.is_replaced);
        cluster.toll.served_after_replacement += u64::from(is_replaced);
        let is_mended = std::mem::take(&mut member.is_mended);
        cluster.toll.served_after_upgrade += u64::from(is_mended);
        let is_new = std::mem::take(&mut member.setup.is_new);
        cluster.toll.served_with_other_settings += u64::from(is_new);
        if member.is_barred() {
            self.break_rule(number, "serves, though its data or its streams are another cluster's");
        }
    }

    /// At the end nothing is wrong: all nodes have to catch up.
    pub(crate) fn await_all_caught_up(&mut self) -> Result<(), String> {
        for _ in 0..CATCH_UP_ROUNDS_MAX {
            let Some(cluster) = &self.cluster else { return Ok(()) };
            for member in 0..cluster.members.len() {
                while self.deliver(member) {}
            }
            self.pass_cluster_time(100)?;
            self.work_cluster()?;
            let Some(cluster) = &self.cluster else { return Ok(()) };
            let serves = |number: usize| cluster.serving == Some(number);
            let follows = |it: &Member| {
                it.agent.as_ref().is_some_and(|agent| {
                    agent.streams().all(|stream| stream.has_caught_up && stream.fault.is_none())
                })
            };
            let members = cluster.members.iter().enumerate();
            if members.into_iter().all(|(number, member)| serves(number) || follows(member)) {
                return Ok(());
            }
        }
        Err(format!("not all nodes catch up: {}", self.standing()))
    }
}

const LATER_RECORD: &[u8] = br#"{"format":4,"name":"cluster of a later sim"}"#;

const CLUSTER: ClusterId = *b"cluster of a sim";
/// Of which the data is.
const FOREIGN: ClusterId = *b"cluster far away";
/// To which the streams belong for a while.
const OTHER: ClusterId = *b"cluster of other";

/// A process that ended at its start is started again after so long.
const RESTART_MS: u64 = 2_000;

/// How long the bucket says something else.
const OTHER_RECORD_MS: [u64; 3] = [1_000, 10_000, 40_000];

/// Tenths of a second in which all nodes have to catch up when nothing is wrong.
const CATCH_UP_ROUNDS_MAX: usize = 200;
