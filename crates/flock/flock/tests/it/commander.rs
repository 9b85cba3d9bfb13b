//! A commander over HTTP, with agents and a broker.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use common::{Agent, Mosquitto, pairs};
use flock::standin::{Mischief, StandIn};
use flock_measure::Results;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A commander on a free port with a folder of its own, killed on drop.
struct Commander {
    process: Child,
    address: String,
    folder: PathBuf,
}

impl Commander {
    fn start(name: &str, more: &[&str]) -> Self {
        Self::start_with(name, more, None)
    }

    fn start_with(name: &str, more: &[&str], token: Option<&str>) -> Self {
        let unique = format!("flock-commander-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(unique);
        let mut process = Command::new(env!("CARGO_BIN_EXE_flock"))
            .args(["commander", "--http", "127.0.0.1:0", "--threads", "1", "--out"])
            .arg(&folder)
            .args(more)
            .envs(token.map(|token| ("FLOCK_TOKEN", token)))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening ").unwrap().to_owned();
        Self { process, address, folder }
    }

    /// Status and body, which is null if it is not JSON.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.ask_with(method, path, body, "")
    }

    fn ask_with(&self, method: &str, path: &str, body: &str, headers: &str) -> (u16, Value) {
        let (status, text) = self.ask_text(method, path, body, headers);
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    fn ask_text(&self, method: &str, path: &str, body: &str, headers: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{headers}Content-Length: {length}\r\n\r\n{body}",
            self.address
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn run_over(&self, id: &str) -> Value {
        loop {
            let (status, run) = self.ask("GET", &format!("/runs/{id}?wait=60s"), "");
            assert_eq!(status, 200, "{run}");
            if ["FINISHED", "FAILED"].contains(&run["run-status"].as_str().unwrap()) {
                return run;
            }
        }
    }

    /// Asks until the load is under way, as the run's seconds tell.
    fn run_under_way(&self, id: &str) -> Value {
        loop {
            let (_, run) = self.ask("GET", &format!("/runs/{id}"), "");
            assert_ne!(run["run-status"], "FAILED", "{run}");
            if run["progress"]["received"].as_u64().unwrap_or(0) > 0 {
                return run;
            }
        }
    }
}

impl Drop for Commander {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let commander = Commander::start("idle", &["--broker", "127.0.0.1:1"]);
    let swarm = include_str!("../../../model/scenarios/swarm/hm-200m.xml");
    let (status, told) = commander.ask("POST", "/scenarios?name=a", &pairs(1, 1, 1, 1));
    assert_eq!(status, 201, "{told}");
    assert_eq!(commander.ask("POST", "/scenarios?name=b", swarm).0, 201);
    let envelope = |kind: &str| {
        let scenario = BASE64_STANDARD.encode(swarm);
        json!({"scenario-name": "b", "scenario-type": kind, "scenario": scenario}).to_string()
    };
    for (method, path, body, words) in [
        ("GET", "/runs?wait=1s", String::new(), "no parameters here"),
        ("GET", "/runs/1?wiat=1s", String::new(), "valid is `wait`"),
        ("POST", "/scenarios?nam=c", pairs(1, 1, 1, 1), "valid is `name`"),
        ("POST", "/scenarios?name=c", envelope("XML"), "scenario-name"),
        ("POST", "/scenarios", envelope("TOML"), "the scenario is XML, not TOML"),
        ("POST", "/runs", json!({"scenario": "MB-B1", "payload": "16"}).to_string(), "payload:"),
        ("POST", "/runs", json!({"scenario": 1, "payload": "16"}).to_string(), "payload"),
        ("POST", "/runs", json!({"scenario": 1, "duration": "5s"}).to_string(), "duration has no"),
        ("POST", "/runs", json!({"scenario": 1, "ramp": "5s"}).to_string(), "ramp has no effect"),
    ] {
        let (status, told) = commander.ask(method, path, &body);
        assert_eq!(status, 400, "{path} {body}: {told}");
        assert!(told["detail"].as_str().unwrap().contains(words), "{path} {body}: {told}");
    }
}

#[test]
fn a_scenario_is_handed_in_run_by_agents_watched_and_stopped() {
    let (broker, agents) = (Mosquitto::start(), [Agent::start(), Agent::start()]);
    let addresses = agents.each_ref().map(|agent| agent.address.as_str()).join(",");
    let commander = Commander::start("whole", &["--agents", &addresses]);
    let (status, told) = commander.ask("GET", "/commander", "");
    assert_eq!((status, &told["commander-status"]), (200, &json!("READY")), "{told}");
    assert_eq!((&told["run-id"], told["agents"].as_array().unwrap().len()), (&Value::Null, 2));
    // Longer than any test may take.
    let (status, told) = commander.ask("POST", "/scenarios", &pairs(10, 100_000, 1, 50));
    assert_eq!((status, &told["scenario-id"], &told["clients"]), (201, &json!(1), &json!(20)));
    let (status, told) = commander.ask("POST", "/scenarios", &pairs(10, 20, 1, 100));
    assert_eq!((status, &told["scenario-name"]), (201, &json!("t")), "{told}");
    let wish =
        |scenario: u32| json!({"scenario": scenario, "broker": [broker.address]}).to_string();
    let (status, run) = commander.ask("POST", "/runs", &wish(1));
    assert_eq!((status, &run["run-id"], &run["scenario-id"]), (201, &json!(1), &json!(1)));
    let run = commander.run_under_way("1");
    assert_eq!(
        (&run["run-status"], &run["scenario-stage"]),
        (&json!("RUNNING"), &json!("publish"))
    );
    assert_eq!(
        (&run["progress"]["clients"], &run["progress"]["connections"]),
        (&json!(20), &json!(20))
    );
    for (told, agent) in run["agents"].as_array().unwrap().iter().zip(&agents) {
        assert_eq!((&told["address"], &told["status"]), (&json!(agent.address), &json!("WORKING")));
        assert_eq!(told["clients"], 10);
    }
    let (_, told) = commander.ask("GET", "/commander", "");
    assert_eq!((&told["commander-status"], &told["run-id"]), (&json!("RUNNING"), &json!("1")));
    let (_, page) = commander.ask_text("GET", "/metrics", "", "");
    assert!(page.contains("flock_connections 20\n"), "{page}");
    // Neither a second run nor results before there are any.
    let none = String::new;
    let early = [("GET", "/runs/1/results"), ("DELETE", "/runs/1")].map(|it| (it.0, it.1, none()));
    for (method, path, body) in [("POST", "/runs", wish(2))].into_iter().chain(early) {
        let (status, told) = commander.ask(method, path, &body);
        assert_eq!(status, 409, "{told}");
        assert!(told["detail"].as_str().unwrap().contains("run 1 is in progress"), "{told}");
    }
    let (status, run) = commander.ask("PATCH", "/runs/1", STOP);
    assert_eq!((status, &run["run-status"]), (200, &json!("STOPPING")));
    let run = commander.run_over("1");
    assert_eq!((&run["run-status"], &run["error"]), (&json!("FINISHED"), &Value::Null), "{run}");
    assert_eq!(
        (&run["result"]["outcome"], &run["result"]["valid"]),
        (&json!("INTERRUPTED"), &json!(false))
    );
    assert_ne!(run["result"]["exit-code"], 0);
    assert_eq!(commander.ask("PATCH", "/runs/1", STOP).0, 409);
    // The next one, by the same agents, runs to its end.
    let (status, run) = commander.ask("POST", "/runs", &wish(2));
    assert_eq!(status, 201, "{run}");
    let run = commander.run_over("2");
    assert_eq!(run["result"]["outcome"], "COMPLETED", "{run}");
    let (status, text) = commander.ask_text("GET", "/runs/2/results", "", "");
    assert_eq!(status, 200);
    let results: Results = serde_json::from_str(&text).unwrap();
    assert_eq!((results.run.agents.len(), results.totals.received_all()), (2, 200));
    let report = PathBuf::from(run["result"]["file"].as_str().unwrap()).with_extension("html");
    assert!(report.exists());
    let (_, told) = commander.ask("GET", "/runs", "");
    let all: Vec<&Value> = told["runs"].as_array().unwrap().iter().map(|r| &r["run-id"]).collect();
    assert_eq!(all, [1, 2]);
    assert_eq!(commander.ask("DELETE", "/runs/1", "").0, 204);
    assert_eq!(commander.ask("GET", "/runs/1", "").0, 404);
    assert_eq!(commander.ask("DELETE", "/scenarios/1", "").0, 204);
    assert_eq!(commander.ask("GET", "/scenarios/1", "").0, 404);
    let (_, told) = commander.ask("GET", "/scenarios", "");
    assert_eq!(told["scenarios"].as_array().unwrap().len(), 1);
}

const STOP: &str = "{\"run-status\": \"STOPPING\"}";

/// The requests of `mqtt swarm run start` and `stop`, in their order.
#[test]
fn clients_of_swarm_submit_start_watch_stop_and_delete() {
    use base64::Engine as _;
    let broker = Mosquitto::start();
    let commander =
        Commander::start("swarm", &["--broker", &broker.address, "--payload", "random:20"]);
    let xml = r#"<scenario>
      <brokers><broker id="b"><address>127.0.0.1</address><port>1</port></broker></brokers>
      <clientGroups><clientGroup id="g"><clientIdPattern>c-[0-9]</clientIdPattern>
        <count>2</count></clientGroup></clientGroups>
      <topicGroups><topicGroup id="t"><topicNamePattern>t-[0-9]</topicNamePattern>
        <count>2</count></topicGroup></topicGroups>
      <stages><stage id="s"><lifeCycle id="l" clientGroup="g"><connect broker="b"/>
        <subscribe to="t"/>
        <publish topicGroup="t" qos="1" count="100000" rate="1/1s"
                 payloadGeneratorType="com.example.Generator"/></lifeCycle></stage></stages>
    </scenario>"#;
    let envelope = |kind: &str| {
        let scenario = BASE64_STANDARD.encode(xml);
        let name = "0f8fad5b-d9cb-469f-a165-70867728950e-load";
        json!({"scenario-name": name, "scenario-type": kind, "scenario": scenario}).to_string()
    };
    let (status, told) = commander.ask("POST", "/scenarios", &envelope("VM"));
    let detail = told["errors"][0]["detail"].as_str().unwrap_or_default();
    assert!(status == 400 && detail.contains("`VM` is not supported"), "{told}");
    let (status, told) = commander.ask("POST", "/scenarios", &envelope("XML"));
    assert_eq!(
        (status, &told["scenario-id"], &told["scenario-type"]),
        (201, &json!(1), &json!("XML"))
    );
    let (status, run) = commander.ask("POST", "/runs", "{\"scenario-id\": \"1\"}");
    assert_eq!((status, &run["run-id"]), (201, &json!(1)), "{run}");
    let run = commander.run_under_way("1");
    assert_eq!((&run["scenario-stage"], &run["scenario-type"]), (&json!("s"), &json!("XML")));
    let (status, told) = commander.ask("PATCH", "/runs/1", "{\"run-status\": \"PAUSED\"}");
    assert_eq!(status, 400, "{told}");
    assert_eq!(commander.ask("PATCH", "/runs/1", STOP).1["run-status"], "STOPPING");
    assert_eq!(commander.run_over("1")["run-status"], "FINISHED");
    assert_eq!(commander.ask("DELETE", "/scenarios/1", "").0, 204);
}

#[test]
fn what_is_wrong_is_told_in_words_with_its_place() {
    let commander = Commander::start("wrong", &[]);
    let (status, told) =
        commander.ask("POST", "/scenarios?name=mine", "id = \"t\"\ntitel = \"t\"\n");
    assert_eq!((status, &told["line"], &told["column"]), (400, &json!(2), &json!(1)), "{told}");
    assert!(told["detail"].as_str().unwrap().starts_with("mine.toml:2:1: unknown key `titel`"));
    assert!(told["hint"].as_str().unwrap().contains("`title`"), "{told}");
    let (status, told) = commander.ask("POST", "/scenarios", "<scenario>\n<brokers>\n</scenario>");
    assert_eq!((status, told["line"].is_u64()), (400, true), "{told}");
    let swarm = "id = \"t\"\ntitle = \"t\"\nswarm = \"/etc/passwd\"\n";
    let (status, told) = commander.ask("POST", "/scenarios", swarm);
    assert!(
        status == 400 && told["detail"].as_str().unwrap().contains("must not name other files"),
        "{told}"
    );
    let (status, told) = commander.ask("POST", "/runs", "{\"scenario\": \"MB-B11\"}");
    assert!(status == 404 && told["hint"].as_str().unwrap().contains("MB-B1"), "{told}");
    for (method, path, body, status, words) in [
        ("POST", "/scenarios", "", 400, "empty"),
        ("POST", "/scenarios?name=../x", "id", 400, "name: must be"),
        ("POST", "/runs", "{", 400, "line 1 column 1"),
        ("POST", "/runs", "{\"scenario\": [1]}", 400, "built-in ID"),
        ("POST", "/runs", "{\"scenario\": \"MB-B1\", \"durration\": 1}", 400, "durration"),
        (
            "POST",
            "/runs",
            "{\"scenario\": \"MB-B1\", \"duration\": \"1 fortnight\"}",
            400,
            "duration:",
        ),
        ("POST", "/runs", "{\"scenario\": \"MB-B1\", \"scale\": -1}", 400, "scale:"),
        ("POST", "/runs", "{\"scenario\": \"MB-B1\", \"expect\": [\"p99\"]}", 400, "p99"),
        ("POST", "/runs", "{\"scenario\": \"MB-B1\", \"runs\": 0}", 400, "runs:"),
        ("POST", "/runs", "{\"scenario\": \"MB-B1\", \"runs\": 101}", 400, "1 to 100"),
        ("POST", "/runs", "{\"scenario\": \"MB-B1\", \"find-rate\": \"p99\"}", 400, "find-rate:"),
        ("POST", "/runs", "{\"scenario\": \"MB-B1\", \"rate-min\": 5}", 400, "need find-rate"),
        ("POST", "/runs", "{\"scenario\": \"MB-B1\", \"set\": {\"no\": 1}}", 400, "no"),
        ("POST", "/runs", "{\"scenario\": 7}", 404, "unknown scenario 7"),
        ("GET", "/runs/7", "", 404, "unknown run 7"),
        ("GET", "/runs/x", "", 404, "must be a number"),
        ("GET", "/nowhere", "", 404, "/commander"),
        ("PUT", "/runs", "", 405, "PUT"),
        ("POST", "/scenarios", &"#".repeat(1024 * 1024 + 1), 413, "1048576"),
    ] {
        let (found, told) = commander.ask(method, path, body);
        assert_eq!(found, status, "{method} {path}: {told}");
        assert_eq!(told["status"], status);
        assert!(told["detail"].as_str().unwrap().contains(words), "{method} {path}: {told}");
    }
    let runs = commander.ask("GET", "/runs", "").1;
    assert_eq!(runs, json!({"runs": []}), "nothing of this began a run");
}

#[test]
fn a_run_is_repeated_and_each_repetition_has_its_results() {
    let broker = Mosquitto::start();
    let commander = Commander::start("repeated", &["--broker", &broker.address]);
    commander.ask("POST", "/scenarios", &pairs(3, 10, 1, 100));
    let (status, run) = commander.ask("POST", "/runs", "{\"scenario\": 1, \"runs\": 3}");
    assert_eq!((status, &run["repetitions"]), (201, &json!(3)), "{run}");
    let run = commander.run_over("1");
    assert_eq!((&run["run-status"], &run["repetition"]), (&json!("FINISHED"), &json!(3)), "{run}");
    let each = run["result"]["runs"].as_array().unwrap();
    assert_eq!(each.len(), 3);
    assert!(run["result"]["summary"].as_str().unwrap().contains(" of 3\n"), "{run}");
    let least = each.iter().map(|one| one["exit-code"].as_u64().unwrap()).min();
    assert_eq!(run["result"]["exit-code"].as_u64(), least);
    let results = |query: &str| {
        let (status, text) = commander.ask_text("GET", &format!("/runs/1/results{query}"), "", "");
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Results>(&text).unwrap().run.set.unwrap()
    };
    let numbers = ["?number=1", "?number=2", "?number=3", ""].map(|query| results(query).number);
    assert_eq!(numbers, [1, 2, 3, 3]);
    assert_eq!((results("").of, results("").id), (3, results("?number=1").id));
    let (status, told) = commander.ask("GET", "/runs/1/results?number=4", "");
    assert!(status == 404 && told["detail"].as_str().unwrap().contains("3 repetitions"), "{told}");
}

#[test]
fn repetitions_end_when_the_run_is_stopped() {
    let broker = Mosquitto::start();
    let commander = Commander::start("stopped", &["--broker", &broker.address]);
    commander.ask("POST", "/scenarios", &pairs(3, 100_000, 0, 50));
    let (status, _) = commander.ask("POST", "/runs", "{\"scenario\": 1, \"runs\": 5}");
    assert_eq!(status, 201);
    commander.run_under_way("1");
    assert_eq!(commander.ask("PATCH", "/runs/1", STOP).0, 200);
    let run = commander.run_over("1");
    assert_eq!((&run["run-status"], &run["repetition"]), (&json!("FINISHED"), &json!(1)), "{run}");
    assert_eq!(run["result"]["runs"].as_array().unwrap().len(), 1);
    assert_ne!(run["result"]["exit-code"], 0);
}

/// What the scenario itself says of a search, which the request replaces.
const SEARCH: &str = "latency_max = \"1s\"\nrate_min = 1\nrate_max = 2";

#[test]
fn the_highest_rate_is_looked_for() {
    let broker = Mosquitto::start();
    let commander = Commander::start("rate", &["--broker", &broker.address]);
    let (status, told) = commander.ask("POST", "/scenarios", &common::searching(10, SEARCH));
    assert_eq!(status, 201, "{told}");
    let wish = json!({
        "scenario": 1, "find-rate": "p90=500ms", "rate-min": 300, "rate-max": 600,
        "rate-step": "500ms",
    });
    assert_eq!(commander.ask("POST", "/runs", &wish.to_string()).0, 201);
    let run = commander.run_over("1");
    assert_eq!(run["run-status"], "FINISHED", "{run}");
    let (_, text) = commander.ask_text("GET", "/runs/1/results", "", "");
    let found = serde_json::from_str::<Results>(&text).unwrap().rate_search.unwrap();
    assert_eq!((found.latency_percentile, found.latency_bound_us), (90.0, 500_000));
    assert_eq!(found.steps[0].rate, 300.0);
    assert!(found.steps.iter().all(|step| (300.0..=600.0).contains(&step.rate)), "{found:#?}");
}

#[test]
fn the_most_connections_are_looked_for() {
    let broker = StandIn::start(Mischief { connections_max: 30, ..Mischief::default() }).unwrap();
    let commander = Commander::start("sizes", &["--broker", &broker.address]);
    let wish = json!({
        "scenario": "MB-B4", "find-connections": "p99=60s", "connections-min": 20,
        "connections-max": 40, "connect-rate": 100, "duration": "100ms",
    });
    assert_eq!(commander.ask("POST", "/runs", &wish.to_string()).0, 201);
    let run = commander.run_over("1");
    assert_eq!(run["run-status"], "FINISHED", "{run}");
    let (_, text) = commander.ask_text("GET", "/runs/1/results", "", "");
    let sizing = serde_json::from_str::<Results>(&text).unwrap().sizing.unwrap();
    assert_eq!((sizing.latency_percentile, sizing.latency_bound_us), (99.0, 60_000_000));
    assert_eq!(sizing.steps[0].size, 20);
    assert!(sizing.held <= Some(30) && sizing.failed > Some(30), "{sizing:#?}");
}

#[test]
fn keys_of_searches_that_do_not_fit_are_refused() {
    let commander = Commander::start("no-sizes", &[]);
    for (body, words) in [
        (json!({"find-connections": "1s"}), "find-connections: must be PERCENTILE=TIME"),
        (json!({"find-connect-rate": "p0=1s"}), "find-connect-rate: the percentile"),
        (json!({"connect-rate": 5}), "need find-connections"),
        (json!({"find-connect-rate": "p99=1s", "connections-max": 5}), "need find-connections"),
        (json!({"find-connections": "p99=1s", "rate-step": "1s"}), "need find-rate or find-conn"),
        (json!({"find-connections": "p99=1s", "connect-rate": 0}), "connect-rate: must be at"),
        (json!({"find-connections": "p99=1s", "find-rate": "p99=1s"}), "use one of find-rate"),
        (json!({"find-connections": "p99=1s", "runs": 2}), "runs: not possible with"),
        (
            json!({"find-connections": "p99=1s", "connections-min": 9, "connections-max": 8}),
            "from 1 to the largest, got 9 to 8",
        ),
        (
            json!({"scenario": "HM-R2000", "find-connect-rate": "p99=1s"}),
            "a scenario whose clients connect in one stage",
        ),
    ] {
        let mut wish = body;
        if wish["scenario"].is_null() {
            wish["scenario"] = json!("MB-B4");
        }
        let (status, told) = commander.ask("POST", "/runs", &wish.to_string());
        assert_eq!(status, 400, "{wish}: {told}");
        assert!(told["detail"].as_str().unwrap().contains(words), "{wish}: {told}");
    }
}

#[test]
fn a_run_that_cannot_begin_says_why_and_another_can_follow() {
    let nobody = format!("127.0.0.1:{}", net::free_port().unwrap());
    let commander = Commander::start("failed", &["--agents", &nobody]);
    for id in ["1", "2"] {
        assert_eq!(commander.ask("POST", "/runs", "{\"scenario\": \"MB-B1\"}").0, 201);
        let run = commander.run_over(id);
        assert_eq!(run["run-status"], "FAILED", "{run}");
        assert!(run["error"].as_str().unwrap().contains(&nobody), "{run}");
        let (status, told) = commander.ask("GET", &format!("/runs/{id}/results"), "");
        assert_eq!(status, 404, "{told}");
    }
}

#[test]
fn scenarios_are_kept_up_to_a_limit() {
    let commander = Commander::start("limit", &[]);
    let text = pairs(1, 1, 0, 1);
    for _ in 0..64 {
        assert_eq!(commander.ask("POST", "/scenarios", &text).0, 201);
    }
    let (status, told) = commander.ask("POST", "/scenarios", &text);
    assert!(status == 409 && told["detail"].as_str().unwrap().contains("delete"), "{told}");
    assert_eq!(commander.ask("DELETE", "/scenarios/5", "").0, 204);
    assert_eq!(commander.ask("POST", "/scenarios", &text).1["scenario-id"], 65);
}

#[test]
fn clients_that_say_nothing_or_half_hold_nobody_up() {
    let commander = Commander::start("stall", &[]);
    let connect = || TcpStream::connect(&commander.address).unwrap();
    let halves: Vec<TcpStream> = (0..100)
        .map(|n| {
            let mut stream = connect();
            let half: &[u8] = match n % 3 {
                0 => b"",
                1 => b"GET /comm",
                _ => b"POST /scenarios HTTP/1.1\r\nContent-Length: 1000\r\n\r\nid",
            };
            // It may have been sent away for those that came after it.
            let _ = stream.write_all(half);
            stream
        })
        .collect();
    assert_eq!(commander.ask("GET", "/commander", "").0, 200);
    drop(halves);
}

#[test]
fn a_token_is_asked_for_and_web_pages_are_sent_away() {
    let token = "a-token-of-23-characters";
    let commander = Commander::start_with("token", &[], Some(token));
    let ask = |headers: &str| commander.ask_with("GET", "/commander", "", headers).0;
    assert_eq!(ask(""), 401);
    assert_eq!(ask("Authorization: Bearer a-token-of-23-character\r\n"), 401);
    assert_eq!(ask(&format!("Authorization: Basic {token}\r\n")), 401);
    assert_eq!(ask(&format!("Authorization: Bearer {token}\r\n")), 200);
    let page = format!("Authorization: Bearer {token}\r\nOrigin: http://evil.example\r\n");
    assert_eq!(ask(&page), 403);
    let open = Commander::start("open", &[]);
    let ask = |headers: &str| open.ask_with("GET", "/commander", "", headers).0;
    assert_eq!((ask(""), ask("Origin: http://127.0.0.1\r\n")), (200, 403));
    let refused = Command::new(env!("CARGO_BIN_EXE_flock"))
        .args(["commander", "--http", "0.0.0.0:0"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && told.contains("--token-file"), "{told}");
}

#[test]
fn a_commander_that_is_told_to_end_keeps_the_results_of_what_ran() {
    let broker = Mosquitto::start();
    let mut commander = Commander::start("end", &["--broker", &broker.address]);
    commander.ask("POST", "/scenarios", &pairs(3, 100_000, 0, 50));
    assert_eq!(commander.ask("POST", "/runs", "{\"scenario\": 1}").0, 201);
    commander.run_under_way("1");
    let pid = Pid::from_raw(commander.process.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(commander.process.wait().unwrap().code(), Some(0));
    let names = std::fs::read_dir(&commander.folder).unwrap();
    let json = names.map(|entry| entry.unwrap().path()).find(|p| p.extension().unwrap() == "json");
    let results: Results =
        serde_json::from_str(&std::fs::read_to_string(json.unwrap()).unwrap()).unwrap();
    assert!(results.totals.received_all() > 0 && !results.validity.valid);
}
