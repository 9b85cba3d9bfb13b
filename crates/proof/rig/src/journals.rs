//! Journals on simulated disks, crashes, and starts on what the disks have.

use std::sync::Arc;

use broker::{Homes, Limits, Replay, Settings, Shard, Shared};
use policy::Access;
use storage::testing::{Crash, SimDisk};
use storage::{Identity, Journal, Stats, Status};

use crate::lab::open_scopes;
use crate::{Conn, Lab, persistent, retained};

/// Journals small enough that a test can fill and reclaim them. What nobody waits for is written at
/// once, so that a crash finds it.
pub fn journal_settings() -> storage::Settings {
    storage::Settings { lazy_commit_ms: 0, ..storage::Settings::with_segment_bytes(64 * 1024) }
}

impl Lab {
    /// With journals on simulated disks.
    pub fn durable(shard_count: u16) -> Self {
        Self::durable_with(shard_count, Settings::default())
    }

    pub fn durable_with(shard_count: u16, settings: Settings) -> Self {
        Self::durable_by(shard_count, settings, journal_settings())
    }

    pub fn durable_by(
        shard_count: u16,
        settings: Settings,
        journal_settings: storage::Settings,
    ) -> Self {
        let mut lab = Self::with(shard_count, settings, Access::open());
        lab.add_disks(journal_settings);
        lab.disks.iter_mut().for_each(SimDisk::record_writes);
        lab.open_journals();
        lab
    }

    /// An empty disk for each shard. What is written is not recorded for a standby.
    pub fn add_disks(&mut self, settings: storage::Settings) {
        self.journal_settings = settings;
        self.disks = (0..self.shared.homes.shards()).map(|id| SimDisk::new(id.into())).collect();
    }

    /// The broker ends as it is, and starts again on what the disks have. All connections are gone.
    pub fn crash(&mut self, crash: Crash) {
        for disk in &mut self.disks {
            disk.crash(crash);
        }
        self.restart();
    }

    /// The same with an owner of a cell.
    pub(crate) fn crash_as(&mut self, crash: Crash, epoch: u64) {
        for disk in &mut self.disks {
            disk.crash(crash);
        }
        let (settings, homes) = (self.shared.settings.clone(), self.shared.homes);
        self.restart_with(Shared::of_cell(settings, homes, epoch, 7));
    }

    /// New shards on the same disks.
    pub fn restart(&mut self) {
        let homes = self.shared.homes;
        self.restart_with(Shared::new(self.shared.settings.clone(), homes, 11));
    }

    fn restart_with(&mut self, shared: Arc<Shared>) {
        self.shared = shared;
        let count = self.shared.homes.shards();
        open_scopes(&self.shared);
        self.shards =
            (0..count).map(|id| Shard::new(id, self.shared.clone(), Access::open())).collect();
        self.peers.clear();
        self.open_journals();
    }

    /// Shards go on with what their disks have.
    pub fn open_journals(&mut self) {
        let (settings, limits) = (self.journal_settings.clone(), Arc::new(Limits::default()));
        let shards = self.shared.homes.shards();
        for (shard, disk) in self.shards.iter_mut().zip(&self.disks) {
            let (id, mut replay) = (shard.id(), Replay::new(7));
            let recovery = disk
                .read_back((id, shards), &settings, &mut |record, ledger| {
                    replay.on_record(record, ledger);
                })
                .expect("a sound log");
            let identity = Identity { id: [7; 16], shard: id, shards };
            let recovered = recovery.finish(identity);
            let Some((followed, replay_followed)) = follow(disk, identity, &settings) else {
                shard
                    .open_journal(recovered, settings.clone(), replay, &limits, self.now_ms)
                    .expect("records of this version");
                continue;
            };
            // A standby that has seen every write of all lives has the same.
            assert_eq!(format!("{:?}", followed.ledger), format!("{:?}", recovered.ledger));
            let shared = Shared::new(self.shared.settings.clone(), Homes::of_one_cell(shards), 11);
            open_scopes(&shared);
            let mut other = Shard::new(id, shared, Access::open());
            let expected = other
                .open_journal(recovered, settings.clone(), replay, &limits, self.now_ms)
                .expect("records of this version");
            let found = shard
                .open_journal(followed, settings.clone(), replay_followed, &limits, self.now_ms)
                .expect("records of this version");
            assert_eq!(found, expected);
            let sizes = |shard: &Shard| {
                let stats = shard.journal().expect("a log").stats();
                (stats.live_bytes, stats.used_bytes, stats.segments)
            };
            assert_eq!(sizes(shard), sizes(&other));
        }
        broker::settle(&mut self.shards, self.now_ms);
        self.settle();
        let are_ready =
            self.shards.iter().all(|shard| shard.journal().is_none_or(Journal::is_ready));
        assert!(are_ready, "the logs are open");
    }

