//! No Local is a matter of client IDs, whatever session has them (MQTT-3.8.3-3).

use broker::command::{Command, Publication};
use broker::{ConnectRequest, Durability, Scope};
use codec::{Ack, AckKind, Packet, QoS, Reason, RetainHandling, SubscribeOptions};
use rig::{
    Conn, Got, Lab, SCOPES, level, persistent, publish, request, retained, window, with_limits,
};
use session::Will;
use storage::testing::Crash;

fn options(qos: u8) -> SubscribeOptions {
    SubscribeOptions {
        no_local: true,
        retain_handling: RetainHandling::Always,
        ..SubscribeOptions::new(level(qos))
    }
}

fn subscribe(lab: &mut Lab, conn: Conn, filter: &str, options: SubscribeOptions) {
    let mut filters = codec::FilterBuf::new();
    filters.push(filter, options);
    let (packet_id, properties) = (9, codec::Properties::EMPTY);
    let filters = filters.as_filters();
    lab.send(conn, &Packet::Subscribe(codec::Subscribe { packet_id, properties, filters }));
}

/// What a client gets that subscribes with No Local.
fn got_by(lab: &mut Lab, request: ConnectRequest) -> Vec<String> {
    let conn = lab.connect(request);
    subscribe(lab, conn, "t/#", options(1));
    let mut got = read_qos_1(lab, conn);
    got.sort_unstable();
    got.dedup();
    lab.cut(conn);
    got
}

fn will(payload: &[u8], retain: bool) -> Option<Box<Will>> {
    Some(Box::new(Will {
        topic: "t/will".into(),
        properties: Box::default(),
        payload: payload.into(),
        qos: level(1),
        retain,
        delay_secs: 0,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    }))
}

#[test]
fn mqtt_3_8_3_3_the_next_session_of_a_client_id_is_not_sent_what_that_has_retained() {
    for shards in [1, 3] {
        for large in [1, 100_000] {
            let mut lab = Lab::new(shards);
            let other = lab.open(request("other"));
            lab.send(other, &retained("t/other", b"theirs", 1, 1));
            for qos in 0..3_u8 {
                let client = lab.open(request("client"));
                let payload = vec![b'0' + qos; large];
                lab.send(client, &retained(&format!("t/{qos}"), &payload, qos, qos.into()));
                if qos == 2 {
                    lab.ack(client, AckKind::Pubrel, 2);
                }
                lab.cut(client);
            }
            let clean = ConnectRequest { clean_start: true, ..request("client") };
            assert_eq!(got_by(&mut lab, clean), ["theirs"], "{shards} shards");
            // Somebody else gets all, also one who has the place of the session before.
            assert_eq!(got_by(&mut lab, request("third")).len(), 4);
            assert_eq!(got_by(&mut lab, request("client")), ["theirs"]);
        }
    }
}

#[test]
fn mqtt_3_8_3_3_what_a_client_has_retained_is_its_own_after_a_start() {
    for shards in [1, 3] {
        for crash in [Crash::Power, Crash::Kill] {
            let mut lab = Lab::durable(shards);
            let client = lab.open(persistent("client"));
            subscribe(&mut lab, client, "t/#", options(1));
            lab.send(client, &retained("t/mine", b"mine", 1, 1));
            let other = lab.open(persistent("other"));
            lab.send(other, &retained("t/other", b"theirs", 1, 1));
            lab.crash(crash);
            assert_eq!(got_by(&mut lab, persistent("client")), ["theirs"], "{shards} shards");
            assert_eq!(got_by(&mut lab, persistent("other")), ["mine"], "{shards} shards");
            assert_eq!(got_by(&mut lab, request("third")), ["mine", "theirs"]);
            // Copied forward, and read once more.
            lab.turn_the_journal_over();
            lab.crash(crash);
            assert_eq!(got_by(&mut lab, persistent("client")), ["theirs"], "{shards} shards");
            assert_eq!(got_by(&mut lab, persistent("other")), ["mine"], "{shards} shards");
        }
    }
}

#[test]
fn mqtt_3_8_3_3_a_will_is_published_by_its_client_id() {
    for shards in [1, 3] {
        for durable in [false, true] {
            let mut lab = if durable { Lab::durable(shards) } else { Lab::new(shards) };
            let asking = ConnectRequest { will: will(b"gone", true), ..request("client") };
            let client = lab.open(asking);
            lab.cut(client);
            assert_eq!(got_by(&mut lab, request("client")), Vec::<String>::new());
            assert_eq!(got_by(&mut lab, request("other")), ["gone"]);
            if durable {
                lab.crash(Crash::Power);
                assert_eq!(got_by(&mut lab, request("client")), Vec::<String>::new());
                assert_eq!(got_by(&mut lab, request("other")), ["gone"]);
            }
        }
    }
}

#[test]
fn the_same_client_id_in_another_namespace_is_another_client() {
    let mut lab = Lab::new(3);
    let of = |scope: Scope| ConnectRequest { scope, ..request("client") };
    for scope in [Scope::FIRST, SCOPES[0], SCOPES[1]] {
        let client = lab.open(of(scope));
        lab.send(client, &retained("t", b"mine", 1, 1));
        lab.cut(client);
        assert_eq!(got_by(&mut lab, of(scope)), Vec::<String>::new());
        assert_eq!(got_by(&mut lab, ConnectRequest { scope, ..request("other") }), ["mine"]);
    }
}

