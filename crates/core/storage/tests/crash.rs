//! The promises of the journal, under crashes at every step of the disk.
//!
//! Each seed is one history of several lives. `STORAGE_SEEDS` says how many (default 2,500) and
//! `STORAGE_SEED` picks one to look into.

mod model;

use model::{Model, SEGMENT_BYTES, live, seeds, settings};
use storage::testing::{Crash, Faults, Rng};
use storage::{Level, Status};

fn history(seed: u64, plant: fn(&mut Model)) -> Result<Model, String> {
    let mut rng = Rng::new(seed);
    let mut model = Model::new(rng.next_u64(), settings());
    if rng.chance(20) {
        model.disk.faults.write_no_space_percent = 5;
    }
    if rng.chance(20) {
        model.disk.faults.capacity_bytes = u64::from(SEGMENT_BYTES) * (3 + rng.below(4));
    }
    plant(&mut model);
    let mut was_killed = false;
    for _ in 0..1 + rng.below(5) {
        // What a killed one has left unsynced is lost if the power goes soon.
        let is_short = was_killed && rng.chance(80);
        let events = rng.below(if is_short { 20 } else { 1500 });
        live(&mut model, &mut rng, events);
        let crash = if rng.chance(60) { Crash::Power } else { Crash::Kill };
        was_killed = crash == Crash::Kill;
        model.crash(crash);
        model.recover(crash).map_err(|why| format!("seed {seed}: {why}"))?;
        if rng.chance(50) {
            model.settle();
        }
    }
    Ok(model)
}

#[test]
fn what_was_promised_survives_any_crash() {
    for seed in seeds(2500) {
        let mut model = history(seed, |_| {}).unwrap_or_else(|why| panic!("{why}"));
        // And the journal is of use afterwards.
        model.disk.faults = Faults::default();
        for _ in 0..10 {
            model.tick(100);
            model.settle();
        }
        model.append(1, Some(10), Level::Fsync);
        model.settle();
        assert_eq!(model.journal.status(), Status::Ready, "seed {seed}");
        model.crash(Crash::Power);
        model.recover(Crash::Power).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// The first seed of many at which a planted bug is noticed.
fn noticed(plant: fn(&mut Model)) -> Option<String> {
    (0..300).find_map(|seed| {
        let history = std::panic::catch_unwind(|| history(seed, plant));
        match history {
            Ok(Ok(_)) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some(format!("seed {seed}: panic")),
        }
    })
}

#[test]
fn planted_promise_before_the_sync_is_noticed() {
    let why = noticed(|model| model.promise_too_early = true);
    assert!(why.as_ref().is_some_and(|why| why.contains("state differs")), "{why:?}");
}

#[test]
fn planted_disk_that_ignores_syncs_is_noticed() {
    assert!(noticed(|model| model.disk.faults.ignore_syncs = true).is_some());
}

#[test]
fn planted_loss_while_copying_forward_is_noticed() {
    assert!(noticed(|model| model.forget_key = Some(3)).is_some());
}

#[test]
fn a_full_disk_refuses_and_recovers_by_itself() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(seed, settings());
        model.disk.faults.capacity_bytes = u64::from(SEGMENT_BYTES) * 4;
        model.disk.faults.write_no_space_percent = 10;
        model.settle();
        // Keys enough that their live records alone do not fit.
        let mut key = 0;
        for _ in 0..4000 {
            key += u16::from(model.append(key, Some(3000), Level::Fsync));
            model.turn();
            model.step();
            model.tick(5);
            if matches!(model.journal.status(), Status::Full(_))
                && model.journal.stats().refused_full > 0
            {
                break;
            }
        }
        assert!(model.journal.stats().refused_full > 0, "seed {seed}: never full");
        assert!(matches!(model.journal.status(), Status::Full(_)), "seed {seed}");
        // A crash now loses nothing, and deletions are taken.
        if rng.chance(50) {
            model.crash(Crash::Power);
            model.recover(Crash::Power).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            model.settle();
        }
        for key in (0..key).filter(|&key| model.holds(key)).collect::<Vec<_>>() {
            assert!(model.append(key, None, Level::Fsync), "seed {seed}: {key} not deleted");
        }
        for _ in 0..2000 {
            model.turn();
            model.step();
            model.tick(10);
        }
        assert!(!matches!(model.journal.status(), Status::Full(_)), "seed {seed}: still full");
        model.disk.faults.write_no_space_percent = 0;
        assert!(model.append(1, Some(3000), Level::Fsync), "seed {seed}: refused");
        model.settle();
        model.crash(Crash::Power);
        model.recover(Crash::Power).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn a_failed_sync_or_write_ends_all_promises() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(seed, settings());
        model.settle();
        live(&mut model, &mut rng, 200);
        if seed % 2 == 0 {
            model.disk.faults.fail_next_sync = true;
        } else {
            model.disk.faults.fail_next_write = true;
        }
        for _ in 0..200 {
            model.append(1, Some(100), Level::Fsync);
            model.turn();
            model.step();
        }
        let (promised, synced) = (model.promised_fsync, model.journal.synced_upto());
        assert!(matches!(model.journal.status(), Status::Poisoned(_)), "seed {seed}");
        assert!(!model.append(2, Some(1), Level::Disk));
        live(&mut model, &mut rng, 100);
        assert_eq!((promised, synced), (model.promised_fsync, model.journal.synced_upto()));
        model.crash(Crash::Power);
        model.recover(Crash::Power).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn space_follows_live_data() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(seed, settings());
        model.settle();
        for _ in 0..20_000 {
            let key = rng.below(200) as u16;
            // A tenth of the keys never changes: the session that is away for long.
            if key >= 20 || model.now_ms < 1000 {
                model.append(key, Some(rng.below(1000) as usize), Level::Fsync);
            }
            model.turn();
            model.step();
            model.step();
            model.tick(1);
            let stats = model.journal.stats();
            let allowed = 2 * stats.live_bytes + 4 * u64::from(SEGMENT_BYTES);
            assert!(stats.used_bytes <= allowed, "seed {seed}: {stats:?}");
        }
        assert!(model.journal.stats().segments_reclaimed > 20, "seed {seed}");
    }
}

