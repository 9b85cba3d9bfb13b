//! Cells that exchange mail: what clients see of it.

mod common;

use std::sync::mpsc;
use std::thread;

use codec::{Packet, Properties, Reason};
use rig::{publish, texts as numbers};

use common::proxy::{Plan, Proxy};
use common::{PATIENCE, Stop, World, name, texts};

#[test]
fn a_message_is_delivered_in_all_cells_and_answered_once() {
    let mut world = World::joined(3, &[0, 1, 2], 2);
    let subscribers: Vec<_> = (0..3).map(|cell| (cell, world.connect(cell, "s"))).collect();
    for (cell, client) in &subscribers {
        world.subscribe(*cell, *client, "a/#", 1);
    }
    for cell in 0..3 {
        let publisher = world.connect(cell, "p");
        world.exchange((cell, publisher), "a/b", &texts(100), &subscribers);
    }
}

/// The three cells of two nodes have clocks of their own.
#[test]
fn cells_of_one_node_exchange_mail_without_a_link() {
    let mut world = World::joined(2, &[0, 0, 1], 2);
    let subscribers: Vec<_> = (0..3).map(|cell| (cell, world.connect(cell, "s"))).collect();
    for (cell, client) in &subscribers {
        world.subscribe(*cell, *client, "a/#", 1);
    }
    for cell in 0..3 {
        let publisher = world.connect(cell, "p");
        world.exchange((cell, publisher), "a/b", &texts(100), &subscribers);
    }
    let publisher = world.connect(0, "e");
    let Packet::Publish(mut expiring) = publish("a/e", b"1", 0, 0) else { unreachable!() };
    let minute = [2, 0, 0, 0, 60];
    expiring.properties = Properties::from_raw(&minute);
    world.cells[0].lab.send(publisher, &Packet::Publish(expiring));
    for (cell, client) in subscribers {
        let mut expiries = Vec::new();
        world.until("the message", |world| {
            let received = world.cells[cell].lab.received(client);
            expiries.extend(received.into_iter().map(|it| it.expiry_secs));
            !expiries.is_empty()
        });
        let is_sound = |secs: &Option<u32>| secs.is_some_and(|secs| (30..=61).contains(&secs));
        assert!(expiries.iter().all(is_sound), "cell {cell}: {expiries:?}");
    }
}

/// Nothing of cell 0 leaves, so cell 1 does not learn that its subscription counts there.
#[test]
fn a_suback_waits_for_other_cells_and_nothing_leaves_without_the_lease() {
    let mut world = World::joined(2, &[0, 1], 2);
    let (subscriber, publisher) = (world.connect(1, "s"), world.connect(0, "p"));
    world.cells[0].hold(false);
    world.cells[1].lab.subscribe_all(subscriber, &["a/b"], 1);
    world.until("the subscription counts", |world| world.thinks_wants(0, 1, "a/b"));
    world.publish(0, publisher, "a/b", &["1".to_owned()]);
    world.until("it waits in a lane", |world| {
        world.figures(0, 1).is_some_and(|figures| figures.kept_frames >= 2)
    });
    assert!(!world.has_suback(1, subscriber));
    assert_eq!(world.pubacks(0, publisher), []);
    world.cells[0].hold(true);
    world.until("SUBACK", |world| world.has_suback(1, subscriber));
    world.until("PUBACK", |world| world.pubacks(0, publisher) == [Reason::SUCCESS]);
    assert_eq!(world.read(1, subscriber), ["1"]);
    world.exchange((0, publisher), "a/b", &texts(20), &[(1, subscriber)]);
}

/// At any byte, in both directions, while frames are under way on two lanes.
#[test]
fn broken_connections_lose_double_and_reorder_nothing() {
    let mut world = World::new(2, &[0, 1], 2);
    let mut plans: Vec<Plan> = [300, 3000, 5000, 7001].map(Plan::CutAfter).into();
    plans.extend((1..10).map(|n| Plan::CutAfter(4000 + n * 13_007)));
    plans.extend([20_001, 33_003].map(|cut_after| Plan::Slow { cut_after }));
    plans.extend([10_003, 40_004].map(Plan::CutConnectorAfter));
    let proxy = Proxy::start(world.nodes[1].links.local_address(), plans);
    world.link(0, 1, proxy.address());
    world.link(1, 0, world.nodes[0].links.local_address());
    world.announce_all();
    world.until_known();
    let mut ends = Vec::new();
    for cell in 0..2 {
        for label in ["one", "other"] {
            let subscriber = world.connect(1 - cell, &format!("{label} subscriber"));
            let publisher = world.connect(cell, &format!("{label} publisher"));
            world.subscribe(1 - cell, subscriber, &format!("{cell}/{label}"), 1);
            ends.push((cell, label, publisher, subscriber));
        }
    }
    for _ in 0..5 {
        for (cell, label, publisher, subscriber) in &ends {
            let topic = format!("{cell}/{label}");
            world.exchange((*cell, *publisher), &topic, &texts(100), &[(1 - cell, *subscriber)]);
        }
    }
    let losses: Vec<String> = world.nodes[0].losses.try_iter().collect();
    assert!(losses.len() >= 8, "{losses:?}");
}

