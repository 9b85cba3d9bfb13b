//! `flock conn`, `pub` and `sub`: emqtt-bench's flags, lowered to a scenario like any other.
//!
//! The differences are on purpose: publishing starts when all clients are connected (emqtt-bench's
//! `-w`), messages have due times, and `-L` counts messages of all clients together.

use std::process::ExitCode;

use anyhow::Context as _;

use super::args::{Bench, Conn, Lab, Pub, Sub, Waits};
use super::consent;
use super::run::{Origin, carry_out, equip, placed};
use super::say::note;
use super::topics;
use flock_model::scenario::check::check;
use flock_model::{
    Assign, Broker, BrokerId, ClientGroup, Command, Connect, Content, Delay, Disconnect, Expect,
    FOR_EVER_US, Filters, GroupId, LifeCycle, Order, Pace, Pattern, Payload, Phase, Publish, QoS,
    Rate, Reconnect, STAMP_BYTES, Scenario, Slice, Spread, Stage, Step, Subscribe, Subscription,
    SubscriptionId, Tls, TopicGroup, TopicsId, Transport, Version, Who,
};

pub(super) fn conn(args: &Conn) -> anyhow::Result<ExitCode> {
    go(&conn_scenario(args)?, &args.bench)
}

pub(super) fn publish(args: &Pub) -> anyhow::Result<ExitCode> {
    go(&pub_scenario(args)?, &args.bench)
}

pub(super) fn subscribe(args: &Sub) -> anyhow::Result<ExitCode> {
    go(&sub_scenario(args)?, &args.bench)
}

fn go(scenario: &Scenario, bench: &Bench) -> anyhow::Result<ExitCode> {
    if let Some(problem) = check(scenario).into_iter().next() {
        anyhow::bail!("{}", problem.message);
    }
    let mut scenario = scenario.clone();
    if let Some(file) = &bench.credentials {
        equip(&mut scenario, file)?;
    }
    for name in bench.idle() {
        note!("flock: {name} has no effect");
    }
    let lab = lab(bench)?;
    let scenario = placed(scenario, &lab);
    consent::ask(&scenario, !bench.host.is_empty(), "-h HOST", &bench.lab)?;
    carry_out(&scenario, &Origin::default(), &lab)
}

/// How the run is told about, by emqtt-bench's names for it.
fn lab(bench: &Bench) -> anyhow::Result<Lab> {
    let mut lab = bench.lab.clone();
    lab.quiet |= bench.log_to == "null";
    match &bench.restapi {
        Some(port) if port.parse::<u16>().is_ok() => {
            lab.prometheus = Some(format!("0.0.0.0:{port}"))
        }
        Some(address) => lab.prometheus = Some(address.clone()),
        None => {}
    }
    Ok(lab)
}

fn conn_scenario(args: &Conn) -> anyhow::Result<Scenario> {
    base("conn", "connections, kept open", &args.bench, Vec::new())
}

fn pub_scenario(args: &Pub) -> anyhow::Result<Scenario> {
    let bench = &args.bench;
    let Some(asked) = &args.topic else { return many_topics(args) };
    let each = (args.limit > 0).then(|| args.limit.div_ceil(bench.count));
    let topic = variables(asked, "pub", bench, each)?;
    anyhow::ensure!(
        !args.message.as_ref().is_some_and(|text| text.starts_with("template://")),
        "-m template://FILE is not supported: use -m TEXT or --topics-payload FILE"
    );
    let payload = match &args.message {
        Some(text) => text_payload(text, !args.waits.payload_hdrs.is_empty()),
        None => Payload::filler(args.size),
    };
    let publish = Publish {
        topics: TopicsId(0),
        assign: topic.assign,
        order: topic.order,
        qos: qos(args.qos),
        retain: args.retain,
        payload,
        expiry_secs: None,
        count: each,
        pace: Pace {
            rate: (args.interval_of_msg > 0)
                .then_some(Rate { count: 1, per_us: args.interval_of_msg * 1_000 }),
            phase: Phase::Spread,
            in_flight: (args.inflight > 0).then_some(args.inflight),
        },
        reply_to: None,
        topic_alias: false,
        user_properties: Vec::new(),
        content_type: None,
        payload_format: None,
    };
    let mut scenario = base("pub", &format!("publishing to {asked}"), bench, Vec::new())?;
    scenario.topics.push(TopicGroup {
        id: "topics".to_owned(),
        names: topic.pattern,
        offset: 0,
        count: topic.count,
        scales: true,
    });
    let stage = &mut scenario.stages[1];
    stage.id = "publish".to_owned();
    if each.is_some() && bench.duration.is_none() {
        stage.duration_us = None;
    }
    let mut steps = random_wait(&args.waits)?;
    steps.push(Command::Publish(publish).into());
    stage.life_cycles.push(cycle("publish", steps));
    timed(&mut scenario, args);
    Ok(scenario)
}

