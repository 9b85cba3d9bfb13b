//! Records that may wait for others, so that one commit has all of them.

mod model;

use model::{Model, live, settings};
use storage::testing::{Crash, Rng};
use storage::{Command, Level, Settings, Status};

const DELAY_MS: u64 = 3;

fn delayed() -> Settings {
    Settings { commit_delay_ms: DELAY_MS as u32, ..settings() }
}

/// A journal that is ready, with an idle disk and nothing to write.
fn ready() -> Model {
    let mut model = Model::new(1, delayed());
    settle(&mut model);
    model
}

/// Time passes until there is nothing left to do.
fn settle(model: &mut Model) {
    for _ in 0..50 {
        model.settle();
        model.tick(DELAY_MS);
    }
}

/// Whether the journal gives a commit to the disk now.
fn commits(model: &mut Model) -> bool {
    let mut commands = Vec::new();
    model.journal.take_commands(&mut commands, model.now_ms);
    commands.iter().any(|command| matches!(command, Command::Commit { .. }))
}

#[test]
fn records_of_several_turns_share_a_commit() {
    let mut model = ready();
    let before = model.journal.stats().commits;
    let begun = model.now_ms;
    for key in 0..DELAY_MS {
        assert!(model.append(key as u16, Some(10), Level::Fsync));
        assert!(!commits(&mut model), "the first one is not old enough");
        assert_eq!(model.journal.next_deadline(), Some(begun + DELAY_MS));
        model.tick(1);
    }
    model.settle();
    assert_eq!(model.journal.stats().commits, before + 1);
    assert_eq!(model.promised_fsync, DELAY_MS);
}

#[test]
fn a_full_batch_does_not_wait() {
    let mut model = ready();
    let records = delayed().batch_bytes_max / 1000;
    for key in 0..records {
        assert!(!commits(&mut model));
        assert!(model.append(key as u16, Some(1000), Level::Fsync));
    }
    assert!(commits(&mut model), "with what belongs to each record the batch is full");
}

#[test]
fn records_that_waited_for_the_disk_do_not_wait_again() {
    let mut model = ready();
    assert!(model.append(1, Some(10), Level::Fsync));
    model.turn();
    model.tick(DELAY_MS);
    model.turn();
    assert!(!model.disk.is_idle(), "the first record is at the disk");
    assert!(model.append(2, Some(10), Level::Fsync));
    model.turn();
    model.tick(DELAY_MS);
    while !model.disk.is_idle() {
        model.step();
    }
    assert!(commits(&mut model));
}

#[test]
fn closing_does_not_wait() {
    let mut model = ready();
    assert!(model.append(1, Some(10), Level::Fsync));
    assert!(!commits(&mut model));
    model.journal.close();
    model.settle();
    assert_eq!(model.journal.status(), Status::Closed);
}

#[test]
fn what_may_wait_longer_is_not_synced_earlier() {
    let mut model = ready();
    assert!(model.append(1, Some(10), Level::Disk));
    model.turn();
    model.tick(DELAY_MS);
    model.settle();
    assert_eq!((model.promised_disk, model.promised_fsync), (1, 0));
}

#[test]
fn promises_hold_over_crashes() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(rng.next_u64(), delayed());
        for _ in 0..1 + rng.below(4) {
            live(&mut model, &mut rng, 300);
            let crash = if rng.chance(50) { Crash::Power } else { Crash::Kill };
            model.crash(crash);
            model.recover(crash).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
    }
}

#[test]
fn a_journal_without_quorum_is_not_asked_before_its_time() {
    let mut model = ready();
    model.disk.faults.unavailable_percent = 100;
    assert!(model.append(1, Some(10), Level::Fsync));
    model.turn();
    model.tick(DELAY_MS);
    model.turn();
    while !model.disk.is_idle() {
        model.step();
    }
    assert!(model.append(2, Some(10), Level::Fsync));
    for _ in 0..DELAY_MS {
        assert!(!commits(&mut model));
        let deadline = model.journal.next_deadline().expect("it is tried again");
        assert!(deadline > model.now_ms + DELAY_MS, "{deadline} at {}", model.now_ms);
        model.tick(1);
    }
    model.disk.faults.unavailable_percent = 0;
    model.tick(u64::from(settings().retry_ms));
    settle(&mut model);
    assert_eq!(model.promised_fsync, 2);
}
