//! What the owner of a journal writes itself, at level `disk`, beside the queue of the disk.

mod model;

use model::{Model, live, seeds, settings};
use storage::testing::{Crash, Rng};
use storage::{InPlaceEnd, JournalFlaw, Level, Status};

/// A journal that is ready, with an idle disk, and durable to its end.
fn ready() -> Model {
    let mut model = Model::new(1, settings());
    model.settle();
    model.in_place_bytes_max = 1000;
    quiet(&mut model);
    model
}

/// Until nothing is left to sync or to state.
fn quiet(model: &mut Model) {
    for _ in 0..10 {
        model.tick(u64::from(settings().sync_interval_ms));
        model.settle();
    }
}

fn append(model: &mut Model, key: u16, level: Level) {
    assert!(model.append(key, Some(10), level));
}

/// A sync of all that is written is at the disk, and has not begun.
fn sync_is_at_the_disk() -> Model {
    let mut model = ready();
    append(&mut model, 1, Level::Disk);
    model.turn();
    model.tick(u64::from(settings().sync_interval_ms));
    model.turn();
    assert!(!model.disk.is_idle());
    assert_eq!((model.promised_disk, model.promised_fsync), (1, 0));
    model
}

#[test]
fn records_of_level_disk_are_committed_at_once_and_synced_later() {
    let mut model = ready();
    append(&mut model, 1, Level::Disk);
    model.turn();
    assert!(model.disk.is_idle(), "the disk has nothing to do");
    assert_eq!((model.promised_disk, model.promised_fsync), (1, 0));
    let stats = model.journal.stats();
    assert_eq!(stats.pending_bytes, 0);
    quiet(&mut model);
    assert_eq!(model.promised_fsync, 1);
}

/// The next commit is handed over before the one ahead of it is answered.
#[test]
fn records_of_level_disk_are_synced_though_the_disk_is_never_idle() {
    let mut model = ready();
    model.in_place_bytes_max = 0;
    append(&mut model, 1, Level::Disk);
    model.turn();
    for key in 2..16 {
        append(&mut model, key, Level::Disk);
        model.tick(u64::from(settings().sync_interval_ms) / 4);
        model.turn();
        model.step();
        assert!(!model.disk.is_idle());
    }
    assert!(model.promised_fsync >= 1, "{} of {}", model.promised_fsync, model.promised_disk);
}

#[test]
fn lists_that_nobody_waits_for_are_not_written_in_place() {
    let mut model = ready();
    append(&mut model, 1, Level::Lazy);
    model.turn();
    model.tick(u64::from(settings().lazy_commit_ms));
    model.turn();
    assert!(!model.disk.is_idle(), "a worker must not wait for a write of theirs");
    model.settle();
    append(&mut model, 2, Level::Lazy);
    append(&mut model, 3, Level::Disk);
    model.turn();
    assert!(model.disk.is_idle(), "they go with what somebody waits for");
    assert_eq!(model.promised_disk, 3);
}

#[test]
fn what_is_to_be_synced_and_what_is_large_goes_to_the_disk() {
    for (bytes, level) in [(10, Level::Fsync), (2000, Level::Disk)] {
        let mut model = ready();
        assert!(model.append(1, Some(bytes), level));
        model.turn();
        assert!(!model.disk.is_idle());
        assert_eq!(model.promised_disk, 0);
    }
    let mut model = ready();
    append(&mut model, 1, Level::Fsync);
    append(&mut model, 2, Level::Disk);
    model.turn();
    assert_eq!(model.promised_disk, 0, "both share a commit");
}

#[test]
fn nothing_overtakes_a_write_that_the_disk_has() {
    let mut model = ready();
    append(&mut model, 1, Level::Fsync);
    model.turn();
    append(&mut model, 2, Level::Disk);
    model.turn();
    assert_eq!(model.promised_disk, 0);
    model.settle();
    assert_eq!((model.promised_disk, model.promised_fsync), (2, 1));
    append(&mut model, 3, Level::Disk);
    model.turn();
    assert_eq!(model.promised_disk, 3, "then it goes on in place");
}

#[test]
fn nothing_overtakes_a_manifest_that_the_disk_has() {
    let mut model = ready();
    append(&mut model, 1, Level::Disk);
    model.turn();
    model.tick(u64::from(settings().manifest_interval_ms));
    model.turn();
    append(&mut model, 2, Level::Disk);
    model.turn();
    assert_eq!(model.promised_disk, 1, "its manifest is at the disk");
    model.settle();
    assert_eq!(model.promised_disk, 2);
}