/// A text that others read stays whole: it is behind the stamp, if there is to be one.
fn text_payload(text: &str, stamped: bool) -> Payload {
    let mut bytes = vec![0; if stamped { STAMP_BYTES as usize } else { 0 }];
    bytes.extend_from_slice(text.as_bytes());
    Payload { content: Content::Fixed(bytes), stamped }
}

/// Every client publishes to all topics of a file.
fn many_topics(args: &Pub) -> anyhow::Result<Scenario> {
    let Some(file) = &args.topics_payload else { anyhow::bail!("-t TOPIC is required") };
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let specs = topics::parse(&text).with_context(|| file.display().to_string())?;
    let title = format!("publishing to the topics of {}", file.display());
    let mut scenario = base("pub", &title, &args.bench, Vec::new())?;
    let mut publishes = Vec::new();
    for (n, spec) in specs.topics.iter().enumerate() {
        let names = variables(&spec.name, "pub", &args.bench, None)?;
        publishes.push((TopicsId(n as u32), names.assign));
        scenario.topics.push(TopicGroup {
            id: format!("topics-{n}"),
            names: names.pattern,
            offset: 0,
            count: names.count,
            scales: true,
        });
    }
    let in_flight = (args.inflight > 0).then_some(args.inflight);
    let names = |text: &str| client_text(text, "pub", &args.bench);
    let stamped = !args.waits.payload_hdrs.is_empty();
    let clients = u32::try_from(args.bench.count)?;
    let round = topics::round(&specs, &publishes, in_flight, stamped, (clients, &names))
        .with_context(|| file.display().to_string())?;
    let mut steps = random_wait(&args.waits)?;
    steps.push(round.into());
    let stage = &mut scenario.stages[1];
    stage.id = "publish".to_owned();
    stage.life_cycles.push(cycle("publish", steps));
    timed(&mut scenario, args);
    Ok(scenario)
}

/// A pause of so many milliseconds at random, from the least to the most.
fn random_wait(waits: &Waits) -> anyhow::Result<Vec<Step>> {
    let (min, max) = (waits.min_random_wait, waits.max_random_wait);
    anyhow::ensure!(
        max == 0 || min <= max,
        "--min-random-wait must not be above --max-random-wait"
    );
    let pauses = [(min, Spread::None), (max.saturating_sub(min), Spread::Random)];
    let pauses = pauses.into_iter().filter(|(ms, _)| *ms > 0);
    Ok(pauses
        .map(|(ms, spread)| Command::Delay(Delay { duration_us: ms * 1_000, spread }).into())
        .collect())
}

/// When publishing begins, and whether clients stay when it is over.
fn timed(scenario: &mut Scenario, args: &Pub) {
    if !args.waits.wait_before_publishing {
        let mut opening = scenario.stages.remove(0).life_cycles;
        for (cycle, opening) in scenario.stages[0].life_cycles.iter_mut().zip(&mut opening) {
            opening.steps.append(&mut cycle.steps);
            cycle.steps = std::mem::take(&mut opening.steps);
        }
    }
    if !args.waits.keep_connected {
        return;
    }
    let at = scenario.stages.len() - 1;
    let publishing = &mut scenario.stages[at - 1];
    if let Some(duration_us) = publishing.duration_us {
        // The stage ends for a client that has sent all its messages, so that it has to wait in it.
        let rest = Command::Delay(Delay { duration_us, spread: Spread::None });
        publishing.life_cycles.iter_mut().for_each(|cycle| cycle.steps.push(rest.clone().into()));
    } else {
        let hold = Stage {
            id: "hold".to_owned(),
            duration_us: Some(FOR_EVER_US),
            measured: false,
            expected_us: None,
            life_cycles: Vec::new(),
        };
        scenario.stages.insert(at, hold);
    }
}

