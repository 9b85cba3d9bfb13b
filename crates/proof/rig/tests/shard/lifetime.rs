//! How connections and sessions end, and what they may do meanwhile, seen by clients.

use std::sync::Arc;

use broker::{ConnectRequest, Ended, Event, Limits, Memory, Name, Reauthenticated, Settings};
use codec::{
    Ack, AckKind, Auth, Connect, Disconnect, Packet, Properties, Property, PropertyBuf, QoS,
    Reason, Version, Will,
};
use policy::{Access, Attribute, Attributes, Principal, Revocation};
use policy::{Permission, Who};
use rig::{
    Conn, Got, Lab, admit, connect_packet, of_version, persistent, publish, request, request_with,
    retained, rule,
};
use session::Rate;
// Ends: wills, keep-alive, expiry, takeover.

fn with_will(id: &str, delay_secs: u32, expiry_secs: u32) -> ConnectRequest {
    let mut properties = PropertyBuf::new();
    properties.push(Property::WillDelaySecs(delay_secs));
    let will = Will {
        topic: "wills",
        payload: id.as_bytes(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: properties.as_properties(),
    };
    let connect = Connect { will: Some(will), clean_start: false, ..connect_packet(id) };
    let request = admit(&connect, &Arc::new(Limits::default())).expect("a sound CONNECT");
    ConnectRequest { session_expiry_secs: expiry_secs, ..request }
}

fn will_lab() -> (Lab, Conn) {
    let mut lab = Lab::new(2);
    let watcher = lab.open(request("watcher"));
    lab.subscribe(watcher, "wills", 0);
    (lab, watcher)
}

#[test]
fn a_will_comes_after_its_delay_or_with_the_end_of_the_session() {
    for (delay_secs, expiry_secs, after_secs) in [(5, 100, 5), (100, 5, 5), (0, 100, 0), (9, 0, 0)]
    {
        let (mut lab, watcher) = will_lab();
        let client = lab.open(with_will("client", delay_secs, expiry_secs));
        lab.cut(client);
        if after_secs > 0 {
            lab.pass_secs(after_secs - 1);
            assert_eq!(lab.payloads(watcher), Vec::<String>::new());
            lab.pass_secs(1);
        }
        assert_eq!(lab.payloads(watcher), ["client"], "{delay_secs} {expiry_secs}");
        lab.pass_secs(200);
        assert_eq!(lab.payloads(watcher), Vec::<String>::new(), "once only");
    }
}

#[test]
fn mqtt_3_1_3_9_no_will_if_the_client_is_back_before_its_delay() {
    let (mut lab, watcher) = will_lab();
    let client = lab.open(with_will("client", 5, 100));
    lab.cut(client);
    lab.pass_secs(3);
    let client = lab.open(with_will("client", 5, 100));
    lab.pass_secs(10);
    assert_eq!(lab.payloads(watcher), Vec::<String>::new());
    // A takeover is the same, unless the new connection wants a clean start.
    lab.open(with_will("client", 5, 100));
    assert!(lab.is_closed(client));
    assert_eq!(lab.payloads(watcher), Vec::<String>::new());
    lab.open(ConnectRequest { clean_start: true, ..with_will("client", 5, 100) });
    assert_eq!(lab.payloads(watcher), ["client"]);
    assert_eq!(lab.total(|m| &m.takeovers), 2);
}

#[test]
fn mqtt_3_14_4_3_a_goodbye_takes_the_will_away_and_0x04_does_not() {
    for (reason, count) in [(Reason::NORMAL_DISCONNECTION, 0), (Reason::DISCONNECT_WITH_WILL, 1)] {
        let (mut lab, watcher) = will_lab();
        let client = lab.open(with_will("client", 0, 100));
        let properties = Properties::EMPTY;
        lab.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
        assert_eq!(lab.received(watcher).len(), count);
    }
}

#[test]
fn mqtt_3_1_2_22_silence_for_one_and_a_half_keep_alives_ends_the_connection() {
    let mut lab = Lab::new(1);
    let client = lab.open(ConnectRequest { keep_alive_secs: 10, ..request("client") });
    lab.pass_secs(14);
    lab.send(client, &Packet::Pingreq);
    assert_eq!(lab.take_all(client), [Got::Pingresp]);
    lab.pass_secs(14);
    assert!(!lab.is_closed(client));
    lab.pass_secs(1);
    assert!(lab.is_closed(client));
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::KEEP_ALIVE_TIMEOUT)]);
    assert_eq!(lab.total(|m| &m.keep_alive_timeouts), 1);
}

