//! The program as a user meets it: output, files and exit codes.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up is a test that failed")]

use crate::common;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use flock::standin::{Mischief, StandIn};

/// A folder of its own for a test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("flock-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn flock(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flock")).args(args).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn options_without_effect_are_refused() {
    let folder = Folder::new("idle");
    let text = common::pairs(1, 1, 1, 1);
    let once = folder.write("once.toml", &text);
    for (options, words) in [
        ("--duration 5s", "--duration has no effect: no measured stage has a duration"),
        ("--ramp 5s", "--ramp has no effect"),
        ("--warm-up 5s", "--warm-up has no effect"),
        ("--cool-down 5s", "--cool-down has no effect"),
        ("--insecure", "need --tls"),
        ("--ca ca.pem", "need --tls"),
        ("--payload 16", "no Swarm scenario"),
        ("--set x=1", "unknown parameter `x`"),
    ] {
        let mut args = vec!["run", &once, "--broker", "127.0.0.1:1"];
        args.extend(options.split(' '));
        let output = flock(&args);
        assert_eq!(output.status.code(), Some(2), "{options}: {}", err(&output));
        assert!(err(&output).contains(words), "{options}: {}", err(&output));
    }
}

#[test]
fn the_list_has_every_family() {
    let output = flock(&["list"]);
    assert_eq!(output.status.code(), Some(0));
    for id in ["MB-B1", "EG-7", "AIO-FO-255K", "HM-200M", "SOL-1M", "XR-4", "SW-1", "X-10"] {
        assert!(out(&output).lines().any(|line| line.starts_with(&format!("{id} "))), "{id}");
    }
    let solace = out(&flock(&["list", "--family", "solace"]));
    assert_eq!(solace.lines().filter(|line| line.starts_with("SOL-")).count(), 6);
    assert!(!solace.contains("MB-B1"));
}

