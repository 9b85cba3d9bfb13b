use super::*;
use crate::model::{Assign, Command, Content, Filters, Rate, Spread, Version, Who};

const PAIRS: &str = r#"
id = "pairs"
title = "a few pairs"
[connect]
keep_alive = "5m"
version = "3.1.1"
[clients.sub]
count = 100
[clients.pub]
count = 100
[topics.pairs]
names = "p/{i}"
count = 100
[subscriptions.pairs]
topics = "pairs"
[[stage]]
name = "connect"
[[stage.do]]
clients = "sub"
steps = [{ connect = { ramp = "10/s" } }, { subscribe = { to = "pairs", qos = 1 } }]
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }]
[[stage]]
name = "publish"
duration = "30s"
measured = true
[[stage.do]]
clients = "pub"
steps = [{ publish = { to = "pairs", qos = 1, rate = "1/s", payload = 16 } }]
[expect]
copies = 1.0
"#;

fn parse_text(text: &str) -> Result<Loaded, ScenarioError> {
    parse("x.toml", text, &Choice::default(), &|name| Err(format!("{name}: not here")))
}

#[test]
fn a_whole_file_is_lowered() {
    let scenario = parse_text(PAIRS).unwrap().scenario;
    assert_eq!(scenario.groups[0].id, "sub", "groups stay in the order of the file");
    assert_eq!(scenario.groups[1].version, Version::V311);
    assert_eq!(scenario.groups[1].client_ids.name(3), "pub-3");
    let steps = &scenario.stages[0].life_cycles[0].steps;
    let Command::Delay(delay) = steps[0].command else { panic!("{steps:?}") };
    assert_eq!((delay.duration_us, delay.spread), (10_000_000, Spread::Linear));
    let Command::Connect(connect) = &steps[1].command else { panic!("{steps:?}") };
    assert_eq!(connect.keep_alive_secs, 300);
    let Command::Publish(publish) = &scenario.stages[1].life_cycles[0].steps[0].command else {
        panic!("publish expected");
    };
    assert_eq!(publish.pace.rate, Some(Rate::per_second(1)));
    assert_eq!(publish.payload.content, Content::Filler { bytes: 16 });
    assert!(publish.payload.stamped);
    let estimate = scenario.estimate();
    assert_eq!(estimate.clients, 200);
    assert_eq!(estimate.publishes_per_sec, Some(100.0));
    assert_eq!(estimate.copies_per_message, Some(1.0));
}

/// Replaces `from` by `to` in the good file and expects the error to have all of `parts`.
fn wrong(from: &str, to: &str, parts: &[&str]) {
    assert!(PAIRS.contains(from), "the test looks for {from}");
    let text = PAIRS.replacen(from, to, 1);
    let error = parse_text(&text).expect_err(to).to_string();
    for part in parts {
        assert!(error.contains(part), "{to}: {error}");
    }
}

