//! What the reports say of this build: its commit and profile.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FLOCK_COMMIT");
    let profile = profile();
    println!("cargo:rustc-env=FLOCK_PROFILE={profile}");
    println!("cargo:rustc-env=FLOCK_COMMIT={}", commit(&profile));
}

/// The folder below `target` that is built into: the name of the profile, `debug` for `dev`.
fn profile() -> String {
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    // target/PROFILE/build/flock-HASH/out
    let folder = out.ancestors().nth(3).and_then(Path::file_name);
    folder.map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// That of the sources, with a `+` if they were changed since. A debug build does not ask: it is
/// no tool to measure with, and would be built anew after every commit.
fn commit(profile: &str) -> String {
    if let Ok(given) = std::env::var("FLOCK_COMMIT") {
        return given;
    }
    if profile == "debug" {
        return String::new();
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return String::new() };
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