#[test]
fn a_write_passes_a_sync_which_does_not_cover_it() {
    let mut model = sync_is_at_the_disk();
    append(&mut model, 2, Level::Disk);
    model.turn();
    assert_eq!((model.promised_disk, model.promised_fsync), (2, 0));
    model.step();
    assert_eq!((model.promised_disk, model.promised_fsync), (2, 1));
    quiet(&mut model);
    assert_eq!(model.promised_fsync, 2, "the next one does");
}

#[test]
fn a_write_that_came_before_the_tick_of_a_sync_does_not_wait_for_it() {
    let mut model = ready();
    append(&mut model, 1, Level::Disk);
    model.turn();
    model.now_ms += u64::from(settings().sync_interval_ms);
    append(&mut model, 2, Level::Disk);
    model.tick(0);
    model.turn();
    assert_eq!(model.promised_disk, 2);
    assert!(!model.disk.is_idle(), "the sync is at the disk");
    model.settle();
    quiet(&mut model);
    assert_eq!(model.promised_fsync, 2);
}

#[test]
fn after_a_slow_write_the_disk_takes_over_until_it_has_synced_it() {
    for end in [InPlaceEnd::Slow, InPlaceEnd::NotDone] {
        let mut model = ready();
        model.in_place_end = end;
        append(&mut model, 1, Level::Disk);
        model.turn();
        assert_eq!(model.promised_disk, u64::from(end == InPlaceEnd::Slow));
        model.in_place_end = InPlaceEnd::Done;
        while model.promised_disk == 0 {
            model.step();
        }
        append(&mut model, 2, Level::Disk);
        model.turn();
        assert_eq!((model.promised_disk, model.promised_fsync), (1, 0), "the disk has it");
        while model.promised_fsync == 0 {
            assert!(!model.disk.is_idle(), "the sync does not wait");
            model.step();
            model.turn();
        }
        model.settle();
        append(&mut model, 3, Level::Disk);
        model.turn();
        assert_eq!(model.promised_disk, 3, "and now the owner again");
    }
}

#[test]
fn an_earlier_sync_does_not_end_the_time_of_the_disk() {
    let mut model = sync_is_at_the_disk();
    model.in_place_end = InPlaceEnd::Slow;
    append(&mut model, 2, Level::Disk);
    model.turn();
    model.step();
    assert_eq!((model.promised_disk, model.promised_fsync), (2, 1));
    model.in_place_end = InPlaceEnd::Done;
    append(&mut model, 3, Level::Disk);
    model.turn();
    assert_eq!(model.promised_disk, 2, "the slow write is not synced");
}

#[test]
fn closing_is_a_matter_of_the_disk() {
    let mut model = ready();
    append(&mut model, 1, Level::Disk);
    model.journal.close();
    model.turn();
    assert_eq!(model.promised_disk, 0);
    model.settle();
    assert_eq!(model.journal.status(), Status::Closed);
}

/// One journal through some lives. `flaw`: a planted bug.
fn history(seed: u64, flaw: Option<JournalFlaw>) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut model = Model::new(rng.next_u64(), settings());
    model.answers_late = rng.chance(50);
    model.fsync_percent = [0, 5, 50][rng.below(3) as usize];
    for _ in 0..1 + rng.below(4) {
        if let Some(flaw) = flaw {
            model.journal.plant(flaw);
        }
        model.in_place_bytes_max = [100, 1000, 64 << 10][rng.below(3) as usize];
        for _ in 0..10 {
            model.in_place_end = match rng.below(10) {
                0 => InPlaceEnd::NotDone,
                1 => InPlaceEnd::Slow,
                _ => InPlaceEnd::Done,
            };
            let events = 1 + rng.below(60);
            live(&mut model, &mut rng, events);
        }
        let crash = if rng.chance(50) { Crash::Power } else { Crash::Kill };
        model.crash(crash);
        model.recover(crash).map_err(|why| format!("seed {seed}: {why}"))?;
    }
    Ok(())
}

#[test]
fn promises_hold_over_crashes() {
    for seed in seeds(300) {
        history(seed, None).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn planted_bugs_are_seen() {
    for flaw in [JournalFlaw::SyncsLaterWrites, JournalFlaw::OvertakesThread] {
        let caught = (0..8000).any(|seed| history(seed, Some(flaw)).is_err());
        assert!(caught, "{flaw:?}");
    }
}
