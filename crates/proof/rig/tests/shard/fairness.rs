//! A publisher waits for what it publishes to, and for nothing that others publish to.

use crate::filter_pauses::{acknowledged, carry_mail, client_on, encoded, send_large};
use crate::rows::{Row, Step, bursts, does, pauses, row, run, sends};
use broker::Settings;
use policy::Access;
use rig::{Conn, Lab, publish, request};
use session::NEVER;

/// Messages of a client that floods a shard.
const FLOOD: usize = 60_000;

/// A publisher that still waits then waits for the end of the flood.
const TURNS_MAX: usize = 1_000;

/// What a driver does in a turn.
fn turn(lab: &mut Lab) {
    lab.flush();
    lab.deliver_mail();
    lab.read_on();
    lab.now_ms += 1;
    for shard in &mut lab.shards {
        shard.on_tick(lab.now_ms);
    }
    lab.collect_closes();
}

/// The turns that publishers of two shards need until a subscriber whose queue is long has all that
/// they send it, while others flood a third shard.
fn turns_beside(flooder_count: usize) -> usize {
    let mut lab = Lab::with(3, Settings::default(), Access::open());
    let slow = client_on(&mut lab, 1, "slow");
    lab.subscribe(slow, "t/#", 1);
    let sink = lab.open(request(&lab.id_on(2, "sink")));
    lab.subscribe(sink, "u", 0);
    let publishers: Vec<Conn> =
        (0..300).map(|n| client_on(&mut lab, n % 2, &format!("publisher {n}"))).collect();
    let flooders: Vec<Conn> =
        (0..flooder_count).map(|n| client_on(&mut lab, 0, &format!("flooder {n}"))).collect();
    for conn in &publishers {
        send_large(&mut lab, *conn, "t/1", 1);
        carry_mail(&mut lab);
    }
    let mut answered = acknowledged(&mut lab, &publishers);
    assert!(lab.shards[0].waits().pauses > 0, "some wait for the slow subscriber");
    let flood = encoded(&publish("u", &[7; 100], 0, 0)).repeat(FLOOD);
    for conn in &flooders {
        lab.bytes(*conn, &flood);
    }
    let mut turns = 0;
    while answered < publishers.len() && turns < TURNS_MAX {
        turn(&mut lab);
        lab.received(sink);
        answered += acknowledged(&mut lab, &publishers);
        turns += 1;
    }
    let taken = lab.total(|metrics| &metrics.publishes_received);
    assert!(flooder_count == 0 || taken < (flooder_count * FLOOD) as u64, "the flood goes on");
    turns
}

#[test]
fn a_publisher_that_need_not_wait_any_more_goes_on_though_others_flood_another_shard() {
    let (alone, beside) = (turns_beside(0), turns_beside(20));
    assert!(beside <= 2 * alone, "{alone} turns alone, {beside} beside a flood");
}

/// Little mail fills a credit window, and one client has sent much to shard 2. A subscriber of `v`
/// is on shard 1.
fn flooded(name: &str) -> Row {
    let settings = Settings { mail_bytes_max: 2 * 2_000, ..Settings::default() };
    row("", name, Lab::with(3, settings, Access::open())).steps([
        sends("sink@2", ["subscribe u"]),
        sends("reader@1", ["subscribe v"]),
        sends("member@1", ["subscribe $share/g/else qos1"]),
        sends("modest@0", ["publish v x alias3"]),
        sends("flooder@0", ["pingreq"]),
        bursts("flooder@0", ["publish u x*100"; 50]),
        waits("flooder@0"),
    ])
}

/// It waits for another shard, and nobody else does.
fn waits(name: &'static str) -> Step {
    does(move |stage| {
        let conn = stage.conn(name);
        assert_eq!(std::mem::take(&mut stage.lab.pauses), [(conn, NEVER)]);
    })
}

#[test]
fn who_waits_beside_a_flood() {
    run([
        flooded("a shared subscription of somebody else makes nobody wait").steps([
            // Nothing lies before the shard of the reader.
            bursts("modest@0", ["publish v x*100"; 3]),
            pauses("modest@0", []),
            // One that a member may get waits for the member's shard, and this one's is not known.
            bursts("modest@0", ["publish else x*100"; 3]),
            waits("modest@0"),
        ]),
        flooded("an alias makes nobody wait for who does not want its topic")
            .steps([bursts("modest@0", ["publish \"\" x*100 alias3"; 2]), pauses("modest@0", [])]),
    ]);
}
