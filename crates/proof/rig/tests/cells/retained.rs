//! Retained messages, which have their home in one cell, for subscribers of all.

use broker::RetainedFlaw;
use broker::Settings;
use broker::cells::gateway::GatewayFlaw;

use crate::stage::{BACK, Stage, THERE, noticing, noticing_retained, noticing_with};

/// All cells have the same retained messages.
#[track_caller]
fn all_find(stage: &mut Stage, filter: &str, expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|text| stage.placed(text)).collect();
    for reader in ["reader@0", "reader@1", "reader@2"] {
        assert_eq!(stage.retained_for(reader, filter), expected, "{reader}");
    }
}

#[test]
fn a_retained_message_is_set_replaced_and_cleared_from_any_cell() {
    noticing([], |stage| {
        for writer in ["writer@0", "writer@1", "writer@2"] {
            stage.sends(writer, "publish r@1 one retain qos1 id1");
            all_find(stage, "r@1", &["r@1 one"]);
            stage.sends("other@2", "publish r@1 two retain qos1 id2");
            all_find(stage, "r/#", &["r@1 two"]);
            stage.sends(writer, "publish r@1 three retain");
            all_find(stage, "r@1", &["r@1 three"]);
            stage.sends("other@2", "publish r@1 \"\" retain qos1 id1");
            all_find(stage, "r@1", &[]);
            all_find(stage, "r/#", &[]);
        }
    });
}

/// And the subscribers that are there get it once, as a message that is not retained.
#[test]
fn a_message_that_is_retained_elsewhere_is_delivered_once() {
    noticing([], |stage| {
        for reader in ["near@0", "home@1", "far@2"] {
            stage.subscribes(reader, "r/#", 0);
        }
        stage.sends("writer@0", "publish r@1 x retain qos1 id1");
        for reader in ["near@0", "home@1", "far@2"] {
            stage.gets(reader, ["publish r@1 x"]);
        }
    });
}

#[test]
fn no_local_holds_for_a_retained_message_of_another_cell() {
    noticing([], |stage| {
        stage.sends("writer@0", "publish r@1 x retain qos1 id1");
        stage.gets("writer@0", ["puback 1"]);
        stage.sends("writer@0", "subscribe r@1 qos0 no_local");
        stage.gets("writer@0", ["suback 1: 0"]);
        stage.sends("other@0", "subscribe r@1 qos0 no_local");
        stage.gets("other@0", ["suback 1: 0", "publish r@1 x retain"]);
    });
}

#[test]
fn what_is_to_be_retained_waits_for_an_owner() {
    noticing([GatewayFlaw::ForgetsMessages], |stage| {
        stage.lose(1);
        stage.sends("writer@0", "publish r@1 x retain qos1 id1");
        stage.gets("writer@0", []);
        stage.take_over(1);
        stage.gets("writer@0", ["puback 1"]);
        all_find(stage, "r@1", &["r@1 x"]);
    });
}

/// A clear that waits comes behind what it clears.
#[test]
fn retained_messages_of_a_publisher_keep_their_order_when_the_owner_changes() {
    noticing([GatewayFlaw::AsksAgainLate], |stage| {
        stage.hold(THERE);
        stage.sends("writer@0", "publish r@1 old retain qos1 id1");
        stage.take_over(1);
        stage.sends("writer@0", "publish r@1 new retain qos1 id2");
        stage.release(THERE);
        stage.pass_secs(1);
        stage.gets("writer@0", ["puback 1", "puback 2"]);
        all_find(stage, "r@1", &["r@1 new"]);
    });
}

/// So many that each shard of each cell has several pages.
const TOPICS: usize = 1_500;

/// Their topics, in order.
fn many(stage: &mut Stage) -> Vec<String> {
    let topics = (0..TOPICS).map(|number| format!("m/{number}"));
    for topic in topics.clone() {
        stage.posts("writer@0", &format!("publish {topic} x retain"));
    }
    stage.cells.settle();
    let mut texts: Vec<String> = topics.map(|topic| format!("{topic} x")).collect();
    texts.sort_unstable();
    texts
}

#[test]
fn a_wildcard_subscription_gets_the_pages_of_each_shard_of_each_cell() {
    noticing([], |stage| {
        let expected = many(stage);
        for reader in ["reader@0", "reader@1", "reader@2"] {
            assert!(stage.retained_for(reader, "m/+") == expected, "{reader}");
        }
        stage.is_over();
    });
}

/// More bytes than one frame has room for, in a page that a shard looks up.
#[test]
fn large_messages_of_a_page_come_once_each() {
    noticing([], |stage| {
        let topics: Vec<String> = (100..800).map(|number| format!("large/{number}")).collect();
        for topic in &topics {
            stage.sends("writer@0", &format!("publish {topic} x*12000 retain"));
        }
        let found = stage.retained_for("reader@1", "large/#");
        let found: Vec<&str> = found.iter().filter_map(|text| text.split(' ').next()).collect();
        assert_eq!(found, topics);
        stage.is_over();
    });
}

#[test]
fn each_topic_is_found_in_its_shard_of_its_cell() {
    noticing([], |stage| {
        many(stage);
        for number in 0..30 {
            let topic = format!("m/{number}");
            assert_eq!(stage.retained_for("reader@2", &topic), [format!("{topic} x")]);
        }
    });
}