fn sub_scenario(args: &Sub) -> anyhow::Result<Scenario> {
    let mut subscriptions = Vec::new();
    for (n, text) in args.topic.iter().enumerate() {
        let filter = variables(text, "sub", &args.bench, None)?;
        subscriptions.push(Subscription {
            id: format!("filter-{n}"),
            filters: Filters::Pattern {
                pattern: filter.pattern,
                offset: 0,
                count: filter.count,
                scales: true,
            },
            assign: filter.assign,
            routed: false,
        });
    }
    let subscribe = Subscribe {
        to: (0..subscriptions.len() as u32).map(SubscriptionId).collect(),
        qos: qos(args.qos),
        ack_delay_us: 0,
        no_local: false,
        retain_as_published: false,
        respond: None,
        retain_handling: 0,
        identifier: None,
    };
    let title = format!("subscribed to {}", args.topic.join(", "));
    let mut scenario =
        base("sub", &title, &args.bench, vec![Command::Subscribe(subscribe).into()])?;
    scenario.subscriptions = subscriptions;
    Ok(scenario)
}

/// Connect, hold, disconnect; `then` comes after the connect.
fn base(what: &str, title: &str, bench: &Bench, then: Vec<Step>) -> anyhow::Result<Scenario> {
    let (transport, tls) = secured(bench)?;
    let port = bench.port.unwrap_or(match &transport {
        Transport::Tcp | Transport::Unix => 1883,
        Transport::Tls => 8883,
        Transport::Ws { .. } => 8083,
        Transport::Wss { .. } => 8084,
    });
    let host = |host: &str| {
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    };
    let hosts = match bench.host.is_empty() {
        true => vec![host("127.0.0.1")],
        false => bench.host.iter().map(|it| host(it)).collect(),
    };
    let ramp_us = match bench.connrate {
        Some(rate) => Rate::per_second(rate).due_us(bench.count),
        None => bench.interval_ms * 1_000 * bench.count,
    };
    let mut connect = vec![
        Command::Delay(Delay { duration_us: ramp_us, spread: Spread::Linear }).into(),
        Command::Connect(connect(bench)?).into(),
    ];
    connect.extend(then);
    let stage = |id: &str, duration_us, measured, life_cycles| Stage {
        id: id.to_owned(),
        duration_us,
        measured,
        expected_us: None,
        life_cycles,
    };
    let leave = vec![Command::Disconnect(Disconnect::Message).into()];
    Ok(Scenario {
        id: format!("flock-{what}"),
        title: title.to_owned(),
        description: String::new(),
        seed: 1,
        brokers: vec![Broker { id: "main".to_owned(), addresses: hosts, transport, tls }],
        brokers_distinct: false,
        source_addresses: Vec::new(),
        groups: vec![ClientGroup {
            id: what.to_owned(),
            client_ids: client_ids(what, bench)?,
            offset: 0,
            count: bench.count,
            here: Slice::whole(bench.count),
            version: match bench.version.as_str() {
                "3" => Version::V31,
                "4" => Version::V311,
                _ => Version::V5,
            },
            scales: true,
        }],
        topics: Vec::new(),
        subscriptions: Vec::new(),
        sinks: Vec::new(),
        stages: vec![
            stage("connect", None, false, vec![cycle("connect", connect)]),
            stage("hold", Some(bench.duration.unwrap_or(FOR_EVER_US)), true, Vec::new()),
            stage("disconnect", None, false, vec![cycle("disconnect", leave)]),
        ],
        drain_us: 5_000_000,
        warm_up_us: None,
        cool_down_us: None,
        expect: Expect::default(),
        search: None,
        scale: 1.0,
    })
}

fn secured(bench: &Bench) -> anyhow::Result<(Transport, Tls)> {
    let mut secure = bench.secure.clone();
    secure.tls |= bench.ssl_short;
    let (transport, tls) = (secure.transport().unwrap_or(Transport::Tcp), secure.tls());
    anyhow::ensure!(
        transport.is_tls() || tls.is_none(),
        "certificates, --insecure, --server-name and --ciphers need --ssl"
    );
    Ok((transport, tls.unwrap_or_default()))
}

fn cycle(id: &str, steps: Vec<Step>) -> LifeCycle {
    LifeCycle { id: id.to_owned(), who: Who::Clients(GroupId(0)), steps }
}