#[test]
fn errors_name_the_line_and_the_fix() {
    wrong(
        "count = 100",
        "cout = 100",
        &["x.toml:8:1", "unknown key `cout`", "did you mean `count`?"],
    );
    wrong(
        "topics = \"pairs\"",
        "topics = \"pears\"",
        &["x.toml:15:10", "unknown topic group `pears`", "`pairs`"],
    );
    wrong("count = 100", "count = 0", &["x.toml:8:9", "a count must be at least 1"]);
    wrong("count = 100", "count = -5", &["x.toml:8:9", "must be a whole number above 0"]);
    wrong("ramp = \"10/s\"", "ramp = \"0/s\"", &["x.toml:20:", "zero"]);
    wrong(
        "clients = \"pub\"",
        "clients = \"pubs\"",
        &["unknown client group `pubs`", "did you mean `pub`"],
    );
    wrong("qos = 1", "qos = 3", &["QoS must be 0, 1 or 2, got 3"]);
    wrong("duration = \"30s\"\n", "", &["no duration", "never end"]);
    wrong("duration = \"30s\"", "duration = \"30\"", &["needs a unit"]);
    wrong("\"p/{i}\"", "\"p/[0-9]\"", &["10 topics, but 100 are needed"]);
    wrong("\"p/{i}\"", "\"p/#/{i}\"", &["a topic name must not"]);
    wrong("{ connect = {} }", "{ delay = \"1s\" }", &["publish without a `connect` ahead of it"]);
    wrong(
        "{ connect = {} }",
        "{ conect = {} }",
        &["unknown name `conect`", "did you mean `connect`?"],
    );
    wrong("copies = 1.0", "copies = 2.0", &["1.00 copies", "`copies` in [expect] is 2"]);
    wrong("keep_alive = \"5m\"", "keep_alive = \"20h\"", &["`keep_alive` must be at most 65535s"]);
    wrong("payload = 16", "payload = \"1G\"", &["must be a size"]);
    wrong("payload = 16", "payload = { texts = \"x\" }", &["unknown key `texts`", "`text`"]);
    wrong(
        "to = \"pairs\", qos = 1, rate",
        "to = \"pairs\", in_flight = 0, rate",
        &["a count must be at least 1"],
    );
    wrong(
        "rate = \"1/s\"",
        "rate = \"1/s\", total_rate = \"5/s\"",
        &["`rate` (per client) and `total_rate` exclude"],
    );
    wrong("[expect]", "[expect", &["x.toml:"]);
    wrong("topics = \"pairs\"", "filter = \"a#\"", &["# must be the whole last level"]);
    wrong("topics = \"pairs\"", "", &["either `topics` or `filter`"]);
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let sub = "{ connect = { ramp = \"10/s\" } }";
    let connect = |keys: &str, parts: &[&str]| {
        wrong(sub, &format!("{{ connect = {{ {keys} }} }}"), parts);
    };
    connect("version = \"5\"", &["x.toml:20:", "`version`", "[clients.NAME]"]);
    connect("session_expiry = \"1h\"", &["`session_expiry` needs MQTT 5"]);
    connect("receive_max = 5", &["`receive_max` needs MQTT 5"]);
    connect("user_properties = { a = \"b\" }", &["`user_properties` needs MQTT 5"]);
    connect("will = { topics = \"pairs\", delay = \"1s\" }", &["`delay` of `will` needs MQTT 5"]);
    connect("will = { topics = \"pairs\", payload = { random = 9 } }", &["not random"]);
    connect("credentials = \"f\", username = \"u\"", &["`credentials` excludes"]);
    connect("retry_interval = \"1s\"", &["`retry_interval` needs `retries`"]);
    connect("keep_alive = \"500ms\"", &["`keep_alive` must be whole seconds", "500ms"]);
    let shared = "keep_alive = \"5m\"";
    let file = |key: &str, parts: &[&str]| wrong(shared, key, parts);
    file("receive_max = 5", &["`receive_max` in [connect] has no effect"]);
    file("session_expiry = \"1h\"", &["`session_expiry` in [connect] has no effect"]);
    file("retry_interval = \"1s\"", &["`retry_interval` needs `retries`"]);
    file("will = { topics = \"pairs\", expiry = \"1s\" }", &["`expiry` of the will in [connect]"]);
    let publish = |key: &str, parts: &[&str]| {
        wrong("rate = \"1/s\"", &format!("rate = \"1/s\", {key}"), parts);
    };
    publish("expiry = \"1m\"", &["`expiry` needs MQTT 5"]);
    publish("topic_alias = true", &["`topic_alias` needs MQTT 5"]);
    publish("content_type = \"a\"", &["`content_type` needs MQTT 5"]);
    publish("order = \"random\"", &["`order` needs an `assign`"]);
    wrong("rate = \"1/s\"", "phase = \"together\"", &["`phase` needs a `rate`"]);
    wrong(
        "payload = 16",
        "payload = { bytes = 1, random_from = 2 }",
        &["a payload table needs one"],
    );
    let subscribe = |keys: &str, parts: &[&str]| {
        wrong("to = \"pairs\", qos = 1 }", &format!("to = \"pairs\", {keys} }}"), parts);
    };
    subscribe("no_local = true", &["`no_local` needs MQTT 5"]);
    subscribe("identifier = 3", &["`identifier` needs MQTT 5"]);
    subscribe("identifier = 0", &["`identifier` must be from 1"]);
    subscribe("ack_delay = \"1s\"", &["`ack_delay` needs qos = 1 or 2"]);
    for key in ["count = 2", "offset = 1", "scales = false"] {
        wrong(
            "topics = \"pairs\"",
            &format!("topics = \"pairs\"\n{key}"),
            &["needs `filter`", "x.toml:14:"],
        );
    }
    let broker = |keys: &str, parts: &[&str]| {
        let text = format!("[brokers.b]\naddresses = \"h:1\"\n{keys}\n[clients.sub]");
        wrong("[clients.sub]", &text, parts);
    };
    broker("path = \"/x\"", &["broker `b`: `path` needs transport"]);
    broker("tls = { insecure = true }", &["broker `b`: `tls` needs transport"]);
    broker("transport = \"ws\"\ntls = {}", &["broker `b`: `tls` needs transport"]);
    broker("transport = \"tls\"\ntls = { key_file = \"k\" }", &["need each other"]);
    broker(
        "transport = \"tls\"\ntls = { insecure = true, ca_file = \"c\" }",
        &["accepts any certificate"],
    );
    wrong("clients = \"sub\"", "clients = \"sub\"\nexpected = \"9s\"", &["unknown key"]);
    let search = "[search]\nlatency_max = \"9ms\"\nrate_min = 1\nrate_max = 9\n[connect]";
    wrong("[connect]", &format!("cool_down = \"1s\"\n{search}"), &["`cool_down` is not possible"]);
    let once = PAIRS
        .replace("rate = \"1/s\"", "count = 3")
        .replace("[connect]", "warm_up = \"1s\"\n[connect]");
    let error = parse_text(&once).unwrap_err().to_string();
    assert!(error.contains("`warm_up` needs a measured stage"), "{error}");
}