#[test]
fn what_operators_publish_is_nobodys_own() {
    let mut lab = Lab::new(1);
    let now_ms = lab.now_ms;
    let publication = Publication {
        topic: "t".into(),
        properties: Box::default(),
        payload: b"theirs".as_slice().into(),
        qos: QoS::AtLeastOnce,
        retain: true,
        expiry_secs: None,
        durability: Durability::Memory,
    };
    lab.shards[0].on_command(1, Scope::FIRST, &Command::Publish(publication), now_ms);
    lab.settle();
    for id in ["client", "other"] {
        assert_eq!(got_by(&mut lab, request(id)), ["theirs"]);
    }
}

/// Taken on, and routed once more by the next process.
#[test]
fn mqtt_3_8_3_3_what_was_taken_on_before_a_crash_is_its_publishers_own() {
    for shards in [1, 3] {
        for (crash, writes) in [(Crash::Kill, 1), (Crash::Kill, 2), (Crash::Power, 1)] {
            let mut lab = Lab::durable(shards);
            let witness = lab.open(persistent("witness"));
            lab.subscribe(witness, "t/#", 1);
            lab.cut(witness);
            let client = lab.open(persistent("client"));
            subscribe(&mut lab, client, "t/#", options(2));
            lab.take_all(client);
            lab.send_only(client, &publish("t/a", b"mine", 2, 1));
            for _ in 0..writes {
                lab.work_disks();
            }
            lab.crash(crash);
            lab.pass_secs(1);
            let client = lab.connect(persistent("client"));
            let case = (shards, crash, writes);
            assert_eq!(lab.payloads(client), Vec::<String>::new(), "{case:?}");
            lab.send(client, &publish("t/a", b"mine", 2, 1));
            lab.ack(client, AckKind::Pubrel, 1);
            assert_eq!(lab.payloads(client), Vec::<String>::new(), "{case:?}");
            let witness = lab.open(persistent("witness"));
            assert_eq!(read_qos_1(&mut lab, witness), ["mine"], "{case:?}");
        }
    }
}

/// A will waits for the journal, and its client is back by then.
#[test]
fn mqtt_3_8_3_3_a_live_will_is_its_clients_own() {
    for shards in [1, 3] {
        let mut lab = Lab::durable(shards);
        let witness = lab.open(request("witness"));
        lab.subscribe(witness, "t/#", 1);
        let asking = ConnectRequest { will: will(b"gone", false), ..persistent("client") };
        let client = lab.open(asking.clone());
        subscribe(&mut lab, client, "t/#", options(1));
        // A kept session stays subscribed, and its will is published when the connection ends.
        lab.cut(client);
        let client = lab.connect(ConnectRequest { will: None, ..asking });
        assert_eq!(lab.payloads(client), Vec::<String>::new(), "{shards} shards");
        assert_eq!(lab.payloads(witness), ["gone"], "{shards} shards");
    }
}

/// Its own are in the journal for others, and what it has skipped is not written when the process
/// ends.
#[test]
fn mqtt_3_8_3_3_what_a_kept_session_has_published_itself_is_its_own_after_a_crash() {
    for shards in [1, 3] {
        for crash in [Crash::Power, Crash::Kill] {
            for qos in [1, 2] {
                let mut lab = Lab::durable(shards);
                let client_id = lab.id_on(0, "client");
                let roomy = || with_limits(persistent(&client_id), window(1));
                let witness_id = lab.id_on(0, "witness");
                let witness = lab.open(persistent(&witness_id));
                lab.subscribe(witness, "t/#", 1);
                lab.cut(witness);
                let client = lab.open(roomy());
                lab.subscribe_with(client, "t/#", options(1), None);
                let other = lab.open(request("other"));
                // The session is behind: all that comes now waits in the journal.
                for number in 1..=3 {
                    lab.publish(other, "t/a", b"theirs", 1, number);
                }
                for number in 1..=5 {
                    lab.publish(client, "t/a", b"mine", qos, number);
                    if qos == 2 {
                        lab.ack(client, AckKind::Pubrel, number);
                    }
                }
                lab.crash(crash);
                let client = lab.open(roomy());
                let got = read_qos_1(&mut lab, client);
                assert_eq!(got, ["theirs"; 3], "{shards} shards, QoS {qos}");
                let witness = lab.open(persistent(&witness_id));
                assert_eq!(read_qos_1(&mut lab, witness).len(), 8);
            }
        }
    }
}

fn read_qos_1(lab: &mut Lab, conn: Conn) -> Vec<String> {
    let mut payloads = Vec::new();
    while let Some(got) = lab.take(conn) {
        let Got::Publish(received) = got else { continue };
        payloads.push(String::from_utf8(received.payload).expect("text"));
        let ack = Ack::new(AckKind::Puback, received.packet_id, Reason::SUCCESS);
        lab.send(conn, &Packet::Ack(ack));
    }
    payloads
}

/// The first session after each start has the same key.
#[test]
fn clients_whose_sessions_have_the_same_place_are_distinguished() {
    let mut lab = Lab::durable(1);
    let first = lab.open(persistent("first"));
    lab.send(first, &retained("t", b"theirs", 1, 1));
    lab.cut(first);
    for _ in 0..3 {
        lab.crash(Crash::Power);
        assert_eq!(got_by(&mut lab, request("second")), ["theirs"]);
        assert_eq!(got_by(&mut lab, persistent("first")), Vec::<String>::new());
    }
}
