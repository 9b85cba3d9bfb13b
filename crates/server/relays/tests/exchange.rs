//! Clients that are relayed from one node to another, over real links.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;

use common::certificates::Authority;
use common::proxy::{Plan, Proxy};
use common::{
    CELL, EPOCH, Far, Node, OPTIONS, join, join_at, link_options, pattern, rest, two_nodes, until,
    works,
};
use net::PeerAddress;
use relays::{CREDIT_BYTES_MIN, Client, Options, Refused};

#[test]
fn a_client_arrives_with_what_is_known_of_it() {
    let (front, home) = two_nodes();
    let mut client = front.begin(&home, EPOCH, b"CONNECT");
    let (cell, epoch, Client { stream, arrival, .. }) = home.arrived();
    assert_eq!((cell, epoch), (CELL, EPOCH));
    assert_eq!(arrival.peer.address, PeerAddress::Inet(client.local_addr().expect("address")));
    assert_eq!((&*arrival.listener, &*arrival.bytes), ("listener", &b"CONNECT"[..]));
    let mut far = Far::new(stream);
    works(&mut client, &mut far);
    let (out, into) = (front.relays.figures(), home.relays.figures());
    assert_eq!((out.relayed_out, out.relayed_in), (1, 0));
    assert_eq!((into.relayed_out, into.relayed_in), (0, 1));
}

/// Its first bytes go with the open, the others after the answer.
#[test]
fn a_long_connect_comes_before_what_follows_it() {
    let (front, home) = two_nodes();
    let bytes = pattern(100_000);
    let mut client = front.begin(&home, EPOCH, &bytes);
    client.write_all(b"later").expect("it is open");
    let (_, _, Client { stream, arrival, .. }) = home.arrived();
    let first = CREDIT_BYTES_MIN as usize;
    assert_eq!(arrival.bytes, bytes[..first]);
    let mut far = Far::new(stream);
    assert_eq!(far.read(bytes.len() - first), bytes[first..]);
    assert_eq!(far.read(5), b"later");
}

/// Sends and receives `bytes` at both ends at once.
fn flood(mut client: TcpStream, mut far: Far, bytes: &[u8]) -> (TcpStream, Far) {
    let mut sending = client.try_clone().expect("clone");
    let (mut far, got) = thread::scope(|scope| {
        scope.spawn(move || sending.write_all(bytes).expect("it is open"));
        let answering = scope.spawn(move || {
            // The home answers each piece, as it comes.
            for piece in bytes.chunks(50_000) {
                far.write(piece);
                assert!(far.read(piece.len()) == piece, "in order");
            }
            far
        });
        let mut got = vec![0; bytes.len()];
        client.read_exact(&mut got).expect("all of it");
        (answering.join().expect("it ends"), got)
    });
    assert!(got == bytes, "in order");
    works(&mut client, &mut far);
    (client, far)
}

#[test]
fn ten_megabytes_pass_each_way_at_once() {
    let (front, home) = two_nodes();
    let (client, far) = front.relay(&home);
    let (client, far) = flood(client, far, &pattern(10_000_000));
    drop((client, far));
    front.until_idle();
    home.until_idle();
}

/// Both nodes begin relays.
#[test]
fn relays_in_both_directions_share_a_link() {
    let (one, other) = two_nodes();
    let bytes = pattern(500_000);
    thread::scope(|scope| {
        for number in 0..20 {
            let (from, to) = if number % 2 == 0 { (&one, &other) } else { (&other, &one) };
            let (client, far) = from.relay(to);
            let bytes = &bytes;
            scope.spawn(move || flood(client, far, bytes));
        }
    });
    one.until_idle();
    other.until_idle();
}