#[test]
fn a_file_that_names_a_swarm_file_has_no_other_keys_of_a_run() {
    let xml = include_str!("../../scenarios/swarm/hm-200m.xml");
    let load = |key: &str| {
        let text = format!("id = \"x\"\ntitle = \"x\"\nswarm = \"s.xml\"\n{key}");
        let choice = Choice { payload: Some(Payload::filler(128)), ..Choice::default() };
        parse("x.toml", &text, &choice, &|_| Ok(xml.to_owned()))
            .or_else(|_| parse("x.toml", &text, &Choice::default(), &|_| Ok(xml.to_owned())))
    };
    load("").unwrap_or_else(|error| panic!("{error}"));
    for key in [
        "seed = 2",
        "drain = \"1s\"",
        "connect = { keep_alive = \"9s\" }",
        "expect = { lost_max = 1 }",
        "warm_up = \"1s\"",
        "brokers.b = { addresses = \"h:1\" }",
        "stage = [{ name = \"a\", duration = \"1s\" }]",
    ] {
        let error = load(key).expect_err(key).to_string();
        assert!(error.contains("and `swarm` exclude each other"), "{key}: {error}");
    }
}

#[test]
fn a_login_of_a_step_goes_over_that_of_the_file() {
    let text = PAIRS
        .replace("keep_alive = \"5m\"", "credentials = \"users\"")
        .replace("{ connect = {} }", "{ connect = { username = \"me\", password = \"x\" } }");
    let read = |_: &str| Ok("ann,a\nbob,b".to_owned());
    let scenario = parse("x.toml", &text, &Choice::default(), &read).unwrap().scenario;
    let mut names = Vec::new();
    scenario.each_command(&mut |_, _, command| {
        if let Command::Connect(connect) = command {
            names.push(connect.username.as_ref().unwrap().name(1));
        }
    });
    assert_eq!(names, ["bob", "me"]);
}

#[test]
fn what_all_groups_share_is_for_those_whose_version_has_it() {
    let text = PAIRS
        .replace("keep_alive = \"5m\"", "receive_max = 7\nsession_expiry = \"1h\"")
        .replace("[clients.pub]\ncount = 100", "[clients.pub]\ncount = 100\nversion = \"5\"");
    let scenario = parse_text(&text).unwrap_or_else(|error| panic!("{error}")).scenario;
    let mut all = Vec::new();
    scenario.each_command(&mut |_, _, command| {
        if let Command::Connect(connect) = command {
            all.push((connect.receive_max, connect.session_expiry_secs));
        }
    });
    assert_eq!(all, [(None, 0), (Some(7), 3600)]);
}