/// Each shard of it has a limit.
#[test]
fn the_home_of_a_topic_refuses_what_it_has_no_room_for() {
    let narrow = Settings { retained_messages_max: 1, ..Settings::default() };
    noticing_with(&narrow, [], |stage| {
        for (id, expected) in [(1, "puback 1"), (2, "puback 2 quota_exceeded")] {
            stage.sends("writer@0", &format!("publish r{id}@1 x retain qos1 id{id}"));
            stage.gets("writer@0", [expected]);
        }
        // That somebody else gets it does not change that.
        stage.subscribes("reader@0", "r3/#", 1);
        stage.sends("writer@0", "publish r3@1 x retain qos1 id3");
        stage.gets("writer@0", ["puback 3 quota_exceeded"]);
    });
}

/// The pages of one cell are fetched one after the other, so its owner may end between any two.
#[test]
fn pages_go_on_where_they_were_when_the_owner_changes() {
    let expected = many(&mut Stage::new(&Settings::default(), None));
    let mut waited = 0;
    for rounds in 0..30 {
        let mut stage = Stage::new(&Settings::default(), None);
        many(&mut stage);
        stage.gets("reader@0", []);
        stage.posts("reader@0", "subscribe m/+ qos0");
        for _ in 0..rounds {
            stage.cells.go_round();
        }
        waited += stage.waits(0, |waits| waits.pages).min(1);
        match rounds % 3 {
            0 => stage.lose(1),
            1 => stage.hold(BACK),
            _ => {}
        }
        stage.take_over(1);
        stage.release(BACK);
        assert!(stage.topics("reader@0") == expected, "after {rounds} rounds");
        stage.is_over();
    }
    assert!(waited > 10, "the pages came in {waited} rounds");
}

#[test]
fn pages_are_asked_for_again() {
    noticing([GatewayFlaw::ForgetsPages], |stage| {
        let expected = many(stage);
        stage.asks_pages("reader@0", "subscribe m/+ qos0");
        stage.take_over(1);
        stage.release(BACK);
        assert!(stage.topics("reader@0") == expected);
    });
}

/// It was published before the publisher's cell knew of the subscriber, and comes to its home late.
#[test]
fn a_retained_message_on_its_way_to_its_home_is_not_missed() {
    noticing_retained(RetainedFlaw::AnswersEarly, |stage| {
        stage.hold((2, 1));
        stage.sends("writer@2", "publish r@1 x retain qos1 id1");
        stage.sends("reader@0", "subscribe r@1 qos0");
        stage.gets("reader@0", ["suback 1: 0"]);
        stage.release((2, 1));
        stage.gets("reader@0", ["publish r@1 x retain"]);
        stage.gets("writer@2", ["puback 1"]);
        stage.is_over();
    });
}

/// The publisher's cell learns of the subscriber late.
#[test]
fn a_retained_message_of_who_does_not_know_the_subscriber_yet_is_not_missed() {
    noticing_retained(RetainedFlaw::AsksEarly, |stage| {
        stage.hold((0, 2));
        stage.sends("reader@0", "subscribe r@1 qos0");
        stage.sends("writer@2", "publish r@1 x retain qos0");
        stage.gets("reader@0", []);
        stage.release((0, 2));
        stage.gets("reader@0", ["suback 1: 0", "publish r@1 x retain"]);
        stage.is_over();
    });
}

#[test]
fn retained_messages_on_their_way_are_not_missed_by_wildcards() {
    noticing_retained(RetainedFlaw::AnswersEarly, |stage| {
        stage.hold((2, 1));
        stage.sends("writer@2", "publish r@1 x retain qos0");
        stage.sends("reader@0", "subscribe # qos0");
        stage.gets("reader@0", ["suback 1: 0"]);
        stage.release((2, 1));
        stage.gets("reader@0", ["publish r@1 x retain"]);
        stage.is_over();
    });
}

/// Questions of the home wait for a cell whose owner goes, and for no other.
#[test]
fn the_home_does_not_wait_for_a_cell_without_an_owner() {
    noticing([GatewayFlaw::KeepsBarriers], |stage| {
        stage.sends("writer@1", "publish r@1 x retain qos1 id1");
        stage.gets("writer@1", ["puback 1"]);
        stage.gets("reader@0", []);
        stage.hold((2, 1));
        stage.sends("reader@0", "subscribe r@1 qos0");
        stage.gets("reader@0", ["suback 1: 0"]);
        stage.lose(2);
        stage.gets("reader@0", ["publish r@1 x retain"]);
        stage.release((2, 1));
        stage.is_over();
    });
}

/// Each cell has figures of its own, on the same topics.
#[test]
fn what_the_broker_says_of_itself_stays_in_its_cell() {
    noticing([], |stage| {
        let topics = ["a", "b", "c", "d"];
        for cell in 0..3 {
            stage.sends(&format!("early@{cell}"), "subscribe $SYS/# qos0");
            stage.texts(&format!("early@{cell}"));
        }
        for cell in 0..3 {
            for topic in topics {
                stage.says(cell, topic, &format!("of {cell}"));
            }
        }
        for cell in 0..3 {
            let expected: Vec<_> =
                topics.iter().map(|topic| format!("$SYS/broker/{topic} of {cell}")).collect();
            assert_eq!(stage.topics(&format!("early@{cell}")), expected);
            assert_eq!(stage.retained_for(&format!("late@{cell}"), "$SYS/#"), expected);
            let one = stage.retained_for(&format!("one@{cell}"), "$SYS/broker/b");
            assert_eq!(one, [expected[1].as_str()]);
        }
    });
}