fn connect(bench: &Bench) -> anyhow::Result<Connect> {
    anyhow::ensure!(!bench.quic, "--quic is not supported: use TCP, TLS or WebSocket");
    let written = |text: &Option<String>| -> anyhow::Result<Option<Pattern>> {
        text.as_ref().map(|text| Ok(Pattern::parse(&numbered(text, bench))?)).transpose()
    };
    Ok(Connect {
        brokers: vec![BrokerId(0)],
        keep_alive_secs: bench.keepalive,
        clean_start: bench.clean,
        session_expiry_secs: bench.expiry,
        username: written(&bench.username)?,
        password: written(&bench.password)?,
        retries: bench.retries,
        reconnect: (bench.reconnect > 0).then(Reconnect::default),
        ..Connect::default()
    })
}

fn client_ids(what: &str, bench: &Bench) -> anyhow::Result<Pattern> {
    Ok(Pattern::parse(&id_source(what, bench))?)
}

fn id_source(what: &str, bench: &Bench) -> String {
    if bench.shortids {
        let prefix = Pattern::literal(bench.prefix.as_deref().unwrap_or(""));
        return format!("{}{{{}..}}", prefix.source(), bench.startnumber);
    }
    let prefix = match &bench.prefix {
        Some(prefix) => prefix.clone(),
        None => format!("flock_bench_{what}"),
    };
    format!("{}_{{{}..}}", Pattern::literal(&prefix).source(), bench.startnumber)
}

/// The text as a pattern, with %i for the client's number.
fn numbered(text: &str, bench: &Bench) -> String {
    Pattern::literal(text).source().replace("%i", &format!("{{{}..}}", bench.startnumber))
}

/// A topic or filter with its variables resolved to a numbered set of names.
struct Names {
    pattern: Pattern,
    count: u64,
    assign: Assign,
    order: Order,
}

/// A text of a payload, in JSON: %i, %c and %u are those of the client that sends it.
fn client_text(text: &str, what: &str, bench: &Bench) -> anyhow::Result<Pattern> {
    anyhow::ensure!(
        bench.credentials.is_none() || !text.contains("%u"),
        "`{text}`: %u needs --username, not --credentials"
    );
    let user = bench.username.as_deref().unwrap_or("");
    let own = [user, bench.prefix.as_deref().unwrap_or("")];
    anyhow::ensure!(
        !own.concat().contains(['"', '\\']),
        "`{text}`: names with quotes or backslashes cannot be rendered"
    );
    let source = Pattern::literal(text).source().replace("%u", Pattern::literal(user).source());
    anyhow::ensure!(
        source.matches("%i").count() + source.matches("%c").count() <= 1,
        "`{text}`: a text can have only one of %i and %c"
    );
    let number = format!("{{{}..}}", bench.startnumber);
    Ok(Pattern::parse(&source.replace("%c", &id_source(what, bench)).replace("%i", &number))?)
}

