//! A serial is given once, whichever owners a cell has had: who has noted one takes it for a
//! repetition.

use std::collections::BTreeSet;

use broker::Settings;
use broker::cells::frame::Frame;
use codec::QoS;
use rig::{persistent, will, with_will};

use crate::stage::{BACK, Stage, THERE};

/// Of the messages under way from cell 0 to cell 1, with their payloads.
fn serials_under_way(stage: &Stage) -> Vec<(u64, bool)> {
    let frames = stage.cells.frames.get(&THERE).into_iter().flatten();
    let serial = |frame: &Frame| match frame {
        Frame::Publish(own) => Some((own.serial, own.is_will)),
        _ => None,
    };
    frames.filter_map(serial).collect()
}

/// A life of cell 0: a message that is taken on, and a will. Their serials are noted in cell 1,
/// whether cell 0 knows it or not.
fn lives(stage: &mut Stage, life: u16, seen: &mut BTreeSet<(u64, bool)>) {
    stage.keeps("writer@0");
    stage.opens("dying@0", |id| with_will(persistent(id), will("t", QoS::ExactlyOnce)));
    stage.hold(THERE);
    stage.sends("writer@0", &format!("publish t {life} qos2 id{}", life + 1));
    stage.cuts("dying@0");
    stage.pass_secs(1);
    let serials = serials_under_way(stage);
    assert_eq!(serials.len(), 2, "{serials:?}");
    for serial in serials {
        assert!(serial.0 != 0 && seen.insert(serial), "life {life} has {serial:?} again");
    }
    stage.release(THERE);
}

/// What a subscriber in cell 1 finds after so many lives of cell 0.
#[test]
fn journals_of_restarted_cells_give_no_serial_twice() {
    let mut stage = Stage::new(&Settings::default(), None);
    stage.leaves("reader@1", "t", 2);
    let mut seen = BTreeSet::new();
    for life in 0..5 {
        // Every other one ends before it has the answers.
        if life % 2 == 0 {
            stage.hold(BACK);
        }
        lives(&mut stage, life, &mut seen);
        stage.take_over(0);
        stage.release(BACK);
        stage.pass_secs(3);
    }
    let mut found = stage.finds("reader@1");
    found.sort_unstable();
    assert_eq!(found, ["0", "1", "2", "3", "4", "gone", "gone", "gone", "gone", "gone"]);
    stage.is_over();
}

/// A will is mailed before its record is written. Its client and others, whose wills come in
/// another order after that, are of cell 0. Returns whose wills a watcher in cell 1 has got.
fn wills_after_a_lost_record(mut stage: Stage) -> BTreeSet<String> {
    stage.leaves("watcher@1", "w/#", 2);
    stage.subscribes("witness@1", "w/#", 0);
    for name in WILLS {
        let topic = format!("w/{name}");
        stage.opens(&format!("{name}@0"), |id| {
            with_will(persistent(id), will(&topic, QoS::ExactlyOnce))
        });
    }
    stage.cells.labs[0].disks_stand_still = true;
    stage.cuts("first@0");
    stage.pass_secs(1);
    stage.gets("witness@1", ["publish w/first gone"]);
    stage.cells.labs[0].disks_stand_still = false;
    stage.take_over(0);
    stage.pass_secs(3);
    stage.is_over();
    stage.keeps("watcher@1");
    stage.topics("watcher@1").into_iter().collect()
}

/// The first of them is on the shard of some others, which come before it when a journal is read.
const WILLS: [&str; 6] = ["first", "b", "c", "d", "e", "f"];

#[test]
fn a_serial_that_a_journal_has_lost_is_not_given_to_another_message() {
    let settings = Settings::default();
    let all: BTreeSet<String> = WILLS.map(|name| format!("w/{name} gone")).into();
    assert_eq!(wills_after_a_lost_record(Stage::new(&settings, None)), all);
    let mut flawed = Stage::new(&settings, None);
    flawed.cells.same_serials = true;
    assert_ne!(wills_after_a_lost_record(flawed), all, "the flaw is not noticed");
}