#[test]
fn parameters_and_variants() {
    let text = PAIRS.replace("payload = 16", "payload = \"${payload}\"").replace(
        "[connect]",
        "[params]\npayload = \"16\"\n[[variant]]\nid = \"pairs-1K\"\nparams = { payload = \"1K\" }\n[connect]",
    );
    let bytes = |choice: &Choice| {
        let loaded = parse("x.toml", &text, choice, &|_| Err(String::new()))?;
        Ok::<_, ScenarioError>((
            loaded.scenario.id.clone(),
            loaded.scenario.estimate().payload_bytes_max,
        ))
    };
    let variant = |id: &str| Choice { variant: Some(id.to_owned()), ..Choice::default() };
    assert_eq!(bytes(&Choice::default()).unwrap(), ("pairs".to_owned(), 16));
    assert_eq!(bytes(&variant("pairs-1K")).unwrap(), ("pairs-1K".to_owned(), 1024));
    assert_eq!(ids("x.toml", &text).unwrap(), ["pairs-1K"]);
    let set = |name: &str| Choice {
        params: [(name.to_owned(), "8K".to_owned())].into(),
        ..variant("pairs-1K")
    };
    assert_eq!(bytes(&set("payload")).unwrap().1, 8192);
    let filled = text.replace("${payload}", "16");
    let error = parse("x.toml", &filled, &set("payload"), &|_| Err(String::new())).unwrap_err();
    assert!(error.to_string().contains("setting `payload` has no effect"), "{error}");
    let error = bytes(&set("paylod")).unwrap_err().to_string();
    assert!(error.contains("did you mean `payload`?"), "{error}");
    assert!(bytes(&variant("pairs-2K")).unwrap_err().to_string().contains("unknown variant"));
}

#[test]
fn an_unknown_parameter_is_shown_where_it_stands() {
    let error = parse_text(&PAIRS.replace("payload = 16", "payload = \"${size}\"")).unwrap_err();
    assert!(error.to_string().contains("unknown parameter `size`"), "{error}");
    assert!(error.location.is_some());
}

#[test]
fn scaling_keeps_rates_per_client_and_ratios() {
    let scenario = parse_text(PAIRS).unwrap().scenario.scaled(0.1);
    let counts: Vec<u64> = scenario.groups.iter().map(|group| group.count).collect();
    assert_eq!((counts, scenario.topics[0].count), (vec![10, 10], 10));
    assert_eq!(scenario.estimate().publishes_per_sec, Some(10.0));
    let Command::Delay(delay) = scenario.stages[0].life_cycles[0].steps[0].command else {
        panic!("a delay expected");
    };
    assert_eq!(delay.duration_us, 10_000_000, "spreads stay, so the connect rate scales");
    assert_eq!(parse_text(PAIRS).unwrap().scenario.scaled(0.0001).groups[0].count, 1);
}

#[test]
fn groups_that_do_not_scale_keep_their_count() {
    let text = PAIRS.replacen("count = 100\n[topics", "count = 100\nscales = false\n[topics", 1);
    let scenario = parse_text(&text).unwrap().scenario.scaled(0.5);
    assert_eq!((scenario.groups[0].count, scenario.groups[1].count), (50, 100));
}

#[test]
fn a_total_rate_is_split_over_the_clients_before_scaling() {
    let text = PAIRS.replace("rate = \"1/s\"", "total_rate = \"20/s\"");
    let scenario = parse_text(&text).unwrap().scenario;
    let Command::Publish(publish) = &scenario.stages[1].life_cycles[0].steps[0].command else {
        panic!("publish expected");
    };
    assert_eq!(publish.pace.rate, Some(Rate { count: 1, per_us: 5_000_000 }));
    assert_eq!(scenario.scaled(0.5).estimate().publishes_per_sec, Some(10.0));
}