#[test]
fn mqtt_3_1_2_22_a_client_above_its_rate_is_not_silent_while_it_is_not_read() {
    let limits = Limits { message_rate: Rate { per_second: 1, burst: 1 }, ..Limits::default() };
    let mut lab = Lab::new(1);
    let request = request_with("client", limits);
    let client = lab.open(ConnectRequest { keep_alive_secs: 10, ..request });
    for _ in 0..31 {
        lab.publish(client, "t", b"", 0, 0);
    }
    let read_on_ms = lab.now_ms + 30_000;
    assert_eq!(lab.pauses.last(), Some(&(client, read_on_ms)));
    lab.pass_secs(30);
    // What it has sent meanwhile lies in its socket; from now on it could be heard.
    lab.pass_secs(14);
    assert!(!lab.is_closed(client));
    lab.pass_secs(1);
    assert!(lab.is_closed(client));
}

#[test]
fn a_session_ends_when_its_expiry_runs_out_and_a_disconnect_may_change_it() {
    let mut lab = Lab::new(1);
    for (at_disconnect, lives_secs) in [(None, 10), (Some(3), 3), (Some(30), 30)] {
        let asked = || ConnectRequest { session_expiry_secs: 10, ..persistent("client") };
        let client = lab.open(asked());
        let mut properties = PropertyBuf::new();
        if let Some(secs) = at_disconnect {
            properties.push(Property::SessionExpirySecs(secs));
        }
        let reason = Reason::NORMAL_DISCONNECTION;
        let properties = properties.as_properties();
        lab.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
        lab.pass_secs(lives_secs - 1);
        assert_eq!(lab.total(|m| &m.sessions), 1);
        lab.pass_secs(1);
        assert_eq!(lab.total(|m| &m.sessions), 0);
    }
    assert_eq!(lab.total(|m| &m.sessions_expired), 3);
}

#[test]
fn mqtt_3_14_2_2_no_session_expiry_at_disconnect_after_none_at_connect() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    let mut properties = PropertyBuf::new();
    properties.push(Property::SessionExpirySecs(5));
    let properties = properties.as_properties();
    let reason = Reason::NORMAL_DISCONNECTION;
    lab.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::PROTOCOL_ERROR)]);
}

#[test]
fn shutdown_and_kick_say_why() {
    let mut lab = Lab::new(1);
    let first = lab.open(request("first"));
    let second = lab.open(of_version(Version::V311, "second"));
    let now_ms = lab.now_ms;
    assert!(lab.shards[0].on_kick(Name::first("first"), now_ms));
    assert!(!lab.shards[0].on_kick(Name::first("nobody"), now_ms));
    lab.settle();
    assert_eq!(lab.take_all(first), [Got::Disconnect(Reason::ADMINISTRATIVE_ACTION)]);
    let third = lab.open(request("third"));
    lab.shards[0].on_shutdown(now_ms);
    lab.settle();
    assert_eq!(lab.take_all(third), [Got::Disconnect(Reason::SERVER_SHUTTING_DOWN)]);
    assert_eq!(lab.take_all(second), [], "3.1.1 has no such packet");
    assert!(lab.is_closed(second) && lab.is_closed(third));
    let ended = |event: &Event| match event {
        Event::Disconnected { ended, .. } => Some(ended.clone()),
        _ => None,
    };
    let ended: Vec<_> = lab.events.iter().filter_map(ended).collect();
    assert_eq!(ended, [Ended::Administrative, Ended::Shutdown, Ended::Shutdown]);
}