#[test]
fn a_backup_of_any_moment_opens() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(seed, settings());
        model.settle();
        for _ in 0..60 {
            // Hardly any keys: segments are emptied all the time.
            for _ in 0..rng.below(60) {
                model.append(rng.below(4) as u16, Some(rng.below(3000) as usize), Level::Fsync);
                model.turn();
                model.step();
                model.tick(1);
            }
            let copy = model.backup(rng.next_u64());
            if let Err(refusal) = model::replay(&copy, &model.settings) {
                panic!("seed {seed}: {refusal}");
            }
        }
        assert!(model.journal.stats().segments_reclaimed > 0, "seed {seed}");
    }
}

#[test]
fn a_closed_journal_is_sealed_and_opens_without_a_cut() {
    let mut model = Model::new(1, settings());
    model.settle();
    model.append(1, Some(100), Level::Disk);
    model.journal.close();
    while model.journal.status() != Status::Closed {
        model.turn();
        model.step();
    }
    assert!(!model.append(2, Some(1), Level::Disk));
    let (recovered, _) = model::replay(&model.disk, &model.settings).unwrap();
    assert!(recovered.report.sealed);
    assert_eq!((recovered.report.records, recovered.report.cut), (1, None));
}

#[test]
fn pending_bytes_are_bounded() {
    let mut model = Model::new(1, settings());
    model.settle();
    let mut taken = 0;
    while model.append(taken, Some(1000), Level::Fsync) {
        taken += 1;
    }
    // No turn was taken, so nothing could be written.
    let pending = model.journal.stats().pending_bytes;
    assert!(pending <= model.settings.pending_bytes_max + 16 * 1024, "{pending}");
    model.settle();
    assert!(model.append(taken, Some(1000), Level::Fsync));
}