#[test]
fn the_list_is_searched_by_words() {
    let ids = |words: &[&str]| {
        let output = flock(&[&["list"], words].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        out(&output).lines().filter(|line| line.contains("-")).count()
    };
    let (all, verne, both) = (ids(&[]), ids(&["VERNE"]), ids(&["verne", "1,000 pairs"]));
    assert!(all > verne && verne > both && both > 0, "{all} {verne} {both}");
    let none = flock(&["list", "verne", "solace"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(err(&none).contains("no built-in scenario matches `verne solace`"), "{}", err(&none));
}

const ONE_CONNECT: &str = r#"
id = "ONE"
title = "one client"
[clients.one]
count = 1
[[stage]]
name = "connect"
[[stage.do]]
clients = "one"
steps = [{ connect = {} }]
"#;

#[test]
fn no_load_goes_to_a_broker_that_nobody_named() {
    let folder = Folder::new("unnamed");
    let own = folder.write("unnamed.toml", ONE_CONNECT);
    for (args, option) in [
        (vec!["run", "MB-B1", "--scale", "0.01"], "--broker HOST:PORT"),
        (vec!["run", "EG-2", "--scale", "0.001"], "--broker HOST:PORT"),
        (vec!["run", &own], "--broker HOST:PORT"),
        (vec!["matrix", "XR-LADDER", "--scale", "0.01"], "--broker HOST:PORT"),
        (vec!["conn", "-c", "1"], "-h HOST"),
        (vec!["pub", "-t", "t"], "-h HOST"),
        (vec!["sub", "-t", "t"], "-h HOST"),
    ] {
        let output = flock(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", err(&output));
        let words =
            format!("not started: name the broker with {option}, or confirm 127.0.0.1:1883");
        assert!(err(&output).contains(&words), "{args:?}: {}", err(&output));
    }
}

#[test]
fn a_name_that_is_neither_matrix_nor_scenario_is_told_as_such() {
    for args in [["matrix", "NOPE"].as_slice(), &["matrix", "NOPE", "--axis", "payload=1,2"]] {
        let output = flock(args);
        assert_eq!(output.status.code(), Some(2));
        let words = "neither a matrix (see `flock matrix`) nor a scenario: NOPE: unknown";
        assert!(err(&output).contains(words), "{args:?}: {}", err(&output));
    }
    let axis = flock(&["matrix", "MB-B1"]);
    assert!(err(&axis).contains("a matrix needs an axis"), "{}", err(&axis));
}

#[test]
fn a_file_that_is_no_results_file_is_named() {
    let folder = Folder::new("no-results");
    let file = folder.write("page.html", "<html>");
    let output = flock(&["compare", &file, &file]);
    assert_eq!(output.status.code(), Some(2));
    let words = format!("{file} is not a results file of flock");
    assert!(err(&output).contains(&words), "{}", err(&output));
}

#[test]
fn a_broker_that_a_file_names_is_named() {
    let broker = StandIn::start(Mischief::default()).unwrap();
    let folder = Folder::new("named");
    let text = format!("{ONE_CONNECT}[brokers.main]\naddresses = \"{}\"\n", broker.address);
    let output = flock(&["run", &folder.write("named.toml", &text), "--out", &folder.path()]);
    assert!(!err(&output).contains("not started"), "{}", err(&output));
    assert!(out(&output).contains("connections"), "{}", out(&output));
}

#[test]
fn show_prints_a_source_that_runs_as_a_file() {
    let folder = Folder::new("show");
    let source = out(&flock(&["show", "MB-B3", "--source"]));
    let file = folder.write("mine.toml", &source);
    let shown = flock(&["show", &file]);
    assert_eq!(shown.status.code(), Some(0), "{}", err(&shown));
    assert!(out(&shown).contains("share one subscription"));
}

#[test]
fn bad_input_names_file_line_and_fix_and_exits_with_2() {
    let folder = Folder::new("bad");
    let file = folder.write("bad.toml", "id = \"a\"\ntitle = \"b\"\n[clients.x]\ncout = 5\n");
    let output = flock(&["run", &file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("bad.toml:4:1: unknown key `cout`"), "{}", err(&output));
    assert!(err(&output).contains("did you mean `count`?"));
    let unknown = flock(&["run", "MB-B9"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(err(&unknown).contains("did you mean `MB-B"), "{}", err(&unknown));
    for args in [
        &["run", "MB-B1", "--scale", "0"][..],
        &["pub", "-q", "7", "-t", "x"],
        &["run", "MB-B1", "--duration", "10"],
    ] {
        assert_eq!(flock(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_broker_that_is_not_there_is_named_before_the_run() {
    let folder = Folder::new("absent");
    let broker = format!("127.0.0.1:{}", net::free_port().unwrap());
    let place = ["--broker", &broker, "--out", &folder.path()];
    let (host, port) = broker.split_once(':').unwrap();
    let quick = ["pub", "-h", host, "-p", port, "-t", "a", "-c", "1", "--out", &folder.path()];
    for args in [&[&REFUSED[..], &place].concat()[..], &quick] {
        let output = flock(args);
        assert_eq!(output.status.code(), Some(2), "{}{}", out(&output), err(&output));
        // What, where, and what to do about it.
        for words in ["not started: no broker listens on", &broker, "--broker-command"] {
            assert!(err(&output).contains(words), "{}", err(&output));
        }
        assert_eq!(out(&output), "", "nothing was run");
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "no results of nothing");
    }
}

#[test]
fn metrics_that_are_not_there_are_told_before_the_run() {
    let folder = Folder::new("unwatched");
    let stand_in = StandIn::start(Mischief::default()).unwrap();
    let url = format!("http://127.0.0.1:{}/metrics", net::free_port().unwrap());
    let place = ["--broker", &stand_in.address, "--out", &folder.path(), "--metrics", &url];
    let output = flock(&[&REFUSED[..], &place].concat());
    assert_eq!(output.status.code(), Some(2), "{}{}", out(&output), err(&output));
    for words in ["not started", &url, "--metrics"] {
        assert!(err(&output).contains(words), "{}", err(&output));
    }
}

#[test]
fn clients_that_try_again_may_be_there_before_their_broker() {
    let folder = Folder::new("retries");
    let port = net::free_port().unwrap().to_string();
    let output = flock(&[
        "conn",
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-c",
        "1",
        "--num-retry-connect",
        "1",
        "-i",
        "1",
        "--duration",
        "1s",
        "--out",
        &folder.path(),
        "--quiet",
    ]);
    assert_eq!(output.status.code(), Some(1), "{}{}", out(&output), err(&output));
    assert!(err(&output).contains("no broker listens on"), "{}", err(&output));
    assert!(out(&output).contains("no client could connect"), "{}", out(&output));
}

#[test]
fn a_broker_that_refuses_everybody_fails_the_run_and_keeps_the_results() {
    let folder = Folder::new("refused");
    let stand_in = refusing();
    let broker = stand_in.address.clone();
    let output = flock(&[
        "run",
        "MB-B1",
        "--broker",
        &broker,
        "--scale",
        "0.005",
        "--duration",
        "1s",
        "--ramp",
        "100ms",
        "--out",
        &folder.path(),
        "--name",
        "refused",
        "--quiet",
    ]);
    assert_eq!(output.status.code(), Some(1), "{}{}", out(&output), err(&output));
    assert!(out(&output).contains("no client could connect"), "{}", out(&output));
    for ending in ["json", "html", "md", "csv"] {
        assert!(folder.0.join(format!("refused.{ending}")).exists(), "{ending}");
    }
    let results = folder.0.join("refused.json").display().to_string();
    let again = Folder::new("again");
    assert_eq!(flock(&["report", &results, "--out", &again.path()]).status.code(), Some(0));
    assert!(again.0.join("refused.html").exists());
    let page = again.0.join("both.html").display().to_string();
    let compared = flock(&["compare", &results, &results, "--out", &page]);
    assert_eq!(compared.status.code(), Some(0), "{}", err(&compared));
    assert!(std::fs::read_to_string(&page).unwrap().contains("MB-B1"));
}

/// A broker that is there, and lets nobody in.
fn refusing() -> StandIn {
    StandIn::start(Mischief { refuse: true, ..Mischief::default() }).unwrap()
}

/// A short run, with whatever broker.
const REFUSED: [&str; 9] =
    ["run", "MB-B1", "--scale", "0.005", "--duration", "1s", "--ramp", "100ms", "--quiet"];

#[test]
fn a_place_that_takes_nothing_is_told_before_the_run() {
    let broker = format!("127.0.0.1:{}", net::free_port().unwrap());
    let output = flock(&[&REFUSED[..], &["--broker", &broker, "--out", "/proc/nowhere"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", out(&output));
    assert!(err(&output).contains("/proc/nowhere") && err(&output).contains("--out"));
    assert_eq!(out(&output), "", "nothing was run");
}

#[test]
fn a_disk_that_is_full_at_the_end_takes_no_figure_away() {
    let folder = Folder::new("full");
    let stand_in = refusing();
    let broker = stand_in.address.clone();
    // No file may have more than a few kilobytes, as if there were no more room.
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 9; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_flock")]);
    shell.args(REFUSED).args(["--broker", &broker, "--out", &folder.path(), "--name", "full"]);
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("cannot write"), "{}", err(&output));
    for figure in ["no client could connect", "duration", "connections"] {
        assert!(out(&output).contains(figure), "{}", out(&output));
    }
    let left = std::fs::read_dir(&folder.0).unwrap().flatten();
    let halves = left.filter(|file| file.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(halves.count(), 0);
    assert!(!folder.0.join("full.html").exists(), "half a page is of no use");
    // What has room is there.
    assert!(folder.0.join("full.csv").exists());
}

#[test]
fn results_are_kept_though_nobody_reads_what_is_said() {
    let folder = Folder::new("unread");
    let stand_in = refusing();
    let broker = stand_in.address.clone();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flock"));
    command.args(&REFUSED[..REFUSED.len() - 1]);
    command.args(["--broker", &broker, "--out", &folder.path(), "--name", "unread"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // As `| head` does when it has seen enough.
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(1), "no client could connect");
    assert!(folder.0.join("unread.json").exists() && folder.0.join("unread.html").exists());
}

#[test]
fn a_file_that_is_no_results_is_refused() {
    let folder = Folder::new("garbage");
    let file = folder.write("x.json", "{\"format\": 1");
    let output = flock(&["report", &file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("not a results file"), "{}", err(&output));
}

#[test]
fn the_self_test_sees_what_a_broker_does_wrong() {
    let output = flock(&["self-test", "--short"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    let last = out(&output).lines().last().unwrap().to_owned();
    let numbers: Vec<u64> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1] && numbers[0] >= 10, "{last}");
}

#[test]
fn brokers_that_are_missing_are_named_before_anything_is_run() {
    let folder = Folder::new("missing");
    let broker = |name: &str| {
        let text = format!(
            "name = \"{name}\"\ntitle = \"The {name}\"\ninstall = \"look under the sofa\"\n\
             programs = [\"no-such-program-anywhere\"]\ncommand = [\"{{program}}\"]\n"
        );
        folder.write(&format!("{name}.toml"), &text)
    };
    let both = format!("{},{}", broker("one"), broker("other"));
    let output = flock(&["versus", "MB-B1", "--brokers", &both, "--out", &folder.path()]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    for words in ["The one is not installed: look under the sofa", "The other is not installed"] {
        assert!(err(&output).contains(words), "{}", err(&output));
    }
    assert!(!err(&output).contains("against"), "no run was begun: {}", err(&output));
}

/// A run of the stand-in broker, `runs` times, whose results are in the folder.
fn repeated(folder: &Folder, address: &str, runs: &str, name: &str) -> Output {
    let scenario = folder.write("mine.toml", REPEATED);
    let out = folder.path();
    flock(&["run", &scenario, "--broker", address, "--out", &out, "--name", name, "--runs", runs])
}

const REPEATED: &str = r#"
id = "mine"
title = "a message each"
[clients.c]
count = 4
[topics.t]
names = "t/{i}"
count = 4
[subscriptions.s]
topics = "t"
[[stage]]
name = "connect"
do = [{ clients = "c", steps = [{ connect = {} }, { subscribe = { to = "s" } }] }]
[[stage]]
name = "publish"
measured = true
do = [{ clients = "c", steps = [{ publish = { to = "t", count = 20, rate = "100/s", payload = 16 } }] }]
"#;

#[test]
fn runs_are_repeated_and_told_and_compared_together() {
    let folder = Folder::new("repeated");
    let broker = StandIn::start(Mischief::default()).unwrap();
    let output = repeated(&folder, &broker.address, "3", "a");
    // Whether each is valid is up to the machine.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", err(&output));
    let table = out(&output);
    assert!(table.contains(" of 3\n"), "{table}");
    let files: Vec<String> = (1..=3).map(|n| format!("{}/a-{n}.json", folder.path())).collect();
    let other = repeated(&folder, &broker.address, "1", "b");
    assert!(err(&other).contains("a single run"), "{}", err(&other));
    let b = format!("{}/b.json", folder.path());
    let compared = out(&flock(&["compare", &files[0], &files[1], &files[2], &b]));
    assert!(compared.contains(" of 3 ") && compared.contains(" of 1\n"), "{compared}");
    let joined = out(&flock(&["compare", &files[..2].join(","), &[&files[2], &*b].join(",")]));
    assert_eq!(joined.matches(" of 2").count(), 2, "{joined}");
    let single = out(&flock(&["compare", &files[0], &b]));
    assert!(single.contains("one run of each"), "{single}");
}

#[test]
fn help_and_completions() {
    assert!(out(&flock(&["--help"])).contains("flock run MB-B1"));
    assert!(out(&flock(&["pub", "--help"])).contains("%rand_N"));
    assert!(out(&flock(&["completions", "bash"])).contains("complete -F"));
    let folder = Folder::new("man");
    let installed = folder.0.join("quelea-flock");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_flock"), &installed).unwrap();
    let named = Command::new(&installed).args(["completions", "bash"]).output().unwrap();
    assert!(out(&named).contains("default quelea-flock"), "not for util-linux's flock");
    let written = Command::new(&installed).arg("man").arg(&folder.0).output().unwrap();
    assert!(written.status.success());
    let page = std::fs::read_to_string(folder.0.join("quelea-flock-run.1")).unwrap();
    assert!(page.starts_with(".ie") && page.contains("duration"), "{page}");
    assert!(!folder.0.join("flock.1").exists());
}