#[test]
fn a_connection_ends_with_its_credential() {
    let mut lab = Lab::new(1);
    let expires_at_ms = Some(lab.now_ms + 5_000);
    let principal = Principal { expires_at_ms, ..Principal::default() };
    let logged_in = ConnectRequest {
        principal: Some(Box::new(principal)),
        session_expiry_secs: 60,
        ..request("token")
    };
    let token = lab.open(logged_in);
    let other = lab.open(request("other"));
    lab.pass_secs(4);
    assert_eq!(lab.take_all(token), []);
    lab.pass_secs(2);
    assert_eq!(lab.take_all(token), [Got::Disconnect(Reason::NOT_AUTHORIZED)]);
    assert!(lab.is_closed(token) && !lab.is_closed(other));
    assert_eq!(lab.total(|m| &m.credentials_expired), 1);
    // The session is there, and who is back without an end of the credential stays.
    let again = lab.open(ConnectRequest {
        clean_start: false,
        session_expiry_secs: 60,
        ..request("token")
    });
    lab.pass_secs(20);
    assert!(!lab.is_closed(again));
}

#[test]
fn revoked_credentials_end_their_connections_and_leave_sessions() {
    let mut lab = Lab::new(1);
    let revocation = Revocation::default();
    let with = |id: &str, revocations: &[&Revocation]| ConnectRequest {
        session_expiry_secs: 60,
        principal: Some(Box::new(Principal {
            revocations: revocations.iter().copied().cloned().collect(),
            ..Principal::default()
        })),
        ..request(id)
    };
    let other = Revocation::default();
    let both = lab.open(with("both", &[&other, &revocation]));
    let stays = lab.open(with("stays", &[&other]));
    let none = lab.open(request("none"));
    revocation.revoke();
    let now_ms = lab.now_ms;
    lab.shards[0].on_revoked(now_ms);
    lab.settle();
    assert!(lab.is_closed(both) && !lab.is_closed(stays) && !lab.is_closed(none));
    // What vouches for the client now is what counts.
    let again = lab.open(ConnectRequest { clean_start: false, ..with("both", &[&other]) });
    lab.shards[0].on_revoked(now_ms);
    lab.settle();
    assert!(!lab.is_closed(again));
}

#[test]
fn a_credential_that_is_renewed_in_time_keeps_the_connection() {
    let access = [rule(Who::Everyone, Permission::ReadWrite, "%{attributes.site}/#")];
    let access = Access::compile(&access).expect("sound rules");
    let mut lab = Lab::with(1, Settings::default(), access);
    let principal = |site: &str, expires_at_ms| Principal {
        attributes: Attributes::new([("site".into(), Attribute::Text(site.into()))]),
        expires_at_ms: Some(expires_at_ms),
        provider: Some(7),
        ..Principal::default()
    };
    let start_ms = lab.now_ms;
    let client = lab.open(ConnectRequest {
        username: Some("anna".into()),
        auth_method: Some("OAUTH2-JWT".into()),
        principal: Some(Box::new(principal("berlin", start_ms + 5_000))),
        ..request("c")
    });
    assert_eq!(lab.subscribe(client, "berlin/#", 1), 1);
    let mut properties = PropertyBuf::new();
    properties.push(Property::AuthMethod("OAUTH2-JWT"));
    properties.push(Property::AuthData(b"new"));
    let reason = Reason::RE_AUTHENTICATE;
    lab.send_only(client, &Packet::Auth(Auth { reason, properties: properties.as_properties() }));
    let ask = lab.asked.pop().expect("asked");
    assert_eq!((ask.username.as_deref(), ask.provider), (Some("anna"), Some(7)));
    let renewed = Reauthenticated::Renewed(Box::new(principal("bonn", start_ms + 20_000)));
    lab.shards[0].on_reauthenticated(ask.slot, ask.connection, &renewed, start_ms);
    lab.settle();
    lab.take_all(client);
    lab.pass_secs(10);
    assert!(!lab.is_closed(client), "the first would have ended");
    assert_eq!(lab.subscribe(client, "bonn/#", 1), 1, "with the rights of the new one");
    let publisher = lab.open(ConnectRequest {
        principal: Some(Box::new(Principal { is_superuser: true, ..Principal::default() })),
        ..request("publisher")
    });
    lab.publish(publisher, "berlin/x", b"old", 0, 0);
    lab.publish(publisher, "bonn/x", b"new", 0, 0);
    assert_eq!(lab.payloads(client), ["new"]);
    lab.pass_secs(11);
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::NOT_AUTHORIZED)]);
}

