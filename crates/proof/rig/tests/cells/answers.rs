//! An answer says that the other cell has the message, and that it is this message.

use broker::Settings;
use broker::cells::gateway::GatewayFlaw;

use crate::stage::{BACK, Stage, noticing};

#[test]
fn a_message_is_answered_when_the_journals_of_the_other_cell_have_it() {
    noticing([GatewayFlaw::AnswersEarly], |stage| {
        stage.leaves("reader@1", "t", 1);
        stage.cells.labs[1].disks_stand_still = true;
        stage.sends("writer@0", "publish t 1 qos1 id1");
        stage.gets("writer@0", []);
        stage.cells.labs[1].let_disks_work();
        stage.cells.settle();
        stage.gets("writer@0", ["puback 1"]);
    });
}

/// The disks of cell 1 do one step after the other.
fn work_until_answered(stage: &mut Stage, writer: &str) -> Vec<String> {
    for _ in 0..1000 {
        let answers = stage.texts(writer);
        if !answers.is_empty() {
            return answers;
        }
        let lab = &mut stage.cells.labs[1];
        let now_ms = lab.now_ms;
        for (shard, disk) in lab.shards.iter_mut().zip(&mut lab.disks) {
            if let Some(completion) = disk.step() {
                shard.on_disk(completion, now_ms);
            }
        }
        stage.cells.settle();
    }
    panic!("no answer");
}

/// An owner of cell 0 ends while a message waits in cell 1. The next one asks about another: it is
/// answered for that one, and not when the first is stored.
#[test]
fn an_answer_to_an_earlier_owner_is_none_to_the_present_one() {
    noticing([GatewayFlaw::ReusesNumbers], |stage| {
        stage.leaves("reader@1", "t", 1);
        stage.cells.labs[1].disks_stand_still = true;
        stage.sends("writer@0", "publish t first qos1 id1");
        stage.take_over(0);
        stage.sends("writer@0", "publish t second qos1 id2");
        assert_eq!(work_until_answered(stage, "writer@0"), ["puback 2"]);
        stage.cells.labs[1].disks_stand_still = false;
        stage.take_over(1);
        assert_eq!(stage.finds("reader@1"), ["first", "second"]);
    });
}

/// An answer that an owner has sent before its end is for what it was asked.
#[test]
fn an_answer_that_is_lost_is_given_again() {
    let mut stage = Stage::new(&Settings::default(), None);
    stage.leaves("reader@1", "t", 1);
    stage.hold(BACK);
    for id in 1..4 {
        stage.sends("writer@0", &format!("publish t {id} qos1 id{id}"));
    }
    stage.take_over(1);
    stage.release(BACK);
    stage.gets("writer@0", ["puback 1", "puback 2", "puback 3"]);
    stage.is_over();
}
