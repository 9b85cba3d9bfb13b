//! Wills of clients whose watchers are in another cell.

use broker::cells::gateway::GatewayFlaw;
use codec::QoS;
use rig::{persistent, request, will, with_will};
use session::Will;

use crate::stage::{BACK, Stage, THERE, noticing};

/// A kept session with a will of QoS 2, and its watcher in cell 1.
fn is_watched(stage: &mut Stage) {
    stage.leaves("watcher@1", "w", 2);
    stage.opens("dying@0", |id| with_will(persistent(id), will("w", QoS::ExactlyOnce)));
}

#[test]
fn a_will_reaches_its_watchers_in_all_cells() {
    noticing([], |stage| {
        for watcher in ["near@0", "far@1", "farther@2"] {
            stage.subscribes(watcher, "w", 1);
        }
        stage.opens("dying@0", |id| with_will(request(id), will("w", QoS::AtLeastOnce)));
        stage.cuts("dying@0");
        stage.pass_secs(1);
        for watcher in ["near@0", "far@1", "farther@2"] {
            stage.gets(watcher, ["publish w gone qos1 id1"]);
        }
        stage.is_over();
    });
}

#[test]
fn a_will_is_retained_in_the_cell_of_its_topic() {
    noticing([], |stage| {
        let topic = stage.placed("w@1");
        stage.opens("dying@0", |id| {
            with_will(request(id), Will { retain: true, ..will(&topic, QoS::AtLeastOnce) })
        });
        stage.cuts("dying@0");
        stage.pass_secs(1);
        assert_eq!(stage.retained_for("reader@2", &topic), [format!("{topic} gone")]);
    });
}

#[test]
fn a_will_comes_once_though_the_cell_of_its_watcher_ends() {
    for way in [THERE, BACK] {
        noticing([GatewayFlaw::ForgetsMessages], |stage| {
            is_watched(stage);
            stage.hold(way);
            stage.cuts("dying@0");
            stage.pass_secs(1);
            assert_eq!(stage.waits(0, |waits| waits.handovers), 1);
            stage.take_over(1);
            stage.release(way);
            assert_eq!(stage.finds("watcher@1"), ["gone"]);
            stage.is_over();
        });
    }
}

#[test]
fn a_will_comes_once_though_the_cell_of_its_client_ends() {
    for way in [THERE, BACK] {
        noticing([], |stage| {
            is_watched(stage);
            stage.hold(way);
            stage.cuts("dying@0");
            stage.pass_secs(1);
            stage.take_over(0);
            stage.release(way);
            stage.pass_secs(3);
            assert_eq!(stage.finds("watcher@1"), ["gone"]);
            stage.is_over();
        });
    }
}

#[test]
fn a_client_that_ends_with_its_cell_leaves_its_will() {
    noticing([], |stage| {
        is_watched(stage);
        stage.take_over(0);
        stage.pass_secs(3);
        assert_eq!(stage.finds("watcher@1"), ["gone"]);
        stage.is_over();
    });
}

#[test]
fn a_will_waits_for_ever_for_an_owner() {
    noticing([GatewayFlaw::ForgetsMessages], |stage| {
        is_watched(stage);
        stage.lose(1);
        stage.cuts("dying@0");
        stage.opens("brief@0", |id| with_will(request(id), will("w", QoS::AtLeastOnce)));
        stage.cuts("brief@0");
        stage.pass_secs(300);
        stage.take_over(1);
        stage.pass_secs(1);
        assert_eq!(stage.finds("watcher@1"), ["gone", "gone"]);
        stage.is_over();
    });
}