#[test]
fn a_ban_ends_the_connections_that_it_means_and_no_others() {
    let mut lab = Lab::new(1);
    let named = |name: &str, id: &str| ConnectRequest {
        username: Some(name.into()),
        peer: format!("192.0.2.{}:5", id.len()).into(),
        ..request(id)
    };
    let by_id = lab.open(named("anna", "a"));
    let by_user = lab.open(named("bob", "bb"));
    let by_address = lab.open(named("carl", "ccc"));
    let other = lab.open(named("dora", "dddd"));
    let now_ms = lab.now_ms;
    lab.shards[0].on_bans(
        |id, user, peer| id.text() == "a" || user == Some("bob") || peer.starts_with("192.0.2.3:"),
        now_ms,
    );
    lab.settle();
    for banned in [by_id, by_user, by_address] {
        assert_eq!(lab.take_all(banned), [Got::Disconnect(Reason::ADMINISTRATIVE_ACTION)]);
        assert!(lab.is_closed(banned));
    }
    assert!(!lab.is_closed(other));
    assert_eq!(lab.total(|m| &m.banned_cut), 3);
}

// Access.

#[test]
fn rules_are_asked_for_publish_subscribe_receive_and_will() {
    let rules = [
        rule(Who::Everyone, Permission::ReadWrite, "open/#"),
        rule(Who::Everyone, Permission::Deny, "open/secret"),
    ];
    let access = Access::compile(&rules).expect("sound rules");
    let mut lab = Lab::with(2, Settings::default(), access);
    let client = lab.open(request("client"));
    assert_eq!(lab.subscribe(client, "closed/#", 1), Reason::NOT_AUTHORIZED.0);
    assert_eq!(lab.subscribe(client, "open/#", 1), 1);
    lab.publish(client, "closed/1", b"x", 1, 1);
    lab.publish(client, "open/secret", b"x", 1, 2);
    lab.publish(client, "open/1", b"seen", 0, 0);
    let answers = lab.take_all(client);
    assert_eq!(answers[0], Got::Ack(AckKind::Puback, 1, Reason::NOT_AUTHORIZED));
    assert_eq!(answers[1], Got::Ack(AckKind::Puback, 2, Reason::NOT_AUTHORIZED));
    assert_eq!(answers.len(), 3);
    let dying = lab.open(with_will("dying", 0, 0));
    lab.cut(dying);
    lab.pass_secs(1);
    let nothing = "no rule grants it";
    let expected = [
        ("subscribe", "closed/#", nothing, 1),
        ("will", "wills", nothing, 1),
        ("publish", "closed/1", nothing, 2),
    ];
    assert_eq!(denials(&lab), expected);
    assert_eq!(lab.total(|m| &m.publishes_denied), 3);
}

fn denials(lab: &Lab) -> Vec<(&'static str, &str, &str, u64)> {
    let mut all = Vec::new();
    for event in &lab.events {
        if let Event::Denied { action, topic, rule, count, .. } = event {
            all.push((*action, &**topic, &**rule, *count));
        }
    }
    all
}