#[test]
fn every_kind_of_step_is_understood() {
    let text = r##"
id = "all"
title = "all steps"
drain = "2s"
[brokers.a]
addresses = ["127.0.0.1:1", "127.0.0.1:2"]
transport = "wss"
path = "/x"
tls = { insecure = true, cert_file = "c.pem", key_file = "k.pem" }
[clients.c]
count = 4
id = "c-[0-9]{2}"
[topics.t]
names = "t/{0..3}"
count = 4
[topics.wills]
names = "w"
[subscriptions.shared]
topics = "t"
share = "g"
assign = "all"
[subscriptions.wild]
filter = "t/#"
routed = true
[subscriptions.some]
topics = "t"
assign = { window = 2 }
[[stage]]
name = "one"
duration = "9s"
[[stage.do]]
clients = "c"
steps = [
  { start_timer = "up" },
  { spread = "1s" },
  { spread_down = "1s" },
  { connect = { brokers = "a", username = "u{i}", password = "p", clean_start = false, session_expiry = "1d", reconnect = true, retries = 2, fresh_id = true, receive_max = 10, user_properties = { k = "v" }, will = { topics = "wills", qos = 1, payload = { text = "bye" }, delay = "5s" } } },
  { stop_timer = "up" },
  { subscribe = { to = ["shared", "wild", "some"], qos = 2, ack_delay = "10ms", no_local = true, retain_handling = 2, identifier = 7 } },
  { publish = { to = "t", assign = "partition", order = "random", count = 5, qos = 2, retain = true, in_flight = 10, payload = { random_from = 16, random_to = "1K" }, expiry = "1m", rate = "9/s", phase = "together", topic_alias = true, user_properties = { k = "v" } } },
  { repeat = { times = 3, rate = "1/s", steps = [{ receive = { from = "some", count = 1, pattern = "a.*", timeout = "1s" } }] } },
  { stall = "1s" },
  { unsubscribe = "wild" },
  { disconnect = { how = "message-with-will", ramp = "1s" } },
]
[[stage.do]]
steps = [{ delay = "1s" }, { fault = { pause = "a" } }, { fault = { resume = "a" } }, { fault = { cut = { clients = "c", share = 0.5 } } }]
[expect]
duplicated_max = "any"
latency_max = { "99" = "10ms" }
[search]
latency_max = "10ms"
rate_min = 10
rate_max = 1000
"##;
    let scenario = parse_text(text).unwrap_or_else(|error| panic!("{error}")).scenario;
    let cycles = &scenario.stages[0].life_cycles;
    assert_eq!(cycles[0].steps.len(), 12, "a ramped disconnect is two steps");
    assert_eq!(cycles[1].who, Who::Conductor);
    let Filters::Topics { prefix, .. } = &scenario.subscriptions[0].filters else {
        panic!("topics expected");
    };
    assert_eq!(prefix, "$share/g/");
    assert_eq!(scenario.subscriptions[2].assign, Assign::Window(2));
    // 1 for the shared group, 4 for the wildcard that all clients have, 2 for the windows.
    assert_eq!(scenario.estimate().copies_per_message, Some(7.0));
    let json = serde_json::to_string(&scenario).unwrap();
    assert_eq!(serde_json::from_str::<Scenario>(&json).unwrap(), scenario);
}

#[test]
fn the_conductor_has_no_connection() {
    let text = PAIRS.replace("clients = \"pub\"\nsteps = [{ publish", "steps = [{ publish");
    assert!(parse_text(&text).unwrap_err().to_string().contains("conductor"));
}

