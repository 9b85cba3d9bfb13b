//! QoS 2 across cells: once, whichever owner ends when.

use broker::cells::gateway::GatewayFlaw;
use broker::{HandoverFlaw, Settings};

use crate::stage::{BACK, Stage, THERE, noticing, noticing_with};

/// Publishes on a topic that `reader@1` keeps, and whose answer cannot come back.
fn delivers_unanswered(stage: &mut Stage, writer: &str) {
    stage.leaves("reader@1", "t", 2);
    stage.hold(BACK);
    stage.sends(writer, "publish t 1 qos2 id5");
    stage.gets(writer, []);
}

#[test]
fn what_was_taken_on_is_asked_again_and_arrives_once() {
    noticing([GatewayFlaw::ForgetsMessages], |stage| {
        stage.keeps("writer@0");
        delivers_unanswered(stage, "writer@0");
        stage.take_over(1);
        stage.release(BACK);
        stage.gets("writer@0", ["pubrec 5"]);
        assert_eq!(stage.finds("reader@1"), ["1"]);
        stage.is_over();
    });
}

#[test]
fn what_was_taken_on_waits_for_ever() {
    noticing([GatewayFlaw::ForgetsMessages], |stage| {
        stage.keeps("writer@0");
        delivers_unanswered(stage, "writer@0");
        stage.lose(1);
        stage.release(BACK);
        stage.pass_secs(300);
        stage.gets("writer@0", []);
        stage.take_over(1);
        stage.gets("writer@0", ["pubrec 5"]);
        assert_eq!(stage.finds("reader@1"), ["1"]);
    });
}

#[test]
fn what_a_lost_owner_may_have_delivered_is_in_doubt() {
    noticing([GatewayFlaw::RepeatsExact], |stage| {
        delivers_unanswered(stage, "writer@0");
        stage.take_over(1);
        stage.release(BACK);
        stage.gets("writer@0", ["disconnect server_shutting_down", "closed"]);
        assert_eq!(stage.finds("reader@1"), ["1"]);
    });
}

#[test]
fn what_was_sent_to_no_owner_is_not_in_doubt() {
    noticing([GatewayFlaw::ForgetsMessages], |stage| {
        stage.leaves("reader@1", "t", 2);
        stage.lose(1);
        stage.sends("writer@0", "publish t 1 qos2 id5");
        stage.take_over(1);
        stage.gets("writer@0", ["pubrec 5"]);
        assert_eq!(stage.finds("reader@1"), ["1"]);
    });
}

#[test]
fn what_was_sent_to_a_later_owner_is_in_doubt_as_well() {
    noticing([GatewayFlaw::RepeatsExact], |stage| {
        stage.leaves("reader@1", "t", 2);
        stage.lose(1);
        stage.sends("writer@0", "publish t 1 qos2 id5");
        stage.hold(BACK);
        stage.take_over(1);
        stage.gets("writer@0", []);
        stage.take_over(1);
        stage.release(BACK);
        stage.gets("writer@0", ["disconnect server_shutting_down", "closed"]);
        assert_eq!(stage.finds("reader@1"), ["1"]);
    });
}

#[test]
fn what_waits_for_an_owner_expires() {
    noticing([], |stage| {
        stage.leaves("reader@1", "t", 2);
        stage.keeps("writer@0");
        stage.lose(1);
        stage.sends("writer@0", "publish t brief qos2 id5 expiry20");
        stage.sends("writer@0", "publish t long qos2 id6 expiry200");
        stage.pass_secs(60);
        stage.take_over(1);
        stage.gets("writer@0", ["pubrec 5", "pubrec 6"]);
        assert_eq!(stage.finds("reader@1"), ["long"]);
        stage.is_over();
    });
}

#[test]
fn what_no_owner_has_had_is_refused() {
    noticing([], |stage| {
        stage.leaves("reader@1", "t", 2);
        stage.lose(1);
        stage.sends("writer@0", "publish t 1 qos2 id5");
        stage.pass_secs(29);
        stage.gets("writer@0", []);
        stage.pass_secs(2);
        stage.gets("writer@0", ["pubrec 5 quota_exceeded"]);
        stage.take_over(1);
        let nothing: [&str; 0] = [];
        assert_eq!(stage.finds("reader@1"), nothing);
    });
}

/// The journal of a kept session does not take it on, so it is awaited after its connection.
#[test]
fn what_is_in_doubt_counts_as_accepted_on_another_connection() {
    let rejecting = Settings { rejects: true, ..Settings::default() };
    noticing_with(&rejecting, [GatewayFlaw::RepeatsExact], |stage| {
        stage.keeps("writer@0");
        delivers_unanswered(stage, "writer@0");
        stage.cuts("writer@0");
        stage.take_over(1);
        stage.release(BACK);
        stage.keeps("writer@0");
        stage.sends("writer@0", "publish t 1 qos2 id5 dup");
        stage.gets("writer@0", ["pubrec 5"]);
        assert_eq!(stage.finds("reader@1"), ["1"]);
    });
}