#[test]
fn who_is_denied_again_and_again_is_reported_of_once_a_second_with_peer_and_rule() {
    let rules = [
        rule(Who::Everyone, Permission::ReadWrite, "#"),
        rule(Who::Everyone, Permission::Deny, "secret/#"),
    ];
    let mut lab = Lab::with(1, Settings::default(), Access::compile(&rules).expect("sound rules"));
    let mut loud = request("loud");
    loud.username = Some("anna".into());
    let loud = lab.open(loud);
    for number in 0..1000 {
        lab.publish(loud, &format!("secret/{number}"), b"x", 0, 0);
    }
    lab.publish(loud, "$SYS/broker/version", b"x", 0, 0);
    lab.subscribe(loud, "secret/#", 0);
    assert_eq!(denials(&lab), [("publish", "secret/0", "deny secret/#", 1)]);
    lab.pass_secs(1);
    let rest = [
        ("publish", "secret/1", "deny secret/#", 1000),
        ("subscribe", "secret/#", "deny secret/#", 1),
    ];
    assert_eq!(denials(&lab)[1..], rest);
    let named = |event: &Event| match event {
        Event::Denied { username, peer, .. } => {
            username.as_deref() == Some("anna") && !peer.is_empty()
        }
        _ => false,
    };
    assert_eq!(lab.events.iter().filter(|event| named(event)).count(), 3);
    lab.pass_secs(5);
    assert_eq!(denials(&lab).len(), 3, "what did not happen is not told");
}

#[test]
fn new_rules_hold_for_sessions_that_are_open() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "#", 0);
    let publisher = lab.open(request("publisher"));
    let rules =
        [rule(Who::Everyone, Permission::Write, "#"), rule(Who::Everyone, Permission::Read, "ok")];
    lab.shards[0].set_access(Access::compile(&rules).expect("sound rules"));
    lab.publish(publisher, "hidden", b"1", 0, 0);
    lab.publish(publisher, "ok", b"2", 0, 0);
    assert_eq!(lab.payloads(subscriber), ["2"]);
    lab.shards[0].set_access(Access::open());
    lab.publish(publisher, "hidden", b"3", 0, 0);
    assert_eq!(lab.payloads(subscriber), ["3"]);
}

// Rates, memory, re-authentication.

#[test]
fn a_connection_above_its_rate_is_read_later() {
    let limits = Limits { message_rate: Rate { per_second: 10, burst: 5 }, ..Limits::default() };
    let mut lab = Lab::new(1);
    let client = lab.open(request_with("client", limits));
    for _ in 0..5 {
        lab.publish(client, "t", b"", 0, 0);
    }
    assert_eq!(lab.pauses, []);
    lab.publish(client, "t", b"", 0, 0);
    assert_eq!(lab.pauses, [(client, lab.now_ms + 100)]);
}

#[test]
fn publishes_are_refused_while_memory_is_short() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    let old = lab.open(of_version(Version::V311, "old"));
    lab.shared.set_memory(Memory::Short);
    lab.publish(publisher, "t", b"x", 1, 1);
    lab.publish(publisher, "t", b"x", 0, 0);
    lab.publish(old, "t", b"x", 1, 1);
    let answers = lab.take_all(publisher);
    assert_eq!(answers, [Got::Ack(AckKind::Puback, 1, Reason::QUOTA_EXCEEDED)]);
    assert!(lab.is_closed(old));
    assert_eq!(lab.received(subscriber), []);
    assert_eq!(lab.total(|m| &m.publishes_refused), 3);
}

#[test]
fn re_authentication_asks_goes_on_and_ends() {
    let auth = |reason, data: &'static [u8]| {
        let mut properties = PropertyBuf::new();
        properties.push(Property::AuthMethod("SCRAM")).push(Property::AuthData(data));
        (reason, properties)
    };
    let mut lab = Lab::new(1);
    let client =
        lab.open(ConnectRequest { auth_method: Some("SCRAM".into()), ..request("client") });
    let (slot, now_ms) = (lab.place(client).1, lab.now_ms);
    let (reason, properties) = auth(Reason::RE_AUTHENTICATE, b"one");
    let properties = properties.as_properties();
    lab.send(client, &Packet::Auth(Auth { reason, properties }));
    assert!(lab.asked[0].is_start && *lab.asked[0].data == *b"one");
    let answers = [Reauthenticated::Continue(b"two".into()), Reauthenticated::Success(vec![])];
    for answer in answers {
        lab.shards[0].on_reauthenticated(slot, client, &answer, now_ms);
    }
    lab.settle();
    let two = Got::Auth(Reason::CONTINUE_AUTHENTICATION, b"two".into());
    assert_eq!(lab.take_all(client), [two, Got::Auth(Reason::SUCCESS, vec![])]);
    let failure = Reauthenticated::Failure(Reason::NOT_AUTHORIZED);
    lab.shards[0].on_reauthenticated(slot, client, &failure, now_ms);
    lab.settle();
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::NOT_AUTHORIZED)]);
}