/// The keys that the parser knows at the place of `zzz` in `text`, from its own message.
fn known_keys(text: &str) -> Vec<String> {
    let text = format!("id = \"x\"\ntitle = \"x\"\n{text}");
    let error = parse_text(&text).expect_err("zzz is no key");
    let hint = error.hint.clone().unwrap_or_default();
    let names = hint.strip_prefix("valid names: ").unwrap_or_else(|| panic!("{text}: {error}"));
    let mut names: Vec<String> = names.split(", ").map(str::to_owned).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_schema_has_the_keys_of_the_parser_and_the_manual_names_them() {
    let step = |step: &str| format!("[[stage]]\nname = \"s\"\ndo = [{{ steps = [{{ {step} }}] }}]");
    let cases = [
        ("", "zzz = 1".to_owned()),
        ("about", "about = { zzz = 1 }".to_owned()),
        ("published", "published = [{ zzz = 1 }]".to_owned()),
        ("variant", "variant = [{ zzz = 1 }]".to_owned()),
        ("broker", "brokers.b = { zzz = 1 }".to_owned()),
        ("tls", "brokers.b = { tls = { zzz = 1 } }".to_owned()),
        ("clients", "clients.c = { zzz = 1 }".to_owned()),
        ("topics", "topics.t = { zzz = 1 }".to_owned()),
        ("subscription", "subscriptions.s = { zzz = 1 }".to_owned()),
        ("sink", "sink.s = { zzz = 1 }".to_owned()),
        ("sink_tls", "sink.s = { tls = { zzz = 1 } }".to_owned()),
        ("refuse", "sink.s = { refuse = { zzz = 1 } }".to_owned()),
        ("stage", "stage = [{ zzz = 1 }]".to_owned()),
        ("cycle", "stage = [{ do = [{ zzz = 1 }] }]".to_owned()),
        ("step", step("zzz = 1")),
        ("connect", step("connect = { zzz = 1 }")),
        ("will", step("connect = { will = { zzz = 1 } }")),
        ("disconnect", step("disconnect = { zzz = 1 }")),
        ("publish", step("publish = { zzz = 1 }")),
        ("payload_table", step("publish = { payload = { zzz = 1 } }")),
        ("subscribe", step("subscribe = { zzz = 1 }")),
        ("receive", step("receive = { zzz = 1 }")),
        ("repeat", step("repeat = { zzz = 1 }")),
        ("fault", step("fault = { zzz = 1 }")),
        ("expect", "expect = { zzz = 1 }".to_owned()),
        ("search", "search = { zzz = 1 }".to_owned()),
    ];
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../../../../../docs/flock/scenario.schema.json"))
            .unwrap();
    let manual = include_str!("../../../../../docs/flock/scenario-format.md");
    for (name, text) in cases {
        let known = known_keys(&text);
        let place = if name.is_empty() { &schema } else { &schema["$defs"][name] };
        let mut keys: Vec<String> =
            place["properties"].as_object().unwrap().keys().cloned().collect();
        keys.sort_unstable();
        assert_eq!(keys, known, "{name} in the schema");
        // Figures are explained by their names; steps in the table of steps.
        for key in known.iter().filter(|_| name != "published") {
            assert!(manual.contains(key.as_str()), "{name}.{key} is not in the manual");
        }
    }
}

#[test]
fn the_example_of_the_manual_is_a_scenario() {
    let manual = include_str!("../../../../../docs/flock/scenario-format.md");
    let example =
        manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let scenario = parse_text(example).unwrap_or_else(|error| panic!("{error}")).scenario;
    assert_eq!(scenario.estimate().publishes_per_sec, Some(100.0));
}

#[test]
fn a_fault_behind_the_end_of_its_stage_is_refused() {
    let with = |steps: &str| {
        let stage = format!("measured = true\n[[stage.do]]\nsteps = [{steps}]\n");
        parse_text(&PAIRS.replace("measured = true\n", &stage))
    };
    let cut = r#"{ fault = { cut = { clients = "sub", share = 0.5 } } }"#;
    for late in ["40s", "30s"] {
        let error = with(&format!("{{ delay = \"{late}\" }}, {cut}")).unwrap_err().to_string();
        assert!(error.contains("x.toml:") && error.contains("never happen"), "{error}");
    }
    let repeated =
        |times: &str| format!("{{ repeat = {{ {times} steps = [{{ delay = \"8s\" }}, {cut}] }} }}");
    assert!(with(&repeated("times = 3,")).is_ok());
    assert!(with(&repeated("times = 4,")).unwrap_err().to_string().contains("32s into stage"));
    // Without a number of times it is there to be cut off by the end.
    assert!(with(&repeated("")).is_ok());
}
