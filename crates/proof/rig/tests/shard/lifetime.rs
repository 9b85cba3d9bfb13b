//! How connections and sessions end, and what they may do meanwhile, seen by clients.

use std::collections::HashMap;
use std::sync::Arc;

use crate::rows::{
    Step, asks, connects, counts, does, everyone, gets, is_closed, is_open, opens, passes, pauses,
    reads, reads_count, row, rules, run, sends, settles, v311,
};
use broker::{ConnectRequest, Ended, Event, Limits, Memory, Name, Reauthenticated, Settings};
use codec::{Auth, Connect, Packet, Property, PropertyBuf, QoS, Reason, Version, Will};
use policy::{Access, Attribute, Attributes, Permission, Principal, Revocation};
use rig::{Conn, Got, Lab, admit, connect_packet, persistent, request, retained, with_limits};
use session::Rate;

fn with_will(id: &str, delay_secs: u32, expiry_secs: u32) -> ConnectRequest {
    let mut properties = PropertyBuf::new();
    properties.push(Property::WillDelaySecs(delay_secs));
    let will = Will {
        topic: "wills",
        payload: b"will",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: properties.as_properties(),
    };
    let connect = Connect { will: Some(will), clean_start: false, ..connect_packet(id) };
    let request = admit(&connect, &Arc::new(Limits::default())).expect("a sound CONNECT");
    ConnectRequest { session_expiry_secs: expiry_secs, ..request }
}

/// A client that leaves a will, and somebody who waits for it.
fn dying(delay_secs: u32, expiry_secs: u32) -> [Step; 2] {
    let dying = move |_| with_will("client", delay_secs, expiry_secs);
    [sends("watcher", ["subscribe wills"]), opens("client", dying)]
}

#[test]
fn wills() {
    for (delay_secs, expiry_secs, after_secs) in [(5, 100, 5), (100, 5, 5), (0, 100, 0), (9, 0, 0)]
    {
        let name = format!("a will of delay {delay_secs} and expiry {expiry_secs} comes once");
        let (is_at_once, is_later) = (after_secs == 0, after_secs > 0);
        run([row("", name, Lab::new(2)).steps(dying(delay_secs, expiry_secs)).steps([
            sends("client", ["cut"]),
            passes(u64::saturating_sub(after_secs, 1)),
            reads_count("watcher", is_at_once.into()),
            passes(1),
            reads_count("watcher", is_later.into()),
            passes(200),
            gets("watcher", []),
        ])]);
    }
    let back = |name| opens(name, |_| with_will("client", 5, 100));
    let anew = ConnectRequest { clean_start: true, ..with_will("client", 5, 100) };
    run([
        row("MQTT-3.1.3-9", "no will if the client is back before its delay", Lab::new(2))
            .steps(dying(5, 100))
            .steps([
                sends("client", ["cut"]),
                passes(3),
                back("client#2"),
                passes(10),
                gets("watcher", []),
                // A takeover is the same, unless the new connection wants a clean start.
                back("client#3"),
                is_closed("client#2"),
                gets("watcher", []),
                opens("client#4", move |_| anew.clone()),
                reads("watcher", ["will"]),
                counts(|m| &m.takeovers, 2),
            ]),
        row("", "a goodbye with reason 0x04 does not take the will away", Lab::new(2))
            .steps(dying(0, 100))
            .steps([sends("client", ["disconnect with_will"]), reads("watcher", ["will"])]),
    ]);
}

