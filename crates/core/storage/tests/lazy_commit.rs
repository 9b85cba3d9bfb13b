//! Records that nobody waits for: they share the commit of others, or wait for a time.

mod model;

use model::{Model, live, settings};
use storage::testing::{Crash, Rng};
use storage::{Command, Level, Settings, Status, Step};

const LAZY_MS: u64 = 50;

fn lazy() -> Settings {
    Settings { lazy_commit_ms: LAZY_MS as u32, ..settings() }
}

/// A journal that is ready, with an idle disk and nothing to write.
fn ready(settings: Settings) -> Model {
    let mut model = Model::new(1, settings);
    for _ in 0..50 {
        model.settle();
        model.tick(LAZY_MS);
    }
    model
}

/// The steps of the commit that the journal gives to the disk now.
fn committed(model: &mut Model) -> Option<Vec<Step>> {
    let mut commands = Vec::new();
    model.journal.take_commands(&mut commands, model.now_ms);
    commands.into_iter().find_map(|command| match command {
        Command::Commit { steps, .. } => Some(steps),
        _ => None,
    })
}

#[test]
fn a_lazy_record_goes_with_the_next_that_somebody_waits_for() {
    for level in [Level::Disk, Level::Fsync] {
        let mut model = ready(lazy());
        let begun = model.now_ms;
        assert!(model.append(1, Some(10), Level::Lazy));
        assert!(committed(&mut model).is_none());
        assert_eq!(model.journal.next_deadline(), Some(begun + LAZY_MS));
        model.tick(LAZY_MS - 1);
        assert!(committed(&mut model).is_none());
        assert!(model.append(2, Some(10), level));
        let steps = committed(&mut model).expect("somebody waits");
        let writes = steps.iter().filter(|step| matches!(step, Step::Write { .. })).count();
        assert_eq!(writes, 1, "one write has both");
        assert_eq!(steps.len() - writes, usize::from(level == Level::Fsync));
    }
}

#[test]
fn a_lazy_record_goes_alone_when_its_time_has_come_and_is_not_synced_for_that() {
    let mut model = ready(lazy());
    assert!(model.append(1, Some(10), Level::Lazy));
    model.turn();
    model.tick(LAZY_MS / 2);
    assert!(model.append(2, Some(10), Level::Lazy));
    model.turn();
    assert!(model.disk.is_idle());
    model.tick(LAZY_MS / 2);
    model.settle();
    assert_eq!((model.promised_disk, model.promised_fsync), (2, 0));
    model.tick(u64::from(settings().sync_interval_ms));
    model.settle();
    assert_eq!(model.promised_fsync, 2);
}

#[test]
fn a_lazy_record_behind_one_at_the_disk_waits_its_time_from_its_own_turn_on() {
    let mut model = ready(lazy());
    assert!(model.append(1, Some(10), Level::Fsync));
    model.turn();
    assert!(!model.disk.is_idle());
    assert!(model.append(2, Some(10), Level::Lazy));
    model.turn();
    while !model.disk.is_idle() {
        model.step();
    }
    assert!(committed(&mut model).is_none());
    model.tick(LAZY_MS);
    assert!(committed(&mut model).is_some());
}

#[test]
fn closing_and_syncing_do_not_wait() {
    let mut model = ready(lazy());
    assert!(model.append(1, Some(10), Level::Lazy));
    assert!(committed(&mut model).is_none());
    model.journal.sync();
    model.settle();
    assert_eq!(model.promised_fsync, 1);
    assert!(model.append(2, Some(10), Level::Lazy));
    model.journal.close();
    model.settle();
    assert_eq!(model.journal.status(), Status::Closed);
    assert_eq!(model.promised_fsync, 2);
}

/// Keys are replaced until the files of their first records can go. The journal says so at once,
/// with what was lazy in front of it.
#[test]
fn space_that_comes_back_does_not_wait() {
    let never = Settings { lazy_commit_ms: u32::MAX, ..settings() };
    let mut model = ready(never);
    let bytes = settings().record_bytes_max as usize / 2;
    for round in 0..64 {
        assert!(model.append(round % 4, Some(bytes), Level::Lazy), "round {round}");
        model.settle();
    }
    let stats = model.journal.stats();
    assert!(stats.segments_reclaimed > 0, "{stats:?}");
    model.crash(Crash::Power);
    model.recover(Crash::Power).unwrap();
}

#[test]
fn promises_hold_over_crashes() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let settings = Settings { lazy_commit_ms: [1, 7, 1000][rng.below(3) as usize], ..lazy() };
        let mut model = Model::new(rng.next_u64(), settings);
        for _ in 0..1 + rng.below(4) {
            live(&mut model, &mut rng, 300);
            let crash = if rng.chance(50) { Crash::Power } else { Crash::Kill };
            model.crash(crash);
            model.recover(crash).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
    }
}
