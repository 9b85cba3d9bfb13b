//! What a journal makes of an engine without a quorum, and of one that serves another owner.

mod model;

use model::{Model, live, settings};
use storage::testing::{Crash, Rng};
use storage::{AppendError, Command, FaultKind, Level, RecordKind, Status};

/// As long as nothing is appended and time does not pass.
fn rest(model: &mut Model) {
    model.turn();
    while !model.disk.is_idle() {
        model.step();
        model.turn();
    }
}

#[test]
fn promises_hold_when_the_quorum_comes_and_goes() {
    let mut outages = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(rng.next_u64(), settings());
        for _ in 0..1 + rng.below(4) {
            for _ in 0..rng.below(20) {
                model.disk.faults.unavailable_percent = [0, 20, 100][rng.below(3) as usize];
                live(&mut model, &mut rng, 60);
                let status = model.journal.status();
                outages += u64::from(matches!(status, Status::Unavailable(_)));
                assert!(!matches!(status, Status::Full(_) | Status::Poisoned(_)), "{status:?}");
            }
            let crash = if rng.chance(50) { Crash::Power } else { Crash::Kill };
            model.crash(crash);
            model.recover(crash).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        model.disk.faults.unavailable_percent = 0;
        for _ in 0..10 {
            model.tick(100);
            model.settle();
        }
        assert_eq!(model.journal.status(), Status::Ready, "seed {seed}");
        assert!(model.append(1, Some(10), Level::Fsync), "seed {seed}");
        model.settle();
        model.crash(Crash::Power);
        model.recover(Crash::Power).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    assert!(outages > 300, "{outages}");
}

#[test]
fn without_a_quorum_appends_are_taken_until_the_backlog_is_full() {
    let mut model = Model::new(1, settings());
    model.settle();
    model.disk.faults.unavailable_percent = 100;
    let promised = model.promised_fsync;
    let (mut taken, mut was_behind) = (0, false);
    loop {
        let refused = model.journal.append(RecordKind::new(3), &[&[7; 1000]], Level::Fsync).err();
        if let Some(error) = refused {
            assert!(matches!(error, AppendError::Backlog { .. }), "{error}");
            break;
        }
        taken += 1;
        was_behind |= model.journal.is_behind();
        rest(&mut model);
        model.tick(1);
        assert!(taken < 1000);
    }
    assert!(taken > 40 && was_behind, "{taken}");
    let Status::Unavailable(fault) = model.journal.status() else {
        panic!("{:?}", model.journal.status())
    };
    assert_eq!(fault.kind, FaultKind::Unavailable);
    assert!(model.journal.is_ready());
    assert_eq!((model.promised_fsync, model.journal.stats().refused_full), (promised, 0));

    // It is not asked again before its time, and goes on by itself then.
    model.tick(u64::from(settings().retry_ms));
    rest(&mut model);
    let mut commands = Vec::new();
    model.journal.take_commands(&mut commands, model.now_ms);
    assert!(commands.is_empty(), "{commands:?}");
    let deadline = model.journal.next_deadline().expect("it is tried again");
    assert!(deadline > model.now_ms && deadline <= model.now_ms + u64::from(settings().retry_ms));
    model.disk.faults.unavailable_percent = 0;
    model.tick(u64::from(settings().retry_ms));
    model.settle();
    assert_eq!(model.journal.status(), Status::Ready);
    let end = model.journal.written_upto();
    assert_eq!((model.journal.synced_upto(), model.journal.stats().pending_bytes), (end, 0));
}

#[test]
fn steps_that_were_done_are_not_done_again() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(seed, settings());
        model.settle();
        model.disk.record_writes();
        model.disk.faults.unavailable_percent = 40;
        live(&mut model, &mut rng, 500);
        let mut last = None;
        for written in model.disk.writes().unwrap() {
            if let storage::testing::Written::Segment { segment, offset, .. } = written {
                let at = storage::Position::new(*segment, *offset);
                assert!(last < Some(at), "seed {seed}: {at} after {last:?}");
                last = Some(at);
            }
        }
    }
}

#[test]
fn a_read_that_found_no_quorum_is_asked_again() {
    let mut settings = settings();
    settings.cache_bytes_max = 0;
    let mut model = Model::new(3, settings);
    model.settle();
    let position = model.journal.append(RecordKind::new(3), &[b"content"], Level::Fsync).unwrap();
    model.settle();
    assert!(model.journal.read(position).is_none());
    let id = model.journal.request(position, 1000).unwrap();
    model.disk.faults.unavailable_percent = 100;
    rest(&mut model);
    assert_eq!(model.journal.next_deadline(), Some(model.now_ms + 50));
    model.disk.faults.unavailable_percent = 0;
    model.tick(50);
    model.turn();
    let mut read_back = None;
    while let Some(completion) = model.disk.step() {
        read_back = read_back.or(model.journal.on_completed(completion));
    }
    let read_back = read_back.expect("it was read");
    assert_eq!((read_back.id, read_back.position), (id, position));
    let mut chunk = read_back.result.unwrap();
    assert_eq!(chunk.next().map(|record| record.bytes.to_vec()), Some(b"content".to_vec()));
}

#[test]
fn a_fenced_journal_never_writes_again() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(seed, settings());
        model.settle();
        live(&mut model, &mut rng, 1500);
        model.disk.faults.fenced = true;
        for _ in 0..200 {
            model.append(1, Some(100), Level::Fsync);
            model.turn();
            model.step();
        }
        let status = model.journal.status();
        let Status::Fenced(fault) = &status else { panic!("seed {seed}: {status:?}") };
        assert_eq!(fault.kind, FaultKind::Fenced);
        assert!(!model.journal.is_ready());
        let refused = model.journal.append(RecordKind::new(3), &[b"x"], Level::Disk);
        assert!(matches!(refused, Err(AppendError::Poisoned(_))), "seed {seed}");
        // Should the engine take everything again, nothing comes any more.
        model.disk.faults.fenced = false;
        rest(&mut model);
        let promised = (model.promised_fsync, model.journal.synced_upto());
        for _ in 0..100 {
            model.tick(100);
            let mut commands = Vec::new();
            model.journal.take_commands(&mut commands, model.now_ms);
            let writes = |command: &Command| !matches!(command, Command::Read { .. });
            assert!(!commands.iter().any(writes), "seed {seed}: {commands:?}");
        }
        assert_eq!(promised, (model.promised_fsync, model.journal.synced_upto()));
        model.crash(Crash::Power);
        model.recover(Crash::Power).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}
