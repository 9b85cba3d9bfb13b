//! Groups and pauses stay in their cell: mail about them would find no gateway that takes it.

use broker::{ConnectRequest, Limits, Mail};
use rig::request_with;
use session::QueueLimits;

use crate::stage::{Stage, noticing};

/// Mail for other cells that is of a kind which does not cross cells.
fn strays(stage: &Stage) -> Vec<Mail> {
    let mut strays = Vec::new();
    for lab in &stage.cells.labs {
        let shards = usize::from(lab.shared.homes.shards());
        for shard in &lab.shards {
            let others = shard.effects().mail.iter().skip(shards).flatten();
            strays.extend(others.filter(|mail| !crosses_cells(mail)).cloned());
        }
    }
    strays
}

/// The cell does what it can. Nothing of that goes astray.
#[track_caller]
fn works(stage: &mut Stage, cell: usize) {
    stage.cells.labs[cell].settle();
    let strays = strays(stage);
    assert!(strays.is_empty(), "{strays:?}");
}

const fn crosses_cells(mail: &Mail) -> bool {
    matches!(
        mail,
        Mail::Publish { .. }
            | Mail::Retain { .. }
            | Mail::Confirmed { .. }
            | Mail::QueryRetained(_)
            | Mail::Retained { .. }
            | Mail::AskGrant { .. }
            | Mail::Grant { .. }
            | Mail::Ask { .. }
            | Mail::Congested { .. }
    )
}

#[test]
fn a_group_has_its_home_in_the_cell_of_its_members() {
    noticing([], |stage| {
        for number in 0..20 {
            stage.posts("member@0", &format!("subscribe $share/group{number}/t qos1"));
            works(stage, 0);
            stage.cells.settle();
            stage.gets("member@0", ["suback 1: 1"]);
        }
        stage.posts("writer@0", "publish t x qos1 id1");
        works(stage, 0);
        stage.cells.settle();
        stage.gets("writer@0", ["puback 1"]);
        assert_eq!(stage.reads_all("member@0"), ["x"; 20]);
        for number in 0..20 {
            stage.posts("member@0", &format!("unsubscribe $share/group{number}/t"));
            works(stage, 0);
        }
        stage.cells.settle();
        stage.is_over();
    });
}

/// Its queue is long with a few messages of this size.
fn slow(id: &str) -> ConnectRequest {
    let queue = QueueLimits { bytes_max: 2 * 1024 * 1024, ..Limits::default().queue };
    request_with(id, Limits { queue, outbox_bytes_max: 64 * 1024, ..Limits::default() })
}

fn large(id: u16) -> String {
    format!("publish t x*100000 qos1 id{id}")
}

/// Publishers of the own cell are held, and those of others are not.
#[test]
fn a_long_queue_holds_nobody_in_another_cell() {
    noticing([], |stage| {
        stage.opens("slow@0", slow);
        stage.subscribes("slow@0", "t", 1);
        stage.gets("far@1", []);
        let near: Vec<String> = (0..20).map(|number| format!("near{number}@0")).collect();
        near.iter().for_each(|name| stage.gets(name, []));
        for name in &near {
            stage.posts(name, &large(1));
            // Sockets take nothing.
            stage.cells.labs[0].settle_mail();
            assert_eq!(strays(stage).len(), 0);
        }
        assert!(stage.total(0, |m| &m.holds) > 0, "the queue is not long");
        stage.posts("far@1", &large(1));
        assert_eq!(stage.waits(1, |waits| waits.acknowledgements), 1);
        assert_eq!(stage.waits(1, |waits| waits.pauses), 0);
        works(stage, 0);
        stage.cells.settle();
        stage.gets("far@1", ["puback 1"]);
        near.iter().for_each(|name| stage.gets(name, ["puback 1"]));
        assert_eq!(stage.reads_all("slow@0").len(), near.len() + 1);
        stage.is_over();
    });
}