/// What a subscriber of a clean session has got when the publisher's cell ends before it knows.
fn got_by_clean_subscriber(mut stage: Stage) -> Vec<String> {
    stage.subscribes("reader@1", "t", 2);
    stage.keeps("writer@0");
    stage.hold(BACK);
    stage.sends("writer@0", "publish t 1 qos2 id5");
    stage.take_over(0);
    stage.release(BACK);
    stage.keeps("writer@0");
    stage.sends("writer@0", "publish t 1 qos2 id5 dup");
    stage.gets("writer@0", ["pubrec 5"]);
    stage.is_over();
    stage.reads_all("reader@1")
}

#[test]
fn a_clean_subscriber_gets_it_once_though_the_cell_of_its_publisher_ends() {
    let settings = Settings::default();
    assert_eq!(got_by_clean_subscriber(Stage::new(&settings, None)), ["1"]);
    let mut flawed = Stage::new(&settings, None);
    for shard in &mut flawed.cells.labs[1].shards {
        shard.plant_handover_flaw(HandoverFlaw::NotesKeptOnly);
    }
    assert_eq!(got_by_clean_subscriber(flawed), ["1", "1"], "the flaw is not noticed");
}

/// The publisher's new owner asks again while the journal of the other cell still writes. Returns
/// what is answered before that is done.
fn answers_before_it_is_written(mut stage: Stage) -> Vec<String> {
    stage.leaves("reader@1", "t", 2);
    stage.keeps("writer@0");
    stage.cells.labs[1].disks_stand_still = true;
    stage.sends("writer@0", "publish t 1 qos2 id5");
    stage.take_over(0);
    stage.keeps("writer@0");
    stage.sends("writer@0", "publish t 1 qos2 id5 dup");
    let early = stage.texts("writer@0");
    stage.cells.labs[1].let_disks_work();
    stage.cells.settle();
    assert_eq!([early.clone(), stage.texts("writer@0")].concat(), ["pubrec 5"]);
    assert_eq!(stage.finds("reader@1"), ["1"]);
    early
}

#[test]
fn a_repetition_is_answered_when_the_first_is_written() {
    let nothing: [&str; 0] = [];
    let settings = Settings::default();
    assert_eq!(answers_before_it_is_written(Stage::new(&settings, None)), nothing);
    let mut flawed = Stage::new(&settings, None);
    for shard in &mut flawed.cells.labs[1].shards {
        shard.plant_handover_flaw(HandoverFlaw::AnswersRepetitions);
    }
    assert_eq!(answers_before_it_is_written(flawed), ["pubrec 5"], "the flaw is not noticed");
}

/// Both cells end in turn, at any moment, and the publisher repeats what was not answered.
#[test]
fn cells_that_end_in_any_order_deliver_once() {
    let settings = Settings::default();
    for (first, second, way) in
        [(0, 1, BACK), (1, 0, BACK), (0, 1, THERE), (1, 0, THERE), (0, 0, BACK), (1, 1, THERE)]
    {
        let mut stage = Stage::new(&settings, None);
        stage.leaves("reader@1", "t", 2);
        stage.keeps("writer@0");
        stage.hold(way);
        stage.sends("writer@0", "publish t 1 qos2 id5");
        stage.take_over(first);
        stage.take_over(second);
        stage.release(way);
        stage.keeps("writer@0");
        stage.sends("writer@0", "publish t 1 qos2 id5 dup");
        stage.gets("writer@0", ["pubrec 5"]);
        assert_eq!(stage.finds("reader@1"), ["1"], "{first} before {second}, held {way:?}");
        stage.is_over();
    }
}

#[test]
fn qos_0_for_a_cell_without_an_owner_is_dropped_and_counted() {
    noticing([], |stage| {
        stage.leaves("reader@1", "t", 2);
        stage.subscribes("near@0", "t", 0);
        stage.lose(1);
        stage.sends("writer@0", "publish t 1");
        stage.gets("near@0", ["publish t 1"]);
        assert_eq!(stage.total(0, |m| &m.mail_lost), 1);
        stage.is_over();
    });
}

#[test]
fn publishers_to_other_cells_do_not_notice_a_cell_without_an_owner() {
    noticing([], |stage| {
        stage.leaves("lost@1", "t", 2);
        for name in ["near@0", "far@2"] {
            stage.subscribes(name, "other", 2);
        }
        stage.lose(1);
        stage.sends("waiting@0", "publish t 1 qos1 id1");
        for (name, answer) in [("writer@0", "pubrec 7"), ("writer@2", "pubrec 7")] {
            stage.sends(name, "publish other 2 qos2 id7");
            stage.gets(name, [answer]);
        }
        stage.subscribes("late@2", "other", 1);
        stage.gets("near@0", ["publish other 2 qos2 id1", "publish other 2 qos2 id2"]);
        stage.gets("far@2", ["publish other 2 qos2 id1", "publish other 2 qos2 id2"]);
        stage.gets("waiting@0", []);
    });
}
