//! Who is found by publishers of another cell, from when on and how long.

use broker::cells::gateway::GatewayFlaw;

use crate::stage::{BACK, Stage, THERE, noticing};

const NOBODY: &str = "puback 1 no_matching_subscribers";

/// What a publisher of cell 0 gets for a message.
#[track_caller]
fn is_answered(stage: &mut Stage, topic: &str, answer: &str) {
    stage.sends("writer@0", &format!("publish {topic} x qos1 id1"));
    stage.gets("writer@0", [answer]);
}

#[test]
fn a_subscription_is_found_when_its_suback_is_there() {
    noticing([GatewayFlaw::PassesEarly], |stage| {
        for (filter, topic) in [("t", "t"), ("a/+/c", "a/b/c"), ("#", "any"), ("d/#", "d")] {
            stage.hold(BACK);
            stage.sends("reader@1", &format!("subscribe {filter} qos1"));
            stage.gets("reader@1", []);
            stage.release(BACK);
            stage.gets("reader@1", ["suback 1: 1"]);
            is_answered(stage, topic, "puback 1");
            assert_eq!(stage.reads_all("reader@1"), ["x"], "{filter}");
            stage.cuts("reader@1");
        }
    });
}

#[test]
fn a_suback_does_not_come_before_the_other_cell_says_that_it_counts() {
    noticing([GatewayFlaw::PassesEarly], |stage| {
        stage.hold(THERE);
        stage.sends("reader@1", "subscribe t qos1");
        stage.gets("reader@1", []);
        stage.release(THERE);
        stage.gets("reader@1", ["suback 1: 1"]);
    });
}

/// Though it was not its SUBSCRIBE that has made the filter known.
#[test]
fn the_suback_of_a_second_subscriber_waits_as_well() {
    noticing([GatewayFlaw::PassesEarly], |stage| {
        stage.gets("second@1", []);
        stage.hold(BACK);
        stage.sends("first@1", "subscribe t qos1");
        stage.sends("second@1", "subscribe t qos1");
        stage.gets("second@1", []);
        stage.release(BACK);
        stage.gets("second@1", ["suback 1: 1"]);
    });
}

#[test]
fn a_suback_waits_for_all_cells() {
    noticing([GatewayFlaw::PassesEarly], |stage| {
        stage.hold((1, 2));
        stage.sends("reader@1", "subscribe t qos1");
        stage.gets("reader@1", []);
        assert_eq!(stage.waits(1, |waits| waits.subacks), 1);
        stage.release((1, 2));
        stage.gets("reader@1", ["suback 1: 1"]);
        stage.is_over();
    });
}

/// As long as a filter may be known elsewhere, it counts as a match.
#[test]
fn a_filter_that_nobody_has_is_forgotten_after_ten_seconds() {
    noticing([], |stage| {
        stage.subscribes("reader@1", "t", 1);
        stage.sends("reader@1", "unsubscribe t");
        stage.gets("reader@1", ["unsuback 1: 0"]);
        stage.pass_secs(9);
        is_answered(stage, "t", "puback 1");
        stage.gets("reader@1", []);
        stage.pass_secs(2);
        // Nobody is asked.
        stage.hold(BACK);
        is_answered(stage, "t", NOBODY);
    });
}

#[test]
fn a_filter_that_somebody_has_again_is_not_forgotten() {
    noticing([], |stage| {
        stage.subscribes("reader@1", "t", 1);
        stage.sends("reader@1", "unsubscribe t");
        stage.gets("reader@1", ["unsuback 1: 0"]);
        stage.pass_secs(5);
        stage.subscribes("reader@1", "t", 1);
        stage.pass_secs(20);
        is_answered(stage, "t", "puback 1");
        assert_eq!(stage.reads_all("reader@1"), ["x"]);
    });
}

/// Cell 0 has no summary of the new owner of cell 1. Whether that has a subscriber does not change
/// the answer: it was asked.
#[test]
fn a_cell_whose_summary_is_unknown_gets_everything() {
    noticing([GatewayFlaw::TakesUnknownForEmpty], |stage| {
        stage.leaves("reader@1", "t", 1);
        stage.hold(BACK);
        stage.take_over(1);
        for (topic, id) in [("t", 1), ("none", 2)] {
            stage.sends("writer@0", &format!("publish {topic} x qos1 id{id}"));
        }
        stage.gets("writer@0", []);
        stage.release(BACK);
        stage.gets("writer@0", ["puback 1", "puback 2"]);
        is_answered(stage, "none", NOBODY);
        assert_eq!(stage.finds("reader@1"), ["x"]);
    });
}

/// What it had promised to keep waits for the next owner, what it only wanted does not.
#[test]
fn a_cell_without_an_owner_gets_what_it_has_promised_to_keep() {
    noticing([], |stage| {
        stage.leaves("kept@1", "kept", 1);
        stage.subscribes("clean@1", "clean", 1);
        stage.lose(1);
        is_answered(stage, "clean", NOBODY);
        stage.sends("writer@0", "publish kept x qos1 id2");
        stage.gets("writer@0", []);
        stage.take_over(1);
        stage.gets("writer@0", ["puback 2"]);
        assert_eq!(stage.finds("kept@1"), ["x"]);
    });
}

/// Publishers of the new owner find the subscribers of others, whose summaries it has not got yet.
#[test]
fn a_new_owner_takes_others_for_cells_that_want_everything() {
    noticing([GatewayFlaw::TakesUnknownForEmpty], |stage| {
        stage.subscribes("reader@1", "t", 1);
        stage.hold(BACK);
        stage.take_over(0);
        stage.sends("writer@0", "publish t x qos1 id1");
        assert_eq!(stage.reads_all("reader@1"), ["x"]);
        stage.release(BACK);
        stage.gets("writer@0", ["puback 1"]);
    });
}

/// What other cells have changed meanwhile may not have reached it.
#[test]
fn an_owner_whose_lease_had_run_out_takes_others_for_cells_that_want_everything() {
    noticing([GatewayFlaw::TakesUnknownForEmpty], |stage| {
        stage.gets("writer@0", []);
        stage.hold(BACK);
        stage.sends("reader@1", "subscribe t qos1");
        stage.cells.lapse(0);
        stage.sends("writer@0", "publish t x qos1 id1");
        assert_eq!(stage.reads_all("reader@1"), ["x"]);
        stage.release(BACK);
        stage.gets("writer@0", ["puback 1"]);
        // By now it has the summary.
        is_answered(stage, "none", NOBODY);
    });
}

/// 0x10 only if nobody anywhere has matched.
#[test]
fn nobody_has_matched_if_nobody_has_in_any_cell() {
    noticing([], |stage| {
        is_answered(stage, "t", NOBODY);
        for reader in ["reader@0", "reader@1", "reader@2"] {
            stage.subscribes(reader, "t", 1);
            is_answered(stage, "t", "puback 1");
            stage.sends(reader, "unsubscribe t");
            stage.pass_secs(11);
            is_answered(stage, "t", NOBODY);
        }
    });
}