#[test]
fn a_client_that_never_reads_stops_no_other() {
    let (front, home) = two_nodes();
    let bytes = pattern(40_000_000);
    let (mut lazy, mut its) = front.relay(&home);
    let (client, far) = front.relay(&home);
    thread::scope(|scope| {
        let writing = scope.spawn(|| its.write(&bytes));
        flood(client, far, &pattern(2_000_000));
        assert!(!writing.is_finished(), "there is no room for all of it");
        let mut got = vec![0; bytes.len()];
        lazy.read_exact(&mut got).expect("all of it");
        assert!(got == bytes, "in order");
    });
}

/// The bytes that are lent are few, and all relays go on with what each has.
#[test]
fn credit_that_cannot_grow_suffices() {
    let authority = Authority::new();
    let options = Options { relay_bytes_max: 10_000, ..OPTIONS };
    let front = Node::start_with("n1", &authority, &options);
    let home = Node::start_with("n2", &authority, &options);
    join(&front, &home);
    let bytes = pattern(300_000);
    thread::scope(|scope| {
        for _ in 0..5 {
            let (client, far) = front.relay(&home);
            let bytes = &bytes;
            scope.spawn(move || flood(client, far, bytes));
        }
    });
    assert!(home.relays.figures().bytes_lent <= 10_000);
    front.until_idle();
    home.until_idle();
}

#[test]
fn idle_relays_give_back_what_they_were_lent() {
    let (front, home) = two_nodes();
    let (mut client, mut far) = front.relay(&home);
    let bytes = pattern(1_000_000);
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(&bytes).expect("it is open"));
        far.read(bytes.len());
    });
    assert!(home.relays.figures().bytes_lent > 0, "it has grown");
    until(|| home.relays.figures().bytes_lent == 0);
    works(&mut client, &mut far);
}

#[test]
fn a_lost_link_closes_both_ends() {
    let (front, home) = two_nodes();
    let relayed: Vec<_> = (0..10).map(|_| front.relay(&home)).collect();
    front.links.remove("n2");
    for (client, far) in relayed {
        assert_eq!(rest(client), b"");
        assert_eq!(far.rest(), b"");
    }
    front.until_idle();
    home.until_idle();
    let (_, stream, peer) = front.client();
    let client = Client::new(stream, Box::new(()), peer, (String::new(), b"CONNECT".to_vec()));
    let Err(client) = front.relays.begin("n2", CELL, EPOCH, client) else {
        panic!("there is no link");
    };
    assert_eq!(client.arrival.bytes, b"CONNECT");
}

/// What arrives of a stream is its beginning.
#[test]
fn a_link_that_is_cut_amid_data_closes_both_ends() {
    let authority = Authority::new();
    let (front, home) = (Node::start("n1", &authority), Node::start("n2", &authority));
    let proxy = Proxy::start(home.links.local_address(), vec![Plan::CutAfter(2_000_000)]);
    join_at(&front, &home, front.links.local_address(), proxy.address());
    let (client, far) = front.relay(&home);
    let bytes = pattern(40_000_000);
    let mut sending = client.try_clone().expect("clone");
    thread::scope(|scope| {
        scope.spawn(|| sending.write_all(&bytes).expect_err("it is closed"));
        let got = far.rest();
        assert!(!got.is_empty() && got.len() < 2_000_000 && bytes.starts_with(&got));
        assert_eq!(rest(client), b"");
    });
    front.until_idle();
    home.until_idle();
    front.until_connected();
    home.until_connected();
    let (mut client, mut far) = front.relay(&home);
    works(&mut client, &mut far);
}

/// The process pauses between two packets, or before what is read next.
#[test]
fn a_link_that_is_dead_by_the_clock_moves_no_byte() {
    let authority = Authority::new();
    let options = |name| links::Options { link_ms: 2000, ..link_options(name, &authority) };
    let front = Node::start_at(options("n1"), &OPTIONS);
    let home = Node::start_at(options("n2"), &OPTIONS);
    let connected = join(&front, &home);
    let (mut client, mut far) = front.relay(&home);
    // The answer to the open has come.
    works(&mut client, &mut far);
    let pause = front.pause.lock().expect("pause");
    // It pauses at this packet, or at the one before.
    far.write(b"before");
    until(|| connected.sender.is_dead());
    client.write_all(b"after").expect("it is open");
    drop(pause);
    let got = rest(client);
    assert!(b"before".starts_with(&got[..]), "{got:?}");
    assert_eq!(far.rest(), b"");
    assert!(front.until_lost().1.starts_with("nothing has arrived for 2000 ms"));
}