    /// The disks go on, after they stood still.
    pub fn let_disks_work(&mut self) {
        self.disks_stand_still = false;
        self.settle();
    }

    pub fn log_stats(&self, shard: usize) -> Stats {
        self.shards[shard].journal().expect("a log").stats()
    }

    pub fn is_poisoned(&self, shard: usize) -> bool {
        matches!(self.shards[shard].journal_status(), Some(Status::Poisoned(_)))
    }

    pub fn is_full(&self, shard: usize) -> bool {
        matches!(self.shards[shard].journal_status(), Some(Status::Full(_)))
    }

    /// Publishes on a topic that the first shard keeps until its disk is full.
    pub fn fill_disk(&mut self, publisher: Conn, topic: &str) {
        self.disks[0].faults.capacity_bytes = 4 * 64 * 1024;
        for packet_id in 1..1000 {
            self.publish(publisher, topic, &[b'x'; 4000], 1, packet_id);
            if self.is_full(0) {
                return;
            }
        }
        panic!("the disk is never full");
    }

    /// The disk of the first shard has room again, and its journal takes it.
    pub fn make_room(&mut self) {
        self.disks[0].faults.capacity_bytes = u64::MAX;
        self.pass_secs(3);
        assert_eq!(self.shards[0].journal_status(), Some(Status::Ready));
    }

    /// Lets the disks do what they were told; false if there was nothing.
    pub fn work_disks(&mut self) -> bool {
        let mut any = false;
        let mut commands = Vec::new();
        for (shard, disk) in self.shards.iter_mut().zip(&mut self.disks) {
            shard.take_disk_commands(&mut commands, self.now_ms);
            any |= !commands.is_empty();
            commands.drain(..).for_each(|command| disk.submit(command));
            while !self.disks_stand_still && !disk.is_idle() {
                if let Some(completion) = disk.step() {
                    shard.on_disk(completion, self.now_ms);
                    any = true;
                }
            }
        }
        any
    }

    /// Fills segments of the first shard with what is replaced at once, so that all before it is
    /// copied forward and its space comes back.
    pub fn turn_the_journal_over(&mut self) {
        let reclaimed =
            |lab: &Self| lab.shards[0].journal().map(|journal| journal.stats().segments_reclaimed);
        let (before, topic) = (reclaimed(self), self.topic_on(0, "busy"));
        let busy = self.open(persistent("busy"));
        for _ in 0..100 {
            self.send(busy, &retained(&topic, &[b'x'; 8000], 1, 1));
        }
        self.take_all(busy);
        self.cut(busy);
        assert!(reclaimed(self) > before.map(|count| count + 3));
    }
}

/// What a standby has that was brought all writes to a disk, if nothing else has changed it.
fn follow(
    disk: &SimDisk,
    identity: Identity,
    settings: &storage::Settings,
) -> Option<(storage::Recovered, Replay)> {
    let mut replay = Replay::new(7);
    let owner = (identity.shard, identity.shards);
    let follow = disk.follow(owner, settings, &mut |record, ledger| {
        replay.on_record(record, ledger);
    })?;
    let follow = follow.expect("the writes are a log");
    follow.check().expect("a whole log");
    Some((follow.finish(identity), replay))
}