#[test]
fn silence_and_expiry() {
    let alive = |request| ConnectRequest { keep_alive_secs: 10, ..request };
    let rate = Limits { message_rate: Rate { per_second: 1, burst: 1 }, ..Limits::default() };
    let expiring = |request| ConnectRequest { session_expiry_secs: 10, ..request };
    run([
        row("MQTT-3.1.2-22", "silence of one and a half keep alives is the end", Lab::new(1))
            .steps([
                opens("client", alive),
                passes(14),
                asks("client", "pingreq", ["pingresp"]),
                passes(14),
                is_open("client"),
                passes(1),
                gets("client", ["disconnect keep_alive_timeout"]),
                counts(|m| &m.keep_alive_timeouts, 1),
            ]),
        row("MQTT-3.1.2-22", "who is not read is not silent", Lab::new(1)).steps([
            opens("client", move |request| with_limits(alive(request), rate.clone())),
            sends("client", ["publish t x"; 31]),
            does(|stage| assert_eq!(stage.lab.pauses.last().unwrap().1, stage.lab.now_ms + 30_000)),
            passes(30),
            // What it has sent meanwhile lies in its socket; from now on it could be heard.
            passes(14),
            is_open("client"),
            passes(1),
            is_closed("client"),
        ]),
        row("MQTT-3.14.2-2", "no expiry at DISCONNECT after none at CONNECT", Lab::new(1))
            .steps([asks("client", "disconnect expiry5", ["disconnect protocol_error"])]),
    ]);
    for (goodbye, lives_secs) in
        [("disconnect", 10), ("disconnect expiry3", 3), ("disconnect expiry30", 30)]
    {
        run([row("", format!("a session ends {lives_secs} s after {goodbye}"), Lab::new(1))
            .steps([
                opens("client", expiring),
                sends("client", [goodbye]),
                passes(lives_secs - 1),
                counts(|m| &m.sessions, 1),
                passes(1),
                counts(|m| &m.sessions, 0),
                counts(|m| &m.sessions_expired, 1),
            ])]);
    }
}

/// A client that is vouched for by these.
fn vouched(
    revocations: impl IntoIterator<Item = Revocation>,
) -> impl Fn(ConnectRequest) -> ConnectRequest + 'static {
    let revocations = revocations.into_iter().collect();
    let principal = Principal { revocations, ..Principal::default() };
    move |request| ConnectRequest {
        clean_start: false,
        session_expiry_secs: 60,
        principal: Some(Box::new(principal.clone())),
        ..request
    }
}

#[test]
fn revoked_credentials_end_their_connections_and_leave_sessions() {
    let (revocation, other) = (Revocation::default(), Revocation::default());
    let revoked = || {
        does(|stage| {
            let now_ms = stage.lab.now_ms;
            stage.lab.shards[0].on_revoked(now_ms);
            stage.lab.settle();
        })
    };
    run([row("", "two are revoked", Lab::new(1)).steps([
        opens("both", vouched([other.clone(), revocation.clone()])),
        opens("stays", vouched([other.clone()])),
        does(move |_| revocation.revoke()),
        revoked(),
        is_closed("both"),
        is_open("stays"),
        // What vouches for the client now is what counts.
        connects("both", vouched([other])),
        gets("both", ["connack present"]),
        revoked(),
        is_open("both"),
    ])]);
}

#[test]
fn a_credential_that_is_renewed_in_time_keeps_the_connection() {
    let everyone = everyone([(Permission::ReadWrite, "%{attributes.site}/#")]);
    let start_ms = Lab::new(1).now_ms;
    let principal = move |site: &str, secs: u64| Principal {
        attributes: Attributes::new([("site".into(), Attribute::Text(site.into()))]),
        expires_at_ms: Some(start_ms + secs * 1000),
        provider: Some(7),
        ..Principal::default()
    };
    let admin = Principal { is_superuser: true, ..Principal::default() };
    run([row("", "five seconds, then twenty", Lab::with(1, Settings::default(), everyone)).steps(
        [
            opens("c", move |request| ConnectRequest {
                username: Some("anna".into()),
                auth_method: Some("OAUTH2-JWT".into()),
                principal: Some(Box::new(principal("berlin", 5))),
                ..request
            }),
            sends("c", ["subscribe berlin/# qos1"]),
            does(move |stage| {
                let conn = stage.conn("c");
                re_authenticate(&mut stage.lab, conn, "OAUTH2-JWT", b"new");
                let ask = stage.lab.asked.pop().expect("asked");
                assert_eq!((ask.username.as_deref(), ask.provider), (Some("anna"), Some(7)));
                let renewed = Reauthenticated::Renewed(Box::new(principal("bonn", 20)));
                stage.lab.shards[0].on_reauthenticated(
                    ask.slot,
                    ask.connection,
                    &renewed,
                    start_ms,
                );
                stage.lab.settle();
                stage.taken_by("c");
            }),
            // The first would have ended.
            passes(10),
            is_open("c"),
            sends("c", ["subscribe bonn/# qos1"]),
            opens("writer", move |request| ConnectRequest {
                principal: Some(Box::new(admin.clone())),
                ..request
            }),
            sends("writer", ["publish berlin/x old", "publish bonn/x new"]),
            gets("c", ["publish bonn/x new"]),
            passes(11),
            gets("c", ["disconnect not_authorized"]),
        ],
    )]);
}

