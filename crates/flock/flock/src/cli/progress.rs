//! The line that tells how a run goes: in place on a terminal, one below the other in a pipe.

use std::io::{IsTerminal, Write};

use super::say::note;
use crate::engine::{self, Progress};
use flock_measure::text::{bytes, count, micros, number, seconds};

pub(super) struct ProgressLine {
    is_terminal: bool,
    interval_secs: u32,
    quiet: bool,
    /// Whether the terminal's line is written.
    is_shown: bool,
}

impl ProgressLine {
    pub(super) fn new(interval_secs: Option<u32>, quiet: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let default = if is_terminal { 1 } else { INTERVAL_PIPED_SECS };
        Self {
            is_terminal,
            interval_secs: interval_secs.unwrap_or(default).max(1),
            quiet,
            is_shown: false,
        }
    }

    pub(super) fn show(&mut self, progress: &Progress<'_>) {
        if self.quiet || !(progress.second.at_secs + 1).is_multiple_of(self.interval_secs) {
            return;
        }
        let line = line(progress);
        let mut out = std::io::stderr().lock();
        // Progress that cannot be written is not worth ending a run for.
        let _ = if self.is_terminal {
            write!(out, "{}", in_place(&line))
        } else {
            writeln!(out, "{line}")
        };
        let _ = out.flush();
        self.is_shown = true;
    }

    /// Leaves the line.
    pub(super) fn end(&mut self) {
        if self.is_terminal && self.is_shown {
            note!("");
            self.is_shown = false;
        }
    }
}

/// In place of the last line. The terminal cuts off what is too wide for it: a line that it wraps
/// would stay.
fn in_place(line: &str) -> String {
    format!("{NO_WRAP}\r{line}{ERASE_REST}{WRAP}")
}

fn line(progress: &Progress<'_>) -> String {
    let second = progress.second;
    let at_secs = f64::from(second.at_secs) + 1.0;
    let mut parts = vec![
        format!("{:>6}{} {:<12}", seconds(at_secs), left(at_secs, progress), doing(progress)),
        format!("conn {}/{}", count(second.connections), count(progress.clients)),
        format!("pub {}/s", number(second.published as f64)),
        format!("recv {}/s", number(second.received as f64)),
    ];
    let latency =
        [(&second.end_to_end, "e2e"), (&second.publish_ack, "ack"), (&second.connect, "connect")];
    if let Some((point, name)) = latency.into_iter().find(|(point, _)| point.count > 0) {
        parts.push(format!(
            "{name} p50 {} p99 {}",
            micros(point.p50_us as f64),
            micros(point.p99_us as f64)
        ));
    }
    if second.backlog > 0 {
        parts.push(format!("backlog {}", count(second.backlog.unsigned_abs())));
    }
    let failed = progress.totals.connects_failed;
    // Whether what is missing was owed, to clients that come and go, only the end can tell.
    for (n, what) in
        [(second.lost_so_far, "missing"), (second.duplicated_so_far, "dup"), (failed, "failed")]
    {
        if n > 0 {
            parts.push(format!("{what} {}", count(n)));
        }
    }
    if let Some(cpu) = progress.broker_cpu_percent {
        parts.push(format!("broker {} %", number(cpu.round())));
    }
    if let Some(memory) = progress.broker_memory_bytes {
        parts.push(bytes(memory as f64));
    }
    parts.join("  ")
}

/// ` of 75 s, 40 s left`; with a `+` where more may come of what is not bound by time. Behind the
/// plan ` (75 s planned)`: how long what is under way still takes is for the broker to say.
fn left(at_secs: f64, progress: &Progress<'_>) -> String {
    let all_secs = progress.length.secs();
    let more = if progress.length.is_open { "+" } else { "" };
    let all = seconds(all_secs);
    if all_secs <= 0.0 {
        String::new()
    } else if at_secs > all_secs {
        format!(" ({all}{more} planned)")
    } else {
        format!(" of {all}{more}, {}{more} left", seconds((all_secs - at_secs).round()))
    }
}

/// The stage, or what goes on between two.
fn doing<'a>(progress: &Progress<'a>) -> &'a str {
    match progress.stage {
        engine::DRAIN => "waiting for the last messages",
        stage => stage,
    }
}

const INTERVAL_PIPED_SECS: u32 = 5;
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
const ERASE_REST: &str = "\x1b[K";

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::{LatencyPoint, Second, Totals};
    use flock_model::Length;

    #[test]
    fn the_line_tells_the_essentials() {
        let second = Second {
            at_secs: 34,
            connections: 2_000,
            published: 1_000,
            received: 998,
            backlog: 2,
            lost_so_far: 1,
            end_to_end: LatencyPoint {
                count: 998,
                p50_us: 310,
                p99_us: 1_580,
                ..LatencyPoint::default()
            },
            ..Second::default()
        };
        let progress = Progress {
            stage: "publish",
            second: &second,
            totals: &Totals::default(),
            clients: 2_000,
            agents: &[],
            length: Length { us: 75_000_000, is_open: false },
            broker_cpu_percent: Some(34.2),
            broker_memory_bytes: Some(12_500_000),
        };
        assert_eq!(
            line(&progress),
            "  35 s of 75 s, 40 s left publish       conn 2,000/2,000  pub 1,000/s  recv 998/s  e2e p50 310 us p99 1.58 ms  backlog 2  missing 1  broker 34 %  12.5 MB"
        );
        let open = Progress { length: Length { us: 20_000_000, is_open: true }, ..progress };
        assert!(line(&open).starts_with("  35 s (20 s+ planned) publish"), "{}", line(&open));
        let length = Length { us: 33_000_000, is_open: false };
        let drained = Progress { stage: engine::DRAIN, length, ..progress };
        let begins = "  35 s (33 s planned) waiting for the last messages  conn";
        assert!(line(&drained).starts_with(begins), "{}", line(&drained));
        let endless = Progress { length: Length { us: 0, is_open: true }, ..progress };
        assert!(line(&endless).starts_with("  35 s publish"), "{}", line(&endless));
    }
}
