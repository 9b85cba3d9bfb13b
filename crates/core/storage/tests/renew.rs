//! A journal that is to do without its oldest segments, however little they hold.

mod model;

use model::{Model, live, settings};
use storage::testing::{Crash, Rng};
use storage::{Level, Status};

fn oldest(model: &Model) -> u32 {
    model.journal.written_files().first().map_or(0, |(number, _)| *number)
}

fn newest(model: &Model) -> u32 {
    model.journal.written_files().last().map_or(0, |(number, _)| *number)
}

/// Time passes for an idle journal.
fn rest(model: &mut Model) {
    for _ in 0..20 {
        model.settle();
        model.tick(100);
    }
}

#[test]
fn an_idle_journal_goes_on_in_another_segment_and_keeps_what_it_holds() {
    let mut model = Model::new(1, settings());
    model.settle();
    for key in 0..5 {
        assert!(model.append(key, Some(100), Level::Fsync));
    }
    assert!(model.append(4, None, Level::Fsync));
    rest(&mut model);
    assert_eq!((oldest(&model), newest(&model)), (1, 1));
    model.journal.renew(1);
    rest(&mut model);
    assert_eq!((oldest(&model), newest(&model)), (2, 2));
    model.crash(Crash::Power);
    model.recover(Crash::Power).unwrap();
    assert!((0..4).all(|key| model.holds(key)) && !model.holds(4));
}

#[test]
fn a_journal_without_a_live_record_gives_its_only_segment_back() {
    let mut model = Model::new(1, settings());
    rest(&mut model);
    model.journal.renew(1);
    rest(&mut model);
    assert_eq!((oldest(&model), newest(&model)), (2, 2));
    model.journal.renew(1);
    rest(&mut model);
    assert_eq!(newest(&model), 2, "it is without that segment already");
}

#[test]
fn it_waits_for_space_and_goes_on() {
    let mut model = Model::new(1, settings());
    model.settle();
    assert!(model.append(1, Some(100), Level::Fsync));
    let capacity = std::mem::replace(&mut model.disk.faults.capacity_bytes, 0);
    while newest(&model) < 3 && model.append(2, Some(10_000), Level::Fsync) {
        rest(&mut model);
    }
    let renewed = newest(&model);
    model.journal.renew(renewed);
    rest(&mut model);
    assert!(oldest(&model) <= renewed, "there is nowhere to go");
    model.disk.faults.capacity_bytes = capacity;
    rest(&mut model);
    assert!(oldest(&model) > renewed);
    assert!(model.holds(1));
}

#[test]
fn promises_hold_whenever_it_is_asked_for() {
    let mut renewals = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(rng.next_u64(), settings());
        for _ in 0..1 + rng.below(4) {
            for _ in 0..rng.below(20) {
                live(&mut model, &mut rng, 40);
                let upto = oldest(&model) + rng.below(3) as u32;
                model.journal.renew(upto);
                live(&mut model, &mut rng, 40);
                renewals += u64::from(oldest(&model) > upto);
            }
            let crash = if rng.chance(50) { Crash::Power } else { Crash::Kill };
            model.crash(crash);
            model.recover(crash).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        rest(&mut model);
        assert_eq!(model.journal.status(), Status::Ready, "seed {seed}");
        let upto = newest(&model);
        model.journal.renew(upto);
        rest(&mut model);
        assert!(oldest(&model) > upto, "seed {seed}");
    }
    assert!(renewals > 300, "{renewals}");
}