#[test]
fn a_client_for_another_epoch_comes_back_as_it_was() {
    let (front, home) = two_nodes();
    let mut client = front.begin(&home, EPOCH + 1, b"CONNECT");
    client.write_all(b"later").expect("it is open");
    let (refused, why) = front.refused();
    assert_eq!((why, &*refused.arrival.bytes), (Refused::NotOwner, &b"CONNECT"[..]));
    assert_eq!((front.relays.figures().refused, home.relays.figures().refused), (1, 1));
    home.host.owned.lock().expect("owned").insert(CELL, EPOCH + 1);
    assert!(front.relays.begin("n2", CELL, EPOCH + 1, refused).is_ok());
    let (_, epoch, arrived) = home.arrived();
    assert_eq!((epoch, &*arrived.arrival.bytes), (EPOCH + 1, &b"CONNECT"[..]));
    let mut far = Far::new(arrived.stream);
    assert_eq!(far.read(5), b"later");
    works(&mut client, &mut far);
}

#[test]
fn relays_of_an_epoch_that_is_over_are_closed_and_no_others() {
    let (front, home) = two_nodes();
    let (old, its_far) = front.relay(&home);
    home.host.owned.lock().expect("owned").insert(CELL, EPOCH + 1);
    let mut new = front.begin(&home, EPOCH + 1, b"CONNECT");
    let mut far = Far::new(home.arrived().2.stream);
    front.relays.epoch_changed(CELL + 1, None);
    front.relays.epoch_changed(CELL, Some(EPOCH + 1));
    assert_eq!(rest(old), b"");
    assert_eq!(its_far.rest(), b"");
    let late = front.begin(&home, EPOCH, b"CONNECT");
    assert_eq!(front.refused().1, Refused::NotOwner, "it is known here");
    assert_eq!(rest(late), b"");
    works(&mut new, &mut far);
    home.relays.epoch_changed(CELL, None);
    assert_eq!(rest(new), b"");
    assert_eq!(far.rest(), b"");
    front.until_idle();
    home.until_idle();
}

/// Also if it waits for credit when the stream ends.
#[test]
fn what_came_before_the_end_of_a_stream_is_delivered() {
    let (front, home) = two_nodes();
    let bytes = pattern(300_000);
    let (mut client, far) = front.relay(&home);
    thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&bytes).expect("it is open");
            client.shutdown(Shutdown::Write).expect("shutdown");
        });
        assert!(far.rest() == bytes);
    });
    assert_eq!(rest(client), b"", "half of a close is one");
    let (client, mut far) = front.relay(&home);
    thread::scope(|scope| {
        scope.spawn(|| {
            far.write(&bytes);
            drop(far);
        });
        assert!(rest(client) == bytes);
    });
}

/// The cell closes while the client sends: what the client has sent cannot be written any more.
#[test]
fn the_last_words_of_a_cell_reach_a_client_that_sends() {
    let (front, home) = two_nodes();
    for _ in 0..50 {
        let (mut client, mut far) = front.relay(&home);
        let mut sending = client.try_clone().expect("clone");
        thread::scope(|scope| {
            scope.spawn(move || while sending.write_all(&[7; 1000]).is_ok() {});
            far.read(1000);
            far.write(b"last words");
            drop(far);
            let mut got = [0; 10];
            client.read_exact(&mut got).expect("it gets them");
            assert_eq!(&got, b"last words");
            assert_eq!(client.read(&mut got).expect("the end"), 0);
            client.shutdown(Shutdown::Both).expect("shutdown");
        });
    }
    front.until_idle();
    home.until_idle();
}

