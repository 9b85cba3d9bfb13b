//! `flock matrix` from the command line to its page.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use std::process::{Command, Output};

use common::Mosquitto;
use flock_measure::Results;

fn flock(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flock")).args(args).output().unwrap()
}

#[test]
fn every_combination_is_run_and_one_page_has_them_all() {
    let broker = Mosquitto::start();
    let folder = std::env::temp_dir().join(format!("flock-matrix-{}", std::process::id()));
    let out = folder.display().to_string();
    let done = flock(&[
        "matrix",
        "MB-B1",
        "--axis",
        "payload=16,2K",
        "--axis",
        "qos=0,1",
        "--scale",
        "0.01",
        "--duration",
        "1s",
        "--ramp",
        "100ms",
        "--broker",
        &broker.address,
        "--out",
        &out,
        "--name",
        "m",
        "--quiet",
    ]);
    // A machine that is busy with other things may leave no run valid.
    assert!(matches!(done.status.code(), Some(0 | 3)), "{done:?}");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let runs: Vec<Results> =
        (1..=4).map(|n| Results::parse(&read(&format!("m-{n}-1.json"))).unwrap()).collect();
    let (page, csv) = (read("m.html"), read("m.csv"));
    std::fs::remove_dir_all(&folder).unwrap();
    let published: Vec<[bool; 2]> =
        runs.iter().map(|run| [run.totals.published[0] > 0, run.totals.published[1] > 0]).collect();
    assert_eq!(published, [[true, false], [false, true], [true, false], [false, true]]);
    let sizes = runs.iter().map(|run| run.totals.published_bytes / run.totals.published_all());
    assert_eq!(sizes.collect::<Vec<_>>(), [16, 16, 2_048, 2_048]);
    assert_eq!(runs[2].scenario.overrides["axis payload"], "2K");
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!(rows.len(), 5);
    assert!(rows[0].starts_with("payload,qos,run,valid,") && rows[4].starts_with("2K,1,1,"));
    for part in ["m-4-1.html", "MB-B1 over payload and qos", "payload: 16, 2K; qos: 0, 1"] {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn what_cannot_be_run_is_told_before_anything_is() {
    let error = |args: &[&str]| {
        let done = flock(args);
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    assert!(error(&["matrix", "MB-B1"]).contains("--axis"));
    assert!(error(&["matrix", "MB-B1", "--axis", "qos=0,7"]).contains("qos 7"));
    assert!(error(&["matrix", "MB-B1", "--axis", "size=1"]).contains("unknown axis `size`"));
    let list = flock(&["matrix"]);
    let text = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(text.contains("XR-LADDER") && text.contains("15 runs"), "{text}");
}