#[test]
fn connections_that_may_not_go_on() {
    let expires_at_ms = Some(Lab::new(1).now_ms + 5_000);
    let expiring = Principal { expires_at_ms, ..Principal::default() };
    let kept = |request| ConnectRequest { clean_start: false, session_expiry_secs: 60, ..request };
    run([
        row("", "a connection ends with its credential", Lab::new(1)).steps([
            opens("token", move |request| ConnectRequest {
                principal: Some(Box::new(expiring.clone())),
                ..kept(request)
            }),
            opens("other", kept),
            passes(4),
            gets("token", []),
            passes(2),
            gets("token", ["disconnect not_authorized"]),
            is_open("other"),
            counts(|m| &m.credentials_expired, 1),
            // The session is there, and who is back without an end of the credential stays.
            opens("token", kept),
            passes(20),
            is_open("token"),
        ]),
        row("", "shutdown and kick say why", Lab::new(1)).steps([
            opens("old", v311),
            sends("first", ["pingreq"]),
            does(|stage| {
                let now_ms = stage.lab.now_ms;
                assert!(stage.lab.shards[0].on_kick(Name::first("first"), now_ms));
                assert!(!stage.lab.shards[0].on_kick(Name::first("nobody"), now_ms));
            }),
            settles(),
            gets("first", ["pingresp", "disconnect administrative_action"]),
            sends("third", ["pingreq"]),
            does(|stage| stage.lab.shards[0].on_shutdown(stage.lab.now_ms)),
            settles(),
            gets("third", ["pingresp", "disconnect server_shutting_down"]),
            // MQTT 3.1.1 has no such packet.
            gets("old", []),
            is_closed("old"),
            does(|stage| {
                let ended = stage.lab.events.iter().filter_map(|event| match event {
                    Event::Disconnected { ended, .. } => Some(ended.clone()),
                    _ => None,
                });
                let all = [Ended::Administrative, Ended::Shutdown, Ended::Shutdown];
                assert_eq!(ended.collect::<Vec<_>>(), all);
            }),
        ]),
        row("", "a ban ends the connections that it means and no others", Lab::new(1)).steps([
            opens("by-id", of_user("anna", "192.0.2.1:5")),
            opens("by-user", of_user("bob", "192.0.2.2:5")),
            opens("by-address", of_user("carl", "192.0.2.3:5")),
            opens("other", of_user("dora", "192.0.2.33:5")),
            does(|stage| {
                let now_ms = stage.lab.now_ms;
                let is_banned = |id: Name<'_>, user: Option<&str>, peer: &str| {
                    id.text() == "by-id" || user == Some("bob") || peer.starts_with("192.0.2.3:")
                };
                stage.lab.shards[0].on_bans(is_banned, now_ms);
            }),
            settles(),
            gets("by-id", ["disconnect administrative_action"]),
            gets("by-user", ["disconnect administrative_action"]),
            gets("by-address", ["disconnect administrative_action"]),
            is_open("other"),
            counts(|m| &m.banned_cut, 3),
        ]),
    ]);
}

fn of_user(
    name: &'static str,
    peer: &'static str,
) -> impl Fn(ConnectRequest) -> ConnectRequest + 'static {
    move |request| ConnectRequest { username: Some(name.into()), peer: peer.into(), ..request }
}

// Access.