#[test]
fn a_thousand_relays_leave_nothing_behind() {
    let (front, home) = two_nodes();
    for round in 0..10 {
        let mut relayed: Vec<_> = (0..100).map(|_| front.relay(&home)).collect();
        relayed.iter_mut().for_each(|(client, far)| works(client, far));
        assert_eq!(front.relays.figures().relayed_out, 100);
        for (client, far) in relayed {
            if round % 2 == 0 {
                drop(client);
                assert_eq!(far.rest(), b"");
            } else {
                drop(far);
                assert_eq!(rest(client), b"");
            }
        }
        front.until_idle();
        home.until_idle();
    }
}

#[test]
fn a_node_without_room_refuses() {
    let authority = Authority::new();
    let front = Node::start_with("n1", &authority, &Options { relays_max: 2, ..OPTIONS });
    let home = Node::start_with("n2", &authority, &Options { relays_max: 1, ..OPTIONS });
    join(&front, &home);
    let (mut client, mut far) = front.relay(&home);
    let second = front.begin(&home, EPOCH, b"CONNECT");
    assert_eq!(front.refused().1, Refused::NoRoom);
    assert_eq!(rest(second), b"");
    let (_third, its_far) = home_relay(&front, &home);
    assert_eq!(its_far.map(|client| client.arrival.bytes), Some(b"CONNECT".to_vec()));
    works(&mut client, &mut far);
}

/// The home has used up its relays, so it cannot begin one.
fn home_relay(front: &Node, home: &Node) -> (TcpStream, Option<Client>) {
    let (client, stream, peer) = home.client();
    let relayed = Client::new(stream, Box::new(()), peer, (String::new(), b"CONNECT".to_vec()));
    (client, home.relays.begin(&front.name, CELL, EPOCH, relayed).err())
}

/// The nodes begin more at once than the home answers at once.
#[test]
fn a_storm_of_clients_arrives() {
    let (front, home) = two_nodes();
    let clients: Vec<_> = (0..400).map(|_| front.begin(&home, EPOCH, &pattern(4096))).collect();
    let far: Vec<_> = clients.iter().map(|_| Far::new(home.arrived().2.stream)).collect();
    drop(clients);
    far.into_iter().for_each(|far| assert_eq!(far.rest(), b""));
    front.until_idle();
    home.until_idle();
}

#[test]
fn a_node_that_stops_closes_its_clients_and_accepts_no_more() {
    let (front, home) = two_nodes();
    let (client, far) = front.relay(&home);
    front.relays.stop();
    assert_eq!(rest(client), b"");
    assert_eq!(far.rest(), b"");
    home.until_idle();
    let (_client, stream, peer) = front.client();
    let client = Client::new(stream, Box::new(()), peer, (String::new(), b"CONNECT".to_vec()));
    assert!(front.relays.begin("n2", CELL, EPOCH, client).is_err());
}

#[test]
fn relays_use_all_connections_of_a_link() {
    let authority = Authority::new();
    let options = |name| links::Options { lanes: 2, ..link_options(name, &authority) };
    let front = Node::start_at(options("n1"), &OPTIONS);
    let home = Node::start_at(options("n2"), &OPTIONS);
    join(&front, &home);
    let lanes = [front.until_connected(), home.until_connected()];
    let mut relayed: Vec<_> = (0..6).map(|_| front.relay(&home)).collect();
    relayed.iter_mut().for_each(|(client, far)| works(client, far));
    lanes[0].sender.close(links::Violation("test".to_owned()));
    // Half of them are on each connection.
    until(|| front.relays.figures().relayed_out == 3 && home.relays.figures().relayed_in == 3);
    front.links.remove("n2");
    for (client, far) in relayed {
        assert_eq!(rest(client), b"");
        assert_eq!(far.rest(), b"");
    }
}
