//! `flock pub` and `flock sub` in two terminals, ended with Ctrl-C.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up is a test that failed")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use flock::standin::{Mischief, StandIn};
use flock_measure::{LatencyKind, Outcome, Results};
use rustix::process::{Pid, Signal, kill_process};

fn flock(what: &str, broker: &str, args: &[&str], out: &Path) -> Command {
    let (host, port) = broker.rsplit_once(':').unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flock"));
    command.args([what, "-h", host, "-p", port, "--progress", "1", "--name", what, "--out"]);
    command.arg(out).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a run says of its progress, line by line.
struct Progress(BufReader<ChildStderr>);

impl Progress {
    fn of(child: &mut Child) -> Self {
        Self(BufReader::new(child.stderr.take().unwrap()))
    }

    /// The next line of this stage.
    fn next(&mut self, stage: &str) -> String {
        let mut line = String::new();
        while !line.contains(&format!(" {stage} ")) {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "it ended");
        }
        line
    }

    /// Reads on, so that nobody is stopped by a full pipe.
    fn forget(self) {
        std::thread::spawn(move || self.0.lines().count());
    }
}

/// The number behind `word`.
fn told(line: &str, word: &str) -> u64 {
    let behind = line.split(word).nth(1).unwrap();
    behind.split('/').next().unwrap().replace(',', "").parse().unwrap()
}

fn end_with_ctrl_c(mut child: Child) -> Output {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut stdout = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    Output { status: child.wait().unwrap(), stdout, stderr: Vec::new() }
}

fn results(out: &Path, name: &str) -> Results {
    let text = std::fs::read_to_string(out.join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_subscriber_measures_what_a_publisher_in_another_terminal_sends() {
    let out = std::env::temp_dir().join(format!("flock-terminals-{}", std::process::id()));
    let broker = StandIn::start(Mischief::default()).unwrap();
    let mut subscriber =
        flock("sub", &broker.address, &["-t", "a/%i", "-q", "1", "-c", "4"], &out).spawn().unwrap();
    let mut progress = Progress::of(&mut subscriber);
    progress.next("hold");
    let args = ["-t", "a/%i", "-q", "1", "-c", "4", "-L", "200", "-I", "2", "-s", "64"];
    let publisher = flock("pub", &broker.address, &args, &out).output().unwrap();
    // On a busy machine it may have been late, which is no matter here.
    assert!(matches!(publisher.status.code(), Some(0 | 3)), "{publisher:?}");
    let mut received = 0;
    while received < 200 {
        received += told(&progress.next("hold"), "recv ");
    }
    progress.forget();
    let ended = end_with_ctrl_c(subscriber);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(matches!(ended.status.code(), Some(0 | 3)), "{text}");
    assert!(text.contains("200 messages"), "{text}");
    assert!(text.contains("latency, ") && !text.contains("interrupted"), "{text}");
    let results = results(&out, "sub");
    assert_eq!(results.latency(LatencyKind::EndToEnd, Some(1)).unwrap().summary.count, 200);
    assert_eq!(results.run.outcome, Outcome::Completed);
    assert_eq!(results.totals.disconnects, 4, "they say good-bye");
    let _ = std::fs::remove_dir_all(&out);
}

#[test]
fn a_publisher_alone_at_qos_0_is_well_and_knows_nothing_of_delivery() {
    let out = std::env::temp_dir().join(format!("flock-alone-{}", std::process::id()));
    let broker = StandIn::start(Mischief::default()).unwrap();
    let args = ["-t", "a/%i", "-c", "4", "-L", "200", "-I", "2", "-s", "64"];
    let ended = flock("pub", &broker.address, &args, &out).output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(text.contains("unknown               delivery: this run has no subscribers"), "{text}");
    assert!(!text.contains("no message latency") && !text.contains("nothing lost"), "{text}");
    // On a busy machine it may have been late.
    match results(&out, "pub").validity.valid {
        true => assert!(!text.contains("NOT OK") && ended.status.code() == Some(0), "{text}"),
        false => assert_eq!(ended.status.code(), Some(3), "{text}"),
    }
    let _ = std::fs::remove_dir_all(&out);
}

#[test]
fn a_publisher_that_is_ended_with_ctrl_c_has_done_what_it_was_to_do() {
    let out = std::env::temp_dir().join(format!("flock-ctrl-c-{}", std::process::id()));
    let broker = StandIn::start(Mischief::default()).unwrap();
    let args = ["-t", "a/%i", "-q", "1", "-c", "2", "-I", "20"];
    let mut publisher = flock("pub", &broker.address, &args, &out).spawn().unwrap();
    let mut progress = Progress::of(&mut publisher);
    progress.next("publish");
    progress.forget();
    let ended = end_with_ctrl_c(publisher);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(!text.contains("interrupted") && !text.contains("not acknowledged"), "{text}");
    let results = results(&out, "pub");
    assert_eq!(results.run.outcome, Outcome::Completed);
    assert_eq!(results.integrity.unacknowledged, 0);
    let _ = std::fs::remove_dir_all(&out);
}