type Denial = (&'static str, &'static str, &'static str, u64);

/// All that was reported until now: action, topic, rule, how often.
fn is_denied<const N: usize>(expected: [Denial; N]) -> Step {
    does(move |stage| {
        let denials = stage.lab.events.iter().filter_map(|event| match event {
            Event::Denied { action, topic, rule, count, .. } => {
                Some((*action, &**topic, &**rule, *count))
            }
            _ => None,
        });
        assert_eq!(denials.collect::<Vec<_>>(), expected);
    })
}

#[test]
fn access() {
    use Permission::{Deny, Read, ReadWrite, Write};
    let ruled = |rules| Lab::with(2, Settings::default(), rules);
    let some = everyone([(ReadWrite, "open/#"), (Deny, "open/secret")]);
    let nothing = "no rule grants it";
    let (first, secret) = (("publish", "secret/0", "deny secret/#", 1), "deny secret/#");
    run([
        row("", "rules hold for publish, subscribe, receive and will", ruled(some)).steps([
            asks("client", "subscribe closed/# qos1", ["suback 1: not_authorized"]),
            sends("client", ["subscribe open/# qos1"]),
            asks("client", "publish closed/1 x qos1", ["puback 1 not_authorized"]),
            asks("client", "publish open/secret x qos1", ["puback 1 not_authorized"]),
            asks("client", "publish open/1 seen", ["publish open/1 seen"]),
            opens("dying", |_| with_will("dying", 0, 0)),
            sends("dying", ["cut"]),
            passes(1),
            is_denied([
                ("subscribe", "closed/#", nothing, 1),
                ("will", "wills", nothing, 1),
                ("publish", "closed/1", nothing, 2),
            ]),
            counts(|m| &m.publishes_denied, 3),
        ]),
        row(
            "",
            "denials are reported once a second",
            ruled(everyone([(ReadWrite, "#"), (Deny, "secret/#")])),
        )
        .steps([
            opens("loud", of_user("anna", "192.0.2.1:5")),
            sends("loud", (0..1000).map(|number| format!("publish secret/{number} x"))),
            sends("loud", ["publish $SYS/broker/version x"]),
            asks("loud", "subscribe secret/#", ["suback 1: not_authorized"]),
            is_denied([first]),
            passes(1),
            is_denied([
                first,
                ("publish", "secret/1", secret, 1000),
                ("subscribe", "secret/#", secret, 1),
            ]),
            does(|stage| {
                let is_of_anna = |event: &&Event| {
                    matches!(event, Event::Denied { username, peer, .. }
                    if username.as_deref() == Some("anna") && **peer == *"192.0.2.1:5")
                };
                assert_eq!(stage.lab.events.iter().filter(is_of_anna).count(), 3);
                stage.lab.events.clear();
            }),
            // What did not happen is not reported.
            passes(5),
            is_denied([]),
        ]),
        row("", "new rules hold for sessions that are open", Lab::new(1)).steps([
            sends("reader", ["subscribe #"]),
            rules(everyone([(Write, "#"), (Read, "ok")])),
            sends("writer", ["publish hidden 1", "publish ok 2"]),
            reads("reader", [2]),
            rules(Access::open()),
            sends("writer", ["publish hidden 3"]),
            reads("reader", [3]),
        ]),
    ]);
}

#[test]
fn rates_memory_and_parts_of_packets() {
    let rate = Limits { message_rate: Rate { per_second: 10, burst: 5 }, ..Limits::default() };
    run([
        row("", "a connection above its rate is read later", Lab::new(1)).steps([
            opens("client", move |request| with_limits(request, rate.clone())),
            sends("client", ["publish t x"; 5]),
            pauses("client", []),
            sends("client", ["publish t x"]),
            pauses("client", [100]),
        ]),
        row("", "publishes are refused while memory is short", Lab::new(1)).steps([
            sends("reader", ["subscribe t qos1"]),
            opens("old", v311),
            does(|stage| stage.lab.shared.set_memory(Memory::Short)),
            asks("writer", "publish t x qos1", ["puback 1 quota_exceeded"]),
            asks("writer", "publish t x", []),
            sends("old", ["publish t x qos1"]),
            is_closed("old"),
            gets("reader", []),
            counts(|m| &m.publishes_refused, 3),
        ]),
        row("", "a packet may come byte by byte", Lab::new(1)).steps([
            sends("client", ["subscribe t"]),
            does(|stage| {
                let client = stage.conn("client");
                let mut bytes = Vec::new();
                rig::publish("t", b"slow", 0, 0).encode(Version::V5, &mut bytes);
                Packet::Pingreq.encode(Version::V5, &mut bytes);
                bytes.iter().for_each(|byte| stage.lab.bytes(client, &[*byte]));
            }),
            settles(),
            gets("client", ["publish t slow", "pingresp"]),
        ]),
        row("", "an acknowledgement of the wrong kind is a protocol error", Lab::new(1)).steps([
            sends("client", ["subscribe t qos1"]),
            asks("client", "publish t x qos1", ["puback 1", "publish t x qos1 id1"]),
            // An unknown id is a late answer.
            asks("client", "puback 77", []),
            is_open("client"),
            asks("client", "pubcomp 1", ["disconnect protocol_error"]),
        ]),
    ]);
}

/// Asks for re-authentication with a method.
fn re_authenticate(lab: &mut Lab, client: Conn, method: &str, data: &[u8]) {
    let mut properties = PropertyBuf::new();
    properties.push(Property::AuthMethod(method)).push(Property::AuthData(data));
    let properties = properties.as_properties();
    lab.send(client, &Packet::Auth(Auth { reason: Reason::RE_AUTHENTICATE, properties }));
}

#[test]
fn re_authentication_asks_goes_on_and_ends() {
    let mut lab = Lab::new(1);
    let client = ConnectRequest { auth_method: Some("SCRAM".into()), ..request("client") };
    let client = lab.open(client);
    let (slot, now_ms) = (lab.place(client).1, lab.now_ms);
    re_authenticate(&mut lab, client, "SCRAM", b"one");
    assert!(lab.asked[0].is_start && *lab.asked[0].data == *b"one");
    let two = Got::Auth(Reason::CONTINUE_AUTHENTICATION, b"two".into());
    for (answer, got) in [
        (Reauthenticated::Continue(b"two".into()), two),
        (Reauthenticated::Success(vec![]), Got::Auth(Reason::SUCCESS, vec![])),
        (Reauthenticated::Failure(Reason::NOT_AUTHORIZED), Got::Disconnect(Reason::NOT_AUTHORIZED)),
    ] {
        lab.shards[0].on_reauthenticated(slot, client, &answer, now_ms);
        lab.settle();
        assert_eq!(lab.take_all(client), [got]);
    }
}

#[test]
fn mqtt_4_12_1_1_another_method_is_a_protocol_error() {
    let mut lab = Lab::new(1);
    let client = ConnectRequest { auth_method: Some("SCRAM".into()), ..request("client") };
    let client = lab.open(client);
    re_authenticate(&mut lab, client, "OTHER", b"");
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::PROTOCOL_ERROR)]);
    assert!(lab.asked.is_empty());
}