/// Variables become counters: the client's number counts slowest, the message's or the random one
/// fastest.
fn variables(
    text: &str,
    what: &str,
    bench: &Bench,
    messages: Option<u64>,
) -> anyhow::Result<Names> {
    anyhow::ensure!(
        bench.credentials.is_none() || !text.contains("%u"),
        "`{text}`: %u needs --username, not --credentials"
    );
    anyhow::ensure!(
        !is_range(text),
        "`{text}`: a range such as {{1..2}} is not supported: use %i, or a scenario file"
    );
    let user = bench.username.as_deref().unwrap_or("");
    let mut source = Pattern::literal(text).source().replace("%u", Pattern::literal(user).source());
    let has_client = source.contains("%i") || source.contains("%c");
    let per_client = source.matches("%i").count() + source.matches("%c").count();
    anyhow::ensure!(
        per_client <= 1,
        "`{text}`: a topic can have only one of %i and %c (or %u with %i)"
    );
    let client_at = source.find("%i").or_else(|| source.find("%c"));
    let (mut fast, mut order) = (None, Order::RoundRobin);
    if let Some(at) = source.find("%rand_") {
        let digits: String = source[at + 6..].chars().take_while(char::is_ascii_digit).collect();
        let n: u64 = digits
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| anyhow::anyhow!("`{text}`: N of %rand_N must be above 0"))?;
        source = source.replacen(&format!("%rand_{digits}"), &format!("{{0..{}}}", n - 1), 1);
        (fast, order) = (Some((at, n)), Order::Random);
    } else if let Some(at) = source.find("%s") {
        let n = messages
            .ok_or_else(|| anyhow::anyhow!("`{text}`: %s needs -L, the number of messages"))?;
        source = source.replacen("%s", &format!("{{1..{n}}}"), 1);
        fast = Some((at, n));
    }
    if let (Some(client), Some((at, _))) = (client_at, fast) {
        anyhow::ensure!(client < at, "`{text}`: %i or %c must come ahead of %s or %rand_N");
    }
    anyhow::ensure!(
        !source.contains("%rand_") && !source.contains("%s"),
        "`{text}`: a topic can have only one of %s and %rand_N"
    );
    // With something counting faster behind it, the client's number has to have an end.
    let first = bench.startnumber;
    let client = format!("{{{first}..{}}}", first + bench.count - 1);
    source =
        source.replace("%c", &id_source(what, bench).replace(&format!("{{{first}..}}"), &client));
    source = source.replace("%i", &client);
    let pattern = Pattern::parse(&source)?;
    let clients = if has_client { bench.count } else { 1 };
    let each = fast.map_or(1, |(_, n)| n);
    let assign = match (has_client, fast) {
        (false, _) => Assign::All,
        (true, None) => Assign::Pairwise,
        (true, Some((_, n))) => Assign::Window(u32::try_from(n)?),
    };
    let count =
        clients.checked_mul(each).ok_or_else(|| anyhow::anyhow!("`{text}`: too many topics"))?;
    Ok(Names { pattern, count, assign, order })
}

/// Whether a shell would have made several topics of it, without quotes.
fn is_range(text: &str) -> bool {
    let inner = text.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let mut ranges = inner.filter_map(|(inner, _)| inner.split_once(".."));
    ranges.any(|(from, to)| is_number(from) && is_number(to))
}

fn qos(value: u8) -> QoS {
    QoS::try_from(value).unwrap_or(QoS::AtMostOnce)
}

#[cfg(test)]
mod tests {
    use super::super::args::{Args, Command as Asked};
    use super::*;
    use clap::Parser as _;
    use flock_model::TlsVersion;

    fn scenario(line: &str) -> anyhow::Result<Scenario> {
        let args = Args::try_parse_from(["flock"].into_iter().chain(line.split_whitespace()))?;
        match args.command {
            Asked::Conn(args) => conn_scenario(&args),
            Asked::Pub(args) => pub_scenario(&args),
            Asked::Sub(args) => sub_scenario(&args),
            other => panic!("{other:?}"),
        }
    }