#[test]
fn mqtt_4_12_1_1_another_method_is_a_protocol_error() {
    let mut lab = Lab::new(1);
    let client =
        lab.open(ConnectRequest { auth_method: Some("SCRAM".into()), ..request("client") });
    let mut properties = PropertyBuf::new();
    properties.push(Property::AuthMethod("OTHER"));
    let reason = Reason::RE_AUTHENTICATE;
    let properties = properties.as_properties();
    lab.send(client, &Packet::Auth(Auth { reason, properties }));
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
    for message in sys.messages(figures, 60, 60.0) {
        let now_ms = lab.now_ms;
        lab.shards[0].on_publish_command(&message, now_ms);
    }
    lab.settle();
    let values: std::collections::HashMap<String, String> = lab
        .received(watcher)
        .into_iter()
        .map(|p| (p.topic, String::from_utf8(p.payload).expect("text")))
        .collect();
    let value = |topic: &str| values[&format!("$SYS/broker/{topic}")].as_str();
    assert_eq!(value("version"), "quelea version 1.2.3");
    assert_eq!(value("uptime"), "60 seconds");
    assert_eq!(value("clients/connected"), "1");
    assert_eq!(value("clients/maximum"), "1");
    assert_eq!(value("subscriptions/count"), "2");
    assert_eq!(value("shared_subscriptions/count"), "1");
    assert_eq!(value("publish/messages/received"), "2");
    assert_eq!(value("publish/messages/sent"), "0");
    assert_eq!(value("publish/bytes/received"), "8");
    assert_eq!(value("messages/sent"), "7", "2 CONNACKs, 3 SUBACKs, 2 PUBACKs");
    assert_eq!(value("retained messages/count"), "1");
    assert_eq!(value("store/messages/count"), "2", "one is retained and queued");
    assert_eq!(value("messages/stored"), "2");
    assert_eq!(value("load/publish/received/1min"), "1.26", "2 per minute, smoothed");
    assert_eq!(value("load/messages/sent/1min"), "4.42", "7 per minute, smoothed");
    assert_eq!(value("load/sockets/1min"), "18.96", "30 per minute, smoothed");
    let bytes = |topic| value(topic).parse::<u64>().expect("a number");
    assert!(bytes("store/messages/bytes") >= 5);
}

#[test]
fn a_packet_may_come_byte_by_byte() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.subscribe(client, "t", 0);
    let mut bytes = Vec::new();
    publish("t", b"slow", 0, 0).encode(Version::V5, &mut bytes);
    Packet::Pingreq.encode(Version::V5, &mut bytes);
    for byte in bytes {
        lab.bytes(client, &[byte]);
    }
    lab.settle();
    let got = lab.take_all(client);
    assert!(matches!(&got[0], Got::Publish(publish) if publish.payload == b"slow"));
    assert_eq!(got[1], Got::Pingresp);
}

#[test]
fn an_acknowledgement_of_the_wrong_kind_is_a_protocol_error() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.subscribe(client, "t", 1);
    lab.publish(client, "t", b"x", 1, 1);
    lab.take_all(client);
    lab.send(client, &Packet::Ack(Ack::new(AckKind::Puback, 77, Reason::SUCCESS)));
    assert!(!lab.is_closed(client), "an unknown id is a late answer");
    lab.send(client, &Packet::Ack(Ack::new(AckKind::Pubcomp, 1, Reason::SUCCESS)));
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::PROTOCOL_ERROR)]);
    assert!(lab.is_closed(client));
}
