use super::parse as parse_with;
use crate::model::*;
use crate::scenario::ScenarioError;

fn parse(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
    parse_with(file, text, None)
}

const HM_200M: &str = include_str!("../../scenarios/swarm/hm-200m.xml");
const SW_1: &str = include_str!("../../scenarios/swarm/sw-1.xml");

/// A scenario with every element and attribute of the newer dialect.
const FULL: &str = r#"<?xml version="1.0"?>
<scenario xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="s.xsd">
  <brokers>
    <broker id="plain"><address>localhost</address><port>1883</port></broker>
    <broker id="secure"><address>localhost</address><port>8883</port><transport>TLS</transport></broker>
    <websocket-broker id="web"><address>::1</address><port>80</port></websocket-broker>
    <websocket-broker id="webs"><address>h</address><port>443</port><path>/ws</path><transport>TLS</transport></websocket-broker>
  </brokers>
  <clientGroups>
    <clientGroup id="a">
      <clientIdPattern>a-[0-9]{3}</clientIdPattern><clientIdPatternOffset>5</clientIdPatternOffset>
      <count>10</count><mqttVersion>3</mqttVersion>
    </clientGroup>
    <clientGroup id="b"/>
  </clientGroups>
  <topicGroups>
    <topicGroup id="t">
      <topicNamePattern>x/y-[0-9]{2}</topicNamePattern><topicNamePatternOffset>3</topicNamePatternOffset><count>20</count>
    </topicGroup>
    <topicGroup id="bye"><topicNamePattern>bye</topicNamePattern></topicGroup>
  </topicGroups>
  <subscriptions>
    <subscription id="exact"><topicGroup>t</topicGroup></subscription>
    <subscription id="wild"><topicGroup>t</topicGroup><wildCard>true</wildCard></subscription>
    <subscription id="shared"><topicFilter>$share/g/x/#</topicFilter></subscription>
  </subscriptions>
  <stages>
    <stage id="s1" expectedDuration="1m">
      <lifeCycle id="l1" clientGroup="a" expectedDuration="30s">
        <startTimer id="up"/>
        <delay duration="10s" spread="linear"/>
        <connect broker="plain secure" timeOut="5s" keepAlive="30s" cleanStart="false" sessionExpiry="1h"
                 securityProvider="standard" autoReconnect="true" username="u" password="p&amp;q" expectedDuration="3s">
          <will topicGroup="bye" message="gone" qos="1" retain="true" messageExpiry="1m" payloadGeneratorType="static"/>
          <userProperties><userProperty name="k" value="v"/></userProperties>
        </connect>
        <stopTimer id="up"/>
        <subscribe to="exact wild shared" qos="1" ackDelay="20ms"/>
        <for times="3" rate="1/2s">
          <publish topicGroup="t" message="0123456789abcdef" rate="30/20m" qos="2" count="7" waitForAck="true"
                   retain="true" messageExpiry="90s" payloadGeneratorType="static"/>
          <for times="2"><delay duration="100ms" spread="none"/></for>
        </for>
        <receive from="exact" messagePattern=".*" count="4" timeOut="9s"/>
        <unsubscribe from="wild shared"/>
        <disconnect method="close-tcp-socket"/>
      </lifeCycle>
      <lifeCycle id="l2" clientGroup="b">
        <connect/>
        <subscribe to="t"/>
        <disconnect method="simulate-keepalive-timeout"/>
      </lifeCycle>
    </stage>
  </stages>
</scenario>"#;

fn full() -> Scenario {
    parse("full.xml", FULL).unwrap_or_else(|error| panic!("{error}"))
}