/// The owner of cell 1 has got messages and answers nothing. The next one is asked again.
#[test]
fn a_new_owner_is_asked_what_the_one_before_has_not_answered() {
    let mut world = World::joined(3, &[0, 1], 2);
    let (subscriber, publisher) = (world.connect(1, "s"), world.connect(0, "p"));
    world.subscribe(1, subscriber, "a/b", 1);
    world.cells[1].hold(false);
    let sent = numbers(0..10);
    world.publish(0, publisher, "a/b", &sent);
    let mut got = Vec::new();
    world.until("messages", |world| {
        got.extend(world.read(1, subscriber));
        got.len() == 10
    });
    assert_eq!(world.pubacks(0, publisher), []);
    world.take_over(1, 2);
    let subscriber = world.connect(1, "s");
    // No other cell has an owner yet, as far as the new one knows.
    world.subscribe(1, subscriber, "a/b", 1);
    world.announce_all();
    let mut acks = Vec::new();
    world.until("PUBACKs", |world| {
        acks.extend(world.pubacks(0, publisher));
        acks.len() >= 10
    });
    assert_eq!(acks, [Reason::SUCCESS; 10]);
    assert_eq!(world.read(1, subscriber), sent);
    world.until_known();
    world.exchange((0, publisher), "a/b", &texts(50), &[(1, subscriber)]);
    let owner = Some(cells::Owner { node: name(2), epoch: 2 });
    world.until("figures", |world| world.figures(0, 1).is_some_and(|it| it.owner == owner));
}

/// On the same connections: lanes go on where they were, in both directions.
#[test]
fn an_owner_that_seemed_to_be_gone_comes_back_with_its_epoch() {
    let mut world = World::joined(2, &[0, 1], 2);
    let ends = [0, 1].map(|cell| (world.connect(cell, "p"), world.connect(1 - cell, "s")));
    let [(publisher, subscriber), (foreigner, listener)] = ends;
    world.subscribe(1, subscriber, "a/b", 1);
    world.subscribe(0, listener, "c", 1);
    let sent = numbers(0..5);
    for _ in 0..3 {
        world.cells[1].hold(false);
        world.publish(0, publisher, "a/b", &sent);
        let mut got = Vec::new();
        world.until("messages without an answer", |world| {
            got.extend(world.read(1, subscriber));
            got.len() == 5
        });
        world.nodes[0].cells.owner_changed(1, None);
        world.until("an absence", |world| {
            world.figures(0, 1).is_some_and(|figures| figures.owner.is_none())
        });
        world.cells[1].hold(true);
        world.publish(1, foreigner, "c", &sent);
        world.until("frames that nobody takes", |world| {
            world.figures(1, 0).is_some_and(|figures| figures.kept_frames >= 5)
        });
        world.announce_to(0, 1);
        let (mut acks, mut heard, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        world.until("answers", |world| {
            acks.extend(world.pubacks(0, publisher));
            answers.extend(world.pubacks(1, foreigner));
            got.extend(world.read(1, subscriber));
            heard.extend(world.read(0, listener));
            acks.len() >= 5 && answers.len() >= 5 && heard.len() >= 5 && got.len() >= 10
        });
        assert_eq!((acks, answers), (vec![Reason::SUCCESS; 5], vec![Reason::SUCCESS; 5]));
        assert_eq!((heard, got), (sent.clone(), [sent.clone(), sent.clone()].concat()));
        world.exchange((0, publisher), "a/b", &texts(50), &[(1, subscriber)]);
        // The next round waits for what is not shown yet.
        world.until("the owner", |world| {
            world.figures(0, 1).is_some_and(|figures| figures.owner.is_some())
        });
    }
    assert_eq!(world.nodes[0].losses.try_iter().count(), 0);
}

/// Its thread is just about to deliver when it ends. Another cell of the node goes on.
#[test]
fn a_cell_that_is_closed_gets_and_sends_nothing_more() {
    let mut world = World::joined(2, &[0, 1, 1], 2);
    let publisher = world.connect(0, "p");
    let ends = [1, 2].map(|cell| (cell, world.connect(cell, "s")));
    for (cell, subscriber) in ends {
        world.subscribe(cell, subscriber, "a/b", 0);
    }
    let ((entered, is_entered), (to_go, go_on)) = (mpsc::channel(), mpsc::channel());
    *world.cells[1].stop.lock().expect("sound") = Some(Stop { entered, go_on });
    world.publish(0, publisher, "a/b", &["1".to_owned()]);
    world.work();
    is_entered.recv_timeout(PATIENCE).expect("mail is delivered");
    let (cells, (closed, is_closed)) = (world.nodes[1].cells.clone(), mpsc::channel());
    let closer = thread::spawn(move || {
        cells.close(1, 1);
        closed.send(()).expect("the test waits");
    });
    assert!(is_closed.try_recv().is_err(), "a delivery has begun");
    to_go.send(()).expect("it waits");
    is_closed.recv_timeout(PATIENCE).expect("the delivery is over");
    closer.join().expect("sound");
    world.until("the delivery", |world| world.cells[1].delivered > 0 && !world.has_mail());
    let delivered = world.cells[1].delivered;
    let (_, subscriber) = ends[1];
    for text in texts(50) {
        // On the same link to the same node as those for cell 1.
        world.cells[0].lab.send(publisher, &publish("a/b", text.as_bytes(), 0, 0));
        let mut got = Vec::new();
        world.until("a message in the other cell", |world| {
            got.extend(world.read(2, subscriber));
            got.contains(&text)
        });
    }
    assert_eq!(world.cells[1].delivered, delivered);
    // What it still says goes nowhere: cell 2 is asked by nobody.
    let own = world.connect(1, "p");
    world.publish(1, own, "a/b", &["late".to_owned()]);
    world.cells[0].lab.send(publisher, &publish("a/b", b"last", 0, 0));
    world.until("a later message", |world| world.read(2, subscriber) == ["last"]);
}