    fn publish_of(scenario: &Scenario) -> &Publish {
        match &scenario.stages[1].life_cycles[0].steps[0].command {
            Command::Publish(publish) => publish,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn conn_flags() {
        let line = "conn -h a,b -p 99 -c 1000 -R 500 -n 7 --prefix me -V 4 -u u%i -P s -k 30 -C false -x 60 --num-retry-connect 3 --reconnect 1";
        let scenario = scenario(line).unwrap();
        assert_eq!(check(&scenario), []);
        assert_eq!(scenario.brokers[0].addresses, ["a:99", "b:99"]);
        let group = &scenario.groups[0];
        assert_eq!(
            (group.client_ids.name(0), group.count, group.version),
            ("me_7".into(), 1000, Version::V311)
        );
        let steps = &scenario.stages[0].life_cycles[0].steps;
        assert_eq!(
            steps[0].command,
            Command::Delay(Delay { duration_us: 2_000_000, spread: Spread::Linear })
        );
        let Command::Connect(connect) = &steps[1].command else { panic!("connect expected") };
        assert_eq!(connect.username.as_ref().unwrap().name(0), "u7");
        assert_eq!(
            (connect.keep_alive_secs, connect.clean_start, connect.session_expiry_secs),
            (30, false, 60)
        );
        assert_eq!((connect.retries, connect.reconnect.is_some()), (3, true));
    }

    #[test]
    fn the_interval_makes_the_ramp() {
        let steps =
            scenario("conn -c 100 -i 20").unwrap().stages.remove(0).life_cycles.remove(0).steps;
        assert_eq!(
            steps[0].command,
            Command::Delay(Delay { duration_us: 2_000_000, spread: Spread::Linear })
        );
    }

    #[test]
    fn pub_flags() {
        let made =
            scenario("pub -c 10 -I 100 -s 1K -q 1 -r -L 95 -F 20 -t bench/%i --ssl --insecure")
                .unwrap();
        assert_eq!(check(&made), []);
        let publish = publish_of(&made);
        assert_eq!(publish.pace.rate, Some(Rate { count: 1, per_us: 100_000 }));
        assert_eq!(
            (publish.qos, publish.retain, publish.count, publish.pace.in_flight),
            (QoS::AtLeastOnce, true, Some(10), Some(20))
        );
        assert_eq!(publish.payload, Payload::filler(1024));
        assert_eq!(made.topic_name(TopicsId(0), 9), "bench/9");
        assert_eq!(made.brokers[0].transport, Transport::Tls);
        assert!(made.brokers[0].addresses[0].ends_with(":8883") && made.brokers[0].tls.insecure);
        let text = publish_of(&scenario("pub -t t -m hello").unwrap()).payload.clone();
        assert_eq!(text, Payload { content: Content::Fixed(b"hello".to_vec()), stamped: false });
        let text = scenario("pub -t t -m hello --payload-hdrs cnt64,ts").unwrap();
        let Payload { content, stamped } = publish_of(&text).payload.clone();
        let behind = [&[0; 16][..], b"hello"].concat();
        assert_eq!((content, stamped), (Content::Fixed(behind), true));
        let flat_out = scenario("pub -I 0 -F 0 -t t").unwrap();
        let pace = publish_of(&flat_out).pace;
        assert_eq!((pace.rate, pace.in_flight), (None, None));
    }

    #[test]
    fn topic_variables() {
        let names = |line: &str| {
            let scenario = scenario(line).unwrap();
            let group = scenario.topics[0].clone();
            (
                scenario.topic_name(TopicsId(0), group.count - 1),
                group.count,
                publish_of(&scenario).assign,
            )
        };
        assert_eq!(names("pub -c 3 -t a/b"), ("a/b".into(), 1, Assign::All));
        assert_eq!(names("pub -c 3 -t a/%c"), ("a/flock_bench_pub_2".into(), 3, Assign::Pairwise));
        assert_eq!(names("pub -c 3 -u me -t %u/%i"), ("me/2".into(), 3, Assign::Pairwise));
        assert_eq!(names("pub -c 3 -t %i/%rand_10"), ("2/9".into(), 30, Assign::Window(10)));
        assert_eq!(names("pub -c 3 -L 12 -t x/%s"), ("x/4".into(), 4, Assign::All));
        for (line, message) in [
            ("pub --credentials no.such -t %u", "needs --username"),
            ("pub -t %s", "%s needs -L"),
            ("pub -t %rand_5/%i", "ahead of"),
            ("pub -t %i/%c", "only one"),
            ("pub -t %rand_0", "must be above 0"),
            ("pub -t %rand_3/%rand_3", "only one"),
        ] {
            assert!(scenario(line).unwrap_err().to_string().contains(message), "{line}");
        }
    }

    #[test]
    fn sub_flags() {
        let made = scenario("sub -c 4 -q 2 -t $share/g/a/# -t b/%i --ws").unwrap();
        assert_eq!(check(&made), []);
        assert_eq!(made.brokers[0].transport, Transport::Ws { path: "/mqtt".into() });
        let filter = |at: usize| match &made.subscriptions[at].filters {
            Filters::Pattern { pattern, count, .. } => (pattern.name(count - 1), *count),
            other => panic!("{other:?}"),
        };
        assert_eq!((filter(0), filter(1)), (("$share/g/a/#".into(), 1), ("b/3".into(), 4)));
    }

    #[test]
    fn a_file_of_topics() {
        let path = std::env::temp_dir().join(format!("flock-topics-{}.json", std::process::id()));
        std::fs::write(&path, r#"{"topics": [
            {"name": "a/%c", "interval_ms": "100", "inject_timestamp": true, "QoS": 1, "payload": {"k": "0123456789"}},
            {"name": "b", "interval_ms": 50, "QoS": 0, "payload": "short"}]}"#).unwrap();
        let made = scenario(&format!("pub -c 3 --topics-payload {}", path.display())).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(check(&made), []);
        assert_eq!(made.topic_name(TopicsId(0), 2), "a/flock_bench_pub_2");
        assert!(matches!(made.stages[1].life_cycles[0].steps[0].command, Command::For(_)));
        assert!(scenario("pub -c 3 --topics-payload no-such-file").is_err());
    }

    #[test]
    fn when_to_begin_and_what_to_be_called() {
        let made = scenario("pub -V 5 --ssl-version tlsv1.3 --ciphers TLS_AES_256_GCM_SHA384 -c 4 -t t/%c -L 8 -w false --shortids --prefix p --min-random-wait 100 --max-random-wait 300 --keep-connected --payload-hdrs cnt64,ts --retry-interval 0 --log_to null").unwrap();
        assert_eq!(check(&made), []);
        let broker = &made.brokers[0];
        assert_eq!(
            (&broker.transport, broker.tls.version),
            (&Transport::Tls, Some(TlsVersion::V13))
        );
        assert_eq!(broker.tls.ciphers, ["TLS_AES_256_GCM_SHA384"]);
        assert!(scenario("pub -t t --ssl-version tlsv1.1").is_err());
        assert_eq!(made.groups[0].client_ids.name(3), "p3");
        assert_eq!(made.topic_name(TopicsId(0), 3), "t/p3");
        let names: Vec<&str> = made.stages.iter().map(|stage| stage.id.as_str()).collect();
        assert_eq!(names, ["publish", "hold", "disconnect"]);
        let timed = scenario("pub -c 2 -t t -L 4 --keep-connected --duration 3s").unwrap();
        let stays = timed.stages[timed.stages.len() - 2].life_cycles[0].steps.last();
        let whole = Delay { duration_us: 3_000_000, spread: Spread::None };
        assert_eq!(stays.map(|step| &step.command), Some(&Command::Delay(whole)));
        let steps = &made.stages[0].life_cycles[0].steps;
        let pauses: Vec<&Command> = steps.iter().map(|step| &step.command).collect();
        let pause = |duration_us, spread| Command::Delay(Delay { duration_us, spread });
        assert!(
            matches!(pauses[1], Command::Connect(_)) && matches!(pauses[4], Command::Publish(_))
        );
        assert_eq!(
            (pauses[2], pauses[3]),
            (&pause(100_000, Spread::None), &pause(200_000, Spread::Random))
        );
        let random = Delay { duration_us: 200_000, spread: Spread::Random };
        let waits: Vec<u64> = (0..1000).map(|i| random.wait_us(i, 1000)).collect();
        assert!(waits.iter().all(|us| *us < 200_000));
        let average = waits.iter().sum::<u64>() / 1000;
        assert!((90_000..110_000).contains(&average), "{average}");
        let stays = scenario("pub -c 4 -t t").unwrap();
        let names: Vec<&str> = stays.stages.iter().map(|stage| stage.id.as_str()).collect();
        assert_eq!(names, ["connect", "publish", "disconnect"], "all wait for each other");
    }

    #[test]
    fn bad_flags_are_refused() {
        for line in [
            "pub -q 3 -t x",
            "pub",
            "sub",
            "conn -c 0",
            "conn -V 6",
            "pub -t x -s 1G",
            "pub -t x --retry-interval 5",
            "pub -t x --payload-hdrs size",
            "pub -t x --min-random-wait 9 --max-random-wait 3",
            "pub -t x --log_to file",
            "pub -t x --quic",
            "pub -t x -m template://file",
            "pub -t a/{1..2}",
            "sub -t {01..20}/b",
            "pub -t x --insecure",
            "sub -t x --cacertfile ca.pem",
            "pub -t x --ciphers TLS_AES_256_GCM_SHA384",
            "pub --topics-payload f -q 1",
            "pub --topics-payload f -I 10",
            "pub --topics-payload f -s 16",
            "pub --topics-payload f -r",
            "pub -t x --restapi 1 --prometheus 127.0.0.1:1",
            "pub -t x --ssl --cacertfile ca.pem --insecure",
        ] {
            assert!(scenario(line).is_err(), "{line}");
        }
        assert!(check(&scenario("sub -t a#").unwrap())[0].message.contains("whole last level"));
        let expires = check(&scenario("conn -V 4 -x 60").unwrap());
        assert!(expires[0].message.contains("`session_expiry` needs MQTT 5"), "{expires:?}");
    }
}