/// All clients speak MQTT 5.
fn full_v5() -> Scenario {
    let text = FULL.replace("<mqttVersion>3<", "<mqttVersion>5<");
    parse("full.xml", &text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn brokers() {
    let scenario = full();
    let shown: Vec<(&str, &str)> =
        scenario.brokers.iter().map(|b| (b.id.as_str(), b.addresses[0].as_str())).collect();
    assert_eq!(
        shown,
        [
            ("plain", "localhost:1883"),
            ("secure", "localhost:8883"),
            ("web", "[::1]:80"),
            ("webs", "h:443")
        ]
    );
    assert_eq!(scenario.brokers[1].transport, Transport::Tls);
    assert_eq!(scenario.brokers[2].transport, Transport::Ws { path: "/mqtt".into() });
    assert_eq!(scenario.brokers[3].transport, Transport::Wss { path: "/ws".into() });
}

#[test]
fn groups_topics_and_subscriptions() {
    let scenario = full();
    let a = &scenario.groups[0];
    assert_eq!(
        (a.client_ids.name(a.offset), a.count, a.version),
        ("a-005".into(), 10, Version::V311)
    );
    let b = &scenario.groups[1];
    assert_eq!((b.client_ids.name(0), b.count, b.version), ("b-0".into(), 1, Version::V5));
    assert_eq!(scenario.topic_name(TopicsId(0), 0), "x/y-03");
    assert_eq!(
        scenario.subscriptions.len(),
        4,
        "the topic group named by l2 became a subscription"
    );
    let filter = |at: usize| match &scenario.subscriptions[at].filters {
        Filters::Pattern { pattern, .. } => pattern.name(0),
        Filters::Topics { topics, prefix } => format!("{prefix}{}", topics.0),
    };
    assert_eq!([filter(0), filter(1), filter(2), filter(3)], ["0", "x/#", "$share/g/x/#", "0"]);
}

fn commands(scenario: &Scenario, cycle: usize) -> Vec<&Command> {
    scenario.stages[0].life_cycles[cycle].steps.iter().map(|step| &step.command).collect()
}

#[test]
fn connect_and_will() {
    let scenario = full_v5();
    let Command::Connect(connect) = commands(&scenario, 0)[2] else { panic!("connect expected") };
    let expected = Connect {
        brokers: vec![BrokerId(0), BrokerId(1)],
        timeout_us: 5_000_000,
        keep_alive_secs: 30,
        clean_start: false,
        session_expiry_secs: 3600,
        username: Some(Pattern::literal("u")),
        password: Some(Pattern::literal("p&q")),
        reconnect: Some(Reconnect::default()),
        user_properties: vec![("k".into(), "v".into())],
        will: Some(Will {
            topics: TopicsId(1),
            assign: Assign::Partition,
            payload: Payload { content: Content::Fixed(b"gone".to_vec()), stamped: false },
            qos: QoS::AtLeastOnce,
            retain: true,
            delay_secs: 0,
            expiry_secs: Some(60),
        }),
        ..Connect::default()
    };
    assert_eq!(*connect, expected);
    let Command::Connect(plain) = commands(&scenario, 1)[0] else { panic!("connect expected") };
    let all = (0..4).map(BrokerId).collect();
    assert_eq!(*plain, Connect { brokers: all, ..Connect::default() }, "Swarm's defaults");
}

#[test]
fn publish_in_loops() {
    let scenario = full_v5();
    let Command::For(outer) = commands(&scenario, 0)[5] else { panic!("for expected") };
    assert_eq!((outer.times, outer.rate), (Some(3), Some(Rate { count: 1, per_us: 2_000_000 })));
    let Command::Publish(publish) = &outer.steps[0].command else { panic!("publish expected") };
    assert_eq!(publish.pace.rate, Some(Rate { count: 30, per_us: 1_200_000_000 }));
    assert_eq!(publish.pace.in_flight, Some(1), "waitForAck");
    assert_eq!((publish.qos, publish.retain, publish.count), (QoS::ExactlyOnce, true, Some(7)));
    assert_eq!(publish.expiry_secs, Some(90));
    assert!(publish.payload.stamped, "16 bytes, and nobody looks at the text");
    let Command::For(inner) = &outer.steps[1].command else { panic!("for expected") };
    assert_eq!(inner.times, Some(2));
}

#[test]
fn the_other_commands() {
    let scenario = full();
    let all = commands(&scenario, 0);
    assert_eq!(*all[0], Command::StartTimer("up".into()));
    assert_eq!(*all[1], Command::Delay(Delay { duration_us: 10_000_000, spread: Spread::Linear }));
    let Command::Subscribe(subscribe) = all[4] else { panic!("subscribe expected") };
    assert_eq!(
        (subscribe.to.len(), subscribe.qos, subscribe.ack_delay_us),
        (3, QoS::AtLeastOnce, 20_000)
    );
    let Command::Receive(receive) = all[6] else { panic!("receive expected") };
    assert_eq!((receive.count, receive.timeout_us), (4, Some(9_000_000)));
    assert_eq!(receive.message_pattern, None, "everything matches .*");
    assert_eq!(*all[7], Command::Unsubscribe(vec![SubscriptionId(1), SubscriptionId(2)]));
    assert_eq!(*all[8], Command::Disconnect(Disconnect::Close));
    let others = commands(&scenario, 1);
    let Command::Subscribe(subscribe) = others[1] else { panic!("subscribe expected") };
    assert_eq!(subscribe.qos, QoS::ExactlyOnce, "Swarm's default");
    assert_eq!(*others[2], Command::Disconnect(Disconnect::Silent));
    assert_eq!(scenario.stages[0].expected_us, Some(60_000_000));
    for told in [
        "Not checked, `expectedDuration` of: <connect>, <lifeCycle>.",
        "Left out, as MQTT 3 does not have it: `messageExpiry` of <publish>, `messageExpiry` of \
         <will>, `userProperties` of <connect>.",
    ] {
        assert!(scenario.description.contains(told), "{}", scenario.description);
    }
}

#[test]
fn the_older_dialect() {
    let text = r#"<scenario>
  <brokers><broker id="n"><address>h</address><port>1</port></broker></brokers>
  <clientGroups><clientGroup id="c"><count>4</count><mqtt><version>3</version></mqtt></clientGroup></clientGroups>
  <topicGroups><topicGroup id="t"><topicNamePattern>t</topicNamePattern></topicGroup></topicGroups>
  <subscriptions><subscription id="s"><topicGroup>t</topicGroup></subscription></subscriptions>
  <stages><stage id="s1"><lifeCycle id="l" clientGroup="c">
    <rampUp duration="5s"/>
    <connect retries="3" retryInterval="2s" credentials="me:secret"/>
    <subscribe subscription="s"/>
    <publish topicGroup="t" roundRobin="true" message="go go go go go go go"/>
    <wait for="s" messagePattern="go.*" duration="3s"/>
    <wait duration="1s"/>
  </lifeCycle></stage></stages></scenario>"#;
    let scenario = parse("old.xml", text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(scenario.groups[0].version, Version::V311);
    let all = commands(&scenario, 0);
    assert_eq!(*all[0], Command::Delay(Delay { duration_us: 5_000_000, spread: Spread::Linear }));
    let Command::Connect(connect) = all[1] else { panic!("connect expected") };
    assert_eq!((connect.retries, connect.retry_interval_us), (3, 2_000_000));
    assert_eq!(connect.password, Some(Pattern::literal("secret")));
    let Command::Publish(publish) = all[3] else { panic!("publish expected") };
    assert!(!publish.payload.stamped, "somebody waits for this very text");
    let Command::Receive(receive) = all[4] else { panic!("receive expected") };
    assert_eq!(receive.message_pattern.as_deref(), Some("go.*"));
    assert_eq!(*all[5], Command::Delay(Delay { duration_us: 1_000_000, spread: Spread::None }));
}

#[test]
fn a_payload_stands_in_for_generators_and_is_refused_without_one() {
    let stand_in = Payload::parse("random:20").unwrap();
    let text = FULL.replacen("payloadGeneratorType=\"static\"", "payloadGeneratorType=\"Mine\"", 2);
    let error = parse("full.xml", &text).unwrap_err();
    assert!(error.message.contains("`Mine` is a Java class"), "{error}");
    assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("--payload")), "{error}");
    let scenario = parse_with("full.xml", &text, Some(&stand_in)).unwrap();
    assert!(scenario.description.contains("replaced by --payload: Mine."));
    let mut replaced = 0;
    let mut scenario = scenario;
    scenario.each_command_mut(&mut |command| {
        if let Command::Publish(publish) = command {
            replaced += u32::from(publish.payload.content == stand_in.content);
        }
    });
    assert_eq!(replaced, 1);
    let error = parse_with("full.xml", FULL, Some(&stand_in)).unwrap_err();
    assert!(error.message.contains("no payload generator"), "{error}");
}

/// The schema of Swarm has a wildcard for attributes on these three, and lets a will do without a
/// topic group and a `receive` wait for nothing.
#[test]
fn what_the_schema_allows_is_read() {
    let text = FULL
        .replace(r#"<will topicGroup="bye" "#, r#"<will seed="7" "#)
        .replace(r#"username="u""#, r#"username="u" keyStore="a.jks""#)
        .replace(r#"<publish topicGroup="t""#, r#"<publish min="1" topicGroup="t""#)
        .replace(r#"count="4" timeOut="9s""#, r#"count="0""#);
    let scenario = parse("full.xml", &text).unwrap_or_else(|error| panic!("{error}"));
    let ignored = "Ignored, as for Swarm's extensions: `seed` of <will>, `keyStore` of <connect>, \
                   `min` of <publish>.";
    assert!(scenario.description.starts_with(ignored), "{}", scenario.description);
    let Command::Connect(connect) = commands(&scenario, 0)[2] else { panic!("connect expected") };
    let will = connect.will.as_ref().expect("a will without a topic group is one");
    let group = scenario.topic_group(will.topics);
    assert_eq!((group.count, group.names.name(group.offset)), (10, "will/a-005".into()));
    let Command::Receive(receive) = commands(&scenario, 0)[6] else { panic!("receive expected") };
    assert_eq!(receive.count, 0);
    // Elsewhere the schema has no wildcard.
    let wrong = FULL.replace(r#"spread="linear""#, r#"spread="linear" shape="round""#);
    let error = parse("full.xml", &wrong).unwrap_err().to_string();
    assert!(error.contains("unknown attribute `shape` of <delay>"), "{error}");
}

#[test]
fn two_hundred_million_clients_as_published() {
    let scenario = parse("hm-200m.xml", HM_200M).unwrap();
    let counts: Vec<u64> = scenario.groups.iter().map(|group| group.count).collect();
    assert_eq!(counts, [20_000_000, 180_000_000]);
    assert_eq!(scenario.estimate().copies_per_message, Some(1.0));
    let Command::Publish(publish) = &scenario.stages[3].life_cycles[0].steps[1].command else {
        panic!("publish expected");
    };
    assert_eq!(publish.count, Some(30));
    let own = publish.assign.topics_of(7, 20_000_000, 180_000_000);
    assert_eq!((own.nth(0), own.len()), (63, 9));
    let small = scenario.scaled(0.0001);
    let counts: Vec<u64> = small.groups.iter().map(|group| group.count).collect();
    assert_eq!((counts, small.topics[0].count), (vec![2_000, 18_000], 18_000));
}

#[test]
fn the_reconnect_storm_meets_the_documented_times() {
    let scenario = parse("sw-1.xml", SW_1).unwrap();
    let delay = Delay { duration_us: 10_000_000, spread: Spread::Linear };
    assert_eq!(scenario.stages[0].life_cycles[0].steps[0].command, Command::Delay(delay));
    assert_eq!([0, 12, 24].map(|i| delay.wait_us(i, 25)), [0, 5_000_000, 10_000_000]);
}

#[test]
fn errors_name_line_and_fix() {
    let cases = [
        (r#"transport>TLS"#, r#"transport>UDP"#, true, "TCP or TLS, got `UDP`"),
        (r#"<port>1883"#, r#"<port>0"#, true, "from 1 to 65535"),
        (r#"clientGroup="b""#, r#"clientGroup="bb""#, true, "did you mean `b`?"),
        (r#"<topicGroup>t<"#, r#"<topicGroup>tt<"#, true, "unknown topic group `tt`"),
        (r#"qos="2""#, r#"qos="7""#, true, "QoS must be 0, 1 or 2, got 7"),
        (r#"rate="30/20m""#, r#"rate="fast""#, true, "must be a rate"),
        ("<stopTimer", "<stopTimr", true, "did you mean `stopTimer`?"),
        (
            r#"ackDelay="20ms""#,
            r#"ackdelay="20ms""#,
            true,
            "unknown attribute `ackdelay` of <subscribe>",
        ),
        (r#"<count>20</count>"#, r#"<count>200</count>"#, false, "100 topics, but 203 are needed"),
        (r#"id="l2""#, r#"id="l1""#, true, "`l1` is used twice"),
        (r#"to="exact wild shared""#, r#"to="exakt""#, true, "did you mean `exact`?"),
        (
            r#"method="close-tcp-socket""#,
            r#"method="slam""#,
            true,
            "must be with-disconnect-message",
        ),
        (
            r#"securityProvider="standard""#,
            r#"securityProvider="mine""#,
            true,
            "extension of Swarm",
        ),
        ("</stages>", "", false, "must be well-formed XML"),
        ("<connect/>", "", false, "subscribe without a `connect` ahead of it"),
        (r#"[0-9]{3}"#, r#"[0-9]+"#, true, "repetitions need a limit"),
    ];
    // The flag: whether the error is shown in the very line that was changed.
    for (from, to, same_line, message) in cases {
        let line =
            FULL[..FULL.find(from).expect("the test changes something")].matches('\n').count() + 1;
        let place = if same_line { format!("full.xml:{line}:") } else { "full.xml:".to_owned() };
        let error = parse("full.xml", &FULL.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(error.contains(&place) && error.contains(message), "{to}:\n{error}");
    }
}

#[test]
fn garbage_is_an_error_and_no_panic() {
    for text in
        ["", "<", "<a>", "<scenario/>", "not xml", "<scenario>&nope;</scenario>", "<!DOCTYPE"]
    {
        assert!(parse("x.xml", text).is_err(), "{text}");
    }
    let deep = "<scenario>".repeat(100_000);
    assert!(parse("x.xml", &deep).unwrap_err().to_string().contains("nested deeper"));
}

#[test]
fn what_would_have_no_effect_is_refused() {
    for (from, to, told) in [
        ("<port>1883</port>", "<port>1883</port><path>/x</path>", "<path> has no effect"),
        ("<count>10</count>", "<count>10</count><count>9</count>", "given twice"),
        ("<clientGroup id=\"b\"/>", "<clientGroup id=\"b\">two</clientGroup>", "has no text"),
        (
            "<topicFilter>$share/g/x/#</topicFilter>",
            "<topicFilter>x</topicFilter><wildCard>true</wildCard>",
            "`wildCard` needs `topicGroup`",
        ),
        ("username=\"u\"", "username=\"u\" credentials=\"a:b\"", "`credentials` excludes"),
        ("keepAlive=\"30s\"", "keepAlive=\"1500ms\"", "must be whole seconds"),
        (
            "<mqttVersion>3</mqttVersion>",
            "<mqttVersion>3</mqttVersion><mqtt><version>3</version></mqtt>",
            "<mqttVersion> has no effect",
        ),
    ] {
        assert!(FULL.contains(from), "{from}");
        let error = parse("x.xml", &FULL.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(error.contains(told), "{to}: {error}");
    }
}
