//! `flock self-test`: the table of what was caught.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::{FAILED, args, catalogue};
use crate::selftest::Finding;

pub(super) fn self_test(args: &args::SelfTest) -> anyhow::Result<ExitCode> {
    let findings = crate::selftest::self_test(args.short)?;
    catalogue::print(&table(&findings))?;
    let all = findings.iter().all(|finding| finding.is_caught);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn table(findings: &[Finding]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let mut line = |title: &str, caught: &str, told: &str| {
        let _ = writeln!(out, "{title:<38}{caught:<10}{told}");
    };
    line("the broker", "seen", "found in the report");
    for finding in findings {
        line(finding.title, if finding.is_caught { "yes" } else { "NO" }, &finding.told);
    }
    let caught = findings.iter().filter(|finding| finding.is_caught).count();
    let _ = writeln!(out, "{caught} of {} detected", findings.len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_caught_stands_out() {
        let finding = |title, is_caught| Finding { title, is_caught, told: "words".to_owned() };
        let text = table(&[finding("loses", true), finding("lies", false)]);
        assert!(text.contains("loses                                 yes       words"));
        assert!(text.contains("lies                                  NO        words"));
        assert!(text.ends_with("1 of 2 detected\n"));
    }
}
