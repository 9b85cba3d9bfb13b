//! Which build a program is: version, commit and profile, for `--version`, metrics and reports.
//!
//! A build script calls [`emit`]. The program reads `env!("BUILD_COMMIT")` (12 hexadecimal digits,
//! with a `+` if the sources were changed since, or `unknown`), `env!("BUILD_PROFILE")` (the folder
//! below `target`) and `env!("BUILD_VERSION")` (all of it, for people).

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the commit where there is no repository: a package's sources, for example.
pub const GIVEN: &str = "BUILD_COMMIT";

/// Prints the instructions for cargo. `version` is that of the program's package.
pub fn emit(version: &str) {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={GIVEN}");
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let profile = profile(&out);
    let commit = std::env::var(GIVEN).unwrap_or_else(|_| commit(&profile));
    println!("cargo:rustc-env=BUILD_COMMIT={commit}");
    println!("cargo:rustc-env=BUILD_PROFILE={profile}");
    println!("cargo:rustc-env=BUILD_VERSION={version} (commit {commit}, profile {profile})");
}

/// The folder below `target` that is built into: the name of the profile, `debug` for `dev`.
fn profile(out: &Path) -> String {
    // target/PROFILE/build/NAME-HASH/out
    let folder = out.ancestors().nth(3).and_then(Path::file_name);
    folder.map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A debug build does not ask: nobody measures with it, and it would be compiled again after every
/// commit.
fn commit(profile: &str) -> String {
    let asked = if profile == "debug" { None } else { git(&["rev-parse", "--short=12", "HEAD"]) };
    let Some(commit) = asked else { return "unknown".to_owned() };
    // The log of HEAD grows with every commit, checkout and rebase.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let mark = if changed.is_some_and(|files| !files.is_empty()) { "+" } else { "" };
    format!("{commit}{mark}")
}

fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_the_folder_below_target() {
        let out = Path::new("/src/target/quick/build/flock-0123456789abcdef/out");
        assert_eq!(profile(out), "quick");
        assert_eq!(profile(Path::new("")), "unknown");
    }

    #[test]
    fn a_debug_build_names_no_commit() {
        assert_eq!(commit("debug"), "unknown");
    }
}
