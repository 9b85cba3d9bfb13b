//! Brokers that are not installed: in a container, or at an address.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::Mosquitto;
use flock_measure::Results;

/// Writes down what it is asked for; what it runs is mosquitto, on the port that is the last word.
const DOCKER: &str = r#"#!/bin/sh
echo "$*" >> "$FAKE/asked"
case "$1" in
image) exit 1 ;;
run)
    echo $$ > "$FAKE/pid"
    for word; do port=$word; done
    exec mosquitto -p "$port"
    ;;
inspect) cat "$FAKE/pid" ;;
esac
"#;

const BOXED: &str = r#"
name = "boxed"
title = "Boxed"
install = "install it"
note = "as it comes"
untested = true
[env]
BOTH = "ours"
CORES = "{cores}"
[container]
image = "example/boxed:1.2.3"
entrypoint = "boxed"
options = ["--init"]
command = ["--config", "{dir}/boxed.conf", "--port", "{port}"]
env = { BOTH = "its own" }
pass = ["BOXED_LICENSE"]
[[file]]
path = "boxed.conf"
text = "port {port}\n"
"#;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("flock-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn versus(brokers: &str, folder: &Path, path: &str) -> Output {
    let arguments = ["versus", "MB-B1", "--brokers", brokers, "--scale", "0.01"];
    Command::new(env!("CARGO_BIN_EXE_flock"))
        .args(arguments)
        .args(["--ramp", "100ms", "--duration", "1s", "--rounds", "1", "--quiet", "--out"])
        .arg(folder.join("out"))
        .env("PATH", path)
        .env("FAKE", folder)
        .output()
        .unwrap()
}

fn results(folder: &Path, name: &str) -> Results {
    let text = std::fs::read_to_string(folder.join("out").join(name)).unwrap();
    Results::parse(&text).unwrap()
}

#[test]
fn a_broker_that_is_not_installed_runs_in_its_container() {
    let folder = folder("boxed");
    let program = folder.join("docker");
    std::fs::write(&program, DOCKER).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = folder.join("boxed.toml");
    std::fs::write(&file, BOXED).unwrap();
    let own = std::env::var("PATH").unwrap();
    let path = format!("{}:{own}:/usr/sbin:/usr/local/sbin", folder.display());
    let done = versus(&file.display().to_string(), &folder, &path);
    // A machine that is busy with other things may leave no run valid.
    assert!(matches!(done.status.code(), Some(0 | 3)), "{done:?}");
    let results = results(&folder, "MB-B1-boxed-1.json");
    let asked = std::fs::read_to_string(folder.join("asked")).unwrap();
    let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
    let page = std::fs::read_to_string(folder.join("out/MB-B1.html")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    let asked: Vec<&str> = asked.lines().collect();
    let port = results.broker.addresses[0].rsplit_once(':').unwrap().1;
    let name = format!("flock-boxed-{port}");
    assert_eq!(asked[0], "image inspect example/boxed:1.2.3");
    assert_eq!(asked[1], "pull --quiet example/boxed:1.2.3");
    let start = format!("run --rm --name {name} --network host --cpuset-cpus 0-");
    assert!(asked[2].starts_with(&start), "{}", asked[2]);
    for part in [
        "--env BOTH=its own --env CORES=",
        "--env BOXED_LICENSE --entrypoint boxed --init example/boxed:1.2.3 --config ",
        &format!("/boxed.conf --port {port}"),
        " --volume ",
    ] {
        assert!(asked[2].contains(part), "{part}: {}", asked[2]);
    }
    assert_eq!(asked[3], format!("inspect --format {{{{.State.Pid}}}} {name}"));
    assert_eq!(asked.last(), Some(&format!("rm --force {name}").as_str()));

    assert_eq!(results.broker.pid, pid.trim().parse().ok(), "the broker is what is watched");
    assert_eq!(results.broker.version, "1.2.3");
    assert!(results.totals.received_all() > 0);
    assert!(results.broker_load.unwrap().memory_bytes_max > 0);
    assert!(page.contains("as it comes; this project has not run it"), "{page}");
}

#[test]
fn a_broker_at_an_address_is_measured_where_it_runs() {
    let broker = Mosquitto::start();
    let folder = folder("remote");
    let path = std::env::var("PATH").unwrap();
    let done = versus(&format!("emqx={}", broker.address), &folder, &path);
    assert!(matches!(done.status.code(), Some(0 | 3)), "{done:?}");
    let results = results(&folder, "MB-B1-emqx-1.json");
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(results.broker.addresses.join(","), broker.address);
    assert!(results.totals.received_all() > 0, "{:?}", results.errors);
    let source = results.broker_load.map(|load| load.source);
    assert!(source.is_none_or(|words| words.contains("found by its socket")));
    assert_eq!(results.broker.cpus, None);
}

#[test]
fn a_broker_that_cannot_be_had_says_how_to_get_it_and_how_to_give_an_address() {
    let folder = folder("missing");
    let errors = |brokers: &str| {
        let done = versus(brokers, &folder, "/nowhere");
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let (emqx, tbmq, wrong) = (errors("emqx"), errors("tbmq"), errors("emqx=here"));
    std::fs::remove_dir_all(&folder).unwrap();
    for part in ["EMQX is not installed", "docker or podman for emqx/emqx:", "emqx=HOST:PORT"] {
        assert!(emqx.contains(part), "{part}: {emqx}");
    }
    assert!(tbmq.contains("Kafka") && tbmq.contains("tbmq=HOST:PORT"), "{tbmq}");
    assert!(wrong.contains("NAME=HOST:PORT") && wrong.contains("emqx=here"), "{wrong}");
}