#[test]
fn sys_topics_report_the_counters() {
    let mut lab = Lab::new(2);
    let watcher = lab.open(request("watcher"));
    lab.subscribe(watcher, "$SYS/#", 0);
    lab.subscribe(watcher, "$share/g/nothing", 0);
    lab.publish(watcher, "t", b"abc", 1, 1);
    let away = lab.open(persistent("away"));
    lab.subscribe(away, "r", 1);
    lab.cut(away);
    lab.send(watcher, &retained("r", b"12345", 1, 2));
    lab.take_all(watcher);
    lab.pass_secs(10);
    let mut sys = broker::sys::SysTopics::new("1.2.3");
    let figures = broker::sys::Figures { shared: &lab.shared, sockets_opened: 30 };
    for message in sys.messages(&broker::sys::Values::of(&figures), 60, 60.0) {
        let now_ms = lab.now_ms;
        lab.shards[0].on_publish_command(&message, now_ms);
    }
    lab.settle();
    let values: HashMap<String, String> = lab
        .received(watcher)
        .into_iter()
        .map(|p| (p.topic, String::from_utf8(p.payload).expect("text")))
        .collect();
    let value = |topic: &str| values[&format!("$SYS/broker/{topic}")].as_str();
    for (topic, expected) in [
        ("version", "quelea version 1.2.3"),
        ("uptime", "60 seconds"),
        ("clients/connected", "1"),
        ("clients/maximum", "1"),
        ("subscriptions/count", "2"),
        ("shared_subscriptions/count", "1"),
        ("publish/messages/received", "2"),
        ("publish/messages/sent", "0"),
        ("publish/bytes/received", "8"),
        // 2 CONNACKs, 3 SUBACKs, 2 PUBACKs.
        ("messages/sent", "7"),
        ("retained messages/count", "1"),
        // One is retained and queued.
        ("store/messages/count", "2"),
        ("messages/stored", "2"),
        // 2 per minute, smoothed.
        ("load/publish/received/1min", "1.26"),
        // 7 per minute, smoothed.
        ("load/messages/sent/1min", "4.42"),
        // 30 per minute, smoothed.
        ("load/sockets/1min", "18.96"),
    ] {
        assert_eq!(value(topic), expected, "{topic}");
    }
    let bytes = |topic| value(topic).parse::<u64>().expect("a number");
    assert!(bytes("store/messages/bytes") >= 5);
}
