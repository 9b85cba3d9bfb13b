//! The order of one publisher's messages to a topic, across ends of either cell.

use broker::Settings;
use broker::cells::gateway::GatewayFlaw;

use crate::stage::{BACK, Stage, THERE, noticing};

/// Publishes these, the even ones with QoS 0.
fn publishes(stage: &mut Stage, numbers: std::ops::Range<u16>) {
    for number in numbers {
        let qos = if number % 2 == 0 { String::new() } else { format!(" qos1 id{number}") };
        stage.sends("writer@0", &format!("publish t {number}{qos}"));
    }
}

/// Those that came first, without those that came again behind them.
fn firsts(payloads: &[String]) -> Vec<u16> {
    let mut seen: Vec<u16> = Vec::new();
    for number in payloads.iter().map(|text| text.parse().expect("a number")) {
        if !seen.contains(&number) {
            seen.push(number);
        }
    }
    seen
}

#[test]
fn what_is_asked_again_comes_before_what_is_newer() {
    noticing([GatewayFlaw::AsksAgainLate, GatewayFlaw::ForgetsMessages], |stage| {
        stage.leaves("reader@1", "t", 2);
        stage.hold(THERE);
        publishes(stage, 1..5);
        stage.take_over(1);
        stage.keeps("reader@1");
        publishes(stage, 5..9);
        stage.release(THERE);
        stage.pass_secs(1);
        // QoS 0 is lost with the owner that it was for.
        assert_eq!(firsts(&stage.reads_all("reader@1")), [1, 3, 5, 6, 7, 8]);
    });
}

#[test]
fn what_comes_twice_comes_before_what_is_newer() {
    noticing([GatewayFlaw::AsksAgainLate], |stage| {
        stage.keeps("reader@1");
        stage.subscribes("reader@1", "t", 2);
        stage.hold(BACK);
        publishes(stage, 1..5);
        stage.take_over(1);
        stage.keeps("reader@1");
        publishes(stage, 5..9);
        stage.release(BACK);
        stage.pass_secs(1);
        let payloads = stage.reads_all("reader@1");
        // In the journal, then asked again, then new. QoS 0 that was read is not kept.
        assert_eq!(payloads, ["1", "3", "1", "3", "5", "6", "7", "8"]);
    });
}

#[test]
fn what_waits_for_an_owner_comes_before_what_is_newer() {
    noticing([GatewayFlaw::AsksAgainLate], |stage| {
        stage.leaves("reader@1", "t", 2);
        stage.lose(1);
        publishes(stage, 1..5);
        stage.pass_secs(10);
        publishes(stage, 5..7);
        stage.take_over(1);
        stage.keeps("reader@1");
        publishes(stage, 7..9);
        stage.pass_secs(1);
        assert_eq!(firsts(&stage.reads_all("reader@1")), [1, 3, 5, 7, 8]);
        assert_eq!(stage.total(0, |m| &m.mail_lost), 3);
    });
}

#[test]
fn what_a_journal_passes_on_again_comes_before_what_is_newer() {
    let mut stage = Stage::new(&Settings::default(), None);
    stage.leaves("reader@1", "t", 2);
    stage.keeps("writer@0");
    stage.hold(THERE);
    (1..4).for_each(|id| stage.sends("writer@0", &format!("publish t {id} qos2 id{id}")));
    stage.take_over(0);
    stage.keeps("writer@0");
    stage.sends("writer@0", "publish t 4 qos2 id4");
    stage.sends("writer@0", "publish t 5 qos1 id5");
    stage.release(THERE);
    assert_eq!(stage.finds("reader@1"), ["1", "2", "3", "4", "5"]);
    stage.is_over();
}
